"""Chapter 5's pictures: a GPU's memory divided, what each kind of attention keeps, windows, and growth with length."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from minipaged.kv_size import GIB, Fit, KVCacheSpec, human
from minipaged.plots.base import COLOURS, Picture, new_figure, picture
from minipaged.plots.words import say

# Part of a GPU's memory -> (fill, hatch): used is solid, reserved hatched, free a light outline, missing dotted.
_PARTS = {
    "weights": (COLOURS["blue"], ""),
    "reserve": (COLOURS["light"], "////"),
    "unused": (COLOURS["light"], "xx"),
    "kv": (COLOURS["orange"], ""),
    "free": ("white", ""),
    "missing": (COLOURS["yellow"], "..."),
}


def parts_of(load: Fit) -> dict[str, float]:
    """The parts of a GPU's memory in bytes, in the order in which they are drawn; what does not fit is "missing"."""
    missing = max(0, -load.free)
    placed = max(0, load.kv - missing)
    parts = {"weights": load.weights, "reserve": load.reserve, "unused": load.unused, "kv": placed}
    return {**parts, "free": max(0, load.free), "missing": missing}


def _bar(axes: Any, y: float, parts: Mapping[str, float], height: float = 0.6) -> None:
    """One horizontal stacked bar, in GiB."""
    left = 0.0
    for name, size in parts.items():
        if size:
            fill, hatch = _PARTS[name]
            edge = COLOURS["grey"] if name == "free" else "#444444"
            axes.barh(y, size / GIB, height, left=left, color=fill, hatch=hatch, edgecolor=edge, linewidth=0.8)
            left += size / GIB


def _legend(axes: Any, labels: Mapping[str, str], **where: Any) -> None:
    from matplotlib.patches import Patch

    patches = [
        Patch(facecolor=_PARTS[name][0], hatch=_PARTS[name][1], edgecolor="#444444", label=label)
        for name, label in labels.items()
    ]
    axes.legend(handles=patches, handlelength=1.5, handleheight=1.1, columnspacing=1.0, fontsize=8.5, **where)


def _fixed(figure: Any, axes: Any, place: tuple[float, float, float, float]) -> None:
    """A fixed place: a slider must not wait for a layout to be worked out."""
    figure.set_layout_engine("none")
    axes.set_position(place)


@picture
def gpu_bar(load: Fit, model: str, gpu: str, advice: str = "") -> Picture:
    """One GPU's memory as a stacked bar; what does not fit runs over the card's edge.

    Args:
        load: from `kv_size.fit`.
        model, gpu: names, for the title and the sentence.
        advice: what would fit, in words, if the load does not.
    """
    figure, axes = new_figure(8.4, 2.15)
    _fixed(figure, axes, (0.03, 0.42, 0.94, 0.38))
    parts = parts_of(load)
    _bar(axes, 0, parts)
    card = load.memory / GIB
    axes.axvline(card, color="black", linewidth=2)
    shown = sum(parts.values()) / GIB
    axes.set_xlim(0, max(card, shown) * 1.02)
    axes.set_ylim(-0.45, 0.45)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.set_xlabel(say("05.gpu.axis", gpu=gpu, memory=f"{card:g}"), labelpad=1)
    key = "05.gpu.title.fits" if load.fits else "05.gpu.title.missing"
    title = say(key, batch=load.batch_size, length=load.seq_len, free=human(load.free), missing=human(-load.free))
    axes.set_title(title)
    sizes = parts | {"kv": load.kv}  # K and V in all, also what lies beyond the edge
    labels = {name: say(f"05.part.{name}", size=human(sizes[name])) for name, size in parts.items() if size}
    _legend(axes, labels, loc="upper center", bbox_to_anchor=(0.5, -0.62), ncols=len(labels))
    return Picture(figure, _gpu_sentence(load, model, gpu, advice), data=parts)


def _gpu_sentence(load: Fit, model: str, gpu: str, advice: str) -> str:
    """All figures of a load in words."""
    ratio = load.kv / load.weights
    largest = say("05.gpu.no.limit") if load.max_batch is None else f"{load.max_batch:,}"
    per_token = load.spec.bytes_per_token(load.options["dtype"], load.options["tensor_parallel"])
    needs = say(
        "05.gpu.sentence",
        model=model,
        gpu=gpu,
        per_token=f"{per_token:,}",
        batch=load.batch_size,
        length=f"{load.seq_len:,}",
        kv=human(load.kv),
        weights=human(load.weights),
        ratio=f"{ratio:.2f}",
        largest=largest,
    )
    verdict = (
        say("05.gpu.fits", free=human(load.free))
        if load.fits
        else say("05.gpu.missing", missing=human(-load.free), advice=advice)
    )
    return f"{needs} {verdict.strip()}"


@picture
def loads_against_card(loads: Sequence[tuple[str, float, float]], card_bytes: float, card: str) -> Picture:
    """Weights and K and V of several loads as bars, with the edge of one card across them.

    Args:
        loads: (name, bytes of weights, bytes of K and V).
        card_bytes: the card's memory.
        card: its name.
    """
    figure, axes = new_figure(8.0, 0.9 + 0.62 * len(loads))
    for row, (_, weights, kv) in enumerate(loads):
        _bar(axes, -row, {"weights": weights, "kv": kv})
        axes.text(
            (weights + kv) / GIB + 1, -row, f"{kv / weights:.2f} : 1", va="center", fontsize=10, fontweight="bold"
        )
    axes.axvline(card_bytes / GIB, color="black", linewidth=2)
    axes.set_yticks([-row for row in range(len(loads))], [name for name, _, _ in loads])
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(0, max(weights + kv for _, weights, kv in loads) / GIB * 1.12)
    axes.set_xlabel(say("05.ratio.axis", card=card))
    fitting = [kv / weights for _, weights, kv in loads if weights + kv <= card_bytes]
    highest = max(kv / weights for _, weights, kv in loads)
    axes.set_title(say("05.ratio.title", best=f"{max(fitting):.2f}", card=card, highest=f"{highest:.0f}"))
    _legend(axes, {"weights": say("05.ratio.weights"), "kv": say("05.ratio.kv")}, loc="upper right", ncols=1)
    rows = "; ".join(
        say(
            "05.ratio.row",
            name=name,
            ratio=f"{kv / weights:.2f}",
            total=human(weights + kv),
            where=_where(weights + kv, card_bytes),
        )
        for name, weights, kv in loads
    )
    return Picture(figure, say("05.ratio.sentence", rows=rows), data=[kv / weights for _, weights, kv in loads])


def _where(total: float, card_bytes: float) -> str:
    return say("05.ratio.on" if total <= card_bytes else "05.ratio.off")


_HEADS_ROW = {0: "05.heads.latent", 1: "05.heads.row.one"}


@picture
def kinds_of_heads(kinds: Sequence[tuple[str, int, int]], query_heads: int, head_dim: int) -> Picture:
    """What one layer keeps for one token under each kind of attention, beside the query heads that read it.

    Args:
        kinds: (name, KV heads, numbers kept); 0 KV heads for a latent that all heads share.
        query_heads: heads drawn in the upper row of each.
        head_dim: numbers in one head.
    """
    figure, axes = new_figure(9.2, 3.0, ncols=len(kinds))
    full = query_heads * 2 * head_dim
    for panel, (name, kv_heads, numbers) in zip(axes, kinds, strict=True):
        panel.set_xlim(-0.3, query_heads + 0.3)
        panel.set_ylim(-0.75, 4.3)
        panel.axis("off")
        panel.text(0, 4.05, name, fontweight="bold", fontsize=10.5)
        panel.text(0, -0.65, say("05.heads.kept", numbers=numbers, share=f"{100 * numbers / full:.3g}"), fontsize=9)
        _cells(panel, 3, [head + 0.5 for head in range(query_heads)], COLOURS["sky"])
        group = query_heads // max(kv_heads, 1)
        width = 1.0 if kv_heads else numbers / head_dim  # all cells are drawn to one scale
        middles = [(index + 0.5) * group for index in range(max(kv_heads, 1))]
        if kv_heads:
            _cells(panel, 1, middles, COLOURS["orange"])
            _cells(panel, 0, middles, COLOURS["green"])
        else:
            _cells(panel, 1, middles, COLOURS["pink"], width)
        for head in range(query_heads):
            panel.plot([head + 0.5, middles[head // group]], [2.95, 1.85], color=COLOURS["grey"], linewidth=0.7)
    axes[0].text(-0.35, 3.4, "q", ha="right", va="center", fontsize=10)
    axes[0].text(-0.35, 1.4, "K", ha="right", va="center", fontsize=10)
    axes[0].text(-0.35, 0.4, "V", ha="right", va="center", fontsize=10)
    smallest = min(numbers for _, _, numbers in kinds)
    figure.suptitle(
        say("05.heads.title", query_heads=query_heads, most=full, least=smallest),
        x=0.01,
        ha="left",
        fontsize=11,
        fontweight="bold",
    )
    named = "; ".join(
        say(_HEADS_ROW.get(kv_heads, "05.heads.row"), name=name, kv_heads=kv_heads, numbers=numbers)
        for name, kv_heads, numbers in kinds
    )
    return Picture(figure, say("05.heads.sentence", query_heads=query_heads, named=named), data=list(kinds))


def _cells(axes: Any, y: float, middles: Sequence[float], fill: str, width: float = 1.0) -> None:
    """A row of cells, each as wide as the numbers it stands for."""
    line = min(0.8, 6 / len(middles))
    axes.bar(middles, [0.8] * len(middles), width * 0.96, bottom=y, color=fill, edgecolor="black", linewidth=line)


_ROWS = {"full": "blue", "sliding": "orange", "chunked": "green", "shared": "light", "none": "light"}


@picture
def tokens_kept(spec: KVCacheSpec, seq_len: int) -> Picture:
    """Layers by tokens: solid where a layer still holds a token's K and V, outlined where it does not.

    Args:
        spec: of a small model; every layer is a row.
        seq_len: tokens in the sequence; every token is a column.
    """
    figure, axes = new_figure(8.4, 0.85 + 0.3 * spec.num_layers)
    held = 0
    for row, layer in enumerate(spec.layers):
        kept = layer.tokens_kept(seq_len)
        held += kept
        y = -row
        axes.barh(
            [y] * seq_len, 0.9, 0.8, left=range(seq_len), color="white", edgecolor=COLOURS["light"], linewidth=0.8
        )
        hatch = {"sliding": "///", "chunked": "\\\\\\"}.get(layer.kind, "")
        if kept:
            look = {"color": COLOURS[_ROWS[layer.kind]], "hatch": hatch, "edgecolor": "white", "linewidth": 0.8}
            axes.barh([y] * kept, 0.9, 0.8, left=range(seq_len - kept, seq_len), **look)
        what = say(f"05.kept.{layer.kind}", window=layer.window or 0, source=(layer.source or 0))
        axes.text(-0.4, y, say("05.kept.layer", layer=row, what=what), ha="right", va="center", fontsize=9)
    axes.set_xlim(-8.5, seq_len)
    axes.set_ylim(-spec.num_layers + 0.4, 0.6)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.set_xticks([0.45, seq_len - 0.55], [say("05.kept.first"), say("05.kept.last", last=seq_len - 1)])
    every = spec.num_layers * seq_len
    axes.set_title(say("05.kept.title", held=held, every=every, length=seq_len))
    return Picture(figure, say("05.kept.sentence", held=held, every=every, length=seq_len), data=held)


_STYLES = ["-", "--", "-.", ":"]


@picture
def growth(curves: Mapping[str, Sequence[tuple[int, float]]], limit: tuple[str, float] | None = None) -> Picture:
    """Bytes of one sequence's cache against its length, one line per model.

    Args:
        curves: name -> (length, bytes) points.
        limit: (name, bytes) of a level to draw across.
    """
    figure, axes = new_figure(8.2, 3.2)
    _fixed(figure, axes, (0.085, 0.155, 0.64, 0.74))
    names = list(curves)
    longest = max(points[-1][0] for points in curves.values())
    for number, points in enumerate(curves.values()):
        lengths, sizes = zip(*points, strict=True)
        axes.plot(lengths, [size / GIB for size in sizes], linestyle=_STYLES[number % 4])
    highest = max(points[-1][1] for points in curves.values()) / GIB
    axes.set_ylim(0, highest * 1.08 or 1)
    axes.set_xlim(0, longest)
    if limit and limit[1] / GIB < highest * 1.08:
        axes.axhline(limit[1] / GIB, color="black", linewidth=1.2)
        axes.text(longest * 0.01, limit[1] / GIB, limit[0], va="bottom", fontsize=9)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.locator_params(nbins=5)
    axes.grid(axis="y")
    axes.set_xlabel(say("05.growth.x"))
    axes.set_ylabel("GiB")
    last = {name: points[-1][1] for name, points in curves.items()}
    labels = [f"{name}: {human(last[name])}" for name in names]
    axes.legend(
        axes.lines[: len(names)], labels, loc="upper left", bbox_to_anchor=(1.01, 1.02), fontsize=8.5, handlelength=2.6
    )
    most, least = max(last, key=last.__getitem__), min(last, key=last.__getitem__)
    times = last[most] / last[least] if last[least] else math.inf
    axes.set_title(say("05.growth.title", longest=longest, most=most, size=human(last[most])))
    rows = "; ".join(f"{name} {human(size)}" for name, size in last.items())
    return Picture(figure, say("05.growth.sentence", longest=longest, rows=rows), data={"last": last, "times": times})
