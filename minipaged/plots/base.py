"""What every picture shares: the style, the colours, and `Picture`, a figure that comes with its sentence.

Figures are built on `matplotlib.figure.Figure`, never through pyplot: a slider callback then leaks no figure and shows
nothing twice. A displayed figure cannot carry alt text in JupyterLab, so each picture prints one sentence made from the
same data: a reader who cannot see the figure gets what it says, and the notebook's tests compare it.
"""

from __future__ import annotations

import base64
import contextlib
import io
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import wraps
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minipaged.errors import require
from minipaged.language import language
from minipaged.plots.fonts import font_for

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's palette: told apart under the common kinds of colour blindness. Its yellow is used only as a fill.
COLOURS = {
    "blue": "#0072B2",
    "orange": "#E69F00",
    "green": "#009E73",
    "pink": "#CC79A7",
    "red": "#D55E00",
    "sky": "#56B4E9",
    "yellow": "#F0E442",
    "black": "#000000",
    "grey": "#8a8a8a",
    "light": "#e6e6e6",
}
_SEQUENCE = ["blue", "orange", "green", "pink", "sky", "red", "yellow"]
_DPI = 144  # pixels drawn per inch; shown at 96, so that text stays sharp
_LIVE_DPI = 110  # for a picture that follows a slider


def colour(index: int) -> str:
    """The colour of sequence `index`: one colour per sequence, the same in every chapter."""
    return COLOURS[_SEQUENCE[index % len(_SEQUENCE)]]


def ink(face: str) -> str:
    """The colour of a text on `face`: white on the dark ones of the palette, black on the others."""
    return "white" if face in (COLOURS["blue"], COLOURS["red"], COLOURS["green"]) else "black"


@contextlib.contextmanager
def style() -> Iterator[None]:
    """Draw inside this to get the course's look, whatever the reader's own matplotlib settings are."""
    matplotlib = require("matplotlib", "drawing a picture")
    sheet = resources.files("minipaged.plots").joinpath("minipaged.mplstyle")
    with resources.as_file(sheet) as path, matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(matplotlib.rc_params_from_file(path, use_default_template=False))
        if font := font_for(language()):  # glyphs that DejaVu lacks come from here
            matplotlib.rcParams["font.family"] = [*matplotlib.rcParams["font.family"], font]
        yield


def new_figure(width: float = 7.5, height: float = 3.0, **subplots: Any) -> tuple[Figure, Any]:
    """A figure and its axes, in inches, in the course's style; `subplots` goes to `Figure.subplots`."""
    require("matplotlib", "drawing a picture")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    return figure, figure.subplots(**subplots)


@dataclass(frozen=True)
class Picture:
    """A figure and the sentence that says what it shows.

    Attributes:
        figure: the matplotlib figure.
        sentence: one sentence, made from the data, that a reader without the figure can use.
        data: what was drawn, for tests (images are never compared).
    """

    figure: Figure
    sentence: str
    data: Any = None

    def png(self, live: bool = False) -> bytes:
        """The figure as PNG bytes, opaque, sharp on a high-resolution screen; `live` draws it faster and coarser."""
        buffer = io.BytesIO()
        dpi, effort = (_LIVE_DPI, 1) if live else (_DPI, 9)
        with style():
            self.figure.savefig(
                buffer, format="png", dpi=dpi, metadata={"Software": None}, pil_kwargs={"compress_level": effort}
            )
        return buffer.getvalue()

    @property
    def css_size(self) -> tuple[int, int]:
        """Width and height in CSS pixels (96 to the inch) at which the PNG is shown."""
        width, height = self.figure.get_size_inches()
        return round(width * 96), round(height * 96)

    def save(self, path: str | Path) -> None:
        """Write the PNG to `path`."""
        Path(path).write_bytes(self.png())

    def bundle(self) -> tuple[dict[str, str], dict[str, Any]]:
        """The picture as a Jupyter display bundle: (data, metadata)."""
        width, height = self.css_size
        data = {"image/png": base64.b64encode(self.png()).decode(), "text/plain": "<picture>"}
        return data, {"image/png": {"width": width, "height": height, "alt": self.sentence}}

    def _ipython_display_(self) -> None:
        from IPython.display import display

        data, metadata = self.bundle()
        display(data, metadata=metadata, raw=True)
        # JupyterLab cuts a long line of printed text anywhere, also inside a number
        print(textwrap.fill(self.sentence, 100, break_long_words=False, break_on_hyphens=False))


def picture(draw: Callable[..., Picture]) -> Callable[..., Picture]:
    """Decorate a drawing function so that everything in it happens in the course's style."""

    @wraps(draw)
    def drawn(*args: Any, **kwargs: Any) -> Picture:
        with style():
            return draw(*args, **kwargs)

    return drawn
