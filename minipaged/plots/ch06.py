"""Pictures of chapter 6: batches on a timeline, one reservation, a pool over time, and the paper's bars beside ours."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from minipaged.fragmentation import PARTS, Breakdown, Running, Snapshot
from minipaged.plots.base import COLOURS, Picture, colour, new_figure, picture, style
from minipaged.plots.memory import Run, State, draw_grid, draw_strip
from minipaged.plots.words import say, tell

# How a part of the pool looks in the bars: the same fills as its slots have on a strip.
_FILL = {
    "tokens": {"facecolor": COLOURS["blue"], "edgecolor": "white"},
    "reserved": {"facecolor": "white", "edgecolor": COLOURS["blue"], "hatch": "////"},
    "internal": {"facecolor": "#f2f2f2", "edgecolor": COLOURS["blue"], "hatch": "..."},
    "external": {"facecolor": "#f2f2f2", "edgecolor": "#8a8a8a", "hatch": "xx"},
    "idle": {"facecolor": "white", "edgecolor": "#c4c4c4"},
}


def letter(request: int) -> str:
    """The name of request 0, 1, 2 in pictures: A, B, C, ..., Z, A1, ..."""
    turn, place = divmod(request, 26)
    return chr(ord("A") + place) + (str(turn) if turn else "")


def ink(background: str) -> str:
    """White or black, whichever can be read on this colour."""
    return "white" if background in (COLOURS["blue"], COLOURS["green"], COLOURS["red"]) else "black"


# --- batches on a timeline -----------------------------------------------------------------------------------------


@picture
def batches(static: Sequence[tuple[int, int, int, int]], continuous: Sequence[tuple[int, int, int, int]]) -> Picture:
    """Two timelines of places; each request is (request, place, first step, steps)."""
    fig, axes = new_figure(7.5, 3.6, nrows=2, sharex=True)
    ends = []
    for ax, name, bars in zip(axes, ("static", "continuous"), (static, continuous), strict=True):
        steps = max(start + length for _, _, start, length in bars)
        places = 1 + max(place for _, place, _, _ in bars)
        work = sum(length for *_, length in bars)
        ends.append((steps, steps * places - work, steps * places))
        for place in range(places):
            ax.broken_barh([(0, steps)], (place + 0.08, 0.84), facecolor="#f7f7f7", edgecolor="#c4c4c4", hatch="..")
        for request, place, start, length in bars:
            ax.broken_barh([(start, length)], (place + 0.08, 0.84), facecolor=colour(request), edgecolor="white")
            text = {"fontsize": 9, "weight": "bold", "color": ink(colour(request))}
            ax.text(start + length / 2, place + 0.5, letter(request), ha="center", va="center", **text)
        ax.set_title(say(f"06.batches.{name}", steps=steps, idle=steps * places - work, all=steps * places))
        ax.set_ylim(places, 0)
        ax.set_yticks([n + 0.5 for n in range(places)], [say("06.batches.place", n=n) for n in range(places)])
    axes[1].set_xlabel(say("06.step"))
    (s, s_idle, s_all), (c, c_idle, c_all) = ends
    numbers = {"static_idle": s_idle, "static_all": s_all, "continuous_idle": c_idle, "continuous_all": c_all}
    sentence = tell("06.batches.sentence", static=s, continuous=c, **numbers)
    return Picture(fig, sentence, data=ends)


# --- one reservation -----------------------------------------------------------------------------------------------


@picture
def reservation(prompt: int, written: int, needed: int, capacity: int, taken: int) -> Picture:
    """One request's piece of memory, slot by slot, with the name of what each run of slots is doing."""
    fig, ax = new_figure(7.5, 1.9)
    lengths = (prompt, written - prompt, needed - written, capacity - needed, taken - capacity)
    states: tuple[State, ...] = ("used", "used", "reserved", "wasted", "rounded")
    owners = (0, 0, 0, 0, None)
    start, runs = 0, []
    for i, (length, state, owner) in enumerate(zip(lengths, states, owners, strict=True)):
        if length:
            runs.append(Run(start, length, state, owner))
            words = say(f"06.reservation.{i}", n=length)
            ax.annotate(
                words, (start + length / 2, 1.0), (start + length / 2, 1.25), ha="center", va="bottom", fontsize=8
            )
            ax.plot([start + 0.1, start + length - 0.1], [1.12, 1.12], color="#444444", linewidth=1.0)
            start += length
    draw_strip(ax, runs, cells=True)
    ax.set_xlim(-0.2, taken + 0.2)
    ax.set_ylim(-0.35, 2.1)
    for slot in range(0, taken, 4):
        ax.text(slot + 0.5, -0.08, str(slot), ha="center", va="top", fontsize=7, color="#444444")
    ax.axis("off")
    ax.set_title(say("06.reservation.title", taken=taken, written=written))
    parts = dict(zip(("prompt", "output", "reserved", "internal", "external"), lengths, strict=True))
    return Picture(fig, tell("06.reservation.sentence", taken=taken, **parts), data=parts)


# --- a pool, now and over time -------------------------------------------------------------------------------------


def runs_of(snapshot: Snapshot, num_slots: int) -> list[Run]:
    """Every slot of the pool in a run: written, reserved, never used, rounding, free."""
    runs = [run for running in snapshot.running for run in _runs_of_request(running)]
    held = sorted(span for running in snapshot.running for span in running.spans)
    edges = [(0, 0), *held, (num_slots, 0)]
    for (start, length), (after, _) in itertools.pairwise(edges):
        if after > start + length:
            runs.append(Run(start + length, after - start - length, "free"))
    return runs


def _runs_of_request(running: Running) -> list[Run]:
    """Cut each physical span where the request's slots change from one state to the next."""
    owner = running.request
    marks = (
        (running.written, "used", owner),
        (max(running.written, min(running.needed, running.capacity)), "reserved", owner),
        (running.capacity, "wasted", owner),
        (sum(length for _, length in running.spans), "rounded", None),
    )
    runs: list[Run] = []
    offset = 0  # slots of this request before the span
    for start, length in running.spans:
        done = 0
        for end, state, who in marks:
            take = min(length, end - offset) - done
            if take > 0:
                label = letter(owner) if state == "used" and take > 2 and not runs else ""
                runs.append(Run(start + done, take, state, who, label))  # type: ignore[arg-type]
                done += take
        offset += length
    return runs


@picture
def pool_now(snapshot: Snapshot, num_slots: int, *, columns: int = 64) -> Picture:
    """The whole pool at one step, as a grid of slots."""
    rows = -(-num_slots // columns)
    fig, ax = new_figure(7.5, 0.75 + 0.33 * rows)
    draw_grid(ax, runs_of(snapshot, num_slots), columns, cells=num_slots <= 512)
    ax.set_title(_now(snapshot))
    return Picture(fig, _sentence(snapshot, num_slots), data=snapshot)


def _now(snapshot: Snapshot) -> str:
    running = " ".join(letter(r.request) for r in snapshot.running) or say("06.nobody")
    waiting = " ".join(letter(r) for r in snapshot.waiting[:6]) or say("06.nobody")
    return say("06.pool.now", step=snapshot.step, running=running, waiting=waiting)


def longest_hole(snapshot: Snapshot, num_slots: int) -> int:
    """The longest run of free slots in the pool."""
    return max((run.length for run in runs_of(snapshot, num_slots) if run.state == "free"), default=0)


def _sentence(snapshot: Snapshot, num_slots: int) -> str:
    parts = {part: getattr(snapshot, part) for part in PARTS}
    free = num_slots - sum(length for running in snapshot.running for _, length in running.spans)
    key = "06.pool.waits" if snapshot.waiting else "06.pool.idle"
    first = letter(snapshot.waiting[0]) if snapshot.waiting else ""
    hole = longest_hole(snapshot, num_slots)
    return tell("06.pool.sentence", step=snapshot.step, slots=num_slots, **parts) + tell(
        key, first=first, free=free, hole=hole
    )


class Stay(NamedTuple):
    """One request's stay in the pool: [first step, end), slots written in its first and last step, and its piece."""

    request: int
    first: int
    end: int
    written_first: int
    written_last: int
    needed: int
    capacity: int
    start: int
    length: int


def stays(timeline: Sequence[Snapshot]) -> list[Stay]:
    """The stays of a recorded run of a contiguous allocator, in the order of admission."""
    done: list[Stay] = []
    here: dict[tuple[int, int], Stay] = {}  # a request runs once at a time, in one place
    for snapshot in timeline:
        now: dict[tuple[int, int], Stay] = {}
        for r in snapshot.running:
            key = (r.request, r.spans[0][0])
            before = here.get(key)
            if before is None or before.written_last + 1 != r.written:
                before = Stay(r.request, snapshot.step, 0, r.written, 0, r.needed, r.capacity, *r.spans[0])
                done.append(before)
            now[key] = before._replace(end=snapshot.step + 1, written_last=r.written)
            done[done.index(before)] = now[key]
        here = now
    return done


def draw_stays(ax: Any, of: Sequence[Stay], num_slots: int, *, letters: bool = True) -> None:
    """Memory up, time to the right: what lies under a request's slope is written, what lies above it is kept."""
    from matplotlib.collections import PolyCollection

    looks: dict[tuple[Any, ...], list[Any]] = {}
    steps = max((s.end for s in of), default=1)
    for s in of:
        a, b, own = s.first, s.end, colour(s.request)
        low, high, need = s.start + s.written_first, s.start + s.written_last, s.start + s.needed
        cap, top = s.start + s.capacity, s.start + s.length
        used = [(a, s.start), (b, s.start), (b, high), (a, low)]
        looks.setdefault((own, "white", None), []).append(used)
        looks.setdefault(("white", own, "////"), []).append([(a, low), (b, high), (b, need), (a, need)])
        if cap > need:
            looks.setdefault(("#f2f2f2", own, "..."), []).append([(a, need), (b, need), (b, cap), (a, cap)])
        if top > cap:
            looks.setdefault(("#f2f2f2", "#8a8a8a", "xx"), []).append([(a, cap), (b, cap), (b, top), (a, top)])
        if letters:
            roomy = b - a > 0.02 * steps and s.written_first + s.written_last > 0.08 * num_slots
            y = s.start + (s.written_first + s.written_last) / 4 if roomy else s.start + s.length / 2
            text = {"fontsize": 8, "color": ink(own), "weight": "bold"}
            if not roomy:  # in the middle of its piece, on white
                text = {"fontsize": 6.5, "bbox": {"facecolor": "white", "edgecolor": own, "pad": 0.6, "linewidth": 0.6}}
            ax.text((a + b) / 2, y, letter(s.request), ha="center", va="center", **text)
    for (face, edge, hatch), polygons in looks.items():
        look = {"facecolors": face, "edgecolors": edge, "hatch": hatch, "linewidths": 0.6}
        ax.add_collection(PolyCollection(polygons, **look), autolim=False)
    ax.set_xlim(min((s.first for s in of), default=0), max((s.end for s in of), default=1))
    ax.set_ylim(0, num_slots)
    ax.set_xlabel(say("06.step"))
    ax.set_ylabel(say("06.slot"))


def _stays_legend(ax: Any, of: Sequence[Stay], below: float = -0.16) -> None:
    """Only what can be seen: first-fit has neither internal waste nor rounding."""
    from matplotlib.patches import Patch

    blue, light = COLOURS["blue"], "#f2f2f2"
    looks = [
        ("used", {"facecolor": blue, "edgecolor": "white"}, True),
        ("reserved", {"facecolor": "white", "edgecolor": blue, "hatch": "////"}, True),
        ("wasted", {"facecolor": light, "edgecolor": blue, "hatch": "..."}, any(s.capacity > s.needed for s in of)),
        (
            "rounding",
            {"facecolor": light, "edgecolor": "#8a8a8a", "hatch": "xx"},
            any(s.length > s.capacity for s in of),
        ),
        ("free", {"facecolor": "white", "edgecolor": "#c4c4c4"}, True),
    ]
    handles = [Patch(label=say(f"06.legend.{name}"), linewidth=0.6, **look) for name, look, seen in looks if seen]
    where = {"loc": "upper center", "bbox_to_anchor": (0.5, below), "ncol": len(handles)}
    ax.legend(handles=handles, handlelength=1.6, handleheight=1.2, columnspacing=1.2, **where)


@picture
def pool_over_time(timeline: Sequence[Snapshot], num_slots: int, *, waits: tuple[int, int] | None = None) -> Picture:
    """The whole run at once: each request is a rectangle, its piece of memory high and its stay long.

    Args:
        waits: (request, step): point out at this step that the request waits.
    """
    fig, ax = new_figure(7.5, 3.8)
    of = stays(timeline)
    draw_stays(ax, of, num_slots)
    ax.set_xlim(timeline[0].step, timeline[-1].step + 1)
    _stays_legend(ax, of)
    if waits is None:
        ax.set_title(say("06.time.title", n=len(of), slots=num_slots))
        return Picture(fig, tell("06.time.sentence", n=len(of), slots=num_slots, steps=len(timeline)), data=of)
    request, step = waits
    snapshot = next(s for s in timeline if s.step == step)
    needed = next(s.length for s in of if s.request == request)
    free, hole = snapshot.external + snapshot.idle, longest_hole(snapshot, num_slots)
    for run in runs_of(snapshot, num_slots):
        if run.state == "free":
            x, middle = step + 0.5, run.start + run.length / 2
            ax.annotate("", (x, run.start), (x, run.start + run.length), arrowprops={"arrowstyle": "<->"})
            ax.text(x + 0.15, middle, say("06.refused.hole", n=run.length), va="center", fontsize=9)
    words = {"name": letter(request), "needed": needed, "free": free, "hole": hole, "step": step}
    ax.set_title(say("06.refused.title", **words))
    return Picture(fig, tell("06.refused.sentence", **words), data=words)


def map_image(timeline: Sequence[Snapshot], num_slots: int) -> tuple[Any, Any]:
    """`draw_stays` of a whole run and its legend, as pixels [height, width, 3]: drawn once, a step only adds a line."""
    of = stays(timeline)
    with style():
        fig, ax = new_figure(6.6, 2.4)
        draw_stays(ax, of, num_slots, letters=False)
        ax.set_xlim(0, len(timeline))
        image = _pixels(fig, ax)
        fig, ax = new_figure(7.0, 0.3)
        _stays_legend(ax, of, below=1.2)
        return image, _pixels(fig, ax)


def _pixels(fig: Any, ax: Any) -> Any:
    """What is drawn in these axes, which fill the figure."""
    import numpy as np
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    fig.set_layout_engine("none")
    ax.set_position((0, 0, 1, 1))
    ax.axis("off")
    canvas = FigureCanvasAgg(fig)
    fig.set_dpi(144)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[:, :, :3].copy()


@picture
def pool_player(timeline: Sequence[Snapshot], image: tuple[Any, Any], num_slots: int, step: int) -> Picture:
    """One step: the run with a line at the step, what is to come paler, and the pool's strip at this step below it."""
    fig, (top, low, legend) = new_figure(7.0, 3.6, nrows=3, height_ratios=[4, 1, 1])
    fig.set_layout_engine("none")
    top.set_position((0.08, 0.465, 0.9, 0.46))
    low.set_position((0.08, 0.21, 0.9, 0.12))
    legend.set_position((0, 0, 1, 0.3 / 3.6))
    snapshot = timeline[step]
    legend.imshow(image[1], aspect="auto")
    legend.axis("off")
    pixels = image[0].copy()
    to_come = pixels[:, pixels.shape[1] * (step + 1) // len(timeline) :]
    to_come //= 4
    to_come += 191  # a quarter of the colour, three of white
    top.imshow(pixels, extent=(0, len(timeline), 0, num_slots), aspect="auto", interpolation="nearest")
    top.axvline(step + 1, color="black", linewidth=1.5)
    top.set_xlabel(say("06.step"), labelpad=1)
    top.set_ylabel(say("06.slot"), labelpad=-6)  # beside the two ticks: the margin is narrow
    top.set_yticks([0, num_slots])  # few ticks: their texts are most of the drawing time
    top.set_xticks(range(0, len(timeline) + 1, max(1, len(timeline) // 4)))
    draw_strip(low, runs_of(snapshot, num_slots))
    low.set_xlim(0, num_slots)
    low.set_ylim(-0.02, 1.02)
    low.set_yticks([])
    low.set_xticks([0, num_slots])
    low.set_xlabel(say("06.slot"), labelpad=-6)
    top.set_title(_now(snapshot))
    return Picture(fig, _sentence(snapshot, num_slots), data=snapshot)


# --- bars ----------------------------------------------------------------------------------------------------------


def _stack(ax: Any, x: float, parts: Mapping[str, float], width: float) -> None:
    """One stacked bar of percentages, the first part at the bottom, each with its number if there is room."""
    bottom = 0.0
    for name, percent in parts.items():
        if percent <= 0:
            continue
        ax.bar(x, percent, width, bottom=bottom, linewidth=0.8, **_FILL[name])
        if percent > 4.5:
            solid = name == "tokens"
            box = None if solid else {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
            text = {"color": "white" if solid else "black", "bbox": box, "fontsize": 8}
            ax.text(x, bottom + percent / 2, f"{percent:.1f}", ha="center", va="center", **text)
        bottom += percent


@picture
def bars_beside_paper(ours: Mapping[str, Mapping[str, float]], paper: Mapping[str, Mapping[str, float]]) -> Picture:
    """For each allocator two stacked bars in per cent of the pool: ours, and the paper's figure 2."""
    fig, ax = new_figure(7.5, 4.2)
    for i, name in enumerate(ours):
        _stack(ax, i - 0.2, ours[name], 0.36)
        _stack(ax, i + 0.2, paper[name], 0.36)
    both = [(i + d, say(f"06.bars.{who}")) for i in range(len(ours)) for d, who in ((-0.2, "ours"), (0.2, "paper"))]
    ax.set_xticks([x for x, _ in both], [who for _, who in both], fontsize=8)
    for i, name in enumerate(ours):
        ax.text(i, -0.11, name, transform=ax.get_xaxis_transform(), ha="center", va="top", weight="bold")
    ax.set_xlim(-0.6, len(ours) - 0.4)
    ax.set_ylabel(say("06.bars.percent"))
    _parts_legend(ax, [p for p in PARTS if p != "idle"])
    furthest = max(abs(ours[n].get(p, 0) - paper[n].get(p, 0)) for n in ours for p in paper[n])
    best = max(ours, key=lambda name: ours[name]["tokens"])
    words = {"best": best, "tokens": ours[best]["tokens"], "furthest": furthest}
    ax.set_title(say("06.bars.title", **words))
    numbers = [{"name": n, "ours": ours[n]["tokens"], "paper": paper[n]["tokens"]} for n in ours]
    each = tell("06.join").join(tell("06.bars.each", **each) for each in numbers)
    return Picture(fig, tell("06.bars.sentence", each=each, **words), data=words)


def _parts_legend(ax: Any, parts: Sequence[str]) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(label=say(f"06.part.{part}"), linewidth=0.8, **_FILL[part]) for part in reversed(parts)]
    ax.legend(handles=handles, loc="center left", bbox_to_anchor=(1.0, 0.5), handleheight=1.3)


@picture
def batched_beside_paper(ours: Mapping[str, float], paper: Mapping[str, float]) -> Picture:
    """Requests running at once: ours, and the paper's figure 13."""
    fig, ax = new_figure(7.0, 2.6)
    for i, name in enumerate(ours):
        ax.barh(i - 0.2, ours[name], 0.36, color=COLOURS["blue"], label=say("06.bars.ours") if i == 0 else None)
        look = {"color": "white", "edgecolor": COLOURS["blue"], "hatch": "\\\\\\"}
        ax.barh(i + 0.2, paper[name], 0.36, label=say("06.bars.paper") if i == 0 else None, **look)
        ax.text(ours[name] + 0.15, i - 0.2, f"{ours[name]:.1f}", va="center", fontsize=9)
        ax.text(paper[name] + 0.15, i + 0.2, f"{paper[name]:.2f}", va="center", fontsize=9)
    ax.set_yticks(range(len(ours)), list(ours))
    ax.invert_yaxis()
    ax.set_xlabel(say("06.batched.axis"))
    ax.set_xlim(0, 1.25 * max(*ours.values(), *paper.values()))
    ax.legend(loc="upper right")
    first, *_, last = ours
    words = {"first": first, "last": last, "low": ours[first], "high": ours[last], "ratio": ours[last] / ours[first]}
    ax.set_title(say("06.batched.title", **words))
    return Picture(fig, tell("06.batched.sentence", **words), data=words)


@picture
def what_if(results: Sequence[Breakdown]) -> Picture:
    """One lying bar for each allocator, the parts of the pool in per cent."""
    fig, ax = new_figure(7.5, 2.7)
    for i, result in enumerate(results):
        left = 0.0
        for name, part in result.parts.items():
            if part > 0:
                ax.barh(i, 100 * part, 0.7, left=left, linewidth=0.8, **_FILL[name])
            left += 100 * part
    ax.set_yticks(range(len(results)), [say("06.whatif.row", name=r.allocator, n=r.batched) for r in results])
    ax.invert_yaxis()
    ax.set_xlim(0, 100)
    ax.set_xlabel(say("06.bars.percent"))
    _parts_legend(ax, PARTS[:4])
    most, least = (f(results, key=lambda r: r.tokens) for f in (max, min))
    words = {"most": most.allocator, "least": least.allocator, "high": 100 * most.tokens, "low": 100 * least.tokens}
    ax.set_title(say("06.whatif.title", **words))
    refused = max(len(r.refused) for r in results)
    each = tell("06.join").join(
        tell("06.whatif.each", name=r.allocator, tokens=100 * r.tokens, n=r.batched) for r in results
    )
    sentence = tell("06.whatif.sentence", each=each) + (tell("06.whatif.refused", n=refused) if refused else "")
    return Picture(fig, sentence, data=words)


# --- padding and packing -------------------------------------------------------------------------------------------


@picture
def padding(lengths: Sequence[int]) -> Picture:
    """The same batch as a padded rectangle, and as one packed row."""
    fig, (top, low) = new_figure(7.5, 2.9, nrows=2, height_ratios=[len(lengths), 1.2])
    longest, total = max(lengths), sum(lengths)
    rectangle = []
    for row, length in enumerate(lengths):
        rectangle.append(Run(row * longest, length, "used", row, letter(row)))
        if length < longest:
            rectangle.append(Run(row * longest + length, longest - length, "wasted"))
    draw_grid(top, rectangle, longest)
    starts = itertools.accumulate(lengths, initial=0)
    draw_grid(
        low, [Run(s, n, "used", i, letter(i)) for i, (s, n) in enumerate(zip(starts, lengths, strict=False))], total
    )
    for ax in (top, low):
        ax.set_xlim(-0.3, max(longest, total) + 0.3)
    words = {"cells": longest * len(lengths), "empty": longest * len(lengths) - total, "total": total}
    top.set_title(say("06.padding.top", longest=longest, rows=len(lengths), **words))
    low.set_title(say("06.padding.low", **words))
    return Picture(fig, tell("06.padding.sentence", **words), data=words)
