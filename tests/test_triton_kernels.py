"""The Triton kernels, interpreted on the CPU, equal dense attention in float64 and touch nothing but their tensors."""

from __future__ import annotations

import itertools
import random
from functools import cache

import pytest
import torch

pytest.importorskip("minipaged.triton_kernels", reason="Triton has wheels for Linux only", exc_type=ImportError)

from minipaged.errors import InvalidInputError
from minipaged.paged_attention import PagedBatch, paged_attention
from minipaged.puzzles import watching
from minipaged.triton_kernels import paged_attention as launch
from minipaged.triton_kernels import store
from tests.test_paged_attention import BAD, DIMS, HEADS, LIMIT, Case

CPU = torch.device("cpu")
KERNELS = {"decode": {"mixed": False, "num_splits": 1}, "split": {"mixed": False, "num_splits": 3},
           "mixed": {"mixed": True}}  # fmt: skip
SEED = 6  # drawn until forty rows covered everything
FACTORS = {
    "heads": HEADS,
    "dims": DIMS,
    "block_size": [1, 3, 16, 32],
    "window": [None, "below", "at", "above"],
    "softcap": [None, 5.0],
    "sinks": [False, True],
    "dtype": [torch.float32, torch.float16, torch.bfloat16],
    "use_dot": [True, False],
}


class Launched(Case):
    """A case that is run by one of the kernels, with every access watched."""

    def __init__(self, *args, kernel="decode", lens, q_lens=None, **kwargs):
        super().__init__(*args, lens=lens, q_lens=q_lens if kernel == "mixed" else [1] * len(lens), **kwargs)
        self.kernel = kernel

    def run(self, backend="triton", **options):
        batch = PagedBatch(self.tables, self.lens, self.cu, self.k_cache.shape[1], CPU, len(self.k_cache))
        with watching() as self.watch:
            got = launch(torch.cat(self.queries), self.k_cache, self.v_cache, batch, **KERNELS[self.kernel], **options)
        self.watch.raise_if_outside()
        return got

    def error(self, backend="triton", **options):
        want = self.expected(**{k: v for k, v in options.items() if k != "use_dot"})
        got = self.run(**options).double()
        assert got.shape == want.shape and got.isfinite().all(), "poison was read"
        return ((got - want).abs().max() / want.abs().max()).item()


def pairs(row):
    return {frozenset([(a, str(row[a])), (b, str(row[b]))]) for a, b in itertools.combinations(row, 2)}


@cache
def rows_that_cover_all_pairs():
    """Forty rows: every (heads, dims) once, and the other options drawn so that every pair of options occurs."""
    draw, names = random.Random(SEED), list(FACTORS)[2:]
    covered, rows = set(), []
    for heads, dims in itertools.product(HEADS, DIMS):
        tries = [{"heads": heads, "dims": dims, **{n: draw.choice(FACTORS[n]) for n in names}} for _ in range(100)]
        rows.append(max(tries, key=lambda row: len(pairs(row) - covered)))
        covered |= pairs(rows[-1])
    return rows


def test_forty_launches_a_kernel_cover_every_pair_of_options():
    wanted = set()
    for a, b in itertools.combinations(FACTORS, 2):
        wanted |= {frozenset([(a, str(x)), (b, str(y))]) for x in FACTORS[a] for y in FACTORS[b]}
    rows = rows_that_cover_all_pairs()
    assert set().union(*map(pairs, rows)) == wanted and len(rows) == 40


def lengths(block_size, seed):
    """One to seven lengths from 1 to five blocks and 1 token; fewer where blocks are large, to be quick."""
    draw = random.Random(seed)
    longest = 5 * block_size + 1
    some = [draw.choice([1, block_size, longest, draw.randint(1, longest)]) for _ in range(1 + seed % 7)]
    return some if block_size < 16 else some[:3]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("number", range(40))
def test_every_pair_of_options_equals_dense_attention_in_float64(kernel, number):
    row = rows_that_cover_all_pairs()[number]
    lens = lengths(row["block_size"], number)
    few = 90 if row["use_dot"] else 6  # without tl.dot the mixed kernel takes 4 rows at a time: slow to interpret
    q_lens = [min(n, few) if i % 2 else 1 for i, n in enumerate(lens, number)] if kernel == "mixed" else None
    case = Launched(row["heads"], row["dims"], row["block_size"], kernel=kernel, lens=lens, q_lens=q_lens,
                    dtype=row["dtype"], seed=number)  # fmt: skip
    middle = sorted(lens)[len(lens) // 2]
    window = {None: None, "below": max(1, middle - 1), "at": middle, "above": 10_000}[row["window"]]
    sinks = torch.randn(case.num_heads) if row["sinks"] else None
    options = {"sliding_window": window, "logit_softcap": row["softcap"], "sinks": sinks, "use_dot": row["use_dot"]}
    assert case.error(**options) < LIMIT[row["dtype"]]


ODD = {"lens": [33, 5, 1, 64, 17, 40], "q_lens": [1, 5, 1, 20, 1, 7]}


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_second_and_later_sequences_are_as_right_as_the_first(kernel):
    """Behaviour 20."""
    case = Launched(**ODD, kernel=kernel)
    together = case.run()
    for i, query in enumerate(case.queries):
        lone = PagedBatch([case.tables[i]], [case.lens[i]], [0, len(query)], 16, CPU, len(case.k_cache))
        alone = launch(query, case.k_cache, case.v_cache, lone, **KERNELS[kernel])
        assert torch.allclose(together[case.cu[i] : case.cu[i + 1]], alone, atol=1e-6), i


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_program_reads_the_keys_of_its_own_sequence_and_head_only(kernel):
    """Behaviour 19, by what is read: nothing of another KV head, of another sequence, or behind the length."""
    case = Launched(heads=(8, 2), lens=[20, 3, 37], kernel=kernel, q_lens=[4, 3, 1])
    case.run()
    for program, read in case.watch.loads["k_cache"].items():
        kv_head = program[1]
        seq = [0, 1, 2][program[0]] if kernel != "mixed" else {0: 2, 1: 0, 2: 1}[program[0]]  # decodes come first
        slots = {case.tables[seq][pos // 16] * 16 + pos % 16 for pos in range(case.lens[seq])}
        assert {place // (2 * 16) for place in read} <= slots
        assert {place // 16 % 2 for place in read} == {kv_head}


@pytest.mark.parametrize("kernel", KERNELS)
def test_no_key_is_read_twice_for_the_heads_of_a_group(kernel):
    """The group's query heads are rows of one tile: each key is loaded by one program of the grid."""
    case = Launched(heads=(28, 4), lens=[70, 40], kernel=kernel, q_lens=[1, 1])
    case.run()
    reads = [place for read in case.watch.loads["k_cache"].values() for place in read]
    assert len(reads) == len(set(reads)) == case.watch.loaded["k_cache"] == (70 + 40) * 4 * 16


@pytest.mark.parametrize("kernel", KERNELS)
def test_moving_blocks_and_table_together_changes_nothing_and_the_table_alone_everything(kernel):
    case = Launched(lens=[40, 70, 20], q_lens=[1, 9, 20], seed=3, kernel=kernel)
    before = case.run()
    moved = torch.randperm(len(case.k_cache))  # block i goes to where moved says
    for name in ("k_cache", "v_cache"):
        cache = torch.empty_like(getattr(case, name))
        cache[moved] = getattr(case, name)
        setattr(case, name, cache)
    old_tables, case.tables = case.tables, [[int(moved[b]) for b in table] for table in case.tables]
    assert torch.equal(case.run(), before)
    case.tables = [list(reversed(table)) for table in old_tables]
    assert not torch.allclose(case.run().nan_to_num(), before)


@pytest.mark.parametrize("chunk", [1, 7, 15, 16, 17, 50])
def test_a_prompt_in_chunks_equals_the_whole(chunk):
    """Behaviour 15: a chunk attends to its own end; behaviour 22: aligned bottom-right."""
    whole = Case(lens=[50], q_lens=[50])
    want = whole.expected()
    for start in range(0, 50, chunk):
        stop = min(50, start + chunk)
        batch = PagedBatch(whole.tables, [stop], [0, stop - start], 16, CPU, len(whole.k_cache))
        got = launch(whole.queries[0][start:stop], whole.k_cache, whole.v_cache, batch)
        assert torch.allclose(got.double(), want[start:stop], atol=1e-5)


@pytest.mark.parametrize("kernel", KERNELS)
def test_block_0_is_a_block_like_any_other(kernel):
    """Behaviour 9: tables are padded with -1, so that 0 can be named; and -1 is never looked at."""
    case = Launched(lens=[20, 3], q_lens=[1, 1], block_size=4, seed=5, kernel=kernel)
    assert any(0 in table for table in case.tables)
    assert case.error() < 1e-5
    touched = case.watch.loads["tables"].values()
    assert set().union(*touched) == {0, 1, 2, 3, 4, 5}  # five blocks, then one of the second row


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("score", [-20000.0, -3.3e38])
def test_scores_far_below_any_sentinel_are_exact(kernel, score):
    """Behaviour 16: what is masked weighs nothing, however low the keys that are seen score."""
    k_cache = torch.tensor([1.0, 0.0, 0.0, 0.0]).reshape(1, 4, 1, 1)
    v_cache = torch.tensor([1.0, 100.0, 100.0, 100.0]).reshape(1, 4, 1, 1)
    lens, cu = ([2], [0, 2]) if kernel == "mixed" else ([1], [0, 1])
    batch = PagedBatch([[0]], lens, cu, 4, CPU, 1)
    query = torch.tensor([[[score]], [[0.0]]])[: cu[1]]
    out = launch(query, k_cache, v_cache, batch, scale=1.0, **KERNELS[kernel])
    assert out[0].item() == 1.0


def test_a_tile_that_lies_before_a_row_s_window_weighs_nothing():
    """Behaviour 16: rows 16 and later of this tile see no key of the first tile of keys: all their scores are -inf."""
    case = Launched((2, 2), (256, 256), lens=[64], q_lens=[64], dtype=torch.float16, kernel="mixed")
    assert case.error(sliding_window=3, use_dot=True) < LIMIT[torch.float16]


@pytest.mark.parametrize("num_splits", [2, 5, 64])
def test_parts_without_a_key_weigh_nothing(num_splits):
    """Behaviour 16: an empty part has -inf as its top; -inf minus -inf must not reach the result."""
    case = Launched(heads=(4, 2), lens=[3, 130, 1], kernel="split")
    batch = PagedBatch(case.tables, case.lens, case.cu, 16, CPU, len(case.k_cache))
    sinks = torch.randn(4)
    for options in ({}, {"sinks": sinks}, {"sliding_window": 2}):
        got = launch(torch.cat(case.queries), case.k_cache, case.v_cache, batch, num_splits=num_splits, **options)
        assert torch.allclose(got.double(), case.expected(**options), atol=1e-5)


def test_a_row_that_sees_no_key_gives_zeros():
    """Behaviour 16: a sequence whose length says 0 cannot happen through `paged_attention`; the kernel gives zeros."""
    for kernel in ("decode", "split"):
        case = Launched(lens=[5, 4], kernel=kernel)
        batch = PagedBatch(case.tables, case.lens, case.cu, 16, CPU, len(case.k_cache))
        batch.seq_lens[0] = 0
        got = launch(torch.cat(case.queries), case.k_cache, case.v_cache, batch, **KERNELS[kernel])
        assert (got[0] == 0).all() and torch.allclose(got[1].double(), case.expected()[1], atol=1e-5)


def test_a_sequence_without_rows_this_step_is_skipped_and_no_row_at_all_is_fine():
    case = Case(lens=[20, 8, 5], q_lens=[1, 3, 1])
    query = torch.cat([case.queries[0], case.queries[2]])
    inputs = case.k_cache, case.v_cache, case.tables, case.lens
    got = paged_attention(query, *inputs, [0, 1, 1, 2], backend="triton")
    want = case.expected()
    assert torch.allclose(got.double(), torch.cat([want[:1], want[-1:]]), atol=1e-5)
    assert paged_attention(query[:0], *inputs, [0, 0, 0, 0], backend="triton").shape == (0, 9, 16)


@pytest.mark.parametrize("name", BAD)
def test_a_batch_that_does_not_fit_is_refused_before_any_launch(name):
    """Behaviour 18."""
    bad, words = BAD[name]
    query, cache = torch.zeros(bad.get("rows", bad["cu"][-1]), 2, 8), torch.zeros(4, 16, 1, 8)
    with watching() as watch, pytest.raises(InvalidInputError, match=words):
        paged_attention(query, cache, cache, bad["tables"], bad["lens"], bad["cu"], backend="triton")
    assert not watch.loads and not watch.stores


@pytest.mark.parametrize("kernel", KERNELS)
def test_bf16_is_right_in_the_interpreter(kernel):
    """Behaviour 21: there a bf16 product is silently wrong, so the numbers are made float32 after loading."""
    case = Launched((8, 2), (64, 64), lens=[40, 9, 17], dtype=torch.bfloat16, seed=2, kernel=kernel, q_lens=[3, 9, 1])
    assert case.error(use_dot=True) < LIMIT[torch.bfloat16]


# ---- store


def test_store_puts_each_token_into_its_slot_and_touches_nothing_else():
    k, v = torch.randn(5, 2, 6), torch.randn(5, 2, 4)
    k_cache, v_cache = torch.full((3, 4, 2, 6), torch.nan), torch.full((3, 4, 2, 4), torch.nan)
    slots = torch.tensor([0, 11, -1, 5, 6])  # block 0 too (behaviour 9); -1 writes nothing
    with watching() as watch:
        store(k, v, k_cache, v_cache, slots)
    watch.raise_if_outside()
    for pool, new in ((k_cache, k), (v_cache, v)):
        flat = pool.flatten(0, 1)
        assert torch.equal(flat[slots[slots >= 0]], new[slots >= 0])
        assert flat.isnan().all(dim=(1, 2)).sum() == 12 - 4


def test_store_takes_k_and_v_as_they_come_out_of_one_projection():
    both = torch.randn(3, 2, 2, 8)  # [num_tokens, K or V, num_kv_heads, head_dim]
    turned = torch.randn(8, 1, 3).permute(2, 1, 0)  # one KV head, and its numbers far apart
    for k, v in ((both[:, 0], both[:, 1]), (turned, turned)):
        k_cache, v_cache = torch.zeros(2, 4, *k.shape[1:]), torch.zeros(2, 4, *v.shape[1:])
        store(k, v, k_cache, v_cache, torch.tensor([7, 0, 2]))
        assert torch.equal(k_cache.flatten(0, 1)[[7, 0, 2]], k) and torch.equal(v_cache.flatten(0, 1)[[7, 0, 2]], v)


def test_store_then_attend_equals_dense_attention():
    case = Launched(lens=[20, 8, 5], kernel="decode")
    k_cache, v_cache = torch.full_like(case.k_cache, torch.nan), torch.full_like(case.v_cache, torch.nan)
    for table, k, v in zip(case.tables, case.keys, case.values, strict=True):
        slots = torch.tensor([table[pos // 16] * 16 + pos % 16 for pos in range(len(k))])
        store(k, v, k_cache, v_cache, slots)
    case.k_cache, case.v_cache = k_cache, v_cache
    assert case.error() < 1e-5


# ---- int64 offsets


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_pool_of_more_than_two_to_the_31_numbers_is_reached_to_its_end(kernel):
    """An int32 offset wraps there. The pool is 4 GiB of addresses, of which only the pages in use become memory."""
    num_blocks, heads, dim = 2**31 // (16 * 2 * 64) + 8, 2, 64
    caches = [torch.empty(num_blocks, 16, heads, dim, dtype=torch.float16) for _ in range(2)]
    assert caches[0].numel() > 2**31
    table, k, v = [num_blocks - 1, 0, num_blocks - 2], *torch.randn(2, 40, heads, dim).half()
    slots = torch.tensor([table[pos // 16] * 16 + pos % 16 for pos in range(40)])
    query = torch.randn(1 if kernel != "mixed" else 3, 4, dim).half()
    with watching() as watch:
        store(k, v, *caches, slots)
        batch = PagedBatch([table], [40], [0, len(query)], 16, CPU, num_blocks)
        got = launch(query, *caches, batch, **KERNELS[kernel])
    watch.raise_if_outside()
    small = PagedBatch([[0, 1, 2]], [40], [0, len(query)], 16, CPU, 3)
    near = [torch.zeros(48, heads, dim, dtype=torch.float16).index_copy(0, torch.arange(40), x) for x in (k, v)]
    want = launch(query, *(x.reshape(3, 16, heads, dim) for x in near), small, **KERNELS[kernel])
    assert torch.equal(got, want)
