"""Chapter 5's widgets: the calculator (one GPU, any model, any load) and the growth of the cache over length."""

from __future__ import annotations

from typing import Any

from minipaged.errors import InvalidInputError, require
from minipaged.kv_size import GIB, Fit, fit, gpus, models, ways_out
from minipaged.plots.base import Picture
from minipaged.plots.ch05 import gpu_bar, growth
from minipaged.widgets.base import Panel
from minipaged.widgets.words import say

DTYPES = ["float32", "float16", "fp8", "int4"]
SHOWN = ("Llama-2-7B", "Llama-3-8B", "Qwen2.5-7B", "DeepSeek-V3", "gpt-oss-20b")


def calculate(
    model: str,
    gpu: str,
    dtype: str = "float16",
    batch: int = 16,
    seq_len: float = 4096,
    tensor_parallel: int = 1,
    block_size: int = 16,
    reserve: float = 0.0,
    weight_dtype: str = "float16",
) -> Picture:
    """The calculator without its controls: names and numbers in, picture and sentence out."""
    preset, card = models()[model], gpus()[gpu]
    load = fit(
        preset.spec,
        preset.num_parameters,
        card.memory_gib * GIB,
        round(seq_len),
        batch,
        dtype=dtype,
        weight_dtype=weight_dtype,
        tensor_parallel=tensor_parallel,
        block_size=block_size,
        reserve_bytes=reserve * GIB,
    )
    return gpu_bar(load, model, gpu, advice(load))


def advice(load: Fit) -> str:
    """In words, each single change that would make a load fit."""
    ways = [say(f"05.advice.{way.what}", value=way.value) for way in ways_out(load)]
    return say("05.advice", ways=say("05.advice.or").join(ways)) if ways else say("05.advice.none")


def calculator(model: str = "Llama-2-7B", gpu: str = "A100-40GB") -> Panel:
    """Choose a model, a GPU and a load; see the GPU's memory divided, every figure, and what would fit."""
    widgets = require("ipywidgets", "a live widget")

    def words(name: str) -> str:
        return say(f"05.calculator.{name}")

    def choice(name: str, options: list[Any], value: Any) -> Any:
        return widgets.Dropdown(options=options, value=value, description=words(name))

    controls = {
        "model": choice("model", list(models()), model),
        "gpu": choice("gpu", list(gpus()), gpu),
        "seq_len": length_slider("05.calculator.seq_len", 4096, smallest=7, largest=20),
        "batch": widgets.IntSlider(value=16, min=1, max=256, description=words("batch"), continuous_update=False),
        "dtype": choice("dtype", DTYPES, "float16"),
        "weight_dtype": choice("weight_dtype", DTYPES, "float16"),
        "tensor_parallel": choice("tensor_parallel", [1, 2, 4, 8, 16], 1),
        "block_size": choice("block_size", [1, 8, 16, 32, 64, 128], 16),
        "reserve": widgets.FloatSlider(
            value=0, min=0, max=16, step=0.5, description=words("reserve"), continuous_update=False
        ),
    }
    return Panel(calculate, controls)


def length_slider(key: str, value: int, smallest: int, largest: int) -> Any:
    """A slider whose steps double: 2^smallest ... 2^largest tokens; any number can be typed beside it."""
    widgets = require("ipywidgets", "a live widget")
    return widgets.FloatLogSlider(
        value=value,
        base=2,
        min=smallest,
        max=largest,
        step=0.5,
        description=say(key),
        readout_format=",.0f",
        continuous_update=False,
    )


def growth_panel(chosen: tuple[str, ...] = SHOWN) -> Panel:
    """Choose models and the longest length; see one sequence's cache grow, one line per model."""
    widgets = require("ipywidgets", "a live widget")

    def draw(models: tuple[str, ...], longest: float, dtype: str) -> Picture:
        return cache_growth(models, round(longest), dtype)

    controls = {
        "models": widgets.SelectMultiple(
            options=list(models()), value=chosen, rows=7, description=say("05.growth.models")
        ),
        "longest": length_slider("05.growth.longest", 131_072, smallest=8, largest=20),
        "dtype": widgets.Dropdown(options=DTYPES, value="float16", description=say("05.growth.dtype")),
    }
    return Panel(draw, controls)


def cache_growth(names: tuple[str, ...], longest: int, dtype: str = "float16") -> Picture:
    """Bytes of one sequence against its length, up to `longest` tokens, for models known by name."""
    if not names:
        raise InvalidInputError(say("05.growth.choose"))
    lengths = sorted({round(longest * part / 32) for part in range(33)})
    known = models()
    curves = {name: [(n, known[name].spec.cache_bytes(n, dtype=dtype)) for n in lengths] for name in names}
    return growth(curves)
