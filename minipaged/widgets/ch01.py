"""Chapter 1's live widgets: the next-token bars, cut and renormalised, and a dart at the strip of probabilities.

The model runs before, once a prompt: a callback only filters logits that are already there.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch

from minipaged.plots.base import Picture
from minipaged.plots.ch01 import dart_strip, next_token_bars, readable
from minipaged.sampling import SamplingParams, filter_logits
from minipaged.widgets.base import Panel, widgets
from minipaged.widgets.words import say


def next_token_panel(logits: Mapping[str, torch.Tensor], tokenizer: Any) -> Panel:
    """Bars of the next-token distribution with temperature, top-k, top-p and min-p to move.

    Args:
        logits: prompt -> [vocab], the logits after its last token.
        tokenizer: names the tokens.
    """
    own = {prompt: row.double().softmax(-1) for prompt, row in logits.items()}

    @lru_cache(maxsize=1000)
    def name(token_id: int) -> str:
        return readable(tokenizer, token_id)

    def draw(prompt: str, temperature: float, top_k: int, top_p: float, min_p: float) -> Picture:
        params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
        after = filter_logits(logits[prompt], params).double().softmax(-1)
        return next_token_bars(own[prompt], after, name, prompt)

    controls = {
        "prompt": _prompt(logits),
        "temperature": _slider("01.any.temperature", 1.0, 0.0, 3.0, 0.1),
        "top_k": widgets.IntSlider(value=0, min=0, max=50, description=say("01.bars.top_k"), continuous_update=False),
        "top_p": _slider("01.bars.top_p", 1.0, 0.05, 1.0, 0.05),
        "min_p": _slider("01.bars.min_p", 0.0, 0.0, 0.5, 0.01),
    }
    return Panel(draw, controls, above=say("01.bars.above"))


def dart_panel(logits: Mapping[str, torch.Tensor], tokenizer: Any, keep: int = 10) -> Panel:
    """A strip of the `keep` most probable tokens and a dart to move along it: how a random draw works.

    Args:
        logits: prompt -> [vocab].
        tokenizer: names the tokens.
        keep: how many tokens share the strip (a top-k cut).
    """

    def draw(prompt: str, temperature: float, dart: float) -> Picture:
        params = SamplingParams(temperature=temperature, top_k=keep)
        probs = filter_logits(logits[prompt], params).double().softmax(-1)
        ids = probs.nonzero()[:, 0].tolist()
        return dart_strip([readable(tokenizer, i) for i in ids], probs[ids], dart)

    controls = {
        "prompt": _prompt(logits),
        "temperature": _slider("01.any.temperature", 1.0, 0.1, 3.0, 0.1),
        "dart": _slider("01.dart.dart", 0.5, 0.0, 0.999, 0.001, readout_format=".3f"),
    }
    return Panel(draw, controls, above=say("01.dart.above", keep=keep))


def _prompt(logits: Mapping[str, torch.Tensor]) -> Any:
    return widgets.Dropdown(options=list(logits), description=say("01.any.prompt"))


def _slider(key: str, value: float, low: float, high: float, step: float, **more: Any) -> Any:
    return widgets.FloatSlider(
        value=value, min=low, max=high, step=step, description=say(key), continuous_update=False, **more
    )
