"""Pictures of chapter 11: blocks with several owners, a tree of beams, what sharing saves, and blocks kept after use.

A shared block has the colours of two owners and its count; a block that is being copied has a bold frame; a block that
nobody owns any more but that can still be found has a pale fill and a dashed frame.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from minipaged.plots.base import COLOURS, Picture, colour, new_figure, picture
from minipaged.plots.ch06 import letter
from minipaged.plots.memory import Run, draw_blocks, draw_grid, draw_strip
from minipaged.plots.words import say

Tables = Mapping[int, tuple[Sequence[int], int]]  # {sequence: (block table, tokens)}
_INK = "#444444"
_HEAT = ("#e3eef6", "#a9cde6", "#56a5d6", "#0072B2", "#00507d", "#00304b")  # a block's count, from 1 up


class Shot(NamedTuple):
    """One moment of a pool: a caption, who has which table, and the copies that were made to get here."""

    label: str
    tables: Tables
    copies: Sequence[tuple[int, int]] = ()


def owners(tables: Tables) -> dict[int, list[int]]:
    """The sequences that name each block: {block: [sequence, ...]}; the length of the list is the block's count."""
    found: dict[int, list[int]] = {}
    for sequence, (table, _) in tables.items():
        for block in table:
            found.setdefault(block, []).append(sequence)
    return found


def _used(tables: Tables, block: int, who: Iterable[int], block_size: int) -> int:
    """Slots of a block that hold a token of somebody."""
    most = 0
    for sequence in who:
        table, tokens = tables[sequence]
        most = max(most, min(block_size, tokens - list(table).index(block) * block_size))
    return most


def _block_runs(
    tables: Tables, block: int, who: list[int], start: float, block_size: int, copied: bool = False, label: bool = True
) -> list[Run]:
    """The runs of one block: free, one owner's, or split between two colours with the count."""
    if not who:
        return [Run(start, block_size, "free")]  # type: ignore[arg-type]
    used = _used(tables, block, who, block_size)
    runs = []
    if used and len(who) > 1:
        runs.append(Run(start, used, "shared", who[0], "", who[1]))  # type: ignore[arg-type]
    elif used:
        name = letter(who[0]) if label else ""
        runs.append(Run(start, used, "copy" if copied else "used", who[0], name))  # type: ignore[arg-type]
    if used < block_size:  # nobody's colour while the block is shared: whoever writes here copies first
        whose = who[0] if len(who) == 1 else None
        runs.append(Run(start + used, block_size - used, "reserved", whose))  # type: ignore[arg-type]
    return runs


# --- one prompt, several samples -----------------------------------------------------------------------------------


@picture
def shared_pool(
    tables: Tables,
    num_blocks: int,
    block_size: int = 16,
    *,
    copies: Sequence[tuple[int, int]] = (),
    total_copies: int | None = None,
    columns: int = 128,
) -> Picture:
    """The pool with every block's owners and count, and how many blocks the same tables would need unshared.

    Args:
        tables: {sequence: (block table, tokens)}.
        copies: (source, target) of the copies made in this step; the targets get a bold frame.
        total_copies: made so far, when there were earlier ones.
    """
    rows = -(-num_blocks * block_size // columns)
    height = 0.85 + 0.36 * rows
    fig, ax = new_figure(8.6, height)
    fig.set_layout_engine("none")  # placed by hand: half of the time of a redraw would go into the layout
    ax.set_position((0.01, 0.32 / height, 0.98, 1 - 0.62 / height))
    who, targets = owners(tables), {target for _, target in copies}
    runs = [
        run
        for block in range(num_blocks)
        for run in _block_runs(tables, block, who.get(block, []), block * block_size, block_size, block in targets)
    ]
    draw_grid(ax, runs, columns, cells=False, gap=0.55)
    draw_blocks(ax, num_blocks, block_size, columns, gap=0.55)
    for block, names in who.items():
        if len(names) > 1:
            row, x = divmod(block * block_size, columns)
            box = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
            at = (x + _used(tables, block, names, block_size) / 2, row * 1.55 + 0.5)
            ax.text(*at, f"×{len(names)}", ha="center", va="center", fontsize=8, bbox=box)
    alone = sum(len(table) for table, _ in tables.values())
    shared = sum(len(names) > 1 for names in who.values())
    words = {"n": len(tables), "blocks": len(who), "alone": alone, "shared": shared, "pool": num_blocks}
    words |= {"copies": len(copies) if total_copies is None else total_copies}
    words["percent"] = 100 * (1 - len(who) / alone) if alone else 0.0
    one = ".1" if len(tables) == 1 else ""
    ax.set_title(say(f"11.pool.title{one}", **words))
    _pool_legend(ax)
    return Picture(fig, say(f"11.pool.sentence{one}", **words), data=words)


def _pool_legend(ax: Any) -> None:
    """The looks of a pool; a shared block shows both colours."""
    from matplotlib.legend_handler import HandlerTuple
    from matplotlib.patches import Patch

    edge = {"edgecolor": "#222222", "linewidth": 0.5}
    hatched = Patch(facecolor="white", edgecolor=colour(0), hatch="////", linewidth=0.6)
    handles: list[Any] = [
        (Patch(facecolor=colour(0), **edge), Patch(facecolor=colour(1), **edge)),
        Patch(facecolor=colour(0), **edge),
        hatched,
        Patch(facecolor="white", edgecolor="#c4c4c4"),
        Patch(facecolor=colour(0), edgecolor="black", linewidth=2.4),
    ]
    texts = [say(f"11.pool.{word}") for word in ("shared", "own", "reserved", "free", "copied")]
    where = {"loc": "upper center", "bbox_to_anchor": (0.5, 0.02), "ncol": 5, "fontsize": 8, "handlelength": 1.8}
    ax.legend(handles, texts, handler_map={tuple: HandlerTuple(ndivide=None, pad=0)}, columnspacing=1.2, **where)


@picture
def moments(
    shots: Sequence[Shot], blocks: Sequence[int], texts: Mapping[int, Sequence[str]], block_size: int
) -> Picture:
    """Figure 8 of the paper, one row a moment: the tables on the left, the blocks that take part on the right.

    Args:
        shots: the moments, in order.
        blocks: physical blocks to draw, from left to right.
        texts: a short text for each token of each sequence.
        block_size: slots in a block.
    """
    fig, ax = new_figure(8.6, 0.5 + 1.0 * len(shots))
    left, step = 3.6, block_size + 0.7
    place = {block: left + i * step for i, block in enumerate(blocks)}
    for row, shot in enumerate(shots):
        _one_moment(ax, shot, row * 2.6, place, texts, block_size)
    ax.set_xlim(-0.1, left + len(blocks) * step - 0.6)
    ax.set_ylim(2.6 * len(shots) - 1.0, -1.0)
    ax.axis("off")
    last = shots[-1]
    copied = [pair for shot in shots for pair in shot.copies]
    words = {"copies": len(copied), "n": len(last.tables), "blocks": len(owners(last.tables))}
    words["alone"] = sum(len(table) for table, _ in last.tables.values())
    ax.set_title(say("11.moments.title", **words))
    each = " ".join(_moment_sentence(shot) for shot in shots)
    return Picture(fig, say("11.moments.sentence", each=each), data=words)


def _one_moment(
    ax: Any, shot: Shot, y: float, place: Mapping[int, float], texts: Mapping[int, Sequence[str]], block_size: int
) -> None:
    ax.text(0, y - 0.5, shot.label, ha="left", va="bottom", fontsize=9, weight="bold")
    for i, (sequence, (table, _)) in enumerate(shot.tables.items()):
        words = say("11.moments.table", name=letter(sequence), table=list(table))
        ax.text(0.35, y + 0.25 + 0.6 * i, words, ha="left", va="center", fontsize=9, color=_INK)
        ax.plot([0.12], [y + 0.25 + 0.6 * i], "s", color=colour(sequence), markersize=7)
    who, targets = owners(shot.tables), {target for _, target in shot.copies}
    for block, x in place.items():
        names = who.get(block, [])
        draw_strip(ax, _block_runs(shot.tables, block, names, x, block_size, block in targets, label=False), y=y)
        frame = {"color": "black" if block in targets else "#222222", "linewidth": 3.0 if block in targets else 1.3}
        ax.plot([x, x + block_size, x + block_size, x, x], [y, y, y + 1, y + 1, y], **frame)
        ax.text(x, y - 0.06, str(block), ha="left", va="bottom", fontsize=8, color=_INK)
        if names:
            told = say("11.moments.count", n=len(names))
            ax.text(x + block_size, y - 0.06, told, ha="right", va="bottom", fontsize=8, color=_INK)
            _token_texts(ax, shot.tables, block, names[0], texts, x, y, block_size)
    for source, target in shot.copies:
        start, end = place[source] + block_size / 2, place[target] + block_size / 2
        arrow = {"arrowstyle": "->", "linewidth": 1.6, "connectionstyle": f"arc3,rad={0.18 if start < end else -0.18}"}
        ax.annotate("", (end, y + 1.04), (start, y + 1.04), arrowprops=arrow)
        ax.text((start + end) / 2, y + 1.32, say("11.moments.copy"), ha="center", va="center", fontsize=8)


def _token_texts(
    ax: Any, tables: Tables, block: int, owner: int, texts: Mapping[int, Sequence[str]], x: float, y: float, size: int
) -> None:
    table, tokens = tables[owner]
    first = list(table).index(block) * size
    box = {"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.9}
    for i, text in enumerate(list(texts[owner])[first : min(tokens, first + size)]):
        ax.text(x + i + 0.5, y + 0.5, text, ha="center", va="center", fontsize=7, bbox=box)


def _moment_sentence(shot: Shot) -> str:
    named = ", ".join(f"{letter(sequence)} {list(table)}" for sequence, (table, _) in shot.tables.items())
    told = say("11.moments.each", label=shot.label, tables=named)
    for source, target in shot.copies:
        told += say("11.moments.copied", source=source, target=target)
    return told + "."


# --- a tree of beams -----------------------------------------------------------------------------------------------


def leaves(now: Tables, before: Tables) -> list[tuple[int, ...]]:
    """One row for each table of now, and for each old one whose last block is gone; same beginnings side by side."""
    alive = set(owners(now))
    gone = [tuple(table) for table, _ in before.values() if table and table[-1] not in alive]
    return sorted({*(tuple(table) for table, _ in now.values()), *gone})


def _heat(count: int) -> tuple[str, str]:
    """(fill, ink) of a block with this count."""
    step = min(count, len(_HEAT)) - 1
    return _HEAT[step], "white" if step >= 3 else "black"


@picture
def block_tree(
    tables: Tables,
    labels: Mapping[int, str],
    block_size: int,
    *,
    before: Tables | None = None,
    title: str = "",
    width: int = 0,
    rows: int = 0,
) -> Picture:
    """The blocks of all beams as a tree, darker the more beams name them; blocks just given back as an outline.

    Args:
        tables: {beam: (block table, tokens)} of this moment.
        labels: the text of a block.
        before: the tables of an earlier moment; blocks that have gone since are drawn too.
        width, rows: logical blocks and leaves to make room for, so that moments of one search have the same size.
    """
    from matplotlib.patches import FancyBboxPatch

    before = before or {}
    ends_of, who = leaves(tables, before), owners(tables)
    depth = max(width, *(len(leaf) for leaf in ends_of))
    rows = max(rows, len(ends_of))
    fig, ax = new_figure(9.0, 0.95 + 0.44 * rows)
    lifted = (rows - len(ends_of)) / 2
    place: dict[tuple[int, int], float] = {}
    for level in range(depth):
        for block in {leaf[level] for leaf in ends_of if len(leaf) > level}:
            at = [row for row, leaf in enumerate(ends_of) if len(leaf) > level and leaf[level] == block]
            place[level, block] = lifted + sum(at) / len(at)
    for leaf in ends_of:
        for level in range(1, len(leaf)):
            ends = [place[level - 1, leaf[level - 1]], place[level, leaf[level]]]
            ax.plot([level - 0.1, level], ends, color=_INK, linewidth=0.9, zorder=1)
    for (level, block), y in place.items():
        count = len(who.get(block, []))
        fill, ink = _heat(count) if count else ("white", COLOURS["grey"])
        look = {"facecolor": fill, "edgecolor": "#222222" if count else COLOURS["grey"], "linewidth": 1.1}
        shape = {"boxstyle": "square,pad=0", "linestyle": "-" if count else ":"}
        ax.add_patch(FancyBboxPatch((level, y - 0.39), 0.9, 0.78, zorder=2, **look, **shape))
        told = say("11.tree.block", block=block, count=count) if count else say("11.tree.gone", block=block)
        ax.text(level + 0.03, y - 0.17, told, fontsize=7, color=ink, va="center", weight="bold")
        ax.text(level + 0.03, y + 0.17, labels.get(block, ""), fontsize=6.5, color=ink, va="center", clip_on=True)
    ax.set_xlim(-0.02, depth)
    ax.set_ylim(rows - 0.4, -0.6)
    ax.axis("off")
    alone = sum(len(table) for table, _ in tables.values())
    words = {"n": len(tables), "blocks": len(who), "alone": alone, "percent": 100 * (1 - len(who) / alone)}
    words |= {"gone": len(set(owners(before)) - set(who)), "most": max(len(names) for names in who.values())}
    words["shared"] = sum(len(names) > 1 for names in who.values())
    lead = f"{title}: " if title else ""
    ax.set_title(lead + say("11.tree.title", **words))
    return Picture(fig, lead + say("11.tree.sentence", **words), data=words)


# --- what sharing saves --------------------------------------------------------------------------------------------


@picture
def saved_beside_paper(
    counts: Sequence[int],
    sampling: Mapping[str, Sequence[float]],
    beams: Mapping[str, Sequence[float]],
) -> Picture:
    """Memory saved by sharing, per cent: parallel sampling on the left, beam search on the right.

    Args:
        counts: n or k.
        sampling, beams: {"paper" | "ours" | "tokens" | "drawn": per cent for each of counts}.
    """
    looks = {"paper": ("grey", ""), "ours": ("blue", "//"), "tokens": ("orange", ".."), "drawn": ("sky", "\\\\")}
    fig, axes = new_figure(7.8, 3.2, ncols=2, sharey=True)
    for ax, values, what in zip(axes, (sampling, beams), ("sampling", "beams"), strict=True):
        wide = 0.8 / len(values)
        for i, (name, percents) in enumerate(values.items()):
            at = [x + (i - (len(values) - 1) / 2) * wide for x in range(len(counts))]
            face, hatch = looks[name]
            label = say(f"11.saved.{name}")
            ax.bar(at, percents, wide, color=COLOURS[face], edgecolor="black", hatch=hatch, linewidth=0.6, label=label)
            for x, percent in zip(at, percents, strict=True):
                ax.text(x, percent, f"{percent:.1f}", ha="center", va="bottom", fontsize=7)
        ax.set_xticks(range(len(counts)), [say(f"11.saved.{what}.tick", n=n) for n in counts])
        told = [percent for name, percents in values.items() if name != "tokens" for percent in percents]
        ax.set_title(say(f"11.saved.{what}.title", low=min(told), high=max(told)), fontsize=10)
        ax.legend(fontsize=8, loc="upper left")
    axes[0].set_ylim(0, 90)  # one scale for both, and room for the legends
    axes[0].set_yticks(range(0, 81, 20))
    axes[0].set_ylabel(say("11.saved.axis"))
    each = "; ".join(
        say("11.saved.each", what=say(f"11.saved.{what}"), name=say(f"11.saved.{name}"), values=_listed(percents))
        for what, values in (("sampling", sampling), ("beams", beams))
        for name, percents in values.items()
    )
    numbers = ", ".join(map(str, counts))
    return Picture(fig, say("11.saved.sentence", counts=numbers, each=each), data=(dict(sampling), dict(beams)))


def _listed(percents: Sequence[float]) -> str:
    return ", ".join(f"{percent:.1f}" for percent in percents)


# --- the same beginning --------------------------------------------------------------------------------------------


@picture
def prefill(names: Sequence[str], computed: Sequence[int], found: Sequence[int]) -> Picture:
    """Prompt tokens of each request, in order of arrival: those that were found, and those that had to be computed."""
    fig, ax = new_figure(7.5, 0.95 + 0.26 * len(names))
    rows = range(len(names))
    found_look = {"color": "white", "edgecolor": COLOURS["green"], "hatch": "////", "linewidth": 0.8}
    ax.barh(rows, found, 0.72, label=say("11.prefill.found"), **found_look)
    left = {"left": list(found), "color": COLOURS["blue"], "edgecolor": "black", "linewidth": 0.6}
    ax.barh(rows, computed, 0.72, label=say("11.prefill.computed"), **left)
    ax.set_yticks(list(rows), list(names), fontsize=8)
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.set_xlabel(say("11.prefill.axis"))
    ax.set_ylabel(say("11.prefill.who"))
    longest = max(f + c for f, c in zip(found, computed, strict=True))
    ax.set_xlim(0, longest * 1.08)
    for row, (f, c) in enumerate(zip(found, computed, strict=True)):
        ax.text(f + c, row, f" {c}", va="center", fontsize=8)
        if f:
            box = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}
            ax.text(f / 2, row, str(f), ha="center", va="center", fontsize=8, bbox=box)
    ax.figure.legend(loc="outside lower center", ncol=2, fontsize=8)
    total = sum(found) + sum(computed)
    words = {"n": len(names), "total": total, "computed": sum(computed), "found": sum(found)}
    words["percent"] = 100 * sum(found) / total
    ax.set_title(say("11.prefill.title", **words))
    return Picture(fig, say("11.prefill.sentence", **words), data=words)


@picture
def next_row(rows: Sequence[tuple[str, int, int, float]]) -> Picture:
    """Chapter 10's ablation with one row more: (name, steps, tokens computed, requests running on average).

    The title compares the last row, with prefix caching, with the one before.
    """
    fig, axes = new_figure(7.8, 2.8, ncols=3, sharey=True)
    fills, hatches = ("grey", "sky", "blue", "green"), ("..", "//", "", "xx")
    for column, ax in enumerate(axes, 1):
        values = [row[column] for row in rows]
        colours = [COLOURS[fills[i % 4]] for i in range(len(rows))]
        bars = ax.barh(range(len(rows)), values, color=colours, edgecolor="black")
        for i, (bar, value) in enumerate(zip(bars, values, strict=True)):
            bar.set_hatch(hatches[i % 4])
            text = f" {value:.1f}" if column == 3 else f" {value:,}"
            ax.text(value, bar.get_y() + bar.get_height() / 2, text, va="center", fontsize=9)
        ax.set_xlim(0, max(values) * 1.32)
        ax.set_title(say(f"11.next.{column}"), fontsize=9)
        ax.set_xticks([])
        ax.set_ylim(len(rows) - 0.4, -0.6)
    axes[0].set_yticks(range(len(rows)), [row[0].replace(" + ", "\n+ ") for row in rows], fontsize=8)
    (_, steps_from, tokens_from, running_from), (_, steps, tokens, running) = rows[-2:]
    words = {"steps_from": steps_from, "tokens_from": tokens_from, "running_from": running_from}
    title = say("11.next.title", steps=steps, tokens=tokens, running=running, **words)
    fig.suptitle(title, fontsize=10.5, weight="bold", x=0.01, ha="left")
    each = "; ".join(say("11.next.each", name=n, steps=s, tokens=t, running=r) for n, s, t, r in rows)
    return Picture(fig, say("11.next.sentence", each=each), data=list(rows))


# --- kept until somebody needs the room ----------------------------------------------------------------------------


class Kept(NamedTuple):
    """One moment of a small pool.

    Attributes:
        label: what has happened.
        used, kept: {block: (owner, logical number)} in use, and kept after use.
        queue: the free blocks, the next to be handed out first.
        filled: {block: tokens} of blocks in use that may be part filled; all others are full.
        found: blocks in use that were found and not computed.
    """

    label: str
    used: Mapping[int, tuple[int, int]]
    kept: Mapping[int, tuple[int, int]]
    queue: Sequence[int]
    filled: Mapping[int, int] = {}
    found: Collection[int] = ()


@picture
def kept_blocks(shots: Sequence[Kept], num_blocks: int, block_size: int = 4) -> Picture:
    """Blocks in use, blocks kept after use, empty ones; and the queue in which the free ones are handed out."""
    from matplotlib.patches import Rectangle

    fig, ax = new_figure(8.6, 0.75 + 0.62 * len(shots))
    left, wide = 3.6, 1.0
    for row, shot in enumerate(shots):
        ax.text(0, row * 1.45 + 0.5, shot.label, ha="left", va="center", fontsize=9)
        for block in range(num_blocks):
            x, y = left + block * wide, row * 1.45
            owner, _ = shot.used.get(block) or shot.kept.get(block) or (None, 0)
            look: dict[str, Any] = {"facecolor": "white", "edgecolor": "#c4c4c4", "linewidth": 1.0}
            slots = shot.filled.get(block, block_size)
            if block in shot.used and slots < block_size:
                look = {"facecolor": "white", "edgecolor": colour(owner), "hatch": "////", "linewidth": 1.3}
            elif block in shot.used:
                look = {"facecolor": colour(owner), "edgecolor": "#222222", "linewidth": 1.3}
            elif owner is not None:
                look |= {"facecolor": (*_rgb(colour(owner)), 0.18), "edgecolor": colour(owner), "linestyle": "--"}
            ax.add_patch(Rectangle((x + 0.03, y), wide - 0.06, 1, **look))
            ax.text(x + 0.06, y - 0.05, str(block), fontsize=7, color=_INK, va="bottom")
            if owner is not None:
                _kept_label(ax, shot, block, (x, y), slots, block_size)
        told = say("11.kept.queue", queue=" ".join(map(str, shot.queue)) or "-")
        ax.text(left + num_blocks * wide + 0.2, row * 1.45 + 0.5, told, va="center", fontsize=8, color=_INK)
    ax.set_xlim(0, left + num_blocks * wide + 3.6)
    ax.set_ylim(1.45 * len(shots) - 0.3, -0.5)
    ax.axis("off")
    ax.set_title(say("11.kept.title"))
    each = " ".join(_kept_sentence(shot) for shot in shots)
    return Picture(fig, each, data=list(shots))


def _kept_label(ax: Any, shot: Kept, block: int, corner: tuple[float, float], slots: int, size: int) -> None:
    """Whose block it is; below, how far it is filled, or where its K and V came from."""
    x, y = corner[0] + 0.5, corner[1]
    owner, logical = shot.used.get(block) or shot.kept[block]
    full = block in shot.used and slots == size
    ink = "white" if full and colour(owner) in (COLOURS["blue"], COLOURS["green"], COLOURS["red"]) else "black"
    told = ""
    if shot.found and block in shot.used:
        told = say("11.kept.found" if block in shot.found else "11.kept.computed")
    elif block in shot.used and not full:
        told = say("11.kept.part", n=slots, size=size)
    box = {"facecolor": "white", "edgecolor": "none", "pad": 0.8} if block in shot.used and not full else None
    at = {"ha": "center", "va": "center", "color": ink, "bbox": box}
    ax.text(x, y + (0.33 if told else 0.5), f"{letter(owner)}{logical}", **at)
    if told:
        ax.text(x, y + 0.74, told, fontsize=6.5, weight="bold" if block in shot.found else "normal", **at)


def _kept_sentence(shot: Kept) -> str:
    kept = _names(shot.kept) or say("11.kept.none")
    again = ""
    if shot.found:
        found = {block: name for block, name in shot.used.items() if block in shot.found}
        computed = {block: name for block, name in shot.used.items() if block not in shot.found}
        again = say("11.kept.again", found=_names(found), computed=_names(computed))
    values = {"label": shot.label, "used": len(shot.used), "again": again, "kept": kept, "queue": list(shot.queue)}
    return say("11.kept.each", **values)


def _names(blocks: Mapping[int, tuple[int, int]]) -> str:
    return ", ".join(f"{letter(owner)}{logical}" for owner, logical in blocks.values())


def _rgb(name: str) -> tuple[float, float, float]:
    from matplotlib.colors import to_rgb

    return to_rgb(name)
