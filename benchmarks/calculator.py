"""How fast chapter 5's calculator answers: from a control's new value to the new picture and sentence.

usage: python benchmarks/calculator.py [rounds]

Prints one line per control: median and slowest answer in milliseconds. A reader notices more than about 100 ms.
What the browser adds (the message to the page, decoding the PNG) is not part of it.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

from minipaged.kv_size import gpus, models
from minipaged.widgets.ch05 import calculator, growth_panel

LIMIT_MS = 100


def answers(panel: Any, control: str, values: Sequence[Any], rounds: int) -> list[float]:
    """Milliseconds of each answer while a control walks through `values`."""
    times = []
    for _ in range(rounds):
        for value in values:
            if panel.controls[control].value == value:
                continue
            start = time.perf_counter()
            panel.controls[control].value = value
            times.append(1000 * (time.perf_counter() - start))
    return times


def main(arguments: Sequence[str]) -> int:
    rounds = int(arguments[0]) if arguments else 3
    names = list(models())
    lengths = [2.0**power for power in range(7, 21)]
    walks = [
        ("calculator", calculator(), "seq_len", lengths),
        ("calculator", calculator(), "batch", [1, 2, 16, 64, 256]),
        ("calculator", calculator(), "model", names),
        ("calculator", calculator(), "gpu", list(gpus())),
        ("calculator", calculator(), "dtype", ["float32", "float16", "fp8", "int4"]),
        ("calculator", calculator(), "tensor_parallel", [1, 2, 4, 8, 16]),
        ("growth", growth_panel(), "longest", [2.0**power for power in range(8, 21)]),
        ("growth", growth_panel(), "dtype", ["float32", "float16", "fp8", "int4"]),
    ]
    print(f"{'widget':12}{'control':18}{'answers':>8}{'median ms':>11}{'slowest ms':>12}")
    worst = 0.0
    for widget, panel, control, values in walks:
        times = answers(panel, control, values, rounds)
        worst = max(worst, statistics.median(times))
        print(f"{widget:12}{control:18}{len(times):8}{statistics.median(times):11.1f}{max(times):12.1f}")
    print(f"slowest median {worst:.0f} ms; {'under' if worst < LIMIT_MS else 'OVER'} {LIMIT_MS} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
