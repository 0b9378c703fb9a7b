"""Widgets of chapter 7: pour your own sentence into blocks, and choose a block size."""

from __future__ import annotations

from typing import Any

import ipywidgets as widgets

from minipaged.block_manager import BlockManager, shuffled
from minipaged.plots.base import Picture
from minipaged.plots.ch07 import expected_utilisation, poured, token_labels
from minipaged.widgets.base import Panel
from minipaged.widgets.words import say

POOL = 10  # blocks; small enough to see each one
NEIGHBOUR = 21  # tokens of the second sequence's prompt
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def pour_text(tokenizer: Any, text: str, written: list[int], *, steps: int = 0, block_size: int = 16) -> Panel:
    """Type a prompt, let it and a neighbour grow token by token, free the neighbour, deal the blocks anew.

    Args:
        tokenizer: turns the typed text into tokens.
        text: the first prompt.
        written: token ids that the sequence goes on with, one a step.
        steps: how many of them it has written at first.
        block_size: slots in a block.
    """

    def draw(text: str, steps: int, free: bool, order: int) -> Picture:
        ids = tokenizer(text).input_ids or [0]  # nothing typed: one start token
        labels = token_labels(tokenizer, [*ids, *written[:steps]])
        manager = history(len(ids), steps, free, order, block_size)
        others = {1: (manager.block_table(1), manager.num_tokens(1))} if 1 in manager.seq_ids else {}
        return poured(labels, manager.block_table(0), POOL, block_size, others=others, lit=len(labels) - 1)

    controls = {
        "text": widgets.Text(value=text, description=say("07.pour.text"), continuous_update=False),
        "steps": widgets.IntSlider(steps, 0, len(written), description=say("07.pour.steps"), continuous_update=False),
        "free": widgets.Checkbox(description=say("07.pour.free"), indent=False),
        "order": widgets.IntSlider(min=0, max=9, description=say("07.pour.order"), continuous_update=False),
    }
    return Panel(draw, controls, above=say("07.pour.above"))


def history(prompt_len: int, steps: int, free: bool, order: int, block_size: int) -> BlockManager:
    """What the pool looks like after these steps: sequence 0 is the reader's, sequence 1 the neighbour.

    Both write a token a step. With `free` the neighbour ends after half of the steps, and its blocks can be used again.
    """
    block_order = shuffled(POOL, order) if order else None
    manager = BlockManager(POOL, block_size, watermark=0, block_order=block_order)
    manager.allocate(0, range(prompt_len))
    manager.allocate(1, range(NEIGHBOUR))
    for step in range(steps):
        if free and step == steps // 2:
            manager.free(1)
        for seq_id in manager.seq_ids:
            manager.append_slots(seq_id)
    if free and 1 in manager.seq_ids:
        manager.free(1)
    return manager


def choose_block_size() -> Panel:
    """How long the requests are against how large a block is: the share of their slots that is used."""

    def draw(tokens: int, size: int) -> Picture:
        return expected_utilisation(tokens, size, SIZES)

    controls = {
        "tokens": widgets.IntSlider(value=78, min=10, max=2000, step=1, description=say("07.choose.tokens")),
        "size": widgets.SelectionSlider(value=16, options=list(SIZES), description=say("07.choose.size")),
    }
    controls["tokens"].continuous_update = False
    return Panel(draw, controls)
