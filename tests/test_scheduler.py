"""The scheduler alone, with a model that computes nothing: nobody is lost, nobody waits for ever, no block leaks."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from minipaged.block_manager import BlockManager, blocks_needed
from minipaged.errors import InvalidInputError
from minipaged.scheduler import Scheduler, Sequence, SequenceStatus
from tests.calls import count_calls
from tests.test_block_manager import assert_sound


def sequence(seq_id, prompt_len, output_len):
    return Sequence(seq_id, [0] * prompt_len, prompt_len, prompt_len + output_len)


def take_step(scheduler):
    """One step with a model that writes a 1 whenever a sequence's tokens are all computed."""
    step = scheduler.schedule()
    for seq, count in step.parts:
        assert seq.status is SequenceStatus.RUNNING and 1 <= count <= seq.num_uncomputed_tokens
        assert scheduler.manager.num_tokens(seq.seq_id) >= seq.num_computed_tokens + count  # all have a slot
        for one in scheduler.computed(seq, count):
            one.token_ids.append(1)
            if len(one.token_ids) >= one.max_len:
                scheduler.finish(one, "length")
    return step


def assert_each_in_one_place(scheduler, sequences):
    places = {
        SequenceStatus.WAITING: list(scheduler.waiting),
        SequenceStatus.RUNNING: scheduler.running,
        SequenceStatus.SWAPPED: list(scheduler.swapped),
    }
    for seq in sequences:
        held = [status for status, queue in places.items() if seq in queue]
        assert held == ([] if seq.status is SequenceStatus.FINISHED else [seq.status]), seq
        assert sum(queue.count(seq) for queue in places.values()) == len(held)
    assert scheduler.unfinished == sum(seq.status is not SequenceStatus.FINISHED for seq in sequences)
    assert [s.seq_id for s in scheduler.running] == sorted(s.seq_id for s in scheduler.running)


def assert_no_block_lost(scheduler):
    manager = scheduler.manager
    assert sorted(manager.seq_ids) == [seq.seq_id for seq in scheduler.running if seq.waits_for is None]
    assert sorted(manager._host_tables) == [seq.seq_id for seq in scheduler.swapped if seq.waits_for is None]
    assert_sound(manager)


def steps_alone(seq_lengths, num_blocks, options):
    """Steps that one request after another takes, each with the whole pool."""
    total = 0
    for number, (prompt_len, output_len) in enumerate(seq_lengths):
        scheduler = Scheduler(BlockManager(num_blocks, options["block_size"]), 1, options["budget"])
        scheduler.add(sequence(number, prompt_len, output_len))
        while scheduler.unfinished:
            take_step(scheduler)
            total += 1
    return total


options = st.fixed_dictionaries(
    {
        "num_blocks": st.integers(1, 14),
        "block_size": st.sampled_from([1, 2, 4, 16]),
        "max_num_seqs": st.sampled_from([1, 2, 5, 64]),
        "budget": st.sampled_from([1, 2, 7, 64]),
        "preemption": st.sampled_from(["recompute", "swap"]),
        "host": st.sampled_from([0, 2, 14]),
        "batching": st.sampled_from(["continuous", "static"]),
    }
)


def make(o, **more):
    manager = BlockManager(o["num_blocks"], o["block_size"], watermark=0.1, num_host_blocks=o["host"])
    how = {"preemption": o["preemption"], "batching": o["batching"], **more}
    return Scheduler(manager, o["max_num_seqs"], o["budget"], **how)


class Machine(RuleBasedStateMachine):
    """Any order of arrivals, steps and cancellations."""

    @initialize(o=options)
    def start(self, o):
        self.scheduler, self.all = make(o), []

    @rule(prompt_len=st.integers(1, 40), output_len=st.integers(1, 30))
    def add(self, prompt_len, output_len):
        self.all.append(sequence(len(self.all), prompt_len, output_len))
        self.scheduler.add(self.all[-1])

    @rule()
    def step(self):
        unfinished = self.scheduler.unfinished
        step = take_step(self.scheduler)
        assert step.num_tokens == sum(count for _, count in step.parts) <= self.scheduler.max_num_batched_tokens
        assert len({seq.seq_id for seq, _ in step.parts}) == len(step.parts)
        assert len(self.scheduler.running) <= self.scheduler.max_num_seqs
        assert step.parts or step.refused or not unfinished, "a step that does nothing would be repeated for ever"
        assert not (step.swap_out and step.swap_in)

    @precondition(lambda self: self.all)
    @rule(data=st.data())
    def cancel(self, data):
        seq = data.draw(st.sampled_from(self.all))
        reason = seq.finish_reason
        self.scheduler.finish(seq, "cancelled")
        assert seq.finish_reason == (reason or "cancelled")

    @invariant()
    def sound(self):
        if hasattr(self, "scheduler"):
            assert_each_in_one_place(self.scheduler, self.all)
            assert_no_block_lost(self.scheduler)

    def teardown(self):
        if hasattr(self, "scheduler"):
            for _ in range(5000):
                if not self.scheduler.unfinished:
                    break
                take_step(self.scheduler)
            assert not self.scheduler.unfinished, "somebody waits for ever"
            assert self.scheduler.manager.num_free_blocks == self.scheduler.manager.num_blocks
            assert {seq.finish_reason for seq in self.all} <= {"length", "refused", "out_of_blocks", "cancelled"}


Machine.TestCase.settings = settings(max_examples=120, stateful_step_count=40, deadline=None, derandomize=True)
TestAnyOrderOfCalls = Machine.TestCase


@settings(max_examples=150, deadline=None, derandomize=True)
@given(lengths=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 30)), min_size=1, max_size=12), o=options)
def test_every_request_ends_within_four_times_the_steps_of_one_after_another(lengths, o):
    scheduler = make(o)
    sequences = [sequence(number, *each) for number, each in enumerate(lengths)]
    for seq in sequences:
        scheduler.add(seq)
    limit, steps = 4 * steps_alone(lengths, o["num_blocks"], o), 0
    while scheduler.unfinished:
        take_step(scheduler)
        steps += 1
        assert steps <= limit
    for seq, (prompt_len, output_len) in zip(sequences, lengths, strict=True):
        held = o["num_blocks"] * o["block_size"]
        if prompt_len > held:
            assert seq.finish_reason == "refused"
        elif prompt_len + output_len - 1 <= held:  # the last token is chosen and needs no slot
            assert seq.finish_reason == "length" and len(seq.token_ids) == seq.max_len
        else:
            assert seq.finish_reason == "out_of_blocks" and len(seq.token_ids) == held + 1


@settings(max_examples=60, deadline=None, derandomize=True)
@given(lengths=st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20)), min_size=1, max_size=10), o=options)
def test_with_a_reservation_for_the_longest_nobody_has_to_give_way(lengths, o):
    scheduler = make(o, reserve_len=max(a + b for a, b in lengths))
    for number, each in enumerate(lengths):
        scheduler.add(sequence(number, *each))
    while scheduler.unfinished:
        assert take_step(scheduler).num_preempted == 0
    assert scheduler.manager.num_free_blocks == scheduler.manager.num_blocks


def run(scheduler, lengths):
    """Run to the end; returns the sequences and, for each step, who ran."""
    sequences = [sequence(number, *each) for number, each in enumerate(lengths)]
    for seq in sequences:
        scheduler.add(seq)
    history = []
    while scheduler.unfinished:
        step = take_step(scheduler)
        history.append([(seq.seq_id, count) for seq, count in step.parts])
    return sequences, history


def test_a_step_mixes_decode_tokens_and_a_chunk_of_a_prompt_in_one_budget():
    _, history = run(Scheduler(BlockManager(20), 8, 10), [(4, 6), (25, 2), (3, 2)])
    assert history[:4] == [[(0, 4), (1, 6)], [(0, 1), (1, 9)], [(0, 1), (1, 9)], [(0, 1), (1, 1), (2, 3)]]


def test_decoding_sequences_are_not_held_up_by_a_long_prompt():
    """The first sequence writes a token in every step, while the second one's prompt comes in chunks."""
    _, history = run(Scheduler(BlockManager(40), 8, 8), [(4, 30), (200, 2)])
    assert sum((0, 1) in step for step in history[1:30]) == 29 and (1, 7) in history[5]


def test_the_newest_gives_way_and_comes_back_before_the_next_one():
    scheduler = Scheduler(BlockManager(3, 4, watermark=0), 8, 64)
    first, second, third = (sequence(i, 4, n) for i, n in enumerate((6, 6, 2)))
    for seq in (first, second, third):
        scheduler.add(seq)
    take_step(scheduler)  # three prompts in three blocks; all blocks are full now
    step = take_step(scheduler)
    assert step.num_preempted == 2 and [seq for seq, _ in step.parts] == [first]
    assert list(scheduler.waiting) == [second, third] and second.num_computed_tokens == 0
    while first.status is not SequenceStatus.FINISHED:
        take_step(scheduler)
    assert [seq for seq, _ in take_step(scheduler).parts] == [second] and list(scheduler.waiting) == [third]


def test_swapping_keeps_what_was_computed_and_a_full_host_pool_recomputes():
    for host, computed in ((4, 4), (0, 0)):
        scheduler = Scheduler(BlockManager(2, 4, num_host_blocks=host), 8, 64, preemption="swap")
        first, second = sequence(0, 4, 4), sequence(1, 4, 4)
        scheduler.add(first)
        scheduler.add(second)
        take_step(scheduler)
        step = take_step(scheduler)
        assert step.num_preempted == 1 and len(step.swap_out) == (1 if host else 0)
        assert second.num_computed_tokens == computed
        assert second.status is (SequenceStatus.SWAPPED if host else SequenceStatus.WAITING)


def test_an_older_one_that_had_to_recompute_is_not_the_newest_when_it_returns():
    """C is swapped out, B then finds the host pool full; C returns before B, and still C is the newer one."""
    scheduler = Scheduler(BlockManager(14, 2, watermark=0, num_host_blocks=4), 8, 64, preemption="swap")
    sequences = [sequence(i, *lengths) for i, lengths in enumerate([(5, 15), (8, 12), (2, 11)])]
    for seq in sequences:
        scheduler.add(seq)
    alone, together = False, False
    while scheduler.unfinished:
        take_step(scheduler)
        assert_each_in_one_place(scheduler, sequences)
        running = [seq.seq_id for seq in scheduler.running]
        alone |= running == [0, 2]
        together |= alone and running[-2:] == [1, 2]
    assert alone and together


def test_a_static_batch_is_closed_until_all_of_it_is_done():
    _, history = run(Scheduler(BlockManager(40), 2, 64, batching="static"), [(2, 3), (2, 5), (2, 1), (2, 2)])
    assert [sorted({seq for seq, _ in step}) for step in history] == [[0, 1]] * 3 + [[1]] * 2 + [[2, 3], [3]]


def test_a_request_that_can_never_fit_does_not_stop_the_queue():
    """Behaviour 13, with the reason in words; one that outgrows the pool alone ends with what it has (behaviour 6)."""
    scheduler = Scheduler(BlockManager(3, 4), 8, 64)
    (huge, small, grows), _ = run(scheduler, [(13, 2), (3, 3), (5, 30)])
    assert huge.finish_reason == "refused" and "13 tokens need 4 blocks of 4, and the pool has 3" in huge.note
    assert small.finish_reason == "length"
    assert grows.finish_reason == "out_of_blocks" and len(grows.token_ids) == 13
    assert blocks_needed(len(grows.token_ids), 4) == 4
    scheduler.reserve_len = 16
    (refused,), _ = run(scheduler, [(2, 2)])
    assert "16 reserved slots need 4 blocks" in refused.note


@pytest.mark.parametrize("value", [0, -1, True, 2.0, "8", None])
@pytest.mark.parametrize("name", ["max_num_seqs", "max_num_batched_tokens"])
def test_limits_must_be_whole_numbers(name, value):
    with pytest.raises(InvalidInputError, match=f"{name} is"):
        Scheduler(BlockManager(2), **{name: value})


def test_work_of_a_step_does_not_grow_with_the_queue():
    """Queueing thousands costs linear time: calls are counted, not seconds."""
    looks = {}
    for n in (100, 4000):
        scheduler = Scheduler(BlockManager(50), 8, 64)
        for i in range(n):
            scheduler.add(sequence(i, 3, 2))
        looks[n] = count_calls(scheduler.schedule)
    assert looks[4000] <= looks[100] + 5
