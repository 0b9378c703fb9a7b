"""The same promise as test_bad_input's for what takes tensors: chapters 1 to 4, 7 and 12."""

from __future__ import annotations

import math

import pytest
import torch

from minipaged import attention, decoding, kv_cache, sampling, shapes, speculative
from minipaged.errors import InvalidInputError
from minipaged.paged_cache import PagedKVCache
from minipaged.sampling import SamplingParams
from minipaged.speculative import AcceptanceStats, PromptLookup, residual, verify
from tests.test_bad_input import assert_named_or_answered


def probs(*rows):
    return torch.tensor(rows, dtype=torch.float64)


def cache():
    return PagedKVCache([(2, 4, 4)], 4, 4)


def decoder():
    return kv_cache.DecoderShape("m", 2, 8, 8, 2, 1, 4, 10)


P, Q, AFTER = (0.5, 0.3, 0.2), (0.2, 0.3, 0.5), (0.2, 0.3, 0.5)
CONFIG = {"hidden_size": 8, "num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 2}

# name -> (the function, made anew; arguments that are right, made anew)
CALLS = {
    "SamplingParams": (
        lambda: SamplingParams,
        lambda: {"n": 1, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "max_tokens": 16,
                 "stop_token_ids": (), "ignore_eos": False, "seed": None, "logprobs": None},
    ),
    "filter_logits": (lambda: sampling.filter_logits, lambda: {"logits": torch.ones(3), "params": SamplingParams()}),
    "sample": (
        lambda: sampling.sample,
        lambda: {"logits": torch.ones(3), "params": SamplingParams(), "generator": None},
    ),
    "make_generator": (
        lambda: sampling.make_generator,
        lambda: {"params": SamplingParams(), "device": "cpu", "index": 0},
    ),
    "left_pad": (lambda: decoding.left_pad, lambda: {"prompts": [[1, 2], [3]], "pad_id": 0}),
    "acceptance": (lambda: speculative.acceptance, lambda: {"p": probs(*P), "q": probs(*Q)}),
    "residual": (lambda: residual, lambda: {"p": probs(*P), "q": probs(*Q)}),
    "verify": (lambda: verify, lambda: {"p": probs(P, AFTER), "q": probs(Q), "drafted": [1], "draws": [0.5]}),
    "probabilities": (
        lambda: speculative.probabilities,
        lambda: {"logits": torch.ones(3), "params": SamplingParams()},
    ),
    "pick": (lambda: speculative.pick, lambda: {"probs": probs(*P), "params": SamplingParams(), "generator": None}),
    "PromptLookup": (lambda: PromptLookup, lambda: {"max_ngram": 3, "min_ngram": 1}),
    "propose": (
        lambda: PromptLookup().propose,
        lambda: {"token_ids": [1, 2, 1, 2], "num_tokens": 2, "params": SamplingParams(), "generator": None},
    ),
    "AcceptanceStats": (lambda: AcceptanceStats, lambda: {"rounds": []}),
    "expected_tokens": (lambda: speculative.expected_tokens, lambda: {"rate": 0.5, "num_draft_tokens": 3}),
    "expected_speedup": (
        lambda: speculative.expected_speedup,
        lambda: {"rate": 0.5, "num_draft_tokens": 3, "draft_cost": 0.1, "pass_cost": 1.0},
    ),
    "PagedKVCache": (
        lambda: PagedKVCache,
        lambda: {"shapes": [(2, 4, 4)], "num_blocks": 4, "block_size": 4, "dtype": torch.float32, "device": "cpu",
                 "block_order": None, "fill": 0.0},
    ),
    "write": (
        lambda: cache().write,
        lambda: {"call": 0, "k": torch.ones(2, 2, 4), "v": torch.ones(2, 2, 4), "slot_mapping": [0, 1], "check": True},
    ),
    "gather": (lambda: cache().gather, lambda: {"call": 0, "block_table": [1, 2], "length": 5}),
    "copy_blocks": (lambda: cache().copy_blocks, lambda: {"pairs": [(0, 1)]}),
    "copy_from": (lambda: cache().copy_from, lambda: {"other": cache(), "pairs": [(0, 1)]}),
    "crop": (lambda: cache().crop, lambda: {"tokens_to_remove": 0}),
    "attention": (
        lambda: attention.attention,
        lambda: {"q": torch.ones(1, 4, 3, 8), "k": torch.ones(1, 2, 3, 8), "v": torch.ones(1, 2, 3, 8), "causal": True,
                 "scale": None, "sliding_window": None, "logit_softcap": None, "sinks": None},
    ),
    "causal_mask": (
        lambda: attention.causal_mask,
        lambda: {"q_len": 2, "kv_len": 3, "sliding_window": None, "device": None},
    ),
    "group_heads": (lambda: attention.group_heads, lambda: {"x": torch.ones(1, 4, 3, 8), "num_kv_heads": 2}),
    "masked_softmax": (
        lambda: attention.masked_softmax,
        lambda: {"scores": torch.ones(1, 2, 3, 3), "mask": None, "sinks": None},
    ),
    "rope_cos_sin": (
        lambda: attention.rope_cos_sin,
        lambda: {"positions": torch.arange(3), "head_dim": 8, "theta": 1e4, "dtype": torch.float32},
    ),
    "rotate_half": (lambda: attention.rotate_half, lambda: {"x": torch.ones(2, 8)}),
    "apply_rope": (
        lambda: attention.apply_rope,
        lambda: {"x": torch.ones(1, 2, 3, 8), "cos": torch.ones(3, 8), "sin": torch.ones(3, 8)},
    ),
    "contiguous_strides": (lambda: shapes.contiguous_strides, lambda: {"shape": (2, 3)}),
    "flat_offset": (lambda: shapes.flat_offset, lambda: {"index": (1, 1), "strides": (3, 1), "start": 0}),
    "index_at": (lambda: shapes.index_at, lambda: {"offset": 2, "shape": (2, 3)}),
    "is_contiguous": (lambda: shapes.is_contiguous, lambda: {"shape": (2, 3), "strides": (3, 1)}),
    "num_bytes": (lambda: shapes.num_bytes, lambda: {"shape": (2, 3), "dtype": "float16"}),
    "is_view_of": (lambda: shapes.is_view_of, lambda: {"view": torch.ones(2), "base": torch.ones(2)}),
    "split_heads": (lambda: shapes.split_heads, lambda: {"x": torch.ones(1, 3, 8), "num_heads": 2}),
    "describe": (lambda: shapes.describe, lambda: {"tensor": torch.ones(2)}),
    "table": (lambda: shapes.table, lambda: {"facts": [shapes.describe(torch.ones(2))]}),
    "predict_shapes": (
        lambda: shapes.predict_shapes,
        lambda: {"config": dict(CONFIG), "batch": 1, "length": 3, "layer": 0},
    ),
    "PreallocatedKVCache": (lambda: kv_cache.PreallocatedKVCache, lambda: {"max_len": 4}),
    "pass_flops": (
        lambda: kv_cache.pass_flops,
        lambda: {"shape": decoder(), "new": 1, "held": 0, "num_logits": 1, "batch_size": 1},
    ),
    "generation_flops": (
        lambda: kv_cache.generation_flops,
        lambda: {"shape": decoder(), "prompt": 2, "output": 3, "cached": True},
    ),
    "decode_parts": (
        lambda: kv_cache.decode_parts,
        lambda: {"shape": decoder(), "held": 2, "batch_size": 1, "element_bytes": 2},
    ),
    "positions_from_mask": (
        lambda: kv_cache.positions_from_mask,
        lambda: {"attention_mask": torch.ones(1, 3, dtype=torch.long), "held": 2, "new": 1},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_argument_gives_a_named_error_or_an_answer(name):
    assert_named_or_answered(*CALLS[name])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: speculative.acceptance(probs(math.nan), probs(0.5)), "p or q holds NaN or a number below 0"),
        (lambda: residual(probs(-0.1, 1.1), probs(0.5, 0.5)), "p or q holds NaN or a number below 0"),
        (lambda: residual(probs(*P), probs(0.5, 0.5)), r"p has shape \[3\] and q \[2\]"),
        (lambda: verify(probs(P), probs(Q), [1], [0.5]), "for 1 drafted tokens"),
        (lambda: verify(probs(P, AFTER), probs(Q), [3], [0.5]), "a drafted token is 3; .* from 0 to 2"),
        (lambda: verify(probs(P, AFTER), probs(Q), [-1], [0.5]), "a drafted token is -1"),
        (lambda: verify(probs(P, AFTER), probs(Q), [1], []), "0 draws for 1 drafted tokens"),
        (lambda: verify(probs(P, AFTER), probs(Q), [1], [math.nan]), "a draw is nan"),
        (
            lambda: verify(probs(P, AFTER), probs(Q), [1], torch.tensor([1.5])),
            "a draw is .*1.5.*; draws are numbers from",
        ),
        (lambda: speculative.expected_tokens(0.5, 10**9), "num_draft_tokens is 1000000000"),
        (lambda: speculative.some_layers(None), "model is NoneType; pass a transformers model"),
        (lambda: cache().copy_blocks([(0, 1, 2)]), "give .source block, target block. for each copy"),
        (lambda: PagedKVCache([(2, 4, 4)], 4, 4, device=None), "device is None"),
        (lambda: attention.masked_softmax(torch.ones(2, 3), torch.ones(2, 3)), "mask is torch.float32 .* needs bool"),
        (lambda: attention.masked_softmax(torch.ones(2, 3), torch.ones(4, 2, 3) > 0), "that broadcasts to the scores"),
        (lambda: attention.apply_rope(torch.ones(1, 3, 8), torch.ones(4, 8), torch.ones(4, 8)), "a row for each"),
        (lambda: attention.causal_mask(3, 2), "q_len is 3 and kv_len 2"),
        (lambda: kv_cache.DecoderShape("m", 0, 8, 8, 2, 1, 4, 10), "num_layers is 0"),
        (lambda: kv_cache.DecoderShape.from_config({"num_layers": 2}), "dict has no num_attention_heads"),
        (lambda: sampling.sample(torch.ones(3), SamplingParams(), 5), "generator is 5; pass make_generator"),
        (lambda: sampling.sample(torch.ones(3), {"temperature": 0}), "params is {'temperature': 0}; pass Sampling"),
    ],
)
def test_nonsense_that_used_to_pass_is_named(call, words):
    with pytest.raises(InvalidInputError, match=words):
        call()
