"""Widgets of chapter 12: p against q for drafts of different depth, rollback, and when guessing pays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from minipaged.block_manager import BlockManager
from minipaged.plots.base import Picture
from minipaged.plots.ch12 import overlap, rollback, speedup
from minipaged.sampling import SamplingParams
from minipaged.speculative import probabilities
from minipaged.widgets.base import Panel, widgets
from minipaged.widgets.words import say

MOST = 6  # tokens that top-k leaves at most: with all of both drawn, the coloured parts are exact


def target_and_draft(
    target: torch.Tensor,
    drafts: Mapping[int, torch.Tensor],
    names: Mapping[int, str],
    num_layers: int,
    first: int | None = None,
) -> Panel:
    """Layers of the draft, temperature and top-k over the bars of p and q.

    Args:
        target: logits [vocab] of the model.
        drafts: number of layers -> logits [vocab] of the draft with that many.
        names: what to write under a token's bar; a token without a name shows its id.
        num_layers: of the model.
        first: number of layers of the draft that is shown first; None for the deepest.
    """

    def draw(layers: int, temperature: float, top_k: int) -> Picture:
        params = SamplingParams(temperature=temperature, top_k=top_k)
        p, q = probabilities(target, params), probabilities(drafts[layers], params)
        shown = (p + q).nonzero().flatten().tolist()
        shown.sort(key=lambda token: (-float(p[token]), -float(q[token])))
        return overlap([names.get(i, str(i)) for i in shown], p[shown].tolist(), q[shown].tolist())

    depths = list(drafts)
    first = depths[-1] if first is None else first
    controls = {
        "layers": widgets.SelectionSlider(
            options=depths, value=first, description=say("12.overlap.layers"), continuous_update=False
        ),
        "temperature": widgets.FloatSlider(
            1.0, min=0.2, max=2.0, step=0.1, description=say("12.overlap.temperature"), continuous_update=False
        ),
        "top_k": widgets.IntSlider(MOST, 1, MOST, 1, description=say("12.overlap.top_k"), continuous_update=False),
    }
    return Panel(draw, controls, above=say("12.overlap.above", layers=num_layers))


def roll_back() -> Panel:
    """Tokens, block size, guesses and kept guesses over the block table before, in and after one pass."""
    order = [5, 2, 6, 0, 7, 3, 9, 1, 8, 4, *range(10, 40)]

    def draw(tokens: int, size: int, drafted: int, kept: int) -> Picture:
        kept = min(kept, drafted)
        manager = BlockManager(len(order), size, watermark=0, block_order=order)
        manager.allocate(0, range(tokens - 1))  # the newest token is chosen and not yet in the cache
        stages = [(manager.block_table(0), tokens - 1, 0, 0)]
        manager.append_slots(0, 1 + drafted)
        stages.append((manager.block_table(0), tokens, kept, drafted - kept))
        manager.truncate(0, tokens + kept)
        stages.append((manager.block_table(0), tokens + kept, 0, 0))
        return rollback(stages, size)

    def slider(name: str, value: int, low: int, high: int) -> Any:
        return widgets.IntSlider(value, low, high, 1, description=say(f"12.rollback.{name}"), continuous_update=False)

    sizes = widgets.Dropdown(options=[1, 2, 4, 8], value=4, description=say("12.rollback.size"))
    controls = {"tokens": slider("tokens", 15, 2, 24), "size": sizes, "drafted": slider("drafted", 4, 0, 6)}
    controls["kept"] = slider("kept", 1, 0, 6)
    return Panel(draw, controls, above=say("12.rollback.above"))


def pays_or_not(slope: float = 0.02) -> Panel:
    """Quality, draft length and price of a guess over the expected speed-up.

    Args:
        slope: what each more token in the target's pass costs at first, in single steps.
    """

    def draw(rate: float, count: int, cost: float, slope: float) -> Picture:
        return speedup(rate, count, cost, slope=slope)

    def slider(name: str, value: float, high: float, step: float) -> Any:
        text = say(f"12.speedup.{name}")
        return widgets.FloatSlider(value, min=0.0, max=high, step=step, description=text, continuous_update=False)

    controls = {
        "rate": slider("rate", 0.7, 1.0, 0.05),
        "count": widgets.IntSlider(2, 0, 10, 1, description=say("12.speedup.count"), continuous_update=False),
        "cost": slider("cost", 0.1, 1.0, 0.05),
        "slope": slider("slope", slope, 1.0, 0.02),
    }
    return Panel(draw, controls, above=say("12.speedup.above"))
