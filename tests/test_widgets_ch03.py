"""Chapter 3's widgets answer without a browser: set a control, read the sentence."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from minipaged.attention import apply_rope, attention_scores, causal_mask, masked_softmax, rope_cos_sin
from minipaged.errors import InvalidInputError
from minipaged.plots import ch03 as plots
from minipaged.widgets.ch03 import attention_explorer, rope_explorer, shares_of

TOKENS = [" one", " two", " three", " four"]


@pytest.fixture
def scores():
    return np.random.default_rng(0).normal(size=(2, 3, 4, 4)) * 2


@pytest.mark.parametrize("masked", [True, False])
def test_the_explorers_shares_are_the_librarys(scores, masked):
    want = masked_softmax(torch.tensor(scores[1, 2]), causal_mask(4, 4) if masked else None)
    assert np.allclose(shares_of(scores[1, 2], masked), want.numpy(), atol=1e-15)


def test_the_explorer_starts_at_the_last_row_and_follows_every_control(scores):
    panel = attention_explorer(scores, TOKENS, layer=1, head=2)
    assert "Layer 1, head 2: in its row, “3 four” gives" in panel.sentence
    assert "no token stands after it" in panel.sentence
    panel.controls["token"].value = 1
    panel.controls["layer"].value = 0
    panel.controls["head"].value = 1
    best = shares_of(scores[0, 1], True)[1]
    looked = f"{best.argmax()}{TOKENS[best.argmax()]}"
    assert panel.sentence == (
        f"Layer 0, head 1: in its row, “1 two” gives a share of {best.max():.0%} to “{looked}”; "
        "the 2 tokens after it are hidden."
    )
    assert np.allclose(panel.picture.data, best) and best[2:].sum() == 0


def test_without_the_mask_the_explorer_says_how_much_leaks(scores):
    panel = attention_explorer(scores, TOKENS, token=0)
    assert "gives a share of 100% to “0 one”" in panel.sentence
    panel.controls["mask"].value = False
    leaked = shares_of(scores[0, 0], False)[0, 1:].sum()
    assert f"{leaked:.0%} goes to the 3 tokens after it" in panel.sentence
    panel.controls["token"].value = 2
    assert "goes to the token after it" in panel.sentence


def test_scores_of_another_sentence_are_refused(scores):
    with pytest.raises(InvalidInputError, match="there are 3 tokens"):
        attention_explorer(scores, TOKENS[:3])


def test_moving_both_changes_no_score_and_moving_apart_does():
    g = torch.Generator().manual_seed(1)
    q, k = torch.randn(2, 16, generator=g, dtype=torch.float64)
    panel = rope_explorer(q.numpy(), k.numpy(), 10_000.0)

    def by_library(query_at, key_at):
        rows = [rope_cos_sin(torch.tensor([at]), 16, dtype=torch.float64) for at in (query_at, key_at)]
        return attention_scores(apply_rope(q[None, None], *rows[0]), apply_rope(k[None, None], *rows[1])).item()

    assert f"{by_library(4, 0):.2f}, {by_library(104, 100):.2f}" in panel.sentence
    before = panel.picture.data["scores"]
    panel.controls["shift"].value = 1777
    assert panel.picture.data["scores"] == before and "(1781, 1777)" in panel.sentence
    panel.controls["distance"].value = 9
    assert panel.picture.data["scores"] != before and f"{by_library(9, 0):.2f}" in panel.sentence
    panel.controls["pair"].value = 7
    assert f"{by_library(9, 0):.2f}" in panel.sentence


def test_every_picture_says_its_numbers():
    assert "only 3 of them" in plots.head_groups(9, 3).sentence
    assert "only 12 of them" in plots.head_groups(12, 12).sentence
    assert "36 scores for 8 tokens, 136 for 16, 3.8 times" in plots.work_growth([8, 16]).sentence
    shown = plots.masks([("chunk", causal_mask(2, 5)), ("window", causal_mask(2, 5, 2))], "title")
    assert shown.sentence == "chunk: the rows see [4, 5] keys; window: the rows see [2, 2] keys."
    assert "s = 11.1 in float16 and 88.7 in float32" in plots.exp_range(14.6).sentence
    assert "9 query heads on 3 KV heads" in plots.layer_map(576, 9, 3, 64, 1536, 14).sentence
    first, previous = np.full((2, 3), 0.6), np.zeros((2, 3))
    assert "6 give the first token" in plots.head_survey(first, previous, [(0, 0, "A")]).sentence
    assert plots.attention_maps([("a", np.eye(4))], TOKENS, "title", "said").sentence == "said"
