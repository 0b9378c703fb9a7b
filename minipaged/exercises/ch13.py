"""Checks for chapter 13: a page table as CSR and back, KV heads on several GPUs, and the quiz over the whole course."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from minipaged.block_manager import BlockManager, blocks_needed, physical_slot
from minipaged.exercises._base import Mistake, NotAttempted, attempt, exercise, is_blank, listed, whole
from minipaged.exercises.ch10 import who_gives_way
from minipaged.fragmentation import PAPER_SLOTS
from minipaged.kv_size import models

# --- a page table as CSR -------------------------------------------------------------------------------------------


def to_csr(
    block_tables: Sequence[Sequence[int]], seq_lens: Sequence[int], page_size: int
) -> tuple[list[int], list[int], list[int]]:
    """The right answer: (indptr, indices, last_page_len) of block tables that may be padded or hold spare blocks."""
    indptr, indices, last_page_len = [0], [], []
    for table, length in zip(block_tables, seq_lens, strict=True):
        pages = blocks_needed(length, page_size)
        indices += [int(block) for block in table[:pages]]
        indptr.append(len(indices))
        last_page_len.append(length - (pages - 1) * page_size)
    return indptr, indices, last_page_len


def from_csr(
    indptr: Sequence[int], indices: Sequence[int], last_page_len: Sequence[int], page_size: int
) -> tuple[list[list[int]], list[int]]:
    """The right answer: (block tables padded with -1 to a rectangle, seq_lens)."""
    tables = [[int(block) for block in indices[indptr[i] : indptr[i + 1]]] for i in range(len(last_page_len))]
    seq_lens = [(len(t) - 1) * page_size + int(last) for t, last in zip(tables, last_page_len, strict=True)]
    wide = max(map(len, tables), default=0)
    return [table + [-1] * (wide - len(table)) for table in tables], seq_lens


_TABLES = (  # (block tables, lengths, page size)
    ([[5, 1]], [6], 4),
    ([[7, 2, -1], [6, 3, 4]], [5, 11], 4),
    ([[3, 9]], [8], 4),
    ([[2, 0, 5], [8, -1, -1]], [9, 1], 4),
    ([[4, 6, 1]], [6], 4),
    ([[1], [0], [2]], [1, 1, 1], 1),
)


@exercise("block 0 is a block, a full last page holds page_size tokens, and spare blocks stay at home")
def check_13_to_csr(answer: Callable[..., Any]) -> None:
    """`answer(block_tables, seq_lens, page_size)` -> indptr, indices, last_page_len."""
    for tables, lengths, size in _TABLES:
        told = f"tables {tables}, lengths {lengths}, pages of {size}"
        got = _parts(
            attempt(answer, [list(t) for t in tables], list(lengths), size), 3, "indptr, indices, last_page_len"
        )
        indptr, indices, last = ([whole(x) for x in listed(part)] for part in got)
        want = to_csr(tables, lengths, size)
        if indices != want[1]:
            raise Mistake(
                f"{told}: indices should be {want[1]}, you return {indices}; {_why_indices(indices, want[1])}"
            )
        if indptr != want[0]:
            why = "it begins with 0" if not indptr or indptr[0] else "entry i + 1 is where the pages of sequence i end"
            raise Mistake(f"{told}: indptr should be {want[0]}, you return {indptr}; {why}")
        if last != want[2]:
            why = "a full page holds page_size tokens, not 0" if 0 in last else "tokens in the last page, from 1 on"
            raise Mistake(f"{told}: last_page_len should be {want[2]}, you return {last}; {why}")


def _parts(value: Any, count: int, names: str) -> list[Any]:
    parts = list(value) if isinstance(value, tuple | list) else []
    if len(parts) != count:
        raise Mistake(f"return {names}")
    return parts


def _why_indices(got: list[int], want: list[int]) -> str:
    if -1 in got:
        return "-1 pads the rectangle and names no block"
    if got == [block for block in want if block]:
        return "block 0 is a block like any other"
    if len(got) > len(want):
        return "take as many blocks as the length needs: a table may hold spare ones"
    return "the tables one after another, each in its own order"


@exercise("indptr cuts the row into tables again, and the last page tells the length")
def check_13_from_csr(answer: Callable[..., Any]) -> None:
    """`answer(indptr, indices, last_page_len, page_size)` -> block tables padded with -1, seq_lens."""
    for tables, lengths, size in _TABLES:
        csr = to_csr(tables, lengths, size)
        told = f"indptr {csr[0]}, indices {csr[1]}, last_page_len {csr[2]}, pages of {size}"
        got = _parts(attempt(answer, *[list(part) for part in csr], size), 2, "block_tables, seq_lens")
        rows = [[whole(x) for x in listed(row, "rows of block numbers")] for row in listed(got[0], "rows")]
        lens = [whole(x) for x in listed(got[1])]
        want = from_csr(*csr, size)
        if rows != want[0]:
            bare = [[block for block in row if block != -1] for row in want[0]]
            why = "pad the shorter tables with -1" if rows == bare else "row i is indices[indptr[i] : indptr[i + 1]]"
            why = "pad with -1: 0 is the number of a block" if rows == _padded_with_zero(want[0]) else why
            raise Mistake(f"{told}: the tables should be {want[0]}, you return {rows}; {why}")
        if lens != want[1]:
            whole_pages = [sum(block != -1 for block in row) * size for row in want[0]]
            why = "the last page is not full" if lens == whole_pages else "all pages but the last are full"
            raise Mistake(f"{told}: seq_lens should be {want[1]}, you return {lens}; {why}")


def _padded_with_zero(rows: list[list[int]]) -> list[list[int]]:
    return [[0 if block == -1 else block for block in row] for row in rows]


# --- several GPUs --------------------------------------------------------------------------------------------------


def heads_per_gpu(num_kv_heads: int, num_gpus: int) -> list[list[int]]:
    """The right answer: the KV heads that each GPU keeps, in tensor parallel."""
    if num_gpus <= num_kv_heads:
        each = num_kv_heads // num_gpus
        return [list(range(rank * each, (rank + 1) * each)) for rank in range(num_gpus)]
    copies = num_gpus // num_kv_heads
    return [[rank // copies] for rank in range(num_gpus)]


@exercise("each GPU keeps at least one KV head: with more GPUs than heads, a head is kept more than once")
def check_13_heads_per_gpu(answer: Callable[..., Any]) -> None:
    """`answer(num_kv_heads, num_gpus)` -> for each GPU, the numbers of the KV heads it keeps."""
    for heads, gpus in ((8, 1), (8, 2), (8, 8), (8, 16), (1, 4), (2, 8)):
        rows = listed(attempt(answer, heads, gpus), "a list for each GPU")
        got = [sorted(whole(x) for x in listed(row, "a list for each GPU")) for row in rows]
        want = heads_per_gpu(heads, gpus)
        if got == want:
            continue
        told = f"{heads} KV heads on {gpus} GPUs: {want}, you return {got}"
        if len(got) != gpus:
            raise Mistake(f"{told}. One list for each GPU, please: {gpus} of them")
        if [] in got:
            raise Mistake(f"{told}. GPU {got.index([])} keeps nothing, and its query heads need a K and V to read")
        if sorted(h for row in got for h in row) == sorted(h for row in want for h in row):
            raise Mistake(
                f"{told}. Neighbours stay together: the query heads of a group sit on the GPU of their KV head"
            )
        raise Mistake(
            f"{told}. Cut the heads into equal parts; if there are too few, repeat each the same number of times"
        )


# --- the quiz ------------------------------------------------------------------------------------------------------


class Question(NamedTuple):
    """A question of the quiz.

    Attributes:
        key: its name in the dictionary of answers.
        chapter: which to read again.
        answer: computes the right answer.
        why: one sentence for who is wrong.
    """

    key: str
    chapter: int
    answer: Callable[[], int | str]
    why: str


def _slots_at_the_end() -> int:
    manager = BlockManager(8, watermark=0)
    manager.allocate(0, range(7))
    manager.append_slots(0, 9)  # the tenth new token is chosen and never stored
    return manager.num_tokens(0)


def _still_shared() -> int:
    manager = BlockManager(8, watermark=0)
    manager.allocate(0, range(19))
    manager.fork(0, 1)
    for sequence in (0, 1):
        manager.append_slots(sequence)
    return len(set(manager.block_table(0)) & set(manager.block_table(1)))


QUIZ = (
    Question("passes", 1, lambda: len(range(20)), "each pass writes one token, whatever the cache saves within it"),
    Question("k_times", 2, lambda: 8 // 8, "K has as many heads as there are KV heads; query heads do not count"),
    Question(
        "not_kept", 3, lambda: ({"Q", "K", "V"} - {"K", "V"}).pop(), "later tokens read old K and V, and never an old Q"
    ),
    Question("slots", 4, _slots_at_the_end, "the last token is chosen and never read, so it is never stored"),
    Question(
        "bytes",
        5,
        lambda: models()["Llama-3-8B"].spec.bytes_per_token(),
        "2 (K and V) x layers x KV heads x head_dim x 2 bytes",
    ),
    Question("at_once", 6, lambda: PAPER_SLOTS // 2048, "whole pieces only; the rest is too small for another one"),
    Question("slot", 7, lambda: physical_slot([5, 100, 888], 37, 16), "table[37 // 16] * 16 + 37 % 16"),
    Question("moved", 8, lambda: 0, "who moves the data and the table together changes no number that attention reads"),
    Question("programs", 9, lambda: 3 * 3, "one program for each sequence and each KV head"),
    Question(
        "gives_way",
        10,
        lambda: who_gives_way()["B wants a block"],
        "the newest gives way, whoever asks: what is lost by computing it again is least",
    ),
    Question("shared", 11, _still_shared, "full blocks stay shared; the part-filled one was copied at the first write"),
    Question("rejected", 12, lambda: 1, "the target model's own token at the first rejected place is kept"),
)


@exercise("twelve of twelve: you know what vLLM's authors had to know")
def check_13_quiz(answer: Any) -> None:
    """`answer` maps the key of each question to a number or a letter; what is wrong names its chapter."""
    if not isinstance(answer, dict) or set(answer) != {q.key for q in QUIZ}:
        raise Mistake(f"give a dictionary with the keys {', '.join(q.key for q in QUIZ)}")
    if all(is_blank(value) for value in answer.values()):
        raise NotAttempted
    wrong = [q for q in QUIZ if not is_blank(answer[q.key]) and not _same(answer[q.key], q.answer())]
    open_ = [q.key for q in QUIZ if is_blank(answer[q.key])]
    lines = [f"{q.key}: not {answer[q.key]!r:.40}; {q.why} (read chapter {q.chapter} again)" for q in wrong]
    lines += [f"still open: {', '.join(open_)}"] if open_ else []
    if lines:
        raise Mistake("\n  ".join([f"{len(QUIZ) - len(wrong) - len(open_)} of {len(QUIZ)} right", *lines]))


def _same(mine: Any, right: int | str) -> bool:
    if isinstance(right, str):
        return isinstance(mine, str) and mine.strip().lower() == right.lower()
    if isinstance(mine, str) and mine.strip().replace(",", "").isdigit():  # "131,072" is a number too
        mine = int(mine.replace(",", ""))
    try:
        return whole(mine) == right
    except Mistake:
        return False
