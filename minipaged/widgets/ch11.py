"""Widgets of chapter 11: fork, write and free by hand; and a beam search, step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from minipaged.block_manager import BlockManager
from minipaged.plots.base import Picture
from minipaged.plots.ch11 import Tables, block_tree, leaves, shared_pool
from minipaged.widgets.base import Panel, widgets
from minipaged.widgets.words import say

POOL = 32  # blocks of 16: the longest prompt and output, six times, fit without sharing


def samples(prompt: int, n: int, written: int, ended: int, block_size: int = 16) -> tuple[BlockManager, Any, int]:
    """n samples of one prompt: forked, each grown by `written` tokens in turn, the last `ended` of them freed.

    Returns:
        The manager, the copies of the last step as (source, target), and how many copies were made in all.
    """
    manager = BlockManager(POOL, block_size, watermark=0)
    manager.allocate(0, range(prompt))
    for child in range(1, n):
        manager.fork(0, child)
    copies: list[tuple[int, int]] = []
    total = 0
    for _ in range(written):
        copies = [pair for sequence in range(n) for pair in manager.append_slots(sequence)]
        total += len(copies)
    for sequence in range(n - min(ended, n - 1), n):
        manager.free(sequence)
    return manager, copies, total


def tables_of(manager: BlockManager) -> dict[int, tuple[list[int], int]]:
    """{sequence: (block table, tokens)} of every sequence, as the pictures take it."""
    return {sequence: (manager.block_table(sequence), manager.num_tokens(sequence)) for sequence in manager.seq_ids}


def fork_write_free(prompt: int = 19, n: int = 2, written: int = 0) -> Panel:
    """Prompt length, samples, tokens that each has written, samples that have ended, over the pool with its counts."""

    def draw(prompt: int, n: int, written: int, ended: int) -> Picture:
        manager, copies, total = samples(prompt, n, written, ended)
        shown = shared_pool(tables_of(manager), POOL, copies=copies, total_copies=total)
        lengths = say("11.fork.lengths", prompt=prompt, written=written)  # every control is heard in the sentence
        return Picture(shown.figure, f"{lengths} {shown.sentence}", data=shown.data)

    def slider(name: str, value: int, low: int, high: int) -> Any:
        text = say(f"11.fork.{name}")
        return widgets.IntSlider(value, low, high, description=text, continuous_update=False)

    controls = {
        "prompt": slider("prompt", prompt, 1, 48),
        "n": slider("n", n, 1, 6),
        "written": slider("written", written, 0, 32),
        "ended": slider("ended", 0, 0, n - 1),
    }

    def at_least_one_goes_on(change: Any) -> None:
        controls["ended"].max = change["new"] - 1

    controls["n"].observe(at_least_one_goes_on, names="value")
    return Panel(draw, controls, above=say("11.fork.above"))


def step_through_beams(history: Sequence[Tables], labels: Sequence[Mapping[int, str]], block_size: int) -> Panel:
    """The tree of blocks after each step of a beam search that was recorded before.

    Args:
        history: for each step, {beam: (block table, tokens)}.
        labels: for each step, the text of each block.
        block_size: slots in a block.
    """
    width = max(len(table) for tables in history for table, _ in tables.values())
    pairs = list(zip([{}, *history], history, strict=False))  # (before, now) of each step
    rows = max(len(leaves(now, before)) for before, now in pairs)
    steps = len(history)

    def draw(step: int) -> Picture:
        before, now = pairs[step - 1]
        texts = {**(labels[step - 2] if step > 1 else {}), **labels[step - 1]}
        title = say("11.beams.title", step=step, steps=steps)
        return block_tree(now, texts, block_size, before=before, title=title, width=width, rows=rows)

    text = say("11.beams.step")
    slider = widgets.IntSlider(-(-steps // 2), 1, steps, description=text, continuous_update=False)
    return Panel(draw, {"step": slider}, above=say("11.beams.above"))
