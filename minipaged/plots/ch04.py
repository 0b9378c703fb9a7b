"""Pictures of chapter 4: what a pass computes with and without a cache, what two caches hold, and what limits a step.

    without a cache: every row of the matrix again       with one: only the new row is lit, the old ones are grey
    hatched = computed once more       dark blue = computed now       light blue = read       grey = not needed any more

Plain numbers in, a `Picture` out. Left out: measuring (the notebook does it) and the counting itself (`kv_cache.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from minipaged.errors import InvalidInputError
from minipaged.plots.base import COLOURS, Picture, new_figure, picture
from minipaged.plots.memory import Run, draw_strip
from minipaged.plots.words import say

_LOOKS = {  # state of a cell -> (face, edge, hatch)
    "now": (COLOURS["blue"], "white", None),
    "again": ("#f3c98b", "#8a5a00", "////"),
    "old": ("#d9d9d9", "white", None),
    "read": ("#9fd3f2", "white", None),
    "masked": ("white", "#d0d0d0", None),
}


def _cells(ax: Any, cells: Mapping[str, list[tuple[float, float]]]) -> None:
    """Unit squares with their upper left corner at (x, y), one collection for each look."""
    from matplotlib.collections import PolyCollection

    for state, corners in cells.items():
        if not corners:
            continue
        face, edge, hatch = _LOOKS[state]
        squares = [[(x, y), (x + 1, y), (x + 1, y + 1), (x, y + 1)] for x, y in corners]
        ax.add_collection(PolyCollection(squares, facecolors=face, edgecolors=edge, hatch=hatch, linewidths=0.6))


def _one_pass(ax: Any, tokens: Sequence[str], held: int, cached: bool) -> None:
    """The score matrix of one pass, with the Q of every row on its left and the K, V of every column below."""
    n = len(tokens)
    cells: dict[str, list[tuple[float, float]]] = {state: [] for state in _LOOKS}
    for row in range(n):
        state = "now" if row >= held else ("old" if cached else "again")
        cells[state] += [(column, row) for column in range(row + 1)]
        cells[state].append((-2, row))  # this token's Q
        cells["read" if state == "old" else state].append((row, n + 0.6))  # its K and V
        if not (cached and row < held):
            ax.text(-2.3, row + 0.5, tokens[row], ha="right", va="center", fontsize=8)
    if cached and held:
        middle = held / 2
        ax.text(-2.3, middle, say("04.pass.gone"), ha="right", va="center", fontsize=8, color="#666666")
    _cells(ax, cells)
    ax.add_patch(_frame(0, 0, n, n, "#c4c4c4"))
    ax.text(-1.5, -0.3, "Q", ha="center", va="bottom", fontsize=9)
    ax.text(n + 0.3, n + 1.1, "K, V", ha="left", va="center", fontsize=9)
    if cached and held:
        ax.add_patch(_frame(0, n + 0.6, held, 1))
        ax.text(held / 2, n + 2.3, say("04.pass.kept"), ha="center", va="center", fontsize=8)
    ax.set(xlim=(-7.5, n + 2.2), ylim=(n + 2.9, -1.2), aspect="equal")
    ax.axis("off")


def _frame(x: float, y: float, width: float, height: float, edge: str = "black") -> Any:
    from matplotlib.patches import Rectangle

    line = 1.8 if edge == "black" else 0.8
    return Rectangle((x, y), width, height, facecolor="none", edgecolor=edge, linewidth=line, zorder=0.5 + line)


@picture
def one_pass(tokens: Sequence[str], new: int = 1) -> Picture:
    """The picture to remember: one pass in which the last `new` tokens are new, without a cache and with one.

    Rows are tokens that look (queries), columns tokens that are looked at. data: token rows and score cells of each.
    """
    n = len(tokens)
    if not 1 <= new <= n:
        raise InvalidInputError(f"{new} new tokens of {n}: there must be at least 1 new one and at most {n}")
    fig, axes = new_figure(7.8, 3.6, ncols=2)
    for ax, cached in zip(axes, (False, True), strict=True):
        _one_pass(ax, tokens, n - new, cached)
        ax.set_title(say("04.pass.with" if cached else "04.pass.without", rows=new if cached else n))
    handles = [_patch(state, say(f"04.pass.{state}")) for state in ("now", "again", "read", "old")]
    fig.legend(handles=handles, loc="outside lower center", ncols=4, handlelength=1.4, handleheight=1.2)
    data = {"rows": (n, new), "cells": (n * n, new * n)}
    words = {"n": n, "new": new, "held": n - new, "again": n - new, "cells": n * n, "few": new * n}
    return Picture(fig, say("04.pass.sentence", **words), data)


def _patch(state: str, label: str) -> Any:
    from matplotlib.patches import Patch

    face, edge, hatch = _LOOKS[state]
    return Patch(facecolor=face, edgecolor=edge, hatch=hatch, label=label)


@picture
def old_rows(before: Any, after: Any, tokens: Sequence[str], where: str) -> Picture:
    """Real attention weights of one head, before [n, n] and after one more token [n + 1, n + 1].

    data: the largest difference between the old rows of the two.
    """
    import numpy as np

    before, after = np.asarray(before), np.asarray(after)
    n = len(before)
    fig, axes = new_figure(8.4, 4.0, ncols=2)
    shown = np.ma.masked_equal(before, 0)
    axes[0].imshow(shown, cmap="Blues", vmin=0, vmax=1)
    axes[0].set_title(say("04.rows.before", n=n))
    lit = np.ma.masked_equal(after, 0)
    axes[1].imshow(np.ma.masked_array(lit, mask=(np.arange(n + 1) == n)[:, None] | lit.mask), cmap="Greys", vmax=1.4)
    axes[1].imshow(
        np.ma.masked_array(lit, mask=(np.arange(n + 1) < n)[:, None] | lit.mask), cmap="Blues", vmin=0, vmax=1
    )
    axes[1].set_title(say("04.rows.after", n=n + 1))
    axes[1].add_patch(_frame(-0.5, n - 0.5, n + 1, 1))
    for ax, size in zip(axes, (n, n + 1), strict=True):
        ax.set_xticks(range(size), tokens[:size], rotation=60, ha="right", rotation_mode="anchor", fontsize=8)
        ax.set_yticks(range(size), tokens[:size], fontsize=8)
        ax.set_xlabel(say("04.rows.keys"))
    axes[0].set_ylabel(say("04.rows.queries"))
    difference = float(np.abs(after[:n, :n] - before).max())
    same = "04.rows.same" if difference < 1e-5 else "04.rows.differ"
    return Picture(fig, say("04.rows.sentence", n=n, where=where, same=say(same)), difference)


@picture
def step_cost(lengths: Sequence[int], without: Sequence[float], cached: Sequence[float], unit: str) -> Picture:
    """Cost of one step against the tokens so far, without a cache and with one; both in the same `unit`."""
    fig, ax = new_figure(7.5, 3.2)
    ax.plot(lengths, without, marker="o", color=COLOURS["orange"])
    ax.plot(lengths, cached, marker="s", color=COLOURS["blue"])
    ax.annotate(say("04.cost.without"), (lengths[-1], without[-1]), xytext=(-6, 0), ha="right", **_POINTS)
    ax.annotate(say("04.cost.with"), (lengths[-1], cached[-1]), xytext=(-6, 8), ha="right", **_POINTS)
    ratio = without[-1] / cached[-1]
    ax.set(xlabel=say("04.cost.x"), ylabel=unit, ylim=(0, None), title=say("04.cost.title", n=lengths[-1], ratio=ratio))
    ax.grid(axis="y")
    return Picture(fig, say("04.cost.sentence", n=lengths[-1], ratio=ratio), ratio)


_POINTS = {"textcoords": "offset points", "fontsize": 9, "va": "bottom"}


@picture
def two_caches(tokens: int, max_len: int, copied: Sequence[float], held: Sequence[float]) -> Picture:
    """Left: MiB copied by concatenation, and MiB held, token by token. Right: the slots of both caches."""
    fig, (left, right) = new_figure(8.4, 3.2, ncols=2, width_ratios=[1.15, 1])
    steps = range(tokens - len(copied) + 1, tokens + 1)
    left.plot(steps, copied, color=COLOURS["orange"])
    left.plot(steps, held, color=COLOURS["blue"], linestyle="--")
    left.annotate(say("04.caches.copied"), (steps[-1], copied[-1]), xytext=(-12, -6), ha="right", **_POINTS)
    left.annotate(say("04.caches.held"), (steps[-1], held[-1]), xytext=(-4, 5), ha="right", **_POINTS)
    left.set(xlabel=say("04.caches.x"), ylabel="MiB", title=say("04.caches.left", ratio=copied[-1] / held[-1]))
    wasted = max_len - tokens
    draw_strip(right, [Run(0, tokens, "used", 0, f"{tokens}")], y=0)
    runs = [Run(0, tokens, "used", 0, f"{tokens}"), Run(tokens, wasted, "reserved", 0, f"{wasted}")]
    draw_strip(right, [run for run in runs if run.length], y=2.2)
    for y, name in ((0, "04.caches.concat"), (2.2, "04.caches.preallocated")):
        right.text(0, y - 0.15, say(name), ha="left", va="bottom", fontsize=9)
    right.set(xlim=(0, max_len), ylim=(3.7, -1), title=say("04.caches.right", share=wasted / max_len))
    right.set_yticks([])
    right.spines["left"].set_visible(False)
    right.set_xlabel(say("04.caches.slots"))
    words = {"tokens": tokens, "max_len": max_len, "wasted": wasted, "copied": copied[-1], "held": held[-1]}
    return Picture(fig, say("04.caches.sentence", **words), words)


@picture
def masks(held: int, new: int) -> Picture:
    """The mask of a chunk: what a square mask aligned top-left would allow, and the right one, aligned bottom-right."""
    fig, axes = new_figure(8.4, 1.4 + 0.24 * new, ncols=2)
    for ax, shift, title in zip(axes, (0, held), ("04.mask.wrong", "04.mask.right"), strict=True):
        seen = [(k, q) for q in range(new) for k in range(held + new) if k <= q + shift]
        unseen = [(k, q) for q in range(new) for k in range(held + new) if k > q + shift]
        _cells(ax, {"now" if shift else "again": seen, "masked": unseen})
        ax.add_patch(_frame(0, 0, held, new))
        ax.text(held / 2, new + 0.25, say("04.mask.held", n=held), ha="center", va="top", fontsize=9)
        ax.text(held + new / 2, new + 0.25, say("04.mask.new", n=new), ha="center", va="top", fontsize=9)
        ax.set(xlim=(-0.2, held + new + 0.2), ylim=(new + 1.4, -0.2), aspect="equal", title=say(title))
        ax.axis("off")
    lost = sum(min(held + new, q + held + 1) - (q + 1) for q in range(new))
    return Picture(fig, say("04.mask.sentence", held=held, new=new, first=held + 1, lost=lost), lost)


@picture
def rows_in_a_step(rows: Sequence[int], times: Sequence[float]) -> Picture:
    """Time of one decode step against its rows, one for each sequence, in units of the first time."""
    ratio = [t / times[0] for t in times]
    fig, ax = new_figure(7.5, 3.2)
    places = range(len(rows))
    ax.bar(places, [n / rows[0] for n in rows], color=COLOURS["light"], edgecolor=COLOURS["grey"], width=0.7)
    ax.bar(places, ratio, color=COLOURS["blue"], width=0.45)
    for place, value in zip(places, ratio, strict=True):
        ax.text(place, value, f"{value:.1f}", ha="center", va="bottom", fontsize=9, bbox=_WHITE)
    ax.set_xticks(places, [str(n) for n in rows])
    ax.set(xlabel=say("04.batch.x"), ylabel=say("04.batch.y"))
    ax.set_title(say("04.batch.title", rows=rows[-1] // rows[0], ratio=ratio[-1]))
    ax.legend(handles=[_bar("blue", "04.batch.measured"), _bar("light", "04.batch.one_by_one")])
    return Picture(fig, say("04.batch.sentence", first=rows[0], rows=rows[-1], ratio=ratio[-1]), ratio)


_WHITE = {"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.85}


def _bar(name: str, key: str) -> Any:
    from matplotlib.patches import Patch

    return Patch(facecolor=COLOURS[name], edgecolor=COLOURS["grey"], label=say(key))


@picture
def roofline(
    name: str, flops_per_s: float, bytes_per_s: float, parts: Mapping[str, tuple[float, float]], about: str = ""
) -> Picture:
    """How fast a GPU can go at a given number of FLOPs per byte, with the parts of a step marked on its roof.

    `parts`: name ("linear", "attention") -> (FLOPs, bytes). Both axes are logarithmic. data: bound by part.
    """
    fig, ax = new_figure(7.5, 3.6)
    _draw_roof(ax, flops_per_s, bytes_per_s, parts)
    bounds = {part: _bound(work, flops_per_s / bytes_per_s) for part, work in parts.items()}
    said = []
    for part, (flops, read) in parts.items():
        time = max(flops / flops_per_s, read / bytes_per_s)
        said.append(say(f"04.roof.said.{part}", bound=bounds[part], ms=1e3 * time, intensity=flops / read))
    ax.set_title(say("04.roof.title", name=name, bound=bounds.get("linear", ""), about=about), pad=14)
    return Picture(fig, say("04.roof.sentence", name=name, about=about, said=" ".join(said)), bounds)


def _bound(work: tuple[float, float], ridge: float) -> str:
    return "memory-bound" if work[0] / work[1] < ridge else "compute-bound"


def _draw_roof(ax: Any, flops_per_s: float, bytes_per_s: float, parts: Mapping[str, tuple[float, float]]) -> None:
    """Powers of ten on plain axes: matplotlib's logarithmic ticks alone would cost half of a slider's time."""
    from math import log10

    ridge, top, low, high = log10(flops_per_s / bytes_per_s), log10(flops_per_s), -1.0, 4.0
    ground = log10(bytes_per_s)  # the height of the slope at 1 FLOP per byte
    floor = ground + low - 0.2
    ax.plot([low, ridge, high], [ground + low, top, top], color="#444444")
    ax.axvline(ridge, color=COLOURS["grey"], linestyle=":", linewidth=1)
    ax.text(ridge + 0.05, floor + 0.1, say("04.roof.ridge", ridge=10**ridge), va="bottom", fontsize=9)
    ax.text(low + 0.1, top - 0.05, say("04.roof.memory"), va="top", fontsize=9, color="#666666")
    ax.text(high - 0.05, top - 0.2, say("04.roof.compute"), ha="right", va="top", fontsize=9, color="#666666")
    for (part, (flops, read)), (marker, size, tone, offset) in zip(parts.items(), _MARKS, strict=False):
        x = log10(flops / read)
        y = min(top, ground + x)
        ax.plot([x], [y], marker=marker, markersize=size, color=COLOURS[tone], clip_on=False)
        ax.annotate(say(f"04.roof.{part}", intensity=flops / read), (x, y), **{**_POINTS, **offset})
    ax.set_xticks(range(5), ["1", "10", "100", "1,000", "10,000"])
    ticks = [t for t in range(9, 16) if floor <= t <= top + 0.5]
    ax.set_yticks(ticks, [say("04.roof.tflops", n=10 ** (t - 12)) for t in ticks])
    ax.set(xlim=(low, high), ylim=(floor, top + 0.5), xlabel=say("04.roof.x"), ylabel=say("04.roof.y"))


_MARKS = (  # the weights' words stand above the roof on the left, attention's below it on the right
    ("o", 13, "blue", {"xytext": (-9, 5), "ha": "right"}),
    ("D", 7, "orange", {"xytext": (9, -5), "ha": "left", "va": "top"}),
)


@picture
def one_step(shape: Any, gpu: Any, held: int, batch_size: int) -> Picture:
    """One decode step of a model (`DecoderShape`) on a GPU (`Gpu`), at its peak: what is computed, read, waited for.

    Left: three bars, each cut in two: FLOPs of a step without a cache (new, computed once more), bytes read with one
    (weights, K and V), time with one (weights, attention). Right: the GPU's roof with both parts. data: the numbers.
    """
    from minipaged.kv_cache import decode_parts, pass_flops

    parts = decode_parts(shape, held, batch_size)
    new = sum(part.flops for part in parts.values())
    again = pass_flops(shape, held + 1, batch_size=batch_size).total - new
    pairs = {
        "flops": (new / 1e9, again / 1e9),
        "bytes": tuple(part.bytes / 2**30 for part in parts.values()),
        "time": tuple(1e3 * part.seconds(gpu) for part in parts.values()),
    }
    fig, (left, right) = new_figure(9.4, 3.4, ncols=2, width_ratios=[1, 1.05])
    for y, (name, pair) in enumerate(pairs.items()):
        _share_bar(left, y, name, pair)
    left.set(xlim=(0, 1), ylim=(2.75, -0.75))
    left.axis("off")
    work = {name: (part.flops, part.bytes) for name, part in parts.items()}
    _draw_roof(right, gpu.flops_per_s, gpu.bytes_per_s, work)
    bounds = {name: part.bound(gpu) for name, part in parts.items()}
    fig.suptitle(say("04.step.title", gpu=gpu.name, bound=bounds["linear"], batch=batch_size), **_TITLE)
    numbers = {"share": again / (new + again), "kv": pairs["bytes"][1] / sum(pairs["bytes"]), "ms": sum(pairs["time"])}
    words = {"model": shape.name, "gpu": gpu.name, "held": held, "batch": batch_size, "gflop": new / 1e9}
    sentence = say("04.step.sentence", **words, **numbers, gib=sum(pairs["bytes"]), **bounds)
    return Picture(fig, sentence, {**numbers, **bounds})


_TITLE = {"x": 0.01, "ha": "left", "fontsize": 11, "fontweight": "bold"}


def _share_bar(ax: Any, y: int, name: str, pair: tuple[float, float]) -> None:
    """One bar of length 1, cut where the two parts meet, with its sum above and each part's words inside or below."""
    cut = pair[0] / sum(pair)
    second = _LOOKS["again"] if name == "flops" else (COLOURS["orange"], "white", None)
    ax.barh(y, cut, height=0.42, color=COLOURS["blue"])
    ax.barh(y, 1 - cut, left=cut, height=0.42, facecolor=second[0], edgecolor=second[1], hatch=second[2])
    ax.text(0, y - 0.26, say(f"04.step.{name}", total=sum(pair)), va="bottom", fontsize=9, fontweight="bold")
    ax.text(0, y + 0.25, say(f"04.step.{name}.first", n=pair[0], share=cut), va="top", fontsize=8)
    ax.text(1, y + 0.25, say(f"04.step.{name}.second", n=pair[1], share=1 - cut), va="top", ha="right", fontsize=8)
