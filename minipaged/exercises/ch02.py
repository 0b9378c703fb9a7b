"""Checks of chapter 2: the shape of K from a config, a cell's offset, the head split, the bytes of all K."""

from __future__ import annotations

from math import prod
from typing import Any

import torch

from minipaged.exercises._base import Mistake, attempt, exercise, listed, whole
from minipaged.shapes import contiguous_strides, flat_offset, num_bytes, predict_shapes, split_heads

# Small configs with the traps of real ones: fewer KV heads, a head_dim that is given, one that is null or missing.
_GROUPED = {"hidden_size": 576, "num_attention_heads": 9, "num_key_value_heads": 3, "num_hidden_layers": 30}
_GIVEN = {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_hidden_layers": 4,
}
_NULL = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": None,
    "num_hidden_layers": 2,
}


def _entries(config: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in config.items() if name != "num_hidden_layers")


def _as_shape(value: Any, asked: str) -> tuple[int, ...]:
    lengths = listed(value, asked)
    if None in lengths:
        raise Mistake(f"you return {tuple(lengths)}; return {asked}: an entry that is there may still be None")
    return tuple(whole(length) for length in lengths)


@exercise("K has the config's head_dim when it gives one, and one head per KV head")
def check_02_k_shape(answer: Any) -> None:
    """`answer(config, batch, length)` -> the shape of K in one layer's cache."""
    for config in (_GROUPED, _GIVEN, _NULL, {k: v for k, v in _NULL.items() if k != "head_dim"}):
        got = _as_shape(attempt(answer, config, 2, 5), f"a shape of four numbers for {_entries(config)}")
        want = predict_shapes(config, 2, 5)["K cache"]
        if got != want:
            raise Mistake(
                f"for {_entries(config)}, batch 2, length 5 you say {got}, expected {want}: {_why(got, config)}"
            )


def _why(got: tuple[int, ...], config: dict[str, Any]) -> str:
    """Name the mistake behind a wrong shape."""
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    known = {
        (2, 5, kv_heads, head_dim): "heads come before tokens in the cache, [batch, heads, length, head_dim]",
        (2, heads, 5, head_dim): "K has the KV heads, not the query heads",
        (2, kv_heads, 5, config["hidden_size"] // heads): "this config gives head_dim: take it, do not compute it",
        (
            2,
            kv_heads,
            5,
            config["hidden_size"] // kv_heads,
        ): "hidden_size is divided by the query heads, not by KV heads",
        (kv_heads, 5, head_dim): "the batch is missing",
        (2, kv_heads, head_dim, 5): "the tokens come before the numbers of a head, [batch, heads, length, head_dim]",
        (2, 2 * kv_heads, 5, head_dim): "that is K and V together; here K alone is asked for",
        (2, 5, kv_heads * head_dim): "that is what k_proj gives; K is cut into heads",
    }
    return known.get(got, "the axes are [batch, num_key_value_heads, length, head_dim]")


@exercise("your offsets find every cell, in any row-by-row tensor")
def check_02_offset(answer: Any) -> None:
    """`answer(index, shape)` -> place of a cell in a contiguous tensor."""
    cases = [((3,), (5,)), ((2, 3), (3, 5)), ((1, 0, 2), (2, 3, 4)), ((0, 2, 5, 10), (1, 3, 8, 64))]
    for index, shape in cases:
        got = whole(attempt(answer, index, shape))
        want = flat_offset(index, contiguous_strides(shape))
        if got != want:
            raise Mistake(
                f"cell {index} of shape {shape}: you say {got}, it stands at {want}: {_why_offset(got, index, shape)}"
            )


def _why_offset(got: int, index: tuple[int, ...], shape: tuple[int, ...]) -> str:
    """Name the mistake behind a wrong offset."""
    by_columns = tuple(reversed(contiguous_strides(shape[::-1])))
    own_lengths = sum(i * length for i, length in zip(index, shape, strict=True))
    if got == flat_offset(index, contiguous_strides(shape)) + 1:
        return "one too many: the first cell stands at 0"
    if got == flat_offset(index, by_columns):
        return "you let the first axis run fastest; in torch the last one does"
    if got == flat_offset(index, contiguous_strides(shape)) - 1:
        return "one too few: the first cell stands at 0, and so do indices start"
    if got == 4 * flat_offset(index, contiguous_strides(shape)):
        return "places are counted in numbers, not in bytes"
    if got == own_lengths or got == sum(i * prod(shape[axis:]) for axis, i in enumerate(index)):
        return "an axis's stride is the product of the lengths behind it, not its own length"
    return "a stride is the product of all lengths behind the axis, 1 for the last"


@exercise("each head holds its own columns of every token")
def check_02_split_heads(answer: Any) -> None:
    """`answer(x, num_heads)`: [batch, length, num_heads * head_dim] -> [batch, num_heads, length, head_dim]."""
    for batch, length, heads, dim in ((1, 2, 3, 2), (2, 3, 2, 4), (2, 4, 4, 4)):
        x = torch.arange(batch * length * heads * dim).view(batch, length, heads * dim)
        got, want = _as_tensor(attempt(answer, x, heads)), split_heads(x, heads)
        if got.shape != want.shape:
            found, right = tuple(got.shape), tuple(want.shape)
            raise Mistake(
                f"x {tuple(x.shape)}, {heads} heads: you give shape {found}, expected {right}{_swap(found, right)}"
            )
        if not bool((got == want).all()):
            raise Mistake(f"x = arange, shape {tuple(x.shape)}, {heads} heads: {_stranger(got, x, want, heads)}")


def _as_tensor(value: Any) -> torch.Tensor:
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        many = f"{len(value)} pieces" if isinstance(value, (list, tuple)) else type(value).__name__
        raise Mistake(f"you return {many}; return one tensor [batch, num_heads, length, head_dim]") from None


def _swap(found: tuple[int, ...], right: tuple[int, ...]) -> str:
    """A word about two axes that changed places."""
    if found == (right[0], right[2], right[1], right[3]):
        return ": the tokens and the heads have yet to change places"
    if found == (right[1], right[0], *right[2:]) and right[0] != right[1]:
        return ": the batch comes first, then the heads"
    return ""


def _stranger(got: torch.Tensor, x: torch.Tensor, want: torch.Tensor, heads: int) -> str:
    """Say where the first wrong number is, and which mistake puts it there."""
    dim = want.shape[3]
    place = tuple(int(i) for i in (got != want).nonzero()[0])
    where = f"at [batch, head, token, number] = {list(place)} stands {int(got[place])}, expected {int(want[place])}"
    if torch.equal(got, x.reshape(want.shape)):
        return f"{where}: view alone gives the right shape and mixes tokens; cut into heads first, then transpose"
    if torch.equal(got, x.unflatten(-1, (dim, heads)).permute(0, 3, 1, 2)):
        return f"{where}: a head is {dim} neighbouring columns, not one column in every {heads}"
    return f"{where}: head h of a token is its columns h*{dim} to h*{dim}+{dim - 1}"


@exercise("K of all layers, counted with the KV heads")
def check_02_k_bytes(answer: Any) -> None:
    """`answer(config, batch, length, bytes_per_number)` -> bytes of the K tensors of all layers."""
    for config, batch, length, size in ((_GROUPED, 1, 100, 2), (_GIVEN, 3, 7, 4), (_NULL, 2, 5, 2)):
        got = whole(attempt(answer, config, batch, length, size))
        shape = predict_shapes(config, batch, length)["K cache"]
        layers, numbers = config["num_hidden_layers"], num_bytes(shape, "int8")
        want = layers * numbers * size
        if got == want:
            continue
        group = config["num_attention_heads"] // config["num_key_value_heads"]
        given = config["hidden_size"] // config["num_attention_heads"] / shape[3]
        known = {
            2 * want / layers: "that is K and V of one layer; here K alone is asked for, of all layers",
            want / layers: "that is one layer; this model has as many K tensors as layers",
            want * 2: "that is K and V together; here K alone is asked for",
            want / size: "that is how many numbers; each takes bytes_per_number bytes",
            want * group: "K has the KV heads, not the query heads",
            want * given: "this config gives head_dim: take it, do not compute it",
            want / length: "the length is missing: every token has its own K",
            want * 8: "that is bits; a byte has 8 of them",
            want / batch: "the batch is missing: every sequence has its own K",
        }
        why = known.get(got, "layers x batch x num_key_value_heads x length x head_dim x bytes_per_number")
        case = f"{layers} layers, {_entries(config)}, batch {batch}, length {length}, {size} bytes a number"
        raise Mistake(f"{case}: you say {got:,}, expected {want:,}: {why}")
