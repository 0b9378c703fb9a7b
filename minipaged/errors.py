"""Errors that say the value, the limit and the way out.

Every error that minipaged raises on purpose derives from `MinipagedError`, so that a program can tell "minipaged
refused this" from a bug. Errors that belong to one chapter (no free block, no such model) are defined there.
"""

from __future__ import annotations

import importlib
import math
import operator
from collections.abc import Mapping
from numbers import Real
from types import ModuleType
from typing import Any


class MinipagedError(Exception):
    """Base of every error that minipaged raises on purpose."""


class InvalidInputError(MinipagedError, ValueError):
    """An argument has a value that cannot be right; the message names it, its limit and what to pass instead."""


class MissingPackageError(MinipagedError, ImportError):
    """An optional package is needed here and not installed; the message gives the command that installs it."""


def shown(value: Any) -> str:
    """A value as a message shows it: short, and whatever its repr does."""
    try:
        text = " ".join(repr(value).split())  # a tensor's has lines
    except Exception:  # a number of 5,000 digits, or an object whose own repr fails
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."


def whole_number(name: str, value: Any, least: int | None = 0, most: int = 2**63 - 1) -> int:
    """A count as a plain int, numpy's and torch's too; 2.5, True, None and what is outside the limits are refused.

    With `least` None it may have any sign. No count is above what 64 bits hold, so that none overflows where a tensor
    or a message is made of it.

    Raises:
        InvalidInputError: it names the argument, the value and the limit.
    """
    try:
        number = operator.index(value)
    except (TypeError, RuntimeError):  # torch raises both
        number = None
    floor = -(2**63) if least is None else least
    if number is None or isinstance(value, bool) or not floor <= number <= most:
        limit = "" if least is None else f" of at least {least}"
        if number is not None and number > most:
            limit = f" from {floor} to {most:,}"
        raise InvalidInputError(f"{name} is {shown(value)}; it must be a whole number{limit}")
    return number


def real_number(name: str, value: Any, least: float | None = None, above: float | None = None) -> float:
    """A finite number, numpy's too, as a float; NaN, infinity, True, None and what is too small are refused.

    Raises:
        InvalidInputError: it names the argument, the value and the limit.
    """
    try:
        number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or (least is not None and number < least) or (above is not None and number <= above):
        limit = f" of at least {least}" if least is not None else f" above {above}" if above is not None else ""
        raise InvalidInputError(f"{name} is {shown(value)}; it must be a number{limit}")
    return number


def yes_or_no(name: str, value: Any) -> bool:
    """True or False; anything else is refused, also what would count as one of them.

    Raises:
        InvalidInputError: it names the argument and the value.
    """
    if not isinstance(value, bool):
        raise InvalidInputError(f"{name} is {shown(value)}; use True or False")
    return value


def a_function(name: str, value: Any, wanted: str) -> Any:
    """What can be called, or an error that says what kind of function is wanted.

    Raises:
        InvalidInputError: the value cannot be called.
    """
    if not callable(value):
        raise InvalidInputError(f"{name} is {shown(value)}; pass {wanted}")
    return value


def an_instance(name: str, value: Any, kind: type, wanted: str) -> Any:
    """An object of a class, or an error that says where to get one.

    Raises:
        InvalidInputError: the value is of another class.
    """
    if not isinstance(value, kind):
        raise InvalidInputError(f"{name} is {shown(value)}; pass {wanted}")
    return value


def listed(name: str, values: Any, wanted: str) -> list[Any]:
    """The items of a list, tuple, range, array or generator; a text, a dictionary or a number is none of these.

    Raises:
        InvalidInputError: the value has no items to go through.
    """
    try:
        if isinstance(values, str | bytes | Mapping):
            raise TypeError
        return list(values)
    except TypeError:
        raise InvalidInputError(f"{name} is {shown(values)}; pass {wanted}") from None


def require(package: str, purpose: str) -> ModuleType:
    """Import an optional package, or say in one line what it is for and how to get it.

    Raises:
        MissingPackageError: the package is not installed.
    """
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != package.split(".")[0]:
            raise  # the package is there, and something it imports is not: not ours to explain away
        name = package.split(".")[0]
        raise MissingPackageError(f"{purpose} needs {name}, which is not installed here: pip install {name}") from error
