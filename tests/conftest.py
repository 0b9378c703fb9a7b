"""Shared by all tests: no network, the course's model once, and no silent skips in CI."""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported, here and in every notebook kernel
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
if workers := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 0)):  # they share the cores, and so do their kernels
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // workers)))

import pytest
import torch

if not torch.cuda.is_available():  # before anything imports Triton: its interpreter is chosen when it loads
    os.environ.setdefault("TRITON_INTERPRET", "1")

IN_CI = os.environ.get("CI", "").lower() in ("1", "true")


# With several workers a file goes to the first one that is free: these take longest, so they come first.
LONGEST_FIRST = [
    "test_paged_cache.py",
    "test_triton_kernels.py",
    "test_browser.py",
    "test_model_runner.py",
    "test_engine.py",
    "test_browser_ch05.py",
    ".ipynb",
    "test_triton_compile.py",
    "test_speculative.py",
    "test_kv_size_families.py",
    "test_exercises.py",
]


def pytest_collection_modifyitems(items):
    """Bring the longest files to the front; the order within a file stays."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        rank = {name: place for place, name in enumerate(LONGEST_FIRST)}
        items.sort(key=lambda item: min((r for name, r in rank.items() if item.path.name.endswith(name)), default=99))


def pytest_collectstart(collector):
    """nbval: never compare what differs between equal runs (progress bars, pictures, widget ids)."""
    if hasattr(collector, "skip_compare"):
        collector.skip_compare += (
            "stderr", "image/png", "image/svg+xml", "application/vnd.jupyter.widget-view+json",
        )  # fmt: skip


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """In CI a skipped test is a failure: a check that did not run has shown nothing."""
    outcome = yield
    report = outcome.get_result()
    if IN_CI and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped in CI: {report.longrepr}"


@pytest.fixture(scope="session")
def course_model():
    """(model, tokenizer) of the course, float32 on the CPU."""
    from minipaged.models import load_model

    return load_model(device="cpu", dtype="float32")
