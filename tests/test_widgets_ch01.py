"""Chapter 1's pictures and widgets: what the sliders do is what the library does, and the sentence says it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("ipywidgets")

from minipaged.plots import ch01 as plots
from minipaged.sampling import SamplingParams, filter_logits
from minipaged.widgets.ch01 import dart_panel, next_token_panel

WORDS = [" Paris", " the", " London", "\n", "好", "�", " a$b", "x", "y", "z", " q", "r", "s", "t"]
TOKENIZER = SimpleNamespace(decode=lambda ids: WORDS[ids[0] % len(WORDS)])
SHARP = torch.tensor([6.0, 3.0, 2.0, 1.0, 1.0, 0.5, 0.5, 0.0, 0.0, -1.0, -1.0, -2.0, -2.0, -2.0])
FLAT = SHARP / 6


def panel():
    return next_token_panel({"sharp": SHARP, "flat": FLAT}, TOKENIZER)


def test_the_first_state_cuts_nothing():
    view = panel()
    assert view.sentence.startswith("All 14 tokens can be drawn") and "“·Paris”, has 0.911" in view.sentence
    assert view.picture.data["p_before"] == pytest.approx(view.picture.data["p_after"])


def test_top_p_keeps_few_after_the_sharp_prompt_and_many_after_the_flat_one():
    view = panel()
    view.controls["top_p"].value = 0.9
    assert view.sentence.startswith("1 of 14 tokens")
    view.controls["prompt"].value = "flat"
    kept = int(filter_logits(FLAT, SamplingParams(top_p=0.9)).isfinite().sum())
    assert view.sentence.startswith(f"{kept} of 14 tokens") and kept > 8


@pytest.mark.parametrize(
    ("name", "value"), [("temperature", 2.0), ("temperature", 0.0), ("top_k", 3), ("top_p", 0.95), ("min_p", 0.02)]
)
def test_each_slider_does_what_the_library_does(name, value):
    view = panel()
    view.controls[name].value = value
    after = filter_logits(SHARP, SamplingParams(**{name: value})).double().softmax(-1)
    assert view.picture.data["kept"] == int((after > 0).sum())
    assert view.picture.data["p_after"] == pytest.approx(float(after[0]))
    assert view.picture.data["lost"] == pytest.approx(float(SHARP.double().softmax(-1)[after == 0].sum()))


def test_the_dart_hits_the_token_whose_part_it_lands_on():
    view = dart_panel({"sharp": SHARP, "flat": FLAT}, TOKENIZER, keep=5)
    for prompt, row in (("sharp", SHARP), ("flat", FLAT)):
        view.controls["prompt"].value = prompt
        ends = row.topk(5).values.sort(descending=True).values.softmax(-1).cumsum(-1)  # the ids are in this order here
        for dart in (0.0, 0.2, 0.5, 0.9, 0.999):
            view.controls["dart"].value = dart
            assert view.picture.data["hit"] == int((ends <= dart).sum())
    assert "The dart at 0.999 lands on" in view.sentence


def test_labels_are_readable_and_drawable():
    assert [plots.readable(TOKENIZER, i) for i in range(7)] == [
        "·Paris",
        "·the",
        "·London",
        "\\n",
        "#4",
        "#5",
        r"·a\$b",
    ]


def test_token_strip_counts_the_parts_that_a_token_cuts():
    picture = plots.token_strip([("ri", 3), ("qi", 3)], [("9", 3), ("1", 2), ("2", 1)], b"abcdef")
    assert picture.data == {"parts": 2, "tokens": 3, "bytes": 6, "split": 1}
    whole = plots.token_strip([("ri", 3), ("qi", 3)], [("9", 6)], b"abcdef", "words")
    assert whole.data["split"] == 0  # a token of two parts cuts neither


def test_mass_curves_count_as_top_p_does():
    probs = {"sharp": SHARP.double().softmax(-1), "flat": FLAT.double().softmax(-1)}
    want = [int(filter_logits(x, SamplingParams(top_p=0.9)).isfinite().sum()) for x in (SHARP, FLAT)]
    assert plots.mass_curves(probs, 0.9).data == want


def test_every_row_of_the_continuations_is_full():
    one = torch.tensor([0.5, 0.3, 0.2])
    two = (one[:, None] * one[None]).flatten()
    picture = plots.continuation_strips([one, two])
    assert picture.data == pytest.approx([1.0, 1.0]) and "3, 9" in picture.sentence


def test_text_probability_multiplies():
    picture = plots.text_probability(["a", "b"], [0.5, 0.02])
    assert picture.data == pytest.approx([0.5, 0.01]) and "1.0e-02" in picture.sentence


def test_frequencies_say_how_many_counts_are_within_chance():
    picture = plots.frequencies(["a", "b"], [50, 50], [50, 50])
    assert "2 were drawn as often" in picture.sentence
    assert plots.frequencies(["a", "b"], [50, 50], [90, 10]).data["inside"] == 0


def test_end_and_dependence_pictures_speak_their_numbers():
    assert "last step it is 0.70" in plots.end_token_by_step(["a", "b"], [1e-9, 0.7]).sentence
    picture = plots.dependence(["a", "b", "c"], [0.0, 0.4, 0.2], 1)
    assert "1 prediction stays equal" in picture.sentence and "0.20 to 0.40" in picture.sentence
