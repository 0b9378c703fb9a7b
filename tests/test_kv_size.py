"""KV cache sizes: published configs and figures, dtypes, tensor parallel, budgets, and errors instead of guesses."""

from __future__ import annotations

import json
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minipaged import KVCacheSpec as exported
from minipaged.errors import InvalidInputError, MinipagedError
from minipaged.kv_size import (
    GIB,
    KVCacheSpec,
    LayerCache,
    UnreadableConfigError,
    bytes_per_number,
    explain,
    fit,
    gpus,
    human,
    main,
    models,
    ways_out,
    weight_bytes,
)

CASES = json.loads((Path(__file__).parent / "cases" / "kv_bytes_per_token.json").read_text(encoding="utf-8"))["models"]

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
}
MLA = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
}


def spec_of(**fields):
    return KVCacheSpec.from_config({**LLAMA, **fields})


def sliding(window, layers=4):
    return KVCacheSpec((LayerCache("sliding", 2, 8, 8, window),) * layers)


# --- published configs and figures ------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["model"])
def test_bytes_per_token_of_published_configs(case):
    spec = KVCacheSpec.from_config(case["config"])
    assert spec.bytes_per_token() == case["bytes_per_token"]
    assert spec.cache_bytes(100) == 100 * case["bytes_per_token"]
    if "cache_bytes_4096_tokens" in case:
        assert spec.cache_bytes(4096) == case["cache_bytes_4096_tokens"]


OPT_175B = {"model_type": "opt", "num_hidden_layers": 96, "num_attention_heads": 96, "hidden_size": 12288}


def of(name):
    return KVCacheSpec.from_config(name)


# (what, computed, published, tolerance, source)
PUBLISHED = [
    ("OPT-13B, KB per token", of("opt-13b").bytes_per_token() / 2**10, 800, 0, "arXiv 2309.06180, sec. 3"),
    ("OPT-13B, GB for 2048 tokens", of("opt-13b").cache_bytes(2048) / GIB, 1.6, 0.03, "arXiv 2309.06180, sec. 3"),
    ("13B, slots in 12 GB", 12 * GIB // of("opt-13b").bytes_per_token(), 15_700, 0.002, "arXiv 2309.06180, table 1"),
    ("66B, slots in 21 GB", 21 * GIB // of("opt-66b").bytes_per_token(), 9_700, 0.02, "arXiv 2309.06180, table 1"),
    ("175B, slots in 264 GB", 264 * GIB // of(OPT_175B).bytes_per_token(), 60_100, 0.001, "arXiv 2309.06180, table 1"),
    ("LLaMA-13B, GB a sequence", of("Llama-13B").cache_bytes(2048) / 1e9, 1.7, 0.02, "vLLM launch blog, 2023-06-20"),
    ("DeepSeek-V3, KB per token", of("DeepSeek-V3").bytes_per_token() / 1e3, 70.272, 0, "arXiv 2505.09343, table 1"),
    ("Qwen2.5-72B, KB per token", of("Qwen2.5-72B").bytes_per_token() / 1e3, 327.68, 0, "arXiv 2505.09343, table 1"),
    ("Llama-3.1-405B, KB", of("Llama-3.1-405B").bytes_per_token() / 1e3, 516.096, 0, "arXiv 2505.09343, table 1"),
]


@pytest.mark.parametrize(("what", "computed", "published", "tolerance", "source"), PUBLISHED, ids=lambda v: str(v)[:30])
def test_published_figures_agree(what, computed, published, tolerance, source):
    """The paper's GB and KB are GiB and KiB (12 GiB hold 15,728 slots); the others count in powers of ten."""
    assert computed == pytest.approx(published, rel=tolerance or 1e-12), f"{what} ({source})"


def test_the_article_s_example_is_32_gib_and_does_not_fit_a_40_gib_card():
    llama = models()["Llama-2-7B"]
    assert llama.spec.bytes_per_token() == 524_288
    assert llama.spec.cache_bytes(4096, batch_size=16) == 32 * GIB
    load = fit(llama.spec, llama.num_parameters, 40 * GIB, 4096, 16)
    assert not load.fits and load.weights / GIB == pytest.approx(12.55, abs=0.005)
    assert load.max_batch == 13


# --- heads, head_dim, latents, windows (what other calculators get wrong) ---------------------------------------------


def test_a_null_head_dim_is_hidden_over_heads_and_a_given_one_is_read():
    assert spec_of(head_dim=None).layers[0].k_dim == 128
    assert spec_of(head_dim=80).layers[0].k_dim == 80


def test_null_kv_heads_are_as_many_as_query_heads():
    assert spec_of(num_key_value_heads=None).layers[0].num_kv_heads == 32


def test_a_null_window_is_no_window_and_a_missing_one_is_the_family_s():
    mistral = {**LLAMA, "model_type": "mistral"}
    assert KVCacheSpec.from_config({**mistral, "sliding_window": None}).layers[0].kind == "full"
    assert KVCacheSpec.from_config(mistral).layers[0].window == 4096


def test_mla_is_one_latent_and_an_engine_that_expands_it_pays_71_times():
    spec = KVCacheSpec.from_config(MLA)
    assert spec.bytes_per_token() == 61 * (512 + 64) * 2
    expanded = spec.allocated_bytes(1, block_size=1, mla="expanded")
    assert expanded == 61 * 128 * (128 + 64 + 128) * 2
    assert expanded / spec.bytes_per_token() == pytest.approx(71.1, abs=0.05)


def test_sliding_layers_cap_at_their_window():
    spec = KVCacheSpec.from_config("gpt-oss-120b")
    at = {n: spec.cache_bytes(n) for n in (127, 128, 129, 4096)}
    one = spec.bytes_per_token()
    assert at[127] == 127 * one and at[128] == 128 * one
    assert at[129] == at[128] + one // 2  # only the 18 full layers still grow
    assert spec.allocated_bytes(4096, hybrid="full") == 4096 * one  # an engine that frees nothing behind the window


def test_layers_that_share_count_once():
    assert KVCacheSpec.from_config("gemma-3n-E2B").bytes_per_token() == 20 * 2 * (256 + 256) * 2  # 20 of 30 layers


def test_layers_without_kv_are_named_and_not_counted():
    spec = KVCacheSpec.from_config("Jamba-v0.1")
    assert [layer.kind for layer in spec.layers].count("none") == 28
    assert spec.bytes_per_token() == 4 * 8 * (128 + 128) * 2
    assert explain(spec)[0] == "28 layers (mamba): nothing per token"


OLDER_SPELLINGS = [
    ({"n_layer": 12, "n_head": 12, "n_embd": 768}, 12, 64),
    ({"model_type": "gpt_bigcode", "n_layer": 40, "n_head": 48, "n_embd": 6144, "multi_query": True}, 1, 128),
    ({"model_type": "falcon", "num_hidden_layers": 32, "num_attention_heads": 71, "hidden_size": 4544}, 1, 64),
    ({"model_type": "mpt", "n_layers": 4, "n_heads": 8, "d_model": 512, "attn_config": {"attn_impl": "torch"}}, 8, 64),
    ({"model_type": "dbrx", "n_layers": 4, "n_heads": 8, "d_model": 512, "attn_config": {"kv_n_heads": 2}}, 2, 64),
    (
        {
            "model_type": "chatglm",
            "num_layers": 40,
            "num_attention_heads": 32,
            "hidden_size": 4096,
            "kv_channels": 128,
            "multi_query_attention": True,
            "multi_query_group_num": 2,
        },
        2,
        128,
    ),
    ({"model_type": "qwen", "num_hidden_layers": 4, "num_attention_heads": 32, "hidden_size": 4096}, 32, 128),
    ({"text_config": {**LLAMA}, "vision_config": {"hidden_size": 1024, "num_hidden_layers": 24}}, 8, 128),
]


@pytest.mark.parametrize(("config", "kv_heads", "dim"), OLDER_SPELLINGS, ids=lambda v: str(v)[:40])
def test_older_spellings_are_read(config, kv_heads, dim):
    layer = KVCacheSpec.from_config(config).layers[-1]
    assert (layer.num_kv_heads, layer.k_dim, layer.v_dim) == (kv_heads, dim, dim)


def test_per_layer_values_are_read():
    config = {**LLAMA, "num_hidden_layers": 3, "num_key_value_heads": [1, 2, 4]}
    assert [layer.num_kv_heads for layer in KVCacheSpec.from_config(config).layers] == [1, 2, 4]
    config["num_key_value_heads"] = [1, 2]
    with pytest.raises(UnreadableConfigError, match="2 entries"):
        KVCacheSpec.from_config(config)


# --- dtypes and tensor parallel ---------------------------------------------------------------------------------------


def test_dtypes_by_name_down_to_half_a_byte():
    spec = spec_of()
    assert [spec.bytes_per_token(d) for d in ("float32", "bf16", "fp8", "int8", "int4")] == [
        262_144, 131_072, 65_536, 65_536, 32_768,
    ]  # fmt: skip
    assert bytes_per_number("int4") == Fraction(1, 2)
    with pytest.raises(InvalidInputError, match='unknown dtype "fp9"'):
        spec.bytes_per_token("fp9")


def test_torch_dtypes_work_too():
    torch = pytest.importorskip("torch")
    assert spec_of().bytes_per_token(torch.bfloat16) == 131_072
    assert spec_of().bytes_per_token(torch.float8_e4m3fn) == 65_536


def test_scales_of_a_quantised_cache_are_an_option():
    vectors = 32 * 8 * 2  # layers x KV heads x (K, V), each of 128 numbers
    assert spec_of().bytes_per_token("int4", scale_group=64) == vectors * (64 + 2 * 2)
    assert spec_of().bytes_per_token("fp8", scale_group=128) == vectors * (128 + 2)


@pytest.mark.parametrize(("tensor_parallel", "heads"), [(1, 8), (2, 4), (3, 3), (8, 1), (16, 1), (64, 1)])
def test_more_gpus_than_kv_heads_replicate_them(tensor_parallel, heads):
    assert spec_of().bytes_per_token(tensor_parallel=tensor_parallel) == 32 * heads * 256 * 2


def test_mla_latents_are_replicated_on_every_gpu():
    spec = KVCacheSpec.from_config(MLA)
    assert spec.bytes_per_token(tensor_parallel=8) == spec.bytes_per_token()
    assert spec.allocated_bytes(1, 1, mla="expanded", tensor_parallel=8) * 8 == spec.allocated_bytes(
        1, 1, mla="expanded"
    )


# --- whole blocks, budgets --------------------------------------------------------------------------------------------


def test_an_engine_reserves_whole_blocks_per_sequence():
    spec = spec_of()
    assert spec.allocated_bytes([1, 16, 17]) == (16 + 16 + 32) * spec.bytes_per_token()
    assert spec.allocated_bytes(100, block_size=1) == spec.cache_bytes(100)
    assert spec.allocated_bytes([]) == 0


def brute_force_peak(window, block_size, seq_len):
    """The most blocks a window of tokens touched on the way to seq_len."""
    return max((len({t // block_size for t in range(max(0, n - window), n)}) for n in range(1, seq_len + 1)), default=0)


@given(st.integers(1, 40), st.integers(1, 20), st.integers(0, 90))
@settings(max_examples=200, deadline=None)
def test_a_window_may_straddle_one_block_more(window, block_size, seq_len):
    layer = LayerCache("sliding", 1, 1, 1, window)
    assert layer.blocks_kept(seq_len, block_size) == brute_force_peak(window, block_size, seq_len)


@given(st.integers(0, 2**34), st.integers(1, 5000), st.integers(1, 64), st.sampled_from(["float16", "fp8", "int4"]))
@settings(max_examples=100, deadline=None)
def test_the_largest_batch_and_length_fit_and_one_more_does_not(memory, seq_len, block_size, dtype):
    spec = spec_of(num_hidden_layers=3)
    batch = spec.max_batch(memory, seq_len, block_size, dtype=dtype)
    one = spec.allocated_bytes(seq_len, block_size, dtype=dtype)
    assert batch * one <= memory < (batch + 1) * one
    length = spec.max_seq_len(memory, 2, block_size, dtype=dtype)
    assert 2 * spec.allocated_bytes(length, block_size, dtype=dtype) <= memory
    assert 2 * spec.allocated_bytes(length + 1, block_size, dtype=dtype) > memory


def test_memory_sets_no_limit_to_windows_alone_or_to_recurrent_layers():
    assert sliding(8).max_seq_len(10**6) is None
    assert KVCacheSpec.from_config("mamba-2.8b").max_batch(10**6, 100) is None
    assert sliding(8).max_seq_len(10) == 0


def test_weights_come_from_the_parameter_count():
    assert weight_bytes(7e9) == 14 * 10**9
    assert weight_bytes(7e9, "int4", tensor_parallel=2) == 1_750_000_000
    assert human(weight_bytes(6_738_415_616)) == "12.55 GiB"


def test_the_parts_of_the_memory_add_up():
    llama = models()["Llama-3-8B"]
    load = fit(llama.spec, llama.num_parameters, 24 * GIB, 8192, 4, reserve_bytes=GIB, gpu_memory_utilization=0.9)
    assert load.unused + load.weights + load.reserve + load.kv + load.free == 24 * GIB
    assert load.cache_tokens == load.kv_budget // (16 * 131_072) * 16
    assert load.concurrency == pytest.approx(load.kv_budget / load.one_sequence)


@pytest.mark.parametrize("name", ["Llama-2-7B", "gpt-oss-20b", "DeepSeek-V2-Lite", "gemma-2-9b"])
def test_every_way_out_that_is_offered_does_fit(name):
    preset = models()[name]
    args = {"seq_len": 8192, "batch_size": 200, "dtype": "float16", "reserve_bytes": GIB}
    memory = 40 * GIB
    load = fit(preset.spec, preset.num_parameters, memory, **args)
    if load.fits:
        load = fit(preset.spec, preset.num_parameters, memory, **{**args, "batch_size": 5000})
        args["batch_size"] = 5000
    assert not load.fits and ways_out(load)
    for way in ways_out(load):
        changed = {
            "batch": {"batch_size": way.value},
            "length": {"seq_len": way.value},
            "dtype": {"dtype": way.value},
            "gpus": {"tensor_parallel": way.value},
            "gpu": {},
        }[way.what]
        size = gpus()[way.value].memory_gib * GIB if way.what == "gpu" else memory
        assert fit(preset.spec, preset.num_parameters, size, **{**args, **changed}).fits, way
        if way.what in ("batch", "length"):
            key = {"batch": "batch_size", "length": "seq_len"}[way.what]
            assert not fit(preset.spec, preset.num_parameters, memory, **{**args, key: way.value + 1}).fits


# --- errors instead of guesses ----------------------------------------------------------------------------------------

UNREADABLE = [
    ({}, "no num_layers"),
    ({"model_type": "llama", "num_hidden_layers": 2}, "hidden_size"),
    ({**LLAMA, "num_hidden_layers": "two"}, "expected a whole number"),
    ({**LLAMA, "num_hidden_layers": -1}, "at least 1"),
    ({**LLAMA, "num_key_value_heads": 0}, "at least 1"),
    ({**LLAMA, "hidden_size": 4100}, "no multiple of 32 heads"),
    ({**LLAMA, "layer_types": ["full_attention"] * 3}, "3 entries"),
    ({**LLAMA, "layer_types": ["half_attention"] * 32}, 'layer type "half_attention"'),
    ({**LLAMA, "model_type": "next_year", "sliding_window": 128}, "which layers use its window"),
    ({**LLAMA, "model_type": "next_year", "kv_compression_rate": 4}, "kv_compression_rate"),
    ({**LLAMA, "model_type": "next_year", "ssm_state_size": 16}, "ssm_state_size"),
    ({**LLAMA, "model_type": "t5", "is_encoder_decoder": True}, "encoder-decoder"),
    ({"model_type": "bert", "num_hidden_layers": 12, "num_attention_heads": 12, "hidden_size": 768}, "is an encoder"),
    ({**LLAMA, "model_type": "vit", "architectures": ["ViTForImageClassification"]}, "ViTForImageClassification"),
    ({**LLAMA, "model_type": "deepseek_v4"}, "deepseek_v4 is not counted"),
    ({"model_type": "lara_mini", "num_hidden_layers": 5, "num_attention_heads": 4, "hidden_size": 64}, "layer_types"),
]


@pytest.mark.parametrize(("config", "words"), UNREADABLE, ids=lambda v: str(v)[-40:])
def test_what_cannot_be_read_is_a_named_error(config, words):
    with pytest.raises(UnreadableConfigError, match=words):
        KVCacheSpec.from_config(config)


def test_a_family_nobody_knows_is_read_if_nothing_in_it_is_unusual():
    config = {**LLAMA, "model_type": "next_year", "q_lora_rank": None, "num_local_experts": 8}
    config["architectures"] = ["NextYearForCausalLM"]
    assert KVCacheSpec.from_config(config).bytes_per_token() == spec_of().bytes_per_token()


@pytest.mark.parametrize(
    "call",
    [
        lambda s: s.cache_bytes(-1),
        lambda s: s.cache_bytes(10, batch_size=-2),
        lambda s: s.cache_bytes(10.5),
        lambda s: s.bytes_per_token(tensor_parallel=0),
        lambda s: s.allocated_bytes(10, block_size=0),
        lambda s: s.allocated_bytes(10, mla="half"),
        lambda s: s.allocated_bytes(10, hybrid="none"),
        lambda s: s.max_batch(-1, 10),
        lambda s: s.max_seq_len("40GB"),
        lambda s: fit(s, 0, GIB, 10),
        lambda s: fit(s, 1e9, GIB, 10, gpu_memory_utilization=1.5),
        lambda s: KVCacheSpec.from_config(7),
        lambda s: KVCacheSpec.from_config("./nowhere/config.json"),
        lambda s: KVCacheSpec.from_config("Llama-2-8B"),
    ],
)
def test_bad_arguments_are_named_errors(call):
    with pytest.raises(InvalidInputError):
        call(spec_of())


def test_files_and_folders(tmp_path):
    with pytest.raises(InvalidInputError, match="no config.json"):
        KVCacheSpec.from_config(tmp_path)
    (tmp_path / "config.json").write_text("{not json", encoding="utf-8")
    with pytest.raises(UnreadableConfigError, match="not a JSON file"):
        KVCacheSpec.from_config(tmp_path)
    (tmp_path / "config.json").write_text("[1]", encoding="utf-8")
    with pytest.raises(UnreadableConfigError, match="expected an object"):
        KVCacheSpec.from_config(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    for source in (tmp_path, str(tmp_path), tmp_path / "config.json", str(tmp_path / "config.json")):
        assert KVCacheSpec.from_config(source).bytes_per_token() == 131_072


def test_the_package_exports_the_spec():
    assert exported is KVCacheSpec


# --- presets ----------------------------------------------------------------------------------------------------------


def test_there_are_enough_presets_of_every_kind():
    specs = [preset.spec for preset in models().values()]
    assert len(specs) >= 30 and len(gpus()) >= 12
    kinds = {layer.kind for spec in specs for layer in spec.layers}
    assert kinds == {"full", "sliding", "chunked", "shared", "none"}
    assert any(layer.latent for spec in specs for layer in spec.layers)
    heads = {preset.name: preset.config for preset in models().values()}
    assert {"gpt2", "Llama-3-8B", "falcon-7b", "DeepSeek-V3", "Qwen3-8B", "glm-4-9b", "Yi-34B"} <= set(heads)
    for thing in (*models().values(), *gpus().values()):
        assert thing.source


@pytest.mark.parametrize("name", models())
def test_a_preset_s_fields_give_its_parameter_count_and_its_cache(name):
    """transformers builds the model from the preset's fields, without memory, and its parameters are counted."""
    torch = pytest.importorskip("torch")
    from transformers import AutoConfig, AutoModelForCausalLM

    preset = models()[name]
    config = AutoConfig.for_model(**preset.config)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    model.tie_weights()
    assert sum(p.numel() for p in {id(p): p for p in model.parameters()}.values()) == preset.num_parameters
    for tokens in (100, 100_000):
        assert KVCacheSpec.from_config(config).cache_bytes(tokens) == preset.spec.cache_bytes(tokens)


def test_a_preset_is_found_by_its_id_too():
    assert KVCacheSpec.from_config("meta-llama/Llama-2-7b-hf") == KVCacheSpec.from_config("llama-2-7b")


def test_the_course_model_is_its_preset(course_model):
    model, _ = course_model
    preset = models()["SmolLM2-135M"]
    assert KVCacheSpec.from_config(model.config).layers == preset.spec.layers
    assert sum(p.numel() for p in model.parameters()) == preset.num_parameters


# --- the command ------------------------------------------------------------------------------------------------------


def lines_of(capsys, *arguments):
    assert main(arguments) == 0
    return capsys.readouterr().out.splitlines()


def test_the_command_prints_sizes_reasons_and_what_would_fit(capsys):
    lines = lines_of(capsys, "Llama-2-7B", "--gpu", "A100-40GB", "--batch", "16")
    text = "\n".join(lines)
    assert "32 layers (full_attention): 32 KV heads x (128 + 128) numbers for every token" in text
    assert "32.00 GiB   for 16 such sequences" in text
    assert "GPU KV cache size: 45,968 tokens, in blocks of 16" in lines
    assert "Maximum concurrency for 4,096 tokens per request: 11.22x" in lines
    assert "largest batch at 4,096 tokens: 11" in lines
    assert "It does not fit: 9.55 GiB are missing." in lines
    assert lines[-1].startswith("What would fit: a batch of at most 11; or sequences of at most 2,864 tokens")


def test_the_command_says_when_it_fits_and_when_not_even_the_weights_do(capsys):
    assert "stay free" in lines_of(capsys, "qwen3-8b", "--gpu", "24GiB", "--dtype", "fp8", "--tp", "2")[-1]
    lines = lines_of(capsys, "Llama-3-70B", "--gpu", "RTX-4090-24GB")
    assert "The weights and the reserve alone do not fit." in lines


def test_the_command_reads_a_folder_and_asks_for_the_weights(capsys, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    assert "give --params" in lines_of(capsys, str(tmp_path), "--gpu", "24GiB")[-1]
    assert "It fits" in lines_of(capsys, str(tmp_path), "--gpu", "24GiB", "--params", "8e9")[-1]


def test_the_command_names_its_errors(capsys):
    assert main(["Llama-2-8B"]) == 1
    assert 'Did you mean "Llama-3-8B"?' in capsys.readouterr().err
    assert main(["Llama-2-7B", "--gpu", "Z9000"]) == 1
    assert 'no GPU "Z9000"' in capsys.readouterr().err
    assert main(["Llama-2-7B", "--seq-len", "-4"]) == 1
    assert "seq_len is -4" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--batch", "0", "batch is 0; it must be a whole number of at least 1"),
        ("--batch", "-3", "batch is -3"),
        ("--block-size", "0", "block_size is 0"),
        ("--params", "0", "params is 0.0; it must be a number above 0"),
        ("--params", "inf", "params is inf; it must be a number"),
        ("--params", "nan", "params is nan"),
    ],
)
def test_the_command_refuses_a_bad_number_with_and_without_a_gpu(capsys, option, value, said):
    for gpu in ([], ["--gpu", "24GiB"]):
        assert main(["Llama-2-7B", option, value, *gpu]) == 1
        assert said in capsys.readouterr().err


def test_a_memory_may_be_written_with_a_space(capsys):
    assert lines_of(capsys, "Llama-2-7B", "--gpu", "24 GiB") == lines_of(capsys, "Llama-2-7B", "--gpu", "24GiB")
    assert main(["Llama-2-7B", "--gpu", "²GiB"]) == 1
    assert "no GPU" in capsys.readouterr().err


def test_the_list_names_models_and_gpus(capsys):
    text = "\n".join(lines_of(capsys, "--list"))
    assert "DeepSeek-V3" in text and "A100-40GB" in text


def test_the_command_needs_neither_torch_nor_transformers():
    hide = "import sys; sys.modules['torch'] = sys.modules['transformers'] = None; "
    run = "from minipaged.kv_size import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", hide + run, "DeepSeek-V3", "--gpu", "H200-141GB", "--tp", "16"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "one latent of 576 numbers (MLA)" in done.stdout
    done = subprocess.run([sys.executable, "-c", hide + run, "owner/name"], capture_output=True, text=True)
    assert done.returncode == 1 and "needs transformers, which is not installed here" in done.stderr


def test_every_error_is_one_of_ours():
    assert issubclass(UnreadableConfigError, MinipagedError)
