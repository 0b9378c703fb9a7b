"""Plausible wrong answers of chapter 10, and words their messages must hold."""

from __future__ import annotations

from minipaged.block_manager import blocks_needed
from minipaged.exercises.ch10 import admitted, grow_all, who_gives_way


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


RIGHT = who_gives_way()

WRONG = {
    "check_10_lost_sequence": [
        (_loses_one, "it is lost"),
        (_keeps_blocks, "blocks before"),
        (_at_the_end, "comes back first"),
        (_oldest, "the newest is the last"),
    ],
    "check_10_pool_for_promise": [
        (lambda n, p, o, b, w: n * blocks_needed(p + o, b), "never stored"),
        (lambda n, p, o, b, w: blocks_needed(n * (p + o - 1), b), "Round up for each"),
        (lambda n, p, o, b, w: n * blocks_needed(p, b), "That holds the prompts"),
        (lambda n, p, o, b, w: n * blocks_needed(p + o - 1, b), "must leave int(watermark"),
    ],
    "check_10_admission": [
        (_skips, "must not overtake"),
        (lambda w, f, k, r, m: admitted(w, f, 0, r, m), "for the watermark"),
        (lambda w, f, k, r, m: admitted(w, f - 1, k, r, m), "equal is enough"),
        (lambda w, f, k, r, m: admitted(w, f, k, r + 1, m + 1), "wait for ever"),
        (lambda w, f, k, r, m: admitted(w, f, k if r else 0, r, m), "for the second somebody runs"),
        (lambda w, f, k, r, m: admitted(w, f, k, r, 99), "at most max_num_seqs"),
    ],
    "check_10_who_gives_way": [
        (RIGHT | {"A wants a block": "A"}, "D came last"),
        (RIGHT | {"B wants a block": "C"}, "not the one next to B"),
        (RIGHT | {"D wants a block": "A"}, "the newest itself"),
        (RIGHT | {"A runs alone and wants a block": "A"}, "it ends"),
    ],
}
