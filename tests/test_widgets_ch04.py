"""Chapter 4's widgets say what their numbers say, and chapter 4's pictures draw what they are given."""

from __future__ import annotations

import numpy as np
import pytest

from minipaged.errors import InvalidInputError
from minipaged.plots import ch04
from minipaged.widgets.ch04 import MODELS, pass_panel, step_panel

TOKENS = ["The", "cat", "sat", "on", "the", "mat"]


def test_moving_through_a_text_changes_what_is_computed_once_more():
    panel = pass_panel(TOKENS)
    assert "Of 6 tokens, 1 new: without a cache 6 rows" in panel.sentence and "K and V of 5 tokens" in panel.sentence
    panel.controls["length"].value = 4
    assert "Of 4 tokens, 1 new" in panel.sentence and "3 of them once more" in panel.sentence
    panel.controls["new"].value = 6  # more than there are: all of them are new
    assert "Of 4 tokens, 4 new" in panel.sentence and "0 of them once more" in panel.sentence


def test_a_larger_batch_turns_the_weights_compute_bound_and_attention_stays_memory_bound():
    panel = step_panel()
    assert "Weights: memory-bound. Attention: memory-bound." in panel.sentence
    panel.controls["batch"].value = 256
    assert "Weights: compute-bound. Attention: memory-bound." in panel.sentence
    panel.controls["gpu"].value = "H100 SXM"  # its ridge is at 295
    assert "Weights: memory-bound." in panel.sentence


def test_a_longer_context_reads_more_and_would_recompute_more():
    panel = step_panel()
    short = panel.picture.data
    panel.controls["held"].value = 32768
    long = panel.picture.data
    assert long["kv"] > short["kv"] and long["share"] > short["share"] and long["ms"] > short["ms"]
    panel.controls["model"].value = "Llama-3-8B"  # a quarter of the KV heads
    assert panel.picture.data["kv"] < long["kv"]


def test_the_step_is_counted_by_hand_for_one_row():
    """Llama-2-7B, one row, 1,024 tokens: 12.3 GiB of weights in 16 bits, half a MiB of K and V a token."""
    data = step_panel().picture.data
    weights = 2 * (32 * (4 * 4096**2 + 3 * 4096 * 11008) + 4096 * 32000)
    kv = 1025 * 524_288
    assert data["kv"] == pytest.approx(kv / (weights + kv))
    assert data["ms"] == pytest.approx(1e3 * (weights + kv) / 2039e9)


def test_the_course_models_shape_is_the_real_one(course_model):
    from minipaged.kv_cache import DecoderShape

    assert DecoderShape.from_config(course_model[0].config, "SmolLM2-135M") == MODELS["SmolLM2-135M"]


def test_pictures_say_what_they_were_given():
    assert ch04.one_pass(TOKENS, 2).data == {"rows": (6, 2), "cells": (36, 12)}
    with pytest.raises(InvalidInputError, match="at least 1"):
        ch04.one_pass(TOKENS, 0)
    old = np.tril(np.ones((3, 3))) / 3
    new = np.tril(np.ones((4, 4))) / 3
    assert "came out the same" in ch04.old_rows(old, new, TOKENS, "a head").sentence
    assert "changed" in ch04.old_rows(old, new * 0.9, TOKENS, "a head").sentence
    assert ch04.masks(5, 1).data == 5 and ch04.masks(5, 4).data == 20
    assert "32 times the rows" in ch04.rows_in_a_step([1, 32], [2.0, 6.0]).figure.axes[0].get_title(loc="left")
    assert "keeps 6 of 10 slots empty" in ch04.two_caches(4, 10, [0, 3.0], [1, 2.0]).sentence
    assert ch04.step_cost([1, 2], [10, 20], [1, 2], "GFLOP").data == 10
    assert ch04.roofline("X", 100, 1, {"linear": (50, 1)}, "Y").data == {"linear": "memory-bound"}
