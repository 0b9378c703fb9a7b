"""Softmax over keys that come in parts is softmax over all of them: any parts, any order, any scale."""

from __future__ import annotations

import itertools
import random
from functools import reduce

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minipaged.attention import attention, masked_softmax
from minipaged.errors import InvalidInputError
from minipaged.paged_attention import Partial, finish, merge, online_softmax, partial_softmax, walk_table

INF = float("inf")
scores_of_any_scale = st.lists(
    st.one_of(st.floats(-50, 50), st.floats(-30_000, 30_000), st.just(-INF)), min_size=0, max_size=24
)


def dense(scores, values):
    """All scores at once, in float64: [v_dim]."""
    return masked_softmax(scores.double()) @ values.double()


def drawn_values(n, seed=0):
    return torch.randn(n, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def cut(n, seed):
    """Bounds that cut n keys into parts, empty ones among them."""
    draw = random.Random(seed)
    return sorted([0, n, *(draw.randint(0, n) for _ in range(draw.randint(0, 5)))])


@settings(max_examples=300, deadline=None)
@given(scores_of_any_scale, st.integers(0, 10**6))
def test_any_parts_merged_in_any_order_and_grouping_equal_all_scores_at_once(scores, seed):
    scores = torch.tensor(scores, dtype=torch.float64)
    values = drawn_values(len(scores))
    bounds = cut(len(scores), seed)
    parts = [partial_softmax(scores[a:b], values[a:b]) for a, b in itertools.pairwise(bounds)]
    draw = random.Random(seed)
    while len(parts) > 1:  # a random tree, not only left to right
        a, b = (parts.pop(draw.randrange(len(parts))) for _ in range(2))
        parts.append(merge(a, b))
    assert torch.allclose(finish(parts[0]), dense(scores, values), rtol=0, atol=1e-12)


@settings(max_examples=100, deadline=None)
@given(scores_of_any_scale.filter(len), st.integers(0, 10**6))
def test_float32_is_within_its_own_rounding(scores, seed):
    exact = torch.tensor(scores, dtype=torch.float32)
    values = drawn_values(len(scores)).float()
    bounds = cut(len(scores), seed)
    pairs = itertools.pairwise(bounds)
    got = online_softmax((exact[a:b], values[a:b]) for a, b in pairs)
    assert got.dtype == torch.float32
    assert torch.allclose(got.double(), dense(exact, values), rtol=0, atol=1e-5)


def test_a_fully_hidden_part_changes_nothing_and_only_hidden_parts_give_zeros():
    values = drawn_values(4)
    seen = partial_softmax(torch.tensor([1.0, 2.0, -INF, 0.5]).double(), values)
    hidden = partial_softmax(torch.full((4,), -INF, dtype=torch.float64), values)
    for merged in (merge(seen, hidden), merge(hidden, seen)):
        assert all(torch.equal(a, b) for a, b in zip(merged, seen, strict=True))
    assert torch.equal(finish(merge(hidden, hidden)), torch.zeros(3, dtype=torch.float64))


def test_a_part_of_no_keys_is_like_a_hidden_one():
    empty = partial_softmax(torch.empty(0).double(), torch.empty(0, 3).double())
    assert empty.top == -INF and empty.total == 0 and not empty.acc.any()
    assert torch.equal(finish(empty), torch.zeros(3, dtype=torch.float64))


def test_valid_scores_far_below_any_stand_in_still_get_the_whole_share():
    """Behaviour 16: q = [-20000, 0], k = [1, 0], v = [1, 100], the second key hidden: v[0] exactly."""
    parts = [(torch.tensor([-20000.0]), torch.tensor([[1.0]])), (torch.tensor([-INF]), torch.tensor([[100.0]]))]
    for order in (parts, parts[::-1]):
        assert online_softmax(order).tolist() == [1.0]


def test_far_apart_scales_neither_overflow_nor_vanish():
    low, high = (torch.tensor([-5000.0, -5001.0]), drawn_values(2).float()), (torch.tensor([5000.0]), torch.ones(1, 3))
    assert online_softmax([low, high]).tolist() == online_softmax([high, low]).tolist() == [1.0, 1.0, 1.0]
    alone = online_softmax([(low[0][:1], low[1][:1]), (low[0][1:], low[1][1:])])
    assert torch.allclose(alone.double(), dense(*low), atol=1e-6)


def test_leading_axes_are_separate_rows_one_of_them_hidden():
    scores = torch.randn(2, 5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    scores[1, 2] = -INF
    values = drawn_values(2 * 7).view(2, 1, 7, 3)
    got = online_softmax((scores[..., a:b], values[..., a:b, :]) for a, b in ((0, 3), (3, 4), (4, 7)))
    want = (masked_softmax(scores)[..., None, :] @ values).squeeze(-2)
    assert torch.allclose(got, want, rtol=0, atol=1e-14) and not got[1, 2].any()


def test_what_is_kept_does_not_grow_with_the_keys():
    sizes = [sum(t.numel() for t in partial_softmax(torch.zeros(n), torch.zeros(n, 3))) for n in (1, 10, 1000)]
    assert sizes == [5, 5, 5]  # a maximum, a sum, v_dim numbers
    assert Partial._fields == ("top", "total", "acc")


@pytest.mark.parametrize("block_size", [1, 3, 16])
@pytest.mark.parametrize("heads", [(9, 3), (8, 1), (4, 4)], ids=str)
@pytest.mark.parametrize("dims", [(16, 16), (24, 10)], ids=str)
def test_walking_the_table_equals_dense_attention_and_reads_no_poison(block_size, heads, dims):
    (num_heads, kv_heads), (k_dim, v_dim) = heads, dims
    generator = torch.Generator().manual_seed(block_size)
    for length in (1, block_size, 2 * block_size + 1, 5 * block_size):
        make = lambda *shape: torch.randn(*shape, dtype=torch.float64, generator=generator)
        q, k, v = make(num_heads, k_dim), make(length, kv_heads, k_dim), make(length, kv_heads, v_dim)
        needed = -(-length // block_size)
        table = random.Random(length).sample(range(needed + 4), needed)
        k_cache = torch.full((needed + 4, block_size, kv_heads, k_dim), torch.nan, dtype=torch.float64)
        v_cache = torch.full((needed + 4, block_size, kv_heads, v_dim), torch.nan, dtype=torch.float64)
        for pos in range(length):
            block, offset = table[pos // block_size], pos % block_size
            k_cache[block, offset], v_cache[block, offset] = k[pos], v[pos]
        want = attention(q[:, None], k.transpose(0, 1), v.transpose(0, 1))[:, 0]
        got = walk_table(q, k_cache, v_cache, table, length)
        assert torch.allclose(got, want, rtol=0, atol=1e-13)
        assert torch.allclose(walk_table(q.float(), k_cache.float(), v_cache.float(), table, length), want.float(),
                              rtol=0, atol=1e-5)  # fmt: skip


def test_merging_is_what_a_reduction_over_splits_does():
    """Chapter 9 splits a long sequence over programs and merges their parts at the end."""
    scores, values = torch.linspace(-3, 9, 100).double(), drawn_values(100)
    splits = [partial_softmax(scores[i : i + 25], values[i : i + 25]) for i in range(0, 100, 25)]
    assert torch.allclose(finish(reduce(merge, splits)), dense(scores, values), rtol=0, atol=1e-14)


def test_a_table_that_is_too_short_or_padded_is_refused():
    """It would leave tokens out in silence, or read the last block of the pool."""
    query, cache = torch.ones(2, 4), torch.ones(3, 2, 1, 4)
    for table in ([1], [1, -1], [1, 3]):
        with pytest.raises(InvalidInputError, match="sequence 0"):
            walk_table(query, cache, cache, table, 3)
