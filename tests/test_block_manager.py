"""The block manager: every block in exactly one place, counts that equal the tables, errors that change nothing."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from minipaged.block_manager import (
    AllocStatus,
    BlockManager,
    BlockPool,
    OutOfBlocksError,
    Paged,
    blocks_needed,
    physical_slot,
    shuffled,
)
from minipaged.errors import InvalidInputError, MinipagedError


def assert_sound(manager):
    """What must hold after every call, whatever was called."""
    tables = {seq: manager.block_table(seq) for seq in manager.seq_ids}
    named = Counter(block_id for table in tables.values() for block_id in table)
    free = list(manager.pool.free_ids)
    assert len(set(free)) == len(free), "a block is free twice"
    assert not set(free) & set(named), "a block is free and in a table"
    assert set(free) | set(named) == set(range(manager.num_blocks)), "a block is nowhere: it has leaked"
    assert [b.ref_count for b in manager.pool.blocks] == [named[i] for i in range(manager.num_blocks)]
    assert manager.num_free_blocks + manager.num_used_blocks == manager.num_blocks
    for seq, table in tables.items():
        assert len(table) == blocks_needed(manager.num_tokens(seq), manager.block_size)
        slots = manager.slot_mapping(seq, 0, manager.num_tokens(seq))
        assert len(set(slots)) == len(slots), "two tokens in one slot"
    if manager.host_pool:  # the same holds in host memory
        away = Counter(block_id for table in manager._host_tables.values() for block_id in table)
        blocks, free = manager.host_pool.blocks, list(manager.host_pool.free_ids)
        assert [b.ref_count for b in blocks] == [away[i] for i in range(len(blocks))]
        assert sorted([*away, *free]) == list(range(len(blocks)))


def state(manager):
    """Everything a caller could notice, the order of the free blocks included."""
    tables = {seq: (manager.block_table(seq), manager.num_tokens(seq)) for seq in manager.seq_ids}
    host = (
        {seq: list(table) for seq, table in manager._host_tables.items()},
        list(getattr(manager.host_pool, "free_ids", ())),
    )
    return tables, list(manager.pool.free_ids), [b.ref_count for b in manager.pool.blocks], host


class Machine(RuleBasedStateMachine):
    """Any order of admitting, growing, cutting, swapping and freeing, against a model that only knows lengths."""

    @initialize(
        num_blocks=st.integers(1, 12),
        block_size=st.sampled_from([1, 2, 3, 4, 16]),
        watermark=st.sampled_from([0, 0.01, 0.3]),
        host=st.sampled_from([0, 3, 12]),
    )
    def start(self, num_blocks, block_size, watermark, host):
        order = shuffled(num_blocks, seed=block_size)
        options = {"watermark": watermark, "block_order": order, "num_host_blocks": host}
        self.manager = BlockManager(num_blocks, block_size, **options)
        self.lengths, self.away, self.host = {}, {}, host  # in the pool; in host memory; blocks there
        self.next_id = 0

    def free_blocks(self):
        size = self.manager.block_size
        return self.manager.num_blocks - sum(blocks_needed(n, size) for n in self.lengths.values())

    def refuses(self, error, call, *arguments):
        before = state(self.manager)
        with pytest.raises(error):
            call(*arguments)
        assert state(self.manager) == before, "a call that raised has changed something"

    @rule(length=st.integers(1, 40))
    def allocate(self, length):
        kept = int(self.manager.watermark_blocks)
        needed = blocks_needed(length, self.manager.block_size) + kept
        status = self.manager.can_allocate(range(length))
        assert (status is AllocStatus.NEVER) == (needed > self.manager.num_blocks)
        assert (status is AllocStatus.OK) == (needed <= self.free_blocks())
        if status is AllocStatus.OK:
            assert self.manager.allocate(self.next_id, range(length)) == 0
            self.lengths[self.next_id] = length
            self.next_id += 1
        else:
            self.refuses(OutOfBlocksError, self.manager.allocate, self.next_id, range(length))

    @precondition(lambda self: self.lengths)
    @rule(data=st.data(), n=st.integers(1, 20))
    def append(self, data, n):
        seq = data.draw(st.sampled_from(sorted(self.lengths)))
        size, length, before = self.manager.block_size, self.lengths[seq], self.manager.block_table(seq)
        fits = blocks_needed(length + n, size) - blocks_needed(length, size) <= self.free_blocks()
        assert self.manager.can_append(seq, n) == fits
        if not fits:
            self.refuses(OutOfBlocksError, self.manager.append_slots, seq, n)
            return
        assert self.manager.append_slots(seq, n) == []
        self.lengths[seq] += n
        assert self.manager.block_table(seq)[: len(before)] == before  # earlier tokens stay where they are

    @precondition(lambda self: self.lengths)
    @rule(data=st.data())
    def truncate(self, data):
        seq = data.draw(st.sampled_from(sorted(self.lengths)))
        kept = data.draw(st.integers(0, self.lengths[seq]))
        before = self.manager.block_table(seq)
        self.manager.truncate(seq, kept)
        self.lengths[seq] = kept
        assert self.manager.block_table(seq) == before[: blocks_needed(kept, self.manager.block_size)]

    @precondition(lambda self: self.lengths)
    @rule(data=st.data())
    def free(self, data):
        seq = data.draw(st.sampled_from(sorted(self.lengths)))
        self.manager.free(seq)
        del self.lengths[seq]
        self.refuses(InvalidInputError, self.manager.free, seq)

    @precondition(lambda self: self.lengths)
    @rule(data=st.data())
    def swap_out(self, data):
        size = self.manager.block_size
        seqs = data.draw(st.lists(st.sampled_from(sorted(self.lengths)), unique=True, min_size=1, max_size=3))
        needed = sum(blocks_needed(self.lengths[seq], size) for seq in seqs)
        free = self.host - sum(blocks_needed(n, size) for n in self.away.values())
        fits = self.host > 0 and needed <= free
        assert self.manager.can_swap_out(seqs) == fits
        if not fits:  # all or none
            error = OutOfBlocksError if self.host else InvalidInputError
            self.refuses(error, self.manager.swap_out, seqs)
            return
        before = [block for seq in seqs for block in self.manager.block_table(seq)]
        pairs = self.manager.swap_out(seqs)
        assert [source for source, _ in pairs] == before and len({target for _, target in pairs}) == needed
        for seq in seqs:
            self.away[seq] = self.lengths.pop(seq)

    @precondition(lambda self: self.away)
    @rule(data=st.data())
    def swap_in(self, data):
        seq = data.draw(st.sampled_from(sorted(self.away)))
        needed = blocks_needed(self.away[seq], self.manager.block_size)
        assert self.manager.blocks_to_swap_in({seq: self.away[seq]}) == needed
        for call in (self.manager.block_table, self.manager.append_slots, self.manager.num_tokens):
            self.refuses(InvalidInputError, call, seq)
        self.refuses(InvalidInputError, self.manager.allocate, seq, range(3))
        if needed > self.free_blocks():
            self.refuses(OutOfBlocksError, self.manager.swap_in, [seq])
            return
        held = list(self.manager._host_tables[seq])
        pairs = self.manager.swap_in([seq])
        assert pairs == list(zip(held, self.manager.block_table(seq), strict=True))
        self.lengths[seq] = self.away.pop(seq)

    @precondition(lambda self: self.away)
    @rule(data=st.data())
    def free_one_that_is_away(self, data):
        seq = data.draw(st.sampled_from(sorted(self.away)))
        self.manager.free(seq)
        del self.away[seq]
        self.refuses(InvalidInputError, self.manager.free, seq)

    @precondition(lambda self: self.lengths)
    @rule(data=st.data())
    def nonsense(self, data):
        seq = data.draw(st.sampled_from(sorted(self.lengths)))
        self.refuses(InvalidInputError, self.manager.allocate, seq, range(3))
        self.refuses(InvalidInputError, self.manager.allocate, self.next_id, [])
        self.refuses(InvalidInputError, self.manager.append_slots, seq, 0)
        self.refuses(InvalidInputError, self.manager.truncate, seq, self.lengths[seq] + 1)
        self.refuses(InvalidInputError, self.manager.truncate, seq, -1)
        for call in (self.manager.block_table, self.manager.append_slots, self.manager.num_tokens):
            self.refuses(InvalidInputError, call, self.next_id)

    @invariant()
    def sound(self):
        if hasattr(self, "manager"):
            assert {seq: self.manager.num_tokens(seq) for seq in self.manager.seq_ids} == self.lengths
            assert self.manager.num_free_blocks == self.free_blocks()
            assert_sound(self.manager)


Machine.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None, derandomize=True)
TestAnyOrderOfCalls = Machine.TestCase


@pytest.mark.parametrize("block_size", [1, 2, 3, 16])
def test_a_new_block_is_taken_exactly_when_the_last_one_is_full(block_size):
    """Behaviour 5: for blocks of 1, every token needs one."""
    manager = BlockManager(50, block_size)
    manager.allocate(0, [7])
    for length in range(1, 45):
        full = length % block_size == 0
        assert manager.new_blocks_needed(0) == int(full)
        free = manager.num_free_blocks
        manager.append_slots(0)
        assert free - manager.num_free_blocks == int(full)
        assert len(manager.block_table(0)) == blocks_needed(length + 1, block_size)


@pytest.mark.parametrize("block_size", [1, 16])
def test_the_check_and_the_action_agree_at_the_last_block(block_size):
    manager = BlockManager(2, block_size, watermark=0)
    manager.allocate(0, range(block_size))
    for _ in range(block_size):
        assert manager.can_append(0)
        manager.append_slots(0)
    assert not manager.can_append(0)
    before = state(manager)
    with pytest.raises(OutOfBlocksError, match="needs 1 more block for 1 more token, and 0 of 2 are free"):
        manager.append_slots(0)
    assert state(manager) == before


def test_token_50_is_in_the_fourth_block_which_holds_2():
    manager = BlockManager(8)
    manager.allocate(0, range(50))
    assert len(manager.block_table(0)) == 4 and 50 - 3 * 16 == 2


def test_the_table_5_100_888_gives_the_slots_that_the_formula_says():
    manager = BlockManager(1000, block_order=[5, 100, 888])
    manager.allocate(7, range(37))
    assert manager.block_table(7) == [5, 100, 888]
    assert manager.slot_mapping(7, 15, 17) == [5 * 16 + 15, 100 * 16]
    assert physical_slot([5, 100, 888], 36, 16) == 888 * 16 + 4
    assert manager.slot_mapping(7, 0, 37) == [physical_slot([5, 100, 888], p, 16) for p in range(37)]
    for outside in (-1, 48):
        with pytest.raises(InvalidInputError, match="holds positions 0 to 47"):
            physical_slot([5, 100, 888], outside, 16)
    with pytest.raises(InvalidInputError, match="37 tokens with a slot"):
        manager.slot_mapping(7, 36, 38)


def test_block_0_is_a_block_like_any_other():
    """Behaviour 9."""
    manager = BlockManager(1, block_size=4, watermark=0)
    assert manager.can_allocate([0, 0, 0, 0]) is AllocStatus.OK
    manager.allocate(0, [0, 0, 0, 0])
    assert manager.block_table(0) == [0] and manager.slot_mapping(0, 0, 4) == [0, 1, 2, 3]
    assert manager.num_free_blocks == 0 and manager.pool.blocks[0].ref_count == 1
    manager.free(0)
    assert manager.num_free_blocks == 1 and manager.pool.blocks[0].ref_count == 0


def test_impossible_requests_are_named_and_the_others_go_on():
    """Behaviour 6, the pool's part: no IndexError, no endless loop, nothing changed."""
    manager = BlockManager(4, block_size=16, watermark=0)
    manager.allocate(0, range(10))
    before = state(manager)
    with pytest.raises(InvalidInputError, match="empty prompt"):
        manager.can_allocate([])
    assert manager.can_allocate(range(65)) is AllocStatus.NEVER
    with pytest.raises(OutOfBlocksError, match=r"needs 5 blocks for 65 tokens.*too small"):
        manager.allocate(1, range(65))
    assert manager.can_allocate(range(64)) is AllocStatus.LATER
    with pytest.raises(OutOfBlocksError, match=r"3 of 4 are free.*Wait"):
        manager.allocate(1, range(64))
    assert state(manager) == before
    manager.append_slots(0, 54)
    with pytest.raises(OutOfBlocksError, match="Free or preempt"):
        manager.append_slots(0)  # alone, and larger than the pool
    assert manager.num_tokens(0) == 64


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: BlockManager(0), "num_blocks is 0"),
        (lambda: BlockManager(4, block_size=0), "block_size is 0"),
        (lambda: BlockManager(4, watermark=1), "watermark is 1"),
        (lambda: BlockManager(4, block_order=[1, 1]), "a block twice"),
        (lambda: BlockManager(4, block_order=[4]), "outside 0 to 3"),
        (lambda: BlockManager(4).allocate("a", [1]), "known by an integer"),
        (lambda: BlockManager(4).free(3), "no sequence 3"),
        (lambda: BlockManager(4, watermark="0.1"), "watermark is '0.1'"),
        (lambda: BlockManager(4, watermark=None), "watermark is None"),
        (lambda: BlockManager(4, watermark=float("nan")), "watermark is nan"),
        (lambda: BlockManager(4, block_order=3), "block_order is 3"),
        (lambda: BlockManager(4, enable_prefix_caching="no"), "enable_prefix_caching is 'no'"),
        (lambda: BlockManager(4).can_allocate([1], extra=-50), "extra is -50"),
        (lambda: Paged(16).reset(15), "no block of 16"),
    ],
)
def test_bad_input_has_a_named_error(call, words):
    with pytest.raises(InvalidInputError, match=words):
        call()


def test_counts_are_one_after_allocation_and_zero_after_free():
    """Behaviour 7."""
    manager = BlockManager(10, block_size=2)
    manager.allocate(0, range(5))
    assert [manager.pool.blocks[i].ref_count for i in manager.block_table(0)] == [1, 1, 1]
    manager.free(0)
    assert {b.ref_count for b in manager.pool.blocks} == {0} and manager.num_free_blocks == 10


def test_the_pool_refuses_a_second_return():
    pool = BlockPool(3)
    pool.give_back(pool.take(1))
    with pytest.raises(MinipagedError, match="block 0 is given back twice"):
        pool.give_back([0])
    assert sorted(pool.free_ids) == [0, 1, 2]


def test_blocks_come_back_tail_first():
    """Behaviour 12: what is handed out next is the tail, and the first block of a sequence is reused last."""
    manager = BlockManager(6, block_size=1, block_order=[3, 1, 4, 0, 5, 2])
    manager.allocate(0, range(6))
    manager.free(0)
    assert list(manager.pool.free_ids) == [2, 5, 0, 4, 1, 3]
    manager.allocate(1, range(6))
    manager.truncate(1, 2)
    assert list(manager.pool.free_ids) == [3, 1, 4, 0] and manager.block_table(1) == [2, 5]


def test_the_watermark_is_kept_at_admission_and_used_for_growth():
    manager = BlockManager(10, block_size=1, watermark=0.29)  # int(2.9) = 2
    assert manager.watermark_blocks == 2
    assert manager.can_allocate(range(9)) is AllocStatus.NEVER
    manager.allocate(0, range(8))
    assert manager.can_allocate([1]) is AllocStatus.LATER and manager.can_append(0, 2)
    manager.append_slots(0, 2)
    assert manager.num_free_blocks == 0


def test_cutting_gives_back_whole_blocks_only():
    manager = BlockManager(8, block_size=4)
    manager.allocate(0, range(10))
    table = manager.block_table(0)
    for kept, blocks in [(10, 3), (9, 3), (8, 2), (5, 2), (4, 1), (1, 1), (0, 0)]:
        manager.truncate(0, kept)
        assert manager.block_table(0) == table[:blocks] and manager.num_tokens(0) == kept
    manager.append_slots(0, 5)
    assert len(manager.block_table(0)) == 2
    assert_sound(manager)


def test_a_caller_cannot_change_a_table_from_outside():
    manager = BlockManager(4)
    manager.allocate(0, range(20))
    manager.block_table(0).append(99)
    assert len(manager.block_table(0)) == 2


def test_a_shuffled_order_is_a_permutation_and_repeats():
    assert shuffled(50, 1) == shuffled(50, 1) != shuffled(50, 2)
    assert sorted(shuffled(50, 1)) == list(range(50))


def test_growing_in_steps_or_at_once_takes_the_same_blocks():
    """What lets the simulator count a whole block of tokens in one call."""
    chance = random.Random(0)
    for _ in range(50):
        start, n, size = chance.randint(1, 40), chance.randint(1, 60), chance.choice([1, 3, 16])
        single, at_once = BlockManager(200, size), BlockManager(200, size)
        for manager in (single, at_once):
            manager.allocate(0, range(start))
        for _ in range(n):
            single.append_slots(0)
        at_once.append_slots(0, n)
        assert state(single) == state(at_once)


def test_numpys_counts_are_counts_and_others_are_not():
    import numpy as np

    manager = BlockManager(np.int64(8), np.int32(2), watermark=0, block_order=np.array([3, 1]))
    manager.allocate(np.int64(5), [1, 2, 3])
    manager.append_slots(5, np.int64(2))
    assert manager.block_table(5) == [3, 1, 0] and all(type(i) is int for i in manager.block_table(5))
    for bad in (0.5, 1.5, True, None, "2", 0, -1):
        with pytest.raises(InvalidInputError, match=r"n, the tokens that a sequence grows by, is .*whole number"):
            manager.append_slots(5, bad)
        with pytest.raises(InvalidInputError, match="block_size is .*whole number"):
            BlockManager(8, bad)
    with pytest.raises(InvalidInputError, match="num_tokens is 1.5"):
        manager.truncate(5, 1.5)
    with pytest.raises(InvalidInputError, match="block_order is 1.0"):
        BlockManager(8, block_order=[1.0])
    assert manager.num_tokens(5) == 5 and manager.num_free_blocks == 5


def test_true_and_one_point_zero_are_no_ids_though_they_equal_one():
    manager = BlockManager(8, 2, watermark=0, num_host_blocks=8, enable_prefix_caching=True)
    manager.allocate(0, [1, 2, 3])
    manager.allocate(1, [4, 5, 6])
    manager.swap_out([1])
    before = state(manager)
    for wrong in (False, True, 0.0, 1.0, None, [0], "0"):
        for call in (
            lambda wrong=wrong: manager.free(wrong),
            lambda wrong=wrong: manager.num_tokens(wrong),
            lambda wrong=wrong: manager.append_slots(wrong),
            lambda wrong=wrong: manager.truncate(wrong, 0),
            lambda wrong=wrong: manager.fork(wrong, 5),
            lambda wrong=wrong: manager.swap_out([wrong]),
            lambda wrong=wrong: manager.swap_in([wrong]),
            lambda wrong=wrong: manager.blocks_to_swap_in({(wrong if wrong != [0] else None): 3}),
        ):
            with pytest.raises(InvalidInputError, match="known by an integer"):
                call()
    for call in (manager.swap_out, manager.swap_in):
        with pytest.raises(InvalidInputError, match="seq_ids is 0; pass a list"):
            call(0)
    with pytest.raises(InvalidInputError, match="num_tokens is 2.5"):
        manager.mark_computed(0, 2.5)
    with pytest.raises(InvalidInputError, match="they are whole numbers"):
        manager.mark_computed(0, 3, [1.5, 2, 3])
    with pytest.raises(InvalidInputError, match="they are whole numbers"):
        manager.allocate(2, ["a", "b", "c"])
    assert state(manager) == before


def test_a_sequence_named_twice_is_not_half_moved():
    manager = BlockManager(8, 2, watermark=0, num_host_blocks=8)
    manager.allocate(0, [1, 2, 3])
    for move in (manager.swap_out, manager.swap_in):
        tables = dict(manager._tables), dict(manager._host_tables)
        with pytest.raises(InvalidInputError, match="name one twice"):
            move([0, 0])
        assert (dict(manager._tables), dict(manager._host_tables)) == tables
        move([0])
    assert manager.num_tokens(0) == 3 and manager.num_free_blocks == 6


def test_a_pad_of_the_table_is_no_block():
    with pytest.raises(InvalidInputError, match="position 5 falls on -1, which pads the table"):
        physical_slot([0, -1], 5, 4)
