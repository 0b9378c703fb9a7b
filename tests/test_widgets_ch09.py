"""Chapter 9's widget says in words what a program read."""

from __future__ import annotations

import pytest

pytest.importorskip("ipywidgets")

from matplotlib.colors import to_rgb

from minipaged.plots.base import colour, ink
from minipaged.widgets.ch09 import choose_program

TABLES, LENS = [[5, 2], [0], [7, 1, 4]], [6, 3, 10]


def slots(seq):
    return [TABLES[seq][pos // 4] * 4 + pos % 4 for pos in range(LENS[seq])]


def panel():
    reads = {(seq, head): {slot * 3 + head for slot in slots(seq)} for seq in range(3) for head in range(3)}
    return choose_program(TABLES, LENS, 3, 8, 4, reads)


def test_stepping_through_the_programs_lights_up_what_each_one_read():
    shown = panel()
    assert "Program (0, 0) of 9 follows the block table [5, 2] of sequence A and reads 6 keys" in shown.sentence
    assert shown.picture.data["reads"] == [24, 27, 60, 63, 66, 69]
    shown.controls["program"].value = 7
    assert "Program (2, 1) of 9 follows the block table [7, 1, 4]" in shown.sentence
    assert "reads 10 keys of KV head 1, and no others" in shown.sentence
    assert {read % 3 for read in shown.picture.data["reads"]} == {1}


@pytest.mark.parametrize("seq", [0, 1, 2])
def test_what_stands_on_a_lit_program_can_be_read(seq):
    shown = panel()
    shown.controls["program"].value = 3 * seq + 1
    programs, tables, _ = shown.picture.figure.axes
    texts = [text for text in programs.texts if text.get_text() == f"({seq}, 1)"]
    texts += [text for text in tables.texts if text.get_bbox_patch() and text.get_position()[1] == seq + 0.5]
    assert len(texts) == 1 + len(TABLES[seq])
    assert all(contrast(text.get_color(), colour(seq)) > 3 for text in texts)


def contrast(one, other):
    """The ratio of two colours' luminances as WCAG 2 defines it, 1 to 21."""

    def luminance(name):
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(name)]
        return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_the_ink_can_be_read_on_every_colour_of_a_sequence():
    assert min(contrast(ink(colour(i)), colour(i)) for i in range(7)) > 3


def test_the_last_program_is_the_last_step():
    shown = panel()
    assert shown.controls["program"].max == shown.play.max == 8
    shown.controls["program"].value = 8
    assert "Program (2, 2)" in shown.sentence
