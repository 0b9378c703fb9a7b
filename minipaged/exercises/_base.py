"""What every check shares: the result, the "not attempted" rule, and the promise never to raise.

A check reads like this:

    @exercise("the kept words always hold at least the mass you asked for")
    def check_01_top_p(answer):
        got = attempt(answer, probs, 0.9)            # runs the reader's code; its exceptions become a message
        if got != want:
            raise Mistake(f"for probs {probs} and p = 0.9 you keep {got}, expected {want}: ...")
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import numbers
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from minipaged.exercises.words import WORDS, say
from minipaged.language import singular

TIME_LIMIT = 10.0  # seconds that one call of a reader's function may take; right ones take milliseconds

Status = Literal["not attempted", "wrong", "right"]


@dataclass(frozen=True)
class CheckResult:
    """What a check found: a status and one sentence about it."""

    status: Status
    message: str

    def __repr__(self) -> str:
        sign = {"not attempted": "…", "wrong": "✗", "right": "✓"}[self.status]
        return say("base.result", sign=sign, status=say(f"base.status.{self.status}"), message=self.message)


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
        raise Mistake(say("base.function", kind=type(answer).__name__))
    try:
        with _no_endless_loop():
            value = answer(*args, **kwargs)
    except NotImplementedError:
        raise NotAttempted from None
    except (Exception, SystemExit) as error:
        shown = ", ".join([*map(_short, args), *(f"{k}={_short(v)}" for k, v in kwargs.items())])
        raise Mistake(say("base.raised", shown=shown, kind=type(error).__name__, error=error)) from error
    if value is None and not _is_stub(answer):
        raise Mistake(say("base.nothing"))
    if is_blank(value):
        raise NotAttempted
    return value


def _stub() -> None: ...


def _is_stub(answer: Callable[..., Any]) -> bool:
    """True for a function whose body is still `...`, as it came with the notebook."""
    code = getattr(answer, "__code__", None)
    return code is not None and code.co_code == _stub.__code__.co_code


@contextlib.contextmanager
def _no_endless_loop() -> Iterator[None]:
    """Stops Python code that does not end by itself. A debugger keeps its own trace: then there is no limit."""
    if sys.gettrace() is not None:
        yield
        return
    end = time.monotonic() + TIME_LIMIT

    def trace(_frame: Any, _event: str, _arg: Any) -> Any:  # called at every line
        if time.monotonic() > end:
            raise TimeoutError(say("base.endless", seconds=TIME_LIMIT))
        return trace

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(None)


def listed(value: Any, asked: str = "") -> list[Any]:
    """What a reader returned as a list, from a tuple, a set, a generator, a numpy array or a tensor as well."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    try:
        if isinstance(value, (str, bytes, dict)):
            raise TypeError
        return list(itertools.islice(value, 100_000))  # a generator need not end
    except TypeError:
        raise Mistake(say("base.not_listed", value=_short(value), asked=asked or say("base.list"))) from None


def whole(value: Any) -> int:
    """What a reader returned as an int: 3, 3.0, numpy's 3 and torch's are the same; 2.5, NaN, True and "3" are not."""
    try:
        number = value.item() if hasattr(value, "item") else value
        if not isinstance(number, (bool, str, bytes)) and int(number) == number:
            return int(number)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # no number, NaN, infinity, more than one number
        pass
    raise Mistake(say("base.not_whole", value=_short(value)))


def exercise(right: str) -> Callable[[Callable[[Any], None]], Callable[[Any], CheckResult]]:
    """Turn a function that raises `Mistake` into a check that returns a CheckResult and never raises.

    Args:
        right: what a right answer has shown: a sentence, or the key of one in `words.py`.
    """

    def wrap(check: Callable[[Any], None]) -> Callable[[Any], CheckResult]:
        @functools.wraps(check)
        def checked(answer: Any) -> CheckResult:
            if is_blank(answer):
                return CheckResult("not attempted", say("base.blank"))
            try:
                check(answer)
            except NotAttempted:
                return CheckResult("not attempted", say("base.blank"))
            except Mistake as mistake:
                return CheckResult("wrong", str(mistake))
            except (
                Exception,
                SystemExit,
            ) as error:  # e.g. a list where a number was asked for: still the reader's, still a sentence
                return CheckResult("wrong", say("base.unreadable", kind=type(error).__name__, error=error))
            return CheckResult("right", say(right) if right in WORDS else right)

        return checked

    return wrap


def guess(mine: Any, actual: Any, unit: str = "", *, within: float = 0.0) -> None:
    """Print a prediction beside what was computed; a blank (`...`) is fine and says so.

    Args:
        mine: the reader's guess, or `...`.
        actual: the value the cell computed.
        unit: what is counted, in the plural, such as "passes", or "%". After a 1 it is printed in the singular.
        within: how far off still counts as close enough, as a part of `actual`: 0.05 for a question that asks
            "about how many". 0, the rule for counts, takes only the number itself.
    """
    shown = str if isinstance(actual, str) else _in_thousands  # a name is printed as it is
    if is_blank(mine):
        said = say("base.guess.none")
    else:
        mine = _without_unit(mine, unit)
        said = say("base.guess.mine", mine=shown(mine), unit=_unit_after(mine, unit)).rstrip()
        said += say(f"base.guess.{_verdict(mine, actual, within)}")
    print(say("base.guess.computed", said=said, actual=shown(actual), unit=_unit_after(actual, unit)).rstrip())


def _unit_after(value: Any, unit: str) -> str:
    """The unit as it is printed after this value: 5 passes, 1 pass, 5%."""
    if not isinstance(value, bool) and isinstance(value, (numbers.Integral, str)) and str(value).strip() == "1":
        unit = singular(f"1 {unit}")[2:]
    return unit if not unit or unit.startswith("%") else " " + unit


def _without_unit(mine: Any, unit: str) -> Any:
    """ "97%" or "1,140 rows" without what the line prints itself; anything else as it is."""
    if isinstance(mine, str):
        for word in (unit.strip(), singular(f"1 {unit.strip()}")[2:]):
            text = mine.strip()
            if word and text.lower().endswith(word.lower()) and _number(text[: -len(word)]) is not None:
                return text[: -len(word)].strip()
    return mine


def _verdict(mine: Any, actual: Any, within: float) -> str:
    """ "right", "close" or "wrong": numbers by size, whatever way they are written; words by their letters."""
    a, b = _number(mine), _number(actual)
    if a is None or b is None:
        return "right" if _words_of(mine) == _words_of(actual) else "wrong"
    if a == b or (math.isnan(a) and math.isnan(b)) or abs(a - b) <= 1e-6 * max(1.0, abs(b)) < math.inf:
        return "right"
    return "close" if abs(a - b) <= within * abs(b) < math.inf else "wrong"


def _number(value: Any) -> float | None:
    """A number, or text that is one ("1,140", "nan"), as a float; None for anything else."""
    if isinstance(value, str) and re.fullmatch(r"\s*[+-]?\d{1,3}(,\d{3})+(\.\d*)?\s*", value):
        value = value.replace(",", "")
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # no number, or a tensor of several
        return None


def _words_of(value: Any) -> str | list[str]:
    """Text without regard to capitals. Several words ("K and V", "V, K", {"K", "V"}) are a set: sorted."""
    if isinstance(value, str) or (isinstance(value, set | frozenset) and all(isinstance(v, str) for v in value)):
        text = value if isinstance(value, str) else ", ".join(value)
        if not text.strip().startswith(("[", "(", "{")):  # a list that is written out has an order
            words = [word for word in re.split(r"\s*(?:[,;&+、，；和与]|\band\b)\s*", text.strip().lower()) if word]
            return sorted(words) if len(words) > 1 else "".join(words)
    return re.sub(r"\s*([][(){},])\s*", r"\1", str(value).strip().lower())


def _in_thousands(value: Any) -> Any:
    """1140 as "1,140"; anything that is not an int as it is."""
    return f"{value:,}" if isinstance(value, numbers.Integral) and not isinstance(value, bool) else value


def _short(value: Any) -> str:
    if hasattr(value, "shape") and getattr(value, "ndim", 0) > 1:  # a tensor's numbers would hide the sentence
        return say("base.shape", kind=type(value).__name__, shape=list(value.shape))
    if callable(value) and hasattr(value, "__name__"):
        return value.__name__
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
