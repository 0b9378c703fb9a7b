"""Chapter 2. Shape, strides, dtype and bytes of every tensor on the way from a token to its K and V.

A tensor is one strip of numbers and a rule for finding a cell in it: offset = start + sum(index[i] * stride[i]).

    token ids -> embedding -> layer input -> norm -> q_proj -> q  [batch, num_heads,    length, head_dim]
    [batch,      [batch, length, hidden]          -> k_proj -> k  [batch, num_kv_heads, length, head_dim] -> K cache
     length]                                      -> v_proj -> v  [batch, num_kv_heads, length, head_dim] -> V cache

`trace` notes them in a real pass of a transformers decoder, `predict_shapes` works them out from the config alone, and
the two must agree. Left out: what attention does with q, K and V (chapter 3), the bytes of a whole cache (chapter 5).
"""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from minipaged.errors import InvalidInputError, MinipagedError, an_instance, listed, shown, whole_number

Shape = tuple[int, ...]


class NoSuchLayerError(InvalidInputError):
    """The model has no layer of that number."""


class UntraceableModelError(MinipagedError):
    """The model is not a decoder whose layers hold an attention module, or keeps something other than K and V."""


@dataclass(frozen=True)
class TensorFacts:
    """What can be said about a tensor without looking at its numbers.

    Attributes:
        name: what it is, such as "k_proj" or "K cache".
        shape: the length of each axis; `len(shape)` is the rank.
        strides: how far apart in memory two neighbours along each axis are, in numbers, not bytes.
        dtype: the type of one number, such as "float32".
        bytes: numbers in the tensor x bytes of one number, whether or not the memory is its own.
        layer: the layer it belongs to; None before the first layer.
        offset: where in its memory cell [0, 0, ...] stands, in numbers.
        view_of: name of an earlier tensor that lives in the same memory; None when the memory is its own.
    """

    name: str
    shape: Shape
    strides: Shape
    dtype: str
    bytes: int
    layer: int | None = None
    offset: int = 0
    view_of: str | None = None

    @property
    def rank(self) -> int:
        """The number of axes (not their lengths, and not the rank of a matrix in linear algebra)."""
        return len(self.shape)

    @property
    def contiguous(self) -> bool:
        """True when reading row by row walks straight through memory."""
        return is_contiguous(self.shape, self.strides)


# --- One strip of numbers -------------------------------------------------------------------------------------------


def contiguous_strides(shape: Sequence[int]) -> Shape:
    """Strides of a tensor laid out row by row: 1 for the last axis, each other the product of the lengths behind it.

    Raises:
        InvalidInputError: a negative length.
    """
    shape = _lengths(shape)
    strides, step = [], 1
    for length in reversed(shape):
        strides.append(step)
        step *= max(length, 1)  # as torch counts an axis of length 0
    return tuple(reversed(strides))


def flat_offset(index: Sequence[int], strides: Sequence[int], start: int = 0) -> int:
    """Where a cell stands in memory, in numbers: start + sum of index x stride over the axes.

    Raises:
        InvalidInputError: not one index per axis, or a negative index.
    """
    index = [whole_number("an index", i, None) for i in listed("index", index, "one index for each axis")]
    strides = [whole_number("a stride", i, None) for i in listed("strides", strides, "one stride for each axis")]
    start = whole_number("start", start)
    if len(index) != len(strides):
        raise InvalidInputError(f"index {tuple(index)} has {len(index)} numbers for {len(strides)} axes; give one each")
    if any(i < 0 for i in index):
        raise InvalidInputError(f"index {tuple(index)} has a negative number; count every axis from 0")
    return start + sum(i * stride for i, stride in zip(index, strides, strict=True))


def index_at(offset: int, shape: Sequence[int]) -> Shape:
    """The cell that stands at `offset` of a contiguous tensor: the way back from `flat_offset`.

    Raises:
        InvalidInputError: the tensor has no such offset.
    """
    shape, offset = _lengths(shape), whole_number("offset", offset, None)
    if not 0 <= offset < math.prod(shape):
        raise InvalidInputError(
            f"offset {offset} is outside a tensor of shape {tuple(shape)}: {math.prod(shape)} cells"
        )
    index = []
    for stride in contiguous_strides(shape):
        index.append(offset // stride)
        offset %= stride
    return tuple(index)


def is_contiguous(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """True when cells in reading order stand side by side in memory; axes of length 1 cannot disturb that."""
    shape = _lengths(shape)
    strides = [whole_number("a stride", i, None) for i in listed("strides", strides, "one stride for each axis")]
    if len(shape) != len(strides):
        raise InvalidInputError(f"{len(strides)} strides for {len(shape)} axes; give one each")
    if math.prod(shape) == 0:
        return True
    wanted = contiguous_strides(shape)
    return all(length == 1 or stride == want for length, stride, want in zip(shape, strides, wanted, strict=True))


def num_bytes(shape: Sequence[int], dtype: str | torch.dtype = "float16") -> int:
    """Bytes of a tensor with memory of its own: numbers x bytes of one number.

    Raises:
        InvalidInputError: unknown dtype, or a negative length.
    """
    named = dtype if isinstance(dtype, str) else shown(dtype)
    known = dtype if isinstance(dtype, torch.dtype) else getattr(torch, named.removeprefix("torch."), None)
    if not isinstance(known, torch.dtype):
        raise InvalidInputError(f'unknown dtype "{named:.80}"; use a torch dtype or its name, such as "float16"')
    shape = _lengths(shape)
    return math.prod(shape) * known.itemsize


def is_view_of(view: Tensor, base: Tensor) -> bool:
    """True when both tensors live in the same memory, so that writing to one changes the other."""
    _stored("view", view), _stored("base", base)
    address = view.untyped_storage().data_ptr()
    return address != 0 and address == base.untyped_storage().data_ptr()


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """Cut the last axis into heads and move the heads forward, copying nothing.

    Args:
        x: what a projection gives, [batch, length, num_heads * head_dim].
        num_heads: query heads for Q, KV heads for K and V.

    Returns:
        A view of `x`, [batch, num_heads, length, head_dim].

    Raises:
        InvalidInputError: not three axes, or a last axis that the heads do not divide.
    """
    num_heads = whole_number("num_heads", num_heads, None)
    if _stored("x", x).dim() != 3:
        raise InvalidInputError(f"expected [batch, length, num_heads * head_dim], got shape {tuple(x.shape)}")
    width = x.shape[-1]
    if num_heads < 1 or width % num_heads:
        raise InvalidInputError(f"{num_heads} heads do not divide an axis of {width}; check num_heads (K: KV heads)")
    cut = x.unflatten(-1, (num_heads, width // num_heads))  # [batch, length, num_heads, head_dim]
    return cut.transpose(1, 2)  # [batch, num_heads, length, head_dim]


def describe(tensor: Tensor, name: str = "tensor", layer: int | None = None) -> TensorFacts:
    """The facts about one tensor."""
    _stored("tensor", tensor)
    return TensorFacts(
        name=name,
        shape=tuple(tensor.shape),
        strides=tuple(tensor.stride()),
        dtype=str(tensor.dtype).removeprefix("torch."),
        bytes=tensor.numel() * tensor.element_size(),
        layer=layer,
        offset=tensor.storage_offset(),
    )


def table(facts: Iterable[TensorFacts]) -> str:
    """The facts as lines of text, one tensor a line."""
    rows = [("name", "shape", "strides", "dtype", "bytes", "memory")]
    for fact in listed("facts", facts, "what `trace` returns"):
        an_instance("a fact", fact, TensorFacts, "what `describe` or `trace` returns")
        memory = f"that of {fact.view_of}" if fact.view_of else "its own"
        rows.append((fact.name, str(fact.shape), str(fact.strides), fact.dtype, f"{fact.bytes:,}", memory))
    widths = [max(len(row[column]) for row in rows) for column in range(6)]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        cells[4] = row[4].rjust(widths[4])  # bytes
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _lengths(shape: Any) -> Shape:
    """A shape as a tuple of plain ints, none of them negative."""
    found = tuple(whole_number("a length", n, None) for n in listed("shape", shape, "the length of each axis"))
    if any(length < 0 for length in found):
        raise InvalidInputError(f"shape {found} has a negative length; every length must be 0 or more")
    return found


def _stored(name: str, tensor: Any) -> Tensor:
    if not isinstance(tensor, Tensor) or tensor.layout != torch.strided:
        raise InvalidInputError(f"{name} is {shown(tensor)}; pass a torch tensor")
    return tensor


# --- What the config says -------------------------------------------------------------------------------------------


def predict_shapes(config: Any, batch: int, length: int, layer: int = 0) -> dict[str, Shape]:
    """The shape of every tensor that `trace` can meet, from the config alone; no weights, no pass.

    Args:
        config: a transformers config, or a dict with its entries.
        batch: number of sequences.
        length: tokens in each.
        layer: which layer; it matters only to models in which some layers look back over a window.

    Returns:
        name -> shape. "qkv_proj" is there for models that compute Q, K and V with one matrix (GPT-2); a model has
        either that or the three single ones. A family that puts more than Q into q_proj (a gate, in Qwen3-Next) is
        wider there than predicted.

    Raises:
        NoSuchLayerError: no such layer.
        InvalidInputError: batch or length below 1, or a config without heads.
        UntraceableModelError: the model keeps a latent instead of K and V (multi-head latent attention).
    """
    config = config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config
    batch, length = whole_number("batch", batch, None), whole_number("length", length, None)
    if min(batch, length) < 1:
        raise InvalidInputError(f"batch {batch} and length {length}: both must be at least 1")
    layer = whole_number("layer", layer, None)
    if _entry(config, "kv_lora_rank"):
        raise UntraceableModelError("this config keeps one latent per token instead of K and V: chapter 5 counts those")
    hidden, heads = _entry(config, "hidden_size", "n_embd"), _entry(config, "num_attention_heads", "n_head")
    if not hidden or not heads:
        raise InvalidInputError("the config names no hidden_size or num_attention_heads; give a decoder's config")
    _check_layer(layer, _entry(config, "num_hidden_layers", "n_layer") or layer + 1)
    config = _of_layer(config, layer)
    kv_heads = _kv_heads(config, heads)
    head_dim = _entry(config, "head_dim") or hidden // heads  # given wins: it need not be hidden / heads (Qwen3)
    kept = _kept_tokens(config, layer, length)
    rows, q_width, kv_width = (batch, length), heads * head_dim, kv_heads * head_dim
    return {
        "token ids": rows,
        "embedding": (*rows, hidden),
        "layer input": (*rows, hidden),
        "input norm": (*rows, hidden),
        "q_proj": (*rows, q_width),
        "k_proj": (*rows, kv_width),
        "v_proj": (*rows, kv_width),
        "qkv_proj": (*rows, q_width + 2 * kv_width),
        "q": (batch, heads, length, head_dim),
        "k": (batch, kv_heads, length, head_dim),
        "v": (batch, kv_heads, length, head_dim),
        "K cache": (batch, kv_heads, kept, head_dim),
        "V cache": (batch, kv_heads, kept, head_dim),
    }


def _entry(config: Any, *names: str) -> Any:
    """The first of these entries that a config (object or dict) has, else None."""
    for name in names:
        value = config.get(name) if isinstance(config, dict) else getattr(config, name, None)
        if value is not None:
            return value
    return None


def _of_layer(config: Any, layer: int) -> Any:
    """The config of one layer, for families in which heads differ from layer to layer (Gemma 4)."""
    own = getattr(config, "per_layer_config", None)
    return own[layer] if own else config


def _kv_heads(config: Any, heads: int) -> int:
    """KV heads: as given; one where all query heads share it (`multi_query`); else as many as there are query heads."""
    if _entry(config, "multi_query") and not _entry(config, "new_decoder_architecture"):
        return 1
    return _entry(config, "num_key_value_heads", "num_kv_heads") or heads


def _kept_tokens(config: Any, layer: int, length: int) -> int:
    """Tokens a layer keeps for the next step: all, or window - 1 (the next token is the window's last)."""
    kinds = _entry(config, "layer_types")
    window = _entry(config, "sliding_window")
    slides = kinds[layer] == "sliding_attention" if kinds else _entry(config, "use_sliding_window") is not False
    return min(length, window - 1) if window and slides else length


def _check_layer(layer: int, num_layers: int) -> None:
    if not 0 <= layer < num_layers:
        raise NoSuchLayerError(f"layer {layer} of a model with {num_layers} layers; use 0 to {num_layers - 1}")


# --- What a real pass does ------------------------------------------------------------------------------------------


def trace(model: Any, input_ids: Any, layer: int = 0) -> list[TensorFacts]:
    """Run one real pass and note every tensor from the token ids to K and V in one layer's cache.

    The model is left as it was: hooks are removed at the end, after an error too. q and k are what attention gets:
    split into heads, with their positions (RoPE) where the model turns them. v is split into heads. What a model does
    not have (a norm before attention, three single projections) is not listed.

    Args:
        model: a transformers decoder, on any device.
        input_ids: token ids [batch, length], or a list of them.
        layer: which layer to look at.

    Returns:
        Facts in the order in which the pass makes the tensors.

    Raises:
        NoSuchLayerError: no such layer.
        InvalidInputError: ids that are not whole numbers of the vocabulary, or not [batch, length].
        UntraceableModelError: no stack of decoder layers with attention was found.
    """
    layers = _decoder_layers(model)
    _check_layer(layer, len(layers))
    ids = _check_ids(input_ids, model)
    seen: dict[str, Tensor] = {"token ids": ids}  # holds the tensors themselves: a freed address could be used again
    cache, keyword = _new_cache(model)
    with _hooks(model, layers[layer], seen), _noting_queries(_attention_of(layers[layer]), seen):
        _note_update(cache, layer, seen)
        with torch.inference_mode():
            model(input_ids=ids, use_cache=True, **{keyword: cache})
    if layer < len(cache.layers) and isinstance(getattr(cache.layers[layer], "keys", None), Tensor):
        seen["K cache"], seen["V cache"] = cache.layers[layer].keys, cache.layers[layer].values
    return _facts(seen, layer)


_PROJECTIONS = {
    "q_proj": ("q_proj",),
    "k_proj": ("k_proj",),
    "v_proj": ("v_proj",),
    "qkv_proj": ("qkv_proj", "c_attn", "query_key_value", "Wqkv", "qkv"),
}
_ORDER = (
    *("token ids", "embedding", "layer input", "input norm", "q_proj", "k_proj", "v_proj", "qkv_proj"),
    *("q", "k", "v", "K cache", "V cache"),
)


def _facts(seen: dict[str, Tensor], layer: int) -> list[TensorFacts]:
    """Facts in reading order, each with the first earlier tensor that lives in the same memory."""
    facts: list[TensorFacts] = []
    for name in sorted(seen, key=_ORDER.index):
        own = describe(seen[name], name, None if name in ("token ids", "embedding") else layer)
        base = next((earlier.name for earlier in facts if is_view_of(seen[name], seen[earlier.name])), None)
        facts.append(TensorFacts(**{**vars(own), "view_of": base}))
    return facts


@contextlib.contextmanager
def _hooks(model: Any, block: nn.Module, seen: dict[str, Tensor]) -> Iterator[None]:
    """Hooks on the embedding, one layer's norms and its projections, gone at the end whatever happens."""

    def note(name: str) -> Callable[..., None]:
        def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
            if name != "input norm" or not {"q_proj", "qkv_proj"} & seen.keys():  # later norms are not on the way
                seen.setdefault(name, output[0] if isinstance(output, tuple) else output)

        return hook

    def enter(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen.setdefault("layer input", args[0] if args else kwargs["hidden_states"])

    handles = []
    try:
        handles.append(model.get_input_embeddings().register_forward_hook(note("embedding")))
        handles.append(block.register_forward_pre_hook(enter, with_kwargs=True))
        for name, child in block.named_children():
            if "norm" in name.lower() or name.startswith("ln"):
                handles.append(child.register_forward_hook(note("input norm")))
        for name, others in _PROJECTIONS.items():
            for child in (getattr(_attention_of(block), other, None) for other in others):
                if isinstance(child, nn.Module):
                    handles.append(child.register_forward_hook(note(name)))
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextlib.contextmanager
def _noting_queries(attention: nn.Module, seen: dict[str, Tensor]) -> Iterator[None]:
    """Note the queries that one attention module hands to transformers' attention function.

    q after RoPE is no module's output, so no module hook meets it. Every attention module asks
    `AttentionInterface.get_interface` for the function to call: while the pass runs it gets one that looks first.
    """
    from transformers import AttentionInterface

    original = vars(AttentionInterface).get("get_interface")
    if original is None:  # a transformers without that door: q is not listed
        yield
        return

    def get_interface(self: Any, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        function = original(self, *args, **kwargs)

        def looking(module: nn.Module, query: Tensor, *rest: Any, **options: Any) -> Any:
            if module is attention:
                seen.setdefault("q", query)
            return function(module, query, *rest, **options)

        return looking

    AttentionInterface.get_interface = get_interface
    try:
        yield
    finally:
        AttentionInterface.get_interface = original


def _new_cache(model: Any) -> tuple[Any, str]:
    """An empty transformers cache and the name of the argument that takes it (5.24 renamed past_key_values)."""
    from transformers import DynamicCache

    renamed = "cache" in inspect.signature(model.forward).parameters
    return DynamicCache(config=model.config), "cache" if renamed else "past_key_values"


def _note_update(cache: Any, layer: int, seen: dict[str, Tensor]) -> None:
    """Note the K and V that a layer hands to this one cache."""
    original = cache.update

    def update(keys: Tensor, values: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        if layer_idx == layer:
            seen.setdefault("k", keys)
            seen.setdefault("v", values)
        return original(keys, values, layer_idx, *args, **kwargs)

    cache.update = update


def _decoder_layers(model: Any) -> nn.ModuleList:
    """The stack of decoder layers: a ModuleList as long as the config says, some members of which have attention."""
    config = model.config.get_text_config(decoder=True) if hasattr(model, "config") else None
    wanted = getattr(config, "num_hidden_layers", None)
    if wanted and not getattr(config, "is_encoder_decoder", False):
        for module in model.modules():
            if isinstance(module, nn.ModuleList) and len(module) == wanted and any(map(_has_attention, module)):
                return module
    raise UntraceableModelError(
        f"{type(model).__name__} has no stack of decoder layers with an attention module each; give a transformers "
        "decoder, such as the one that load_model() returns"
    )


def _has_attention(block: nn.Module) -> bool:
    return any(_is_attention(name) for name, _ in block.named_children())


def _attention_of(block: nn.Module) -> nn.Module:
    for name, child in block.named_children():
        if _is_attention(name):
            return child
    raise UntraceableModelError(f"this layer is a {type(block).__name__} without attention; choose another layer")


def _is_attention(name: str) -> bool:
    return ("attn" in name or "attention" in name) and "norm" not in name


def _check_ids(input_ids: Any, model: Any) -> Tensor:
    """Token ids as [batch, length] on the model's device, every one of them in the vocabulary."""
    ids = torch.as_tensor(input_ids)
    ids = ids[None] if ids.dim() == 1 else ids  # one list of ids: a batch of one
    if ids.dim() != 2 or 0 in ids.shape:
        raise InvalidInputError(f"token ids have shape {tuple(ids.shape)}; give [batch, length], both at least 1")
    if ids.is_floating_point() or ids.dtype == torch.bool:
        raise InvalidInputError(f"token ids are {ids.dtype}; give whole numbers, as a tokenizer makes them")
    size = model.get_input_embeddings().num_embeddings
    if ids.min() < 0 or ids.max() >= size:
        raise InvalidInputError(f"token ids from {ids.min()} to {ids.max()}; this vocabulary has 0 to {size - 1}")
    return ids.to(model.device)
