"""Chapter 3's pictures: a layer's way, one row lit, masks, head groups, turning pairs, maps of real heads, work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from minipaged.plots.base import COLOURS, Picture, new_figure, picture
from minipaged.plots.words import say


def labels(tokens: Sequence[str]) -> list[str]:
    """Tokens as axis labels: numbered, since a sentence may hold one twice."""
    return [f"{i} {token.strip() or repr(token)}" for i, token in enumerate(tokens)]


def _shade(shares: np.ndarray, name: str, strength: float = 1.0) -> np.ndarray:
    """Shares from 0 to 1 as RGB between white and a colour: [...] -> [..., 3]."""
    from matplotlib.colors import to_rgb

    ink = np.array(to_rgb(COLOURS[name]))
    return 1.0 - np.clip(shares * strength, 0.0, 1.0)[..., None] * (1.0 - ink)


def _hide_future(ax: Any, length: int) -> None:
    """Hatch the keys after each query: one staircase."""
    from matplotlib.patches import Polygon

    steps = [(0.5, -0.5)]
    for row in range(length - 1):
        steps += [(row + 0.5, row + 0.5), (row + 1.5, row + 0.5)]
    stairs = [*steps, (length - 0.5, -0.5)]
    ax.add_patch(Polygon(stairs, closed=True, facecolor="white", edgecolor="#c4c4c4", hatch="////", linewidth=0))


def _token_axes(ax: Any, tokens: Sequence[str], size: float = 8.0) -> None:
    names = labels(tokens)
    ax.set_xticks(range(len(names)), names, rotation=90, fontsize=size)
    ax.set_yticks(range(len(names)), names, fontsize=size)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)


@picture
def score_row(shares: np.ndarray, tokens: Sequence[str], row: int, where: str = "", masked: bool = True) -> Picture:
    """The score matrix of one head after softmax, one query's row lit, and that row as bars.

    Args:
        shares: [length, length], each row sums to 1.
        tokens: the text of each token.
        row: the query whose row is lit.
        where: which head this is, for the title.
        masked: whether the future was hidden when `shares` was made.
    """
    from matplotlib.patches import Rectangle

    length, lit = len(tokens), np.asarray(shares[row])
    best, ahead = int(lit.argmax()), float(lit[row + 1 :].sum())
    place = {"left": 0.12, "right": 0.99, "top": 0.91, "bottom": 0.15, "hspace": 0.06, "height_ratios": (1, 2.3)}
    fig, (bars, ax) = new_figure(7.8, 4.6, nrows=2, gridspec_kw=place)
    fig.set_layout_engine("none")  # laid out by hand: a slider redraws this picture, and must not wait
    drawn = bars.bar(range(length), lit * 100, color=COLOURS["blue"], width=0.8)
    for bar in drawn[row + 1 :]:
        bar.set(facecolor=COLOURS["red"], hatch="////", edgecolor="white", linewidth=0)
    for at in np.argsort(lit)[::-1][:3]:
        if lit[at] >= 0.005:
            bars.text(at, lit[at] * 100 + 3, say("03.row.percent", share=lit[at]), ha="center", fontsize=8)
    bars.set(xlim=(-0.5, length - 0.5), ylim=(0, 119), ylabel=say("03.row.share"), xticks=[], yticks=[0, 50, 100])
    bars.tick_params(labelsize=8)

    cells = _shade(np.asarray(shares), "grey", 0.75)
    cells[row] = _shade(lit, "blue")
    ax.imshow(cells, aspect="auto")
    if masked:
        _hide_future(ax, length)
    ax.add_patch(Rectangle((-0.5, row - 0.5), length, 1, fill=False, edgecolor="black", linewidth=2, clip_on=False))
    names = labels(tokens)
    ax.set_xticks(range(length), [name.replace(" ", "\n", 1) for name in names], fontsize=8)
    ax.set_yticks(range(length), names, fontsize=8)
    ax.get_yticklabels()[row].set_fontweight("bold")
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    ax.set(xlabel=say("03.row.keys"), ylabel=say("03.row.queries"))
    facts = {"where": where, "query": names[row], "looked": names[best], "best": lit[best]}
    fig.suptitle(say("03.row.title", **facts), x=0.01, ha="left", fontsize=11, fontweight="bold")
    hidden = length - 1 - row
    rest = say(f"03.row.{'hidden' if masked else 'open'}.{min(hidden, 2)}", ahead=ahead, hidden=hidden)
    return Picture(fig, say("03.row.sentence", rest=rest, **facts), data=lit)


@picture
def layer_map(hidden: int, heads: int, kv_heads: int, head_dim: int, inner: int, length: int) -> Picture:
    """One layer from input to output, with the shape of what flows on each arrow."""
    fig, ax = new_figure(8.6, 3.9)
    ax.set(xlim=(-0.1, 17.0), ylim=(-0.3, 8.0))
    ax.axis("off")

    def box(x: float, y: float, key: str, name: str, shape: str) -> None:
        style = {"boxstyle": "round,pad=0.3", "facecolor": COLOURS[name] + "30", "edgecolor": COLOURS[name]}
        ax.text(x, y, say(key), ha="center", va="center", fontsize=9, bbox=style)
        ax.text(x, y - 0.5, shape, ha="center", va="top", fontsize=7.5, color="#444444")

    def arrow(start: tuple[float, float], end: tuple[float, float], **extra: Any) -> None:
        line = {"arrowstyle": "-|>", "color": "#555555", "linewidth": 1.1, "shrinkA": 0, "shrinkB": 0, **extra}
        ax.annotate("", end, start, arrowprops=line)

    def plus(x: float, y: float) -> None:
        ax.text(x, y, "+", ha="center", va="center", fontsize=13, bbox={"boxstyle": "circle,pad=0.1", "fc": "white"})

    thick = {"color": COLOURS["black"], "linewidth": 2.2}
    wide, score = f"[{length}, {hidden}]", f"[{heads}, {length}, {length}]"
    # the attention half: one row of boxes, Q and K above V
    ax.text(1.0, 6.5, say("03.layer.attention"), fontsize=10, fontweight="bold", va="center")
    box(2.2, 4.7, "03.layer.norm", "grey", wide)
    arrow((0.0, 4.7), (1.25, 4.7))
    for y, key, name, count in (
        (6.1, "q", "blue", heads),
        (4.7, "k", "orange", kv_heads),
        (3.3, "v", "green", kv_heads),
    ):
        box(4.5, y, f"03.layer.{key}", name, f"[{count}, {length}, {head_dim}]")
        arrow((3.15, 4.7), (4.1, y))
    for y in (6.1, 4.7):
        box(6.5, y, "03.layer.rope", "grey", "")
        arrow((4.9, y), (5.95, y))
        arrow((7.05, y), (8.05, 5.5 if y > 5 else 5.3))
    box(9.0, 5.4, "03.layer.softmax", "pink", "")
    ax.text(9.0, 4.72, score, ha="center", va="top", fontsize=7.5, color="#444444")
    box(11.7, 4.7, "03.layer.mix", "green", f"[{heads}, {length}, {head_dim}]")
    arrow((9.95, 5.4), (10.75, 4.95))
    arrow((4.9, 3.3), (10.75, 4.5))
    box(14.0, 4.7, "03.layer.out", "grey", wide)
    arrow((12.65, 4.7), (13.3, 4.7))
    arrow((14.7, 4.7), (15.45, 4.7))
    plus(15.8, 4.7)
    # the MLP half
    ax.text(1.0, 0.9, say("03.layer.mlp"), fontsize=10, fontweight="bold", va="center")
    for x, key, name, shape in (
        (4.3, "norm", "grey", wide), (8.0, "gate", "sky", f"2 × [{length}, {inner}]"), (11.7, "down", "grey", wide),
    ):  # fmt: skip
        box(x, 0.9, f"03.layer.{key}", name, shape)
    arrow((5.25, 0.9), (6.65, 0.9))
    arrow((9.35, 0.9), (11.1, 0.9))
    arrow((12.3, 0.9), (13.65, 0.9))
    plus(14.0, 0.9)
    arrow((14.35, 0.9), (16.9, 0.9), **thick)
    # the residual stream, past both halves
    ax.plot([0.4, 0.4, 15.8], [4.7, 7.2, 7.2], **thick)
    arrow((15.8, 7.2), (15.8, 5.1), **thick)
    ax.plot([15.8, 15.8, 2.4, 2.4], [4.3, 2.1, 2.1, 0.9], **thick)
    arrow((2.4, 0.9), (3.35, 0.9))
    arrow((14.0, 2.1), (14.0, 1.3), **thick)
    ax.text(8.0, 7.3, say("03.layer.residual"), fontsize=8.5, va="bottom", ha="center")
    facts = {"heads": heads, "kv_heads": kv_heads, "hidden": hidden, "length": length}
    ax.set_title(say("03.layer.title", **facts))
    return Picture(fig, say("03.layer.sentence", **facts), data=facts)


@picture
def exp_range(largest: float) -> Picture:
    """How far a score may go before its exponential leaves float16 and float32, beside a model's largest score."""
    limits = {"float16": float(np.log(np.finfo(np.float16).max)), "float32": float(np.log(np.finfo(np.float32).max))}
    fig, ax = new_figure(7.5, 2.0)
    ends = [*limits.values(), largest]
    for y, (name, end, tint, hatch) in enumerate(
        [
            ("float16", limits["float16"], "orange", ""),
            ("float32", limits["float32"], "sky", ""),
            (say("03.exp.model"), largest, "blue", "..."),
        ]
    ):
        ax.barh(y, end, color=COLOURS[tint], hatch=hatch, edgecolor="white", height=0.62)
        ax.text(end + max(ends) / 100, y, f"{end:.1f}", va="center", fontsize=9)
        ax.text(-max(ends) / 100, y, name, va="center", ha="right", fontsize=9)
    ax.set(yticks=[], ylim=(2.5, -0.5), xlim=(0, max(ends) * 1.1), xlabel=say("03.exp.axis"))
    ax.spines["left"].set_visible(False)
    facts = {"largest": largest, "half": limits["float16"], "single": limits["float32"]}
    ax.set_title(say("03.exp.title", **facts))
    return Picture(fig, say("03.exp.sentence", **facts), data=facts)


@picture
def masks(named: Sequence[tuple[str, Any]], title: str) -> Picture:
    """Some boolean masks side by side; a filled cell may be looked at, a hatched one may not.

    Args:
        named: (title, [q_len, kv_len] bools) each.
        title: what to see.
    """
    shown = [(name, np.asarray(mask, dtype=bool)) for name, mask in named]
    each = 7.6 / len(shown)
    tallest = max(mask.shape[0] / mask.shape[1] for _, mask in shown)
    fig, axes = new_figure(7.8, 1.2 + (each - 0.7) * tallest, ncols=len(shown), squeeze=False)
    for ax, (name, mask) in zip(axes[0], shown, strict=True):
        rows, columns = mask.shape
        ax.imshow(_shade(mask.astype(float), "blue", 0.8), extent=(-0.5, columns - 0.5, rows - 0.5, -0.5))
        for row, column in zip(*np.nonzero(~mask), strict=True):
            ax.text(column, row, "×", ha="center", va="center", color="#9a9a9a", fontsize=9)
        ax.set_xticks(np.arange(columns), np.arange(columns), fontsize=8)
        ax.set_yticks(range(rows), range(columns - rows, columns), fontsize=8)
        ax.set_xticks(np.arange(columns + 1) - 0.5, minor=True)
        ax.set_yticks(np.arange(rows + 1) - 0.5, minor=True)
        ax.grid(which="minor", color="#bbbbbb", linewidth=0.7)
        ax.tick_params(which="both", length=0)
        ax.set_title(name, fontsize=9.5, fontweight="normal")
        ax.set(xlabel=say("03.mask.keys"), ylabel=say("03.mask.queries"))
    fig.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
    parts = [say("03.mask.part", name=name, rows=mask.sum(axis=1).tolist()) for name, mask in shown]
    return Picture(fig, say("03.mask.sentence", parts="; ".join(parts)), data=[mask.tolist() for _, mask in shown])


@picture
def head_groups(num_heads: int, num_kv_heads: int) -> Picture:
    """Which KV head each query head reads, grouped (right) beside tiled (wrong)."""
    group = num_heads // num_kv_heads
    fig, axes = new_figure(8.0, 2.3, ncols=2)
    tints = ["blue", "orange", "green", "pink", "sky", "red"]
    same = sum(head // group == head % num_kv_heads for head in range(num_heads))
    for ax, pair, key in ((axes[0], lambda h: h // group, "grouped"), (axes[1], lambda h: h % num_kv_heads, "tiled")):
        centres = [group * kv + (group - 1) / 2 for kv in range(num_kv_heads)]
        for head in range(num_heads):
            kv = pair(head)
            ax.plot([head, centres[kv]], [0.86, 0.14], color=COLOURS[tints[kv % 6]], linewidth=1.6, zorder=1)
            _knot(ax, head, 1, f"Q{head}", tints[kv % 6])
        for kv, x in enumerate(centres):
            _knot(ax, x, 0, f"KV{kv}", tints[kv % 6])
        ax.set(xlim=(-0.7, num_heads - 0.3), ylim=(-0.35, 1.35))
        ax.axis("off")
        ax.set_title(say(f"03.groups.{key}", group=group, kv_heads=num_kv_heads), fontsize=9.5, fontweight="normal")
    facts = {"heads": num_heads, "kv_heads": num_kv_heads, "group": group, "same": same}
    fig.suptitle(say("03.groups.title", **facts), x=0.01, ha="left", fontsize=11, fontweight="bold")
    return Picture(fig, say("03.groups.sentence", **facts), data=facts)


def _knot(ax: Any, x: float, y: float, name: str, tint: str) -> None:
    style = {"boxstyle": "round,pad=0.25", "facecolor": "white", "edgecolor": COLOURS[tint], "linewidth": 1.4}
    ax.text(x, y, name, ha="center", va="center", fontsize=8, bbox=style, zorder=2)


@picture
def rope_clocks(pairs: Sequence[tuple[int, int]], frequency: float, scores: Sequence[float]) -> Picture:
    """One pair of numbers of a query and a key, as clock hands, at several pairs of positions.

    Args:
        pairs: (query position, key position) each.
        frequency: radians the hand turns per token.
        scores: the whole score (all pairs of numbers) at each.
    """
    fig, axes = new_figure(2.5 * len(pairs) + 0.4, 3.0, ncols=len(pairs), squeeze=False)
    turn = np.linspace(0, 2 * np.pi, 120)
    for ax, (query, key), score in zip(axes[0], pairs, scores, strict=True):
        ax.plot(np.cos(turn), np.sin(turn), color="#bbbbbb", linewidth=1)
        start, end = sorted((key * frequency, query * frequency))
        arc = np.linspace(start, end, 60) if end - start < 2 * np.pi else turn
        ax.plot(0.32 * np.cos(arc), 0.32 * np.sin(arc), color=COLOURS["black"], linewidth=1.6)
        for at, tint, name, dash in ((query, "blue", "Q", "-"), (key, "orange", "K", "--")):
            angle = at * frequency
            tip = np.array([np.cos(angle), np.sin(angle)])
            ax.plot([0, tip[0]], [0, tip[1]], color=COLOURS[tint], linewidth=2.6, linestyle=dash)
            ax.text(*(1.2 * tip), f"{name}", ha="center", va="center", fontsize=11, fontweight="bold")
        ax.set(xlim=(-1.4, 1.4), ylim=(-1.4, 1.4), aspect="equal")
        ax.axis("off")
        ax.set_title(
            say("03.rope.clock", q_at=query, k_at=key, distance=query - key, score=score),
            fontsize=9,
            fontweight="normal",
        )
    facts = {
        "distances": sorted({q - k for q, k in pairs}),
        "angle": abs(pairs[0][0] - pairs[0][1]) * frequency,
        "positions": " and ".join(f"({q}, {k})" for q, k in pairs),
        "scores": ", ".join(f"{s:.2f}" for s in scores),
    }
    fig.suptitle(say("03.rope.title", **facts), x=0.01, ha="left", fontsize=11, fontweight="bold")
    return Picture(fig, say("03.rope.sentence", **facts), data=facts)


@picture
def attention_maps(maps: Sequence[tuple[str, np.ndarray]], tokens: Sequence[str], title: str, sentence: str) -> Picture:
    """Heatmaps of a few heads over one sentence, darker for a larger share; the future is hatched.

    Args:
        maps: (title, [length, length] shares) each.
        tokens: the text of each token.
        title: what to see.
        sentence: the same, measured, in one sentence.
    """
    fig, axes = new_figure(2.55 * len(maps) + 0.7, 3.7, ncols=len(maps), squeeze=False)
    fig.get_layout_engine().set(rect=(0, 0.04, 1, 0.93))  # the turned token names reach a little below their box
    for index, (ax, (name, shares)) in enumerate(zip(axes[0], maps, strict=True)):
        ax.imshow(_shade(np.asarray(shares), "blue"))
        _hide_future(ax, len(tokens))
        _token_axes(ax, tokens, 7)
        if index:
            ax.set_yticks([])
        ax.set_title(name, fontsize=9, fontweight="normal")
    fig.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
    return Picture(fig, sentence, data=[np.asarray(shares) for _, shares in maps])


@picture
def head_survey(first: np.ndarray, previous: np.ndarray, marked: Sequence[tuple[int, int, str]] = ()) -> Picture:
    """All heads of a model: how large a share each gives to the first token, and to the token before.

    Args:
        first, previous: [layers, heads], mean shares.
        marked: (layer, head, letter) to point out.
    """
    layers, heads = first.shape
    fig, axes = new_figure(8.2, 3.4, nrows=2)
    for ax, values, key, tint in ((axes[0], first, "first", "blue"), (axes[1], previous, "previous", "red")):
        ax.imshow(_shade(values.T, tint), aspect="auto")
        ax.set_xticks(np.arange(layers + 1) - 0.5, minor=True)
        ax.set_yticks(np.arange(heads + 1) - 0.5, minor=True)
        ax.grid(which="minor", color="#d5d5d5", linewidth=0.6)
        ax.tick_params(which="both", length=0, labelsize=7.5)
        ax.set(xticks=range(0, layers, 2), yticks=range(0, heads, 2), ylabel=say("03.survey.head"))
        over = int((values > 0.5).sum())
        ax.set_title(say(f"03.survey.{key}", over=over, total=values.size), fontsize=9.5, fontweight="normal")
        for layer, head, letter in marked:
            paper = {"boxstyle": "round,pad=0.12", "facecolor": "white", "edgecolor": "none"}
            ax.text(layer, head, letter, ha="center", va="center", fontsize=7, fontweight="bold", bbox=paper)
    axes[1].set_xlabel(say("03.survey.layer"))
    facts = {
        "total": first.size,
        "first": int((first > 0.5).sum()),
        "previous": int((previous > 0.5).sum()),
        "mean": float(first.mean()),
    }
    fig.suptitle(say("03.survey.title", **facts), x=0.01, ha="left", fontsize=11, fontweight="bold")
    return Picture(fig, say("03.survey.sentence", **facts), data=facts)


@picture
def work_growth(lengths: Sequence[int]) -> Picture:
    """The scores that one head computes while a text grows: a row a token, a triangle in all."""
    totals = [n * (n + 1) // 2 for n in lengths]
    gap, top = 2, max(lengths)
    width = sum(lengths) + gap * (len(lengths) - 1)
    cells = np.ones((top, width, 3))
    fig, ax = new_figure(6.4, 6.4 * top / width * 0.8 + 0.6)
    left = 0
    for length, total in zip(lengths, totals, strict=True):
        part = cells[top - length :, left : left + length]
        part[:] = _shade(np.tril(np.ones((length, length))), "sky", 0.75)
        part[-1] = _shade(np.ones(length), "blue")
        ax.text(left - 0.4, top - length - 0.8, say("03.work.part", length=length, total=total), fontsize=9)
        left += length + gap
    ax.imshow(cells)
    ax.set_xticks(np.arange(width + 1) - 0.5, minor=True)
    ax.set_yticks(np.arange(top + 1) - 0.5, minor=True)
    ax.grid(which="minor", color="white", linewidth=0.8)
    ax.tick_params(which="both", length=0)
    ax.spines[:].set_visible(False)
    ax.set(xticks=[], yticks=[], ylim=(top - 0.5, -1.8), xlabel=say("03.work.newest"))
    facts = {"length": lengths[0], "other": lengths[-1], "few": totals[0], "many": totals[-1]}
    facts |= {"ratio": totals[-1] / totals[0], "times": lengths[-1] / lengths[0]}
    fig.suptitle(say("03.work.title", **facts), x=0.01, ha="left", fontsize=11, fontweight="bold")
    return Picture(fig, say("03.work.sentence", **facts), data=facts)
