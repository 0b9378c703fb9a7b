"""Chapter 1's checks: cut by top-p, keep the order, throw the dart, write the loop. Tiny data, no model."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

from minipaged.exercises._base import Mistake, NotAttempted, attempt, exercise, is_blank, listed, whole


@exercise("the kept tokens are the smallest set whose mass reaches p, on a sharp, a flat and an exact case")
def check_01_top_p(answer: Callable[[list[float], float], Any]) -> None:
    """`answer(probs, p)` returns the ids that top-p keeps."""
    cases = [
        ([0.5, 0.3, 0.2], 0.6),
        ([0.95, 0.03, 0.02], 0.9),
        ([0.1, 0.2, 0.3, 0.4], 0.6),
        ([0.5, 0.25, 0.125, 0.125], 0.75),
        ([0.125, 0.5, 0.25, 0.125], 0.8),
        ([0.25, 0.75], 1.0),
    ]
    for probs, p in cases:
        got = listed(attempt(answer, list(probs), p), "a list of token ids")
        if got and all(isinstance(x, float) and x in probs for x in got):
            raise Mistake(f"for probs {probs} and p = {p} you return {got}: return the ids, not their probabilities")
        got = _ids(got)
        order = sorted(range(len(probs)), key=lambda i: -probs[i])
        want = order[: _smallest(probs, order, p)]
        if got != sorted(want):
            shown = f"for probs {probs} and p = {p} you keep {got}, expected {sorted(want)}: "
            raise Mistake(shown + _why_top_p(got, want, order, probs, p))


def _smallest(probs: Sequence[float], order: Sequence[int], p: float) -> int:
    """How many of the ordered tokens it takes to reach p."""
    return next(n for n in range(1, len(order) + 1) if n == len(order) or sum(probs[i] for i in order[:n]) >= p)


def _why_top_p(got: list[int], want: list[int], order: list[int], probs: list[float], p: float) -> str:
    mass = sum(probs[i] for i in got if 0 <= i < len(probs))
    if len({*got}) < len(got):
        return "an id comes more than once"
    if not got:
        return "nothing is left to draw from; the most probable token always stays"
    if got == sorted(want[:-1]):
        return f"you dropped the token that crosses p, so the kept mass is only {mass:g}"
    if got == sorted(order[: len(want) + 1]):
        reached = sum(probs[i] for i in want)
        return f"the first {len(want)} already hold {reached:g}, so the next one comes too late"
    if got == sorted(range(_smallest(probs, range(len(probs)), p))):
        return "that is the order of the ids; the most probable tokens come first"
    if got == list(range(len(want))):
        return "these are places in the sorted list; the ids of those tokens are asked for"
    if got == sorted(order[: math.ceil(p * len(probs))]):
        return f"that is {p:.0%} of the candidates; top-p counts their mass"
    return f"the mass of what you keep is {mass:g}"


@exercise("temperature, then top-k, then top-p: equal to the library's probabilities on every setting")
def check_01_order(answer: Callable[[list[float], float, int, float], Any]) -> None:
    """`answer(logits, temperature, k, p)` returns the probabilities that a token is drawn from, one for each id."""
    logits = [math.log(x) for x in (0.4, 0.3, 0.15, 0.1, 0.05)]
    for temperature, k, p in _SETTINGS:
        got = listed(attempt(answer, list(logits), temperature, k, p), "a list of probabilities, one for each id")
        got = [float(x) for x in got]
        want = _pipeline(logits, temperature, k, p, ("temperature", "top-k", "top-p"))
        if not _close(got, want):
            shown = f"for temperature {temperature}, k = {k}, p = {p} you give {_round(got)}, expected {_round(want)}: "
            raise Mistake(shown + _why_order(got, logits, temperature, k, p))


_SETTINGS = (  # one step alone first, so that its own mistake is seen there
    (1.0, 5, 1.0),
    (1.0, 5, 0.8),
    (1.0, 2, 1.0),
    (2.0, 5, 1.0),
    (2.0, 5, 0.8),
    (0.5, 5, 0.8),
    (1.0, 2, 0.5),
    (2.0, 3, 0.7),
)


def _pipeline(logits: list[float], temperature: float, k: int, p: float, order: Sequence[str]) -> list[float]:
    """Probabilities after the three steps in any order."""
    from minipaged.sampling import SamplingParams, filter_logits

    torch = __import__("torch")
    steps = {
        "temperature": SamplingParams(temperature=temperature),
        "top-k": SamplingParams(top_k=k),
        "top-p": SamplingParams(top_p=p),
    }
    row = torch.tensor(logits, dtype=torch.float64)
    for step in order:
        row = filter_logits(row, steps[step])
    return row.softmax(-1).tolist()


def _why_order(got: list[float], logits: list[float], temperature: float, k: int, p: float) -> str:
    if len(got) != len(logits):
        return f"one probability for each of the {len(logits)} ids is asked for, and 0 for a token that was cut"
    if any(math.isnan(x) for x in got):
        return "nan is no probability: was something divided by 0?"
    if min(got) < 0:
        return "these are logits; a softmax makes probabilities of them"
    want = _pipeline(logits, temperature, k, p, ("temperature", "top-k", "top-p"))
    if _close(sorted(got), sorted(want)):
        return "the numbers are right and stand in another order; give them in the order of the ids"
    if (temperature, k) == (1.0, 5) and sum(x > 0 for x in got) == sum(x > 0 for x in want) - 1:
        return "you dropped the token that crosses p"
    if (temperature, k) == (1.0, 5) and sum(x > 0 for x in got) > sum(x > 0 for x in want):
        return f"top-p keeps tokens only until their mass has reached {p}"
    if _close(got, _pipeline(logits, 1.0, k, p, ("top-k", "top-p"))) and p == 1:
        return "the temperature changes nothing here: divide the logits by it"
    if _close(got, _pipeline(logits, temperature, 5, p, ("temperature", "top-p"))) and p == 1:
        return f"top-k keeps only the {k} most probable tokens"
    for order in itertools.permutations(("temperature", "top-k", "top-p")):
        if _close(got, _pipeline(logits, temperature, k, p, order)):
            tail = " (or the mass was not shared again after top-k)" if order[-1] == "top-k" else ""
            return f"that is the order {', '.join(order)}{tail}"
    if _close(got, _pipeline(logits, 1 / temperature, k, p, ("temperature", "top-k", "top-p"))):
        return "logits are divided by the temperature, not multiplied"
    total = sum(got)
    if abs(total - 1) > 1e-6:
        return f"the probabilities add up to {total:.3f}; what is left must share all of the mass again"
    return "look at one step at a time"


@exercise("every dart lands on its token: a strip of width 0 is never hit, and the far end is safe")
def check_01_dart(answer: Callable[[list[float], float], Any]) -> None:
    """`answer(probs, dart)` returns the id whose part of the strip the dart in [0, 1) hits."""
    cases = [
        ([0.2, 0.3, 0.5], 0.1, 0),
        ([0.2, 0.3, 0.5], 0.31, 1),
        ([0.2, 0.3, 0.5], 0.9, 2),
        ([0.5, 0.1, 0.4], 0.55, 1),
        ([0.0, 0.5, 0.5], 0.0, 1),
        ([0.5, 0.0, 0.5], 0.5, 2),
    ]
    for probs, dart, want in cases:
        got = whole(attempt(answer, list(probs), dart))
        if got != want:
            raise Mistake(
                f"the dart {dart} on the strip {probs} hits token {want}, you say {got}: "
                + _why_dart(answer, got, probs, dart)
            )
    probs, dart = [0.1] * 10, 1 - 2**-53
    got = answer(list(probs), dart)
    if got is None or is_blank(got) or not 0 <= whole(got) < len(probs):
        raise Mistake(
            f"ten parts of 0.1 add up to {sum([0.1] * 10)} in floating point; the dart {dart} lies beyond, and your "
            f"code gives {got}: let the last token that can be drawn take what rounding leaves"
        )


def _hit(probs: Sequence[float], ids: Sequence[int], dart: float) -> int:
    """The id that a dart hits when the parts lie in this order."""
    ends = itertools.accumulate(probs[i] for i in ids)
    return next((i for i, end in zip(ids, ends, strict=True) if end > dart), ids[-1])


def _why_dart(answer: Callable[..., Any], got: int, probs: list[float], dart: float) -> str:
    ends = list(itertools.accumulate(probs))
    ids = list(range(len(probs)))
    probe = whole(attempt(answer, [0.3, 0.5, 0.2], 0.9))  # greedy says 1, from the right 0, sorted 2
    if 0 <= got < len(probs) and probs[got] == 0:
        return "that token has probability 0; the hit is the first end beyond the dart, not at it"
    if got == next((i for i, p in enumerate(probs) if p > dart), -1):
        return "compare the dart with the ends of the parts (running sums), not with the probabilities"
    if got == int(dart * len(probs)):
        return "that gives every token the same width, whatever its probability"
    if probe == 0 and got == _hit(probs, ids[::-1], dart):
        return "the parts lie in the order of the ids, and the dart counts from the left"
    if probe == 2 and got == _hit(probs, sorted(ids, key=lambda i: -probs[i]), dart):
        return "the parts lie in the order of the ids; you sorted them"
    if probe == 1 and got == max(ids, key=probs.__getitem__):
        return "that is the most probable token, whatever the dart says: greedy"
    return f"the parts end at {[round(e, 3) for e in ends]}"


@exercise("one pass for the prompt, then one token a pass at position len - 1, until the end token or the limit")
def check_01_loop(answer: Callable[..., Any]) -> None:
    """`answer(read, prompt, max_tokens, eos)` returns the new ids; `read(ids, first_position)` gives scores."""
    for prompt, max_tokens, eos in [
        ([3, 1, 4], 4, 99),
        ([3, 1, 4], 1, 99),
        ([2], 9, 9),
        ([5, 5], 3, 9),
        ([5, 9], 3, 9),
    ]:
        reader = _Reader()
        where = f"for prompt {prompt}, max_tokens {max_tokens} and end token {eos}: "
        want = _loop(prompt, max_tokens, eos)
        try:
            got = _ids(attempt(answer, reader, list(prompt), max_tokens, eos), keep_order=True)
        except Mistake as mistake:
            raise Mistake(where + reader.complaint if reader.complaint else str(mistake)) from mistake
        except NotAttempted:
            if not reader.calls:
                raise
            raise Mistake(where + f"the model was read {reader.calls} times, and nothing was returned") from None
        if reader.complaint or got != want or reader.calls != len(want):
            raise Mistake(where + (reader.complaint or _why_loop(got, want, eos, reader.calls, prompt)))


def _loop(prompt: Sequence[int], max_tokens: int, eos: int) -> list[int]:
    """The reference: greedy, with the reader's cache."""
    reader, ids, new = _Reader(), list(prompt), []
    scores = reader(ids, 0)
    while True:
        new.append(scores.index(max(scores)))
        if new[-1] == eos or len(new) == max_tokens:
            return new
        scores = reader([new[-1]], len(ids) + len(new) - 1)


def _why_loop(got: list[int], want: list[int], eos: int, calls: int, prompt: list[int]) -> str:
    shown = f"you write {got}, expected {want}: "
    if not got and prompt[-1] == eos:
        return shown + f"the prompt itself ends in the end token {eos}; look at new tokens only"
    if got == prompt + want:
        return shown + "return the new ids alone, without the prompt"
    if eos in got[:-1]:
        return shown + f"the loop goes on after the end token {eos}"
    if want[-1] == eos and got == want[:-1]:
        return shown + "the end token is missing; it was written too, and so it belongs to the ids"
    if got != want and got[: len(want)] == want[: len(got)]:
        return shown + f"max_tokens counts new tokens, and you wrote {len(got)}"
    if got == want and calls == len(want) + len(prompt) - 1 and len(prompt) > 1:
        return f"{calls} passes for {len(want)} tokens: feed the prompt in one pass, all {len(prompt)} tokens together"
    if got == want:
        return f"{calls} passes for {len(want)} tokens: a pass whose scores nobody uses is wasted"
    return shown + "take the id with the highest score at each step"


class _Reader:
    """A model of ten tokens with a cache: it remembers what it read, and notes the first wrong call."""

    def __init__(self) -> None:
        self.held: list[int] = []
        self.calls = 0
        self.complaint = ""

    def __repr__(self) -> str:
        return "read"

    def __call__(self, ids: Any, first_position: int) -> list[float]:
        self.calls += 1
        if isinstance(ids, int):
            self.complaint = self.complaint or f"call {self.calls} feeds {ids}; read takes a list of ids: [{ids}]"
            raise TypeError("not a list of ids")
        ids = _ids(ids, keep_order=True)
        if self.calls > 50:
            self.complaint = self.complaint or "50 passes and no end: the loop never stops"
            raise RuntimeError("too many passes")
        self.complaint = self.complaint or self._wrong(ids, first_position)
        self.held = [*self.held[:first_position], *ids]
        best = sum((place + 3) * token + place for place, token in enumerate(self.held)) % 10
        return [1.0 if i == best else 1 / (2 + i) for i in range(10)]

    def _wrong(self, ids: list[int], first: int) -> str:
        held = len(self.held)
        if not ids:
            return f"call {self.calls} feeds no token"
        if first == held:
            extra = self.calls > 1 and len(ids) > 1
            return f"call {self.calls} feeds {len(ids)} tokens; only one is new" if extra else ""
        if not held:
            return f"call 1 starts at position {first}; nothing is read yet, so the whole prompt goes in at position 0"
        if first == 0 and ids[:held] == self.held:
            return f"call {self.calls} feeds {len(ids)} tokens again; the cache already holds the first {held}"
        return (
            f"call {self.calls} feeds a token at position {first}; the cache holds {held} tokens, at positions 0 to "
            f"{held - 1}, so the next one stands at {held}, which is the length of the text with it minus 1"
        )


def _ids(values: Any, keep_order: bool = False) -> list[int]:
    """Token ids out of a list, a set, or a tensor."""
    ids = [whole(value) for value in listed(values, "a list of token ids")]
    return ids if keep_order else sorted(ids)


def _close(a: Sequence[float], b: Sequence[float]) -> bool:
    return len(a) == len(b) and all(abs(x - y) < 1e-6 for x, y in zip(a, b, strict=True))


def _round(values: Sequence[float]) -> list[float]:
    return [round(value, 3) for value in values]
