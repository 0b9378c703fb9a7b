"""Plausible wrong answers of chapter 12, and words their messages must hold."""

from __future__ import annotations

from minipaged.exercises.ch12 import by_hand, rolled_back

RIGHT = by_hand()


def _positive(values):
    return [max(v, 0.0) for v in values]


def _scaled(values):
    return [v / sum(values) for v in values]


def _difference(p, q):
    return [a - b for a, b in zip(p, q, strict=True)]


def _equality(p, q, guess, uniform, draw):
    return guess if draw(p) == guess else draw(p)


def _matching(p, q, guess, uniform, draw):
    return draw(p)


def _then_p(p, q, guess, uniform, draw):
    return guess if uniform < min(1, p[guess] / q[guess]) else draw(p)


def _no_max(p, q, guess, uniform, draw):
    return guess if uniform < min(1, p[guess] / q[guess]) else draw(_difference(p, q))


def _forgets_return(p, q, guess, uniform, draw):
    if uniform < p[guess] / q[guess]:
        return guess
    draw(_positive(_difference(p, q)))
    return None


def _blocks(tokens, size):
    return -(-tokens // size)


def _no_chance(p, q, guess, uniform, draw):
    return guess if p[guess] >= q[guess] else draw(_positive(_difference(p, q)))


WRONG = {
    "check_12_by_hand": [
        (RIGHT | {"A: guesses kept": 2, "A: tokens written": 3}, "continues a text that was not written"),
        (RIGHT | {"B: guesses kept": 0, "B: tokens written": 1}, "is still kept sometimes"),
        (RIGHT | {"A: tokens written": 1}, "adds one token of the target's own"),
        (RIGHT | {"B: guesses kept": 2, "B: tokens written": 3}, "Guess 3 is kept"),
        (RIGHT | {"C: guesses kept": 1, "C: tokens written": 2}, "Guess 1 is rejected"),
        ({"A": 1}, "a dictionary with the keys"),
    ],
    "check_12_residual": [
        (_difference, "never negative"),
        (lambda p, q: p, "that is p"),
        (lambda p, q: _positive(_difference(p, q)), "divide by their sum"),
        (lambda p, q: _scaled(_positive(_difference(q, p))), "has just been rejected"),
        (lambda p, q: _scaled([abs(d) for d in _difference(p, q)]), "max, not abs"),
        (lambda p, q: _positive(_difference(p, q))[:1], "one number for each token"),
        (lambda p, q: _scaled([min(a, b) for a, b in zip(p, q, strict=True)]), "what stays after keeping"),
        (lambda p, q: [1 / len(p)] * len(p), "for every token"),
    ],
    "check_12_biased_rule": [
        (_equality, "Equality is not the test"),
        (_matching, "is possible; keep it"),
        (_then_p, "you draw from p, not from the residual"),
        (_no_max, "weights must be 0 or more"),
        (lambda p, q, guess, uniform, draw: guess, "that is q"),
        (_no_chance, "and p was wanted"),
        (_forgets_return, "nothing was returned"),
        (lambda p, q, guess, uniform, draw: 9, "you write token 9"),
        (lambda p, q, guess, uniform, draw: q[9], "your code raised IndexError"),
    ],
    "check_12_rollback": [
        (lambda n, b, d, k: (rolled_back(n, b, d, k)[0] + 1, 0), "it stays"),
        (lambda n, b, d, k: (d - k - 1, 0), "it keeps no slot"),
        (lambda n, b, d, k: (d - k, _blocks(n - 1 + d, b) - _blocks(n - 1 + k, b)), "Count the newest token as well"),
        (lambda n, b, d, k: (d - k, _blocks(n + d, b) - _blocks(n + k + 1, b)), "is not in the cache yet"),
        (lambda n, b, d, k: (k, 0), "all others stay"),
        (lambda n, b, d, k: (d - k, -(-(d - k) // b)), "something else still fills"),
        (lambda n, b, d, k: (d - k, (d - k) // b), "need not fill them"),
        (lambda n, b, d, k: (d - k, rolled_back(n, b, d, k)[1] + 2), "less blocks for what stays"),
        (lambda n, b, d, k: (d - k,), "return two numbers"),
    ],
}
