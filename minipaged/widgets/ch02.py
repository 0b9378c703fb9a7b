"""Chapter 2's widgets: a cell's way from its index to its place in memory, and the shapes and bytes of q, K and V."""

from __future__ import annotations

from typing import Any

from minipaged.errors import InvalidInputError, require
from minipaged.plots.base import Picture
from minipaged.plots.ch02 import cell_in_memory, kv_shapes
from minipaged.shapes import contiguous_strides
from minipaged.widgets.base import Panel
from minipaged.widgets.words import say

HEADS, TOKENS, NUMBERS = 3, 4, 4  # small enough to show every cell


def memory_panel() -> Panel:
    """Choose a cell of a small K [head, token, number] and a layout; see the cell in the grids and in memory."""
    widgets = require("ipywidgets", "a live widget")
    view = (NUMBERS, HEADS * NUMBERS, 1)  # as k_proj leaves it: a row of memory is one token, all heads side by side
    layouts = {"view": view, "copy": contiguous_strides((HEADS, TOKENS, NUMBERS))}
    names = [(say(f"02.memory.{kind}"), kind) for kind in layouts]

    def draw(layout: str, head: int, token: int, number: int) -> Picture:
        shape, axis_names = (HEADS, TOKENS, NUMBERS), ("head", "token", "number")
        name = say(f"02.memory.{layout}")
        return cell_in_memory(shape, layouts[layout], (head, token, number), name=name, axis_names=axis_names)

    def slider(name: str, largest: int, value: int) -> Any:
        words = say(f"02.memory.{name}")
        return widgets.IntSlider(value=value, min=0, max=largest, description=words, continuous_update=False)

    controls = {
        "layout": widgets.Dropdown(options=names, value="view", description=say("02.memory.layout")),
        "head": slider("head", HEADS - 1, 1),
        "token": slider("token", TOKENS - 1, 2),
        "number": slider("number", NUMBERS - 1, 3),
    }
    return Panel(draw, controls)


def shapes_panel(
    batch: int = 1, length: int = 100, heads: int = 9, kv_heads: int = 3, head_dim: int = 64, dtype: str = "float16"
) -> Panel:
    """Choose batch, length and heads; see the shapes and bytes of q, K and V of one layer."""
    widgets = require("ipywidgets", "a live widget")

    def draw(batch: int, length: int, heads: int, kv_heads: int, head_dim: int, dtype: str) -> Picture:
        if heads % kv_heads:
            fitting = ", ".join(str(count) for count in range(1, heads + 1) if heads % count == 0)
            raise InvalidInputError(say("02.shapes.uneven", heads=heads, kv_heads=kv_heads, fitting=fitting))
        return kv_shapes(batch, length, heads, kv_heads, head_dim, dtype)

    def slider(name: str, value: int, smallest: int, largest: int, step: int = 1) -> Any:
        words = say(f"02.shapes.{name}")
        return widgets.IntSlider(
            value=value, min=smallest, max=largest, step=step, description=words, continuous_update=False
        )

    controls = {
        "batch": slider("batch", batch, 1, 64),
        "length": slider("length", length, 1, 4096),
        "heads": slider("heads", heads, 1, 64),
        "kv_heads": slider("kv_heads", kv_heads, 1, 64),
        "head_dim": slider("head_dim", head_dim, 16, 256, 16),
        "dtype": widgets.Dropdown(options=["float32", "float16"], value=dtype, description=say("02.shapes.dtype")),
    }
    return Panel(draw, controls)
