"""Pictures of chapter 9: near and far memory, what a decode kernel waits for, and the launch grid over the blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from minipaged.plots.base import COLOURS, Picture, colour, ink, new_figure, picture
from minipaged.plots.ch06 import letter
from minipaged.plots.words import say

_INK = "#444444"


@picture
def memory_levels(sizes: Mapping[str, float], chip: str) -> Picture:
    """Sizes in bytes of a chip's memories, nearest to the arithmetic first."""
    fig, ax = new_figure(7.5, 2.3)
    names = list(sizes)
    bars = ax.barh(names, list(sizes.values()), color=[colour(i) for i in range(len(names))], edgecolor=_INK)
    for bar, hatch in zip(bars, ("", "//", "..", "xx"), strict=False):
        bar.set_hatch(hatch)
    for row, size in enumerate(sizes.values()):
        shown = f"{size / 2**30:.3g} GiB" if size >= 2**30 else f"{size / 2**20:.3g} MiB"
        ax.text(size * 1.15, row, shown, va="center", fontsize=9)
    ax.set_xscale("log")
    ax.set_xlim(min(sizes.values()) / 5, max(sizes.values()) * 8)
    ax.set_xlabel(say("09.levels.axis"))
    ax.invert_yaxis()
    words = {"chip": chip, "far": names[-1], "near": names[0], "times": sizes[names[-1]] / sizes[names[0]]}
    ax.set_title(say("09.levels.title", **words))
    return Picture(fig, say("09.levels.sentence", **words), data=words)


@picture
def two_floors(moving: float, computing: float, chip: str) -> Picture:
    """Two bars: the least time to read K and V, and the least time to compute with them, in seconds."""
    fig, ax = new_figure(7.5, 1.7)
    names = [say("09.floors.moving"), say("09.floors.computing")]
    bars = ax.barh(names, [moving * 1e6, computing * 1e6], color=[colour(0), colour(1)], edgecolor=_INK)
    bars[1].set_hatch("//")
    for row, value in enumerate((moving, computing)):
        ax.text(value * 1e6 + moving * 1e4, row, say("09.floors.value", us=value * 1e6), va="center", fontsize=9)
    ax.invert_yaxis()
    ax.set_xlim(0, moving * 1.2e6)
    ax.set_xlabel(say("09.floors.axis"))
    words = {"chip": chip, "times": moving / computing, "us": moving * 1e6, "work": computing * 1e6}
    ax.set_title(say("09.floors.title", **words))
    return Picture(fig, say("09.floors.sentence", **words), data=words)


@picture
def launch_grid(
    tables: Sequence[Sequence[int]],
    lens: Sequence[int],
    num_kv_heads: int,
    num_blocks: int,
    block_size: int,
    chosen: tuple[int, int] | None = None,
    reads: Sequence[int] = (),
) -> Picture:
    """The launch grid, the block tables, and the pool with the slots that the chosen program reads.

    Args:
        chosen: (sequence, KV head) of one program.
        reads: what it reads, as slot * num_kv_heads + kv_head.
    """
    fig, axes = new_figure(9.0, 0.95 + 0.3 * num_blocks, ncols=3, width_ratios=[num_kv_heads * 0.8, 3, 8])
    fig.set_layout_engine("none")  # placed by hand: a third of the time of a redraw would go into the layout
    for ax, (x, width) in zip(axes, ((0.06, 0.2), (0.31, 0.2), (0.57, 0.42)), strict=True):
        ax.set_position((x, 0.02, width, 0.78))
    _draw_programs(axes[0], len(tables), num_kv_heads, chosen)
    _draw_tables(axes[1], tables, chosen)
    _draw_pool(axes[2], tables, lens, num_kv_heads, num_blocks, block_size, set(reads))
    words: dict[str, Any] = {"n": len(tables) * num_kv_heads, "seqs": len(tables), "heads": num_kv_heads}
    if chosen is None:
        title, sentence = say("09.grid.title", **words), say("09.grid.sentence", **words)
    else:
        seq, head = chosen
        words |= {"seq": seq, "head": head, "name": letter(seq), "reads": len(reads), "table": list(tables[seq])}
        title, sentence = say("09.grid.one.title", **words), say("09.grid.one.sentence", **words)
    fig.suptitle(title, x=0.01, ha="left", weight="bold", fontsize=11)
    return Picture(fig, sentence, data={**words, "reads": sorted(reads), "chosen": chosen})


def _draw_programs(ax: Any, num_seqs: int, num_kv_heads: int, chosen: tuple[int, int] | None) -> None:
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Rectangle

    cells, colours = [], []
    for seq in range(num_seqs):
        ax.text(-0.15, seq + 0.5, letter(seq), ha="right", va="center", fontsize=10, weight="bold", color=_INK)
        for head in range(num_kv_heads):
            lit = chosen == (seq, head)
            cells.append(Rectangle((head + 0.05, seq + 0.05), 0.9, 0.9))
            colours.append(colour(seq) if lit else "white")
            text = ink(colour(seq)) if lit else _INK
            ax.text(head + 0.5, seq + 0.5, f"({seq}, {head})", ha="center", va="center", fontsize=8, color=text)
    ax.add_collection(PatchCollection(cells, facecolor=colours, edgecolor=_INK, linewidth=1.2))
    for head in range(num_kv_heads):
        ax.text(head + 0.5, -0.05, say("09.grid.head", n=head), ha="center", va="bottom", fontsize=7, color=_INK)
    ax.set_xlim(-0.4, num_kv_heads + 0.05)
    ax.set_ylim(num_seqs + 0.05, -0.25)
    ax.set_title(say("09.grid.programs"), fontsize=10)
    ax.axis("off")


def _draw_tables(ax: Any, tables: Sequence[Sequence[int]], chosen: tuple[int, int] | None) -> None:
    for seq, table in enumerate(tables):
        lit = chosen is not None and chosen[0] == seq
        face, text = (colour(seq), ink(colour(seq))) if lit else ("white", _INK)
        ax.text(-0.3, seq + 0.5, letter(seq), ha="right", va="center", fontsize=10, weight="bold", color=_INK)
        for logical, block in enumerate(table):
            frame = {"facecolor": face, "edgecolor": _INK, "boxstyle": "square,pad=0.3"}
            ax.text(logical + 0.3, seq + 0.5, str(block), ha="center", va="center", fontsize=9, color=text, bbox=frame)
    ax.set_xlim(-0.6, max(map(len, tables)) + 0.2)
    ax.set_ylim(len(tables) + 0.05, -0.25)
    ax.set_title(say("09.grid.tables"), fontsize=10)
    ax.axis("off")


def _draw_pool(
    ax: Any,
    tables: Sequence[Sequence[int]],
    lens: Sequence[int],
    num_kv_heads: int,
    num_blocks: int,
    block_size: int,
    reads: set[int],
) -> None:
    """Rows are blocks; a slot is `num_kv_heads` narrow cells, one KV head each; what is read is solid with a dot."""
    from matplotlib.colors import to_rgb

    width = block_size * num_kv_heads
    cells = [[(1.0, 1.0, 1.0)] * width for _ in range(num_blocks)]
    for seq, table in enumerate(tables):
        for pos in range(lens[seq]):
            for head in range(num_kv_heads):
                cell = pos % block_size * num_kv_heads + head
                lit = (table[pos // block_size] * block_size + pos % block_size) * num_kv_heads + head in reads
                strong = to_rgb(colour(seq))
                cells[table[pos // block_size]][cell] = strong if lit else tuple(0.78 + 0.22 * c for c in strong)
    ax.imshow(cells, extent=(0, width, num_blocks, 0), aspect="auto", interpolation="nearest")
    ax.plot(
        [place % width + 0.5 for place in reads], [place // width + 0.5 for place in reads],
        ".", color="white", markersize=4,
    )  # fmt: skip
    ax.vlines(range(width + 1), 0, num_blocks, color=COLOURS["light"], linewidth=0.5)
    ax.vlines(range(0, width + 1, num_kv_heads), 0, num_blocks, color=COLOURS["grey"], linewidth=0.9)
    ax.hlines(range(num_blocks + 1), 0, width, color="#222222", linewidth=1.2)
    for seq, table in enumerate(tables):
        for block in table:
            ax.text(width + 0.3, block + 0.5, letter(seq), va="center", fontsize=8, weight="bold", color=_INK)
    for block in range(num_blocks):
        ax.text(-0.3, block + 0.5, str(block), ha="right", va="center", fontsize=8, color=_INK)
    ax.set_xlim(-0.1, width + 0.8)
    ax.set_ylim(num_blocks + 0.05, -0.05)
    ax.set_title(say("09.grid.pool", n=num_blocks, size=block_size), fontsize=10)
    ax.axis("off")


@picture
def splits_fill_the_chip(programs: Mapping[int, int], processors: int) -> Picture:
    """Bars: programs for each number of splits, against the chip's multiprocessors."""
    fig, ax = new_figure(7.5, 2.4)
    splits, counts = list(programs), list(programs.values())
    names = [str(n) for n in splits]
    bars = ax.bar(names, counts, color=[colour(0) if n >= processors else colour(1) for n in counts], edgecolor=_INK)
    for bar, n in zip(bars, counts, strict=True):
        bar.set_hatch("" if n >= processors else "//")
        ax.text(bar.get_x() + bar.get_width() / 2, n, str(n), ha="center", va="bottom", fontsize=9)
    ax.axhline(processors, color=COLOURS["red"], linestyle="--")
    ax.text(-0.45, processors, say("09.splits.line", n=processors), va="bottom", fontsize=9, color=COLOURS["red"])
    ax.set_ylim(0, max(counts) * 1.15)
    ax.set_xlabel(say("09.splits.axis"))
    ax.set_ylabel(say("09.splits.programs"))
    enough = next((s for s, n in programs.items() if n >= processors), splits[-1])
    words = {"first": splits[0], "programs": counts[0], "processors": processors, "enough": enough}
    words["then"] = programs[enough]
    ax.set_title(say("09.splits.title", **words))
    return Picture(fig, say("09.splits.sentence", **words), data=words)
