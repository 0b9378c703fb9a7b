"""Errors that say the value, the limit and the way out.

Every error that minipaged raises on purpose derives from `MinipagedError`, so that a program can tell "minipaged
refused this" from a bug. Errors that belong to one chapter (no free block, no such model) are defined there.
"""

from __future__ import annotations

import importlib
import operator
from types import ModuleType
from typing import Any


class MinipagedError(Exception):
    """Base of every error that minipaged raises on purpose."""


class InvalidInputError(MinipagedError, ValueError):
    """An argument has a value that cannot be right; the message names it, its limit and what to pass instead."""


class MissingPackageError(MinipagedError, ImportError):
    """An optional package is needed here and not installed; the message gives the command that installs it."""


def whole_number(name: str, value: Any, least: int = 0) -> int:
    """A count as a plain int, numpy's and torch's too; 2.5, True, None and what is below `least` are refused.

    Raises:
        InvalidInputError: it names the argument, the value and the limit.
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or number < least:
        raise InvalidInputError(f"{name} is {value!r}; it must be a whole number of at least {least}")
    return number


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
