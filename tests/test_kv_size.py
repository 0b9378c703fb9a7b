"""KV cache sizes: published configs, dtypes, tensor parallel, budgets, and errors instead of guesses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from minipaged.kv_size import KVCacheSpec

CASES = json.loads((Path(__file__).parent / "cases" / "kv_bytes_per_token.json").read_text(encoding="utf-8"))["models"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["model"])
def test_bytes_per_token_of_published_configs(case):
    spec = KVCacheSpec.from_config(case["config"])
    assert spec.bytes_per_token() == case["bytes_per_token"]
    assert spec.cache_bytes(100) == 100 * case["bytes_per_token"]
    if "cache_bytes_4096_tokens" in case:
        assert spec.cache_bytes(4096) == case["cache_bytes_4096_tokens"]
