"""Plausible wrong answers to chapter 8's exercises, and what the check must say about each."""

import math

import torch

from minipaged.attention import attention
from minipaged.exercises.ch08 import _merged


def _merge(change):
    def merge(a, b):
        top = max(a[0], b[0])
        shrink_a, shrink_b = (math.exp(x[0] - top) if top > -math.inf else 0.0 for x in (a, b))
        return change(a, b, top, shrink_a, shrink_b)

    return merge


def _naive_merge(a, b):
    top = max(a[0], b[0])
    fa, fb = math.exp(a[0] - top), math.exp(b[0] - top)
    return top, a[1] * fa + b[1] * fb, a[2] * fa + b[2] * fb


def _raw_merge(a, b):
    ea, eb = math.exp(a[0]), math.exp(b[0])
    top = max(a[0], b[0])
    return top, (a[1] * ea + b[1] * eb) / math.exp(top), (a[2] * ea + b[2] * eb) / math.exp(top)


def _pack(positions=None, slots=None, bounds=None):
    """A right packing in which one list is made in a wrong way."""

    def pack(parts, size):
        own = [p for _, c, n in parts for p in range(c, c + n)]
        tables = [t for t, _, n in parts for _ in range(n)]
        right = [t[p // size] * size + p % size for t, p in zip(tables, own, strict=True)]
        cu = [0]
        for _, _, n in parts:
            cu.append(cu[-1] + n)
        wrong = (positions, own), (slots, right), (bounds, cu)
        return [make(parts, own) if make else usual for make, usual in wrong]

    return pack


def _sums(numbers):
    out = [0]
    for number in numbers:
        out.append(out[-1] + number)
    return out


def _paged(rows=None, cut=True, causal=True, square=False, tiled=False):
    """The chapter's loop with one mistake."""

    def paged(query, k_cache, v_cache, block_tables, seq_lens, cu):
        out = torch.full_like(query, torch.nan)
        for i, (table, length) in enumerate(zip(block_tables, seq_lens, strict=True)):
            q_len = cu[i + 1] - cu[i]
            where = slice(cu[i], cu[i + 1]) if rows is None else rows(i, q_len, length)
            if not cut:
                length = len(table) * k_cache.shape[1]
            k, v = (c[table].flatten(0, 1)[:length].transpose(0, 1) for c in (k_cache, v_cache))
            if tiled:
                k, v = (x.repeat(2, 1, 1) for x in (k, v))
            q = query[where].transpose(0, 1)
            if square and 1 < q_len < length:
                mask = torch.ones(q_len, length, dtype=torch.bool).tril()
                scores = q @ k.repeat_interleave(2, 0).transpose(1, 2) / q.shape[-1] ** 0.5
                mixed = scores.masked_fill(~mask, -math.inf).softmax(-1) @ v.repeat_interleave(2, 0)
            else:
                mixed = attention(q, k, v, causal=causal)
            out[cu[i] : cu[i + 1]] = mixed.transpose(0, 1)
        return out

    return paged


def _slots(parts, place):
    return [place(t[p // 4], p % 4) for t, c, n in parts for p in range(c, c + n)]


def _both(requests):
    width = max(p for p, _ in requests) + max(o for _, o in requests) - 1
    return sum(p + o - 1 for p, o in requests), len(requests) * width


WRONG = {
    "check_08_merge": [
        (_merge(lambda a, b, top, fa, fb: (top, a[1] + b[1], a[2] + b[2])), "different scales"),
        (_merge(lambda a, b, top, fa, fb: (top, a[1] * fa + b[1] * fb, a[2] + b[2])), "acc shrinks by the same"),
        (_merge(lambda a, b, top, fa, fb: (top, a[1] + b[1], a[2] * fa + b[2] * fb)), "the sum shrinks by the same"),
        (_merge(lambda a, b, top, fa, fb: (top, a[1] * fb + b[1] * fa, a[2] * fb + b[2] * fa)), "the larger maximum"),
        (_merge(lambda a, b, top, fa, fb: (a[0] + b[0], a[1] * fa + b[1] * fb, a[2])), "not their sum"),
        (_merge(lambda a, b, top, fa, fb: (top, a[1], b[2])), "exp(its own maximum - the new one)"),
        (_naive_merge, "a case of their own"),
        (_raw_merge, "OverflowError"),
        (lambda a, b: 3.0, "return three numbers"),
        (_merge(lambda a, b, top, fa, fb: (top, a[2] * fa + b[2] * fb, a[1] * fa + b[1] * fb)), "each other's place"),
        (lambda a, b: (m := _merged(a, b)) and (m[0], m[1], m[2] / m[1] if m[1] else 0.0), "divided already"),
        (
            _merge(lambda a, b, top, fa, fb: (b[0], a[1] * fa + b[1] * fb, a[2] * fa + b[2] * fb)),
            "either part can have",
        ),
        (lambda a, b: _merged(a, b) if max(a[0], b[0]) > -math.inf else (0.0, 0.0, 0.0), "that saw nothing"),
    ],
    "check_08_pack": [
        (_pack(positions=lambda parts, own: list(range(len(own)))), "each sequence counts its own"),
        (_pack(positions=lambda parts, own: [p for _, _, n in parts for p in range(n)]), "started every sequence at 0"),
        (_pack(positions=lambda parts, own: [p + 1 for p in own]), "positions count from 0"),
        (_pack(positions=lambda parts, own: [p + 7 for p in own]), "behind its num_computed older ones"),
        (_pack(positions=lambda parts, own: [own]), "one flat list"),
        (_pack(slots=lambda parts, own: _slots(parts, lambda block, offset: 4 * block)), "add position % block_size"),
        (_pack(slots=lambda parts, own: _slots(parts, lambda block, offset: block + offset)), "multiply its number"),
        (_pack(bounds=lambda parts, own: _sums(n for _, _, n in parts)[:-1]), "total at the end is missing"),
        (_pack(bounds=lambda parts, own: [c + n for _, c, n in parts] if len(parts) > 1 else [0, 7]), "seq_lens"),
        (_pack(slots=lambda parts, own: own), "Those are the positions"),
        (
            _pack(
                slots=lambda parts, own: (
                    list(range(len(own)))
                    if len(parts) > 1
                    else [t[p // 4] * 4 + p % 4 for t, c, n in parts for p in range(c, c + n)]
                )
            ),
            "the rows of the batch",
        ),
        (_pack(slots=lambda parts, own: [t[0] * 4 + p for t, c, n in parts for p in range(c, c + n)]), "slot = table"),
        (_pack(bounds=lambda parts, own: _sums(n for _, _, n in parts)[1:]), "begins at row 0"),
        (_pack(bounds=lambda parts, own: _sums(c + n for _, c, n in parts)), "only new tokens have rows"),
        (_pack(bounds=lambda parts, own: [n for _, _, n in parts] if len(parts) > 1 else [0, len(own)]), "cumulative"),
        (lambda parts, size: 7, "return three lists"),
    ],
    "check_08_paged": [
        (_paged(rows=lambda i, q_len, n: slice(i * q_len, (i + 1) * q_len)), "both when you read the query"),
        (_paged(causal=False), "look at keys after themselves"),
        (_paged(square=True), "aligned to the bottom right"),
        (_paged(cut=False), "a slot was read that holds no token"),
        (_paged(tiled=True), "compare it with attention over its own keys"),
        (lambda *args: args[0][:1], "expected a tensor"),
        (lambda *args: [1], "got (1,)"),
        (lambda *args: [args[0]] * len(args[4]), "join their rows"),
    ],
    "check_08_tokens": [
        (lambda r: (sum(p + o for p, o in r), 0), "nothing follows it"),
        (lambda r: (sum(p + o - 1 for p, o in r), len(r) * (max(p for p, _ in r) + max(o for _, o in r))), "padded"),
        (lambda r: (sum(p + o - 1 for p, o in r), sum(p + o - 1 for p, o in r)), "same number of tokens in each row"),
        (
            lambda r: (sum(p + o - 1 for p, o in r), len(r) * max(p + o - 1 for p, o in r)),
            "need not belong to the same request",
        ),
        (
            lambda r: (len(r) * (max(p for p, _ in r) + max(o for _, o in r) - 1), sum(p + o - 1 for p, o in r)),
            "return the packed one first",
        ),
        (lambda r: (sum(p for p, _ in r), _both(r)[1]), "each of its written tokens but the last"),
        (lambda r: 5, "return two numbers"),
        (lambda r: (sum(o for _, o in r), 0), "prompts are computed too"),
        (lambda r: (_both(r)[0], _both(r)[1] - _both(r)[0]), "the padding alone"),
        (lambda r: (_both(r)[0], len(r) * max(p for p, _ in r) + sum(o - 1 for _, o in r)), "stays in the batch"),
        (lambda r: (_both(r)[0], sum(p for p, _ in r) + len(r) * (max(o for _, o in r) - 1)), "padded too"),
        (lambda r: (5.5, 5.5), "a whole number"),
    ],
}
