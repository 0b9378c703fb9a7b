"""A whole transformers model on paged attention: exact for every family that is accepted, a reason for every other."""

from __future__ import annotations

import itertools
from functools import partial

import pytest
import torch

from minipaged.block_manager import BlockManager, shuffled
from minipaged.errors import InvalidInputError
from minipaged.model_runner import Batch, ModelRunner, UnsupportedModelError, pack
from minipaged.prepacked import Together
from tests.test_kv_size_families import FAMILIES, build
from tests.tiny_models import tiny_model

EXACT = 1e-4  # largest difference over largest logit, float32

# Reasons that must be given in words, for families where a plain engine would be silently wrong.
REFUSED = {
    "bloom": "own attention code",
    "doge": "mask of its own",  # keeps the 2,048 keys that it likes best: equal below that, wrong beyond
    "dots1": "could not be tested",
    "jamba": "linear_attention",
    "lfm2": "conv",
    "llama4_text": "fixed chunks",
    "mamba": "linear_attention",
    "qwen2_moe": "other logits",  # its calls do not mention the window that its mask has
    "roberta": "other logits",
    "stablelm": "without the metadata",
}


def alone(model, ids):
    """The model's own logits for one sequence without a cache, [length, vocab]."""
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]


def difference(got, wanted):
    assert got.shape == wanted.shape and got.isfinite().all()
    return ((got - wanted).abs().max() / wanted.abs().max()).item()


class Session:
    """Sequences on one runner, in a pool with shuffled blocks whose unused slots are NaN."""

    def __init__(self, model, num_blocks=24, block_size=4, **options):
        self.runner = ModelRunner(model, num_blocks, block_size, fill=float("nan"), **options)
        self.manager = BlockManager(num_blocks, block_size, watermark=0, block_order=shuffled(num_blocks, 1))
        self.size = block_size

    def step(self, parts):
        """parts: {sequence: new ids}; returns {sequence: logits of its new rows}."""
        entries = []
        for seq, new in parts.items():
            known = seq in self.manager.seq_ids
            done = self.manager.num_tokens(seq) if known else 0
            self.manager.append_slots(seq, len(new)) if known else self.manager.allocate(seq, new)
            entries.append((new, done, self.manager.block_table(seq)))
        batch = pack(entries, self.size)
        out = self.runner.run(batch, range(len(batch.input_ids)))
        bounds = itertools.pairwise(batch.cu_seqlens_q)
        return {seq: out[a:b] for seq, (a, b) in zip(parts, bounds, strict=True)}


@pytest.fixture(scope="module")
def verdicts():
    """family -> a runner's refusal, or None; families that cannot be built tiny are left out."""
    found = {}
    for family in FAMILIES:
        try:
            model = build(family)
        except Exception:
            continue
        try:
            ModelRunner(model, 4, 4)
            found[family] = None
        except UnsupportedModelError as error:
            found[family] = str(error)
    return found


def test_at_least_85_families_are_accepted_and_every_refusal_has_a_reason(verdicts):
    accepted = [family for family, reason in verdicts.items() if reason is None]
    print(f"{len(accepted)} of {len(verdicts)} families accepted")
    assert len(accepted) >= 85
    for family, words in REFUSED.items():
        assert verdicts[family] and words in verdicts[family], (family, verdicts[family])


def test_every_accepted_family_is_exact_packed_and_decoding_below_and_above_its_window(verdicts):
    """Not the probe's tokens, lengths, blocks or windows: the families' own window of 8, prompts of 3, 9 and 21."""
    wrong = {}
    for family in [f for f, reason in verdicts.items() if reason is None]:
        model = build(family)
        torch.manual_seed(7)
        vocab = model.config.get_text_config().vocab_size
        ids = {seq: torch.randint(3, vocab, (n + 4,)).tolist() for seq, n in enumerate((3, 9, 21))}
        wanted = {seq: alone(model, tokens) for seq, tokens in ids.items()}
        session = Session(model, prepack=True)  # as the engine runs it
        rows = {seq: [out] for seq, out in session.step({s: t[:-4] for s, t in ids.items()}).items()}
        for back in range(4, 0, -1):
            for seq, out in session.step({s: [t[-back]] for s, t in ids.items()}).items():
                rows[seq].append(out)
        worst = max(difference(torch.cat(rows[seq]), wanted[seq]) for seq in ids)
        if not worst < EXACT:
            wrong[family] = worst
    assert not wrong


def test_the_course_model_gives_the_tokens_of_generate(course_model):
    model, tokenizer = course_model
    prompts = ["The capital of France is", "Once upon a time, there was", "1, 2, 3, 4,", "Water boils at", "To be or"]
    ids = {i: tokenizer(p).input_ids for i, p in enumerate(prompts)}
    wanted = {i: model.generate(torch.tensor([t]), max_new_tokens=24, do_sample=False, eos_token_id=None)[0].tolist()
              for i, t in ids.items()}  # fmt: skip
    session, out = Session(model, num_blocks=64, block_size=16), {i: list(t) for i, t in ids.items()}
    new = dict(ids)
    for _ in range(24):
        logits = session.step(new)
        new = {i: [int(rows[-1].argmax())] for i, rows in logits.items()}
        for i, token in new.items():
            out[i] += token
    assert out == wanted


@pytest.mark.parametrize("chunk", [1, 3, 7, 16, 40])
def test_chunked_prefill_gives_equal_logits_for_any_chunk(chunk):
    model = tiny_model("gemma2", attn_implementation="eager")  # older transformers leave the softcap out of sdpa
    ids = torch.randint(3, 97, (40,), generator=torch.Generator().manual_seed(2)).tolist()
    session = Session(model)
    rows = [session.step({0: ids[start : start + chunk]})[0] for start in range(0, 40, chunk)]
    assert difference(torch.cat(rows), alone(model, ids)) < EXACT


def test_the_model_is_left_as_it_was_found():
    model = tiny_model("qwen3")
    before = model.config._attn_implementation
    ids = torch.tensor([[5, 6, 7]])
    wanted = alone(model, [5, 6, 7])
    runner = ModelRunner(model, 4, 4)
    runner.run(pack([([5, 6, 7], 0, [2])], 4))
    assert model.config._attn_implementation == before
    assert torch.equal(alone(model, [5, 6, 7]), wanted)
    with pytest.raises(ZeroDivisionError), runner._attention("minipaged"):
        _ = 1 / 0
    assert model.config._attn_implementation == before
    model.generate(ids, max_new_tokens=2, do_sample=False)


def grouped(runner):
    """The sizes of the layers that are multiplied together, for each product that makes more than one."""
    owners = {id(f.func.__self__): f.func.__self__ for _, f in runner._packed if isinstance(f, partial)}
    return [owner._sizes for owner in owners.values()]


needs_onednn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="weights are reordered by oneDNN")


@needs_onednn
def test_layers_that_read_the_same_rows_are_one_product():
    """q, k and v; gate and up. The output projection has the same size as q and another input: it stays alone."""
    runner = ModelRunner(tiny_model("llama"), 4, 4, prepack=True)
    assert grouped(runner) == [[32, 16, 16], [48, 48]] * 4
    assert len(runner._packed) == 7 * 4 + 1  # with the output layer: every linear layer of the model, each once
    assert len({id(linear) for linear, _ in runner._packed}) == len(runner._packed)
    assert grouped(ModelRunner(tiny_model("llama"), 4, 4)) == []


@needs_onednn
def test_a_product_of_several_layers_keeps_their_biases_apart():
    model = tiny_model("qwen2")
    for layer in model.model.layers:
        for linear in (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj):
            torch.nn.init.normal_(linear.bias)
    ids = [5, 6, 7, 8, 9]
    out = Session(model, prepack=True).step({0: ids})[0]
    assert difference(out, alone(model, ids)) < 1e-5


@needs_onednn
def test_each_layer_of_a_product_answers_for_its_own_input():
    """In whatever order they are called, twice, and with other rows in between; a part may be written to."""
    torch.manual_seed(0)
    linears = [torch.nn.Linear(8, n) for n in (4, 6, 2)]
    a, b = torch.randn(1, 3, 8), torch.randn(1, 3, 8)
    with torch.inference_mode():
        together = Together(linears)
        for number, rows in ((0, a), (2, a), (1, b), (1, a), (0, b), (2, b), (1, b), (1, b), (1, b), (0, a)):
            out = together.part(number, rows)
            assert torch.allclose(out, linears[number](rows), atol=1e-6), (number, rows is a)
            out.zero_()


@needs_onednn
def test_a_product_does_not_keep_the_rows_of_a_step():
    runner = ModelRunner(tiny_model("llama"), 4, 4, prepack=True)
    runner.run(pack([([5, 6, 7], 0, [2])], 4))
    owners = [f.func.__self__ for _, f in runner._packed if isinstance(f, partial)]
    assert all(owner._input is None and not owner._parts for owner in owners)


@needs_onednn
def test_the_probe_compares_reordered_weights_with_the_models_own(monkeypatch):
    """A product that is wrong in one number would be refused, not served."""
    right = Together.part
    monkeypatch.setattr(Together, "part", lambda self, number, input: right(self, number, input) + 0.1)
    with pytest.raises(UnsupportedModelError, match="other logits"):
        ModelRunner(tiny_model("llama"), 4, 4, prepack=True)


def test_windows_are_put_back_after_the_probe():
    model = tiny_model("mistral")
    before = [m.sliding_window for m in model.modules() if hasattr(m, "sliding_window")]
    ModelRunner(model, 4, 4)
    assert [m.sliding_window for m in model.modules() if hasattr(m, "sliding_window")] == before
    assert model.config.sliding_window == 8


def test_rotations_that_look_at_the_whole_row_are_refused():
    model = tiny_model("llama")
    model.config.rope_parameters = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    with pytest.raises(UnsupportedModelError, match=r"dynamic.*largest position in the row"):
        ModelRunner(model, 4)


def test_a_window_that_the_call_does_not_mention_is_found_by_the_probe(monkeypatch):
    """Below the window such a model is right; the probe goes beyond it."""
    from minipaged import model_runner

    forgetful = lambda *a, sliding_window=None, **k: model_runner._paged(*a, **k)
    model_runner.AttentionInterface.register("minipaged", forgetful)
    try:
        with pytest.raises(UnsupportedModelError, match="other logits"):
            ModelRunner(tiny_model("mistral"), 4)
    finally:
        model_runner.AttentionInterface.register("minipaged", model_runner._paged)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (dict(input_ids=[97]), "token id 97 is outside the vocabulary, 0 to 96"),
        (dict(input_ids=[]), "0 input_ids, 1 positions"),
        (dict(slot_mapping=[16]), "slot 16, outside 0 to 15"),
        (dict(slot_mapping=[-1]), "slot -1"),
        (dict(block_tables=[[9]]), "sequence 0's table names block 9"),
        (dict(block_tables=[[]]), "sequence 0 has 1 tokens"),
        (dict(seq_lens=[0]), "sequence 0 has 1 query rows and 0 tokens"),
    ],
)
def test_a_bad_batch_is_refused_before_anything_is_written(change, words):
    runner = ModelRunner(tiny_model("llama"), 4, 4, fill=float("nan"))
    good = dict(input_ids=[5], positions=[0], slot_mapping=[8], block_tables=[[2]], seq_lens=[1], cu_seqlens_q=[0, 1])
    with pytest.raises(InvalidInputError, match=words):
        runner.run(Batch(**{**good, **change}))
    assert all(cache.isnan().all() for cache in runner.cache.k_cache)
    assert runner.run(Batch(**good)).shape == (1, 97)


def test_two_tokens_for_one_slot_are_refused():
    runner = ModelRunner(tiny_model("llama"), 4, 4)
    batch = Batch([5, 6], [0, 1], [8, 8], [[2]], [2], [0, 2])
    with pytest.raises(InvalidInputError, match="twice"):
        runner.run(batch)


def test_rows_that_are_not_there_are_refused_before_anything_is_written():
    """[-1] would be the last row of another sequence, and [9] an IndexError after K and V were stored."""
    runner = ModelRunner(tiny_model("llama"), 4, 4, fill=float("nan"))
    batch = pack([([5, 6], 0, [2])], 4)
    for rows in ([9], [-1], [0, 2]):
        with pytest.raises(InvalidInputError, match=r"row -?\d is asked for; this batch has rows 0 to 1"):
            runner.run(batch, rows)
    assert all(cache.isnan().all() for cache in runner.cache.k_cache)


def test_a_sequence_without_new_tokens_does_not_get_its_neighbours_logits():
    with pytest.raises(InvalidInputError, match="leave it out of this step"):
        pack([([5, 6], 0, [2]), ([], 3, [1])], 4)
    runner = ModelRunner(tiny_model("llama"), 4, 4)
    batch = Batch([5, 6], [0, 1], [8, 9], [[2], [1]], [2, 3], [0, 2, 2])
    with pytest.raises(InvalidInputError, match="it must rise"):
        runner.run(batch)


def test_a_model_in_training_mode_is_refused_whenever_it_was_switched():
    model = tiny_model("gpt2").train()
    with pytest.raises(UnsupportedModelError, match=r"call model\.eval\(\) first"):
        ModelRunner(model, 4, 4)
    runner = ModelRunner(model.eval(), 4, 4)
    model.train()
    with pytest.raises(UnsupportedModelError, match="training mode"):
        runner.run(pack([([5], 0, [2])], 4))
