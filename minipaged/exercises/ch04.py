"""Checks of chapter 4: the cached decode loop, recomputation counted, a preallocation chosen, a position repaired.

The "model" here is a few lines of arithmetic that keeps its own cache and writes down what it is fed. Left out: real
models, which the notebook compares by their logits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minipaged.exercises._base import Mistake, attempt, exercise, listed, whole

_END = 0


class _Toy:
    """A model with a cache inside: `toy([7, 3])` feeds two tokens and returns the next one."""

    def __init__(self) -> None:
        self.fed: list[int] = []
        self.calls: list[list[int]] = []

    def __repr__(self) -> str:
        return "feed"

    def __call__(self, tokens: Any) -> int:
        if not hasattr(tokens, "__iter__"):
            raise TypeError(f"feed takes a list of token ids: feed([{tokens}])")
        new = [int(token) for token in tokens]
        if not new:
            raise ValueError("a pass needs at least one token")
        if len(self.calls) == 100:
            raise RuntimeError("100 passes and no end: stop at max_tokens")
        self.calls.append(new)
        self.fed += new
        return sum((i + 3) * token for i, token in enumerate(self.fed, start=1)) % 11


def _loop(feed: _Toy, prompt: list[int], max_tokens: int) -> list[int]:
    output, new = [], prompt
    while len(output) < max_tokens:
        token = feed(new)
        output.append(token)
        if token == _END:
            break
        new = [token]
    return output


@exercise(
    "the prompt goes in once, then one token a pass; the last token is never fed, and the end token stops the loop"
)
def check_04_decode_loop(answer: Callable[..., list[int]]) -> None:
    """`answer(feed, prompt, max_tokens)`: new token ids; `feed(tokens)` returns the next token, 0 is the end."""
    cases = ([5, 8], 4), ([5, 8], 1), ([1, 2, 3, 4, 5], 12), ([4], 12), ([9, 9, 2], 12), ([5, 0], 4), ([5, 8], 0)
    for prompt, max_tokens in cases:
        mine, toy = _Toy(), _Toy()
        want = _loop(toy, prompt, max_tokens)
        got = attempt(answer, mine, list(prompt), max_tokens)
        if hasattr(got, "__next__"):  # a generator: only now it feeds
            got = attempt(listed, got)
        case = f"for the prompt {prompt} and max_tokens={max_tokens}"
        _check_calls(mine.calls, toy.calls, prompt, case)
        got = [whole(token) for token in listed(got, "a list of token ids")]
        if got != want and got == prompt + want:
            raise Mistake(f"{case} you return the prompt as well: {got}; expected the new tokens only, {want}")
        if want and got == want[:-1] and want[-1] == _END:
            raise Mistake(f"{case} you return {got}, expected {want}: the end token {_END} is returned too")
        if got != want:
            raise Mistake(f"{case} you return {got}, expected {want}")


def _check_calls(mine: list[list[int]], right: list[list[int]], prompt: list[int], case: str) -> None:
    if mine == right:
        return
    if not right:
        raise Mistake(f"{case} no token is asked for, so no pass is needed; you made {len(mine)}")
    if not mine and prompt[-1] == _END:
        raise Mistake(
            f"{case} nothing was fed: the prompt itself ends in the end token {_END}; look at new tokens only"
        )
    if not mine:
        raise Mistake(f"{case} nothing was fed to the model")
    if mine == right[: len(mine)]:
        why = "max_tokens counts the new tokens, not the prompt" if len(mine) <= 2 else "the loop ends too early"
        raise Mistake(f"{case} you made {len(mine)} passes, expected {len(right)}: {why}")
    if len(prompt) > 1 and mine[0] == prompt[:1]:
        raise Mistake(f"{case} you feed the prompt token by token: prefill takes all {len(prompt)} tokens in one pass")
    if mine[0] != prompt:
        raise Mistake(f"{case} the first pass got {mine[0]}, expected the prompt")
    if len(mine) > 1 and len(mine[1]) > 1:
        raise Mistake(
            f"{case} the second pass got {mine[1]}: the model keeps the earlier tokens in its cache, so feed only the "
            "new one, or they are counted twice"
        )
    if len(mine) > 1 and mine[1] == prompt[-1:] != [*right, []][1]:
        raise Mistake(
            f"{case} the second pass got {mine[1]}, the end of the prompt; it is in the cache already, and the first "
            "pass gave the first new token"
        )
    if mine[: len(right)] == right and _ends(mine, right):
        raise Mistake(f"{case} you go on after the end token {_END}: {len(mine)} passes, expected {len(right)}")
    if mine[: len(right)] == right:
        raise Mistake(
            f"{case} you made {len(mine)} passes, expected {len(right)}: the last token is returned, not fed; nobody "
            "reads its K and V"
        )
    raise Mistake(f"{case} you fed {mine}, expected {right}")


def _ends(mine: list[list[int]], right: list[list[int]]) -> bool:
    """True when the token that follows the right calls is the end token."""
    toy, token = _Toy(), -1
    for tokens in right:
        token = toy(tokens)
    return token == _END


@exercise("without a cache the count grows with the square of the length; with one, each token goes through once")
def check_04_token_passes(answer: Callable[..., int]) -> None:
    """`answer(prompt, output, cached)`: how many token rows go through the layers, over the whole generation."""
    for prompt, output in ((1, 1), (3, 2), (20, 10), (100, 100)):
        with_cache = prompt + output - 1
        without = sum(prompt + step for step in range(output))
        for cached, want in ((True, with_cache), (False, without)):
            got = whole(attempt(answer, prompt, output, cached))
            if got != want:
                case = f"{prompt} prompt tokens, {output} new ones, cached={cached}: you count {got}, expected {want}"
                raise Mistake(f"{case}; {_why_passes(got, prompt, output, cached)}")


def _why_passes(got: int, prompt: int, output: int, cached: bool) -> str:
    without = sum(prompt + step for step in range(output))
    if got == output:
        return f"this is the number of passes; count the tokens that go through in each: {prompt} in the first"
    if cached and got == prompt + output:
        return "the last token is never fed, so one less"
    if got == (without if cached else prompt + output - 1):
        return "these are the two cases in each other's place"
    if not cached and got == prompt * output:
        return "the sequence grows: the second pass has one token more than the first"
    if not cached and got == sum(prompt + step for step in range(1, output + 1)):
        return "the first pass has the prompt only; the last token is never fed"
    if cached:
        return f"one pass over {prompt}, then {output - 1} passes over 1"
    return f"{output} passes: the first over {prompt}, the last over {prompt + output - 1}"


_REQUESTS = [(30, 10), (12, 50), (5, 5), (40, 20)]


@exercise("the longest request decides the size, and what it leaves empty in the others is the price")
def check_04_preallocation(answer: Callable[..., tuple[int, float]]) -> None:
    """`answer(requests)`: (smallest max_len for all [(prompt, output)], share of reserved slots that stay empty)."""
    for requests in ([(3, 2)], [(5, 2), (2, 1)], _REQUESTS):
        lengths = [prompt + output - 1 for prompt, output in requests]
        longest, used = max(lengths), sum(lengths)
        empty = 1 - used / (longest * len(requests))
        got = attempt(answer, list(requests))
        got = listed(got, "two numbers, (max_len, share of empty slots)")
        if len(got) != 2:
            raise Mistake(f"expected two numbers, (max_len, share of empty slots), got {got!r}")
        if isinstance(got[1], (str, bytes)) or not hasattr(got[1], "__float__"):
            raise Mistake(f"the share is {got[1]!r}; give a number from 0 to 1")
        if 0 <= float(got[0]) < 1 <= float(got[1]):
            raise Mistake(f"you return {got}: the number of slots comes first, (max_len, share of empty slots)")
        max_len, share = whole(got[0]), float(got[1])
        case = f"for the requests {requests}"
        if max_len != longest:
            raise Mistake(f"{case} you choose {max_len} slots, expected {longest}; {_why_slots(max_len, requests)}")
        if not abs(share - empty) <= 1e-6:  # NaN is wrong too
            raise Mistake(
                f"{case} the share is {share:.4g}, expected {empty:.4g}; {_why_share(share, longest, lengths)}"
            )


def _why_slots(got: float, requests: list[tuple[int, int]]) -> str:
    lengths = [prompt + output - 1 for prompt, output in requests]
    if got == sum(lengths):
        return "each request has a row of its own: the longest one decides, not the sum"
    if got == max(lengths) + 1:
        return "the last token is never fed and needs no slot"
    if got == max(p for p, _ in requests) + max(o for _, o in requests) - 1:
        return "the longest prompt and the longest output need not belong to the same request"
    if got < max(lengths):
        return f"the longest request writes {max(lengths)} tokens and would not fit"
    return f"the longest request writes {max(lengths)} tokens: fewer slots are enough"


def _why_share(got: float, longest: int, lengths: list[int]) -> str:
    used, reserved = sum(lengths), longest * len(lengths)
    if abs(got - 100 * (1 - used / reserved)) < 1e-6:
        return "this is in per cent; a share is a number from 0 to 1"
    if abs(got - used / reserved) < 1e-6:
        return "this is the share that is used"
    if abs(got - (reserved - used) / used) < 1e-6:
        return "divide by the slots that are reserved, not by those that are used"
    if abs(got - (reserved - used)) < 1e-6:
        return f"this is a number of slots; divide it by the {reserved} reserved ones"
    if abs(got - (1 - (used + len(lengths)) / reserved)) < 1e-6:
        return "the last token is never fed and takes no slot: a request writes one token less than prompt + output"
    if abs(got - (1 - used / reserved)) < 0.006:
        return "give the share as it is, not rounded"
    return f"{used} of {reserved} reserved slots are used"


@exercise("a token's position is the number of tokens before it, for one new token and for a chunk")
def check_04_positions(answer: Callable[..., list[int]]) -> None:
    """`answer(num_tokens, new)`: positions of the last `new` of `num_tokens` tokens, the new ones included."""
    for num_tokens, new in ((1, 1), (5, 1), (6, 6), (20, 16)):
        got = [whole(position) for position in listed(attempt(answer, num_tokens, new), "a list of positions")]
        want = list(range(num_tokens - new, num_tokens))
        if got == want:
            continue
        case = f"{num_tokens} tokens, the last {new} of them new: you give {_few(got)}, expected {_few(want)}"
        if got == list(range(num_tokens, num_tokens + new)):
            raise Mistake(
                f"{case}; num_tokens counts the new tokens too, so this starts {new} too high: the bug is there"
            )
        if got == list(range(num_tokens - 1, num_tokens - 1 + new)):
            raise Mistake(f"{case}; this is right for one new token only: a chunk starts earlier")
        if got == list(range(new)):
            raise Mistake(f"{case}; this forgets the tokens in the cache, as if every pass were the first")
        if got == want[::-1]:
            raise Mistake(f"{case}; the numbers are right and in reverse order")
        if len(got) != new:
            raise Mistake(f"{case}; there must be one position for each new token")
        if len({*got}) == 1 and new > 1:
            raise Mistake(f"{case}; every token has its own position")
        raise Mistake(f"{case}; count how many tokens stand before each new one")


def _few(numbers: list[int]) -> str:
    return str(numbers) if len(numbers) <= 6 else f"[{numbers[0]}, {numbers[1]}, ..., {numbers[-1]}]"
