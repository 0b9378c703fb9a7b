"""Ctrl-C at a chosen line: the one that comes at the worst moment."""

from __future__ import annotations

import sys
from collections.abc import Callable


def interrupt_at(call: Callable[[], object], where: int, traced: Callable[[str], bool]) -> bool:
    """Run `call` and raise KeyboardInterrupt at the `where`-th line of the files that `traced` accepts by name.

    False when the call ended before.
    """
    seen = 0

    def trace(frame, event, arg):
        nonlocal seen
        if not traced(frame.f_code.co_filename):
            return None
        seen += event == "line"
        if event == "line" and seen == where:
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False
