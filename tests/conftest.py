"""Shared by all tests: no network, the course's model once, and no silent skips in CI."""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported, here and in every notebook kernel
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
import torch

if not torch.cuda.is_available():  # before anything imports Triton: its interpreter is chosen when it loads
    os.environ.setdefault("TRITON_INTERPRET", "1")

IN_CI = os.environ.get("CI", "").lower() in ("1", "true")


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
