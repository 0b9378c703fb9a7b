"""Widgets of chapter 13: one part of the map at a time, and block tables that turn into CSR."""

from __future__ import annotations

from typing import Any

from minipaged.block_manager import BlockManager
from minipaged.exercises.ch13 import to_csr
from minipaged.plots.base import Picture
from minipaged.plots.ch13 import PARTS, page_table, where_is
from minipaged.widgets.base import Panel, widgets
from minipaged.widgets.words import say


def where_is_it(first: str = "fork") -> Panel:
    """Choose a part of minipaged; picture and sentence name its file and symbol in vLLM."""
    options = [(f"{part.chapter:2}  {part.ours}", part.key) for part in PARTS]
    part = widgets.Dropdown(options=options, value=first, description=say("13.where.part"))
    return Panel(lambda part: where_is(part), {"part": part}, above=say("13.where.above"))


def csr_converter(lengths: tuple[int, int, int] = (10, 3, 16)) -> Panel:
    """Three lengths and a block size over a pool; the block tables above, the same as CSR below."""

    def draw(a: int, b: int, c: int, size: int) -> Picture:
        manager = BlockManager(3 * 24, size, watermark=0, block_order=[5, 0, 7, 2, 9, 4, 1, 8, 3, 6])
        for turn in range(max(a, b, c)):  # all three write at the same pace, so their blocks mix
            for seq, length in enumerate((a, b, c)):
                if turn < length:
                    _ = manager.append_slots(seq) if turn else manager.allocate(seq, [0])
        tables = [manager.block_table(seq) for seq in range(3)]
        return page_table(tables, *to_csr(tables, (a, b, c), size), size)

    def slider(name: str, value: int) -> Any:
        text = say("13.table.length", name=name.upper())
        return widgets.IntSlider(value, 1, 24, description=text, continuous_update=False)

    controls: dict[str, Any] = {name: slider(name, n) for name, n in zip("abc", lengths, strict=True)}
    controls["size"] = widgets.Dropdown(options=[2, 4, 8, 16], value=4, description=say("13.table.size"))
    return Panel(draw, controls, above=say("13.table.above"))
