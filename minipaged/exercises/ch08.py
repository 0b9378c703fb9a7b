"""Checks of chapter 8's exercises."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from minipaged.block_manager import physical_slot
from minipaged.exercises._base import Mistake, attempt, exercise, listed, whole
from minipaged.paged_attention import paged_attention

Part = tuple[float, float, float]

# ---- merge


@exercise("two parts merge into the softmax of all their keys, whichever is larger, far apart or empty")
def check_08_merge(answer: Any) -> None:
    """`answer(a, b)` with parts (top, total, acc) of plain numbers -> their merged part."""
    small, large = _part([1.0, 3.0, 2.0], [10.0, 20.0, 30.0]), _part([4.0, 2.5], [40.0, 50.0])
    far = _part([1000.0, 999.0], [7.0, 9.0])
    nothing = (-math.inf, 0.0, 0.0)
    for a, b in [(small, large), (large, small), (small, small), (small, far), (nothing, large), (nothing, nothing)]:
        got, want = _three(attempt(answer, a, b)), _merged(a, b)
        if not all(math.isclose(g, w, rel_tol=1e-6, abs_tol=1e-6) for g, w in zip(got, want, strict=True)):
            raise Mistake(f"for a = {_told(a)} and b = {_told(b)} you return {_told(got)}, expected {_told(want)}. "
                          + _why_merge(a, b, got, want))  # fmt: skip


def _part(scores: Sequence[float], values: Sequence[float]) -> Part:
    top = max(scores)
    weights = [math.exp(s - top) for s in scores]
    return top, sum(weights), sum(w * v for w, v in zip(weights, values, strict=True))


def _merged(a: Part, b: Part) -> Part:
    top = max(a[0], b[0])
    if top == -math.inf:
        return a
    shrink = [math.exp(part[0] - top) for part in (a, b)]
    return top, a[1] * shrink[0] + b[1] * shrink[1], a[2] * shrink[0] + b[2] * shrink[1]


def _told(part: Part) -> str:
    return "(" + ", ".join(f"{x:.4g}" for x in part) + ")"


def _three(value: Any) -> Part:
    value = listed(value, "three numbers, (top, total, acc)")
    if len(value) != 3:
        raise Mistake(f"you return {value!r}; return three numbers, (top, total, acc)")
    try:
        top, total, acc = map(float, value)
    except (TypeError, ValueError, RuntimeError):
        raise Mistake(f"you return {value!r}; all three must be plain numbers") from None
    return top, total, acc


def _why_merge(a: Part, b: Part, got: Part, want: Part) -> str:
    low, high = sorted((a, b))
    if want[0] == -math.inf and not any(map(math.isnan, got)):
        return "Two parts that saw nothing make a part that saw nothing: its maximum is -inf, its sums are 0"
    if math.isclose(got[1], want[2]) and math.isclose(got[2], want[1]):
        return "The sums stand in each other's place: (top, total, acc)"
    if math.isclose(got[0], want[0]) and math.isclose(got[2] * want[1], want[2], rel_tol=1e-6):
        return "acc is divided already; parts stay undivided, and the division comes once, at the very end"
    if got[0] == b[0] < a[0] or got[0] == a[0] < b[0]:
        return f"The maximum of both is {want[0]:g}; either part can have the larger one"
    if any(map(math.isnan, got)):
        return "-inf minus -inf is not a number: two parts that saw nothing need a case of their own"
    if math.isclose(got[0], want[0]):
        if math.isclose(got[1], a[1] + b[1]) and math.isclose(got[2], a[2] + b[2]):
            return "You added the parts as they are, but their weights have different scales: shrink the smaller one"
        if math.isclose(got[1], want[1]):
            return "The sum is right and acc is not: acc shrinks by the same factor as the sum"
        if math.isclose(got[2], want[2]):
            return "acc is right and the sum is not: the sum shrinks by the same factor as acc"
        factor = math.exp(low[0] - high[0])
        if math.isclose(got[1], low[1] + high[1] * factor):
            return "You shrank the part with the larger maximum: its weights are right already, shrink the other"
    if math.isclose(got[0], a[0] + b[0]):
        return "The maximum of both is the larger one of the two, not their sum"
    return f"The new maximum is {want[0]:g}; each part is multiplied by exp(its own maximum - the new one)"


# ---- pack


@exercise("positions, slots and row bounds are right for decodes, chunks and whole prompts in one row")
def check_08_pack(answer: Any) -> None:
    """`answer(parts, block_size)`, parts [(block_table, num_computed, num_new)] -> (positions, slots, cu_seqlens_q)."""
    decode, chunk, prompt = ([2, 7, 5], 9, 1), ([9, 0, 3], 6, 5), ([4, 8], 0, 7)
    for parts, size in [([prompt], 4), ([prompt, decode], 4), ([decode], 4), ([decode, chunk, prompt], 4),
                        ([([5, 100, 888], 20, 2), ([0], 0, 3)], 16)]:  # fmt: skip
        got = attempt(answer, [(list(t), c, n) for t, c, n in parts], size)
        got = listed(got, "three lists: positions, slots, cu_seqlens_q")
        if len(got) != 3:
            raise Mistake(f"you return {got!r}; return three lists: positions, slots, cu_seqlens_q")
        want = _packed(parts, size)
        for name, mine, right in zip(("positions", "slots", "cu_seqlens_q"), got, want, strict=True):
            mine = listed(mine, f"a list of numbers for {name}")
            if any(hasattr(entry, "__len__") and not hasattr(entry, "item") for entry in mine):
                raise Mistake(f"your {name} are {mine!r:.80}: one flat list for the whole row, no list in a list")
            mine = [whole(number) for number in mine]
            if mine != right:
                case = f"parts {parts}, blocks of {size}: your {name} are {mine}, expected {right}. "
                raise Mistake(case + _why_pack(name, mine, parts, want, size))


def _packed(parts: Sequence[tuple[list[int], int, int]], size: int) -> tuple[list[int], list[int], list[int]]:
    positions = [p for _, computed, new in parts for p in range(computed, computed + new)]
    slots = [physical_slot(table, p, size) for table, computed, new in parts for p in range(computed, computed + new)]
    return positions, slots, [0, *itertools.accumulate(new for _, _, new in parts)]


def _why_pack(name: str, mine: list[int], parts: Sequence[tuple[list[int], int, int]], want: Any, size: int) -> str:
    positions, _, bounds = want
    if name == "positions":
        if mine == list(range(bounds[-1])) and len(parts) > 1:
            return "You counted along the row, but each sequence counts its own tokens"
        if mine == [p for _, _, new in parts for p in range(new)]:
            return "You started every sequence at 0: the tokens computed before come first"
        if mine == [p + 1 for p in positions]:
            return "One too many each: positions count from 0"
        if mine == bounds:
            return "That is cu_seqlens_q; return positions, slots, cu_seqlens_q in this order"
        return "A sequence's new tokens stand behind its num_computed older ones"
    if name == "slots":
        if mine == positions:
            return "Those are the positions: look the block up in the table"
        if mine == list(range(bounds[-1])):
            return "Those are the rows of the batch: where a token stands in the row says nothing about its slot"
        if mine == [slot // size * size for slot in want[1]]:
            return "Those are the first slots of the right blocks: add position % block_size"
        if mine == [slot // size + slot % size for slot in want[1]]:
            return "A block is block_size slots long: multiply its number by block_size, then add the offset"
        return "slot = table[position // block_size] * block_size + position % block_size, with the token's position"
    if mine == bounds[:-1]:
        return "The total at the end is missing: the last sequence must end somewhere"
    if mine == [computed + new for _, computed, new in parts] != bounds[1:]:
        return "Those are seq_lens; cu_seqlens_q counts the rows, which are new tokens only"
    if mine == bounds[1:]:
        return "The first sequence begins at row 0: the list has one number more than there are sequences"
    if mine == [0, *itertools.accumulate(computed + new for _, computed, new in parts)]:
        return "You added up whole sequences; only new tokens have rows"
    if mine == [new for _, _, new in parts]:
        return "Those are the lengths; cu_seqlens_q adds them up (cu stands for cumulative)"
    return "Sequence i's rows are cu_seqlens_q[i] to cu_seqlens_q[i + 1] - 1"


# ---- the repaired bug

_SIZE = 3


@exercise("every sequence of a ragged batch is right, not only the first one")
def check_08_paged(answer: Any) -> None:
    """`answer(query, k_cache, v_cache, block_tables, seq_lens, cu_seqlens_q)` -> [num_tokens, heads, dim]."""
    cases = {
        "one whole prompt": ([4], [4]),
        "one decoding sequence": ([5], [1]),
        "one chunk behind older tokens": ([7], [3]),
        "two prompts of the same length": ([4, 4], [4, 4]),
        "a prompt and a decoding sequence": ([4, 7], [4, 1]),
        "three sequences of different lengths": ([2, 8, 5], [1, 3, 5]),
    }
    for name, (lens, q_lens) in cases.items():
        inputs = _batch(lens, q_lens)
        got, want = attempt(answer, *inputs), paged_attention(*inputs, backend="reference")
        if isinstance(got, (list, tuple)) and len(got) == len(lens) and hasattr(got[0], "shape"):
            raise Mistake(f"{name}: you return {len(got)} tensors; join their rows with torch.cat")
        got = torch.as_tensor(got)
        if got.shape != want.shape:
            raise Mistake(f"{name}: expected a tensor {tuple(want.shape)}, got {tuple(got.shape)}")
        close = torch.isclose(got.double(), want, atol=1e-9).flatten(1).all(1)  # [num_tokens]
        if not bool(close.all()):
            raise Mistake(f"{name}: {_why_paged(answer, got, close, lens, inputs)}")


def _batch(lens: list[int], q_lens: list[int]) -> tuple[Any, ...]:
    """A tiny pool in float64, 4 query heads over 2 KV heads of 2 numbers; every slot without a token is NaN."""
    generator = torch.Generator().manual_seed(len(lens))
    needed = [-(-n // _SIZE) for n in lens]
    order = torch.randperm(sum(needed) + 2, generator=generator).tolist()
    tables = [[order.pop() for _ in range(n)] for n in needed]
    k_cache, v_cache = (torch.full((sum(needed) + 2, _SIZE, 2, 2), torch.nan, dtype=torch.float64) for _ in "kv")
    for table, n in zip(tables, lens, strict=True):
        for cache in (k_cache, v_cache):
            slots = [physical_slot(table, p, _SIZE) for p in range(n)]
            cache.flatten(0, 1)[slots] = torch.randn(n, 2, 2, dtype=torch.float64, generator=generator)
    query = torch.randn(sum(q_lens), 4, 2, dtype=torch.float64, generator=generator)
    return query, k_cache, v_cache, tables, lens, [0, *itertools.accumulate(q_lens)]


def _why_paged(
    answer: Callable[..., Any], got: torch.Tensor, close: torch.Tensor, lens: list[int], inputs: tuple[Any, ...]
) -> str:
    cu = inputs[-1]
    wrong = next(i for i in range(len(lens)) if not bool(close[cu[i] : cu[i + 1]].all()))
    where = f"sequence {wrong} (rows {cu[wrong]} to {cu[wrong + 1] - 1}, {lens[wrong]} tokens) is wrong"
    if bool(torch.isnan(got[cu[wrong] : cu[wrong + 1]]).any()):
        return f"{where}: NaN came out, so a slot was read that holds no token, or a row was never written"
    if wrong > 0:
        return (
            f"the first sequence is right and {where}. Are its query rows cu_seqlens_q[{wrong}] to "
            f"cu_seqlens_q[{wrong + 1}] - 1, both when you read the query and when you write the output? And are its "
            f"table and length block_tables[{wrong}] and seq_lens[{wrong}]?"
        )
    rows = cu[1] - cu[0]
    if rows > 1 and rows < lens[0]:
        return f"{where}: its {rows} queries are its LAST tokens, so the mask is aligned to the bottom right"
    if rows > 1 and bool(close[rows - 1]):
        return f"{where}, and only its last row is right: the earlier rows look at keys after themselves"
    return f"{where}: compare it with attention over its own keys alone"


# ---- padded against packed


@exercise("you count what each way computes, and padding is paid twice: in the prompts and at the end")
def check_08_tokens(answer: Any) -> None:
    """`answer(requests)`, requests [(prompt_len, output_len)] -> (packed, padded) tokens computed."""
    for requests in [[(5, 1)], [(5, 3)], [(5, 3), (5, 3)], [(5, 9), (12, 4)], [(5, 9), (12, 4), (3, 12)]]:
        got = attempt(answer, list(requests))
        got = listed(got, "two numbers, (packed, padded)")
        if len(got) != 2:
            raise Mistake(f"for {requests} you return {got!r}; return two numbers, (packed, padded)")
        packed, padded = _count(requests)
        for name, mine, want in (("packed", got[0], packed), ("padded", got[1], padded)):
            mine = whole(mine)
            if mine != want:
                raise Mistake(f"requests {requests}: your {name} count is {mine}, expected {want}. "
                              + _why_tokens(requests, name, mine))  # fmt: skip


def _count(requests: Sequence[tuple[int, int]]) -> tuple[int, int]:
    width = max(p for p, _ in requests) + max(o for _, o in requests) - 1
    return sum(p + o - 1 for p, o in requests), len(requests) * width


def _why_tokens(requests: Sequence[tuple[int, int]], name: str, mine: int) -> str:
    n, packed = len(requests), sum(p + o - 1 for p, o in requests)
    widest, longest = max(p for p, _ in requests), max(o for _, o in requests)
    if mine == (packed + n if name == "packed" else n * (widest + longest)):
        return "One too many a request: the last token is written and never computed, since nothing follows it"
    if name == "padded" and mine == packed:
        return "That is the packed count: a rectangle has the same number of tokens in each row"
    if name == "padded" and mine == n * max(p + o - 1 for p, o in requests):
        return (
            "You padded whole requests, but all prompts end in the same column: the longest prompt and the longest "
            "answer need not belong to the same request"
        )
    if name == "packed" and mine == n * (widest + longest - 1):
        return "That is the padded count: return the packed one first"
    if name == "packed" and mine == sum(o for _, o in requests):
        return "The tokens of the prompts are computed too"
    if name == "packed" and mine == longest:
        return "That is how many passes there are; count the tokens in them"
    if name == "padded" and mine == n * (widest + longest - 1) - packed:
        return "That is the padding alone: count the needed tokens too"
    if name == "padded" and mine == n * widest + sum(o - 1 for _, o in requests):
        return "A row that is done stays in the batch: every row goes on until the last request is done"
    if name == "padded" and mine == sum(p for p, _ in requests) + n * (longest - 1):
        return "The prompts are padded too, to the longest"
    return "A request computes its prompt once, and each of its written tokens but the last"
