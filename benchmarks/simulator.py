"""Where the KV memory goes: figure 2 of the PagedAttention paper, simulated, beside the paper's own numbers.

    python benchmarks/simulator.py            # six seeds, some seconds
    python benchmarks/simulator.py --seeds 2

15,728 slots, ShareGPT-like lengths, a queue that never empties (chapters 6 and 7). The paper's bars: Kwon et al., SOSP
2023, figure 2; its requests came at 2 a second, so its requests batched (figure 13) are shown for three only.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # from a checkout, also when another is installed

from minipaged.block_manager import Paged
from minipaged.fragmentation import (
    PAPER_SLOTS,
    MaxLength,
    Oracle,
    PowerOfTwo,
    sharegpt_like,
    simulate,
)

PAPER = {"MaxLength": (20.4, "7.00"), "PowerOfTwo": (26.8, "9.81"), "Oracle": (38.2, "13.62"), "Paged(16)": (96.3, "-")}
PARTS = ("tokens", "reserved", "internal", "external")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=6, help="runs whose mean is shown")
    seeds = range(max(1, parser.parse_args().seeds))
    print("| allocator | tokens, % | reserved | internal | external | paper: tokens, % | batched | paper: batched |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for allocator in (MaxLength(2048), PowerOfTwo(2048), Oracle(), Paged(16)):
        runs = [simulate(sharegpt_like(2000, seed), allocator, PAPER_SLOTS, seed=seed) for seed in seeds]
        mean = lambda name, runs=runs: sum(getattr(run, name) for run in runs) / len(runs)  # noqa: E731
        parts = " | ".join(f"{100 * mean(part):.1f}" for part in PARTS)
        tokens, batched = PAPER[allocator.name]
        print(f"| {allocator.name} | {parts} | {tokens} | {mean('batched'):.1f} | {batched} |")


if __name__ == "__main__":
    main()
