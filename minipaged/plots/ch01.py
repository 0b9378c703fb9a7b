"""Chapter 1's pictures: text as tokens, the next-token bars, a dart at a strip, and what an early token changes.

Probabilities are drawn as lengths: a bar, or a part of a strip of length 1. A token that is kept is solid, a token that
was cut is hatched, and what a bar was before is a thin outline. Arrays may be torch tensors, numpy arrays or lists.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from minipaged.plots.base import COLOURS, Picture, colour, new_figure, picture
from minipaged.plots.words import say

TOP = 12  # bars that fit one picture


def readable(tokenizer: Any, token_id: int) -> str:
    """A token as a label: a space is ·, a line break is \\n, and what the figure's font cannot show is its id."""
    text = tokenizer.decode([int(token_id)])
    if not text or any(ord(c) > 0x24FF or c == "\ufffd" for c in text):
        return f"#{int(token_id)}"
    text = text.replace("\n", "\\n").replace("\t", "\\t").replace("$", r"\$")
    return text.replace(" ", "·")


@picture
def token_strip(
    parts: Sequence[tuple[str, int]],
    tokens: Sequence[tuple[str, int]],
    raw: bytes,
    unit: Literal["characters", "words"] = "characters",
) -> Picture:
    """One text three ways, on one ruler of bytes.

    Args:
        parts: (label, bytes) of each character or word, left to right.
        tokens: (label, bytes) of each token.
        raw: the text's bytes.
        unit: what the parts are.
    """
    fig, ax = new_figure(9, 2.3)
    rows = [
        (2, parts, COLOURS["light"], "black", f"01.tokens.{unit}"),
        (1, tokens, COLOURS["blue"], "white", "01.tokens.tokens"),
        (0, [(f"{byte:02x}", 1) for byte in raw], "white", COLOURS["black"], "01.tokens.bytes"),
    ]
    for y, cells, face, ink, key in rows:
        left = 0
        for label, width in cells:
            ax.barh(y, width, left=left, height=0.78, color=face, edgecolor=COLOURS["grey"], linewidth=1)
            size = 8.5 if y else 7.5
            ax.text(left + width / 2, y, label, ha="center", va="center", color=ink, fontsize=size)
            left += width
        ax.text(-0.25, y, say(key, n=len(cells)), ha="right", va="center", fontsize=9)
    ax.set_xlim(0, len(raw))
    ax.axis("off")
    split = _parts_cut_by_tokens(parts, tokens)
    values = {"parts": len(parts), "tokens": len(tokens), "bytes": len(raw), "split": split}
    ax.set_title(say(f"01.tokens.title.{unit}", **values))
    return Picture(fig, say(f"01.tokens.sentence.{unit}", **values), data=values)


def _parts_cut_by_tokens(parts: Sequence[tuple[str, int]], tokens: Sequence[tuple[str, int]]) -> int:
    """How many parts have a token's edge inside them."""
    edges = set(np.cumsum([width for _, width in tokens]).tolist())
    ends = np.cumsum([width for _, width in parts]).tolist()
    return sum(
        any(edge in edges for edge in range(end - width + 1, end)) for end, (_, width) in zip(ends, parts, strict=True)
    )


@picture
def next_token_bars(before: Any, after: Any, name: Callable[[int], str], prompt: str = "", note: str = "") -> Picture:
    """The most probable next tokens, before and after temperature and cuts.

    Args:
        before: [vocab], the model's own distribution.
        after: [vocab], what is drawn from: 0 for a token that was cut, the rest sums to 1.
        name: token id -> label.
        prompt: shown above the bars, with a note on what was done to the distribution.
    """
    before, after = _array(before), _array(after)
    ids = np.argsort(-before, kind="stable")[:TOP]
    names = [name(int(i)) for i in ids]
    kept = after > 0
    most = float(max(before[ids[0]], after[ids].max()))
    fig, ax = new_figure(7.5, 3.9)
    rows = np.arange(len(ids))
    solid = kept[ids]
    ax.barh(rows[solid], after[ids][solid], height=0.74, color=COLOURS["blue"], label=say("01.bars.kept"))
    if not solid.all():
        cut = rows[~solid]
        ax.barh(cut, before[ids][~solid], height=0.74, color="white", edgecolor=COLOURS["grey"], hatch="////",
                linewidth=0.6, label=say("01.bars.cut"))  # fmt: skip
    ax.barh(rows, before[ids], height=0.74, fill=False, edgecolor="black", linewidth=1, label=say("01.bars.before"))
    for row, i in enumerate(ids):
        text = f"{after[i]:.3f}" if kept[i] else say("01.bars.out")
        ax.text(max(before[i], after[i]) + most * 0.012, row, text, va="center", fontsize=8.5)
    rest = int(kept.sum() - solid.sum())
    mass_rest = max(0.0, float(after.sum() - after[ids].sum()))
    ax.set_yticks(rows, names, family="DejaVu Sans Mono", fontsize=9)
    ax.invert_yaxis()
    ax.set_xlim(0, most * 1.16)
    ax.set_xlabel(say("01.bars.axis" if rest else "01.bars.axis.all", rest=rest, mass=mass_rest))
    ax.legend(loc="lower right")
    values = {"kept": int(kept.sum()), "vocab": len(before), "lost": max(0.0, float(before[~kept].sum()))}
    values |= {"top": names[0], "p_before": float(before[ids[0]]), "p_after": float(after[ids[0]])}
    title = say("01.bars.title" if values["kept"] < len(before) else "01.bars.title.all", **values)
    fig.suptitle(title, x=0.02, ha="left", fontsize=11, fontweight="bold")
    if prompt:
        ax.set_title(say("01.bars.prompt", prompt=prompt, note=note), fontsize=9.5, fontweight="normal")
    values |= {"shown": len(ids), "shown_mass": float(after[ids].sum())}
    kind = ".own" if np.array_equal(before, after) else ".all" if values["kept"] == len(before) else ""
    return Picture(fig, say(f"01.bars.sentence{kind}", **values), data=values | {"ids": ids.tolist()})


@picture
def mass_curves(prompts: Mapping[str, Any], p: float) -> Picture:
    """How much mass the most probable tokens hold together, and after how many of them p is reached.

    Args:
        prompts: prompt -> its distribution [vocab].
        p: the mass that top-p asks for.
    """
    fig, ax = new_figure(7.5, 3.3)
    counts, vocab = [], 0
    for index, (prompt, probs) in enumerate(prompts.items()):
        ordered = np.sort(_array(probs))[::-1]
        mass = np.cumsum(ordered)
        count, vocab = int((mass - ordered < p).sum()), len(ordered)
        counts.append(count)
        ax.plot(np.arange(1, vocab + 1), mass, color=colour(index), ls=["-", "--", ":"][index % 3])
        ax.plot([count, count], [0, mass[count - 1]], color=colour(index), lw=1, ls=":")
        ax.plot(count, mass[count - 1], "os^"[index % 3], color=colour(index))
        ax.annotate(f"{count:,}", (count, 0.04), xytext=(4, 0), textcoords="offset points", fontsize=9.5)
        at = int(np.searchsorted(mass, 0.35))  # the label hangs on its own line, below it, clear of the dotted ones
        paper = {"facecolor": "white", "edgecolor": "none", "pad": 1}
        ax.annotate(prompt, (at + 1, mass[at]), xytext=(6, -9), textcoords="offset points", va="top", fontsize=9.5,
                    bbox=paper)  # fmt: skip
    ax.axhline(p, color=COLOURS["black"], lw=0.8)
    ax.text(0.97, p + 0.015, f"p = {p:g}", fontsize=9, va="bottom", ha="left")
    share = int(p * vocab)
    ax.axvline(share, color=COLOURS["grey"], lw=0.8, ls="-.")
    ax.text(
        share * 0.92, 0.5, say("01.mass.wrong", share=share, percent=100 * p), fontsize=8.5, ha="right", va="center"
    )
    ax.set_xscale("log")
    ax.set(xlim=(0.9, vocab * 1.05), ylim=(0, 1.02), xlabel=say("01.mass.x"), ylabel=say("01.mass.y"))
    values = {"p": p, "first": counts[0], "second": counts[-1], "vocab": vocab, "share": share}
    ax.set_title(say("01.mass.title", **values))
    return Picture(fig, say("01.mass.sentence", **values), data=counts)


@picture
def continuation_strips(levels: Sequence[Any], name: Callable[[int], str] = str) -> Picture:
    """All texts of 1, 2, 3, ... tokens of a tiny vocabulary, each as long as it is probable, under its beginning.

    Args:
        levels: for each length, the probabilities of all texts in the order of their ids.
        name: token id -> label, shown on the first strip.
    """
    fig, ax = new_figure(7.5, 2.6)
    vocab = len(_array(levels[0]))
    for depth, probs in enumerate(map(_array, levels)):
        lefts = np.concatenate([[0], np.cumsum(probs)[:-1]])
        shades = [colour(i * vocab // len(probs)) for i in range(len(probs))]
        ax.barh(np.full(len(probs), -depth), probs, left=lefts, height=0.8, color=shades, edgecolor="white",
                linewidth=0.8 if len(probs) < 100 else 0.4)  # fmt: skip
        ax.text(
            -0.015, -depth, say("01.strips.row", n=len(probs), length=depth + 1), ha="right", va="center", fontsize=9
        )
        ax.text(1.01, -depth, say("01.strips.sum", total=float(probs.sum())), va="center", fontsize=9)
        if depth == 0:
            for i, (left, width) in enumerate(zip(lefts, probs, strict=True)):
                if width > 0.03:
                    ax.text(left + width / 2, 0, f"{name(i)}\n{width:.2f}", ha="center", va="center", fontsize=8.5,
                            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.2})  # fmt: skip
    ax.set_xlim(0, 1)
    ax.axis("off")
    values = {"counts": ", ".join(str(len(_array(level))) for level in levels)}
    ax.set_title(say("01.strips.title", **values))
    return Picture(fig, say("01.strips.sentence", **values), data=[float(_array(level).sum()) for level in levels])


@picture
def text_probability(labels: Sequence[str], probs: Any) -> Picture:
    """The probability of a text as a staircase: each token multiplies what is there by one conditional probability."""
    probs = _array(probs)
    product = np.cumprod(probs)
    fig, ax = new_figure(7.5, 3.0)
    x = np.arange(len(probs))
    ax.step(np.append(x - 0.5, x[-1] + 0.5), np.append(1, product), where="post", color="none")
    heights = np.concatenate([[1.0], product])
    for i, p in enumerate(probs):
        ax.plot([i - 0.5, i - 0.5, i + 0.5], [heights[i], heights[i + 1], heights[i + 1]], color=COLOURS["blue"])
        ax.text(i, heights[i + 1] * 1.6, f"× {p:.2g}", ha="center", fontsize=8.5)
    ax.set_yscale("log")
    ax.set(xticks=x, ylim=(product[-1] / 10, 10), ylabel=say("01.product.y"))
    ax.set_xticklabels(labels, family="DejaVu Sans Mono", fontsize=9)
    total = float(product[-1])
    least = int(probs.argmin())
    values = {"n": len(probs), "total": f"{total:.1e}", "title_total": _power(total)}
    values |= {"least": labels[least], "least_p": float(probs[least])}
    ax.set_title(say("01.product.title", **values))
    return Picture(fig, say("01.product.sentence", **values), data=product.tolist())


@picture
def dart_strip(names: Sequence[str], probs: Any, dart: float) -> Picture:
    """The probabilities laid along a strip of length 1, in the order given, and where a dart lands on it.

    Args:
        names: labels of the tokens.
        probs: their probabilities; together 1.
        dart: a number from 0 up to, and without, 1.
    """
    probs = _array(probs)
    ends = np.cumsum(probs)
    hit = int(np.searchsorted(ends, min(dart * ends[-1], np.nextafter(ends[-1], 0)), side="right"))
    lefts = ends - probs
    fig, ax = new_figure(7.5, 1.9)
    shades = [COLOURS["sky"] if i == hit else "#f2f2f2" for i in range(len(probs))]
    ax.barh(
        np.zeros(len(probs)), probs, left=lefts, height=0.8, color=shades, edgecolor=COLOURS["black"], linewidth=0.8
    )
    for i, (left, width) in enumerate(zip(lefts, probs, strict=True)):
        if width > 0.01 * len(names[i]) + 0.005:
            box = {"facecolor": "white", "edgecolor": "none", "pad": 1} if i == hit else None
            ax.text(left + width / 2, 0, names[i], ha="center", va="center", fontsize=8.5, bbox=box)
        elif width > 0.018:  # too narrow for a name that lies: let it stand
            ax.text(left + width / 2, 0, names[i], ha="center", va="center", fontsize=7.5, rotation=90)
    ax.annotate(f"{dart:.3f}", (dart, 0.42), xytext=(dart, 1.0), ha="center", fontsize=9.5, fontweight="bold",
                arrowprops={"arrowstyle": "-|>", "color": COLOURS["black"], "lw": 1.5})  # fmt: skip
    ax.set(xlim=(-0.01, 1.01), ylim=(-0.5, 1.25), yticks=[], xticks=[0, 0.25, 0.5, 0.75, 1])
    ax.spines["left"].set_visible(False)
    values = {"dart": dart, "name": names[hit], "p": float(probs[hit]), "left": float(lefts[hit]),
              "right": float(ends[hit])}  # fmt: skip
    ax.set_title(say("01.dart.title", **values))
    return Picture(fig, say("01.dart.sentence", **values), data=values | {"hit": hit})


@picture
def frequencies(names: Sequence[str], expected: Any, counts: Any) -> Picture:
    """How often each token was drawn, over what its probability promises, and what chance allows (two sigma)."""
    expected, counts = _array(expected), _array(counts)
    order = np.argsort(-expected, kind="stable")
    names, expected, counts = [names[i] for i in order], expected[order], counts[order]
    draws = float(counts.sum())
    spread = 2 * np.sqrt(expected * (1 - expected / draws))
    fig, ax = new_figure(7.5, 3.1)
    x = np.arange(len(names))
    ax.bar(x, 2 * spread / expected, bottom=1 - spread / expected, width=0.6, color=COLOURS["light"],
           edgecolor=COLOURS["grey"], linewidth=0.8, label=say("01.frequencies.allowed"))  # fmt: skip
    ax.axhline(1, color=COLOURS["black"], lw=0.8)
    ax.plot(x, counts / expected, "o", color=COLOURS["blue"], ms=7, label=say("01.frequencies.drawn"))
    labels = [say("01.frequencies.name", name=n, promised=e) for n, e in zip(names, expected, strict=True)]
    ax.set_xticks(x, labels, family="DejaVu Sans Mono", fontsize=8.5)
    ax.set(xlabel=say("01.frequencies.x"), ylabel=say("01.frequencies.y"))
    ax.set_ylim(0, max(2.0, float((counts / expected).max()) * 1.1))
    ax.legend(loc="lower left")
    inside = int((np.abs(counts - expected) <= spread).sum())
    values = {"draws": int(draws), "inside": inside, "n": len(names)}
    ax.set_title(say("01.frequencies.title", **values))
    return Picture(fig, say("01.frequencies.sentence", **values), data=values)


@picture
def end_token_by_step(labels: Sequence[str], chances: Any) -> Picture:
    """The probability of the end token at each step of a text, on a logarithmic axis."""
    chances = _array(chances)
    fig, ax = new_figure(7.5, 2.8)
    x = np.arange(len(labels))
    ax.vlines(x, 1e-16, chances, color=COLOURS["grey"], lw=1)
    ax.plot(x, chances, "o", color=COLOURS["blue"], ms=6)
    ax.plot(x[-1], chances[-1], "D", color=COLOURS["red"], ms=8)
    ax.annotate(f"{chances[-1]:.2f}", (x[-1], chances[-1]), xytext=(-10, -4), textcoords="offset points", ha="right")
    ax.set_yscale("log")
    ax.set(ylim=(1e-16, 10), yticks=[1e-15, 1e-10, 1e-5, 1], ylabel=say("01.end.y"))
    ax.minorticks_off()
    ax.set_xticks(x, labels, family="DejaVu Sans Mono", fontsize=9)
    values = {"n": len(labels), "last": float(chances[-1]), "most": f"{chances[:-1].max():.0e}"}
    ax.set_title(say("01.end.title", **values))
    return Picture(fig, say("01.end.sentence", **values), data=chances.tolist())


@picture
def dependence(labels: Sequence[str], distance: Any, changed: int) -> Picture:
    """How far two next-token distributions are apart at each position, when one token of the text was changed.

    Args:
        labels: the tokens of the text; position i predicts the token after labels[i].
        distance: total variation at each position: 0 is equal, 1 has nothing in common.
        changed: the position of the changed token.
    """
    distance = _array(distance)
    fig, ax = new_figure(7.5, 3.0)
    x = np.arange(len(labels))
    ax.bar(x, distance, width=0.75, color=[COLOURS["red"] if i == changed else COLOURS["blue"] for i in x])
    ax.axvspan(-0.5, changed - 0.5, color=COLOURS["light"], alpha=0.6, lw=0)
    top = min(1.0, float(distance.max()) * 1.35)
    ax.text((changed - 1) / 2, top / 2, say("01.dependence.before"), ha="center", va="center", fontsize=9)
    ax.annotate(say("01.dependence.changed"), (changed, distance[changed]), xytext=(changed - 1, top * 0.92),
                fontsize=9, va="center", ha="right", arrowprops={"arrowstyle": "->"})  # fmt: skip
    ax.set_xticks(x, labels, family="DejaVu Sans Mono", fontsize=8.5, rotation=45, ha="right")
    ax.set(ylim=(0, top), xlim=(-0.6, len(labels) - 0.4), ylabel=say("01.dependence.y"))
    later = distance[changed:]
    values = {"later": len(later), "least": float(later.min()), "most": float(later.max()), "changed": labels[changed],
              "before": changed, "before_max": float(distance[:changed].max())}  # fmt: skip
    ax.set_title(say("01.dependence.title", **values))
    return Picture(fig, say("01.dependence.sentence", **values), data=values)


def _array(values: Any) -> np.ndarray:
    """float64 numpy, from a tensor on any device, an array or a list."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().double().numpy()
    return np.asarray(values, dtype=np.float64)


def _power(value: float) -> str:
    """A very small number as it is written by hand, for a title."""
    exponent = math.floor(math.log10(value))
    return rf"${value / 10**exponent:.1f} \times 10^{{{exponent}}}$"
