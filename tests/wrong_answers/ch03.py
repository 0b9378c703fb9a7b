"""Plausible wrong answers of chapter 3, and words that the message about each must hold."""

import torch

from minipaged.attention import attention, causal_mask


def naive_softmax(scores):
    return scores.exp() / scores.exp().sum(-1, keepdim=True)


def softmax_with_one_maximum(scores):
    parts = (scores - scores.max()).exp()
    return parts / parts.sum(-1, keepdim=True)


def softmax_with_the_minimum(scores):
    parts = (scores - scores.amin(-1, keepdim=True)).exp()
    return parts / parts.sum(-1, keepdim=True)


def softmax_with_a_stand_in(scores):
    return scores.clamp(min=-10_000.0).softmax(-1)


def equal_shares_for_a_hidden_row(scores):
    return scores.softmax(-1).nan_to_num(1 / scores.shape[-1])


def heads(order, mask=None, scale=None, v_order=None):
    def attend(q, k, v):
        group = q.shape[0] // k.shape[0]
        pick = {"tile": lambda x: x.repeat(group, 1, 1), "group": lambda x: x.repeat_interleave(group, 0)}
        k, v = pick[order](k), pick[v_order or order](v)
        scores = q @ k.mT / (scale or q.shape[-1] ** 0.5)
        if mask == "top-left":
            hidden = ~torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).tril()
        else:
            hidden = ~causal_mask(q.shape[1], k.shape[1])
        if mask == "strict":
            hidden |= torch.arange(k.shape[1]) == torch.arange(k.shape[1] - q.shape[1], k.shape[1])[:, None]
        if mask == "inverted":
            hidden = ~hidden
        if mask == "late":
            return scores.softmax(-1).masked_fill(hidden, 0.0) @ v
        return scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v

    return attend


WRONG = {
    "check_03_score": [
        (8.0, "is the dot product"),
        (2.0, "divided by head_dim 4"),
        (5.0, "uses KV head 0; query head 2"),
        (10.0, "and no scale"),
        ("4", "you give '4'"),
        ([4.0], "as one number"),
        (lambda: 4.0, "<lambda>"),
        (7.0, "1·4 + 2·-1 + 0·5 + 3·2"),
    ],
    "check_03_chunk_mask": [
        (lambda q, kv: torch.ones(q, kv, dtype=torch.bool), "nothing is hidden"),
        (lambda q, kv: torch.ones(q, kv, dtype=torch.bool).tril(), "starts at the top left"),
        (lambda q, kv: ~causal_mask(q, kv), "the other way round"),
        (lambda q, kv: causal_mask(q, kv) & ~torch.eye(kv, dtype=torch.bool)[kv - q :], "<=, not <"),
        (lambda q, kv: torch.ones(q, kv, dtype=torch.bool).tril(kv - q + 1), "one token ahead"),
        (lambda q, kv: torch.ones(q, q, dtype=torch.bool).tril(), "has shape [1, 1], expected [1, 3]"),
        (lambda q, kv: torch.zeros(q, kv).masked_fill(~causal_mask(q, kv), -torch.inf), "True where"),
        (lambda q, kv: torch.ones(q, kv, dtype=torch.bool).triu(kv - q), "looks ahead instead of back"),
        (lambda q, kv: torch.eye(kv, dtype=torch.bool)[kv - q :], "only its own key"),
        (lambda q, kv: causal_mask(q, kv, 2), "row 0 is the query at position 2"),
        (lambda q, kv: causal_mask(q, kv).T, "rows and columns"),
        (lambda q, kv: torch.zeros(q, kv, dtype=torch.bool), "everything is hidden"),
        (lambda q, kv: torch.arange(kv).expand(q, kv) < kv - q, "the chunk's own keys are hidden"),
        (lambda q, kv: causal_mask(q, kv) & (torch.arange(kv) >= kv - q), "the keys before the chunk are hidden"),
        (lambda q, kv: [[True] * (kv - q + row + 1) for row in range(q)], "rows of different lengths"),
    ],
    "check_03_stable_softmax": [
        (naive_softmax, "subtract the row's maximum"),
        (softmax_with_one_maximum, "each row's own"),
        (softmax_with_a_stand_in, "keep -inf"),
        (lambda scores: scores.softmax(-1), "-inf - -inf is not a number"),
        (equal_shares_for_a_hidden_row, "zeros, not equal shares"),
        (lambda scores: scores.softmax(0), "down the columns"),
        (lambda scores: (scores - scores.amax(-1, keepdim=True)).exp(), "must sum to 1"),
        (lambda scores: scores / scores.sum(-1, keepdim=True), "divided by the sum of the row's exponentials"),
        (lambda scores: scores.log_softmax(-1), "logarithms"),
        (softmax_with_the_minimum, "its minimum or its mean"),
        (lambda scores: scores.sum(), "has shape []"),
        (lambda scores: (e := (scores - scores.amax(-1, keepdim=True)).exp()) / e.sum(-1), "keepdim=True is missing"),
    ],
    "check_03_grouped_heads": [
        (heads("tile"), "(tiled)"),
        (heads("group", v_order="tile"), "the values still tiled"),
        (heads("tile", v_order="group"), "the keys still tiled"),
        (heads("group", scale=1.0), "not scaled"),
        (heads("group", scale=4.0), "divide by its square root"),
        (heads("group", mask="strict"), "does not see itself"),
        (heads("group", mask="inverted"), "the other way round"),
        (heads("group", mask="late"), "comes after softmax"),
        (lambda q, k, v: attention(q, v, k), "keys and values"),
        (lambda q, k, v: attention(q, k, v, causal=False), "nothing is masked"),
        (heads("group", mask="top-left"), "starts at the top left"),
        (lambda q, k, v: attention(q, k[:1], v[:1]), "every head reads KV head 0"),
        (lambda q, k, v: attention(q, k, v[:1].expand_as(v)), "takes the values of KV head 0"),
        (lambda q, k, v: attention(q, k, v).transpose(0, 1), "the result has shape [3, 1, 4]"),
        (lambda q, k, v: q @ k.mT @ v, "not shares yet: softmax"),
        (lambda q, k, v: attention(q, k, v[:, 0]), "called with"),
        (lambda q, k, v: attention(q, k, v).flip(0), "head h must read"),
    ],
}
