"""Checks of chapter 7's exercises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minipaged.block_manager import blocks_needed
from minipaged.exercises._base import Mistake, attempt, exercise, listed, whole


@exercise("you find the way back from any slot, block 0 included, and see which slots are not this sequence's")
def check_07_physical_slot(answer: Any) -> None:
    """`answer(block_table, slot, block_size)` -> the position of the token that lies there, -1 in a foreign block."""
    cases = [
        ([2, 5], 22, 4),
        ([0], 3, 16),
        ([2, 0, 1], 1, 1),
        ([3, 0, 7], 1, 4),
        ([3, 0, 7], 9, 4),
        ([5, 100, 888], 1604, 16),
    ]
    cases += [([5, 100, 888], 95, 16), ([5, 100, 888], 1600, 16), ([5, 100, 888], 14212, 16), ([5, 100, 888], 96, 16)]
    for table, slot, size in cases:
        case = f"table {table}, slot {slot}, blocks of {size}: "
        want = table.index(slot // size) * size + slot % size if slot // size in table else -1
        try:
            got = whole(attempt(answer, list(table), slot, size))
        except Mistake as mistake:
            if want == -1:
                end = "" if str(mistake).endswith("?") else "."
                raise Mistake(f"{case}{mistake}{end} Block {slot // size} is not in the table: return -1") from mistake
            raise
        if got != want:
            raise Mistake(f"{case}you say position {got}, expected {want}. {_why_position(table, slot, size, got)}")


def _why_position(table: list[int], slot: int, size: int, got: int) -> str:
    block, offset = divmod(slot, size)
    if block not in table:
        return f"The slot is in block {block}, which is not in the table: it is somebody else's, or free"
    logical = table.index(block)
    if got == slot:
        return "That is the slot itself: the number in the table is not used"
    if got in (block, logical):
        return f"The slot is in block {block}, which is logical block {logical}; and which place in it?"
    if got == logical * size:
        return "That is the first position of the right block: add the offset inside the block"
    if got == logical + offset:
        return "You added the offset to the block's number: a block is block_size slots long, so multiply first"
    if got == logical * size + offset + 1:
        return "One too many: positions count from 0"
    if got == (logical + 1) * size + offset:
        return "One block too far: the first entry of the table is logical block 0"
    return f"Slot {slot} is in block {block} at offset {offset}; the table names this block at place {logical}"


@exercise("the next token gets a block exactly when it needs one, for every block size, 1 included")
def check_07_needs_new_block(answer: Any) -> None:
    """`answer(num_tokens, block_size)` -> whether one more token needs a new block."""
    for size in (16, 4, 1):
        said = [_yes_or_no(attempt(answer, n, size), n, size) for n in range(3 * size + 1)]
        for num_tokens, got in enumerate(said):
            if got != (blocks_needed(num_tokens + 1, size) > blocks_needed(num_tokens, size)):
                raise Mistake(_why_block(answer, num_tokens, size, got))


def _yes_or_no(got: Any, num_tokens: int, size: int) -> bool:
    """True or False, or 1 or 0, also numpy's and torch's."""
    got = got.item() if hasattr(got, "item") else got
    if not isinstance(got, (bool, int, float)) or got not in (0, 1):
        raise Mistake(f"for {num_tokens} tokens in blocks of {size} you return {got!r}; return True or False")
    return bool(got)


def _why_block(answer: Callable[..., Any], num_tokens: int, size: int, got: bool) -> str:
    held = blocks_needed(num_tokens, size)
    case = f"{num_tokens} tokens in blocks of {size} hold {held} blocks; you say {got} for one more token. "
    if size == 1:
        return (
            case
            + "With blocks of 1 every token needs a new block: a remainder of 1 never comes up when you divide by 1"
        )
    said = [bool(attempt(answer, n, size)) for n in range(3 * size)]
    known = (
        (lambda n: n % size != 0, "That is the other way round: a block is needed when no slot is left"),
        (lambda n: (n + 1) % size == 0, "You ask when this token fills its block; the token after it needs the next"),
        (lambda n: n % size == 1, "That comes one token too late: num_tokens does not count the new token"),
        (lambda n: n >= size, "True for good once the first block is full; ask whether the last one is full"),
        (lambda n: False, "A block that never comes: when all slots are taken, the token has nowhere to go"),
    )
    for rule, why in known:
        if said == [rule(n) for n in range(3 * size)]:
            return case + why
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
        if any(isinstance(number, (list, tuple)) for number in got):
            raise Mistake(f"lengths {lengths}: you return one number for each request, {got}; add them up")
        if 0 < float(got[1]) < 1:
            raise Mistake(f"lengths {lengths}: {got[1]} is a share; return how many slots are empty")
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
            if empty == sum(size - n % size for n in lengths):
                why = "an exact multiple of the block size leaves no slot empty"
            elif empty == want_blocks * size:
                why = "those are all slots; take away the ones that hold a token"
            elif empty == sum(n % size for n in lengths):
                why = "those are the tokens in the last blocks; the empty slots are the rest of them"
            elif empty == -lengths[-1] % size:
                why = "you count the last request only; each request has a last block of its own"
            raise Mistake(f"{case}you say {empty} empty slots, expected {want_empty}: {why}")


def _why_blocks(lengths: list[int], size: int, got: int) -> str:
    if got == size * sum(blocks_needed(n, size) for n in lengths) - sum(lengths):
        return "These are the empty slots: the number of blocks comes first"
    if got == len(lengths) * blocks_needed(max(lengths), size):
        return "You gave every request as many blocks as the longest one needs"
    if got == sum(n // size for n in lengths):
        return "You rounded down: the tokens behind the last full block need a block too"
    if got == sum(n // size + 1 for n in lengths):
        return "You gave an exact multiple of the block size one block too many"
    if got == blocks_needed(sum(lengths), size):
        return "You added the lengths first, but two requests do not share a block"
    return f"Request by request: {[blocks_needed(n, size) for n in lengths]}"
