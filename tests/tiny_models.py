"""Tiny random models of six families, built in place from transformers' configs: no network, a few milliseconds each.

Weights are drawn wider than transformers' own start (0.02), so that attention patterns differ from row to row and a
wrong mask or position shows in the logits. "sliding" families have a window that a test can stay below or go beyond.
"""

from __future__ import annotations

from typing import Any

import torch

FAMILIES = ("llama", "qwen2", "qwen3", "mistral", "gpt2", "gemma2")
SLIDING = ("mistral", "gemma2")  # every layer of mistral, every other layer of gemma2
WINDOW = 8
VOCABULARY = 97

_COMMON = {
    "vocab_size": VOCABULARY,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "initializer_range": 0.2,
}
_GROUPED = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}


def tiny_config(family: str, **changes: Any) -> Any:
    """The config of a tiny model of `family`; `changes` overrides single values, such as `num_key_value_heads=1`."""
    import transformers as t

    if family == "llama":
        return t.LlamaConfig(**{**_COMMON, **_GROUPED, **changes})
    if family == "qwen2":  # biases on Q, K and V
        return t.Qwen2Config(**{**_COMMON, **_GROUPED, **changes})
    if family == "qwen3":  # head_dim given by the config, not hidden_size / heads; Q and K normalised
        return t.Qwen3Config(**{**_COMMON, **_GROUPED, "head_dim": 16, **changes})
    if family == "mistral":  # every layer looks back over a window
        return t.MistralConfig(**{**_COMMON, **_GROUPED, "sliding_window": WINDOW, **changes})
    if family == "gemma2":  # layers with and without a window in turn; softcap on scores and logits
        extra = {"head_dim": 8, "sliding_window": WINDOW, "query_pre_attn_scalar": 8, "attn_logit_softcapping": 5.0}
        return t.Gemma2Config(**{**_COMMON, **_GROUPED, **extra, **changes})
    if family == "gpt2":  # learned positions, no grouping
        gpt2 = {"n_embd": 32, "n_layer": 4, "n_head": 4, "n_positions": 256}
        return t.GPT2Config(**{**_COMMON, **gpt2, **changes})
    raise ValueError(f"no tiny model of family {family!r}; there are {', '.join(FAMILIES)}")


def tiny_model(family: str, seed: int = 0, **changes: Any) -> Any:
    """A tiny random causal language model of `family`: float32, CPU, eval mode, the same for the same seed.

    The global random state of torch is left as it was.
    """
    from transformers import AutoModelForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(tiny_config(family, **changes))
    model.generation_config.pad_token_id = 0
    return model.float().eval()


def tiny_ids(length: int, batch_size: int = 1, seed: int = 0) -> torch.Tensor:
    """Random token ids [batch_size, length] of the tiny vocabulary; none is the pad, start or end token."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCABULARY, (batch_size, length), generator=generator)
