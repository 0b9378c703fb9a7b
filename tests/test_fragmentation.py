"""Chapter 6: what the slots of a KV pool are doing when every request must lie in one piece."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minipaged.errors import InvalidInputError
from minipaged.fragmentation import (
    PAPER_SLOTS,
    PARTS,
    Allocator,
    BuddyPool,
    FirstFit,
    FirstFitPool,
    MaxLength,
    Oracle,
    PowerOfTwo,
    TraceError,
    alpaca_like,
    chunk_for,
    lognormal_lengths,
    poisson_arrivals,
    read_trace,
    sharegpt_like,
    simulate,
)
from tests.growing_allocator import GrowingChunks

SMALL = [FirstFit(64), MaxLength(64), PowerOfTwo(64), Oracle(), GrowingChunks(4), GrowingChunks(1)]
small = pytest.mark.parametrize("allocator", SMALL, ids=lambda a: f"{a.name}-{getattr(a, 'size', '')}")
lengths = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 34)), min_size=1, max_size=12)


def slots_of(spans):
    return [slot for start, length in spans for slot in range(start, start + length)]


def check_snapshot(snapshot, num_slots):
    """Recount every part from the physical runs, independently of the simulator's sums."""
    held = [slot for running in snapshot.running for slot in slots_of(running.spans)]
    assert len(set(held)) == len(held), "two requests share a slot"
    assert not held or (min(held) >= 0 and max(held) < num_slots)
    used = reserved = internal = rounding = 0
    for running in snapshot.running:
        mine = sum(length for _, length in running.spans)
        assert running.written <= running.capacity <= mine
        used += running.written
        reserved += max(0, min(running.capacity, running.needed) - running.written)
        internal += max(0, running.capacity - running.needed)
        rounding += mine - running.capacity
    free = num_slots - len(held)
    idle, external = (0, free + rounding) if snapshot.waiting else (free, rounding)
    assert snapshot[1:6] == (used, reserved, internal, external, idle)
    assert sum(snapshot[1:6]) == num_slots


# --- conservation, no overlap --------------------------------------------------------------------------------------


@small
@given(requests=lengths, gap=st.none() | st.floats(0.0, 30.0), num_slots=st.integers(96, 300))
@settings(max_examples=25, deadline=None)
def test_the_five_parts_are_the_pool_at_every_step_and_nothing_overlaps(allocator, requests, gap, num_slots):
    arrivals = None if gap is None else [gap * i for i in range(len(requests))]
    result = simulate(requests, allocator, num_slots, arrivals=arrivals, steps=150, warmup=0, record=True)
    assert [s.step for s in result.timeline] == list(range(150))
    for snapshot in result.timeline:
        check_snapshot(snapshot, num_slots)
    for i, name in enumerate(PARTS, start=1):  # the averages are those of the recorded steps
        assert getattr(result, name) == pytest.approx(np.mean([s[i] for s in result.timeline]) / num_slots)
    assert result.batched == pytest.approx(np.mean([len(s.running) for s in result.timeline]))


@small
@given(requests=lengths, seed=st.integers(0, 3), warmup=st.integers(0, 100))
@settings(max_examples=25, deadline=None)
def test_jumping_from_event_to_event_counts_what_single_steps_count(allocator, requests, seed, warmup):
    def run(record):
        return simulate(requests, allocator, 200, steps=300, warmup=warmup, seed=seed, record=record)

    jumped, stepped = run(False), run(True)
    assert jumped.parts == pytest.approx(stepped.parts)
    assert (jumped.batched, jumped.preempted, jumped.finished) == (
        pytest.approx(stepped.batched),
        stepped.preempted,
        stepped.finished,
    )
    assert sum(jumped.parts.values()) == pytest.approx(1)


@small
def test_a_running_request_writes_one_token_a_step_and_leaves_when_it_is_done(allocator):
    result = simulate([(5, 3)], allocator, 128, arrivals=[2.0], steps=8, warmup=0, record=True)
    written = [[r.written for r in s.running] for s in result.timeline]
    assert written == [[], [], [6], [7], [8], [], [], []]
    assert result.finished == 1


@small
@given(requests=lengths)
@settings(max_examples=20, deadline=None)
def test_requests_come_in_the_order_they_came(allocator, requests):
    arrivals = [0] * len(requests)
    timeline = simulate(requests, allocator, 128, arrivals=arrivals, steps=400, warmup=0, record=True).timeline
    first_seen = {}
    for snapshot in timeline:
        for running in snapshot.running:
            first_seen.setdefault(running.request, (snapshot.step, len(first_seen)))
    assert sorted(first_seen, key=first_seen.get) == sorted(first_seen)
    assert len(first_seen) == len(requests)


def test_an_idle_pool_is_not_waste():
    result = simulate([(10, 10)], MaxLength(64), 256, arrivals=[0], steps=100, warmup=0, record=True)
    during, after = result.timeline[5], result.timeline[50]
    assert (during.external, during.idle) == (0, 192)
    assert (after.tokens, after.external, after.idle) == (0, 0, 256)


@given(requests=st.lists(st.tuples(st.integers(1, 6), st.integers(1, 26)), min_size=2, max_size=6))
@settings(max_examples=50, deadline=None)
def test_the_newest_is_preempted_and_everybody_still_writes_all_its_tokens(requests):
    allocator, arrivals = GrowingChunks(4), [0] * len(requests)
    result = simulate(requests, allocator, 40, arrivals=arrivals, steps=600, warmup=0, record=True)
    assert result.finished == len(requests)
    thrown_out = 0
    for now, then in itertools.pairwise(result.timeline):
        for gone in {r.request for r in now.running} - {r.request for r in then.running}:
            if gone in then.waiting:
                thrown_out += 1
                assert all(r.request < gone for r in then.running)
            else:
                last = next(r for r in now.running if r.request == gone)
                assert last.written == last.needed
    assert thrown_out <= result.preempted


def test_three_that_outgrow_the_pool_together_preempt():
    result = simulate([(6, 20)] * 3, GrowingChunks(4), 48, arrivals=[0] * 3, steps=200, warmup=0)
    assert result.preempted > 0 and result.finished == 3


# --- the paper's figures 2 and 13 ----------------------------------------------------------------------------------

FIGURE_2 = {
    "MaxLength": (20.4, 13.3, 57.3, 8.9, 3.0),
    "PowerOfTwo": (26.8, 17.9, 13.6, 41.6, 4.0),
    "Oracle": (38.2, 25.2, 0.0, 36.6, 3.0),
}
FIGURE_13 = {"MaxLength": 7.00, "PowerOfTwo": 9.81, "Oracle": 13.62}


@pytest.fixture(scope="module")
def six_seeds():
    allocators = (MaxLength(2048), PowerOfTwo(2048), Oracle())
    return {
        a.name: [simulate(sharegpt_like(2000, seed), a, PAPER_SLOTS, seed=seed) for seed in range(6)]
        for a in allocators
    }


@pytest.mark.parametrize("name", FIGURE_2)
def test_the_bars_are_those_of_figure_2(six_seeds, name):
    *paper, points = FIGURE_2[name]
    ours = [100 * np.mean([getattr(run, part) for run in six_seeds[name]]) for part in PARTS]
    assert ours[4] == 0
    for mine, published in zip(ours, paper, strict=False):
        assert abs(mine - published) <= points, (name, ours)


@pytest.mark.parametrize("name", FIGURE_13)
def test_requests_batched_are_those_of_figure_13(six_seeds, name):
    ours = np.mean([run.batched for run in six_seeds[name]])
    assert abs(ours / FIGURE_13[name] - 1) <= 0.12


@pytest.mark.parametrize("like", [sharegpt_like, alpaca_like])
def test_equal_reservations_leave_exactly_a_remainder(like):
    run = simulate(like(2000, 1), MaxLength(2048), PAPER_SLOTS)
    assert run.external == pytest.approx((PAPER_SLOTS - 7 * 2048) / PAPER_SLOTS, abs=1e-12)
    assert round(100 * run.external, 1) == 8.9 and run.batched == 7


def test_first_fit_loses_holes_alone():
    run = simulate(sharegpt_like(2000, 0), FirstFit(2048), PAPER_SLOTS)
    assert run.internal == 0 and 0.05 < run.external < 0.25


def test_lengths_have_the_paper_s_means():
    for like, prompt, output in ((sharegpt_like, 161.31, 337.99), (alpaca_like, 19.31, 58.45)):
        prompts, outputs = np.array(like(100_000, 0)).T
        assert prompts.mean() == pytest.approx(prompt, rel=0.03)
        assert outputs.mean() == pytest.approx(output, rel=0.03)
        assert prompts.min() >= 1 and outputs.min() >= 1
        assert prompts.max() <= 1024 and (prompts + outputs).max() <= 2048


def test_seeds_reproduce_and_differ():
    assert sharegpt_like(50, 3) == sharegpt_like(50, 3) != sharegpt_like(50, 4)
    assert poisson_arrivals(50, 0.1, 3) == poisson_arrivals(50, 0.1, 3) != poisson_arrivals(50, 0.1, 4)
    requests = sharegpt_like(10, 0)

    def run(seed):
        return simulate(requests, Oracle(), 4096, steps=3000, warmup=100, seed=seed)

    assert run(1) == run(1)
    assert run(1).parts != run(2).parts


def test_a_longer_list_of_requests_begins_with_the_shorter():
    assert sharegpt_like(500, 3)[:50] == sharegpt_like(50, 3)


def test_poisson_arrivals_keep_their_rate():
    times = poisson_arrivals(20_000, 0.25, 0)
    assert times == sorted(times) and times[-1] / 20_000 == pytest.approx(4, rel=0.05)


# --- buddies and holes ---------------------------------------------------------------------------------------------


def test_the_paper_s_pool_starts_as_eight_chunks():
    pool = BuddyPool(PAPER_SLOTS)
    assert [size for size, starts in pool.free.items() if starts] == [8192, 4096, 2048, 1024, 256, 64, 32, 16]
    assert pool.num_free == PAPER_SLOTS


def test_a_chunk_splits_and_its_buddies_join():
    pool = BuddyPool(64)
    assert [pool.take(10), pool.take(16), pool.take(20)] == [0, 16, 32]
    assert pool.take(16) is None and pool.num_free == 0
    pool.give(0, 10)
    pool.give(32, 20)
    assert {size: starts for size, starts in pool.free.items() if starts} == {16: [0], 32: [32]}
    pool.give(16, 16)
    assert {size: starts for size, starts in pool.free.items() if starts} == {64: [0]}


def free_pieces(pool):
    if isinstance(pool, FirstFitPool):
        return sorted(pool.holes)
    return sorted((start, size) for size, starts in pool.free.items() for start in starts)


@pytest.mark.parametrize("kind", [BuddyPool, FirstFitPool])
@given(data=st.data(), num_slots=st.integers(16, 700))
@settings(max_examples=60, deadline=None)
def test_pieces_never_overlap_and_all_freed_is_the_first_state(kind, data, num_slots):
    pool = kind(num_slots)
    at_first, held = free_pieces(pool), {}
    for _ in range(data.draw(st.integers(1, 40))):
        if held and data.draw(st.booleans()):
            start = data.draw(st.sampled_from(sorted(held)))
            pool.give(start, held.pop(start))
        else:
            length = data.draw(st.integers(1, num_slots))
            largest = max((size for _, size in free_pieces(pool)), default=0)
            start = pool.take(length)
            size = chunk_for(length) if kind is BuddyPool else length
            assert (start is None) == (size > largest)
            if start is not None:
                held[start] = length
                if kind is BuddyPool:
                    assert start % size == 0
        taken = [(s, chunk_for(n) if kind is BuddyPool else n) for s, n in held.items()]
        lost = num_slots - sum(size for _, size in at_first)  # under 16 slots that buddies cannot hand out
        pieces = sorted(taken + free_pieces(pool))
        assert sum(size for _, size in pieces) == num_slots - lost
        assert all(a + n <= b for (a, n), (b, _) in itertools.pairwise(pieces))
        assert pool.num_free == num_slots - sum(size for _, size in taken)
    for start, length in held.items():
        pool.give(start, length)
    assert free_pieces(pool) == at_first


def test_free_neighbours_are_always_joined():
    pool = FirstFitPool(9)
    starts = [pool.take(3) for _ in range(3)]
    for start in (starts[0], starts[2], starts[1]):
        pool.give(start, 3)
    assert pool.holes == [(0, 9)]


def test_a_request_waits_beside_more_than_enough_free_slots():
    """Sixteen free slots in two holes of eight do not hold twelve in one piece."""
    requests = [(6, 2), (1, 7), (6, 2), (1, 7), (8, 4)]
    timeline = simulate(requests, FirstFit(64), 32, arrivals=[0] * 5, steps=20, warmup=0, record=True).timeline
    assert [s.step for s in timeline if s.waiting == (4,) and s.external == 16] == [2, 3, 4, 5, 6]
    assert timeline[2].running[0].spans == ((8, 8),) and timeline[2].running[1].spans == ((24, 8),)
    assert timeline[7].running[-1].request == 4 and timeline[7].running[-1].spans == ((0, 12),)


# --- what never fits, and bad input --------------------------------------------------------------------------------


@small
def test_a_request_that_can_never_fit_is_refused_and_the_rest_run(allocator):
    requests = [(5, 5), (200, 100), (6, 6), (7, 7)]
    result = simulate(requests, allocator, 128, arrivals=[0, 1, 2, 3], steps=200, warmup=0)
    assert [request for request, _ in result.refused] == [1]
    assert "300" in result.refused[0][1] or "512" in result.refused[0][1]
    assert result.finished == 3


@small
def test_a_queue_in_which_nothing_fits_ends(allocator):
    result = simulate([(200, 100)], allocator, 128, steps=50, warmup=0)
    assert len(result.refused) == 1 and result.batched == 0 and result.idle == 1


def test_an_allocator_that_says_no_in_an_empty_pool_does_not_stop_the_queue():
    class Stubborn(FirstFit):
        def admit(self, request, prompt_len, output_len):
            return prompt_len != 9 and super().admit(request, prompt_len, output_len)

    result = simulate([(9, 1), (5, 5)], Stubborn(64), 64, arrivals=[0, 0], steps=20, warmup=0)
    assert result.finished == 1 and "empty pool" in result.refused[0][1]


def test_the_reason_says_what_was_asked_and_what_there_is():
    reason = dict(simulate([(1500, 600), (5, 5)], MaxLength(2048), PAPER_SLOTS).refused)[0]
    assert "1500 + 600 = 2100" in reason and "2048" in reason
    reason = dict(simulate([(5, 5)], MaxLength(2048), 2000, steps=10, warmup=0).refused)[0]
    assert "2048" in reason and "1024" in reason


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"requests": []}, "no requests"),
        ({"requests": [(5, 5), (0, 5)]}, "request 1 is (0, 5)"),
        ({"requests": [(5, -1)]}, "at least 1 token"),
        ({"requests": [(5, 1.5)]}, "two whole numbers"),
        ({"requests": [5]}, "two whole numbers"),
        ({"num_slots": 0}, "num_slots is 0"),
        ({"num_slots": 1.5}, "num_slots is 1.5"),
        ({"steps": 0}, "steps is 0"),
        ({"steps": 500, "warmup": 500}, "warmup < steps"),
        ({"warmup": -1}, "warmup is -1"),
        ({"arrivals": [1.0, 2.0]}, "2 arrivals for 1 requests"),
        ({"requests": [(1, 1)] * 2, "arrivals": [2.0, 1.0]}, "arrival 1 is 1.0 after 2.0"),
        ({"arrivals": [-1.0]}, "ascending"),
        ({"arrivals": [math.nan]}, "arrival 0 is nan"),
    ],
)
def test_input_that_cannot_be_right_is_named(change, words):
    arguments = {"requests": [(5, 5)], "allocator": Oracle(), "num_slots": 128, "steps": 600, **change}
    with pytest.raises(InvalidInputError, match="^[^\n]+$") as error:
        simulate(arguments.pop("requests"), arguments.pop("allocator"), arguments.pop("num_slots"), **arguments)
    assert words in str(error.value)


def test_generators_refuse_what_cannot_be():
    for call in (
        lambda: sharegpt_like(0),
        lambda: lognormal_lengths(5, 0.5, 10),
        lambda: lognormal_lengths(5, 10, 10, output_cv=-1),
        lambda: lognormal_lengths(5, 10, 10, max_len=1),
        lambda: poisson_arrivals(5, 0),
        lambda: MaxLength(0),
        lambda: FirstFit(2.5),
    ):
        with pytest.raises(InvalidInputError):
            call()


@small
def test_every_allocator_answers_the_protocol(allocator):
    assert isinstance(allocator, Allocator)


# --- a reader's own trace ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "prompt_len,output_len\n12,34\n5,6\n"),
        ("b.csv", "12,34\n\n5,6\n"),
        ("c.csv", "﻿id,output_len,prompt_len\nx,34,12\r\ny,6,5\r\n"),
        ("d.jsonl", '{"prompt_len": 12, "output_len": 34, "id": 1}\n\n{"output_len": 6, "prompt_len": 5}\n'),
    ],
)
def test_traces_are_read(tmp_path, name, text):
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert read_trace(tmp_path / name) == [(12, 34), (5, 6)]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.csv", "prompt_len,output_len\n12,34\n5,many\n", "line 3: output_len is 'many'"),
        ("a.csv", "12,34\n\n\n0,6\n", "line 4: prompt_len is '0'"),
        ("a.csv", "12,34\n7\n", "line 2: expected two lengths, got '7'"),
        ("a.csv", "prompt,output\n12,34\n", "line 1: prompt_len is 'prompt'"),
        ("a.csv", "prompt_len,output_len\n", "no request"),
        ("a.jsonl", '{"prompt_len": 1, "output_len": 2}\n{"prompt_len": 3}\n', "line 2: expected"),
        ("a.jsonl", "\nnot json\n", "line 2: expected"),
        ("a.jsonl", '{"prompt_len": 1.5, "output_len": 2}\n', "line 1: prompt_len is 1.5"),
        ("a.jsonl", '{"prompt_len": true, "output_len": 2}\n', "line 1: prompt_len is True"),
        ("a.jsonl", "[1, 2]\n", "line 1: expected"),
    ],
)
def test_a_bad_row_is_reported_with_its_line(tmp_path, name, text, words):
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(TraceError) as error:
        read_trace(tmp_path / name)
    assert words in str(error.value)
