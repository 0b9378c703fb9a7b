"""Chapter 12's widgets and pictures: what they say is what the rule does."""

from __future__ import annotations

import pytest
import torch

from minipaged.plots import ch12 as plots
from minipaged.sampling import SamplingParams
from minipaged.speculative import Round, acceptance, expected_speedup, probabilities
from minipaged.widgets.ch12 import pays_or_not, roll_back, target_and_draft


def test_the_bars_are_p_and_q_after_temperature_and_top_k():
    generator = torch.Generator().manual_seed(0)
    target = torch.randn(50, generator=generator)
    drafts = {5: torch.randn(50, generator=generator), 30: target.clone()}
    panel = target_and_draft(target, drafts, {}, num_layers=30)
    assert "The blue part, 100.0%, is kept" in panel.sentence  # a draft that is the target
    panel.controls["layers"].value = 5
    for temperature, top_k in ((1.0, 6), (0.5, 3), (2.0, 1)):
        panel.controls["temperature"].value, panel.controls["top_k"].value = temperature, top_k
        params = SamplingParams(temperature=temperature, top_k=top_k)
        p, q = probabilities(target, params), probabilities(drafts[5], params)
        kept = float((acceptance(p, q) * q).sum())
        assert panel.picture.data["kept"] == pytest.approx(kept)
        assert f"The blue part, {kept:.1%}, is kept" in panel.sentence


def test_rejected_and_residual_are_equal_and_the_rest_is_shared():
    data = plots.overlap(["a", "b", "c"], [0.5, 0.3, 0.2], [0.2, 0.3, 0.5]).data
    assert data["kept"] == pytest.approx(0.7) and data["lost"] == pytest.approx(0.3)
    assert (data["most"], data["share"]) == ("a", 1.0)
    assert plots.overlap(["a", "b"], [0.5, 0.5], [0.5, 0.5]).data["share"] == 0


def test_the_speedup_widget_follows_the_formula_and_says_when_nothing_pays():
    panel = pays_or_not()
    for rate, count, cost, slope in ((0.7, 4, 0.1, 0.02), (1.0, 10, 0.0, 0.0), (0.2, 3, 0.6, 0.1)):
        for name, value in {"rate": rate, "count": count, "cost": cost, "slope": slope}.items():
            panel.controls[name].value = value
        data = panel.picture.data
        assert data["value"] == pytest.approx(expected_speedup(rate, count, cost, 1 + slope * count))
    assert data["best"] == 0 and "the best length is 0, with 1.00 times" in panel.sentence
    assert panel.picture.figure.axes[0].get_title(loc="left") == "This draft never pays"


def test_rounds_show_each_token_once_in_its_place():
    rows = [Round((1, 2, 3), 3, (1, 2, 3, 4)), Round((1, 2, 3), 1, (1, 9)), Round((1, 2), 0, (8,)), Round((), 0, (7,))]
    assert plots._cells(rows[0]) == [(0, "kept", 1), (1, "kept", 2), (2, "kept", 3), (3, "own", 4)]
    assert plots._cells(rows[1]) == [(0, "kept", 1), (2, "lost", 3), (1, "own", 9)]
    assert plots._cells(Round((1, 2), 2, (1,))) == [(0, "kept", 1)]  # the text ended inside the draft
    assert "4 passes write 8 tokens, 2.0 a pass: 4 of 8 guesses are kept" in plots.rounds(rows).sentence


def test_the_rollback_widget_moves_the_real_block_table():
    panel = roll_back()
    assert "The pass needs 5 blocks; 3 rejected slots are given back, and 16 tokens in 4 blocks stay" in panel.sentence
    for tokens, size, drafted, kept in ((24, 1, 6, 0), (14, 4, 2, 1), (2, 8, 0, 5), (24, 8, 6, 6)):
        for name, value in {"tokens": tokens, "size": size, "drafted": drafted, "kept": kept}.items():
            panel.controls[name].value = value
        data, stay = panel.picture.data, tokens + min(kept, drafted)
        assert (data["before"], data["lost"], data["after"]) == (tokens - 1, tokens + drafted - stay, stay)
        assert (data["blocks"], data["left"]) == (-(-(tokens + drafted) // size), -(-stay // size))


def test_the_other_pictures_say_their_numbers():
    assert "over 5 tokens takes 1.1 times as long" in plots.pass_cost([1, 5, 8], [1, 1.1, 1.4], "cpu").sentence
    assert "with 8 sequences 2.5 times" in plots.crowd([1, 8], [1.1, 2.5], 5).sentence
    stages = [([5, 2], 6, 0, 0), ([5, 2, 7], 7, 1, 3), ([5, 2], 8, 0, 0)]
    said = plots.rollback(stages, 4).sentence
    assert "The pass needs 3 blocks; 3 rejected slots are given back, and 8 tokens in 2 blocks stay" in said
