"""Chapter 10. Which tokens does the next step compute? First come, first served, in one budget of blocks.

    waiting  [D E F ...]   --admit-->   running  [A B C]   --finish-->   done
       ^                                   |
       |  recompute: blocks freed          |  no block left for a running sequence:
       +--------- preempt the newest ------+  the newest one gives way
       swapped [..]  swap: blocks copied to host memory, and back before anybody new is admitted

Every step mixes decode tokens (one for each sequence that is past its prompt) and chunks of prompts, together at most
`max_num_batched_tokens`. A sequence stands in exactly one of waiting, running, swapped, finished (Kwon et al., SOSP
2023, section 4.5). Numbers only, no tensor: `rehearse` runs it without any model. Chapter 11 adds `SequenceGroup`: the
samples of one prompt come in, give way and return together. Left out: priorities.
"""

from __future__ import annotations

import bisect
import enum
import itertools
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

from minipaged.block_manager import AllocStatus, BlockManager, blocks_needed
from minipaged.errors import InvalidInputError, a_function, an_instance, real_number, shown, whole_number
from minipaged.fragmentation import check_arrivals, check_requests


class SequenceStatus(enum.Enum):
    """Where a sequence stands; it is in the scheduler's queue of that name, and in no other."""

    WAITING = "waiting"
    RUNNING = "running"
    SWAPPED = "swapped"
    FINISHED = "finished"


@dataclass(eq=False)
class Sequence:
    """One text being written.

    Attributes:
        seq_id: its number; smaller came first.
        token_ids: prompt, then output.
        prompt_len: how many of them are the prompt.
        max_len: the most tokens it may have, prompt and output together.
        num_computed_tokens: how many have their K and V stored.
        finish_reason: why it ended: "stop", "length", "refused", "out_of_blocks", "cancelled".
        note: a sentence about a refusal.
        num_cached_tokens: how many were found in the prefix cache when it was admitted for the first time.
        preempted: it had to give its blocks back once; what it finds of them later is not counted as found.
        group: the samples of the same prompt that it is served with (chapter 11).
        waits_for: the sample that computes the prompt for it; until then it has no block table.
    """

    seq_id: int
    token_ids: list[int]
    prompt_len: int
    max_len: int
    num_computed_tokens: int = 0
    status: SequenceStatus = SequenceStatus.WAITING
    finish_reason: str | None = None
    note: str | None = None
    num_cached_tokens: int = 0
    preempted: bool = False
    group: SequenceGroup | None = field(default=None, repr=False)
    waits_for: Sequence | None = field(default=None, repr=False)

    @property
    def num_uncomputed_tokens(self) -> int:
        """Tokens that a step must still compute: 1 when decoding, more when a prompt is under way."""
        return len(self.token_ids) - self.num_computed_tokens


@dataclass(eq=False)
class SequenceGroup:
    """Samples of one prompt (chapter 11): the prompt is computed once, and all move between the queues together.

    Attributes:
        samples: those that have not ended, the oldest first; all stand in the same queue.
    """

    samples: list[Sequence]


@dataclass
class Step:
    """What one step of the engine does.

    Attributes:
        parts: (sequence, how many of its uncomputed tokens to compute now).
        swap_out, swap_in, copies: (source block, target block) of the copies to make before the pass, in this order: to
            host memory, back from it, and of shared blocks that are about to be written (chapter 11).
        refused: sequences that can never run; finished already, with a reason.
        num_preempted: sequences that gave way in this step.
        num_tokens: tokens that the pass computes.
        prefix_hit_tokens: tokens of newcomers that the prefix cache has already (chapter 11).
        recovered_tokens: tokens that sequences which had given way found again. Not a hit: they are their own.
    """

    parts: list[tuple[Sequence, int]] = field(default_factory=list)
    swap_out: list[tuple[int, int]] = field(default_factory=list)
    swap_in: list[tuple[int, int]] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    refused: list[Sequence] = field(default_factory=list)
    num_preempted: int = 0
    num_tokens: int = 0
    prefix_hit_tokens: int = 0
    recovered_tokens: int = 0

    def add(self, seq: Sequence, count: int) -> None:
        """Compute the next `count` tokens of this sequence."""
        self.parts.append((seq, count))
        self.num_tokens += count


class Scheduler:
    """First come, first served over one `BlockManager`.

    Args:
        manager: the blocks. Others may hold some of them for a while (chapter 11's beams do).
        max_num_seqs: sequences that run at the same time.
        max_num_batched_tokens: tokens that one step computes.
        preemption: "recompute" frees the blocks of a sequence that gives way and computes them again later; "swap"
            copies them to host memory, and recomputes when that is full.
        batching: "continuous" admits whenever there is room; "static" only when nothing runs any more.
        reserve_len: slots that every sequence gets at admission, as engines without paging do; None: on demand.

    Attributes:
        waiting, running, swapped: every unfinished sequence is in exactly one; `running` in order of arrival, so that
            the newest is its last.
        ended: those that finished since the caller last emptied this list.
    """

    def __init__(
        self,
        manager: BlockManager,
        max_num_seqs: int = 64,
        max_num_batched_tokens: int = 512,
        *,
        preemption: Literal["recompute", "swap"] = "recompute",
        batching: Literal["continuous", "static"] = "continuous",
        reserve_len: int | None = None,
    ) -> None:
        for name, value in (("max_num_seqs", max_num_seqs), ("max_num_batched_tokens", max_num_batched_tokens)):
            if not isinstance(value, int):
                raise InvalidInputError(f"{name} is {shown(value)}; it must be a whole number of at least 1")
            whole_number(name, value, 1)
        for name, value, allowed in (
            ("preemption", preemption, ("recompute", "swap")),
            ("batching", batching, ("continuous", "static")),
        ):
            if not isinstance(value, str) or value not in allowed:
                raise InvalidInputError(f'{name} is {shown(value)}; use "{allowed[0]}" or "{allowed[1]}"')
        self.manager = manager
        self.max_num_seqs, self.max_num_batched_tokens = max_num_seqs, max_num_batched_tokens
        self.preemption, self.batching, self.reserve_len = preemption, batching, reserve_len
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.swapped: deque[Sequence] = deque()
        self.ended: list[Sequence] = []

    def add(self, *samples: Sequence) -> None:
        """Put a new sequence at the end of the queue, or several samples of one prompt that are served together.

        Raises:
            InvalidInputError: more samples than may run at the same time.
        """
        if len(samples) > self.max_num_seqs:
            raise InvalidInputError(
                f"{len(samples)} samples of one prompt run together, and max_num_seqs is {self.max_num_seqs}"
            )
        if len(samples) > 1:
            group = SequenceGroup(list(samples))
            for seq in samples:
                seq.group = group
        self.waiting.extend(samples)

    @property
    def unfinished(self) -> int:
        """Sequences that wait, run or are swapped out."""
        return len(self.waiting) + len(self.running) + len(self.swapped)

    def schedule(self) -> Step:
        """Decide the next step, and give every token in it a slot.

        Decoding sequences come first, so that a long prompt cannot hold them up; then prompts that are under way; then
        sequences that return from host memory; then new ones. Nobody is admitted in a step in which somebody gave way.
        """
        step = Step()
        self._give_slots_to_all(step)
        for seq in [seq for seq in self.running if seq.num_uncomputed_tokens == 1]:
            self._compute(seq, step)
        for seq in [seq for seq in self.running if seq.num_uncomputed_tokens > 1]:
            self._compute(seq, step)
        if not step.num_preempted:
            self._swap_in(step)
            if not self.swapped:
                self._admit(step)
        return step

    def computed(self, seq: Sequence, count: int) -> list[Sequence]:
        """The pass has stored the K and V of a sequence's next `count` tokens.

        Returns:
            The sequences whose next token can be chosen now, from the logits of its last one: none while a prompt is
            under way; after it the sequence, and with it the samples that waited for the prompt.
        """
        if seq.status is SequenceStatus.FINISHED:  # cancelled while the pass ran: its blocks are gone
            return []
        seq.num_computed_tokens += count
        self.manager.mark_computed(seq.seq_id, seq.num_computed_tokens, seq.token_ids)
        return [one for one in (seq, *self._fork(seq)) if one.num_uncomputed_tokens == 0]

    def finish(self, seq: Sequence, reason: str) -> None:
        """A sequence is over, wherever it stands: take it out of its queue and give its blocks back."""
        if seq.status is SequenceStatus.FINISHED:
            return
        self._take_out(seq)
        self._leave_group(seq)
        seq.status, seq.finish_reason, seq.waits_for = SequenceStatus.FINISHED, reason, None
        self.ended.append(seq)

    def _take_out(self, seq: Sequence) -> None:
        """Out of its queue, and without blocks."""
        queues = {SequenceStatus.WAITING: self.waiting, SequenceStatus.SWAPPED: self.swapped}
        queues.get(seq.status, self.running).remove(seq)
        if seq.status is not SequenceStatus.WAITING and seq.waits_for is None:
            self.manager.free(seq.seq_id)

    def _wait(self, seq: Sequence) -> None:
        """Back to the queue, before anybody who came later, to be computed from its first token."""
        seq.status, seq.num_computed_tokens, seq.waits_for = SequenceStatus.WAITING, 0, None
        bisect.insort(self.waiting, seq, key=_age)

    # -- the sequences that run ------------------------------------------------------------------------------------

    def _left(self, step: Step) -> int:
        return self.max_num_batched_tokens - step.num_tokens

    def _compute(self, seq: Sequence, step: Step) -> None:
        """Compute as many of a running sequence's tokens as the budget allows."""
        count = min(seq.num_uncomputed_tokens, self._left(step))
        if count and seq.waits_for is None:
            step.add(seq, count)

    def _give_slots_to_all(self, step: Step) -> None:
        """A slot for every token that this step may compute, oldest first; without a free block the newest gives way.

        All slots are given before anything else is decided, so nobody gives way who has got some in this step.
        """
        budget = self.max_num_batched_tokens
        for seq in list(self.running):
            decodes = seq.num_uncomputed_tokens == 1
            if seq.waits_for is not None or (decodes and not budget):
                continue
            while seq.status is SequenceStatus.RUNNING and not self._give_slots(self._together(seq), step):
                self._make_room(step)
            budget -= decodes and seq.status is SequenceStatus.RUNNING

    def _give_slots(self, together: list[Sequence], step: Step) -> bool:
        """A slot for every token these have; False, and nothing changed, when there are not enough blocks for all."""
        missing = {
            seq.seq_id: more
            for seq in together
            if seq.waits_for is None and (more := len(seq.token_ids) - self.manager.num_tokens(seq.seq_id)) > 0
        }
        if missing and self.manager.new_blocks_needed_together(missing) > self.manager.num_free_blocks:
            return False
        for seq_id, more in missing.items():
            step.copies += self.manager.append_slots(seq_id, more)
        return True

    def _make_room(self, step: Step) -> None:
        """The newest gives way; the last one left ends if it has outgrown the pool: giving way would not help it."""
        newest = self.running[-1]
        together = self._together(newest)
        if len(together) < len(self.running):
            self._preempt(together, step)
        elif len(together) > 1:  # a group alone, too large for the pool: its last sample waits for the others' end
            self._leave_group(newest)
            self._preempt([newest], step)
        elif blocks_needed(len(newest.token_ids), self.manager.block_size) > self.manager.num_blocks:
            self._end_full(newest, step)
        else:  # somebody beside the scheduler (a beam search) holds the others, and will give them back
            self._preempt(together, step)

    def _end_full(self, seq: Sequence, step: Step) -> None:
        """It has outgrown the whole pool, and ends with what it has."""
        seq.note = f"{len(seq.token_ids)} tokens fill the whole pool of {self.manager.num_blocks} blocks"
        self.finish(seq, "out_of_blocks")
        step.refused.append(seq)

    def _preempt(self, together: list[Sequence], step: Step) -> None:
        """Take all blocks of running sequences; they will come back before anybody who came later."""
        step.num_preempted += len(together)
        held = [seq.seq_id for seq in together if seq.waits_for is None]
        if self.preemption == "swap" and self.manager.can_swap_out(held):
            step.swap_out += self.manager.swap_out(held)
            for seq in together:
                self.running.remove(seq)
                bisect.insort(self.swapped, seq, key=_age)
                seq.status = SequenceStatus.SWAPPED
            return
        for seq in reversed(together):
            self._take_out(seq)
            self._wait(seq)
            seq.preempted = True

    # -- the sequences that want to run ----------------------------------------------------------------------------

    def _swap_in(self, step: Step) -> None:
        while self.swapped and self._left(step):
            together = self._together(self.swapped[0])
            lengths = {seq.seq_id: len(seq.token_ids) for seq in together if seq.waits_for is None}
            needed = self.manager.blocks_to_swap_in(lengths)
            if not self.running and needed > self.manager.num_blocks:  # a group that has become too large for the pool
                self._send_away(together[-1])
                continue
            spare = self.manager.watermark_blocks if self.running else 0
            if len(self.running) + len(together) > self.max_num_seqs or needed + spare > self.manager.num_free_blocks:
                return
            step.swap_in += self.manager.swap_in(lengths)
            for _ in together:
                self.swapped.popleft()
            self._run(together, step)

    def _admit(self, step: Step) -> None:
        static = self.batching == "static"
        if static and self.running:
            return
        # a static batch is closed once it starts, so all of it comes in now, also what a later step computes
        while self.waiting and len(self.running) < self.max_num_seqs and (static or self._left(step)):
            seq, together = self.waiting[0], self._together(self.waiting[0])
            slots = seq.token_ids + [-1] * ((self.reserve_len or 0) - len(seq.token_ids))  # -1: no token yet
            if self._refuse_if_never(seq, len(slots), step):
                continue
            others = self._blocks_of_other_samples(together)
            if blocks_needed(len(slots), self.manager.block_size) + others > self.manager.num_blocks:
                self._send_away(together[-1])
                continue
            alone = not self.running  # then nobody needs the watermark, and a preempted sequence must be able to return
            status = self.manager.can_allocate(slots, watermark=not alone, extra=others)
            if status is not AllocStatus.OK or len(self.running) + len(together) > self.max_num_seqs:
                return
            self._found(seq, self.manager.allocate(seq.seq_id, slots, watermark=not alone), step)
            for one in together:
                self.waiting.popleft()
                one.waits_for = None if one is seq else seq
            self._run(together, step)

    def _found(self, seq: Sequence, cached: int, step: Step) -> None:
        """Count the tokens that a sequence need not compute. Its own, found again after it gave way, are no hit."""
        seq.num_computed_tokens = cached
        if seq.preempted:
            step.recovered_tokens += cached
        else:
            seq.num_cached_tokens = cached
            step.prefix_hit_tokens += cached

    def _refuse_if_never(self, seq: Sequence, slots: int, step: Step) -> bool:
        needed = blocks_needed(slots, self.manager.block_size)
        if needed <= self.manager.num_blocks:
            return False
        if len(seq.token_ids) > seq.prompt_len:  # a sample that was sent away from a group, and is just too long now
            self._end_full(seq, step)
            return True
        seq.note = (
            f"{slots} {'reserved slots' if slots > len(seq.token_ids) else 'tokens'} need {needed} blocks of "
            f"{self.manager.block_size}, and the pool has {self.manager.num_blocks}: shorten the prompt, or make a "
            "larger pool (num_blocks)"
        )
        self.finish(seq, "refused")
        step.refused.append(seq)
        return True

    def _run(self, together: list[Sequence], step: Step) -> None:
        for seq in together:
            seq.status = SequenceStatus.RUNNING
            bisect.insort(self.running, seq, key=_age)  # also one that comes back: it is older again
        self._give_slots(together, step)  # their blocks were counted before they came in
        for seq in together:
            self._compute(seq, step)

    # -- samples of one prompt (chapter 11) ------------------------------------------------------------------------

    def _together(self, seq: Sequence) -> list[Sequence]:
        """The sequences that come in, give way and return with this one, itself among them."""
        return [seq] if seq.group is None else list(seq.group.samples)

    def _blocks_of_other_samples(self, together: list[Sequence]) -> int:
        """Blocks that a group needs beside those of its first sample: full blocks of the prompt are shared."""
        size = self.manager.block_size
        return sum(blocks_needed(len(seq.token_ids), size) - seq.prompt_len // size for seq in together[1:])

    def _fork(self, seq: Sequence) -> list[Sequence]:
        """All tokens of a sequence are computed: the samples that waited for its prompt start on the same blocks.

        One that has given way comes back with tokens of its own. It keeps the prompt's blocks, and computes the rest.
        """
        if seq.group is None or seq.num_uncomputed_tokens:
            return []
        children = [one for one in seq.group.samples if one.waits_for is seq]
        for child in children:
            self.manager.fork(seq.seq_id, child.seq_id)
            self.manager.truncate(child.seq_id, child.prompt_len)
            child.waits_for, child.num_computed_tokens = None, child.prompt_len
        return children

    def _leave_group(self, seq: Sequence) -> None:
        """It goes on, or ends, without its group. Samples that waited for its prompt compute one of their own."""
        if seq.group is None:
            return
        seq.group.samples.remove(seq)
        for orphan in [one for one in seq.group.samples if one.waits_for is seq]:
            self._take_out(orphan)
            self._wait(orphan)
        seq.group = None

    def _send_away(self, seq: Sequence) -> None:
        """The pool cannot hold the group at once: this sample, its newest, comes after the others."""
        self._leave_group(seq)
        self._take_out(seq)
        self._wait(seq)
        seq.preempted = True


def _age(seq: Sequence) -> int:
    return seq.seq_id


# ---- a rehearsal: the scheduler without a model


@dataclass(frozen=True)
class Moment:
    """One step of a rehearsal.

    Attributes:
        start, end: when, in the unit of the cost.
        states: sequence -> "waiting", "prefill", "decode", "idle" (running, no budget left), "away" (gave way) or
            "swapped", for all that have arrived and not ended before.
        blocks_used, tokens_stored: the pool: blocks that a table names, tokens whose K and V are there.
        num_tokens: tokens that the step computes.
        preempted: the sequences that gave way.
    """

    start: float
    end: float
    states: dict[int, str]
    blocks_used: int
    tokens_stored: int
    num_tokens: int
    preempted: tuple[int, ...]

    def count(self, *states: str) -> int:
        """Sequences in these states."""
        return sum(state in states for state in self.states.values())


@dataclass
class Rehearsed:
    """One request of a rehearsal: when it came, and when each of its tokens was written."""

    prompt_len: int
    output_len: int
    arrival: float
    token_times: list[float] = field(default_factory=list)
    preempted: int = 0
    finish_reason: str | None = None

    @property
    def first_token(self) -> float:
        """Time from arrival to its first token (TTFT)."""
        return self.token_times[0] - self.arrival

    @property
    def latency(self) -> float:
        """Time from arrival to its last token."""
        return self.token_times[-1] - self.arrival

    @property
    def gaps(self) -> list[float]:
        """Times from each token to the next (inter-token latency)."""
        return [b - a for a, b in itertools.pairwise(self.token_times)]


def rehearse(
    scheduler: Scheduler,
    requests: Iterable[tuple[int, int]],
    arrivals: Iterable[float] | None = None,
    cost: Callable[[Step], float] | None = None,
) -> tuple[list[Moment], list[Rehearsed]]:
    """Run a scheduler with a model that computes nothing: who would do what in which step.

    Scheduling asks how many tokens there are and never which, so this takes the steps that the engine takes.

    Args:
        scheduler: a fresh one; it is empty again afterwards.
        requests: (prompt_len, output_len) of each, both at least 1.
        arrivals: when each comes, rising; None for all at once.
        cost: how long a step takes, a number that is not below 0; None for 1 each.

    Raises:
        InvalidInputError: an argument that cannot be right, before the first step; or a cost that is no length of time.
    """
    an_instance("scheduler", scheduler, Scheduler, "a fresh one, Scheduler(BlockManager(...))")
    if scheduler.unfinished:
        raise InvalidInputError(f"the scheduler has {scheduler.unfinished} unfinished sequences; pass a fresh one")
    if cost is not None:
        a_function("cost", cost, "a function of a Step that returns how long it takes, or None for 1 each")
    work = check_requests(requests)
    times = [0.0] * len(work) if arrivals is None else check_arrivals(arrivals, len(work))
    told = [Rehearsed(p, o, at) for (p, o), at in zip(work, times, strict=True)]
    coming = deque(
        Sequence(i, [0] * r.prompt_len, r.prompt_len, r.prompt_len + r.output_len) for i, r in enumerate(told)
    )
    now, moments = 0.0, []
    while coming or scheduler.unfinished:
        if not scheduler.unfinished:
            now = max(now, told[coming[0].seq_id].arrival)
        while coming and told[coming[0].seq_id].arrival <= now:
            scheduler.add(coming.popleft())
        before = list(scheduler.running)
        step = scheduler.schedule()
        start, now = now, now + (1 if cost is None else real_number("the cost of a step", cost(step), least=0))
        gone = tuple(s.seq_id for s in before if s.status in (SequenceStatus.WAITING, SequenceStatus.SWAPPED))
        for seq_id in gone:
            told[seq_id].preempted += 1
        states = _states(scheduler, step, told)
        for seq, count in step.parts:
            seq.num_computed_tokens += count
        stored = sum(seq.num_computed_tokens for seq in scheduler.running)
        used = scheduler.manager.num_used_blocks
        moments.append(Moment(start, now, states, used, stored, step.num_tokens, gone))
        _write(scheduler, step, told, now)
    scheduler.ended.clear()
    return moments, told


def _states(scheduler: Scheduler, step: Step, told: list[Rehearsed]) -> dict[int, str]:
    states = {seq.seq_id: "away" if told[seq.seq_id].preempted else "waiting" for seq in scheduler.waiting}
    states |= {seq.seq_id: "swapped" for seq in scheduler.swapped}
    states |= {seq.seq_id: "idle" for seq in scheduler.running}
    return states | {seq.seq_id: "decode" if seq.num_uncomputed_tokens == 1 else "prefill" for seq, _ in step.parts}


def _write(scheduler: Scheduler, step: Step, told: list[Rehearsed], now: float) -> None:
    """Every sequence whose tokens are all computed writes one; those that are done end."""
    for seq, _ in step.parts:
        if seq.num_uncomputed_tokens == 0:
            seq.token_ids.append(0)
            told[seq.seq_id].token_times.append(now)
            if len(seq.token_ids) >= seq.max_len:
                scheduler.finish(seq, "length")
    for seq in scheduler.ended:
        told[seq.seq_id].finish_reason = seq.finish_reason
    scheduler.ended.clear()
