"""Shared blocks: counts are right, nobody writes into a block that another sequence names, everybody reads its own."""

from __future__ import annotations

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from minipaged.block_manager import AllocStatus, BlockManager, OutOfBlocksError, blocks_needed
from minipaged.engine import LLM
from minipaged.errors import InvalidInputError
from minipaged.paged_cache import PagedKVCache
from minipaged.sampling import SamplingParams
from minipaged.scheduler import Scheduler, Sequence, SequenceStatus, Step
from tests.test_block_manager import assert_sound, state
from tests.test_engine import greedy, prompts, tokens
from tests.test_scheduler import assert_each_in_one_place, assert_no_block_lost
from tests.tiny_models import FAMILIES, tiny_model

# ---- any order of calls, over a memory that holds what was written ---------------------------------------------------


def constant(parent_hash, token_ids):
    """A hash that is the same for every block: only the comparison of tokens and parents tells texts apart."""
    return 7


def text_of(prefix):
    """All tokens up to the end of a `Prefix`."""
    return () if prefix is None else (*text_of(prefix.parent), *prefix.token_ids)


class Machine(RuleBasedStateMachine):
    """Forks, writes, cuts, swaps, hits and evictions over fake memories, in which a slot holds what was written there.

    The K and V of a token depend on all tokens before it, so a slot holds the text up to and including its token. Every
    sequence must read back its own texts, and every block that can be found must hold what it is listed with.
    """

    @initialize(
        num_blocks=st.sampled_from([3, 6, 10, 16]),
        block_size=st.sampled_from([4, 3, 2, 1]),
        host=st.sampled_from([4, 14, 0]),
        caching=st.sampled_from([True, True, False]),
        hash_function=st.sampled_from([None, constant]),
    )
    def start(self, num_blocks, block_size, host, caching, hash_function):
        options = {"num_host_blocks": host, "enable_prefix_caching": caching, "hash_function": hash_function}
        self.manager = BlockManager(num_blocks, block_size, watermark=0, **options)
        self.size, self.memory, self.host_memory = block_size, {}, {}
        self.texts, self.done, self.away, self.seen, self.next_id = {}, {}, {}, [[0]], 0
        self.before_reset = set()  # sequences that ran when the cache was reset, and their forks

    def copy(self, pairs, source, target):
        """What PagedKVCache.copy_blocks does: all are read before any is written."""
        read = [(to, [source.get(block * self.size + i) for i in range(self.size)]) for block, to in pairs]
        assert len({to for to, _ in read}) == len(read)
        for to, held in read:
            target.update({to * self.size + i: token for i, token in enumerate(held)})

    def new_id(self):
        self.next_id += 1
        return self.next_id

    def one(self, data, among=None):
        return data.draw(st.sampled_from(sorted(self.texts if among is None else among)))

    def write(self, seq, count):
        """Store the next tokens, as the model would, in blocks that no other sequence names."""
        text, start = self.texts[seq], self.done[seq]
        others = {block for other in self.texts if other != seq for block in self.manager.block_table(other)}
        for position, slot in enumerate(self.manager.slot_mapping(seq, start, start + count), start):
            assert slot // self.size not in others, "a shared block is written"
            self.memory[slot] = tuple(text[: position + 1])
        self.done[seq] += count

    @rule(data=st.data(), more=st.lists(st.integers(0, 1), max_size=6), now=st.integers(0, 3))
    def allocate(self, data, more, now):
        """A new text, or one that begins like an earlier one, or one that was preempted and comes back."""
        text = (data.draw(st.sampled_from(self.seen)) + more)[:14]
        seq, free, needed = self.new_id(), self.manager.num_free_blocks, blocks_needed(len(text), self.size)
        before, in_use = state(self.manager), {i for s in self.texts for i in self.manager.block_table(s)}
        status = self.manager.can_allocate(text)
        if status is not AllocStatus.OK:
            assert (status is AllocStatus.NEVER) == (needed > self.manager.num_blocks)
            with pytest.raises(OutOfBlocksError):
                self.manager.allocate(seq, text)
            assert state(self.manager) == before
            return
        cached = self.manager.allocate(seq, text)
        assert cached < len(text) and cached % self.size == 0  # at least one token is left to compute
        found = self.manager.block_table(seq)[: cached // self.size]
        assert self.manager.num_free_blocks == free - needed + len(in_use.intersection(found))
        self.texts[seq], self.done[seq] = list(text), cached
        self.seen.append(list(text))
        if now:
            self.finish_computing(seq)

    def finish_computing(self, seq):
        self.write(seq, len(self.texts[seq]) - self.done[seq])
        self.manager.mark_computed(seq, self.done[seq], self.texts[seq])

    @precondition(lambda self: self.texts)
    @rule(data=st.data(), tell=st.booleans(), all_of_it=st.booleans())
    def compute(self, data, tell, all_of_it):
        """A pass over some of a sequence's tokens; the caller may tell the tokens that were written since."""
        seq = self.one(data)
        left = len(self.texts[seq]) - self.done[seq]
        self.write(seq, left if all_of_it else data.draw(st.integers(0, left)))
        self.manager.mark_computed(seq, self.done[seq], *([self.texts[seq]] if tell else []))
        self.seen.append(list(self.texts[seq]) or [1])

    @precondition(lambda self: self.texts)
    @rule(data=st.data(), children=st.integers(1, 3), writers=st.integers(0, 4))
    def fork(self, data, children, writers):
        parent, used = self.one(data), self.manager.num_used_blocks
        self.finish_computing(parent)
        family = [parent, *(self.new_id() for _ in range(children))]
        for child in family[1:]:
            self.manager.fork(parent, child)
            self.texts[child], self.done[child] = list(self.texts[parent]), self.done[parent]
            self.before_reset.update({child} if parent in self.before_reset else ())
        assert self.manager.num_used_blocks == used  # a fork takes no block
        for seq in family[:writers]:
            self.grow(seq, [seq % 2], True)

    @precondition(lambda self: self.texts)
    @rule(data=st.data(), more=st.lists(st.integers(0, 1), min_size=1, max_size=6), now=st.booleans())
    def append(self, data, more, now):
        self.grow(self.one(data), more, now)

    def grow(self, seq, more, now):
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
        if now:
            self.finish_computing(seq)

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

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def truncate(self, data):
        seq = self.one(data)
        kept = data.draw(st.integers(0, len(self.texts[seq])))
        self.manager.truncate(seq, kept)
        del self.texts[seq][kept:]
        self.done[seq] = min(self.done[seq], kept)

    @precondition(lambda self: self.texts or self.away)
    @rule(data=st.data())
    def free(self, data):
        """Finished, or preempted by recomputation: the blocks are given back."""
        seq = self.one(data, [*self.texts, *self.away])
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
        assert self.manager.num_free_blocks == free - needed

    @precondition(lambda self: self.manager.cached_blocks and self.next_id % 9 == 8)  # seldom, or nothing is ever found
    @rule()
    def reset(self):
        self.manager.reset_prefix_cache()
        assert self.manager.cached_blocks == []
        self.before_reset.update(self.texts, self.away)

    def holds(self, slots, text):
        return all(self.memory[slot] == tuple(text[: i + 1]) for i, slot in enumerate(slots))

    @invariant()
    def sound(self):
        if not hasattr(self, "manager"):
            return
        assert_sound(self.manager)
        for seq, text in self.texts.items():
            slots = self.manager.slot_mapping(seq, 0, self.done[seq])
            assert self.holds(slots, text), f"sequence {seq} reads another one's tokens"
            if seq in self.before_reset:
                assert not set(self.manager.block_table(seq)).intersection(self.manager.cached_blocks)
        for block in self.manager.cached_blocks:
            text = text_of(self.manager.pool.prefixes.held_by(block))
            whole = [self.memory[block * self.size + i] for i in range(self.size)]
            assert whole[-1] == text and len(whole[0]) == len(text) - self.size + 1, "listed with other tokens"


Machine.TestCase.settings = settings(max_examples=180, stateful_step_count=35, deadline=None, derandomize=True)
TestAnyOrderOfCalls = Machine.TestCase


# ---- any order of requests, over the scheduler ---------------------------------------------------------------------


def next_token(text, sample):
    """What the fake model writes after a text: it depends on every token before."""
    return (sum(text) * 7 + len(text) + sample) % 3


class Server:
    """The engine with fake memories: makes the step's copies, stores texts in slots, and reads them back."""

    def __init__(self, scheduler):
        self.scheduler, self.manager, self.size = scheduler, scheduler.manager, scheduler.manager.block_size
        self.memory, self.host_memory, self.all = {}, {}, []

    copy = Machine.copy

    def add(self, prompt, output_lens):
        first = len(self.all)
        samples = [Sequence(first + i, list(prompt), len(prompt), len(prompt) + n) for i, n in enumerate(output_lens)]
        for index, seq in enumerate(samples):
            seq.sample = index
        self.all += samples
        self.scheduler.add(*samples)

    def step(self):
        step = self.scheduler.schedule()
        assert not (step.swap_out and step.swap_in) and len(self.scheduler.running) <= self.scheduler.max_num_seqs
        assert len({seq.seq_id for seq, _ in step.parts}) == len(step.parts)
        assert step.num_tokens == sum(count for _, count in step.parts) <= self.scheduler.max_num_batched_tokens
        self.copy(step.swap_out, self.memory, self.host_memory)
        self.copy(step.swap_in, self.host_memory, self.memory)
        self.copy(step.copies, self.memory, self.memory)
        for seq, count in step.parts:
            self.store(seq, count)
        for seq, count in step.parts:
            slots = self.manager.slot_mapping(seq.seq_id, 0, seq.num_computed_tokens + count)
            assert all(self.memory[slot] == tuple(seq.token_ids[: i + 1]) for i, slot in enumerate(slots))
            for one in self.scheduler.computed(seq, count):
                one.token_ids.append(next_token(one.token_ids, one.sample))
                if len(one.token_ids) >= one.max_len:
                    self.scheduler.finish(one, "length")
        return step

    def store(self, seq, count):
        done = seq.num_computed_tokens
        for position, slot in enumerate(self.manager.slot_mapping(seq.seq_id, done, done + count), done):
            assert self.manager.pool.blocks[slot // self.size].ref_count == 1, "a shared block is written"
            self.memory[slot] = tuple(seq.token_ids[: position + 1])

    def run(self):
        steps = []
        while self.scheduler.unfinished:
            steps.append(self.step())
            assert len(steps) < 5000, "somebody waits for ever"
        return steps


def alone(prompt, sample, max_len):
    """What the fake model writes for a lone request."""
    text = list(prompt)
    while len(text) < max_len:
        text.append(next_token(text, sample))
    return text


class ServerMachine(RuleBasedStateMachine):
    """Requests with several samples come, are cancelled, give way and return, with few blocks and small budgets."""

    @initialize(
        num_blocks=st.integers(2, 14),
        block_size=st.sampled_from([1, 2, 4]),
        host=st.sampled_from([0, 5, 14]),
        caching=st.booleans(),
        limits=st.sampled_from([(4, 1), (4, 3), (6, 64)]),
        options=st.fixed_dictionaries(
            {
                "preemption": st.sampled_from(["recompute", "swap"]),
                "batching": st.sampled_from(["continuous", "continuous", "static"]),
            }
        ),
    )
    def start(self, num_blocks, block_size, host, caching, limits, options):
        more = {"num_host_blocks": host, "enable_prefix_caching": caching, "watermark": 0.1}
        self.server = Server(Scheduler(BlockManager(num_blocks, block_size, **more), *limits, **options))

    @rule(
        prompt=st.lists(st.integers(0, 1), min_size=1, max_size=12),
        lens=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    )
    def add(self, prompt, lens):
        self.server.add(prompt, lens)

    @rule(times=st.integers(1, 4))
    def step(self, times):
        for _ in range(times):
            unfinished = self.server.scheduler.unfinished
            step = self.server.step()
            assert step.parts or step.refused or not unfinished, "a step that does nothing would be repeated for ever"
            self.sound()

    @precondition(lambda self: self.server.all)
    @rule(data=st.data())
    def cancel(self, data):
        self.server.scheduler.finish(data.draw(st.sampled_from(self.server.all)), "cancelled")

    @invariant()
    def sound(self):
        if hasattr(self, "server"):
            assert_each_in_one_place(self.server.scheduler, self.server.all)
            assert_no_block_lost(self.server.scheduler)
            for block in self.server.manager.cached_blocks:
                text = text_of(self.server.manager.pool.prefixes.held_by(block))
                assert self.server.memory[(block + 1) * self.server.size - 1] == text

    def teardown(self):
        if not hasattr(self, "server"):
            return
        self.server.run()
        manager = self.server.manager
        assert manager.num_free_blocks == manager.num_blocks
        for seq in self.server.all:
            whole = alone(seq.token_ids[: seq.prompt_len], seq.sample, seq.max_len)
            assert seq.token_ids == whole[: len(seq.token_ids)], "another text than a lone request would have"
            held = manager.num_blocks * manager.block_size
            if seq.finish_reason == "length":
                assert len(seq.token_ids) == seq.max_len
            elif seq.finish_reason == "refused":
                assert seq.prompt_len > held
            elif seq.finish_reason == "out_of_blocks":
                assert len(seq.token_ids) == held + 1
            else:
                assert seq.finish_reason == "cancelled"


ServerMachine.TestCase.settings = settings(max_examples=120, stateful_step_count=30, deadline=None, derandomize=True)
TestAnyOrderOfRequests = ServerMachine.TestCase


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
    with pytest.raises(OutOfBlocksError, match="needs 1 more block for 1 more token"):
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


# ---- finding a prefix again ------------------------------------------------------------------------------------------


def caching(num_blocks=8, block_size=4, **options):
    return BlockManager(num_blocks, block_size, watermark=0, enable_prefix_caching=True, **options)


def serve(manager, seq, text, *, free=True):
    """Admit, compute and end one text; returns how many of its tokens were found and the table it had."""
    cached = manager.allocate(seq, text)
    manager.mark_computed(seq, len(text))
    table = manager.block_table(seq)
    if free:
        manager.free(seq)
    return cached, table


@pytest.mark.parametrize("block_size", [1, 4])
@pytest.mark.parametrize("blocks", [1, 2, 5])
def test_at_least_one_token_is_left_to_compute(block_size, blocks):
    """Behaviour 1: a prompt of exactly k blocks, all of them cached."""
    manager, text = caching(2 * blocks, block_size), range(blocks * block_size)
    serve(manager, 0, text)
    cached, _ = serve(manager, 1, text)
    assert cached == (blocks - 1) * block_size
    assert manager.allocate(2, [*text, 99]) == blocks * block_size  # one token more, and the last block is found too


def test_a_found_block_that_was_free_keeps_its_prefix_and_leaves_the_free_queue():
    """Behaviour 4: revived with a count of 1, and still listed for the next one."""
    manager = caching()
    _, table = serve(manager, 0, range(9))
    assert manager.cached_blocks == sorted(table[:2]) and manager.num_free_blocks == 8
    assert manager.allocate(1, range(9)) == 8
    assert manager.block_table(1)[:2] == table[:2]
    assert [manager.pool.blocks[i].ref_count for i in table[:2]] == [1, 1]
    assert not set(table[:2]) & set(manager.pool.free_ids) and set(table[:2]) <= set(manager.cached_blocks)
    assert manager.allocate(2, range(9)) == 8
    assert [manager.pool.blocks[i].ref_count for i in table[:2]] == [2, 2]
    assert_sound(manager)


def test_two_texts_with_the_same_hash_never_share():
    """Behaviour 8: the hash says where to look, the tokens and what came before them decide."""
    for hash_function in (constant, None):
        manager = caching(16, hash_function=hash_function)
        serve(manager, 0, [1, 1, 1, 1, 2, 2, 2, 2, 0])
        assert manager.allocate(1, [3, 3, 3, 3, 2, 2, 2, 2, 0]) == 0  # another first block
        assert manager.allocate(2, [1, 1, 1, 1, 3, 3, 3, 3, 0]) == 4  # another second block
        assert manager.allocate(3, [2, 2, 2, 2, 1, 1, 1, 1, 0]) == 0  # the same blocks, the other way round
        assert manager.allocate(4, [2, 2, 2, 2, 0]) == 0  # a second block is no first block
        assert manager.allocate(5, [1, 1, 1, 1, 2, 2, 2, 2, 5]) == 8
        assert_sound(manager)


def test_a_free_block_that_is_found_again_costs_a_free_block():
    """Behaviour 10: available, found and in use are counted once each."""
    manager = caching(4)
    serve(manager, 0, range(12))
    manager.allocate(1, [50])  # takes a block, so 3 are free; all three of the text's blocks are among them
    assert manager.can_allocate(range(12)) is AllocStatus.OK
    assert manager.can_allocate(range(13)) is AllocStatus.LATER  # 3 found + 1 new, and only these 3 are free
    before = state(manager)
    with pytest.raises(OutOfBlocksError, match="needs 4 blocks for 13 tokens"):
        manager.allocate(2, range(13))
    assert state(manager) == before
    assert manager.allocate(2, range(12)) == 8 and manager.num_free_blocks == 0
    manager.free(1)
    assert manager.allocate(3, range(9)) == 8  # found in use: only the last block is new
    assert manager.num_free_blocks == 0
    assert_sound(manager)


def test_tails_are_reused_before_prefixes_and_the_least_recently_used_text_first():
    """Behaviour 12, seen from the cache: which texts are still found as the pool fills up again."""
    manager = caching(6, block_size=2)
    serve(manager, 0, [1, 1, 2, 2, 9])  # two blocks that can be found, and a part of one
    serve(manager, 1, [3, 3, 4, 4, 9])
    serve(manager, 0, [1, 1, 2, 2, 9])  # used again: now the other one is the older
    lost = []
    for number in range(10, 14):
        manager.allocate(number, [99, 99])
        held = {block: text_of(manager.pool.prefixes.held_by(block)) for block in manager.cached_blocks}
        lost.append(sorted(held.values()))
    old, new = [(3, 3), (3, 3, 4, 4)], [(1, 1), (1, 1, 2, 2)]
    assert lost == [[*new, *old], [*new, old[0]], new, new]


def test_only_computed_full_blocks_are_found():
    manager = caching(16)
    manager.allocate(0, range(11))
    assert manager.can_allocate(range(11)) is AllocStatus.OK and manager.cached_blocks == []
    assert manager.allocate(1, range(11)) == 0  # at the same time: nothing is computed yet
    for computed, found in [(3, 0), (4, 4), (7, 4), (8, 8), (11, 8)]:
        manager.mark_computed(0, computed)
        assert manager.allocate(2, range(11)) == found
        manager.free(2)
    assert caching().allocate(0, range(11)) == 0
    for wrong in (lambda: manager.mark_computed(0, 12), lambda: manager.mark_computed(0, 8, range(7))):
        with pytest.raises(InvalidInputError, match="tokens of sequence 0 cannot be computed"):
            wrong()


def test_tokens_that_were_written_while_decoding_are_found_by_the_next_turn_of_a_conversation():
    manager, text = caching(), [5, 6, 7]
    manager.allocate(0, text)
    manager.mark_computed(0, 3, text)
    for token in (8, 9, 10, 11, 12, 13):
        text.append(token)
        manager.append_slots(0)
        manager.mark_computed(0, len(text), text)
    manager.free(0)
    assert manager.allocate(1, [5, 6, 7, 8, 9, 10, 11, 12, 13, 14]) == 8


def test_a_sequence_that_ran_at_a_reset_is_never_found_nor_is_what_it_wrote_afterwards():
    """Its later K and V depend on its earlier ones, which the reset declared void."""
    manager = caching(num_host_blocks=8)
    manager.allocate(0, [1, 2, 3, 4, 5])
    manager.mark_computed(0, 2)
    manager.swap_out([0])
    manager.reset_prefix_cache()
    manager.swap_in([0])
    manager.mark_computed(0, 5)
    manager.fork(0, 1)
    manager.append_slots(1, 3)
    manager.mark_computed(1, 8, [1, 2, 3, 4, 5, 6, 7, 8])
    manager.truncate(1, 6)
    assert manager.cached_blocks == [] and manager.allocate(2, [1, 2, 3, 4, 9]) == 0
    manager.mark_computed(2, 5)  # one that came later is found
    manager.free(0)
    assert manager.allocate(3, [1, 2, 3, 4, 7]) == 4


def test_a_cut_sequence_that_writes_on_takes_nobody_in():
    """Tokens written after a cut are others: the block is not found under its old tokens any more."""
    manager = caching()
    manager.allocate(0, range(8))
    manager.mark_computed(0, 8)
    manager.truncate(0, 6)
    assert len(manager.cached_blocks) == 2  # nothing is overwritten yet
    manager.append_slots(0, 2)
    assert len(manager.cached_blocks) == 1
    manager.mark_computed(0, 8)  # what the new tokens are was not told
    assert len(manager.cached_blocks) == 1
    manager.mark_computed(0, 8, [0, 1, 2, 3, 4, 5, 70, 71])
    assert manager.allocate(1, [0, 1, 2, 3, 4, 5, 70, 71, 8]) == 8 and manager.allocate(2, range(9)) == 4


def test_without_prefix_caching_nothing_is_found_and_nothing_is_hashed():
    manager = BlockManager(8, 4, hash_function=lambda *_: pytest.fail("hashed"))
    serve(manager, 0, range(9))
    assert serve(manager, 1, range(9))[0] == 0 and manager.cached_blocks == []


def test_hashing_is_once_a_full_block():
    """Not once a token: decoding 40 tokens in blocks of 4 hashes 10 times."""
    calls = []
    manager = caching(16, hash_function=lambda *key: calls.append(key) or hash(key))
    manager.allocate(0, [0])
    for length in range(2, 41):
        manager.append_slots(0)
        manager.mark_computed(0, length, [0] * length)
    assert len(calls) == 10


def test_numpys_tokens_find_those_of_a_list():
    import numpy as np

    manager = caching()
    serve(manager, 0, np.arange(9))
    assert manager.allocate(1, list(range(9))) == 8 and manager.allocate(2, torch.arange(9)) == 8


# ---- groups in the scheduler -----------------------------------------------------------------------------------------


def serve_group(scheduler, prompt, output_lens):
    server = Server(scheduler)
    server.add(prompt, output_lens)
    return server, server.run()


def test_a_prompt_is_computed_once_for_all_samples():
    scheduler = Scheduler(BlockManager(20, 4), 8, 64)
    server, steps = serve_group(scheduler, [1] * 10, [5, 5, 5])
    assert [step.num_tokens for step in steps] == [10, 3, 3, 3, 3]
    assert [len(step.copies) for step in steps] == [0, 2, 0, 0, 0]  # the last one to write keeps the original
    assert [seq.finish_reason for seq in server.all] == ["length"] * 3


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_a_group_gives_way_and_returns_as_a_whole(preemption):
    manager = BlockManager(9, 4, watermark=0, num_host_blocks=9)
    server = Server(Scheduler(manager, 8, 64, preemption=preemption))
    server.add([1] * 7, [20])
    server.add([0] * 6, [7, 7, 7])
    gone = False
    while server.scheduler.unfinished:
        step = server.step()
        statuses = {seq.status for seq in server.all[1:]} - {SequenceStatus.FINISHED}
        assert len(statuses) <= 1, "a part of a group was left behind"
        if step.num_preempted:
            gone = True
            assert step.num_preempted == 3
            pairs = step.swap_out
            assert (len(pairs) == len(set(pairs)) > 0) == (preemption == "swap")
    assert gone and {seq.finish_reason for seq in server.all} == {"length"}
    assert [seq.token_ids for seq in server.all[1:]] == [alone([0] * 6, i, 13) for i in range(3)]


def test_a_group_that_is_alone_and_too_large_goes_on_with_fewer_samples():
    """Four samples of 3 blocks each do not fit 6 blocks, two of them do: no sample is lost."""
    for host in (0, 6):
        manager = BlockManager(6, 4, num_host_blocks=host)
        scheduler = Scheduler(manager, 8, 64, preemption="swap" if host else "recompute")
        server, _ = serve_group(scheduler, [1] * 6, [6] * 4)
        assert [seq.finish_reason for seq in server.all] == ["length"] * 4
        assert [seq.token_ids for seq in server.all] == [alone([1] * 6, i, 12) for i in range(4)]


def test_when_the_sample_that_computes_the_prompt_is_cancelled_the_others_compute_it():
    for status in ("running", "swapped"):
        manager = BlockManager(6, 4, watermark=0, num_host_blocks=6)
        server = Server(Scheduler(manager, 8, 4, preemption="swap"))
        server.add([1] * 11, [4, 4])
        server.step()
        if status == "swapped":
            server.scheduler._preempt(server.scheduler.running[:], server.step())
        server.scheduler.finish(server.all[0], "cancelled")
        assert [seq.seq_id for seq in server.scheduler.waiting] == [1] and manager.num_free_blocks == 6
        server.run()
        assert server.all[1].token_ids == alone([1] * 11, 1, 15)


def test_a_group_that_is_computed_again_in_chunks_shares_no_block_that_is_still_written():
    """The first sample's tokens fill the prompt's last block up again, so the other one starts when all are in."""
    scheduler = Scheduler(BlockManager(20, 4), 8, max_num_batched_tokens=7)
    server = Server(scheduler)
    server.add([1] * 6, [8, 8])
    for _ in range(4):
        server.step()
    scheduler._preempt(scheduler.running[:], Step())
    assert [len(seq.token_ids) for seq in scheduler.waiting] == [10, 10]
    server.run()
    assert [seq.token_ids for seq in server.all] == [alone([1] * 6, i, 14) for i in range(2)]


def test_samples_count_as_sequences():
    scheduler = Scheduler(BlockManager(40, 4), max_num_seqs=4, max_num_batched_tokens=64)
    server = Server(scheduler)
    for _ in range(3):
        server.add([1, 0, 1], [3, 3, 3])
    server.step()
    assert [seq.seq_id for seq in scheduler.running] == [0, 1, 2] and len(scheduler.waiting) == 6
    with pytest.raises(InvalidInputError, match="5 samples of one prompt run together, and max_num_seqs is 4"):
        server.add([1], [1] * 5)


def test_what_a_preempted_sequence_finds_again_is_no_hit_and_is_counted_before_the_tokens():
    """Behaviour 2: it returns, finds its own blocks, and the step computes only what is left."""
    manager = BlockManager(6, 4, watermark=0, enable_prefix_caching=True)
    server = Server(Scheduler(manager, 8, 16))
    server.add([1] * 11, [6])
    server.add([0] * 11, [6])
    steps = server.run()
    assert sum(step.num_preempted for step in steps) == 1
    back = next(step for step in steps if step.recovered_tokens)
    assert back.recovered_tokens % 4 == 0 and sum(step.prefix_hit_tokens for step in steps) == 0
    second = server.all[1]
    (count,) = [count for seq, count in back.parts if seq is second]
    assert second.num_cached_tokens == 0 and back.num_tokens <= 16
    assert count + back.recovered_tokens <= second.max_len - 1
    tokens_computed = sum(step.num_tokens for step in steps)
    again = Server(Scheduler(BlockManager(6, 4, watermark=0), 8, 16))  # without the cache it computes more
    again.add([1] * 11, [6])
    again.add([0] * 11, [6])
    assert sum(step.num_tokens for step in again.run()) > tokens_computed


# ---- the engine ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model():
    return tiny_model("llama", num_hidden_layers=2)


def sampled(max_tokens, n=1, seed=3, **more):
    return SamplingParams(n=n, seed=seed, temperature=1.0, max_tokens=max_tokens, ignore_eos=True, **more)


@pytest.fixture(scope="module")
def lone(model):
    """Four requests of one sample each, with seeds 3 to 6, one at a time and with nothing shared."""
    llm = LLM(model, num_blocks=40, enable_prefix_caching=False)
    return {
        length: [tokens(llm.generate(prompts((length,)), sampled(14, seed=3 + i), use_tqdm=False))[0] for i in range(4)]
        for length in (1, 19, 32)
    }


@pytest.mark.parametrize("enable_prefix_caching", [True, False])
@pytest.mark.parametrize(
    ("num_blocks", "preemption", "chunk", "max_num_seqs"),
    [(4, "recompute", 512, 64), (4, "swap", 7, 64), (7, "recompute", 7, 3), (7, "swap", 512, 64), (40, "swap", 16, 3)],
)
def test_sample_i_of_n_equals_a_lone_request_with_seed_plus_i(
    model, lone, num_blocks, preemption, chunk, max_num_seqs, enable_prefix_caching
):
    """Also when they do not fit together, and beside others."""
    options = dict(preemption=preemption, enable_prefix_caching=enable_prefix_caching, max_num_seqs=max_num_seqs)
    llm = LLM(model, num_blocks=num_blocks, max_num_batched_tokens=chunk, **options)
    work = [prompts((length,))[0] for length in lone]
    for _ in range(2):  # the second time from the cache
        outputs = llm.generate(work, sampled(14, n=4), use_tqdm=False)
        assert [[one.token_ids for one in output.outputs] for output in outputs] == list(lone.values())
        assert [one.index for one in outputs[0].outputs] == [0, 1, 2, 3]
    assert llm.manager.num_free_blocks == num_blocks and not llm._samples


@pytest.mark.parametrize("family", FAMILIES)
def test_sharing_changes_no_token_of_any_family(family):
    """Windows, softcaps, biases: K and V of a token depend on what came before it, and on nothing else."""
    model = tiny_model(family)
    system = prompts((37,), seed=9)[0]["prompt_token_ids"]
    work = [{"prompt_token_ids": system + p["prompt_token_ids"]} for p in prompts((5, 12, 1, 30))]
    results = []
    for options in (dict(num_blocks=60, enable_prefix_caching=False), dict(num_blocks=60), dict(num_blocks=12)):
        llm = LLM(model, block_size=8, **options)
        first = tokens(llm.generate(work[:1], greedy(10), use_tqdm=False))
        first += tokens(llm.generate(work, [greedy(20), sampled(12, n=3), greedy(9), sampled(15)], use_tqdm=False))
        results.append((first, sum(step.prefix_hit_tokens for step in llm.stats)))
    (plain, none), (roomy, hits), (tight, _) = results
    assert plain == roomy == tight
    assert none == 0 and hits == 40 + 3 * 32  # the first one's prompt was there as a whole; the others' system prompt


def test_a_prompt_found_in_the_cache_gives_the_logits_of_one_that_is_computed(model):
    """Behaviour 1 in the engine, for every length around a block's border, and twice."""
    llm, plain = LLM(model, num_blocks=60, block_size=4), LLM(model, num_blocks=60, enable_prefix_caching=False)
    for length in (1, 3, 4, 5, 8, 9):
        prompt = prompts((length,), seed=length)[0]
        params = SamplingParams(temperature=0, max_tokens=3, logprobs=97, ignore_eos=True)
        wanted = plain.generate(prompt, params, use_tqdm=False)[0].outputs[0]
        for expected in (0, (length - 1) // 4 * 4, (length - 1) // 4 * 4):
            (output,) = llm.generate(prompt, params, use_tqdm=False)
            assert output.num_cached_tokens == expected == sum(step.prefix_hit_tokens for step in llm.stats)
            assert sum(step.num_tokens for step in llm.stats) == length + 2 - expected
            assert output.outputs[0].token_ids == wanted.token_ids
            for a, b in zip(output.outputs[0].logprobs, wanted.logprobs, strict=True):
                assert max(abs(a[t] - b[t]) for t in a) < 1e-4


def test_the_next_turn_of_a_conversation_finds_prompt_and_answer(model):
    llm = LLM(model, num_blocks=40, block_size=4)
    prompt = prompts((10,))[0]["prompt_token_ids"]
    (answer,) = tokens(llm.generate({"prompt_token_ids": prompt}, greedy(9), use_tqdm=False))
    turn = {"prompt_token_ids": [*prompt, *answer, 5, 6, 7]}
    (output,) = llm.generate(turn, greedy(6), use_tqdm=False)
    assert output.num_cached_tokens == 16  # of 10 + 8: the last token of an answer was chosen and not computed
    plain = LLM(model, num_blocks=40, enable_prefix_caching=False)
    assert tokens([output]) == tokens(plain.generate(turn, greedy(6), use_tqdm=False))
    assert llm.reset_prefix_cache()
    assert llm.generate(turn, greedy(6), use_tqdm=False)[0].num_cached_tokens == 0


def test_two_samples_of_a_19_token_prompt_share_one_block_and_copy_one(model, monkeypatch):
    llm = LLM(model, num_blocks=40)
    copies, copy = [], llm.runner.cache.copy_blocks
    monkeypatch.setattr(llm.runner.cache, "copy_blocks", lambda pairs: (copies.extend(pairs), copy(pairs))[1])
    llm.generate(prompts((19,)), sampled(10, n=2), use_tqdm=False)
    assert [step.blocks_used for step in llm.stats[:4]] == [2, 3, 3, 3] and len(copies) == 1
    assert sum(step.num_tokens for step in llm.stats) == 19 + 2 * 9


def test_a_sample_that_ends_with_its_first_token_needs_no_slot(model):
    llm = LLM(model, num_blocks=4)
    one = tokens(llm.generate(prompts((19,)), sampled(1, n=3), use_tqdm=False))
    assert [len(ids) for ids in one] == [1, 1, 1] and llm.manager.num_free_blocks == 4
    assert [step.num_tokens for step in llm.stats] == [19]


def test_an_engine_that_reserves_shares_nothing(model, lone):
    llm = LLM(model, num_blocks=20, reserve="max_len")
    for _ in range(2):
        (output,) = llm.generate(prompts((19,)), sampled(14, n=4), use_tqdm=False)
        assert tokens([output]) == lone[19] and output.num_cached_tokens == 0
        assert max(step.blocks_used for step in llm.stats) == 4 * 3  # 33 slots each


def test_a_static_batch_shares_too(model, lone):
    llm = LLM(model, num_blocks=20, batching="static")
    for cached in (0, 16):
        (output,) = llm.generate(prompts((19,)), sampled(14, n=4), use_tqdm=False)
        assert tokens([output]) == lone[19] and output.num_cached_tokens == cached


def test_nothing_is_found_after_an_interruption(model, monkeypatch):
    """A pass that was cut off may have written half of a block: the engine starts empty."""
    llm = LLM(model, num_blocks=40)
    llm.generate(prompts((40,)), greedy(3), use_tqdm=False)
    assert llm.manager.cached_blocks

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(llm.runner, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(prompts((40,)), sampled(3, n=3), use_tqdm=False)
    monkeypatch.undo()
    assert llm.manager.cached_blocks == [] and llm.manager.num_free_blocks == 40
    assert llm.generate(prompts((40,)), greedy(3), use_tqdm=False)[0].num_cached_tokens == 0


def test_a_constant_hash_changes_no_token(model, lone):
    """Behaviour 8 in the engine: the index finds the wrong blocks all the time, and none is trusted."""
    llm = LLM(model, num_blocks=12, block_size=4)
    llm.manager.pool.prefixes._hash_function = constant
    work = [prompts((length,))[0] for length in lone] + prompts((19, 19), seed=4)
    plain = LLM(model, num_blocks=40, enable_prefix_caching=False)
    for _ in range(2):
        outputs = llm.generate(work, sampled(14, n=2), use_tqdm=False)
        assert tokens(outputs) == tokens(plain.generate(work, sampled(14, n=2), use_tqdm=False))
