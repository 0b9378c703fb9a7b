"""The paged decode kernel on one GPU, against the card's own copy bandwidth and torch's attention on contiguous K, V.

    python benchmarks/paged_attention_gpu.py            the whole table, under three minutes; writes results_gpu.md
    python benchmarks/paged_attention_gpu.py --quick    a few rows, printed only
    python benchmarks/paged_attention_gpu.py --smoke    tiny sizes on a CPU, interpreted: shows that the script runs

Needs torch, Triton and numpy. Correctness comes first: float16 and bfloat16 against float64. Group 4, head_dim 128.
A time is the median over repeats of a captured CUDA graph, with the L2 cache overwritten before each.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from minipaged.paged_attention import PagedBatch, paged_attention
from minipaged.triton_kernels import paged_attention as kernel

HEADS, KV_HEADS, DIM = 32, 8, 128
LIMIT = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
NAMES = {torch.float16: "fp16", torch.bfloat16: "bf16"}
HERE = Path(__file__).resolve().parent


class Step:
    """One decode step of one layer: paged K and V with shuffled blocks, and the same tokens in one piece."""

    def __init__(
        self, batch: int, context: int, block_size: int, dtype: torch.dtype, device: str, contiguous: bool
    ) -> None:
        torch.manual_seed(0)
        blocks = -(-context // block_size)  # of one sequence
        tables = torch.randperm(batch * blocks).reshape(batch, blocks)
        shape = batch * blocks, block_size, KV_HEADS, DIM
        self.k_cache = torch.randn(shape, dtype=dtype, device=device)
        self.v_cache = torch.randn(shape, dtype=dtype, device=device)
        self.query = torch.randn(batch, HEADS, DIM, dtype=dtype, device=device)
        self.tables, self.context, self.batch_size = tables, context, batch
        starts = list(range(batch + 1))
        self.batch = PagedBatch(tables, [context] * batch, starts, block_size, device, batch * blocks)
        _ = self.batch.decode_rows  # made once a step, shared by all layers
        self.contiguous = self.in_one_piece() if contiguous else None

    def in_one_piece(self) -> list[torch.Tensor]:
        """K and V as [batch, num_kv_heads, context, head_dim]: what torch's attention likes best."""
        where = self.tables.to(self.k_cache.device)
        return [
            cache[where].flatten(1, 2)[:, : self.context].transpose(1, 2).contiguous()
            for cache in (self.k_cache, self.v_cache)
        ]

    @property
    def bytes_read(self) -> int:
        """K and V of every token, once."""
        return 2 * self.batch_size * self.context * KV_HEADS * DIM * self.query.element_size()

    def paged(self) -> torch.Tensor:
        """This project's kernel."""
        return kernel(self.query, self.k_cache, self.v_cache, self.batch)

    def sdpa(self) -> torch.Tensor:
        """torch's attention over K and V in one piece."""
        return F.scaled_dot_product_attention(self.query.unsqueeze(2), *self.contiguous, enable_gqa=True)


def check(device: str, dtypes: list[torch.dtype], sizes: list[tuple[list[int], list[int]]]) -> None:
    """Largest error over largest value, against float64, for ragged batches, decode, split and mixed."""
    for dtype, (lens, q_lens) in itertools.product(dtypes, sizes):
        blocks = [-(-n // 16) for n in lens]
        order = torch.randperm(sum(blocks) + 2).tolist()
        tables = [[order.pop() for _ in range(n)] for n in blocks]
        shape = sum(blocks) + 2, 16, KV_HEADS, DIM
        k_cache, v_cache = torch.randn(2, *shape, dtype=dtype, device=device)
        query = torch.randn(sum(q_lens), HEADS, DIM, dtype=dtype, device=device)
        inputs = tables, lens, [0, *itertools.accumulate(q_lens)]
        want = paged_attention(query.double(), k_cache.double(), v_cache.double(), *inputs, backend="reference")
        got = paged_attention(query, k_cache, v_cache, *inputs, backend="triton").double()
        error = ((got - want).abs().max() / want.abs().max()).item()
        verdict = "right" if error < LIMIT[dtype] else "WRONG"
        print(f"{NAMES[dtype]}, lengths {lens}, new tokens {q_lens}: error {error:.1e}, {verdict}", flush=True)
        if not error < LIMIT[dtype]:
            raise SystemExit("the kernels are wrong here: no times are worth measuring")


class Clock:
    """Times in seconds. On a GPU: a captured graph, replayed, the L2 cache overwritten before each replay."""

    def __init__(self, device: str, repeats: int) -> None:
        self.device, self.repeats = device, repeats
        self.sweep = torch.empty(2**28 if device == "cuda" else 1, dtype=torch.int8, device=device)  # 256 MiB > any L2

    def __call__(self, run: Callable[[], Any]) -> float:
        if self.device != "cuda":
            run()
            return float("nan")
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(2):
                run()
        side.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            run()
        times = []
        for _ in range(self.repeats):
            self.sweep.zero_()
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            stop.record()
            times.append((start, stop))
        torch.cuda.synchronize()
        return statistics.median(a.elapsed_time(b) for a, b in times) / 1e3


def copy_bandwidth(clock: Clock, num_bytes: int) -> float:
    """Bytes a second of a plain copy on this card: what is read and what is written, together."""
    source = torch.empty(num_bytes, dtype=torch.int8, device=clock.device)
    target = torch.empty_like(source)
    return 2 * num_bytes / clock(lambda: target.copy_(source))


def flex_step(step: Step) -> tuple[Callable[[], Any] | None, str]:
    """torch's FlexAttention over the same paged pool, compiled; None and the reason where it does not run."""
    try:
        from torch.nn.attention.experimental._paged_attention import PagedAttention
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        block = 128  # its own page size, a multiple of its tile
        pages = -(-step.context // block)
        device, (k, v) = step.query.device, step.contiguous
        paged = PagedAttention(step.batch_size * pages, block, step.batch_size, device=str(device))
        pool = torch.zeros(2, 1, KV_HEADS, step.batch_size * pages * block, DIM, dtype=k.dtype, device=device)
        rows, lengths = torch.arange(step.batch_size, device=device), torch.full((step.batch_size,), step.context)
        for row in range(step.batch_size):
            paged.reserve(rows[row : row + 1], lengths[row : row + 1].to(device))
        places = torch.arange(step.context, device=device).expand(step.batch_size, -1)
        paged.assign(rows, places, k, v, *pool)
        mask = create_block_mask(
            lambda b, h, q, kv: kv < step.context, step.batch_size, 1, 1, pages * block, device=str(device)
        )
        paged_mask = paged.convert_logical_block_mask(mask)
        run = torch.compile(flex_attention)
        query = step.query.unsqueeze(2)
        attend = lambda: run(query, *pool, block_mask=paged_mask, enable_gqa=True)  # noqa: E731
        error = (attend().squeeze(2) - step.paged()).abs().max().item()
        if error > 0.05:
            return None, f"its result differs by {error:.2g}"
        return attend, ""
    except Exception as error:  # experimental in torch: whatever stops it is a word in the table, not a crash
        return None, f"{type(error).__name__}: {str(error).splitlines()[0][:80] if str(error) else ''}"


def measure(
    device: str,
    dtypes: list[torch.dtype],
    batches: list[int],
    contexts: list[int],
    block_sizes: list[int],
    repeats: int,
) -> tuple[list[list[str]], list[str]]:
    """(rows of the table, words about the card and the run)."""
    clock = Clock(device, repeats)
    bandwidth = copy_bandwidth(clock, 2**31 if device == "cuda" else 2**10)
    rows, notes = [], [f"copy bandwidth {bandwidth / 1e9:,.0f} GB/s"]
    for dtype, batch, context in itertools.product(dtypes, batches, contexts):
        needed = 4 * 2 * batch * context * KV_HEADS * DIM * 2
        if device == "cuda" and needed > torch.cuda.mem_get_info()[0]:
            notes.append(f"batch {batch} x {context}: needs {needed / 2**30:.0f} GiB, left out")
            continue
        for block_size in block_sizes:
            step = Step(batch, context, block_size, dtype, device, contiguous=block_size == block_sizes[0])
            ours = clock(step.paged)
            if block_size == block_sizes[0]:
                dense = clock(step.sdpa)
                flex = None
                if (batch, context) == (batches[-1], contexts[0]) and dtype == dtypes[0] and device == "cuda":
                    attend, why = flex_step(step)
                    flex = clock(attend) if attend else None
                    notes.append(
                        f"FlexAttention, paged: {f'{flex * 1e6:.0f} µs at {batch} x {context}' if flex else why}"
                    )
            floor = step.bytes_read / bandwidth
            row = [NAMES[dtype], batch, context, block_size, f"{ours * 1e6:.1f}", f"{floor / ours:.0%}",
                   f"{dense * 1e6:.1f}", f"{dense / ours:.2f}"]  # fmt: skip
            rows.append([str(cell) for cell in row])
            del step
    return rows, notes


HEADER = ["dtype", "batch", "context", "block", "paged, µs", "of copy bandwidth", "contiguous SDPA, µs", "SDPA / paged"]


def markdown(card: str, rows: list[list[str]], notes: list[str]) -> str:
    """The table that is committed: the card's name, how it was made, one row a setting."""
    lines = [
        f"# Paged decode on {card}",
        "",
        "Made by `python benchmarks/paged_attention_gpu.py`. One layer, 32 query heads,",
    ]
    lines += ["8 KV heads, head_dim 128; " + "; ".join(notes) + ".", ""]
    lines += ["| " + " | ".join(HEADER) + " |", "|" + "---|" * len(HEADER)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few rows, printed only")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, on a CPU too")
    options = parser.parse_args()
    if not torch.cuda.is_available() and not options.smoke:
        raise SystemExit("no GPU here; --smoke shows on a CPU that the script runs")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    new_chip = device == "cpu" or torch.cuda.get_device_capability() >= (8, 0)
    dtypes = [torch.float16, torch.bfloat16] if new_chip else [torch.float16]
    if options.smoke:
        check(device, dtypes, [([5, 20], [1, 1]), ([5, 20], [2, 1])])
        rows, notes = measure(device, dtypes[:1], [1, 2], [16], [16, 32], repeats=1)
    else:
        check(device, dtypes, [([1, 100, 4097], [1, 1, 1]), ([16384], [1]), ([300, 5, 1000], [300, 1, 17])])
        grid = ([32], [4096]) if options.quick else ([1, 8, 32, 128], [1024, 4096, 16384, 32768])
        rows, notes = measure(device, dtypes, *grid, [16, 32], repeats=20)
    card = torch.cuda.get_device_name() if device == "cuda" else "a CPU, interpreted (no times)"
    table = markdown(card, rows, [*notes, f"torch {torch.__version__}"])
    print(table)
    if not options.quick and not options.smoke:
        (HERE / "results_gpu.md").write_text(table, encoding="utf-8")


if __name__ == "__main__":
    main()
