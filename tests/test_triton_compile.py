"""The kernels compile for real chips on a machine without one, spill nothing and fit the on-chip memory."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.version import Version

if importlib.util.find_spec("triton") is None:
    pytest.skip("Triton has wheels for Linux only", allow_module_level=True)
if Version(version("triton")) < Version("3.4"):
    pytest.skip("its compiler is called in another way before 3.4", allow_module_level=True)

ROOT = Path(__file__).resolve().parent.parent
# The whole table is `python -m minipaged.compile_kernels`, two minutes. These are its corners: an old chip without
# bf16, the first with bf16, the newest two, another maker's; the widest heads everywhere.
CORNERS = [("sm_75", "fp16"), ("sm_80", "bf16"), ("sm_90", "fp16"), ("sm_120", "bf16"), ("gfx942", "fp16")]
KERNELS = ["store_kernel", "decode_kernel", "split_kernel", "merge_kernel", "mixed_kernel"]


def compile_rows(*args):
    """In a process of its own: the interpreter and the compiler cannot both be loaded in one."""
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    done = subprocess.run([sys.executable, "-m", "minipaged.compile_kernels", *args], cwd=ROOT, capture_output=True,
                          text=True, env=environment)  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(("target", "dtype"), CORNERS)
def test_16_bit_kernels_spill_nothing_and_fit(target, dtype):
    rows = compile_rows(target, dtype, "128")
    assert [row["kernel"] for row in rows] == KERNELS
    for row in rows:
        assert row["shared"] <= row["limit"], row
        if target.startswith("sm_"):
            assert row["spilled"] == 0, row
    for row in rows[1:3]:
        if target.startswith("sm_"):  # K and V come in the largest pieces there are, early where the chip can do that
            assert row["bytes_at_once"] == 16 and row["copies_ahead"] == (target != "sm_75"), row


def test_float32_fits_and_is_not_rounded_to_tf32():
    """Behaviour 21: float32 products on NVIDIA use TF32 unless told otherwise."""
    rows = compile_rows("sm_90", "fp32", "128") + compile_rows("gfx942", "fp32", "128")
    for row in rows:
        assert row["shared"] <= row["limit"] and not row["tf32"], row


def test_the_gpu_benchmark_runs_on_a_cpu_at_tiny_sizes():
    """Its times are not a number there; what it checks first is right, and the table has its rows."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, ROOT / "benchmarks/paged_attention_gpu.py", "--smoke"], capture_output=True,
                          text=True, env=environment)  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count(", right") == 4 and "WRONG" not in done.stdout
    assert done.stdout.count("| fp16 |") == 4
