"""K and V in blocks give what K and V in one piece give, wherever the blocks lie and whatever is in the other slots."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from minipaged.block_manager import BlockManager, OutOfBlocksError, physical_slot, shuffled
from minipaged.errors import InvalidInputError
from minipaged.kv_cache import ConcatKVCache, UnsupportedCacheError, cache_argument, decode_step, prefill
from minipaged.paged_cache import PagedKVCache
from tests.tiny_models import FAMILIES, SLIDING, WINDOW, tiny_ids, tiny_model

NAN = math.nan


def small(**options):
    """Two calls of different shapes, 6 blocks of 4."""
    return PagedKVCache([(2, 3, 5), (1, 4, 4)], 6, 4, **options)


def states(num_tokens, heads, dim, seed=0):
    return torch.randn(num_tokens, heads, dim, generator=torch.Generator().manual_seed(seed))


def generate(model, ids, cache=None, **options):
    with torch.inference_mode():
        given = {} if cache is None else cache_argument(model, cache)
        return model.generate(ids, do_sample=False, attention_mask=torch.ones_like(ids), **given, **options)


# ---- the pool ----------------------------------------------------------------------------------------------------


def test_what_is_written_by_slot_is_gathered_by_table():
    cache = small(fill=NAN)
    manager = BlockManager(6, 4, watermark=0, block_order=[5, 0, 3])
    manager.allocate(1, range(10))
    assert manager.block_table(1) == [5, 0, 3]
    for call, (heads, k_dim, v_dim) in enumerate(cache.shapes):
        k, v = states(10, heads, k_dim), states(10, heads, v_dim, seed=1)
        cache.write(call, k, v, manager.slot_mapping(1, 0, 10))
        for length in (0, 1, 4, 5, 10):
            got_k, got_v = cache.gather(call, manager.block_table(1), length)
            assert torch.equal(got_k, k[:length]) and torch.equal(got_v, v[:length])
        token_6 = cache.k_cache[call].view(24, heads, k_dim)[physical_slot([5, 0, 3], 6, 4)]
        assert torch.equal(token_6, k[6])
        assert torch.isnan(cache.k_cache[call]).sum() == 14 * heads * k_dim  # the other slots were not touched


def test_shapes_are_blocks_slots_heads_dim_and_may_differ_by_call():
    cache = small(dtype="float16")
    assert [tuple(t.shape) for t in cache.k_cache] == [(6, 4, 2, 3), (6, 4, 1, 4)]
    assert [tuple(t.shape) for t in cache.v_cache] == [(6, 4, 2, 5), (6, 4, 1, 4)]
    assert cache.num_bytes == 24 * (2 * 3 + 2 * 5 + 4 + 4) * 2
    assert repr(cache) == "PagedKVCache(2 calls, 6 blocks of 4, 0 in use, 0.0 MiB)"


def test_minus_one_writes_nothing_and_block_0_is_written():
    """Behaviour 9: padding is -1, because 0 is a place."""
    cache = small(fill=NAN)
    k, v = states(3, 1, 4), states(3, 1, 4, seed=1)
    cache.write(1, k, v, torch.tensor([-1, 0, -1]))
    assert torch.equal(cache.gather(1, [0], 1)[0], k[1:2])
    assert int((~torch.isnan(cache.k_cache[1])).sum()) == 4


def test_sequences_of_one_pool_do_not_touch_each_other():
    cache, manager = small(fill=NAN), BlockManager(6, 4, watermark=0, block_order=shuffled(6))
    sequences = {seq: (states(n, 1, 4, seq), states(n, 1, 4, seq + 9)) for seq, n in [(0, 5), (1, 8), (2, 1)]}
    for seq, (k, v) in sequences.items():
        manager.allocate(seq, range(len(k)))
        cache.write(1, k, v, manager.slot_mapping(seq, 0, len(k)))
    for seq, (k, v) in sequences.items():
        got = cache.gather(1, manager.block_table(seq), len(k))
        assert torch.equal(got[0], k) and torch.equal(got[1], v)


def test_copied_blocks_are_read_before_any_is_written():
    cache = small()
    for call, (heads, k_dim, v_dim) in enumerate(cache.shapes):
        cache.write(call, states(24, heads, k_dim), states(24, heads, v_dim, 1), range(24))
    before = [t.clone() for t in (*cache.k_cache, *cache.v_cache)]
    cache.copy_blocks([])
    cache.copy_blocks([(1, 2), (2, 1), (0, 5)])  # a swap, and a copy
    for old, new in zip(before, (*cache.k_cache, *cache.v_cache), strict=True):
        assert torch.equal(new, old[[0, 2, 1, 3, 4, 0]])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda c: c.write(0, states(2, 2, 3), states(2, 2, 5), [3, 24]),
            "slot 24 is outside the pool's slots 0 to 23",
        ),
        (lambda c: c.write(0, states(2, 2, 3), states(2, 2, 5), [-2, 3]), "slot -2 is outside"),
        (lambda c: c.write(0, states(2, 2, 3), states(2, 2, 5), [3, 3]), "names a slot twice"),
        (lambda c: c.write(0, states(2, 2, 3), states(2, 2, 5), [3]), "one slot each"),
        (lambda c: c.write(0, states(2, 2, 5), states(2, 2, 5), [3, 4]), r"call 0 stores k \[num_tokens, 2, 3\]"),
        (lambda c: c.write(0, states(2, 2, 3), states(1, 2, 5), [3, 4]), r"got \[2, 2, 3\] and \[1, 2, 5\]"),
        (lambda c: c.write(0, states(1, 2, 3).double(), states(1, 2, 5), [3]), "k is torch.float64"),
        (lambda c: c.write(2, states(1, 2, 3), states(1, 2, 5), [3]), "attention call 2"),
        (lambda c: c.gather(0, [0, 6], 5), "names block 6; the pool's blocks are 0 to 5"),
        (lambda c: c.gather(0, [0, -1], 5), "names block -1"),
        (lambda c: c.gather(0, [0], 5), "5 tokens lie in 2 blocks of 4; the table names 1"),
        (lambda c: c.gather(0, [0], -1), "length is -1"),
        (lambda c: c.gather(-1, [0], 1), "attention call -1"),
        (lambda c: c.copy_blocks([(0, 6)]), "a target names block 6"),
        (lambda c: c.copy_blocks([(-1, 1)]), "a source names block -1"),
        (lambda c: c.copy_blocks([(0, 1), (2, 1)]), "a target is named twice"),
    ],
)
def test_wrong_input_has_a_named_error_and_changes_nothing(call, words):
    cache = small()
    with pytest.raises(InvalidInputError, match=words):
        call(cache)
    assert not any(t.any() for t in (*cache.k_cache, *cache.v_cache))


@pytest.mark.parametrize(
    ("shapes", "size", "words"),
    [
        ([], (4, 4), "num_kv_heads, k_dim, v_dim"),
        ([(1, 2)], (4, 4), "num_kv_heads, k_dim, v_dim"),
        ([(1, 2, 0)], (4, 4), "num_kv_heads, k_dim, v_dim"),
        ([(1, 2, 3)], (0, 4), "num_blocks"),
        ([(1, 2, 3)], (4, 0), "block_size"),
    ],
)
def test_a_pool_that_cannot_be_is_refused(shapes, size, words):
    with pytest.raises(InvalidInputError, match=words):
        PagedKVCache(shapes, *size)


def test_a_table_may_be_padded_behind_the_last_block_that_is_needed():
    cache = small()
    k = states(4, 1, 4)
    cache.write(1, k, k, range(8, 12))
    assert torch.equal(cache.gather(1, torch.tensor([2, -1, -1], dtype=torch.int32), 4)[0], k)


# ---- as a transformers cache, one row ----------------------------------------------------------------------------


@pytest.mark.parametrize("block_size", [1, 3, 16])
@pytest.mark.parametrize("family", FAMILIES)
def test_generate_gives_the_same_tokens_through_shuffled_poisoned_blocks(family, block_size):
    model, ids = tiny_model(family), tiny_ids(11)
    num_blocks = -(-60 // block_size)
    cache = PagedKVCache.for_model(model, num_blocks, block_size, block_order=shuffled(num_blocks), fill=NAN)
    options = {"max_new_tokens": 40, "min_new_tokens": 40}  # 51 tokens: far beyond the window of the sliding families
    assert torch.equal(generate(model, ids, cache, **options), generate(model, ids, **options))
    assert cache.block_table != sorted(cache.block_table)
    assert cache.manager.num_tokens(0) == cache.get_seq_length() >= 50


@pytest.mark.parametrize("chunks", [(12,), (1,) * 12, (7, 5), (3, 1, 8)])
@pytest.mark.parametrize("family", ["llama", *SLIDING])
def test_logits_of_every_position_equal_a_pass_without_a_cache(family, chunks):
    model, ids = tiny_model(family), tiny_ids(12)
    assert ids.shape[1] > WINDOW
    cache = PagedKVCache.for_model(model, 5, 4, block_order=[4, 1, 3], fill=NAN)
    parts = [prefill(model, part, cache) for part in ids.split(chunks, dim=1)]
    with torch.inference_mode():
        expected = model(ids, use_cache=False).logits
    torch.testing.assert_close(torch.cat(parts, dim=1), expected, atol=1e-4, rtol=1e-4)
    assert cache.block_table == [4, 1, 3]


def test_one_left_padded_row_is_right():
    model, ids = tiny_model("llama"), tiny_ids(6)
    padded = torch.cat([torch.zeros(1, 3, dtype=torch.long), ids], dim=1)
    mask = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1, 1]])
    logits = prefill(model, padded, PagedKVCache.for_model(model, 4, 4, fill=NAN), mask)[:, -1]
    with torch.inference_mode():
        torch.testing.assert_close(logits, model(ids).logits[:, -1], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_cropped_tokens_leave_no_trace(family):
    model, ids, other = tiny_model(family), tiny_ids(13), tiny_ids(6, seed=5)
    cache = PagedKVCache.for_model(model, 8, 4, block_order=shuffled(8), fill=NAN)
    prefill(model, ids, cache)
    cache.crop(-4)
    assert cache.get_seq_length() == 9 and len(cache.block_table) == 3 and cache.manager.num_free_blocks == 5
    got = prefill(model, other, cache)
    fresh = ConcatKVCache()
    prefill(model, ids[:, :9], fresh)
    torch.testing.assert_close(got, prefill(model, other, fresh), atol=1e-4, rtol=1e-4)
    cache.crop(2)  # the older meaning: the length to keep
    assert cache.get_seq_length() == 2 and len(cache.block_table) == 1
    filled = [(~torch.isnan(t)).sum().item() / t[0, 0].numel() for t in (*cache.k_cache, *cache.v_cache)]
    assert filled == [2] * len(filled)
    cache.crop(0)
    cache.crop(99)
    assert cache.get_seq_length() == 2
    with pytest.raises(InvalidInputError, match="cannot remove 3 tokens: the row has 2"):
        cache.crop(-3)


def test_reset_gives_every_block_back_and_the_cache_serves_again():
    model, ids = tiny_model("llama"), tiny_ids(9)
    cache = PagedKVCache.for_model(model, 3, 4, fill=NAN)
    first = prefill(model, ids, cache)
    for _ in range(2):
        cache.reset()
        assert cache.manager.num_free_blocks == 3 and cache.block_table == [] and cache.get_seq_length() == 0
        assert all(torch.isnan(t).all() for t in (*cache.k_cache, *cache.v_cache))
    assert torch.equal(prefill(model, ids, cache), first)


def test_a_full_pool_says_so_and_nothing_has_changed():
    model = tiny_model("llama")
    cache = PagedKVCache.for_model(model, 2, 4)
    with pytest.raises(OutOfBlocksError, match="needs 3 blocks for 9 tokens; 2 of 2 are free"):
        prefill(model, tiny_ids(9), cache)
    assert cache.get_seq_length() == 0 and cache.manager.num_free_blocks == 2
    prefill(model, tiny_ids(8), cache)
    with pytest.raises(OutOfBlocksError, match="needs 1 more block"):
        decode_step(model, tiny_ids(1)[0], cache)
    assert {layer.get_seq_length() for layer in cache.layers} == {8}
    cache.crop(-1)
    decode_step(model, tiny_ids(1)[0], cache)


def test_batches_and_beams_are_refused():
    model, ids = tiny_model("llama"), tiny_ids(5)
    for rows, options, words in [
        (2, {}, "brings 2 rows"),
        (1, {"num_beams": 2}, "one row"),
        (1, {"num_return_sequences": 2, "num_beams": 2}, "one row"),
    ]:
        cache = PagedKVCache.for_model(model, 9, 4)
        with pytest.raises(InvalidInputError, match=words):
            generate(model, ids.repeat(rows, 1), cache, max_new_tokens=3, **options)
        assert cache.manager.num_free_blocks == 9
    for call in (cache.reorder_cache, cache.batch_select_indices):
        with pytest.raises(InvalidInputError, match="one row"):
            call(torch.tensor([0]))
    with pytest.raises(InvalidInputError, match="one row"):
        cache.batch_repeat_interleave(2)
    with pytest.raises(InvalidInputError, match="share one block table"):
        cache.layers[0].crop(-1)


def test_shapes_come_from_the_model():
    assert PagedKVCache.for_model(tiny_model("qwen3"), 3).shapes == [(2, 16, 16)] * 4
    half = PagedKVCache.for_model(tiny_model("gpt2").half(), 3)
    assert half.shapes == [(4, 8, 8)] * 4 and half.dtype == torch.float16
    assert half.num_bytes == 4 * 2 * 48 * 32 * 2


def test_k_and_v_of_different_sizes_run():
    """Multi-head latent attention: what transformers' cache keeps of a token differs in size from K to V."""
    from transformers import AutoModelForCausalLM, DeepseekV3Config

    torch.manual_seed(0)
    config = DeepseekV3Config(
        vocab_size=97, hidden_size=32, intermediate_size=48, moe_intermediate_size=16, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=4, n_routed_experts=4, n_group=1, topk_group=1,
        num_experts_per_tok=2, first_k_dense_replace=1, q_lora_rank=16, kv_lora_rank=16, qk_nope_head_dim=16,
        qk_rope_head_dim=8, v_head_dim=16, max_position_embeddings=64, pad_token_id=0, initializer_range=0.2,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config).float().eval()
    cache = PagedKVCache.for_model(model, 10, 4, block_order=shuffled(10), fill=NAN)
    assert all(k_dim != v_dim for _, k_dim, v_dim in cache.shapes)
    ids, options = tiny_ids(9), {"max_new_tokens": 20, "min_new_tokens": 20}
    assert torch.equal(generate(model, ids, cache, **options), generate(model, ids, **options))


def test_models_that_keep_something_else_are_refused():
    import transformers as t

    mamba = t.MambaConfig(vocab_size=97, hidden_size=16, num_hidden_layers=2, state_size=4)
    with pytest.raises(UnsupportedCacheError, match="MambaForCausalLM keeps no K and V at all"):
        PagedKVCache.for_model(t.AutoModelForCausalLM.from_config(mamba).eval(), 4)
    mixed = t.Lfm2Config(
        vocab_size=97, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, layer_types=["conv", "full_attention"],
    )  # fmt: skip
    with pytest.raises(UnsupportedCacheError, match="layer 0 of Lfm2ForCausalLM keeps"):
        PagedKVCache.for_model(t.AutoModelForCausalLM.from_config(mixed).eval(), 4)
    t5 = t.T5Config(vocab_size=97, d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=2)
    with pytest.raises(UnsupportedCacheError, match="has an encoder"):
        PagedKVCache.for_model(t.T5ForConditionalGeneration(t5).eval(), 4)


PROMPTS = [
    "The capital of France is", "Water boils at", "Once upon a time there was a small", "2 + 2 =",
    "Give three reasons to read books.", "The three states of matter are", "def add(a, b):", "Dear Sir or Madam,",
    "A haiku about the sea:\n", "The opposite of hot is", "My favourite colour is", "In 1969, people first",
    "To make tea, first", "The cat sat on the", "Monday, Tuesday,", "Explain what a computer is to a child.",
    "The best way to learn is", "Rain falls because", "List of fruits: apple,", "Music is",
]  # fmt: skip


@pytest.mark.model
def test_the_course_model_writes_the_same_64_tokens_for_20_prompts(course_model):
    """Shuffled blocks, and NaN in every slot that no token uses: one read of a wrong slot would spoil the logits."""
    model, tokenizer = course_model
    cache = PagedKVCache.for_model(model, 12, 16, fill=NAN)
    for seed, prompt in enumerate(PROMPTS):
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        cache.reset()
        for _ in range(seed):  # another physical place for each prompt
            cache.manager.pool.free_ids.move_to_end(next(iter(cache.manager.pool.free_ids)))
        options = {"max_new_tokens": 64, "min_new_tokens": 64}
        assert torch.equal(generate(model, ids, cache, **options), generate(model, ids, **options)), prompt
        assert len(cache.block_table) == -(-cache.get_seq_length() // 16)


@pytest.mark.parametrize("first_pass", [True, False])
def test_after_half_a_pass_the_cache_asks_for_a_reset(first_pass):
    """Ctrl-C or a full memory in the middle of a pass: the later layers have missed tokens that the mask counts."""
    model, ids = tiny_model("llama"), tiny_ids(6)
    for cache in (PagedKVCache.for_model(model, 8, 4),):
        if not first_pass:
            prefill(model, ids, cache)
        layer, forward = model.model.layers[2], model.model.layers[2].forward
        layer.forward = lambda *a, **k: (_ for _ in ()).throw(KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            prefill(model, ids, cache)
        layer.forward = forward
        with pytest.raises(InvalidInputError, match="interrupted half-way; call reset"):
            prefill(model, ids[:, :1], cache)
        cache.reset()
        assert torch.equal(prefill(model, ids, cache), prefill(model, ids, PagedKVCache.for_model(model, 8, 4)))


def test_slots_and_blocks_are_not_rounded():
    cache = PagedKVCache([(1, 2, 2)], np.int64(4), 4)
    k = torch.ones(1, 1, 2)
    for slots in ([1.7], [True], torch.tensor([0.5])):
        with pytest.raises(InvalidInputError, match="slot_mapping holds torch"):
            cache.write(0, k, k, slots)
    with pytest.raises(InvalidInputError, match="block_table holds"):
        cache.gather(0, [0.5], 1)
    with pytest.raises(InvalidInputError, match="length is 1.5"):
        cache.gather(0, [0], 1.5)
    with pytest.raises(InvalidInputError, match="pairs holds"):
        cache.copy_blocks([(0.5, 1)])
    with pytest.raises(InvalidInputError, match="unknown dtype"):
        PagedKVCache([(1, 2, 2)], 4, dtype="float99")
    assert not any(t.any() for t in (*cache.k_cache, *cache.v_cache))
