"""Chapter 2's pictures and widgets: the numbers behind them, and what moving a control says."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from minipaged.plots import ch02 as pictures
from minipaged.shapes import split_heads
from minipaged.widgets.ch02 import HEADS, NUMBERS, TOKENS, memory_panel, shapes_panel


def test_the_memory_panel_follows_its_controls():
    panel = memory_panel()
    assert "1×4 + 2×12 + 3×1 = 31 in memory" in panel.sentence
    panel.controls["head"].value = 2
    assert "2×4 + 2×12 + 3×1 = 35" in panel.sentence
    before = panel.image.value
    panel.controls["layout"].value = "copy"
    assert "strides (16, 4, 1)" in panel.sentence and "2×16 + 2×4 + 3×1 = 43" in panel.sentence
    assert panel.image.value != before


def test_the_memory_panels_offsets_are_those_of_real_tensors():
    projected = torch.arange(TOKENS * HEADS * NUMBERS).view(1, TOKENS, HEADS * NUMBERS)
    view = split_heads(projected, HEADS)[0]
    panel = memory_panel()
    for cell, offset in panel.picture.data["offsets"].items():
        assert view[cell] == offset  # the numbers are their own places
    panel.controls["layout"].value = "copy"
    assert panel.picture.data["strides"] == view.contiguous().stride()


def test_every_position_of_the_memory_panels_controls_can_be_drawn():
    panel = memory_panel()
    for layout in ("view", "copy"):
        panel.controls["layout"].value = layout
        for name, last in (("head", HEADS - 1), ("token", TOKENS - 1), ("number", NUMBERS - 1)):
            panel.controls[name].value = 0
            panel.controls[name].value = last
    assert panel.sentence.endswith(f"= {HEADS * TOKENS * NUMBERS - 1} in memory.")


def test_the_shapes_panel_says_what_query_heads_do_not_change():
    panel = shapes_panel()
    assert "(1, 3, 100, 64): 19,200 numbers, 37.5 KiB in float16" in panel.sentence
    panel.controls["heads"].value = 18
    assert "(1, 3, 100, 64): 19,200 numbers, 37.5 KiB" in panel.sentence and "6 query heads" in panel.sentence
    panel.controls["kv_heads"].value = 9
    panel.controls["length"].value = 200
    panel.controls["dtype"].value = "float32"
    assert "(1, 9, 200, 64): 115,200 numbers, 450 KiB in float32" in panel.sentence


def test_uneven_groups_are_a_sentence_and_the_picture_stays():
    panel = shapes_panel()
    before = panel.image.value
    panel.controls["kv_heads"].value = 4
    assert panel.sentence == "9 query heads cannot form equal groups for 4 KV heads; choose 1, 3, 9."
    assert panel.image.value == before
    panel.controls["kv_heads"].value = 9
    assert "read by one query head" in panel.sentence


def test_the_k_tensor_of_the_article():
    drawn = pictures.kv_shapes(1, 100, 32, 32, 128, "float32")
    assert drawn.data["bytes"] == [4 * 409_600] * 3
    assert "409,600 numbers, 1.562 MiB in float32" in drawn.sentence


def test_one_embedding_is_drawn_with_rank_1_however_long():
    drawn = pictures.ranks([("a temperature", ()), ("one embedding", (576,)), ("K", (1, 3, 6, 64))])
    assert drawn.data == [("a temperature", 0), ("one embedding", 1), ("K", 4)]
    assert "one embedding: rank 1, shape (576,)" in drawn.sentence


def test_a_transposed_cell_stands_where_it_stood():
    plain = pictures.cell_in_memory((3, 4), None, (1, 2), name="a")
    turned = pictures.cell_in_memory((4, 3), (1, 4), (2, 1), name="a.T")
    assert plain.data["offset"] == turned.data["offset"] == 6
    assert "strides (1, 4)" in pictures.cell_in_memory((4, 3), (1, 4), name="a.T").sentence


def test_the_split_picture_counts_strangers():
    labels = np.array([[100 * token + head for head in range(3) for _ in range(2)] for token in range(3)])
    right, wrong = labels.reshape(3, 3, 2).transpose(1, 0, 2), labels.reshape(3, 3, 2)
    assert pictures.head_split(wrong, right).data == {"wrong": 12, "right": 0}
    heads_swapped = right[::-1]  # every token in its place, two heads of three not
    assert pictures.head_split(heads_swapped, right).data == {"wrong": 12, "right": 0}
    assert pictures.head_split(right, wrong).data == {"wrong": 0, "right": 12}


@pytest.mark.parametrize(("pair", "reads"), [((9, 3), [0, 0, 0, 1, 1, 1, 2, 2, 2]), ((4, 1), [0] * 4)])
def test_query_heads_are_drawn_in_groups_of_neighbours(pair, reads):
    assert pictures.head_groups([pair]).data == [reads]


def test_a_word_ends_in_both_caches():
    drawn = pictures.word_to_kv(" cat", 2644, 1, 6, 5, 576, 9, 3, 64)
    assert drawn.data == {"q": 576, "k": 192, "v": 192, "cache": (1, 3, 6, 64)}
    assert "row 1 of every head" in drawn.sentence


def test_reading_times_are_bytes_over_bandwidth():
    drawn = pictures.read_times({"near": 2000.0, "far": 32.0}, 2 * 10**9, "near")
    assert drawn.data == {"near": 1.0, "far": 62.5}
    assert "far needs 62 times as long as near" in drawn.sentence
