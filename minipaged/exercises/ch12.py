"""Checks for chapter 12: keep or reject by hand, the residual, the biased rule, and what is rolled back."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from minipaged.block_manager import BlockManager
from minipaged.exercises._base import Mistake, NotAttempted, _is_stub, attempt, exercise, listed, whole
from minipaged.exercises.words import say
from minipaged.speculative import acceptance, residual, verify

# --- by hand -------------------------------------------------------------------------------------------------------

ROUNDS = {  # name -> for each guess (p of it, q of it, the uniform draw)
    "A": ((0.30, 0.20, 0.95), (0.10, 0.40, 0.30), (0.50, 0.50, 0.10)),
    "B": ((0.05, 0.50, 0.05), (0.40, 0.10, 0.99), (0.20, 0.25, 0.79)),
    "C": ((0.00, 0.30, 0.00), (0.60, 0.60, 0.50), (0.70, 0.10, 0.20)),
}


def by_hand() -> dict[str, int]:
    """The right answer, by the finished rule; every other token's probability stands in a second column."""
    out = {}
    for name, guesses in ROUNDS.items():
        p = torch.tensor([[p, 1 - p] for p, *_ in guesses] + [[0.5, 0.5]], dtype=torch.float64)
        q = torch.tensor([[q, 1 - q] for _, q, _ in guesses], dtype=torch.float64)
        kept, _ = verify(p, q, [0] * len(guesses), [u for *_, u in guesses])
        out |= {f"{name}: guesses kept": kept, f"{name}: tokens written": kept + 1}
    return out


@exercise("up to the first rejection, and always one token of the target's own")
def check_12_by_hand(answer: dict[str, int]) -> None:
    """`answer` maps "A: guesses kept", "A: tokens written" and so on to numbers."""
    right = by_hand()
    if not isinstance(answer, dict) or set(answer) != set(right):
        raise Mistake(f"give a dictionary with the keys: {'; '.join(right)}")
    if any(value is ... for value in answer.values()):
        raise NotAttempted
    for name, guesses in ROUNDS.items():
        kept, written = (whole(answer[f"{name}: {what}"]) for what in ("guesses kept", "tokens written"))
        _compare_kept(name, guesses, kept, right[f"{name}: guesses kept"])
        if written != kept + 1:
            raise Mistake(
                f"round {name}: {kept} kept, and you say {written} written. Every pass adds one token of the target's "
                "own: from the residual after a rejection, from the last row of p when all are kept"
            )


def _compare_kept(name: str, guesses: Sequence[tuple[float, float, float]], kept: int, right: int) -> None:
    if kept == right:
        return
    told = [f"draw {u:.2f} against min(1, {p:.2f} / {q:.2f}) = {min(1, p / q):.2f}" for p, q, u in guesses]
    start = f"round {name}: {right} kept, you say {kept}"
    if kept == sum(u < min(1, p / q) for p, q, u in guesses):
        raise Mistake(f"{start}. What stands behind a rejected guess continues a text that was not written")
    if kept == len(list(itertools.takewhile(lambda g: g[0] >= g[1], guesses))):
        raise Mistake(f"{start}. A guess with p below q is still kept sometimes: {told[min(kept, len(told) - 1)]}")
    where = min(kept, right)
    verdict = "is kept, the draw is smaller" if right > kept else "is rejected, the draw is not smaller"
    raise Mistake(f"{start}. Guess {where + 1} {verdict}: {told[where]}")


# --- the residual --------------------------------------------------------------------------------------------------

_PAIRS = (
    ([0.5, 0.3, 0.2], [0.2, 0.3, 0.5]),
    ([0.6, 0.4], [0.9, 0.1]),
    ([0.1, 0.2, 0.3, 0.4], [0.25, 0.25, 0.25, 0.25]),
    ([0.0, 0.7, 0.3], [1.0, 0.0, 0.0]),
)


@exercise("what is missing up to p, renormalised: the rejected guess itself never comes back")
def check_12_residual(answer: Callable[..., Any]) -> None:
    """`answer(p, q)` -> the distribution to draw from after a rejection, as long as p."""
    for p, q in _PAIRS:
        got = [_real(x) for x in listed(attempt(answer, list(p), list(q)), "a list of probabilities")]
        want = residual(torch.tensor(p, dtype=torch.float64), torch.tensor(q, dtype=torch.float64)).tolist()
        if len(got) == len(want) and all(abs(a - b) < 1e-6 for a, b in zip(got, want, strict=True)):
            continue
        _say_residual(p, q, got, want)


def _real(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise Mistake(f"{value!r:.40} is no probability; return a list of numbers") from None


def _say_residual(p: list[float], q: list[float], got: list[float], want: list[float]) -> None:
    told = f"for p = {p} and q = {q} you give {_round(got)}, expected {_round(want)}"
    if len(got) != len(want):
        raise Mistake(f"{told}: one number for each token")
    if min(got) < -1e-9:
        raise Mistake(f"{told}: a probability is never negative. Where q is larger, nothing is missing: max(p - q, 0)")
    if _near(got, p):
        raise Mistake(f"{told}: that is p. What the kept guesses have brought already must not be drawn again")
    if _near(got, [max(b - a, 0.0) for a, b in zip(p, q, strict=True)], scaled=True):
        raise Mistake(f"{told}: that is what q has too much, and it has just been rejected")
    stays = [min(a, b) for a, b in zip(p, q, strict=True)]
    if _near(got, stays) or _near(got, stays, scaled=True):
        raise Mistake(f"{told}: that is what stays after keeping; the residual is what is missing up to p")
    if abs(sum(got) - 1) > 1e-6 and _near(got, [max(a - b, 0.0) for a, b in zip(p, q, strict=True)]):
        raise Mistake(f"{told}: the right parts, but they sum to {sum(got):.2f}; divide by their sum")
    if _near(got, [abs(a - b) for a, b in zip(p, q, strict=True)], scaled=True):
        raise Mistake(f"{told}: only what is missing counts, and where q is larger nothing is; max, not abs")
    raise Mistake(f"{told}: max(p - q, 0) for every token, then divided by the sum")


def _round(values: Sequence[float]) -> list[float]:
    return [round(v, 3) for v in values]


def _near(got: Sequence[float], values: Sequence[float], scaled: bool = False) -> bool:
    total = sum(values) if scaled else 1.0
    return total > 0 and all(abs(a - b / total) < 1e-6 for a, b in zip(got, values, strict=True))


# --- the biased rule -----------------------------------------------------------------------------------------------

_CELLS = 20  # the uniform number's middle values; every ratio below is a whole number of cells
RULE_CASES = (([0.5, 0.3, 0.2], [0.2, 0.3, 0.5]), ([0.1, 0.9], [0.4, 0.6]), ([0.0, 0.6, 0.4], [0.5, 0.4, 0.1]))


class _MoreDraws(Exception):
    """The reader's code draws once more than the script says."""

    def __init__(self, weights: list[float]) -> None:
        self.weights = weights


def outcomes(rule: Callable[..., Any], p: list[float], q: list[float]) -> Iterator[tuple[int, Any, float]]:
    """(guess, token written, probability) for every guess, every uniform number and every draw that a rule makes."""
    for guess, chance in enumerate(q):
        for cell in range(_CELLS if chance else 0):
            for token, part in _branches(rule, p, q, guess, (cell + 0.5) / _CELLS, ()):
                yield guess, token, chance / _CELLS * part


def _branches(
    rule: Callable[..., Any], p: list[float], q: list[float], guess: int, uniform: float, script: tuple[int, ...]
) -> Iterator[tuple[Any, float]]:
    """Run the rule again and again, each time with one more draw decided, until every way is walked."""
    coming = iter(script)

    def draw(weights: Any) -> int:
        for token in coming:
            return token
        raise _MoreDraws([_real(w) for w in listed(weights, "a list of weights")])

    try:
        token = rule(list(p), list(q), guess, uniform, draw)
    except _MoreDraws as more:
        if len(script) >= 4:
            raise Mistake("your rule draws five times and more; one draw is enough") from None
        total = sum(more.weights)
        if min(more.weights) < 0 or total <= 0 or len(more.weights) != len(p):
            told = f"for p = {p}, q = {q} and guess {guess} you draw from {_round(more.weights)}"
            raise Mistake(f"{told}: weights must be 0 or more, one for each token, and not all 0") from None
        for choice, weight in enumerate(more.weights):
            if weight > 0:
                for token, part in _branches(rule, p, q, guess, uniform, (*script, choice)):
                    yield token, part * weight / total
        return
    yield token, 1.0


def _walked(answer: Callable[..., Any], p: list[float], q: list[float]) -> list[tuple[int, Any, float]]:
    def stub_aware(*args: Any) -> Any:
        try:
            value = answer(*args)
        except (_MoreDraws, Mistake, NotImplementedError):
            raise
        except Exception as error:
            raise Mistake(f"your code raised {type(error).__name__}: {error}") from error
        if value is None and not _is_stub(answer):
            raise Mistake(say("base.nothing"))
        if value is ... or value is None:
            raise NotAttempted
        return value

    if not callable(answer):
        raise Mistake(f"expected a function, got {type(answer).__name__}")
    return attempt(lambda: list(outcomes(stub_aware, p, q)))


@exercise("every path added up gives p, and as many guesses are kept as can be: the sum of min(p, q)")
def check_12_biased_rule(answer: Callable[..., int]) -> None:
    """`answer(p, q, guess, uniform, draw)` -> the token to write."""
    for p, q in RULE_CASES:
        got, same = [0.0] * len(p), 0.0
        for guess, token, part in _outcomes_or_mistake(answer, p, q):
            token = whole(token)
            if not 0 <= token < len(p):
                raise Mistake(f"for p = {p} and q = {q} you write token {token}; there are 0 to {len(p) - 1}")
            got[token] += part
            same += part * (token == guess)
        _judge(p, q, got, same)


def _outcomes_or_mistake(answer: Callable[..., Any], p: list[float], q: list[float]) -> list[tuple[int, Any, float]]:
    try:
        return _walked(answer, p, q)
    except Mistake as mistake:
        inner = mistake.__cause__
        raise (inner if isinstance(inner, (Mistake, NotAttempted)) else mistake) from None


def _judge(p: list[float], q: list[float], got: list[float], same: float) -> None:
    """Say what is wrong with a rule that writes `got` and keeps a guess with probability `same`."""
    wide_p, wide_q = torch.tensor(p, dtype=torch.float64), torch.tensor(q, dtype=torch.float64)
    kept = acceptance(wide_p, wide_q) * wide_q
    told = f"with p = {p} and q = {q}, all paths added up write {_round(got)}"
    if all(abs(a - b) < 1e-9 for a, b in zip(got, p, strict=True)):
        most = float(kept.sum())
        if same < most - 1e-9:
            raise Mistake(
                f"{told}: that is p, but a guess is kept with probability {same:.2f} only, and {most:.2f} is "
                "possible; keep it with probability min(1, p/q)"
            )
        return
    biased = wide_q * wide_p + (1 - (wide_q * wide_p).sum()) * wide_p
    then_p = kept + (1 - kept.sum()) * wide_p
    if same > 1 - 1e-9:
        raise Mistake(f"{told}: that is q. Every guess stays. Is your ratio the right way round? It is p/q")
    if _near(got, biased.tolist()):
        raise Mistake(f"{told}, not p: tokens that the draft likes come too often. Equality is not the test")
    if _near(got, then_p.tolist()):
        raise Mistake(
            f"{told}, not p: the ratio is right, but after a rejection you draw from p, not from the residual"
        )
    raise Mistake(
        f"{told}, and p was wanted. Compare uniform with min(1, p/q) of the guess (p/q, not q/p); else draw"
        " the residual"
    )


# --- what is rolled back -------------------------------------------------------------------------------------------


def rolled_back(num_tokens: int, block_size: int, drafted: int, kept: int) -> tuple[int, int]:
    """The right answer, by the real manager: (slots, blocks) that go back to the pool."""
    manager = BlockManager(64, block_size, watermark=0)
    manager.allocate(0, range(num_tokens - 1))  # the newest token is chosen and not computed yet
    manager.append_slots(0, 1 + drafted)
    blocks, slots = manager.num_used_blocks, manager.num_tokens(0)
    manager.truncate(0, num_tokens + kept)
    return slots - manager.num_tokens(0), blocks - manager.num_used_blocks


@exercise("the chosen token and the kept guesses stay; a block goes back only when nothing in it stays")
def check_12_rollback(answer: Callable[..., tuple[int, int]]) -> None:
    """`answer(num_tokens, block_size, drafted, kept)` -> (slots given back, blocks given back)."""
    cases = [(15, 4, 4, 1), (14, 4, 4, 0), (9, 1, 3, 1), (16, 16, 4, 4), (16, 16, 4, 0), (17, 16, 8, 3), (2, 2, 5, 2)]
    given = [_slots_and_blocks(attempt(answer, *case)) for case in cases]
    for case, (slots, blocks) in zip(cases, given, strict=True):
        num_tokens, size, drafted, kept = case
        want = rolled_back(*case)
        if (slots, blocks) == want:
            continue
        told = f"{num_tokens} tokens, blocks of {size}, {drafted} guesses, {kept} kept: "
        told += f"slots {want[0]}, blocks {want[1]}"
        if slots != want[0]:
            raise Mistake(f"{told}; you say slots {slots}. {_why_slots(slots - want[0])}")
        raise Mistake(f"{told}; you say blocks {blocks}. {_why_blocks(cases, [b for _, b in given])}")


def _slots_and_blocks(value: Any) -> tuple[int, int]:
    got = listed(value, "two numbers: slots, blocks")
    if len(got) != 2:
        raise Mistake(f"return two numbers, slots and blocks; not {got!r:.60}")
    return whole(got[0]), whole(got[1])


def _why_slots(more: int) -> str:
    if more == 1:
        return "The newest token of the text was computed in this pass: it stays"
    if more == -1:
        return "The token that the target writes itself is not in the cache yet: it keeps no slot"
    return "Guesses that are not kept go back, all others stay"


def _why_blocks(cases: Sequence[tuple[int, int, int, int]], given: list[int]) -> str:
    """What was counted, judged by all cases together: one case alone often fits several mistakes."""
    known = {
        "Rejected slots may lie in a block that something else still fills": lambda n, b, d, k: -(-(d - k) // b),
        "Count the blocks before and after; the slots need not fill them": lambda n, b, d, k: (d - k) // b,
        "Count the newest token as well: the pass computes it": lambda n, b, d, k: (
            -(-(n - 1 + d) // b) - -(-(n - 1 + k) // b)
        ),
        "The token that the target writes itself is not in the cache yet": lambda n, b, d, k: (
            -(-(n + d) // b) - -(-(n + k + 1) // b)
        ),
    }
    for why, counted in known.items():
        if given == [counted(*case) for case in cases]:
            return why
    return "Blocks for all that the pass wrote, less blocks for what stays"
