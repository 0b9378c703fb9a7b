"""Plausible wrong answers of chapter 6, and words their messages must hold."""

from __future__ import annotations

from minipaged.exercises.ch06 import KINDS, five_requests, serve


def _swapped(slot, written, needed, capacity):
    names = ("token", "internal", "reserved", "external")
    return names[sum(slot >= mark for mark in (written, needed, capacity))]


def _one_off(slot, written, needed, capacity):
    return KINDS[sum(slot > mark for mark in (written, needed, capacity))]


def _no_external(slot, written, needed, capacity):
    return KINDS[min(2, sum(slot >= mark for mark in (written, needed, capacity)))]


def _only_two(slot, written, needed, capacity):
    return "token" if slot < written else "reserved"


def _needed_after_the_written(slot, written, needed, capacity):
    return KINDS[sum(slot >= mark for mark in (written, written + needed, capacity))]


def _outside_inside(slot, written, needed, capacity):
    names = ("token", "reserved", "external", "internal")
    return names[sum(slot >= mark for mark in (written, needed, capacity))]


RIGHT = five_requests()


def _worst_fit(holes, length):
    start, size = max(holes, key=lambda hole: hole[1], default=(0, 0))
    if size < length:
        return None
    return start, [h for h in [(start + length, size - length) if h == (start, size) else h for h in holes] if h[1]]


def _rest_at_the_end(holes, length):
    for i, (start, size) in enumerate(holes):
        if size >= length:
            return start, holes[:i] + holes[i + 1 :] + ([(start + length, size - length)] if size > length else [])
    return None


def _right_end(holes, length):
    for i, (start, size) in enumerate(holes):
        if size >= length:
            rest = [(start, size - length)] if size > length else []
            return start + size - length, holes[:i] + rest + holes[i + 1 :]
    return None


def _looks_at_one(holes, length):
    return _first_fit(holes, length) if holes and holes[0][1] >= length else None


def _place_in_the_list(holes, length):
    found = _first_fit(holes, length)
    return found and (next(i for i, hole in enumerate(holes) if hole[1] >= length), found[1])


def _best_fit(holes, length):
    fitting = [hole for hole in holes if hole[1] >= length]
    if not fitting:
        return None
    start, size = min(fitting, key=lambda hole: hole[1])
    return start, [h for h in [(start + length, size - length) if h == (start, size) else h for h in holes] if h[1]]


def _first_fit(holes, length, *, strict=False, keep_empty=False, shrink=True):
    for i, (start, size) in enumerate(holes):
        if size > length or (size == length and not strict):
            rest = [(start + length, size - length)] if size > length or keep_empty else []
            return start, holes[:i] + (rest if shrink else [(start, size)]) + holes[i + 1 :]
    return None


def _by_the_sum(holes, length):
    return (holes[0][0], holes[1:]) if sum(size for _, size in holes) >= length > 8 else _first_fit(holes, length)


def _stands_still(sizes, pool):
    steps, waiting = [], list(sizes)
    for _ in range(50):
        free, served = pool, []
        while waiting and waiting[0] <= free:
            free -= waiting[0]
            served.append(waiting.pop(0))
        steps.append(served)
    return steps, []


def _refuses_who_waits(sizes, pool):
    served, refused, free = [], [], pool
    for size in sizes:
        if size <= free:
            served.append(size)
            free -= size
        else:
            refused.append(size)
    return [served], refused


def _flat(steps):
    return [size for step in steps for size in step]


def _overtakes(sizes, pool):
    steps, refused = serve(sizes, pool)
    return [sorted(_flat(steps))], refused


def _all_at_once(sizes, pool):
    steps, refused = serve(sizes, pool)
    return [_flat(steps)], refused


def _one_a_step(sizes, pool):
    steps, refused = serve(sizes, pool)
    return [[size] for size in _flat(steps)], refused


def _only_sorted_out(sizes, pool):
    return [size for size in sizes if size <= pool], [size for size in sizes if size > pool]


WRONG = {
    "check_06_which_waste": [
        (_swapped, "so it is reserved and not internal"),
        (_one_off, "slots count from 0"),
        (_no_external, "'external'"),
        (_only_two, "'internal'"),
        (lambda *a: "free", "the names are"),
        (_needed_after_the_written, "the written slots are among these 5"),
        (_outside_inside, "inside what the request was given"),
    ],
    "check_06_five_requests": [
        ({**RIGHT, "idle": RIGHT["external"], "external": 0}, "no free slot is idle"),
        ({**RIGHT, "reserved": 0, "internal": RIGHT["internal"] + RIGHT["reserved"]}, "holds the reserved slots too"),
        ({**RIGHT, "external": RIGHT["external"] - 1}, "add up to"),
        ({**RIGHT, "external": 112}, "rounding belongs to it too"),
        ({**RIGHT, "internal": 120, "external": 112}, "holds the rounding of the chunks too"),
        ({**RIGHT, "tokens": 153}, "add prompt and output written so far"),
        ({**RIGHT, "reserved": 1}, "output minus output written"),
        ({"tokens": 1}, "dictionary"),
        ({part: 100 * slots / 512 for part, slots in RIGHT.items()}, "not per cent"),
        ({**RIGHT, "internal": RIGHT["internal"] + 2, "external": RIGHT["external"] - 2}, "D keeps 128 slots"),
        ({**RIGHT, "internal": 3}, "A keeps 20 + 32 slots"),
    ],
    "check_06_first_fit": [
        (_best_fit, "the first hole that fits starts at 8"),
        (lambda h, n: _first_fit(h, n, strict=True), "exactly that length fits"),
        (lambda h, n: _first_fit(h, n, keep_empty=True), "a hole of 0 slots"),
        (lambda h, n: _first_fit(h, n, shrink=False), "afterwards the holes are"),
        (_by_the_sum, "no hole is that long"),
        (_worst_fit, "the first hole that fits starts at 2"),
        (_rest_at_the_end, "keep them from left to right"),
        (_right_end, "take its left end"),
        (_looks_at_one, "further right is long enough"),
        (_place_in_the_list, "the hole's place in the list"),
        (lambda h, n: _first_fit(h, n) or (None, h), "or None, not (None"),
        (lambda h, n: (found := _first_fit(h, n)) and found[::-1], "the start comes first"),
    ],
    "check_06_queue": [
        (_stands_still, "the queue stands still"),
        (_refuses_who_waits, "only had to wait"),
        (_overtakes, "nobody overtakes"),
        (lambda s, p: (serve(s, p)[0], []), "must not vanish"),
        (_all_at_once, "slots at once"),
        (_one_a_step, "as many from the head as fit"),
        (_only_sorted_out, "a list of sizes for each step"),
        (lambda s, p: ([[s.index(size) for size in step] for step in serve(s, p)[0]], []), "not numbers of requests"),
        (lambda s, p: serve(s, p)[::-1], "refused is one list of sizes"),
        (lambda s, p: (*serve([x for x in s if x != p], p)[:1], [x for x in s if x >= p]), "fits exactly"),
    ],
}
