"""Every widget of the course: each of its controls is heard in the sentence, and each slider has a track to move on."""

from __future__ import annotations

import importlib
import inspect
import itertools
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip("ipywidgets")

from minipaged.fragmentation import lognormal_lengths
from minipaged.plots.ch00 import Run
from minipaged.widgets import ch00, ch01, ch02, ch03, ch04, ch05, ch06, ch07, ch08, ch09, ch10, ch11, ch12, ch13
from minipaged.widgets.base import Panel, room, widgets

DRAW = np.random.default_rng(0)
TEXT = SimpleNamespace(decode=lambda ids: f" w{ids[0]}")
LOGITS = {name: torch.from_numpy(DRAW.normal(size=40) * size) for name, size in (("sharp", 3.0), ("flat", 0.5))}


class Words:
    """A tokenizer of words."""

    def __call__(self, text):
        return SimpleNamespace(input_ids=list(range(len(text.split()))))

    def decode(self, ids):
        return f" w{ids[0]}"


def stepper():
    heads = {name: (DRAW.normal(size=5), DRAW.normal(size=(5, 6))) for name in ("one", "two")}
    return ch08.block_stepper(heads, list("abcde"), [7, 2, 5], 2, step=2)


def drafts():
    return {layers: torch.from_numpy(DRAW.normal(size=40)) for layers in (5, 15)}


PANELS = {
    "passes_panel": lambda: ch00.passes_panel(
        {"a": Run(7, ("A", " b", "c"), "x"), "d": Run(5, ("d", "e"), "x")}, passes=2
    ),
    "next_token_panel": lambda: ch01.next_token_panel(LOGITS, TEXT),
    "dart_panel": lambda: ch01.dart_panel(LOGITS, TEXT),
    "memory_panel": ch02.memory_panel,
    "shapes_panel": ch02.shapes_panel,
    "attention_explorer": lambda: ch03.attention_explorer(DRAW.normal(size=(2, 3, 4, 4)), list("abcd"), token=2),
    "rope_explorer": lambda: ch03.rope_explorer(DRAW.normal(size=16), DRAW.normal(size=16)),
    "pass_panel": lambda: ch04.pass_panel(list("abcdef")),
    "step_panel": ch04.step_panel,
    "calculator": ch05.calculator,
    "growth_panel": ch05.growth_panel,
    "play_pool": lambda: ch06.play_pool(lognormal_lengths(60, 12, 24, max_len=64, seed=2), 240, steps=40),
    "what_if": ch06.what_if,
    "pour_text": lambda: ch07.pour_text(Words(), "one two three", list(range(40)), steps=30),
    "choose_block_size": ch07.choose_block_size,
    "block_stepper": stepper,
    "choose_program": lambda: ch09.choose_program([[5, 2], [0]], [6, 3], 1, 8, 4, {(0, 0): {1, 2}, (1, 0): {3}}),
    "serve_twelve": ch10.serve_twelve,
    "fork_write_free": lambda: ch11.fork_write_free(written=2),
    "step_through_beams": lambda: ch11.step_through_beams([{0: ([0], 3)}, {0: ([0, 1], 5)}], [{}, {}], 4),
    "target_and_draft": lambda: ch12.target_and_draft(LOGITS["flat"], drafts(), {}, num_layers=30),
    "roll_back": ch12.roll_back,
    "pays_or_not": ch12.pays_or_not,
    "where_is_it": ch13.where_is_it,
    "csr_converter": ch13.csr_converter,
}


@pytest.fixture(scope="module")
def panels():
    return {name: make() for name, make in PANELS.items()}


def other_values(control, count=6):
    """A few values that the control could be moved to."""
    if isinstance(control, widgets.Checkbox):
        values = [not control.value]
    elif isinstance(control, widgets.SelectMultiple):
        values = [control.options[:1]]
    elif hasattr(control, "options"):
        values = [option[1] if isinstance(option, tuple) else option for option in control.options]
    elif isinstance(control, widgets.Text):
        values = [control.value + " and more"]
    else:  # a slider: one step to either side, and far away
        values = [control.value + control.step, control.value - control.step, control.max, control.min]
        values = [value for value in values if control.min <= value <= control.max]
    return list(itertools.islice((value for value in values if value != control.value), count))


def test_the_list_above_is_complete():
    made = set()
    for number in range(14):
        module = importlib.import_module(f"minipaged.widgets.ch{number:02}")
        made |= {name for name, f in inspect.getmembers(module, inspect.isfunction)
                 if f.__module__ == module.__name__ and f.__annotations__.get("return") == "Panel"}  # fmt: skip
    assert made == set(PANELS)


@pytest.mark.parametrize("name", PANELS)
def test_every_control_is_heard_in_the_sentence(panels, name):
    panel = panels[name]
    for label, control in panel.controls.items():
        before, at, heard = panel.sentence, control.value, set()
        for value in other_values(control):
            control.value = value
            heard.add(panel.sentence)
        control.value = at
        assert heard - {before}, f"{label} of {name} changes and {before!r} does not"


@pytest.mark.parametrize("name", PANELS)
def test_nothing_in_a_control_is_cut(panels, name):
    for label, control in panels[name].controls.items():
        width = int(re.fullmatch(r"(\d+)px", control.layout.width)[1])
        letters = len(control.description)
        if hasattr(control, "readout"):
            assert width >= 215 + 7 * letters, f"{label} of {name}: its track is too short"
        elif hasattr(control, "options"):
            letters += max(len(option[0] if isinstance(option, tuple) else str(option)) for option in control.options)
            assert width >= 40 + 7 * letters, f"{label} of {name}: a choice is cut"


def test_a_longer_description_makes_a_wider_control_and_a_chosen_width_stays():
    assert room(widgets.IntSlider(description="step")) == 300
    assert room(widgets.IntSlider(description="pair of numbers shown")) == 215 + 8 * 21
    chinese, english = (widgets.IntSlider(description=text) for text in ("离散程度（标准差 / 均值）", "d" * 25))
    assert room(chinese) == room(english) > 400
    assert room(widgets.Dropdown(options=["a", "b" * 40], description="part")) == 50 + 8 * 44
    assert room(widgets.Checkbox(description="the cache")) == 300
    shown = ch02.memory_panel().picture
    slider = widgets.IntSlider(description="a long description", layout=widgets.Layout(width="420px"))
    Panel(lambda x: shown, {"x": slider})
    assert slider.layout.width == "420px"
