"""Serve 32 requests of different lengths from 2,048 KV slots, one way after another, and print a table.

    python benchmarks/serving.py                        # the course's model, float32; a GPU is used where there is one
    python benchmarks/serving.py --requests 6           # a quick look
    python benchmarks/serving.py --vllm-python PATH     # vLLM too, from another environment's Python

Everybody gets the same prompts, writes the same number of tokens for each (greedy, end-of-sequence ignored), has the
same room for K and V, and a process of its own, which loads, warms up on two short requests and then serves; the
fastest of `--repeats` runs counts. Only tokens that a request asked for count. Tokens are compared, not only times: an
engine that is fast and wrong would stand out in the last column. The rows:

    transformers generate      padded batches; as many rows as fit, each with room for the longest prompt and output
    transformers continuous    its own continuous batching, pages of 16
    minipaged static, reserved the two ideas of chapter 10 off: the same engine, batches closed, the longest reserved
    minipaged continuous, res. one of them on
    minipaged                  both: continuous batching on paged memory
    vLLM                       its build for this machine
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
from functools import partial
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # from a checkout, also when another minipaged is installed

Work = list[dict[str, Any]]
Serve = Callable[[Work], list[list[int]]]
BLOCK = 16


def longest(work: Work) -> tuple[int, int]:
    """Tokens of the longest prompt, and of the longest output."""
    return max(len(w["prompt"]) for w in work), max(w["max_tokens"] for w in work)


# ---- the ways: each takes the arguments and the whole work, loads what it needs, and returns a function that serves


def course_model(args: argparse.Namespace) -> Any:
    """The model as this project loads it."""
    from minipaged import load_model

    return load_model(args.model, dtype=args.dtype)[0]


def transformers_static(args: argparse.Namespace, work: Work) -> Serve:
    """`generate` on left-padded batches; a batch ends when its longest request does.

    A batch is a rectangle: every row has room for the longest prompt, padded, and the longest output.
    """
    model, rows = course_model(args), max(1, args.slots // sum(longest(work)))

    def serve_batch(batch: Work) -> list[list[int]]:
        width, steps = longest(batch)
        ids = torch.tensor([[0] * (width - len(w["prompt"])) + w["prompt"] for w in batch], device=model.device)
        mask = torch.tensor([[0] * (width - len(w["prompt"])) + [1] * len(w["prompt"]) for w in batch])
        options = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0, "max_new_tokens": steps}
        written = model.generate(ids, attention_mask=mask.to(model.device), **options)[:, width:].tolist()
        return [row[: w["max_tokens"]] for row, w in zip(written, batch, strict=True)]

    return lambda some: [row for start in range(0, len(some), rows) for row in serve_batch(some[start : start + rows])]


def transformers_continuous(args: argparse.Namespace, work: Work) -> Serve:
    """transformers' own continuous batching, with as many pages as the slots make."""
    from transformers import ContinuousBatchingConfig, GenerationConfig

    model = course_model(args)
    config = ContinuousBatchingConfig(page_size=BLOCK, num_blocks=args.slots // BLOCK, max_batch_tokens=512)
    how = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0, max_new_tokens=longest(work)[1])
    keep = {"persistent_manager": True}  # made while warming up: making it is not serving

    def serve(some: Work) -> list[list[int]]:
        results = {}
        with model.continuous_batching_context_manager(how, continuous_batching_config=config, **keep) as manager:
            for number, w in enumerate(some):
                manager.add_request(w["prompt"], str(number), max_new_tokens=w["max_tokens"], eos_token_id=-1)
            while len(results) < len(some):
                result = manager.get_result(timeout=1)
                if result is not None and result.is_finished():
                    results[int(result.request_id)] = result.generated_tokens
                elif result is None and not manager.is_running():
                    raise RuntimeError("transformers' continuous batching has stopped")
        return [results[number] for number in range(len(some))]

    return serve


def minipaged(args: argparse.Namespace, work: Work, **options: Any) -> Serve:
    """Our engine; `options` turn its ideas off. Nothing is found again: a repeat brings the same prompts once more."""
    from minipaged import LLM, SamplingParams

    how = {"num_blocks": args.slots // BLOCK, "block_size": BLOCK, "enable_prefix_caching": False}
    return same_front_door(LLM(course_model(args), **how, **options), SamplingParams)


def vllm(args: argparse.Namespace, work: Work) -> Serve:
    """vLLM; `args.model` is a folder here."""
    from vllm import LLM, SamplingParams

    block = BLOCK if torch.cuda.is_available() else 32  # its attention on a CPU takes multiples of 32
    llm = LLM(
        args.model,
        dtype=args.dtype,
        block_size=block,
        num_gpu_blocks_override=args.slots // block + 1,  # its tables are padded with one block that nobody gets
        max_model_len=sum(longest(work)),
        max_num_batched_tokens=512,
        enable_prefix_caching=False,
        gpu_memory_utilization=0.5,  # the pool's size is given above; this only has to be free
    )
    return same_front_door(llm, SamplingParams)


def same_front_door(llm: Any, sampling_params: Any) -> Serve:
    """What serves through `llm.generate`, which is called in one way in minipaged and in vLLM."""

    def serve(some: Work) -> list[list[int]]:
        params = [sampling_params(temperature=0, max_tokens=w["max_tokens"], ignore_eos=True) for w in some]
        outputs = llm.generate([{"prompt_token_ids": w["prompt"]} for w in some], params, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]

    return serve


WAYS: dict[str, Callable[[argparse.Namespace, Work], Serve]] = {
    "transformers `generate`, static batches": transformers_static,
    "transformers continuous batching": transformers_continuous,
    "minipaged, static + reserved": partial(minipaged, batching="static", reserve="max_len"),
    "minipaged, continuous + reserved": partial(minipaged, reserve="max_len"),
    "minipaged, continuous + paged": minipaged,
    "vLLM": vllm,
}
STATIC, CONTINUOUS, _, _, OURS, VLLM = WAYS
MARK = "RESULT "  # what begins the one line that counts in an output with other people's messages


# ---- one process for each


def measure(args: argparse.Namespace, work: Work) -> None:
    """In a process of its own: print (seconds of the fastest run, tokens)."""
    logging.getLogger("transformers").setLevel(logging.ERROR)
    serve = WAYS[args.way](args, work)
    serve([{**w, "max_tokens": 4} for w in work[:2]])
    best, tokens = float("inf"), []
    for _ in range(args.repeats):
        start = time.perf_counter()
        tokens = serve(work)
        best = min(best, time.perf_counter() - start)
    print(MARK + json.dumps([best, tokens]), flush=True)


def in_own_process(python: str, way: str, args: argparse.Namespace) -> tuple[float, list[list[int]]]:
    """(seconds of the fastest run, tokens) of one way."""
    options = {name: value for name, value in vars(args).items() if name != "vllm_python" and value is not None}
    flags = [f"--{name}={value}" for name, value in (options | {"way": way}).items()]
    done = subprocess.run([python, __file__, *flags], capture_output=True, text=True, encoding="utf-8")
    lines = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    if not lines:
        causes = [line for line in (done.stdout + done.stderr).splitlines() if "Error: " in line]  # the first one
        raise SystemExit(f"{way} did not answer:\n" + "\n".join(causes[:5] or done.stderr.splitlines()[-20:]))
    seconds, tokens = json.loads(lines[0].removeprefix(MARK))
    return seconds, tokens


# ---- the table


def machine() -> str:
    """What this ran on, in words."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = info.read_text(encoding="utf-8", errors="replace").splitlines()
        found = [line.partition(":")[2].strip() for line in lines if "model name" in line]
        name = found[0] if found else name
    return f"{torch.get_num_threads()} cores of {name}"


def table(rows: dict[str, tuple[float, list[list[int]]]]) -> str:
    """The Markdown table: tokens per second, ratios to both of transformers' ways, requests with equal tokens."""
    wanted = rows[CONTINUOUS][1]
    speed = {name: sum(map(len, wanted)) / seconds for name, (seconds, _) in rows.items()}
    lines = [
        "| who | tokens/s | x transformers static | x transformers continuous | requests with the same tokens |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, (_, tokens) in rows.items():
        same = sum(a == b for a, b in zip(tokens, wanted, strict=True))
        ratios = f"{speed[name] / speed[STATIC]:.2f} | {speed[name] / speed[CONTINUOUS]:.2f}"
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
    parser.add_argument("--way", choices=WAYS, help="measure this one here and print its seconds and tokens as JSON")
    args = parser.parse_args()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    work = json.loads((ROOT / "tests" / "cases" / "serving_32.json").read_text(encoding="utf-8"))[: args.requests]
    if args.way:
        measure(args, work)
        return

    folder = str(Path(course_model(args).name_or_path).resolve())  # fetches the model where it is missing
    rows = {}
    for way in WAYS:
        if way == VLLM and not args.vllm_python:
            continue
        print(f"{way} ...", file=sys.stderr, flush=True)
        if way == VLLM:
            args.model = folder  # where the others have it from: vLLM knows no name of ours
        rows[way] = in_own_process(args.vllm_python if way == VLLM else sys.executable, way, args)

    count = sum(w["max_tokens"] for w in work)
    digest = hashlib.sha256(json.dumps(rows[OURS][1]).encode()).hexdigest()[:12]
    print(f"{len(work)} requests, {count} tokens written, {args.slots} KV slots, {args.dtype}, {machine()}")
    print(f"torch {torch.__version__}, digest of minipaged's tokens {digest}\n")
    print(table(rows))


if __name__ == "__main__":
    main()
