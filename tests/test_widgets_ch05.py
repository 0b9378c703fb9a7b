"""Chapter 5's pictures and widgets: the numbers behind them, and what moving a control says."""

from __future__ import annotations

import pytest

from minipaged.errors import InvalidInputError
from minipaged.kv_size import GIB, KVCacheSpec, LayerCache, fit, gpus, models
from minipaged.plots import ch05 as pictures
from minipaged.widgets.ch05 import SHOWN, cache_growth, calculate, calculator, growth_panel


def test_the_calculator_opens_with_the_article_s_example():
    panel = calculator()
    assert "524,288 bytes per token; 16 × 4,096 tokens need 32.00 GiB" in panel.sentence
    assert "beside 12.55 GiB of weights, 2.55 : 1; largest batch at this length: 13" in panel.sentence
    assert "does not fit: 4.55 GiB are missing. What would fit: a batch of at most 13" in panel.sentence


MOVES = [
    ("model", "Llama-3-8B", "131,072 bytes per token; 16 × 4,096 tokens need 8.00 GiB"),
    ("gpu", "A100-80GB", "It fits, and 35.45 GiB stay free."),
    ("dtype", "int4", "131,072 bytes per token; 16 × 4,096 tokens need 8.00 GiB"),
    ("weight_dtype", "int4", "3.14 GiB of weights, 10.20 : 1"),
    ("batch", 13, "13 × 4,096 tokens need 26.00 GiB"),
    ("seq_len", 8192, "16 × 8,192 tokens need 64.00 GiB"),
    ("seq_len", 5000.4, "16 × 5,000 tokens need 39.12 GiB"),  # typed, and rounded up to whole blocks: 5,008 tokens
    ("tensor_parallel", 2, "262,144 bytes per token; 16 × 4,096 tokens need 16.00 GiB"),
    ("block_size", 128, "need 32.00 GiB"),
    ("reserve", 2.0, "does not fit: 6.55 GiB are missing"),
]


@pytest.mark.parametrize(("control", "value", "words"), MOVES)
def test_every_control_changes_the_figures(control, value, words):
    panel = calculator()
    before = panel.image.value
    panel.controls[control].value = value
    assert words in panel.sentence
    assert panel.image.value != before or control == "block_size"  # 4,096 tokens fill whole blocks of either size


def test_the_length_slider_doubles_and_takes_typed_numbers():
    slider = calculator().controls["seq_len"]
    assert (slider.base**slider.min, slider.base**slider.max) == (128, 2**20)
    slider.value = 6000
    assert slider.value == 6000


def test_the_bar_s_parts_are_the_gpu():
    for model, gpu, batch in (("Llama-2-7B", "A100-40GB", 16), ("Qwen3-0.6B", "T4-16GB", 1), ("Yi-34B", "L4-24GB", 8)):
        parts = calculate(model, gpu, batch=batch, reserve=1.0).data
        inside = sum(size for name, size in parts.items() if name != "missing")
        missing = parts["missing"]
        assert inside == gpus()[gpu].memory_gib * GIB or (missing and not parts["free"])
        assert min(parts.values()) >= 0


def test_a_model_without_kv_has_no_limit_from_memory():
    assert "0 bytes per token" in calculate("mamba-2.8b", "T4-16GB").sentence
    assert "largest batch at this length: not limited by memory" in calculate("mamba-2.8b", "T4-16GB").sentence


@pytest.mark.parametrize("name", models())
def test_every_model_can_be_shown_on_the_smallest_and_the_largest_gpu(name):
    for gpu in ("RTX-3060-12GB", "MI300X-192GB"):
        assert name in calculate(name, gpu, seq_len=2**20, batch=256, tensor_parallel=16, dtype="int4").sentence


def test_growth_follows_its_controls_and_asks_for_a_model():
    panel = growth_panel()
    assert "One sequence of 131,072 tokens needs: Llama-2-7B 64.00 GiB; Llama-3-8B 16.00 GiB" in panel.sentence
    panel.controls["longest"].value = 4096
    assert "4,096 tokens needs: Llama-2-7B 2.00 GiB" in panel.sentence
    panel.controls["dtype"].value = "fp8"
    assert "Llama-2-7B 1.00 GiB" in panel.sentence
    panel.controls["models"].value = ("gpt2",)
    assert panel.sentence == "One sequence of 4,096 tokens needs: gpt2 72.00 MiB."
    panel.controls["models"].value = ()
    assert panel.sentence.startswith("Choose at least one model")
    with pytest.raises(InvalidInputError):
        cache_growth((), 100)


def test_growth_s_last_points_are_the_spec_s():
    data = cache_growth(SHOWN, 1000).data["last"]
    assert data == {name: models()[name].spec.cache_bytes(1000) for name in SHOWN}


def test_tokens_kept_are_counted_from_the_layers():
    kinds = ("full", "sliding", "chunked", "shared", "none")
    layers = tuple(LayerCache(kind, 1, 8, 8, 8 if kind in ("sliding", "chunked") else None) for kind in kinds)
    shown = pictures.tokens_kept(KVCacheSpec(layers), 24)
    assert shown.data == 24 + 8 + 8 and "hold 40 of 120 K and V pairs" in shown.sentence


def test_ratios_say_which_loads_are_on_the_card():
    weights, card = 10 * GIB, 40 * GIB
    rows = [("half", weights, 5 * GIB), ("all", weights, 30 * GIB), ("more", weights, 90 * GIB)]
    shown = pictures.loads_against_card(rows, card, "a card")
    assert shown.data == [0.5, 3.0, 9.0]
    assert "all: 3.00 : 1, 40.00 GiB in all, fits; more: 9.00 : 1, 100.00 GiB in all, does not fit" in shown.sentence


def test_kinds_of_heads_name_the_numbers():
    shown = pictures.kinds_of_heads([("MHA", 8, 2048), ("MLA", 0, 288)], 8, 128)
    assert "MHA keeps K and V of 8 KV heads, 2,048 numbers; MLA keeps one latent of 288 numbers" in shown.sentence


def test_a_bar_of_a_load_without_advice():
    llama = models()["Llama-3-8B"]
    load = fit(llama.spec, llama.num_parameters, 24 * GIB, 4096, 4, gpu_memory_utilization=0.9)
    shown = pictures.gpu_bar(load, "Llama-3-8B", "a card")
    assert shown.data["unused"] == load.unused and shown.sentence.endswith("stay free.")
