"""For every causal-LM family of transformers: our bytes are the bytes of its real cache, or a named error.

Each family's own config class is shrunk until the model builds in milliseconds with random weights. One pass below the
window and one above it fill the model's own cache, and every tensor in it is counted. transformers keeps window - 1
tokens in a sliding layer between steps, one fewer than the step itself needs: that is the only difference allowed.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import pytest
import torch
import transformers
from packaging.version import Version
from transformers import AutoModelForCausalLM, DynamicCache
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from minipaged.kv_cache import cache_argument
from minipaged.kv_size import KVCacheSpec, UnreadableConfigError, token_bytes

DEFAULTS = Path(__file__).resolve().parent.parent / "minipaged" / "config_defaults.json"
FAMILIES = sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
BELOW, ABOVE = 5, 21  # tokens in the two passes; every window is 8

HEADS, KV_HEADS, HEAD_DIM, WINDOW = 4, 2, 24, 8  # hidden / heads is 16, not 24: a head_dim of its own must be read


def each(names, value):
    """One value for many fields."""
    return dict.fromkeys(names.split(), value)


# Field name -> small value, for every config that has the field.
SMALL = {
    **each(
        "vocab_size vocab_size_per_layer_input unpadded_vocab_size max_position_embeddings n_positions "
        "n_ctx max_seq_len context_length max_target_positions model_max_length",
        64,
    ),
    **each(
        "hidden_size d_model n_embd emb_dim dim embedding_size word_embed_proj_dim lru_width "
        "backbone_hidden_size",
        64,
    ),
    **each(
        "intermediate_size moe_intermediate_size ffn_dim decoder_ffn_dim encoder_ffn_dim n_inner "
        "ffn_hidden_size dim_ff dff shared_expert_intermediate_size shared_intermediate_size "
        "intermediate_size_mlp expert_ffn_hidden_size dense_intermediate_size "
        "prefix_dense_intermediate_size d_inner shared_experts_intermediate_size "
        "moe_shared_expert_intermediate_size",
        32,
    ),
    **each("num_hidden_layers n_layer n_layers num_layers", 6),
    **each("decoder_layers encoder_layers num_decoder_layers num_encoder_layers", 2),
    **each(
        "num_attention_heads n_head n_heads num_heads decoder_attention_heads encoder_attention_heads "
        "num_decoder_attention_heads num_encoder_attention_heads attention_heads swa_num_attention_heads",
        HEADS,
    ),
    **each("num_key_value_heads num_kv_heads", KV_HEADS),
    "swa_num_key_value_heads": 1,
    **each("head_dim attention_head_dim kv_channels swa_head_dim", HEAD_DIM),
    **each("dim_head d_head", 16),
    "kv_lora_rank": 32, "q_lora_rank": 24, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 12,
    "index_head_dim": 16, "index_n_heads": 2, "index_topk": 4,
    **each(
        "sliding_window sliding_window_size attention_chunk_size attention_window_size window_size "
        "local_attention",
        WINDOW,
    ),
    **each("num_experts num_local_experts n_routed_experts moe_num_experts", 4),
    **each("num_experts_per_tok moe_topk num_experts_per_token moe_k", 2),
    "n_group": 1, "topk_group": 1, "n_shared_experts": 1,
    "mamba_d_state": 8, "mamba_n_heads": 4, "mamba_d_head": 32, "mamba_num_heads": 4, "mamba_head_dim": 16,
    "state_size": 8, "ssm_state_size": 8, "n_mamba_heads": 2, "mamba_headdim": 64, "n_groups": 2, "mamba_d_ssm": 128,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
    "linear_head_dim": 16, "linear_num_heads": 4, "hidden_size_per_layer_input": 8,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
}  # fmt: skip

FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"
MIXED = [LINEAR, FULL, LINEAR, LINEAR, FULL, LINEAR]

# What a family needs besides, keyed by model type; None takes a field away from SMALL.
OWN = {
    "bailing_hybrid": {"layer_types": MIXED, "num_group": 1, "n_group": 1},
    "bamba": {"attn_layer_indices": [1, 4]},
    "codegen": {"rotary_dim": 8},
    "cohere_compass_text": {"rope_parameters": {FULL: {"rope_type": "default", "rope_theta": 10_000.0}}},
    "dbrx": {"attn_config": {"kv_n_heads": KV_HEADS, "clip_qkv": 8.0, "rope_theta": 10_000.0}},
    **each("deepseek_v2 dots1", {**each("n_shared_experts n_group topk_group", 1), "num_experts_per_tok": 2,
                                 "n_routed_experts": 4, "moe_intermediate_size": 32}),
    "dory": {"n_input_layers": 1, "n_recurrent_layers": 4, "n_output_layers": 1},
    "dots3_note_text": {"swa_num_attention_heads": 2, "swa_num_key_value_heads": 2, "swa_q_lora_rank": 16,
                        "swa_kv_lora_rank": 24, "swa_head_dim": 20, "swa_qk_nope_head_dim": 12, "swa_v_head_dim": 12},
    "gemma3n_text": {"layer_types": [SLIDING, FULL, SLIDING, SLIDING, SLIDING, FULL], "num_kv_shared_layers": 2},
    "gemma4_text": {"global_head_dim": 32, "num_global_key_value_heads": 1, "attention_k_eq_v": True,
                    "layer_types": [SLIDING, SLIDING, FULL, SLIDING, SLIDING, FULL], "num_kv_shared_layers": 2},
    "gpt_neo": {"attention_types": [[["global", "local"], 3]]},
    "gptj": {"rotary_dim": 8},
    "granitemoehybrid": {"layer_types": MIXED},
    "helium": {"head_dim": 16},
    "inkling2_loop_text": {"loop_layer_index_start": 1, "loop_layer_index_end": 4, "loop_num_passes": 2,
                           "n_layers_per_attn_res_block": 1},
    "jamba": {"attn_layer_period": 3, "attn_layer_offset": 1},
    "kimi_linear": {"layer_types": MIXED},
    **each("laguna mellum", {"layer_types": [FULL, SLIDING] * 3}),
    **each("lfm2 lfm2_moe", {"layer_types": ["conv", FULL, "conv", "conv", FULL, "conv"]}),
    "lfm3": {"layer_types": ["conv", FULL, "conv", SLIDING, FULL, "conv"]},
    "longcat_flash": {"zero_expert_num": 2, "head_dim": 8},
    "mamba2": {"num_heads": 4, "head_dim": 32},
    **each("qwen2 qwen3 qwen2_moe qwen3_moe", {"use_sliding_window": True, "max_window_layers": 2}),
    "qwen4_exp_text": {"indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 32, "indexer_budget": 8,
                       "indexer_compress_ratio": 4},
    "recurrent_gemma": {"head_dim": None},
    "xmod": {"default_language": "en_XX", "is_decoder": True},
    "zamba": {"layers_block_type": [LINEAR, "hybrid", LINEAR, LINEAR, "hybrid", LINEAR], "attention_head_dim": 32},
    "zamba2": {"layers_block_type": [LINEAR, "hybrid", LINEAR, LINEAR, "hybrid", LINEAR], "head_dim": None},
    "zaya": {"num_experts_per_tok": 1, "layer_types": ["hybrid", "hybrid_sliding"] * 3, "sliding_window": WINDOW},
    **each("bert bert-generation big_bird camembert data2vec-text electra ernie megatron-bert rembert roberta "
           "roberta-prelayernorm roc_bert roformer xlm-roberta xlm-roberta-xl", {"is_decoder": True}),
}  # fmt: skip


def small_fields(cls):
    """Overrides that shrink a config class, its parts included."""
    config = cls()
    fields = {}
    for name, value in config.to_dict().items():
        if name.endswith("_config") and isinstance(value, dict) and value.get("model_type"):
            fields[name] = {**small_fields(type(getattr(config, name))), "model_type": value["model_type"]}
        elif name in SMALL and (value is not None or name in ("num_key_value_heads", "head_dim")):
            fields[name] = SMALL[name]
    if fields.get("kv_lora_rank"):
        fields["num_key_value_heads"] = HEADS
        fields.pop("head_dim", None)
    fields |= OWN.get(config.model_type, {})
    return {name: value for name, value in fields.items() if value is not None}


# Keep an attention cache, and are refused with a named error instead of a figure. At most ten of these.
LEFT_OUT = {
    "cpmant": "keeps 32 prompt tokens of its own before the text",
    "deepseek_v4": "compressed blocks and unfinished buffers beside a window",
    "mllama": "cross-attention layers keep the picture's K and V",
    "qwen4_exp": "positions beside the indexer's keys",
    "qwen4_exp_text": "positions beside the indexer's keys",
}

# Keep no K and V in transformers at all, and are refused too.
NO_CACHE_CODE = {"openai-gpt", "xlm", "xlnet"}

# Keep a state of fixed size only: zero bytes per token.
RECURRENT = {"mamba", "mamba2", "falcon_mamba", "rwkv"}

# Cannot be built tiny and run on text alone here.
NOT_BUILT = {
    "blt": "its config has no layers of its own for the cache to be made from",
    "dots3_note": "its defaults for single layers outlive the shrinking; dots3_note_text is tested",
    "gemma3n": "its picture part needs a package of its own; gemma3n_text is tested",
    "gemma4_assistant": "its default config is refused by its own class",
    "gemma4_unified_assistant": "reads the K and V of another model",
    "musicgen": "is an encoder-decoder that only its own class builds",
    "musicgen_melody": "is an encoder-decoder that only its own class builds",
    "reformer": "keeps hashed hidden states, with position tables that do not shrink",
    "xlstm": "its recurrent state does not take a tiny size",
}

# Held otherwise by transformers before 5.24, the version whose caches we count; earlier ones also lack some families.
HELD_OTHERWISE = {
    **dict.fromkeys(["axk2", "deepseek_v32", "glm_moe_dsa"], "K and V expanded, not the latent"),
    "longcat_flash": "every other attention of a layer",
}
OLDER = Version(transformers.__version__) < Version("5.24")
since_5_24 = pytest.mark.skipif(OLDER, reason="needs transformers 5.24 or later")

STATES = {"conv_states", "recurrent_states"}  # of fixed size, whatever the length: named by the spec, not counted
HELPERS = {"_sliding_window_tensor"}


def build(family, **overrides):
    """The family's own model with random weights, a few hundred thousand of them."""
    if OLDER and (family in HELD_OTHERWISE or family not in CONFIG_MAPPING):
        pytest.skip(f"{family} needs transformers 5.24 or later: {HELD_OTHERWISE.get(family, 'it is not here')}")
    cls = CONFIG_MAPPING[family]
    config = cls(**{**small_fields(cls), **overrides})
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config).eval()


def cache_after(model, tokens):
    """The cache that the model fills in one pass over `tokens` tokens."""
    ids = torch.arange(tokens).remainder(50)[None] + 3  # [1, tokens]
    with torch.no_grad():
        output = model(input_ids=ids, use_cache=True)
        filled = output["cache"] if "cache" in output else output.get("past_key_values")
        if filled is None:
            filled = DynamicCache(config=model.config)
            model(input_ids=ids, use_cache=True, **cache_argument(model, filled))
    return getattr(filled, "self_attention_cache", filled)


def kept_bytes(cache):
    """Bytes of every tensor in a cache that grows with the text."""
    total = 0
    for layer in cache.layers:
        for name, value in vars(layer).items():
            if name in STATES | HELPERS:
                continue
            for part in value.values() if isinstance(value, dict) else [value]:
                total += part.numel() * part.element_size() if torch.is_tensor(part) else 0
    return total


def last_token_of_windows(spec, tokens):
    """Bytes of the one token per sliding layer that transformers drops once a window is full."""
    full = [layer for layer in spec.layers if layer.window is not None and tokens >= layer.window]
    return sum(token_bytes(layer, "float32") for layer in full)


def assert_bytes_agree(model):
    spec = KVCacheSpec.from_config(model.config)
    for tokens in (BELOW, WINDOW - 1, WINDOW, ABOVE):
        held = kept_bytes(cache_after(model, tokens))
        assert held == spec.cache_bytes(tokens, dtype="float32") - last_token_of_windows(spec, tokens), tokens
    return spec


@pytest.mark.parametrize("family", [f for f in FAMILIES if f not in {*LEFT_OUT, *NO_CACHE_CODE, *NOT_BUILT}])
def test_cache_bytes_are_the_bytes_of_the_real_cache(family):
    spec = assert_bytes_agree(build(family))
    assert (spec.bytes_per_token() == 0) == (family in RECURRENT)


VARIANTS = [
    ("falcon", {"multi_query": False, "num_kv_heads": HEADS}),
    ("gpt_bigcode", {"multi_query": False}),
    ("mistral", {"sliding_window": None}),
    ("mixtral", {"sliding_window": WINDOW}),
    ("phi3", {"sliding_window": WINDOW}),
    ("starcoder2", {"sliding_window": WINDOW}),
    ("qwen2", {"use_sliding_window": False}),
    ("qwen3", {"use_sliding_window": False}),
    ("qwen3", {"head_dim": 40}),
    ("llama", {"num_key_value_heads": 1}),
    ("llama", {"head_dim": None, "num_key_value_heads": 2}),
    ("gemma4_text", {"attention_k_eq_v": False, "num_kv_shared_layers": 0}),
    ("gemma3n_text", {"num_kv_shared_layers": 0}),
    ("dory", {"recurrent_kv_cache_mode": "last_loop"}),
    ("dory", {"n_recurrent_loops": 3}),
    ("minimax_m3_vl_text", {"layer_types": [FULL, "minimax_m3_sparse"] * 3}),
    ("smollm3", {"use_sliding_window": True, "sliding_window": WINDOW}),
    ("llama4_text", {"no_rope_layers": [0, 1, 0, 1, 1, 1]}),
    pytest.param("llama4_text", {"attention_chunk_size": None, "layer_types": [FULL] * 6}, marks=since_5_24),
    ("bart", {"is_encoder_decoder": False}),
    ("glm_moe_dsa", {"indexer_types": ["full", "shared"] * 3}),
    ("zaya", {"layer_types": ["hybrid"] * 6}),
]


@pytest.mark.parametrize(("family", "overrides"), VARIANTS, ids=lambda value: str(value)[:50])
def test_variants_within_a_family_agree_too(family, overrides):
    assert_bytes_agree(build(family, **overrides))


def test_falcon_40b_s_kv_heads_are_held_once_per_query_head_by_transformers_alone():
    """A KV head serves a group of query heads; this one family of transformers copies it before it is cached."""
    model = build("falcon", new_decoder_architecture=True, num_kv_heads=KV_HEADS)
    spec = KVCacheSpec.from_config(model.config)
    held = kept_bytes(cache_after(model, ABOVE))
    assert held == spec.cache_bytes(ABOVE, dtype="float32") * HEADS // KV_HEADS


@pytest.mark.parametrize("family", sorted({*LEFT_OUT, *NO_CACHE_CODE}))
def test_families_left_out_get_a_named_error_and_no_figure(family):
    with pytest.raises(UnreadableConfigError):
        KVCacheSpec.from_config(build(family).config)


@since_5_24
def test_the_list_of_families_left_out_is_short():
    assert len(LEFT_OUT) <= 10
    assert len(FAMILIES) - len(LEFT_OUT) - len(NO_CACHE_CODE) - len(NOT_BUILT) - len(RECURRENT) >= 129 - 10
    assert not {*LEFT_OUT, *NO_CACHE_CODE, *RECURRENT, *NOT_BUILT} - set(FAMILIES)


@pytest.mark.parametrize("family", [f for f in FAMILIES if f not in NOT_BUILT])
def test_a_config_json_gives_the_same_figure_or_a_named_error(family, tmp_path):
    """As saved by transformers, as sparse as a published file, and as older files that list no layer types."""
    cls = CONFIG_MAPPING[family]
    fields = small_fields(cls)
    older = {name: value for name, value in fields.items() if name not in ("layer_types", "layers_block_type")}
    assert_same_or_refused(cls(**fields), {**fields, "model_type": cls.model_type})
    cls(**fields).save_pretrained(tmp_path)
    assert_same_or_refused(cls(**fields), tmp_path)
    if "shared_layers" not in str(older) and "zamba" not in family:
        assert_same_or_refused(cls(**older), {**older, "model_type": cls.model_type})


def assert_same_or_refused(config, source):
    try:
        got = KVCacheSpec.from_config(source)
    except UnreadableConfigError:
        return
    want = KVCacheSpec.from_config(config)  # if this raises, the source got a figure where the config itself gets none
    for tokens in (BELOW, ABOVE):
        assert got.cache_bytes(tokens) == want.cache_bytes(tokens)
        assert got.allocated_bytes(tokens, mla="expanded") == want.allocated_bytes(tokens, mla="expanded")


def family_defaults():
    """What minipaged/config_defaults.json holds: the class defaults of every field that the cache depends on."""
    return {family: _class_defaults(CONFIG_MAPPING[family]) for family in FAMILIES}


def test_recurrent_gemma_s_attention_has_a_window_in_the_words_of_older_configs_too():
    named = {"model_type": "recurrent_gemma", "layers_block_type": ["recurrent", "recurrent", "attention"] * 2}
    fields = {**small_fields(CONFIG_MAPPING["recurrent_gemma"]), "num_hidden_layers": 6, **named}
    assert [layer.window for layer in KVCacheSpec.from_config(fields).layers] == [None, None, WINDOW] * 2


CACHE_FIELDS = each(
    "num_attention_heads n_head n_heads decoder_attention_heads attention_heads num_heads "
    "num_decoder_attention_heads num_key_value_heads num_kv_heads num_query_groups multi_query "
    "new_decoder_architecture head_dim kv_channels attention_head_dim dim_head v_head_dim "
    "swa_num_key_value_heads swa_head_dim sliding_window sliding_window_size attention_window_size "
    "use_sliding_window max_window_layers attention_chunk_size local_attention kv_lora_rank "
    "qk_rope_head_dim qk_nope_head_dim index_head_dim num_kv_shared_layers loop_num_passes "
    "loop_layer_index_start loop_layer_index_end H_cycles L_cycles n_input_layers n_output_layers "
    "n_recurrent_loops recurrent_kv_cache_mode is_decoder is_encoder_decoder ",
    None,
)


def _class_defaults(cls):
    fields = {field.name: field for field in dataclasses.fields(cls)}
    values = {}
    for name in CACHE_FIELDS:
        value = fields[name].default if name in fields else getattr(cls, name, None)
        if isinstance(value, int | str) and not (name.startswith("is_enc") and not value):
            values[name] = value
    derived = {"layer_types", "layers_block_type"}
    if derived & fields.keys() or any(isinstance(getattr(cls, name, None), property) for name in derived):
        values["derives_layer_types"] = True
    return values


@since_5_24
def test_the_defaults_we_carry_are_those_of_transformers():
    """If this fails after an update of transformers: python -m tests.test_kv_size_families, and read the difference."""
    assert json.loads(DEFAULTS.read_text(encoding="utf-8")) == family_defaults()


if __name__ == "__main__":
    DEFAULTS.write_text(json.dumps(family_defaults(), indent=1, sort_keys=True) + "\n", encoding="utf-8")
    sys.exit(0)
