"""Guessing changes how many passes a text takes, and nothing about which text is written."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from minipaged.block_manager import OutOfBlocksError
from minipaged.engine import LLM
from minipaged.errors import InvalidInputError
from minipaged.sampling import LogitsError, SamplingParams, make_generator
from minipaged.speculative import (
    AcceptanceStats,
    DraftError,
    ModelDraft,
    PromptLookup,
    Proposal,
    Round,
    VocabularyMismatchError,
    acceptance,
    expected_speedup,
    expected_tokens,
    pick,
    probabilities,
    residual,
    some_layers,
    speculative_generate,
    verify,
)
from tests.tiny_models import tiny_model

VOCABULARY = 97


def greedy(max_tokens, **more):
    return SamplingParams(**{"temperature": 0, "max_tokens": max_tokens, "ignore_eos": True} | more)


def prompts(lengths, seed=0, vocabulary=VOCABULARY):
    generator = torch.Generator().manual_seed(seed)
    return [{"prompt_token_ids": torch.randint(3, vocabulary, (n,), generator=generator).tolist()} for n in lengths]


def plain(llm, prompt, params):
    return llm.generate(prompt, params, use_tqdm=False)[0].outputs[0]


@pytest.fixture(scope="module")
def model():
    return tiny_model("llama")


class Scripted:
    """Proposes the tokens that greedy decoding will write, except where `wrong(number of the guess)` says so."""

    def __init__(self, text, wrong=lambda number: False):
        self.text, self.wrong, self.number, self.kept = text, wrong, 0, []

    def propose(self, token_ids, num_tokens, params, generator):
        right = self.text[len(token_ids) : len(token_ids) + num_tokens]
        guesses = []
        for token in right:
            guesses.append((token + 1) % VOCABULARY if self.wrong(self.number) else token)
            self.number += 1
        return Proposal(guesses)

    def rollback(self, num_tokens):
        self.kept.append(num_tokens)

    def reset(self):
        self.number = 0


class Random:
    """Guesses from the uniform distribution."""

    def propose(self, token_ids, num_tokens, params, generator):
        guesses = torch.randint(VOCABULARY, (num_tokens,), generator=torch.Generator().manual_seed(len(token_ids)))
        return Proposal(guesses.tolist(), torch.full((num_tokens, VOCABULARY), 1 / VOCABULARY))

    def rollback(self, num_tokens):
        pass

    def reset(self):
        pass


# ---- greedy: the same text


@pytest.mark.parametrize("block_size", [1, 2, 4, 16])
def test_greedy_equals_plain_greedy_for_every_draft_and_length(model, block_size):
    llm = LLM(model, block_size=block_size, num_blocks=128 // block_size, max_num_batched_tokens=16)
    small, other = ModelDraft(llm, layers=2, block_size=block_size), ModelDraft(llm, tiny_model("qwen3", seed=3))
    for prompt, length in zip(prompts((1, 5, 31, 16, 40, 7)), (30, 17, 20, 1, 33, 2), strict=True):
        wanted = plain(llm, prompt, greedy(length)).token_ids
        text = prompt["prompt_token_ids"] + wanted
        drafts = (PromptLookup(), small, other, Random(), Scripted(text), Scripted(text, lambda number: True))
        for number, draft in enumerate(drafts):
            out = speculative_generate(llm, prompt, draft, greedy(length), num_draft_tokens=(4, 3, 1, 2, 5, 7)[number])
            assert out.outputs[0].token_ids == wanted, type(draft).__name__
            assert out.outputs[0].finish_reason == "length"
            assert llm.manager.num_used_blocks == 0
    assert small.manager.num_used_blocks == other.manager.num_used_blocks == 0


@pytest.mark.parametrize("block_size", [1, 2, 4, 16])
@pytest.mark.parametrize("place", [0, 1, 2, 3, None])
def test_a_rejection_first_middle_last_or_none_is_rolled_back_exactly(model, place, block_size):
    """Behaviour 25. The pool holds NaN where nothing is written, so a slot too many would show."""
    llm = LLM(model, block_size=block_size, num_blocks=128 // block_size)
    for k, v in zip(llm.runner.cache.k_cache, llm.runner.cache.v_cache, strict=True):
        k.fill_(float("nan")), v.fill_(float("nan"))
    (prompt,) = prompts((13,))
    wanted = plain(llm, prompt, greedy(21)).token_ids
    draft = Scripted(prompt["prompt_token_ids"] + wanted, lambda number: number % 4 == place)
    out = speculative_generate(llm, prompt, draft, greedy(21), num_draft_tokens=4)
    assert out.outputs[0].token_ids == wanted
    per_round = 5 if place is None else place + 1
    assert [len(r.written) for r in out.stats.rounds][:4] == [per_round] * 4
    lengths = list(itertools.accumulate([len(r.written) for r in out.stats.rounds], initial=13))
    assert draft.kept == [length - 1 for length in lengths[1:]]  # all but the newest token are in the cache


def test_after_each_round_exactly_the_kept_tokens_hold_a_slot(model):
    llm = LLM(model, num_blocks=32, block_size=2)
    (prompt,) = prompts((13,))
    wanted = plain(llm, prompt, greedy(21)).token_ids

    class Watching(Scripted):
        def rollback(self, num_tokens):
            (seq_id,) = llm.manager.seq_ids
            self.kept.append((num_tokens, llm.manager.num_tokens(seq_id), llm.manager.num_used_blocks))

    draft = Watching(prompt["prompt_token_ids"] + wanted, lambda number: number % 3 == 1)
    speculative_generate(llm, prompt, draft, greedy(21))
    assert draft.kept == [(n, n, -(-n // 2)) for n, *_ in draft.kept] and len(draft.kept) > 5


def test_all_drafts_rejected_still_gives_one_token_a_pass_and_a_perfect_draft_k_plus_one(model):
    llm = LLM(model, num_blocks=8)
    (prompt,) = prompts((9,))
    text = prompt["prompt_token_ids"] + plain(llm, prompt, greedy(20)).token_ids
    wrong = speculative_generate(llm, prompt, Scripted(text, lambda number: True), greedy(20)).stats
    assert (wrong.target_passes, wrong.accepted, wrong.tokens_per_pass, wrong.acceptance_rate) == (20, 0, 1.0, 0.0)
    right = speculative_generate(llm, prompt, Scripted(text), greedy(20)).stats
    assert (right.target_passes, right.tokens_per_pass, right.acceptance_rate) == (4, 5.0, 1.0)
    assert right.drafted == right.judged == right.accepted == 16 and right.num_tokens == 20
    none = speculative_generate(llm, prompt, Scripted(text), greedy(20), num_draft_tokens=0).stats
    assert (none.target_passes, none.drafted) == (20, 0)


def test_all_drafts_are_verified_in_one_pass_of_the_target(model, monkeypatch):
    llm = LLM(model, num_blocks=8)
    (prompt,) = prompts((9,))
    text = prompt["prompt_token_ids"] + plain(llm, prompt, greedy(20)).token_ids
    sizes, run = [], llm.runner.run
    monkeypatch.setattr(
        llm.runner, "run", lambda batch, rows=None: (sizes.append(len(batch.input_ids)), run(batch, rows))[1]
    )
    speculative_generate(llm, prompt, Scripted(text), greedy(20))
    assert sizes == [9 + 4, 5, 5, 5]  # the prompt's pass verifies too; then the newest token and four drafts


@pytest.mark.parametrize("family", ["gpt2", "gemma2", "mistral", "qwen2"])
def test_every_family_and_its_own_layers_as_a_draft(family):
    llm = LLM(tiny_model(family), num_blocks=16, block_size=4)
    for layers in (None, 1, [0, 3], 4):
        draft = ModelDraft(llm, layers=layers)
        for prompt in prompts((3, 19)):
            out = speculative_generate(llm, prompt, draft, greedy(14), num_draft_tokens=3)
            assert out.outputs[0].token_ids == plain(llm, prompt, greedy(14)).token_ids
            if layers == 4:  # all layers: the draft is the target
                assert out.stats.acceptance_rate == 1 and out.stats.target_passes == 4
    assert len(llm.model.base_model.h if family == "gpt2" else llm.model.base_model.layers) == 4


def test_some_layers_shares_the_weights_and_leaves_the_model(model):
    before = model(torch.tensor([[5, 6, 7]])).logits
    shallow = some_layers(model, 2)
    assert sum(p.numel() for p in shallow.parameters()) < sum(p.numel() for p in model.parameters())
    own = {p.data_ptr() for p in model.parameters()}
    assert {p.data_ptr() for p in shallow.parameters()} <= own
    hidden = model(torch.tensor([[5, 6, 7]]), output_hidden_states=True).hidden_states[2]
    wanted = model.lm_head(model.model.norm(hidden))
    assert torch.allclose(shallow(torch.tensor([[5, 6, 7]])).logits, wanted, atol=1e-5)
    assert torch.equal(model(torch.tensor([[5, 6, 7]])).logits, before) and model.config.num_hidden_layers == 4


# ---- the distribution: exact


def all_written(p, q):
    """Exact distribution of what one round writes, from every draft and every decision: {tokens: probability}.

    p and q give the distribution after any text; the rest of a short round is written by p, as later rounds would.
    """
    vocabulary, count = range(len(p(()))), 2
    out = dict.fromkeys(itertools.product(vocabulary, repeat=count + 1), 0.0)
    for drafted in itertools.product(vocabulary, repeat=count):
        texts = [drafted[:i] for i in range(count + 1)]
        rows_p, rows_q = torch.stack([p(t) for t in texts]), torch.stack([q(t) for t in texts[:-1]])
        chance = float(torch.prod(torch.stack([q(t)[d] for t, d in zip(texts, drafted, strict=False)])))
        if chance == 0:
            continue
        keep = [float(acceptance(rows_p[i, d], rows_q[i, d])) for i, d in enumerate(drafted)]
        for stop in range(count + 1):
            draws = [keep[i] / 2 if i < stop else 0.5 + keep[i] / 2 for i in range(count)]
            path = chance * math.prod(keep[:stop]) * (1 - keep[stop] if stop < count else 1)
            if path == 0:
                continue
            kept, after = verify(rows_p, rows_q, drafted, draws)
            assert kept == stop
            for token in vocabulary:
                _spread(out, (*drafted[:kept], token), path * float(after[token]), p, count + 1)
    return out


def _spread(out, text, chance, p, length):
    if len(text) == length:
        out[text] += chance
        return
    for token, each in enumerate(p(text)):
        _spread(out, (*text, token), chance * float(each), p, length)


def tables(seed, vocabulary=4, zeros=False):
    """A made-up model: for every text its own distribution."""

    def model(text):
        generator = torch.Generator().manual_seed(hash((seed, *text)) % 2**31)
        row = torch.rand(vocabulary, generator=generator, dtype=torch.float64) ** 3
        if zeros:  # as after top-k
            row = row.masked_fill(row < row.median(), 0.0)
        return row / row.sum()

    return model


@pytest.mark.parametrize("zeros", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_every_way_of_drafting_and_deciding_adds_up_to_the_targets_own_distribution(seed, zeros):
    p, q = tables(seed, zeros=zeros[0]), tables(seed + 100, zeros=zeros[1])
    for text, chance in all_written(p, q).items():
        wanted = 1.0
        for place, token in enumerate(text):
            wanted *= float(p(text[:place])[token])
        assert abs(chance - wanted) < 1e-12


def test_a_certain_draft_is_a_distribution_too():
    p = tables(7)
    sure = lambda text: torch.eye(4, dtype=torch.float64)[len(text) % 4]
    for text, chance in all_written(p, sure).items():
        assert abs(chance - float(torch.prod(torch.stack([p(text[:i])[t] for i, t in enumerate(text)])))) < 1e-12


def test_the_decision_falls_at_p_over_q_exactly():
    p, q = (torch.tensor(rows, dtype=torch.float64) for rows in ([[0.2, 0.8], [0.5, 0.5]], [[0.5, 0.5]]))
    assert acceptance(p[0], q[0]).tolist() == [0.4, 1.0]
    assert verify(p, q, [0], [0.4 - 1e-9])[0] == 1 and verify(p, q, [0], [0.4])[0] == 0
    assert verify(p, q, [1], [1 - 2**-53])[0] == 1
    kept, after = verify(p, q, [0], [0.9])
    assert kept == 0 and after.tolist() == [0.0, 1.0]  # p - q = [-0.3, 0.3]: never the rejected token
    zero = torch.tensor([[0.0, 1.0], [1.0, 0.0]]).double()
    assert verify(zero, q, [0], [0.0])[0] == 0  # a draw of 0 does not let through what p forbids
    assert residual(p[0], p[0]).tolist() == p[0].tolist()


def test_the_rest_of_the_rows_is_never_looked_at():
    p = torch.tensor([[0.9, 0.1], [float("nan")] * 2, [float("nan")] * 2]).double()
    q = torch.tensor([[0.1, 0.9], [float("nan")] * 2]).double()
    kept, after = verify(p, q, [1, 0], [0.99, 0.0])
    assert kept == 0 and after.tolist() == [1.0, 0.0]


def chi_square(counts, probs):
    expected = sum(counts) * probs
    seen = torch.tensor(counts).double()
    possible = expected > 0
    assert seen[~possible].sum() == 0  # what p forbids never comes
    return float(((seen - expected)[possible] ** 2 / expected[possible]).sum()), int(possible.sum()) - 1


def limit(freedom):
    """The value that chi-square passes once in about 1,000 samples (Wilson and Hilferty's approximation)."""
    return freedom * (1 - 2 / (9 * freedom) + 3.09 * (2 / (9 * freedom)) ** 0.5) ** 3


def test_twenty_thousand_rounds_pass_a_chi_square_test():
    p, q, generator = tables(3, 6), tables(4, 6), torch.Generator().manual_seed(0)
    counts = [0] * 36
    params = SamplingParams()
    for _ in range(20_000):
        first = pick(q(()), params, generator)
        rows_q = torch.stack([q(())])
        rows_p = torch.stack([p(()), p((first,))])
        kept, after = verify(rows_p, rows_q, [first], torch.rand(1, generator=generator, dtype=torch.float64))
        token = pick(after, params, generator)
        second = token if kept else pick(p((token,)), params, generator)
        counts[(first if kept else token) * 6 + second] += 1
    value, freedom = chi_square(counts, torch.cat([p(())[i] * p((i,)) for i in range(6)]))
    assert value < limit(freedom)


@pytest.mark.parametrize(
    "params", [dict(temperature=1.5), dict(temperature=0.7, top_k=4), dict(top_p=0.8), dict(min_p=0.3)]
)
def test_the_engine_writes_the_targets_distribution_whatever_the_draft(params):
    """A tiny model with 8 tokens, drafted by another one: the first two tokens of many texts."""
    flat = {"vocab_size": 8, "initializer_range": 0.08, "num_hidden_layers": 1}
    target, small = tiny_model("llama", **flat), tiny_model("llama", seed=9, **flat)
    llm = LLM(target, num_blocks=8)
    draft = ModelDraft(llm, small)
    prompt, count = [3, 4, 5], 300
    settings = SamplingParams(max_tokens=3, n=count, seed=5, ignore_eos=True, **params)
    out = speculative_generate(llm, {"prompt_token_ids": prompt}, draft, settings, num_draft_tokens=2)
    seen = [0] * 64
    for one in out.outputs:
        seen[one.token_ids[0] * 8 + one.token_ids[1]] += 1
    with torch.inference_mode():
        rows = [target(torch.tensor([[*prompt, i]])).logits[0, -2:] for i in range(8)]
    first = probabilities(rows[0][0], settings)
    joint = torch.cat([first[i] * probabilities(rows[i][1], settings) for i in range(8)])
    value, freedom = chi_square(seen, joint)
    assert value < limit(freedom)
    assert 0 < out.stats.acceptance_rate < 1 and llm.manager.num_used_blocks == 0


def test_the_draft_reports_what_it_drew_from():
    """Temperature and cuts apply to q too; a q that is not the drawn-from one would bias the text."""
    llm = LLM(tiny_model("llama"), num_blocks=8)
    small = tiny_model("llama", seed=9)
    draft, params = ModelDraft(llm, small), SamplingParams(temperature=0.5, top_k=3, seed=1)
    ids = [3, 4, 5, 6]
    drafted, probs = draft.propose(ids, 3, params, make_generator(params))
    with torch.inference_mode():
        logits = small(torch.tensor([ids + drafted])).logits[0, 3:6]
    assert torch.allclose(probs, probabilities(logits, params), atol=1e-5)
    assert (probs > 0).sum(-1).tolist() == [3, 3, 3]
    assert draft.num_computed == 6  # the last guess is never read
    draft.rollback(5)
    assert draft.num_computed == 5 and draft.manager.num_tokens(0) == 5


def test_probabilities_are_what_sample_draws_from():
    logits = torch.tensor([1.0, 3.0, 2.0, -1.0])
    assert probabilities(logits, SamplingParams(temperature=0)).tolist() == [0, 1, 0, 0]
    cut = probabilities(logits, SamplingParams(temperature=0.5, top_k=2))
    assert torch.allclose(cut, (torch.tensor([-torch.inf, 6.0, 4.0, -torch.inf]).double()).softmax(-1))


def test_the_biased_rule_is_biased_and_ours_is_not():
    """Behaviour 25: keeping a draft that equals a draw of the target, and drawing anew from p when it does not."""
    p, q = (torch.tensor(row, dtype=torch.float64) for row in ([0.5, 0.3, 0.2], [0.2, 0.3, 0.5]))
    equality = q * p + (1 - (q * p).sum()) * p
    assert (equality - p).abs().max() > 0.02
    ours = q * acceptance(p, q) + (1 - (q * acceptance(p, q)).sum()) * residual(p, q)
    assert (ours - p).abs().max() < 1e-15


# ---- how a text ends, and what is reported


def test_a_stop_token_inside_an_accepted_draft_ends_the_text_there(model):
    llm = LLM(model, num_blocks=8)
    (prompt,) = prompts((9,))
    wanted = plain(llm, prompt, greedy(20)).token_ids
    for place in range(6):
        stop = wanted[place]
        params = greedy(20, stop_token_ids=(stop,), logprobs=2)
        expected = plain(llm, prompt, params)
        draft = Scripted(prompt["prompt_token_ids"] + wanted)
        (got,) = speculative_generate(llm, prompt, draft, params).outputs
        assert (got.token_ids, got.finish_reason, got.stop_reason) == (expected.token_ids, "stop", stop)
        assert len(got.logprobs) == len(got.token_ids)
    assert llm.manager.num_used_blocks == 0


def test_the_end_token_counts_unless_it_is_ignored(model):
    llm = LLM(model, num_blocks=8)
    (prompt,) = prompts((9,))
    wanted = plain(llm, prompt, greedy(6)).token_ids
    llm._eos = frozenset([wanted[3]])
    (got,) = speculative_generate(llm, prompt, Scripted(prompt["prompt_token_ids"] + wanted), greedy(6)).outputs
    assert got.token_ids == wanted
    (got,) = speculative_generate(llm, prompt, None, greedy(6, ignore_eos=False)).outputs
    assert (got.token_ids, got.finish_reason, got.stop_reason) == (wanted[: wanted.index(wanted[3]) + 1], "stop", None)


def test_log_probabilities_are_those_of_plain_decoding(model):
    llm = LLM(model, num_blocks=8)
    (prompt,) = prompts((9,))
    params = greedy(12, logprobs=3)
    a = plain(llm, prompt, params)
    for draft in (PromptLookup(), ModelDraft(llm, layers=3), Random()):
        (b,) = speculative_generate(llm, prompt, draft, params).outputs
        assert [list(entry) for entry in a.logprobs] == [list(entry) for entry in b.logprobs]
        assert b.cumulative_logprob == pytest.approx(a.cumulative_logprob, abs=1e-4)
    assert speculative_generate(llm, prompt, None, greedy(3)).outputs[0].logprobs is None


def test_the_same_seed_gives_the_same_texts_and_n_gives_that_many(model):
    llm = LLM(model, num_blocks=8)
    (prompt,) = prompts((9,))
    params = SamplingParams(n=3, seed=7, max_tokens=9, ignore_eos=True)
    draft = ModelDraft(llm, layers=2)
    out = speculative_generate(llm, prompt, draft, params)
    again = speculative_generate(llm, prompt, draft, params)
    assert [o.token_ids for o in out.outputs] == [o.token_ids for o in again.outputs]
    lone = SamplingParams(seed=9, max_tokens=9, ignore_eos=True)
    assert speculative_generate(llm, prompt, draft, lone).outputs[0].token_ids == out.outputs[2].token_ids
    assert [o.index for o in out.outputs] == [0, 1, 2] and out.stats.num_tokens == 27


def test_a_text_that_fills_the_pool_or_the_model_ends_as_in_the_engine(model):
    llm = LLM(model, num_blocks=3, block_size=16)
    (prompt,) = prompts((17,))
    draft = ModelDraft(llm, layers=3)
    (got,) = speculative_generate(llm, prompt, draft, greedy(60)).outputs
    expected = plain(llm, prompt, greedy(60))
    assert (got.token_ids, got.finish_reason) == (expected.token_ids, "out_of_blocks")
    llm = LLM(model, num_blocks=40)
    (prompt,) = prompts((250,))
    (got,) = speculative_generate(llm, prompt, PromptLookup(), greedy(60)).outputs
    assert (got.token_ids, got.finish_reason) == (plain(llm, prompt, greedy(60)).token_ids, "length")
    assert len(got.token_ids) == 6


def test_a_draft_with_a_smaller_pool_or_fewer_positions_guesses_while_it_can(model):
    llm = LLM(model, num_blocks=16)
    (prompt,) = prompts((9,))
    wanted = plain(llm, prompt, greedy(40)).token_ids
    short = ModelDraft(llm, tiny_model("llama", max_position_embeddings=24))
    for draft in (ModelDraft(llm, layers=4, num_blocks=6, block_size=4), short):
        assert draft.max_len == 24
        out = speculative_generate(llm, prompt, draft, greedy(40))
        assert out.outputs[0].token_ids == wanted
        assert out.stats.acceptance_rate == 1 and len(out.stats.rounds[-1].drafted) == 0


def test_statistics_tell_accepted_from_judged_from_drafted():
    stats = AcceptanceStats([Round((1, 2, 3), 1, (1, 9)), Round((1, 2, 3), 3, (1, 2, 3, 4)), Round((5,), 0, (6,))])
    assert (stats.target_passes, stats.num_tokens, stats.drafted, stats.judged, stats.accepted) == (3, 7, 7, 6, 4)
    assert stats.judged_at == [3, 2, 1] and stats.accepted_at == [2, 1, 1]
    assert stats.acceptance_rate == 4 / 6 and stats.tokens_per_pass == 7 / 3
    assert AcceptanceStats().tokens_per_pass == 0 and AcceptanceStats().acceptance_rate != 0


def test_expected_tokens_and_speedup():
    assert expected_tokens(0, 4) == 1 and expected_tokens(1, 4) == 5
    assert expected_tokens(0.8, 3) == pytest.approx((1 - 0.8**4) / (1 - 0.8))
    assert expected_speedup(0.8, 3, 0.1) == pytest.approx(expected_tokens(0.8, 3) / 1.3)
    assert expected_speedup(0.0, 4, 0.1) < 1 and expected_speedup(0.5, 0, 0.3) == 1


# ---- prompt lookup


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ([1, 2, 3, 9, 1, 2, 3], [9, 1]),  # three tokens match
        ([7, 3, 8, 5, 3, 9, 4, 3], [9, 4]),  # one token: its latest place
        ([5, 5, 5], [5]),  # no place is followed by two tokens: the earliest
        ([4, 4, 4, 4, 4, 4], [4, 4]),
        ([1, 2, 3], []),
        ([1], []),
    ],
)
def test_prompt_lookup_copies_what_followed_last_time(text, wanted):
    assert PromptLookup().propose(text, 2, SamplingParams(), None) == (wanted, None)


def test_prompt_lookup_prefers_the_longest_match_and_obeys_the_shortest():
    text = [1, 2, 3, 9, 7, 3, 8, 1, 2, 3]
    assert PromptLookup(3).propose(text, 1, SamplingParams(), None).token_ids == [9]
    assert PromptLookup(1).propose(text, 1, SamplingParams(), None).token_ids == [8]
    assert PromptLookup(3, min_ngram=2).propose([7, 3, 8, 5, 3], 1, SamplingParams(), None).token_ids == []


# ---- errors, and blocks afterwards


class Broken(Random):
    """Answers `reply(number of tokens)` in its second round, or raises it."""

    def __init__(self, reply):
        self.reply, self.calls = reply, 0

    def propose(self, token_ids, num_tokens, params, generator):
        self.calls += 1
        if self.calls < 2:
            return super().propose(token_ids, num_tokens, params, generator)
        if isinstance(self.reply, BaseException):
            raise self.reply
        return self.reply


UNIFORM = torch.full((1, VOCABULARY), 1 / VOCABULARY)


@pytest.mark.parametrize(
    ("reply", "error", "words"),
    [
        (None, DraftError, "propose returned None"),
        (Proposal([3] * 9), DraftError, "at most 4 tokens"),
        (Proposal([VOCABULARY]), DraftError, "proposed 97; token ids are ints from 0 to 96"),
        (Proposal([-1]), DraftError, "proposed -1"),
        (Proposal([1.5]), DraftError, "proposed 1.5"),
        (Proposal([3], UNIFORM[:, :-1]), DraftError, r"shape \[1, 96\].*not \[1, 97\]"),
        (Proposal([3, 4], UNIFORM), DraftError, r"shape \[1, 97\].*not \[2, 97\]"),
        (Proposal([3], torch.eye(VOCABULARY)[4:5]), DraftError, "probability 0"),
        (Proposal([3], UNIFORM * 0.02), DraftError, "sum to"),
        (Proposal([3], UNIFORM * 50), DraftError, "sum to"),
        (Proposal([3], UNIFORM.where(torch.arange(VOCABULARY) != 7, torch.nan)), DraftError, "sum to"),
        (
            Proposal([3], UNIFORM + 0.5 * (torch.eye(VOCABULARY)[5:6] - torch.eye(VOCABULARY)[6:7])),
            DraftError,
            "smallest",
        ),
        (Proposal([3], (UNIFORM * 0).long()), DraftError, "floating point"),
        (Proposal([3], [1.0]), DraftError, "have list"),
        (Proposal([True]), DraftError, "proposed True"),
        (Proposal(None), DraftError, "propose returned"),
        (RuntimeError("lost"), RuntimeError, "lost"),
        (KeyboardInterrupt(), KeyboardInterrupt, None),
    ],
)
def test_whatever_goes_wrong_half_way_all_blocks_are_free_and_the_engine_serves_on(model, reply, error, words):
    llm = LLM(model, num_blocks=8, block_size=4)
    (prompt,) = prompts((9,))
    wanted = plain(llm, prompt, greedy(12)).token_ids
    with pytest.raises(error, match=words):
        speculative_generate(llm, prompt, Broken(reply), greedy(12))
    assert llm.manager.num_used_blocks == 0 and llm.manager.seq_ids == []
    assert plain(llm, prompt, greedy(12)).token_ids == wanted
    assert speculative_generate(llm, prompt, None, greedy(12)).outputs[0].token_ids == wanted


def test_an_interrupted_pass_leaves_draft_and_target_empty(model, monkeypatch):
    llm = LLM(model, num_blocks=8)
    draft = ModelDraft(llm, layers=2)
    (prompt,) = prompts((9,))
    for runner in (llm.runner, draft.runner):
        with monkeypatch.context() as patch:
            calls, run = itertools.count(), runner.run

            def interrupted(batch, rows=None, calls=calls, run=run):
                if next(calls) == 2:
                    raise KeyboardInterrupt
                return run(batch, rows)

            patch.setattr(runner, "run", interrupted)
            with pytest.raises(KeyboardInterrupt):
                speculative_generate(llm, prompt, draft, greedy(30))
        assert llm.manager.num_used_blocks == draft.manager.num_used_blocks == 0
        assert draft.num_computed == 0
    monkeypatch.setattr(llm.runner, "run", lambda batch, rows=None: torch.full((len(rows), VOCABULARY), float("nan")))
    with pytest.raises(LogitsError):
        speculative_generate(llm, prompt, draft, greedy(3))
    assert llm.manager.num_used_blocks == draft.manager.num_used_blocks == 0


def test_a_stream_that_runs_in_the_same_pool_goes_on(model):
    class Letters:
        def decode(self, ids, **_):
            return "".join(chr(0x100 + i) for i in ids)

    llm = LLM(model, num_blocks=12)
    llm.tokenizer = Letters()
    first, second = prompts((9, 20))
    wanted = plain(llm, first, greedy(10)).token_ids
    other = plain(llm, second, greedy(14)).token_ids
    stream = llm.stream(first, greedy(10))
    pieces = [next(stream), next(stream)]
    assert speculative_generate(llm, second, None, greedy(14)).outputs[0].token_ids == other
    assert "".join(pieces + list(stream)) == Letters().decode(wanted)
    assert llm.manager.num_used_blocks == 0


class Busy(Random):
    """Uses the engine that it drafts for, or fails there."""

    def __init__(self, work):
        self.work = work

    def propose(self, token_ids, num_tokens, params, generator):
        self.work()
        return super().propose(token_ids, num_tokens, params, generator)


def test_a_draft_that_fails_harms_neither_a_stream_nor_the_prefix_cache(model):
    class Letters:
        def decode(self, ids, **_):
            return "".join(chr(0x100 + i) for i in ids)

    llm = LLM(model, num_blocks=30, block_size=4)
    llm.tokenizer = Letters()
    first, second = prompts((9, 20))
    wanted = plain(llm, first, greedy(10)).token_ids
    cached = llm.manager.cached_blocks
    stream = llm.stream(first, greedy(10))
    pieces = [next(stream)]
    with pytest.raises(DraftError):
        speculative_generate(llm, second, Broken(None), greedy(14))
    assert set(cached) <= set(llm.manager.cached_blocks)
    assert "".join(pieces + list(stream)) == Letters().decode(wanted)


def test_a_draft_may_use_the_engine_between_two_passes(model):
    llm = LLM(model, num_blocks=30, block_size=4)
    first, second = prompts((9, 20))
    wanted, other = (plain(llm, prompt, greedy(12)).token_ids for prompt in (first, second))
    seen = []
    draft = Busy(lambda: seen.append(plain(llm, second, greedy(12)).token_ids))
    assert speculative_generate(llm, first, draft, greedy(12)).outputs[0].token_ids == wanted
    assert seen and all(tokens == other for tokens in seen)
    assert llm.manager.num_used_blocks == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (dict(llm=None), "llm is NoneType"),
        (dict(prompt=[5, 6]), "prompt 0 is list"),
        (dict(prompt={"prompt_token_ids": []}), "prompt 0 is empty"),
        (dict(prompt={"prompt_token_ids": [VOCABULARY]}), "prompt 0 holds 97"),
        (dict(prompt="a text"), "without a tokenizer"),
        (dict(draft=3), "draft is int"),
        (dict(draft=PromptLookup), "draft is the class PromptLookup"),
        (dict(draft="lookup"), "draft is str; pass PromptLookup"),
        (dict(sampling_params=3), "sampling_params is 3"),
        (dict(num_draft_tokens=-1), "num_draft_tokens is -1"),
        (dict(num_draft_tokens=2.5), "num_draft_tokens is 2.5"),
        (dict(num_draft_tokens=True), "num_draft_tokens is True"),
    ],
)
def test_bad_input_is_refused_before_anything_runs(model, monkeypatch, change, words):
    llm = LLM(model, num_blocks=8)
    monkeypatch.setattr(llm.runner, "run", None)
    arguments = {"llm": llm, "prompt": prompts((5,))[0], "draft": None, "sampling_params": None} | change
    with pytest.raises(InvalidInputError, match=words):
        speculative_generate(**arguments)
    assert llm.manager.num_used_blocks == 0


def test_a_prompt_larger_than_the_pool_is_a_named_error_and_cancels_nobody(model):
    llm = LLM(model, num_blocks=2)
    with pytest.raises(OutOfBlocksError, match="a prompt of 40 tokens needs 3 blocks, and 2 of 2 are free"):
        speculative_generate(llm, prompts((40,))[0], None, greedy(3))


def test_drafts_that_cannot_fit_are_refused(model):
    llm = LLM(model, num_blocks=8)
    with pytest.raises(VocabularyMismatchError, match="knows 50 tokens and the target 97"):
        ModelDraft(llm, tiny_model("llama", vocab_size=50))
    other = LLM(tiny_model("llama", vocab_size=50), num_blocks=8)
    with pytest.raises(VocabularyMismatchError, match="make it for this engine"):
        speculative_generate(llm, prompts((5,))[0], ModelDraft(other, layers=1))
    for layers in (0, 5, [], [2, 1], [0, 4], [1, 1], "2", -1, 1.5):
        with pytest.raises(InvalidInputError):
            ModelDraft(llm, layers=layers)
    with pytest.raises(InvalidInputError, match="either model or layers"):
        ModelDraft(llm, model, layers=2)
    with pytest.raises(InvalidInputError, match="int is no transformers model"):
        ModelDraft(llm, 7)
    for bad in (dict(max_ngram=0), dict(max_ngram=1, min_ngram=2), dict(min_ngram=0), dict(max_ngram=1.5)):
        with pytest.raises(InvalidInputError):
            PromptLookup(**bad)


def test_equal_sizes_are_not_equal_vocabularies(model):
    class Tokenizer:
        def __init__(self, vocabulary):
            self.get_vocab = lambda: vocabulary

    from minipaged.speculative import refuse_other_vocabulary

    llm = LLM(model, num_blocks=8)
    llm.tokenizer = Tokenizer({"a": 0, "b": 1})
    refuse_other_vocabulary(llm, model, Tokenizer({"b": 1, "a": 0}))
    with pytest.raises(VocabularyMismatchError, match="not the same ones"):
        refuse_other_vocabulary(llm, model, Tokenizer({"a": 1, "b": 0}))


# ---- the course's model


def test_the_course_model_writes_the_same_with_every_draft(course_model):
    model, tokenizer = course_model
    llm = LLM(model, num_blocks=32)
    text = "Copy this list: apple, pear, plum, cherry, apple, pear, plum, cherry, apple, pear,"
    for prompt, draft in ((text, PromptLookup()), ("The capital of France is", ModelDraft(llm, layers=20))):
        prompt = {"prompt_token_ids": tokenizer(prompt).input_ids}
        out = speculative_generate(llm, prompt, draft, greedy(24))
        assert out.outputs[0].token_ids == plain(llm, prompt, greedy(24)).token_ids
        assert out.stats.target_passes < 24 and llm.manager.num_used_blocks == 0
