"""Pictures of chapter 12: what a longer pass costs, rounds of guesses, p against q, rollback, and when it pays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minipaged.plots.base import COLOURS, Picture, colour, new_figure, picture
from minipaged.plots.memory import Run, draw_blocks, draw_grid
from minipaged.plots.words import say, tell
from minipaged.speculative import Round, expected_speedup


@picture
def pass_cost(counts: Sequence[int], ratios: Sequence[float], where: str) -> Picture:
    """Time of one pass over k tokens, in single steps, beside the same tokens one step after another.

    Args:
        counts: tokens in the pass, rising from 1.
        ratios: time of the pass over the time of a pass over 1 token.
        where: the machine, in a word or two.
    """
    fig, ax = new_figure(7.0, 2.9)
    ax.plot(counts, ratios, "-", color=COLOURS["blue"], marker="o", label=say("12.cost.one"))
    ax.plot(counts, counts, "--", color=COLOURS["grey"], label=say("12.cost.steps"))
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    ax.set_xticks(list(counts), [str(c) for c in counts])
    top = [t for t in (1, 2, 4, 8, 16, 32, 64) if t <= max(counts)]
    ax.set_yticks(top, [str(t) for t in top])
    ax.set_xlabel(say("12.cost.axis"))
    ax.set_ylabel(say("12.cost.unit"))
    ax.legend(fontsize=9)
    middle = min(range(len(counts)), key=lambda i: abs(counts[i] - 5))
    words = {"k": counts[middle], "ratio": ratios[middle], "last": counts[-1], "far": ratios[-1], "where": where}
    ax.set_title(say("12.cost.title", **words))
    return Picture(fig, tell("12.cost.sentence", **words), data=words)


@picture
def crowd(batches: Sequence[int], ratios: Sequence[float], count: int) -> Picture:
    """What verifying costs when many sequences share a pass: time with `count` tokens each over time with one each."""
    fig, ax = new_figure(7.0, 2.6)
    bars = ax.bar(range(len(batches)), ratios, color=COLOURS["sky"], edgecolor="black", width=0.6)
    white = {"facecolor": "white", "edgecolor": "none", "pad": 1}  # the dashed line may lie behind a label
    ax.bar_label(bars, [f"{r:.1f}" for r in ratios], fontsize=9, padding=3, bbox=white)
    ax.axhline(1, color=COLOURS["grey"], linestyle="--", linewidth=1)
    ax.set_xticks(range(len(batches)), [str(b) for b in batches])
    ax.set_xlabel(say("12.crowd.axis"))
    ax.set_ylabel(say("12.crowd.unit"))
    ax.set_ylim(0, max(ratios) * 1.2)
    words = {"k": count, "few": batches[0], "low": ratios[0], "many": batches[-1], "high": ratios[-1]}
    ax.set_title(say("12.crowd.title", **words))
    return Picture(fig, tell("12.crowd.sentence", **words), data=words)


_KINDS = {"kept": ("blue", ""), "own": ("orange", "//"), "lost": ("light", "..")}


@picture
def rounds(rows: Sequence[Round], names: dict[int, str] | None = None, first: int = 1) -> Picture:
    """One row a pass: guesses that were kept, the guess that was rejected and those behind it, the target's own token.

    Args:
        rows: the rounds, in order.
        names: what to write into the cells, by token id; None for nothing.
        first: the number of the first of these rounds.
    """
    from matplotlib.collections import PolyCollection
    from matplotlib.patches import Patch

    width = max(len(r.drafted) for r in rows) + 1
    fig, ax = new_figure(min(9.5, 1.2 + 1.5 * width), 1.1 + 0.34 * len(rows))
    boxes: dict[str, list[Any]] = {kind: [] for kind in _KINDS}
    for y, each in enumerate(rows):
        for x, kind, token in _cells(each):
            boxes[kind].append([(x, y + 0.1), (x + 0.94, y + 0.1), (x + 0.94, y + 0.9), (x, y + 0.9)])
            if names is not None and token is not None:
                tone = "white" if kind == "kept" else "black"
                place = {"ha": "center", "va": "center", "fontsize": 8}
                text = names.get(token, str(token))
                if kind == "own" and x < len(each.drafted):  # the guess that it replaces
                    text += say("12.rounds.instead", guess=names.get(each.drafted[x], str(each.drafted[x])).strip())
                pad = 1 if "\n" in text else 4  # wide enough to tell the dot of a space from the hatching
                box = None if kind == "kept" else {"facecolor": "white", "edgecolor": "none", "pad": pad}
                ax.text(x + 0.47, y + 0.5, text, color=tone, bbox=box, **place)
    for kind, (face, hatch) in _KINDS.items():
        look = {"facecolors": COLOURS[face], "edgecolors": "black", "linewidths": 0.6, "hatch": hatch or None}
        ax.add_collection(PolyCollection(boxes[kind], **look), autolim=False)
    ax.set_xlim(-0.05, width + 0.05)
    ax.set_ylim(len(rows), 0)
    ax.set_yticks([y + 0.5 for y in range(len(rows))], [say("12.rounds.row", n=first + n) for n in range(len(rows))])
    ax.set_xticks([x + 0.47 for x in range(width)], [say("12.rounds.place", n=x + 1) for x in range(width - 1)] + [""])
    ax.tick_params(length=0)
    ax.spines[["left", "bottom"]].set_visible(False)
    patches = [
        Patch(facecolor=COLOURS[face], hatch=hatch or None, edgecolor="black", label=say(f"12.rounds.{kind}"))
        for kind, (face, hatch) in _KINDS.items()
    ]
    ax.figure.legend(handles=patches, loc="outside lower center", ncol=3, fontsize=8)
    tokens = sum(len(r.written) for r in rows)
    words = {"n": len(rows), "tokens": tokens, "each": tokens / len(rows)}
    words |= {"kept": sum(r.num_accepted for r in rows), "drafted": sum(len(r.drafted) for r in rows)}
    ax.set_title(say("12.rounds.title", **words))
    return Picture(fig, tell("12.rounds.sentence", **words), data=words)


def _cells(each: Round) -> list[tuple[int, str, int | None]]:
    """(place, kind, token) of one round: guesses in their places, the target's own token where it was written."""
    kept = [(x, "kept", token) for x, token in enumerate(each.written[: each.num_accepted])]
    lost = [(x, "lost", token) for x, token in enumerate(each.drafted) if x > each.num_accepted]
    own = each.written[each.num_accepted :]
    return kept + lost + [(each.num_accepted, "own", token) for token in own]


@picture
def overlap(names: Sequence[str], p: Sequence[float], q: Sequence[float], title: str = "") -> Picture:
    """The picture of the chapter: p and q as bars; what both share is kept, what q has too much is rejected, what p has
    too much is where the rejected guesses go.

    Args:
        names: of the tokens.
        p, q: probabilities of target and draft, in the same order.
        title: said before the title.
    """
    fig, ax = new_figure(7.5, 3.1)
    places = range(len(names))
    shared = [min(a, b) for a, b in zip(p, q, strict=True)]
    more = [max(a - b, 0.0) for a, b in zip(p, q, strict=True)]
    less = [max(b - a, 0.0) for a, b in zip(p, q, strict=True)]
    look = {"edgecolor": "black", "linewidth": 0.6, "width": 0.7}
    ax.bar(places, shared, color=COLOURS["blue"], label=say("12.overlap.shared"), **look)
    ax.bar(places, more, bottom=shared, color=COLOURS["orange"], hatch="//", label=say("12.overlap.more"), **look)
    ax.bar(places, less, bottom=shared, color=COLOURS["light"], hatch="..", label=say("12.overlap.less"), **look)
    for x, (a, b) in enumerate(zip(p, q, strict=True)):
        ax.plot([x - 0.42, x + 0.42], [a, a], color="black", linewidth=2.2)
        ax.plot([x - 0.42, x + 0.42], [b, b], color=COLOURS["red"], linewidth=1.6, linestyle=":")
    ax.plot([], [], color="black", linewidth=2.2, label=say("12.overlap.p"))
    ax.plot([], [], color=COLOURS["red"], linewidth=1.6, linestyle=":", label=say("12.overlap.q"))
    crowded = {"rotation": 35, "ha": "right"} if len(names) > 8 else {}
    ax.set_xticks(list(places), list(names), fontsize=8, **crowded)
    ax.set_ylabel(say("12.overlap.axis"))
    ax.set_ylim(0, max(*p, *q) * 1.15)
    ax.legend(fontsize=8, ncol=1, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    words = {"kept": sum(shared), "lost": sum(less), "most": names[max(places, key=lambda i: more[i])]}
    words["share"] = max(more) / sum(more) if sum(more) > 0 else 0.0
    ax.set_title((f"{title}: " if title else "") + say("12.overlap.title", **words))
    return Picture(fig, tell("12.overlap.sentence", **words), data=words)


@picture
def rollback(stages: Sequence[tuple[Sequence[int], int, int, int]], block_size: int) -> Picture:
    """A block table before, in and after a round.

    Args:
        stages: before, in and after the pass, each (block table, tokens of the text in the cache, guesses kept,
            guesses rejected).
        block_size: slots in a block.
    """
    before, in_pass, after = stages
    columns = max(len(table) for table, *_ in stages) * block_size
    names = [say("12.rollback.before", n=before[1]), say("12.rollback.pass", n=in_pass[2] + in_pass[3])]
    names.append(say("12.rollback.after", n=after[1]))
    fig, axes = new_figure(8.2, 0.75 + 0.72 * len(stages), nrows=len(stages))
    for ax, name, (table, held, kept, lost) in zip(axes, names, stages, strict=True):
        size = len(table) * block_size
        parts = [Run(0, held, "used", 0), Run(held, kept, "copy", 0), Run(held + kept, lost, "wasted", 5)]
        parts.append(Run(held + kept + lost, size - held - kept - lost, "free"))
        draw_grid(ax, [run for run in parts if run.length], columns)
        draw_blocks(ax, len(table), block_size, columns, numbers=False)
        for place, block in enumerate(table):
            ax.text(place * block_size + 0.08, -0.06, str(block), fontsize=7, va="bottom", color="#444444")
        ax.set_xlim(-0.3, columns + 0.3)
        ax.set_title(name, loc="left", fontsize=8.5, pad=4, fontweight="normal")
    place = {"ha": "center", "va": "center", "fontsize": 6.5, "color": "white", "fontweight": "bold"}
    axes[1].text(in_pass[1] - 0.5, 0.5, say("12.rollback.newest"), **place)
    _rollback_legend(fig)
    words = {"before": before[1], "blocks": len(in_pass[0]), "lost": in_pass[3], "kept": in_pass[2]}
    words |= {"after": after[1], "left": len(after[0])}
    fig.suptitle(say("12.rollback.title", **words), fontsize=10, fontweight="bold")
    return Picture(fig, tell("12.rollback.sentence", **words), data=words)


def _rollback_legend(fig: Any) -> None:
    from matplotlib.patches import Patch

    looks = {
        "text": {"facecolor": colour(0), "edgecolor": "white"},
        "kept": {"facecolor": colour(0), "edgecolor": "black", "linewidth": 2.2},
        "lost": {"facecolor": "#f2f2f2", "edgecolor": colour(5), "hatch": "..."},
        "free": {"facecolor": "white", "edgecolor": "#c4c4c4"},
    }
    handles = [Patch(label=say(f"12.rollback.{name}"), **look) for name, look in looks.items()]
    fig.legend(handles=handles, loc="outside lower center", ncol=4, fontsize=8)


@picture
def speedup(
    rate: float, count: int, draft_cost: float, longest: int = 10, slope: float = 0.0, measured: Sequence[Any] = ()
) -> Picture:
    """Expected speed-up over the draft length, for one quality and price of the draft.

    Args:
        rate: probability that a guess is kept.
        count: the draft length that is marked.
        draft_cost: time of one guess, in plain steps.
        longest: the right end of the axis.
        slope: what each more token in the target's pass costs, in plain steps.
        measured: (name, draft length, speed-up) to put beside.
    """
    lengths = list(range(longest + 1))
    values = [expected_speedup(rate, k, draft_cost, 1 + slope * k) for k in lengths]
    fig, ax = new_figure(7.0, 2.9)
    ax.plot(lengths, values, "-", color=COLOURS["blue"], marker="o", markersize=4)
    ax.axhline(1, color=COLOURS["grey"], linestyle="--", linewidth=1)
    ax.text(longest, 1, say("12.speedup.plain"), ha="right", va="bottom", fontsize=8, color="#444444")
    best = max(lengths, key=lambda k: values[k])
    ax.plot([best], [values[best]], "*", color=COLOURS["red"], markersize=11, label=say("12.speedup.best"))
    square = {"color": "black", "markersize": 14, "fillstyle": "none", "linestyle": "none"}
    ax.plot([count], [values[count]], "s", label=say("12.speedup.yours"), **square)
    for name, k, value in measured:
        ax.plot([k], [value], "^", color=COLOURS["green"], markersize=8)
        ax.text(k, value, f"  {name}", fontsize=8, va="center")
    ax.set_xticks(lengths)
    ax.legend(fontsize=8, loc="lower center", ncol=2, markerscale=0.7)
    ax.set_ylim(0, max(1.3, *values) * 1.12)
    ax.set_xlabel(say("12.speedup.axis"))
    ax.set_ylabel(say("12.speedup.unit"))
    words = {"rate": rate, "k": count, "value": values[count], "best": best, "top": values[best], "cost": draft_cost}
    ax.set_title(say("12.speedup.title" if values[best] > 1.0001 else "12.speedup.never", **words))
    return Picture(fig, tell("12.speedup.sentence", **words), data=words)
