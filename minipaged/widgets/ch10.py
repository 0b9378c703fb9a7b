"""Widget of chapter 10: twelve requests, one pool, and the four things an operator can turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minipaged.block_manager import BlockManager
from minipaged.plots.base import Picture
from minipaged.plots.ch10 import lines
from minipaged.scheduler import Scheduler, rehearse
from minipaged.widgets.base import Panel, widgets
from minipaged.widgets.words import say

REQUESTS = (
    (20, 30),
    (8, 12),
    (40, 16),
    (6, 44),
    (14, 8),
    (30, 20),
    (5, 36),
    (24, 10),
    (10, 28),
    (50, 6),
    (9, 18),
    (16, 24),
)
POLICIES: dict[str, dict[str, Any]] = {
    "continuous, recompute": {},
    "continuous, swap": {"preemption": "swap"},
    "continuous, longest reserved": {"reserve_len": 56},
    "static, longest reserved": {"batching": "static", "reserve_len": 56},
}


def serve_twelve(requests: Sequence[tuple[int, int]] = REQUESTS, block_size: int = 4) -> Panel:
    """Budget of blocks, tokens a step, policy and load over the lines of twelve requests; the real scheduler runs."""

    def draw(blocks: int, chunk: int, policy: str, load: int) -> Picture:
        manager = BlockManager(blocks, block_size, num_host_blocks=blocks)
        scheduler = Scheduler(manager, 12, chunk, **POLICIES[policy])
        arrivals = [load * i for i in range(len(requests))]
        moments, told = rehearse(scheduler, requests, arrivals)
        return lines(moments, told, blocks, legend=True)

    def slider(name: str, value: int, low: int, high: int, step: int = 1) -> Any:
        text = say(f"10.serve.{name}")
        return widgets.IntSlider(value, low, high, step, description=text, continuous_update=False)

    controls = {
        "blocks": slider("blocks", 30, 14, 80),
        "chunk": widgets.SelectionSlider(
            options=[4, 8, 16, 32, 64, 128], value=32, description=say("10.serve.chunk"), continuous_update=False
        ),
        "policy": widgets.Dropdown(options=list(POLICIES), description=say("10.serve.policy")),
        "load": slider("load", 3, 0, 30),
    }
    return Panel(draw, controls, above=say("10.serve.above"))
