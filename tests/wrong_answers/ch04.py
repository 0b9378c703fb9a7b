"""Plausible wrong answers to the exercises of chapter 4, and words from what the check says to each."""

from __future__ import annotations


def feeds_everything_again(feed, prompt, max_tokens):
    output = []
    while len(output) < max_tokens and 0 not in output:
        output.append(feed(prompt + output))
    return output


def feeds_the_prompt_token_by_token(feed, prompt, max_tokens):
    for token in prompt:
        last = feed([token])
    output = [last]
    while len(output) < max_tokens and output[-1] != 0:
        output.append(feed(output[-1:]))
    return output


def feeds_the_last_token(feed, prompt, max_tokens):
    output, token = [], feed(prompt)
    while len(output) < max_tokens:
        output.append(token)
        if token == 0:
            break
        token = feed([token])
    return output


def ignores_the_end(feed, prompt, max_tokens):
    output = [feed(prompt)]
    while len(output) < max_tokens:
        output.append(feed(output[-1:]))
    return output


def returns_the_prompt(feed, prompt, max_tokens):
    output = [feed(prompt)]
    while len(output) < max_tokens and output[-1] != 0:
        output.append(feed(output[-1:]))
    return prompt + output


def repeats_the_prompts_end(feed, prompt, max_tokens):
    output = [feed(prompt)]
    while len(output) < max_tokens and output[-1] != 0:
        output.append(feed(prompt[-1:]))
    return output


def feeds_a_bare_token(feed, prompt, max_tokens):
    return [token := feed(prompt), feed(token)]


def counts_the_prompt(feed, prompt, max_tokens):
    return feeds_right(feed, prompt, max_tokens - len(prompt))


def feeds_right(feed, prompt, max_tokens):
    output, new = [], prompt
    while len(output) < max_tokens and 0 not in output:
        output.append(feed(new))
        new = output[-1:]
    return output


def lengths(requests):
    return [prompt + output - 1 for prompt, output in requests]


def empty(requests, longest):
    return 1 - sum(lengths(requests)) / (longest * len(requests))


def used_share(requests):
    return max(lengths(requests)), sum(lengths(requests)) / (max(lengths(requests)) * len(requests))


def share_of_the_used(requests):
    used, reserved = sum(lengths(requests)), max(lengths(requests)) * len(requests)
    return max(lengths(requests)), (reserved - used) / used


def looks_at_the_prompts_end(feed, prompt, max_tokens):
    tokens, new = list(prompt), prompt
    while len(tokens) - len(prompt) < max_tokens and tokens[-1] != 0:
        tokens.append(feed(new))
        new = tokens[-1:]
    return tokens[len(prompt) :]


def asks_before_the_limit(feed, prompt, max_tokens):
    output = [feed(prompt)]
    while len(output) < max_tokens and output[-1] != 0:
        output.append(feed(output[-1:]))
    return output


def _end_not_returned(feed, prompt, max_tokens):
    output, new = [], prompt
    while len(output) < max_tokens and (token := feed(new)) != 0:
        output.append(token)
        new = [token]
    return output


WRONG = {
    "check_04_decode_loop": [
        (_end_not_returned, "the end token 0 is returned too"),
        (feeds_everything_again, "feed only the new one"),
        (feeds_the_prompt_token_by_token, "prefill takes all 2 tokens in one pass"),
        (feeds_the_last_token, "the last token is returned, not fed"),
        (ignores_the_end, "you go on after the end token"),
        (returns_the_prompt, "you return the prompt as well"),
        (repeats_the_prompts_end, "the end of the prompt"),
        (lambda feed, prompt, max_tokens: [1], "nothing was fed"),
        (looks_at_the_prompts_end, "the prompt itself ends in the end token 0"),
        (asks_before_the_limit, "no token is asked for, so no pass is needed; you made 1"),
        (feeds_a_bare_token, "feed takes a list"),
        (counts_the_prompt, "not the prompt"),
        (lambda feed, prompt, max_tokens: feeds_right(feed, prompt, max_tokens - 1), "ends too early"),
    ],
    "check_04_token_passes": [
        (lambda p, n, cached: p + n if cached else sum(range(p, p + n)), "the last token is never fed, so one less"),
        (lambda p, n, cached: sum(range(p, p + n)) if cached else p + n - 1, "in each other's place"),
        (lambda p, n, cached: p + n - 1 if cached else p * n, "the sequence grows"),
        (
            lambda p, n, cached: p + n - 1 if cached else sum(range(p + 1, p + n + 1)),
            "the first pass has the prompt only",
        ),
        (lambda p, n, cached: n, "the number of passes"),
        (lambda p, n, cached: p + n - 1 if cached else (p + n) ** 2, "1 passes: the first over 1"),
        (lambda p, n, cached: n - 1, "one pass over 1"),
    ],
    "check_04_preallocation": [
        (lambda r: (max(lengths(r)) + 1, empty(r, max(lengths(r)) + 1)), "needs no slot"),
        (lambda r: (max(p for p, _ in r) + max(o for _, o in r) - 1, empty(r, max(lengths(r)))), "the same request"),
        (lambda r: (round(sum(lengths(r)) / len(r)), empty(r, max(lengths(r)))), "would not fit"),
        (used_share, "this is the share that is used"),
        (lambda r: (max(lengths(r)), 100 * (1 - used_share(r)[1])), "this is in per cent"),
        (share_of_the_used, "not by those that are used"),
        (lambda r: (max(lengths(r)), sum(max(lengths(r)) - n for n in lengths(r))), "this is a number of slots"),
        (lambda r: max(lengths(r)), "return two numbers"),
        (lambda r: (sum(lengths(r)), 0.0), "not the sum"),
        (lambda r: (max(lengths(r)), "20 %"), "a number from 0 to 1"),
        (lambda r: (empty(r, max(lengths(r))), max(lengths(r))), "the number of slots comes first"),
        (lambda r: (max(lengths(r)), round(empty(r, max(lengths(r))), 2)), "not rounded"),
        (lambda r: (max(lengths(r)), 1 - (sum(lengths(r)) + len(r)) / (max(lengths(r)) * len(r))), "takes no slot"),
    ],
    "check_04_positions": [
        (lambda num_tokens, new: list(range(num_tokens, num_tokens + new)), "the bug is there"),
        (lambda num_tokens, new: list(range(num_tokens - 1, num_tokens - 1 + new)), "right for one new token only"),
        (lambda num_tokens, new: list(range(new)), "forgets the tokens in the cache"),
        (lambda num_tokens, new: [num_tokens - 1], "one position for each new token"),
        (lambda num_tokens, new: [num_tokens - 1] * new, "its own position"),
        (lambda num_tokens, new: list(range(num_tokens - new, num_tokens))[::-1], "in reverse order"),
        (lambda num_tokens, new: num_tokens - 1, "return a list of positions"),
    ],
}
