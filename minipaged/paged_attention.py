"""Chapter 8. Attention over K and V that lie in scattered blocks: the same numbers, read through a table.

    query rows, packed     [ a9 | b0 b1 b2 | c40 ]     a and c decode one token each, b is a chunk of a prompt
    cu_seqlens_q           [ 0    1          4    5 ]
    block table of a       [ 5, 100, 888 ]             a's token 20 lies in block 100, slot 4 of it

No row is padded and nothing is approximated: softmax does not care where a score came from. Three backends give the
same result. `reference` gathers one sequence at a time and calls chapter 3's attention. `torch` gathers all decoding
sequences of a step at once. `triton` (chapter 9) gathers nothing: each program walks its block table.

What all layers of a step share (which slots are read) is worked out once, in a `PagedBatch`.
At the end of the file: softmax one block at a time, which is how a kernel reads K and V without a dense copy.
Left out: writing K and V (chapter 7) and running a model (`model_runner.py`).
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, reduce
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from minipaged.attention import attention, attention_scores, causal_mask, group_heads, masked_softmax
from minipaged.errors import InvalidInputError, shown

BACKENDS = ("auto", "reference", "torch", "triton")
_KERNELS = "minipaged.triton_kernels"
KEYS_PER_CALL = 256  # reading so many keys takes about as long as one more call


@dataclass(frozen=True)
class Chunk:
    """One sequence's part of a step: its query rows are the last `q_len` of its `seq_len` tokens."""

    index: int  # which sequence of the batch
    first_row: int  # its first query row
    q_len: int
    seq_len: int

    @property
    def rows(self) -> slice:
        """Its rows of the packed queries."""
        return slice(self.first_row, self.first_row + self.q_len)


class PagedBatch:
    """Who reads which slots in one step; the same for every layer, so it is built once.

    Args:
        block_tables: [num_seqs, max_blocks] int32 on the device, padded with -1; or lists of block numbers.
        seq_lens: tokens of each sequence, those of this step included.
        cu_seqlens_q: [num_seqs + 1], where each sequence's query rows begin, and their total.
        block_size: slots in a block.
        device: where the queries are.
        num_blocks: blocks in the pool; given, everything is checked here, on the host, before any kernel runs.

    Raises:
        InvalidInputError: lengths that do not fit each other or the tables; it names the sequence.
    """

    def __init__(
        self,
        block_tables: torch.Tensor | Sequence[Sequence[int]],
        seq_lens: torch.Tensor | Sequence[int],
        cu_seqlens_q: torch.Tensor | Sequence[int],
        block_size: int,
        device: torch.device | str,
        num_blocks: int | None = None,
    ) -> None:
        starts, lens = _host(cu_seqlens_q), _host(seq_lens)
        if num_blocks is not None:
            _check_batch(_host(block_tables), lens, starts, block_size, num_blocks)
        self.block_size, self.device = block_size, torch.device(device)
        self.num_seqs, self.num_tokens = len(lens), starts[-1]
        self.block_tables = _padded(block_tables, self.device)  # [num_seqs, max_blocks] int32
        self.seq_lens = torch.tensor(lens, dtype=torch.int32, device=self.device)  # [num_seqs]
        self.cu_seqlens_q = torch.tensor(starts, dtype=torch.int32, device=self.device)  # [num_seqs + 1]
        parts = [Chunk(i, a, b - a, n) for i, (a, b, n) in enumerate(zip(starts[:-1], starts[1:], lens, strict=True))]
        self.chunks = [part for part in parts if part.q_len > 1]
        self.decodes = [part for part in parts if part.q_len == 1]
        self.max_q_len = max((part.q_len for part in parts), default=0)
        self.max_seq_len = max(lens, default=0)
        self._decode_reads: dict[int | None, list[tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]]] = {}
        self._chunk_reads: dict[tuple[int, int | None], torch.Tensor] = {}
        self._tiles: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    @cached_property
    def decode_rows(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The decoding sequences' query rows, and their places in the batch: [n] int32 each."""
        pairs = [(part.first_row, part.index) for part in self.decodes]
        rows, seqs = torch.tensor(pairs, dtype=torch.int32, device=self.device).reshape(-1, 2).T.contiguous()
        return rows, seqs

    def tiles(self, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The new tokens of all sequences in tiles of at most `tokens`: which sequence, and its first token there."""
        if tokens not in self._tiles:
            parts = [(p.index, t) for p in (*self.decodes, *self.chunks) for t in range(0, p.q_len, tokens)]
            seqs, firsts = torch.tensor(parts, dtype=torch.int32, device=self.device).reshape(-1, 2).T.contiguous()
            self._tiles[tokens] = seqs, firsts
        return self._tiles[tokens]

    def slots(self, index: int, start: int, stop: int) -> torch.Tensor:
        """Physical slots of the tokens start .. stop - 1 of one sequence: [stop - start], int64."""
        position = torch.arange(start, stop, device=self.device)
        block = self.block_tables[index].long()[position // self.block_size]
        return block * self.block_size + position % self.block_size

    def chunk_reads(self, chunk: Chunk, window: int | None) -> torch.Tensor:
        """Slots that the queries of one chunk read: [kv_len]. Tokens outside every query's window are left out."""
        key = chunk.index, window
        if key not in self._chunk_reads:
            start = 0 if window is None else max(0, chunk.seq_len - chunk.q_len - window + 1)
            self._chunk_reads[key] = self.slots(chunk.index, start, chunk.seq_len)
        return self._chunk_reads[key]

    def decode_reads(self, window: int | None) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]]:
        """What the decoding sequences read, in one or more rectangles, each (rows, slots, valid).

        Returns:
            rows [n]: which query rows they are; in order when one rectangle holds them all. slots [n, longest]: where
            the keys lie. valid bool [n, longest], or None when no sequence is shorter than the rectangle. A place that
            is not valid holds the sequence's own first slot again: it is masked, and nothing is read that this sequence
            did not write.
        """
        if window not in self._decode_reads:
            seen = {d: d.seq_len if window is None else min(window, d.seq_len) for d in self.decodes}
            groups = _rectangles(sorted(self.decodes, key=seen.__getitem__), seen) if seen else []
            groups = [self.decodes] if len(groups) == 1 else groups
            self._decode_reads[window] = [self._rectangle(group, [seen[d] for d in group]) for group in groups]
        return self._decode_reads[window]

    def _rectangle(self, group: list[Chunk], seen: list[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        lens = torch.tensor(seen, device=self.device)  # [n]
        first = torch.tensor([d.seq_len for d in group], device=self.device) - lens  # the first key that a window shows
        position = torch.arange(max(seen), device=self.device).expand(len(group), -1)  # [n, longest]
        valid = position < lens[:, None]
        position = torch.where(valid, position, 0) + first[:, None]
        rows = torch.tensor([d.first_row for d in group], device=self.device)  # [n]
        tables = self.block_tables[[d.index for d in group]].long()  # [n, max_blocks]
        slots = tables.gather(1, position // self.block_size) * self.block_size + position % self.block_size
        return rows, slots, valid if min(seen) < max(seen) else None


def _rectangles(group: list[Chunk], seen: dict[Chunk, int]) -> list[list[Chunk]]:
    """Sequences in order of length, cut where it saves most, as long as that saves more keys than a call costs."""
    saved = [i * (seen[group[-1]] - seen[group[i - 1]]) for i in range(1, len(group))]
    if max(saved, default=0) < KEYS_PER_CALL:
        return [group]
    cut = saved.index(max(saved)) + 1
    return [*_rectangles(group[:cut], seen), *_rectangles(group[cut:], seen)]


def paged_attention(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor | Sequence[Sequence[int]],
    seq_lens: torch.Tensor | Sequence[int],
    cu_seqlens_q: torch.Tensor | Sequence[int],
    *,
    scale: float | None = None,
    sliding_window: int | None = None,
    logit_softcap: float | None = None,
    sinks: torch.Tensor | None = None,
    backend: str = "auto",
    check: bool = True,
) -> torch.Tensor:
    """Causal attention of packed queries over K and V in blocks (Kwon et al., SOSP 2023, section 4.1).

    Args:
        query: [num_tokens, num_heads, k_dim], the rows of all sequences one after another.
        k_cache: [num_blocks, block_size, num_kv_heads, k_dim], this step's keys already written.
        v_cache: [num_blocks, block_size, num_kv_heads, v_dim], likewise.
        block_tables: [num_seqs, max_blocks] int32, padded with -1; or lists of block numbers.
        seq_lens: [num_seqs], tokens of each sequence, this step's included.
        cu_seqlens_q: [num_seqs + 1]; sequence i owns the query rows cu_seqlens_q[i] to cu_seqlens_q[i + 1] - 1, and
            they are its last tokens.
        scale, sliding_window, logit_softcap, sinks: as in `minipaged.attention.attention`.
        backend: "reference", "torch", "triton", or "auto": triton on a GPU that has it, else torch.
        check: look at every length and block number first, on the host. False only for a batch known to be right.

    Returns:
        [num_tokens, num_heads, v_dim] in the dtype of `query`.

    Raises:
        InvalidInputError: shapes, lengths or block numbers that do not fit; it names the sequence. Nothing was read.
    """
    if check:
        _check_tensors(query, k_cache, v_cache, sliding_window, logit_softcap, sinks)
    num_blocks, block_size = k_cache.shape[:2]
    batch = PagedBatch(block_tables, seq_lens, cu_seqlens_q, block_size, query.device, num_blocks if check else None)
    if check and batch.num_tokens != query.shape[0]:
        raise InvalidInputError(
            f"cu_seqlens_q ends at {batch.num_tokens}, and query has {query.shape[0]} rows; it must end at that"
        )
    options = {"scale": scale, "sliding_window": sliding_window, "logit_softcap": logit_softcap, "sinks": sinks}
    return attend(query, k_cache, v_cache, batch, backend=backend, **options)


def attend(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    batch: PagedBatch,
    *,
    backend: str = "auto",
    **options: Any,
) -> torch.Tensor:
    """`paged_attention` for a batch that was checked before: what a model's layers call, one after another."""
    backend = pick_backend(backend, query.device)
    if backend == "reference":
        return _reference(query, k_cache, v_cache, batch, **options)
    if backend == "torch":
        return _torch(query, k_cache, v_cache, batch, **options)
    kernels = importlib.import_module(_KERNELS)  # by name: a later chapter, and needs Triton
    return kernels.paged_attention(query, k_cache, v_cache, batch, **options)


def pick_backend(backend: str, device: torch.device | str) -> str:
    """The backend that "auto" means on this device: triton on a GPU where it is installed, else torch."""
    if not isinstance(backend, str) or backend not in BACKENDS:
        raise InvalidInputError(f"unknown backend {shown(backend)}; use one of {', '.join(BACKENDS)}")
    if backend != "auto":
        return backend
    return "triton" if torch.device(device).type == "cuda" and _has_triton() else "torch"


@lru_cache
def _has_triton() -> bool:
    return all(importlib.util.find_spec(name) is not None for name in ("triton", _KERNELS))


# ---- reference: one sequence after another, through chapter 3


def _reference(
    query: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, batch: PagedBatch, **options: Any
) -> torch.Tensor:
    out = query.new_empty(*query.shape[:2], v_cache.shape[-1])  # [num_tokens, num_heads, v_dim]
    for part in (*batch.decodes, *batch.chunks):
        slots = batch.slots(part.index, 0, part.seq_len)  # [seq_len]
        k, v = (cache.flatten(0, 1)[slots].transpose(0, 1) for cache in (k_cache, v_cache))  # [kv_heads, seq_len, dim]
        q = query[part.rows].transpose(0, 1)  # [num_heads, q_len, k_dim]
        out[part.rows] = attention(q, k, v, **options).transpose(0, 1)
    return out


# ---- torch: all decoding sequences in one call, each chunk of a prompt in one


def _torch(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    batch: PagedBatch,
    *,
    scale: float | None = None,
    sliding_window: int | None = None,
    logit_softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    k_slots, v_slots = k_cache.flatten(0, 1), v_cache.flatten(0, 1)  # [num_slots, num_kv_heads, dim]
    out = query.new_empty(*query.shape[:2], v_cache.shape[-1])  # [num_tokens, num_heads, v_dim]
    for rows, slots, valid in batch.decode_reads(sliding_window):
        k, v = (_read(cache, slots).transpose(1, 2) for cache in (k_slots, v_slots))  # [n, num_kv_heads, longest, dim]
        mask = None if valid is None else valid[:, None, None]  # [n, 1, 1, longest]
        everybody = len(rows) == len(query)
        q = query if everybody else query.index_select(0, rows)  # [n, num_heads, k_dim]
        mixed = _dense(q.unsqueeze(2), k, v, mask, scale, logit_softcap, sinks).squeeze(2)  # [n, num_heads, v_dim]
        if everybody:
            return mixed
        out.index_copy_(0, rows, mixed)
    for chunk in batch.chunks:
        slots = batch.chunk_reads(chunk, sliding_window)
        k, v = (_read(cache, slots).transpose(0, 1) for cache in (k_slots, v_slots))  # [num_kv_heads, kv_len, dim]
        q = query[chunk.rows].transpose(0, 1)  # [num_heads, q_len, k_dim]
        mask = causal_mask(chunk.q_len, len(slots), sliding_window, device=q.device)  # [q_len, kv_len]
        mixed = _dense(q[None], k[None], v[None], mask, scale, logit_softcap, sinks)[0]  # [num_heads, q_len, v_dim]
        out[chunk.rows] = mixed.transpose(0, 1)
    return out


def _read(cache: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """cache[slots], five times as fast on a CPU: cache [num_slots, heads, dim], slots [...] -> [..., heads, dim]."""
    return cache.index_select(0, slots.reshape(-1)).unflatten(0, slots.shape)


def _dense(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Attention over gathered K and V, [n, heads, length, dim]; torch's fused one where it can express the options."""
    if softcap is None and sinks is None:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=True)
    scores = attention_scores(q, k, scale=scale, logit_softcap=softcap)  # [n, num_heads, q_len, kv_len]
    shares = group_heads(masked_softmax(scores, mask, sinks), k.shape[1])  # [n, num_kv_heads, group, q_len, kv_len]
    return (shares @ v.to(shares.dtype).unsqueeze(2)).flatten(1, 2).to(q.dtype)  # [n, num_heads, q_len, v_dim]


# ---- what is refused, on the host, before anything is read


def _host(values: Any) -> list[Any]:
    return values.tolist() if isinstance(values, torch.Tensor) else [*values]


def _padded(tables: torch.Tensor | Sequence[Sequence[int]], device: torch.device) -> torch.Tensor:
    """Block tables as one int32 tensor on the device, short ones padded with -1."""
    if isinstance(tables, torch.Tensor):
        return tables.to(device, torch.int32)
    longest = max(map(len, tables), default=0)
    rows = [[*table, *[-1] * (longest - len(table))] for table in tables]
    return torch.tensor(rows, dtype=torch.int32, device=device).reshape(len(rows), longest)


def _check_batch(
    tables: list[Sequence[int]], seq_lens: list[int], starts: list[int], block_size: int, num_blocks: int
) -> None:
    """Every sequence's rows and tokens fit, and every block that would be read is in the pool."""
    if not len(tables) == len(seq_lens) == len(starts) - 1:
        raise InvalidInputError(
            f"{len(tables)} block tables, {len(seq_lens)} seq_lens and {len(starts)} cu_seqlens_q; for n sequences "
            "there must be n, n and n + 1"
        )
    if starts[0] != 0:
        raise InvalidInputError(f"cu_seqlens_q starts at {starts[0]}; the first sequence's rows begin at 0")
    for i, (table, seq_len) in enumerate(zip(tables, seq_lens, strict=True)):
        q_len = starts[i + 1] - starts[i]
        if not 0 <= q_len <= seq_len:
            raise InvalidInputError(
                f"sequence {i} has {q_len} query rows and {seq_len} tokens; seq_lens counts this step's tokens too, so "
                "a sequence has at least as many tokens as rows, and cu_seqlens_q never falls"
            )
        needed = -(-seq_len // block_size)
        held = [block for block in table if block != -1]
        if len(held) < needed:
            raise InvalidInputError(
                f"sequence {i} has {seq_len} tokens, which need {needed} blocks of {block_size}; its table names "
                f"{len(held)}"
            )
        wrong = [block for block in table[:needed] if not 0 <= block < num_blocks]
        if wrong:
            raise InvalidInputError(
                f"sequence {i}'s table names block {wrong[0]} for a token; the pool's blocks are 0 to {num_blocks - 1}"
            )


def _check_tensors(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    window: int | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> None:
    """Shapes, dtypes, devices and options of one call."""
    if query.dim() != 3 or k_cache.dim() != 4 or v_cache.dim() != 4:
        raise InvalidInputError(
            f"query {list(query.shape)}, k_cache {list(k_cache.shape)}, v_cache {list(v_cache.shape)}; expected "
            "[num_tokens, num_heads, k_dim] and two of [num_blocks, block_size, num_kv_heads, dim]"
        )
    if k_cache.shape[:3] != v_cache.shape[:3] or k_cache.shape[3] != query.shape[2]:
        raise InvalidInputError(
            f"query {list(query.shape)} does not fit k_cache {list(k_cache.shape)} and v_cache {list(v_cache.shape)}: "
            "k_dim must be equal, and both caches have the same blocks and KV heads"
        )
    num_heads, num_kv_heads = query.shape[1], k_cache.shape[2]
    if num_heads % num_kv_heads:
        raise InvalidInputError(
            f"{num_heads} query heads cannot share {num_kv_heads} KV heads evenly; num_heads must be a multiple of "
            "num_kv_heads (axis 1 of query, axis 2 of the caches)"
        )
    if not (query.dtype == k_cache.dtype == v_cache.dtype and query.device == k_cache.device == v_cache.device):
        raise InvalidInputError(
            f"query is {query.dtype} on {query.device}, k_cache {k_cache.dtype} on {k_cache.device}, v_cache "
            f"{v_cache.dtype} on {v_cache.device}; all three must be equal"
        )
    if window is not None and (isinstance(window, bool) or not isinstance(window, int) or window < 1):
        raise InvalidInputError(f"sliding_window is {shown(window)}; it counts keys, at least 1, or is None")
    if softcap is not None and not 0 < softcap < float("inf"):
        raise InvalidInputError(f"logit_softcap is {softcap}; it must be above 0 and finite, or None")
    if sinks is not None and sinks.shape != (num_heads,):
        raise InvalidInputError(f"sinks has shape {list(sinks.shape)}; one number a query head: [{num_heads}]")


# ---- softmax over some of the keys at a time: why nobody needs all scores at once


class Partial(NamedTuple):
    """Attention over some of the keys, not yet divided. Three things are enough to go on, however many keys there were.

    Attributes:
        top: [...], the largest score seen; -inf when there was none.
        total: [...], the sum of exp(score - top).
        acc: [..., v_dim], the sum of exp(score - top) * value.
    """

    top: torch.Tensor
    total: torch.Tensor
    acc: torch.Tensor


def partial_softmax(scores: torch.Tensor, values: torch.Tensor) -> Partial:
    """Attention over one part of the keys (Milakov and Gimelshein 2018, section 3, with values beside the sum).

    Args:
        scores: [..., n], scaled; -inf hides a key. n may be 0.
        values: [..., n, v_dim], finite also where hidden, since they are multiplied by 0.
    """
    nothing = scores.new_full((*scores.shape[:-1], 1), -torch.inf)  # so that an empty part has a maximum too
    top = torch.cat([scores, nothing], dim=-1).amax(-1)  # [...]
    weights = torch.exp(scores - _finite(top)[..., None])  # [..., n], the largest is exactly 1
    return Partial(top, weights.sum(-1), (weights[..., None, :] @ values).squeeze(-2))


def merge(a: Partial, b: Partial) -> Partial:
    """Attention over the keys of both parts: the one with the smaller maximum shrinks to the other's scale.

    Parts may be merged in any order and any grouping; an empty part changes nothing.
    """
    top = torch.maximum(a.top, b.top)
    shrink_a, shrink_b = (torch.exp(part.top - _finite(top)) for part in (a, b))  # [...], the larger one is exactly 1
    acc = a.acc * shrink_a[..., None] + b.acc * shrink_b[..., None]
    return Partial(top, a.total * shrink_a + b.total * shrink_b, acc)


def finish(part: Partial) -> torch.Tensor:
    """The output [..., v_dim]: divided once, at the end. Zeros where there was nothing to look at."""
    return part.acc / part.total.masked_fill(part.total == 0, 1.0)[..., None]


def online_softmax(parts: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """Attention over keys that come in parts, (scores, values) each as in `partial_softmax`; at least one part."""
    return finish(reduce(merge, (partial_softmax(scores, values) for scores, values in parts)))


def _finite(top: torch.Tensor) -> torch.Tensor:
    """A maximum to subtract: 0 where nothing was seen, because -inf - -inf is not a number."""
    return top.masked_fill(top == -torch.inf, 0.0)


def walk_table(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: Sequence[int],
    seq_len: int,
    *,
    scale: float | None = None,
) -> torch.Tensor:
    """One token's attention, one block at a time: what a kernel does, in plain PyTorch. Nothing is gathered.

    Args:
        query: [num_heads, k_dim], the newest token's.
        k_cache: [num_blocks, block_size, num_kv_heads, k_dim].
        v_cache: [num_blocks, block_size, num_kv_heads, v_dim].
        block_table: the sequence's physical blocks in order.
        seq_len: its tokens, the newest included.
        scale: what scores are multiplied by; None means 1 / sqrt(k_dim).

    Returns:
        [num_heads, v_dim] in the dtype of `query`, computed in float64 for float64 and else in float32.
    """
    size, kv_heads = k_cache.shape[1:3]
    _check_batch([list(block_table)], [seq_len], [0, 1], size, len(k_cache))  # a short table would drop tokens
    compute = torch.float64 if query.dtype == torch.float64 else torch.float32

    def parts() -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
        for logical, block in enumerate(block_table[: -(-seq_len // size)]):
            filled = min(size, seq_len - logical * size)  # the last block may be part empty: never read beyond
            k, v = (cache[block, :filled].transpose(0, 1) for cache in (k_cache, v_cache))  # [kv_heads, filled, dim]
            scores = attention_scores(query[:, None], k, scale=scale).unflatten(0, (kv_heads, -1)).squeeze(-2)
            yield scores, v[:, None].to(compute)  # [kv_heads, group, filled] and [kv_heads, 1, filled, v_dim]

    return online_softmax(parts()).flatten(0, 1).to(query.dtype)  # [num_heads, v_dim]
