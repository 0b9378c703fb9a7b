"""How long the course takes: notebooks, tests, import, calculator. Prints Markdown tables.

    python benchmarks/course.py                      # everything but the tests; some minutes
    python benchmarks/course.py --notebooks 01 06    # these notebooks alone
    python benchmarks/course.py --junit FILE         # adds the parts of `make test PYTEST_ADDOPTS=--junitxml=FILE`

A notebook runs in a fresh kernel, as `make notebooks` runs it, and nothing is written. Its memory is the largest sum of
the resident memory of its kernel and of what the kernel starts, looked at five times a second. Times are wall-clock
times of this machine: run it when nothing else runs.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import platform
import statistics
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from pathlib import Path

import nbformat
import psutil
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # from a checkout, also when another minipaged is installed

GIB = 2**30
LIMITS = {"notebooks": 8 * 60, "tests": 25 * 60, "import": 2.0, "calculator": 100.0}  # seconds, and milliseconds


class Memory(threading.Thread):
    """Watches the resident memory of this process's children; `peak` is the most they held together."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak, self._over = 0, threading.Event()

    def run(self) -> None:
        while not self._over.wait(0.2):
            total = 0
            for child in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.Error):  # it ended a moment ago
                    total += child.memory_info().rss
            self.peak = max(self.peak, total)

    def __enter__(self) -> Memory:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()


def run_notebook(path: Path) -> tuple[float, int]:
    """Seconds and peak bytes of one run from the first cell to the last, the kernel's start included."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=300,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
        extra_arguments=["--IPKernelApp.log_level=40"],
    )
    started = time.perf_counter()
    with Memory() as memory:
        client.execute()
    return time.perf_counter() - started, memory.peak


def notebooks(wanted: list[str]) -> None:
    paths = sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))
    print("| notebook | seconds | peak memory, GiB |\n|---|---:|---:|", flush=True)
    total, most = 0.0, 0
    for path in paths:
        if not wanted or path.name[:2] in wanted:
            seconds, peak = run_notebook(path)
            total, most = total + seconds, max(most, peak)
            print(f"| {path.stem} | {seconds:.0f} | {peak / GIB:.1f} |", flush=True)
    print(f"| **together** (limit {LIMITS['notebooks']} s) | **{total:.0f}** | **{most / GIB:.1f}** |\n")


def parts_of_tests(report: Path) -> None:
    """Seconds by test file, from a JUnit report; files that run side by side add up to more than the run took."""
    root = ElementTree.parse(report).getroot()
    seconds, counts = defaultdict(float), defaultdict(int)
    for case in root.iter("testcase"):
        name = case.get("classname", "").removeprefix("tests.").removeprefix("notebooks.").split(".")[0]
        seconds[name] += float(case.get("time", 0))
        counts[name] += 1
    wall = sum(float(suite.get("time", 0)) for suite in root.iter("testsuite"))
    print("| part of `make test` | tests | seconds |\n|---|---:|---:|")
    for name in sorted(seconds, key=seconds.__getitem__, reverse=True):
        if seconds[name] >= 5:
            print(f"| {name} | {counts[name]} | {seconds[name]:.0f} |")
    rest = [name for name in seconds if seconds[name] < 5]
    print(f"| {len(rest)} others | {sum(counts[n] for n in rest)} | {sum(seconds[n] for n in rest):.0f} |")
    print(f"| **the run** (limit {LIMITS['tests']} s) | **{sum(counts.values())}** | **{wall:.0f}** |\n")


def import_seconds() -> tuple[float, float]:
    """(torch and transformers, minipaged's public names after them): seconds of imports in a fresh Python."""
    code = (  # transformers opens its parts when they are first used: these are the parts that any model needs
        "import time; a = time.perf_counter(); import torch, transformers.modeling_utils, transformers.masking_utils, "
        "transformers.cache_utils; from transformers import AutoModelForCausalLM; b = time.perf_counter(); "
        "import minipaged; [getattr(minipaged, name) for name in minipaged.__all__]; "
        "print(b - a, time.perf_counter() - b)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    below, ours = map(float, done.stdout.split())
    return below, ours


def small_things() -> None:
    import_seconds()  # the first time reads the files from disk
    below, ours = import_seconds()
    print("| what | measured | limit |\n|---|---:|---:|")
    print(f"| import torch and transformers | {below:.1f} s | |")
    print(f"| import minipaged, all its public names, after them | {ours:.2f} s | {LIMITS['import']:.0f} s |")
    with contextlib.redirect_stdout(io.StringIO()):
        from benchmarks.calculator import answers
        from minipaged.widgets.ch05 import calculator

        panel = calculator()
        times = answers(panel, "seq_len", [2.0**power for power in range(7, 21)], 3)
    print(f"| calculator, one answer (median) | {statistics.median(times):.0f} ms | {LIMITS['calculator']:.0f} ms |")
    print(f"| calculator, one answer (slowest) | {max(times):.0f} ms | |\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--notebooks", nargs="+", default=[], metavar="NN")
    parser.add_argument("--junit", type=Path)
    wanted = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    print(
        f"{os.cpu_count()} cores, {psutil.virtual_memory().total / GIB:.0f} GiB, Python {platform.python_version()}\n"
    )
    small_things()
    if wanted.junit:
        parts_of_tests(wanted.junit)
    notebooks(wanted.notebooks)
    return 0


if __name__ == "__main__":
    sys.exit(main())
