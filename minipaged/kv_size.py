"""Chapter 5. How big the KV cache is: exact bytes for any model, from its config alone.

A model is a list of layers, and each layer keeps something for every token, for some tokens, or nothing:

    full       K and V of every token          sliding    of the last `window` tokens
    latent     one small vector (MLA)          chunked    of at most `window` tokens
    shared     nothing: reads another layer    none       nothing per token: a recurrent or convolution state

bytes = sum over layers of  tokens kept x KV heads x (k_dim + v_dim) x bytes per number. `kv_configs` makes that list
from a config. Then: what fits on a GPU beside the weights, and `python -m minipaged.kv_size MODEL`. Left out: the
states of recurrent layers and the activations, which you reserve by hand. Needs neither torch nor transformers.
"""

from __future__ import annotations

import argparse
import difflib
import json
import math
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, cached_property
from importlib import resources
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal

from minipaged.errors import (
    InvalidInputError,
    MinipagedError,
    an_instance,
    listed,
    real_number,
    shown,
    whole_number,
    yes_or_no,
)
from minipaged.kv_configs import LayerCache, UnreadableConfigError, read_config

__all__ = ["KVCacheSpec", "LayerCache", "UnreadableConfigError", "bytes_per_number", "weight_bytes"]

GIB = 2**30

# Bits per number. fp8 and int4 keep no scale here unless `scale_group` asks for one.
_BITS = {"float64": 64, "float32": 32, "float16": 16, "bfloat16": 16, "fp8": 8, "int8": 8, "int4": 4}
_ALIASES = {
    "double": "float64",
    "fp32": "float32",
    "float": "float32",
    "fp16": "float16",
    "half": "float16",
    "bf16": "bfloat16",
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
    "fp4": "int4",
}


def bytes_per_number(dtype: Any = "float16") -> Fraction:
    """Bytes that one number takes: exact, so that int4 is 1/2.

    Args:
        dtype: a name ("float16", "bf16", "fp8", "int4", ...) or a torch dtype.
    """
    given = dtype if isinstance(dtype, str) else shown(dtype)
    name = given.removeprefix("torch.").lower()
    name = _ALIASES.get(name, name)
    if name not in _BITS:
        raise InvalidInputError(f'unknown dtype "{given:.80}"; use one of {", ".join([*_BITS, *_ALIASES])}')
    return Fraction(_BITS[name], 8)


def token_bytes(
    layer: LayerCache,
    dtype: Any = "float16",
    tensor_parallel: int = 1,
    scale_group: int | None = None,
    expanded: bool = False,
) -> Fraction:
    """Bytes of one kept token in one layer on one GPU.

    KV heads are split over the GPUs; once there are fewer heads than GPUs they are replicated, at least one on each.
    A latent has no heads to split, so each GPU holds all of it. `expanded` counts MLA as K and V per head instead.
    """
    an_instance("layer", layer, LayerCache, "one of the layers of a KVCacheSpec")
    tensor_parallel = whole_number("tensor_parallel", tensor_parallel, 1)
    scale_group = None if scale_group is None else whole_number("scale_group", scale_group, 1)
    yes_or_no("expanded", expanded)
    if layer.kind in ("shared", "none"):
        return Fraction(0)
    extra = _vector_bytes(layer.extra, dtype, scale_group)
    if layer.latent and not expanded:
        return extra + _vector_bytes(layer.latent, dtype, scale_group)
    heads = -(-layer.num_kv_heads // tensor_parallel)
    one_head = _vector_bytes(layer.k_dim, dtype, scale_group) + _vector_bytes(layer.v_dim, dtype, scale_group)
    return extra + heads * one_head


def _vector_bytes(dim: int, dtype: Any, scale_group: int | None) -> Fraction:
    """Bytes of one vector; `scale_group` numbers share one 2-byte scale if it is given."""
    scales = 0 if scale_group is None else 2 * -(-dim // scale_group)
    return dim * bytes_per_number(dtype) + scales


@dataclass(frozen=True)
class KVCacheSpec:
    """The KV cache of one model: one entry per layer (or per pass through a layer that is visited again).

    All sizes are bytes, on one GPU of `tensor_parallel`. Source of the arithmetic: arXiv 2309.06180 section 3
    (2 x hidden x layers x 2 bytes for OPT-13B), with KV heads in place of heads (arXiv 2305.13245 section 2) and the
    latent of MLA (arXiv 2405.04434 section 2.1).
    """

    layers: tuple[LayerCache, ...]
    name: str = ""
    model_type: str = ""

    def __post_init__(self) -> None:
        for layer in listed("layers", self.layers, "the LayerCache of each layer"):
            an_instance("a layer", layer, LayerCache, "LayerCache(kind, ...), as minipaged.kv_configs makes them")
        if not isinstance(self.layers, tuple):
            raise InvalidInputError(f"layers is {shown(self.layers)}; pass a tuple")
        for field in ("name", "model_type"):
            an_instance(field, getattr(self, field), str, "a text")

    @classmethod
    def from_config(cls, config: Any) -> KVCacheSpec:
        """Read a transformers config, a dict, a config.json, a folder with one, a preset's name, or a model id.

        Raises:
            UnreadableConfigError: a field is missing, or names a mechanism whose cache is not known here.
            InvalidInputError: there is no such file, folder, preset or id.
        """
        preset = None
        if isinstance(config, str) and not Path(config).expanduser().exists():
            preset = find_model(config)
            if preset is None and "/" not in config and not config.endswith(".json"):
                raise InvalidInputError(_no_such_model(config))
        layers, name, family = read_config(preset.config if preset else config)
        return cls(tuple(layers), preset.name if preset else name, family)

    @cached_property
    def _kinds(self) -> tuple[tuple[LayerCache, int], ...]:
        """Each different kind of layer, and how many layers are of it."""
        counts = Counter(replace(layer, source=None) for layer in self.layers)
        return tuple(counts.items())

    @property
    def num_layers(self) -> int:
        """Number of entries, layers that keep nothing included."""
        return len(self.layers)

    def bytes_per_token(
        self, dtype: Any = "float16", tensor_parallel: int = 1, scale_group: int | None = None
    ) -> int | float:
        """Bytes that one more token adds over all layers that keep it, below any window.

        Returns:
            an int, or a float when 4-bit numbers do not fill whole bytes.
        """
        return _number(sum(n * token_bytes(kind, dtype, tensor_parallel, scale_group) for kind, n in self._kinds))

    def cache_bytes(
        self,
        seq_len: int,
        batch_size: int = 1,
        dtype: Any = "float16",
        tensor_parallel: int = 1,
        scale_group: int | None = None,
    ) -> int | float:
        """The least that must be held for `batch_size` sequences of `seq_len` tokens.

        Windows cap, shared layers count once, MLA counts its latent. transformers holds window - 1 tokens in a sliding
        layer between steps; while a step runs, `window` are needed, and that is what is counted here.
        """
        seq_len, batch_size = whole_number("seq_len", seq_len), whole_number("batch_size", batch_size)
        whole_number("tensor_parallel", tensor_parallel, 1)  # also when no layer keeps anything
        one = sum(
            n * kind.tokens_kept(seq_len) * token_bytes(kind, dtype, tensor_parallel, scale_group)
            for kind, n in self._kinds
        )
        return _number(batch_size * one)

    def allocated_bytes(
        self,
        seq_lens: int | Iterable[int],
        block_size: int = 16,
        dtype: Any = "float16",
        mla: Literal["latent", "expanded"] = "latent",
        hybrid: Literal["window", "full"] = "window",
        tensor_parallel: int = 1,
        scale_group: int | None = None,
    ) -> int | float:
        """What an engine that hands out whole blocks of `block_size` tokens reserves for these sequences.

        Args:
            seq_lens: one length or many.
            block_size: tokens in a block.
            dtype: as in `bytes_per_token`.
            mla: "latent", or "expanded" for an engine that stores K and V per head all the same.
            hybrid: "window" for an engine that frees blocks behind a window, "full" for one that does not.
            tensor_parallel: GPUs that share the heads.
            scale_group: numbers that share one 2-byte scale, for quantised caches.
        """
        block_size = whole_number("block_size", block_size, 1)
        whole_number("tensor_parallel", tensor_parallel, 1)  # also when no layer keeps anything
        _one_of("mla", mla, ("latent", "expanded"))
        _one_of("hybrid", hybrid, ("window", "full"))
        one = isinstance(seq_lens, Integral) or getattr(seq_lens, "ndim", 1) == 0
        lengths = [seq_lens] if one else listed("seq_lens", seq_lens, "a number of tokens, or a list of them")
        lengths = [whole_number("seq_len", length) for length in lengths]
        total = Fraction(0)
        for kind, n in self._kinds:
            held = replace(kind, window=None) if hybrid == "full" else kind
            blocks = sum(held.blocks_kept(length, block_size) for length in lengths)
            per_token = token_bytes(kind, dtype, tensor_parallel, scale_group, expanded=mla == "expanded")
            total += n * blocks * block_size * per_token
        return _number(total)

    def max_batch(self, memory_bytes: float, seq_len: int, block_size: int = 1, **options: Any) -> int | None:
        """The most sequences of `seq_len` tokens that fit in `memory_bytes`; None if each needs nothing.

        `options` go to `allocated_bytes`; with `block_size` 1 that is `cache_bytes`.
        """
        memory = _exact("memory_bytes", memory_bytes)
        one = self.allocated_bytes(whole_number("seq_len", seq_len), block_size, **_known_options(options))
        return None if one == 0 else int(memory // Fraction(one))

    def max_seq_len(self, memory_bytes: float, batch_size: int = 1, block_size: int = 1, **options: Any) -> int | None:
        """The longest length at which `batch_size` sequences fit in `memory_bytes`; None if memory sets no limit.

        `options` go to `allocated_bytes`. Memory sets no limit when no layer grows for ever (recurrent layers, or
        sliding windows alone).
        """
        memory = _exact("memory_bytes", memory_bytes)
        batch_size = whole_number("batch_size", batch_size, 1)
        _known_options(options)

        def fits(length: int) -> bool:
            return batch_size * self.allocated_bytes(length, block_size, **options) <= memory

        low, high = 0, 1
        while fits(high):
            low, high = high, 2 * high
            if high > 2**50:
                return None
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return low


def weight_bytes(num_parameters: float, dtype: Any = "float16", tensor_parallel: int = 1) -> int:
    """Bytes of `num_parameters` weights on one of `tensor_parallel` GPUs, taking them as evenly split."""
    weights = _exact("num_parameters", num_parameters, above=0)
    tensor_parallel = whole_number("tensor_parallel", tensor_parallel, 1)
    return math.ceil(weights * bytes_per_number(dtype) / tensor_parallel)


# --- models and GPUs by name ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ModelPreset:
    """A public model: the fields of its config that set the sizes, and its parameter count."""

    name: str
    id: str
    source: str
    num_parameters: int
    config: dict[str, Any]

    @property
    def spec(self) -> KVCacheSpec:
        """The model's KV cache."""
        return _spec_of(self.name)


@cache
def _spec_of(name: str) -> KVCacheSpec:
    return KVCacheSpec.from_config(name)


@dataclass(frozen=True)
class GPU:
    """A GPU: memory in GiB (its data sheet's number, read as 2^30 bytes) and memory bandwidth in GB/s (10^9)."""

    name: str
    memory_gib: float
    bandwidth_gb_s: float
    source: str


@cache
def _presets() -> dict[str, Any]:
    return json.loads(resources.files("minipaged").joinpath("presets.json").read_text(encoding="utf-8"))


def models() -> dict[str, ModelPreset]:
    """The models known by name."""
    return {name: ModelPreset(name, **fields) for name, fields in _presets()["models"].items()}


def gpus() -> dict[str, GPU]:
    """The GPUs known by name."""
    return {name: GPU(name, **fields) for name, fields in _presets()["gpus"].items()}


def find_model(name: str) -> ModelPreset | None:
    """The preset of this name or of this model id, in any case of letters; None if there is none."""
    an_instance("name", name, str, "a model's name, such as Llama-2-7B")
    for preset in models().values():
        if name.lower() in (preset.name.lower(), preset.id.lower()):
            return preset
    return None


def _no_such_model(name: str) -> str:
    near = difflib.get_close_matches(name.lower(), {known.lower(): known for known in models()}, n=1, cutoff=0.5)
    meant = next((f' Did you mean "{known}"?' for known in models() if known.lower() in near), "")
    return (
        f'no model "{name}": it is no preset (python -m minipaged.kv_size --list), no file and no folder here, and a '
        f"transformers id is written owner/name.{meant}"
    )


def find_gpu(name: str) -> GPU:
    """The GPU of this name, in any case of letters."""
    an_instance("name", name, str, "a GPU's name, such as A100-40GB")
    for gpu in gpus().values():
        if name.lower() == gpu.name.lower():
            return gpu
    raise InvalidInputError(f'no GPU "{name}"; known are {", ".join(gpus())}, or give its memory as "24GiB"')


# --- what fits on a GPU -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fit:
    """How the memory of one GPU is divided for a load; all sizes in bytes on that GPU.

    Attributes:
        memory: what the GPU has.
        unused: what the engine leaves alone (1 - gpu_memory_utilization).
        weights, reserve: the model, and activations with everything else.
        kv: what the load needs for K and V, in whole blocks.
        one_sequence: the same for a single sequence.
    """

    spec: KVCacheSpec
    memory: int
    unused: int
    weights: int
    reserve: int
    kv: int | float
    one_sequence: int | float
    seq_len: int
    batch_size: int
    block_size: int
    options: dict[str, Any]

    @property
    def kv_budget(self) -> int:
        """What weights and reserve leave for K and V; negative if not even they fit."""
        return self.memory - self.unused - self.weights - self.reserve

    @property
    def free(self) -> int | float:
        """What is left over, or, negative, what is missing."""
        return self.kv_budget - self.kv

    @property
    def fits(self) -> bool:
        """Whether the load fits."""
        return self.free >= 0

    @property
    def max_batch(self) -> int | None:
        """The most sequences of this length; None if they need no memory."""
        return self.spec.max_batch(max(0, self.kv_budget), self.seq_len, self.block_size, **self.options)

    @property
    def max_seq_len(self) -> int | None:
        """The longest sequences at this batch size; None if memory sets no limit."""
        return self.spec.max_seq_len(max(0, self.kv_budget), self.batch_size, self.block_size, **self.options)

    @property
    def concurrency(self) -> float | None:
        """How many sequences of this length fit, with its fraction: vLLM's "maximum concurrency"."""
        return max(0, self.kv_budget) / self.one_sequence if self.one_sequence else None

    @property
    def cache_tokens(self) -> int | None:
        """Tokens that the KV memory holds: vLLM's "KV cache size". Exact where every layer grows alike."""
        if self.concurrency is None:
            return None
        if any(layer.window for layer in self.spec.layers):
            return int(self.concurrency * self.seq_len)
        block = self.spec.allocated_bytes(self.block_size, self.block_size, **self.options)
        return max(0, self.kv_budget) // math.ceil(block) * self.block_size


def fit(
    spec: KVCacheSpec,
    num_parameters: float,
    memory_bytes: float,
    seq_len: int,
    batch_size: int = 1,
    *,
    dtype: Any = "float16",
    weight_dtype: Any = "float16",
    tensor_parallel: int = 1,
    block_size: int = 16,
    reserve_bytes: float = 0,
    gpu_memory_utilization: float = 1.0,
) -> Fit:
    """Divide one GPU's memory: weights first, then the reserve, then K and V in whole blocks.

    Args:
        spec: the model's cache.
        num_parameters: the model's parameters, all of them (a mixture of experts keeps every expert).
        memory_bytes: the GPU's memory, such as 40 * GIB.
        seq_len: tokens in each sequence.
        batch_size: sequences at once.
        dtype: of K and V.
        weight_dtype: of the weights.
        tensor_parallel: GPUs that share the model; the result is for one of them.
        block_size: tokens in a block; 1 for an engine without blocks.
        reserve_bytes: activations, CUDA context and the like: not computed here.
        gpu_memory_utilization: the fraction of the memory that the engine may use.
    """
    an_instance("spec", spec, KVCacheSpec, "KVCacheSpec.from_config(model)")
    memory, reserve = int(_exact("memory_bytes", memory_bytes, above=0)), int(_exact("reserve_bytes", reserve_bytes))
    batch_size, seq_len = whole_number("batch_size", batch_size, 1), whole_number("seq_len", seq_len)
    block_size = whole_number("block_size", block_size, 1)
    tensor_parallel = whole_number("tensor_parallel", tensor_parallel, 1)
    share = gpu_memory_utilization
    if not isinstance(share, Real) or isinstance(share, bool) or not 0 < share <= 1:
        raise InvalidInputError(f"gpu_memory_utilization is {shown(share)}; it is a fraction above 0, at most 1")
    options = {"dtype": dtype, "tensor_parallel": tensor_parallel}
    one = spec.allocated_bytes(seq_len, block_size, **options)
    return Fit(
        spec=spec,
        memory=memory,
        unused=memory - int(_exact("memory_bytes", memory_bytes) * _exact("gpu_memory_utilization", share)),
        weights=weight_bytes(num_parameters, weight_dtype, tensor_parallel),
        reserve=reserve,
        kv=batch_size * one,
        one_sequence=one,
        seq_len=seq_len,
        batch_size=batch_size,
        block_size=block_size,
        options=options,
    )


@dataclass(frozen=True)
class WayOut:
    """One change that makes a load fit: what to change ("batch", "length", "dtype", "gpus", "gpu"), and to what."""

    what: Literal["batch", "length", "dtype", "gpus", "gpu"]
    value: Any


def ways_out(load: Fit) -> list[WayOut]:
    """The changes, one at a time, that make a load fit which does not."""
    an_instance("load", load, Fit, "what `fit` returns")
    if load.fits:
        return []
    found = []
    if load.max_batch:
        found.append(WayOut("batch", load.max_batch))
    if load.max_seq_len:
        found.append(WayOut("length", load.max_seq_len))
    tensor_parallel = load.options["tensor_parallel"]
    for dtype in ("fp8", "int4"):
        if (
            bytes_per_number(dtype) < bytes_per_number(load.options["dtype"])
            and _kv_if(load, dtype=dtype) <= load.kv_budget
        ):
            found.append(WayOut("dtype", dtype))
            break
    for more in (2, 4, 8):
        saved = load.weights - math.ceil(load.weights / more)  # the reserve is taken as it is on every GPU
        if _kv_if(load, tensor_parallel=tensor_parallel * more) <= load.kv_budget + saved:
            found.append(WayOut("gpus", tensor_parallel * more))
            break
    larger = sorted(gpus().values(), key=lambda gpu: gpu.memory_gib)
    usable = (load.memory - load.unused) / load.memory
    needed = load.weights + load.reserve + load.kv
    if gpu := next((gpu for gpu in larger if gpu.memory_gib * GIB * usable >= needed), None):
        found.append(WayOut("gpu", gpu.name))
    return found


def _kv_if(load: Fit, **changed: Any) -> int | float:
    """K and V of the same load with another dtype or more GPUs."""
    options = {**load.options, **changed}
    return load.batch_size * load.spec.allocated_bytes(load.seq_len, load.block_size, **options)


# --- the command ------------------------------------------------------------------------------------------------------


def human(num_bytes: float) -> str:
    """Bytes in the largest of B, KiB, MiB, GiB that leaves at least 1: 17179869184 -> "16.00 GiB"."""
    num_bytes = real_number("num_bytes", num_bytes)
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if abs(num_bytes) >= 2**power:
            return f"{num_bytes / 2**power:,.2f} {unit}"
    return f"{num_bytes:g} B"


def explain(spec: KVCacheSpec) -> list[str]:
    """How each kind of layer counts, one line per kind, in the order in which they first occur."""
    an_instance("spec", spec, KVCacheSpec, "KVCacheSpec.from_config(model)")
    return [f"{count} layer{'s' if count > 1 else ''} {_what_it_keeps(layer)}" for layer, count in spec._kinds]


def _what_it_keeps(layer: LayerCache) -> str:
    if layer.kind == "none":
        return f"({layer.note}): nothing per token"
    if layer.kind == "shared":
        return f"({layer.note}): nothing, they read the K and V of an earlier layer"
    tokens = "every token" if layer.window is None else f"the last {layer.window:,} tokens"
    if layer.kind == "chunked":
        tokens = f"at most {layer.window:,} tokens, a chunk"
    if layer.latent:
        numbers = f"one latent of {layer.latent} numbers (MLA)"
    else:
        heads = f"{layer.num_kv_heads} KV head{'s' if layer.num_kv_heads > 1 else ''}"
        numbers = f"{heads} x ({layer.k_dim} + {layer.v_dim}) numbers"
    indexer = f" and {layer.extra} for its indexer" if layer.extra else ""
    return f"({layer.note}): {numbers}{indexer} for {tokens}"


def report(spec: KVCacheSpec, seq_len: int, batch_size: int, dtype: str, tensor_parallel: int) -> list[str]:
    """The lines about the cache alone."""
    an_instance("spec", spec, KVCacheSpec, "KVCacheSpec.from_config(model)")
    batch_size, tensor_parallel = (
        whole_number("batch_size", batch_size, 1),
        whole_number("tensor_parallel", tensor_parallel, 1),
    )
    per_token = spec.bytes_per_token(dtype, tensor_parallel)
    one = spec.cache_bytes(seq_len, 1, dtype, tensor_parallel)
    split = "" if tensor_parallel == 1 else f", on each of {tensor_parallel} GPUs"
    lines = [f"{spec.name or 'model'} ({spec.model_type or 'no family given'}), K and V in {dtype}{split}"]
    lines += [f"  {line}" for line in explain(spec)]
    lines.append(f"per token      {human(per_token):>12}   {per_token:,} bytes, below any window")
    lines.append(f"per sequence   {human(one):>12}   of {seq_len:,} tokens")
    lines.append(
        f"in total       {human(batch_size * one):>12}   for {batch_size} such sequence{'s' if batch_size > 1 else ''}"
    )
    return lines


def report_fit(load: Fit, num_parameters: int, weight_dtype: str) -> list[str]:
    """The lines about a GPU, vLLM's two start-up lines among them."""
    an_instance("load", load, Fit, "what `fit` returns")
    num_parameters = whole_number("num_parameters", num_parameters, 1)
    bytes_per_number(weight_dtype)
    lines = [
        f"memory         {human(load.memory):>12}   of one GPU",
        f"left alone     {human(load.unused):>12}   by gpu_memory_utilization",
        f"weights        {human(load.weights):>12}   {num_parameters:,} parameters in {weight_dtype}",
        f"reserve        {human(load.reserve):>12}   activations and the rest: your number (--reserve-gib)",
        f"for K and V    {human(load.kv_budget):>12}",
    ]
    if load.kv_budget <= 0:
        return [*lines, "The weights and the reserve alone do not fit.", *_advice(load)]
    if load.concurrency is not None:
        lines.append(f"GPU KV cache size: {load.cache_tokens:,} tokens, in blocks of {load.block_size}")
        lines.append(f"Maximum concurrency for {load.seq_len:,} tokens per request: {load.concurrency:.2f}x")
    lines.append(f"largest batch at {load.seq_len:,} tokens: {_or_no_limit(load.max_batch)}")
    longest = _or_no_limit(load.max_seq_len) + (" tokens" if load.max_seq_len is not None else "")
    lines.append(f"longest sequences at batch {load.batch_size}: {longest}")
    if load.fits:
        return [*lines, f"It fits, and {human(load.free)} stay free."]
    return [*lines, f"It does not fit: {human(-load.free)} are missing.", *_advice(load)]


def _or_no_limit(value: int | None) -> str:
    return "no limit from memory" if value is None else f"{value:,}"


def _advice(load: Fit) -> list[str]:
    words = {
        "batch": "a batch of at most {}",
        "length": "sequences of at most {:,} tokens",
        "dtype": "K and V in {}",
        "gpus": "{} GPUs with tensor parallel",
        "gpu": "one {}",
    }
    found = [words[way.what].format(way.value) for way in ways_out(load)]
    return [f"What would fit: {'; or '.join(found)}."] if found else ["No single change listed here makes it fit."]


def _memory(text: str) -> float:
    """Bytes of a GPU by name, or of a size such as 24GiB or 24GB."""
    for unit, size in (("gib", GIB), ("gb", 10**9)):
        number = text.lower().removesuffix(unit).rstrip()
        if number != text.lower().rstrip() and number.replace(".", "", 1).isdecimal():
            return float(number) * size
    return find_gpu(text).memory_gib * GIB


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m minipaged.kv_size", description="How big a model's KV cache is.")
    add = parser.add_argument
    add("model", nargs="?", help="a preset (see --list), a folder, a config.json, or a transformers id")
    add("--list", action="store_true", help="list the models and GPUs known by name")
    add("--gpu", help="a GPU by name, or its memory such as 24GiB")
    add("--seq-len", type=int, default=4096, help="tokens in each sequence (default 4096)")
    add("--batch", type=int, default=1, help="sequences at once (default 1)")
    add("--dtype", default="float16", help="of K and V: float16, bfloat16, fp8, int8, int4, float32 (default float16)")
    add("--weight-dtype", default="float16", help="of the weights (default float16)")
    add("--params", type=float, help="parameters of a model that is no preset, such as 7e9")
    add("--tp", type=int, default=1, help="tensor parallel: GPUs that share the model (default 1)")
    add("--block-size", type=int, default=16, help="tokens in a block (default 16)")
    add("--gpu-memory-utilization", type=float, default=0.9, help="what the engine may use (default 0.9)")
    add("--reserve-gib", type=float, default=1.0, help="GiB for activations and the rest (default 1.0)")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m minipaged.kv_size MODEL [options]`: print the sizes and why; 0, or 1 with an error named."""
    parser = _parser()
    args = parser.parse_args(arguments)
    if args.list:
        print(
            *(f"{m.name:20} {m.num_parameters / 1e9:8.2f}e9 parameters   {m.id}" for m in models().values()), sep="\n"
        )
        print(*(f"{g.name:20} {g.memory_gib:8g} GiB   {g.bandwidth_gb_s:g} GB/s" for g in gpus().values()), sep="\n")
        return 0
    if args.model is None:
        parser.error("which model? a preset (see --list), a folder, a config.json, or a transformers id")
    try:
        print(*_lines(args), sep="\n")
    except MinipagedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _lines(args: argparse.Namespace) -> list[str]:
    whole_number("batch", args.batch, 1)
    whole_number("block_size", args.block_size, 1)
    if args.params is not None:
        real_number("params", args.params, above=0)
    spec = KVCacheSpec.from_config(args.model)
    lines = report(spec, args.seq_len, args.batch, args.dtype, args.tp)
    if args.gpu is None:
        return lines
    preset = find_model(spec.name)
    num_parameters = int(args.params or (preset.num_parameters if preset else 0))
    if not num_parameters:
        return [*lines, "weights unknown: give --params, such as --params 7e9, to see what fits on the GPU"]
    load = fit(
        spec,
        num_parameters,
        _memory(args.gpu),
        args.seq_len,
        args.batch,
        dtype=args.dtype,
        weight_dtype=args.weight_dtype,
        tensor_parallel=args.tp,
        block_size=args.block_size,
        reserve_bytes=args.reserve_gib * GIB,
        gpu_memory_utilization=args.gpu_memory_utilization,
    )
    return [*lines, *report_fit(load, num_parameters, args.weight_dtype)]


def _number(value: Fraction | int) -> int | float:
    value = Fraction(value)
    return int(value) if value.denominator == 1 else float(value)


def _exact(name: str, value: Any, above: float | None = None) -> Fraction:
    """A number that is not negative, as a fraction, so that no byte is lost to rounding."""
    number = real_number(name, value, least=0 if above is None else None, above=above)
    return Fraction(int(value)) if isinstance(value, Integral) else Fraction(number)


def _one_of(name: str, value: str, allowed: Sequence[str]) -> None:
    if not isinstance(value, str) or value not in allowed:
        raise InvalidInputError(f"{name} is {shown(value)}; use one of {', '.join(allowed)}")


_OPTIONS = ("dtype", "mla", "hybrid", "tensor_parallel", "scale_group")


def _known_options(options: dict[str, Any]) -> dict[str, Any]:
    if unknown := [name for name in options if name not in _OPTIONS]:
        raise InvalidInputError(f"there is no option {unknown[0]}; there are {', '.join(_OPTIONS)}")
    return options


if __name__ == "__main__":
    sys.exit(main())
