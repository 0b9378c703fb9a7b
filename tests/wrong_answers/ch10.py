"""Plausible wrong answers of chapter 10, and words their messages must hold."""

from __future__ import annotations

import itertools

from minipaged.block_manager import blocks_needed
from minipaged.exercises.ch10 import admitted, grow_all, pool_for, who_gives_way


def _loses_one(running, waiting, held, wants, free):
    queue, kept = list(running), []
    while queue:
        name = queue.pop(0)
        if name in wants and free == 0:
            newest = queue.pop() if queue else name
            free += held.pop(newest)
            waiting.insert(0, newest)
            continue
        if name in wants:
            held[name] += 1
            free -= 1
        kept.append(name)
    return kept, waiting, held, free


def _keeps_blocks(running, waiting, held, wants, free):
    now, later, _, left = grow_all(running, waiting, held, wants, free)
    return now, later, dict(held), left


def _at_the_end(running, waiting, held, wants, free):
    now, later, blocks, left = grow_all(running, waiting, held, wants, free)
    return now, sorted(later, reverse=True), blocks, left


def _oldest(running, waiting, held, wants, free):
    now, later, blocks, left = grow_all(running[::-1], waiting, held, wants, free)
    return now[::-1], later, blocks, left


def _skips(waiting, free, watermark, running, max_num_seqs):
    count = 0
    for needed in waiting:
        if needed + (watermark if running + count else 0) <= free and running + count < max_num_seqs:
            count, free = count + 1, free - needed
    return count


def _watermark_at_the_end(count, prompt, output, block_size, watermark):
    blocks = count * blocks_needed(prompt + output - 1, block_size)
    while count * blocks_needed(prompt + output - 1, block_size) + int(watermark * blocks) > blocks:
        blocks += 1
    return blocks


RIGHT = who_gives_way()

WRONG = {
    "check_10_lost_sequence": [
        (_loses_one, "it is lost"),
        (_keeps_blocks, "blocks before"),
        (_at_the_end, "comes back first"),
        (_oldest, "the newest is the last"),
        (lambda r, w, h, x, f: (itertools.count(), w, h, f), "it is lost"),
        (lambda r, w, h, x, f: (r, w, {name: n + (name in x) for name, n in h.items()}, f), "blocks before"),
        (lambda r, w, h, x, f: (r, w, {name: n + (name in x) for name, n in h.items()}, f - len(x)), "without a block"),
        (lambda r, w, h, x, f: (r, [*r, *w], h, f), "in 2 places"),
        (lambda r, w, h, x, f: r, "return running, waiting, held, free"),
    ],
    "check_10_pool_for_promise": [
        (lambda n, p, o, b, w: n * blocks_needed(p + o, b), "never stored"),
        (lambda n, p, o, b, w: blocks_needed(n * (p + o - 1), b), "Round up for each"),
        (lambda n, p, o, b, w: n * blocks_needed(p, b), "That holds the prompts"),
        (lambda n, p, o, b, w: n * (p + o - 1), "Those are slots"),
        (_watermark_at_the_end, "More than needed"),
        (lambda n, p, o, b, w: pool_for(n, p, o, b, w) - 1, "Count the blocks of one request"),
        (lambda n, p, o, b, w: 1.5, "a whole number"),
        (lambda n, p, o, b, w: n * blocks_needed(p + o - 1, b), "must leave int(watermark"),
    ],
    "check_10_admission": [
        (_skips, "must not overtake"),
        (lambda w, f, k, r, m: w[: admitted(w, f, k, r, m)], "a whole number"),
        (lambda w, f, k, r, m: len(w), "the third must not"),
        (lambda w, f, k, r, m: sum(w[: admitted(w, f, k, r, m)]), "you say 6"),
        (lambda w, f, k, r, m: admitted(w, f, 0, r, m), "for the watermark"),
        (lambda w, f, k, r, m: admitted(w, f - 1, k, r, m), "equal is enough"),
        (lambda w, f, k, r, m: admitted(w, f, k, r + 1, m + 1), "wait for ever"),
        (lambda w, f, k, r, m: admitted(w, f, k if r else 0, r, m), "for the second somebody runs"),
        (lambda w, f, k, r, m: admitted(w, f, k, r, 99), "at most max_num_seqs"),
    ],
    "check_10_who_gives_way": [
        (RIGHT | {"A wants a block": "A"}, "D came last"),
        (RIGHT | {"B wants a block": "C"}, "not the one next to B"),
        (RIGHT | {"B wants a block": "B"}, "you say B"),
        (RIGHT | {"A wants a block": "nobody"}, "you say nobody"),
        ({"A wants a block": "D"}, "give a dictionary with the keys"),
        (RIGHT | {"D wants a block": "A"}, "the newest itself"),
        (RIGHT | {"A runs alone and wants a block": "A"}, "it ends"),
    ],
}
