"""Chapter 8's pictures: partial softmaxes that merge, one block at a time, packed rows, and what each way moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from minipaged.model_runner import Batch
from minipaged.plots.base import COLOURS, Picture, colour, new_figure, picture
from minipaged.plots.ch06 import letter
from minipaged.plots.memory import Run, draw_blocks, draw_grid, draw_strip, memory_legend, slot_centre
from minipaged.plots.words import say

_INK = "#444444"
_FINAL = {"facecolors": "none", "edgecolors": "black", "linestyles": "--", "linewidths": 1.0}
_GHOST = {"facecolor": "none", "edgecolor": "#888888", "linestyle": "--", "linewidth": 1.0}


# --- two partial softmaxes -----------------------------------------------------------------------------------------


@picture
def two_partials(scores: Sequence[float], cut: int) -> Picture:
    """Two parts of a row of scores, each with its own maximum and sum, and what they become when they merge.

    Args:
        scores: one query's scores.
        cut: how many of them are in part A.
    """
    scores = np.asarray(scores, dtype=np.float64)
    parts = [scores[:cut], scores[cut:]]
    tops = [float(part.max()) for part in parts]
    sums = [float(np.exp(part - top).sum()) for part, top in zip(parts, tops, strict=True)]
    top = max(tops)
    shrinks = [float(np.exp(t - top)) for t in tops]
    fig, axes = new_figure(8.6, 3.3, ncols=3, width_ratios=[cut, len(scores) - cut, len(scores) + 0.6], sharey=True)
    for i, (ax, part) in enumerate(zip(axes, parts, strict=False)):
        _weights(ax, part, np.exp(part - tops[i]), i, first=i * cut)
        ax.set_title(say("08.parts.part", name="AB"[i], top=tops[i], sum=sums[i]), fontsize=9.5, fontweight="normal")
    merged = axes[2]
    for i, part in enumerate(parts):
        x = np.arange(len(part)) + i * cut
        if shrinks[i] < 1:
            merged.bar(x, np.exp(part - tops[i]), 0.74, **_GHOST)
        _weights(merged, part, np.exp(part - top), i, first=i * cut, offset=i * cut)
    small = int(np.argmin(shrinks))
    centre = (cut - 1) / 2 if small == 0 else cut + (len(scores) - cut - 1) / 2
    factor = say("08.parts.shrink", name="AB"[small], factor=shrinks[small], low=tops[small], top=top)
    merged.text(centre, 1.07, factor, ha="center", va="bottom", fontsize=8.5, fontweight="bold")
    total = sum(f * s for f, s in zip(shrinks, sums, strict=True))
    merged.set_title(say("08.parts.merged", top=top, sum=total), fontsize=9.5, fontweight="normal")
    axes[0].set(ylabel=say("08.parts.axis"), ylim=(0, 1.25), yticks=(0, 0.5, 1))
    facts = {"tops": tops, "sums": sums, "shrink": shrinks[small], "top": top, "total": total, "name": "AB"[small]}
    fig.suptitle(say("08.parts.title", **facts), x=0.01, ha="left", fontsize=11, fontweight="bold")
    words = {"a": tops[0], "b": tops[1], "sa": sums[0], "sb": sums[1]}
    return Picture(fig, say("08.parts.sentence", **facts, **words), data=facts)


def _weights(ax: Any, scores: np.ndarray, weights: np.ndarray, owner: int, first: int, offset: int = 0) -> None:
    """Bars of one part; its scores are written under them."""
    x = np.arange(len(scores)) + offset
    ax.bar(x, weights, 0.74, color=colour(owner), hatch="" if owner == 0 else "///", edgecolor="white")
    for at, score, weight in zip(x, scores, weights, strict=True):
        ax.text(at, weight + 0.015, f"{weight:.2f}", ha="center", va="bottom", fontsize=8)
        ax.text(at, -0.03, f"{score:g}", ha="center", va="top", fontsize=8.5, color=_INK)
    ax.set(xticks=[], xlabel=say("08.parts.scores"))
    ax.xaxis.labelpad = 14


# --- one block at a time -------------------------------------------------------------------------------------------


def walk(
    scores: np.ndarray, values: np.ndarray, block_size: int, order: Sequence[int], *, shrink: bool = True
) -> list[tuple[float, float, np.ndarray]]:
    """(maximum, sum, accumulator) before the first block and after each one, in float64.

    Args:
        scores: [n]. values: [n, v_dim].
        order: logical blocks in the order in which they are read.
        shrink: False forgets to bring the older part to the new scale, a mistake to look at.
    """
    states = [(-np.inf, 0.0, np.zeros(values.shape[1]))]
    for block in order:
        part = slice(block * block_size, (block + 1) * block_size)
        top, total, acc = states[-1]
        new = max(top, float(scores[part].max()))
        factor = float(np.exp(top - new)) if shrink else float(total > 0)
        weights = np.exp(scores[part] - new)
        states.append((new, total * factor + float(weights.sum()), acc * factor + weights @ values[part]))
    return states


@picture
def online_step(
    scores: np.ndarray,
    values: np.ndarray,
    labels: Sequence[str],
    table: Sequence[int],
    block_size: int,
    step: int,
    *,
    order: Sequence[int] | None = None,
    shrink: bool = True,
    shown: int = 12,
) -> Picture:
    """Softmax and output after `step` blocks: scores read so far, their weights on the present scale, the output.

    Args:
        scores: [n], one query against n keys. values: [n, v_dim].
        labels: the text of each key's token.
        table: the block table: physical block of each logical one.
        order: logical blocks in the order of reading; None: as they come.
        shrink: see `walk`.
        shown: how many numbers of the output are drawn.
    """
    order = list(range(len(table))) if order is None else list(order)
    states = walk(scores, values, block_size, order, shrink=shrink)
    final = _final(scores, values)
    top, total, acc = states[step]
    fig, upper = new_figure(9.0, 3.9)
    fig.set_layout_engine("none")  # placed by hand: half of the time of a redraw would go into the layout
    upper.set_position((0.075, 0.565, 0.63, 0.265))
    lower, right = fig.add_axes((0.075, 0.19, 0.63, 0.3)), fig.add_axes((0.765, 0.19, 0.23, 0.64))
    read = np.isin(np.arange(len(scores)) // block_size, order[:step])
    now = np.arange(len(scores)) // block_size == (order[step - 1] if step else -1)
    _scores(upper, scores, table, block_size, read, now, top)
    _present_weights(lower, scores, labels, block_size, read, now, top)
    out = acc / total if total else acc
    _output(right, out[:shown], final[:shown])
    facts = _step_facts(states, step, order, table, block_size, len(scores))
    facts["off"] = float(np.abs(out - final).max() / np.abs(final).max())
    fig.suptitle(say(f"08.step.title.{'some' if step else 'none'}", **facts), x=0.01, y=0.985, ha="left",
                 va="top", fontsize=11, fontweight="bold")  # fmt: skip
    return Picture(fig, _step_sentence(facts, step, len(order), shrink), data=facts)


def _final(scores: np.ndarray, values: np.ndarray) -> np.ndarray:
    weights = np.exp(scores - scores.max())
    return weights @ values / weights.sum()


def _scores(
    ax: Any, scores: np.ndarray, table: Sequence[int], size: int, read: np.ndarray, now: np.ndarray, top: float
) -> None:
    floor = float(scores.min()) - 1.0
    ceiling = float(scores.max()) + 0.16 * float(np.ptp(scores)) + 0.5
    _bars(ax, np.where(read, scores, floor) - floor, read, now, floor)
    if np.isfinite(top):
        ax.axhline(top, color=COLOURS["black"], linewidth=1.2, linestyle="--")
        ax.text(len(scores) - 0.4, top, say("08.step.max", top=top), ha="right", va="bottom", fontsize=8)
    for logical, block in enumerate(table):
        start, stop = logical * size - 0.5, min(len(scores), (logical + 1) * size) - 0.5
        seen = bool(read[logical * size])
        lit = bool(now[logical * size])
        box = {"facecolor": COLOURS["yellow"] if lit else "white", "edgecolor": "#222222", "pad": 2.0}
        ink = "black" if seen or lit else "#888888"
        ax.text((start + stop) / 2, 1.1, str(block), transform=ax.get_xaxis_transform(), ha="center", va="center",
                fontsize=8, fontweight="bold", color=ink, bbox=box)  # fmt: skip
    ax.vlines(np.arange(size, len(scores), size) - 0.5, floor, ceiling, color="#bbbbbb", linewidth=0.7)
    ax.set(xlim=(-0.5, len(scores) - 0.5), ylim=(floor, ceiling), xticks=[], ylabel=say("08.step.scores"))
    ax.text(-0.01, 1.1, say("08.step.block"), transform=ax.transAxes, ha="right", va="center", fontsize=7.5)


def _present_weights(
    ax: Any, scores: np.ndarray, labels: Sequence[str], size: int, read: np.ndarray, now: np.ndarray, top: float
) -> None:
    weights = np.where(read, np.exp(scores - (top if np.isfinite(top) else 0.0)), 0.0)
    _bars(ax, np.minimum(weights, 1.0), read, now, 0.0)
    ax.vlines(np.arange(size, len(scores), size) - 0.5, 0, 1.1, color="#bbbbbb", linewidth=0.7)
    for at, label in enumerate(labels):  # texts, not ticks: a tick costs four times as much to draw
        ax.text(at, -0.06, label.strip(), rotation=90, ha="center", va="top", fontsize=7)
    ax.set(xlim=(-0.5, len(scores) - 0.5), ylim=(0, 1.1), xticks=[], yticks=(0, 1), ylabel=say("08.step.weights"))


def _bars(ax: Any, heights: np.ndarray, read: np.ndarray, now: np.ndarray, base: float) -> None:
    """One collection for each look: read before, this block, not yet."""
    from matplotlib.collections import PolyCollection

    floor = np.zeros(len(read), dtype=bool) if base else ~read  # what was not read yet has an outline, once
    looks = ((read & ~now, colour(0), "white", ""), (now, colour(1), "white", "///"), (floor, "white", "#c4c4c4", ""))
    for chosen, face, edge, hatch in looks:
        at = np.flatnonzero(chosen)
        heights = np.where(floor, 0.12, heights)
        shapes = [[(i - 0.4, base), (i + 0.4, base), (i + 0.4, base + h), (i - 0.4, base + h)]
                  for i, h in zip(at, heights[at], strict=True)]  # fmt: skip
        ax.add_collection(PolyCollection(shapes, facecolors=face, edgecolors=edge, hatch=hatch, linewidths=0.5))


def _output(ax: Any, out: np.ndarray, final: np.ndarray) -> None:
    from matplotlib.collections import PolyCollection

    for numbers, look in ((out, {"facecolors": colour(0)}), (final, _FINAL)):
        shapes = [[(0, y - 0.35), (x, y - 0.35), (x, y + 0.35), (0, y + 0.35)] for y, x in enumerate(numbers)]
        ax.add_collection(PolyCollection(shapes, **look))
    reach = 1.3 * float(np.abs(final).max())
    ax.axvline(0, color="#bbbbbb", linewidth=0.8)
    ax.set(xlim=(-reach, reach), ylim=(len(final) - 0.4, -0.6), yticks=[])
    ax.tick_params(axis="x", labelsize=7.5)
    ax.set_title(say("08.step.output", n=len(final)), fontsize=8.5, fontweight="normal")


def _step_facts(
    states: Sequence[tuple[float, float, np.ndarray]],
    step: int,
    order: Sequence[int],
    table: Sequence[int],
    size: int,
    length: int,
) -> dict[str, Any]:
    top, total, _ = states[step]
    block = order[step - 1] if step else 0
    before = states[step - 1][0] if step else -np.inf
    return {
        "step": step,
        "of": len(order),
        "block": table[block],
        "first": block * size,
        "last": min(length, (block + 1) * size) - 1,
        "top": top,
        "total": total,
        "before": before,
        "shrink": float(np.exp(before - top)) if step else 1.0,
    }


def _step_sentence(facts: Mapping[str, Any], step: int, of: int, shrink: bool) -> str:
    if not step:
        return say("08.step.nothing", **facts)
    told = say("08.step.sentence", **facts)
    if step > 1 and facts["top"] > facts["before"]:
        told += say("08.step.raised" if shrink else "08.step.forgot", **facts)
    elif step > 1:
        told += say("08.step.kept", **facts)
    end = "far" if facts["off"] > 1e-9 else "same"
    return told + say(f"08.step.{end}", **facts)


# --- many sequences in one row -------------------------------------------------------------------------------------


@picture
def packed_row(batch: Batch, labels: Sequence[str], num_blocks: int, block_size: int, columns: int) -> Picture:
    """A real batch: the packed row with its positions and slots, and the pool that the slots point into.

    Args:
        batch: the step to draw.
        labels: a short text for each new token.
        num_blocks, block_size: the pool's.
        columns: slots in a row of the drawn pool, a multiple of `block_size`.
    """
    from matplotlib.patches import ConnectionPatch

    total = len(batch.input_ids)
    rows = -(-num_blocks * block_size // columns)
    fig, (top, low) = new_figure(8.8, 2.9 + 0.42 * rows, nrows=2, height_ratios=[2.2, 0.62 * rows + 0.5])
    bounds = list(zip(batch.cu_seqlens_q, batch.cu_seqlens_q[1:], strict=False))
    draw_strip(top, [Run(a, b - a, "used", i) for i, (a, b) in enumerate(bounds)], height=1.0, cells=True)
    for at, label in enumerate(labels):
        dark = any(a <= at < b and i in (0, 2) for i, (a, b) in enumerate(bounds))
        top.text(at + 0.5, 0.5, label, ha="center", va="center", fontsize=7, color="white" if dark else "black")
        top.text(at + 0.5, 1.35, str(batch.positions[at]), ha="center", va="center", fontsize=7.5, color=_INK)
        top.text(at + 0.5, 1.85, str(batch.slot_mapping[at]), ha="center", va="center", fontsize=7.5, color="black")
    for i, (a, b) in enumerate(bounds):
        words = say("08.row.sequence", name=letter(i), q=b - a, n=batch.seq_lens[i])
        top.text((a + b) / 2, -0.62, words, ha="center", va="bottom", fontsize=8)
    for edge in batch.cu_seqlens_q:
        top.plot([edge, edge], [-0.12, 1.0], color="black", linewidth=1.6)
        top.text(edge, -0.15, str(edge), ha="center", va="bottom", fontsize=8, fontweight="bold")
    for y, key in ((-0.3, "cu"), (0.5, "ids"), (1.35, "positions"), (1.85, "slots")):
        top.text(-0.35, y, say(f"08.row.{key}"), ha="right", va="center", fontsize=8, color=_INK)
    top.set(xlim=(-4.2, total + 0.4), ylim=(2.2, -1.5))
    top.axis("off")
    draw_grid(low, _pool_with_new(batch, num_blocks, block_size), columns, gap=0.55)
    draw_blocks(low, num_blocks, block_size, columns, gap=0.55)
    above = 0.98 if rows == 1 else 0.45  # in one row the arrows end above the block numbers
    for at, slot in enumerate(batch.slot_mapping):
        x, y = slot_centre(slot, columns, gap=0.55)
        owner = next(i for i, (a, b) in enumerate(bounds) if a <= at < b)
        ends = {"xyA": (at + 0.5, 2.05), "coordsA": top.transData, "xyB": (x, y - above), "coordsB": low.transData}
        fig.add_artist(ConnectionPatch(**ends, arrowstyle="->", color=colour(owner), linewidth=0.8, zorder=5))
    names = {state: say(f"08.row.{state}") for state in ("used", "copy", "reserved", "free")}
    memory_legend(low, names, 0, loc="upper center", bbox_to_anchor=(0.5, 0.0), ncol=4)
    facts = {"total": total, "n": len(batch.seq_lens), "cu": batch.cu_seqlens_q, "lens": batch.seq_lens}
    top.set_title(say("08.row.title", **facts))
    return Picture(fig, say("08.row.sentence", slots=batch.slot_mapping, **facts), data=facts)


def _pool_with_new(batch: Batch, num_blocks: int, block_size: int) -> list[Run]:
    """Slots one by one: stored before (solid), written by this step (bold), empty end of a last block, free."""
    new, runs = set(batch.slot_mapping), []
    for owner, (table, length) in enumerate(zip(batch.block_tables, batch.seq_lens, strict=True)):
        for position in range(len(table) * block_size):
            slot = table[position // block_size] * block_size + position % block_size
            state = "reserved" if position >= length else "copy" if slot in new else "used"
            runs.append(Run(slot, 1, state, owner, letter(owner) if state != "reserved" else ""))
    named = {block for table in batch.block_tables for block in table}
    runs += [Run(block * block_size, block_size, "free") for block in range(num_blocks) if block not in named]
    return runs


@picture
def who_sees_whom(cu_seqlens_q: Sequence[int], seq_lens: Sequence[int]) -> Picture:
    """The scores that a packed step needs: each query row against all keys of all sequences, side by side."""
    total, width = cu_seqlens_q[-1], sum(seq_lens)
    fig, ax = new_figure(8.4, 0.9 + 7.4 * total / width)
    cells = np.ones((total, width, 3))
    from matplotlib.colors import to_rgb

    left, needed = 0, 0
    for i, length in enumerate(seq_lens):
        first, stop = cu_seqlens_q[i], cu_seqlens_q[i + 1]
        for row in range(first, stop):
            seen = length - (stop - first) + (row - first) + 1
            cells[row, left : left + seen] = to_rgb(colour(i))
            needed += seen
            for column in range(left + seen, left + length):
                ax.text(column, row, "×", ha="center", va="center", color="#9a9a9a", fontsize=8)
        ax.text(
            left + length / 2 - 0.5, -0.75, say("08.sees.keys", name=letter(i), n=length), ha="center", fontsize=8.5
        )
        ax.text(-0.8, (first + stop) / 2 - 0.5, letter(i), ha="right", va="center", fontsize=9, fontweight="bold")
        ax.axhline(stop - 0.5, color="black", linewidth=1.0)
        left += length
        ax.axvline(left - 0.5, color="black", linewidth=1.0)
    ax.imshow(cells)
    ax.set_xticks(np.arange(width + 1) - 0.5, minor=True)
    ax.set_yticks(np.arange(total + 1) - 0.5, minor=True)
    ax.grid(which="minor", color="#dddddd", linewidth=0.5)
    ax.tick_params(which="both", length=0)
    ax.set(xticks=[], yticks=[], ylabel=say("08.sees.rows"))
    ax.yaxis.labelpad = 14
    facts = {"total": total, "needed": needed, "all": total * width, "n": len(seq_lens)}
    ax.set_title(say("08.sees.title", **facts), pad=18)
    return Picture(fig, say("08.sees.sentence", **facts), data=facts)


@picture
def padded_beside_packed(requests: Sequence[tuple[int, int]]) -> Picture:
    """Every token that a model computes for some requests: as a padded rectangle, and packed.

    Args:
        requests: (prompt_len, output_len) each; the first output token comes out of the prompt's pass.
    """
    widest, longest = max(p for p, _ in requests), max(o for _, o in requests) - 1
    width = widest + longest
    useful = sum(p + o - 1 for p, o in requests)
    packed_rows = -(-useful // width)
    fig, (top, low) = new_figure(
        8.4, 1.95 + 0.3 * (len(requests) + packed_rows), nrows=2, height_ratios=[len(requests) + 0.9, packed_rows + 0.9]
    )
    packed = []
    start = 0
    for i, (prompt, output) in enumerate(requests):
        name = letter(i)
        runs = [Run(0, widest - prompt, "wasted", i), Run(widest - prompt, prompt, "used", i, name)]
        runs += [Run(widest, output - 1, "used", i), Run(widest + output - 1, longest - output + 1, "wasted", i)]
        draw_strip(top, [run for run in runs if run.length], y=i * 1.12, cells=True)
        packed.append(Run(start, prompt + output - 1, "used", i, name))
        start += prompt + output - 1
    top.axvline(widest, color="black", linewidth=1.4)
    top.text(widest / 2, -0.15, say("08.pad.prompts"), ha="center", va="bottom", fontsize=8.5)
    top.text(widest + longest / 2, -0.15, say("08.pad.outputs"), ha="center", va="bottom", fontsize=8.5)
    top.set(xlim=(-0.3, width + 0.3), ylim=(len(requests) * 1.12, -0.9))
    top.axis("off")
    draw_grid(low, packed, width, gap=0.12)
    low.set_ylim(packed_rows * 1.12, -0.9)
    low.text(0, -0.15, say("08.pad.packed", n=useful), ha="left", va="bottom", fontsize=8.5)
    facts = {"padded": len(requests) * width, "packed": useful, "wasted": len(requests) * width - useful}
    names = {"used": say("08.pad.used"), "wasted": say("08.pad.wasted")}
    memory_legend(low, names, 0, loc="upper center", bbox_to_anchor=(0.5, 0.0), ncol=2)
    top.set_title(say("08.pad.title", **facts))
    return Picture(fig, say("08.pad.sentence", n=len(requests), width=width, **facts), data=facts)


@picture
def steps_taken(steps: Sequence[Mapping[int, int]], used: Sequence[int], num_blocks: int) -> Picture:
    """Tokens computed in each step, by sequence, and the blocks in use after it; time runs left to right."""
    fig, (top, low) = new_figure(8.4, 3.4, nrows=2, height_ratios=[2, 1], sharex=True)
    x = np.arange(len(steps))
    bottom = np.zeros(len(steps))
    names = sorted({name for step in steps for name in step})
    for name, hatch in zip(names, ("", "///", "...", "xx", "\\\\\\"), strict=False):
        heights = np.array([step.get(name, 0) for step in steps])
        top.bar(x, heights, 0.8, bottom=bottom, color=colour(name), hatch=hatch, edgecolor="white", label=letter(name))
        bottom += heights
    top.set(ylabel=say("08.steps.tokens"))
    top.legend(ncol=len(names), loc="upper right")
    low.step(x, used, where="mid", color=COLOURS["black"])
    low.fill_between(x, used, step="mid", color=COLOURS["light"])
    low.set(ylim=(0, num_blocks * 1.05), ylabel=say("08.steps.blocks"), xlabel=say("08.steps.axis"))
    facts = {"n": len(steps), "first": int(bottom[0]), "total": int(bottom.sum()), "most": max(used), "end": used[-1]}
    top.set_title(say("08.steps.title", **facts))
    return Picture(fig, say("08.steps.sentence", pool=num_blocks, **facts), data=facts)


# --- gather, or walk -----------------------------------------------------------------------------------------------


@picture
def gather_or_walk(moved: Mapping[str, int], extra: Mapping[str, int]) -> Picture:
    """Bytes that cross the memory for one layer of one step, and memory needed beside the pool, for both ways.

    Args:
        moved: {"read", "write", "reread"} of the gather; the walk does only "read".
        extra: {"gather", "walk"}, bytes that must be free beside the pool.
    """
    fig, (left, right) = new_figure(8.6, 2.3, ncols=2, width_ratios=[1.6, 1])
    mib = 2**20
    parts = (("read", "blue", ""), ("write", "orange", "///"), ("reread", "sky", "..."))
    start = 0.0
    for part, tint, hatch in parts:
        style = {"color": COLOURS[tint], "hatch": hatch, "edgecolor": "white"}
        left.barh(0, moved[part] / mib, 0.6, left=start, label=say(f"08.moved.{part}"), **style)
        if part == "read":
            left.barh(1, moved[part] / mib, 0.6, **style)
        start += moved[part] / mib
    left.set_yticks([0, 1], [say("08.moved.gather"), say("08.moved.walk")])
    left.set(ylim=(1.5, -0.5), xlabel=say("08.moved.axis"))
    left.legend(loc="upper center", bbox_to_anchor=(0.4, -0.32), ncol=3, fontsize=8)
    for y, way in enumerate(("gather", "walk")):
        right.barh(y, extra[way] / mib, 0.6, color=COLOURS["grey"])
        words = f"{extra[way] / mib:,.0f} MiB" if extra[way] > mib else f"{extra[way] / 1024:,.0f} KiB"
        right.text(extra[way] / mib, y, f" {words}", va="center", fontsize=9)
    right.set(yticks=[], ylim=(1.5, -0.5), xlabel=say("08.moved.extra"), xlim=(0, extra["gather"] / mib * 1.35))
    times = sum(moved.values()) / moved["read"]
    fig.suptitle(say("08.moved.title", times=times), x=0.01, ha="left", fontsize=11, fontweight="bold")
    facts = {"times": times, "all": sum(moved.values()) / mib, "once": moved["read"] / mib}
    sentence = say("08.moved.sentence", gather=extra["gather"] / mib, walk=extra["walk"] / 1024, **facts)
    return Picture(fig, sentence, data=facts)
