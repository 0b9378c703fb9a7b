"""Widgets of chapter 4: one pass with and without a cache, and one decode step on a GPU you choose.

    tokens so far, new ones       -> which rows of the matrix are computed
    model, GPU, context, batch    -> FLOPs, bytes read, share of recomputation, memory-bound or compute-bound

All numbers come from `minipaged.kv_cache`; the GPUs' from their data sheets. Left out: measuring.
"""

from __future__ import annotations

from collections.abc import Sequence

from minipaged.errors import require
from minipaged.kv_cache import GPUS, DecoderShape
from minipaged.plots.base import Picture
from minipaged.plots.ch04 import one_pass, one_step
from minipaged.widgets.base import Panel
from minipaged.widgets.words import say

widgets = require("ipywidgets", "a live widget")

# layers, hidden, MLP, heads, KV heads, head_dim, vocabulary: from each model's published config.json
MODELS = {
    shape.name: shape
    for shape in (
        DecoderShape("SmolLM2-135M", 30, 576, 1536, 9, 3, 64, 49152),
        DecoderShape("Llama-2-7B", 32, 4096, 11008, 32, 32, 128, 32000),
        DecoderShape("Llama-3-8B", 32, 4096, 14336, 32, 8, 128, 128256),
    )
}
CONTEXTS = [2**n for n in range(4, 16)]
BATCHES = [2**n for n in range(11)]


def pass_panel(tokens: Sequence[str]) -> Panel:
    """Move through a text: how many tokens there are, and how many of them are fed in this pass."""

    def draw(length: int, new: int) -> Picture:
        return one_pass(tokens[:length], min(new, length))

    last = len(tokens)
    controls = {
        "length": _slider(last, last, "04.pass.length"),
        "new": _slider(1, min(8, last), "04.pass.new"),
    }
    return Panel(draw, controls)


def _slider(value: int, last: int, words: str) -> widgets.IntSlider:
    return widgets.IntSlider(value=value, min=1, max=last, description=say(words), continuous_update=False)


def step_panel(model: str = "Llama-2-7B", gpu: str = "A100 80GB SXM", held: int = 1024, batch: int = 1) -> Panel:
    """One decode step: choose model, GPU and sequences; see what is computed, read and waited for."""

    def draw(model: str, gpu: str, held: int, batch: int) -> Picture:
        return one_step(MODELS[model], GPUS[gpu], held, batch)

    controls = {
        "model": widgets.Dropdown(options=list(MODELS), value=model, description=say("04.step.model")),
        "gpu": widgets.Dropdown(options=list(GPUS), value=gpu, description=say("04.step.gpu")),
        "held": _choice(CONTEXTS, held, "04.step.held"),
        "batch": _choice(BATCHES, batch, "04.step.batch"),
    }
    return Panel(draw, controls)


def _choice(options: list[int], value: int, words: str) -> widgets.SelectionSlider:
    return widgets.SelectionSlider(options=options, value=value, description=say(words), continuous_update=False)
