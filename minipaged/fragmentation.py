"""Chapter 6. Where KV memory goes when every request must lie in one piece.

Requests (prompt length, output length) queue for a pool of slots, one slot a token. An allocator says whether the first
in the queue may come in, and where it lies; every running request writes one token a step; the simulator counts what
each slot of the pool is doing:

    pool  [tokens |reserved: for its own later tokens|internal: never used][external: free or rounding, someone waits]
           ^ solid ^ hatched                          ^ dotted              ^ light      (idle: free, nobody waits)

Left out: time (every step counts as one, a prefill too) and the model: only lengths matter to memory.
"""

from __future__ import annotations

import bisect
import csv
import heapq
import itertools
import json
import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import index
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from minipaged.errors import InvalidInputError, listed, real_number, shown, whole_number, yes_or_no

PAPER_SLOTS = 15_728  # 12 GiB of KV for OPT-13B in fp16, 819,200 bytes a token (paper, table 1)
SMALLEST_CHUNK = 16

# Requests come as (prompt length, output length), both in tokens.
Request = tuple[int, int]


class TraceError(InvalidInputError):
    """A row of a trace file is not a pair of lengths; the message names the file, the line and what is wrong."""


# ---------------------------------------------------------------------------------------------------------------------
# What the simulator asks of an allocator


@runtime_checkable
class Allocator(Protocol):
    """What the simulator asks of an allocator. `Paged` in chapter 7 answers the same calls through a real block table.

    The simulator calls, in this order:
        reset(num_slots)      once, at the start of a run: an empty pool of that many slots. Bad sizes raise here.
        why_never(p, o)       before a request joins the queue. A sentence if a request of p prompt and o output tokens
                              could not run to its end even alone in an empty pool, else None. It is then refused and
                              counted, and the others go on. Must be None only if, in an empty pool, admit(_, p+g, o-g)
                              succeeds for every 0 <= g < o and grow then succeeds up to p+o (a watermark counts!).
        admit(request, p, o)  for the first in the queue: True and room for at least p tokens, or False and nothing
                              changed. A preempted request comes back with p = all it had written, o = the rest.
        capacity(request)     after admit and after each grow: how many tokens fit without asking again.
        grow(request, n)      only when the next token would be token number n > capacity: make room for n tokens in
                              all. False and nothing changed when there is no room: the newest running request is then
                              preempted (freed, put at the head of the queue, recomputed later) and grow asked again.
                              Only called at a border: a block manager that counts tokens adds n minus what it knows.
        free(request)         when it has finished or is preempted.
        num_free              slots held by nobody.
        spans(request)        only when recording: the physical runs it holds, [(first slot, length)], in order.

    `request` is an integer. Which waste is which is the simulator's business, not the allocator's; over all requests,

        tokens   = slots written                         reserved = min(capacity, p + o) - slots written
        internal = capacity - min(capacity, p + o)       idle     = num_free if nobody waits, else 0
        external = num_slots - (the four others): rounding held beyond `capacity`, and free slots while someone waits
    """

    name: str

    def reset(self, num_slots: int) -> None:
        """Start again with an empty pool of `num_slots` slots."""

    def why_never(self, prompt_len: int, output_len: int) -> str | None:
        """A sentence if such a request could not finish even alone, else None."""

    def admit(self, request: int, prompt_len: int, output_len: int) -> bool:
        """Give the request room for its prompt at least; False if there is none now."""

    def capacity(self, request: int) -> int:
        """How many tokens the request can hold without asking again."""

    def grow(self, request: int, num_tokens: int) -> bool:
        """Make room for `num_tokens` tokens in all; False if there is none."""

    def free(self, request: int) -> None:
        """Take back all that the request holds."""

    @property
    def num_free(self) -> int:
        """Slots held by nobody."""

    def spans(self, request: int) -> list[tuple[int, int]]:
        """The physical runs the request holds, [(first slot, length)], in the order of its tokens."""


# ---------------------------------------------------------------------------------------------------------------------
# Two ways to find a place in one piece


class FirstFitPool:
    """The first hole that is large enough, from the left; a freed piece joins the holes beside it.

    Both pools remember what they gave: a piece that was never taken, or comes back twice, is refused by name.

    >>> pool = FirstFitPool(10)
    >>> pool.take(4), pool.take(3), pool.take(4)
    (0, 4, None)
    """

    def __init__(self, num_slots: int) -> None:
        num_slots = whole_number("num_slots", num_slots, 1)
        self.holes: list[tuple[int, int]] = [(0, num_slots)]  # (start, length), by start, never touching each other
        self._taken: dict[int, int] = {}  # start -> length

    def take(self, length: int) -> int | None:
        """The start of `length` free slots in one piece, taken; None if no hole is that long."""
        length = whole_number("length", length, 1)
        for i, (start, size) in enumerate(self.holes):
            if size >= length:
                self._taken[start] = length
                self.holes[i : i + 1] = [(start + length, size - length)] if size > length else []
                return start
        return None

    def give(self, start: int, length: int) -> None:
        """Free a piece, and join it with the holes it touches."""
        _give_back(self._taken, start, length, length)
        i = bisect.bisect(self.holes, (start, 0))
        if i < len(self.holes) and self.holes[i][0] == start + length:
            length += self.holes.pop(i)[1]
        if i > 0 and sum(self.holes[i - 1]) == start:
            start, before = self.holes.pop(i - 1)
            i, length = i - 1, length + before
        self.holes.insert(i, (start, length))

    @property
    def num_free(self) -> int:
        """Slots in all holes together."""
        return sum(size for _, size in self.holes)


class BuddyPool:
    """Chunks of powers of two: a chunk splits into two buddies, two free buddies join again.

    A pool that is no power of two starts as the powers of two in it, the largest first: 15,728 is 8192 + 4096 + 2048 +
    1024 + 256 + 64 + 32 + 16. Every chunk starts at a multiple of its size, so the buddy of (start, size) is at
    start XOR size. What is left under 16 slots is never handed out.
    """

    def __init__(self, num_slots: int) -> None:
        num_slots = whole_number("num_slots", num_slots, 1)
        self.free: dict[int, list[int]] = {}  # chunk size -> sorted starts
        self._taken: dict[int, int] = {}  # start -> chunk size
        self.num_free = num_slots
        start = 0
        for size in (1 << bit for bit in reversed(range(num_slots.bit_length()))):
            self.free[size] = [start] if num_slots & size and size >= SMALLEST_CHUNK else []
            start += num_slots & size

    def take(self, length: int) -> int | None:
        """The start of the smallest free chunk that holds `length`, split until it just fits; None if there is none."""
        size = chunk_for(length)
        found = size
        while not self.free.get(found):
            found *= 2
            if found > 2 * self.num_free:
                return None
        start = self.free[found].pop(0)
        while found > size:  # keep the left half, free the right one
            found //= 2
            bisect.insort(self.free[found], start + found)
        self.num_free -= size
        self._taken[start] = size
        return start

    def give(self, start: int, length: int) -> None:
        """Free the chunk that `take(length)` gave, joining buddies as long as both are free."""
        size = chunk_for(length)
        _give_back(self._taken, start, size, length)
        self.num_free += size
        while (buddy := start ^ size) in self.free.get(size, ()):
            self.free[size].remove(buddy)
            start, size = min(start, buddy), 2 * size
        bisect.insort(self.free[size], start)


def _give_back(taken: dict[int, int], start: int, size: int, length: int) -> None:
    """Strike a piece off the list of those that were given, if it is on it."""
    if taken.get(whole_number("start", start)) != whole_number("length", size, 1):
        raise InvalidInputError(f"no piece of {length} slots at {start} was taken; give back what take gave, once")
    del taken[start]


def chunk_for(length: int) -> int:
    """The smallest power of two that holds `length`, and no less than 16."""
    return max(SMALLEST_CHUNK, next_power_of_two(length))


def next_power_of_two(n: int) -> int:
    """The smallest power of two that is at least n: 1, 2, 4, 4, 8 for 1, 2, 3, 4, 5."""
    return 1 << (whole_number("n", n, 1) - 1).bit_length()


# ---------------------------------------------------------------------------------------------------------------------
# The allocators: how much to reserve at admission, in one piece


class _Contiguous:
    """Everything a request may ever need, in one piece, at admission; so it never grows."""

    name = "contiguous"
    max_len: int | None = None
    _pool: FirstFitPool | BuddyPool

    def __init__(self) -> None:
        self._held: dict[int, tuple[int, int]] = {}  # request -> (start, slots asked for)

    def asked(self, prompt_len: int, output_len: int) -> int:
        """How many slots such a request reserves."""
        raise NotImplementedError

    def taken(self, asked: int) -> int:
        """How many slots the pool holds for a reservation of `asked`."""
        return chunk_for(asked)

    def reset(self, num_slots: int) -> None:
        num_slots = whole_number("num_slots", num_slots, 1)
        self._held, self._pool, self._num_slots = {}, BuddyPool(num_slots), num_slots

    def why_never(self, prompt_len: int, output_len: int) -> str | None:
        total = _both(prompt_len, output_len)
        if self.max_len is not None and total > self.max_len:
            return f"{prompt_len} + {output_len} = {total} tokens, and {self.name} takes at most {self.max_len}"
        need, largest = self.taken(self.asked(prompt_len, output_len)), self._largest()
        if need > largest:
            return f"{need} slots in one piece are needed, and the empty pool's largest piece has {largest}"
        return None

    def _largest(self) -> int:
        size = 1 << (self._num_slots.bit_length() - 1)  # the first of the buddy pool's chunks
        return size if size >= SMALLEST_CHUNK else 0

    def admit(self, request: int, prompt_len: int, output_len: int) -> bool:
        _both(prompt_len, output_len)
        if (request := whole_number("request", request)) in self._held:
            raise InvalidInputError(f"request {request} is admitted already; free it first, or choose another number")
        asked = self.asked(prompt_len, output_len)
        start = self._pool.take(asked)
        if start is None:
            return False
        self._held[request] = (start, asked)
        return True

    def capacity(self, request: int) -> int:
        return self._piece(request)[1]

    def _piece(self, request: int) -> tuple[int, int]:
        try:
            return self._held[request]
        except (KeyError, TypeError):
            raise InvalidInputError(f"no request {shown(request)} here; running are {list(self._held)[:10]}") from None

    def grow(self, request: int, num_tokens: int) -> bool:
        return whole_number("num_tokens", num_tokens, 1) <= self.capacity(request)

    def free(self, request: int) -> None:
        self._pool.give(*self._piece(request))
        del self._held[request]

    @property
    def num_free(self) -> int:
        return self._pool.num_free

    def spans(self, request: int) -> list[tuple[int, int]]:
        start, asked = self._piece(request)
        return [(start, self.taken(asked))]


class FirstFit(_Contiguous):
    """Exactly prompt + output slots, in the first hole that is long enough. The classic picture of holes.

    It knows each output length beforehand, as `Oracle` does, and does not round: what it loses is holes alone.

    Args:
        max_len: longest request taken, in tokens; a longer one is refused with the reason.
    """

    def __init__(self, max_len: int = 2048) -> None:
        super().__init__()
        self.max_len = whole_number("max_len", max_len, 1)
        self.name = "FirstFit"

    def asked(self, prompt_len: int, output_len: int) -> int:
        """Prompt and output."""
        return _both(prompt_len, output_len)

    def taken(self, asked: int) -> int:
        """No rounding."""
        return asked

    def reset(self, num_slots: int) -> None:
        """Start again with one hole: the whole pool."""
        super().reset(num_slots)
        self._pool = FirstFitPool(num_slots)

    def _largest(self) -> int:
        return self._num_slots


class MaxLength(_Contiguous):
    """The longest request that could ever come, for every request: "Orca (Max)" in the paper (section 6.1)."""

    def __init__(self, max_len: int = 2048) -> None:
        super().__init__()
        self.max_len = whole_number("max_len", max_len, 1)
        self.name = "MaxLength"

    def asked(self, prompt_len: int, output_len: int) -> int:
        """Always the maximum."""
        assert self.max_len is not None
        return self.max_len


class PowerOfTwo(_Contiguous):
    """Prompt, and the output rounded up to a power of two, up to the maximum: "Orca (Pow2)" in the paper."""

    def __init__(self, max_len: int = 2048) -> None:
        super().__init__()
        self.max_len = whole_number("max_len", max_len, 1)
        self.name = "PowerOfTwo"

    def asked(self, prompt_len: int, output_len: int) -> int:
        """An output of 25 tokens reserves 32."""
        assert self.max_len is not None
        _both(prompt_len, output_len)
        return min(self.max_len, prompt_len + next_power_of_two(output_len))


class Oracle(_Contiguous):
    """Prompt and the true output length, known beforehand: "Orca (Oracle)" in the paper. It cannot be built."""

    def __init__(self) -> None:
        super().__init__()
        self.name = "Oracle"

    def asked(self, prompt_len: int, output_len: int) -> int:
        """Exactly what will be used."""
        return _both(prompt_len, output_len)


def _both(prompt_len: int, output_len: int) -> int:
    """Tokens of a request at its end."""
    return whole_number("prompt_len", prompt_len, 1) + whole_number("output_len", output_len, 1)


# ---------------------------------------------------------------------------------------------------------------------
# The simulator


class Running(NamedTuple):
    """One running request at one step: slots written, slots it will have used at its end, slots it may use, where."""

    request: int
    written: int
    needed: int
    capacity: int
    spans: tuple[tuple[int, int], ...]


class Snapshot(NamedTuple):
    """The pool at one step, in slots; the five parts add up to the pool."""

    step: int
    tokens: int
    reserved: int
    internal: int
    external: int
    idle: int
    running: tuple[Running, ...]
    waiting: tuple[int, ...]


@dataclass(frozen=True)
class Breakdown:
    """What the slots of the pool were doing, on average over the counted steps.

    Each part is a number of slots over the slots of the pool, averaged over steps; the five add up to 1.

    Attributes:
        tokens: slots that hold a token's K and V.
        reserved: slots not written yet that the same request will write later.
        internal: slots inside a reservation that will never be written.
        external: what the allocator rounds up beyond a reservation, and, while a request waits, every free slot.
        idle: free slots while nobody waits. Not waste: more requests would use them.
        batched: running requests, on average.
        preempted: how often a running request was thrown out to be recomputed, in the whole run.
        finished: requests that ran to their end, in the whole run.
        refused: (request, reason) of those that can never fit. The others ran.
        timeline: a Snapshot for every step from the first, when recording; else empty.
        allocator, num_slots: what was simulated.
    """

    tokens: float
    reserved: float
    internal: float
    external: float
    idle: float
    batched: float
    preempted: int
    finished: int
    refused: tuple[tuple[int, str], ...]
    timeline: tuple[Snapshot, ...]
    allocator: str
    num_slots: int

    @property
    def parts(self) -> dict[str, float]:
        """The five parts by name, in the order of the paper's figure 2."""
        return {name: getattr(self, name) for name in PARTS}


PARTS = ("tokens", "reserved", "internal", "external", "idle")


def simulate(
    requests: Iterable[Request],
    allocator: Allocator,
    num_slots: int,
    *,
    arrivals: Sequence[float] | None = None,
    steps: int = 20_000,
    warmup: int = 500,
    seed: int = 0,
    record: bool = False,
) -> Breakdown:
    """Serve requests first come, first served from one pool and say what its slots were doing.

    Every step: requests that ended free their slots, the head of the queue comes in as long as it fits, each running
    request writes one token (asking the allocator for room when it needs more), and the slots are counted.

    Args:
        requests: (prompt length, output length) in tokens, each at least 1.
        allocator: see `Allocator`; it is reset first.
        num_slots: size of the pool, in slots.
        arrivals: the step at which each request arrives, ascending, one each. None: a queue that never empties; when
            all requests have been handed out, they are handed out again in an order drawn from `seed`.
        steps: steps to run. Those before `warmup` are run and not counted.
        warmup: see `steps`.
        seed: for the order of second and later rounds; nothing else is random here.
        record: keep a Snapshot of every step, for drawing; meant for short runs.

    Raises:
        InvalidInputError: lengths, steps or arrivals that cannot be. A request that can never fit raises nothing: it is
            refused, with the reason in the result, and the others run.

    What the paper measured on a server (figure 2; section 6.2, figure 13), by simulation.
    """
    requests = check_requests(requests)
    num_slots = whole_number("num_slots", num_slots, 1, most=2**40)
    steps, seed = whole_number("steps", steps, 1, most=MOST_STEPS), whole_number("seed", seed)
    _check_allocator(allocator)
    yes_or_no("record", record)
    if not 0 <= (warmup := whole_number("warmup", warmup)) < steps:
        raise InvalidInputError(f"warmup is {warmup} and steps is {steps}: nothing would be counted; warmup < steps")
    coming = _saturated(requests, seed) if arrivals is None else _arriving(check_arrivals(arrivals, len(requests)))
    allocator.reset(num_slots)
    run = _Run(requests, allocator, num_slots, coming, warmup=warmup, saturated=arrivals is None, record=record)
    return run.until(steps)


MOST_STEPS = 10_000_000  # minutes


def _check_allocator(allocator: Any) -> None:
    """Raise unless it answers the simulator's calls; `num_free` may need a `reset` before it can be asked for."""
    calls = ("name", "reset", "why_never", "admit", "capacity", "grow", "free")
    lacking = [call for call in calls if not hasattr(allocator, call)]
    if lacking or isinstance(allocator, type):
        made = f"{allocator.__name__}()" if isinstance(allocator, type) else "an allocator, such as MaxLength()"
        raise InvalidInputError(f"allocator is {shown(allocator)}; pass {made}")


def _saturated(requests: Sequence[Request], seed: int) -> Iterator[tuple[float, int]]:
    """(step 0, request) for ever: the first round in the given order, later ones shuffled."""
    yield from ((0, i) for i in range(len(requests)))
    rng = np.random.default_rng(seed)
    while True:
        yield from ((0, int(i)) for i in rng.permutation(len(requests)))


def _arriving(arrivals: Sequence[float]) -> Iterator[tuple[float, int]]:
    return ((step, i) for i, step in enumerate(arrivals))


@dataclass(slots=True)
class _Job:
    """A request in the queue or running. `key` is its name for the allocator: unique in a run, even in later rounds."""

    key: int
    request: int
    prompt: int  # tokens that must be there before it can go on; after a preemption, all it had written
    needed: int  # tokens at its end
    start: int = -1  # step of its first token, while running
    capacity: int = 0
    order: int = -1  # admissions so far, while running; -1 when it waits


@dataclass
class _Run:
    """One run. Between two events nothing changes but the tokens, which grow by one per running request and step.

    So it jumps from event to event (an end, an arrival, a reservation that is full) and adds the steps between in one
    formula; that is what makes 20,000 steps quick.
    """

    requests: Sequence[Request]
    allocator: Allocator
    num_slots: int
    coming: Iterator[tuple[float, int]]
    warmup: int
    saturated: bool
    record: bool
    step: int = 0
    waiting: deque[_Job] = field(default_factory=deque)
    running: dict[int, _Job] = field(default_factory=dict)  # by admission, oldest first
    ends: dict[int, list[_Job]] = field(default_factory=dict)  # step -> those that end before it, maybe stale
    full: dict[int, list[_Job]] = field(default_factory=dict)  # step -> those whose capacity is used up then, ditto
    events: list[int] = field(default_factory=list)  # a heap of steps worth stopping at
    refused: dict[int, str] = field(default_factory=dict)
    timeline: list[Snapshot] = field(default_factory=list)
    tokens: int = 0
    within: int = 0  # sum of min(capacity, needed)
    capacity: int = 0
    sums: list[int] = field(default_factory=lambda: [0] * 6)  # the five parts and the running, added over steps
    preempted: int = 0
    finished: int = 0
    admissions: int = 0
    keys: Iterator[int] = field(default_factory=itertools.count)

    def until(self, steps: int) -> Breakdown:
        self.next_arrival = next(self.coming, None)
        may_admit = True
        heapq.heappush(self.events, self.warmup)
        heapq.heappush(self.events, steps)
        while self.step < steps:
            may_admit |= self._end() | self._arrive()
            if may_admit:
                self._admit()
            may_admit = self._grow()  # a preemption frees slots: look at the queue again in the next step
            until = min(steps, self.step + 1) if self.record or may_admit else self._next_event()
            self._count(until - self.step)
            self.step = until
        return self._result(steps)

    def _next_event(self) -> int:
        while self.events[0] <= self.step:
            heapq.heappop(self.events)
        return self.events[0]

    def _at(self, calendar: dict[int, list[_Job]], step: int, job: _Job) -> None:
        if step not in calendar:
            calendar[step] = []
            heapq.heappush(self.events, step)
        calendar[step].append(job)

    def _end(self) -> bool:
        """Free those that wrote their last token in the step before."""
        ended = [j for j in self.ends.pop(self.step, ()) if j.order >= 0 and j.start + j.needed - j.prompt == self.step]
        for job in ended:
            self._leave(job)
            self.finished += 1
        return bool(ended)

    def _arrive(self) -> bool:
        """Move those that have arrived to the queue; a saturated queue always holds one more than can run."""
        new = False
        while self.next_arrival is not None and not (self.saturated and self.waiting):
            when, request = self.next_arrival
            if when > self.step:
                heapq.heappush(self.events, math.ceil(when))
                break
            new |= self._queue(request)
            self.next_arrival = next(self.coming, None)
            if self.saturated and len(self.refused) == len(self.requests):
                break  # not one of them can ever fit
        return new

    def _queue(self, request: int) -> bool:
        if request in self.refused:
            return False
        prompt, output = self.requests[request]
        if reason := self.allocator.why_never(prompt, output):
            self.refused[request] = reason
            return False
        self.waiting.append(_Job(next(self.keys), request, prompt, prompt + output))
        return True

    def _admit(self) -> None:
        """First come, first served: stop at the first that does not fit now."""
        while self.waiting:
            job = self.waiting[0]
            if not self.allocator.admit(job.key, job.prompt, job.needed - job.prompt):
                if self.running:
                    return
                self.refused[job.request] = f"{self.allocator.name} found no room for it in an empty pool"
                self.waiting.popleft()
            else:
                self.waiting.popleft()
                self._start(job)
            if self.saturated:
                self._arrive()

    def _start(self, job: _Job) -> None:
        job.order, job.start, job.capacity = self.admissions, self.step, self.allocator.capacity(job.key)
        self.admissions += 1
        self.running[job.order] = job
        self.tokens += job.prompt
        self.within += min(job.capacity, job.needed)
        self.capacity += job.capacity
        self._at(self.ends, job.start + job.needed - job.prompt, job)
        self._watch(job)

    def _watch(self, job: _Job) -> None:
        """Note the step at which its capacity will be used up, if it is before its end."""
        if job.capacity < job.needed:
            self._at(self.full, job.start + job.capacity - job.prompt, job)

    def _leave(self, job: _Job) -> None:
        self.allocator.free(job.key)
        del self.running[job.order]
        job.order = -1
        self.tokens -= job.prompt + self.step - job.start
        self.within -= min(job.capacity, job.needed)
        self.capacity -= job.capacity

    def _grow(self) -> bool:
        """Make room for this step's token where it is needed; True if somebody was preempted for it."""
        jobs = self.full.pop(self.step, None)
        if jobs is None:
            return False
        before = self.preempted
        for job in jobs:
            written = job.prompt + self.step - job.start
            if job.order < 0 or written < job.capacity:
                continue  # preempted since it was noted, and perhaps running again
            while job.order >= 0 and not self.allocator.grow(job.key, written + 1):
                self._preempt()
            if job.order >= 0:
                self._widen(job)
        return self.preempted > before

    def _widen(self, job: _Job) -> None:
        capacity = self.allocator.capacity(job.key)
        self.within += min(capacity, job.needed) - min(job.capacity, job.needed)
        self.capacity += capacity - job.capacity
        job.capacity = capacity
        self._watch(job)

    def _preempt(self) -> None:
        """Throw out the newest; it goes to the head of the queue and will be recomputed."""
        job = self.running[next(reversed(self.running))]
        written = job.prompt + self.step - job.start
        self._leave(job)
        job.prompt = written
        self.waiting.appendleft(job)
        self.preempted += 1

    def _count(self, steps: int) -> None:
        """Add the parts over the coming steps; in the k-th of them tokens + k * running slots are written."""
        n = len(self.running)
        idle = 0 if self.waiting else self.allocator.num_free
        if self.step >= self.warmup:
            tokens = steps * self.tokens + n * steps * (steps + 1) // 2
            external = self.num_slots - self.capacity - idle
            parts = (self.capacity - self.within, external, idle, n)
            self.sums[0] += tokens
            self.sums[1] += steps * self.within - tokens
            for i, part in enumerate(parts, start=2):
                self.sums[i] += steps * part
        self.tokens += n * steps
        if self.record:
            self._snapshot(idle)

    def _snapshot(self, idle: int) -> None:
        running = tuple(
            Running(
                job.request,
                job.prompt + self.step - job.start + 1,
                job.needed,
                job.capacity,
                tuple(self.allocator.spans(job.key)),
            )
            for job in self.running.values()
        )
        parts = (self.tokens, self.within - self.tokens, self.capacity - self.within)
        external = self.num_slots - self.capacity - idle
        waiting = tuple(job.request for job in self.waiting)
        self.timeline.append(Snapshot(self.step, *parts, external, idle, running, waiting))

    def _result(self, steps: int) -> Breakdown:
        counted = steps - self.warmup
        *parts, batched = (total / counted for total in self.sums)
        return Breakdown(
            *(part / self.num_slots for part in parts),
            batched=batched,
            preempted=self.preempted,
            finished=self.finished,
            refused=tuple(sorted(self.refused.items())),
            timeline=tuple(self.timeline),
            allocator=self.allocator.name,
            num_slots=self.num_slots,
        )


# ---------------------------------------------------------------------------------------------------------------------
# Lengths and arrivals


def lognormal_lengths(
    n: int,
    prompt_mean: float,
    output_mean: float,
    *,
    prompt_cv: float = 1.0,
    output_cv: float = 0.877,
    max_len: int = 2048,
    seed: int = 0,
) -> list[Request]:
    """`n` requests with lognormal lengths: many short ones, a few very long ones.

    Args:
        prompt_mean, output_mean: mean lengths in tokens, before clipping.
        prompt_cv, output_cv: standard deviation over mean; 0 makes all lengths equal.
        max_len: prompts are clipped to half of it, outputs to what the prompt leaves.
        seed: same seed, same lengths.
    """
    n, seed = whole_number("n", n, 1, MOST_STEPS), whole_number("seed", seed)
    max_len = whole_number("max_len", max_len, 2)
    normal = np.random.default_rng(seed).standard_normal((n, 2))  # row by row: a longer list begins with the shorter
    prompts = _lognormal(normal[:, 0], "prompt", prompt_mean, prompt_cv)
    outputs = _lognormal(normal[:, 1], "output", output_mean, output_cv)
    prompts = np.clip(np.rint(prompts), 1, max_len // 2).astype(int)  # [n]
    outputs = np.clip(np.rint(outputs), 1, max_len - prompts).astype(int)  # [n]
    return list(zip(prompts.tolist(), outputs.tolist(), strict=True))


def _lognormal(normal: np.ndarray, what: str, mean: float, cv: float) -> np.ndarray:
    mean, cv = real_number(f"{what}_mean", mean, least=1), real_number(f"{what}_cv", cv, least=0)
    if not max(mean, cv) < 1e9:
        raise InvalidInputError(f"{what}_mean is {mean} and {what}_cv {cv}; both must be below a billion")
    variance = math.log(1 + cv**2)  # of the logarithm
    return mean * np.exp(math.sqrt(variance) * normal - variance / 2)


def sharegpt_like(n: int, seed: int = 0) -> list[Request]:
    """`n` requests with the mean lengths of ShareGPT in the paper's figure 11: 161.31 in, 337.99 out.

    The paper gives the means. The spread of the outputs (standard deviation 0.877 times the mean) was chosen so that
    `MaxLength` matches figure 2; that of the prompts (1.0) is assumed. Prompts end at 1,024, requests at 2,048.
    """
    return lognormal_lengths(n, 161.31, 337.99, seed=seed)


def alpaca_like(n: int, seed: int = 0) -> list[Request]:
    """`n` requests with the mean lengths of Alpaca in the paper's figure 11: 19.31 in, 58.45 out; spread as above."""
    return lognormal_lengths(n, 19.31, 58.45, seed=seed)


def poisson_arrivals(n: int, rate: float, seed: int = 0) -> list[float]:
    """`n` arrival times in steps, with `rate` requests a step on average, independent of each other."""
    rate = real_number("rate", rate, above=0)
    if rate < 1e-9:
        raise InvalidInputError(f"rate is {rate} requests a step, and nobody lives to see the second; use 1e-9 or more")
    n, seed = whole_number("n", n, 1, MOST_STEPS), whole_number("seed", seed)
    gaps = np.random.default_rng(seed).exponential(1 / rate, n)
    return np.cumsum(gaps).tolist()


def read_trace(path: str | Path) -> list[Request]:
    """Your own requests: a CSV file, or a JSONL file if its name ends in .jsonl.

    CSV: a first line naming the columns `prompt_len` and `output_len` (others are ignored), or two numbers a line
    without it. JSONL: one object a line with these two keys. Empty lines are allowed.

    Raises:
        TraceError: a row that is not two lengths of at least 1; nothing is skipped.
        FileNotFoundError: there is no such file.
    """
    if not isinstance(path, str | Path) or "\0" in str(path):
        raise InvalidInputError(f"path is {shown(path)}; pass the name of a CSV or JSONL file")
    path = Path(path)
    if path.is_dir():
        raise TraceError(f"{path} is a folder; pass a CSV or JSONL file in it")
    try:
        return _read_trace(path)
    except (UnicodeError, csv.Error) as error:
        raise TraceError(f"{path} is no text file in UTF-8 with lengths in it: {error}") from error


def _read_trace(path: Path) -> list[Request]:
    rows = _jsonl_rows(path) if path.suffix.lower() == ".jsonl" else _csv_rows(path)
    requests = [(_length(path, n, "prompt_len", p), _length(path, n, "output_len", o)) for n, p, o in rows]
    if not requests:
        raise TraceError(f"{path} holds no request: expected a prompt length and an output length on each line")
    return requests


def _csv_rows(path: Path) -> Iterator[tuple[int, Any, Any]]:
    """(line, prompt, output), as text."""
    columns = [0, 1]
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file)
        first = True
        for row in reader:
            if not any(cell.strip() for cell in row):
                continue
            names = [cell.strip() for cell in row]
            if first and {"prompt_len", "output_len"} <= set(names):
                columns = [names.index("prompt_len"), names.index("output_len")]
            elif len(row) <= max(columns):
                raise TraceError(f"{path}, line {reader.line_num}: expected two lengths, got {','.join(row)!r}")
            else:
                yield reader.line_num, names[columns[0]], names[columns[1]]
            first = False


def _jsonl_rows(path: Path) -> Iterator[tuple[int, Any, Any]]:
    """(line, prompt, output), as JSON values."""
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                yield number, row["prompt_len"], row["output_len"]
            except (ValueError, TypeError, KeyError) as error:
                expected = '{"prompt_len": 12, "output_len": 34}'
                raise TraceError(f"{path}, line {number}: expected {expected}, got {line.strip()[:60]!r}") from error


def _length(path: Path, line: int, column: str, value: Any) -> int:
    try:
        length = int(value) if isinstance(value, str) else index(value)
    except (TypeError, ValueError):
        length = 0
    if length < 1 or isinstance(value, bool):
        raise TraceError(f"{path}, line {line}: {column} is {value!r}; it must be a whole number of at least 1")
    return length


# ---------------------------------------------------------------------------------------------------------------------
# Input that cannot be right


def check_requests(requests: Iterable[Request]) -> list[Request]:
    """The requests as pairs of Python integers.

    Raises:
        InvalidInputError: none at all, something that is no pair, or a length under 1.
    """
    checked = []
    pairs = listed("requests", requests, "pairs (prompt length, output length)")
    for i, request in enumerate(pairs):
        try:
            prompt, output = map(index, request)
        except (TypeError, ValueError, RuntimeError) as error:
            message = f"request {i} is {shown(request)}; expected (prompt length, output length), two whole numbers"
            raise InvalidInputError(message) from error
        if prompt < 1 or output < 1:
            raise InvalidInputError(f"request {i} is ({prompt}, {output}); both lengths must be at least 1 token")
        checked.append((prompt, output))
    if not checked:
        raise InvalidInputError("there are no requests to serve; give at least one (prompt length, output length)")
    return checked


def check_arrivals(arrivals: Sequence[float], n: int) -> list[float]:
    """The arrival steps as floats.

    Raises:
        InvalidInputError: not one for each request, not ascending, negative or not a number.
    """
    times = listed("arrivals", arrivals, "the step at which each request arrives")
    times = [real_number(f"arrival {i}", t) for i, t in enumerate(times)]
    if len(times) != whole_number("n", n):
        raise InvalidInputError(f"{len(times)} arrivals for {n} requests; give one step for each request")
    for i, (before, now) in enumerate(itertools.pairwise([0.0, *times])):
        if not (math.isfinite(now) and now >= before):
            raise InvalidInputError(f"arrival {i} is {now} after {before}; arrivals are steps >= 0 in ascending order")
    return times
