"""Serve 32 requests of different lengths from 2,048 KV slots, one way after another, and print a table.

    python benchmarks/serving.py                        # the course's model, float32; a GPU is used where there is one
    python benchmarks/serving.py --requests 6           # a quick look
    python benchmarks/serving.py --vllm-python PATH     # vLLM too, from another environment's Python

Everybody gets the same prompts, writes the same number of tokens for each (greedy, end-of-sequence ignored), and has
the same room for K and V. Only tokens that a request asked for count. Tokens are compared, not only times: an engine
that is fast and wrong would stand out in the last column. The rows:

    transformers generate      padded batches; as many rows as fit, each with room for the longest prompt and output
    transformers continuous    its own continuous batching, pages of 16
    minipaged static, reserved the two ideas of chapter 10 off: the same engine, batches closed, the longest reserved
    minipaged continuous, res. one of them on
    minipaged                  both: continuous batching on paged memory
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # from a checkout, also when another minipaged is installed

import torch  # noqa: E402

from minipaged import LLM, SamplingParams, load_model  # noqa: E402

Work = list[dict[str, Any]]
BLOCK = 16


def max_new(work: Work) -> int:
    """The longest output."""
    return max(w["max_tokens"] for w in work)


def transformers_static(model: Any, work: Work, slots: int) -> list[list[int]]:
    """`generate` on left-padded batches; a batch ends when its longest request does.

    A batch is a rectangle: every row has room for the longest prompt, padded, and the longest output.
    """
    width = max(len(w["prompt"]) for w in work) + max_new(work)
    rows, out = max(1, slots // width), []
    for start in range(0, len(work), rows):
        batch = work[start : start + rows]
        width = max(len(w["prompt"]) for w in batch)
        ids = torch.tensor([[0] * (width - len(w["prompt"])) + w["prompt"] for w in batch], device=model.device)
        mask = torch.tensor([[0] * (width - len(w["prompt"])) + [1] * len(w["prompt"]) for w in batch])
        steps = max(w["max_tokens"] for w in batch)
        options = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0, "max_new_tokens": steps}
        written = model.generate(ids, attention_mask=mask.to(model.device), **options)[:, width:].tolist()
        out += [row[: w["max_tokens"]] for row, w in zip(written, batch, strict=True)]
    return out


def transformers_continuous(model: Any, work: Work, slots: int) -> list[list[int]]:
    """transformers' own continuous batching, with as many pages as the slots make."""
    from transformers import ContinuousBatchingConfig, GenerationConfig

    config = ContinuousBatchingConfig(page_size=BLOCK, num_blocks=slots // BLOCK, max_batch_tokens=512)
    how = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0, max_new_tokens=max_new(work))
    results = {}
    keep = {"persistent_manager": True}  # made while warming up: making it is not serving
    with model.continuous_batching_context_manager(how, continuous_batching_config=config, **keep) as manager:
        for number, w in enumerate(work):
            manager.add_request(w["prompt"], str(number), max_new_tokens=w["max_tokens"], eos_token_id=-1)
        while len(results) < len(work):
            result = manager.get_result(timeout=1)
            if result is not None and result.is_finished():
                results[int(result.request_id)] = result.generated_tokens
            elif result is None and not manager.is_running():
                raise RuntimeError("transformers' continuous batching has stopped")
    return [results[number] for number in range(len(work))]


def minipaged(model: Any, work: Work, slots: int, **options: Any) -> list[list[int]]:
    """Our engine; `options` turn its ideas off. Nothing is found again: the requests of the warm-up come once more."""
    how = dict(num_blocks=slots // BLOCK, block_size=BLOCK, enable_prefix_caching=False, **options)
    llm = ENGINES.setdefault(str(options), LLM(model, **how))
    params = [SamplingParams(temperature=0, max_tokens=w["max_tokens"], ignore_eos=True) for w in work]
    outputs = llm.generate([{"prompt_token_ids": w["prompt"]} for w in work], params, use_tqdm=False)
    return [output.outputs[0].token_ids for output in outputs]


ENGINES: dict[str, LLM] = {}  # made while warming up: loading is not serving

VLLM = """
import json, sys, time
from vllm import LLM, SamplingParams
folder, slots, dtype, work = sys.argv[1], int(sys.argv[2]), sys.argv[3], json.load(sys.stdin)
import torch
block = 16 if torch.cuda.is_available() else 32  # its attention on a CPU takes multiples of 32
longest = max(len(w["prompt"]) + w["max_tokens"] for w in work)
llm = LLM(folder, dtype=dtype, block_size=block, num_gpu_blocks_override=slots // block + 1,  # one pads its tables
          max_model_len=longest, max_num_batched_tokens=512, enable_prefix_caching=False,
          gpu_memory_utilization=0.5)  # the pool's size is given above; this only has to be free
def run(work):
    params = [SamplingParams(temperature=0, max_tokens=w["max_tokens"], ignore_eos=True) for w in work]
    out = llm.generate([{"prompt_token_ids": w["prompt"]} for w in work], params, use_tqdm=False)
    return [list(o.outputs[0].token_ids) for o in out]
run(work[:2])
start = time.perf_counter()
tokens = run(work)
print("RESULT" + json.dumps([time.perf_counter() - start, tokens]))
"""


def vllm(python: str, folder: str, work: Work, slots: int, dtype: str) -> tuple[float, list[list[int]]]:
    """The same in vLLM, in its own process: (seconds, tokens)."""
    done = subprocess.run(
        [python, "-c", VLLM, folder, str(slots), dtype],
        input=json.dumps(work),
        capture_output=True,
        text=True,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
    if not lines:
        causes = [line for line in (done.stdout + done.stderr).splitlines() if "Error: " in line]  # the first one
        raise SystemExit("vLLM did not answer:\n" + "\n".join(causes[:5] or done.stderr.splitlines()[-20:]))
    seconds, tokens = json.loads(lines[0].removeprefix("RESULT"))
    return seconds, tokens


def timed(serve: Callable[[Work], list[list[int]]], work: Work, repeats: int) -> tuple[float, list[list[int]]]:
    """(seconds of the fastest run, tokens), after a run over two short requests that is not counted."""
    serve([{**w, "max_tokens": 4} for w in work[:2]])
    best, tokens = float("inf"), []
    for _ in range(repeats):
        start = time.perf_counter()
        tokens = serve(work)
        best = min(best, time.perf_counter() - start)
    return best, tokens


def machine(model: Any) -> str:
    """What this ran on, in words."""
    if model.device.type == "cuda":
        return torch.cuda.get_device_name(model.device)
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = info.read_text(encoding="utf-8", errors="replace").splitlines()
        found = [line.partition(":")[2].strip() for line in lines if "model name" in line]
        name = found[0] if found else name
    return f"{torch.get_num_threads()} cores of {name}"


def table(rows: list[tuple[str, float, list[list[int]]]], wanted: list[list[int]]) -> str:
    """The Markdown table: tokens per second, ratios to both of transformers' ways, requests with equal tokens."""
    count = sum(map(len, wanted))
    speed = {name: count / seconds for name, seconds, _ in rows}
    static, continuous = list(speed.values())[:2]
    lines = [
        "| who | tokens/s | x transformers static | x transformers continuous | requests with the same tokens |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, _, tokens in rows:
        same = sum(a == b for a, b in zip(tokens, wanted, strict=True))
        ratios = f"{speed[name] / static:.2f} | {speed[name] / continuous:.2f}"
        lines.append(f"| {name} | {speed[name]:.1f} | {ratios} | {same} of {len(wanted)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=32, help="serve only the first ones")
    parser.add_argument("--slots", type=int, default=2048, help="KV slots for everybody")
    parser.add_argument("--repeats", type=int, default=1, help="runs of each; the fastest counts")
    parser.add_argument("--model", help="another transformers id or folder (its vocabulary must hold the prompts)")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--vllm-python", help="Python of an environment with vLLM")
    args = parser.parse_args()
    logging.getLogger("transformers").setLevel(logging.ERROR)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

    work = json.loads((ROOT / "tests" / "cases" / "serving_32.json").read_text(encoding="utf-8"))[: args.requests]
    model, _ = load_model(args.model, dtype=args.dtype)
    ways: list[tuple[str, Callable[..., list[list[int]]], dict[str, Any]]] = [
        ("transformers `generate`, static batches", transformers_static, {}),
        ("transformers continuous batching", transformers_continuous, {}),
        ("minipaged, static + reserved", minipaged, {"batching": "static", "reserve": "max_len"}),
        ("minipaged, continuous + reserved", minipaged, {"reserve": "max_len"}),
        ("minipaged, continuous + paged", minipaged, {}),
    ]
    rows = []
    for name, serve, options in ways:
        print(f"{name} ...", file=sys.stderr, flush=True)
        call = lambda some, serve=serve, options=options: serve(model, some, args.slots, **options)  # noqa: E731
        rows.append((name, *timed(call, work, args.repeats)))
        model.destroy_cached_continuous_batching_manager()
    if args.vllm_python:
        folder = str(Path(model.name_or_path).resolve())
        rows.append(("vLLM", *vllm(args.vllm_python, folder, work, args.slots, args.dtype)))

    wanted = rows[1][2]
    count = sum(map(len, wanted))
    digest = hashlib.sha256(json.dumps(rows[4][2]).encode()).hexdigest()[:12]
    print(f"{len(work)} requests, {count} tokens written, {args.slots} KV slots, {args.dtype}, {machine(model)}")
    print(f"torch {torch.__version__}, digest of minipaged's tokens {digest}\n")
    print(table(rows, wanted))


if __name__ == "__main__":
    main()
