"""Checks of chapter 5: a model sized from its config, the largest batch, a window, and a wrong calculator repaired.

Every expected value comes from `kv_size`, which is tested against the bytes of real caches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minipaged.exercises._base import Mistake, attempt, exercise
from minipaged.kv_size import GIB, KVCacheSpec, fit

_LLAMA_2 = {"num_hidden_layers": 32, "num_attention_heads": 32, "head_dim": 128, "hidden_size": 4096}
_LLAMA_3 = {**_LLAMA_2, "num_key_value_heads": 8}
_DEEPSEEK = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
}


def _number(value: Any, case: str) -> float:
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        raise Mistake(f"{case} you return {value!r}; expected a number")
    return float(value)


@exercise("KV heads and not query heads, a missing field means as many as heads, and MLA keeps its latent alone")
def check_05_bytes_per_token(answer: Callable[[dict[str, Any]], int]) -> None:
    """`answer(config)`: float16 bytes that one token adds over all layers."""
    for name, config in (("Llama-2-7B", _LLAMA_2), ("Llama-3-8B", _LLAMA_3), ("DeepSeek-V3", _DEEPSEEK)):
        want = KVCacheSpec.from_config(config).bytes_per_token()
        try:
            got = _number(attempt(answer, dict(config)), f"for {name}")
        except Mistake as mistake:
            if config is _DEEPSEEK and isinstance(mistake.__cause__, KeyError):
                field = mistake.__cause__.args[0]
                raise Mistake(
                    f"for {name} your code raised KeyError: {field!r}: this config has no {field}; it is MLA: ask for "
                    "kv_lora_rank first"
                ) from mistake
            if "num_key_value_heads" in config or "KeyError: 'num_key_value_heads'" not in str(mistake):
                raise
            raise Mistake(
                f"{mistake}. The config of {name} does not give it: then there are as many KV heads as heads"
            ) from mistake
        if got == want:
            continue
        case = f"for {name} you return {got:,.0f} bytes, expected {want:,}"
        layers, heads = config["num_hidden_layers"], config["num_attention_heads"]
        per_head = 4 * layers * config.get("head_dim", 0)
        if config is _DEEPSEEK and got * 2 == want:
            raise Mistake(f"{case}: exactly half. A float16 number is two bytes")
        if config is _LLAMA_3 and got == per_head * heads // 8:
            raise Mistake(f"{case}: you take the {heads // 8} query heads of a group; there are 8 KV heads")
        if got * 2 == want:
            raise Mistake(f"{case}: exactly half. K and V are two tensors, and a float16 number is two bytes")
        if got == 8 * want:
            raise Mistake(f"{case}: that is bits; a byte has 8 of them")
        if got == 2 * want and config is not _DEEPSEEK:
            raise Mistake(f"{case}: twice as many. A float16 number is two bytes, and you took four")
        if want in (1024 * got, 2**20 * got):
            raise Mistake(f"for {name} you return {got:g}, expected {want:,}: give bytes, not KiB or MiB")
        if got * layers == want:
            raise Mistake(f"{case}: that is one layer, and there are {layers}")
        if config is _LLAMA_3 and got == per_head * heads:
            raise Mistake(f"{case}: you count the {heads} query heads; only the 8 KV heads are kept")
        if config is _DEEPSEEK and got in (2 * want, 2 * layers * 2 * 512):
            raise Mistake(f"{case}: MLA keeps one latent from which both K and V are made, not two of them")
        if config is _DEEPSEEK and got == 2 * layers * 512:
            raise Mistake(f"{case}: beside the latent of 512, each token keeps 64 numbers that carry its position")
        if config is _DEEPSEEK and got > 10 * want:
            raise Mistake(f"{case}: MLA keeps one latent per token, not K and V per head")
        raise Mistake(f"{case}: 2 tensors x layers x KV heads x head_dim x 2 bytes; MLA: layers x latent x 2 bytes")


_WEIGHTS = 8_030_261_248  # parameters of Llama-3-8B


@exercise("GiB of the card, minus the weights, divided by whole blocks, rounded down")
def check_05_largest_batch(answer: Callable[..., int]) -> None:
    """`answer(memory_gib, num_parameters, bytes_per_token, seq_len, block_size)`: the most sequences that fit."""
    spec = KVCacheSpec.from_config(_LLAMA_3)
    per_token = int(spec.bytes_per_token())
    for memory_gib, seq_len, block_size in (
        (24, 4096, 16),
        (40, 8000, 1),
        (24, 33, 32),
        (24, 64, 32),
        (16, 7000, 16),
        (14, 4096, 16),
    ):
        load = fit(spec, _WEIGHTS, memory_gib * GIB, seq_len, block_size=block_size)
        want = load.max_batch
        got = _number(attempt(answer, memory_gib, _WEIGHTS, per_token, seq_len, block_size), "")
        if got == want:
            continue
        tokens = -(-seq_len // block_size) * block_size
        left = memory_gib * GIB - 2 * _WEIGHTS
        case = (
            f"for {memory_gib} GiB, {seq_len:,} tokens and blocks of {block_size} you return {got:g}, expected {want}"
        )
        if got != int(got):
            raise Mistake(f"{case}: a part of a sequence cannot run; round down")
        if got < 0:
            raise Mistake(f"{case}: the weights alone do not fit here, so no sequence does; a batch is never negative")
        if got == memory_gib * GIB // (tokens * per_token):
            raise Mistake(f"{case}: the weights, 2 bytes for each parameter, must be there first")
        if got == (memory_gib * 10**9 - 2 * _WEIGHTS) // (tokens * per_token):
            raise Mistake(f"{case}: a GiB is 2**30 bytes; you took 10**9")
        if got == left // (seq_len * per_token):
            raise Mistake(f"{case}: a sequence takes whole blocks, {tokens:,} slots for {seq_len:,} tokens")
        if got == left // ((seq_len // block_size + 1) * block_size * per_token):
            raise Mistake(f"{case}: {seq_len:,} tokens fill their last block exactly; you take one block more")
        if got == (memory_gib * GIB - _WEIGHTS) // (tokens * per_token):
            raise Mistake(f"{case}: the weights take 2 bytes for each parameter; you took 1")
        if got == -(-left // (tokens * per_token)):
            raise Mistake(f"{case}: you round up, and the last sequence does not fit any more")
        if got == left // per_token:
            raise Mistake(f"{case}: that is how many tokens fit; a sequence has {tokens:,} of them")
        if got == left // (block_size * per_token):
            raise Mistake(f"{case}: that is how many blocks fit; a sequence has {tokens // block_size} of them")
        if got == left // (tokens // block_size * per_token):
            raise Mistake(f"{case}: you count blocks as tokens; a block has {block_size} slots")
        if want == 0:
            raise Mistake(f"{case}: the weights alone do not fit here, so 0 is the answer")
        if got == max(0, memory_gib * GIB - 4 * _WEIGHTS) // (tokens * per_token):
            raise Mistake(f"{case}: the weights take 2 bytes for each parameter; you took 4")
        raise Mistake(f"{case}: (bytes of memory - bytes of weights) // bytes of one sequence")


@exercise("a full layer grows for ever, a sliding one stops at its window, and short texts never reach it")
def check_05_windows(answer: Callable[..., int]) -> None:
    """`answer(layer_types, window, bytes_per_layer, seq_len)`: bytes of the cache, `bytes_per_layer` for each token."""
    types = ["sliding_attention", "sliding_attention", "full_attention"]
    config = {"num_hidden_layers": 3, "num_attention_heads": 4, "hidden_size": 64, "layer_types": types}
    for window, seq_len in ((8, 5), (8, 8), (8, 9), (8, 100)):
        spec = KVCacheSpec.from_config({**config, "model_type": "gemma2", "head_dim": 16, "sliding_window": window})
        per_layer = int(spec.bytes_per_token()) // 3
        want = spec.cache_bytes(seq_len)
        got = _number(attempt(answer, list(types), window, per_layer, seq_len), "")
        if got == want:
            continue
        case = (
            f"for 2 sliding layers of {window} and 1 full one, {per_layer} bytes per token and layer, {seq_len} tokens "
            f"you return {got:,.0f}, expected {want:,}"
        )
        if got == 3 * per_layer * seq_len:
            raise Mistake(f"{case}: a sliding layer keeps the last {window} tokens only")
        if got == per_layer * seq_len:
            raise Mistake(f"{case}: you drop the sliding layers; they keep {min(window, seq_len)} tokens each")
        if got == 3 * per_layer * min(window, seq_len):
            raise Mistake(f"{case}: you cap the full layer too; it keeps every token")
        if got == per_layer * (2 * seq_len + min(window, seq_len)):
            raise Mistake(f"{case}: you cap the full layer and let the sliding ones grow; it is the other way round")
        if got == per_layer * (seq_len + 2 * min(window - 1, seq_len)):
            raise Mistake(f"{case}: that is what stays between steps; while a step runs, {window} tokens are needed")
        if got == per_layer * (seq_len + 2 * window):
            raise Mistake(
                f"{case}: below the window a sliding layer keeps the {seq_len} tokens there are, not {window}"
            )
        if got * per_layer == want:
            raise Mistake(f"{case}: that is how many tokens are kept; each takes {per_layer} bytes")
        if got == 2 * want:
            raise Mistake(f"{case}: twice as many; bytes_per_layer counts K and V already")
        if got == per_layer * (seq_len + min(window, seq_len)):
            raise Mistake(f"{case}: you count one sliding layer, and there are two: one term for each layer")
        raise Mistake(f"{case}: one term for each layer, the tokens that it keeps times {per_layer}")


_HEAD_DIMS = [
    ("Qwen3-0.6B", {"num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "hidden_size": 1024}),
    ("Llama-3-8B", {"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096}),
    ("SmolLM2-135M", {"num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 576}),
]


@exercise("the config's own head_dim where there is one, and hidden size / heads where it is missing or null")
def check_05_repaired(answer: Callable[[dict[str, Any], int], int]) -> None:
    """`answer(config, seq_len)`: float16 bytes of the cache, with any of the three ways to give a head_dim."""
    for (name, fields), given in zip(_HEAD_DIMS, ({"head_dim": 128}, {"head_dim": None}, {}), strict=True):
        config = {**fields, **given}
        want = KVCacheSpec.from_config(config).cache_bytes(100)
        said = "head_dim " + ("missing" if not given else "null" if given["head_dim"] is None else "128")
        try:
            got = _number(attempt(answer, dict(config), 100), f"for {name} ({said})")
        except Mistake as mistake:
            if given.get("head_dim", 0) is None:
                raise Mistake(
                    f"for {name}, whose head_dim is null, your code stops: null means 'not given'"
                ) from mistake
            if not given:
                raise Mistake(f"for {name}, which has no head_dim at all, your code stops: {mistake}") from mistake
            raise
        if got == want:
            continue
        case = f"for {name} ({said}), 100 tokens, you return {got:,.0f} bytes, expected {want:,}"
        if got * 2 == want and _half_elsewhere(answer):
            raise Mistake(f"{case}: exactly half. K and V are two tensors, and a float16 number is two bytes")
        if got * 100 == want:
            raise Mistake(f"{case}: that is one token")
        if got * fields["num_hidden_layers"] == want:
            raise Mistake(f"{case}: that is one layer, and there are {fields['num_hidden_layers']}")
        if name == "Qwen3-0.6B" and got * 2 == want:
            raise Mistake(f"{case}: still 1,024 / 16 = 64 numbers a head, and the config says 128")
        if got * fields["num_key_value_heads"] == want * fields["num_attention_heads"]:
            raise Mistake(
                f"{case}: either you count query heads, and the cache holds KV heads; or you divide hidden size by "
                "KV heads, and it is divided by query heads"
            )
        if not given.get("head_dim"):
            head_dim = fields["hidden_size"] // fields["num_attention_heads"]
            raise Mistake(f"{case}: where no head_dim is given, it is hidden size / heads, {head_dim} here")
        raise Mistake(f"{case}: 2 x layers x KV heads x head_dim x 2 bytes x tokens")


def _half_elsewhere(answer: Callable[[dict[str, Any], int], int]) -> bool:
    """Is half the bytes said also where no head_dim is given?"""
    name, fields = _HEAD_DIMS[2]
    got = _number(attempt(answer, dict(fields), 100), f"for {name}")
    return got * 2 == KVCacheSpec.from_config(fields).cache_bytes(100)
