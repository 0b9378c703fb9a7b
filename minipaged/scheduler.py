"""Chapter 10. Which tokens does the next step compute? First come, first served, in one budget of blocks.

    waiting  [D E F ...]   --admit-->   running  [A B C]   --finish-->   done
       ^                                   |
       |  recompute: blocks freed          |  no block left for a running sequence:
       +--------- preempt the newest ------+  the newest one gives way
       swapped [..]  swap: blocks copied to host memory, and back before anybody new is admitted

Every step mixes decode tokens (one for each sequence that is past its prompt) and chunks of prompts, together at most
`max_num_batched_tokens`. A sequence stands in exactly one of waiting, running, swapped, finished (Kwon et al., SOSP
2023, section 4.5). Numbers only, no tensor: `rehearse` runs it without any model. Left out: priorities, and copies of
one prompt (chapter 11).
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
from minipaged.errors import InvalidInputError


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
    """

    seq_id: int
    token_ids: list[int]
    prompt_len: int
    max_len: int
    num_computed_tokens: int = 0
    status: SequenceStatus = SequenceStatus.WAITING
    finish_reason: str | None = None
    note: str | None = None

    @property
    def num_uncomputed_tokens(self) -> int:
        """Tokens that a step must still compute: 1 when decoding, more when a prompt is under way."""
        return len(self.token_ids) - self.num_computed_tokens


@dataclass
class Step:
    """What one step of the engine does.

    Attributes:
        parts: (sequence, how many of its uncomputed tokens to compute now).
        swap_out, swap_in: (source block, target block) copies to host memory and back, in this order, before the pass.
        refused: sequences that can never run; finished already, with a reason.
        num_preempted: sequences that gave way in this step.
        num_tokens: tokens that the pass computes.
    """

    parts: list[tuple[Sequence, int]] = field(default_factory=list)
    swap_out: list[tuple[int, int]] = field(default_factory=list)
    swap_in: list[tuple[int, int]] = field(default_factory=list)
    refused: list[Sequence] = field(default_factory=list)
    num_preempted: int = 0
    num_tokens: int = 0

    def add(self, seq: Sequence, count: int) -> None:
        """Compute the next `count` tokens of this sequence."""
        self.parts.append((seq, count))
        self.num_tokens += count


class Scheduler:
    """First come, first served over one `BlockManager`.

    Args:
        manager: the blocks; the scheduler is their only user.
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
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidInputError(f"{name} is {value!r}; it must be a whole number of at least 1")
        for name, value, allowed in (
            ("preemption", preemption, ("recompute", "swap")),
            ("batching", batching, ("continuous", "static")),
        ):
            if value not in allowed:
                raise InvalidInputError(f'{name} is {value!r}; use "{allowed[0]}" or "{allowed[1]}"')
        self.manager = manager
        self.max_num_seqs, self.max_num_batched_tokens = max_num_seqs, max_num_batched_tokens
        self.preemption, self.batching, self.reserve_len = preemption, batching, reserve_len
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.swapped: deque[Sequence] = deque()
        self.ended: list[Sequence] = []

    def add(self, seq: Sequence) -> None:
        """Put a new sequence at the end of the queue."""
        self.waiting.append(seq)

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
        for seq in [seq for seq in self.running if seq.num_uncomputed_tokens == 1]:
            self._continue(seq, step)
        for seq in [seq for seq in self.running if seq.num_uncomputed_tokens > 1]:
            self._continue(seq, step)
        if not step.num_preempted:
            self._swap_in(step)
            if not self.swapped:
                self._admit(step)
        return step

    def finish(self, seq: Sequence, reason: str) -> None:
        """A sequence is over, wherever it stands: take it out of its queue and give its blocks back."""
        if seq.status is SequenceStatus.FINISHED:
            return
        if seq.status is SequenceStatus.WAITING:
            self.waiting.remove(seq)
        else:
            (self.running if seq.status is SequenceStatus.RUNNING else self.swapped).remove(seq)
            self.manager.free(seq.seq_id)
        seq.status, seq.finish_reason = SequenceStatus.FINISHED, reason
        self.ended.append(seq)

    # -- the sequences that run ------------------------------------------------------------------------------------

    def _left(self, step: Step) -> int:
        return self.max_num_batched_tokens - step.num_tokens

    def _continue(self, seq: Sequence, step: Step) -> None:
        """Schedule a running sequence's next tokens; when the pool has no slot for them, the newest one gives way."""
        if seq.status is not SequenceStatus.RUNNING or not self._left(step):
            return  # it gave way to an older one a moment ago, or the budget is spent
        while not self._give_slots(seq):
            newest = self.running[-1]
            if newest is seq and len(self.running) == 1:
                seq.note = f"{len(seq.token_ids)} tokens fill the whole pool of {self.manager.num_blocks} blocks"
                self.finish(seq, "out_of_blocks")
                step.refused.append(seq)
                return
            self._preempt(newest, step)
            if newest is seq:
                return
        step.add(seq, min(seq.num_uncomputed_tokens, self._left(step)))

    def _give_slots(self, seq: Sequence) -> bool:
        """A slot for every token it has; False, and nothing changed, when there is no block for them."""
        missing = len(seq.token_ids) - self.manager.num_tokens(seq.seq_id)
        if missing <= 0:
            return True
        if not self.manager.can_append(seq.seq_id, missing):
            return False
        self.manager.append_slots(seq.seq_id, missing)
        return True

    def _preempt(self, seq: Sequence, step: Step) -> None:
        """Take all blocks of a running sequence; it will come back before anybody who came later."""
        self.running.remove(seq)
        step.num_preempted += 1
        if self.preemption == "swap" and self.manager.can_swap_out([seq.seq_id]):
            step.swap_out += self.manager.swap_out([seq.seq_id])
            self.swapped.appendleft(seq)
            seq.status = SequenceStatus.SWAPPED
        else:
            self.manager.free(seq.seq_id)
            self.waiting.appendleft(seq)
            seq.status, seq.num_computed_tokens = SequenceStatus.WAITING, 0

    # -- the sequences that want to run ----------------------------------------------------------------------------

    def _swap_in(self, step: Step) -> None:
        while self.swapped and len(self.running) < self.max_num_seqs and self._left(step):
            seq = self.swapped[0]
            new = self.manager.blocks_to_swap_in({seq.seq_id: len(seq.token_ids)})
            spare = self.manager.watermark_blocks if self.running else 0
            if new + spare > self.manager.num_free_blocks:
                return
            self.swapped.popleft()
            step.swap_in += self.manager.swap_in([seq.seq_id])
            self._run(seq, step)

    def _admit(self, step: Step) -> None:
        static = self.batching == "static"
        if static and self.running:
            return
        # a static batch is closed once it starts, so all of it comes in now, also what a later step computes
        while self.waiting and len(self.running) < self.max_num_seqs and (static or self._left(step)):
            seq = self.waiting[0]
            slots = range(max(self.reserve_len or 0, len(seq.token_ids)))
            if self._refuse_if_never(seq, len(slots), step):
                continue
            alone = not self.running  # then nobody needs the watermark, and a preempted sequence must be able to return
            if self.manager.can_allocate(slots, watermark=not alone) is not AllocStatus.OK:
                return
            self.waiting.popleft()
            seq.num_computed_tokens = self.manager.allocate(seq.seq_id, slots, watermark=not alone)
            self._run(seq, step)

    def _refuse_if_never(self, seq: Sequence, slots: int, step: Step) -> bool:
        needed = blocks_needed(slots, self.manager.block_size)
        if needed <= self.manager.num_blocks:
            return False
        seq.note = (
            f"{slots} {'reserved slots' if slots > len(seq.token_ids) else 'tokens'} need {needed} blocks of "
            f"{self.manager.block_size}, and the pool has {self.manager.num_blocks}: shorten the prompt, or make a "
            "larger pool (num_blocks)"
        )
        self.finish(seq, "refused")
        step.refused.append(seq)
        return True

    def _run(self, seq: Sequence, step: Step) -> None:
        seq.status = SequenceStatus.RUNNING
        bisect.insort(self.running, seq, key=lambda one: one.seq_id)  # also one that comes back: it is older again
        self._continue(seq, step)


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
        requests: (prompt_len, output_len) of each.
        arrivals: when each comes, rising; None for all at once.
        cost: how long a step takes; None for 1 each.
    """
    told = [Rehearsed(p, o, at) for (p, o), at in zip(requests, arrivals or itertools.repeat(0.0), strict=False)]
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
        start, now = now, now + (1 if cost is None else cost(step))
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
