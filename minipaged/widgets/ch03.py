"""Chapter 3's live widgets: any row of any head of a real model, and a query and a key that move together."""

from __future__ import annotations

from collections.abc import Sequence

import ipywidgets as widgets
import numpy as np

from minipaged.errors import InvalidInputError
from minipaged.plots import ch03 as plots
from minipaged.plots.base import Picture
from minipaged.widgets.base import Panel
from minipaged.widgets.words import say


def shares_of(scores: np.ndarray, masked: bool) -> np.ndarray:
    """Softmax of one head's [length, length] scores, with the future hidden or not."""
    hidden = np.triu(np.ones(scores.shape, dtype=bool), 1) if masked else np.zeros(scores.shape, dtype=bool)
    parts = np.where(hidden, -np.inf, scores)
    parts = np.exp(parts - parts.max(axis=-1, keepdims=True))
    return parts / parts.sum(axis=-1, keepdims=True)


def attention_explorer(
    scores: np.ndarray, tokens: Sequence[str], *, layer: int = 0, head: int = 0, token: int | None = None
) -> Panel:
    """Light one row of the score matrix of any head; switch the mask off to see the future leak in.

    Args:
        scores: [layers, heads, length, length], scaled and not masked, computed beforehand.
        tokens: the text of each token.
        layer, head, token: where to start; None starts at the last token.
    """
    scores = np.asarray(scores, dtype=np.float64)
    if scores.ndim != 4 or scores.shape[2:] != (len(tokens), len(tokens)):
        raise InvalidInputError(
            f"scores have shape {list(scores.shape)} and there are {len(tokens)} tokens; pass "
            f"[layers, heads, {len(tokens)}, {len(tokens)}]"
        )
    layers, heads = scores.shape[:2]

    def draw(token: int, layer: int, head: int, mask: bool) -> Picture:
        where = say("03.explorer.where", layer=layer, head=head)
        return plots.score_row(shares_of(scores[layer, head], mask), tokens, token, where, masked=mask)

    start = len(tokens) - 1 if token is None else token
    controls = {
        "token": _slider("03.explorer.token", start, len(tokens) - 1),
        "layer": _slider("03.explorer.layer", layer, layers - 1),
        "head": _slider("03.explorer.head", head, heads - 1),
        "mask": widgets.Checkbox(value=True, indent=False, description=say("03.explorer.mask")),
    }
    return Panel(draw, controls)


def rope_explorer(q: np.ndarray, k: np.ndarray, theta: float = 10_000.0, *, last: int = 2000) -> Panel:
    """Move a query and a key along the text: only their distance changes the score.

    Args:
        q, k: [head_dim] each, before any rotation, from a real head.
        theta: the model's RoPE base.
        last: the largest shift.
    """
    q, k = np.asarray(q, dtype=np.float64), np.asarray(k, dtype=np.float64)
    half = len(q) // 2
    frequency = theta ** -(np.arange(half) / half)  # [head_dim / 2] radians a token
    # A pair (a, b) is the complex number a + ib; turning it by an angle is a product with exp(i angle).
    product = (q[:half] + 1j * q[half:]) * np.conj(k[:half] + 1j * k[half:])  # [head_dim / 2]

    def score(query_at: int, key_at: int) -> float:
        turn = np.exp(1j * query_at * frequency) * np.exp(-1j * key_at * frequency)
        return float((product * turn).real.sum() / np.sqrt(len(q)))

    def draw(shift: int, distance: int, pair: int) -> Picture:
        pairs = [(distance, 0), (shift + distance, shift)]
        shown = plots.rope_clocks(pairs, float(frequency[pair]), [score(*at) for at in pairs])
        turn = say("03.rope.turn", pair=pair, degrees=np.degrees(frequency[pair]))
        return Picture(shown.figure, f"{turn} {shown.sentence}", data=shown.data)

    controls = {
        "shift": _slider("03.rope.shift", min(100, last), last),
        "distance": _slider("03.rope.distance", 4, 32),
        "pair": _slider("03.rope.pair", 2, half - 1),
    }
    return Panel(draw, controls)


def _slider(key: str, value: int, largest: int) -> widgets.IntSlider:
    return widgets.IntSlider(value=value, min=0, max=largest, continuous_update=False, description=say(key))
