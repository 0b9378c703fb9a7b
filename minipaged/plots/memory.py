"""Memory as cells, drawn the same way in every chapter.

A cell is a slot: room for one token's K and V. Cells lie in one strip, or in rows of a grid, read left to right and top
to bottom. What a run of cells is doing shows in its fill, and whose it is in its colour and label:

    used      solid                  free    light outline             shared  two colours, split
    reserved  hatched, not yet used  wasted  dotted, never used        copy    used, with a bold frame
    rounded   crossed, given to nobody

A block is a framed run of cells with its physical number in the corner. Few matplotlib artists are made (one collection
for each look), so that a slider can redraw a pool of thousands of slots in time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

from minipaged.plots.base import COLOURS, colour, ink

State = Literal["used", "reserved", "free", "wasted", "rounded", "shared", "copy"]

GAP = 0.35  # between the rows of a grid, in cells


class Run(NamedTuple):
    """`length` slots from `start` in one state.

    Attributes:
        start, length: in slots.
        state: what they are doing.
        owner: index of the sequence they belong to (its colour everywhere), or None.
        label: a short text in the middle of the run, such as "A" or a token.
        other: for "shared", the second sequence.
    """

    start: int
    length: int
    state: State
    owner: int | None = None
    label: str = ""
    other: int | None = None


class _Look(NamedTuple):
    face: str
    edge: str
    hatch: str | None
    width: float


def _look(run: Run) -> _Look:
    own = COLOURS["grey"] if run.owner is None else colour(run.owner)
    looks = {
        "used": _Look(own, "white", None, 0.4),
        "shared": _Look(own, "white", None, 0.4),
        "copy": _Look(own, "black", None, 2.4),
        "reserved": _Look("white", own, "////", 0.6),
        "wasted": _Look("#f2f2f2", own, "...", 0.6),
        "rounded": _Look("#f2f2f2", "#8a8a8a", "xx", 0.6),
        "free": _Look("white", "#c4c4c4", None, 0.6),
    }
    return looks[run.state]


def draw_strip(ax: Any, runs: Iterable[Run], *, y: float = 0.0, height: float = 1.0, cells: bool = False) -> None:
    """Draw runs on one strip from `y` to `y + height`; the axes' limits are left to the caller.

    Args:
        cells: draw the border of every slot (for strips of up to a few hundred slots).
    """
    pieces = [(run, run.start, y, run.length, height) for run in runs]
    _draw_pieces(ax, pieces, cells)


def draw_grid(ax: Any, runs: Iterable[Run], columns: int, *, cells: bool = True, gap: float = GAP) -> None:
    """Draw runs on rows of `columns` slots, downwards, and set the axes so that everything shows.

    A run that is longer than its row goes on in the next one. Call `draw_blocks` afterwards to frame blocks.
    """
    runs = list(runs)
    pieces = [piece for run in runs for piece in _wrapped(run, columns, gap)]
    _draw_pieces(ax, pieces, cells)
    last = max((run.start + run.length for run in runs), default=1)
    rows = -(-last // columns)
    ax.set_xlim(-0.3, columns + 0.3)
    ax.set_ylim(rows * (1 + gap), -gap - 0.1)  # downwards
    ax.axis("off")


def _wrapped(run: Run, columns: int, gap: float) -> Iterable[tuple[Run, float, float, float, float]]:
    start, left = run.start, run.length
    while left > 0:
        row, column = divmod(start, columns)
        width = min(left, columns - column)
        yield run, column, row * (1 + gap), width, 1.0
        start, left = start + width, left - width


def _draw_pieces(ax: Any, pieces: list[tuple[Run, float, float, float, float]], cells: bool) -> None:
    """One collection for each look; bold frames last, so that no neighbour paints over them."""
    from matplotlib.collections import LineCollection, PolyCollection

    # Runs without a hatch can share a collection, whatever their colours; a collection has one hatch and hatch colour.
    groups: dict[tuple[Any, ...], list[tuple[_Look, Any]]] = {}
    for run, x, y, width, height in pieces:
        corners = [(x, y), (x + width, y), (x + width, y + height), (x, y + height)]
        shapes = [(_look(run), corners)]
        if run.state == "shared" and run.other is not None:
            shapes.append((_Look(colour(run.other), "white", None, 0.4), corners[1:]))
        for look, polygon in shapes:
            key = (look.width > 1, look.hatch or "", look.edge if look.hatch else "")
            groups.setdefault(key, []).append((look, polygon))
    for (_, hatch, _), shapes in sorted(groups.items(), key=lambda item: item[0]):
        looks = [look for look, _ in shapes]
        style = {
            "facecolors": [look.face for look in looks],
            "edgecolors": [look.edge for look in looks],
            "linewidths": [look.width for look in looks],
        }
        polygons = [polygon for _, polygon in shapes]
        ax.add_collection(PolyCollection(polygons, hatch=hatch or None, **style), autolim=False)
    if cells:
        lines = [[(x + i, y), (x + i, y + height)] for _, x, y, width, height in pieces for i in range(1, int(width))]
        ax.add_collection(LineCollection(lines, colors="#c4c4c4", linewidths=0.5), autolim=False)
    for run, x, y, width, height in pieces:
        if run.label:
            _label(ax, run, x + width / 2, y + height / 2)


def _label(ax: Any, run: Run, x: float, y: float) -> None:
    solid = run.state in ("used", "shared", "copy")
    text = ink(colour(run.owner)) if solid and run.owner is not None else "black"
    box = None if solid else {"facecolor": "white", "edgecolor": "none", "pad": 1.0}
    ax.text(x, y, run.label, ha="center", va="center", fontsize=8, color=text, bbox=box)


def draw_blocks(
    ax: Any, num_blocks: int, block_size: int, columns: int, *, gap: float = GAP, numbers: bool = True
) -> None:
    """Frame blocks of `block_size` cells on a grid of `columns`, with the physical number above each left corner.

    `columns` must be a multiple of `block_size`: a block never breaks over two rows.
    """
    from matplotlib.collections import PolyCollection

    frames = []
    for block in range(num_blocks):
        row, x = divmod(block * block_size, columns)
        y = row * (1 + gap)
        frames.append([(x, y), (x + block_size, y), (x + block_size, y + 1), (x, y + 1)])
        if numbers:
            ax.text(x + 0.08, y - 0.04, str(block), ha="left", va="bottom", fontsize=7, color="#444444")
    ax.add_collection(PolyCollection(frames, facecolors="none", edgecolors="#222222", linewidths=1.4), autolim=False)


def slot_centre(slot: int, columns: int, *, gap: float = GAP) -> tuple[float, float]:
    """Where the middle of a slot lies on a grid, for an arrow's end."""
    row, column = divmod(slot, columns)
    return column + 0.5, row * (1 + gap) + 0.5


def memory_legend(ax: Any, names: dict[State, str] | Sequence[State], owner: int | None = None, **where: Any) -> None:
    """A legend of states: {state: words}; `where` goes to `Axes.legend`."""
    from matplotlib.patches import Patch

    words = names if isinstance(names, dict) else {state: state for state in names}
    handles = []
    for state, text in words.items():
        look = _look(Run(0, 1, state, owner))
        patch = {"facecolor": look.face, "edgecolor": look.edge, "hatch": look.hatch, "linewidth": look.width}
        handles.append(Patch(label=text, **patch))
    ax.legend(handles=handles, **{"handlelength": 1.6, "handleheight": 1.2, "columnspacing": 1.2, **where})
