"""Checks for the course's exercises: `check_<chapter>_<exercise>(answer) -> CheckResult`, and `guess` for predictions.

A check never raises. It says "not attempted" for a stub, names the smallest failing case for a wrong answer, and says
what a right one has shown. One file per chapter; importing a check imports only that chapter's file.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

from minipaged.exercises._base import CheckResult, guess

__all__ = ["CheckResult", "guess"]


def chapters() -> list[str]:
    """Names of the chapter files, in order: ["ch01", ...]."""
    return sorted(m.name for m in pkgutil.iter_modules(__path__) if m.name.startswith("ch"))


def __getattr__(name: str) -> Any:
    """Find `check_01_top_p` in ch01.py when it is first used."""
    if name.startswith("check_"):
        home = f"ch{name.split('_')[1]}"
        if home in chapters():
            return getattr(importlib.import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
