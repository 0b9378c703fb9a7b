"""Checks of chapter 3: one score by hand, a chunk's mask, a softmax that holds, heads in groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from minipaged.attention import attention, causal_mask, masked_softmax
from minipaged.exercises._base import Mistake, _short, attempt, exercise, listed

# The numbers of the exercise "one score by hand": 4 query heads, 2 KV heads, heads of 4 numbers; query head 2 looks.
_HEADS, _KV_HEADS, _LOOKS = 4, 2, 2
_Q = [1.0, 2.0, 0.0, 3.0]
_K = [[2.0, 1.0, 1.0, 2.0], [4.0, -1.0, 5.0, 2.0]]  # this token's key in KV head 0, in KV head 1


@exercise("group, dot product, scale: 1 / sqrt(head_dim) keeps scores from growing with the head's size")
def check_03_score(answer: Any) -> None:
    """One score of grouped-query attention, computed by hand."""
    if isinstance(answer, (bool, str, bytes)) or not (hasattr(answer, "item") or hasattr(answer, "__float__")):
        raise Mistake(f"you give {_short(answer)}; give the score as one number")
    got = float(answer)
    grouped, tiled = _LOOKS // (_HEADS // _KV_HEADS), _LOOKS % _KV_HEADS
    dot = [sum(a * b for a, b in zip(_Q, key, strict=True)) for key in _K]
    root = len(_Q) ** 0.5
    if abs(got - dot[grouped] / root) < 1e-6:
        return
    known = {
        dot[grouped]: f"{got:g} is the dot product; it is not yet multiplied by 1 / sqrt({len(_Q)})",
        dot[grouped] / len(_Q): f"{got:g} is divided by head_dim {len(_Q)}; divide by its square root",
        dot[tiled]
        / root: f"{got:g} uses KV head {tiled}; query head {_LOOKS} belongs to the group of KV head {grouped}, "
        f"since {_LOOKS} // {_HEADS // _KV_HEADS} = {grouped}",
        dot[
            tiled
        ]: f"{got:g} uses KV head {tiled} and no scale: the KV head is {_LOOKS} // {_HEADS // _KV_HEADS}, and the "
        f"dot product is divided by sqrt({len(_Q)})",
    }
    for value, why in known.items():
        if abs(got - value) < 1e-6:
            raise Mistake(why)
    products = " + ".join(f"{a:g}·{b:g}" for a, b in zip(_Q, _K[grouped], strict=True))
    raise Mistake(f"{got:g} is not the score; multiply number by number, add ({products}), then scale")


@exercise("each query sees the keys up to its own, wherever the chunk starts; a square is the case q_len = kv_len")
def check_03_chunk_mask(answer: Any) -> None:
    """A causal mask for the last q_len of kv_len tokens: rows of True and False."""
    for q_len, kv_len in [(1, 1), (2, 2), (1, 3), (2, 5), (3, 4), (3, 3)]:
        case = f"chunk_mask({q_len}, {kv_len})"
        got = _as_bools(attempt(answer, q_len, kv_len), case)
        want = causal_mask(q_len, kv_len)
        if got.shape != want.shape:
            raise Mistake(
                f"{case} has shape {list(got.shape)}, expected [{q_len}, {kv_len}]: a row a query, a column a key"
            )
        if not torch.equal(got, want):
            shown = f"{case} gives {got.int().tolist()}, expected {want.int().tolist()}"
            raise Mistake(f"{shown}: {_why_mask(answer, got, want)}")


def _as_bools(mask: Any, case: str) -> Tensor:
    if not isinstance(mask, Tensor):
        rows = [listed(row, "a row of True and False for each query") for row in listed(mask, "a list of rows")]
        if len({len(row) for row in rows}) > 1:
            raise Mistake(f"{case} has rows of different lengths; each row has an entry for every key, True or False")
        mask = torch.tensor(rows)
    if mask.dtype.is_floating_point:
        raise Mistake(f"{case} gives numbers of type {mask.dtype}; return True where a query may look, else False")
    return mask.bool()


def _why_mask(answer: Callable[..., Any], got: Tensor, want: Tensor) -> str:
    """What kind of wrong mask this is, seen on a chunk of 3 after 2 older tokens."""
    chunk = _as_bools(attempt(answer, 3, 5), "chunk_mask(3, 5)")
    rows, columns = torch.arange(3)[:, None], torch.arange(5)[None]
    known = [
        (columns >= 0, "nothing is hidden: a token would look at tokens that are not written yet"),
        (columns > rows + 2, "it is the other way round: True means that the query may look"),
        (
            columns <= rows,
            "the mask starts at the top left, as if the chunk were the first tokens; its rows are the last",
        ),
        (columns < rows + 2, "a token may look at itself as well: <=, not <"),
        (columns <= rows + 3, "one key too many: the newest query would see one token ahead"),
        (columns < 0, "everything is hidden: a token may look at itself and at all before it"),
        (columns == rows + 2, "each query sees only its own key; it may see all keys before it too"),
        (columns < 2, "the chunk's own keys are hidden; a new token sees itself and the new ones before it"),
        (
            (columns >= 2) & (columns <= rows + 2),
            "the keys before the chunk are hidden; they are what the cache is for",
        ),
        (columns >= rows + 2, "it looks ahead instead of back: keys up to the query's own, not from it on"),
    ]
    if chunk.shape == (5, 3):
        return "rows and columns are in each other's place: a row a query, a column a key"
    for mask, why in known:
        if chunk.shape == mask.expand(3, 5).shape and torch.equal(chunk, mask.expand(3, 5)):
            return why
    row = int((got != want).any(dim=1).nonzero()[0])
    return (
        f"row {row} is the query at position {want.shape[1] - want.shape[0] + row}, which sees the keys up to its own"
    )


@exercise("the largest exponential of each row is exactly 1, so nothing overflows, and a row of -inf gives zeros")
def check_03_stable_softmax(answer: Any) -> None:
    """Softmax along the last axis, for any scores, masked rows included."""
    inf = torch.inf
    cases: list[list[Any]] = [
        [1.0, 2.0, 3.0],
        [[1.0, 2.0], [5.0, 3.0]],
        [1000.0, 1001.0],
        [[0.0, 1.0], [1000.0, 1001.0]],
        [-1000.0, -1001.0],
        [0.0, -inf],
        [-20000.0, -inf],
        [-inf, -inf],
    ]
    for case in cases:
        scores = torch.tensor(case)
        want = masked_softmax(scores)
        got = torch.as_tensor(attempt(answer, scores.clone()))
        if got.shape != want.shape:
            raise Mistake(f"for {case} the result has shape {list(got.shape)}, expected {list(want.shape)}")
        if not torch.allclose(got.double(), want.double(), atol=1e-5):
            shown = f"for {case} you get {_rounded(got)}, expected {_rounded(want)}"
            raise Mistake(f"{shown}: {_why_softmax(scores, got)}")


def _rounded(x: Tensor) -> Any:
    return [_rounded(row) for row in x] if x.dim() else round(x.item(), 4)


def _why_softmax(scores: Tensor, got: Tensor) -> str:
    hidden = scores == -torch.inf
    if hidden.all():
        if got.isnan().any():
            return "the maximum of the row is -inf, and -inf - -inf is not a number; subtract 0 there, divide by 1"
        return "a row that may look at nothing must give zeros, not equal shares"
    if hidden.any() and not (got > 0).any():
        return "subtract the row's maximum; its minimum or its mean is infinite when one entry is hidden"
    if hidden.any():
        return "a hidden entry weighs exactly 0, however low the others are: keep -inf, exp(-inf) is 0"
    if scores.dim() == 2 and any(torch.allclose(got, wrong, atol=1e-5) for wrong in _without_keepdim(scores)):
        return "keepdim=True is missing in a maximum or a sum: the rows' numbers were lined up with the columns"
    if scores.dim() == 2 and torch.allclose(got.double(), scores.double().softmax(0), atol=1e-5):
        return "you normalise down the columns; each row is one query, so the last axis must sum to 1"
    if scores.abs().max() > 100:
        if scores.dim() == 2:
            return "the maximum must be each row's own (dim=-1, keepdim=True): with another row's, a whole row vanishes"
        return "exp of a large score is infinite, of a very low one 0: subtract the row's maximum first"
    if (got < 0).any():
        return "these are logarithms of the shares (log_softmax); take the exponential"
    if not torch.allclose(got.double().sum(-1), torch.ones(scores.shape[:-1], dtype=torch.float64), atol=1e-4):
        return "the shares of a row must sum to 1: divide by the sum of the exponentials"
    return "each share is exp(score) divided by the sum of the row's exponentials"


def _without_keepdim(scores: Tensor) -> list[Tensor]:
    """The square results that come out when the maximum, the sum, or both lose their axis."""
    tops = scores.amax(-1, keepdim=True), scores.amax(-1)
    parts = [(scores - top).exp() for top in tops]
    return [parts[0] / parts[0].sum(-1), parts[1] / parts[1].sum(-1), parts[1] / parts[1].sum(-1, keepdim=True)]


@exercise(
    "neighbouring query heads share a KV head, in every layout of heads, for a whole text and for its last tokens"
)
def check_03_grouped_heads(answer: Any) -> None:
    """Causal attention with grouped heads: q [num_heads, q_len, dim], k and v [num_kv_heads, kv_len, dim]."""
    g = torch.Generator().manual_seed(0)
    for heads, kv_heads, q_len, kv_len in [
        (1, 1, 3, 3),
        (1, 1, 2, 4),
        (2, 2, 3, 3),
        (4, 2, 3, 3),
        (9, 3, 4, 4),
        (8, 1, 2, 2),
        (4, 2, 2, 5),
    ]:
        q, k, v = (
            torch.randn(*shape, 4, generator=g) for shape in ((heads, q_len), (kv_heads, kv_len), (kv_heads, kv_len))
        )
        got = torch.as_tensor(attempt(answer, q, k, v)).float()
        want = attention(q, k, v)
        case = f"{heads} query heads on {kv_heads} KV heads, {q_len} queries, {kv_len} keys"
        if got.shape != want.shape:
            raise Mistake(f"{case}: the result has shape {list(got.shape)}, expected {list(want.shape)}")
        if not torch.allclose(got, want, atol=1e-5):
            wrong = (~torch.isclose(got, want, atol=1e-5)).flatten(1).any(1).nonzero().flatten().tolist()
            raise Mistake(f"{case}: heads {wrong} are wrong: {_why_heads(q, k, v, got)}")


def _why_heads(q: Tensor, k: Tensor, v: Tensor, got: Tensor) -> str:
    group = q.shape[0] // k.shape[0]
    q_len, kv_len = q.shape[1], k.shape[1]
    right_mask = causal_mask(q_len, kv_len)
    own = torch.arange(kv_len) == torch.arange(kv_len - q_len, kv_len)[:, None]
    keys, values = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
    scores = q @ keys.mT / 2
    down = scores.masked_fill(~right_mask, -torch.inf).softmax(-2).nan_to_num()
    top_left = torch.ones(q_len, kv_len, dtype=torch.bool).tril()
    mixed = attention(q, k, v[:1].expand_as(v))
    known = [
        (attention(q, k.repeat(group, 1, 1), v.repeat(group, 1, 1)),
         "the KV heads are laid out 0 1 0 1 (tiled); a group of neighbours shares one, 0 0 1 1"),
        (attention(q, k.repeat_interleave(group, 0), v.repeat(group, 1, 1)),
         "the keys are grouped and the values still tiled: both need the same order"),
        (attention(q, k, v, scale=1.0), "the scores are not scaled by 1 / sqrt(dim)"),
        (attention(q, k, v, causal=False), "nothing is masked: queries see keys after their own"),
        (masked_softmax(q @ k.repeat_interleave(group, 0).mT / 2, top_left) @ v.repeat_interleave(group, 0),
         "the mask starts at the top left; the queries are the last tokens, so align it with the last key"),
        (attention(q, k[:1].expand_as(k), v[:1].expand_as(v)), "every head reads KV head 0"),
        (q @ k.repeat_interleave(group, 0).mT @ v.repeat_interleave(group, 0), "scores are not shares yet: softmax"),
        (attention(q, k.repeat(group, 1, 1), v.repeat_interleave(group, 0)),
         "the values are grouped and the keys still tiled: both need the same order"),
        (attention(q, k, v, scale=1 / q.shape[-1]), "the scores are divided by dim; divide by its square root"),
        (scores.masked_fill(~right_mask | own, -torch.inf).softmax(-1) @ values,
         "a query may look at its own key too; here a token does not see itself"),
        (scores.masked_fill(right_mask, -torch.inf).softmax(-1) @ values,
         "the mask is the other way round: what may be seen is hidden"),
        (down @ values, "softmax runs down the columns; the shares of each query, a row, must sum to 1"),
        (scores.softmax(-1) * right_mask @ values,
         "the mask comes after softmax, so the shares that are left do not sum to 1; set the scores to -inf before"),
        (attention(q, v, k), "keys and values are in each other's place"),
        (mixed, "the shares are right and every head takes the values of KV head 0"),
    ]  # fmt: skip
    for value, why in known:
        if torch.allclose(got, value, atol=1e-5, equal_nan=True):
            return why
    return (
        f"head h must read KV head h // {group}, mask the future, scale by 1 / sqrt(dim), softmax, and mix the values"
    )
