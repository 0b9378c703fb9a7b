"""Beam search on paged blocks writes what transformers' `num_beams` writes, and gives every block back."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from minipaged import beam_search as module
from minipaged.beam_search import BeamStep, InterruptedSearchError, beam_search
from minipaged.block_manager import BlockManager, OutOfBlocksError
from minipaged.engine import LLM
from minipaged.errors import InvalidInputError
from minipaged.sampling import LogitsError, SamplingParams
from minipaged.sharing import Saving
from tests.beams import assert_same_beams
from tests.interrupts import interrupt_at
from tests.tiny_models import tiny_ids, tiny_model

MANY_STOPS = (2, 17, *range(40, 48))  # of 97 tokens, 10 end a text: some texts end early


def ids_of(length, seed=0):
    return tiny_ids(length, seed=seed)[0].tolist()


def reference(model, ids, k, max_tokens, stops, **options):
    """transformers: [(new tokens, score)], the best first."""
    row = torch.tensor([ids])
    more = dict(options, return_dict_in_generate=True, output_scores=True, pad_token_id=0)
    more |= {"attention_mask": torch.ones_like(row), "eos_token_id": list(stops) or None}
    out = model.generate(row, max_new_tokens=max_tokens, num_beams=k, do_sample=False, **more)
    if k == 1:  # greedy: no scores of texts, and nothing behind the end
        return [(out.sequences[0, len(ids) :].tolist(), None)]
    lengths = (out.beam_indices >= 0).sum(dim=1).tolist()
    rows = zip(out.sequences.tolist(), lengths, out.sequences_scores.tolist(), strict=True)
    return [(row[len(ids) : len(ids) + length], score) for row, length, score in rows]


def search(llm, ids, k, max_tokens=12, stops=MANY_STOPS, **options):
    prompt = {"prompt_token_ids": ids}
    return beam_search(llm, prompt, k, max_tokens=max_tokens, stop_token_ids=stops, ignore_eos=True, **options)


def assert_same(found, wanted):
    assert [text.token_ids for text in found] == [token_ids for token_ids, _ in wanted]
    for text, (_, score) in zip(found, wanted, strict=True):
        assert score is None or text.score == pytest.approx(score, rel=1e-5)


@pytest.fixture(scope="module")
def model():
    return tiny_model("llama", num_hidden_layers=2)


@pytest.fixture(scope="module")
def exact_model():
    """In float64 from end to end, so that no two paths through it differ by a rounding that decides a near tie."""
    return tiny_model("gpt2", n_layer=2).double()


@pytest.fixture
def llm(model):
    llm = LLM(model, num_blocks=40, block_size=4)
    yield llm
    assert llm.manager.num_used_blocks == 0 and llm.scheduler.unfinished == 0


# ---- equal to transformers


@pytest.mark.parametrize("length_penalty", [0.0, 1.0, 2.0, -1.0])
@pytest.mark.parametrize("early_stopping", [False, True, "never"])
@pytest.mark.parametrize("k", [2, 4, 6])
def test_texts_and_scores_are_those_of_transformers(exact_model, k, early_stopping, length_penalty):
    """With texts that end before others do."""
    llm = LLM(exact_model, num_blocks=40, block_size=4)
    options = {"early_stopping": early_stopping, "length_penalty": length_penalty, "num_return_sequences": k}
    ids = ids_of(6, seed=3 if k == 4 else 7)
    out = search(llm, ids, k, record=True, **options)
    assert_same(out.sequences, reference(exact_model, ids, k, 12, MANY_STOPS, **options))
    assert any(step.finished for step in out.steps[:-1])


@pytest.mark.parametrize("block_size", [1, 3, 16])
@pytest.mark.parametrize("stops", [(), (2,), MANY_STOPS])
@pytest.mark.parametrize("k", [1, 2, 4, 6])
def test_neither_the_stop_tokens_nor_the_block_size_matter(model, k, stops, block_size):
    llm = LLM(model, num_blocks=160 // block_size, block_size=block_size, max_num_batched_tokens=5)
    ids = ids_of(11, seed=3)  # three chunks
    out = search(llm, ids, k, stops=stops, num_return_sequences=1)
    assert_same(out.sequences, reference(model, ids, k, 12, stops))
    assert llm.manager.num_used_blocks == 0


@pytest.fixture(scope="module")
def course_llm(course_model):
    llm = LLM(course_model[0], num_blocks=12)
    llm.tokenizer = course_model[1]
    yield llm
    assert llm.manager.num_used_blocks == 0


@pytest.mark.parametrize(("k", "texts"), [(1, 1), (2, 1), (4, 2), (6, 1)])
def test_the_course_model_writes_what_transformers_writes(course_llm, k, texts):
    for text in ("The capital of France is", "Once upon a time there was a small robot who")[:texts]:
        ids = course_llm.tokenizer(text).input_ids
        wanted = reference(course_llm.model, ids, k, 8, sorted(course_llm._eos))
        out = beam_search(course_llm, text, k, max_tokens=8, num_return_sequences=1)
        assert_same(out.sequences, wanted)
        best = out.sequences[0]
        assert best.tokens == ids + wanted[0][0] and out.prompt == text
        assert best.text == course_llm.tokenizer.decode(best.token_ids)


def test_one_beam_is_greedy_whatever_the_options(llm):
    """It ends with its text, and does not go on with the second best in the hope of a longer one."""
    ids = ids_of(6)
    greedy = search(llm, ids, 1, stops=()).sequences[0].token_ids
    stop = greedy[2]
    for options in ({}, {"early_stopping": "never", "length_penalty": 2.0}):
        out = search(llm, ids, 1, stops=(stop,), **options)
        assert_same(out.sequences, reference(llm.model, ids, 1, 12, (stop,)))
        assert out.num_steps == greedy.index(stop) + 1 and out.sequences[0].finish_reason == "stop"


def test_fewer_texts_are_the_best_of_more(llm):
    texts = search(llm, ids_of(7), 4).sequences
    assert len(texts) == 4  # as many as beams when not told
    assert [text.score for text in texts] == sorted((text.score for text in texts), reverse=True)
    for wanted in (1, 3, 4):
        assert_same_beams(search(llm, ids_of(7), 4, num_return_sequences=wanted).sequences, texts[:wanted])
    for text in texts:
        assert text.score == pytest.approx(text.cum_logprob / len(text.token_ids))
        stopped = text.token_ids[-1] in MANY_STOPS
        assert (text.finish_reason, text.stop_reason) == (("stop", text.token_ids[-1]) if stopped else ("length", None))


def test_the_sum_of_logprobs_is_what_the_model_says_of_the_text(llm, model):
    ids = ids_of(9, seed=4)
    for text in search(llm, ids, 3).sequences:
        with torch.no_grad():
            logprobs = model(torch.tensor([text.tokens])).logits[0].log_softmax(-1)  # [length, vocab]
        new = range(len(ids), len(text.tokens))
        assert text.cum_logprob == pytest.approx(sum(logprobs[i - 1, text.tokens[i]].item() for i in new), rel=1e-4)


def test_more_beams_find_more_probable_texts_than_greedy_mostly(llm):
    better = 0
    for seed in range(8):
        greedy, wide = (search(llm, ids_of(6, seed), k, stops=()).sequences[0].cum_logprob for k in (1, 6))
        better += wide > greedy + 1e-3
    assert better >= 6


# ---- blocks


def test_every_step_frees_and_forks_and_no_shared_block_is_written(llm):
    out = search(llm, ids_of(6), 4, stops=(), record=True)
    previous, crossed, copied = None, 0, 0
    assert [step.number for step in out.steps] == list(range(1, 13)) and out.num_steps == 12
    for step in out.steps[:-1]:
        named = list(itertools.chain.from_iterable(step.block_tables))
        assert step.ref_counts == {block: named.count(block) for block in named}
        assert {len(table) for table in step.block_tables} == {-(-(6 + step.number) // 4)}
        assert all(step.ref_counts[table[-1]] == 1 for table in step.block_tables)  # each writes into its own
        assert max(step.ref_counts.values()) == 4  # the prompt's full block belongs to all
        if previous:
            crossed += step.parents != list(range(4))
            full = (5 + step.number) // 4
            for table, parent in zip(step.block_tables, step.parents, strict=True):
                assert table[:full] == previous.block_tables[parent][:full]
        copied += len(step.copies)
        previous = step
    assert crossed > 3 and copied > 3
    last = out.steps[-1]
    assert not last.parents and not last.block_tables and len(last.finished) == 4
    assert {round(beam.score, 5) for beam in last.finished} == {round(text.score, 5) for text in out.sequences}


def test_the_tree_leads_back_from_every_text_to_the_prompt(llm):
    out = search(llm, ids_of(8, seed=2), 3, record=True)
    found = {}
    for step in out.steps:
        for beam in step.finished:
            token_ids, at = [beam.token_id], beam.parent
            for earlier in reversed(out.steps[: step.number - 1]):
                token_ids.insert(0, earlier.token_ids[at])
                at = earlier.parents[at]
            assert at == 0
            found[tuple(token_ids)] = beam.score
    assert len(found) >= 3
    for text in out.sequences:
        assert found[tuple(text.token_ids)] == text.score


def test_sharing_saves_most_of_what_separate_beams_would_need(llm):
    out = search(llm, ids_of(30), 4, stops=(), record=True)
    saving = Saving.of_tables(step.block_tables for step in out.steps)
    assert 0.5 < saving.fraction < 0.75
    assert saving.blocks_alone == sum(4 * -(-(30 + number) // 4) for number in range(1, 12))


def test_one_packed_pass_a_step(llm, monkeypatch):
    batches, run = [], llm.runner.run
    monkeypatch.setattr(llm.runner, "run", lambda batch: batches.append(batch) or run(batch))
    out = search(llm, ids_of(9), 5, stops=())
    assert [len(batch.input_ids) for batch in batches] == [9] + [5] * 11 and out.num_steps == 12
    assert len({tuple(text.token_ids) for text in out.sequences}) == 5


def test_a_listener_sees_what_a_record_keeps_and_may_end_the_search(llm):
    heard: list[BeamStep] = []
    kept = search(llm, ids_of(6), 3, record=True, on_step=heard.append)
    assert heard == kept.steps and search(llm, ids_of(6), 3).steps == []

    def refuse(step):
        if step.number == 4:
            raise RuntimeError("seen enough")

    with pytest.raises(RuntimeError, match="seen enough"):
        search(llm, ids_of(6), 3, stops=(), on_step=refuse)


@pytest.mark.parametrize("num_blocks", range(1, 14))
def test_a_pool_that_is_too_small_is_named_and_nothing_is_lost(model, num_blocks):
    """6 prompt tokens in blocks of 4: the prompt needs 2 blocks; 3 beams of 17 tokens at most 3 x 4 + 1."""
    llm = LLM(model, num_blocks=num_blocks, block_size=4)
    roomy = search(LLM(model, num_blocks=40, block_size=4), ids_of(6), 3, stops=())
    try:
        assert search(llm, ids_of(6), 3, stops=()) == roomy
    except OutOfBlocksError as error:
        assert num_blocks < 13
        assert ("the prompt's 6 tokens find no room" if num_blocks < 2 else "3 beams of ") in str(error)
        assert f"of {num_blocks} blocks are free" in str(error) and "num_blocks" in str(error)
    else:
        assert num_blocks > 4
    assert llm.manager.num_used_blocks == 0 and llm.manager.seq_ids == []


# ---- beside the engine's own requests


def test_requests_go_on_as_if_nothing_had_been(course_llm):
    llm, params = course_llm, SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    alone = "".join(llm.stream("Once upon a time", params))
    stream = llm.stream("Once upon a time", params)
    pieces = [next(stream), next(stream)]
    texts = beam_search(llm, "The sky is", 2, max_tokens=3).sequences
    with pytest.raises(OutOfBlocksError, match="the prompt's 190 tokens find no room.* 1 unfinished requests hold"):
        beam_search(llm, {"prompt_token_ids": [5] * 190}, 2)
    with pytest.raises(OutOfBlocksError, match="2 beams of 161 tokens need 2 more blocks: [01] of 12 blocks are free"):
        beam_search(llm, {"prompt_token_ids": [5] * 159}, 2, max_tokens=40, ignore_eos=True)
    assert "".join([*pieces, *stream]) == alone
    assert llm.manager.num_used_blocks == 0
    assert_same_beams(beam_search(llm, "The sky is", 2, max_tokens=3).sequences, texts)


def test_a_prompt_that_is_cached_is_not_computed_again_and_nothing_changes(llm, monkeypatch):
    ids, batches, run = ids_of(11), [], llm.runner.run
    monkeypatch.setattr(llm.runner, "run", lambda batch, *rows: batches.append(batch) or run(batch, *rows))
    first = search(llm, ids, 3)
    assert len(batches[0].input_ids) == 11
    batches.clear()
    assert_same_beams(search(llm, ids, 3).sequences, first.sequences)
    assert batches[0].input_ids == ids[8:]  # two full blocks of 4 were there
    (output,) = llm.generate({"prompt_token_ids": ids}, SamplingParams(temperature=0, max_tokens=2), use_tqdm=False)
    assert output.num_cached_tokens == 8
    fresh = LLM(llm.model, num_blocks=40, block_size=4, enable_prefix_caching=False)
    assert search(fresh, ids, 3) == first


def test_a_search_says_so_when_the_engine_has_started_empty(llm):
    def restart(step):
        llm._start_empty()

    with pytest.raises(InterruptedSearchError, match="start the search again"):
        search(llm, ids_of(6), 3, on_step=restart)


def of_the_search(name):
    """A file in which a search changes something."""
    return name.endswith(("beam_search.py", "engine.py", "block_manager.py", "sharing.py"))


def test_ctrl_c_between_any_two_lines_leaves_every_block_free_and_the_next_search_right():
    small = LLM(tiny_model("llama", num_hidden_layers=1), num_blocks=12, block_size=2)
    call = lambda: search(small, ids_of(3), 2, max_tokens=3, stops=())
    wanted, where = call(), 1
    while interrupt_at(call, where, of_the_search):
        small._whole_again()  # what the next call does first
        assert small.manager.num_used_blocks == 0 and small.manager.seq_ids == [], where
        where += 5
    assert where > 200 and call() == wanted


# ---- input that cannot be right


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_beams": 0}, "num_beams is 0; it must be a whole number of at least 1"),
        ({"num_beams": 2.5}, "num_beams is 2.5"),
        ({"num_beams": True}, "num_beams is True"),
        ({"num_beams": 98}, "num_beams is 98; the vocabulary has 97 tokens"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"early_stopping": "always"}, "early_stopping is 'always'; use True, False or \"never\""),
        ({"early_stopping": 1}, "early_stopping is 1"),
        ({"early_stopping": None}, "early_stopping is None"),
        ({"length_penalty": math.nan}, "length_penalty is nan"),
        ({"length_penalty": "1"}, "length_penalty is '1'"),
        ({"length_penalty": 1e6}, "length_penalty is 1000000.0"),
        ({"length_penalty": 10**400}, "length_penalty is 10000"),
        ({"on_step": 5}, "on_step is 5; pass a function"),
        ({"on_step": ""}, "on_step is ''; pass a function"),
        ({"llm": "gpt2"}, "llm is str; pass the engine"),
        ({"llm": None}, "llm is NoneType; pass the engine"),
        ({"num_return_sequences": 4}, "num_return_sequences is 4 with 3 beams"),
        ({"num_return_sequences": 0}, "num_return_sequences is 0"),
        ({"stop_token_ids": 5}, "stop_token_ids is 5"),
        ({"ignore_eos": "no"}, "ignore_eos is 'no'"),
        ({"prompt": {"prompt_token_ids": []}}, "prompt 0 is empty"),
        ({"prompt": {"prompt_token_ids": [97]}}, "prompt 0 holds 97"),
        ({"prompt": {"prompt_token_ids": [5] * 256}}, "prompt 0 has 256 tokens; the model takes 256"),
        ({"prompt": ["one", "two"]}, "prompt 0 is list"),
        ({"prompt": "a text"}, "without a tokenizer"),
    ],
)
def test_input_that_cannot_be_right_is_named(llm, options, words):
    arguments = {"llm": llm, "prompt": {"prompt_token_ids": [5, 6]}, "num_beams": 3, **options}
    with pytest.raises(InvalidInputError, match=words):
        beam_search(**arguments)


def test_the_model_s_length_ends_a_search(model):
    out = search(LLM(model, num_blocks=80, block_size=4), [5] * 250, 2, max_tokens=50, stops=())
    assert out.num_steps == 6 and all(len(text.tokens) == 256 for text in out.sequences)
    assert {text.finish_reason for text in out.sequences} == {"length"}


def test_as_many_beams_as_tokens_still_rank_all_of_them(llm):
    out = search(llm, [5], 97, max_tokens=1, stops=())
    assert sorted(text.token_ids[0] for text in out.sequences) == list(range(97))


def test_nan_is_refused_and_not_ranked(llm, monkeypatch):
    run = llm.runner.run
    monkeypatch.setattr(llm.runner, "run", lambda batch: run(batch) * math.nan)
    with pytest.raises(LogitsError, match="NaN"):
        search(llm, [5, 6], 2)


# ---- broken on purpose


def without_copies(monkeypatch, exact_model):
    """Copy-on-write that names the copies to make, and nobody makes them."""
    monkeypatch.setattr("minipaged.paged_cache.PagedKVCache.copy_blocks", lambda self, pairs: None)


def without_copy_on_write(monkeypatch, exact_model):
    monkeypatch.setattr(BlockManager, "_tail_is_shared", lambda self, seq_id: False)


def with_another_penalty(monkeypatch, exact_model):
    monkeypatch.setattr(module._Rules, "score", lambda self, cum, length: cum / (length + 1) ** self.length_penalty)


def with_no_spares(monkeypatch, exact_model):
    monkeypatch.setattr(module._Rules, "num_candidates", property(lambda self: self.num_beams))


def with_texts_forgotten(monkeypatch, exact_model):
    """Only what ends in the last step counts."""
    monkeypatch.setattr(module._Rules, "best_texts", lambda self, finished, ended: ended)


PARTS = [without_copies, without_copy_on_write, with_another_penalty, with_no_spares, with_texts_forgotten]


@pytest.mark.parametrize("broken", PARTS)
def test_each_part_is_needed(exact_model, broken, monkeypatch):
    """Switched off on purpose, the search no longer writes what transformers writes, or is refused."""
    llm = LLM(exact_model, num_blocks=60, block_size=4)
    options = {"num_return_sequences": 2, "early_stopping": "never"}
    wanted = {s: reference(exact_model, ids_of(6, s), 2, 12, MANY_STOPS, **options) for s in (3, 7, 9)}
    for seed, texts in wanted.items():
        assert_same(search(llm, ids_of(6, seed), 2, **options).sequences, texts)
    broken(monkeypatch, exact_model)
    with pytest.raises((AssertionError, InvalidInputError)):
        for seed, texts in wanted.items():
            assert_same(search(llm, ids_of(6, seed), 2, **options).sequences, texts)
