"""Chapter 8's live widget: walk a block table one block at a time, and watch maximum, sum and output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import ipywidgets as widgets
import numpy as np

from minipaged.block_manager import shuffled
from minipaged.errors import InvalidInputError
from minipaged.plots import ch08 as plots
from minipaged.plots.base import Picture
from minipaged.widgets.base import Panel
from minipaged.widgets.words import say

ORDERS = ("forward", "backward", "shuffled")


def reading_order(name: str, num_blocks: int) -> list[int]:
    """Logical blocks in the order in which they are read."""
    if name == "shuffled":
        return shuffled(num_blocks, 1)
    return list(range(num_blocks)) if name == "forward" else list(reversed(range(num_blocks)))


def block_stepper(
    heads: Mapping[str, tuple[np.ndarray, np.ndarray]],
    labels: Sequence[str],
    table: Sequence[int],
    block_size: int,
    *,
    step: int = 0,
) -> Panel:
    """Step over the blocks of one query's keys; choose the head and the order, or forget to shrink the older part.

    Args:
        heads: name -> (scores [n], values [n, v_dim]) of one query, computed beforehand.
        labels: the text of each of the n tokens.
        table: the block table.
        block_size: slots in a block.
        step: how many blocks are read at first.
    """
    ready = {name: (np.asarray(s, dtype=np.float64), np.asarray(v, dtype=np.float64)) for name, (s, v) in heads.items()}
    blocks = -(-len(labels) // block_size)
    for name, (scores, values) in ready.items():
        if not len(scores) == len(values) == len(labels) or blocks != len(table):
            raise InvalidInputError(
                f"{name}: {len(scores)} scores, {len(values)} values, {len(labels)} labels in {len(table)} blocks of "
                f"{block_size}; pass one of each for every token, and {blocks} blocks"
            )

    def draw(step: int, head: str, order: str, forget: bool) -> Picture:
        scores, values = ready[head]
        read = reading_order(order, blocks)
        return plots.online_step(scores, values, labels, table, block_size, step, order=read, shrink=not forget)

    orders = [(say(f"08.stepper.{name}"), name) for name in ORDERS]
    controls = {
        "step": widgets.IntSlider(step, 0, blocks, continuous_update=False, description=say("08.stepper.step")),
        "head": widgets.Dropdown(options=list(ready), description=say("08.stepper.head")),
        "order": widgets.Dropdown(options=orders, description=say("08.stepper.order")),
        "forget": widgets.Checkbox(value=False, indent=False, description=say("08.stepper.forget")),
    }
    return Panel(draw, controls, above=say("08.stepper.above"))
