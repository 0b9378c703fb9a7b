"""Work counted in calls, not in seconds: the same on every machine."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from pathlib import Path

import minipaged

HERE = str(Path(minipaged.__file__).parent)


def count_calls(call: Callable[[], object]) -> int:
    """How many calls and returns `call` causes in minipaged's own code, calls into Python's builtins included.

    The garbage collector is off meanwhile: when it runs, and whose callbacks it calls, depends on what ran before.
    """
    count = 0

    def profile(frame, event, arg):
        nonlocal count
        count += frame.f_code.co_filename.startswith(HERE)

    collecting = gc.isenabled()
    gc.disable()
    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
        if collecting:
            gc.enable()
    return count
