"""minipaged: how language models use memory when they generate text, as a small library and the course that builds it.

One module per idea, in the order of the chapters. Read them top to bottom:

    models, sampling, decoding       text in, text out                      chapters 0-1
    shapes, attention                what a layer computes                  chapters 2-3
    kv_cache, kv_size                keeping K and V, and what that costs   chapters 4-5
    fragmentation, block_manager,
    paged_cache                      where the memory goes, and paging it   chapters 6-7
    paged_attention, model_runner    attention across blocks, whole models  chapter 8
    triton_kernels                   the same, as GPU kernels               chapter 9
    scheduler, engine                many requests in one budget            chapter 10
    sharing, beam_search             blocks that several sequences name     chapter 11
    speculative                      guesses, verified in one pass          chapter 12

Names are handed out when first used, so that `import minipaged.kv_size` does not wait for torch.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

# Public name -> the module that defines it. A name equal to a module's is never exported here:
# `minipaged.attention` is the module, always.
_HOME = {
    "MinipagedError": "errors",
    "use_language": "language",
    "load_model": "models",
    "SamplingParams": "sampling",
    "KVCacheSpec": "kv_size",
    "ModelRunner": "model_runner",
    "LLM": "engine",
}

__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    """Import the module that defines a public name when the name is first asked for (PEP 562)."""
    if name in _HOME:
        value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
