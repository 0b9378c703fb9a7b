"""Chapter 1: sampling parameters refuse what cannot be right, filters agree with transformers, draws with the maths."""

from __future__ import annotations

import dataclasses
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from minipaged.errors import InvalidInputError
from minipaged.sampling import LogitsError, SamplingParams, eos_token_ids, filter_logits, make_generator, sample


def kept(logits, **params):
    """Ids that survive."""
    return filter_logits(torch.as_tensor(logits), SamplingParams(**params)).isfinite().nonzero()[:, 0].tolist()


def log(*probs, dtype=torch.float32):
    return torch.tensor(probs, dtype=torch.float64).log().to(dtype)


# parameters


def test_fields_and_defaults_are_the_published_ones():
    assert dataclasses.asdict(SamplingParams()) == {
        "n": 1, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "max_tokens": 16,
        "stop_token_ids": (), "ignore_eos": False, "seed": None, "logprobs": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", 0), ("n", -1), ("n", 1.5), ("n", True), ("n", "2"), ("n", None),
        ("temperature", -0.1), ("temperature", math.nan), ("temperature", math.inf), ("temperature", "1"),
        ("temperature", True), ("temperature", None),
        ("top_k", -1), ("top_k", 0.5), ("top_k", "5"), ("top_k", True),
        ("top_p", 0.0), ("top_p", -0.5), ("top_p", 1.01), ("top_p", math.nan), ("top_p", "0.9"), ("top_p", True),
        ("min_p", 1.0), ("min_p", -0.01), ("min_p", math.nan), ("min_p", "0"), ("min_p", False),
        ("max_tokens", 0), ("max_tokens", -5), ("max_tokens", 1.0), ("max_tokens", True), ("max_tokens", None),
        ("stop_token_ids", 2), ("stop_token_ids", "2"), ("stop_token_ids", [-1]), ("stop_token_ids", ["a"]),
        ("stop_token_ids", [True]), ("stop_token_ids", None),
        ("ignore_eos", 1), ("ignore_eos", "no"), ("ignore_eos", None),
        ("seed", -1), ("seed", 1.0), ("seed", "0"), ("seed", True), ("seed", 2**63),
        ("logprobs", -1), ("logprobs", 0.5), ("logprobs", True), ("logprobs", "5"),
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_right_is_refused_by_name(name, value):
    with pytest.raises(InvalidInputError) as refused:
        SamplingParams(**{name: value})
    message = str(refused.value)
    shown = value[0] if isinstance(value, list) else value
    assert message.startswith(f"{name} is {shown!r}") and "must be" in message


def test_numbers_of_numpy_and_lists_become_plain():
    params = SamplingParams(
        n=np.int64(2), temperature=np.float32(0.5), top_k=np.int32(3), stop_token_ids=[np.int64(7), 9], seed=np.int64(4)
    )
    assert params == SamplingParams(n=2, temperature=0.5, top_k=3, stop_token_ids=(7, 9), seed=4)
    assert [type(v) for v in (params.n, params.temperature, params.top_k, params.seed)] == [int, float, int, int]
    assert hash(params) and type(params.stop_token_ids[0]) is int


def test_parameters_cannot_change_under_a_running_request():
    with pytest.raises(dataclasses.FrozenInstanceError):
        SamplingParams().temperature = 2.0


# filters


def transformers_filters(logits, params):
    """What transformers removes, in its order."""
    chain = [TemperatureLogitsWarper(params.temperature)]
    chain += [TopKLogitsWarper(params.top_k)] if params.top_k else []
    chain += [TopPLogitsWarper(params.top_p)] if params.top_p < 1 else []
    chain += [MinPLogitsWarper(params.min_p)] if params.min_p else []
    for warp in chain:
        logits = warp(None, logits)
    return logits


@pytest.mark.parametrize("seed", range(40))
def test_filters_agree_with_transformers(seed):
    """float64, so that only the rule can differ and not the rounding; ties apart, none of which are drawn here."""
    pick = np.random.default_rng(seed)
    vocab = int(pick.choice([1, 2, 3, 17, 100, 1000]))
    spread = float(pick.choice([0.01, 1.0, 3.0, 10.0]))
    logits = torch.from_numpy(pick.normal(size=(5, vocab)) * spread)
    for _ in range(10):
        params = SamplingParams(
            temperature=float(pick.choice([0.1, 0.7, 1.0, 1.5, 3.0])),
            top_k=int(pick.choice([0, 1, 2, 10, 50, 5000])),
            top_p=float(pick.choice([0.01, 0.3, 0.5, 0.9, 0.99, 1.0])),
            min_p=float(pick.choice([0.0, 0.01, 0.1, 0.5, 0.99])),
        )
        torch.testing.assert_close(filter_logits(logits, params), transformers_filters(logits, params))


def test_float32_filters_agree_with_transformers_on_a_real_vocabulary_size():
    """Over 50,000 tokens float32 sums differ in the sixth digit: only tokens that close to the cut may differ."""
    torch.manual_seed(0)
    logits = torch.randn(6, 49152) * torch.tensor([0.5, 1, 2, 3, 4, 6])[:, None]
    for p in (0.3, 0.9, 0.99):
        mine = filter_logits(logits, SamplingParams(top_p=p)).isfinite()
        theirs = TopPLogitsWarper(p)(None, logits).isfinite()
        ordered, ids = logits.double().sort(descending=True)
        probs = ordered.softmax(-1)
        before = torch.zeros_like(probs).scatter(-1, ids, probs.cumsum(-1) - probs)
        assert ((before[mine != theirs] - p).abs() < 2e-5).all()
        assert ((before[mine != (before < p)] - p).abs() < 5e-7).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("probs", "p", "want"),
    [
        ((0.5, 0.25, 0.125, 0.125), 0.75, 2), ((0.5, 0.25, 0.125, 0.125), 0.5, 1), ((0.5, 0.3, 0.2), 0.8, 2),
        ((0.4, 0.3, 0.2, 0.1), 0.7, 2), ((0.4, 0.3, 0.2, 0.1), 0.9, 3), ((0.1,) * 10, 0.3, 3), ((0.6, 0.4), 0.6, 1),
    ],
)  # fmt: skip
def test_top_p_hit_exactly_keeps_no_token_more(probs, p, want, dtype):
    """Behaviour 23, first half: the smallest set whose mass is at least p."""
    assert kept(log(*probs, dtype=dtype), top_p=p) == list(range(want))


def test_top_p_agrees_with_transformers_where_p_is_hit_exactly():
    logits = log(0.5, 0.25, 0.125, 0.125).unsqueeze(0)  # exact in float32; in float64 transformers rounds one too many
    for p in (0.5, 0.75, 0.875):
        mine = filter_logits(logits, SamplingParams(top_p=p)).isfinite().sum()
        assert mine == TopPLogitsWarper(p)(None, logits).isfinite().sum() == {0.5: 1, 0.75: 2, 0.875: 3}[p]


def test_top_p_keeps_the_token_that_crosses():
    """Behaviour 23, second half: the kept mass is at least p, and without its last token it is not."""
    assert kept(log(0.4, 0.3, 0.2, 0.1), top_p=0.6) == [0, 1]
    torch.manual_seed(1)
    for _ in range(200):
        logits = torch.randn(50, dtype=torch.float64) * 2
        p = float(torch.rand(())) * 0.98 + 0.01
        probs = logits.softmax(-1)
        mine = probs[kept(logits, top_p=p)]
        assert mine.sum() >= p and mine.sum() - mine.min() < p


@pytest.mark.parametrize("p", [1e-12, 0.001, 0.5])
def test_top_p_never_leaves_an_empty_set(p):
    assert kept(log(0.9, 0.05, 0.05), top_p=p) == [0]
    assert kept([7.0], top_p=p) == [0]


def test_top_p_of_one_keeps_even_the_least_likely_token():
    assert kept([0.0, -80.0], top_p=1.0) == [0, 1]


def test_ties_at_the_cut():
    """Top-k keeps every equal of the k-th; top-p, which must be smallest, keeps the lower ids."""
    assert kept([1.0, 2.0, 2.0, 2.0, 0.0], top_k=2) == [1, 2, 3]
    assert kept([1.0] * 8, top_p=0.5) == [0, 1, 2, 3]
    assert kept([1.0, 0.0] * 3000, top_p=0.25) == list(range(0, 6000, 2))[: int(0.25 * (3000 + 3000 / math.e)) + 1]
    assert kept([1.0, 0.5, 1.0, 1.0], top_k=1) == [0, 2, 3]
    assert kept(log(0.5, 0.25, 0.25), min_p=0.5) == [0, 1, 2]  # exactly min_p times the best one stays
    logits = torch.tensor([[1.0, 2.0, 2.0, 2.0, 0.0]])
    torch.testing.assert_close(filter_logits(logits, SamplingParams(top_k=2)), TopKLogitsWarper(2)(None, logits))


def test_temperature_comes_before_top_p():
    """Behaviour 24: hot first, then cut, or another set of tokens is kept."""
    logits = log(0.7, 0.2, 0.1, dtype=torch.float64)
    assert kept(logits, top_p=0.85) == [0, 1]
    assert kept(logits, top_p=0.85, temperature=3.0) == [0, 1, 2]
    assert kept(logits, top_p=0.85, temperature=0.3) == [0]


def test_top_k_comes_before_top_p():
    """After top-k 2 the two best make all of the mass: 0.4 of 0.7 is already 0.57."""
    logits = log(0.4, 0.3, 0.2, 0.1)
    assert kept(logits, top_p=0.5) == [0, 1] and kept(logits, top_p=0.5, top_k=2) == [0]


def test_min_p_is_a_fraction_of_the_best_token():
    logits = log(0.6, 0.31, 0.06, 0.03)
    assert kept(logits, min_p=0.5) == [0, 1] and kept(logits, min_p=0.09) == [0, 1, 2]
    assert kept(logits, min_p=0.999) == [0]


def test_filters_leave_the_input_alone_and_keep_its_shape():
    for shape in ((11,), (3, 11)):
        logits = torch.randn(shape)
        copy = logits.clone()
        for params in (SamplingParams(top_k=2, top_p=0.5), SamplingParams(temperature=0), SamplingParams()):
            assert filter_logits(logits, params).shape == shape
        assert torch.equal(logits, copy)


def test_a_batch_is_filtered_row_by_row():
    torch.manual_seed(2)
    logits = torch.randn(4, 300) * 3
    params = SamplingParams(temperature=0.8, top_k=40, top_p=0.8, min_p=0.02)
    rows = torch.stack([filter_logits(row, params) for row in logits])
    assert torch.equal(filter_logits(logits, params), rows)


def test_greedy_keeps_one_token_and_ties_go_to_the_lowest_id():
    assert kept([1.0, 5.0, 5.0, 2.0], temperature=0) == [1]
    assert int(sample(torch.tensor([1.0, 5.0, 5.0, 2.0]), SamplingParams(temperature=0))) == 1
    assert sample(torch.ones(2, 9), SamplingParams(temperature=0.0)).tolist() == [0, 0]
    assert SamplingParams(temperature=1e-30).greedy and not SamplingParams(temperature=0.01).greedy


def test_half_precision_is_widened_first():
    logits = torch.tensor([60000.0, 59000.0, -60000.0], dtype=torch.float16)
    out = filter_logits(logits, SamplingParams(temperature=0.5))
    assert out.dtype == torch.float32 and out.isfinite().all()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    ("row", "words"),
    [
        ([0.0, math.nan, 1.0], "NaN"), ([0.0, math.inf, 1.0], "+inf"), ([-math.inf] * 3, "nothing but -inf"),
    ],
)  # fmt: skip
def test_logits_without_a_token_to_draw_are_named(row, words, temperature):
    params = SamplingParams(temperature=temperature, top_p=0.9)
    for function in (filter_logits, sample):
        with pytest.raises(LogitsError, match=r"row 1 .*" + words.replace("+", r"\+")):
            function(torch.tensor([[0.0, 1.0, 2.0], row]), params)
    assert kept([0.0, -math.inf, 1.0], temperature=temperature or 1.0) == [0, 2]  # some at -inf is a mask, and fine


@pytest.mark.parametrize("logits", [torch.ones(3, dtype=torch.int64), torch.ones(2, 3, 4), torch.empty(0), [1.0, 2.0]])
def test_what_is_not_logits_is_refused(logits):
    with pytest.raises(InvalidInputError, match=r"logits (are|have)"):
        sample(logits, SamplingParams())


# draws


def test_frequencies_are_the_softmax_of_the_filtered_logits():
    """Chi-square against the exact distribution, 20,000 draws, one fixed seed; a removed token never comes."""
    logits = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0, -3.0])
    for params in (SamplingParams(seed=0), SamplingParams(temperature=0.6, top_k=5, top_p=0.95, min_p=0.02, seed=1)):
        probs = filter_logits(logits, params).double().softmax(-1)
        generator = make_generator(params)
        drawn = sample(logits.expand(20_000, -1), params, generator)
        counts = torch.bincount(drawn, minlength=6)
        assert (counts[probs == 0] == 0).all()
        alive = probs > 0
        expected = probs[alive] * 20_000
        chi2 = float(((counts[alive] - expected) ** 2 / expected).sum())
        # 99.9 % point of chi-square with 5, 4, 3, ... degrees of freedom
        assert chi2 < {5: 20.5, 4: 18.5, 3: 16.3, 2: 13.8, 1: 10.8}[int(alive.sum()) - 1]


def test_a_removed_token_never_wins_whatever_the_generator_gives(monkeypatch):
    logits = torch.tensor([-math.inf, 0.0, 1.0, -math.inf])
    for draws, want in (([0, 0.5, 0.5, 0], 2), ([0, 0, 1 - 2.0**-53, 0], 1), ([1 - 2.0**-53] * 4, 2)):
        monkeypatch.setattr(torch, "rand", lambda *a, draws=draws, **k: torch.tensor(draws, dtype=torch.float64))
        assert int(sample(logits, SamplingParams())) == want


def test_a_draw_hardly_depends_on_the_last_digits_of_the_logits():
    """In a batch logits differ in the sixth digit, and the same seed must still give the same text."""
    torch.manual_seed(5)
    logits = torch.randn(20_000) * 2
    params = SamplingParams(seed=0)
    one, two = make_generator(params), make_generator(params)
    same = [
        int(sample(logits, params, one)) == int(sample(logits + torch.randn(20_000) * 1e-5, params, two))
        for _ in range(300)
    ]
    assert sum(same) == 300


def test_the_same_seed_draws_the_same_tokens_whatever_others_draw():
    torch.manual_seed(3)
    logits = torch.randn(30, 100)
    params = SamplingParams(seed=7)
    one = make_generator(params)
    alone = [int(sample(row, params, one)) for row in logits]
    mine, other = make_generator(params), make_generator(SamplingParams(seed=8))
    between = []
    for row in logits:
        sample(row, params, other)
        torch.rand(5)  # torch's global generator is not touched by ours, nor ours by it
        between.append(int(sample(row, params, mine)))
    assert alone == between == sample(logits, params, make_generator(params)).tolist()


def test_sample_i_of_n_is_a_lone_request_with_seed_plus_i():
    logits = torch.zeros(20, 1000)
    for i in range(4):
        of_n = sample(logits, SamplingParams(n=4, seed=5), make_generator(SamplingParams(n=4, seed=5), index=i))
        lone = sample(logits, SamplingParams(seed=5 + i), make_generator(SamplingParams(seed=5 + i)))
        assert torch.equal(of_n, lone)
    assert not torch.equal(of_n, sample(logits, SamplingParams(seed=5), make_generator(SamplingParams(seed=5))))


def test_without_a_seed_two_requests_differ():
    logits, params = torch.zeros(20, 1000), SamplingParams()
    one, two = (sample(logits, params, make_generator(params)) for _ in range(2))
    assert not torch.equal(one, two)


def test_draws_are_pinned_so_that_stored_notebooks_stay_true():
    """Uniform numbers from the CPU's Mersenne twister: the same on every machine."""
    params = SamplingParams(seed=0)
    assert sample(torch.zeros(5, 1000), params, make_generator(params)).tolist() == PINNED


PINNED = [436, 863, 780, 145, 445]


def test_shapes_of_what_is_drawn():
    for params in (SamplingParams(temperature=0), SamplingParams(seed=0)):
        one, many = sample(torch.randn(9), params), sample(torch.randn(4, 9), params)
        assert one.shape == () and many.shape == (4,) and one.dtype == many.dtype == torch.int64


# end tokens


@pytest.mark.parametrize(
    ("config", "tokenizer", "want"),
    [
        (2, 2, {2}), (2, 0, {0, 2}), ([1, 2], 3, {1, 2, 3}), (None, 5, {5}), (4, None, {4}), (None, None, set()),
        ([7], [8, 9], {7, 8, 9}), (0, None, {0}), (torch.tensor([3, 4]), 4, {3, 4}),
    ],
)  # fmt: skip
def test_end_tokens_are_the_union_of_tokenizer_and_generation_config(config, tokenizer, want):
    model = SimpleNamespace(generation_config=SimpleNamespace(eos_token_id=config))
    assert eos_token_ids(model, SimpleNamespace(eos_token_id=tokenizer)) == want


def test_end_tokens_without_a_tokenizer_or_a_generation_config():
    assert eos_token_ids(SimpleNamespace(generation_config=SimpleNamespace(eos_token_id=3))) == {3}
    assert eos_token_ids(SimpleNamespace(), SimpleNamespace(eos_token_id=1)) == {1}
