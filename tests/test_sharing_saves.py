"""What sharing saves is counted in whole blocks, and comes out where figure 15 of the paper has it."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minipaged import sharing
from minipaged.block_manager import BlockManager, blocks_needed
from minipaged.errors import InvalidInputError
from minipaged.fragmentation import alpaca_like
from minipaged.sharing import FIGURE_15, Saving, next_beams, saved_by_beams, saved_by_sampling, token_estimate

ALPACA_MEANS = [(19.31, 58.45)]  # the paper's figure 11
COUNTS = (2, 4, 6)


def percent(count, like=alpaca_like, n=2000, seeds=range(3)):
    """Mean over seeds, in percent."""
    return 100 * sum(count(like(n, seed), seed) for seed in seeds) / len(seeds)


@pytest.mark.parametrize("n", COUNTS)
def test_parallel_sampling_saves_what_figure_15_says(n):
    saved = percent(lambda requests, seed: saved_by_sampling(requests, n, seed=seed).fraction)
    assert saved == pytest.approx(FIGURE_15["parallel sampling"][n], abs=2)
    assert saved == pytest.approx({2: 4.7, 4: 8.4, 6: 10.0}[n], abs=0.4)  # as the docstring says


@pytest.mark.parametrize(("n", "tokens"), [(2, 12.4), (4, 18.6), (6, 20.7)])
def test_counting_tokens_instead_of_whole_blocks_doubles_the_estimate(n, tokens):
    assert 100 * token_estimate(ALPACA_MEANS, n) == pytest.approx(tokens, abs=0.05)
    assert tokens / FIGURE_15["parallel sampling"][n] == pytest.approx(2.1, abs=0.1)
    estimate = percent(lambda requests, _: token_estimate(requests, n))
    assert estimate == pytest.approx(tokens, abs=0.7)
    requests = alpaca_like(2000)
    in_blocks, in_tokens = (saved_by_sampling(requests, n, size).fraction for size in (16, 1))
    assert 1.6 < in_tokens / in_blocks < 2  # the same samples at the same moments, blocks of 16 and of 1


def test_two_samples_of_19_tokens_share_one_block():
    """By hand: 19 prompt tokens, 14 output tokens, so 14 passes that hold 19 to 32 tokens."""
    saving = saved_by_sampling([(19, 14)], 2, same_length=True)
    assert saving == Saving(blocks_used=2 + 13 * 3, blocks_alone=14 * 4)
    assert saved_by_sampling([(19, 1)], 2) == Saving(2, 4)  # the prompt alone, named twice
    assert saved_by_sampling([(15, 2)], 3, same_length=True) == Saving(1 + 3, 3 + 3)  # nothing is full, nothing stays
    assert saved_by_sampling([(16, 2)], 3, same_length=True) == Saving(1 + 4, 3 + 6)


def by_formula(prompt_len, outputs, size):
    """Every pass on its own: full prompt blocks once, everything behind them once a sample."""
    used = alone = 0
    for stored in range(max(outputs)):
        running = sum(output_len > stored for output_len in outputs)
        held, shared = blocks_needed(prompt_len + stored, size), prompt_len // size
        alone += running * held
        used += shared + (running * (held - shared) if stored else held - shared)
    return Saving(used, alone)


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 70), st.lists(st.integers(1, 60), min_size=1, max_size=6), st.sampled_from([1, 2, 5, 16, 64]))
def test_going_from_border_to_border_counts_what_single_passes_count(prompt_len, outputs, size):
    manager = BlockManager(len(outputs) * 130 + 1, size, watermark=0)
    assert sharing._sampled(manager, prompt_len, outputs, itertools.count()) == by_formula(prompt_len, outputs, size)
    assert manager.num_free_blocks == manager.num_blocks and manager.seq_ids == []


@pytest.mark.parametrize("count", [saved_by_sampling, saved_by_beams])
def test_every_block_is_free_afterwards_and_one_sequence_saves_nothing(count, monkeypatch):
    made = []

    class Listed(BlockManager):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            made.append(self)

    monkeypatch.setattr(sharing, "BlockManager", Listed)
    saving = count(alpaca_like(40), 1)
    assert saving.blocks_used == saving.blocks_alone > 0 and saving.fraction == 0
    assert 0 < count(alpaca_like(40), 5).fraction < 0.8
    assert [manager.num_used_blocks for manager in made] == [0, 0]


# ---- beams


def test_beams_that_never_cross_are_samples_of_one_length():
    requests = alpaca_like(60)
    apart = saved_by_beams(requests, 4, parents=lambda k: range(k))
    assert apart == saved_by_sampling(requests, 4, same_length=True)


def test_no_beams_share_more_than_the_children_of_one():
    """All continue beam 0: everything is shared but the block that is being written, one a beam."""
    requests = alpaca_like(200)
    best = saved_by_beams(requests, 4, parents=lambda k: [0] * k)
    used = alone = 0
    for prompt_len, output_len in requests:
        for stored in range(output_len):
            held = blocks_needed(prompt_len + stored, 16)
            alone += 4 * held
            used += held + (3 if stored else 0)
    assert best == Saving(used, alone)
    assert saved_by_beams(requests, 4).fraction < best.fraction


@pytest.mark.parametrize(("k", "here"), [(2, 39), (4, 58), (6, 63)])
def test_random_beams_share_more_than_figure_15_and_are_not_tuned_to_it(k, here):
    saved = percent(lambda requests, seed: saved_by_beams(requests, k, seed=seed).fraction, n=300)
    assert saved == pytest.approx(here, abs=1.5)
    assert 0 < saved - FIGURE_15["beam search"][k] < 9


def test_beams_are_freed_kept_and_forked():
    manager, ids = BlockManager(12, 4, watermark=0), itertools.count(10)
    beams = sharing.fork_from_prompt(manager, 6, 3, ids)
    assert beams == [10, 11, 12] and manager.num_used_blocks == 2
    copies = [pair for beam in beams for pair in manager.append_slots(beam)]
    assert len(copies) == 2 and manager.num_used_blocks == 4  # the last writer keeps the original
    tables = [manager.block_table(beam) for beam in beams]
    after = next_beams(manager, beams, [2, 0, 2], ids)
    assert after == [12, 10, 13] and sorted(manager.seq_ids) == [10, 12, 13]
    assert [manager.block_table(beam) for beam in after] == [tables[2], tables[0], tables[2]]
    assert manager.num_used_blocks == 3  # beam 11's own block is free again
    assert [manager.pool.blocks[block].ref_count for block in tables[2]] == [3, 2]


@pytest.mark.parametrize("parents", [[0, 3], [-1, 0], [0, 0.5], [0.0, 0], [0, True], [0, "a"], [None]])
def test_a_parent_that_is_none_is_named_and_nothing_changes(parents):
    manager, ids = BlockManager(12, 4, watermark=0), itertools.count()
    beams = sharing.fork_from_prompt(manager, 6, 3, ids)
    with pytest.raises(InvalidInputError, match="there are beams 0 to 2"):
        next_beams(manager, beams, parents, ids)
    assert manager.seq_ids == beams


def test_a_new_beam_whose_id_is_in_use_is_refused_before_anybody_is_freed():
    manager = BlockManager(12, 4, watermark=0)
    beams = sharing.fork_from_prompt(manager, 6, 3, itertools.count())
    with pytest.raises(InvalidInputError, match="sequence 1 is admitted already"):
        next_beams(manager, beams, [0, 0], iter([1]))
    assert manager.seq_ids == beams


def test_recorded_tables_are_counted_as_the_manager_counts_them():
    manager, ids, draw, steps = BlockManager(40, 4, watermark=0), itertools.count(), random.Random(0), []
    beams, used = sharing.fork_from_prompt(manager, 6, 4, ids), 0
    for _ in range(12):
        beams = next_beams(manager, beams, draw.choices(range(4), k=4), ids)
        for beam in beams:
            manager.append_slots(beam)
        steps.append([manager.block_table(beam) for beam in beams])
        used += manager.num_used_blocks
    saving = Saving.of_tables(steps)
    assert saving.blocks_used == used and saving.blocks_alone == sum(4 * blocks_needed(7 + i, 4) for i in range(12))
    assert Saving(1, 4) + Saving(2, 2) == Saving(3, 6) and Saving(3, 6).fraction == 0.5 and Saving().fraction == 0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: saved_by_sampling([(3, 4)], 0), "n is 0; it must be a whole number of at least 1"),
        (lambda: saved_by_sampling([(3, 4)], 2, 0), "block_size is 0"),
        (lambda: saved_by_sampling([(3, 0)], 2), r"request 0 is \(3, 0\)"),
        (lambda: saved_by_sampling([], 2), "no requests"),
        (lambda: saved_by_beams([(3, 4)], 2.5), "k is 2.5"),
        (lambda: saved_by_beams([(3, 4)], 2, parents=lambda k: [0]), "1 parents for 2 beams"),
        (lambda: saved_by_beams([(3, 4)], 2, parents=lambda k: None), "None parents for 2 beams"),
        (lambda: saved_by_beams([(3, 4)], 2, parents=lambda k: [0, 0.5]), "beam 0.5 is to go on"),
        (lambda: token_estimate([], 2), "no tokens to count"),
        (lambda: token_estimate([(-5, 8)], 2), "a length is -5"),
        (lambda: token_estimate([(3, -1)], 2), "a length is -1"),
        (lambda: token_estimate([(float("nan"), 8)], 2), "a length is nan"),
        (lambda: token_estimate([("a", 8)], 2), "a length is 'a'"),
    ],
)
def test_input_that_cannot_be_right_is_named(call, words):
    with pytest.raises(InvalidInputError, match=words):
        call()
