"""Checks of chapter 9's exercises: four puzzles in Triton's interpreter, the head groups, and the bytes of a step."""

from __future__ import annotations

from typing import Any

import torch

from minipaged import puzzles
from minipaged.exercises._base import Mistake, NotAttempted, attempt, exercise


@exercise("eight numbers loaded, changed and stored by one program, and nothing outside touched")
def check_09_load(answer: Any) -> None:
    """`answer[grid](x, out, SIZE)`: out = x + 10."""
    _puzzle("load", answer, _why_load)


@exercise("three programs share 20 numbers, and the last one leaves alone what is not there")
def check_09_mask(answer: Any) -> None:
    """`answer[grid](x, out, n, SIZE)`: out = x * 2 for any n."""
    _puzzle("mask", answer, _why_mask)


@exercise("each program walks its own row in tiles, whatever the row's length")
def check_09_loop(answer: Any) -> None:
    """`answer[grid](x, out, n, SIZE)`: out = x * 2, one program a row."""
    _puzzle("loop", answer, _why_loop)


@exercise("the largest number of each row, kept through the tiles, with nothing from behind the row's end")
def check_09_reduce(answer: Any) -> None:
    """`answer[grid](x, out, n, SIZE)`: out[row] = the largest number of the row."""
    _puzzle("reduce", answer, _why_reduce)


def _puzzle(name: str, kernel: Any, why: Any) -> None:
    if not callable(kernel) and not hasattr(kernel, "__getitem__"):
        raise Mistake(f"expected a kernel, got {type(kernel).__name__}: write a function with @triton.jit above it")
    if not puzzles.has_triton():
        raise Mistake("this puzzle runs in Triton's interpreter, and Triton is not installed here (Linux only)")
    for seed in (0, 1):
        try:
            outcome = puzzles.run(name, kernel, seed)
        except Exception as error:
            raise Mistake(f"your kernel raised {type(error).__name__}: {error}") from error
        if not outcome.stored:
            raise NotAttempted
        if outcome.outside:
            more = f", and {len(outcome.outside) - 1} more outside" if len(outcome.outside) > 1 else ""
            raise Mistake(f"{outcome.outside[0]}{more}. {why(outcome)}".rstrip())
        if not outcome.right:
            raise Mistake(f"{_first_wrong(outcome)}. {why(outcome)}".rstrip())


def _first_wrong(outcome: puzzles.Outcome) -> str:
    place = int((outcome.yours != outcome.expected).flatten().nonzero()[0])
    yours, expected = float(outcome.yours.flatten()[place]), float(outcome.expected.flatten()[place])
    if yours != yours:
        return f"nothing was stored in out[{place}], expected {expected:g}"
    return f"out[{place}] is {yours:g}, expected {expected:g}"


def _why_load(outcome: puzzles.Outcome) -> str:
    if torch.equal(outcome.yours, outcome.x):
        return "You stored what you loaded: add 10 first"
    if outcome.yours.isnan().sum() == 7:
        return "One program handles all eight numbers: use tl.arange(0, SIZE) for their places"
    return "The places are 0 to SIZE - 1, the same for the load and the store"


def _why_mask(outcome: puzzles.Outcome) -> str:
    if outcome.outside and outcome.outside[0].kind == "load":
        return "The last program has more places than numbers: give tl.load a mask"
    if outcome.outside:
        return "The load is masked, the store is not: give tl.store the same mask"
    if outcome.yours[8:].isnan().all():
        return "Every program did the first eight places: begin at tl.program_id(0) * SIZE"
    return "Program p has the places p * SIZE to p * SIZE + SIZE - 1, as far as they are below n"


def _why_loop(outcome: puzzles.Outcome) -> str:
    if outcome.outside:
        return "The last tile of a row has more places than numbers: mask the places that are not below n"
    if outcome.yours[:, 8:].isnan().all():
        return "Only the first tile was done: go on with `for first in range(0, n, SIZE):`"
    if outcome.yours[1:].isnan().all():
        return "Every program did row 0: a row begins at tl.program_id(0) * n"
    return "Place i of row r is x[r * n + i]"


def _why_reduce(outcome: puzzles.Outcome) -> str:
    if outcome.outside:
        return "The last tile has more places than numbers: give tl.load a mask"
    if torch.equal(outcome.yours, torch.zeros(3)):
        return "All numbers are below zero, and 0 came from behind the row's end: load float('-inf') there (other=...)"
    if torch.equal(outcome.yours, outcome.x[:, 16:].amax(dim=1)):
        return "That is the last tile's largest: keep the larger of it and what you had"
    if torch.equal(outcome.yours, outcome.x[:, :8].amax(dim=1)):
        return "That is the first tile's largest: the other tiles count too"
    return "Keep one number through the loop: the largest so far"


@exercise("each query head meets the KV head of its own group, for every number of heads")
def check_09_query_heads(answer: Any) -> None:
    """`answer(kv_head, num_heads, num_kv_heads)` -> the query heads that share this KV head, in order."""
    for num_heads, num_kv_heads in ((12, 12), (9, 3), (32, 8), (8, 1)):
        group = num_heads // num_kv_heads
        for kv_head in range(num_kv_heads):
            got = attempt(answer, kv_head, num_heads, num_kv_heads)
            try:
                got = [int(head) for head in got]
            except (TypeError, ValueError):
                raise Mistake(f"you return {got!r}; a list of query heads is expected") from None
            want = list(range(kv_head * group, (kv_head + 1) * group))
            if got != want:
                case = f"{num_heads} query heads, {num_kv_heads} KV heads, KV head {kv_head}: you say {got}"
                raise Mistake(f"{case}, expected {want}. {_why_heads(got, kv_head, num_heads, num_kv_heads)}")


def _why_heads(got: list[int], kv_head: int, num_heads: int, num_kv_heads: int) -> str:
    if got == list(range(kv_head, num_heads, num_kv_heads)):
        return "That deals the heads out like cards; a group is made of neighbours: query head // group"
    if got == [kv_head]:
        return "A KV head serves a whole group of num_heads // num_kv_heads query heads"
    if any(head >= num_heads or head < 0 for head in got):
        return f"Query heads are numbered 0 to {num_heads - 1}"
    return "Query head q belongs to KV head q // (num_heads // num_kv_heads)"


@exercise("you count what must cross the bus: K and V of every token, once for each KV head")
def check_09_bytes_read(answer: Any) -> None:
    """`answer(lens, num_kv_heads, head_dim, num_bytes)` -> bytes of K and V that one layer's decode step must read."""
    for lens, kv_heads, dim, size in (([1000, 50, 7], 3, 64, 4), ([100], 8, 128, 2), ([17], 1, 16, 2)):
        got = attempt(answer, list(lens), kv_heads, dim, size)
        if isinstance(got, bool) or not isinstance(got, (int, float)):
            raise Mistake(f"you return {got!r}; a number of bytes is expected")
        want = 2 * sum(lens) * kv_heads * dim * size
        if got != want:
            case = f"lengths {lens}, {kv_heads} KV heads of {dim}, {size} bytes each: you say {got}, expected {want}"
            raise Mistake(f"{case}. {_why_bytes(got, want, lens, size)}")


def _why_bytes(got: float, want: int, lens: list[int], size: int) -> str:
    if got * 2 == want:
        return "That is K alone; V is read too"
    if got * size == want:
        return "That is how many numbers there are; each has several bytes"
    if got == want // sum(lens) * max(lens) * len(lens):
        return "You padded every sequence to the longest; each program stops at its own length"
    if got == want * 8:
        return "Those are bits"
    return "Two tensors, every token of every sequence, every KV head, head_dim numbers"
