"""Chapter 2's pictures: ranks, one strip of memory seen through strides, a word becoming K and V, heads and bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from minipaged.plots.base import COLOURS, Picture, colour, new_figure, picture
from minipaged.plots.words import say
from minipaged.shapes import contiguous_strides, flat_offset, index_at, num_bytes

Box = tuple[float, float, float, float]  # left, bottom, width, height
_LIT = {"edgecolors": "black", "linewidths": 2.2, "zorder": 5}  # the cell that the reader chose
_DRAWN = 5  # cells drawn for an axis that is longer than that


def _boxes(axes: Any, boxes: Sequence[Box], **look: Any) -> None:
    """Many rectangles as one artist, which is quick to draw."""
    from matplotlib.collections import PolyCollection

    corners = [[(x, y), (x + w, y), (x + w, y + h), (x, y + h)] for x, y, w, h in boxes]
    axes.add_collection(PolyCollection(corners, **{"linewidths": 0.8, "edgecolors": "white", **look}))


def _ink(fill: str) -> str:
    """Black or white, whichever can be read on a solid colour."""
    return "white" if fill in (COLOURS["blue"], COLOURS["green"], COLOURS["red"]) else "black"


def _bare(axes: Any, width: float, height: float, bottom: float = 0.0) -> None:
    axes.set_xlim(0, width)
    axes.set_ylim(bottom, height)
    axes.axis("off")


def _amount(number: int) -> str:
    """Bytes in the unit that keeps the number small: B, KiB, MiB, GiB."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if number >= size:
            return f"{number / size:.4g} {unit}"
    return f"{number} B"


# --- ranks ----------------------------------------------------------------------------------------------------------


@picture
def ranks(things: Sequence[tuple[str, Sequence[int]]]) -> Picture:
    """Things that the reader knows, each drawn with as many directions as it has axes.

    Args:
        things: (name, shape) of ranks 0 to 4, in the order in which to draw them.
    """
    longest = max(things, key=lambda thing: max(thing[1], default=0) if len(thing[1]) == 1 else 0)
    figure, axes = new_figure(8.6, 2.4)
    _bare(axes, 10 * len(things), 11.2, -3.4)
    for number, (name, shape) in enumerate(things):
        _one_rank(axes, 10 * number, tuple(shape), colour(number))
        middle = 10 * number + 4.6
        axes.text(middle, 10.2, say("02.ranks.rank", rank=len(shape)), ha="center", fontweight="bold")
        axes.text(middle, -1.2, name, ha="center", va="center", fontsize=9)
        axes.text(middle, -2.8, str(tuple(shape)), ha="center", va="center", fontsize=8.5, family="monospace")
    axes.set_title(say("02.ranks.title", length=longest[1][0] if longest[1] else 1))
    named = "; ".join(say("02.ranks.item", name=name, rank=len(shape), shape=tuple(shape)) for name, shape in things)
    return Picture(figure, say("02.ranks.sentence", named=named), data=[(name, len(shape)) for name, shape in things])


def _one_rank(axes: Any, left: float, shape: tuple[int, ...], fill: str) -> None:
    """Cells for the last two axes, sheets behind each other for a third, stacks side by side for a fourth."""
    *outer, rows, columns = (1, 1, 1, 1, *shape)[-4:]
    stacks, sheets = min(outer[0], 2), min(outer[1], 3)
    cell = 0.8 if stacks == 1 else 0.55
    rows, columns = min(rows, _DRAWN), min(columns, _DRAWN)
    width = columns * cell + 0.5 * (sheets - 1)
    for stack in range(stacks):
        x0 = left + 4.6 - (stacks * width + 0.9 * (stacks - 1)) / 2 + stack * (width + 0.9)
        y0 = 4.8 - (rows * cell + 0.5 * (sheets - 1)) / 2
        for sheet in reversed(range(sheets)):  # the nearest sheet last, on top
            x, y = x0 + 0.5 * sheet, y0 + 0.5 * sheet
            cells = [(x + c * cell, y + r * cell, cell, cell) for r in range(rows) for c in range(columns)]
            _boxes(axes, cells, facecolors=fill, linewidths=0.7, zorder=10 - sheet)


# --- one strip of memory --------------------------------------------------------------------------------------------


@picture
def cell_in_memory(
    shape: Sequence[int],
    strides: Sequence[int] | None = None,
    index: Sequence[int] | None = None,
    *,
    name: str = "",
    axis_names: Sequence[str] = ("row", "column"),
) -> Picture:
    """A small tensor as the reader sees it (grids) and as memory holds it (one strip), one cell lit in both.

    Args:
        shape: two axes, or three (drawn as one grid for each value of the first).
        strides: as torch gives them; None for a contiguous tensor.
        index: the cell to light; None for none.
        name: what the tensor is, for the title.
        axis_names: one for each axis.
    """
    strides = tuple(strides or contiguous_strides(shape))
    cells = [index_at(flat, shape) for flat in range(math.prod(shape))]
    offsets = {cell: flat_offset(cell, strides) for cell in cells}
    lit = None if index is None else offsets[tuple(index)]
    figure, (top, bottom) = new_figure(8.0, 3.3, nrows=2, height_ratios=[3.1, 1.3])
    figure.set_layout_engine("none")  # fixed places: a slider must not wait for the layout to be worked out
    top.set_position((0.07, 0.35, 0.925, 0.56))
    bottom.set_position((0.07, 0.0, 0.925, 0.33))
    _draw_grids(top, shape, offsets, lit, axis_names)
    _draw_strip(bottom, offsets, lit, axis_names[0])
    if lit is None:
        top.set_title(say("02.memory.title.plain", name=name, strides=strides))
        sentence = say("02.memory.sentence.plain", name=name, shape=tuple(shape), strides=strides)
    else:
        sum_of = " + ".join(f"{i}×{stride}" for i, stride in zip(index, strides, strict=True))
        where = ", ".join(f"{axis} {i}" for axis, i in zip(axis_names, index, strict=True))
        top.set_title(say("02.memory.title", name=name, sum=sum_of, offset=lit))
        sentence = say("02.memory.sentence", name=name, strides=strides, where=where, sum=sum_of, offset=lit)
    return Picture(figure, sentence, data={"strides": strides, "offset": lit, "offsets": offsets})


def _draw_grids(axes: Any, shape: Sequence[int], offsets: Mapping, lit: int | None, names: Sequence[str]) -> None:
    """One grid for each value of the first of three axes (or a single grid); each cell says its offset."""
    rows, columns = shape[-2:]
    grids = shape[0] if len(shape) == 3 else 1
    step = columns + 2.2
    left = (4 * rows * columns / 3 if grids == 1 else 0) / 2 + 1.2
    for first in range(shape[0]):  # all cells of one colour are one artist
        places = {offset: _place(cell, rows, left, step) for cell, offset in offsets.items() if cell[0] == first}
        _boxes(axes, [(*place, 1, 1) for place in places.values()], facecolors=colour(first), alpha=0.35)
        if lit in places:
            _boxes(axes, [(*places[lit], 1, 1)], facecolors=colour(first), **_LIT)
        for offset, (x, y) in places.items():
            look = {"fontweight": "bold", "color": _ink(colour(first))} if offset == lit else {}
            axes.text(x + 0.5, y + 0.48, offset, ha="center", va="center", fontsize=7.5, zorder=6, **look)
    for grid in range(grids):
        x = left + grid * step
        if len(shape) == 3:
            axes.text(x + columns / 2, rows + 0.25, f"{names[0]} {grid}", ha="center", fontsize=9, fontweight="bold")
        for row in range(rows):
            axes.text(x - 0.15, rows - 0.5 - row, f"{row}", ha="right", va="center", fontsize=8)
        axes.text(x - 0.75, rows / 2, names[-2], ha="center", va="center", rotation=90, fontsize=8)
        axes.text(x + columns / 2, -0.45, names[-1], ha="center", va="center", fontsize=8)
    _bare(axes, left * 2 + grids * step - 2.2, rows + 0.9, -0.8)
    axes.set_aspect("equal")


def _place(cell: Sequence[int], rows: int, left: float, step: float) -> tuple[float, float]:
    """Left and bottom of a cell's square; the first of three axes says which grid."""
    grid = cell[0] if len(cell) == 3 else 0
    return left + grid * step + cell[-1], rows - 1 - cell[-2]


def _draw_strip(axes: Any, offsets: Mapping, lit: int | None, name: str) -> None:
    """All cells in the order in which memory holds them; a run of one colour is one value of the first axis."""
    owner = {offset: cell[0] for cell, offset in offsets.items()}
    total = max(owner) + 1
    for value in sorted(set(owner.values())):
        cells = [(offset, 0, 1, 1) for offset, own in owner.items() if own == value]
        _boxes(axes, cells, facecolors=colour(value), alpha=0.35, linewidths=0.4)
    start, runs = 0, []
    for offset in range(1, total + 1):  # name each run, so that colour is not the only mark
        if offset == total or owner.get(offset) != owner.get(start):
            short = f"{name[0]}{owner[start]}" if total > 16 or offset - start == 1 else f"{name} {owner[start]}"
            axes.text((start + offset) / 2, 1.25, short, ha="center", fontsize=7.5)
            runs.append((start + 0.1, 1.1, offset - start - 0.2, 0.03))
            start = offset
    _boxes(axes, runs, facecolors="black", linewidths=0)
    every = 4 if total > 16 else 1
    for offset in range(0, total, every):
        axes.text(offset + 0.5, -0.42, offset, ha="center", va="center", fontsize=7)
    if lit is not None:
        _boxes(axes, [(lit, 0, 1, 1)], facecolors=colour(owner[lit]), **_LIT)
        axes.annotate("", (lit + 0.5, -0.65), (lit + 0.5, -1.35), arrowprops={"arrowstyle": "-|>", "color": "black"})
        axes.text(lit + 0.5, -1.75, lit, ha="center", va="center", fontsize=9, fontweight="bold")
    axes.text(-0.008 * total, 0.5, say("02.memory.strip"), ha="right", va="center", fontsize=8)
    _bare(axes, total, 2.0, -2.1)


# --- a word becoming K and V ----------------------------------------------------------------------------------------


@picture
def word_to_kv(
    word: str, token_id: int, position: int, length: int, layer: int, hidden: int, heads: int, kv_heads: int, dim: int
) -> Picture:
    """One token's way to its q, k and v in one layer, and its place in the caches; bars as long as their numbers.

    Args:
        word, token_id, position: the token that is followed, and where it stands among `length` tokens.
        layer: the layer whose q, k and v are drawn.
        hidden, heads, kv_heads, dim: of the model.
    """
    figure, axes = new_figure(9.4, 3.7)
    unit = 17 / max(hidden, heads * dim)  # drawing units for one number
    _bare(axes, 61, 22.5, 0.3)
    _station(axes, 0.2, 11.0, say("02.word.token", word=word), say("02.word.id", id=token_id))
    _arrow(axes, (6.2, 12), (8.4, 12), say("02.word.look.up"))
    _bar(axes, 8.6, 11.2, 0.42 * hidden * unit, 1, "grey", say("02.word.embedding"), f"[{hidden}]")
    _arrow(axes, (16.0, 12), (19.0, 12), say("02.word.layers", last=layer - 1) if layer else "")
    _bar(axes, 19.2, 11.2, 0.42 * hidden * unit, 1, "grey", say("02.word.norm", layer=layer), f"[{hidden}]")
    lines = (("q", heads, 19.0, "blue"), ("k", kv_heads, 11.2, "orange"), ("v", kv_heads, 3.6, "green"))
    for letter, count, y, name in lines:
        _arrow(axes, (26.6, 12), (29.0, y + 0.9))
        axes.text(31.4, y + 0.9, f"$W_{letter}$", ha="center", va="center", fontsize=11)
        axes.text(31.4, y - 0.7, f"{hidden} × {count * dim}", ha="center", va="center", fontsize=7.5)
        _boxes(axes, [(29.2, y - 0.1, 4.4, 2)], facecolors="none", edgecolors="#444444", linewidths=1)
        _arrow(axes, (33.8, y + 0.9), (35.2, y + 0.9))
        _heads(axes, 35.4, y, count, dim * unit, name, letter)
        text = say("02.word.heads", letter=letter, width=count * dim, count=count, dim=dim)
        axes.text(35.4, y + 2.6, text, ha="left", va="center", fontsize=8.5)
        if letter == "q":
            axes.text(35.4, y - 1.1, say("02.word.q.note"), ha="left", va="center", fontsize=8)
        else:
            _arrow(axes, (35.8 + count * dim * unit, y + 0.9), (46.2, y + 0.9), say("02.word.rope") * (letter == "k"))
            _cache(axes, 46.6, y - 1.7, letter, count, length, position, dim, name)
    axes.set_title(say("02.word.title", q=heads * dim, kv=kv_heads * dim, layer=layer))
    shape = (1, kv_heads, length, dim)
    sentence = say("02.word.sentence", word=word, id=token_id, hidden=hidden, layer=layer, heads=heads, dim=dim,
                   kv_heads=kv_heads, position=position, shape=shape)  # fmt: skip
    return Picture(figure, sentence, data={"q": heads * dim, "k": kv_heads * dim, "v": kv_heads * dim, "cache": shape})


def _station(axes: Any, x: float, y: float, text: str, note: str) -> None:
    _boxes(axes, [(x, y, 5.8, 2)], facecolors=COLOURS["light"], edgecolors="#444444", linewidths=1)
    axes.text(x + 2.9, y + 1, text, ha="center", va="center", fontsize=10, fontweight="bold")
    axes.text(x + 2.9, y - 0.8, note, ha="center", va="center", fontsize=8)


def _bar(axes: Any, x: float, y: float, width: float, height: float, name: str, text: str, shape: str) -> None:
    _boxes(axes, [(x, y, width, height * 1.6)], facecolors=COLOURS[name])
    axes.text(x + width / 2, y + 3.2, text, ha="center", va="center", fontsize=8.5)
    axes.text(x + width / 2, y - 0.9, shape, ha="center", va="center", fontsize=8, family="monospace")


def _heads(axes: Any, x: float, y: float, count: int, width: float, name: str, letter: str) -> None:
    _boxes(axes, [(x + head * width, y, width, 1.8) for head in range(count)], facecolors=COLOURS[name], linewidths=1.6)
    for head in range(count):
        axes.text(x + (head + 0.5) * width, y + 0.85, head, ha="center", va="center", fontsize=7.5,
                  color=_ink(COLOURS[name]))  # fmt: skip


def _cache(
    axes: Any, x: float, y: float, letter: str, heads: int, length: int, position: int, dim: int, name: str
) -> None:
    """One small grid per KV head, a row per token, this token's row solid."""
    height = 4.6 / length
    for head in range(heads):
        left = x + head * (13.0 / heads)
        width = 13.0 / heads - 0.8
        _boxes(axes, [(left, y + 4.6 - (row + 1) * height, width, height) for row in range(length)],
               facecolors=COLOURS["light"], edgecolors="#bbbbbb", linewidths=0.5)  # fmt: skip
        row = (left, y + 4.6 - (position + 1) * height, width, height)
        _boxes(axes, [row], facecolors=COLOURS[name], edgecolors="black", linewidths=0.8)
        axes.text(left + width / 2, y - 0.65, say("02.word.head", head=head), ha="center", va="center", fontsize=7)
    title = say("02.word.cache", letter=letter.upper(), shape=(1, heads, length, dim))
    axes.text(x + 6.2, y + 5.5, title, ha="center", va="center", fontsize=8.5, fontweight="bold")


def _arrow(axes: Any, start: tuple[float, float], end: tuple[float, float], text: str = "") -> None:
    axes.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": "#444444", "shrinkA": 0, "shrinkB": 0})
    if text:
        middle = (start[0] + end[0]) / 2
        axes.text(middle, start[1] + 0.5, text, ha="center", va="bottom", fontsize=7.5)


# --- heads ----------------------------------------------------------------------------------------------------------


@picture
def head_groups(pairs: Sequence[tuple[int, int]]) -> Picture:
    """Which KV head each query head reads, for one or more models drawn side by side.

    Args:
        pairs: (num_heads, num_kv_heads) of each; the number of query heads is a multiple of that of KV heads.
    """
    figure, axes = new_figure(8.4, 2.5, ncols=len(pairs), squeeze=False)
    reads = [[query // (heads // kv_heads) for query in range(heads)] for heads, kv_heads in pairs]
    for panel, (heads, kv_heads), kv_of in zip(axes[0], pairs, reads, strict=True):
        group, width = heads // kv_heads, 20 / heads
        middles = [(kv_head + 0.5) * group * width for kv_head in range(kv_heads)]
        for query, kv_head in enumerate(kv_of):
            ends = [(query + 0.5) * width, middles[kv_head]]
            panel.plot(ends, [5.0, 2.6], color=colour(kv_head), linewidth=1.2)
            _labelled(panel, query * width, 5.0, width, query, colour(kv_head), 0.55)
        for kv_head, middle in enumerate(middles):
            _labelled(panel, middle - 1.3, 0.8, 2.6, kv_head, colour(kv_head), 1.0)
        panel.text(0, 7.2, say("02.heads.query", count=heads), fontsize=9)
        panel.text(0, -0.6, say("02.heads.kv", count=kv_heads), fontsize=9)
        panel.set_title(say("02.heads.panel", heads=heads, kv_heads=kv_heads, group=group))
        _bare(panel, 20, 8.2, -1)
    listed = "; ".join(say("02.heads.item", heads=h, kv_heads=kv, group=h // kv) for h, kv in pairs)
    return Picture(figure, say("02.heads.sentence", listed=listed), data=reads)


def _labelled(axes: Any, x: float, y: float, width: float, text: Any, fill: str, alpha: float) -> None:
    _boxes(axes, [(x, y, width, 1.8)], facecolors=fill, alpha=alpha, linewidths=1.4)
    ink = _ink(fill) if alpha == 1 else "black"
    axes.text(x + width / 2, y + 0.85, text, ha="center", va="center", fontsize=8, zorder=6, color=ink)


@picture
def head_split(wrong: Any, right: Any) -> Picture:
    """Two ways to cut a projection into heads: for every number, the token and the head that it belongs to.

    Args:
        wrong, right: [heads, tokens, head_dim], each number being token * 100 + head.
    """
    figure, axes = new_figure(8.0, 2.9, ncols=2)
    heads, tokens, _ = right.shape
    strangers = [_draw_split(panel, split) for panel, split in zip(axes, (wrong, right), strict=True)]
    for panel, name, count in zip(axes, ("wrong", "right"), strangers, strict=True):
        panel.set_title(say(f"02.split.{name}", count=count, total=right.size))
    sentence = say("02.split.sentence", strangers=strangers[0], total=right.size, heads=heads, tokens=tokens)
    return Picture(figure, sentence, data={"wrong": strangers[0], "right": strangers[1]})


def _draw_split(axes: Any, split: Any) -> int:
    """Draw one cut; return how many numbers stand at a token or head that is not theirs."""
    heads, tokens, dim = split.shape
    strangers = 0
    for head in range(heads):
        x0 = head * (dim + 1.2)
        axes.text(x0 + dim / 2, tokens + 0.25, say("02.split.head", head=head), ha="center", fontsize=8.5)
        for token in range(tokens):
            for column in range(dim):
                own_token, own_head = divmod(int(split[head, token, column]), 100)
                stranger = (own_token, own_head) != (token, head)
                strangers += stranger
                _boxes(axes, [(x0 + column, tokens - 1 - token, 1, 1)], facecolors=colour(own_token), alpha=0.5,
                       hatch="////" if stranger else None, edgecolors="black" if stranger else "white")  # fmt: skip
                axes.text(x0 + column + 0.5, tokens - 0.5 - token, f"t{own_token}\nh{own_head}", ha="center",
                          va="center", fontsize=7, bbox={"facecolor": "white", "pad": 0.6, "linewidth": 0})  # fmt: skip
    for token in range(tokens):
        axes.text(-0.2, tokens - 0.5 - token, say("02.split.token", token=token), ha="right", va="center", fontsize=8)
    _bare(axes, heads * (dim + 1.2) - 0.9, tokens + 0.8, -0.2)
    axes.set_xlim(-1.5)
    return strangers


# --- bytes ----------------------------------------------------------------------------------------------------------


@picture
def kv_shapes(batch: int, length: int, heads: int, kv_heads: int, head_dim: int, dtype: str = "float16") -> Picture:
    """q, K and V of one layer: shapes and bytes, beside the K that it would be with one KV head per query head."""
    tensors = [
        ("q", (batch, heads, length, head_dim), "blue", ""),
        ("K", (batch, kv_heads, length, head_dim), "orange", "//"),
        ("V", (batch, kv_heads, length, head_dim), "green", "\\\\"),
    ]
    sizes = [num_bytes(shape, dtype) for _, shape, _, _ in tensors]
    figure, axes = new_figure(8.0, 2.6)
    for row, ((_, shape, hue, hatch), size) in enumerate(zip(tensors, sizes, strict=True)):
        axes.barh(row, size, color=COLOURS[hue], hatch=hatch, edgecolor="white", height=0.62)
        label = say("02.bytes.label", shape=shape, amount=_amount(size))
        axes.text(size + max(sizes) * 0.01, row, label, va="center", fontsize=9)
    axes.set_yticks(range(3), [name for name, *_ in tensors], fontsize=11, fontweight="bold")
    axes.invert_yaxis()
    axes.set_xlim(0, max(sizes) * 1.75)
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    numbers = batch * kv_heads * length * head_dim
    axes.set_title(say("02.bytes.title", numbers=numbers, amount=_amount(sizes[1]), dtype=dtype))
    group = heads // kv_heads
    readers = say("02.bytes.reader") if group == 1 else say("02.bytes.readers", group=group)
    sentence = say("02.bytes.sentence", shape=tensors[1][1], numbers=numbers, amount=_amount(sizes[1]), dtype=dtype,
                   readers=readers)  # fmt: skip
    return Picture(figure, sentence, data={"shapes": [shape for _, shape, _, _ in tensors], "bytes": sizes})


@picture
def read_times(bandwidths: Mapping[str, float], num_bytes_read: int, base: str) -> Picture:
    """How long it takes to read the same bytes once over several paths (log scale), as multiples of one of them.

    Args:
        bandwidths: name of the path -> GB/s.
        num_bytes_read: what one step has to read.
        base: the path that the others are compared with.
    """
    times = {name: num_bytes_read / (speed * 1e9) * 1000 for name, speed in bandwidths.items()}  # milliseconds
    figure, axes = new_figure(8.0, 0.9 + 0.42 * len(times))
    for row, (name, time) in enumerate(times.items()):
        axes.barh(row, time, color=COLOURS["green" if name == base else "blue"], height=0.6,
                  hatch=None if name == base else "//", edgecolor="white")  # fmt: skip
        label = say("02.read.label", time=f"{time:.3g}", ratio=f"{time / times[base]:.2g}")
        axes.text(time * 1.06, row, label, va="center", fontsize=9)
    axes.set_xscale("log")
    axes.set_xlim(min(times.values()) / 2, max(times.values()) * 12)
    axes.set_yticks(range(len(times)), list(times), fontsize=9)
    axes.invert_yaxis()
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel(say("02.read.axis"))
    slowest = max(times, key=times.__getitem__)
    values = {"slowest": slowest, "ratio": f"{times[slowest] / times[base]:.2g}", "base": base}
    axes.set_title(say("02.read.title", **values))
    listed = "; ".join(f"{name} {time:.3g} ms" for name, time in times.items())
    return Picture(figure, say("02.read.sentence", amount=_amount(num_bytes_read), listed=listed, **values), data=times)
