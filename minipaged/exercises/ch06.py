"""Checks for chapter 6: which waste is a slot, waste by hand, first-fit, and a queue that must not stand still."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minipaged.exercises._base import Mistake, NotAttempted, _short, attempt, exercise, is_blank, listed, whole
from minipaged.exercises.words import say
from minipaged.fragmentation import FirstFitPool, chunk_for, next_power_of_two

# --- which waste is this slot? -------------------------------------------------------------------------------------

KINDS = ("token", "reserved", "internal", "external")


def _kind(slot: int, written: int, needed: int, capacity: int) -> str:
    marks = (written, needed, capacity)
    return KINDS[sum(slot >= mark for mark in marks)]


@exercise("06.which.right")
def check_06_which_waste(answer: Callable[..., str]) -> None:
    """`answer(slot, written, needed, capacity)` names what slot number `slot` of one request's piece is doing."""
    written, needed, capacity = 3, 5, 8
    for slot in range(10):
        got, want = attempt(answer, slot, written, needed, capacity), _kind(slot, written, needed, capacity)
        if got not in KINDS:
            key = "06.which.idle" if got == "idle" else "06.which.names"
            raise Mistake(say(key, slot=slot, got=_short(got), names=", ".join(KINDS)))
        if got != want:
            why = _which_why(got, want, slot, (written, needed, capacity))
            kinds = [attempt(answer, other, written, needed, capacity) for other in (needed + written - 1, 9)]
            if slot == needed and got == "reserved" == kinds[0] != kinds[1]:
                why = say("06.which.needed")
            raise Mistake(say("06.which.why", slot=slot, want=want, got=got, why=why))
    for slot, *marks in ((0, 1, 1, 1), (6, 2, 6, 6), (4, 4, 4, 9), (15, 15, 16, 16)):
        got, want = attempt(answer, slot, *marks), _kind(slot, *marks)
        if got != want:
            named = dict(zip(("written", "needed", "kept"), marks, strict=True))
            raise Mistake(say("06.which.other", slot=slot, want=want, got=_short(got), **named))


def _which_why(got: str, want: str, slot: int, marks: tuple[int, int, int]) -> str:
    if slot in marks and KINDS.index(got) == KINDS.index(want) - 1:
        return say("06.which.counting", slot=slot, last=slot - 1)
    if (got, want) == ("internal", "reserved"):
        return say("06.which.reserved")
    if (got, want) == ("reserved", "internal"):
        return say("06.which.internal")
    if (got, want) == ("external", "internal"):
        return say("06.which.inside")
    if want == "external":
        return say("06.which.external")
    return say("06.which.token" if want == "token" else "06.which.who")


# --- waste by hand -------------------------------------------------------------------------------------------------

FIVE = ((20, 30, 10), (50, 10, 4), (7, 25, 25), (66, 60, 1), (10, 2, 1))  # prompt, output, output written so far
FIVE_POOL, FIVE_MAX = 512, 128


def five_requests() -> dict[str, int]:
    """The five parts of a `PowerOfTwo(128)` pool of 512 slots that holds `FIVE` while a sixth request waits."""
    tokens = sum(p + g for p, _, g in FIVE)
    needed = sum(p + o for p, o, _ in FIVE)
    kept = sum(min(FIVE_MAX, p + next_power_of_two(o)) for p, o, _ in FIVE)
    parts = {"tokens": tokens, "reserved": needed - tokens, "internal": kept - needed}
    return parts | {"external": FIVE_POOL - kept, "idle": 0}


@exercise("06.five.right")
def check_06_five_requests(answer: dict[str, int]) -> None:
    """`answer` maps tokens, reserved, internal, external and idle to numbers of slots."""
    right = five_requests()
    if not isinstance(answer, dict) or set(answer) != set(right):
        raise Mistake(say("06.five.keys", keys=", ".join(right)))
    if any(is_blank(value) for value in answer.values()):
        raise NotAttempted
    if 99 < sum(map(_number, answer.values())) < 101:
        raise Mistake(say("06.five.percent"))
    answer = {name: whole(value) for name, value in answer.items()}
    chunks = sum(chunk_for(min(FIVE_MAX, p + next_power_of_two(o))) for p, o, _ in FIVE)
    total = sum(answer.values())
    if answer["idle"]:
        raise Mistake(say("06.five.idle", got=answer["idle"]))
    if answer["tokens"] != right["tokens"]:
        raise Mistake(say("06.five.tokens", got=answer["tokens"], want=right["tokens"]))
    if answer["internal"] == right["internal"] + right["reserved"]:
        raise Mistake(say("06.five.both"))
    if answer["reserved"] != right["reserved"]:
        raise Mistake(say("06.five.reserved", got=answer["reserved"], want=right["reserved"]))
    if answer["internal"] == right["internal"] + chunks - FIVE_POOL + right["external"]:
        raise Mistake(say("06.five.rounding"))
    no_limit = sum(p + next_power_of_two(o) for p, o, _ in FIVE)
    if answer["internal"] == right["internal"] + right["external"] + no_limit - FIVE_POOL:
        raise Mistake(say("06.five.most", got=answer["internal"], most=FIVE_MAX))
    if answer["internal"] != right["internal"]:
        raise Mistake(say("06.five.internal", got=answer["internal"]))
    if answer["external"] == FIVE_POOL - chunks:
        raise Mistake(say("06.five.external", got=answer["external"]))
    if answer != right:
        raise Mistake(say("06.five.sum", total=total, pool=FIVE_POOL))


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return 0.0


# --- first-fit -----------------------------------------------------------------------------------------------------


@exercise("06.fit.right")
def check_06_first_fit(answer: Callable[..., Any]) -> None:
    """`answer(holes, length)` -> (start, holes that are left), or None; holes are (start, length) from the left."""
    cases = [
        ([(0, 10)], 4),
        ([(0, 4), (10, 4)], 4),
        ([(0, 3), (8, 9), (20, 5)], 5),
        ([(2, 6), (11, 9)], 4),
        ([(0, 8), (16, 8)], 12),
        ([], 1),
        ([(5, 2), (9, 6)], 6),
    ]
    for holes, length in cases:
        pool = FirstFitPool(1)
        pool.holes = list(holes)
        start = pool.take(length)
        got = _read_place(attempt(_not_none(answer), list(holes), length))
        _compare_place(holes, length, got, None if start is None else (start, pool.holes))


def _not_none(answer: Callable[..., Any]) -> Callable[..., Any]:
    """None is a right answer here, and no sign of an empty stub."""
    if not callable(answer):
        return answer
    return lambda *args: "None" if (value := answer(*args)) is None else value


def _read_place(got: Any) -> tuple[int, list[tuple[int, int]]] | None:
    if isinstance(got, str) and got == "None":
        return None
    try:
        start, holes = got
        if start is None:
            raise ValueError
        if hasattr(start, "__len__") and not hasattr(start, "item"):
            raise Mistake(say("06.fit.order", got=_short(got)))
        return whole(start), [(whole(a), whole(n)) for a, n in listed(holes)]
    except (TypeError, ValueError):
        raise Mistake(say("06.fit.form", got=_short(got))) from None


def _compare_place(holes: list[tuple[int, int]], length: int, got: Any, want: Any) -> None:
    asked = say("06.fit.asked", length=length, holes=holes)
    if want is None:
        if got is not None:
            raise Mistake(say("06.fit.none", asked=asked, got=got))
        return
    if got is None:
        key = "06.fit.exact" if (want[0], length) in holes else "06.fit.further"
        raise Mistake(say(key, asked=asked, start=want[0]))
    if got[0] != want[0]:
        starts = [start for start, _ in holes]
        key = "06.fit.start"
        if got[0] not in starts and starts.index(want[0]) == got[0]:
            key = "06.fit.place"
        if (want[0], got[0] + length - want[0]) in holes:
            key = "06.fit.end"
        raise Mistake(say(key, asked=asked, start=want[0], taken=got[0]))
    if any(size == 0 for _, size in got[1]):
        raise Mistake(say("06.fit.empty", asked=asked, left=got[1]))
    if sorted(got[1]) != sorted(want[1]):
        raise Mistake(say("06.fit.left", asked=asked, want=want[1], left=got[1]))
    if got[1] != want[1]:
        raise Mistake(say("06.fit.sorted", asked=asked, left=got[1]))


# --- the queue that stands still -----------------------------------------------------------------------------------


def serve(sizes: list[int], pool: int) -> tuple[list[list[int]], list[int]]:
    """First come, first served: (sizes served in each step, refused). Who can never fit is refused at the head."""
    steps: list[list[int]] = []
    refused: list[int] = []
    waiting = list(sizes)
    while waiting:
        free, served = pool, []
        while waiting and (waiting[0] > pool or waiting[0] <= free):
            size = waiting.pop(0)
            if size > pool:
                refused.append(size)
            else:
                free -= size
                served.append(size)
        if served:
            steps.append(served)
    return steps, refused


@exercise("06.queue.right")
def check_06_queue(answer: Callable[..., Any]) -> None:
    """`answer(sizes, pool)` -> (steps, refused): the sizes served in each step, and a list of sizes."""
    asked = say("06.queue.pair")
    cases = [([3, 5], 10), ([6, 6, 2], 10), ([3, 20, 4], 10), ([11, 10], 10), ([12], 10), ([9, 30, 2, 8, 40, 1], 10)]
    for sizes, pool in cases:
        got = listed(attempt(answer, list(sizes), pool), asked)
        if len(got) != 2:
            raise Mistake(say("06.queue.form", asked=asked, got=got))
        if any(hasattr(size, "__len__") and not hasattr(size, "item") for size in listed(got[1], asked)):
            raise Mistake(say("06.queue.one", asked=asked, got=_short(tuple(got))))
        steps = [listed(step, say("06.queue.step")) for step in listed(got[0], asked)]
        steps = [[whole(size) for size in step] for step in steps]
        _compare_queue(sizes, pool, [step for step in steps if step], [whole(size) for size in listed(got[1], asked)])


def _compare_queue(sizes: list[int], pool: int, steps: list[list[int]], refused: list[int]) -> None:
    want_steps, want_refused = serve(sizes, pool)
    if (steps, refused) == (want_steps, want_refused):
        return
    case = say("06.queue.case", sizes=sizes, pool=pool)
    served, want = [size for step in steps for size in step], [size for step in want_steps for size in step]
    early = [size for size in refused if size <= pool]
    strange = sorted({*served, *refused} - {*sizes})
    if strange:
        raise Mistake(say("06.queue.strange", case=case, size=strange[0]))
    if early == [pool]:
        raise Mistake(say("06.queue.fits", case=case, pool=pool))
    if early:
        raise Mistake(say("06.queue.early", case=case, early=early))
    if any(size > pool for size in served):
        raise Mistake(say("06.queue.large", case=case, largest=max(served)))
    if sorted(served) == sorted(want) and served != want:
        raise Mistake(say("06.queue.order", case=case, served=served, want=want))
    if len(served) < len(want):
        raise Mistake(say("06.queue.stands", case=case, served=served, want=want))
    full = [step for step in steps if sum(step) > pool]
    if full:
        raise Mistake(say("06.queue.full", case=case, step=full[0], total=sum(full[0])))
    if served == want and refused == want_refused:
        raise Mistake(say("06.queue.steps", case=case, steps=steps, want=want_steps))
    raise Mistake(say("06.queue.refused", case=case, refused=refused, want=want_refused))
