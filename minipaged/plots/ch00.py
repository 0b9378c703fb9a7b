"""Pictures of chapter 0: the way of a token on one page, what each pass reads, and the map of the course.

    text -> tokens -> ids -> one pass -> logits
                       ^                   |
                       +---- append <--- pick -> stop? -> text out

`COURSE` is the one table of chapters: what needs what, and what is written. Left out: everything inside a pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from minipaged.errors import InvalidInputError
from minipaged.plots.base import COLOURS, Picture, new_figure, picture
from minipaged.plots.words import say


@dataclass(frozen=True)
class Chapter:
    """One chapter of the course: its file, the chapters it builds on most closely, and whether it is written.

    `minutes` to read and do and `seconds` to run are those of the notebook's card, which a test compares; 0: not known.
    """

    file: str
    needs: tuple[int, ...] = ()
    minutes: int = 0
    seconds: int = 0
    written: bool = True

    @property
    def number(self) -> str:
        """Its two digits, "05"."""
        return self.file[:2]

    @property
    def title(self) -> str:
        """Its name."""
        return say(f"00.map.title.{self.number}")

    @property
    def does(self) -> str:
        """What the reader can do afterwards."""
        return say(f"00.map.does.{self.number}")


COURSE = (  # the index is the chapter's number; a need that follows from another one is left out
    Chapter("00_start_here", (), 50, 20),
    Chapter("01_autoregressive_decoding", (0,), 100, 40),
    Chapter("02_tensor_shapes", (1,), 90, 10),
    Chapter("03_attention", (2,), 100, 10),
    Chapter("04_naive_kv_cache", (3,), 90, 40),
    Chapter("05_kv_cache_size", (4,), 80, 10),
    Chapter("06_fragmentation", (5,), 100, 15),
    Chapter("07_paged_kv_cache", (6,), 75, 20),
    Chapter("08_paged_attention", (7,), 100, 20),
    Chapter("09_triton_kernel", (8,), 100, 25),
    Chapter("10_continuous_batching", (8,), 85, 40),
    Chapter("11_sharing", (10,), 115, 30),
    Chapter("12_speculative_decoding", (10,), 95, 70),
    Chapter("13_from_minipaged_to_vllm", (9, 11, 12), 120, 20),
)
_PARTS = ((0, 1, 2, 3), (4, 5, 6), (7, 8, 9), (10, 11, 12, 13))  # the rows of the map


def course_table(course: Sequence[Chapter] = COURSE) -> str:
    """The chapters as a Markdown table; those that are written are links."""
    rows = [say("00.map.table.head"), "|---|---|---|---|---|"]
    for chapter in course:
        name = f"{chapter.number} {chapter.title}"
        name = f"[{name}]({chapter.file}.ipynb)" if chapter.written else f"{name} ({say('00.map.planned')})"
        needs = ", ".join(course[n].number for n in chapter.needs) or "-"
        times = f"{chapter.minutes or '-'} | {f'{chapter.seconds} s' if chapter.seconds else '-'}"
        rows.append(f"| {name} | {chapter.does} | {needs} | {times} |")
    return "\n".join(rows)


def longest_chain(course: Sequence[Chapter] = COURSE) -> list[int]:
    """The longest way through the needs, first chapter first."""
    chains: list[list[int]] = []
    for number, chapter in enumerate(course):
        chains.append([*max((chains[need] for need in chapter.needs), key=len, default=[]), number])
    return max(chains, key=len)


@picture
def course_map(course: Sequence[Chapter] = COURSE) -> Picture:
    """The chapters in four rows, with an arrow from each chapter to those that need it."""
    fig, ax = new_figure(9.2, 6.0)
    places = {n: (column * 2.35, -row * 1.5) for row, part in enumerate(_PARTS) for column, n in enumerate(part)}
    for number, chapter in enumerate(course):
        _chapter_box(ax, *places[number], chapter)
        for need in chapter.needs:
            _need_arrow(ax, places[need], places[number])
    for row in range(len(_PARTS)):
        ax.text(-0.12, -row * 1.5 - 0.45, say(f"00.map.part.{row}"), rotation=90, ha="right", va="center", fontsize=8)
    _bare(ax, (-0.45, 9.1), (-5.5, 0.4))
    written = sum(chapter.written for chapter in course)
    planned = len(course) - written
    ax.set_title(say("00.map.title" if planned else "00.map.title.all", written=written, planned=planned))
    chain = longest_chain(course)
    words = say("00.map.sentence", chapters=len(course), chain=" → ".join(course[n].number for n in chain))
    return Picture(fig, words, data=places)


def _chapter_box(ax: Any, x: float, y: float, chapter: Chapter) -> None:
    edge = COLOURS["blue"] if chapter.written else COLOURS["grey"]
    _box(ax, x, y - 0.9, 1.95, 0.9, edge=edge, dashed=not chapter.written)
    note = "" if chapter.written else f" ({say('00.map.planned')})"
    ax.text(x + 0.08, y - 0.08, f"{chapter.number}{note}", va="top", fontsize=8, color="#444444")
    if chapter.minutes:
        minutes = say("00.map.minutes", n=chapter.minutes)
        ax.text(x + 1.87, y - 0.08, minutes, va="top", ha="right", fontsize=7, color="#555555")
    ax.text(x + 0.08, y - 0.27, chapter.title, va="top", fontsize=8.5, fontweight="bold")
    ax.text(x + 0.08, y - 0.48, _wrapped(chapter.does, 33), va="top", fontsize=7)


def _need_arrow(ax: Any, start: tuple[float, float], end: tuple[float, float]) -> None:
    """From the box at `start` to the box at `end`: along the row, or down to the next one."""
    (x0, y0), (x1, y1) = start, end
    if y0 == y1 and x1 - x0 > 2.4:  # over a neighbour: arch above the row
        points, bend = ((x0 + 1.0, y0), (x1 + 0.9, y1)), "arc3,rad=-0.12"
    elif y0 == y1:
        points, bend = ((x0 + 1.95, y0 - 0.45), (x1, y1 - 0.45)), "arc3"
    else:
        points, bend = ((x0 + 0.97, y0 - 0.9), (x1 + 0.97 + 0.12 * (x0 - x1) / 2.35, y1)), "arc3"
    _arrow(ax, *points, bend=bend, colour=COLOURS["grey"], width=1.2)


@picture
def way_of_a_token(
    text: str,
    pieces: Sequence[str],
    ids: Sequence[int],
    candidates: Sequence[tuple[str, float]],
    new_ids: Sequence[int],
    written: str,
    *,
    vocabulary: int,
    layers: int,
) -> Picture:
    """The loop on one page, filled with one real generation.

    Args:
        text: the question. pieces: its tokens as text. ids: all ids that the first pass reads.
        candidates: the most likely first tokens with their probabilities, likeliest first; the first is picked.
        new_ids: what the passes wrote, one id each. written: the same as text.
        vocabulary: number of logits. layers: of the model.
    """
    fig, ax = new_figure(9.2, 4.0)
    _box(ax, 4.66, -0.02, 4.64, 3.82, edge=COLOURS["light"], fill="#f5f5f5")
    ax.text(6.98, 0.06, say("00.way.loop"), ha="center", va="bottom", fontsize=8.5, color=COLOURS["red"])
    stages = [  # column, row, key, body, values of the note, chapters
        (0, 0, "text", _wrapped(text, 20), {}, "0"),
        (1, 0, "tokens", "", {}, "1"),
        (
            2,
            0,
            "ids",
            f"[{', '.join(map(str, ids[:3]))},\n …, {', '.join(map(str, ids[-2:]))}]",
            {"count": len(ids)},
            "1",
        ),
        (3, 0, "pass", "", {"layers": layers}, "2–12"),
        (3, 1, "logits", "", {"vocabulary": vocabulary}, "1, 3"),
        (2, 1, "pick", "", {}, "1"),
        (1, 1, "new", f"[{', '.join(map(str, new_ids[:3]))},\n …, {new_ids[-1]}]", {"count": len(new_ids)}, "1"),
        (0, 1, "out", _wrapped(written, 22), {}, "1"),
    ]
    for column, row, key, body, note, chapters in stages:
        _stage(ax, column * 2.4, 3.65 - row * 1.9, key, body, say(f"00.way.{key}.note", **note), chapters)
    _pieces_in_a_box(ax, 2.5, 3.2, pieces)
    _candidate_bars(ax, 4.9, 1.25, candidates)
    _way_arrows(ax)
    _bare(ax, (-0.1, 9.35), (-0.05, 3.85))
    ax.set_title(say("00.way.title", passes=len(new_ids)))
    numbers = {"prompt_tokens": len(ids), "vocabulary": vocabulary, "picked": candidates[0][0], "picked_id": new_ids[0]}
    return Picture(fig, say("00.way.sentence", **numbers), data=numbers | {"passes": len(new_ids)})


def _stage(ax: Any, x: float, top: float, key: str, body: str, note: str, chapters: str) -> None:
    edge = COLOURS["red"] if key in ("ids", "pass", "logits", "pick") else COLOURS["blue"]
    _box(ax, x, top - 1.35, 1.95, 1.35, edge=edge)
    chapter = say("00.way.chapter", chapters=chapters)
    ax.text(x + 0.1, top - 0.08, say(f"00.way.{key}"), va="top", fontsize=10, fontweight="bold")
    ax.text(x + 1.88, top - 0.1, chapter, va="top", ha="right", fontsize=6.5, color="#555555")
    ax.text(x + 0.1, top - 0.4, body, va="top", fontsize=8)
    ax.text(x + 0.1, top - 1.28, note, va="bottom", fontsize=7.5, color="#555555")


def _pieces_in_a_box(ax: Any, x: float, y: float, pieces: Sequence[str]) -> None:
    """Tokens as small frames, line after line, as far as the box has room."""
    for piece, (left, top, width) in zip(pieces, _flow(pieces, right=1.8, line=0.27, scale=0.85), strict=True):
        if top < -0.5:
            break
        _box(ax, x + left, y + top - 0.22, width, 0.22, edge=COLOURS["sky"], fill="#eaf4fb", line=1.0)
        ax.text(x + left + width / 2, y + top - 0.115, _shown(piece), ha="center", va="center", fontsize=7.5)


def _candidate_bars(ax: Any, x: float, y: float, candidates: Sequence[tuple[str, float]]) -> None:
    """The likeliest tokens with their probabilities; the picked one is solid, the others hatched."""
    for row, (piece, probability) in enumerate(candidates):
        fill, hatch = (COLOURS["orange"], None) if row == 0 else ("white", "/////")
        _box(ax, x + 0.5, y - row * 0.22, 0.85 * probability, 0.13, edge="black", fill=fill, hatch=hatch, line=0.8)
        ax.text(x + 0.45, y + 0.06 - row * 0.22, _shown(piece), ha="right", va="center", fontsize=7.5)
        end = x + 0.54 + 0.85 * probability
        ax.text(
            end,
            y + 0.06 - row * 0.22,
            f"{probability:.2f}" if probability >= 0.005 else "< 0.01",
            va="center",
            fontsize=7,
        )


def _way_arrows(ax: Any) -> None:
    for x, word in ((1.95, "encode"), (4.35, ""), (6.75, "")):  # along the upper row, to the right
        _arrow(ax, (x, 3.0), (x + 0.45, 3.0))
        ax.text(x + 0.22, 3.06, say(f"00.way.{word}") if word else "", ha="center", fontsize=6.5)
    for x, word, shade in ((7.2, "", "red"), (4.8, "stop", "black"), (2.4, "decode", "black")):  # and back
        _arrow(ax, (x, 1.08), (x - 0.45, 1.08), colour=COLOURS[shade])
        ax.text(x - 0.22, 1.14, say(f"00.way.{word}") if word else "", ha="center", fontsize=6.5)
    _arrow(ax, (8.2, 2.3), (8.2, 1.75), colour=COLOURS["red"])
    _arrow(ax, (5.8, 1.75), (5.8, 2.3), colour=COLOURS["red"])
    ax.text(5.9, 2.02, say("00.way.append"), va="center", fontsize=8, color=COLOURS["red"])


@picture
def tokens_read(prompt_tokens: int, passes: int) -> Picture:
    """What each pass reads, with nothing kept and with K and V kept: one row a pass, one cell a token."""
    if prompt_tokens < 1 or passes < 1:
        raise InvalidInputError(f"prompt_tokens is {prompt_tokens} and passes {passes}; both must be at least 1")
    fig, axes = new_figure(9.2, 3.6, ncols=2, sharey=True)
    totals = [sum(reads) for reads in (reads_without(prompt_tokens, passes), reads_cached(prompt_tokens, passes))]
    for ax, cached, total in zip(axes, (False, True), totals, strict=True):
        _read_cells(ax, prompt_tokens, passes, cached)
        ax.set_title(
            say("00.read.cached" if cached else "00.read.without", tokens=total), fontsize=9.5, fontweight="normal"
        )
        ax.set_xlabel(say("00.read.x"))
        ax.set_xlim(-0.5, prompt_tokens + passes + 0.5)
        ax.set_ylim(passes + 0.7, 0.3)
    axes[0].set_ylabel(say("00.read.y"))
    _read_legend(fig)
    numbers = {"passes": passes, "without": totals[0], "cached": totals[1]}
    fig.suptitle(say("00.read.title", **numbers), x=0.01, ha="left", fontsize=11, fontweight="bold")
    return Picture(fig, say("00.read.sentence", prompt_tokens=prompt_tokens, **numbers), data=numbers)


def reads_without(prompt_tokens: int, passes: int) -> list[int]:
    """Tokens read by each pass when nothing is kept: the whole text so far, every time."""
    return [prompt_tokens + done for done in range(passes)]


def reads_cached(prompt_tokens: int, passes: int) -> list[int]:
    """Tokens read by each pass when K and V are kept: the prompt once, then one token a pass."""
    return [prompt_tokens if done == 0 else 1 for done in range(passes)]


def _read_cells(ax: Any, prompt_tokens: int, passes: int, cached: bool) -> None:
    read, kept, new = [], [], []
    for number in range(1, passes + 1):
        length = prompt_tokens + number - 1
        first = length - 1 if cached and number > 1 else 0
        kept += [(position, number) for position in range(first)]
        read += [(position, number) for position in range(first, length)]
        new.append((length, number))
    _cells(ax, kept, facecolor="#dcdcdc", edgecolor="white")
    _cells(ax, read, facecolor=COLOURS["blue"], edgecolor="white")
    _cells(ax, new, facecolor=COLOURS["orange"], edgecolor="black", hatch="/////")


def _read_legend(fig: Any) -> None:
    from matplotlib.patches import Patch

    handles = [
        Patch(facecolor=COLOURS["blue"], label=say("00.read.legend.read")),
        Patch(facecolor="#dcdcdc", label=say("00.read.legend.kept")),
        Patch(facecolor=COLOURS["orange"], edgecolor="black", hatch="/////", label=say("00.read.legend.new")),
    ]
    fig.legend(handles=handles, loc="outside lower center", ncols=3)


@dataclass(frozen=True)
class Run:
    """One generation, kept for drawing: how long the prompt was, the new tokens as text, and why it stopped."""

    prompt_tokens: int
    pieces: tuple[str, ...]
    stopped: str


@picture
def generation_step(run: Run, passes: int, cached: bool = True) -> Picture:
    """The text after `passes` passes, with the tokens that the last of them read framed.

    A step beyond the end of the run shows its end.
    """
    passes = max(0, min(passes, len(run.pieces)))
    reads = (reads_cached if cached else reads_without)(run.prompt_tokens, passes)
    fig, ax = new_figure(9.2, 2.5)
    _prompt_strip(ax, run, lit=passes > 0 and (not cached or passes == 1))
    _new_tokens(ax, run, passes, cached)
    counts = [("passes", passes), ("tokens", passes), ("read", sum(reads))]
    for row, (key, value) in enumerate(counts):
        ax.text(8.25, 3.0 - row * 0.78, f"{value:,}", ha="right", va="top", fontsize=17, fontweight="bold")
        ax.text(8.32, 2.92 - row * 0.78, _wrapped(say(f"00.step.{key}"), 9), va="top", fontsize=8)
    ax.text(0, 0.62, say("00.step.legend"), fontsize=7.5, color="#555555")
    _bare(ax, (-0.02, 9.2), (0.55, 3.05))
    ax.set_title(_step_title(run, passes, reads))
    text = "".join(run.pieces[:passes])
    numbers = {"passes": passes, "read": sum(reads), "text": text}
    return Picture(fig, say("00.step.sentence", **numbers), data=numbers)


def _step_title(run: Run, passes: int, reads: list[int]) -> str:
    if passes == 0:
        return say("00.step.title.start")
    if passes == len(run.pieces):
        return say("00.step.title.stopped", passes=passes, reason=run.stopped)
    read = say("00.step.one") if reads[-1] == 1 else say("00.step.many", count=reads[-1])
    return say("00.step.title", passes=passes, read=read)


def _prompt_strip(ax: Any, run: Run, lit: bool) -> None:
    from matplotlib.collections import PolyCollection

    width = min(0.2, 7.2 / run.prompt_tokens)
    cells = [_corners(i * width, 2.35, width, 0.28) for i in range(run.prompt_tokens)]
    edge, line = ("black", 1.6) if lit else ("white", 0.8)
    ax.add_collection(PolyCollection(cells, facecolor=COLOURS["sky"], edgecolor=edge, linewidth=line))
    ax.text(0, 2.68, say("00.step.prompt", count=run.prompt_tokens), fontsize=8.5)


def _new_tokens(ax: Any, run: Run, passes: int, cached: bool) -> None:
    ax.text(0, 2.02, say("00.step.new"), fontsize=8.5)
    for number, (x, y, width) in enumerate(_flow(run.pieces, top=1.6), start=1):
        if number > passes:
            _box(ax, x, y, width, 0.34, edge="#c4c4c4")  # free: not written yet
            continue
        new = number == passes
        read = not new and (number == passes - 1 if cached else True)
        fill = COLOURS["orange"] if new else "#cfe6f5"
        edge = "black" if read or new else "#8fb8d6"
        _box(ax, x, y, width, 0.34, edge=edge, fill=fill, hatch="////" if new else None, line=1.8 if read else 1.0)
        shown = {"boxstyle": "square,pad=0.08", "facecolor": fill, "edgecolor": "none"} if new else None
        ax.text(
            x + width / 2, y + 0.16, _shown(run.pieces[number - 1]), ha="center", va="center", fontsize=8, bbox=shown
        )


def _flow(
    pieces: Sequence[str], *, top: float = 0.0, right: float = 7.2, line: float = 0.42, scale: float = 1.0
) -> Iterator[tuple[float, float, float]]:
    """(x, y, width) of a box for each piece, line after line, no line longer than `right`."""
    x, y = 0.0, top
    for piece in pieces:
        width = scale * (0.2 + 0.085 * len(_shown(piece)))
        if x + width > right:
            x, y = 0.0, y - line
        yield x, y, width
        x += width + 0.05


# ---------------------------------------------------------------- small things to draw with


def _shown(piece: str) -> str:
    """A token's text with its space and line end made visible."""
    return piece.replace(" ", "·").replace("\n", "\\n")


def _wrapped(text: str, width: int) -> str:
    import textwrap

    return "\n".join(textwrap.wrap(text, width))


def _bare(ax: Any, x: tuple[float, float], y: tuple[float, float]) -> None:
    ax.set(xlim=x, ylim=y)
    ax.axis("off")


def _box(
    ax: Any,
    x: float,
    y: float,
    width: float,
    height: float,
    *,
    edge: str,
    fill: str = "white",
    hatch: str | None = None,
    dashed: bool = False,
    line: float = 1.4,
) -> None:
    from matplotlib.patches import Rectangle

    ax.add_patch(
        Rectangle(
            (x, y), width, height, facecolor=fill, edgecolor=edge, hatch=hatch, lw=line, ls="--" if dashed else "-"
        )
    )


def _arrow(
    ax: Any,
    start: tuple[float, float],
    end: tuple[float, float],
    *,
    colour: str = COLOURS["black"],
    bend: str = "arc3",
    width: float = 1.6,
) -> None:
    ax.annotate(
        "",
        xy=end,
        xytext=start,
        arrowprops={
            "arrowstyle": "-|>",
            "color": colour,
            "lw": width,
            "shrinkA": 1,
            "shrinkB": 1,
            "connectionstyle": bend,
        },
    )


def _cells(ax: Any, places: Sequence[tuple[int, int]], **look: Any) -> None:
    """Unit cells centred at (column, row), drawn as one collection."""
    from matplotlib.collections import PolyCollection

    cells = [_corners(x - 0.5, y - 0.42, 1.0, 0.84) for x, y in places]
    ax.add_collection(PolyCollection(cells, linewidth=0.4, **look))


def _corners(x: float, y: float, width: float, height: float) -> list[tuple[float, float]]:
    return [(x, y), (x + width, y), (x + width, y + height), (x, y + height)]
