"""Every request writes what it would write alone, whatever the budget, the chunks, and who has to give way."""

from __future__ import annotations

import gc
import hashlib
import itertools
import json
import random
import threading
import tracemalloc
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from minipaged.beam_search import beam_search
from minipaged.block_manager import OutOfBlocksError
from minipaged.engine import LLM, EngineBusyError, InterruptedStreamError, UnfinishedStreamError
from minipaged.errors import InvalidInputError, MinipagedError
from minipaged.sampling import LogitsError, SamplingParams
from minipaged.speculative import speculative_generate
from tests.beams import assert_same_beams
from tests.calls import count_calls
from tests.interrupts import interrupt_at
from tests.tiny_models import tiny_model

CASES = Path(__file__).parent / "cases"


def greedy(max_tokens, **more):
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, **more)


def prompts(lengths, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [{"prompt_token_ids": torch.randint(3, 97, (n,), generator=generator).tolist()} for n in lengths]


def tokens(outputs):
    return [one.token_ids for output in outputs for one in output.outputs]


@pytest.fixture(scope="module")
def model():
    return tiny_model("llama")


LENGTHS, WANTED = (34, 3, 17, 1, 29, 8), (35, 12, 20, 30, 9, 25)


@pytest.fixture(scope="module")
def alone(model):
    """What transformers' generate writes for each prompt."""
    out = []
    for prompt, n in zip(prompts(LENGTHS), WANTED, strict=True):
        ids = torch.tensor([prompt["prompt_token_ids"]])
        out.append(
            model.generate(ids, max_new_tokens=n, do_sample=False, eos_token_id=None)[0, ids.shape[1] :].tolist()
        )
    return out


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
@pytest.mark.parametrize("chunk", [1, 7, 16, 512])
@pytest.mark.parametrize("num_blocks", [5, 7, 9, 40])
def test_greedy_output_equals_generate_for_every_budget_chunk_and_preemption(
    model, alone, preemption, chunk, num_blocks
):
    llm = LLM(model, num_blocks=num_blocks, max_num_batched_tokens=chunk, preemption=preemption, num_host_blocks=6)
    outputs = llm.generate(prompts(LENGTHS), [greedy(n) for n in WANTED], use_tqdm=False)
    assert tokens(outputs) == alone
    assert [o.outputs[0].finish_reason for o in outputs] == ["length"] * len(LENGTHS)
    assert llm.manager.num_free_blocks == num_blocks and llm.scheduler.unfinished == 0
    if num_blocks == 7 and chunk == 512:
        assert sum(step.num_preempted for step in llm.stats) > 0
        assert preemption == "recompute" or max(step.num_swapped for step in llm.stats) > 0


@pytest.mark.parametrize("batching", ["static", "continuous"])
@pytest.mark.parametrize("reserve", ["max_len", "on_demand"])
def test_each_idea_turned_off_changes_no_token(model, alone, batching, reserve):
    llm = LLM(model, num_blocks=12, batching=batching, reserve=reserve)
    assert tokens(llm.generate(prompts(LENGTHS), [greedy(n) for n in WANTED], use_tqdm=False)) == alone
    if batching == "static":  # nobody joins a batch that has begun
        running = [step.num_running for step in llm.stats]
        joined = [i for i, (a, b) in enumerate(itertools.pairwise(running), 1) if b > a]
        assert all(llm.stats[i].num_tokens > llm.stats[i].num_running for i in joined) and len(joined) < len(LENGTHS)


def test_the_concrete_case_of_two_requests_in_seven_blocks(model):
    """Block 16, prompts of 34 tokens, 35 new ones: each ends with 5 blocks, so 7 cannot hold both to the end."""
    two = prompts((34, 34), seed=5)
    roomy = tokens(LLM(model, num_blocks=40).generate(two, greedy(35), use_tqdm=False))
    llm = LLM(model, num_blocks=7)
    assert tokens(llm.generate(two, greedy(35), use_tqdm=False)) == roomy
    assert sum(step.num_preempted for step in llm.stats) == 1


def test_the_course_model_gives_the_known_digest_for_the_serving_case(course_model):
    """As transformers' continuous batching and vLLM give for these 32 requests, in a pool that must preempt or not."""
    work = json.loads((CASES / "serving_32.json").read_text())
    for num_blocks in (128, 40):
        llm = LLM(course_model[0], num_blocks=num_blocks)
        outputs = llm.generate(
            [{"prompt_token_ids": w["prompt"]} for w in work], [greedy(w["max_tokens"]) for w in work], use_tqdm=False
        )
        assert hashlib.sha256(json.dumps(tokens(outputs)).encode()).hexdigest()[:12] == "14410879554c"


def test_sampled_output_with_a_seed_does_not_depend_on_the_company(model):
    params = [SamplingParams(temperature=1.0, top_p=0.9, seed=s, max_tokens=15, ignore_eos=True) for s in range(6)]
    together = tokens(LLM(model, num_blocks=9).generate(prompts(LENGTHS), params, use_tqdm=False))
    llm = LLM(model, num_blocks=40)
    alone = [tokens(llm.generate(p, s, use_tqdm=False))[0] for p, s in zip(prompts(LENGTHS), params, strict=True)]
    assert together == alone
    three = SamplingParams(n=3, seed=7, max_tokens=9, ignore_eos=True)
    lone = [SamplingParams(seed=7 + i, max_tokens=9, ignore_eos=True) for i in range(3)]
    prompt = prompts((5,))[0]
    assert tokens(llm.generate(prompt, three, use_tqdm=False)) == tokens(
        llm.generate([prompt] * 3, lone, use_tqdm=False)
    )


def test_results_come_in_the_order_of_the_prompts_call_after_call(model, alone):
    """Behaviour 14: a second call loses nothing."""
    llm = LLM(model, num_blocks=12)
    for _ in range(3):
        assert tokens(llm.generate(prompts(LENGTHS), [greedy(n) for n in WANTED], use_tqdm=False)) == alone
    assert llm.generate([], use_tqdm=False) == []


def test_a_request_that_never_fits_is_refused_and_the_others_run(model, alone):
    """Behaviours 6 and 13."""
    llm = LLM(model, num_blocks=3, block_size=16)
    outputs = llm.generate(prompts((60, 3, 17, 1)), [greedy(5), greedy(12), greedy(60), greedy(30)], use_tqdm=False)
    refused, *others = [o.outputs[0] for o in outputs]
    assert refused.finish_reason == "refused" and "60 tokens need 4 blocks" in refused.stop_reason
    assert [o.finish_reason for o in others] == ["length", "out_of_blocks", "length"]
    assert "fill the whole pool of 3 blocks" in others[1].stop_reason
    assert len(others[1].token_ids) == 48 - 17 + 1
    assert llm.manager.num_free_blocks == 3


@pytest.mark.parametrize(
    ("prompt", "params", "words"),
    [
        ({"prompt_token_ids": []}, None, "prompt 1 is empty"),
        ({"prompt_token_ids": [97]}, None, "prompt 1 holds 97; token ids are whole numbers from 0 to 96"),
        ({"prompt_token_ids": [-1]}, None, "prompt 1 holds -1"),
        ({"prompt_token_ids": [1.5]}, None, "prompt 1 holds 1.5"),
        ({"prompt_token_ids": [5] * 300}, None, "prompt 1 has 300 tokens; the model takes 256"),
        ("a text", None, "without a tokenizer"),
        (7, None, "prompt 1 is int"),
        (None, None, "prompt 1 is NoneType"),
        (b"bytes", None, "prompt 1 is bytes"),
        ([5, 6], None, "prompt 1 is list"),
        ({}, None, "prompt 1 is dict"),
        ({"prompt": 5}, None, "prompt 1 is dict"),
        ({"prompt_token_ids": 5}, None, "prompt 1 is 5; pass a list"),
        ({"prompt_token_ids": None}, None, "prompt 1 is None; pass a list"),
        ({"prompt_token_ids": "5 6"}, None, "prompt 1 is '5 6'; pass a list"),
        ({"prompt_token_ids": torch.tensor(5)}, None, "prompt 1 is 5; pass a list"),
        ({"prompt_token_ids": torch.tensor([[5, 6]])}, None, "prompt 1 holds \\[5, 6\\]"),
        ({"prompt_token_ids": [float("nan")]}, None, "prompt 1 holds nan"),
        ({"prompt_token_ids": [True]}, None, "prompt 1 holds True"),
        ({"prompt_token_ids": [None]}, None, "prompt 1 holds None"),
        ({"prompt_token_ids": [2**70]}, None, "prompt 1 holds 1180591620717411303424"),
        ({"prompt_token_ids": [5]}, 3, "sampling_params is 3; pass a list"),
        ({"prompt_token_ids": [5]}, {"max_tokens": 3}, "sampling_params is {'max_tokens': 3}; pass a list"),
        ({"prompt_token_ids": [5]}, [None, None], "sampling_params 0 is NoneType"),
        ({"prompt_token_ids": [5]}, [SamplingParams()], "2 prompts and 1 sampling_params"),
        ({"prompt_token_ids": [5]}, [SamplingParams(), 3], "sampling_params 1 is int"),
        ({"prompt_token_ids": [5]}, torch.tensor(3), "sampling_params is 3; pass a list"),
        ({"prompt_token_ids": torch.tensor(3)}, None, "prompt 1 is 3; pass a list"),
        ({"prompt_token_ids": torch.zeros(2, dtype=torch.long, device="meta")}, None, "prompt 1 is tensor"),
        ({"prompt_token_ids": [10**5000]}, None, "prompt 1 holds a value of type int"),
        ({"prompt_token_ids": [torch.zeros(2)]}, None, "prompt 1 holds tensor"),
    ],
)
def test_bad_input_is_refused_before_anything_runs(model, prompt, params, words):
    llm = LLM(model, num_blocks=8)
    with pytest.raises(InvalidInputError, match=words):
        llm.generate([{"prompt_token_ids": [5]}, prompt], params, use_tqdm=False)
    assert llm.stats == [] and llm.scheduler.unfinished == 0 and llm.manager.num_free_blocks == 8


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (dict(num_blocks=0), "num_blocks is 0"),
        (dict(block_size=0), "block_size is 0"),
        (dict(max_num_seqs=0), "max_num_seqs is 0"),
        (dict(max_num_batched_tokens=0), "max_num_batched_tokens is 0"),
        (dict(preemption="drop"), "preemption is 'drop'"),
        (dict(batching="dynamic"), "batching is 'dynamic'"),
        (dict(reserve="some"), "reserve is 'some'"),
        (dict(num_host_blocks=-1), "num_host_blocks is -1"),
        (dict(num_blocks=2.5), "num_blocks is 2.5"),
        (dict(num_blocks="8"), "num_blocks is '8'"),
        (dict(block_size=True), "block_size is True"),
        (dict(seed=None), "seed is None"),
        (dict(enable_prefix_caching="no"), "enable_prefix_caching is 'no'; use True or False"),
        (dict(seed=-3), "seed is -3"),
        (dict(attention_backend="flash"), "unknown backend 'flash'"),
        (dict(attention_backend=np.array(["torch", "auto"])), "unknown backend array"),
        (dict(num_blocks=torch.tensor([8, 9])), "num_blocks is tensor"),
        (dict(num_blocks=10**5000), "num_blocks is a value of type int"),
        (dict(reserve=np.array(["max_len", "x"])), "reserve is array"),
    ],
)
def test_bad_options_are_refused_by_name(model, options, words):
    with pytest.raises(InvalidInputError, match=words):
        LLM(model, **{"num_blocks": 8, **options})


def test_other_things_that_cannot_be_right_are_named(model):
    llm = LLM(model, num_blocks=8)
    for prompts_ in (None, 7, 2.5, torch.tensor(3), 10**5000):
        with pytest.raises(InvalidInputError, match="prompts is"):
            llm.generate(prompts_, use_tqdm=False)
    with pytest.raises(InvalidInputError, match="use_tqdm is tensor"):
        llm.generate({"prompt_token_ids": [5]}, use_tqdm=torch.zeros(2))
    LLM(model, num_blocks=np.int64(8), block_size=np.int64(4), seed=np.int64(3)).generate(
        {"prompt_token_ids": [np.int64(5)]}, greedy(2), use_tqdm=False)  # fmt: skip
    with pytest.raises(InvalidInputError, match="without a chat template"):
        llm.chat([{"role": "user", "content": "hi"}])
    with pytest.raises(InvalidInputError, match="without a tokenizer"):
        llm.stream("hi")
    for wrong in (dict(n=0), dict(max_tokens=0), dict(top_p=0), dict(top_p=1.1), dict(temperature=-1),
                  dict(temperature=float("nan"))):  # fmt: skip
        with pytest.raises(InvalidInputError, match=next(iter(wrong))):
            SamplingParams(**wrong)
    with pytest.raises(InvalidInputError, match="not a transformers model"):
        LLM(torch.nn.Linear(2, 2), num_blocks=8)
    ids = np.array([5, 6, 7])  # and what is right in another dress is taken
    same = [{"prompt_token_ids": each} for each in (ids, torch.tensor([5, 6, 7]), (5, 6, 7), list(ids))]
    assert len({tuple(t) for t in tokens(llm.generate(same, greedy(5), use_tqdm=False))}) == 1


def test_conversations_that_cannot_be_right_are_named(course_model):
    llm = LLM(num_blocks=8, device="cpu")
    for messages, words in [
        ("hello", "messages is 'hello'"),
        (["hello"], "conversation 0 is 'hello'"),
        ([{"role": "user"}], "conversation 0 holds"),
        ([[{"role": "user", "content": "a"}], [3]], "conversation 1 holds 3"),
        (None, "messages is None"),
    ]:
        with pytest.raises(InvalidInputError, match=words):
            llm.chat(messages, use_tqdm=False)
    assert llm.chat([], use_tqdm=False) == []
    with pytest.raises(InvalidInputError, match="prompt 0 is empty"):
        llm.generate("", use_tqdm=False)
    with pytest.raises(InvalidInputError, match="n is 2; a stream shows one text"):
        llm.stream("a", SamplingParams(n=2))


def test_ctrl_c_leaves_the_engine_usable_and_every_block_free(model, alone, monkeypatch):
    llm = LLM(model, num_blocks=12)
    run, calls = llm.runner.run, []

    def interrupted(*args):
        calls.append(args)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return run(*args)

    monkeypatch.setattr(llm.runner, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(prompts(LENGTHS), greedy(30), use_tqdm=False)
    assert llm.manager.num_free_blocks == 12 and llm.scheduler.unfinished == 0
    monkeypatch.undo()
    assert tokens(llm.generate(prompts(LENGTHS), [greedy(n) for n in WANTED], use_tqdm=False)) == alone


def test_stops_logprobs_and_text(course_model):
    model, tokenizer = course_model
    llm = LLM(num_blocks=32, device="cpu")
    (out,) = llm.generate(
        "The capital of France is", SamplingParams(temperature=0, max_tokens=8, logprobs=2), use_tqdm=False
    )
    one = out.outputs[0]
    assert one.text.startswith(" Paris.") and one.text == tokenizer.decode(one.token_ids, skip_special_tokens=True)
    with torch.no_grad():
        ids = torch.tensor([out.prompt_token_ids + one.token_ids])
        dense = model(ids).logits[0].log_softmax(-1)
    for i, (token, entry) in enumerate(zip(one.token_ids, one.logprobs, strict=True)):
        row = dense[len(out.prompt_token_ids) + i - 1]
        assert token in entry and abs(entry[token] - row[token].item()) < 1e-3 and len(entry) == 2
    assert abs(one.cumulative_logprob - sum(e[t] for t, e in zip(one.token_ids, one.logprobs, strict=True))) < 1e-6
    stop = one.token_ids[2]
    again = llm.generate(
        "The capital of France is", SamplingParams(temperature=0, stop_token_ids=[stop]), use_tqdm=False
    )
    assert again[0].outputs[0].token_ids == one.token_ids[:3]
    assert (again[0].outputs[0].finish_reason, again[0].outputs[0].stop_reason) == ("stop", stop)
    pieces = list(llm.stream("The capital of France is", SamplingParams(temperature=0, max_tokens=8)))
    assert "".join(pieces) == one.text and len(pieces) > 2
    (chat,) = llm.chat([{"role": "user", "content": "What is the capital of France?"}], greedy(7), use_tqdm=False)
    assert chat.outputs[0].text == "The capital of France is Paris."


def test_a_stream_that_is_dropped_gives_its_blocks_back(course_model):
    llm = LLM(num_blocks=32, device="cpu")
    stream = llm.stream("Once upon a time", SamplingParams(temperature=0, max_tokens=50))
    next(stream)
    assert llm.manager.num_free_blocks < 32
    stream.close()
    assert llm.manager.num_free_blocks == 32 and llm.scheduler.unfinished == 0


def test_without_num_blocks_a_share_of_the_memory_is_taken(model):
    llm = LLM(model, max_num_seqs=3)
    assert llm.manager.num_blocks == 3 * 256 // 16


def test_a_block_that_does_not_fit_says_how_much_is_free(model, monkeypatch):
    monkeypatch.setattr("minipaged.engine._memory_share", lambda device: 1000.0)
    with pytest.raises(InvalidInputError, match="does not fit the 1,000 bytes that the pool may take"):
        LLM(model)


def of_the_bookkeeping(name):
    """A file of the package in which Ctrl-C could leave numbers that do not agree."""
    return "minipaged" in name and not name.endswith(("model_runner.py", "paged_attention.py", "paged_cache.py"))


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_ctrl_c_between_any_two_lines_leaves_every_block_free_and_the_next_call_right(preemption):
    """Inside queueing, scheduling, swapping, choosing, forgetting: lines spread over a whole call."""
    small = tiny_model("llama", num_hidden_layers=1)
    llm = LLM(small, num_blocks=5, block_size=4, preemption=preemption, num_host_blocks=4)
    work = prompts((6, 5, 3))
    serve = lambda: tokens(llm.generate(work, greedy(6), use_tqdm=False))
    wanted = serve()
    assert sum(step.num_preempted for step in llm.stats) > 0
    where, interrupted = 1, 0
    while interrupt_at(serve, where, of_the_bookkeeping):
        interrupted += 1
        llm._whole_again()  # what the next call does first; only a Ctrl-C in the very last lines needs it
        assert llm.manager.num_free_blocks == 5 and llm.scheduler.unfinished == 0, where
        assert len(llm.manager.host_pool.free_ids) == 4 and not llm._samples
        if interrupted % 12 == 0:
            assert serve() == wanted
        where += 7
    assert interrupted > 60 and serve() == wanted


def test_streams_and_generate_may_take_turns(course_model):
    llm = LLM(num_blocks=64, device="cpu")
    texts, params = ["The capital of France is", "Once upon a time"], SamplingParams(temperature=0, max_tokens=12)
    wanted = [o.outputs[0].text for o in llm.generate(texts, params, use_tqdm=False)]
    first, second = (llm.stream(text, params) for text in texts)
    got = ["", ""]
    got[0] += next(first)
    got[1] += next(second)
    (third,) = llm.generate(texts[0], params, use_tqdm=False)  # moves both streams to their ends
    got[0] += "".join(first)
    got[1] += "".join(second)
    assert got == wanted and third.outputs[0].text == wanted[0]
    assert llm.manager.num_free_blocks == 64 and not llm._samples


def test_a_stream_says_so_when_another_call_was_interrupted(course_model, monkeypatch):
    llm = LLM(num_blocks=64, device="cpu")
    stream = llm.stream("Once upon a time", SamplingParams(temperature=0, max_tokens=12))
    next(stream)

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(llm.runner, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate("Hello", use_tqdm=False)
    monkeypatch.undo()
    assert llm.manager.num_free_blocks == 64
    with pytest.raises(InterruptedStreamError, match="start the stream again"):
        list(stream)
    assert issubclass(InterruptedStreamError, MinipagedError)


class Letters:
    """A tokenizer that writes one letter a token."""

    def decode(self, ids, **_):
        return "".join(chr(33 + i) for i in ids)


def writer(model, **options):
    """An engine that can stream."""
    llm = LLM(model, **{"num_blocks": 60, "block_size": 4, **options})
    llm.tokenizer = Letters()
    return llm


def while_running(llm, monkeypatch, call):
    """Let `call` happen once, in the middle of the next step."""
    run, calls = llm.runner.run, [call]

    def run_with_a_call(*args):
        if calls:
            calls.pop()()
        return run(*args)

    monkeypatch.setattr(llm.runner, "run", run_with_a_call)


@pytest.mark.parametrize("thread", [False, True])
@pytest.mark.parametrize("other", ["generate", "stream", "beam search"])
def test_a_stream_that_is_collected_in_the_middle_of_another_call_s_step_disturbs_nobody(
    model, monkeypatch, other, thread
):
    """The garbage collector runs at any moment, also in another thread."""
    llm, prompt = writer(model), prompts((6,))[0]
    call = {
        "generate": lambda: tokens(llm.generate(prompt, greedy(20), use_tqdm=False)),
        "stream": lambda: list(llm.stream(prompt, greedy(20))),
        "beam search": lambda: beam_search(llm, prompt, 3, max_tokens=6, ignore_eos=True).sequences,
    }[other]
    wanted = call()
    kept = llm.stream(prompts((5,))[0], greedy(9))
    pieces, dropped = [next(kept)], llm.stream(prompts((3,))[0], greedy(40))
    next(dropped)
    cycle = [dropped]
    cycle.append(cycle)
    del dropped, cycle

    def collect():
        if not thread:
            gc.collect()
            return
        other_thread = threading.Thread(target=gc.collect)
        other_thread.start()
        other_thread.join()

    manager = llm.manager
    while_running(llm, monkeypatch, collect)
    assert call() == wanted and llm.manager is manager
    assert len(llm._samples) <= 1  # the dropped one is forgotten
    assert len("".join([*pieces, *kept])) == 9
    assert llm.manager.num_used_blocks == 0 and llm.scheduler.unfinished == 0


def test_a_call_from_inside_a_step_is_refused_by_name_and_everything_goes_on(model, monkeypatch):
    llm, (prompt, second) = writer(model), prompts((6, 4))
    wanted = tokens(llm.generate(prompt, greedy(9), use_tqdm=False))
    text = "".join(llm.stream(second, greedy(12)))
    stream, refused = llm.stream(second, greedy(12)), []
    pieces = [next(stream)]

    def all_that_can_be_called():
        for call in (
            lambda: llm.generate(prompt, greedy(3), use_tqdm=False),
            lambda: next(stream),
            lambda: next(llm.stream(prompt, greedy(3))),
            lambda: beam_search(llm, prompt, 2),
            lambda: speculative_generate(llm, prompt),
            llm.reset_prefix_cache,
        ):
            with pytest.raises(EngineBusyError, match="the engine is in the middle of a step"):
                call()
            refused.append(call)

    while_running(llm, monkeypatch, all_that_can_be_called)
    assert tokens(llm.generate(prompt, greedy(9), use_tqdm=False)) == wanted and len(refused) == 6
    assert "".join([*pieces, *stream]) == text
    assert llm.manager.num_used_blocks == 0 and not llm._samples and not llm._dropped


def test_generate_ends_when_the_engine_has_started_empty_between_two_steps(model, monkeypatch):
    llm = LLM(model, num_blocks=12)
    step, turns = llm._step, []

    def step_and_restart():
        turns.append(step())
        assert len(turns) < 20, "it goes on for ever"
        if len(turns) == 3:
            llm._start_empty()
        return turns[-1]

    monkeypatch.setattr(llm, "_step", step_and_restart)
    outputs = llm.generate(prompts((6, 4)), greedy(9), use_tqdm=False)
    assert [o.outputs[0].finish_reason for o in outputs] == ["cancelled"] * 2


def test_the_remains_of_an_interrupted_call_do_no_harm_when_they_are_collected_later(model, monkeypatch):
    """Ctrl-C between a step and its end: the half-open `with` lives on in the traceback, which a notebook keeps."""
    llm, prompt = writer(model), prompts((6,))[0]
    left_open = [llm._changing()]
    (lambda: left_open[0].__enter__())()  # and never its __exit__
    stream = llm.stream(prompt, greedy(9))
    pieces, manager = [next(stream)], llm.manager
    left_open.clear()
    gc.collect()
    assert llm.manager is manager and len("".join([*pieces, *stream])) == 9


def test_a_stream_that_cannot_be_finished_says_why_after_its_last_piece(model):
    stream = writer(model, num_blocks=2).stream(prompts((30,))[0], greedy(5))
    with pytest.raises(UnfinishedStreamError, match=r"refused.*30 tokens need 8 blocks of 4, and the pool has 2"):
        next(stream)
    llm, pieces = writer(model, num_blocks=4), []
    with pytest.raises(UnfinishedStreamError, match=r"out_of_blocks.*17 tokens fill the whole pool of 4 blocks"):
        pieces.extend(llm.stream(prompts((8,))[0], greedy(30)))
    (whole,) = llm.generate(prompts((8,)), greedy(30), use_tqdm=False)
    assert "".join(pieces) == llm.tokenizer.decode(whole.outputs[0].token_ids) and len(pieces) == 9
    assert llm.manager.num_free_blocks == 4


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("params", [greedy(3), SamplingParams(seed=1, max_tokens=3)])
def test_logits_that_cannot_be_used_are_refused_greedy_or_not(model, monkeypatch, params, bad):
    """Also when only one row, and one token of it, is wrong."""
    llm, work = LLM(model, num_blocks=12), prompts((5, 6, 7))
    run = llm.runner.run

    def run_badly(*args):
        logits = run(*args).clone()
        logits[1, 50] = bad
        return logits

    monkeypatch.setattr(llm.runner, "run", run_badly)
    with pytest.raises(LogitsError, match="holds (NaN|.inf)"):
        llm.generate(work, params, use_tqdm=False)
    monkeypatch.undo()
    assert len(tokens(llm.generate(work, greedy(3), use_tqdm=False))) == 3 and llm.manager.num_free_blocks == 12


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
@pytest.mark.parametrize("reserve", ["on_demand", "max_len"])
def test_a_request_that_waits_for_the_blocks_of_beams_is_refused_by_name_and_the_search_goes_on(
    model, reserve, preemption
):
    llm, (prompt, long) = (
        LLM(model, num_blocks=10, block_size=4, reserve=reserve, preemption=preemption),
        prompts((12, 30)),
    )
    search = lambda **more: beam_search(llm, prompt, 3, max_tokens=6, ignore_eos=True, **more).sequences
    wanted, seen = search(), []

    def ask_for_too_much(step):
        with pytest.raises(
            OutOfBlocksError, match=r"1 requests wait .* of 10 blocks are held by \d sequences that are"
        ):
            llm.generate(long, greedy(5), use_tqdm=False)
        (short,) = llm.generate(prompts((3,)), greedy(2), use_tqdm=False)
        seen.append(short.outputs[0].finish_reason)

    assert_same_beams(search(on_step=ask_for_too_much), wanted)
    assert set(seen) == {"length"} and len(seen) == 6
    assert llm.manager.num_free_blocks == 10 and not llm._samples


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_a_stream_beside_beams_is_never_cut_short_in_silence(model, preemption):
    """It waits for what the beams hold, or says so; whole pools of it are not believed in."""
    prompt, other = prompts((16, 4))
    whole = "".join(writer(model).stream(other, greedy(40)))
    ends = set()
    for num_blocks in range(12, 27):
        llm = writer(model, num_blocks=num_blocks, preemption=preemption)
        stream = llm.stream(other, greedy(40))
        pieces = [next(stream)]
        go_on = lambda step, pieces=pieces, stream=stream: pieces.extend(itertools.islice(stream, 3))
        try:
            beam_search(llm, prompt, 3, max_tokens=12, ignore_eos=True, on_step=go_on)
            pieces.extend(stream)
            assert "".join(pieces) == whole
            ends.add("whole")
        except OutOfBlocksError as error:
            ends.add("it waits" if "1 requests wait" in str(error) else "the beams find no room")
            assert whole.startswith("".join(pieces))
        assert llm.manager.num_free_blocks == num_blocks or stream.close() or llm.manager.num_free_blocks == num_blocks
    assert ends == {"whole", "it waits", "the beams find no room"}


def test_two_thousand_short_requests_with_random_cancellations_leave_the_pool_whole_and_memory_flat():
    llm = LLM(tiny_model("llama", num_hidden_layers=1), num_blocks=12, block_size=4, preemption="swap")
    chance, sizes = random.Random(0), []
    run = llm.runner.run

    def run_and_sometimes_cancel(batch, rows):
        logits = run(batch, rows)
        if chance.random() < 0.2:
            llm.scheduler.finish(chance.choice([*llm._samples.values()]).seq, "cancelled")
        return logits

    llm.runner.run = run_and_sometimes_cancel
    tracemalloc.start()
    for turn in range(8):
        lengths = [chance.randint(1, 9) for _ in range(250)]
        outputs = llm.generate(prompts(lengths, turn), [greedy(n) for n in lengths[::-1]], use_tqdm=False)
        reasons = {o.outputs[0].finish_reason for o in outputs}
        assert reasons == {"length", "cancelled"} and len(outputs) == 250
        assert llm.manager.num_free_blocks == 12 and len(llm.manager.host_pool.free_ids) == 12
        assert llm.scheduler.unfinished == 0 and not llm._samples
        del outputs
        gc.collect()
        sizes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert max(sizes[3:]) < min(sizes[1:3]) + 200_000, sizes


def test_queueing_thousands_costs_linear_time(model):
    """Calls are counted, not seconds: queueing 4,000 requests costs ten times what 400 cost."""
    llm = LLM(model, num_blocks=40)
    llm.runner.run = lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
    counts = {}

    def queue_and_stop(work):
        with pytest.raises(KeyboardInterrupt):
            llm.generate(work, greedy(5), use_tqdm=False)

    for n in (400, 4000):
        work = prompts([3] * n)
        counts[n] = count_calls(partial(queue_and_stop, work))
    assert counts[4000] < 10.5 * counts[400], counts


@pytest.mark.parametrize("chunk", [1, 7, 15, 16, 17])
def test_chunked_prefill_gives_the_logits_of_the_whole_prompt(model, chunk):
    """Behaviour 15: a chunk's tokens see up to themselves, and nothing later in the prompt."""
    prompt = prompts((50,))[0]
    params = SamplingParams(temperature=0, max_tokens=3, logprobs=97, ignore_eos=True)
    (whole,) = LLM(model, num_blocks=8).generate(prompt, params, use_tqdm=False)
    (parts,) = LLM(model, num_blocks=8, max_num_batched_tokens=chunk).generate(prompt, params, use_tqdm=False)
    for a, b in zip(whole.outputs[0].logprobs, parts.outputs[0].logprobs, strict=True):
        assert a.keys() == b.keys() and max(abs(a[t] - b[t]) for t in a) < 1e-4


def test_a_sequence_that_gave_way_keeps_its_logprobs_and_generator(model):
    """Recomputed, swapped or left alone: the same log-probabilities, one entry a token."""
    params = [SamplingParams(seed=i, max_tokens=20, logprobs=3, ignore_eos=True) for i in range(4)]
    work = prompts((20, 18, 9, 30))
    results = []
    for options in (dict(num_blocks=40), dict(num_blocks=5), dict(num_blocks=5, preemption="swap")):
        llm = LLM(model, **options)
        results.append([o.outputs[0] for o in llm.generate(work, params, use_tqdm=False)])
        assert (sum(step.num_preempted for step in llm.stats) > 0) == (options["num_blocks"] == 5)
    for roomy, *others in zip(*results, strict=True):
        assert len(roomy.logprobs) == 20
        for other in others:
            assert other.token_ids == roomy.token_ids
            assert abs(other.cumulative_logprob - roomy.cumulative_logprob) < 1e-3


def test_stats_count_every_step(model):
    llm = LLM(model, num_blocks=7, preemption="swap", num_host_blocks=2)
    llm.generate(prompts(LENGTHS), [greedy(n) for n in WANTED], use_tqdm=False)
    for step in llm.stats:
        assert 0 <= step.blocks_used <= 7 and step.num_running + step.num_waiting + step.num_swapped <= len(LENGTHS)
    computed = sum(step.num_tokens for step in llm.stats)
    least = sum(LENGTHS) + sum(WANTED) - len(WANTED)  # the last token of each is chosen and not computed
    assert computed >= least and sum(step.num_preempted for step in llm.stats) > 0
