"""Checks for chapter 11: counts by hand, copy-on-write, a hash to break, and a lookup to repair."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from minipaged.block_manager import BlockManager
from minipaged.exercises._base import Mistake, NotAttempted, attempt, exercise, listed, whole

# --- counts by hand ------------------------------------------------------------------------------------------------


def counts_by_hand() -> dict[str, int]:
    """The right answer, by the real manager: blocks of 4, a prompt of 10 tokens, A forked into B and C."""
    manager = BlockManager(12, 4, watermark=0)
    a, b, c = range(3)
    manager.allocate(a, range(10))
    first, last = manager.block_table(a)[0], manager.block_table(a)[2]
    manager.fork(a, b)
    manager.fork(a, c)
    out = {"count of block 0 after both forks": manager.pool.blocks[first].ref_count}
    copies = len(manager.append_slots(b))
    out["count of block 2 after B wrote"] = manager.pool.blocks[last].ref_count
    copies += len(manager.append_slots(c)) + len(manager.append_slots(a))
    out["copies, after all three wrote"] = copies
    out["blocks in use, after all three wrote"] = manager.num_used_blocks
    manager.free(b)
    out["blocks in use, after B ended"] = manager.num_used_blocks
    return out


_WHY_COUNT = {
    "count of block 0 after both forks": "a fork copies the table, not the blocks: each of the three tables names it",
    "count of block 2 after B wrote": "B now names its own copy; A and C still name the old one",
    "copies, after all three wrote": "B and C each copy; then the count is back at 1, and A writes in place",
    "blocks in use, after all three wrote": "two full ones that all share, and a last one for each",
    "blocks in use, after B ended": "only the block that B alone named becomes free; the full ones are still shared",
}


@exercise("a table more, a count more; who copies lets go of the old one; the last holder writes in place")
def check_11_counts(answer: dict[str, int]) -> None:
    """`answer` maps each question to a number."""
    right = counts_by_hand()
    if not isinstance(answer, dict) or set(answer) != set(right):
        raise Mistake(f"give a dictionary with the keys: {'; '.join(right)}")
    for question, want in right.items():
        if answer[question] is ...:
            raise NotAttempted
        got = whole(answer[question])
        if got != want:
            raise Mistake(f"{question}: you say {got}, expected {want}; {_WHY_COUNT[question]}")


# --- copy-on-write -------------------------------------------------------------------------------------------------


def append_shared(
    table: list[int], num_tokens: int, counts: dict[int, int], free: list[int], block_size: int
) -> list[tuple[int, int]]:
    """The right answer: room for one more token; changes table, counts and free, returns the copies to make."""
    if num_tokens % block_size == 0:  # the last block is full, or there is none: nothing in it will be written
        table.append(free.pop(0))
        counts[table[-1]] = 1
        return []
    old = table[-1]
    if counts[old] == 1:
        return []
    table[-1] = free.pop(0)
    counts[table[-1]] = 1
    counts[old] -= 1
    return [(old, table[-1])]


_COW_CASES = (  # table, num_tokens, counts, free, block_size
    ([7, 1], 7, {7: 1, 1: 1}, [3, 4], 4),
    ([7, 1], 7, {7: 2, 1: 2}, [3, 4], 4),
    ([7, 3], 7, {7: 2, 3: 1, 1: 1}, [4], 4),
    ([7, 1], 8, {7: 2, 1: 2}, [3, 4], 4),
    ([7, 1], 5, {7: 3, 1: 3}, [0, 4], 4),
    ([0], 1, {0: 4}, [5, 6], 16),
    ([2, 0], 2, {2: 2, 0: 2}, [1], 1),
    ([], 0, {}, [0, 1], 4),
)


@exercise("only a part-filled block that another table names too is copied, once, and the last holder writes in place")
def check_11_copy_on_write(answer: Callable[..., Any]) -> None:
    """`answer(table, num_tokens, counts, free, block_size)` -> [(source, target)]; the first, third, fourth change."""
    for case in _COW_CASES:
        want_table, _, want_counts, want_free = table_w = _copied(case)
        want = append_shared(*table_w, case[4])
        table, num_tokens, counts, free = _copied(case)
        got = _pairs(attempt(answer, table, num_tokens, counts, free, case[4]))
        told = f"table {case[0]}, {num_tokens} tokens in blocks of {case[4]}, counts {case[2]}, free {case[3]}: "
        if got != want:
            raise Mistake(f"{told}copies {got}, expected {want}. {_why_copies(case, got, want)}")
        if table != want_table:
            raise Mistake(f"{told}the table is {table} afterwards, expected {want_table}: {_why_table(want, table)}")
        counts = {block: count for block, count in counts.items() if count}
        if counts != want_counts:
            raise Mistake(
                f"{told}the counts are {counts} afterwards, expected {want_counts}: each is the number of "
                "tables that name the block"
            )
        if free != want_free:
            raise Mistake(
                f"{told}free is {free} afterwards, expected {want_free}: take the first one, and only when "
                "a block is needed"
            )


def _copied(case: tuple[Any, ...]) -> tuple[list[int], int, dict[int, int], list[int]]:
    table, num_tokens, counts, free, _ = case
    return list(table), num_tokens, dict(counts), list(free)


def _pairs(value: Any) -> list[tuple[int, int]]:
    pairs = [listed(pair, "pairs (source, target)") for pair in listed(value, "a list of pairs")]
    if any(len(pair) != 2 for pair in pairs):
        raise Mistake(f"you return {value!r:.80}; return a list of pairs (source, target), [] when nothing is copied")
    return [(whole(source), whole(target)) for source, target in pairs]


def _why_copies(case: tuple[Any, ...], got: list[tuple[int, int]], want: list[tuple[int, int]]) -> str:
    table, num_tokens, counts, _, size = case
    if not got:
        return f"Block {table[-1]} has a free slot, but {counts[table[-1]]} tables name it: the others would read this"
    if want and got == [pair[::-1] for pair in want]:
        return "The pair is (source, target): from the shared block into the new one"
    if want:
        return "One copy, from the shared last block into the first free block"
    if num_tokens % size == 0:
        return "The last block is full: the new token goes into a new block, and a full one is never written again"
    return f"Only this table names block {table[-1]}: write in place"


def _why_table(want: list[tuple[int, int]], table: list[int]) -> str:
    if want:
        return "the new block takes the place of the shared one in this table"
    return "a full last block is followed by a new one" if len(table) else "the first token needs a first block"


# --- a hash to break -----------------------------------------------------------------------------------------------

VOCABULARY = 49_152  # ids of the course's model
BLOCK = (504, 3575, 282, 4649)  # the block whose key is to be met


def weak_key(tokens: Sequence[int]) -> int:
    """A quick key of a block of tokens, in 16 bits, as a hurried programmer writes it."""
    key = 0
    for token in tokens:
        key = (31 * key + token) % 65_536
    return key


@exercise("two different blocks, one key: an engine that compares keys alone would now read the wrong K and V")
def check_11_break_the_hash(answer: Sequence[int]) -> None:
    """`answer` is a block of four other token ids with the key of `BLOCK`."""
    got = [whole(token) for token in listed(answer, "a list of four token ids")]
    if len(got) != len(BLOCK):
        raise Mistake(f"you give {len(got)} ids; a block here has {len(BLOCK)}")
    outside = [token for token in got if not 0 <= token < VOCABULARY]
    if outside:
        raise Mistake(f"{outside[0]} is no token id of this model: they go from 0 to {VOCABULARY - 1}")
    if tuple(got) == BLOCK:
        raise Mistake("that is the block itself; find another one with the same key")
    key, want = weak_key(got), weak_key(BLOCK)
    if key != want:
        hint = "one more in a place counts 31 times as much as one more in the next place"
        if sorted(got) == sorted(BLOCK):
            hint = "the order counts: each place has its own weight, 31 times that of the next"
        raise Mistake(f"the key of {got} is {key}, and {want} is asked for; {hint}")


# --- a lookup to repair --------------------------------------------------------------------------------------------

Entry = tuple[int | None, tuple[int, ...], int]  # (the block before it, its tokens, the block)
HashOf = Callable[[Hashable, tuple[int, ...]], Hashable]


def chained(parent: Hashable, tokens: tuple[int, ...]) -> int:
    """A good hash: of the key of the block before, and of the block's tokens."""
    return hash((parent, tokens))


def remember(prompts: Sequence[Sequence[int]], block_size: int, hash_of: HashOf) -> dict[Hashable, Entry]:
    """What is stored after these prompts were computed: {key: (block before, tokens, block)} for full blocks."""
    stored: dict[Hashable, Entry] = {}
    number = 0
    for prompt in prompts:
        key: Hashable = 0
        before: int | None = None
        for start in range(0, len(prompt) - block_size + 1, block_size):
            tokens = tuple(prompt[start : start + block_size])
            key = hash_of(key, tokens)
            known = stored.get(key)
            if known is None:
                stored[key] = (before, tokens, number)
                number += 1
            elif known[:2] != (before, tokens):
                break  # the key is taken by something else: this block cannot be found again
            before = stored[key][2]
    return stored


def find_cached(prompt: Sequence[int], stored: dict[Hashable, Entry], block_size: int, hash_of: HashOf) -> list[int]:
    """The right answer: blocks that a new prompt can use, and at least one token is left to compute."""
    blocks: list[int] = []
    key: Hashable = 0
    for start in range(0, len(prompt) - block_size, block_size):
        tokens = tuple(prompt[start : start + block_size])
        key = hash_of(key, tokens)
        before = blocks[-1] if blocks else None
        if key not in stored or stored[key][:2] != (before, tokens):
            break
        blocks.append(stored[key][2])
    return blocks


def _lookup_cases() -> list[tuple[str, list[int], dict[Hashable, Entry], int, HashOf]]:
    two = [[1, 2, 3, 4], [5, 6, 7, 8]]
    gap = remember([[1, 2, 3, 4, 5, 6]], 2, chained)
    gap = {key: entry for key, entry in gap.items() if entry[1] != (3, 4)}
    only_tokens: HashOf = lambda _parent, tokens: hash(tokens)  # noqa: E731
    constant: HashOf = lambda _parent, _tokens: 0  # noqa: E731
    return [
        ("a longer prompt with a known beginning", [1, 2, 3, 4, 9], remember(two, 2, chained), 2, chained),
        ("a known block behind another beginning", [1, 2, 7, 8, 9], remember(two, 2, chained), 2, chained),
        ("a known second block in first place", [3, 4, 9], remember(two, 2, chained), 2, chained),
        ("every block is known", [1, 2, 3, 4], remember(two, 2, chained), 2, chained),
        ("the block between was evicted", [1, 2, 3, 4, 5, 6, 9], gap, 2, chained),
        ("a hash that always says 0", [5, 6, 7], remember([[1, 2]], 2, constant), 2, constant),
        (
            "a hash that forgets the parent",
            [5, 6, 3, 4, 9],
            remember([[1, 2, 3, 4], [5, 6]], 2, only_tokens),
            2,
            only_tokens,
        ),
        (
            "a hole in the middle",
            [1, 2, 7, 7, 3, 4, 9],
            remember([[1, 2, 3, 4]], 2, only_tokens),
            2,
            only_tokens,
        ),
        ("blocks of 1", [8, 8, 8], remember([[8, 8, 8, 8]], 1, chained), 1, chained),
        ("nothing but one token", [8], remember([[8, 8]], 1, chained), 1, chained),
    ]


_WHY_LOOKUP = {
    "a longer prompt with a known beginning": "both full blocks are stored, each under a key "
    "made from the key of the block before it, and one token is left to compute",
    "a known block behind another beginning": "(7, 8) was computed behind (5, 6), and its K and V depend on all that "
    "came before: the key must hold the key of the block before",
    "a known second block in first place": "(3, 4) was computed behind (1, 2), at other positions",
    "every block is known": "with all of them there is no token left to compute, and nothing to choose the next from",
    "the block between was evicted": "a hit ends at the first block that is missing: what follows has no start",
    "a hash that always says 0": "the key is the same and the tokens are not: compare them",
    "a hash that forgets the parent": "key and tokens are equal, but it was computed behind another block: compare "
    "what came before too",
    "a hole in the middle": "stop at the first block that is not found: what comes behind a hole has another beginning",
    "blocks of 1": "blocks of 1 work like all others",
    "nothing but one token": "one token must be computed, and there is only one",
}


@exercise("the same tokens behind the same beginning, compared and not only hashed, and one token left to compute")
def check_11_find_cached(answer: Callable[..., Any]) -> None:
    """`answer(prompt, stored, block_size, hash_of)` -> blocks to use again, in order."""
    for told, prompt, stored, size, hash_of in _lookup_cases():
        got = [whole(block) for block in listed(attempt(answer, list(prompt), dict(stored), size, hash_of))]
        want = find_cached(prompt, stored, size, hash_of)
        if got != want:
            known = [f"{tokens} behind block {before}: block {block}" for before, tokens, block in stored.values()]
            raise Mistake(
                f"{told}: prompt {prompt} in blocks of {size}, stored {'; '.join(known)}. You use blocks {got}, "
                f"expected {want}: {_WHY_LOOKUP[told]}"
            )
