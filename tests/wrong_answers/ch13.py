"""Plausible wrong answers of chapter 13, and words their messages must hold."""

from __future__ import annotations

from itertools import pairwise

from minipaged.exercises.ch13 import QUIZ, from_csr, heads_per_gpu, to_csr

RIGHT = {question.key: question.answer() for question in QUIZ}


def _with_padding(tables, lengths, size):
    indices = [block for table in tables for block in table]
    return to_csr(tables, lengths, size)[0], indices, to_csr(tables, lengths, size)[2]


def _without_zero(tables, lengths, size):
    indptr, indices, last = to_csr(tables, lengths, size)
    return indptr, [block for block in indices if block > 0], last


def _with_spare(tables, lengths, size):
    indptr, _, last = to_csr(tables, lengths, size)
    return indptr, [block for table in tables for block in table if block >= 0], last


def _counts(tables, lengths, size):
    indptr, indices, last = to_csr(tables, lengths, size)
    return [b - a for a, b in pairwise(indptr)], indices, last


def _no_zero_first(tables, lengths, size):
    indptr, indices, last = to_csr(tables, lengths, size)
    return indptr[1:], indices, last


def _remainder(tables, lengths, size):
    indptr, indices, _ = to_csr(tables, lengths, size)
    return indptr, indices, [length % size for length in lengths]


def _ragged(indptr, indices, last, size):
    tables, lengths = from_csr(indptr, indices, last, size)
    return [[block for block in table if block >= 0] for table in tables], lengths


def _zeros(indptr, indices, last, size):
    tables, lengths = from_csr(indptr, indices, last, size)
    return [[max(block, 0) for block in table] for table in tables], lengths


def _full_pages(indptr, indices, last, size):
    tables, _ = from_csr(indptr, indices, last, size)
    return tables, [size * (b - a) for a, b in pairwise(indptr)]


def _one_short(indptr, indices, last, size):
    tables, lengths = from_csr(indptr, indices, last, size)
    return tables, [length - 1 for length in lengths]


def _floor(heads, gpus):
    each = heads // gpus
    return [list(range(rank * each, (rank + 1) * each)) for rank in range(gpus)]


def _round_robin(heads, gpus):
    return [[h for h in range(heads) if h % gpus == rank] or [rank % heads] for rank in range(gpus)]


WRONG = {
    "check_13_to_csr": [
        (_with_padding, "-1 pads the rectangle"),
        (_without_zero, "block 0 is a block"),
        (_with_spare, "spare ones"),
        (_no_zero_first, "it begins with 0"),
        (_remainder, "not 0"),
        (lambda t, n, s: to_csr(t, n, s)[:2], "return indptr, indices, last_page_len"),
    ],
    "check_13_from_csr": [
        (_ragged, "pad the shorter tables"),
        (_zeros, "0 is the number of a block"),
        (_full_pages, "the last page is not full"),
        (_one_short, "all pages but the last are full"),
        (lambda p, i, n, s: ([i[::-1]] * len(n), n), "indices[indptr[i] : indptr[i + 1]]"),
    ],
    "check_13_heads_per_gpu": [
        (_floor, "keeps nothing"),
        (_round_robin, "Neighbours stay together"),
        (lambda h, g: heads_per_gpu(h, min(g, h)), "One list for each GPU"),
        (lambda h, g: [list(range(h))] * g, "Cut the heads"),
    ],
    "check_13_quiz": [
        (RIGHT | {"slots": 17}, "read chapter 4 again"),
        (RIGHT | {"gives_way": "A"}, "read chapter 10 again"),
        (RIGHT | {"k_times": 2, "slot": 14208}, "read chapter 7 again"),
        (RIGHT | {"shared": ...}, "still open: shared"),
        ({"passes": 20}, "with the keys"),
    ],
}
