"""Chapter 9's widget says in words what a program read."""

from __future__ import annotations

import pytest

pytest.importorskip("ipywidgets")

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


def test_the_last_program_is_the_last_step():
    shown = panel()
    assert shown.controls["program"].max == shown.play.max == 8
    shown.controls["program"].value = 8
    assert "Program (2, 2)" in shown.sentence
