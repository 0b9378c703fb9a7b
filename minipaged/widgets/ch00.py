"""Widgets of chapter 0: `passes_panel`, passes counted as text appears.

The generations are made before the widget is: a callback draws and never runs a model.
"""

from __future__ import annotations

from collections.abc import Mapping

from minipaged.errors import InvalidInputError
from minipaged.plots.base import Picture
from minipaged.plots.ch00 import Run, generation_step
from minipaged.widgets.base import Panel, widgets
from minipaged.widgets.words import say


def passes_panel(runs: Mapping[str, Run], *, passes: int = 0) -> Panel:
    """Step through finished generations pass by pass, with or without a cache.

    Args:
        runs: question -> its generation; at least one.
        passes: where the slider stands at first.

    Raises:
        InvalidInputError: there is no run.
    """
    if not runs:
        raise InvalidInputError("runs is empty; give at least one: {question: Run(...)}")
    longest = max(len(run.pieces) for run in runs.values())

    def draw(question: str, step: int, cache: bool) -> Picture:
        return generation_step(runs[question], step, cached=cache)

    controls = {
        "question": widgets.Dropdown(options=list(runs), description=say("00.passes.question")),
        "step": widgets.IntSlider(
            value=passes, min=0, max=longest, description=say("00.passes.step"), continuous_update=False
        ),
        "cache": widgets.Checkbox(value=True, description=say("00.passes.cache"), indent=False),
    }
    panel = Panel(draw, controls, above=say("00.passes.above"))
    play = widgets.Play(value=passes, min=0, max=longest, interval=700)
    panel.link = widgets.jslink((play, "value"), (controls["step"], "value"))
    panel.children = (panel.children[0], widgets.HBox([play, *panel.children[1].children]), *panel.children[2:])
    panel.children[1].layout.flex_flow = "row wrap"
    return panel
