"""Checks of chapter 9's exercises: four puzzles in Triton's interpreter, the head groups, and the bytes of a step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from minipaged import puzzles
from minipaged.exercises._base import Mistake, NotAttempted, attempt, exercise, listed, whole


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
    puzzle = puzzles.PUZZLES[name]
    tasks = [puzzle] if name == "load" else [puzzle, *(puzzle.resized(n, size) for n, size in ((13, 4), (1100, 256)))]
    tasks += [replace(puzzle.resized(13, 4), lowest=True)] if name == "reduce" else []
    for task in tasks:
        for seed in (0, 1):
            _once(task, kernel, seed, why)


def _once(task: puzzles.Puzzle, kernel: Any, seed: int, why: Any) -> None:
    first = task in puzzles.PUZZLES.values()
    lowest = " and a row in which every number is -inf" if task.lowest else ""
    case = "" if first else f"with n = {task.arguments[0]}, SIZE = {task.arguments[1]}{lowest}: "
    try:
        outcome = puzzles.run(task, kernel, seed)
    except Exception as error:
        raise Mistake(f"{case}your kernel raised {type(error).__name__}: {error}") from error
    if first and not outcome.stored:
        raise NotAttempted
    if outcome.right:
        size = task.arguments[-1]
        if size == 256 and outcome.widest > size:  # one tile is right as long as it is larger than any row here
            raise Mistake(
                f"{case}a tile of yours has {outcome.widest} places. A tile has SIZE places, {size} here, and a row "
                "may be longer than any tile: loop over its tiles"
            )
        return
    if outcome.outside:
        more = f", and {len(outcome.outside) - 1} more outside" if len(outcome.outside) > 1 else ""
        what = f"{outcome.outside[0]}{more}"
    elif outcome.foreign:
        what = outcome.foreign[0]
    else:
        what = _first_wrong(outcome)
    raise Mistake(f"{case}{what}. {why(outcome) if first else _why_resized(outcome, why)}".rstrip())


def _why_resized(outcome: puzzles.Outcome, why: Any) -> str:
    """The kernel was right with n = 20 and SIZE = 8, and is not with other numbers."""
    n, size = outcome.puzzle.arguments
    if outcome.outside or outcome.foreign:
        return f"With n = 20 it was right: write n wherever you wrote 20 (here n is {n})"
    if outcome.yours.dim() == 2 and size == 256:
        done = int((~outcome.yours[0].isnan()).sum())
        if done < n and outcome.yours[:, done:].isnan().all():
            return f"Only the first {done} places of a row were done, and a row may be longer than any tile: loop to n"
    if outcome.yours.isnan().any():
        return f"With SIZE = 8 it was right: write SIZE wherever you wrote 8 (here SIZE is {size})"
    return why(outcome)


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
    if outcome.yours[1:].isnan().all():
        return "Every program did row 0: a row begins at tl.program_id(0) * n"
    if outcome.foreign:
        return "The mask must compare the place in the row (i), not in the tensor, with n"
    if outcome.yours[:, 8:].isnan().all():
        return "Only the first tile was done: go on with `for first in range(0, n, SIZE):`"
    return "Place i of row r is x[r * n + i]"


def _why_reduce(outcome: puzzles.Outcome) -> str:
    if outcome.outside:
        return "The last tile has more places than numbers: give tl.load a mask"
    if outcome.foreign:
        return "Row r begins at r * n, and the mask compares the place in the row (i), not in the tensor, with n"
    n, size = outcome.puzzle.arguments
    stray = [top for top, row in zip(outcome.yours.tolist(), outcome.x.tolist(), strict=True) if top not in row]
    if stray and outcome.puzzle.lowest:
        return f"A number can be lower than your stand-in {stray[0]:g}: use float('-inf')"
    if stray and stray[0] == stray[0]:
        start = "is your starting number or came from behind the row's end"
        return f"{stray[0]:g} {start}: use float('-inf') for both"
    if torch.equal(outcome.yours, outcome.x[:, (n - 1) // size * size :].amax(dim=1)):
        return "That is the last tile's largest: keep the larger of it and what you had"
    for tile in (8, 16, 32, 64, 128, 256, 512, 1024):
        if tile < n and torch.equal(outcome.yours, outcome.x[:, :tile].amax(dim=1)):
            return f"That is the first tile's largest, of {tile} places: the other tiles count too"
    return "Keep one number through the loop: the largest so far"


@exercise("each query head meets the KV head of its own group, for every number of heads")
def check_09_query_heads(answer: Any) -> None:
    """`answer(kv_head, num_heads, num_kv_heads)` -> the query heads that share this KV head, in order."""
    for num_heads, num_kv_heads in ((12, 12), (9, 3), (32, 8), (8, 1)):
        group = num_heads // num_kv_heads
        for kv_head in range(num_kv_heads):
            got = attempt(answer, kv_head, num_heads, num_kv_heads)
            heads = sorted(got) if isinstance(got, (set, frozenset)) else listed(got, "a list of query heads")
            got = [whole(head) for head in heads]
            want = list(range(kv_head * group, (kv_head + 1) * group))
            if got != want:
                case = f"{num_heads} query heads, {num_kv_heads} KV heads, KV head {kv_head}: you say {got}"
                raise Mistake(f"{case}, expected {want}. {_why_heads(got, kv_head, num_heads, num_kv_heads)}")


def _why_heads(got: list[int], kv_head: int, num_heads: int, num_kv_heads: int) -> str:
    group = num_heads // num_kv_heads
    if got == list(range(kv_head, num_heads, num_kv_heads)):
        return "That deals the heads out like cards; a group is made of neighbours: query head // group"
    if got == [kv_head]:
        return "A KV head serves a whole group of num_heads // num_kv_heads query heads"
    if len({*got}) == len(got) and sorted(got) == list(range(kv_head * group, (kv_head + 1) * group)):
        return "The right heads in another order"
    if got == [head + 1 for head in range(kv_head * group, (kv_head + 1) * group)]:
        return "Heads count from 0"
    if len(got) == num_heads - kv_head * group > group:
        return f"A group ends after num_heads // num_kv_heads = {group} heads"
    if any(head >= num_heads or head < 0 for head in got):
        return f"Query heads are numbered 0 to {num_heads - 1}"
    return "Query head q belongs to KV head q // (num_heads // num_kv_heads)"


@exercise("you count what must cross the bus: K and V of every token, once for each KV head")
def check_09_bytes_read(answer: Any) -> None:
    """`answer(lens, num_kv_heads, head_dim, num_bytes)` -> bytes of K and V that one layer's decode step must read."""
    for lens, kv_heads, dim, size in (([1000, 50, 7], 3, 64, 4), ([100], 8, 128, 2), ([17], 1, 16, 2)):
        got = attempt(answer, list(lens), kv_heads, dim, size)
        got = got.item() if hasattr(got, "item") and getattr(got, "ndim", 1) == 0 else got  # numpy's, torch's
        if isinstance(got, bool) or not isinstance(got, (int, float)):
            raise Mistake(f"you return {got!r}; a number of bytes is expected")
        want = 2 * sum(lens) * kv_heads * dim * size
        if got != want:
            case = f"lengths {lens}, {kv_heads} KV heads of {dim}, {size} bytes each: you say {got}, expected {want}"
            raise Mistake(f"{case}. {_why_bytes(got, want, lens, size, kv_heads, dim)}")


def _why_bytes(got: float, want: int, lens: list[int], size: int, kv_heads: int, dim: int) -> str:
    whole_blocks = 2 * sum(-(-n // 16) * 16 for n in lens) * kv_heads * dim * size
    if got == want // sum(lens) * max(lens) and len(lens) > 1:
        return "That is the longest sequence alone; every sequence is read"
    if got == want // sum(lens) * len(lens):
        return "That is one token for each sequence; all tokens before it are read too"
    if got == want // kv_heads and kv_heads > 1:
        return f"That is one KV head, and there are {kv_heads}"
    if got == want // dim:
        return f"Each KV head has {dim} numbers for a token"
    if got == 3 * want:
        return "That is gathering: read, write, read again; the kernel reads once"
    if got == whole_blocks:
        return "Only the slots that hold a token are read; the mask leaves the rest of the last block alone"
    if got * 1024 == want:
        return "Give bytes, not KiB"
    if got * 2 == want:
        return "That is K alone; V is read too"
    if got * size == want:
        return "That is how many numbers there are; each has several bytes"
    if got == want // sum(lens) * max(lens) * len(lens):
        return "You padded every sequence to the longest; each program stops at its own length"
    if got == want * 8:
        return "Those are bits"
    return "Two tensors, every token of every sequence, every KV head, head_dim numbers"
