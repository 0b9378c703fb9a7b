"""Pictures of chapter 7: a sentence poured into blocks, the pool, the lookup, and what the block size changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from minipaged.block_manager import blocks_needed, physical_slot
from minipaged.plots.base import COLOURS, Picture, colour, new_figure, picture
from minipaged.plots.ch06 import bars_beside_paper, letter
from minipaged.plots.memory import GAP, Run, draw_blocks, draw_grid, draw_strip, memory_legend
from minipaged.plots.words import say

_INK = "#444444"
_ROW = 1 + GAP  # from one row of a grid to the next


def count(n: int, what: str) -> str:
    """A number with its noun: "1 block", "2 blocks"."""
    return say(f"07.count.{what}.{'one' if n == 1 else 'many'}", n=n)


def token_labels(tokenizer: Any, ids: Iterable[int], longest: int = 6) -> list[str]:
    """A short text for each token: its own, spaces as a dot, or "#" and its id when the font cannot show it."""
    labels = []
    for token in ids:
        text = tokenizer.decode([token]).replace(" ", "·").replace("\n", "\\n")
        shown = text if text and all(ord(char) < 0x250 for char in text) else f"#{token}"
        labels.append(shown if len(shown) <= longest else shown[: longest - 1] + "…")
    return labels


def _held(table: Sequence[int], length: int, block_size: int, owner: int) -> list[Run]:
    """A sequence's runs in the pool: written slots solid, the empty end of its last block hatched."""
    runs = []
    for logical, block in enumerate(table):
        used = max(0, min(block_size, length - logical * block_size))
        if used:
            runs.append(Run(block * block_size, used, "used", owner, letter(owner) if used > block_size // 3 else ""))
        if used < block_size:
            runs.append(Run(block * block_size + used, block_size - used, "reserved", owner))
    return runs


def pool_runs(tables: Mapping[int, tuple[Sequence[int], int]], num_blocks: int, block_size: int) -> list[Run]:
    """Every slot of the pool in a run, from {sequence: (block table, tokens)}."""
    runs = [run for owner, (table, length) in tables.items() for run in _held(table, length, block_size, owner)]
    named = {block for table, _ in tables.values() for block in table}
    runs += [Run(block * block_size, block_size, "free") for block in range(num_blocks) if block not in named]
    return runs


# --- the idea ------------------------------------------------------------------------------------------------------


@picture
def two_memories(table: Sequence[int], num_frames: int = 8, last: int = 0) -> Picture:
    """The operating system's paging and ours, side by side, with the same table."""
    fig, axes = new_figure(8.4, 3.0, ncols=2)
    for ax, kind in zip(axes, ("os", "kv"), strict=True):
        _one_memory(ax, kind, table, num_frames, last or 3)
    fig.suptitle(say("07.two.title"), x=0.01, ha="left", weight="bold", fontsize=11)
    return Picture(fig, say("07.two.sentence", table=list(table), n=len(table)), data=list(table))


def _one_memory(ax: Any, kind: str, table: Sequence[int], num_frames: int, last: int) -> None:
    """Three columns: what the owner sees, the table, where it lies."""
    top = (num_frames - len(table)) / 2
    for row, frame in enumerate(table):
        part = 1.0 if row < len(table) - 1 else last / 8
        for x, y, number in ((0.0, top + row, row), (5.4, float(frame), frame)):
            draw_strip(ax, _scaled(x, 2.6, part), y=y + 0.08, height=0.84)
            ax.text(x - 0.12, y + 0.5, str(number), ha="right", va="center", fontsize=8, color=_INK)
        ax.text(3.75, top + row + 0.5, str(frame), ha="center", va="center", fontsize=9, weight="bold")
        ax.plot(
            [3.4, 4.1, 4.1, 3.4, 3.4], [top + row + d for d in (0.08, 0.08, 0.92, 0.92, 0.08)], color="#222222", lw=1
        )
        ax.annotate("", (3.4, top + row + 0.5), (2.65, top + row + 0.5), arrowprops=_ARROW)
        ax.annotate("", (5.1, frame + 0.5), (4.1, top + row + 0.5), arrowprops=_ARROW)
    for frame in set(range(num_frames)) - set(table):
        draw_strip(ax, [Run(5.4, 2.6, "free")], y=frame + 0.08, height=0.84)  # type: ignore[arg-type]
        ax.text(5.28, frame + 0.5, str(frame), ha="right", va="center", fontsize=8, color=_INK)
    for x, part in ((1.3, "sees"), (3.75, "table"), (6.7, "lies")):
        ax.text(x, -0.15, say(f"07.two.{kind}.{part}"), ha="center", va="bottom", fontsize=8, color=_INK)
    ax.set_title(say(f"07.two.{kind}"), fontsize=10)
    ax.set_xlim(-0.6, 8.1)
    ax.set_ylim(num_frames, -1.3)
    ax.axis("off")


_ARROW = {"arrowstyle": "->", "color": _INK, "linewidth": 0.9}


def _scaled(x: float, width: float, part: float) -> list[Run]:
    runs = [Run(x, width * part, "used", 0)]  # type: ignore[arg-type]
    if part < 1:
        runs.append(Run(x + width * part, width * (1 - part), "reserved", 0))  # type: ignore[arg-type]
    return runs


@picture
def reserved_beside_blocks(tokens: int, reserved: int, block_size: int) -> Picture:
    """The same tokens in a reservation for the longest request and in blocks, to scale; then the blocks enlarged."""
    blocks = blocks_needed(tokens, block_size)
    held = blocks * block_size
    fig, (top, low) = new_figure(7.5, 2.9, nrows=2, height_ratios=[1.7, 1])
    for y, size in ((0.0, reserved), (1.7, held)):
        draw_strip(top, [Run(0, tokens, "used", 0), Run(tokens, size - tokens, "reserved", 0)], y=y, height=0.9)
    top.text(0, -0.1, say("07.reserved.max", n=reserved, empty=reserved - tokens), va="bottom", fontsize=9)
    words = say("07.reserved.blocks", n=held, blocks=blocks, size=block_size, empty=held - tokens)
    top.text(held + reserved / 60, 2.15, words, va="center", fontsize=9)
    top.set_xlim(-reserved / 200, reserved * 1.01)
    top.set_ylim(2.7, -0.9)
    draw_grid(low, [Run(0, tokens, "used", 0), Run(tokens, held - tokens, "reserved", 0)], held)
    draw_blocks(low, blocks, block_size, held, numbers=False)
    low.text(0, -0.12, say("07.reserved.zoom"), va="bottom", fontsize=9)
    low.set_ylim(1.2, -0.7)
    top.axis("off")
    top.set_title(say("07.reserved.title", tokens=tokens, max=reserved - tokens, paged=held - tokens))
    data = {"max": reserved - tokens, "paged": held - tokens}
    return Picture(fig, say("07.reserved.sentence", tokens=tokens, reserved=reserved, held=held, **data), data=data)


# --- a sentence poured into blocks ---------------------------------------------------------------------------------


@picture
def poured(
    labels: Sequence[str],
    table: Sequence[int],
    num_blocks: int,
    block_size: int = 16,
    *,
    others: Mapping[int, tuple[Sequence[int], int]] | None = None,
    lit: int | None = None,
) -> Picture:
    """A sequence as it sees itself, its block table, and where its blocks lie in the pool.

    Args:
        labels: a short text for each token of the sequence.
        table: its block table.
        others: other sequences in the pool, {sequence: (block table, tokens)}; the one shown is 0.
        lit: a position to follow with an arrow to its slot.
    """
    others = dict(others or {})
    rows = max(num_blocks, len(table))
    fig, (left, right) = new_figure(9.4, height := 0.75 + 0.29 * rows, ncols=2, width_ratios=[2.3, 1])
    fig.set_layout_engine("none")  # placed by hand: half of the time of a redraw would go into the layout
    tall = 1 - 0.37 / height
    left.set_position((0.005, 0.01, 0.68, tall))
    right.set_position((0.695, 0.01, 0.3, tall))
    runs = [Run(run.start, run.length, run.state, 0) for run in _held(range(len(table)), len(labels), block_size, 0)]
    draw_grid(left, runs or [Run(0, block_size, "free")], block_size)
    draw_blocks(left, len(table), block_size, block_size, numbers=False)
    for position, label in enumerate(labels):
        row, column = divmod(position, block_size)
        left.text(column + 0.5, row * _ROW + 0.52, label, ha="center", va="center", fontsize=6, color="white")
    everyone = {0: (table, len(labels)), **others}
    draw_grid(right, pool_runs(everyone, num_blocks, block_size), block_size)
    draw_blocks(right, num_blocks, block_size, block_size, numbers=False)
    for ax, n in ((left, len(table)), (right, num_blocks)):
        for row in range(n):
            ax.text(-0.25, row * _ROW + 0.5, str(row), ha="right", va="center", fontsize=7, color=_INK)
    _table_and_arrows(fig, left, right, table, block_size)
    if lit is not None:
        _light(left, right, table, block_size, lit)
    for ax in (left, right):
        ax.set_ylim(rows * _ROW, -0.9)
    left.set_xlim(-0.8, block_size + 2.2)
    right.set_xlim(-1.8, block_size + 0.3)
    used = len(table) * block_size - len(labels)
    words = {"tokens": count(len(labels), "token"), "blocks": count(len(table), "block"), "size": block_size}
    words["empty"] = count(used, "empty")
    left.set_title(say("07.poured.title", **words))
    right.set_title(say("07.poured.pool", n=num_blocks), fontsize=10)
    return Picture(fig, _poured_sentence(words, table, others, num_blocks, block_size, lit), data=(list(table), words))


def _table_and_arrows(fig: Any, left: Any, right: Any, table: Sequence[int], block_size: int) -> None:
    from matplotlib.patches import ConnectionPatch

    left.text(block_size + 1.3, -0.25, say("07.poured.table"), ha="center", va="bottom", fontsize=7, color=_INK)
    for row, block in enumerate(table):
        y = row * _ROW + 0.5
        frame = {"facecolor": "white", "edgecolor": "#222222", "boxstyle": "square,pad=0.25"}
        left.text(block_size + 1.3, y, str(block), ha="center", va="center", fontsize=9, weight="bold", bbox=frame)
        ends = {"xyA": (block_size + 1.75, y), "xyB": (-1.5, block * _ROW + 0.5), "coordsA": left.transData}
        fig.add_artist(
            ConnectionPatch(**ends, coordsB=right.transData, color=colour(0), linewidth=0.8, arrowstyle="->")
        )


def _light(left: Any, right: Any, table: Sequence[int], block_size: int, position: int) -> None:
    from matplotlib.patches import Rectangle

    slot = physical_slot(table, position, block_size)
    for ax, place in ((left, position), (right, slot)):
        row, column = divmod(place, block_size)
        bold = {"facecolor": "none", "edgecolor": COLOURS["black"], "linewidth": 2.4, "zorder": 5}
        ax.add_patch(Rectangle((column, row * _ROW), 1, 1, **bold))


def _poured_sentence(
    words: dict[str, Any],
    table: Sequence[int],
    others: Mapping[int, tuple[Sequence[int], int]],
    num_blocks: int,
    block_size: int,
    lit: int | None,
) -> str:
    free = num_blocks - len(table) - sum(len(t) for t, _ in others.values())
    sentence = say("07.poured.sentence", table=list(table), free=free, pool=num_blocks, **words)
    if lit is not None:
        where = {"row": lit // block_size, "offset": lit % block_size, "slot": physical_slot(table, lit, block_size)}
        sentence += say("07.poured.lit", position=lit, block=table[lit // block_size], **where)
    return sentence


@picture
def pool_now(
    tables: Mapping[int, tuple[Sequence[int], int]],
    num_blocks: int,
    block_size: int = 16,
    *,
    columns: int = 64,
    title: str = "",
    legend: bool = True,
) -> Picture:
    """The whole pool at one moment, from {sequence: (block table, tokens)}."""
    rows = blocks_needed(num_blocks * block_size, columns)
    fig, ax = new_figure(7.5, 0.9 + 0.42 * rows)
    draw_grid(ax, pool_runs(tables, num_blocks, block_size), columns, gap=0.6)
    draw_blocks(ax, num_blocks, block_size, columns, gap=0.6)
    tokens = sum(length for _, length in tables.values())
    held = sum(len(table) for table, _ in tables.values())
    words = {
        "n": count(len(tables), "sequence"),
        "held": held,
        "pool": num_blocks,
        "empty": held * block_size - tokens,
        "tokens": tokens,
    }
    ax.set_title(title or say("07.pool.title", **words))
    if legend:
        names = {state: say(f"07.pool.{state}") for state in ("used", "reserved", "free")}
        memory_legend(ax, names, 0, loc="upper center", bbox_to_anchor=(0.5, 0.0), ncol=3)
    return Picture(fig, say("07.pool.sentence", free=num_blocks - held, **words), data=words)


@picture
def one_layer_pool(table: Sequence[int], length: int, num_blocks: int, block_size: int, num_bytes: int) -> Picture:
    """A large pool as one strip, to scale, and under it the blocks of one sequence, enlarged."""
    fig, ax = new_figure(8.4, 2.6)
    draw_strip(ax, [Run(0, num_blocks, "free")], y=0, height=0.8)
    width = num_blocks / (len(table) * 1.25)
    for logical, block in enumerate(table):
        used = min(block_size, length - logical * block_size)
        x = num_blocks * (logical + 0.5) / len(table) - width / 2
        cell = width / block_size
        runs = [Run(x + i * cell, cell, "used" if i < used else "reserved", 0) for i in range(block_size)]
        draw_strip(ax, runs, y=2.5, height=0.8)  # type: ignore[arg-type]
        for edge in (x, x + width):
            ax.plot([block + 0.5, edge], [0.8, 2.5], color=_INK, linewidth=0.6)
        ax.plot([x, x + width, x + width, x, x], [2.5, 2.5, 3.3, 3.3, 2.5], color="#222222", linewidth=1.4)
        ax.plot([block + 0.5] * 2, [0, 0.8], color=colour(0), linewidth=1.8)
        first = logical * block_size
        says = say("07.layer.block", block=block, first=first, last=first + used - 1)
        ax.text(x + width / 2, 3.45, says, ha="center", va="top", fontsize=8)
    ax.text(0, -0.12, "0", va="bottom", fontsize=8, color=_INK)
    ax.text(num_blocks, -0.12, str(num_blocks - 1), ha="right", va="bottom", fontsize=8, color=_INK)
    ax.set_xlim(-num_blocks * 0.005, num_blocks * 1.005)
    ax.set_ylim(4.1, -0.8)
    ax.axis("off")
    words = {"n": num_blocks, "mib": num_bytes / 2**20, "table": list(table), "tokens": length}
    ax.set_title(say("07.layer.title", **words))
    return Picture(fig, say("07.layer.sentence", **words), data=words)


# --- the fourth bar, and what the block size changes ---------------------------------------------------------------


@picture
def four_bars(ours: Mapping[str, Mapping[str, float]], paper: Mapping[str, Mapping[str, float]]) -> Picture:
    """Chapter 6's bars with paging as the last one; per cent of the pool, ours beside the paper's figure 2."""
    drawn = bars_beside_paper(ours, paper)
    *others, paged = ours
    best = max(others, key=lambda name: ours[name]["tokens"])
    words = {"paged": ours[paged]["tokens"], "best": best, "tokens": ours[best]["tokens"]}
    each = "; ".join(say("07.bars.each", name=n, ours=ours[n]["tokens"], paper=paper[n]["tokens"]) for n in ours)
    drawn.figure.axes[0].set_title(say("07.bars.title", **words))
    return Picture(drawn.figure, say("07.bars.sentence", each=each), data=words)


@picture
def block_sizes(percent: Mapping[int, float], entries: Mapping[int, float], chosen: int = 16) -> Picture:
    """Two lines over the block size: token states in per cent of the pool, and block table entries of a request."""
    fig, (left, right) = new_figure(7.8, 3.0, ncols=2)
    sizes = list(percent)
    for ax, values, key in ((left, percent, "percent"), (right, entries, "entries")):
        ax.plot(sizes, list(values.values()), marker="o", color=colour(0))
        ax.plot([chosen], [values[chosen]], marker="s", markersize=9, color=colour(1), linestyle="none")
        ax.annotate(
            f"{values[chosen]:.1f}",
            (chosen, values[chosen]),
            (4, -16) if key == "percent" else (6, 9),
            textcoords="offset points",
            fontsize=9,
        )
        ax.set_xscale("log", base=2)
        ax.set_xticks(sizes, [str(size) for size in sizes])
        ax.set_xlabel(say("07.sizes.axis"))
        ax.set_title(say(f"07.sizes.{key}"), fontsize=10)
        ax.grid(axis="y")
    left.set_ylim(0, 103)
    right.set_ylim(0)
    first, last = sizes[0], sizes[-1]
    words = {"first": first, "last": last, "high": percent[first], "low": percent[last], "chosen": chosen}
    words |= {"at": percent[chosen], "entries": entries[chosen], "most": entries[first]}
    fig.suptitle(say("07.sizes.title", **words), x=0.01, ha="left", weight="bold", fontsize=11)
    return Picture(fig, say("07.sizes.sentence", **words), data=words)


@picture
def empty_slots(counts: Sequence[int], block_size: int) -> Picture:
    """How often the last block of a running request has 0, 1, 2, ... empty slots, in per cent of all moments."""
    fig, ax = new_figure(7.0, 2.6)
    total = sum(counts)
    mean = sum(i * count for i, count in enumerate(counts)) / total
    ax.bar(
        range(len(counts)), [100 * count / total for count in counts], color="white", edgecolor=colour(0), hatch="////"
    )
    ax.axvline(mean, color=COLOURS["red"], linewidth=2)
    ax.text(mean + 0.15, 100 * max(counts) / total * 1.04, f"{mean:.2f}", color=COLOURS["red"], fontsize=9)
    ax.set_xticks(range(len(counts)))
    ax.set_ylim(0, 100 * max(counts) / total * 1.25)
    ax.set_xlabel(say("07.empty.axis"))
    ax.set_ylabel(say("07.empty.percent"))
    words = {"mean": mean, "size": block_size, "half": (block_size - 1) / 2, "most": len(counts) - 1}
    ax.set_title(say("07.empty.title", **words))
    return Picture(fig, say("07.empty.sentence", **words), data=words)


def mean_blocks(most: int, block_size: int) -> float:
    """Blocks of a sequence, on average over all lengths from 1 to `most` tokens."""
    full, left = divmod(most, block_size)  # block_size lengths each need 1, 2, ..., full blocks; `left` need one more
    return (block_size * full * (full + 1) // 2 + left * (full + 1)) / most


@picture
def expected_utilisation(mean_tokens: int, block_size: int, sizes: Sequence[int]) -> Picture:
    """Used slots in per cent: lengths from 1 to twice the mean, all equally likely, rounded up to whole blocks."""
    fig, ax = new_figure(6.4, 2.9)
    most = 2 * mean_tokens - 1
    curve = [100 * mean_tokens / (size * mean_blocks(most, size)) for size in sizes]
    entries = mean_blocks(most, block_size)
    at = 100 * mean_tokens / (block_size * entries)
    ax.plot(sizes, curve, marker="o", color=colour(0))
    ax.plot([block_size], [at], marker="s", markersize=10, color=colour(1), linestyle="none")
    ax.set_xscale("log", base=2)
    ax.set_xticks(sizes, [str(size) for size in sizes])
    ax.set_ylim(0, 103)
    ax.grid(axis="y")
    ax.set_xlabel(say("07.sizes.axis"))
    ax.set_ylabel(say("07.expected.axis"))
    words = {"tokens": mean_tokens, "size": block_size, "percent": at, "entries": entries}
    ax.set_title(say("07.expected.title", **words))
    words |= {"most": most, "empty": block_size * entries - mean_tokens}
    return Picture(fig, say("07.expected.sentence", **words), data=words)
