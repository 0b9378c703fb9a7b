"""Every word that a reader sees on a widget, in one table, so that another language can be added beside it.

Keys are "chapter.widget.part". Values are format strings; the numbers are filled in by the widget.
"""

from __future__ import annotations

from typing import Any

WORDS: dict[str, str] = {
    # 00 start here
    "00.passes.question": "question",
    "00.passes.step": "passes so far",
    "00.passes.cache": "keep K and V (cache)",
    "00.passes.above": "Press play, or move the slider: one step is one pass of the model.",
    # 01 autoregressive decoding
    # 02 tensor shapes
    # 03 attention
    # 04 naive KV cache
    # 05 KV cache size
    # 06 fragmentation
    # 07 paged KV cache
}


def say(key: str, **values: Any) -> str:
    """The words for `key` with `values` filled in."""
    return WORDS[key].format(**values)
