"""What every check shares: the result, the "not attempted" rule, and the promise never to raise.

A check reads like this:

    @exercise("the kept words always hold at least the mass you asked for")
    def check_01_top_p(answer):
        got = attempt(answer, probs, 0.9)            # runs the reader's code; its exceptions become a message
        if got != want:
            raise Mistake(f"for probs {probs} and p = 0.9 you keep {got}, expected {want}: ...")
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Status = Literal["not attempted", "wrong", "right"]


@dataclass(frozen=True)
class CheckResult:
    """What a check found: a status and one sentence about it."""

    status: Status
    message: str

    def __repr__(self) -> str:
        return f"{ {'not attempted': '…', 'wrong': '✗', 'right': '✓'}[self.status] } {self.status}: {self.message}"


class Mistake(Exception):
    """Raised inside a check: the answer is wrong, and this sentence says why, with the smallest failing case."""


class NotAttempted(Exception):
    """Raised inside a check: the reader has not written anything yet."""


def is_blank(answer: Any) -> bool:
    """True for the stub's `...`, and for None."""
    return answer is ... or answer is None


def attempt(answer: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call the reader's function; a stub becomes NotAttempted, an exception a Mistake that names the input."""
    if not callable(answer):
        raise Mistake(f"expected a function, got {type(answer).__name__}")
    try:
        value = answer(*args, **kwargs)
    except NotImplementedError:
        raise NotAttempted from None
    except Exception as error:
        shown = ", ".join([*map(_short, args), *(f"{k}={_short(v)}" for k, v in kwargs.items())])
        raise Mistake(f"called with ({shown}), your code raised {type(error).__name__}: {error}") from error
    if is_blank(value):
        raise NotAttempted
    return value


def exercise(right: str) -> Callable[[Callable[[Any], None]], Callable[[Any], CheckResult]]:
    """Turn a function that raises `Mistake` into a check that returns a CheckResult and never raises."""

    def wrap(check: Callable[[Any], None]) -> Callable[[Any], CheckResult]:
        @functools.wraps(check)
        def checked(answer: Any) -> CheckResult:
            if is_blank(answer):
                return CheckResult("not attempted", "replace the ... in the cell above and run it again")
            try:
                check(answer)
            except NotAttempted:
                return CheckResult("not attempted", "replace the ... in the cell above and run it again")
            except Mistake as mistake:
                return CheckResult("wrong", str(mistake))
            except Exception as error:  # e.g. a list where a number was asked for: still the reader's, still a sentence
                return CheckResult("wrong", f"the answer cannot be read: {type(error).__name__}: {error}")
            return CheckResult("right", right)

        return checked

    return wrap


def guess(mine: Any, actual: Any, unit: str = "") -> None:
    """Print a prediction beside what was computed; a blank (`...`) is fine and says so.

    Args:
        mine: the reader's guess, or `...`.
        actual: the value the cell computed.
        unit: a word after the number, such as "passes".
    """
    said = "no guess yet" if is_blank(mine) else f"your guess: {mine} {unit}".rstrip()
    verdict = "" if is_blank(mine) else (" (right)" if _same(mine, actual) else " (look again)")
    print(f"{said}{verdict} | computed: {actual} {unit}".rstrip())


def _same(mine: Any, actual: Any) -> bool:
    try:
        return abs(float(mine) - float(actual)) <= 1e-6 * max(1.0, abs(float(actual)))
    except (TypeError, ValueError):
        return str(mine).strip().lower() == str(actual).strip().lower()


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
