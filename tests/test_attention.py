"""attention.py is the reference for everything later, so it is compared with things that share no code with it.

They are: a loop over single numbers, torch's scaled_dot_product_attention, transformers' own functions, hand values.
"""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from minipaged.attention import (
    apply_rope,
    attention,
    attention_scores,
    attention_weights,
    causal_mask,
    group_heads,
    masked_softmax,
    rope_cos_sin,
)
from minipaged.errors import InvalidInputError

HEADS = [(12, 12), (32, 8), (28, 4), (9, 3), (8, 1)]
HEAD_DIMS = [16, 64, 80, 96, 128, 256]
B = 16  # block size of the later chapters


def random_qkv(heads=9, kv_heads=3, q_len=7, kv_len=7, k_dim=16, v_dim=None, lead=(), dtype=torch.float64, seed=0):
    g = torch.Generator().manual_seed(seed)
    shapes = (heads, q_len, k_dim), (kv_heads, kv_len, k_dim), (kv_heads, kv_len, v_dim or k_dim)
    return [torch.randn(*lead, *shape, generator=g, dtype=torch.float64).to(dtype) for shape in shapes]


def by_loops(q, k, v, causal=True, scale=None, window=None, softcap=None, sinks=None):
    """One number at a time, in Python floats, for [heads, length, dim]: slow, with no broadcasting to get wrong."""
    heads, q_len, dim = q.shape
    kv_heads, kv_len, _ = k.shape
    q, k, v_rows = q.tolist(), k.tolist(), v.tolist()
    out = torch.zeros(heads, q_len, v.shape[-1], dtype=torch.float64)
    for h in range(heads):
        kv = h // (heads // kv_heads)
        for i in range(q_len):
            here = kv_len - q_len + i
            seen = [j for j in range(kv_len) if not causal or (j <= here and (window is None or here - j < window))]
            scores = [sum(a * b for a, b in zip(q[h][i], k[kv][j], strict=True)) for j in seen]
            scores = [s * (dim**-0.5 if scale is None else scale) for s in scores]
            if softcap is not None:
                scores = [softcap * math.tanh(s / softcap) for s in scores]
            extra = [] if sinks is None else [float(sinks[h])]
            if not seen:
                continue
            top = max(scores + extra)
            parts = [math.exp(s - top) for s in scores]
            total = sum(parts) + sum(math.exp(s - top) for s in extra)
            for part, j in zip(parts, seen, strict=True):
                for d in range(v.shape[-1]):
                    out[h, i, d] += part / total * v_rows[kv][j][d]
    return out


def assert_equal(got, want, within=1e-12):
    assert got.shape == want.shape
    assert torch.isfinite(got).all()
    difference = (got.double() - want.double()).abs().max().item() if got.numel() else 0.0
    assert difference <= within * max(1.0, want.abs().max().item() if want.numel() else 0.0)


# --- Against the loop ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("heads", "kv_heads"), HEADS)
def test_every_query_head_reads_the_kv_head_of_its_group(heads, kv_heads):
    q, k, v = random_qkv(heads, kv_heads, q_len=4, kv_len=6)
    assert_equal(attention(q, k, v), by_loops(q, k, v))


@pytest.mark.parametrize("q_len", [1, 2, 5, 6])
@pytest.mark.parametrize("causal", [True, False])
def test_any_number_of_queries_up_to_all(q_len, causal):
    q, k, v = random_qkv(q_len=q_len, kv_len=6, v_dim=5)
    assert_equal(attention(q, k, v, causal=causal), by_loops(q, k, v, causal))


@pytest.mark.parametrize("window", [1, 2, 6, 7, 8, 100])
@pytest.mark.parametrize("q_len", [1, 3, 7])
def test_a_window_below_at_and_above_the_length(window, q_len):
    q, k, v = random_qkv(q_len=q_len)
    got = attention(q, k, v, sliding_window=window)
    assert_equal(got, by_loops(q, k, v, window=window))
    if window >= 7:
        assert torch.equal(got, attention(q, k, v))


@pytest.mark.parametrize("extra", [{"scale": 0.3}, {"scale": 0.0}, {"softcap": 2.0}, {"scale": 2.0, "softcap": 5.0}])
def test_scale_and_softcap(extra):
    q, k, v = random_qkv()
    named = {"logit_softcap" if name == "softcap" else name: value for name, value in extra.items()}
    assert_equal(attention(q, k, v, **named), by_loops(q, k, v, **extra))


def test_everything_at_once():
    q, k, v = random_qkv(8, 2, q_len=5, kv_len=11, v_dim=3)
    sinks = torch.linspace(-3, 3, 8, dtype=torch.float64)
    got = attention(q, k, v, scale=0.7, sliding_window=4, logit_softcap=1.5, sinks=sinks)
    assert_equal(got, by_loops(q, k, v, scale=0.7, window=4, softcap=1.5, sinks=sinks))


def test_keys_beyond_the_last_query_when_not_causal():
    q, k, v = random_qkv(q_len=9, kv_len=4)
    assert_equal(attention(q, k, v, causal=False), by_loops(q, k, v, causal=False))


def test_leading_axes_are_independent_rows():
    q, k, v = random_qkv(lead=(2, 3), q_len=3, kv_len=5)
    whole = attention(q, k, v)
    for i in range(2):
        for j in range(3):
            assert_equal(whole[i, j], by_loops(q[i, j], k[i, j], v[i, j]))


def test_ragged_requests_one_by_one():
    """Different lengths, computed one after another, are what the packed engines will be compared with."""
    for seed, (q_len, kv_len) in enumerate([(1, 1), (1, 33), (16, 16), (5, 21), (3, 17)]):
        q, k, v = random_qkv(q_len=q_len, kv_len=kv_len, seed=seed, k_dim=4)
        assert_equal(attention(q, k, v), by_loops(q, k, v))


def test_strided_inputs_give_what_contiguous_ones_give():
    q, k, v = (x.transpose(-3, -2).contiguous().transpose(-3, -2) for x in random_qkv())
    assert not q.is_contiguous()
    assert torch.equal(attention(q, k, v), attention(q.contiguous(), k.contiguous(), v.contiguous()))


# --- Against torch ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize(("heads", "kv_heads"), HEADS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_square_equals_torch(heads, kv_heads, head_dim, dtype):
    q, k, v = random_qkv(heads, kv_heads, 9, 9, head_dim, lead=(2,), dtype=dtype)
    want = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    assert_equal(attention(q, k, v), want, 1e-12 if dtype == torch.float64 else 1e-6)


@pytest.mark.parametrize(("q_len", "kv_len"), [(1, 1), (1, 40), (7, 40), (39, 40), (40, 40)])
@pytest.mark.parametrize("window", [None, 1, 5, 40])
def test_a_chunk_equals_torch_with_an_explicit_mask(q_len, kv_len, window):
    q, k, v = random_qkv(q_len=q_len, kv_len=kv_len, k_dim=24, v_dim=8, lead=(1,))
    rows = torch.arange(q_len)[:, None] + (kv_len - q_len)
    mask = (torch.arange(kv_len) <= rows) & (torch.arange(kv_len) > rows - (window or kv_len))
    want = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True, scale=0.2)
    assert_equal(attention(q, k, v, sliding_window=window, scale=0.2), want)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32_and_rounded_once(dtype):
    q, k, v = random_qkv(dtype=dtype, k_dim=64, kv_len=300, q_len=2)
    got = attention(q, k, v)
    assert got.dtype == dtype
    assert torch.equal(got, attention(q.float(), k.float(), v.float()).to(dtype))


def test_float64_stays_float64_to_the_end():
    q, k, v = random_qkv()
    tiny = 1e-12  # lost if anything on the way is float32
    moved = attention(q, k, v + tiny) - attention(q, k, v)
    assert moved.dtype == torch.float64
    assert torch.allclose(moved, torch.full_like(moved, tiny), rtol=1e-2)


def test_gradients_equal_those_of_torch():
    q, k, v = (x.requires_grad_() for x in random_qkv(lead=(1,)))
    want = torch.autograd.grad(F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).sum(), (q, k))
    for ours, theirs in zip(torch.autograd.grad(attention(q, k, v).sum(), (q, k)), want, strict=True):
        assert_equal(ours, theirs)


# --- Against transformers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [1, 2, 5, 12, 13])
def test_the_window_means_what_it_means_in_transformers(window):
    from transformers.masking_utils import sliding_window_causal_mask_function

    theirs = sliding_window_causal_mask_function(window)
    for q_len, kv_len in [(12, 12), (5, 12), (1, 12)]:
        rows, columns = torch.arange(kv_len - q_len, kv_len).tolist(), range(kv_len)
        want = [[bool(theirs(0, 0, torch.tensor(i), torch.tensor(j))) for j in columns] for i in rows]
        assert causal_mask(q_len, kv_len, window).tolist() == want
        assert causal_mask(q_len, kv_len, window).sum(-1).max() == min(window, kv_len)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.int64])
def test_sinks_are_scores_and_no_other_kind_of_number(dtype):
    """A complex sink would lose its second half without a word."""
    with pytest.raises(InvalidInputError, match=f"sinks is {dtype}"):
        masked_softmax(torch.zeros(4, 2, 3), sinks=torch.zeros(4, dtype=dtype))


@pytest.mark.parametrize("window", [None, 4])
def test_sinks_equal_gpt_oss(window):
    from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward

    q, k, v = random_qkv(8, 2, q_len=3, kv_len=9, lead=(2,))
    sinks = torch.linspace(-4, 4, 8, dtype=torch.float64)
    module = SimpleNamespace(num_key_value_groups=4, sinks=sinks, training=False)
    hidden = torch.zeros(3, 9, dtype=torch.float64).masked_fill(~causal_mask(3, 9, window), -torch.inf)
    want, weights = eager_attention_forward(module, q, k, v, hidden, scaling=0.25)
    assert_equal(attention(q, k, v, scale=0.25, sinks=sinks, sliding_window=window), want.transpose(1, 2))
    assert_equal(attention_weights(q, k, scale=0.25, sinks=sinks, sliding_window=window), weights)


def test_softcap_equals_gemma2():
    from transformers.models.gemma2.modeling_gemma2 import eager_attention_forward

    q, k, v = random_qkv(8, 4, q_len=3, kv_len=9, lead=(2,), dtype=torch.float32)
    q = q * 20  # large scores, where the cap bends
    module = SimpleNamespace(num_key_value_groups=2, training=False, head_dim=16)
    hidden = torch.zeros(3, 9).masked_fill(~causal_mask(3, 9), -torch.inf)
    want, _ = eager_attention_forward(module, q, k, v, hidden, scaling=0.25, softcap=5.0)
    assert_equal(attention(q, k, v, scale=0.25, logit_softcap=5.0), want.transpose(1, 2), 1e-6)


@pytest.mark.parametrize(("head_dim", "theta"), [(64, 10_000.0), (64, 100_000.0), (128, 500_000.0), (80, 10_000.0)])
def test_rope_equals_llama(head_dim, theta):
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    config = LlamaConfig(head_dim=head_dim, rope_parameters={"rope_type": "default", "rope_theta": theta})
    q, k, _ = random_qkv(q_len=6, kv_len=6, k_dim=head_dim, dtype=torch.float32, lead=(1,))
    positions = torch.tensor([0, 1, 7, 100, 2047, 8191])
    want_cos, want_sin = LlamaRotaryEmbedding(config)(q, positions[None])
    cos, sin = rope_cos_sin(positions, head_dim, theta)
    assert torch.equal(cos, want_cos[0]) and torch.equal(sin, want_sin[0])
    want_q, want_k = apply_rotary_pos_emb(q, k, want_cos, want_sin)
    assert torch.equal(apply_rope(q, cos, sin), want_q) and torch.equal(apply_rope(k, cos, sin), want_k)


@pytest.mark.model
def test_a_real_layer_with_our_attention_is_the_models_layer(course_model):
    """Queries and keys of a trained layer, rotated, grouped, projected: the whole of its attention."""
    model, tokenizer = course_model
    ids = tokenizer("The capital of France is Paris, and the capital of Italy is", return_tensors="pt").input_ids
    layer, config = model.model.layers[3], model.config
    seen = {}
    hook = layer.self_attn.register_forward_hook(
        lambda m, args, kwargs, out: seen.update(kwargs, out=out[0]), with_kwargs=True
    )
    try:
        with torch.no_grad():
            model(ids, use_cache=False)
    finally:
        hook.remove()
    with torch.no_grad():
        x, part = seen["hidden_states"], layer.self_attn
        q, k, v = (p(x).unflatten(-1, (-1, 64)).transpose(1, 2) for p in (part.q_proj, part.k_proj, part.v_proj))
        cos, sin = rope_cos_sin(torch.arange(ids.shape[1]), 64, config.rope_parameters["rope_theta"])
        out = attention(apply_rope(q, cos, sin), apply_rope(k, cos, sin), v)  # [1, 9, length, 64]
        got = part.o_proj(out.transpose(1, 2).flatten(2))
    assert_equal(got, seen["out"], 1e-5)


# --- What real systems got wrong -------------------------------------------------------------------------------------


def test_a_score_far_below_any_stand_in_for_minus_infinity_still_wins():
    """Behaviour 16: with -10000 in place of -inf, the masked second key would take the whole row."""
    q, k, v = (torch.tensor(x)[None, :, None] for x in ([-20000.0, 0.0], [1.0, 0.0], [1.0, 100.0]))
    for dtype in (torch.float64, torch.float32):
        out = attention(q.to(dtype), k.to(dtype), v.to(dtype), scale=1.0)
        assert out[0, 0, 0].item() == 1.0
    scores = torch.full((1, 2, 3), -3e38)  # nearly the most negative float32
    assert masked_softmax(scores, torch.tensor([True, False, False])).tolist() == [[[1.0, 0.0, 0.0]] * 2]


def test_a_row_that_sees_nothing_is_zero_and_its_neighbours_are_right():
    """Behaviour 16: neither NaN nor uniform."""
    scores = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[1, 1, 0, 1], [0, 0, 0, 0], [1, 0, 0, 0]], dtype=torch.bool)
    shares = masked_softmax(scores, mask)
    assert shares[:, 1].eq(0).all()
    assert torch.equal(shares[:, 2], torch.tensor([[1.0, 0, 0, 0]] * 2))
    assert torch.allclose(shares[:, 0, [0, 1, 3]], scores[:, 0, [0, 1, 3]].softmax(-1))
    assert masked_softmax(torch.full((1, 1, 3), -torch.inf)).tolist() == [[[0.0, 0.0, 0.0]]]
    assert masked_softmax(scores, mask, sinks=torch.zeros(2))[:, 1].eq(0).all()


def test_no_keys_at_all_give_zeros():
    q, k, v = random_qkv(q_len=2, kv_len=0, v_dim=5)
    assert attention(q, k, v, causal=False).tolist() == torch.zeros(9, 2, 5).tolist()
    assert attention(q, k, v, causal=False, sinks=torch.zeros(9)).eq(0).all()
    assert attention(q[:, :0], k, v).shape == (9, 0, 5)


def test_large_scores_neither_overflow_nor_vanish():
    q, k, v = random_qkv(dtype=torch.float32)
    assert_equal(attention(q * 1e4, k * 1e4, v), by_loops(q.double() * 1e4, k.double() * 1e4, v), 1e-5)
    shifted = masked_softmax(torch.tensor([[1000.0, 1001.0]]))
    assert torch.allclose(shifted, masked_softmax(torch.tensor([[0.0, 1.0]])))


def test_half_precision_scores_beyond_its_range_are_fine():
    q, k, v = (
        torch.tensor(x, dtype=torch.float16)[None, :, None] for x in ([300.0, 300.0], [300.0, 299.0], [1.0, 9.0])
    )
    out = attention(q, k, v, scale=1.0)  # scores of 90000, where float16 ends at 65504
    assert out.flatten().tolist() == [1.0, 1.0]


@pytest.mark.parametrize(("heads", "kv_heads"), HEADS)
def test_grouping_is_not_tiling(heads, kv_heads):
    """Behaviour 19: the KV heads repeated as 0 0 0 1 1 1, not 0 1 0 1; equal only when there is nothing to share."""
    q, k, v = random_qkv(heads, kv_heads, lead=(2,))
    group = heads // kv_heads
    want = attention(q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1))
    tiled = attention(q, k.repeat(1, group, 1, 1), v.repeat(1, group, 1, 1))
    assert_equal(attention(q, k, v), want)
    assert torch.allclose(tiled, want) == (kv_heads in (1, heads))
    ids = torch.arange(heads).reshape(heads, 1, 1)
    assert [row.flatten().tolist() for row in group_heads(ids, kv_heads)] == [
        [h for h in range(heads) if h // group == kv] for kv in range(kv_heads)
    ]


@pytest.mark.parametrize("chunk", [1, 7, B - 1, B, B + 1])
@pytest.mark.parametrize("options", [{}, {"sliding_window": 5}, {"sliding_window": B}])
def test_chunks_against_what_came_before_equal_the_whole(chunk, options):
    """Behaviour 22: a chunk's mask is aligned with the end of the keys, so feeding in pieces changes nothing."""
    q, k, v = random_qkv(q_len=40, kv_len=40)
    whole = attention(q, k, v, **options)
    for start in range(0, 40, chunk):
        end = min(start + chunk, 40)
        part = attention(q[:, start:end], k[:, :end], v[:, :end], **options)
        assert_equal(part, whole[:, start:end])


def test_a_chunk_is_aligned_bottom_right():
    assert causal_mask(2, 5).int().tolist() == [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]
    assert causal_mask(2, 5, 2).int().tolist() == [[0, 0, 1, 1, 0], [0, 0, 0, 1, 1]]
    assert causal_mask(0, 3).shape == (0, 3)


def test_a_later_token_changes_no_earlier_row():
    q, k, v = random_qkv()
    before = attention(q, k, v)
    k[:, -1], v[:, -1] = 50.0, -50.0
    after = attention(q, k, v)
    assert torch.equal(before[:, :-1], after[:, :-1]) and not torch.equal(before[:, -1], after[:, -1])


# --- The pieces ------------------------------------------------------------------------------------------------------


def test_a_share_row_sums_to_one_or_to_less_with_a_sink():
    q, k, _ = random_qkv()
    assert_equal(attention_weights(q, k).sum(-1), torch.ones(9, 7, dtype=torch.float64))
    sunk = attention_weights(q, k, sinks=torch.full((9,), 1.0, dtype=torch.float64))
    assert (sunk.sum(-1) < 1).all()
    assert torch.equal(attention_weights(q, k, sinks=torch.full((9,), -torch.inf)), attention_weights(q, k))
    assert attention_weights(q, k, sinks=torch.full((9,), 1e4)).sum(-1).max() < 1e-6


def test_a_huge_sink_leaves_no_nan():
    q, k, v = random_qkv()
    assert attention(q, k, v, sinks=torch.full((9,), 1e6)).abs().max() == 0.0


def test_scores_are_dot_products_over_the_square_root_of_the_head_size():
    q, k, _ = random_qkv(heads=2, kv_heads=1, k_dim=16)
    assert_equal(attention_scores(q, k)[1, 2, 3], (q[1, 2] * k[0, 3]).sum() / 4)


def test_rope_scores_depend_on_the_distance_only():
    q, k, _ = random_qkv(1, 1, 1, 1, 64)

    def at(position):
        return rope_cos_sin(torch.tensor([position]), 64, dtype=torch.float64)

    def score(m, n):
        return (apply_rope(q, *at(m)) * apply_rope(k, *at(n))).sum().item()

    for shift in (1, 10, 1000, 100_000):
        assert abs(score(7 + shift, 3 + shift) - score(7, 3)) < 1e-9
    assert abs(score(7, 3) - score(7, 4)) > 1e-3
    assert apply_rope(q, *at(0)).equal(q)
    assert abs(apply_rope(q, *at(123)).norm() - q.norm()) < 1e-12


# --- What is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        (((9, 4, 16), (3, 4, 8), (3, 4, 16)), "q has head_dim 16 and k has 8"),
        (((9, 4, 16), (3, 4, 16), (3, 5, 16)), r"k has shape \[3, 4, 16\] and v \[3, 5, 16\]"),
        (((9, 4, 16), (3, 4, 16), (9, 4, 16)), r"same num_kv_heads"),
        (((9, 4, 16), (2, 4, 16), (2, 4, 16)), "9 query heads cannot share 2 KV heads"),
        (((3, 4, 16), (9, 4, 16), (9, 4, 16)), "3 query heads cannot share 9 KV heads"),
        (((3, 4, 16), (0, 4, 16), (0, 4, 16)), "3 query heads cannot share 0 KV heads"),
        (((9, 5, 16), (3, 4, 16), (3, 4, 16)), "5 queries and only 4 keys.*causal=False"),
        (((2, 9, 4, 16), (3, 4, 16), (3, 4, 16)), r"q has leading axes \[2\] and k \[\]"),
        (((9, 4, 16), (3, 4, 16), (2, 3, 4, 16)), r"k has leading axes \[\] and v \[2\]"),
        (((4, 16), (4, 16), (4, 16)), r"shape \[4, 16\]"),
        (((9, 4, 0), (3, 4, 0), (3, 4, 4)), "at least 1"),
    ],
)
def test_shapes_that_do_not_fit_are_named(shapes, words):
    with pytest.raises(InvalidInputError, match=words):
        attention(*(torch.zeros(shape) for shape in shapes))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sliding_window": 0}, "sliding_window is 0"),
        ({"sliding_window": -3}, "sliding_window is -3"),
        ({"sliding_window": 2.5}, "sliding_window is 2.5"),
        ({"sliding_window": 4, "causal": False}, "causal=True"),
        ({"logit_softcap": 0.0}, "logit_softcap is 0.0"),
        ({"sinks": torch.zeros(3)}, r"sinks has shape \[3\].*\[9\]"),
    ],
)
def test_options_that_mean_nothing_are_named(options, words):
    with pytest.raises(InvalidInputError, match=words):
        attention(*random_qkv(), **options)


def test_dtypes_that_do_not_fit_are_named():
    q, k, v = random_qkv()
    with pytest.raises(InvalidInputError, match=r"q is torch\.float32 and k is torch.float64"):
        attention(q.float(), k, v)
    with pytest.raises(InvalidInputError, match=r"k is torch\.float64 and v is torch.float16"):
        attention(q, k, v.half())
    with pytest.raises(InvalidInputError, match="int64"):
        attention(q.long(), k.long(), v.long())
    with pytest.raises(InvalidInputError, match="head_dim is 15"):
        rope_cos_sin(torch.arange(3), 15)
    with pytest.raises(InvalidInputError, match="head_dim 16 and the table 32"):
        apply_rope(q, *rope_cos_sin(torch.arange(7), 32))


def test_an_infinite_softcap_is_refused():
    x = torch.ones(1, 2, 4)
    with pytest.raises(InvalidInputError, match="logit_softcap is inf"):
        attention(x, x, x, logit_softcap=float("inf"))
