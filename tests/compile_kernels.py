"""Compile the kernels for real chips, without one: python -m tests.compile_kernels [TARGET ...]

Prints one JSON line per kernel, target and dtype: shared memory, registers, bytes spilled (ptxas -v), binary size.
Runs in a process of its own, because Triton's interpreter and its compiler cannot both be loaded in one.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile

os.environ["TRITON_INTERPRET"] = "0"

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from minipaged import triton_kernels as kernels

TARGETS = {**{f"sm_{cc}": GPUTarget("cuda", cc, 32) for cc in (75, 80, 86, 89, 90, 100, 120)},
           "gfx942": GPUTarget("hip", "gfx942", 64)}  # fmt: skip
# Most shared memory that one program may use on each, in bytes (CUDA C++ programming guide, technical specifications
# per compute capability; CDNA 3 instruction set architecture: 64 KiB local data share).
SHARED_LIMIT = {"sm_75": 65_536, "sm_80": 166_912, "sm_86": 101_376, "sm_89": 101_376, "sm_90": 232_448,
                "sm_100": 232_448, "sm_120": 101_376, "gfx942": 65_536}  # fmt: skip
DTYPES = {"fp16": "fp16", "bf16": "bf16", "fp32": "fp32"}
INT_POINTERS = {"tables", "seq_lens", "q_rows", "seqs", "starts", "tile_seqs", "tile_tokens"}
FLOAT_POINTERS = {"parts", "tops", "totals"}
FLOATS = {"scale", "softcap"}


def signature(kernel, dtype, constants):
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


def configurations(dtype, head_dim, target):
    """(kernel, constants) as they are launched on this chip for Llama-3-like heads: group 4, block 16."""
    dot = target != "sm_75"
    group, pad = 4, triton.next_power_of_2(head_dim)
    common = kernels._Common.__new__(kernels._Common)
    common.use_dot, common.constants = dot, {"K_PAD": pad, "V_PAD": pad}
    shared = {"GROUP": group, "BLOCK_SIZE": 16, "K_DIM": head_dim, "V_DIM": head_dim, "K_PAD": pad, "V_PAD": pad,
              "HAS_WINDOW": False, "HAS_CAP": False, "HAS_SINKS": False, "USE_DOT": dot, "UPCAST": False,
              "sinks": None}  # fmt: skip
    decode_rows = kernels.rows_for_dot(group, dot)
    mixed_rows = max(kernels.rows_for_dot(64 if dot else 4, dot), decode_rows)
    decode = {**shared, "ROWS": decode_rows, "TILE": common.tile(decode_rows)}
    size = 8 * head_dim
    yield kernels.store_kernel, {"K_SIZE": size, "V_SIZE": size, "K_PAD": size, "V_PAD": size}
    yield kernels.decode_kernel, decode
    yield kernels.split_kernel, decode
    yield kernels.merge_kernel, {"V_DIM": head_dim, "V_PAD": pad, "SPLITS": 16}
    yield kernels.mixed_kernel, {**shared, "ROWS": mixed_rows, "TILE": common.tile(mixed_rows)}


def spills(ptx, target):
    """What the bundled ptxas -v says: (registers, bytes spilled)."""
    from triton.knobs import nvidia

    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        arch = re.search(r"\.target (sm_\w+)", ptx).group(1)
        tool = nvidia.ptxas_blackwell if int(target[3:]) >= 100 else nvidia.ptxas
        done = subprocess.run([tool.path, "-v", f"--gpu-name={arch}", file.name, "-o", os.devnull],
                              capture_output=True, text=True, check=True)  # fmt: skip
    registers = re.search(r"Used (\d+) registers", done.stderr)
    return int(registers.group(1)), sum(map(int, re.findall(r"(\d+) bytes spill", done.stderr)))


def main(names):
    for target in names or TARGETS:
        for dtype in DTYPES:
            if target == "sm_75" and dtype == "bf16":
                continue  # a T4 has none
            for head_dim in (64, 128):
                for kernel, constants in configurations(dtype, head_dim, target):
                    source = ASTSource(kernel, signature(kernel, dtype, constants), constants)
                    compiled = triton.compile(source, target=TARGETS[target])
                    row = {"kernel": kernel.__name__, "target": target, "dtype": dtype, "head_dim": head_dim,
                           "shared": compiled.metadata.shared}  # fmt: skip
                    if target.startswith("sm_"):
                        row["registers"], row["spilled"] = spills(compiled.asm["ptx"], target)
                    else:
                        row["binary"] = len(compiled.asm["hsaco"])
                    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
