"""Plausible wrong answers to chapter 9's exercises, and what the check must say about each."""

from __future__ import annotations

import itertools

from minipaged import puzzles

if puzzles.has_triton():  # chooses the interpreter first
    import triton.language as tl


def load_forgets(x, out, SIZE: tl.constexpr):
    i = tl.arange(0, SIZE)
    tl.store(out + i, tl.load(x + i))


def load_one(x, out, SIZE: tl.constexpr):
    tl.store(out, tl.load(x) + 10)


def load_shifted(x, out, SIZE: tl.constexpr):
    i = tl.arange(0, SIZE) + 1
    tl.store(out + i, tl.load(x + i) + 10)


def mask_none(x, out, n, SIZE: tl.constexpr):
    i = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(out + i, tl.load(x + i) * 2)


def mask_load_only(x, out, n, SIZE: tl.constexpr):
    i = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(out + i, tl.load(x + i, mask=i < n) * 2)


def mask_same_places(x, out, n, SIZE: tl.constexpr):
    i = tl.arange(0, SIZE)
    tl.store(out + i, tl.load(x + i, mask=i < n) * 2, mask=i < n)


def mask_fixed_20(x, out, n, SIZE: tl.constexpr):
    i = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(out + i, tl.load(x + i, mask=i < 20) * 2, mask=i < 20)


def mask_fixed_8(x, out, n, SIZE: tl.constexpr):
    i = tl.program_id(0) * 8 + tl.arange(0, 8)
    tl.store(out + i, tl.load(x + i, mask=i < n) * 2, mask=i < n)


def loop_first_tile(x, out, n, SIZE: tl.constexpr):
    i = tl.program_id(0) * n + tl.arange(0, SIZE)
    tl.store(out + i, tl.load(x + i) * 2)


def loop_row_0(x, out, n, SIZE: tl.constexpr):
    for first in range(0, n, SIZE):
        i = first + tl.arange(0, SIZE)
        tl.store(out + i, tl.load(x + i, mask=i < n) * 2, mask=i < n)


def loop_no_mask(x, out, n, SIZE: tl.constexpr):
    for first in range(0, n, SIZE):
        i = tl.program_id(0) * n + first + tl.arange(0, SIZE)
        tl.store(out + i, tl.load(x + i) * 2)


def loop_mask_in_tensor(x, out, n, SIZE: tl.constexpr):
    for first in range(0, n, SIZE):
        i = tl.program_id(0) * n + first + tl.arange(0, SIZE)
        tl.store(out + i, tl.load(x + i, mask=i < 3 * n) * 2, mask=i < 3 * n)


def loop_fixed_20_and_8(x, out, n, SIZE: tl.constexpr):
    for first in range(0, 20, 8):
        i = first + tl.arange(0, 8)
        place = tl.program_id(0) * 20 + i
        tl.store(out + place, tl.load(x + place, mask=i < 20) * 2, mask=i < 20)


def loop_steps_of_8(x, out, n, SIZE: tl.constexpr):
    for first in range(0, n, 8):
        i = first + tl.arange(0, SIZE)
        place = tl.program_id(0) * n + i
        tl.store(out + place, tl.load(x + place, mask=i < n) * 2, mask=i < n)


def loop_one_tile_of_32(x, out, n, SIZE: tl.constexpr):
    i = tl.arange(0, 32)
    place = tl.program_id(0) * n + i
    tl.store(out + place, tl.load(x + place, mask=i < n) * 2, mask=i < n)


def loop_one_tile_of_2048(x, out, n, SIZE: tl.constexpr):
    i = tl.arange(0, 2048)
    place = tl.program_id(0) * n + i
    tl.store(out + place, tl.load(x + place, mask=i < n) * 2, mask=i < n)


def reduce_from_minus_100(x, out, n, SIZE: tl.constexpr):
    top = -100.0
    for first in range(0, n, SIZE):
        i = first + tl.arange(0, SIZE)
        y = tl.load(x + tl.program_id(0) * n + i, mask=i < n, other=-100.0)
        top = tl.maximum(top, tl.max(y, axis=0))
    tl.store(out + tl.program_id(0), top)


def reduce_from_a_low_number(x, out, n, SIZE: tl.constexpr):
    top = -1000000.0
    for first in range(0, n, SIZE):
        i = first + tl.arange(0, SIZE)
        y = tl.load(x + tl.program_id(0) * n + i, mask=i < n, other=-1000000.0)
        top = tl.maximum(top, tl.max(y, axis=0))
    tl.store(out + tl.program_id(0), top)


def reduce_mask_in_tensor(x, out, n, SIZE: tl.constexpr):
    top = float("-inf")
    for first in range(0, n, SIZE):
        i = tl.program_id(0) * n + first + tl.arange(0, SIZE)
        top = tl.maximum(top, tl.max(tl.load(x + i, mask=i < 3 * n, other=float("-inf")), axis=0))
    tl.store(out + tl.program_id(0), top)


def reduce_one_tile_of_32(x, out, n, SIZE: tl.constexpr):
    i = tl.arange(0, 32)
    y = tl.load(x + tl.program_id(0) * n + i, mask=i < n, other=float("-inf"))
    tl.store(out + tl.program_id(0), tl.max(y, axis=0))


def reduce_zeros(x, out, n, SIZE: tl.constexpr):  # top = 0.0 leaves the same numbers, so the message names both
    top = float("-inf")
    for first in range(0, n, SIZE):
        i = first + tl.arange(0, SIZE)
        top = tl.maximum(top, tl.max(tl.load(x + tl.program_id(0) * n + i, mask=i < n, other=0.0), axis=0))
    tl.store(out + tl.program_id(0), top)


def reduce_last(x, out, n, SIZE: tl.constexpr):
    top = float("-inf")
    for first in range(0, n, SIZE):
        i = first + tl.arange(0, SIZE)
        top = tl.max(tl.load(x + tl.program_id(0) * n + i, mask=i < n, other=float("-inf")), axis=0)
    tl.store(out + tl.program_id(0), top)


def reduce_first(x, out, n, SIZE: tl.constexpr):
    tl.store(out + tl.program_id(0), tl.max(tl.load(x + tl.program_id(0) * n + tl.arange(0, SIZE)), axis=0))


def crashes(x, out, n, SIZE: tl.constexpr):
    tl.store(out + tl.arange(0, SIZE), nothing)  # noqa: F821


def _group(kv_head, heads, kv_heads):
    return list(range(kv_head * (heads // kv_heads), (kv_head + 1) * (heads // kv_heads)))


WRONG = {
    "check_09_load": [
        (load_forgets, "add 10 first"),
        (load_one, "One program handles all eight numbers"),
        (load_shifted, "program 0 loads x[8]"),
    ],
    "check_09_mask": [
        (mask_none, "give tl.load a mask"),
        (mask_load_only, "the store is not"),
        (mask_same_places, "begin at tl.program_id(0) * SIZE"),
        (mask_fixed_20, "write n wherever you wrote 20"),
        (mask_fixed_8, "write SIZE wherever you wrote 8"),
        (crashes, "NameError"),
    ],
    "check_09_loop": [
        (loop_first_tile, "Only the first tile was done"),
        (loop_row_0, "Every program did row 0"),
        (loop_no_mask, "mask the places that are not below n"),
        (loop_mask_in_tensor, "program 0 loads x[20], which belongs to row 1. The mask must compare the place"),
        (loop_fixed_20_and_8, "write n wherever you wrote 20"),
        (loop_steps_of_8, "write SIZE wherever you wrote 8"),
        (loop_one_tile_of_32, "Only the first 32 places of a row were done"),
        (loop_one_tile_of_2048, "a tile of yours has 2048 places"),
    ],
    "check_09_reduce": [
        (reduce_zeros, "0 is your starting number or came from behind the row's end"),
        (reduce_from_minus_100, "-100 is your starting number or came from behind"),
        (reduce_from_a_low_number, "A number can be lower than your stand-in -1e+06"),
        (reduce_mask_in_tensor, "program 0 loads x[20], which belongs to row 1"),
        (reduce_one_tile_of_32, "first tile's largest, of 32 places"),
        (reduce_last, "last tile's largest"),
        (reduce_first, "first tile's largest"),
    ],
    "check_09_query_heads": [
        (lambda kv_head, heads, kv_heads: list(range(kv_head, heads, kv_heads)), "like cards"),
        (lambda kv_head, heads, kv_heads: [kv_head], "serves a whole group"),
        (lambda kv_head, heads, kv_heads: [kv_head * kv_heads + i for i in range(heads // kv_heads)], "numbered 0 to"),
        (lambda kv_head, heads, kv_heads: kv_head, "return a list of query heads"),
        (lambda kv_head, heads, kv_heads: _group(kv_head, heads, kv_heads)[::-1], "in another order"),
        (lambda kv_head, heads, kv_heads: [q + 1 for q in _group(kv_head, heads, kv_heads)], "count from 0"),
        (lambda kv_head, heads, kv_heads: list(range(_group(kv_head, heads, kv_heads)[0], heads)), "A group ends"),
        (lambda kv_head, heads, kv_heads: [q + 0.5 for q in _group(kv_head, heads, kv_heads)], "a whole number"),
        (lambda kv_head, heads, kv_heads: itertools.count(), "Query head"),
    ],
    "check_09_bytes_read": [
        (lambda lens, heads, dim, size: sum(lens) * heads * dim * size, "V is read too"),
        (lambda lens, heads, dim, size: 2 * sum(lens) * heads * dim, "each has several bytes"),
        (lambda lens, heads, dim, size: 2 * max(lens) * len(lens) * heads * dim * size, "padded every sequence"),
        (lambda lens, heads, dim, size: 16 * sum(lens) * heads * dim * size, "Those are bits"),
        (lambda lens, heads, dim, size: sum(lens), "Two tensors"),
        (lambda lens, heads, dim, size: 2 * max(lens) * heads * dim * size, "every sequence is read"),
        (lambda lens, heads, dim, size: 2 * len(lens) * heads * dim * size, "one token for each sequence"),
        (lambda lens, heads, dim, size: 2 * sum(lens) * dim * size, "one KV head"),
        (lambda lens, heads, dim, size: 2 * sum(lens) * heads * size, "numbers for a token"),
        (lambda lens, heads, dim, size: 6 * sum(lens) * heads * dim * size, "the kernel reads once"),
        (lambda lens, heads, dim, size: 32 * sum(-(-n // 16) for n in lens) * heads * dim * size, "that hold a token"),
        (lambda lens, heads, dim, size: "many", "a number of bytes"),
    ],
}
