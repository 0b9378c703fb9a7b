"""Attention through block tables equals attention over the same tokens in one piece, in float64, for every option."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from minipaged.attention import attention
from minipaged.errors import InvalidInputError
from minipaged.paged_attention import PagedBatch, paged_attention, pick_backend

LIMIT = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
HEADS = [(12, 12), (32, 8), (28, 4), (9, 3), (8, 1)]
DIMS = [(16, 16), (64, 64), (80, 80), (96, 96), (128, 128), (256, 256), (24, 16), (48, 64)]
BACKENDS = ["reference", "torch"]


class Case:
    """A ragged batch in a pool whose other slots are NaN, and the answer by dense attention in float64."""

    def __init__(self, heads=(9, 3), dims=(16, 16), block_size=16, lens=None, q_lens=None, dtype=torch.float32, seed=0):
        draw = random.Random(f"{heads}{dims}{block_size}{seed}")
        torch.manual_seed(seed)
        (self.num_heads, self.kv_heads), (k_dim, v_dim) = heads, dims
        self.lens = lens or [draw.randint(1, 5 * block_size + 1) for _ in range(draw.randint(1, 7))]
        self.q_lens = q_lens or [draw.choice([1, 1, n, draw.randint(1, n)]) for n in self.lens]
        needed = [-(-n // block_size) for n in self.lens]
        num_blocks = sum(needed) + 3
        order = draw.sample(range(num_blocks), num_blocks)  # the pool's blocks in no order at all
        self.tables = [[order.pop() for _ in range(n)] for n in needed]
        make = lambda *shape: torch.randn(*shape, dtype=torch.float64).to(dtype)
        self.keys = [make(n, self.kv_heads, k_dim) for n in self.lens]
        self.values = [make(n, self.kv_heads, v_dim) for n in self.lens]
        self.queries = [make(n, self.num_heads, k_dim) for n in self.q_lens]
        self.k_cache = torch.full((num_blocks, block_size, self.kv_heads, k_dim), torch.nan, dtype=dtype)
        self.v_cache = torch.full((num_blocks, block_size, self.kv_heads, v_dim), torch.nan, dtype=dtype)
        for table, k, v in zip(self.tables, self.keys, self.values, strict=True):
            for pos in range(len(k)):
                self.k_cache[table[pos // block_size], pos % block_size] = k[pos]
                self.v_cache[table[pos // block_size], pos % block_size] = v[pos]
        self.cu = [0, *itertools.accumulate(self.q_lens)]

    def expected(self, **options):
        options = {k: v.double() if isinstance(v, torch.Tensor) else v for k, v in options.items()}
        rows = [
            attention(*(x.double().transpose(0, 1) for x in (q, k, v)), **options).transpose(0, 1)
            for q, k, v in zip(self.queries, self.keys, self.values, strict=True)
        ]
        return torch.cat(rows)

    def run(self, backend, **options):
        return paged_attention(
            torch.cat(self.queries),
            self.k_cache,
            self.v_cache,
            self.tables,
            self.lens,
            self.cu,
            backend=backend,
            **options,
        )

    def error(self, backend, **options):
        got, want = self.run(backend, **options).double(), self.expected(**options)
        assert got.shape == want.shape and got.isfinite().all(), "poison was read"
        return ((got - want).abs().max() / want.abs().max()).item()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("block_size", [1, 3, 16, 32])
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_every_combination_equals_dense_attention_in_float64(backend, block_size, heads):
    softcaps, with_sinks = [None, 5.0], [False, True]
    for seed, dims in enumerate(DIMS):
        case = Case(heads, dims, block_size, seed=seed)
        middle = sorted(case.lens)[len(case.lens) // 2]
        windows = [None, max(1, middle - 1), middle, 10_000]  # below, at and above a length
        if backend == "reference":
            windows, softcaps = windows[:2], [5.0]
        for window, softcap, sink in itertools.product(windows, softcaps, with_sinks):
            sinks = torch.randn(case.num_heads) if sink else None
            error = case.error(backend, sliding_window=window, logit_softcap=softcap, sinks=sinks)
            assert error < LIMIT[torch.float32], (dims, window, softcap, sink, error)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", list(LIMIT), ids=str)
def test_each_dtype_stays_within_its_rounding(backend, dtype):
    for heads, dims in itertools.product(HEADS, [(64, 64), (24, 16)]):
        case = Case(heads, dims, 16, dtype=dtype, seed=1)
        for options in ({}, {"sliding_window": 7}, {"logit_softcap": 5.0, "sinks": torch.randn(heads[0])}):
            assert case.error(backend, **options) < LIMIT[dtype], (heads, dims, options)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_mixed_batch_of_decodes_chunks_and_whole_prompts(backend):
    case = Case(lens=[33, 5, 1, 64, 17, 40], q_lens=[1, 5, 1, 20, 1, 7])
    assert case.error(backend) < 1e-5
    for alone in range(len(case.lens)):  # the second and later sequences are as right as the first (behaviour 20)
        one = Case(lens=[33, 5, 1, 64, 17, 40], q_lens=[1, 5, 1, 20, 1, 7])
        got = one.run(backend)[one.cu[alone] : one.cu[alone + 1]]
        lone = paged_attention(
            one.queries[alone], one.k_cache, one.v_cache, [one.tables[alone]], [one.lens[alone]],
            [0, one.q_lens[alone]],
            backend=backend,
        )  # fmt: skip
        assert torch.allclose(got, lone, atol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("chunk", [1, 7, 15, 16, 17, 50])
def test_a_prompt_in_chunks_equals_the_whole(backend, chunk):
    """Behaviour 15: a chunk attends to its own end, not to the sequence's; behaviour 22: aligned bottom-right."""
    whole = Case(lens=[50], q_lens=[50])
    want = whole.expected()
    for start in range(0, 50, chunk):
        stop = min(50, start + chunk)
        got = paged_attention(
            whole.queries[0][start:stop], whole.k_cache, whole.v_cache, whole.tables, [stop], [0, stop - start],
            backend=backend,
        )  # fmt: skip
        assert torch.allclose(got.double(), want[start:stop], atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_moving_blocks_and_table_together_changes_nothing_and_the_table_alone_everything(backend):
    case = Case(lens=[40, 70, 20], seed=3)
    before = case.run(backend)
    moved = torch.randperm(case.k_cache.shape[0])  # block i goes to where moved says
    for name in ("k_cache", "v_cache"):
        cache = torch.empty_like(getattr(case, name))
        cache[moved] = getattr(case, name)
        setattr(case, name, cache)
    old_tables, case.tables = case.tables, [[int(moved[b]) for b in table] for table in case.tables]
    assert torch.equal(case.run(backend), before)
    case.tables = [list(reversed(table)) for table in old_tables]
    assert not torch.allclose(case.run(backend).nan_to_num(), before)


@pytest.mark.parametrize("backend", BACKENDS)
def test_block_0_is_a_block_like_any_other(backend):
    """Behaviour 9: tables are padded with -1, so that 0 can be named."""
    case = Case(lens=[20, 3], q_lens=[1, 1], block_size=4, seed=5)
    assert any(0 in table for table in case.tables)
    rows = max(map(len, case.tables))
    padded = torch.tensor([[*t, *[-1] * (rows - len(t))] for t in case.tables], dtype=torch.int32)
    got = paged_attention(torch.cat(case.queries), case.k_cache, case.v_cache, padded, torch.tensor(case.lens),
                          torch.tensor(case.cu), backend=backend)  # fmt: skip
    assert torch.equal(got, case.run(backend))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_sequence_without_rows_this_step_is_skipped(backend):
    case = Case(lens=[20, 8, 5], q_lens=[1, 3, 1])
    got = paged_attention(torch.cat([case.queries[0], case.queries[2]]), case.k_cache, case.v_cache, case.tables,
                          case.lens, [0, 1, 1, 2], backend=backend)  # fmt: skip
    want = case.expected()
    assert torch.allclose(got.double(), torch.cat([want[:1], want[-1:]]), atol=1e-5)


def test_scores_far_below_any_sentinel_are_exact():
    """Behaviour 16: a window hides the second-best key completely, however low the first one scores."""
    k_cache = torch.tensor([[1.0, 0.0]]).reshape(1, 2, 1, 1)
    v_cache = torch.tensor([[1.0, 100.0]]).reshape(1, 2, 1, 1)
    for backend in BACKENDS:
        out = paged_attention(torch.tensor([[[-20000.0]], [[0.0]]]), k_cache, v_cache, [[0]], [2], [0, 2], scale=1.0,
                              backend=backend)  # fmt: skip
        assert out[0].item() == 1.0


def test_what_layers_share_is_worked_out_once():
    case = Case(lens=[20, 8], q_lens=[1, 3])
    batch = PagedBatch(case.tables, case.lens, case.cu, 16, "cpu", case.k_cache.shape[0])
    assert batch.decode_reads(None) is batch.decode_reads(None)
    assert [slots.shape for _, slots, _ in batch.decode_reads(4)] == [(1, 4)]
    assert len(batch.chunk_reads(batch.chunks[0], 4)) == 6  # the first of three queries sees 3 tokens before itself


def test_decoding_sequences_of_very_different_lengths_are_read_in_several_rectangles():
    lens = [400, 20, 390, 25, 18, 22, 100, 30]  # one rectangle would be 8 x 400
    case = Case(lens=lens, q_lens=[1] * len(lens))
    batch = PagedBatch(case.tables, case.lens, case.cu, 16, "cpu", case.k_cache.shape[0])
    rectangles = batch.decode_reads(None)
    assert sorted(torch.cat([rows for rows, _, _ in rectangles]).tolist()) == list(range(len(lens)))
    assert sum(slots.numel() for _, slots, _ in rectangles) < 1.2 * sum(lens)
    assert case.error("torch") < LIMIT[torch.float32]
    assert case.error("torch", sliding_window=50) < LIMIT[torch.float32]


def test_sequences_of_about_the_same_length_stay_in_one_rectangle():
    lens = [100, 104, 97, 110]
    case = Case(lens=lens, q_lens=[1] * 4)
    batch = PagedBatch(case.tables, lens, case.cu, 16, "cpu", case.k_cache.shape[0])
    (rows, slots, valid) = batch.decode_reads(None)[0]
    assert len(batch.decode_reads(None)) == 1 and slots.shape == (4, 110)
    assert rows.tolist() == [0, 1, 2, 3] and valid.sum(1).tolist() == lens  # in order: nothing is moved to and fro
    assert case.error("torch") < LIMIT[torch.float32]


BAD = {
    "a table too short": (
        dict(tables=[[0]], lens=[17], cu=[0, 1]),
        r"sequence 0 has 17 tokens.*need 2 blocks.*names 1",
    ),
    "-1 where a token lies": (dict(tables=[[0], [-1, 1]], lens=[1, 17], cu=[0, 1, 2]), r"sequence 1 .*names 1"),
    "a block outside": (
        dict(tables=[[0], [4]], lens=[1, 1], cu=[0, 1, 2]),
        r"sequence 1's table names block 4.*0 to 3",
    ),
    "a negative block": (dict(tables=[[-2]], lens=[1], cu=[0, 1]), r"names block -2"),
    "more rows than tokens": (dict(tables=[[0]], lens=[2], cu=[0, 3]), r"sequence 0 has 3 query rows and 2 tokens"),
    "falling offsets": (dict(tables=[[0], [1]], lens=[2, 2], cu=[0, 2, 1]), r"sequence 1 has -1 query rows"),
    "offsets from 1": (dict(tables=[[0]], lens=[2], cu=[1, 2]), r"starts at 1"),
    "too few lengths": (dict(tables=[[0], [1]], lens=[2], cu=[0, 1, 2]), r"2 block tables, 1 seq_lens and 3"),
    "rows left over": (dict(tables=[[0]], lens=[2], cu=[0, 1], rows=3), r"ends at 1, and query has 3 rows"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_batch_that_does_not_fit_is_refused_by_name(name):
    """Behaviour 18: a read outside the table or the pool is found on the host, before any kernel."""
    bad, words = BAD[name]
    query = torch.zeros(bad.get("rows", bad["cu"][-1]), 2, 8)
    cache = torch.zeros(4, 16, 1, 8)
    for backend in BACKENDS:
        with pytest.raises(InvalidInputError, match=words):
            paged_attention(query, cache, cache, bad["tables"], bad["lens"], bad["cu"], backend=backend)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (dict(query=torch.zeros(2, 8)), "expected"),
        (dict(query=torch.zeros(1, 2, 4)), "k_dim must be equal"),
        (dict(query=torch.zeros(1, 3, 8), k=torch.zeros(4, 16, 2, 8), v=torch.zeros(4, 16, 2, 8)), "3 query heads"),
        (dict(query=torch.zeros(1, 2, 8).half()), "all three must be equal"),
        (dict(sliding_window=0), "sliding_window is 0"),
        (dict(logit_softcap=0.0), "logit_softcap is 0.0"),
        (dict(sinks=torch.zeros(3)), r"sinks has shape \[3\]"),
        (dict(backend="cuda"), "unknown backend 'cuda'"),
    ],
)
def test_tensors_and_options_that_do_not_fit_are_refused_by_name(change, words):
    change = dict(change)
    query, k = change.pop("query", torch.zeros(1, 2, 8)), change.pop("k", torch.zeros(4, 16, 1, 8))
    with pytest.raises(InvalidInputError, match=words):
        paged_attention(query, k, change.pop("v", k), [[0]], [1], [0, 1], **change)


def test_auto_takes_torch_on_a_cpu():
    assert pick_backend("auto", "cpu") == "torch"
