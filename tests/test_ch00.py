"""Chapter 0: the pictures count what a real model counts, the widget tells what it shows, the map is the course."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest

from minipaged.errors import InvalidInputError
from minipaged.plots.ch00 import (
    COURSE,
    Run,
    course_map,
    course_table,
    generation_step,
    longest_chain,
    reads_cached,
    reads_without,
    tokens_read,
    way_of_a_token,
)

NOTEBOOKS = Path(__file__).resolve().parent.parent / "notebooks"
SHORT = Run(7, ("A", " GPU", " (", "Graph"), "the limit")
ENDED = Run(5, ("Paris", "<|im_end|>"), "the end token")


@pytest.fixture(scope="module")
def tiny():
    """A two-layer llama with random weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    return LlamaForCausalLM(LlamaConfig(vocab_size=64, eos_token_id=None, **size)).eval()


@pytest.mark.parametrize(("prompt", "new"), [(6, 5), (1, 1), (1, 4), (9, 1)])
@pytest.mark.parametrize("cached", [True, False])
def test_the_pictures_count_what_generate_reads(tiny, prompt, new, cached):
    import torch

    reads = []
    hook = tiny.get_input_embeddings().register_forward_hook(lambda _, args, out: reads.append(args[0].shape[1]))
    ids = torch.randint(0, 64, (1, prompt), generator=torch.Generator().manual_seed(1))
    tiny.generate(ids, max_new_tokens=new, do_sample=False, use_cache=cached, pad_token_id=0)
    hook.remove()
    assert reads == (reads_cached if cached else reads_without)(prompt, new)
    assert len(reads) == new


def test_the_picture_of_reads_says_both_totals():
    drawn = tokens_read(35, 20)
    assert drawn.data == {"passes": 20, "without": sum(range(35, 55)), "cached": 54}
    assert "890" in drawn.sentence and "54" in drawn.sentence
    with pytest.raises(InvalidInputError, match="passes 0"):
        tokens_read(35, 0)


def test_the_way_of_a_token_names_the_pick_that_was_made():
    drawn = way_of_a_token(
        "Why?", ["Why", "?"], [1, 2, 3], [("Be", 0.5), ("It", 0.2)], [9, 8, 7], "Because", vocabulary=1000, layers=2
    )
    assert drawn.data["picked_id"] == 9 and drawn.data["passes"] == 3
    assert "“Be”" in drawn.sentence and "1,000" in drawn.sentence


@pytest.mark.parametrize(("passes", "cached", "read"), [(0, True, 0), (1, True, 7), (3, True, 9), (3, False, 24)])
def test_a_step_counts_passes_and_tokens(passes, cached, read):
    drawn = generation_step(SHORT, passes, cached)
    assert drawn.data == {"passes": passes, "read": read, "text": "".join(SHORT.pieces[:passes])}


def test_a_step_beyond_the_end_is_the_end():
    assert generation_step(ENDED, 9).data == generation_step(ENDED, 2).data
    title = generation_step(ENDED, 9).figure.axes[0].get_title(loc="left")
    assert title == "2 passes, 2 tokens, then stop: the end token"


def test_the_widget_tells_what_it_shows():
    pytest.importorskip("ipywidgets")
    from minipaged.widgets.ch00 import passes_panel

    panel = passes_panel({"long": SHORT, "short": ENDED})
    assert "After 0 passes" in panel.sentence
    panel.controls["step"].value = 3
    assert panel.sentence == ("After 3 passes there are 3 new tokens, and 9 tokens were read; the text is “A GPU (”.")
    panel.controls["cache"].value = False
    assert "and 24 tokens were read" in panel.sentence
    panel.controls["question"].value = "short"
    assert "After 2 passes" in panel.sentence and "Paris" in panel.sentence
    with pytest.raises(InvalidInputError, match="at least one"):
        passes_panel({})


def test_play_and_slider_have_the_same_ends():
    widgets = pytest.importorskip("ipywidgets")
    from minipaged.widgets.ch00 import passes_panel

    panel = passes_panel({"long": SHORT, "short": ENDED})
    (play,) = [child for child in panel.children[1].children if isinstance(child, widgets.Play)]
    slider = panel.controls["step"]
    assert (play.min, play.max, slider.max) == (0, 4, 4)
    assert panel.link.source == (play, "value") and panel.link.target == (slider, "value")


# ---- the map


def test_every_chapter_needs_only_earlier_ones_and_stands_in_order():
    assert [chapter.number for chapter in COURSE] == [f"{n:02}" for n in range(14)]
    for number, chapter in enumerate(COURSE):
        assert all(need < number for need in chapter.needs), chapter
        assert chapter.needs or number == 0


def test_a_written_chapter_needs_no_planned_one():
    for chapter in COURSE:
        assert not chapter.written or all(COURSE[need].written for need in chapter.needs), chapter


def test_no_need_in_the_map_follows_from_another():
    before = []
    for chapter in COURSE:
        for need in chapter.needs:
            assert not any(need in before[other] for other in chapter.needs), (chapter.number, need)
        before.append(set(chapter.needs).union(*(before[need] for need in chapter.needs)))


def test_a_notebook_that_is_there_is_not_called_planned():
    there = {path.stem for path in NOTEBOOKS.glob("[0-9][0-9]_*.ipynb")}
    assert there <= {chapter.file for chapter in COURSE if chapter.written}


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("[0-9][0-9]_*.ipynb")), ids=lambda path: path.stem)
def test_what_a_card_needs_comes_before_it_on_the_map(path):
    import nbformat

    card = nbformat.read(path, as_version=4).cells[0].source
    needs = re.search(r"\*\*Needs\*\*(.*)", card)[1]
    asked = {int(n) for n in re.findall(r"\b(?:0\d|1[0-3])\b", needs)}
    asked |= {int(n) for n in re.findall(r"chapter (\d)\b", needs)}
    before, todo = set(), list(COURSE[int(path.stem[:2])].needs)
    while todo:
        before.add(todo[-1])
        todo += COURSE[todo.pop()].needs
    assert asked <= before, f"{path.stem} asks for {sorted(asked)}, the map has {sorted(before)}"


@pytest.mark.parametrize("chapter", [c for c in COURSE if c.minutes], ids=lambda chapter: chapter.number)
def test_the_times_on_the_map_are_those_of_the_card(chapter):
    import nbformat

    card = nbformat.read(NOTEBOOKS / f"{chapter.file}.ipynb", as_version=4).cells[0].source
    said = re.search(r"\*\*Time\*\* (\d+) minutes to read and do\b.*; about (\d+) s to run on two CPU cores\.", card)
    assert (int(said[1]), int(said[2])) == (chapter.minutes, chapter.seconds)


def test_the_table_links_written_chapters_only():
    links = re.findall(r"\]\(([^)]+)\.ipynb\)", course_table())
    assert links == [chapter.file for chapter in COURSE if chapter.written]
    assert course_table().count("(planned)") == sum(not chapter.written for chapter in COURSE)


def test_the_longest_chain_follows_the_needs():
    chain = longest_chain()
    depth = {}
    for number, chapter in enumerate(COURSE):
        depth[number] = 1 + max((depth[need] for need in chapter.needs), default=0)
    assert chain[0] == 0 and chain[-1] == 13 and len(chain) == depth[13]
    assert all(first in COURSE[second].needs for first, second in pairwise(chain))


def test_the_boxes_of_the_map_do_not_overlap():
    places = list(course_map().data.values())
    assert len(places) == len(COURSE)
    for number, (x, y) in enumerate(places):
        assert all(abs(x - a) >= 1.95 or abs(y - b) >= 0.9 for a, b in places[number + 1 :])
