"""Every request writes what it would write alone, whatever the budget, the chunks, and who has to give way."""

from __future__ import annotations

import hashlib
import itertools
import json
from pathlib import Path

import pytest
import torch

from minipaged.engine import LLM
from minipaged.errors import InvalidInputError
from minipaged.sampling import SamplingParams
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
        ({"prompt_token_ids": [5]}, [SamplingParams()], "2 prompts and 1 sampling_params"),
        ({"prompt_token_ids": [5]}, [SamplingParams(), 3], "sampling_params 1 is int"),
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
        (dict(num_blocks=0), "0 blocks"),
        (dict(block_size=0), "block_size is 0"),
        (dict(max_num_seqs=0), "max_num_seqs is 0"),
        (dict(max_num_batched_tokens=0), "max_num_batched_tokens is 0"),
        (dict(preemption="drop"), "preemption is 'drop'"),
        (dict(batching="dynamic"), "batching is 'dynamic'"),
        (dict(reserve="some"), "reserve is 'some'"),
        (dict(num_host_blocks=-1), "num_host_blocks is -1"),
        (dict(attention_backend="flash"), 'unknown backend "flash"'),
    ],
)
def test_bad_options_are_refused_by_name(model, options, words):
    with pytest.raises(InvalidInputError, match=words):
        LLM(model, **{"num_blocks": 8, **options})


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
