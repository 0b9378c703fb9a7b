"""Checks of chapter 7's exercises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minipaged.block_manager import blocks_needed, physical_slot
from minipaged.exercises._base import Mistake, attempt, exercise, listed, whole


@exercise("your formula finds every slot, in blocks of 1, 4 and 16, block 0 included")
def check_07_physical_slot(answer: Any) -> None:
    """`answer(block_table, position, block_size)` -> the slot in the pool."""
    cases = [([5, 100, 888], 20, 16), ([5, 100, 888], 15, 16), ([5, 100, 888], 16, 16), ([5, 100, 888], 36, 16)]
    cases += [([3, 0, 7], 5, 4), ([2, 0, 1], 1, 1), ([0], 0, 16)]
    for table, position, size in cases:
        got, want = whole(attempt(answer, table, position, size)), physical_slot(table, position, size)
        if got != want:
            case = f"table {table}, position {position}, blocks of {size}: you say slot {got}, expected {want}. "
            raise Mistake(case + _why_slot(answer, table, position, size, got))


def _why_slot(answer: Callable[..., Any], table: list[int], position: int, size: int, got: int) -> str:
    logical, offset = divmod(position, size)
    if got == position:
        return "That is the position itself: the number in the table is not used"
    if got == table[logical] * size:
        return "That is the first slot of the right block: add the offset inside the block"
    if got == table[logical] + offset:
        return "You added the offset to the block's number: a block is block_size slots long, so multiply first"
    if got == table[0] * size + position:
        return "That is start address plus offset: right only if the blocks lie one behind the other"
    if got == table[min((position + 1) // size, len(table) - 1)] * size + offset:
        return (
            "You look up the block of the next position: positions count from 0, so position 15 is in logical block 0"
        )
    return (
        f"Position {position} is in logical block {logical}, at offset {offset}; the table says block {table[logical]}"
    )


@exercise("the next token gets a block exactly when it needs one, for every block size, 1 included")
def check_07_needs_new_block(answer: Any) -> None:
    """`answer(num_tokens, block_size)` -> whether one more token needs a new block."""
    for size in (16, 4, 1):
        for num_tokens in range(3 * size + 1):
            got = attempt(answer, num_tokens, size)
            got = got.item() if hasattr(got, "item") else got
            if type(got).__name__ not in ("bool", "bool_"):
                raise Mistake(f"for {num_tokens} tokens in blocks of {size} you return {got!r}; return True or False")
            want = blocks_needed(num_tokens + 1, size) > blocks_needed(num_tokens, size)
            if bool(got) != want:
                raise Mistake(_why_block(num_tokens, size, bool(got)))


def _why_block(num_tokens: int, size: int, got: bool) -> str:
    held = blocks_needed(num_tokens, size)
    case = f"{num_tokens} tokens in blocks of {size} hold {held} blocks; you say {got} for one more token. "
    if size == 1:
        return (
            case
            + "With blocks of 1 every token needs a new block: a remainder of 1 never comes up when you divide by 1"
        )
    if num_tokens == 0:
        return case + "The first token needs the first block"
    if got:
        return case + f"Slot {num_tokens} of {held * size} is still empty, so that block would be wasted"
    return case + "All their slots are taken: the token would have nowhere to go"


@exercise("each request rounds up by itself, and an exact multiple of the block size wastes nothing")
def check_07_workload(answer: Any) -> None:
    """`answer(lengths, block_size)` -> (blocks in all, empty slots in all)."""
    for lengths, size in [([10], 16), ([16], 16), ([10, 20, 50], 16), ([16, 32], 16), ([7, 7, 7], 1), ([5, 9], 4)]:
        got = listed(attempt(answer, list(lengths), size), "two numbers, (blocks, empty slots)")
        if len(got) != 2:
            raise Mistake(f"for lengths {lengths} you return {got!r}; return two numbers, (blocks, empty slots)")
        blocks, empty = map(whole, got)
        want_blocks = sum(blocks_needed(n, size) for n in lengths)
        want_empty = want_blocks * size - sum(lengths)
        case = f"lengths {lengths}, blocks of {size}: "
        if blocks != want_blocks:
            raise Mistake(
                f"{case}you say {blocks} blocks, expected {want_blocks}. {_why_blocks(lengths, size, blocks)}"
            )
        if empty != want_empty:
            why = f"{want_blocks} blocks have {want_blocks * size} slots for {sum(lengths)} tokens"
            raise Mistake(f"{case}you say {empty} empty slots, expected {want_empty}: {why}")


def _why_blocks(lengths: list[int], size: int, got: int) -> str:
    if got == sum(n // size for n in lengths):
        return "You rounded down: the tokens behind the last full block need a block too"
    if got == sum(n // size + 1 for n in lengths):
        return "You gave an exact multiple of the block size one block too many"
    if got == blocks_needed(sum(lengths), size):
        return "You added the lengths first, but two requests do not share a block"
    return f"Request by request: {[blocks_needed(n, size) for n in lengths]}"
