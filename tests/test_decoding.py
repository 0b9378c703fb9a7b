"""Chapter 1: the loop writes what transformers writes, stops where it should, and never shows half a character."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
import torch
from transformers import GPT2Config, LlamaConfig
from transformers.models.gpt2.modeling_gpt2 import GPT2LMHeadModel
from transformers.models.llama.modeling_llama import LlamaForCausalLM

from minipaged import decoding
from minipaged.decoding import Generation, TextStream, generate_ids, left_pad, stream
from minipaged.errors import InvalidInputError
from minipaged.sampling import LogitsError, SamplingParams, sample
from tests.tiny_models import tiny_model

GREEDY = SamplingParams(temperature=0, max_tokens=24)
PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a small village,",
    "def fibonacci(n):",
    "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n",
]


@pytest.fixture(scope="module")
def tiny():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=40, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def tiny_gpt2():
    """Learned positions: a wrong position changes much, where RoPE would forgive a shift."""
    torch.manual_seed(1)
    config = GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=40, bos_token_id=1, eos_token_id=2)
    return GPT2LMHeadModel(config).eval()


# the loop against transformers


@pytest.mark.model
@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_tokens_are_those_of_generate_with_and_without_a_cache(course_model, prompt):
    model, tokenizer = course_model
    ids = tokenizer(prompt)["input_ids"]
    theirs = model.generate(torch.tensor([ids]), max_new_tokens=24, do_sample=False)[0, len(ids) :].tolist()
    assert generate_ids(model, ids, GREEDY).token_ids == theirs
    short = SamplingParams(temperature=0, max_tokens=12)
    assert generate_ids(model, ids, short, use_cache=False).token_ids == theirs[:12]


@pytest.mark.parametrize("name", ["tiny", "tiny_gpt2"])
def test_logits_at_every_step_are_those_of_a_full_recomputation(name, request, monkeypatch):
    """Behaviour 3: a position of len instead of len - 1 still writes plausible text, so logits are compared."""
    model = request.getfixturevalue(name)
    seen = []
    monkeypatch.setattr(decoding, "sample", lambda logits, *rest: seen.append(logits) or sample(logits, *rest))
    prompt = [5, 9, 33, 7]
    tokens = generate_ids(model, prompt, SamplingParams(temperature=0, max_tokens=20), eos_ids=()).token_ids
    with torch.no_grad():
        whole = model(torch.tensor([prompt + tokens])).logits[0]
    assert len(seen) == 20
    for step, logits in enumerate(seen):
        want = whole[len(prompt) - 1 + step]
        assert (logits - want).abs().max() <= 1e-5 * want.abs().max(), f"step {step}"


def test_with_a_cache_each_step_reads_one_token_at_position_len_minus_one(tiny, monkeypatch):
    calls = []

    def watch(module, args, kwargs):
        calls.append((kwargs["input_ids"].shape[1], kwargs["position_ids"][0].tolist()))

    hook = tiny.register_forward_pre_hook(watch, with_kwargs=True)
    try:
        generate_ids(tiny, [5, 6, 7], SamplingParams(temperature=0, max_tokens=4), eos_ids=())
        generate_ids(tiny, [5, 6, 7], SamplingParams(temperature=0, max_tokens=3), eos_ids=(), use_cache=False)
    finally:
        hook.remove()
    assert calls[:4] == [(3, [0, 1, 2]), (1, [3]), (1, [4]), (1, [5])]
    assert calls[4:] == [(3, [0, 1, 2]), (4, [0, 1, 2, 3]), (5, [0, 1, 2, 3, 4])]


def test_sampling_with_a_seed_does_not_depend_on_the_cache(tiny):
    params = SamplingParams(temperature=1.3, top_p=0.9, seed=11, max_tokens=25)
    with_cache, without = (generate_ids(tiny, [5, 6], params, eos_ids=(), use_cache=c) for c in (True, False))
    assert with_cache == without
    assert with_cache != generate_ids(tiny, [5, 6], SamplingParams(seed=12, max_tokens=25), eos_ids=())


@pytest.mark.parametrize("name", ["tiny", "tiny_gpt2"])
def test_left_padded_batch_equals_each_prompt_alone(name, request):
    """Behaviour 26: positions from the mask, one per row; the batch is then decoded four tokens further."""
    model = request.getfixturevalue(name)
    prompts = [[5, 9, 33, 7, 21, 8], [4], [50, 51, 52]]
    alone = [generate_ids(model, p, SamplingParams(temperature=0, max_tokens=4), eos_ids=()).token_ids for p in prompts]
    ids, mask, positions = left_pad(prompts, pad_id=0)
    assert positions.tolist() == [[0, 1, 2, 3, 4, 5], [0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 1, 2]]
    cache, together, name = None, [], decoding._cache_name(model)
    for _ in range(4):
        with torch.no_grad():
            out = model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=True, **{name: cache})
        cache, ids = getattr(out, name), out.logits[:, -1].argmax(-1, keepdim=True)
        together.append(ids[:, 0].tolist())
        mask = torch.cat([mask, torch.ones_like(ids)], dim=1)
        positions = mask.sum(-1, keepdim=True) - 1
    assert [list(row) for row in zip(*together, strict=True)] == alone


@pytest.mark.parametrize("name", ["tiny", "tiny_gpt2"])
def test_left_padded_logits_equal_lone_ones(name, request):
    model = request.getfixturevalue(name)
    prompts = [[5, 9, 33, 7, 21, 8], [4, 4], [50, 51, 52]]
    ids, mask, positions = left_pad(prompts, pad_id=0)
    with torch.no_grad():
        rows = model(input_ids=ids, attention_mask=mask, position_ids=positions).logits[:, -1]
        for row, prompt in zip(rows, prompts, strict=True):
            lone = model(torch.tensor([prompt])).logits[0, -1]
            assert (row - lone).abs().max() <= 1e-5 * lone.abs().max()


def test_left_pad_refuses_an_empty_prompt():
    for prompts in ([], [[1], []]):
        with pytest.raises(InvalidInputError, match="at least one token"):
            left_pad(prompts, 0)


# stops


class Parrot:
    """A model that always continues 1, 2, 3, ...: the next token is the last one plus 1."""

    device = torch.device("cpu")
    generation_config = SimpleNamespace(eos_token_id=None)

    def __init__(self, vocab=20, positions=None):
        text = SimpleNamespace(vocab_size=vocab, max_position_embeddings=positions)
        self.config = SimpleNamespace(get_text_config=lambda: text)
        self.vocab, self.passes = vocab, 0

    def __call__(self, **inputs):
        return self.forward(**inputs)

    def forward(self, input_ids, position_ids, past_key_values, use_cache):
        self.passes += 1
        logits = torch.nn.functional.one_hot((input_ids + 1) % self.vocab, self.vocab).float() * 50
        return SimpleNamespace(logits=logits, past_key_values="kept" if use_cache else None)


def run(eos=(), **params):
    return generate_ids(Parrot(), [3], SamplingParams(temperature=0, **params), eos_ids=eos)


def test_an_end_token_stops_and_is_part_of_the_ids():
    assert run(eos={6, 9}) == Generation([4, 5, 6], "stop", None)


def test_the_length_limit_stops():
    assert run(eos={19}, max_tokens=2) == Generation([4, 5], "length", None)
    assert run(max_tokens=1) == Generation([4], "length", None)


def test_an_end_token_at_the_last_place_is_a_stop_and_not_a_length():
    assert run(eos={6}, max_tokens=3) == Generation([4, 5, 6], "stop", None)


def test_a_stop_id_stops_and_is_named():
    assert run(eos={9}, stop_token_ids=[7]) == Generation([4, 5, 6, 7], "stop", 7)
    assert run(eos={7}, stop_token_ids=[7]) == Generation([4, 5, 6, 7], "stop", None)


def test_ignore_eos_goes_on_but_stop_ids_still_stop():
    assert run(eos={6}, ignore_eos=True, max_tokens=5).token_ids == [4, 5, 6, 7, 8]
    assert run(eos={6}, ignore_eos=True, stop_token_ids=[6]) == Generation([4, 5, 6], "stop", 6)


def test_no_pass_is_spent_after_the_stop():
    model = Parrot()
    generate_ids(model, [3], SamplingParams(temperature=0), eos_ids={6})
    assert model.passes == 3


def test_the_generation_config_is_asked_when_no_end_ids_are_given():
    model = Parrot()
    model.generation_config = SimpleNamespace(eos_token_id=[5, 8])
    assert generate_ids(model, [3], SamplingParams(temperature=0)).token_ids == [4, 5]


def test_the_default_parameters_write_sixteen_tokens():
    assert len(generate_ids(Parrot(), [0]).token_ids) == 16


# what is refused, before the model is called


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ([], "0 tokens"), (torch.tensor([], dtype=torch.int64), "0 tokens"), ([3, 20], "token 1 of the prompt is 20"),
        ([-1], "is -1"), ([True], "is True"), ([1.0], "is 1.0"), (["a"], "is 'a'"), ("text", "encode it first"),
        (torch.tensor([[1, 2]]), "pass integers"), (torch.tensor([1.0]), "pass integers"),
        (range(17), "17 prompt tokens"),
    ],
)  # fmt: skip
def test_a_prompt_that_cannot_be_right_is_refused_before_any_pass(prompt, words):
    model = Parrot(positions=32)
    with pytest.raises(InvalidInputError, match=words):
        generate_ids(model, prompt, SamplingParams(temperature=0, max_tokens=16))
    assert model.passes == 0


def test_a_text_may_fill_the_positions_exactly():
    assert len(generate_ids(Parrot(positions=20), [1] * 4, SamplingParams(temperature=0), eos_ids=()).token_ids) == 16
    with pytest.raises(InvalidInputError, match=r"5 prompt tokens and max_tokens=16 make 21.*positions for 20"):
        generate_ids(Parrot(positions=20), [1] * 5, SamplingParams(temperature=0))


def test_several_samples_are_for_the_engine():
    with pytest.raises(InvalidInputError, match="n is 2"):
        generate_ids(Parrot(), [1], SamplingParams(n=2))


def test_tensors_and_numpy_ids_are_prompts_too():
    want = generate_ids(Parrot(), [3], GREEDY).token_ids
    assert generate_ids(Parrot(), torch.tensor([3]), GREEDY).token_ids == want
    assert generate_ids(Parrot(), torch.tensor([3]).numpy(), GREEDY).token_ids == want


def test_a_model_that_gives_nan_is_named():
    model = Parrot()
    broken = type("Broken", (Parrot,), {"forward": lambda self, past_key_values, **k: SimpleNamespace(
        logits=torch.full((1, 1, 20), float("nan")), past_key_values="kept")})()  # fmt: skip
    with pytest.raises(LogitsError, match="NaN"):
        generate_ids(broken, [1], GREEDY)
    assert model.passes == 0


def test_a_model_without_a_cache_is_not_read_wrongly():
    class Forgetful(Parrot):
        def __call__(self, **inputs):
            return SimpleNamespace(logits=self.forward(**inputs).logits)

    with pytest.raises(InvalidInputError, match="use_cache=False"):
        generate_ids(Forgetful(), [3], GREEDY)
    assert generate_ids(Forgetful(), [3], SamplingParams(temperature=0), use_cache=False).token_ids[:2] == [4, 5]


# streaming

TEXTS = [
    "今日天气真好",
    "Hello, world!\n",
    "🙂 smile 👩‍👩‍👧 family",
    "naïve café — “quoted”",
    "  two  spaces\t\ttabs",
    "مرحبا",
    "한국어",
]


@pytest.mark.model
@pytest.mark.parametrize("text", TEXTS)
def test_pieces_join_to_the_text_and_none_holds_half_a_character(course_model, text):
    tokenizer = course_model[1]
    view = TextStream(tokenizer)
    pieces = [view.push(token) for token in tokenizer(text)["input_ids"]]
    assert "".join(pieces) == text and view.finish() == ""
    assert not any("\ufffd" in piece for piece in pieces)


@pytest.mark.model
def test_a_character_of_two_tokens_comes_out_with_its_second_token(course_model):
    tokenizer = course_model[1]
    first, second = tokenizer("好")["input_ids"]
    view = TextStream(tokenizer)
    assert (view.push(first), view.push(second)) == ("", "好")


@pytest.mark.model
def test_pieces_join_even_when_the_model_writes_nonsense(course_model):
    """Random ids: broken characters, special tokens in the middle of one, and a broken end."""
    tokenizer = course_model[1]
    pick = random.Random(0)
    bytes_only = [i for i in range(len(tokenizer)) if "\ufffd" in tokenizer.decode([i])]
    for _ in range(300):
        pool = bytes_only if pick.random() < 0.5 else range(len(tokenizer))
        ids = [pick.choice(pool) if pick.random() > 0.1 else pick.choice([0, 1, 2]) for _ in range(pick.randint(1, 30))]
        view = TextStream(tokenizer)
        pieces = [view.push(token) for token in ids] + [view.finish()]
        assert "".join(pieces) == tokenizer.decode(ids, skip_special_tokens=True), ids


def test_pieces_join_with_a_tokenizer_that_drops_the_first_space():
    """SentencePiece style, as Llama 2: "▁" is a space, bytes stand in for what is not in the vocabulary."""
    tokenizers = pytest.importorskip("tokenizers")
    from transformers import PreTrainedTokenizerFast

    vocab = {t: i for i, t in enumerate(["<unk>", "<s>", "▁Hi", "▁you", "re", *(f"<0x{b:02X}>" for b in range(256))])}
    core = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, [], byte_fallback=True, unk_token="<unk>"))
    steps = tokenizers.decoders
    core.decoder = steps.Sequence(
        [steps.Replace("▁", " "), steps.ByteFallback(), steps.Fuse(), steps.Strip(content=" ", left=1)]
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", unk_token="<unk>")
    ids = [1, 2, 3, *(5 + b for b in "好".encode()), 3, 4, 5 + 0xE5]
    view = TextStream(tokenizer)
    pieces = [view.push(token) for token in ids] + [view.finish()]
    assert pieces == ["", "Hi", " you", "", "", "好", " you", "re", "", "\ufffd"]
    assert "".join(pieces) == tokenizer.decode(ids, skip_special_tokens=True)


@pytest.mark.model
def test_stream_hands_out_the_text_of_generate_ids(course_model):
    model, tokenizer = course_model
    prompt, params = PROMPTS[3], SamplingParams(temperature=0, max_tokens=60)
    pieces, flow = [], stream(model, tokenizer, prompt, params)
    while True:
        try:
            pieces.append(next(flow))
        except StopIteration as end:
            result = end.value
            break
    want = generate_ids(model, tokenizer(prompt)["input_ids"], params)
    assert result == want and want.finish_reason == "stop"
    assert "".join(pieces) == tokenizer.decode(want.token_ids, skip_special_tokens=True) and len(pieces) > 3


def test_stream_refuses_at_the_call_and_not_at_the_first_piece():
    tokenizer = SimpleNamespace(eos_token_id=None)
    with pytest.raises(InvalidInputError, match="0 tokens"):
        stream(Parrot(), tokenizer, [])


def test_stream_stops_at_the_tokenizers_end_token_too():
    tokenizer = SimpleNamespace(eos_token_id=6, decode=lambda ids, **k: "".join(f"<{i}>" for i in ids))
    model = Parrot()
    model.generation_config = SimpleNamespace(eos_token_id=9)
    assert list(stream(model, tokenizer, [3], SamplingParams(temperature=0))) == ["<4>", "<5>", "<6>"]


def test_end_ids_from_a_tensor_end_the_text():
    model = tiny_model("llama")
    first = generate_ids(model, [5, 6], SamplingParams(temperature=0, max_tokens=4), eos_ids=()).token_ids[0]
    for ids in (torch.tensor([first]), [torch.tensor(first)], {first}):
        done = generate_ids(model, [5, 6], SamplingParams(temperature=0, max_tokens=4), eos_ids=ids)
        assert (done.token_ids, done.finish_reason) == ([first], "stop")
    with pytest.raises(InvalidInputError, match="eos_ids is '2'; pass a list"):
        generate_ids(model, [5, 6], eos_ids="2")


def test_dropout_and_input_of_other_kinds_are_refused():
    with pytest.raises(InvalidInputError, match=r"training mode.*call model\.eval"):
        generate_ids(tiny_model("gpt2").train(), [5])
    for prompt, words in ((b"abc", "encode it first"), (None, "a list of token ids"), (5, "a list of token ids")):
        with pytest.raises(InvalidInputError, match=words):
            generate_ids(tiny_model("gpt2"), prompt)
    with pytest.raises(InvalidInputError, match="pass SamplingParams"):
        generate_ids(tiny_model("gpt2"), [5], {"max_tokens": 3})
    with pytest.raises(InvalidInputError, match="pad_id is None"):
        left_pad([[1], [2, 3]], None)
