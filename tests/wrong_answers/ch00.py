"""Plausible wrong answers to the exercises of chapter 0."""


def buggy(next_token, prompt_ids, end_ids, max_new_tokens):
    ids = list(prompt_ids)
    token = next_token(ids)
    while token not in end_ids and len(ids) - len(prompt_ids) < max_new_tokens:
        ids.append(token)
        token = next_token(ids)
    return ids[len(prompt_ids) :]


def ignores_the_end(next_token, prompt_ids, end_ids, max_new_tokens):
    ids = list(prompt_ids)
    for _ in range(max_new_tokens):
        ids.append(next_token(ids))
    return ids[len(prompt_ids) :]


def returns_the_prompt(next_token, prompt_ids, end_ids, max_new_tokens):
    ids = list(prompt_ids)
    for _ in range(max_new_tokens):
        ids.append(next_token(ids))
        if ids[-1] in end_ids:
            break
    return ids


def drops_the_end_token(next_token, prompt_ids, end_ids, max_new_tokens):
    new = []
    for _ in range(max_new_tokens):
        token = next_token([*prompt_ids, *new])
        if token in end_ids:
            break
        new.append(token)
    return new


def never_appends(next_token, prompt_ids, end_ids, max_new_tokens):
    new = []
    for _ in range(max_new_tokens):
        new.append(next_token(list(prompt_ids)))
        if new[-1] in end_ids:
            break
    return new


def changes_the_prompt(next_token, prompt_ids, end_ids, max_new_tokens):
    new = []
    while len(new) < max_new_tokens and not (new and new[-1] in end_ids):
        new.append(next_token(prompt_ids))
        prompt_ids.append(new[-1])
    return new


def looks_in_the_prompt(next_token, prompt_ids, end_ids, max_new_tokens):
    new = []
    while len(new) < max_new_tokens and not end_ids & {*prompt_ids, *new}:
        new.append(next_token([*prompt_ids, *new]))
    return new


def looks_at_the_prompts_end(next_token, prompt_ids, end_ids, max_new_tokens):
    ids = list(prompt_ids)
    while len(ids) - len(prompt_ids) < max_new_tokens and ids[-1] not in end_ids:
        ids.append(next_token(ids))
    return ids[len(prompt_ids) :]


def knows_one_end_id(next_token, prompt_ids, end_ids, max_new_tokens):
    new = []
    while len(new) < max_new_tokens and not (new and new[-1] == min(end_ids)):
        new.append(next_token([*prompt_ids, *new]))
    return new


def counts_the_prompt(next_token, prompt_ids, end_ids, max_new_tokens):
    ids = list(prompt_ids)
    while len(ids) < max_new_tokens:
        ids.append(next_token(ids))
        if ids[-1] in end_ids:
            break
    return ids[len(prompt_ids) :]


def forgets_the_prompt(next_token, prompt_ids, end_ids, max_new_tokens):
    new = []
    while len(new) < max_new_tokens and not end_ids & {*new}:
        new.append(next_token(new))
    return new


def asks_before_the_limit(next_token, prompt_ids, end_ids, max_new_tokens):
    new = []
    while True:
        new.append(next_token([*prompt_ids, *new]))
        if new[-1] in end_ids or len(new) >= max_new_tokens:
            return new


def never_stops(next_token, prompt_ids, end_ids, max_new_tokens):
    new = []
    while True:
        new.append(next_token([*prompt_ids, *new]))
        if len(new) == 10**6:
            return new


WRONG = {
    "check_00_passes": [
        (lambda p, limit, end: (limit, p + limit - 1), "whichever comes first"),
        (lambda p, limit, end: (min(limit, end) + 1, p + min(limit, end) - 1), "there is no pass after it"),
        (lambda p, limit, end: (p + min(limit, end), p + min(limit, end) - 1), "read in one pass"),
        (lambda p, limit, end: (min(limit, end - 1), p + min(limit, end - 1) - 1), "the pass that gives the end token"),
        (lambda p, limit, end: (77, 7), "each pass gives one new token"),
        (lambda p, limit, end: (p + min(limit, end) - 1, min(limit, end)), "in each other's place"),
        (lambda p, limit, end: (min(limit, end), p + min(limit, end)), "written and never read"),
        (lambda p, limit, end: (min(limit, end), min(limit, end)), "reads the whole prompt"),
        (lambda p, limit, end: (min(limit, end), p * min(limit, end)), "and not by every pass"),
        (lambda p, limit, end: (min(limit, end), min(limit, end) - 1), "count its tokens too"),
        (lambda p, limit, end: (min(limit, end), sum(p + i for i in range(min(limit, end)))), "when nothing is kept"),
        (lambda p, limit, end: min(limit, end), "return (passes, tokens_read)"),
    ],
    "check_00_loop": [
        (buggy, "4 passes for 3 new tokens"),
        (ignores_the_end, "goes on after it should stop"),
        (returns_the_prompt, "the prompt as well"),
        (drops_the_end_token, "after 2 passes, expected [7, 2]: the last pick was paid for and lost"),
        (never_appends, "expected all ids so far"),
        (changes_the_prompt, "work on a copy"),
        (looks_in_the_prompt, "the prompt itself holds an end id"),
        (looks_at_the_prompts_end, "the prompt itself ends in an end id ([1, 40, 2])"),
        (knows_one_end_id, "end ids [2, 5], model says [7, 5, 6, 6, 6]: you return [7, 5, 6, 6]"),
        (never_stops, "the loop does not stop"),
        (lambda *a: 3, "return a list"),
        (counts_the_prompt, "the limit counts new tokens only"),
        (forgets_the_prompt, "pass 1 was given []"),
        (asks_before_the_limit, "you return [7], expected []"),
        (lambda *a: None if a else 3, "nothing was returned"),
    ],
}
