"""Chapter 8's stepper says in words what it draws, and what it draws is softmax."""

from __future__ import annotations

import pytest

pytest.importorskip("ipywidgets")

import numpy as np
import torch

from minipaged.errors import InvalidInputError
from minipaged.model_runner import pack
from minipaged.paged_attention import partial_softmax
from minipaged.plots import ch08 as plots
from minipaged.widgets.ch08 import ORDERS, block_stepper, reading_order

DRAW = np.random.default_rng(0)
SCORES, VALUES = np.array([1.0, 3.0, 2.0, 4.0, 2.5]), DRAW.normal(size=(5, 6))
RISING = np.array([-3.0, 1.0, 2.0, 5.0, 30.0])
LABELS = list("abcde")


def panel(**options):
    heads = {"calm": (SCORES, VALUES), "rising": (RISING, VALUES)}
    return block_stepper(heads, LABELS, [7, 2, 5], 2, **options)


def test_it_starts_with_nothing_and_ends_with_softmax():
    live = panel()
    assert live.sentence.startswith("Before the first of 3 blocks the maximum is -inf")
    live.controls["step"].value = 3
    assert "now physical block 5, tokens 4 to 4) the maximum is 4.00" in live.sentence
    assert live.sentence.endswith("The output is that of all scores at once.")


def test_a_higher_maximum_shrinks_what_came_before():
    live = panel(step=2)
    assert "This block raised the maximum from 3.00, so the older sum and output shrank to 0.368" in live.sentence
    live.controls["order"].value = "backward"
    assert "now physical block 2" in live.sentence and "the maximum is 4.00" in live.sentence
    live.controls["step"].value = 3
    assert "The maximum stayed, so nothing old had to change." in live.sentence


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("head", ["calm", "rising"])
def test_every_order_ends_the_same_unless_shrinking_is_forgotten(order, head):
    live = panel(step=3)
    live.controls["head"].value, live.controls["order"].value = head, order
    assert live.sentence.endswith("The output is that of all scores at once.")
    live.controls["forget"].value = True
    assert live.sentence.endswith("at once.") == (order == "backward" and head == "rising")  # its maximum never rises


def test_orders_name_every_block_once():
    assert all(sorted(reading_order(name, 7)) == list(range(7)) for name in ORDERS)


def test_what_does_not_fit_is_named():
    with pytest.raises(InvalidInputError, match="3 labels in 3 blocks of 2"):
        block_stepper({"x": (SCORES[:3], VALUES[:3])}, LABELS[:3], [7, 2, 5], 2)


def test_the_steps_that_are_drawn_are_the_librarys():
    top, total, acc = plots.walk(SCORES, VALUES, 2, [0, 1, 2])[-1]
    want = partial_softmax(torch.tensor(SCORES), torch.tensor(VALUES))
    assert np.isclose(top, want.top) and np.isclose(total, want.total) and np.allclose(acc, want.acc)


def test_two_partials_are_told_with_their_numbers():
    told = plots.two_partials([1, 3, 2, 4, 2.5, 3.5], 3)
    assert "every weight of part A is multiplied by 0.37, and the sum is 2.38" in told.sentence
    other = plots.two_partials([4, 2.5, 3.5, 1, 3, 2], 3)
    assert "every weight of part B is multiplied by 0.37" in other.sentence


def test_a_packed_row_is_told_with_its_slots_and_the_scores_it_needs():
    batch = pack([([5], 9, [2, 7, 5]), ([1, 2, 3], 2, [9, 0]), ([4, 5], 0, [4])], 4)
    drawn = plots.packed_row(batch, list("abcdef"), 12, 4, 24)
    assert "cu_seqlens_q is [0, 1, 4, 6]" in drawn.sentence and "[21, 38, 39, 0, 16, 17]" in drawn.sentence
    seen = plots.who_sees_whom(batch.cu_seqlens_q, batch.seq_lens)
    assert seen.data["needed"] == 10 + (3 + 4 + 5) + (1 + 2) and seen.data["all"] == 6 * 17


def test_padding_is_counted():
    drawn = plots.padded_beside_packed([(5, 9), (12, 4), (3, 12)])
    assert drawn.data == {"padded": 3 * (12 + 11), "packed": 13 + 15 + 14, "wasted": 27}


def test_gathering_moves_three_times_the_bytes():
    drawn = plots.gather_or_walk({"read": 2**20, "write": 2**20, "reread": 2**20}, {"gather": 2**20, "walk": 2**10})
    assert "3 times less moved" in drawn.sentence


def test_steps_are_summed():
    drawn = plots.steps_taken([{0: 5, 1: 7}, {0: 1, 1: 1}, {1: 1}], [3, 3, 2], 8)
    assert "3 steps compute 15 tokens, 12 of them in the first step; at most 3 of 8 blocks" in drawn.sentence
