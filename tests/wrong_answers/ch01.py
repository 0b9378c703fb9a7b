"""Plausible wrong answers to chapter 1's exercises, and what each is told."""

from __future__ import annotations

import math


def _order(probs):
    return sorted(range(len(probs)), key=lambda i: -probs[i])


def drops_the_crossing_token(probs, p):
    kept, mass = [], 0.0
    for i in _order(probs):
        mass += probs[i]
        if mass > p:
            break
        kept.append(i)
    return kept


def drops_it_but_never_the_first(probs, p):
    return drops_the_crossing_token(probs, p) or _order(probs)[:1]


def keeps_one_too_many_when_p_is_hit(probs, p):
    kept, mass = [], 0.0
    for i in _order(probs):
        if mass > p:
            break
        kept.append(i)
        mass += probs[i]
    return kept


def keeps_a_share_of_the_candidates(probs, p):
    return _order(probs)[: math.ceil(p * len(probs))]


def does_not_sort(probs, p):
    kept, mass = [], 0.0
    for i in range(len(probs)):
        if mass >= p:
            break
        kept.append(i)
        mass += probs[i]
    return kept


def gives_places_instead_of_ids(probs, p):
    return list(range(len(keeps_the_smallest_set(probs, p))))


def keeps_the_smallest_set(probs, p):
    kept, mass = [], 0.0
    for i in _order(probs):
        if mass >= p:
            break
        kept.append(i)
        mass += probs[i]
    return kept


def leaves_nothing_when_the_best_crosses(probs, p):
    return [] if max(probs) > p else keeps_the_smallest_set(probs, p)


def runs_past_the_end(probs, dart):
    return next((i for i in range(len(probs)) if sum(probs[: i + 1]) > dart), len(probs))


def from_the_right(probs, dart):
    return len(probs) - 1 - runs_past_the_end(probs[::-1], dart)


def sorts_the_parts(probs, dart):
    return _order(probs)[runs_past_the_end(sorted(probs, reverse=True), dart)]


def feeds_the_prompt_token_by_token(read, prompt, max_tokens, eos):
    for position, token in enumerate(prompt):
        scores = read([token], position)
    new = [scores.index(max(scores))]
    while new[-1] != eos and len(new) < max_tokens:
        scores = read(new[-1:], len(prompt) + len(new) - 1)
        new.append(scores.index(max(scores)))
    return new


def feeds_the_last_token_only(read, prompt, max_tokens, eos):
    return read(prompt[-1:], len(prompt) - 1)


def looks_at_the_prompts_end(read, prompt, max_tokens, eos):
    ids, seen = list(prompt), 0
    while ids[-1] != eos and len(ids) - len(prompt) < max_tokens:
        scores = read(ids[seen:], seen)
        seen = len(ids)
        ids.append(scores.index(max(scores)))
    return ids[len(prompt) :]


def forgets_to_return(*a):
    _counting(*a)


def feeds_a_bare_token(read, prompt, max_tokens, eos):
    scores = read(prompt, 0)
    return read(scores.index(max(scores)), len(prompt))


def _softmax(logits):
    top = max(logits)
    weights = [math.exp(x - top) for x in logits]
    return [w / sum(weights) for w in weights]


def _cut(probs, ids, renormalise=True):
    total = sum(probs[i] for i in ids) if renormalise else 1
    return [probs[i] / total if i in ids else 0.0 for i in range(len(probs))]


def _steps(logits, temperature, k, p, order, renormalise=True):
    probs = _softmax(logits)
    for step in order:
        if step == "t":
            logs = [math.log(x) / temperature if x > 0 else -math.inf for x in probs]
            probs = _softmax(logs)
        else:
            ids = _order(probs)[:k] if step == "k" else keeps_the_smallest_set(probs, p - 1e-9)
            probs = _cut(probs, ids, renormalise)
    return probs


def _counting(read, prompt, max_tokens, eos, *, position=-1, whole=False, drop_end=False, ignore_end=False, extra=0,
              late=False, with_prompt=False, first=0):  # fmt: skip
    """A loop with one mistake, chosen by name."""
    ids, new = list(prompt), []
    scores = read(ids, first)
    for _ in range(max_tokens + extra):
        token = scores.index(max(scores))
        if token == eos and drop_end:
            break
        new.append(token)
        if (token == eos and not ignore_end) or (len(new) == max_tokens + extra and not late):
            break
        scores = read(ids + new, 0) if whole else read([token], len(ids) + len(new) + position)
    return ids + new if with_prompt else new


WRONG = {
    "check_01_top_p": [
        (drops_it_but_never_the_first, "dropped the token that crosses p"),
        (leaves_nothing_when_the_best_crosses, "nothing is left to draw from"),
        (keeps_one_too_many_when_p_is_hit, "comes too late"),
        (keeps_a_share_of_the_candidates, "top-p counts their mass"),
        (does_not_sort, "that is the order of the ids"),
        (gives_places_instead_of_ids, "places in the sorted list"),
        (lambda probs: probs, "your code raised TypeError"),
        (lambda probs, p: [probs[i] for i in keeps_the_smallest_set(probs, p)], "not their probabilities"),
        (lambda probs, p: 2 * keeps_the_smallest_set(probs, p), "more than once"),
        (lambda probs, p: [x >= p for x in probs], "whole number"),
    ],
    "check_01_order": [
        (lambda x, t, k, p: _steps(x, t, k, p, "kpt"), "that is the order top-k, top-p, temperature"),
        (lambda x, t, k, p: _steps(x, t, k, p, "tpk"), "that is the order temperature, top-p, top-k (or the mass was"),
        (lambda x, t, k, p: _steps(x, 1 / t, k, p, "tkp"), "divided by the temperature, not multiplied"),
        (lambda x, t, k, p: _steps(x, t, k, p, "tkp", renormalise=False), "must share all of the mass again"),
        (lambda x, t, k, p: _softmax([y / t for y in x]), "only until their mass has reached 0.8"),
        (lambda x, t, k, p: _steps(x, t, k, p, "tp"), "only the 2 most probable"),
        (lambda x, t, k, p: _steps(x, 1, k, p, "kp"), "the temperature changes nothing"),
        (lambda x, t, k, p: _steps(x, t, k, p - 0.15 if p == 0.8 else p, "tkp"), "dropped the token that crosses p"),
        (lambda x, t, k, p: [y / t for y in x], "these are logits"),
        (lambda x, t, k, p: _steps(x, t, k, p, "tkp")[::-1], "in the order of the ids"),
        (lambda x, t, k, p: 0.5, "return a list of probabilities"),
        (lambda x, t, k, p: [y for y in _steps(x, t, k, p, "tkp") if y], "one probability for each of the 5 ids"),
        (lambda x, t, k, p: [0.2] * 5, "one step at a time"),
    ],
    "check_01_dart": [
        (lambda probs, dart: probs.index(max(probs)), "greedy"),
        (lambda probs, dart: next(i for i in range(len(probs)) if sum(probs[: i + 1]) >= dart), "has probability 0"),
        (lambda probs, dart: next((i for i in range(len(probs)) if probs[i] > dart), 0), "running sums"),
        (runs_past_the_end, "rounding leaves"),
        (lambda probs, dart: int(dart * len(probs)), "the same width"),
        (from_the_right, "counts from the left"),
        (sorts_the_parts, "you sorted them"),
        (lambda probs, dart: next((i for i in range(len(probs)) if sum(probs[:i]) > dart), 2), "the parts end at"),
    ],
    "check_01_loop": [
        (lambda *a: _counting(*a, position=0), "at position 4; the cache holds 3 tokens"),
        (lambda *a: _counting(*a, first=1), "call 1 starts at position 1"),
        (lambda *a: _counting(*a, whole=True), "feeds 4 tokens again"),
        (lambda *a: _counting(*a, drop_end=True), "the end token is missing"),
        (lambda *a: _counting(*a, ignore_end=True), "goes on after the end token"),
        (lambda *a: _counting(*a, extra=1), "max_tokens counts new tokens, and you wrote 5"),
        (lambda *a: _counting(*a, extra=-1), "max_tokens counts new tokens, and you wrote 3"),
        (lambda *a: _counting(*a, late=True), "a pass whose scores nobody uses"),
        (lambda *a: _counting(*a, with_prompt=True), "without the prompt"),
        (feeds_the_prompt_token_by_token, "feed the prompt in one pass"),
        (feeds_the_last_token_only, "the whole prompt goes in at position 0"),
        (looks_at_the_prompts_end, "the prompt itself ends in the end token 9"),
        (forgets_to_return, "nothing was returned"),
        (feeds_a_bare_token, "read takes a list of ids"),
    ],
}  # fmt: skip
