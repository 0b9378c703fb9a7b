"""Chapter 7's widgets answer in words what they draw."""

from __future__ import annotations

import pytest

pytest.importorskip("ipywidgets")

from minipaged.block_manager import blocks_needed
from minipaged.plots.ch07 import mean_blocks, token_labels
from minipaged.widgets.ch07 import choose_block_size, history, pour_text


class Words:
    """A tokenizer of words, so that the test needs no model."""

    def __call__(self, text):
        return type("Encoding", (), {"input_ids": list(range(len(text.split())))})

    def decode(self, ids):
        return f" w{ids[0]}"


def test_a_longer_text_takes_another_block():
    panel = pour_text(Words(), "one two three", list(range(40)))
    assert "has 3 tokens in 1 block of 16, block table [0]; its last block has 13 empty slots" in panel.sentence
    panel.controls["text"].value = " ".join(["word"] * 17)
    assert "has 17 tokens in 2 blocks of 16, block table [0, 1]; its last block has 15 empty slots" in panel.sentence
    panel.controls["text"].value = ""
    assert "has 1 token in 1 block of 16" in panel.sentence


def test_steps_fill_slots_and_take_blocks_between_those_of_the_neighbour():
    panel = pour_text(Words(), "word " * 16, list(range(40)))
    panel.controls["steps"].value = 1
    assert "17 tokens in 2 blocks of 16, block table [0, 3]; its last block has 15 empty slots" in panel.sentence
    assert "Position 16 is in logical block 1 at offset 0: physical block 3, slot 48." in panel.sentence
    panel.controls["steps"].value = 17
    assert "block table [0, 3, 5]" in panel.sentence


def test_a_neighbour_that_ends_gives_its_blocks_back():
    panel = pour_text(Words(), "word " * 16, list(range(40)))
    panel.controls["steps"].value = 20
    assert "4 of the pool's 10 blocks are free" in panel.sentence
    panel.controls["free"].value = True
    assert "7 of the pool's 10 blocks are free" in panel.sentence


def test_dealing_anew_changes_the_table_and_nothing_else():
    panel = pour_text(Words(), "word " * 30, list(range(40)))
    before = panel.sentence.split("block table")[0]
    panel.controls["order"].value = 3
    assert panel.sentence.startswith(before) and "block table [0, 1]" not in panel.sentence


def test_a_text_too_long_for_the_pool_is_a_sentence():
    panel = pour_text(Words(), "one", [])
    panel.controls["text"].value = "word " * 300
    assert "needs 19 blocks for 300 tokens" in panel.sentence


def test_freeing_at_step_0_frees_too():
    assert history(5, 0, True, 0, 16).seq_ids == [0]


def test_choosing_a_block_size():
    panel = choose_block_size()
    panel.controls["tokens"].value = 78
    panel.controls["size"].value = 256
    assert "178.0 empty slots and 1.0 table entries" in panel.sentence  # 1 to 155 tokens: one block each
    assert "30.5% of the slots are used" in panel.sentence
    panel.controls["size"].value = 1
    assert "100.0%" in panel.sentence


def test_labels_show_what_the_font_has_and_ids_otherwise():
    class Odd(Words):
        def decode(self, ids):
            return ["今", " longer than six", "\n"][ids[0]]

    assert token_labels(Odd(), [0, 1, 2]) == ["#0", "·long…", "\\n"]


@pytest.mark.parametrize("size", [1, 2, 7, 16, 100])
@pytest.mark.parametrize("most", [1, 15, 16, 17, 155])
def test_mean_blocks_is_the_mean_over_all_lengths(most, size):
    assert mean_blocks(most, size) == pytest.approx(sum(blocks_needed(n, size) for n in range(1, most + 1)) / most)
