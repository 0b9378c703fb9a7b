"""Plausible wrong answers to chapter 2's exercises, and words that each one's message must hold."""

from __future__ import annotations

import math

import torch


def head_dim(config):
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


def k_shape(config, batch, length):
    return batch, config["num_key_value_heads"], length, head_dim(config)


def computed_head_dim(config, batch, length):  # behaviour 27: given, and not looked at
    dim = config["hidden_size"] // config["num_attention_heads"]
    return batch, config["num_key_value_heads"], length, dim


def null_as_a_value(config, batch, length):  # behaviour 27: the entry is there, and it is null
    dim = config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])
    return batch, config["num_key_value_heads"], length, int(dim)


def first_axis_fastest(index, shape):
    step, total = 1, 0
    for i, length in zip(index, shape, strict=True):
        total, step = total + i * step, step * length
    return total


def row_by_row(index, shape):
    total = 0
    for i, length in zip(index, shape, strict=True):
        total = total * length + i
    return total


def k_bytes(config, batch, length, size):
    return config["num_hidden_layers"] * math.prod(k_shape(config, batch, length)) * size


def query_head_bytes(config, batch, length, size):
    group = config["num_attention_heads"] // config["num_key_value_heads"]
    return k_bytes(config, batch, length, size) * group


WRONG = {
    "check_02_k_shape": [
        (computed_head_dim, "take it, do not compute it"),
        (null_as_a_value, "raised TypeError"),
        (lambda c, b, t: (b, c["num_attention_heads"], t, head_dim(c)), "not the query heads"),
        (lambda c, b, t: (b, t, c["num_key_value_heads"], head_dim(c)), "heads come before tokens"),
        (lambda c, b, t: (b, t, c["num_key_value_heads"] * head_dim(c)), "what k_proj gives"),
        (
            lambda c, b, t: (b, c["num_key_value_heads"], t, c["hidden_size"] // c["num_key_value_heads"]),
            "divided by the",
        ),
        (lambda c, b, t: (t, b, 1, 1), "the axes are"),
        (lambda c, b, t: (c["num_key_value_heads"], t, head_dim(c)), "the batch is missing"),
        (lambda c, b, t: (b, c["num_key_value_heads"], head_dim(c), t), "tokens come before the numbers"),
        (lambda c, b, t: (b, 2 * c["num_key_value_heads"], t, head_dim(c)), "K and V together"),
        (lambda c, b, t: 12, "a shape of four numbers"),
        (lambda c, b, t: (b, c["num_key_value_heads"], t, c.get("head_dim", 64)), "still be None"),
    ],
    "check_02_offset": [
        (first_axis_fastest, "first axis run fastest"),
        (lambda index, shape: sum(i * n for i, n in zip(index, shape, strict=True)), "not its own length"),
        (lambda index, shape: row_by_row(index, shape) + 1, "stands at 0"),
        (lambda index, shape: row_by_row(index, shape) - 1, "one too few"),
        (lambda index, shape: 4 * row_by_row(index, shape), "not in bytes"),
        (lambda index, shape: sum(index), "product of all lengths behind"),
        (lambda index, shape: index[0] * shape[1] + index[1], "raised IndexError"),
        (lambda index, shape: (index, shape), "a whole number is expected"),
    ],
    "check_02_split_heads": [
        (lambda x, h: x.view(x.shape[0], h, x.shape[1], -1), "view alone"),
        (lambda x, h: x.unflatten(-1, (h, -1)), "have yet to change places"),
        (lambda x, h: x.unflatten(-1, (-1, h)).permute(0, 3, 1, 2), "neighbouring columns"),
        (lambda x, h: x.unflatten(-1, (h, -1)).transpose(1, 2).flip(1), "is its columns"),
        (lambda x, h: x, "expected (1, 3, 2, 2)"),
        (lambda x, h: "heads", "you return str"),
        (lambda x, h: list(x.chunk(h, -1)), "3 pieces"),
        (lambda x, h: torch.stack(x.chunk(h, -1)), "the batch comes first"),
    ],
    "check_02_k_bytes": [
        (lambda c, b, t, s: k_bytes(c, b, t, s) // c["num_hidden_layers"], "one layer"),
        (lambda c, b, t, s: 2 * k_bytes(c, b, t, s), "K and V together"),
        (query_head_bytes, "not the query heads"),
        (lambda c, b, t, s: c["num_hidden_layers"] * math.prod(computed_head_dim(c, b, t)) * s, "take it, do not"),
        (lambda c, b, t, s: k_bytes(c, b, t, s) // s, "how many numbers"),
        (lambda c, b, t, s: k_bytes(c, 1, t, s), "the batch is missing"),
        (lambda c, b, t, s: k_bytes(c, b, 1, s), "the length is missing"),
        (lambda c, b, t, s: 8 * k_bytes(c, b, t, s), "that is bits"),
        (lambda c, b, t, s: 2 * k_bytes(c, b, t, s) // c["num_hidden_layers"], "K and V of one layer"),
        (lambda c, b, t, s: k_bytes(c, b, t, s) + 1, "layers x batch"),
        (lambda c, b, t, s: "38 kB", "a whole number is expected"),
    ],
}
