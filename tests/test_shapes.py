"""shapes.py: offsets against torch's own memory, and prediction against real passes of seven models."""

from __future__ import annotations

import itertools

import pytest
import torch

from minipaged import shapes
from minipaged.errors import InvalidInputError
from minipaged.shapes import (
    NoSuchLayerError,
    TensorFacts,
    UntraceableModelError,
    contiguous_strides,
    describe,
    flat_offset,
    index_at,
    is_contiguous,
    is_view_of,
    num_bytes,
    predict_shapes,
    split_heads,
    table,
    trace,
)
from tests.tiny_models import FAMILIES, SLIDING, WINDOW, tiny_config, tiny_ids, tiny_model

SHAPES = [(), (5,), (1,), (3, 4), (2, 3, 4), (1, 3, 1, 4), (2, 3, 5, 4), (0, 3), (2, 0, 3), (2, 1, 2, 3, 2)]
THREE_PROJECTIONS = {"q_proj", "k_proj", "v_proj"}
ALWAYS = {"token ids", "embedding", "layer input", "input norm", "q", "k", "v", "K cache", "V cache"}


def facts_by_name(*args, **kwargs):
    return {fact.name: fact for fact in trace(*args, **kwargs)}


# --- one strip of numbers


@pytest.mark.parametrize("shape", SHAPES)
def test_strides_are_those_that_torch_gives_a_new_tensor(shape):
    assert contiguous_strides(shape) == torch.empty(shape).stride()


@pytest.mark.parametrize("shape", [s for s in SHAPES if 0 not in s])
def test_offset_finds_every_cell_in_torchs_memory_and_index_at_finds_the_way_back(shape):
    strip = torch.arange(torch.Size(shape).numel())
    tensor = strip.view(shape)
    for index in itertools.product(*map(range, shape)):
        offset = flat_offset(index, tensor.stride())
        assert strip[offset] == tensor[index]
        assert index_at(offset, shape) == index


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t.transpose(1, 2),
        lambda t: t.permute(2, 0, 1),
        lambda t: t[:, 1:, ::2],
        lambda t: t[1:].transpose(0, 2),
        lambda t: t.unflatten(1, (2, 2)).transpose(1, 3),
        lambda t: t[:1].expand(5, -1, -1),
    ],
)
def test_offset_finds_every_cell_of_a_view(view):
    strip = torch.arange(2 * 4 * 6)
    seen = view(strip.view(2, 4, 6))
    assert is_view_of(seen, strip)
    for index in itertools.product(*map(range, seen.shape)):
        assert strip[flat_offset(index, seen.stride(), seen.storage_offset())] == seen[index]


def test_contiguous_means_what_torch_means():
    base = torch.arange(24).view(2, 3, 4)
    views = [
        base,
        base.transpose(0, 1),
        base[:, 1:],
        base[1:],
        base[:1],
        base[:, :1].transpose(0, 1),
        base[:0],
        base[..., 0],
    ]
    for view in views:
        assert is_contiguous(view.shape, view.stride()) == view.is_contiguous(), view.shape
        assert describe(view).contiguous == view.is_contiguous()


def test_an_axis_of_length_1_cannot_break_contiguity():
    odd = torch.empty_strided((1, 3, 1, 4), (99, 4, 77, 1))
    assert odd.is_contiguous() and describe(odd).contiguous


def test_a_transpose_shares_memory_and_a_contiguous_copy_does_not():
    base = torch.arange(6.0).view(2, 3)
    assert is_view_of(base.T, base) and is_view_of(base.T.reshape(3, 2), base)
    assert not is_view_of(base.T.contiguous(), base)
    assert not is_view_of(base.T.reshape(6), base)  # no stride walks down columns of the old layout: reshape copies
    assert not is_view_of(torch.empty(0), torch.empty(0))


@pytest.mark.parametrize("dtype", ["float32", "float16", torch.bfloat16, "torch.float64", "int8", torch.int64])
def test_bytes_are_those_of_a_real_tensor(dtype):
    kind = dtype if isinstance(dtype, torch.dtype) else getattr(torch, dtype.removeprefix("torch."))
    assert num_bytes((2, 3, 5), dtype) == torch.empty(2, 3, 5, dtype=kind).nbytes


def test_the_k_tensor_of_32_heads_100_tokens_and_128_numbers():
    shape = (1, 32, 100, 128)
    assert num_bytes(shape, "int8") == 409_600
    assert num_bytes(shape, "float32") == 4 * 409_600
    assert num_bytes(shape, "float16") == 2 * 409_600 == num_bytes(shape)


def test_describe_says_rank_not_length():
    fact = describe(torch.zeros(576, dtype=torch.float16), "a word's embedding", layer=3)
    assert fact == TensorFacts("a word's embedding", (576,), (1,), "float16", 1152, layer=3)
    assert fact.rank == 1
    assert [describe(torch.zeros(shape)).rank for shape in SHAPES] == [len(shape) for shape in SHAPES]


def test_facts_cannot_be_changed():
    with pytest.raises(AttributeError):
        describe(torch.zeros(2)).shape = (3,)


# --- heads


@pytest.mark.parametrize("heads", [1, 3, 9])
def test_split_heads_gives_each_head_its_own_columns_without_copying(heads):
    x = torch.arange(2 * 5 * 18).view(2, 5, 18)
    split = split_heads(x, heads)
    dim = 18 // heads
    assert split.shape == (2, heads, 5, dim)
    assert is_view_of(split, x)
    for head in range(heads):
        assert torch.equal(split[:, head], x[:, :, head * dim : (head + 1) * dim])


def test_split_heads_is_not_a_plain_view_once_there_are_two_tokens_and_two_heads():
    x = torch.arange(12).view(1, 2, 6)
    assert not torch.equal(split_heads(x, 3), x.view(1, 3, 2, 2))
    assert torch.equal(split_heads(x[:, :1], 3), x[:, :1].view(1, 3, 1, 2))  # one token: the bug does not show


# --- prediction = a real pass


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("batch", "length", "layer"), [(1, 1, 0), (3, 6, 1), (2, WINDOW - 1, 3), (2, WINDOW + 5, 2)])
def test_predicted_shapes_are_those_of_a_real_pass(family, batch, length, layer):
    model = tiny_model(family)
    predicted = predict_shapes(model.config, batch, length, layer)
    facts = facts_by_name(model, tiny_ids(length, batch), layer)
    assert facts.keys() == ALWAYS | ({"qkv_proj"} if family == "gpt2" else THREE_PROJECTIONS)
    for name, fact in facts.items():
        assert fact.shape == predicted[name], name
        assert fact.bytes == num_bytes(predicted[name], fact.dtype), name
        assert fact.layer == (None if name in ("token ids", "embedding") else layer)


@pytest.mark.parametrize("layer", [0, 17, 29])
def test_predicted_shapes_are_those_of_the_course_model(course_model, layer):
    model, tokenizer = course_model
    ids = tokenizer("A word becomes a key and a value.", return_tensors="pt").input_ids
    facts = facts_by_name(model, ids, layer)
    predicted = predict_shapes(model.config, 1, ids.shape[1], layer)
    assert {name: fact.shape for name, fact in facts.items()} == {n: s for n, s in predicted.items() if n != "qkv_proj"}
    assert facts["q_proj"].shape[-1] == 9 * 64 and facts["k_proj"].shape[-1] == 3 * 64


@pytest.mark.parametrize("head_dim", [16, None])
def test_head_dim_is_the_configs_when_given_and_computed_when_null(head_dim):
    """Behaviour 27: head_dim taken as hidden / heads though given, or a null taken as a value."""
    config = tiny_config("qwen3", head_dim=16)
    entries = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": head_dim}
    assert predict_shapes(entries, 1, 5)["k"] == (1, 2, 5, head_dim or 8)
    assert predict_shapes(config, 1, 5)["k"] == (1, 2, 5, 16)
    assert facts_by_name(tiny_model("qwen3"), tiny_ids(5))["k"].shape == (1, 2, 5, 16)


def test_twice_the_query_heads_leave_k_and_v_as_they_are():
    four, eight = (
        facts_by_name(tiny_model("llama", num_attention_heads=heads, head_dim=8), tiny_ids(6)) for heads in (4, 8)
    )
    assert eight["q"].bytes == 2 * four["q"].bytes
    for name in ("k", "v", "K cache", "V cache"):
        assert eight[name] == four[name]


def test_missing_null_and_multi_query_kv_heads():
    entries = {"hidden_size": 32, "num_attention_heads": 4}
    assert predict_shapes(entries, 1, 5)["k"] == (1, 4, 5, 8)
    assert predict_shapes({**entries, "num_key_value_heads": None}, 1, 5)["k"] == (1, 4, 5, 8)
    assert predict_shapes({**entries, "multi_query": True}, 1, 5)["k"] == (1, 1, 5, 8)
    assert predict_shapes({"n_embd": 32, "n_head": 4}, 1, 5)["qkv_proj"] == (1, 5, 96)


@pytest.mark.parametrize("family", SLIDING)
def test_a_layer_with_a_window_keeps_one_token_less_than_its_window(family):
    facts = facts_by_name(tiny_model(family), tiny_ids(WINDOW + 5), layer=0)
    assert facts["k"].shape[2] == WINDOW + 5
    assert facts["K cache"].shape[2] == WINDOW - 1


def other_model(kind, **changes):
    """A tiny model of a family that is not among the six."""
    import transformers

    sizes = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "pad_token_id": 0}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": 2}
    config = type(transformers.AutoConfig.for_model(kind))(**sizes, **heads, **changes)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def test_heads_that_differ_from_layer_to_layer_are_those_of_the_layer_asked_for():
    kinds = ["sliding_attention", "full_attention"] * 2
    model = other_model("gemma4_text", head_dim=8, global_head_dim=16, layer_types=kinds)
    for layer, head_dim in enumerate((8, 16, 8, 16)):
        predicted = predict_shapes(model.config, 2, 5, layer)
        facts = facts_by_name(model, tiny_ids(5, 2), layer)
        assert facts["q"].shape == predicted["q"] == (2, 4, 5, head_dim)
        assert facts["K cache"].shape == predicted["K cache"]


def test_a_norm_behind_attention_is_not_taken_for_the_input_norm():
    assert "input norm" not in facts_by_name(other_model("olmo2"), tiny_ids(5))


def test_a_layer_without_attention_gives_what_it_has():
    facts = facts_by_name(other_model("qwen3_next", num_experts=2, num_experts_per_tok=1), tiny_ids(5), layer=0)
    assert set(facts) == {"token ids", "embedding", "layer input", "input norm"}


# --- what a pass shows besides shapes


@pytest.mark.parametrize("family", FAMILIES)
def test_v_is_a_view_of_its_projection_and_the_cache_holds_a_copy(family):
    facts = facts_by_name(tiny_model(family), tiny_ids(6, 2), layer=1)
    projection = "qkv_proj" if family == "gpt2" else "v_proj"
    assert facts["v"].view_of == projection
    assert facts["v"].strides == split_strides(facts[projection], facts["v"])
    assert facts["K cache"].view_of is None and facts["K cache"].contiguous
    if family == "gpt2":  # q, k and v are three thirds of one tensor
        width = facts["q"].shape[1] * facts["q"].shape[3]
        assert [facts[name].offset for name in "qkv"] == [0, width, 2 * width]


def split_strides(projection, heads):
    row, head_dim = projection.strides, heads.shape[3]
    return (row[0], head_dim, row[1], 1)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_the_input_of_layer_0_is_the_embedding_unless_positions_were_added(family):
    facts = facts_by_name(tiny_model(family), tiny_ids(6))
    assert facts["layer input"].view_of == ("embedding" if family == "llama" else None)
    assert facts_by_name(tiny_model(family), tiny_ids(6), layer=1)["layer input"].view_of is None


def test_the_noted_tensors_are_the_models_own(course_model):
    """K by hand from the noted chain's weights equals what a plain pass leaves in the cache."""
    model, tokenizer = course_model
    ids = tokenizer("The cat sat", return_tensors="pt").input_ids
    with torch.inference_mode():
        cache, keyword = shapes._new_cache(model)
        model(ids, use_cache=True, **{keyword: cache})
        block = model.model.layers[0]
        v = split_heads(block.self_attn.v_proj(block.input_layernorm(model.model.embed_tokens(ids))), 3)
    torch.testing.assert_close(v, cache.layers[0].values, rtol=0, atol=1e-6)
    assert tuple(v.shape) == facts_by_name(model, ids)["V cache"].shape


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_q_is_noted_with_either_attention_of_transformers(implementation):
    model = tiny_model("llama")
    model.set_attn_implementation(implementation)
    facts = facts_by_name(model, tiny_ids(6), layer=2)
    assert facts["q"].shape == (1, 4, 6, 8)
    assert model.config._attn_implementation == implementation


def test_other_dtypes_are_reported():
    facts = facts_by_name(tiny_model("llama").to(torch.bfloat16), tiny_ids(6))
    assert {f.dtype for f in facts.values()} == {"int64", "bfloat16"}
    assert facts["k"].bytes == 2 * 2 * 6 * 8


# --- nothing is left behind


def hooks_of(model):
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def door():
    from transformers import AttentionInterface

    return vars(AttentionInterface)["get_interface"]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_trace_leaves_the_model_as_it_was(family):
    model, ids, before = tiny_model(family), tiny_ids(6), door()
    with torch.no_grad():
        logits = model(ids).logits
    trace(model, ids, layer=1)
    with torch.no_grad():
        assert torch.equal(model(ids).logits, logits)
    assert hooks_of(model) == 0 and door() is before


def test_a_pass_that_fails_leaves_nothing_behind():
    model, before = tiny_model("llama"), door()

    def broken(*_args, **_kwargs):
        raise RuntimeError("this layer is broken")

    model.model.layers[2].mlp.forward = broken
    with pytest.raises(RuntimeError, match="this layer is broken"):
        trace(model, tiny_ids(6), layer=3)
    assert hooks_of(model) == 0 and door() is before


def test_hooks_of_others_stay():
    model, calls = tiny_model("llama"), []
    handle = model.get_input_embeddings().register_forward_hook(lambda *a: calls.append(1))
    trace(model, tiny_ids(6))
    assert len(calls) == 1 and hooks_of(model) == 1
    handle.remove()


# --- what is refused


@pytest.mark.parametrize("layer", [-1, 4, 100])
def test_a_layer_that_is_not_there_is_named(layer):
    model = tiny_model("llama")
    with pytest.raises(NoSuchLayerError, match=f"layer {layer} of a model with 4 layers; use 0 to 3"):
        trace(model, tiny_ids(3), layer)
    with pytest.raises(NoSuchLayerError, match="use 0 to 3"):
        predict_shapes(model.config, 1, 3, layer)


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        (torch.zeros(1, 0, dtype=torch.long), "at least 1"),
        (torch.zeros(1, 2, 3, dtype=torch.long), r"\[batch, length\]"),
        (torch.zeros(1, 2), "whole numbers"),
        (torch.tensor([[3, 97]]), "this vocabulary has 0 to 96"),
        ([[3, -1]], "from -1 to 3"),
    ],
)
def test_ids_that_no_tokenizer_makes_are_refused(ids, words):
    with pytest.raises(InvalidInputError, match=words):
        trace(tiny_model("llama"), ids)


def test_a_plain_list_of_ids_is_a_batch_of_one():
    assert facts_by_name(tiny_model("llama"), [3, 4, 5])["token ids"].shape == (1, 3)


def test_models_without_layers_of_attention_are_refused():
    with pytest.raises(UntraceableModelError, match="Linear has no stack of decoder layers"):
        trace(torch.nn.Linear(2, 2), [3])
    with pytest.raises(UntraceableModelError, match="latent"):
        predict_shapes({"hidden_size": 32, "num_attention_heads": 4, "kv_lora_rank": 8}, 1, 3)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: contiguous_strides((2, -1)), "negative length"),
        (lambda: flat_offset((1, 2), (4,)), "2 numbers for 1 axes"),
        (lambda: flat_offset((0, -1), (4, 1)), "negative number"),
        (lambda: index_at(6, (2, 3)), "offset 6 is outside"),
        (lambda: num_bytes((2, 3), "float12"), 'unknown dtype "float12"'),
        (lambda: num_bytes((2, -3)), "negative length"),
        (lambda: split_heads(torch.zeros(1, 2, 10), 3), "3 heads do not divide an axis of 10"),
        (lambda: split_heads(torch.zeros(1, 2, 10), 0), "0 heads"),
        (lambda: split_heads(torch.zeros(2, 10), 2), r"\(2, 10\)"),
        (lambda: predict_shapes({"hidden_size": 32, "num_attention_heads": 4}, 0, 5), "batch 0"),
        (lambda: predict_shapes({}, 1, 5), "names no hidden_size"),
    ],
)
def test_what_cannot_be_right_is_refused_with_its_value(call, words):
    with pytest.raises(InvalidInputError, match=words):
        call()


def test_the_table_has_a_line_for_each_tensor_and_names_shared_memory():
    lines = table(trace(tiny_model("llama"), tiny_ids(6))).splitlines()
    assert lines[0].split() == ["name", "shape", "strides", "dtype", "bytes", "memory"]
    assert len(lines) == 13
    assert next(line for line in lines if line.startswith("v ")).endswith("that of v_proj")
    assert next(line for line in lines if line.startswith("K cache")).endswith("its own")


def test_a_transformers_without_the_door_still_gives_the_rest(monkeypatch):
    from transformers import AttentionInterface

    monkeypatch.setattr(shapes, "vars", lambda owner: {} if owner is AttentionInterface else vars(owner), raising=False)
    facts = facts_by_name(tiny_model("llama"), tiny_ids(6))
    assert "q" not in facts and facts["k"].shape == (1, 2, 6, 8)
