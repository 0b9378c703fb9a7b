"""Chapter 4: a cache changes the work, never the result."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from minipaged.errors import InvalidInputError
from minipaged.kv_cache import (
    GPUS,
    CacheFullError,
    ConcatKVCache,
    DecoderShape,
    PreallocatedKVCache,
    UnsupportedCacheError,
    cache_argument,
    decode_parts,
    decode_step,
    generation_flops,
    pass_flops,
    positions_from_mask,
    prefill,
)
from tests.tiny_models import FAMILIES, WINDOW, tiny_ids, tiny_model

CACHES = {"concat": ConcatKVCache, "preallocated": lambda: PreallocatedKVCache(64)}
PROMPTS = (
    "The capital of France is",
    "One",
    "Once upon a time, in a village by the sea, there lived an old woman who counted the boats every evening and",
)


@pytest.fixture(params=CACHES)
def new_cache(request):
    """A function that makes an empty cache of either kind."""
    return CACHES[request.param]


@torch.no_grad()
def without_cache(model, ids, mask=None):
    """Logits [batch, length, vocab] of one pass over everything."""
    positions = None if mask is None else positions_from_mask(mask, 0, ids.shape[1])
    return model(ids, attention_mask=mask, position_ids=positions, use_cache=False).logits


def assert_close(got, want):
    """Within 1e-5 of the largest logit, and told apart from a constant answer."""
    assert got.shape == want.shape and want.std() > 0.1
    assert (got - want).abs().max() <= 1e-5 * want.abs().max()


def feed(model, ids, cache, sizes):
    """Feed ids in chunks of these sizes, then the rest one by one; logits of all tokens."""
    logits, start = [], 0
    for size in [*sizes, *[1] * (ids.shape[1] - sum(sizes))]:
        logits.append(prefill(model, ids[:, start : start + size], cache))
        start += size
    return torch.cat(logits, dim=1)


# ---- the same logits, the same tokens ------------------------------------------------------------------------------


@pytest.mark.parametrize("prompt", PROMPTS)
def test_a_real_model_gives_the_same_logits_and_tokens_with_and_without_a_cache(course_model, new_cache, prompt):
    model, tokenizer = course_model
    ids = tokenizer(prompt, return_tensors="pt").input_ids
    cache = new_cache()
    logits, tokens = [prefill(model, ids, cache)], []
    for _ in range(8):
        tokens.append(logits[-1][:, -1].argmax(-1))
        logits.append(decode_step(model, tokens[-1], cache)[:, None])
    everything = torch.cat([ids, torch.stack(tokens, dim=1)], dim=1)
    assert_close(torch.cat(logits, dim=1), without_cache(model, everything))
    want = model.generate(ids, max_new_tokens=8, do_sample=False, eos_token_id=-1, use_cache=False)
    assert everything.tolist() == want.tolist()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("length", [WINDOW - 2, WINDOW, WINDOW + 1, 3 * WINDOW])
def test_every_family_gives_the_same_logits_below_at_and_beyond_its_window(family, new_cache, length):
    model, ids = tiny_model(family), tiny_ids(length)
    assert_close(feed(model, ids, new_cache(), [3]), without_cache(model, ids))


def test_the_windows_really_hide_something():
    for family in FAMILIES:
        model, ids = tiny_model(family), tiny_ids(3 * WINDOW)
        other = torch.cat([tiny_ids(1, seed=5), ids[:, 1:]], dim=1)  # only the first token differs
        moved = (without_cache(model, ids) - without_cache(model, other))[:, -1].abs().max()
        assert moved > 1e-3 or family == "mistral"  # gemma2 still sees it through its layers without a window
    one_layer = tiny_model("mistral", num_hidden_layers=1)
    same = (without_cache(one_layer, ids) - without_cache(one_layer, other))[:, -1].abs().max()
    assert same < 1e-6


@pytest.mark.parametrize("family", FAMILIES)
def test_generate_gives_the_same_tokens_and_leaves_the_last_one_unfed(family, new_cache):
    model, ids = tiny_model(family), tiny_ids(6, batch_size=2)
    want = model.generate(ids, max_new_tokens=20, min_new_tokens=20, do_sample=False, use_cache=False)
    cache = new_cache()
    got = model.generate(ids, max_new_tokens=20, min_new_tokens=20, do_sample=False, **cache_argument(model, cache))
    assert got.tolist() == want.tolist()
    assert cache.get_seq_length() == 6 + 20 - 1  # nobody needs the K and V of a token that is never read


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("chunk", [1, 7, 15, 16, 17])
def test_a_chunk_fed_to_a_non_empty_cache_sees_all_before_it_and_nothing_after(family, new_cache, chunk):
    """Behaviour 22: the mask is aligned bottom-right."""
    model, ids = tiny_model(family), tiny_ids(5 + 2 * chunk)
    assert_close(feed(model, ids, new_cache(), [5, chunk, chunk]), without_cache(model, ids))


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_chunks_are_right_with_either_attention_of_transformers(new_cache, attention):
    for family in ("llama", "gpt2", "mistral"):
        model, ids = tiny_model(family), tiny_ids(30)
        model.set_attn_implementation(attention)
        assert_close(feed(model, ids, new_cache(), [5, 7, 16]), without_cache(model, ids))


@pytest.mark.parametrize("family", FAMILIES)
def test_left_padding_changes_no_row(family, new_cache):
    """Behaviour 26: positions are counted from the mask, row by row."""
    model, lengths = tiny_model(family), [3, 9, 12]
    rows = [tiny_ids(n + 4, seed=n) for n in lengths]  # each prompt and the 4 tokens that follow it
    mask, cache = torch.zeros(3, 12, dtype=torch.long), new_cache()
    ids = torch.zeros(3, 12, dtype=torch.long)
    for i, n in enumerate(lengths):
        ids[i, 12 - n :], mask[i, 12 - n :] = rows[i][0, :n], 1
    got = [prefill(model, ids, cache, mask)[:, -1]]
    for step in range(4):
        mask = torch.cat([mask, torch.ones(3, 1, dtype=torch.long)], dim=1)
        got.append(
            decode_step(
                model, torch.stack([row[0, n + step] for row, n in zip(rows, lengths, strict=True)]), cache, mask
            )
        )
    for i, n in enumerate(lengths):
        assert_close(torch.stack([g[i] for g in got]), without_cache(model, rows[i])[0, n - 1 :])


def test_one_position_for_all_rows_would_be_seen():
    """The test above can fail: with positions counted from the padding, the short row is wrong."""
    model, row = tiny_model("llama"), tiny_ids(3)
    padded = torch.cat([torch.zeros(1, 9, dtype=torch.long), row], dim=1)
    mask = torch.tensor([[0] * 9 + [1] * 3])
    with torch.no_grad():
        wrong = tiny_model("gpt2")(padded, attention_mask=mask, position_ids=torch.arange(12)[None]).logits
    assert (wrong[:, -1] - without_cache(tiny_model("gpt2"), row)[:, -1]).abs().max() > 1e-2
    assert_close(prefill(model, padded, ConcatKVCache(), mask)[:, -3:], without_cache(model, row))


def test_a_decode_position_one_too_high_would_be_seen(course_model):
    """Behaviour 3: len(seq) instead of len(seq) - 1 changes logits by far more than the tolerance."""
    model, tokenizer = course_model
    ids = tokenizer(PROMPTS[0], return_tensors="pt").input_ids
    want, cache = without_cache(model, ids)[:, -1], ConcatKVCache()
    prefill(model, ids[:, :-1], cache)
    with torch.no_grad():
        wrong = model(ids[:, -1:], position_ids=torch.tensor([[ids.shape[1]]]), **cache_argument(model, cache)).logits
    assert (wrong[:, -1] - want).abs().max() > 1e-3 * want.abs().max()


def test_a_cache_filled_by_hand_is_continued_by_generate(new_cache):
    model, ids, cache = tiny_model("llama"), tiny_ids(9), new_cache()
    prefill(model, ids[:, :-1], cache)
    got = model.generate(ids, max_new_tokens=5, min_new_tokens=5, do_sample=False, **cache_argument(model, cache))
    want = model.generate(ids, max_new_tokens=5, min_new_tokens=5, do_sample=False, use_cache=False)
    assert got.tolist() == want.tolist()


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_beam_search_reorders_the_rows(family, new_cache):
    model, ids = tiny_model(family), tiny_ids(6)
    options = {"num_beams": 3, "max_new_tokens": 12, "do_sample": False}
    cache = new_cache()
    got = model.generate(ids, **options, **cache_argument(model, cache))
    assert got.tolist() == model.generate(ids, **options, use_cache=False).tolist()


def test_rows_can_be_reordered_repeated_and_selected(new_cache):
    model, ids, cache = tiny_model("qwen2"), tiny_ids(6, batch_size=3), new_cache()
    prefill(model, ids, cache)
    cache.reorder_cache(torch.tensor([2, 0, 0]))
    cache.batch_repeat_interleave(2)
    cache.batch_select_indices(torch.tensor([0, 3]))
    token = tiny_ids(2, seed=3)[0]
    want = without_cache(model, torch.cat([ids[[2, 0]], token[:, None]], dim=1))[:, -1]
    assert_close(decode_step(model, token, cache), want)


# ---- reset and crop ------------------------------------------------------------------------------------------------


def test_reset_makes_a_cache_like_new(new_cache):
    model, cache = tiny_model("gemma2"), new_cache()
    prefill(model, tiny_ids(20, batch_size=2, seed=1), cache)
    cache.reset()
    assert (cache.get_seq_length(), cache.used_bytes, cache.reserved_bytes) == (0, 0, 0)
    assert getattr(cache, "bytes_copied", 0) == 0
    ids = tiny_ids(11)
    assert_close(feed(model, ids, cache, [4]), without_cache(model, ids))


@pytest.mark.parametrize("family", FAMILIES)
def test_removed_tokens_leave_no_trace(family, new_cache):
    model, ids, cache = tiny_model(family), tiny_ids(20), new_cache()
    prefill(model, torch.cat([ids[:, :12], tiny_ids(5, seed=9)], dim=1), cache)
    cache.crop(-5)
    cache.crop(0)
    assert cache.get_seq_length() == 12
    assert_close(prefill(model, ids[:, 12:], cache), without_cache(model, ids)[:, 12:])
    cache.crop(3)  # the older meaning: the length to keep
    assert cache.get_seq_length() == 3
    with pytest.raises(InvalidInputError, match="cannot remove 4 tokens: the cache holds 3"):
        cache.crop(-4)
    assert cache.get_seq_length() == 3


# ---- bytes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("batch_size", "dtype"), [(1, torch.float32), (3, torch.bfloat16)])
def test_bytes_are_those_of_the_real_tensors(new_cache, batch_size, dtype):
    model, cache = tiny_model("qwen3").to(dtype), new_cache()
    prefill(model, tiny_ids(10, batch_size), cache)
    decode_step(model, tiny_ids(1, batch_size)[:, 0], cache)
    per_token = 2 * 4 * 2 * 16 * dtype.itemsize  # K and V, layers, KV heads, head_dim
    assert cache.used_bytes == batch_size * 11 * per_token
    real = sum(t.untyped_storage().nbytes() for layer in cache.layers for t in (layer.keys, layer.values))
    assert cache.reserved_bytes == real == batch_size * per_token * (64 if hasattr(cache, "max_len") else 11)
    assert DecoderShape.from_config(model.config).kv_numbers_per_token * dtype.itemsize == per_token


def test_concatenation_copies_all_earlier_tokens_at_every_step():
    model, cache = tiny_model("llama"), ConcatKVCache()
    prefill(model, tiny_ids(10), cache)
    assert cache.bytes_copied == 0
    for _ in range(5):
        decode_step(model, torch.tensor([7]), cache)
    per_token = cache.used_bytes // 15
    assert cache.bytes_copied == (10 + 11 + 12 + 13 + 14) * per_token


def test_preallocation_copies_nothing_and_stays_where_it_is():
    model, cache = tiny_model("llama"), PreallocatedKVCache(16)
    prefill(model, tiny_ids(10), cache)
    places = [(layer.keys.data_ptr(), layer.values.data_ptr()) for layer in cache.layers]
    before = [layer.keys[:, :, :10].clone() for layer in cache.layers]
    for _ in range(6):
        decode_step(model, torch.tensor([7]), cache)
    assert places == [(layer.keys.data_ptr(), layer.values.data_ptr()) for layer in cache.layers]
    assert all(torch.equal(old, layer.keys[:, :, :10]) for old, layer in zip(before, cache.layers, strict=True))
    assert cache.used_bytes == cache.reserved_bytes


def test_what_either_cache_holds_is_what_transformers_own_cache_holds(new_cache):
    from transformers import DynamicCache

    model, ids, cache, own = tiny_model("gpt2"), tiny_ids(10), new_cache(), DynamicCache()
    prefill(model, ids, cache)
    prefill(model, ids, own)
    for mine, theirs in zip(cache.layers, own.layers, strict=True):
        assert torch.equal(mine.keys[:, :, :10], theirs.keys) and torch.equal(mine.values[:, :, :10], theirs.values)


# ---- errors come before anything changes ---------------------------------------------------------------------------


def test_a_full_cache_says_length_limit_and_way_out_and_stays_usable():
    model, ids, cache = tiny_model("gemma2"), tiny_ids(12), PreallocatedKVCache(12)
    prefill(model, ids[:, :10], cache)
    before = [layer.keys.clone() for layer in cache.layers]
    message = "holds 10 tokens and has room for 12: 3 more make 13. Make it with PreallocatedKVCache\\(13\\) or more"
    with pytest.raises(CacheFullError, match=message):
        prefill(model, tiny_ids(3), cache)
    assert all(
        torch.equal(old, layer.keys) and layer.length == 10 for old, layer in zip(before, cache.layers, strict=True)
    )
    assert_close(prefill(model, ids[:, 10:], cache), without_cache(model, ids)[:, 10:])  # exactly full is fine
    empty = PreallocatedKVCache(4)
    with pytest.raises(CacheFullError, match="holds 0 tokens and has room for 4"):
        prefill(model, ids, empty)
    assert empty.get_seq_length() == 0 and len(empty.layers) == 0


@pytest.mark.parametrize("max_len", [0, -1, 2.5, True, "8", None])
def test_a_length_that_cannot_be_is_refused(max_len):
    with pytest.raises(InvalidInputError, match="at least 1"):
        PreallocatedKVCache(max_len)


def test_other_rows_or_another_model_are_refused_before_anything_changes(new_cache):
    cache = new_cache()
    prefill(tiny_model("llama"), tiny_ids(5, batch_size=2), cache)
    with pytest.raises(InvalidInputError, match=r"\(2, 2, 8, .*\) and this pass brings \(1, 2, 8, "):
        prefill(tiny_model("llama"), tiny_ids(3), cache)
    with pytest.raises(InvalidInputError, match=r"brings \(2, 2, 16, "):
        prefill(tiny_model("qwen3"), tiny_ids(3, batch_size=2), cache)
    assert {layer.length for layer in cache.layers} == {5}


def test_an_interrupted_pass_is_noticed(new_cache):
    model, cache = tiny_model("llama"), new_cache()
    prefill(model, tiny_ids(5), cache)

    def stop(*_):
        raise KeyboardInterrupt

    hook = model.model.layers[2].register_forward_pre_hook(stop)
    with pytest.raises(KeyboardInterrupt):
        decode_step(model, torch.tensor([7]), cache)
    hook.remove()
    with pytest.raises(InvalidInputError, match="between 5 and 6 tokens"):
        decode_step(model, torch.tensor([7]), cache)


def test_wrong_shapes_of_ids_and_masks_are_refused(new_cache):
    model, cache = tiny_model("llama"), new_cache()
    for ids in (tiny_ids(4)[0], torch.zeros(1, 0, dtype=torch.long)):
        with pytest.raises(InvalidInputError, match="expected \\[batch, new\\]"):
            prefill(model, ids, cache)
    prefill(model, tiny_ids(4), cache)
    with pytest.raises(InvalidInputError, match="must cover all 6, padding included"):
        prefill(model, tiny_ids(2), cache, torch.ones(1, 2, dtype=torch.long))


def test_a_model_with_running_states_is_refused(new_cache):
    import transformers

    config = transformers.Lfm2Config(
        vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, layer_types=["conv", "full_attention"], block_multiple_of=8,
    )  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_config(config)
    with pytest.raises(UnsupportedCacheError, match="let the model make its own cache"):
        prefill(model, torch.tensor([[1, 2, 3]]), new_cache())


# ---- what is saved, counted ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen3"])
@pytest.mark.parametrize(("new", "held", "batch_size"), [(7, 0, 1), (1, 12, 1), (5, 12, 3)])
def test_counted_flops_are_those_that_torch_counts(family, new, held, batch_size):
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    model, cache = tiny_model(family), ConcatKVCache()
    if held:
        prefill(model, tiny_ids(held, batch_size), cache)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):  # others hide their FLOPs
        prefill(model, tiny_ids(new, batch_size), cache)
    shape = DecoderShape.from_config(model.config)
    by_hand = pass_flops(shape, new, held, num_logits=new, batch_size=batch_size).total
    angles = shape.head_dim * new  # older versions of transformers compute the RoPE angles as a product of matrices
    assert counter.get_total_flops() - by_hand in (0, angles)


def test_the_shape_counts_the_weights_of_the_real_model(course_model):
    model, _ = course_model
    shape = DecoderShape.from_config(model.config)
    matrices = sum(p.numel() for p in model.parameters() if p.ndim == 2)  # input and output embedding are one tensor
    assert shape.layer_weights + shape.head_weights == matrices


def test_a_generation_is_the_sum_of_its_passes():
    shape = DecoderShape.from_config(tiny_model("llama").config)
    assert generation_flops(shape, 10, 1, cached=True) == generation_flops(shape, 10, 1, cached=False)
    by_hand = pass_flops(shape, 10) + pass_flops(shape, 1, 10) + pass_flops(shape, 1, 11)
    assert generation_flops(shape, 10, 3, cached=True) == by_hand
    by_hand = pass_flops(shape, 10) + pass_flops(shape, 11) + pass_flops(shape, 12)
    assert generation_flops(shape, 10, 3, cached=False) == by_hand


def test_weights_cross_the_ridge_with_the_batch_and_attention_never_does():
    shape = DecoderShape.from_config(tiny_model("llama").config)
    for gpu in GPUS.values():
        at = int(gpu.ridge)  # 16-bit weights: one FLOP per byte and row
        assert decode_parts(shape, 100, at)["linear"].bound(gpu) == "memory-bound"
        assert decode_parts(shape, 100, at + 1)["linear"].bound(gpu) == "compute-bound"
        for rows in (1, at + 1, 100_000):
            attention = decode_parts(shape, 100, rows)["attention"]
            assert attention.intensity == shape.num_heads / shape.num_kv_heads
            assert attention.bound(gpu) == "memory-bound"
    assert {name: round(gpu.ridge) for name, gpu in GPUS.items()} == {"T4": 203, "A100 80GB SXM": 153, "H100 SXM": 295}


@pytest.mark.parametrize("first_pass", [True, False])
def test_after_half_a_pass_the_cache_asks_for_a_reset(first_pass):
    """Ctrl-C or a full memory in the middle of a pass: the later layers have missed tokens that the mask counts."""
    model, ids = tiny_model("llama"), tiny_ids(6)
    for cache in (ConcatKVCache(), PreallocatedKVCache(20)):
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
        assert torch.equal(prefill(model, ids, cache), prefill(model, ids, ConcatKVCache()))


def test_a_cache_does_not_cast_another_models_numbers():
    cache = PreallocatedKVCache(np.int64(20))
    prefill(tiny_model("llama"), tiny_ids(3), cache)
    with pytest.raises(InvalidInputError, match=r"float32\) and this pass brings .*bfloat16"):
        prefill(tiny_model("llama").bfloat16(), tiny_ids(3), cache)
    assert cache.get_seq_length() == 3
