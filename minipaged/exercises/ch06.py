"""Checks for chapter 6: which waste is a slot, waste by hand, first-fit, and a queue that must not stand still."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minipaged.exercises._base import Mistake, NotAttempted, _short, attempt, exercise, is_blank, listed, whole
from minipaged.fragmentation import FirstFitPool, chunk_for, next_power_of_two

# --- which waste is this slot? -------------------------------------------------------------------------------------

KINDS = ("token", "reserved", "internal", "external")


def _kind(slot: int, written: int, needed: int, capacity: int) -> str:
    marks = (written, needed, capacity)
    return KINDS[sum(slot >= mark for mark in marks)]


@exercise(
    "a slot's name depends on who will write to it: somebody did, its owner will, nobody can, nobody was given it"
)
def check_06_which_waste(answer: Callable[..., str]) -> None:
    """`answer(slot, written, needed, capacity)` names what slot number `slot` of one request's piece is doing."""
    written, needed, capacity = 3, 5, 8
    for slot in range(10):
        got, want = attempt(answer, slot, written, needed, capacity), _kind(slot, written, needed, capacity)
        if got not in KINDS:
            why = "; somebody waits, so no slot is idle" if got == "idle" else ""
            raise Mistake(f"slot {slot}: you return {_short(got)}; the names are {', '.join(KINDS)}{why}")
        if got != want:
            why = _which_why(got, want, slot, (written, needed, capacity))
            kinds = [attempt(answer, other, written, needed, capacity) for other in (needed + written - 1, 9)]
            if slot == needed and got == "reserved" == kinds[0] != kinds[1]:
                why = "`needed` is the sum at the end: the written slots are among these 5"
            raise Mistake(f"3 slots written, 5 needed, 8 kept: slot {slot} is {want!r}, you say {got!r}; {why}")
    for slot, *marks in ((0, 1, 1, 1), (6, 2, 6, 6), (4, 4, 4, 9), (15, 15, 16, 16)):
        got, want = attempt(answer, slot, *marks), _kind(slot, *marks)
        if got != want:
            raise Mistake(
                f"{marks[0]} slots written, {marks[1]} needed, {marks[2]} kept: "
                f"slot {slot} is {want!r}, you say {_short(got)}"
            )


def _which_why(got: str, want: str, slot: int, marks: tuple[int, int, int]) -> str:
    if slot in marks and KINDS.index(got) == KINDS.index(want) - 1:
        return f"slots count from 0, so the first {slot} slots are 0 to {slot - 1}"
    if (got, want) == ("internal", "reserved"):
        return "its own request will write it later, so it is reserved and not internal waste"
    if (got, want) == ("reserved", "internal"):
        return "no token of this request will ever come there, so it is internal waste"
    if (got, want) == ("external", "internal"):
        return "it lies inside what the request was given, so it is internal waste"
    if want == "external":
        return "it lies past what the request was given: the allocator's rounding"
    if want == "token":
        return "a token's K and V lie there"
    return "ask who will ever write to this slot"


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


@exercise("the five parts add up to the pool, and rounding to a chunk is external because nobody was given those slots")
def check_06_five_requests(answer: dict[str, int]) -> None:
    """`answer` maps tokens, reserved, internal, external and idle to numbers of slots."""
    right = five_requests()
    if not isinstance(answer, dict) or set(answer) != set(right):
        raise Mistake(f"give a dictionary with the keys {', '.join(right)}")
    if any(is_blank(value) for value in answer.values()):
        raise NotAttempted
    if 99 < sum(map(_number, answer.values())) < 101:
        raise Mistake("your five add up to 100: give numbers of slots, not per cent")
    answer = {name: whole(value) for name, value in answer.items()}
    chunks = sum(chunk_for(min(FIVE_MAX, p + next_power_of_two(o))) for p, o, _ in FIVE)
    total = sum(answer.values())
    if answer["idle"]:
        raise Mistake(f"idle is {answer['idle']}: a sixth request waits, so no free slot is idle; it is external")
    if answer["tokens"] != right["tokens"]:
        raise Mistake(f"tokens is {answer['tokens']}: add prompt and output written so far, {right['tokens']}")
    if answer["internal"] == right["internal"] + right["reserved"]:
        raise Mistake("your internal holds the reserved slots too: what its own request will write is reserved")
    if answer["reserved"] != right["reserved"]:
        raise Mistake(f"reserved is {answer['reserved']}: add output minus output written so far, {right['reserved']}")
    if answer["internal"] == right["internal"] + chunks - FIVE_POOL + right["external"]:
        raise Mistake("your internal holds the rounding of the chunks too: the request was not given those slots")
    no_limit = sum(p + next_power_of_two(o) for p, o, _ in FIVE)
    if answer["internal"] == right["internal"] + right["external"] + no_limit - FIVE_POOL:
        raise Mistake(f"internal is {answer['internal']}: D keeps {FIVE_MAX} slots, the most that one request can have")
    if answer["internal"] != right["internal"]:
        raise Mistake(
            f"internal is {answer['internal']}: A keeps 20 + 32 slots and needs 50, so 2 there; the others in this way"
        )
    if answer["external"] == FIVE_POOL - chunks:
        raise Mistake(
            f"external is {answer['external']}: these are the free slots; the chunks' rounding belongs to it too"
        )
    if answer != right:
        raise Mistake(f"the five add up to {total}, and the pool has {FIVE_POOL}: external is what is left")


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return 0.0


# --- first-fit -----------------------------------------------------------------------------------------------------


@exercise("your first-fit finds the places the finished one finds, and says None when only the sum would be enough")
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
            raise Mistake(f"the start comes first and the holes second: (start, holes); you return {_short(got)}")
        return whole(start), [(whole(a), whole(n)) for a, n in listed(holes)]
    except (TypeError, ValueError):
        raise Mistake(f"return (start, holes that are left) or None, not {_short(got)}") from None


def _compare_place(holes: list[tuple[int, int]], length: int, got: Any, want: Any) -> None:
    asked = f"{length} slots from the holes {holes}"
    if want is None:
        if got is not None:
            raise Mistake(f"{asked}: no hole is that long, so None; you give {got}")
        return
    if got is None:
        exact = (want[0], length) in holes
        why = "a hole of exactly that length fits" if exact else "a hole further right is long enough"
        raise Mistake(f"{asked}: you say None, but {why}: it starts at {want[0]}")
    if got[0] != want[0]:
        starts = [start for start, _ in holes]
        why = (
            "; that is the hole's place in the list" if got[0] not in starts and starts.index(want[0]) == got[0] else ""
        )
        if (want[0], got[0] + length - want[0]) in holes:
            why = ", the hole's right end; take its left end"
        raise Mistake(f"{asked}: the first hole that fits starts at {want[0]}; you take {got[0]}{why}")
    if any(size == 0 for _, size in got[1]):
        raise Mistake(f"{asked}: you keep a hole of 0 slots in {got[1]}; a hole that is used up is gone")
    if sorted(got[1]) != sorted(want[1]):
        raise Mistake(f"{asked}: afterwards the holes are {want[1]}; yours are {got[1]}")
    if got[1] != want[1]:
        raise Mistake(f"{asked}: the holes that are left stand in the order {got[1]}; keep them from left to right")


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


@exercise(
    "the request that can never fit is refused and named, the ones that fit later wait their turn, all others run"
)
def check_06_queue(answer: Callable[..., Any]) -> None:
    """`answer(sizes, pool)` -> (steps, refused): the sizes served in each step, and a list of sizes."""
    asked = "(steps, refused), and steps is a list with one list of sizes for each step"
    cases = [([3, 5], 10), ([6, 6, 2], 10), ([3, 20, 4], 10), ([11, 10], 10), ([12], 10), ([9, 30, 2, 8, 40, 1], 10)]
    for sizes, pool in cases:
        got = listed(attempt(answer, list(sizes), pool), asked)
        if len(got) != 2:
            raise Mistake(f"return {asked}, not {got!r}")
        if any(hasattr(size, "__len__") and not hasattr(size, "item") for size in listed(got[1], asked)):
            raise Mistake(f"return {asked}, and refused is one list of sizes; you return {_short(tuple(got))}")
        steps = [listed(step, "a list of sizes for each step, such as [[6, 3], [5]]") for step in listed(got[0], asked)]
        steps = [[whole(size) for size in step] for step in steps]
        _compare_queue(sizes, pool, [step for step in steps if step], [whole(size) for size in listed(got[1], asked)])


def _compare_queue(sizes: list[int], pool: int, steps: list[list[int]], refused: list[int]) -> None:
    want_steps, want_refused = serve(sizes, pool)
    if (steps, refused) == (want_steps, want_refused):
        return
    case = f"sizes {sizes} and a pool of {pool}"
    served, want = [size for step in steps for size in step], [size for step in want_steps for size in step]
    early = [size for size in refused if size <= pool]
    strange = sorted({*served, *refused} - {*sizes})
    if strange:
        raise Mistake(f"{case}: nobody has the size {strange[0]}; return sizes, not numbers of requests")
    if early == [pool]:
        raise Mistake(f"{case}: you refuse {pool}, which fits exactly when the pool is empty")
    if early:
        raise Mistake(f"{case}: you refuse {early}, which only had to wait until the others had ended")
    if any(size > pool for size in served):
        raise Mistake(f"{case}: you serve {max(served)}, more than the whole pool")
    if sorted(served) == sorted(want) and served != want:
        raise Mistake(f"{case}: served in the order {served}, expected {want}: nobody overtakes")
    if len(served) < len(want):
        raise Mistake(f"{case}: you serve {served} and stop, expected {want}: the queue stands still")
    full = [step for step in steps if sum(step) > pool]
    if full:
        raise Mistake(f"{case}: the step {full[0]} needs {sum(full[0])} slots at once")
    if served == want and refused == want_refused:
        raise Mistake(f"{case}: your steps are {steps}, expected {want_steps}: each takes as many from the head as fit")
    raise Mistake(f"{case}: you refuse {refused}, expected {want_refused}: a request must not vanish in silence")
