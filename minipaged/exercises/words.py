"""What checks say, in one table; another language stands beside it in words_<code>.py.

Here are the words that all checks share, and those ("chapter.exercise.part") of the chapters that exist in a second
language. The other chapters keep their sentences in their own files until then.
"""

from __future__ import annotations

from typing import Any

from minipaged.language import words

WORDS: dict[str, str] = {
    # shared
    "base.result": "{sign} {status}: {message}",
    "base.status.not attempted": "not attempted",
    "base.status.wrong": "wrong",
    "base.status.right": "right",
    "base.blank": "replace the ... in the cell above and run it again",
    "base.function": "expected a function, got {kind}",
    "base.raised": "called with ({shown}), your code raised {kind}: {error}",
    "base.nothing": "your code ran and nothing was returned: does every way through it end with `return ...`?",
    "base.endless": "it ran for more than {seconds:g} s: does a loop in it never end?",
    "base.list": "a list",
    "base.not_listed": "you return {value}; return {asked}",
    "base.not_whole": "you return {value} where a whole number is expected",
    "base.unreadable": "the answer cannot be read: {kind}: {error}",
    "base.shape": "{kind} of shape {shape}",
    "base.guess.none": "no guess yet",
    "base.guess.mine": "your guess: {mine}{unit}",
    "base.guess.right": " (right)",
    "base.guess.close": " (close enough)",
    "base.guess.wrong": " (look again)",
    "base.guess.computed": "{said} | computed: {actual}{unit}",
    # 06 fragmentation
    "06.which.right": (
        "a slot's name depends on who will write to it: somebody did, its owner will, nobody can, nobody was given it"
    ),
    "06.which.names": "slot {slot}: you return {got}; the names are {names}",
    "06.which.idle": "slot {slot}: you return {got}; the names are {names}; somebody waits, so no slot is idle",
    "06.which.why": "3 slots written, 5 needed, 8 kept: slot {slot} is {want!r}, you say {got!r}; {why}",
    "06.which.other": "{written} slots written, {needed} needed, {kept} kept: slot {slot} is {want!r}, you say {got}",
    "06.which.counting": "slots count from 0, so the first {slot} slots are 0 to {last}",
    "06.which.needed": "`needed` is the sum at the end: the written slots are among these 5",
    "06.which.reserved": "its own request will write it later, so it is reserved and not internal waste",
    "06.which.internal": "no token of this request will ever come there, so it is internal waste",
    "06.which.inside": "it lies inside what the request was given, so it is internal waste",
    "06.which.external": "it lies past what the request was given: the allocator's rounding",
    "06.which.token": "a token's K and V lie there",
    "06.which.who": "ask who will ever write to this slot",
    "06.five.right": (
        "the five parts add up to the pool, and rounding to a chunk is external because nobody was given those slots"
    ),
    "06.five.keys": "give a dictionary with the keys {keys}",
    "06.five.percent": "your five add up to 100: give numbers of slots, not per cent",
    "06.five.idle": "idle is {got}: a sixth request waits, so no free slot is idle; it is external",
    "06.five.tokens": "tokens is {got}: add prompt and output written so far, {want}",
    "06.five.both": "your internal holds the reserved slots too: what its own request will write is reserved",
    "06.five.reserved": "reserved is {got}: add output minus output written so far, {want}",
    "06.five.rounding": "your internal holds the rounding of the chunks too: the request was not given those slots",
    "06.five.most": "internal is {got}: D keeps {most} slots, the most that one request can have",
    "06.five.internal": "internal is {got}: A keeps 20 + 32 slots and needs 50, so 2 there; the others in this way",
    "06.five.external": "external is {got}: these are the free slots; the chunks' rounding belongs to it too",
    "06.five.sum": "the five add up to {total}, and the pool has {pool}: external is what is left",
    "06.fit.right": (
        "your first-fit finds the places the finished one finds, and says None when only the sum would be enough"
    ),
    "06.fit.order": "the start comes first and the holes second: (start, holes); you return {got}",
    "06.fit.form": "return (start, holes that are left) or None, not {got}",
    "06.fit.asked": "{length} slots from the holes {holes}",
    "06.fit.none": "{asked}: no hole is that long, so None; you give {got}",
    "06.fit.exact": "{asked}: you say None, but a hole of exactly that length fits: it starts at {start}",
    "06.fit.further": "{asked}: you say None, but a hole further right is long enough: it starts at {start}",
    "06.fit.start": "{asked}: the first hole that fits starts at {start}; you take {taken}",
    "06.fit.place": (
        "{asked}: the first hole that fits starts at {start}; you take {taken}; that is the hole's place in the list"
    ),
    "06.fit.end": (
        "{asked}: the first hole that fits starts at {start}; you take {taken}, the hole's right end; take its left end"
    ),
    "06.fit.empty": "{asked}: you keep a hole of 0 slots in {left}; a hole that is used up is gone",
    "06.fit.left": "{asked}: afterwards the holes are {want}; yours are {left}",
    "06.fit.sorted": "{asked}: the holes that are left stand in the order {left}; keep them from left to right",
    "06.queue.right": (
        "the request that can never fit is refused and named, the ones that fit later wait their turn, all others run"
    ),
    "06.queue.pair": "(steps, refused), and steps is a list with one list of sizes for each step",
    "06.queue.form": "return {asked}, not {got!r}",
    "06.queue.one": "return {asked}, and refused is one list of sizes; you return {got}",
    "06.queue.step": "a list of sizes for each step, such as [[6, 3], [5]]",
    "06.queue.case": "sizes {sizes} and a pool of {pool}",
    "06.queue.strange": "{case}: nobody has the size {size}; return sizes, not numbers of requests",
    "06.queue.fits": "{case}: you refuse {pool}, which fits exactly when the pool is empty",
    "06.queue.early": "{case}: you refuse {early}, which only had to wait until the others had ended",
    "06.queue.large": "{case}: you serve {largest}, more than the whole pool",
    "06.queue.order": "{case}: served in the order {served}, expected {want}: nobody overtakes",
    "06.queue.stands": "{case}: you serve {served} and stop, expected {want}: the queue stands still",
    "06.queue.full": "{case}: the step {step} needs {total} slots at once",
    "06.queue.steps": "{case}: your steps are {steps}, expected {want}: each takes as many from the head as fit",
    "06.queue.refused": "{case}: you refuse {refused}, expected {want}: a request must not vanish in silence",
}


def say(key: str, **values: Any) -> str:
    """The words for `key` with `values` filled in."""
    return words(__package__, WORDS, key).format(**values)
