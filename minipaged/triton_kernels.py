"""Chapter 9. Paged attention as Triton kernels: each program walks a block table and gathers nothing.

Read in this order. Every kernel adds one idea:

    store_kernel    one program per token: put its K and V into its slot
    _walk           the heart: tiles of keys through the table, online softmax      (called by the three below)
    decode_kernel   one program per (sequence, KV head), the group's query heads as rows of one tile
    split_kernel    the same over a part of the length; merge_kernel joins the parts: more programs for few sequences
    mixed_kernel    query tokens x group as rows: prompts, chunks and decoding sequences in one launch

Keys are read in tiles of TILE tokens, whatever the block size; head sizes are padded to a power of two and masked.
Without a GPU Triton's interpreter runs the same code on the CPU, slowly. Left out: flags for every model and chip.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Any

import torch

from minipaged.errors import require
from minipaged.paged_attention import PagedBatch

# The interpreter must be chosen before Triton is imported for the first time (`tl.sum` is decorated at import).
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
require("triton", "the Triton kernels")

import triton  # noqa: E402
import triton.language as tl  # noqa: E402

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
MIN_SPLIT = 256  # keys: a shorter part costs more to merge than it saves
MOST_SPLITS = 64
PROGRAMS_PER_PROCESSOR = 4  # as many decode programs as one multiprocessor's registers and on-chip memory hold


# ---- store: one program per token ------------------------------------------------------------------------------------


@triton.jit
def store_kernel(k, v, k_cache, v_cache, slots, k_stride, v_stride, K_SIZE: tl.constexpr, V_SIZE: tl.constexpr,
                 K_PAD: tl.constexpr, V_PAD: tl.constexpr):  # fmt: skip
    """k [num_tokens, K_SIZE] -> k_cache[slot]; K_SIZE = num_kv_heads * k_dim, all heads of a token side by side."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token)  # int64: slot * size can pass 2^31
    if slot >= 0:  # -1 pads
        i = tl.arange(0, K_PAD)
        tl.store(k_cache + slot * K_SIZE + i, tl.load(k + token * k_stride + i, mask=i < K_SIZE), mask=i < K_SIZE)
        j = tl.arange(0, V_PAD)
        tl.store(v_cache + slot * V_SIZE + j, tl.load(v + token * v_stride + j, mask=j < V_SIZE), mask=j < V_SIZE)


# ---- the heart: walk the table, tile by tile -------------------------------------------------------------------------


@triton.jit
def _walk(q, q_pos, start, stop, table, k_cache, v_cache, kv_head, scale, softcap, top, total, acc,
          window, num_kv_heads, BLOCK_SIZE: tl.constexpr, K_DIM: tl.constexpr, V_DIM: tl.constexpr,
          K_PAD: tl.constexpr, V_PAD: tl.constexpr, TILE: tl.constexpr, HAS_WINDOW: tl.constexpr,
          HAS_CAP: tl.constexpr, USE_DOT: tl.constexpr, UPCAST: tl.constexpr):  # fmt: skip
    """Online softmax of q [ROWS, K_PAD] over the keys start .. stop - 1 of one sequence.

    Each row carries three numbers through the loop: `top`, its largest score so far; `total`, the sum of exp(score -
    top); acc [ROWS, V_PAD], the sum of exp(score - top) * value. A new, larger top shrinks what was summed before.
    """
    d, e = tl.arange(0, K_PAD), tl.arange(0, V_PAD)
    for first in range(start, stop, TILE):
        pos = first + tl.arange(0, TILE)  # positions in the sequence
        there = pos < stop
        block = tl.load(table + pos // BLOCK_SIZE, mask=there, other=0).to(tl.int64)  # int64 before any stride
        slot = block * BLOCK_SIZE + pos % BLOCK_SIZE
        row = (slot * num_kv_heads + kv_head)[:, None]  # [TILE, 1]
        k = tl.load(k_cache + row * K_DIM + d[None, :], mask=there[:, None] & (d < K_DIM)[None, :], other=0.0)
        if UPCAST:
            k = k.to(tl.float32)
        if USE_DOT:
            scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale  # [ROWS, TILE]
        else:
            scores = tl.sum(q.to(tl.float32)[:, None, :] * k.to(tl.float32)[None, :, :], axis=2) * scale
        if HAS_CAP:
            scores = softcap * (2.0 * tl.sigmoid(2.0 * scores / softcap) - 1.0)  # tanh
        seen = there[None, :] & (pos[None, :] <= q_pos[:, None])
        if HAS_WINDOW:
            seen = seen & (pos[None, :] > q_pos[:, None] - window)
        scores = tl.where(seen, scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, axis=1))
        guard = tl.where(new_top == float("-inf"), 0.0, new_top)  # nothing seen yet: -inf - -inf would be NaN
        shrink = tl.exp(top - guard)
        p = tl.exp(scores - guard[:, None])  # [ROWS, TILE]
        v = tl.load(v_cache + row * V_DIM + e[None, :], mask=there[:, None] & (e < V_DIM)[None, :], other=0.0)
        if UPCAST:
            v = v.to(tl.float32)
        if USE_DOT:
            mixed = tl.dot(p.to(v.dtype), v, input_precision="ieee")  # [ROWS, V_PAD]
        else:
            mixed = tl.sum(p[:, :, None] * v.to(tl.float32)[None, :, :], axis=1)
        acc = acc * shrink[:, None] + mixed
        total = total * shrink + tl.sum(p, axis=1)
        top = new_top
    return top, total, acc


@triton.jit
def _first(sinks, head, rows_ok, ROWS: tl.constexpr, HAS_SINKS: tl.constexpr):
    """`top` and `total` before the first key: nothing, or a sink, which counts in the sum and carries no value."""
    if HAS_SINKS:
        top = tl.load(sinks + head, mask=rows_ok, other=0.0).to(tl.float32)
        total = tl.full([ROWS], 1.0, tl.float32)
    else:
        top = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
    return top, total


# ---- decode: one program per (sequence, KV head) ---------------------------------------------------------------------


@triton.jit
def decode_kernel(query, out, k_cache, v_cache, tables, seq_lens, q_rows, seqs, sinks, scale, softcap, window,
                  table_stride, num_heads, num_kv_heads, GROUP: tl.constexpr, ROWS: tl.constexpr,
                  BLOCK_SIZE: tl.constexpr, K_DIM: tl.constexpr, V_DIM: tl.constexpr, K_PAD: tl.constexpr,
                  V_PAD: tl.constexpr, TILE: tl.constexpr, HAS_WINDOW: tl.constexpr, HAS_CAP: tl.constexpr,
                  HAS_SINKS: tl.constexpr, USE_DOT: tl.constexpr, UPCAST: tl.constexpr):  # fmt: skip
    """Grid (decoding sequences, KV heads). Row r of the tile is query head kv_head * GROUP + r of that sequence."""
    seq = tl.load(seqs + tl.program_id(0)).to(tl.int64)
    q_row = tl.load(q_rows + tl.program_id(0)).to(tl.int64)
    kv_head = tl.program_id(1)
    length = tl.load(seq_lens + seq)
    r, d, e = tl.arange(0, ROWS), tl.arange(0, K_PAD), tl.arange(0, V_PAD)
    head, ok = kv_head * GROUP + r, r < GROUP
    q = tl.load(query + (q_row * num_heads + head)[:, None] * K_DIM + d[None, :],
                mask=ok[:, None] & (d < K_DIM)[None, :], other=0.0)  # fmt: skip
    if UPCAST:
        q = q.to(tl.float32)
    start = tl.maximum(length - window, 0) if HAS_WINDOW else 0
    q_pos = tl.zeros([ROWS], tl.int32) + length - 1
    top, total = _first(sinks, head, ok, ROWS, HAS_SINKS)
    acc = tl.zeros([ROWS, V_PAD], tl.float32)
    top, total, acc = _walk(q, q_pos, start, length, tables + seq * table_stride, k_cache, v_cache, kv_head, scale,
                            softcap, top, total, acc, window, num_kv_heads, BLOCK_SIZE, K_DIM, V_DIM, K_PAD, V_PAD,
                            TILE, HAS_WINDOW, HAS_CAP, USE_DOT, UPCAST)  # fmt: skip
    mixed = acc / tl.where(total == 0.0, 1.0, total)[:, None]
    tl.store(out + (q_row * num_heads + head)[:, None] * V_DIM + e[None, :], mixed.to(out.dtype.element_ty),
             mask=ok[:, None] & (e < V_DIM)[None, :])  # fmt: skip


# ---- split: the same over a part of the length, then merge -----------------------------------------------------------


@triton.jit
def split_kernel(query, parts, tops, totals, k_cache, v_cache, tables, seq_lens, q_rows, seqs, sinks, scale, softcap,
                 window, table_stride, num_heads, num_kv_heads, num_splits, GROUP: tl.constexpr, ROWS: tl.constexpr,
                 BLOCK_SIZE: tl.constexpr, K_DIM: tl.constexpr, V_DIM: tl.constexpr, K_PAD: tl.constexpr,
                 V_PAD: tl.constexpr, TILE: tl.constexpr, HAS_WINDOW: tl.constexpr, HAS_CAP: tl.constexpr,
                 HAS_SINKS: tl.constexpr, USE_DOT: tl.constexpr, UPCAST: tl.constexpr):  # fmt: skip
    """Grid (decoding sequences, KV heads, splits). Leaves each part's acc, top and total unmerged, in float32."""
    which, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    seq = tl.load(seqs + which).to(tl.int64)
    q_row = tl.load(q_rows + which).to(tl.int64)
    length = tl.load(seq_lens + seq)
    r, d, e = tl.arange(0, ROWS), tl.arange(0, K_PAD), tl.arange(0, V_PAD)
    head, ok = kv_head * GROUP + r, r < GROUP
    q = tl.load(query + (q_row * num_heads + head)[:, None] * K_DIM + d[None, :],
                mask=ok[:, None] & (d < K_DIM)[None, :], other=0.0)  # fmt: skip
    if UPCAST:
        q = q.to(tl.float32)
    begin = tl.maximum(length - window, 0) if HAS_WINDOW else 0
    share = tl.cdiv(tl.cdiv(length - begin, num_splits), TILE) * TILE  # whole tiles; the last parts may be empty
    start = tl.minimum(begin + split * share, length)
    stop = tl.minimum(start + share, length)
    q_pos = tl.zeros([ROWS], tl.int32) + length - 1
    top, total = _first(sinks, head, ok, ROWS, HAS_SINKS)
    if split > 0:  # a sink counts once
        top = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, V_PAD], tl.float32)
    top, total, acc = _walk(q, q_pos, start, stop, tables + seq * table_stride, k_cache, v_cache, kv_head, scale,
                            softcap, top, total, acc, window, num_kv_heads, BLOCK_SIZE, K_DIM, V_DIM, K_PAD, V_PAD,
                            TILE, HAS_WINDOW, HAS_CAP, USE_DOT, UPCAST)  # fmt: skip
    place = (which.to(tl.int64) * num_heads + head) * num_splits + split
    tl.store(parts + place[:, None] * V_DIM + e[None, :], acc, mask=ok[:, None] & (e < V_DIM)[None, :])
    tl.store(tops + place, top, mask=ok)
    tl.store(totals + place, total, mask=ok)


@triton.jit
def merge_kernel(parts, tops, totals, out, q_rows, num_heads, num_splits, V_DIM: tl.constexpr, V_PAD: tl.constexpr,
                 SPLITS: tl.constexpr):  # fmt: skip
    """Grid (decoding sequences, query heads): the parts of one row, brought to their common top and added."""
    which, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    s, e = tl.arange(0, SPLITS), tl.arange(0, V_PAD)
    place = (which * num_heads + head) * num_splits + s
    top = tl.load(tops + place, mask=s < num_splits, other=float("-inf"))  # [SPLITS]
    total = tl.load(totals + place, mask=s < num_splits, other=0.0)
    best = tl.max(top, axis=0)
    weight = tl.exp(top - tl.where(best == float("-inf"), 0.0, best))
    part = tl.load(parts + place[:, None] * V_DIM + e[None, :],
                   mask=(s < num_splits)[:, None] & (e < V_DIM)[None, :], other=0.0)  # [SPLITS, V_PAD]  # fmt: skip
    whole = tl.sum(total * weight, axis=0)
    mixed = tl.sum(part * weight[:, None], axis=0) / tl.where(whole == 0.0, 1.0, whole)
    q_row = tl.load(q_rows + which).to(tl.int64)
    tl.store(out + (q_row * num_heads + head) * V_DIM + e, mixed.to(out.dtype.element_ty), mask=e < V_DIM)


# ---- mixed: prompts, chunks and decoding sequences in one launch -----------------------------------------------------


@triton.jit
def mixed_kernel(query, out, k_cache, v_cache, tables, seq_lens, starts, tile_seqs, tile_tokens, sinks, scale, softcap,
                 window, table_stride, num_heads, num_kv_heads, GROUP: tl.constexpr, ROWS: tl.constexpr,
                 BLOCK_SIZE: tl.constexpr, K_DIM: tl.constexpr, V_DIM: tl.constexpr, K_PAD: tl.constexpr,
                 V_PAD: tl.constexpr, TILE: tl.constexpr, HAS_WINDOW: tl.constexpr, HAS_CAP: tl.constexpr,
                 HAS_SINKS: tl.constexpr, USE_DOT: tl.constexpr, UPCAST: tl.constexpr):  # fmt: skip
    """Grid (tiles of query tokens, KV heads). Row r is query head r % GROUP of the tile's token r // GROUP.

    tile_seqs and tile_tokens say which sequence a tile belongs to and which of its new tokens comes first.
    """
    seq = tl.load(tile_seqs + tl.program_id(0)).to(tl.int64)
    first = tl.load(tile_tokens + tl.program_id(0))
    kv_head = tl.program_id(1)
    length = tl.load(seq_lens + seq)
    begin, end = tl.load(starts + seq), tl.load(starts + seq + 1)  # its rows of the packed queries
    r, d, e = tl.arange(0, ROWS), tl.arange(0, K_PAD), tl.arange(0, V_PAD)
    token = first + r // GROUP
    ok = (token < end - begin) & (r < ROWS // GROUP * GROUP)
    head = kv_head * GROUP + r % GROUP
    q_row = (begin + token).to(tl.int64)
    q = tl.load(query + (q_row * num_heads + head)[:, None] * K_DIM + d[None, :],
                mask=ok[:, None] & (d < K_DIM)[None, :], other=0.0)  # fmt: skip
    if UPCAST:
        q = q.to(tl.float32)
    q_pos = length - (end - begin) + token  # positions in the sequence: the new tokens are its last ones
    last = tl.minimum(first + ROWS // GROUP, end - begin) - 1
    stop = length - (end - begin) + last + 1  # no row of this tile looks further
    start = tl.maximum(length - (end - begin) + first - window + 1, 0) if HAS_WINDOW else 0
    top, total = _first(sinks, head, ok, ROWS, HAS_SINKS)
    acc = tl.zeros([ROWS, V_PAD], tl.float32)
    top, total, acc = _walk(q, q_pos, start, stop, tables + seq * table_stride, k_cache, v_cache, kv_head, scale,
                            softcap, top, total, acc, window, num_kv_heads, BLOCK_SIZE, K_DIM, V_DIM, K_PAD, V_PAD,
                            TILE, HAS_WINDOW, HAS_CAP, USE_DOT, UPCAST)  # fmt: skip
    mixed = acc / tl.where(total == 0.0, 1.0, total)[:, None]
    tl.store(out + (q_row * num_heads + head)[:, None] * V_DIM + e[None, :], mixed.to(out.dtype.element_ty),
             mask=ok[:, None] & (e < V_DIM)[None, :])  # fmt: skip


# ---- what Python calls -----------------------------------------------------------------------------------------------


def store(
    k: torch.Tensor, v: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, slot_mapping: torch.Tensor
) -> None:
    """Put K and V [num_tokens, num_kv_heads, dim] into their slots; slot_mapping [num_tokens] int64, -1 writes nothing.

    The caches are contiguous [num_blocks, block_size, num_kv_heads, dim]; slots are checked by the caller.
    """
    k, v = (x.flatten(1) for x in (k, v))  # [num_tokens, num_kv_heads * dim]
    k, v = (x if x.stride(1) == 1 else x.contiguous() for x in (k, v))  # a token's numbers side by side
    sizes = k.shape[1], v.shape[1]
    store_kernel[(k.shape[0],)](
        k, v, k_cache, v_cache, slot_mapping, k.stride(0), v.stride(0), *sizes, *map(triton.next_power_of_2, sizes)
    )  # fmt: skip


def paged_attention(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    batch: PagedBatch,
    *,
    scale: float | None = None,
    sliding_window: int | None = None,
    logit_softcap: float | None = None,
    sinks: torch.Tensor | None = None,
    use_dot: bool | None = None,
    num_splits: int | None = None,
    mixed: bool | None = None,
) -> torch.Tensor:
    """The triton backend of `minipaged.paged_attention.paged_attention`, for a batch that was checked.

    Args:
        use_dot: multiply on tensor cores; None: yes where the chip has a path for it (capability 8.0 and above).
        num_splits: parts that each decoding sequence's length is cut into; None: enough to fill the chip.
        mixed: use the one kernel for everything; None: only when some sequence has more than one new token.
    """
    out = query.new_empty(*query.shape[:2], v_cache.shape[-1])  # [num_tokens, num_heads, v_dim]
    common = _Common(query, k_cache, v_cache, batch, scale, sliding_window, logit_softcap, sinks, use_dot)
    if not batch.num_tokens:
        return out
    if mixed is None:
        mixed = bool(batch.chunks)
    if mixed:
        _mixed(query.contiguous(), out, common)
    else:
        _decode(query.contiguous(), out, common, num_splits)
    return out


class _Common:
    """The arguments that every kernel takes, worked out once."""

    def __init__(self, query: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, batch: PagedBatch,
                 scale: float | None, window: int | None, softcap: float | None, sinks: torch.Tensor | None,
                 use_dot: bool | None) -> None:  # fmt: skip
        self.batch, self.k_cache, self.v_cache, self.sinks = batch, k_cache, v_cache, sinks
        self.num_heads, k_dim = query.shape[1:]
        self.num_kv_heads, v_dim = v_cache.shape[2:]
        self.group = self.num_heads // self.num_kv_heads
        if use_dot is None:
            use_dot = _chip(query.device)[0]
        k_pad, v_pad = (max(16, triton.next_power_of_2(dim)) for dim in (k_dim, v_dim))
        self.use_dot = use_dot
        self.scalars = (
            k_dim**-0.5 if scale is None else scale, softcap or 0.0, window or 0, batch.block_tables.stride(0),
            self.num_heads, self.num_kv_heads,
        )  # fmt: skip
        self.constants: dict[str, Any] = {
            "GROUP": self.group, "BLOCK_SIZE": k_cache.shape[1], "K_DIM": k_dim, "V_DIM": v_dim, "K_PAD": k_pad,
            "V_PAD": v_pad, "HAS_WINDOW": window is not None, "HAS_CAP": softcap is not None,
            "HAS_SINKS": sinks is not None, "USE_DOT": use_dot,
            "UPCAST": INTERPRETED and query.dtype == torch.bfloat16,  # a bf16 dot is silently wrong in the interpreter
        }  # fmt: skip

    @property
    def widest(self) -> int:
        """The larger of the two padded head sizes."""
        return max(self.constants["K_PAD"], self.constants["V_PAD"])


# ---- sizes: how much a program holds at once -------------------------------------------------------------------------
#
# A decode program waits for memory, so it wants many bytes on their way: 16 KiB of K and 16 KiB of V for each tile, and
# `num_stages` lets the next tile's copy start before this one is used. A mixed program computes, so it wants many rows:
# 64 of them leave room for tiles of half that size. Checked by compile_kernels.py: with these sizes no 16-bit
# kernel spills a register, and every one fits the on-chip memory of each chip.


def decode_sizes(group: int, widest: int, num_bytes: int, use_dot: bool) -> dict[str, int]:
    """Rows, keys per tile and compiler options of `decode_kernel` and `split_kernel`.

    Args:
        group: query heads that share a KV head.
        widest: the larger padded head size. num_bytes: of one number.
        use_dot: whether `tl.dot` multiplies; it needs at least 16 rows, most of them empty when the group is small.
    """
    if not use_dot:
        return _sum_sizes(triton.next_power_of_2(group), widest)
    rows = max(16, triton.next_power_of_2(group))
    return {"ROWS": rows, "TILE": _between(16, 16_384 // (widest * num_bytes), 64), "num_warps": 4, "num_stages": 3}


def mixed_sizes(group: int, widest: int, num_bytes: int, use_dot: bool, longest: int) -> dict[str, int]:
    """The same for `mixed_kernel`; longest: the largest number of new tokens that a sequence has in this step."""
    if not use_dot:
        return _sum_sizes(max(4, triton.next_power_of_2(group)), widest)
    wanted = min(64 if num_bytes == 2 else 16, triton.next_power_of_2(longest * group))
    rows = max(16, wanted, triton.next_power_of_2(group))
    return {"ROWS": rows, "TILE": _between(16, 8_192 // (widest * num_bytes), 64), "num_warps": 4, "num_stages": 3}


def _sum_sizes(rows: int, widest: int) -> dict[str, int]:
    """Without tensor cores the whole product [ROWS, TILE, dim] lies in registers: 8,192 numbers, 64 a thread."""
    return {"ROWS": rows, "TILE": _between(1, 8_192 // (rows * widest), 32), "num_warps": 4, "num_stages": 2}


def _between(least: int, value: int, most: int) -> int:
    return max(least, min(value, most))


@lru_cache
def _chip(device: torch.device) -> tuple[bool, int]:
    """(tensor cores that Triton can use, programs that keep every multiprocessor busy)."""
    if INTERPRETED:
        return True, 1
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    return torch.cuda.get_device_capability(device) >= (8, 0), processors * PROGRAMS_PER_PROCESSOR


def _decode(query: torch.Tensor, out: torch.Tensor, common: _Common, num_splits: int | None) -> None:
    batch, device = common.batch, query.device
    sizes = decode_sizes(common.group, common.widest, query.element_size(), common.use_dot)
    options = {**common.constants, **sizes}
    q_rows, seqs = batch.decode_rows  # [n] each
    n = len(batch.decodes)
    if num_splits is None:
        wanted = _chip(device)[1] // max(1, n * common.num_kv_heads)
        num_splits = _between(1, min(wanted, batch.max_seq_len // MIN_SPLIT), MOST_SPLITS)
    inputs = (common.k_cache, common.v_cache, batch.block_tables, batch.seq_lens, q_rows, seqs, common.sinks)
    if num_splits == 1:
        decode_kernel[(n, common.num_kv_heads)](query, out, *inputs, *common.scalars, **options)
        return
    v_dim = out.shape[2]
    parts = torch.empty(n, common.num_heads, num_splits, v_dim, dtype=torch.float32, device=device)
    tops, totals = torch.empty(2, n, common.num_heads, num_splits, dtype=torch.float32, device=device)
    grid = (n, common.num_kv_heads, num_splits)
    split_kernel[grid](query, parts, tops, totals, *inputs, *common.scalars, num_splits, **options)
    merge_kernel[(n, common.num_heads)](
        parts, tops, totals, out, q_rows, common.num_heads, num_splits, v_dim, options["V_PAD"],
        triton.next_power_of_2(num_splits),
    )  # fmt: skip


def _mixed(query: torch.Tensor, out: torch.Tensor, common: _Common) -> None:
    batch = common.batch
    sizes = mixed_sizes(common.group, common.widest, query.element_size(), common.use_dot, batch.max_q_len)
    tile_seqs, tile_tokens = batch.tiles(sizes["ROWS"] // common.group)
    mixed_kernel[(len(tile_seqs), common.num_kv_heads)](
        query, out, common.k_cache, common.v_cache, batch.block_tables, batch.seq_lens, batch.cu_seqlens_q, tile_seqs,
        tile_tokens, common.sinks, *common.scalars, **common.constants, **sizes,
    )  # fmt: skip
