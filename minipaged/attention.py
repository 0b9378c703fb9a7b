"""Chapter 3. What one attention layer computes, written plainly: the reference that everything later is compared with.

Every query row scores every key it may look at, softmax turns the row into shares, the output is that mix of values:

              keys 0 1 2 3 4                                          grouped heads: query head h reads
    query 2        # # # . .      scores = q @ k^T * scale            KV head h // group
    query 3        # # # # .      shares = softmax over the #         causal: the last query sits on the
    query 4        # # # # #      output = shares @ v                 last key, so a chunk sees its past

The whole score matrix is built, so memory grows with q_len x kv_len. Left out: speed (chapters 8 and 9), padding masks
(this course packs instead), dropout and training. RoPE, which gives a token its place, is at the end of the file.
"""

from __future__ import annotations

from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from minipaged.errors import InvalidInputError, real_number, shown, whole_number, yes_or_no

_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = True,
    scale: float | None = None,
    sliding_window: int | None = None,
    logit_softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attention with every score in memory at once (Vaswani et al. 2017, section 3.2; grouped: Ainslie et al. 2023).

    Args:
        q: queries [..., num_heads, q_len, k_dim], in float64, float32, float16 or bfloat16.
        k: keys [..., num_kv_heads, kv_len, k_dim], same dtype and leading axes.
        v: values [..., num_kv_heads, kv_len, v_dim], same dtype and leading axes; v_dim may differ from k_dim.
        causal: a query looks at its own key and earlier ones. The LAST query belongs to the LAST key, so the queries of
            a chunk can follow any number of older keys (q_len <= kv_len).
        scale: what scores are multiplied by; None means 1 / sqrt(k_dim).
        sliding_window: a query looks at this many keys at most: its own and the window - 1 before it, as transformers
            counts it. None means no limit. Needs causal=True.
        logit_softcap: c > 0 replaces each scaled score s by c * tanh(s / c), before masking (Gemma 2).
        sinks: [num_heads], one learned score per query head that joins the sum below the fraction and nothing else
            (gpt-oss): shares then add up to less than 1. Neither `scale` nor `logit_softcap` touches it.

    Returns:
        [..., num_heads, q_len, v_dim] in the dtype of `q`. float64 and float32 are computed as they are, float16 and
        bfloat16 in float32. A query that may look at nothing (kv_len = 0) gives zeros.

    Raises:
        InvalidInputError: shapes, dtypes or options that do not fit together.
    """
    _check_values(k, v)
    shares = attention_weights(
        q, k, causal=causal, scale=scale, sliding_window=sliding_window, logit_softcap=logit_softcap, sinks=sinks
    )  # [..., num_heads, q_len, kv_len]
    num_kv_heads = k.shape[-3]
    shares = group_heads(shares, num_kv_heads)  # [..., num_kv_heads, group, q_len, kv_len]
    mixed = shares @ v.to(shares.dtype).unsqueeze(-3)  # [..., num_kv_heads, group, q_len, v_dim]
    return mixed.flatten(-4, -3).to(q.dtype)  # [..., num_heads, q_len, v_dim]


def attention_weights(
    q: Tensor,
    k: Tensor,
    *,
    causal: bool = True,
    scale: float | None = None,
    sliding_window: int | None = None,
    logit_softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """The shares that `attention` mixes the values with: what an attention map shows.

    Arguments and errors are those of `attention`. Returns [..., num_heads, q_len, kv_len] in the dtype the computation
    runs in (float64 for float64, else float32). A row sums to 1, or to less with `sinks`, or to 0 when it sees nothing.
    """
    _check_queries(q, k)
    _check_options(q, k, causal, sliding_window, logit_softcap, sinks)
    scores = attention_scores(q, k, scale=scale, logit_softcap=logit_softcap)  # [..., num_heads, q_len, kv_len]
    if not causal:
        return masked_softmax(scores, None, sinks)
    return masked_softmax(scores, causal_mask(q.shape[-2], k.shape[-2], sliding_window, device=q.device), sinks)


def attention_scores(q: Tensor, k: Tensor, *, scale: float | None = None, logit_softcap: float | None = None) -> Tensor:
    """How well each query fits each key, before any mask: q . k * scale, softcapped if asked.

    Shapes as in `attention`; returns [..., num_heads, q_len, kv_len] in float64 for float64 input, else in float32.
    """
    _check_queries(q, k)
    logit_softcap = _check_softcap(logit_softcap)
    compute = torch.float64 if q.dtype == torch.float64 else torch.float32
    scale = q.shape[-1] ** -0.5 if scale is None else real_number("scale", scale)
    grouped = group_heads(q.to(compute), k.shape[-3])  # [..., num_kv_heads, group, q_len, k_dim]
    keys = k.to(compute).unsqueeze(-3).transpose(-2, -1)  # [..., num_kv_heads, 1, k_dim, kv_len]
    scores = (grouped @ keys).flatten(-4, -3) * scale  # [..., num_heads, q_len, kv_len]
    return scores if logit_softcap is None else logit_softcap * torch.tanh(scores / logit_softcap)


def group_heads(x: Tensor, num_kv_heads: int) -> Tensor:
    """[..., num_heads, a, b] -> [..., num_kv_heads, group, a, b], so that a group stands beside its KV head.

    Neighbouring query heads form a group: head h lands at (h // group, h % group). Nothing is copied.
    """
    num_kv_heads = whole_number("num_kv_heads", num_kv_heads, 1)
    if _tensor("x", x).dim() < 3 or x.shape[-3] % num_kv_heads:
        raise InvalidInputError(
            f"x has shape {list(x.shape)}; [..., num_heads, a, b] with num_heads a multiple of {num_kv_heads} is needed"
        )
    return x.unflatten(-3, (num_kv_heads, x.shape[-3] // num_kv_heads))


def causal_mask(
    q_len: int, kv_len: int, sliding_window: int | None = None, *, device: torch.device | str | None = None
) -> Tensor:
    """Who may look at whom: bool [q_len, kv_len], True where query row may look at key column.

    The queries are the last q_len of kv_len tokens, so row i has position kv_len - q_len + i (aligned bottom-right).
    With a window, a row keeps its own key and the `sliding_window` - 1 before it.
    """
    q_len, kv_len = whole_number("q_len", q_len), whole_number("kv_len", kv_len)
    if q_len > kv_len or q_len * kv_len > 2**40:
        raise InvalidInputError(
            f"q_len is {q_len} and kv_len {kv_len}; the queries are the last q_len of kv_len tokens"
        )
    sliding_window = _window(sliding_window)
    try:
        device = device if device is None else torch.device(device)
    except (TypeError, RuntimeError, ValueError, OverflowError):
        raise InvalidInputError(f'device is {shown(device)}; use a torch device or its name, such as "cpu"') from None
    query_pos = torch.arange(kv_len - q_len, kv_len, device=device)[:, None]  # [q_len, 1]
    key_pos = torch.arange(kv_len, device=device)[None, :]  # [1, kv_len]
    mask = key_pos <= query_pos  # [q_len, kv_len]
    return mask if sliding_window is None else mask & (key_pos > query_pos - sliding_window)


def masked_softmax(scores: Tensor, mask: Tensor | None = None, sinks: Tensor | None = None) -> Tensor:
    """Softmax along the last axis that cannot overflow and gives zeros where a row has nothing to look at.

    Args:
        scores: [..., num_heads, q_len, kv_len]; without `sinks`, any shape [..., kv_len].
        mask: bool, broadcasts against `scores`; False hides an entry completely, whatever its score. None: no mask.
        sinks: [num_heads], see `attention`.

    Subtracting the row's maximum leaves every share as it is and makes the largest exponential exactly 1. Hidden
    entries are a true -inf: any finite stand-in, such as -10000, would win over a real score below it. In a row of
    -inf only, the maximum is -inf too, and -inf - -inf is NaN: there 0 is subtracted instead.
    """
    if not _tensor("scores", scores).is_floating_point() or scores.dim() < 1:
        raise InvalidInputError(f"scores is {scores.dtype} {list(scores.shape)}; it needs floating-point [..., kv_len]")
    if mask is not None and (_tensor("mask", mask).dtype != torch.bool or not _fits(mask.shape, scores.shape)):
        raise InvalidInputError(
            f"mask is {mask.dtype} {list(mask.shape)}; it needs bool that broadcasts to the scores {list(scores.shape)}"
        )
    if sinks is not None and (scores.dim() < 3 or _tensor("sinks", sinks).shape != scores.shape[-3:-2]):
        raise InvalidInputError(f"sinks has shape {list(sinks.shape)}; it needs one number per head of the scores")
    if sinks is not None and not sinks.is_floating_point():
        raise InvalidInputError(f"sinks is {sinks.dtype}; it needs floating-point numbers, as the scores have")
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    nobody = scores.new_full((*scores.shape[:-1], 1), -torch.inf)  # a sink that weighs nothing: exp(-inf) = 0
    sink = nobody if sinks is None else sinks.to(scores)[:, None, None].expand_as(nobody)  # [..., num_heads, q_len, 1]
    top = torch.cat([scores, sink], dim=-1).amax(dim=-1, keepdim=True)  # [..., 1]; has an entry even if kv_len = 0
    top = top.masked_fill(top == -torch.inf, 0.0)
    parts = torch.exp(scores - top)  # [..., kv_len], each between 0 and 1
    total = parts.sum(dim=-1, keepdim=True) + torch.exp(sink - top)  # [..., 1]
    return parts / total.masked_fill(total == 0, 1.0)


# --- RoPE: a token's place, as rotation ------------------------------------------------------------------------------


def rope_cos_sin(
    positions: Tensor, head_dim: int, theta: float = 10_000.0, *, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """The rotation of each position: (cos, sin), each [..., head_dim] for positions [...] (Su et al. 2021, sec. 3.2.2).

    A head is head_dim / 2 pairs of numbers; pair i turns by position * theta^(-2i / head_dim) radians. As in Llama,
    pair i is made of the numbers i and i + head_dim / 2, so the table holds all angles twice, one after the other.
    float32 is what transformers uses: take it to equal a model, float64 to study the formula itself.
    """
    head_dim, theta = whole_number("head_dim", head_dim, most=2**20), real_number("theta", theta, above=0)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise InvalidInputError(f"dtype is {shown(dtype)}; use torch.float32 or torch.float64")
    if _tensor("positions", positions).is_complex():
        raise InvalidInputError(f"positions are {positions.dtype}; they are whole numbers")
    if head_dim < 2 or head_dim % 2:
        raise InvalidInputError(
            f"head_dim is {head_dim}; RoPE turns pairs of numbers, so it must be even and at least 2"
        )
    exponent = torch.arange(0, head_dim, 2, device=positions.device, dtype=dtype) / head_dim  # [head_dim / 2]
    angle = positions.to(dtype)[..., None] * (1.0 / theta**exponent)  # [..., head_dim / 2]
    angle = torch.cat([angle, angle], dim=-1)  # [..., head_dim]
    return angle.cos(), angle.sin()


def rotate_half(x: Tensor) -> Tensor:
    """Each pair (a, b) becomes (-b, a), a quarter turn: [..., head_dim] -> [..., head_dim]."""
    if _tensor("x", x).dim() < 1 or x.shape[-1] % 2 or x.dtype == torch.bool:
        raise InvalidInputError(
            f"x has shape {list(x.shape)}; its last axis is made of pairs, so it has an even length"
        )
    first, second = x.chunk(2, dim=-1)  # two of [..., head_dim / 2]
    return torch.cat([-second, first], dim=-1)


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn every head of x [..., length, head_dim] by its token's angle; cos and sin [length, head_dim] broadcast.

    Used on queries and keys, never on values. A key is turned once, by its own position, and then stays as it is.
    """
    if _tensor("cos", cos).shape != _tensor("sin", sin).shape or cos.dim() < 1 or _tensor("x", x).dim() < 1:
        raise InvalidInputError(f"x has shape {list(x.shape)}, cos {list(cos.shape)} and sin {list(sin.shape)}")
    if x.shape[-1] != cos.shape[-1]:
        raise InvalidInputError(
            f"x has head_dim {x.shape[-1]} and the table {cos.shape[-1]}: make it with rope_cos_sin(positions, "
            f"{x.shape[-1]}, theta)"
        )
    if not _fits(cos.shape, x.shape) or not x.is_floating_point():
        raise InvalidInputError(
            f"x is {x.dtype} {list(x.shape)} and the table {list(cos.shape)}; it needs a row for each of the "
            "floating-point x's tokens"
        )
    return x * cos.to(x.dtype) + rotate_half(x) * sin.to(x.dtype)


# --- What attention refuses ------------------------------------------------------------------------------------------


def _check_queries(q: Tensor, k: Tensor) -> None:
    """q and k have the right axes, one dtype, one head size, and heads that can be grouped."""
    for name, x in (("q", q), ("k", k)):
        if _tensor(name, x).dim() < 3:
            raise InvalidInputError(
                f"{name} has shape {list(x.shape)}; attention needs [..., heads, length, head_dim]: add the missing "
                "axes, for one head with x[None]"
            )
        if x.dtype not in _FLOATS:
            raise InvalidInputError(f"{name} is {x.dtype}; pass float64, float32, float16 or bfloat16")
    _same_leading("q", q, "k", k)
    if q.shape[-1] != k.shape[-1] or q.shape[-1] == 0:
        raise InvalidInputError(
            f"q has head_dim {q.shape[-1]} and k has {k.shape[-1]}; a score multiplies them number by number, so they "
            "must be equal and at least 1"
        )
    num_heads, num_kv_heads = q.shape[-3], k.shape[-3]
    if num_kv_heads == 0 or num_heads == 0 or num_heads % num_kv_heads:
        raise InvalidInputError(
            f"{num_heads} query heads cannot share {num_kv_heads} KV heads evenly; num_heads must be a multiple of "
            "num_kv_heads (axis -3 of q and of k: are length and heads swapped? then x.transpose(-3, -2))"
        )


def _check_values(k: Tensor, v: Tensor) -> None:
    """v has one row for each row of k."""
    if _tensor("v", v).dim() < 3 or _tensor("k", k).dim() < 3 or k.shape[-3:-1] != v.shape[-3:-1]:
        raise InvalidInputError(
            f"k has shape {list(k.shape)} and v {list(v.shape)}; both need [..., num_kv_heads, kv_len, dim] with the "
            "same num_kv_heads and kv_len: every key has one value"
        )
    _same_leading("k", k, "v", v)


def _same_leading(a_name: str, a: Tensor, b_name: str, b: Tensor) -> None:
    if a.shape[:-3] != b.shape[:-3]:
        raise InvalidInputError(
            f"{a_name} has leading axes {list(a.shape[:-3])} and {b_name} {list(b.shape[:-3])}; they must be equal: "
            "expand the smaller one first"
        )
    if a.dtype != b.dtype:
        raise InvalidInputError(f"{a_name} is {a.dtype} and {b_name} is {b.dtype}; convert one with .to(dtype)")


def _check_options(
    q: Tensor, k: Tensor, causal: bool, window: Any, softcap: float | None, sinks: Tensor | None
) -> None:
    """The mask fits the lengths, and every option has a value that means something."""
    yes_or_no("causal", causal)
    if causal and q.shape[-2] > k.shape[-2]:
        raise InvalidInputError(
            f"{q.shape[-2]} queries and only {k.shape[-2]} keys; with causal=True every query's own key must be among "
            "the keys: pass K and V of all tokens so far, or causal=False"
        )
    _window(window)
    if window is not None and not causal:
        raise InvalidInputError(
            f"sliding_window is {window} and causal is False; the window looks back from each query: pass causal=True, "
            "or sliding_window=None"
        )
    _check_softcap(softcap)
    if sinks is not None and _tensor("sinks", sinks).shape != (q.shape[-3],):
        raise InvalidInputError(
            f"sinks has shape {list(sinks.shape)}; it needs one number per query head: [{q.shape[-3]}]"
        )


def _check_softcap(softcap: Any) -> float | None:
    """Infinity times tanh(0) is no number."""
    if softcap is None:
        return None
    try:
        return real_number("logit_softcap", softcap, above=0)
    except InvalidInputError:
        raise InvalidInputError(
            f"logit_softcap is {shown(softcap)}; it must be above 0 and finite, or None for no cap"
        ) from None


def _window(window: Any) -> int | None:
    if window is None:
        return None
    if not isinstance(window, Integral) or isinstance(window, bool) or not 1 <= window < 2**63:
        raise InvalidInputError(
            f"sliding_window is {shown(window)}; it counts the keys a query looks at, its own included, so it must be "
            "a whole number of at least 1, or None for no limit"
        )
    return int(window)


def _tensor(name: str, x: Any) -> Tensor:
    if not isinstance(x, Tensor) or x.layout != torch.strided:
        raise InvalidInputError(f"{name} is {shown(x)}; pass a torch tensor")
    return x


def _fits(shape: torch.Size, whole: torch.Size) -> bool:
    """Whether a tensor of this shape broadcasts to the other one without making it larger."""
    aligned = zip(reversed(shape), reversed(whole), strict=False)
    return len(shape) <= len(whole) and all(length in (1, full) for length, full in aligned)
