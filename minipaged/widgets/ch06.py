"""Widgets of chapter 6: a pool that can be played and stepped, and what other lengths and pools would waste."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minipaged.fragmentation import (
    FirstFit,
    MaxLength,
    Oracle,
    PowerOfTwo,
    Request,
    lognormal_lengths,
    simulate,
)
from minipaged.plots import ch06 as plots
from minipaged.plots.base import Picture
from minipaged.widgets.base import Panel, widgets
from minipaged.widgets.words import say


def play_pool(requests: Sequence[Request], num_slots: int, *, max_len: int = 64, steps: int = 80) -> Panel:
    """A pool of `num_slots` over `steps` steps under each contiguous allocator: play it, or step by hand.

    The runs are recorded and their maps drawn beforehand, so that a step only cuts the map and draws the strip.
    """
    runs = {}
    for allocator in (FirstFit(max_len), MaxLength(max_len), PowerOfTwo(max_len), Oracle()):
        timeline = simulate(requests, allocator, num_slots, steps=steps, warmup=0, record=True).timeline
        runs[allocator.name] = (timeline, plots.map_image(timeline, num_slots))

    def draw(allocator: str, step: int) -> Picture:
        timeline, image = runs[allocator]
        return plots.pool_player(timeline, image, num_slots, step)

    layout = widgets.Layout(width="420px")
    slider = widgets.IntSlider(
        value=steps // 2,
        min=0,
        max=steps - 1,
        description=say("06.player.step"),
        continuous_update=False,
        layout=layout,
    )
    names = widgets.Dropdown(options=list(runs), value="FirstFit", description=say("06.player.allocator"))
    panel = Panel(draw, {"allocator": names, "step": slider})
    play = widgets.Play(
        value=slider.value, min=0, max=steps - 1, interval=400, description=say("06.player.play")
    )  # 400 ms: two pictures could be drawn in that time
    panel.link = widgets.jslink((play, "value"), (slider, "value"))
    panel.play = play
    panel.children = (play, *panel.children)
    return panel


def what_if(num_requests: int = 400) -> Panel:
    """Your mean lengths, spread, maximum and pool through the four contiguous allocators, 3,000 steps each."""

    def draw(prompt: int, output: int, spread: float, max_len: int, pool: int) -> Picture:
        spreads = {"prompt_cv": spread, "output_cv": spread}
        requests = lognormal_lengths(num_requests, prompt, output, max_len=max_len, seed=0, **spreads)
        allocators = (MaxLength(max_len), PowerOfTwo(max_len), Oracle(), FirstFit(max_len))
        return plots.what_if([simulate(requests, each, pool, steps=3000, warmup=300) for each in allocators])

    def slider(kind: Any, name: str, value: float, low: float, high: float, step: float) -> Any:
        text = say(f"06.whatif.{name}")
        return kind(value=value, min=low, max=high, step=step, description=text, continuous_update=False)

    sizes = [1024, 2048, 4096, 8192, 15728]
    lengths = [256, 512, 1024, 2048]
    return Panel(
        draw,
        {
            "prompt": slider(widgets.IntSlider, "prompt", 80, 1, 500, 1),
            "output": slider(widgets.IntSlider, "output", 170, 1, 500, 1),
            "spread": slider(widgets.FloatSlider, "spread", 0.9, 0.0, 2.0, 0.1),
            "max_len": widgets.Dropdown(options=lengths, value=1024, description=say("06.whatif.max_len")),
            "pool": widgets.Dropdown(options=sizes, value=4096, description=say("06.whatif.pool")),
        },
    )
