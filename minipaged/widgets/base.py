"""`Panel`: controls above one picture and one sentence, redrawn in place.

The picture is an `Image` whose value changes and the sentence an `HTML` whose value changes: no output is cleared, so
nothing blinks and the cell does not jump. A slider's handle has no accessible name, so the sentence is announced
(`role="status"`). Works on ipywidgets 7.7.1 (Colab) and 8.1. Where no widget can be shown (GitHub, a printed page) the
same output holds the picture of the first state.
"""

from __future__ import annotations

import base64
import html
import unicodedata
from collections.abc import Callable, Mapping
from typing import Any

from minipaged.errors import MinipagedError, require
from minipaged.plots.base import Picture

widgets = require("ipywidgets", "a live widget")
_LINES = "line-height: 1.4"  # a widget's own is as high as a slider


def room(control: Any) -> int:
    """Pixels for a control in which nothing is cut: a slider's track keeps 120, a list shows its longest choice."""
    width = 8 * _columns(control.description)
    if hasattr(control, "readout"):
        return max(300, width + 120 + 95)  # the track, then the number
    if isinstance(control, (widgets.Dropdown, widgets.SelectMultiple)):
        return max(300, width + 8 * max(map(_columns, control._options_labels), default=0) + 50)  # the arrow
    return 300


def _columns(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


class Panel(widgets.VBox):
    """Controls above one picture and its sentence.

    Args:
        draw: a pure function of the controls' values, by name, to a `Picture`; under 100 ms, or give the controls
            `continuous_update=False`.
        controls: name -> ipywidgets control with a `value` and a `description`.
        above: an optional line of HTML above the controls.
    """

    def __init__(self, draw: Callable[..., Picture], controls: Mapping[str, Any], *, above: str = "") -> None:
        self.draw = draw
        self.controls = dict(controls)
        self.image = widgets.Image(
            format="url"
        )  # a data URL is shown at once; a blob leaves a frame blank while it loads
        self.status = widgets.HTML()
        self.sentence = ""
        for control in self.controls.values():
            control.style.description_width = "initial"
            if control.layout.width is None:
                control.layout.width = f"{room(control)}px"
            control.observe(self._redraw, names="value")
        rows = [widgets.HTML(f'<div style="{_LINES}">{above}</div>')] if above else []
        box = widgets.HBox(list(self.controls.values()), layout=widgets.Layout(flex_flow="row wrap"))
        super().__init__([*rows, box, self.image, self.status])
        self._redraw()

    @property
    def values(self) -> dict[str, Any]:
        """The controls' present values by name."""
        return {name: control.value for name, control in self.controls.items()}

    def _redraw(self, _change: Any = None) -> None:
        try:
            self.picture = self.draw(**self.values)
        except MinipagedError as error:  # a value the chapter refuses is a sentence here, not a traceback nobody sees
            self._speak(str(error))
            return
        width, height = self.picture.css_size
        with self.hold_trait_notifications():
            self.image.width, self.image.height = str(width), str(height)
            self.image.value = b"data:image/png;base64," + base64.b64encode(self.picture.png(live=True))
        self._speak(self.picture.sentence)

    def _speak(self, sentence: str) -> None:
        self.sentence = sentence
        frame = '<div role="status" aria-live="polite" style="{}">{}</div>'
        self.status.value = frame.format(_LINES, html.escape(sentence))

    def _ipython_display_(self) -> None:
        """Show the live widget, with its first picture in the same output for readers that show no widgets."""
        from IPython.display import display

        data, metadata = self.picture.bundle()
        data["text/plain"] = self.picture.sentence
        view = {"version_major": 2, "version_minor": 0, "model_id": self._model_id}
        data["application/vnd.jupyter.widget-view+json"] = view
        display(data, metadata=metadata, raw=True)
