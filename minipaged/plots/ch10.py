"""Pictures of chapter 10: a line a request over pool usage, what each idea adds, latency against load, gauges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minipaged.plots.base import COLOURS, Picture, colour, new_figure, picture
from minipaged.plots.ch06 import letter
from minipaged.plots.words import say
from minipaged.scheduler import Moment, Rehearsed

_STATES = ("waiting", "prefill", "decode", "idle", "away", "swapped")


def _look(state: str, own: str) -> tuple[str, str, str]:
    """(face, edge, hatch) of a state in a request's own colour."""
    return {
        "waiting": ("white", "#c4c4c4", ""),
        "prefill": (own, "black", "////"),
        "decode": (own, own, ""),
        "idle": ("white", own, ""),
        "away": ("#f2f2f2", own, "..."),
        "swapped": ("#f2f2f2", own, "xx"),
    }[state]


def spans(moments: Sequence[Moment]) -> list[tuple[int, str, float, float]]:
    """(request, state, start, end): steps of the same state joined."""
    open_: dict[int, tuple[str, float, float]] = {}
    done: list[tuple[int, str, float, float]] = []
    for moment in moments:
        for request, (state, start, end) in list(open_.items()):
            if moment.states.get(request) != state or end != moment.start:
                done.append((request, state, start, end))
                del open_[request]
        for request, state in moment.states.items():
            start = open_.get(request, (state, moment.start, 0.0))[1]
            open_[request] = (state, start, moment.end)
    return done + [(request, *rest) for request, rest in open_.items()]


def _draw_lines(ax: Any, moments: Sequence[Moment], count: int) -> None:
    """One line a request; few collections, so that a slider can redraw it."""
    from matplotlib.collections import PolyCollection

    looks: dict[tuple[str, str, str], list[Any]] = {}
    for request, state, start, end in spans(moments):
        high = 0.2 if state == "waiting" else 0.42
        low, top = request + 0.5 - high, request + 0.5 + high
        box = [(start, low), (end, low), (end, top), (start, top)]
        looks.setdefault(_look(state, colour(request)), []).append(box)
    for (face, edge, hatch), boxes in looks.items():
        style = {"facecolors": face, "edgecolors": edge, "hatch": hatch or None, "linewidths": 0.5}
        ax.add_collection(PolyCollection(boxes, **style), autolim=False)
    gone = [(m.start, request + 0.5) for m in moments for request in m.preempted]
    if gone:
        ax.plot(*zip(*gone, strict=True), "X", color="black", markersize=6, markeredgecolor="white")
    ax.set_ylim(count, 0)
    every = 1 if count <= 16 else -(-count // 16)
    ax.set_yticks([i + 0.5 for i in range(0, count, every)], [letter(i) for i in range(0, count, every)])


def _legend(ax: Any, moments: Sequence[Moment]) -> None:
    from matplotlib.patches import Patch

    seen = {state for m in moments for state in m.states.values()}
    handles = []
    for state in _STATES:
        if state in seen:
            face, edge, hatch = _look(state, COLOURS["blue"])
            looks = {"facecolor": face, "edgecolor": edge, "hatch": hatch or None, "linewidth": 0.6}
            handles.append(Patch(label=say(f"10.state.{state}"), **looks))
    where = {"loc": "outside lower center", "ncol": len(handles)}
    ax.figure.legend(handles=handles, handlelength=1.6, handleheight=1.1, columnspacing=1.0, fontsize=8, **where)


@picture
def lines(
    moments: Sequence[Moment],
    requests: Sequence[Rehearsed],
    num_blocks: int,
    *,
    name: str = "",
    unit: str = "",
    until: float | None = None,
    legend: bool = True,
) -> Picture:
    """The picture of the chapter: one line a request over the blocks in use.

    Args:
        moments, requests: what `rehearse` gave.
        num_blocks: of the pool.
        name: said before the title, to compare two.
        unit: of time, "step" when empty.
        until: the right end of the time axis.
    """
    count = len(requests)
    fig, (top, low) = new_figure(7.5, 1.9 + 0.17 * min(count, 20), nrows=2, sharex=True, height_ratios=[3, 1])
    _draw_lines(top, moments, count)
    edges = [m.start for m in moments] + [moments[-1].end]
    used = [m.blocks_used for m in moments]
    low.stairs(used, edges, fill=True, color=COLOURS["sky"], edgecolor=COLOURS["blue"])
    low.axhline(num_blocks, color="black", linewidth=1, linestyle="--")
    low.set_ylim(0, num_blocks * 1.12)
    low.set_yticks([0, num_blocks])
    low.set_ylabel(say("10.lines.blocks"), fontsize=8)
    low.set_xlim(0, until or moments[-1].end)
    low.set_xlabel(say("10.step") if not unit else say("10.time", unit=unit), labelpad=1)
    if legend:
        _legend(low, moments)
    gave_way = sum(r.preempted for r in requests)
    share = sum(m.blocks_used * (m.end - m.start) for m in moments) / num_blocks / max(moments[-1].end, 1e-9)
    words = {
        "n": count,
        "blocks": num_blocks,
        "steps": len(moments),
        "end": moments[-1].end,
        "unit": unit or say("10.step"),
        "gone": gave_way,
        "share": share,
        "running": sum(m.count("prefill", "decode", "idle") for m in moments) / len(moments),
    }
    top.set_title((f"{name}: " if name else "") + say("10.lines.title", **words))
    slowest = max((r for r in requests if r.token_times), key=lambda r: r.latency, default=None)
    words["slowest"] = letter(list(requests).index(slowest)) if slowest else "-"
    lead = f"{name}: " if name else ""
    return Picture(fig, lead + say("10.lines.sentence", **words), data=words)


@picture
def ablation(rows: Sequence[tuple[str, int, float, float]]) -> Picture:
    """What each idea adds: (name, steps, mean requests running, share of the pool's slots that hold a token)."""
    fig, axes = new_figure(7.5, 2.6, ncols=3, sharey=True)
    names, fills = [row[0].replace(" + ", "\n+ ") for row in rows], ["grey", "sky", "blue"]
    hatches = ["..", "//", ""]
    for column, ax in enumerate(axes, 1):
        values = [row[column] * (100 if column == 3 else 1) for row in rows]
        bars = ax.barh(range(len(rows)), values, color=[COLOURS[c] for c in fills[: len(rows)]], edgecolor="black")
        for bar, hatch, value in zip(bars, hatches, values, strict=False):
            bar.set_hatch(hatch)
            text = f"{value:.0f}" if column == 1 else f"{value:.1f}"
            ax.text(value, bar.get_y() + bar.get_height() / 2, f" {text}", va="center", fontsize=9)
        ax.set_xlim(0, max(values) * 1.3)
        ax.set_title(say(f"10.ablation.{column}"), fontsize=9)
        ax.set_xticks([])
        ax.set_ylim(len(rows) - 0.4, -0.6)
    axes[0].set_yticks(range(len(rows)), names)
    _headline(fig, say("10.ablation.title", steps=", ".join(str(row[1]) for row in rows)))
    each = "; ".join(say("10.ablation.each", name=n, steps=s, running=r, used=u) for n, s, r, u in rows)
    return Picture(fig, say("10.ablation.sentence", each=each), data=list(rows))


def _headline(fig: Any, text: str) -> None:
    """What a figure of several panels has to say."""
    fig.suptitle(text, x=0.01, ha="left", fontsize=11, fontweight="bold")


def _logarithmic(ax: Any) -> None:
    """A logarithmic y axis with plain numbers at 1, 2, 5, 10, 20, ..."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    ax.set_yscale("log")
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    ax.yaxis.set_minor_formatter(NullFormatter())


@picture
def load(
    rates: Sequence[float], first: Sequence[Sequence[float]], gap: Sequence[Sequence[float]], unit: str
) -> Picture:
    """Time to first token and between tokens against the request rate: (median, 90th, 99th percentile) each."""
    fig, axes = new_figure(7.5, 3.2, ncols=2)
    styles = [("blue", "o", "-"), ("orange", "s", "--"), ("red", "^", ":")]
    for ax, values, what in zip(axes, (first, gap), ("first", "gap"), strict=True):
        for i, (name, marker, line) in enumerate(styles):
            label = say(f"10.load.p{i}")
            ax.plot(rates, [v[i] for v in values], line, color=COLOURS[name], marker=marker, label=label, markersize=4)
        _logarithmic(ax)
        ax.set_xlabel(say("10.load.rate", unit=unit))
        ax.set_title(say(f"10.load.{what}", unit=unit), fontsize=9)
    axes[0].legend(fontsize=8)
    words = {
        "low": rates[0],
        "high": rates[-1],
        "f0": first[0][0],
        "f1": first[-1][0],
        "p0": first[0][2],
        "p1": first[-1][2],
        "g0": gap[0][0],
        "g1": gap[-1][0],
        "unit": unit,
        "times": first[-1][0] / max(first[0][0], 1e-9),
    }
    _headline(fig, say("10.load.title", **words))
    return Picture(fig, say("10.load.sentence", **words), data=words)


@picture
def slower(alone: Sequence[float], together: Sequence[float], gave_way: Sequence[int]) -> Picture:
    """Each request's time alone and with the others; a cross marks those that gave way."""
    fig, ax = new_figure(7.5, 2.6)
    places = range(len(alone))
    ax.bar([p - 0.2 for p in places], alone, 0.4, color=COLOURS["sky"], edgecolor="black", label=say("10.slower.alone"))
    together_look = {"color": COLOURS["orange"], "edgecolor": "black", "hatch": "//"}
    ax.bar([p + 0.2 for p in places], together, 0.4, label=say("10.slower.together"), **together_look)
    crossed = [p for p in places if gave_way[p]]
    if crossed:
        high = [together[p] for p in crossed]
        ax.plot([p + 0.2 for p in crossed], high, "X", color="black", markersize=8, label=say("10.slower.gone"))
    ax.set_xticks(list(places), [letter(p) for p in places])
    ax.set_ylabel(say("10.slower.axis"))
    ratio = [b / a for a, b in zip(alone, together, strict=True)]
    worst = max(places, key=lambda p: ratio[p])
    words = {"worst": letter(worst), "times": ratio[worst], "least": min(ratio), "n": len(crossed)}
    ax.set_title(say("10.slower.title", **words))
    ax.legend(fontsize=8)
    return Picture(fig, say("10.slower.sentence", **words), data=words | {"ratio": ratio})


@picture
def give_way_cost(sizes: Sequence[int], swap: Sequence[float], recompute: float, tokens: int) -> Picture:
    """Milliseconds to take a sequence out and bring it back: swapped, by block size, and recomputed."""
    fig, ax = new_figure(7.0, 2.9)
    ax.plot(sizes, swap, "-", color=COLOURS["blue"], marker="o", label=say("10.cost.swap"))
    ax.axhline(recompute, color=COLOURS["red"], linestyle="--", label=say("10.cost.recompute"))
    ax.set_xscale("log", base=2)
    _logarithmic(ax)
    ax.set_xticks(list(sizes), [str(s) for s in sizes])
    ax.set_xlabel(say("10.cost.axis"))
    ax.set_ylabel(say("10.time.log", unit="ms"))
    ax.legend(fontsize=9)
    cheaper = [s for s, ms in zip(sizes, swap, strict=True) if ms < recompute]
    words = {"tokens": tokens, "first": sizes[0], "high": swap[0], "recompute": recompute, "last": sizes[-1]}
    words |= {"low": swap[-1], "cross": cheaper[0] if cheaper else sizes[-1]}
    ax.set_title(say("10.cost.title", **words))
    return Picture(fig, say("10.cost.sentence", **words), data=words)


@picture
def chunk_sizes(budgets: Sequence[int], first: Sequence[float], gap: Sequence[float], unit: str = "ms") -> Picture:
    """A long prompt among decoding requests: its time to first token, and the others' longest gap, by budget."""
    fig, ax = new_figure(7.5, 2.9)
    ax.plot(budgets, first, "-", color=COLOURS["blue"], marker="o", label=say("10.chunk.first"))
    ax.plot(budgets, gap, "--", color=COLOURS["red"], marker="s", label=say("10.chunk.gap"))
    ax.set_xscale("log", base=2)
    _logarithmic(ax)
    ax.set_xticks(list(budgets), [str(b) for b in budgets])
    ax.set_xlabel(say("10.chunk.axis"))
    ax.set_ylabel(say("10.time.log", unit=unit))
    ax.legend(fontsize=9)
    words = {"small": budgets[0], "large": budgets[-1], "f0": first[0], "f1": first[-1], "g0": gap[0], "g1": gap[-1]}
    ax.set_title(say("10.chunk.title", unit=unit, **words))
    return Picture(fig, say("10.chunk.sentence", unit=unit, **words), data=words)


@picture
def gauges(moments: Sequence[Moment], num_blocks: int, name: str, unit: str = "s") -> Picture:
    """What an operator sees: running and waiting, blocks in use, sequences that gave way, tokens a step."""
    fig, axes = new_figure(7.5, 2.9, nrows=2, ncols=2, sharex=True)
    (a, b), (c, d) = axes
    time = [m.start for m in moments]
    running = [m.count("prefill", "decode", "idle") for m in moments]
    waiting = [m.count("waiting", "away", "swapped") for m in moments]
    a.step(time, running, where="post", color=COLOURS["blue"], label=say("10.gauges.running"))
    a.step(time, waiting, where="post", color=COLOURS["orange"], linestyle="--", label=say("10.gauges.waiting"))
    a.legend(fontsize=7)
    b.step(time, [100 * m.blocks_used / num_blocks for m in moments], where="post", color=COLOURS["green"])
    b.set_ylim(0, 105)
    gone = [0]
    for m in moments:
        gone.append(gone[-1] + len(m.preempted))
    c.step(time, gone[1:], where="post", color=COLOURS["red"])
    d.step(time, [m.num_tokens for m in moments], where="post", color=COLOURS["black"], linewidth=0.7)
    for ax, what in zip((a, b, c, d), ("queues", "blocks", "gone", "tokens"), strict=True):
        ax.set_title(say(f"10.gauges.{what}"), fontsize=9)
        ax.set_ylim(0, max(1, ax.get_ylim()[1]))
    for ax in (c, d):
        ax.set_xlabel(say("10.time", unit=unit))
    words = {
        "name": name,
        "running": max(running),
        "waiting": max(waiting),
        "blocks": max(m.blocks_used for m in moments) / num_blocks,
        "gone": gone[-1],
        "tokens": max(m.num_tokens for m in moments),
        "slowest": max(m.end - m.start for m in moments),
        "unit": unit,
    }
    _headline(fig, say("10.gauges.title", **words))
    return Picture(fig, say("10.gauges.sentence", **words), data=words)
