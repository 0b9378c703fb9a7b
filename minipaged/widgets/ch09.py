"""Widgets of chapter 9: choose a program of the launch grid and see what it reads."""

from __future__ import annotations

import ipywidgets as widgets

from minipaged.plots.base import Picture
from minipaged.plots.ch09 import launch_grid
from minipaged.widgets.base import Panel
from minipaged.widgets.words import say


def choose_program(
    tables: list[list[int]],
    lens: list[int],
    num_kv_heads: int,
    num_blocks: int,
    block_size: int,
    reads: dict[tuple[int, int], set[int]],
) -> Panel:
    """Step through the programs of a launch; the numbers of K that each one read light up in the pool.

    Args:
        reads: (sequence, KV head) -> what that program read, as slot * num_kv_heads + kv_head, seen while it ran.
    """

    def draw(program: int) -> Picture:
        chosen = divmod(program, num_kv_heads)
        return launch_grid(tables, lens, num_kv_heads, num_blocks, block_size, chosen, sorted(reads[chosen]))

    last = len(tables) * num_kv_heads - 1
    program = widgets.IntSlider(description=say("09.program"), min=0, max=last, value=0, continuous_update=False)
    panel = Panel(draw, {"program": program}, above=say("09.program.above"))
    panel.play = widgets.Play(min=0, max=last, interval=900, description=say("09.program.play"))
    panel.link = widgets.jslink((panel.play, "value"), (program, "value"))
    panel.children = (panel.play, *panel.children)
    return panel
