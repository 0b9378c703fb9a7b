"""Wrong answers to chapter 5's exercises, and the words that must name what is wrong."""

from __future__ import annotations


def _per_token(config, kv_heads=None, per_latent=1, rope=True, layers=None, tensors=2, number=2):
    layers = layers or config["num_hidden_layers"]
    if "kv_lora_rank" in config and per_latent:
        return layers * per_latent * (config["kv_lora_rank"] + (config["qk_rope_head_dim"] if rope else 0)) * 2
    heads = kv_heads(config) if kv_heads else config.get("num_key_value_heads", config["num_attention_heads"])
    dims = config.get("head_dim", 128)
    return tensors * layers * heads * dims * number


def _batch(memory_gib, parameters, per_token, seq_len, block_size, unit=2**30, weights=True, blocks=True, up=False):
    left = memory_gib * unit - (2 * parameters if weights else 0)
    tokens = -(-seq_len // block_size) * block_size if blocks else seq_len
    return max(0, -(-left // (tokens * per_token)) if up else left // (tokens * per_token))


def _windowed(types, window, per_layer, seq_len, sliding, full=lambda window, n: n):
    return per_layer * sum((sliding if "sliding" in t else full)(window, seq_len) for t in types)


def _repaired(config, seq_len, head_dim, heads="num_key_value_heads"):
    return 2 * config["num_hidden_layers"] * config[heads] * head_dim(config) * 2 * seq_len


def _own_or_hidden(config):
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


WRONG = {
    "check_05_bytes_per_token": [
        (lambda c: _per_token(c, tensors=1), "exactly half"),
        (lambda c: _per_token(c, layers=1), "that is one layer"),
        (lambda c: _per_token(c, kv_heads=lambda c: c["num_attention_heads"]), "you count the 32 query heads"),
        (lambda c: _per_token(c, per_latent=2), "one latent from which both K and V"),
        (lambda c: _per_token(c) // (2 if "kv_lora_rank" in c else 1), "exactly half. A float16 number is two bytes"),
        (lambda c: _per_token(c, rope=False), "64 numbers that carry its position"),
        (lambda c: _per_token(c, per_latent=0), "not K and V per head"),
        (
            lambda c: (
                4 * c["num_hidden_layers"] * c.get("num_key_value_heads", c["num_attention_heads"]) * c["head_dim"]
            ),
            "KeyError: 'head_dim': this config has no head_dim; it is MLA: ask for kv_lora_rank first",
        ),
        (lambda c: 2 * c["num_hidden_layers"] * c["num_key_value_heads"] * 256, "as many KV heads as heads"),
        (lambda c: 8 * _per_token(c), "that is bits"),
        (lambda c: 2 * _per_token(c), "you took four"),
        (lambda c: _per_token(c) / 2**20, "not KiB or MiB"),
        (
            lambda c: _per_token(c, kv_heads=lambda c: c["num_attention_heads"] // c.get("num_key_value_heads", 1)),
            "group",
        ),
        (lambda c: 7, "2 tensors x layers"),
    ],
    "check_05_largest_batch": [
        (lambda *a: _batch(*a, weights=False), "the weights, 2 bytes"),
        (lambda *a: _batch(*a, unit=10**9), "you took 10**9"),
        (lambda *a: _batch(*a, blocks=False), "whole blocks, 64 slots for 33 tokens"),
        (lambda *a: _batch(*a, up=True), "you round up"),
        (lambda m, p, b, n, k: (m * 2**30 - 2 * p) / (-(-n // k) * k * b), "round down"),
        (lambda m, p, b, n, k: (m * 2**30 - 2 * p) // (-(-n // k) * k * b), "never negative"),
        (lambda m, p, b, n, k: max(0, (m * 2**30 - 2 * p) // ((n // k + 1) * k * b)), "you take one block more"),
        (lambda m, p, b, n, k: max(0, (m * 2**30 - p) // (-(-n // k) * k * b)), "you took 1"),
        (lambda m, p, b, n, k: max(0, (m * 2**30 - 4 * p) // (-(-n // k) * k * b)), "you took 4"),
        (lambda m, p, b, n, k: max(0, (m * 2**30 - 2 * p) // b), "that is how many tokens fit"),
        (lambda m, p, b, n, k: max(0, (m * 2**30 - 2 * p) // (k * b)), "that is how many blocks fit"),
        (lambda m, p, b, n, k: max(0, (m * 2**30 - 2 * p) // (-(-n // k) * b)), "you count blocks as tokens"),
        (lambda m, p, b, n, k: max(1, (m * 2**30 - 2 * p) // (-(-n // k) * k * b)), "so 0 is the answer"),
        (lambda m, p, b, n, k: 99, "bytes of one sequence"),
    ],
    "check_05_windows": [
        (lambda *a: _windowed(*a, sliding=lambda w, n: n), "keeps the last 8 tokens only"),
        (lambda *a: _windowed(*a, sliding=lambda w, n: 0), "you drop the sliding layers"),
        (lambda *a: _windowed(*a, sliding=min, full=min), "you cap the full layer too"),
        (lambda *a: _windowed(*a, sliding=lambda w, n: w), "below the window"),
        (lambda *a: _windowed(*a, sliding=lambda w, n: min(w - 1, n)), "what stays between steps"),
        (lambda *a: _windowed(*a, sliding=lambda w, n: n, full=min), "the other way round"),
        (lambda *a: _windowed(*a, sliding=min) // a[2], "that is how many tokens are kept"),
        (lambda *a: 2 * _windowed(*a, sliding=min), "counts K and V already"),
        (lambda types, *a: _windowed(types[1:], *a, sliding=min), "there are two"),
        (lambda *a: 1, "one term for each layer"),
    ],
    "check_05_repaired": [
        (lambda c, n: _repaired(c, n, lambda c: c["hidden_size"] // c["num_attention_heads"]), "still 1,024 / 16"),
        (lambda c, n: _repaired(c, n, lambda c: c.get("head_dim", 64)), "null means 'not given'"),
        (lambda c, n: _repaired(c, n, lambda c: c["head_dim"] or 128), "no head_dim at all"),
        (lambda c, n: _repaired(c, n, _own_or_hidden, "num_attention_heads"), "you count query heads"),
        (
            lambda c, n: _repaired(c, n, lambda c: c.get("head_dim") or c["hidden_size"] // c["num_key_value_heads"]),
            "you divide hidden size by KV heads",
        ),
        (lambda c, n: _repaired(c, n, lambda c: c.get("head_dim") or 128), "hidden size / heads, 64 here"),
        (lambda c, n: _repaired(c, n, _own_or_hidden) // 2, "K and V are two tensors"),
        (lambda c, n: _repaired(c, 1, _own_or_hidden), "that is one token"),
        (lambda c, n: _repaired(c, n, _own_or_hidden) // c["num_hidden_layers"], "that is one layer"),
        (lambda c, n: 1, "2 x layers x KV heads"),
    ],
}
