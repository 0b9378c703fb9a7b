"""Chapter 13: the map from here to vLLM, a page table in two forms, and the ledger of claims.

The ledger is a table that fills itself: a row is added with a result that was computed in the same run and with the
condition that decides its verdict. Numbers from elsewhere go in through `published`, which asks for the source.
"""

from __future__ import annotations

import ast
import html
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

from minipaged.errors import InvalidInputError
from minipaged.plots.base import COLOURS, Picture, colour, new_figure, picture
from minipaged.plots.words import say, tell

# ---------------------------------------------------------------- the map

VLLM = "0.33.0"  # the version whose source was read
State = Literal["same", "changed", "other"]


class Part(NamedTuple):
    """One part of minipaged and where the same thing is done in vLLM.

    Attributes:
        key: its name in the words and in the widget.
        ours: module and symbol here.
        chapter: where it was made.
        path, symbol: the file, below `vllm/`, and the symbol in it.
        state: "same" idea and steps, "changed", or done in an"other" way.
    """

    key: str
    ours: str
    chapter: int
    path: str
    symbol: str
    state: State


PARTS = (
    Part("front", "engine.LLM.generate", 10, "entrypoints/llm.py", "LLM.generate", "same"),
    Part("step", "engine.LLM._step", 10, "v1/engine/core.py", "EngineCore.step", "changed"),
    Part("request", "scheduler.Sequence", 10, "v1/request.py", "Request", "same"),
    Part("schedule", "scheduler.Scheduler.schedule", 10, "v1/core/sched/scheduler.py", "Scheduler.schedule", "same"),
    Part(
        "preempt",
        "scheduler.Scheduler._preempt",
        10,
        "v1/core/sched/scheduler.py",
        "Scheduler._preempt_request",
        "changed",
    ),
    Part(
        "prefix",
        "block_manager.PrefixIndex",
        11,
        "v1/core/kv_cache_manager.py",
        "KVCacheManager.get_computed_blocks",
        "same",
    ),
    Part(
        "allocate",
        "block_manager.BlockManager.allocate",
        7,
        "v1/core/kv_cache_manager.py",
        "KVCacheManager.allocate_slots",
        "changed",
    ),
    Part("pool", "block_manager.BlockPool", 7, "v1/core/block_pool.py", "BlockPool.get_new_blocks", "same"),
    Part("fork", "block_manager.BlockManager.fork", 11, "v1/engine/parallel_sampling.py", "ParentRequest", "other"),
    Part(
        "beam",
        "beam_search.beam_search",
        11,
        "entrypoints/generate/beam_search/offline.py",
        "BeamSearchOfflineMixin",
        "other",
    ),
    Part(
        "slots",
        "block_manager.physical_slot",
        7,
        "v1/worker/gpu/block_table.py",
        "BlockTables.compute_slot_mappings",
        "same",
    ),
    Part(
        "runner",
        "model_runner.ModelRunner.run",
        8,
        "v1/worker/gpu/model_runner.py",
        "GPUModelRunner.execute_model",
        "changed",
    ),
    Part(
        "write",
        "paged_cache.PagedKVCache.write",
        7,
        "v1/attention/ops/triton_reshape_and_cache_flash.py",
        "reshape_and_cache_kernel_flash",
        "same",
    ),
    Part(
        "kernel",
        "triton_kernels.decode_kernel",
        9,
        "v1/attention/ops/triton_unified_attention.py",
        "kernel_unified_attention",
        "same",
    ),
    Part("sample", "sampling.sample", 1, "v1/worker/gpu/sample/sampler.py", "Sampler.sample", "same"),
    Part(
        "draft", "speculative.verify", 12, "v1/worker/gpu/spec_decode/rejection_sampler.py", "RejectionSampler", "same"
    ),
    Part("size", "kv_size.KVCacheSpec", 5, "v1/kv_cache_interface.py", "FullAttentionSpec", "changed"),
)

_ON_WHITE = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
_LOOK = {"same": ("green", "", "="), "changed": ("orange", "//", "≈"), "other": ("red", "..", "≠")}


def find_part(key: str) -> Part:
    """The part of that name.

    Raises:
        InvalidInputError: it lists the names there are.
    """
    for part in PARTS:
        if part.key == key:
            return part
    raise InvalidInputError(f"no part {key!r}; there are {', '.join(part.key for part in PARTS)}")


def missing_from(folder: str | Path) -> list[str]:
    """Which files or symbols of the map a vLLM source tree (the folder that holds `v1`) does not have."""
    missing = []
    for part in PARTS:
        path = Path(folder) / part.path
        if not path.exists() or part.symbol not in symbols_of(path.read_text(encoding="utf-8")):
            missing.append(f"{part.path}: {part.symbol}")
    return missing


def symbols_of(source: str) -> list[str]:
    """Functions, classes and methods of a Python file, methods as `Class.method`."""
    names = []
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.append(node.name)
        if isinstance(node, ast.ClassDef):
            names += [f"{node.name}.{n.name}" for n in node.body if isinstance(n, ast.FunctionDef)]
    return names


@picture
def map_to_vllm() -> Picture:
    """The picture of the chapter: each part of minipaged, a sign, and file and symbol in vLLM."""
    from matplotlib.patches import Rectangle

    fig, ax = new_figure(8.6, 0.36 * len(PARTS) + 0.75)
    ax.set(xlim=(0, 100), ylim=(len(PARTS) + 0.15, -1.0))
    ax.axis("off")
    ax.text(0, -0.35, say("13.map.ours"), fontweight="bold")
    ax.text(43, -0.35, say("13.map.theirs", version=VLLM), fontweight="bold")
    for row, part in enumerate(PARTS):
        name, hatch, sign = _LOOK[part.state]
        for x, width, edge in ((0, 35, "blue"), (43, 57, "black")):
            ax.add_patch(Rectangle((x, row + 0.1), width, 0.78, facecolor="white", edgecolor=COLOURS[edge], lw=0.9))
        box = {"facecolor": "white", "edgecolor": COLOURS[name], "hatch": hatch or None, "lw": 1.5}
        ax.add_patch(Rectangle((36.4, row + 0.1), 5.2, 0.78, **box))
        ax.text(39, row + 0.52, sign, ha="center", va="center", fontsize=11, bbox=_ON_WHITE)
        ax.text(0.8, row + 0.5, f"{part.chapter}", va="center", fontsize=7, color="#555555")
        ax.text(3.6, row + 0.5, part.ours, va="center", fontsize=8)
        ax.text(43.8, row + 0.32, part.symbol, va="center", fontsize=8)
        ax.text(43.8, row + 0.69, part.path, va="center", fontsize=5.8, color="#555555")
    counts = Counter(part.state for part in PARTS)
    words = {"n": len(PARTS), "version": VLLM, **{state: counts[state] for state in _LOOK}}
    ax.set_title(say("13.map.title", **words), fontsize=9.5)
    return Picture(fig, tell("13.map.sentence", **words), data=words)


@picture
def where_is(key: str) -> Picture:
    """One part of the map: all parts on the left, file and symbol of this one on the right. Drawn fast enough to move.

    Args:
        key: of the part; see `PARTS`.
    """
    from matplotlib.patches import Rectangle

    chosen = find_part(key)
    name, hatch, sign = _LOOK[chosen.state]
    row = PARTS.index(chosen)
    fig, ax = new_figure(8.2, 3.1)
    ax.set(xlim=(0, 100), ylim=(len(PARTS) + 0.2, -0.4))
    ax.axis("off")
    ax.add_patch(Rectangle((0, row + 0.02), 33, 0.96, facecolor=COLOURS["yellow"], edgecolor="black"))
    for y, part in enumerate(PARTS):
        ax.text(3, y + 0.5, f"{part.chapter}", va="center", ha="right", fontsize=7, color="#555555")
        ax.text(3.8, y + 0.5, part.ours, va="center", fontsize=7)
    middle = len(PARTS) / 2
    ax.plot([33, 38], [row + 0.5, middle], color="black", lw=1.5)
    box = {"facecolor": "white", "edgecolor": COLOURS[name], "hatch": hatch or None, "lw": 2.5}
    ax.add_patch(Rectangle((38, middle - 3), 61.5, 6, **box))
    text = f"{sign}  {chosen.symbol}\nvllm/{chosen.path}"
    ax.text(68.7, middle, text, ha="center", va="center", fontsize=8, linespacing=1.7, bbox=_ON_WHITE)
    ax.set_title(say(f"13.where.title.{chosen.state}", name=chosen.ours.rsplit(".", 1)[-1], version=VLLM))
    return Picture(fig, part_sentence(key), data=chosen)


def part_sentence(key: str) -> str:
    """What a part is called in vLLM, where, and what is different."""
    part = find_part(key)
    words = {"ours": part.ours, "chapter": part.chapter, "path": f"vllm/{part.path}", "symbol": part.symbol}
    return tell("13.map.one", **words) + " " + tell(f"13.part.{key}")


# ---------------------------------------------------------------- a page table in two forms


@picture
def page_table(
    tables: Sequence[Sequence[int]],
    indptr: Sequence[int],
    indices: Sequence[int],
    last_page_len: Sequence[int],
    size: int,
) -> Picture:
    """A padded rectangle of block tables, and the same as CSR: one row of page numbers with the borders below it."""
    from matplotlib.patches import Rectangle

    wide = max([len(table) for table in tables] + [1])
    across = max(wide, len(indices)) + 0.4
    fig, (top, low) = new_figure(7.5, 1.5 + 0.38 * len(tables), nrows=2, height_ratios=[len(tables) + 0.8, 2.6])
    for ax in (top, low):
        ax.set_xlim(-2.6, across)
        ax.axis("off")
    top.set_ylim(len(tables), -0.7)
    top.text(-2.6, -0.2, say("13.csr.rectangle"), fontsize=8, va="center")
    for row, table in enumerate(tables):
        top.text(-0.2, row + 0.5, "ABCDEFGHIJ"[row % 10], ha="right", va="center", fontsize=9)
        for column in range(wide):
            there = column < len(table)
            style = {"facecolor": colour(row), "edgecolor": "white"} if there else {"facecolor": "white", "hatch": "xx"}
            style = style if there else {**style, "edgecolor": "#c4c4c4"}
            top.add_patch(Rectangle((column, row + 0.06), 1, 0.88, **style))
            text = {"ha": "center", "va": "center", "fontsize": 8, "bbox": _ON_WHITE}
            top.text(column + 0.5, row + 0.5, str(table[column]) if there else "-1", **text)
    _draw_csr(low, indptr, indices, last_page_len, size)
    padded = wide * len(tables)
    words = {"n": len(tables), "padded": padded, "pages": len(indices), "size": size}
    words |= {"indptr": list(indptr), "indices": list(indices), "last": list(last_page_len)}
    top.set_title(say("13.csr.title", **words))
    return Picture(fig, tell("13.csr.sentence", **words), data=words)


def _draw_csr(ax: Any, indptr: Sequence[int], indices: Sequence[int], last: Sequence[int], size: int) -> None:
    from matplotlib.patches import Rectangle

    ax.set_ylim(2.5, -0.75)
    for y, name in ((0.5, "indices"), (1.42, "indptr"), (2.1, "last_page_len")):
        ax.text(-0.2, y, name, ha="right", va="center", fontsize=8, family="monospace")
    for seq, (start, stop) in enumerate(pairwise(indptr)):
        for place in range(start, stop):
            used = last[seq] / size if place == stop - 1 else 1.0
            ax.add_patch(Rectangle((place, 0.06), 1, 0.88, facecolor="#f2f2f2", edgecolor=colour(seq), hatch="..."))
            ax.add_patch(Rectangle((place, 0.06), used, 0.88, facecolor=colour(seq), edgecolor="white"))
            centred = {"ha": "center", "va": "center", "fontsize": 8, "bbox": _ON_WHITE}
            ax.text(place + 0.5, 0.5, str(indices[place]), **centred)
        if stop > start:
            ax.text(stop - 0.5, 2.1, str(last[seq]), ha="center", va="center", fontsize=8)
    for border in sorted(set(indptr)):
        ax.plot([border, border], [0.0, 1.12], color="black", lw=1.6)
        ax.text(border, 1.42, str(border), ha="center", va="center", fontsize=8)


# ---------------------------------------------------------------- the ledger of claims

VERDICTS = ("holds", "holds with conditions", "corrected")
_MARKS = {
    "holds": ("✓", "green", ""),
    "holds with conditions": ("(✓)", "orange", "//"),
    "corrected": ("✎", "red", ".."),
}


class Published(float):
    """A number that others have published. Written without a format, it carries its source with it."""

    source: str

    def __str__(self) -> str:
        return f"{float(self):g} ({self.source})"

    def __format__(self, spec: str) -> str:
        return float.__format__(self, spec) if spec else str(self)


def published(value: float, source: str) -> Published:
    """A number from elsewhere, with where it stands.

    Raises:
        InvalidInputError: no source.
    """
    if not isinstance(source, str) or not source.strip():
        raise InvalidInputError(f"{value} comes from elsewhere: say from where, such as 'paper, figure 2'")
    number = Published(value)
    number.source = source
    return number


@dataclass(frozen=True)
class Entry:
    """One row of the ledger."""

    number: str
    claim: str
    chapter: int
    check: str
    result: str
    verdict: str
    note: str


class Ledger:
    """The claims of an article: what was checked in this run, what came out, and the verdict.

    A notebook shows it as a table with header cells.
    """

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._shown = 0

    def add(
        self,
        number: str,
        claim: str,
        chapter: int,
        *,
        check: str,
        result: str,
        holds: bool,
        under: bool = False,
        note: str = "",
    ) -> None:
        """Add a row; the verdict follows from the two conditions.

        Args:
            number, claim, chapter: the claim in our own words, and the chapter that treats it.
            check: how it was checked.
            result: what came out, made from computed values.
            holds: whether the claim is true as it is usually said.
            under: if not, whether it is true under the condition that `note` names.
            note: the condition, or the correction; it must be there unless the claim simply holds.

        Raises:
            InvalidInputError: a number twice, an empty result, or a condition or correction without a note.
        """
        if number in {entry.number for entry in self.entries}:
            raise InvalidInputError(f"claim {number} is in the ledger already")
        if not str(result).strip():
            raise InvalidInputError(f"claim {number}: the result is empty; put in what the check computed")
        verdict = VERDICTS[0] if holds else VERDICTS[1] if under else VERDICTS[2]
        if verdict != VERDICTS[0] and not note:
            raise InvalidInputError(
                f'claim {number}: "{verdict}" needs a note that says the condition or the correction'
            )
        self.entries.append(Entry(number, claim, chapter, check, str(result), verdict, note))

    def new(self) -> Table:
        """The rows that were added since the last call, as a table."""
        first, self._shown = self._shown, len(self.entries)
        return Table(self.entries[first:])

    @property
    def table(self) -> Table:
        """All rows, by their numbers."""
        return Table(sorted(self.entries, key=lambda entry: int(entry.number.strip("S"))))

    @property
    def counts(self) -> dict[str, int]:
        """How many rows have each verdict."""
        return {verdict: sum(e.verdict == verdict for e in self.entries) for verdict in VERDICTS}


class Table:
    """Rows of a ledger, shown as HTML with header cells, or as text."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = list(entries)

    def __repr__(self) -> str:
        return "\n".join(f"{e.number:4}{_MARKS[e.verdict][0]:4}{e.verdict}: {e.result}" for e in self.entries)

    def _repr_html_(self) -> str:
        columns = [tell(f"13.ledger.{name}") for name in ("number", "claim", "chapter", "check", "result", "verdict")]
        head = "".join(f'<th scope="col" style="text-align:left">{column}</th>' for column in columns)
        rows = "".join(f"<tr>{_cells(entry)}</tr>" for entry in self.entries)
        caption = tell("13.ledger.caption", n=len(self.entries))
        return f"<table><caption>{caption}</caption><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _cells(entry: Entry) -> str:
    verdict = f"{_MARKS[entry.verdict][0]} <b>{entry.verdict}</b>"
    verdict += f": {html.escape(entry.note)}" if entry.note else ""
    texts = [html.escape(entry.claim), str(entry.chapter), html.escape(entry.check), html.escape(entry.result), verdict]
    cells = "".join(f'<td style="text-align:left">{text}</td>' for text in texts)
    return f'<th scope="row">{entry.number}</th>{cells}'


@picture
def verdicts(ledger: Ledger) -> Picture:
    """All claims in a row by chapter, with their verdicts."""
    from matplotlib.patches import Rectangle

    chapters = sorted({entry.chapter for entry in ledger.entries})
    most = max(sum(e.chapter == c for e in ledger.entries) for c in chapters)
    fig, ax = new_figure(7.5, 0.75 + 0.33 * most)
    ax.set(xlim=(-0.2, len(chapters)), ylim=(-0.75, most + 0.1))
    ax.axis("off")
    for x, chapter in enumerate(chapters):
        ax.text(x + 0.45, -0.4, say("13.verdicts.chapter", n=chapter), ha="center", va="center", fontsize=8)
        for y, entry in enumerate(e for e in ledger.entries if e.chapter == chapter):
            mark, name, hatch = _MARKS[entry.verdict]
            look = {"facecolor": "white", "edgecolor": COLOURS[name], "hatch": hatch or None, "lw": 1.5}
            ax.add_patch(Rectangle((x + 0.02, y + 0.06), 0.86, 0.84, **look))
            text = f"{entry.number} {mark}"
            ax.text(x + 0.45, y + 0.48, text, ha="center", va="center", fontsize=8, bbox=_ON_WHITE)
    holds, partly, corrected = ledger.counts.values()
    words = {"n": len(ledger.entries), "holds": holds, "partly": partly, "corrected": corrected}
    words["numbers"] = ", ".join(e.number for e in ledger.entries if e.verdict == "corrected") or "-"
    ax.set_title(say("13.verdicts.title", **words))
    return Picture(fig, tell("13.verdicts.sentence", **words), data=words)


# ---------------------------------------------------------------- several GPUs


@picture
def split_heads(num_kv_heads: int, held: Sequence[Sequence[int]]) -> Picture:
    """Which KV heads each GPU keeps: `held[rank]` are the numbers of its heads."""
    from matplotlib.patches import Rectangle

    fig, ax = new_figure(7.0, 0.8 + 0.3 * len(held))
    ax.set(xlim=(-2.2, num_kv_heads + 0.2), ylim=(len(held) + 0.1, -0.9))
    ax.axis("off")
    times = Counter(head for heads in held for head in heads)
    for head in range(num_kv_heads):
        ax.text(head + 0.5, -0.3, str(head), ha="center", va="center", fontsize=8)
    ax.text(-0.2, -0.3, say("13.heads.head"), ha="right", va="center", fontsize=8)
    for rank, heads in enumerate(held):
        ax.text(-0.2, rank + 0.5, say("13.heads.rank", n=rank), ha="right", va="center", fontsize=8)
        for head in range(num_kv_heads):
            look = {"facecolor": "white", "edgecolor": "#d0d0d0"}
            if head in heads:
                look = {"facecolor": colour(rank), "edgecolor": "black", "hatch": "//" if times[head] > 1 else None}
            ax.add_patch(Rectangle((head + 0.04, rank + 0.08), 0.92, 0.84, lw=0.8, **look))
    words = {"heads": num_kv_heads, "ranks": len(held), "each": len(held[0]), "copies": max(times.values())}
    ax.set_title(say("13.heads.title", **words))
    return Picture(fig, tell("13.heads.sentence", **words), data=words)
