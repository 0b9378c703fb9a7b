"""Checks of chapter 0: `check_00_passes` (how many passes, how many tokens read) and `check_00_loop` (the loop itself).

Both run the reader's function on tiny cases; the loop gets a stand-in for the model that counts how often it is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from minipaged.exercises._base import Mistake, _short, attempt, exercise, listed, whole

_PASSES = ((4, 3, 9), (4, 9, 3), (10, 1, 5), (1, 1, 1), (1, 5, 5), (35, 20, 100))  # prompt, limit, end token's number


@exercise(
    "one pass for each new token, the end token too; with K and V kept each token is read once, the last one never"
)
def check_00_passes(answer: Any) -> None:
    """answer(prompt_tokens, limit, end_at) -> (passes, tokens read by all passes when K and V are kept)."""
    for prompt, limit, end_at in _PASSES:
        got = attempt(answer, prompt, limit, end_at)
        case = f"for a prompt of {prompt}, a limit of {limit} and the end token as new token {end_at}"
        wrong = f"{case} you return {_short(got)}; return (passes, tokens_read)"
        got = listed(got, "(passes, tokens_read)")
        if len(got) != 2:
            raise Mistake(wrong)
        _judge_passes(case, prompt, limit, end_at, *map(whole, got))


def _judge_passes(case: str, prompt: int, limit: int, end_at: int, passes: int, read: int) -> None:
    new = min(limit, end_at)
    case = f"{case} you say {passes} passes and {read} tokens read"
    if (passes, read) == (prompt + new - 1, new) != (read, passes):
        raise Mistake(f"{case}: these are the two numbers in each other's place; return (passes, tokens_read)")
    if passes != new:
        why = {
            max(limit, end_at): "the loop ends with the end token or at the limit, whichever comes first",
            prompt + new: "the tokens of the prompt are read in one pass, all together",
            new + 1: "the last new token is never fed back, so there is no pass after it",
            new - 1: "the pass over the prompt is one of them, and so is the pass that gives the end token",
        }.get(passes, "each pass gives one new token")
        raise Mistake(f"{case}, expected {new} passes: {why}")
    expected = prompt + new - 1
    if read != expected:
        why = {
            prompt + new: "the last new token is written and never read",
            new: "the first pass reads the whole prompt, not one token",
            prompt * new + new * (new - 1) // 2: "that many are read when nothing is kept",
            prompt * new: "the prompt is read once, by the first pass, and not by every pass",
            new - 1: "the first pass reads the prompt: count its tokens too",
        }.get(read, "the first pass reads the prompt, each later pass one token")
        raise Mistake(f"{case}, expected {expected} tokens: {why}")


class _Script:
    """Stands in for the model: gives tokens from a list, and remembers what it was asked."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens, self.asked = tokens, []

    def __repr__(self) -> str:
        return "next_token"

    def __call__(self, ids: Any) -> int:
        self.asked.append(list(ids))
        return self.tokens[min(len(self.asked), len(self.tokens)) - 1]


_PROMPT = [1, 40, 2, 1]  # holds an end id itself, as a chat's prompt does
_LOOPS = (  # prompt, what the model says, end ids, limit, what is right
    (_PROMPT, [7, 8, 9, 6, 6], {2}, 3, [7, 8, 9]),
    (_PROMPT, [7, 2, 6, 6, 6], {2}, 4, [7, 2]),
    (_PROMPT, [7, 5, 6, 6, 6], {2, 5}, 4, [7, 5]),
    (_PROMPT, [7, 8, 2, 6, 6], {2}, 3, [7, 8, 2]),
    (_PROMPT, [2, 6, 6], {2}, 1, [2]),
    (_PROMPT, [7, 6], {2}, 0, []),
    ([1, 40, 2], [7, 8, 2, 6, 6], {2}, 4, [7, 8, 2]),  # the prompt ends in an end id, as a chat between two turns does
)


@exercise("as many passes as tokens, the end token kept, and nothing asked after the last one")
def check_00_loop(answer: Any) -> None:
    """answer(next_token, prompt_ids, end_ids, max_new_tokens) -> the new token ids, as a list."""
    if not callable(answer):
        raise Mistake(f"expected a function, got {type(answer).__name__}")
    for given, says, end_ids, limit, want in _LOOPS:
        model, prompt = _Script(says), list(given)
        got = attempt(_bounded(answer, model, limit), model, prompt, set(end_ids), limit)
        if want and isinstance(got, list) and not (got or model.asked) and _counts_the_prompt(answer):
            raise Mistake(f"limit {limit}, prompt {prompt}: no pass was run; the limit counts new tokens only")
        case = f"limit {limit}, end ids {sorted(end_ids)}, model says {says}"
        _judge_loop(given, got, want, model.asked, case)
        if prompt != given:
            raise Mistake(
                f"your loop changed the caller's prompt from {given} to {prompt}; work on a copy: list(prompt_ids)"
            )


def _counts_the_prompt(answer: Callable[..., Any]) -> bool:
    """Does the reader's loop stay away from the model too when the prompt holds no end id?"""
    model = _Script([7, 8, 9])
    attempt(_bounded(answer, model, 3), model, list(_PROMPT), {99}, 3)
    return not model.asked


def _bounded(answer: Callable[..., Any], model: _Script, limit: int) -> Callable[..., Any]:
    """The reader's loop, stopped with a sentence when it asks the model without end."""

    def run(_: Any, *rest: Any) -> Any:
        def next_token(ids: Any) -> int:
            if len(model.asked) > limit + 20:
                raise RuntimeError(f"more than {limit + 20} passes with a limit of {limit}: the loop does not stop")
            return model(ids)

        got = answer(next_token, *rest)
        return listed(got) if hasattr(got, "__next__") else got  # a generator asks the model only now

    return run


def _judge_loop(prompt: list[int], got: Any, want: list[int], asked: list[list[int]], case: str) -> None:
    got = [whole(token) for token in listed(got, "a list of the new ids")]
    if got == prompt + want:
        raise Mistake(f"{case}: you return the prompt as well, {got}; expected only the new ids, {want}")
    if want and not got and not asked:
        where = "ends in" if prompt[-1] == 2 else "holds"
        raise Mistake(
            f"{case}: no pass was run; the prompt itself {where} an end id ({prompt}): look at new tokens only"
        )
    if want and got == want[:-1] and len(asked) >= len(want):
        raise Mistake(
            f"{case}: you return {got} after {len(asked)} passes, expected {want}: the last pick was paid for and lost"
        )
    if len(got) > len(want) and got[: len(want)] == want:
        raise Mistake(f"{case}: you return {got}, expected {want}: the loop goes on after it should stop")
    if got != want:
        raise Mistake(f"{case}: you return {got}, expected {want}")
    fed = [prompt + want[:n] for n in range(len(asked))]
    if asked != fed and len(asked) == len(want):
        number = next(n for n, ids in enumerate(asked) if ids != fed[n])
        raise Mistake(f"{case}: pass {number + 1} was given {asked[number]}, expected all ids so far, {fed[number]}")
    if len(asked) != len(want):
        raise Mistake(f"{case}: {len(asked)} passes for {len(want)} new tokens; the last pass is thrown away")
