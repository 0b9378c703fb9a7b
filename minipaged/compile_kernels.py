"""Chapter 9. Compile the kernels for real chips, without one: python -m minipaged.compile_kernels [sm_90 fp16 128 ...]

    kernel + types of its arguments + constants  ->  Triton IR  ->  PTX  ->  machine code        (NVIDIA; AMD alike)

Prints one JSON line per kernel, target and dtype: shared memory, registers, bytes spilled (`ptxas -v`), binary size.
Always a process of its own, because Triton's interpreter and its compiler cannot both be loaded in one.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

os.environ["TRITON_INTERPRET"] = "0"

from minipaged import triton_kernels as kernels  # says what is missing when Triton is
from minipaged.errors import MissingPackageError

import triton  # isort: skip
from triton.backends.compiler import GPUTarget  # isort: skip
from triton.compiler import ASTSource  # isort: skip

TARGETS = {**{f"sm_{cc}": GPUTarget("cuda", cc, 32) for cc in (75, 80, 86, 89, 90, 100, 120)},
           "gfx942": GPUTarget("hip", "gfx942", 64)}  # fmt: skip
# Most shared memory that one program may use on each, in bytes (CUDA C++ programming guide, technical specifications
# per compute capability; CDNA 3 instruction set architecture: 64 KiB local data share).
SHARED_LIMIT = {"sm_75": 65_536, "sm_80": 166_912, "sm_86": 101_376, "sm_89": 101_376, "sm_90": 232_448,
                "sm_100": 232_448, "sm_120": 101_376, "gfx942": 65_536}  # fmt: skip
# PTX instructions worth knowing by sight: loads, copies to on-chip memory, products on tensor cores, exponentials.
WATCHED = ("ld.global", "cp.async.cg", "mma.sync", "wgmma.mma_async", "fma.rn.f32", "ex2.approx", "st.global")
DTYPES = ("fp16", "bf16", "fp32")
INT_POINTERS = {"tables", "seq_lens", "q_rows", "seqs", "starts", "tile_seqs", "tile_tokens"}
FLOAT_POINTERS = {"parts", "tops", "totals"}
FLOATS = {"scale", "softcap"}


def signature(kernel: Any, dtype: str, constants: dict[str, Any]) -> dict[str, str]:
    """Argument name -> Triton type, for a kernel whose tensors are `dtype`."""
    types = {}
    for name in kernel.arg_names:
        if name in constants:
            types[name] = "constexpr"
        elif name == "slots":
            types[name] = "*i64"
        elif name in INT_POINTERS:
            types[name] = "*i32"
        elif name in FLOAT_POINTERS:
            types[name] = "*fp32"
        elif name in FLOATS:
            types[name] = "fp32"
        elif name.endswith(("stride", "num_heads", "num_kv_heads", "num_splits", "window")):
            types[name] = "i32"
        else:
            types[name] = f"*{dtype}"
    return types


def aligned(kernel: Any, constants: dict[str, Any]) -> dict[tuple[int], list[list[Any]]]:
    """What a launch tells the compiler about torch's tensors: each begins at a multiple of 16 bytes.

    Without it every number is loaded alone, nothing is copied ahead, and the compiled kernel is not the launched one.
    """
    types = signature(kernel, "fp16", constants)
    hinted = [i for i, (name, kind) in enumerate(types.items()) if kind[0] == "*" or name in ("k_stride", "v_stride")]
    return {(i,): [["tt.divisibility", 16]] for i in hinted}


def configurations(dtype: str, head_dim: int, target: str) -> Iterator[tuple[Any, dict[str, Any]]]:
    """(kernel, constants) as they are launched on this chip for Llama-3-like heads: group 4, block 16."""
    dot = target != "sm_75"  # a T4 has no path for tl.dot that is worth taking
    group, pad, num_bytes = 4, triton.next_power_of_2(head_dim), 4 if dtype == "fp32" else 2
    shared = {"GROUP": group, "BLOCK_SIZE": 16, "K_DIM": head_dim, "V_DIM": head_dim, "K_PAD": pad, "V_PAD": pad,
              "HAS_WINDOW": False, "HAS_CAP": False, "HAS_SINKS": False, "USE_DOT": dot, "UPCAST": False,
              "sinks": None}  # fmt: skip
    decode = {**shared, **kernels.decode_sizes(group, pad, num_bytes, dot)}
    size = 8 * head_dim
    yield kernels.store_kernel, {"K_SIZE": size, "V_SIZE": size, "K_PAD": size, "V_PAD": size}
    yield kernels.decode_kernel, decode
    yield kernels.split_kernel, decode
    yield kernels.merge_kernel, {"V_DIM": head_dim, "V_PAD": pad, "SPLITS": kernels.MOST_SPLITS}
    yield kernels.mixed_kernel, {**shared, **kernels.mixed_sizes(group, pad, num_bytes, dot, longest=1000)}


def build(kernel: Any, constants: dict[str, Any], target: str, dtype: str) -> Any:
    """Compile one kernel for one chip, as a launch there would."""
    options = {name: constants[name] for name in ("num_warps", "num_stages") if name in constants}
    constants = {name: value for name, value in constants.items() if name not in options}
    source = ASTSource(kernel, signature(kernel, dtype, constants), constants, aligned(kernel, constants))
    return triton.compile(source, target=TARGETS[target], options=options)


def compiled(target: str, dtype: str, head_dim: int) -> Iterator[dict[str, Any]]:
    """A row of the table for each kernel: shared memory, registers, bytes spilled, or the binary's size."""
    for kernel, constants in configurations(dtype, head_dim, target):
        built = build(kernel, constants, target, dtype)
        row = {"kernel": kernel.__name__, "target": target, "dtype": dtype, "head_dim": head_dim,
               "shared": built.metadata.shared, "limit": SHARED_LIMIT[target],
               "tf32": "tf32" in code(built), "instructions": instructions(code(built))}  # fmt: skip
        if target.startswith("sm_"):
            row["registers"], row["spilled"] = spills(built.asm["ptx"], target)
            row.update(reads(built.asm["ptx"]))
        else:
            row["binary"] = len(built.asm["hsaco"])
        yield row


def code(built: Any) -> str:
    """The text closest to the machine: PTX, or AMD's assembly."""
    return built.asm.get("ptx") or built.asm["amdgcn"]


def instructions(text: str) -> dict[str, int]:
    """How often the instructions that chapter 9 reads occur in the text."""
    return {name: n for name in WATCHED if (n := len(re.findall(rf"^\s*(?:@\S+ )?{re.escape(name)}", text, re.M)))}


def reads(ptx: str) -> dict[str, Any]:
    """How K and V arrive: the largest piece in bytes, and whether copies to on-chip memory run ahead of their use."""
    pieces = [int(size, 16) for size in re.findall(r"cp\.async\.c[ag]\.shared\.global .*?, 0x([0-9a-f]+)", ptx)]
    pieces += [4 * int(words) for words in re.findall(r"ld\.global\.v(\d)\.b32", ptx)]
    return {"bytes_at_once": max(pieces, default=0), "copies_ahead": "cp.async" in ptx}


def spills(ptx: str, target: str) -> tuple[int, int]:
    """What the bundled ptxas -v says: (registers, bytes spilled)."""
    nvidia = triton.knobs.nvidia

    with tempfile.NamedTemporaryFile("w", suffix=".ptx", encoding="utf-8") as file:
        file.write(ptx)
        file.flush()
        arch = re.findall(r"\.target (sm_\w+)", ptx)[0]
        tool = nvidia.ptxas_blackwell if int(target[3:]) >= 100 else nvidia.ptxas
        done = subprocess.run([tool.path, "-v", f"--gpu-name={arch}", file.name, "-o", os.devnull],
                              capture_output=True, text=True, check=True)  # fmt: skip
    registers = int(re.findall(r"Used (\d+) registers", done.stderr)[0])
    return registers, sum(map(int, re.findall(r"(\d+) bytes spill", done.stderr)))


def require_new_triton() -> None:
    """Say so where Triton's compiler is called in another way than here (it is older than 3.4)."""
    if not hasattr(triton, "knobs"):
        raise MissingPackageError(
            f"compiling for chips that are not here needs Triton 3.4 or later, and this is {triton.__version__}: "
            "torch 2.8 or later brings one"
        )


def main(args: list[str]) -> None:
    """Arguments choose targets, dtypes and head sizes; without one of a kind, all of them."""
    require_new_triton()
    targets = [name for name in TARGETS if name in args] or list(TARGETS)
    dtypes = [name for name in DTYPES if name in args] or list(DTYPES)
    head_dims = [dim for dim in (64, 128) if str(dim) in args] or [64, 128]
    for target, dtype, head_dim in itertools.product(targets, dtypes, head_dims):
        if (target, dtype) != ("sm_75", "bf16"):  # a T4 has none
            for row in compiled(target, dtype, head_dim):
                print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
