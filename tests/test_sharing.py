"""Shared blocks: counts are right, nobody writes into a block that another sequence names, everybody reads its own."""

from __future__ import annotations

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from minipaged.block_manager import BlockManager, OutOfBlocksError, blocks_needed
from minipaged.errors import InvalidInputError
from minipaged.paged_cache import PagedKVCache
from tests.test_block_manager import assert_sound, state

# ---- any order of calls, over a memory that holds what was written ---------------------------------------------------


class Machine(RuleBasedStateMachine):
    """Forks, writes, cuts and swaps over fake memories, slot -> token: each sequence must read back its own tokens."""

    @initialize(
        num_blocks=st.integers(2, 14), block_size=st.sampled_from([1, 2, 3, 4]), host=st.sampled_from([0, 4, 14])
    )
    def start(self, num_blocks, block_size, host):
        self.manager = BlockManager(num_blocks, block_size, watermark=0, num_host_blocks=host)
        self.size, self.memory, self.host_memory = block_size, {}, {}
        self.texts, self.away, self.next_id = {}, {}, 0

    def copy(self, pairs, source, target):
        """What PagedKVCache.copy_blocks does: all are read before any is written."""
        read = [(to, [source.get(block * self.size + i) for i in range(self.size)]) for block, to in pairs]
        assert len({to for to, _ in read}) == len(read)
        for to, tokens in read:
            target.update({to * self.size + i: token for i, token in enumerate(tokens)})

    def write(self, seq, start):
        """Store the tokens from `start` on, as the model would, in blocks that no other sequence names."""
        text = self.texts[seq]
        for position, slot in enumerate(self.manager.slot_mapping(seq, start, len(text)), start):
            others = [t for other in self.texts if other != seq for t in self.manager.block_table(other)]
            assert slot // self.size not in others, "a shared block is written"
            self.memory[slot] = text[position]

    def new_id(self):
        self.next_id += 1
        return self.next_id

    @rule(text=st.lists(st.integers(0, 1), min_size=1, max_size=14))
    def allocate(self, text):
        fits = blocks_needed(len(text), self.size) <= self.manager.num_free_blocks
        if not fits:
            with pytest.raises(OutOfBlocksError):
                self.manager.allocate(self.new_id(), text)
            return
        seq = self.new_id()
        cached = self.manager.allocate(seq, text)
        self.texts[seq] = list(text)
        self.write(seq, cached)

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def fork(self, data):
        parent, child = data.draw(st.sampled_from(sorted(self.texts))), self.new_id()
        used = self.manager.num_used_blocks
        self.manager.fork(parent, child)
        assert self.manager.num_used_blocks == used  # a fork takes no block
        self.texts[child] = list(self.texts[parent])

    @precondition(lambda self: self.texts)
    @rule(data=st.data(), more=st.lists(st.integers(0, 1), min_size=1, max_size=6))
    def append(self, data, more):
        seq = data.draw(st.sampled_from(sorted(self.texts)))
        needed, free = self.manager.new_blocks_needed(seq, len(more)), self.manager.num_free_blocks
        assert self.manager.can_append(seq, len(more)) == (needed <= free)
        if needed > free:
            before = state(self.manager)
            with pytest.raises(OutOfBlocksError):
                self.manager.append_slots(seq, len(more))
            assert state(self.manager) == before
            return
        self.copy(self.manager.append_slots(seq, len(more)), self.memory, self.memory)
        assert self.manager.num_free_blocks == free - needed  # the check and the action agree
        self.texts[seq] += more
        self.write(seq, len(self.texts[seq]) - len(more))

    @precondition(lambda self: self.texts)
    @rule(data=st.data(), n=st.integers(0, 3))
    def append_together(self, data, n):
        seqs = data.draw(st.lists(st.sampled_from(sorted(self.texts)), unique=True, min_size=1))
        needed, free = self.manager.new_blocks_needed_together(dict.fromkeys(seqs, n)), self.manager.num_free_blocks
        if not n or needed > free:
            assert n or not needed
            return
        copies = [pair for seq in seqs for pair in self.manager.append_slots(seq, n)]
        assert self.manager.num_free_blocks == free - needed
        self.copy(copies, self.memory, self.memory)
        for seq in seqs:
            self.texts[seq] += [seq % 2] * n
            self.write(seq, len(self.texts[seq]) - n)

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def truncate(self, data):
        seq = data.draw(st.sampled_from(sorted(self.texts)))
        kept = data.draw(st.integers(0, len(self.texts[seq])))
        self.manager.truncate(seq, kept)
        del self.texts[seq][kept:]

    @precondition(lambda self: self.texts or self.away)
    @rule(data=st.data())
    def free(self, data):
        """Finished, or preempted by recomputation: the blocks are given back."""
        seq = data.draw(st.sampled_from(sorted([*self.texts, *self.away])))
        self.manager.free(seq)
        self.texts.pop(seq, None)
        self.away.pop(seq, None)

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def swap_out(self, data):
        seqs = data.draw(st.lists(st.sampled_from(sorted(self.texts)), unique=True, min_size=1))
        blocks = {block for seq in seqs for block in self.manager.block_table(seq)}
        if not self.manager.can_swap_out(seqs):
            host = self.manager.host_pool
            assert host is None or len(blocks) > host.num_free
            return
        pairs = self.manager.swap_out(seqs)
        assert {block for block, _ in pairs} == blocks and len(pairs) == len(blocks)  # each distinct block once
        self.copy(pairs, self.memory, self.host_memory)
        self.away.update({seq: self.texts.pop(seq) for seq in seqs})

    @precondition(lambda self: self.away)
    @rule(data=st.data(), more=st.integers(0, 3))
    def swap_in(self, data, more):
        seqs = data.draw(st.lists(st.sampled_from(sorted(self.away)), unique=True, min_size=1))
        needed = self.manager.blocks_to_swap_in({seq: len(self.away[seq]) + more for seq in seqs})
        free = self.manager.num_free_blocks
        if needed > free:
            return
        self.copy(self.manager.swap_in(seqs), self.host_memory, self.memory)
        self.texts.update({seq: self.away.pop(seq) for seq in seqs})
        for seq in seqs if more else ():
            self.copy(self.manager.append_slots(seq, more), self.memory, self.memory)
            self.texts[seq] += [0] * more
            self.write(seq, len(self.texts[seq]) - more)
        assert self.manager.num_free_blocks == free - needed

    @invariant()
    def sound(self):
        if hasattr(self, "manager"):
            assert_sound(self.manager)
            for seq, text in self.texts.items():
                slots = self.manager.slot_mapping(seq, 0, len(text))
                assert [self.memory[slot] for slot in slots] == text, f"sequence {seq} reads another one's tokens"


Machine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None, derandomize=True)
TestAnyOrderOfCalls = Machine.TestCase


# ---- fork and copy-on-write ------------------------------------------------------------------------------------------


def forked(prompt_len=6, samples=3, num_blocks=12, **options):
    manager = BlockManager(num_blocks, 4, watermark=0, **options)
    manager.allocate(0, range(prompt_len))
    for child in range(1, samples):
        manager.fork(0, child)
    return manager


def test_a_fork_takes_no_block_and_counts_the_tables():
    manager = forked()
    assert manager.num_used_blocks == 2
    assert [manager.pool.blocks[i].ref_count for i in manager.block_table(0)] == [3, 3]
    assert manager.block_table(2) == manager.block_table(0) and manager.num_tokens(2) == 6
    with pytest.raises(InvalidInputError, match="sequence 2 is admitted already"):
        manager.fork(0, 2)
    with pytest.raises(InvalidInputError, match="no sequence 9"):
        manager.fork(9, 10)
    with pytest.raises(InvalidInputError, match="known by an integer"):
        manager.fork(0, "a")
    assert_sound(manager)


def test_shared_blocks_are_copied_before_the_first_write_and_the_last_writer_keeps_the_original():
    """Figure 8 of the paper: the full block stays shared, the half full one is copied."""
    manager = forked()
    full, half = manager.block_table(0)
    assert manager.append_slots(0) == [(half, 2)] and manager.block_table(0) == [full, 2]
    assert manager.append_slots(1) == [(half, 3)] and manager.block_table(1) == [full, 3]
    assert manager.append_slots(2) == [] and manager.block_table(2) == [full, half]
    assert [manager.pool.blocks[i].ref_count for i in (full, half, 2, 3)] == [3, 1, 1, 1]


def test_a_prompt_of_whole_blocks_needs_no_copy():
    manager = forked(prompt_len=8)
    assert [manager.append_slots(seq) for seq in range(3)] == [[], [], []]
    assert manager.num_used_blocks == 2 + 3


def test_the_check_and_the_action_agree_when_only_a_copy_is_missing():
    manager = forked(num_blocks=3)
    assert manager.new_blocks_needed(0) == 1 and manager.can_append(0)
    assert manager.new_blocks_needed_together({0: 1, 1: 1, 2: 1}) == 2  # the last one to write needs none
    manager.append_slots(0)
    before = state(manager)
    assert not manager.can_append(1)
    with pytest.raises(OutOfBlocksError, match="needs 1 more blocks for 1 more tokens"):
        manager.append_slots(1)
    assert state(manager) == before
    manager.free(2)
    assert manager.can_append(1) and manager.append_slots(1) == []  # alone in it now


def test_cutting_a_shared_block_lowers_the_count_and_writing_into_it_then_copies():
    manager = forked(prompt_len=8, samples=2)
    first, second = manager.block_table(0)
    manager.truncate(1, 6)
    assert manager.block_table(1) == [first, second] and manager.pool.blocks[second].ref_count == 2
    assert manager.append_slots(1) == [(second, 2)]  # sequence 0 still has its tokens 6 and 7 there
    manager.fork(0, 2)
    manager.truncate(2, 4)
    assert [manager.pool.blocks[i].ref_count for i in (first, second, 2)] == [3, 1, 1]
    assert manager.append_slots(2) == []
    assert_sound(manager)


def test_copies_on_the_tensors_leave_every_sequence_its_own_tokens():
    cache = PagedKVCache([(1, 2, 3), (2, 2, 2)], 12, 4, fill=float("nan"))
    manager = forked()
    generator = torch.Generator().manual_seed(0)
    prompt = [
        (torch.randn(6, h, k, generator=generator), torch.randn(6, h, v, generator=generator))
        for h, k, v in cache.shapes
    ]
    for call, (k, v) in enumerate(prompt):
        cache.write(call, k, v, manager.slot_mapping(0, 0, 6))
    own = {}
    for seq in range(3):
        cache.copy_blocks(manager.append_slots(seq))
        for call, (h, k_dim, v_dim) in enumerate(cache.shapes):
            own[seq, call] = torch.full((1, h, k_dim), float(seq)), torch.full((1, h, v_dim), float(seq))
            cache.write(call, *own[seq, call], manager.slot_mapping(seq, 6, 7))
    for (seq, call), mine in own.items():
        for got, shared, last in zip(cache.gather(call, manager.block_table(seq), 7), prompt[call], mine, strict=True):
            assert torch.equal(got, torch.cat([shared, last]))


# ---- swapping --------------------------------------------------------------------------------------------------------


def test_shared_blocks_are_swapped_once_and_shared_again_when_they_return():
    manager = forked(num_host_blocks=2)
    assert manager.can_swap_out([0, 1, 2])
    pairs = manager.swap_out([0, 1, 2])
    assert len(pairs) == 2 and manager.num_used_blocks == 0
    assert manager.blocks_to_swap_in({0: 6, 1: 6, 2: 6}) == 2
    assert manager.blocks_to_swap_in({0: 7, 1: 7, 2: 7}) == 4  # two of three copy the half full block
    assert len(manager.swap_in([0, 1, 2])) == 2
    assert [manager.pool.blocks[i].ref_count for i in manager.block_table(1)] == [3, 3]
    assert manager.block_table(0) == manager.block_table(2)
    assert_sound(manager)


def test_blocks_that_others_still_use_stay_for_them():
    manager = forked(num_host_blocks=8)
    table = manager.block_table(2)
    pairs = manager.swap_out([0, 1])
    assert [block for block, _ in pairs] == table and manager.block_table(2) == table
    assert [manager.pool.blocks[i].ref_count for i in table] == [1, 1]
    manager.free(2)
    assert manager.num_free_blocks == 12  # nobody in host memory holds a block of the pool
    manager.free(0)
    manager.swap_in([1])
    assert_sound(manager)
