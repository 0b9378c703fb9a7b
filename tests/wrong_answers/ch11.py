"""Plausible wrong answers of chapter 11, and words their messages must hold."""

from __future__ import annotations

from minipaged.exercises.ch11 import BLOCK, append_shared, counts_by_hand, find_cached

RIGHT = counts_by_hand()
FORK, WROTE, COPIES, IN_USE, ENDED = RIGHT


def _never_copies(table, num_tokens, counts, free, block_size):
    if num_tokens % block_size == 0:
        return append_shared(table, num_tokens, counts, free, block_size)
    return []


def _always_copies(table, num_tokens, counts, free, block_size):
    if num_tokens % block_size == 0:
        return append_shared(table, num_tokens, counts, free, block_size)
    old, table[-1] = table[-1], free.pop(0)
    counts[table[-1]] = 1
    counts[old] -= 1
    return [(old, table[-1])]


def _copies_full_blocks(table, num_tokens, counts, free, block_size):
    if table and counts[table[-1]] > 1 and num_tokens % block_size == 0:
        source = table[-1]
        append_shared(table, num_tokens, counts, free, block_size)
        return [(source, table[-1])]
    return append_shared(table, num_tokens, counts, free, block_size)


def _backwards(*case):
    return [(target, source) for source, target in append_shared(*case)]


def _forgets_the_count(table, num_tokens, counts, free, block_size):
    before = dict(counts)
    copies = append_shared(table, num_tokens, counts, free, block_size)
    counts.update(before)
    return copies


def _forgets_the_table(table, num_tokens, counts, free, block_size):
    before = list(table)
    copies = append_shared(table, num_tokens, counts, free, block_size)
    if copies:
        table[:] = before
    return copies


def _takes_the_last(table, num_tokens, counts, free, block_size):
    free.reverse()
    copies = append_shared(table, num_tokens, counts, free, block_size)
    free.reverse()
    return copies


def _finds(chain=True, compare=True, before=True, cap=True, go_on=False):
    def find(prompt, stored, block_size, hash_of):
        blocks, key = [], 0
        for start in range(0, len(prompt) - (block_size if cap else block_size - 1), block_size):
            tokens = tuple(prompt[start : start + block_size])
            key = hash_of(key if chain else 0, tokens)
            entry = stored.get(key)
            right = entry is not None and (not compare or entry[1] == tokens)
            right = right and (not before or entry[0] == (blocks[-1] if blocks else None))
            if right:
                blocks.append(entry[2])
            elif not go_on:
                break
        return blocks

    return find


WRONG = {
    "check_11_counts": [
        (RIGHT | {FORK: 2}, "each of the three tables"),
        (RIGHT | {WROTE: 3}, "A and C still name"),
        (RIGHT | {COPIES: 3}, "A writes in place"),
        (RIGHT | {IN_USE: 9}, "a last one for each"),
        (RIGHT | {ENDED: 2}, "still shared"),
    ],
    "check_11_copy_on_write": [
        (_never_copies, "the others would read this"),
        (_always_copies, "write in place"),
        (_copies_full_blocks, "never written again"),
        (_backwards, "from the shared block into the new one"),
        (_forgets_the_count, "the counts are"),
        (_forgets_the_table, "takes the place"),
        (_takes_the_last, "first free block"),
    ],
    "check_11_break_the_hash": [
        (list(BLOCK), "the block itself"),
        (BLOCK[::-1], "the order counts"),
        ([BLOCK[0] + 1, BLOCK[1] - 1, *BLOCK[2:]], "31 times as much"),
        ([BLOCK[0] + 65_536, *BLOCK[1:]], "no token id"),
        (BLOCK[:3], "a block here has 4"),
    ],
    "check_11_find_cached": [
        (_finds(chain=False), "key of the block before"),
        (_finds(compare=False, before=False), "compare them"),
        (_finds(before=False), "compare what came before too"),
        (_finds(cap=False), "no token left to compute"),
        (_finds(go_on=True, before=False), "ends at the first block that is missing"),
        (_finds(go_on=True), "what comes behind a hole has another beginning"),
        (lambda p, s, b, h: find_cached(p, s, b, h)[::-1], "You use blocks [1, 0]"),
    ],
}
