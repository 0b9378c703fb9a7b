"""Chapter 4. Two plain KV caches, and what a cache saves, counted.

A decoder computes K and V of a token once; later tokens only read them. Where do they lie?

    ConcatKVCache        [t0 t1 t2] + [t3] -> a new tensor [t0 t1 t2 t3]: no room wasted, every old byte moved again
    PreallocatedKVCache  [t0 t1 t2 t3 .. .. .. ..] max_len slots at the start: nothing moved, the rest reserved in vain

Both are transformers `Cache` objects for one row or a batch, for `model(ids, **cache_argument(model, cache))` and for
`generate`. Every layer keeps every token, also below a sliding window: the model's mask hides the old ones, so results
are right and memory is not reduced. Left out: layers that keep a running state instead of K and V (refused).
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from minipaged.errors import InvalidInputError, MinipagedError, an_instance, shown, whole_number, yes_or_no


class CacheFullError(MinipagedError):
    """More tokens than a `PreallocatedKVCache` was made for; nothing was written."""


class UnsupportedCacheError(MinipagedError):
    """The model keeps something else than K and V (a recurrent or convolution state): not held by these caches."""


class _Layer(CacheLayerMixin):
    """What one layer keeps: `length` tokens of K and V, each [batch, num_kv_heads, length, head_dim]."""

    is_compileable = False  # shapes grow from step to step
    is_croppable = True
    is_sliding = False  # old tokens are kept, and masked by the model

    def __init__(self) -> None:
        super().__init__()
        self.length = 0

    def get_seq_length(self) -> int:
        return self.length

    def get_mask_sizes(self, query_length: Any) -> tuple[int, int]:
        """(how many keys the next pass sees, the position of the first): the model builds its mask from these."""
        return self.length + int(query_length), 0

    def get_max_length(self) -> int:
        return -1  # no limit

    def get_max_cache_shape(self) -> int:  # the name before transformers 5.15
        return self.get_max_length()

    def reset(self) -> None:
        self.keys = self.values = None
        self.is_initialized, self.length = False, 0

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Row i becomes what row beam_idx[i] was; rows may be repeated or left out."""
        if self.is_initialized:
            self.keys = self.keys.index_select(0, beam_idx.to(self.keys.device))
            self.values = self.values.index_select(0, beam_idx.to(self.values.device))

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        self.reorder_cache(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self.is_initialized:
            self.reorder_cache(torch.arange(self.keys.shape[0]).repeat_interleave(repeats))

    @property
    def reserved_bytes(self) -> int:
        if not self.is_initialized:
            return 0
        return sum(t.numel() * t.element_size() for t in (self.keys, self.values))

    @property
    def bytes_per_token(self) -> int:
        """K and V of one token in every row."""
        slots = self.keys.shape[2] if self.is_initialized else 0
        return self.reserved_bytes // slots if slots else 0


class _ConcatLayer(_Layer):
    bytes_copied = 0

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.device = key_states.device
        self.keys, self.values = key_states[:, :, :0], value_states[:, :, :0]  # [batch, num_kv_heads, 0, head_dim]
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.bytes_copied += self.reserved_bytes  # all that lay here is read, and written into the new tensors
        self.keys = torch.cat([self.keys, key_states], dim=2)  # [batch, num_kv_heads, length + new, head_dim]
        self.values = torch.cat([self.values, value_states], dim=2)
        self.length = self.keys.shape[2]
        return self.keys, self.values

    def keep(self, length: int) -> None:
        if self.is_initialized:
            # a copy, not a view: a view would keep the removed tokens' memory alive
            self.keys, self.values = self.keys[:, :, :length].clone(), self.values[:, :, :length].clone()
            self.length = length

    def reset(self) -> None:
        super().reset()
        self.bytes_copied = 0


class _PreallocatedLayer(_Layer):
    def __init__(self, max_len: int) -> None:
        super().__init__()
        self.max_len = max_len

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.device = key_states.device
        self.keys, self.values = (
            states.new_zeros(*states.shape[:2], self.max_len, states.shape[3])  # [batch, num_kv_heads, max_len, dim]
            for states in (key_states, value_states)
        )
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        end = self.length + key_states.shape[2]
        self.keys[:, :, self.length : end] = key_states
        self.values[:, :, self.length : end] = value_states
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]  # views: the empty slots never reach the attention

    def get_max_length(self) -> int:
        return self.max_len

    def keep(self, length: int) -> None:
        self.length = min(self.length, length)  # the next write goes over what is behind


class _KVCache(Cache):
    """What both caches share: checks before the first layer of a step, crop, and sizes."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add this step's K and V [batch, num_kv_heads, new, head_dim] to one layer; return all that it holds.

        Raises:
            CacheFullError, InvalidInputError: before anything changed. The first layer of a step finds the problem,
                so no layer is ever ahead of the others.
        """
        self._check(key_states, value_states, layer_idx)
        return super().update(key_states, value_states, layer_idx, *args, **kwargs)

    def _check(self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int) -> None:
        lengths = [layer.length for layer in self.layers if layer.is_initialized]
        if layer_idx == 0:
            refuse_half_a_pass(lengths)
        elif lengths and layer_idx >= len(self.layers):  # a layer's first tokens, and the first layer had some before
            refuse_half_a_pass([max(lengths[0] - key_states.shape[2], 0), 0])
        layer = self.layers[layer_idx] if layer_idx < len(self.layers) else None
        if layer is None or not layer.is_initialized:
            return
        for old, states in ((layer.keys, key_states), (layer.values, value_states)):
            held, new = _but_length(old), _but_length(states)
            if held != new:
                raise InvalidInputError(
                    f"the cache holds (rows, KV heads, head_dim, dtype) = {held} and this pass brings {new}: feed the "
                    "same rows of the same model, or start with reset()"
                )

    def crop(self, tokens_to_remove: int) -> None:
        """Take the last tokens back: `crop(-n)` removes n from every row, as in transformers; 0 changes nothing.

        A positive number, the older meaning, is the length to keep.

        Raises:
            InvalidInputError: more tokens than the cache holds; nothing was removed.
        """
        held = self.get_seq_length()
        if -tokens_to_remove > held:
            raise InvalidInputError(f"cannot remove {-tokens_to_remove} tokens: the cache holds {held}; at most that")
        keep = held + tokens_to_remove if tokens_to_remove <= 0 else min(tokens_to_remove, held)
        if keep < held:
            for layer in self.layers:
                layer.keep(keep)

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise UnsupportedCacheError(
            f"{type(self).__name__} holds K and V only, and this model's layers keep a running state: "
            "let the model make its own cache"
        )

    # asked for by recurrent and convolution layers only, under different names in different versions of transformers
    get_conv_state = update_conv_state = get_recurrent_state = update_recurrent_state = has_previous_state = _refuse

    @property
    def reserved_bytes(self) -> int:
        """Bytes of all K and V tensors as they stand in memory."""
        return sum(layer.reserved_bytes for layer in self.layers)

    @property
    def used_bytes(self) -> int:
        """Bytes of them that hold a token's K and V."""
        return sum(layer.length * layer.bytes_per_token for layer in self.layers)


class ConcatKVCache(_KVCache):
    """A cache that grows by concatenation, for one row or a batch.

    Each step makes a new, longer tensor and copies the old one into it. `bytes_copied` counts what was moved again.
    """

    def __init__(self) -> None:
        super().__init__(layer_class_to_replicate=_ConcatLayer)

    @property
    def bytes_copied(self) -> int:
        """Bytes of K and V that lay in the cache already and were written once more, since the last reset."""
        return sum(layer.bytes_copied for layer in self.layers)


class PreallocatedKVCache(_KVCache):
    """A cache that reserves `max_len` slots for every row at the first pass and fills them from the left.

    Args:
        max_len: the most tokens a row may have: prompt and output together (the last token is never fed, so
            prompt + max_new_tokens - 1 is enough).

    Raises:
        InvalidInputError: max_len is not a whole number of at least 1.
        CacheFullError: (when used) a pass would go beyond max_len; nothing was written.
    """

    def __init__(self, max_len: int) -> None:
        max_len = whole_number("max_len", max_len, 1)
        super().__init__(layer_class_to_replicate=partial(_PreallocatedLayer, max_len))
        self.max_len = max_len

    def get_max_length(self, layer_idx: int | None = None) -> int:
        """The most tokens a row may have."""
        return self.max_len

    def _check(self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int) -> None:
        super()._check(key_states, value_states, layer_idx)
        held, new = self.get_seq_length(layer_idx), key_states.shape[2]
        if held + new > self.max_len:
            raise CacheFullError(
                f"the cache holds {held} tokens and has room for {self.max_len}: {new} more make {held + new}. Make it "
                f"with PreallocatedKVCache({held + new}) or more, or feed fewer tokens"
            )


def refuse_half_a_pass(lengths: list[int]) -> None:
    """Refuse to go on with a cache some layers of which missed tokens: their attention would be silently wrong."""
    if len(set(lengths)) > 1:
        raise InvalidInputError(
            f"layers hold between {min(lengths)} and {max(lengths)} tokens: a pass was interrupted half-way; "
            "call reset() and feed the prompt again"
        )


def _but_length(states: torch.Tensor) -> tuple[int, int, int, torch.dtype]:
    batch, num_kv_heads, _, head_dim = states.shape
    return batch, num_kv_heads, head_dim, states.dtype


def cache_argument(model: Any, cache: Cache) -> dict[str, Cache]:
    """The keyword under which a model and its `generate` take a cache: `past_key_values`, newer ones `cache`."""
    names = inspect.signature(model.forward).parameters
    return {"cache" if "cache" in names else "past_key_values": cache}


@torch.no_grad()  # not inference_mode: what it makes could not be written to by a later `generate`
def prefill(
    model: Any, input_ids: torch.Tensor, cache: Cache, attention_mask: torch.Tensor | None = None
) -> torch.Tensor:
    """Feed tokens behind those that the cache holds, in one pass; a whole prompt or one chunk of it.

    Args:
        input_ids: [batch, new], the new tokens only.
        cache: holds the K and V of all earlier tokens of the same rows; grows by `new`.
        attention_mask: [batch, held + new], 0 for left padding; positions are counted from it. None: no padding.

    Returns:
        logits of the new tokens, [batch, new, vocab].

    Raises:
        InvalidInputError: no tokens, or a mask of another length than held + new.
    """
    if not isinstance(model, torch.nn.Module) or not isinstance(cache, Cache):
        wrong = (
            f"cache is {type(cache).__name__}"
            if isinstance(model, torch.nn.Module)
            else f"model is {type(model).__name__}"
        )
        raise InvalidInputError(f"{wrong}; pass a transformers model and a cache, such as PreallocatedKVCache(64)")
    if not isinstance(input_ids, torch.Tensor) or input_ids.dtype not in (torch.int64, torch.int32):
        raise InvalidInputError(f"input_ids is {shown(input_ids)}; pass whole numbers in a tensor [batch, new]")
    held = int(cache.get_seq_length())
    if input_ids.ndim != 2 or input_ids.shape[1] < 1:
        raise InvalidInputError(f"input_ids has shape {tuple(input_ids.shape)}; expected [batch, new] with new >= 1")
    if attention_mask is None:
        position_ids = torch.arange(held, held + input_ids.shape[1], device=input_ids.device)[None]  # [1, new]
    else:
        position_ids = positions_from_mask(attention_mask, held, input_ids.shape[1])  # [batch, new]
    out = model(
        input_ids=input_ids,
        attention_mask=attention_mask,
        position_ids=position_ids,
        use_cache=True,
        **cache_argument(model, cache),
    )
    return out.logits


def decode_step(
    model: Any, token_ids: torch.Tensor, cache: Cache, attention_mask: torch.Tensor | None = None
) -> torch.Tensor:
    """Feed one token per row, [batch], and return the logits of the next one, [batch, vocab]; see `prefill`."""
    if not isinstance(token_ids, torch.Tensor) or token_ids.ndim != 1:
        raise InvalidInputError(f"token_ids is {shown(token_ids)}; pass a tensor with one token for each row, [batch]")
    return prefill(model, token_ids[:, None], cache, attention_mask)[:, -1]


def positions_from_mask(attention_mask: torch.Tensor, held: int, new: int) -> torch.Tensor:
    """Positions [batch, new] of the new tokens, counting only real tokens, so that left padding shifts nobody.

    mask 0 0 1 1 1 -> positions 0 0 0 1 2: the first real token of every row stands at position 0.
    """
    held, new = whole_number("held", held), whole_number("new", new, 1)
    if not isinstance(attention_mask, torch.Tensor) or attention_mask.dim() != 2 or attention_mask.is_complex():
        raise InvalidInputError(
            f"attention_mask is {shown(attention_mask)}; pass a tensor [batch, held + new] of 0 and 1"
        )
    if attention_mask.layout != torch.strided:
        raise InvalidInputError(f"attention_mask is {attention_mask.layout}; pass a dense tensor")
    if attention_mask.shape[1] != held + new:
        raise InvalidInputError(
            f"the mask covers {attention_mask.shape[1]} tokens, the cache holds {held} and {new} are new: "
            f"it must cover all {held + new}, padding included"
        )
    return (attention_mask.long().cumsum(1) - 1).clamp(min=0)[:, held:]


# ---- What a cache saves, counted: floating point operations (FLOPs) and bytes ------------------------------------


@dataclass(frozen=True)
class DecoderShape:
    """The sizes of a Llama-shaped decoder that decide its work: gated MLP, no biases, grouped heads."""

    name: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int

    def __post_init__(self) -> None:
        for size in (
            "num_layers",
            "hidden_size",
            "intermediate_size",
            "num_heads",
            "num_kv_heads",
            "head_dim",
            "vocab_size",
        ):
            whole_number(size, getattr(self, size), 1)

    @classmethod
    def from_config(cls, config: Any, name: str = "model") -> DecoderShape:
        """Read the sizes from a transformers config of a Llama-shaped model (llama, mistral, qwen2, qwen3)."""
        needed = ("num_attention_heads", "hidden_size", "num_hidden_layers", "intermediate_size", "vocab_size")
        if lacking := [field for field in needed if not hasattr(config, field)]:
            raise InvalidInputError(
                f"{type(config).__name__} has no {lacking[0]}; pass the transformers config of a Llama-shaped model"
            )
        heads = whole_number("num_attention_heads", config.num_attention_heads, 1)
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
        kv_heads = getattr(config, "num_key_value_heads", None) or heads
        sizes = config.num_hidden_layers, config.hidden_size, config.intermediate_size
        return cls(name, *sizes, heads, kv_heads, head_dim, config.vocab_size)

    @property
    def layer_weights(self) -> int:
        """Weights of all matrices inside the layers: Q, K, V, output, and the three of the MLP."""
        attention = self.hidden_size * self.head_dim * (2 * self.num_heads + 2 * self.num_kv_heads)
        return self.num_layers * (attention + 3 * self.hidden_size * self.intermediate_size)

    @property
    def head_weights(self) -> int:
        """Weights of the matrix that turns a hidden state into logits."""
        return self.hidden_size * self.vocab_size

    @property
    def kv_numbers_per_token(self) -> int:
        """Numbers that the cache keeps per token: K and V, every layer, every KV head."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim


@dataclass(frozen=True)
class Work:
    """FLOPs of one pass, a multiplication and an addition counted as two."""

    linear: int  # every matrix of weights: projections, MLP, logits
    attention: int  # scores and the weighted sum of V

    @property
    def total(self) -> int:
        """Both together."""
        return self.linear + self.attention

    def __add__(self, other: Work) -> Work:
        return Work(self.linear + other.linear, self.attention + other.attention)


def pass_flops(shape: DecoderShape, new: int, held: int = 0, num_logits: int = 1, batch_size: int = 1) -> Work:
    """FLOPs of one pass over `new` tokens per row, with `held` tokens per row in the cache.

    A matrix with w weights costs 2 w per token. Attention costs 4 head_dim per head, query and key: 2 for the score,
    2 for the weighted sum; all new x (held + new) pairs count, as a dense kernel computes a pair before it masks it.
    Norms, RoPE, softmax and activations are left out: well under one percent. `num_logits`: positions per row for
    which logits are computed.
    """
    an_instance("shape", shape, DecoderShape, "DecoderShape.from_config(model.config)")
    new, held = whole_number("new", new), whole_number("held", held)
    num_logits, batch_size = whole_number("num_logits", num_logits), whole_number("batch_size", batch_size, 1)
    linear = 2 * shape.layer_weights * new + 2 * shape.head_weights * num_logits
    attention = 4 * shape.head_dim * shape.num_heads * shape.num_layers * new * (held + new)
    return Work(batch_size * linear, batch_size * attention)


def generation_flops(shape: DecoderShape, prompt: int, output: int, cached: bool) -> Work:
    """FLOPs of a whole generation of one row: `output` passes, the first over the prompt."""
    prompt, output = whole_number("prompt", prompt, 1), whole_number("output", output, 1, 1_000_000)
    yes_or_no("cached", cached)
    work = pass_flops(shape, prompt)
    for length in range(prompt + 1, prompt + output):  # the length after the token of this step is fed
        work += pass_flops(shape, 1, length - 1) if cached else pass_flops(shape, length)
    return work


@dataclass(frozen=True)
class Gpu:
    """Peak numbers of a GPU from its data sheet, dense (no sparsity), 16-bit numbers on its tensor cores."""

    name: str
    flops_per_s: float
    bytes_per_s: float

    @property
    def ridge(self) -> float:
        """FLOPs per byte at which arithmetic and memory take equally long: below it, memory decides."""
        return self.flops_per_s / self.bytes_per_s


GPUS = {  # NVIDIA's data sheets; those of A100 and H100 also give figures for sparse matrices, which are twice as large
    "T4": Gpu("T4", 65e12, 320e9),
    "A100 80GB SXM": Gpu("A100 80GB SXM", 312e12, 2039e9),
    "H100 SXM": Gpu("H100 SXM", 989e12, 3350e9),
}


@dataclass(frozen=True)
class Part:
    """One part of a decode step: what it computes and what it must read from memory."""

    flops: int
    bytes: int

    @property
    def intensity(self) -> float:
        """FLOPs per byte read."""
        return self.flops / self.bytes

    def seconds(self, gpu: Gpu) -> float:
        """A lower bound: the slower of arithmetic and memory, both at their peak."""
        return max(self.flops / gpu.flops_per_s, self.bytes / gpu.bytes_per_s)

    def bound(self, gpu: Gpu) -> str:
        """ "memory-bound" or "compute-bound" on this GPU."""
        return "memory-bound" if self.intensity < gpu.ridge else "compute-bound"


def decode_parts(shape: DecoderShape, held: int, batch_size: int = 1, element_bytes: int = 2) -> dict[str, Part]:
    """A decode step's two parts: "linear" reads the weights once for all rows, "attention" each row's own K and V.

    `held`: tokens per row in the cache. Activations and the small norms are left out of the bytes.
    """
    held, batch_size = whole_number("held", held), whole_number("batch_size", batch_size, 1)
    element_bytes = whole_number("element_bytes", element_bytes, 1)
    work = pass_flops(shape, 1, held, batch_size=batch_size)
    weights = (shape.layer_weights + shape.head_weights) * element_bytes
    kv = batch_size * (held + 1) * shape.kv_numbers_per_token * element_bytes
    return {"linear": Part(work.linear, weights), "attention": Part(work.attention, kv)}
