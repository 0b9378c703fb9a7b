"""Chapter 5. From a model's config to one entry per layer: what that layer keeps in the KV cache.

Configs spell one thing in many ways (num_attention_heads, n_head, ...), leave out what their code assumes, and hide
mechanisms behind single fields. The way from a config to the entries:

    fields (dict, config.json, folder, id)  ->  a type per layer ("full_attention", ...)  ->  LayerCache per layer

What is not understood raises UnreadableConfigError: a wrong size is worse than none. `config_defaults.json` holds the
values that transformers assumes for fields a config.json leaves out, so the answer is the same without transformers.
Left out: encoder-decoders (their second cache follows the source text) and states of fixed size (recurrent layers).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from minipaged.errors import InvalidInputError, MinipagedError, require, shown, whole_number


class UnreadableConfigError(MinipagedError, ValueError):
    """The config names something whose cache we do not know how to count; the message says which field."""


@dataclass(frozen=True)
class LayerCache:
    """What one layer keeps.

    Attributes:
        kind: "full", "sliding", "chunked", "shared" or "none".
        num_kv_heads, k_dim, v_dim: the K and V of one token: num_kv_heads x (k_dim + v_dim) numbers.
        window: how many tokens a sliding or chunked layer keeps at most.
        latent: for multi-head latent attention (MLA), the numbers kept per token instead of K and V.
        extra: numbers per token beside K and V (the keys of a sparse-attention indexer).
        source: the earlier layer whose K and V a shared layer reads.
        note: why, in a few words.
    """

    kind: Literal["full", "sliding", "chunked", "shared", "none"]
    num_kv_heads: int = 0
    k_dim: int = 0
    v_dim: int = 0
    window: int | None = None
    latent: int = 0
    extra: int = 0
    source: int | None = None
    note: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.kind, str) or self.kind not in _LAYER_KINDS:
            raise InvalidInputError(f"kind is {shown(self.kind)}; use one of {', '.join(_LAYER_KINDS)}")
        for name in ("num_kv_heads", "k_dim", "v_dim", "latent", "extra"):
            whole_number(name, getattr(self, name))
        for name, least in (("window", 1), ("source", 0)):
            if getattr(self, name) is not None:
                whole_number(name, getattr(self, name), least)

    def tokens_kept(self, seq_len: int) -> int:
        """How many of `seq_len` tokens this layer holds."""
        seq_len = whole_number("seq_len", seq_len)
        if self.kind in ("shared", "none"):
            return 0
        return seq_len if self.window is None else min(seq_len, self.window)

    def blocks_kept(self, seq_len: int, block_size: int) -> int:
        """Whole blocks held at most on the way to `seq_len` tokens; a window may straddle one block more."""
        seq_len, block_size = whole_number("seq_len", seq_len), whole_number("block_size", block_size, 1)
        if self.kind in ("shared", "none"):
            return 0
        blocks = -(-seq_len // block_size)
        return blocks if self.window is None else min(blocks, (self.window + block_size - 2) // block_size + 1)


_LAYER_KINDS = ("full", "sliding", "chunked", "shared", "none")

# Two spellings of one thing, the most common first.
_SPELLINGS = {
    "num_layers": (
        "num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "num_decoder_layers",
    ),
    "num_heads": (
        "num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads", "decoder_attention_heads",
        "num_decoder_attention_heads",
    ),
    "hidden_size": ("hidden_size", "n_embd", "d_model", "emb_dim", "dim", "word_embed_proj_dim"),
    "num_kv_heads": ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "n_head_kv", "kv_n_heads",
        "num_query_groups"),
    "head_dim": ("head_dim", "attention_head_dim", "kv_channels", "dim_head", "d_head", "n_head_dim"),
    "window": ("sliding_window", "sliding_window_size", "attention_window_size"),
    "layer_types": ("layer_types", "layers_block_type"),
}  # fmt: skip

_KINDS = {
    "full_attention": "full", "attention": "full", "global": "full", "hybrid": "full", "global_attention": "full",
    "sliding_attention": "sliding", "hybrid_sliding": "sliding", "local_attention": "sliding",
    "chunked_attention": "chunked",
    "indexed_attention": "full", "deepseek_sparse_attention": "full", "qwen_sparse_attention": "full",
    "linear_attention": "none", "mamba": "none", "mamba2": "none", "recurrent": "none", "conv": "none",
    "moe": "none", "mlp": "none", "minimax_m3_sparse": "full",
}  # fmt: skip

_BY_HAND = "build KVCacheSpec(layers=...) by hand"  # the way out where a config is not understood

_INDEXED = {"indexed_attention", "deepseek_sparse_attention", "qwen_sparse_attention", "minimax_m3_sparse"}

# Field names that hint at a cache which is not plain K and V. In a family that is not known, they stop us.
_UNUSUAL = re.compile(
    r"window|local|global|sparse_att|ssm|mamba|conv|recurr|linear_|lora_rank|shared_layers|share_kv|latent|loop|cycle|"
    r"block_type|block_config|layer_type|_pattern|chunk|compress|index|interval|period|_per_layer|state_size|attn_layer"
)
_HARMLESS = re.compile(
    r"^(q_lora_rank|o_lora_rank|chunk_size_feed_forward|chunk_size_lm_head|mlp_layer_types|\w*token_index|"
    r"decoder_sparse_step|\w+_token_id|\w*index_to_\w+|moe_\w+|\w*experts\w*|attention_window_size)$"
)


@dataclass(frozen=True)
class _Config:
    """The fields of one config, with the defaults of its family behind them."""

    fields: Mapping[str, Any]
    defaults: Mapping[str, Any]
    family: str
    known: bool

    @classmethod
    def of(cls, fields: Mapping[str, Any], families: Mapping[str, Any]) -> _Config:
        family = str(fields.get("model_type") or "")
        return cls(fields, families.get(family, {}), family, family in families)

    def get(self, name: str, default: Any = None) -> Any:
        """The value under any spelling of `name`, else the family's default, else `default`.

        A field given as null says something ("no window", "as many as heads"): no default replaces it.
        """
        spellings = _SPELLINGS.get(name, (name,))
        given = [self.fields[spelling] for spelling in spellings if spelling in self.fields]
        assumed = [] if given else [self.defaults[spelling] for spelling in spellings if spelling in self.defaults]
        return next((value for value in (*given, *assumed) if value is not None), default)

    def need(self, name: str) -> Any:
        value = self.get(name)
        if value is None:
            spellings = ", ".join(_SPELLINGS.get(name, (name,)))
            raise UnreadableConfigError(f"the config{self.who} has no {name}; looked for {spellings}")
        return value

    def number(self, name: str, default: int | None = None) -> int:
        value = self.need(name) if default is None else self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**40:
            raise UnreadableConfigError(f"{name} is {shown(value)}{self.who}; expected a whole number of at least 1")
        return value

    @property
    def who(self) -> str:
        return f" of family {self.family}" if self.family else ""

    def at(self, layer: int) -> _Config:
        """This config as layer `layer` sees it: values given per layer, in a list or in `per_layer_config`."""
        own: dict[str, Any] = {}
        for name in (*_SPELLINGS["num_heads"], *_SPELLINGS["num_kv_heads"], *_SPELLINGS["head_dim"], "sliding_window"):
            if isinstance(self.fields.get(name), list | tuple):
                own[name] = self._entry(name, layer)
        overrides = self.fields.get("per_layer_config") or {}
        for key, values in overrides.items() if isinstance(overrides, Mapping) else enumerate(overrides):
            if int(key) == layer:
                own |= dict(values)
        return replace(self, fields={**self.fields, **own}) if own else self

    def _entry(self, name: str, layer: int) -> Any:
        values = self.fields[name]
        if layer >= len(values):
            raise UnreadableConfigError(f"{name} has {len(values)} entries{self.who}, and layer {layer} needs one")
        return values[layer]


def read_config(config: Any) -> tuple[list[LayerCache], str, str]:
    """(layers, name, family) of a transformers config, a dict, a config.json, a folder with one, or a model id.

    Raises:
        UnreadableConfigError: a field is missing, or names a mechanism whose cache is not known here.
        InvalidInputError: there is no such file, folder or id.
    """
    try:
        fields, name = _fields_of(config)
        read = _Config.of(fields, _known_families())
        return _read_layers(read), name, read.family
    except MinipagedError:
        raise
    except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError, RuntimeError) as error:
        # a config comes from anywhere: any of its fields may hold anything
        said = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:120]
        raise UnreadableConfigError(f"a field of the config holds what it should not ({said}); {_BY_HAND}") from error


def _fields_of(config: Any) -> tuple[dict[str, Any], str]:
    """(fields, name) of anything that `from_config` takes; the text model's fields if the model has more parts."""
    name = ""
    if isinstance(config, str | Path):
        fields, name = _load(config)
    elif isinstance(config, Mapping):
        fields = dict(config)
        name = str(fields.get("_name_or_path") or "")
    elif hasattr(config, "to_dict"):
        text = config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config
        fields = _as_dict(text)
        name = str(getattr(config, "name_or_path", "") or "")
    else:
        raise InvalidInputError(
            f"cannot read a config from {type(config).__name__}; pass a transformers config, a dict, a config.json, "
            "a folder or an id"
        )
    return _text_part(fields), name


def _as_dict(config: Any) -> dict[str, Any]:
    """A transformers config as a dict, with the properties that its class computes and `to_dict` leaves out."""
    fields = dict(config.to_dict())
    for name in ("layer_types", "layers_block_type", "sliding_window"):
        if fields.get(name) is None and getattr(config, name, None) is not None:
            fields[name] = getattr(config, name)
    return fields


def _text_part(fields: dict[str, Any]) -> dict[str, Any]:
    """The language model's own fields of a model with vision or audio parts."""
    for key in ("text_config", "llm_config", "language_config", "language_model"):
        inner = fields.get(key)
        if isinstance(inner, Mapping):
            return _text_part(dict(inner))
    if isinstance(attention := fields.get("attn_config"), Mapping):  # MPT and DBRX keep their heads one level down
        if attention.get("attn_type", "multihead_attention") != "multihead_attention":
            raise UnreadableConfigError(
                f"attn_type {attention['attn_type']!r} is not one we know how to count; {_BY_HAND}"
            )
        inner = {k: v for k, v in attention.items() if k in ("kv_n_heads", "sliding_window")}
        return {**{k: v for k, v in fields.items() if k != "attn_config"}, **inner}
    return fields


def _load(source: str | Path) -> tuple[dict[str, Any], str]:
    """Fields from a config.json, a folder that holds one, or an id (which needs transformers)."""
    path = Path(source).expanduser()
    if path.is_dir():
        path = path / "config.json"
        if not path.is_file():
            raise InvalidInputError(f"the folder {path.parent} holds no config.json; pass a model's folder")
    if path.is_file():
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise UnreadableConfigError(f"{path} is not a JSON file: {error}") from error
        if not isinstance(fields, dict):
            raise UnreadableConfigError(f"{path} holds a {type(fields).__name__}; expected an object of fields")
        return fields, path.parent.name
    if isinstance(source, Path) or str(source).startswith((".", "/", "~")) or str(source).endswith(".json"):
        raise InvalidInputError(f"there is no file or folder {source}")
    return _load_id(str(source)), str(source)


def _load_id(name: str) -> dict[str, Any]:
    auto = require("transformers", f'reading the config of the id "{name}"').AutoConfig
    try:
        config = auto.from_pretrained(name, trust_remote_code=False)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InvalidInputError(
            f'"{name}" is no preset, file or folder here, and as a transformers id it could not be read: {reason}'
        ) from error
    return _fields_of(config)[0]


@cache
def _known_families() -> dict[str, dict[str, Any]]:
    """Family -> the values that transformers assumes for cache fields which a config.json leaves out."""
    data = resources.files("minipaged").joinpath("config_defaults.json")
    return json.loads(data.read_text(encoding="utf-8")) if data.is_file() else {}


# --- from a config to one entry per layer -----------------------------------------------------------------------------


def _read_layers(config: _Config) -> list[LayerCache]:
    """One entry per layer."""
    _refuse(config)
    types = _layer_types(config)
    layers = [_read_layer(config.at(index), index, layer_type) for index, layer_type in enumerate(types)]
    if config.family in _LOOPS:
        return [layers[index] for index in _visits(config, len(types))]
    return _share(config, layers)


def _refuse(config: _Config) -> None:
    """Raise for a config whose cache is something else than we count."""
    if config.get("is_encoder_decoder"):
        raise UnreadableConfigError(
            f"the config{config.who} is an encoder-decoder: its cross-attention cache follows the source text, which "
            "is not counted here; pass the decoder's own config with is_encoder_decoder false"
        )
    if config.get("is_decoder", True) is False and config.family in _ENCODERS:
        raise UnreadableConfigError(f"the config{config.who} is an encoder (is_decoder is false): it keeps no cache")
    if reason := _UNCOUNTED.get(config.family):
        raise UnreadableConfigError(f"the cache of family {config.family} is not counted here: {reason}; {_BY_HAND}")
    if config.known:
        return
    for name in config.get("architectures", []):
        if "For" in name and not _GENERATES.search(name):
            raise UnreadableConfigError(f"{name} is no model that writes text token by token, so it keeps no KV cache")
    understood = {spelling for spellings in _SPELLINGS.values() for spelling in spellings} | _UNDERSTOOD
    for name, value in config.fields.items():
        if value in (None, False, 0) or value == [] or value == {} or name in understood or _HARMLESS.match(name):
            continue
        if _UNUSUAL.search(name):
            raise UnreadableConfigError(
                f'"{config.family}" is no family we know, and its field {name} = {str(value)[:60]} may change what the '
                f"cache holds; {_BY_HAND}"
            )


_GENERATES = re.compile(r"For(CausalLM|ConditionalGeneration|\w*Generation)$")

# Families whose cache is none of the kinds above, and why.
_UNCOUNTED = {
    "cpmant": "it puts prompt tokens of its own before the text, and keeps them too",
    "mllama": "its cross-attention layers keep K and V of the picture, not of the text",
    "mllama_text_model": "its cross-attention layers keep K and V of the picture, not of the text",
    "blt": "it keeps bytes in some layers and patches of several bytes in others",
    "gemma4_assistant": "it reads the K and V of the model it assists",
    "gemma4_unified_assistant": "it reads the K and V of the model it assists",
    "reformer": "it keeps hashed hidden states instead of K and V",
    "xlnet": "it keeps hidden states of earlier segments instead of K and V",
    "openai-gpt": "its code keeps no cache",
    "xlm": "its code keeps no cache",
    "deepseek_v4": "its layers keep windows, compressed blocks and unfinished buffers side by side",
}

# Families that are encoders unless told otherwise.
_ENCODERS = {
    "bert", "bert-generation", "big_bird", "camembert", "data2vec-text", "electra", "ernie", "megatron-bert", "rembert",
    "roberta", "roberta-prelayernorm", "roc_bert", "roformer", "xlm-roberta", "xlm-roberta-xl", "xmod", "reformer",
}  # fmt: skip

_UNDERSTOOD = {
    "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "use_sliding_window", "max_window_layers",
    "per_layer_config", "num_kv_shared_layers",
}  # fmt: skip

_RECURRENT = {"mamba", "mamba2", "falcon_mamba", "rwkv", "xlstm"}


def _every(step: int, rest: str = "sliding_attention", given_as: str = "") -> Callable[[_Config, int], list[str]]:
    """Full attention in layers step-1, 2*step-1, ..., `rest` in the others; a config may give the step itself."""

    def types(config: _Config, count: int) -> list[str]:
        own = config.number(given_as, step) if given_as else step
        return ["full_attention" if (index + 1) % own == 0 else rest for index in range(count)]

    return types


def _all(layer_type: str) -> Callable[[_Config, int], list[str]]:
    return lambda config, count: [layer_type] * count


def _listed(field: str, attention: str = "full_attention", rest: str = "linear_attention") -> Any:
    """Attention in the layers whose numbers `field` lists."""
    return lambda config, count: [attention if index in config.need(field) else rest for index in range(count)]


def _cohere_or_exaone(config: _Config, count: int) -> list[str]:
    return _every(4, given_as="sliding_window_pattern")(config, count)


def _gemma4(config: _Config, count: int) -> list[str]:
    return [*_every(6)(config, count)[:-1], "full_attention"]


def _jamba(config: _Config, count: int) -> list[str]:
    period, offset = config.number("attn_layer_period"), config.need("attn_layer_offset")
    return ["full_attention" if index % period == offset else "mamba" for index in range(count)]


def _llama4(config: _Config, count: int) -> list[str]:
    chunked = "full_attention" if config.get("attention_chunk_size") is None else "chunked_attention"
    with_rope = config.get("no_rope_layers") or [(index + 1) % 4 != 0 for index in range(count)]
    return [chunked if rope else "full_attention" for rope in with_rope]


def _minimax(config: _Config, count: int) -> list[str]:
    kinds = config.get("attn_type_list") or [(index + 1) % 2 for index in range(count)]
    return ["full_attention" if kind == 1 else "linear_attention" for kind in kinds]


def _recurrent_gemma(config: _Config, count: int) -> list[str]:
    block = config.get("block_types") or ["recurrent", "recurrent", "attention"]
    return ["sliding_attention" if block[index % len(block)] == "attention" else "recurrent" for index in range(count)]


def _kimi_linear(config: _Config, count: int) -> list[str]:
    full = {number - 1 for number in config.need("linear_attn_config")["full_attn_layers"]}  # they count from 1
    return ["full_attention" if index in full else "linear_attention" for index in range(count)]


# How a family fills in `layer_types` when its config.json leaves them out.
_PATTERNS: dict[str, Callable[[_Config, int], list[str]]] = {
    "bamba": _listed("attn_layer_indices"),
    "cohere2": _cohere_or_exaone,
    "deepseek_v32": _all("indexed_attention"),
    "exaone4": _cohere_or_exaone,
    "falcon_h1": _all("hybrid"),
    "gemma2": _every(2),
    "gemma3_text": _every(6, given_as="sliding_window_pattern"),
    "gemma3n_text": _every(5),
    "gemma4_text": _gemma4,
    "gemma4_unified_text": _gemma4,
    "glm_moe_dsa": _all("indexed_attention"),
    "gpt_oss": _every(2),
    "granitemoehybrid": _all("linear_attention"),
    "jamba": _jamba,
    "kimi_linear": _kimi_linear,
    "lfm2": _listed("full_attn_idxs", rest="conv"),
    "lfm2_moe": _listed("full_attn_idxs", rest="conv"),
    "llama4_text": _llama4,
    "minimax": _minimax,
    "olmo3": _every(4),
    "qwen3_5_moe_text": _every(4, "linear_attention", given_as="full_attention_interval"),
    "qwen3_5_text": _every(4, "linear_attention", given_as="full_attention_interval"),
    "qwen3_next": _every(4, "linear_attention", given_as="full_attention_interval"),
    "recurrent_gemma": _recurrent_gemma,
    "vaultgemma": _every(2),
}

# Families whose layers use the window from max_window_layers on, if use_sliding_window says so.
_BY_WINDOW = {"qwen2", "qwen3", "dots1", "ministral", "qwen2_moe", "smollm3"}


_NEMOTRON_H = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}


def _layer_types(config: _Config) -> list[str]:
    """The type of each layer, in the words of transformers' `layer_types`."""
    if config.family in _RECURRENT:
        return ["linear_attention"] * config.number("num_layers")
    types = config.get("layer_types")
    if types is not None and not isinstance(types, list | tuple):
        raise UnreadableConfigError(f"layer_types is {shown(types)}{config.who}; expected a list, one entry a layer")
    if config.family == "nemotron_h" and types is None:
        types = [_NEMOTRON_H.get(letter, letter) for letter in config.need("hybrid_override_pattern")]
    count = config.number("num_layers", len(types) if types else None)
    if count > 100_000:
        raise UnreadableConfigError(f"num_layers is {count}{config.who}; expected at most 100,000")
    if types is None and config.family in _PATTERNS:
        types = _PATTERNS[config.family](config, count)
    if types is None and config.defaults.get("derives_layer_types") and config.family not in _BY_WINDOW:
        raise UnreadableConfigError(
            f"the config{config.who} leaves out layer_types, which its code derives; load it once with transformers "
            "(AutoConfig) and pass that, or add layer_types"
        )
    if types is None:
        types = _window_types(config, count)
    if config.family == "recurrent_gemma":  # all its attention has a window; transformers before 5.24 does not say so
        types = ["sliding_attention" if name == "attention" else name for name in types]
    if len(types) != count:
        raise UnreadableConfigError(
            f"layer_types has {len(types)} entries{config.who}, one each is needed for {count} layers"
        )
    for name in types:
        if name not in _KINDS:
            raise UnreadableConfigError(
                f'layer type "{name}"{config.who} is not one we know how to count; known are '
                f"{', '.join(sorted(_KINDS))}; {_BY_HAND}"
            )
    return list(types)


def _window_types(config: _Config, count: int) -> list[str]:
    """Layer types of a config that lists none: no window, one for all layers, or one from max_window_layers on."""
    window = config.get("window")
    if window is None or config.get("use_sliding_window") is False:
        chunked = config.get("attention_chunk_size") is not None
        return ["chunked_attention" if chunked else "full_attention"] * count
    if config.family in ("qwen2_moe", "smollm3"):
        raise UnreadableConfigError(f"the config{config.who} uses its window in some layers; add layer_types")
    if config.family in _BY_WINDOW:
        first = config.get("max_window_layers", 0)
        return ["sliding_attention" if index >= first else "full_attention" for index in range(count)]
    if not config.known:
        raise UnreadableConfigError(
            f'"{config.family}" is no family we know, and it does not say which layers use its window of {window} '
            "tokens; add layer_types"
        )
    return ["sliding_attention"] * count


def _read_layer(config: _Config, index: int, layer_type: str) -> LayerCache:
    """What a layer of this type keeps, by the config as this layer sees it."""
    kind = _KINDS[layer_type]
    if kind == "none":
        return LayerCache("none", note=layer_type)
    window = None
    if kind != "full":
        window = _window(config) if kind == "sliding" else config.number("attention_chunk_size")
    heads = config.number("num_heads")
    extra = _indexer_dim(config, index) if layer_type in _INDEXED else 0
    if config.get("kv_lora_rank"):
        rope, nope = config.number("qk_rope_head_dim"), config.number("qk_nope_head_dim")
        latent = config.number("kv_lora_rank") + rope
        return LayerCache(kind, heads, nope + rope, config.number("v_head_dim"), window, latent, extra, note=layer_type)
    kv_heads, k_dim = _num_kv_heads(config, heads), _head_dim(config, heads)
    if kind == "sliding":
        kv_heads, k_dim = _own_of_sliding_layers(config, kv_heads, k_dim)
    elif config.family in _GEMMA4 and "per_layer_config" not in config.fields:
        kv_heads, k_dim = _own_of_global_layers(config, kv_heads)
    v_dim = config.number("v_head_dim", k_dim)
    return LayerCache(kind, kv_heads, k_dim, v_dim, window, extra=extra, note=layer_type)


def _window(config: _Config) -> int:
    """How many tokens a sliding layer keeps."""
    if config.get("window") is None and config.get("local_attention"):
        return config.number("local_attention") // 2  # ModernBERT counts both sides of a token
    return config.number("window")


def _own_of_sliding_layers(config: _Config, kv_heads: int, k_dim: int) -> tuple[int, int]:
    """KV heads and head_dim of sliding layers, where they have their own."""
    if config.family == "mimo_v2_flash":
        kv_heads = 2 * kv_heads
    return config.number("swa_num_key_value_heads", kv_heads), config.number("swa_head_dim", k_dim)


_GEMMA4 = {"gemma4_text", "gemma4_unified_text"}


def _own_of_global_layers(config: _Config, kv_heads: int) -> tuple[int, int]:
    """KV heads and head_dim of Gemma 4's full-attention layers."""
    if config.get("attention_k_eq_v", config.family != "gemma4_text"):
        kv_heads = config.number("num_global_key_value_heads", kv_heads)
    return kv_heads, config.number("global_head_dim", 512)


def _indexer_dim(config: _Config, index: int) -> int:
    """Numbers per token that a sparse-attention indexer keeps beside K and V; shared indexers keep none."""
    modes = config.get("indexer_types")
    if modes and modes[index] != "full":
        return 0
    if config.get("indexer_n_heads"):
        raise UnreadableConfigError(
            f"the indexer{config.who} keeps positions beside its keys, which are not counted here; {_BY_HAND}"
        )
    return config.number("index_head_dim") if config.get("index_head_dim") else 0


def _head_dim(config: _Config, heads: int) -> int:
    """The config's own head_dim if it has one, else hidden / heads."""
    if config.get("head_dim") is not None:
        return config.number("head_dim")
    hidden = config.number("hidden_size")
    if hidden % heads:
        raise UnreadableConfigError(
            f"hidden size {hidden}{config.who} is no multiple of {heads} heads, and no head_dim is given; add head_dim"
        )
    return hidden // heads


def _num_kv_heads(config: _Config, heads: int) -> int:
    """KV heads: the config's, one for multi-query attention, else as many as query heads."""
    if config.family == "falcon":
        if config.get("new_decoder_architecture"):
            return config.number("num_kv_heads", heads)
        return 1 if config.get("multi_query") else heads
    if config.get("multi_query"):
        return 1
    if config.family == "gpt_bigcode":
        return heads
    if config.get("multi_query_attention"):
        return config.number("multi_query_group_num")
    return config.number("num_kv_heads", heads)


# Families that pass some layers more than once and keep K and V of each pass.
_LOOPS = {"dory", "inkling2_loop_text", "hrm_text", "longcat_flash"}


def _visits(config: _Config, count: int) -> list[int]:
    """Indexes of the layers in the order in which a token's K and V are stored."""
    if config.family == "hrm_text":
        cycles = config.number("H_cycles") * (config.number("L_cycles") + 1)
        return list(range(count)) * (1 if config.get("num_layers_per_stack") else cycles)
    if config.family == "longcat_flash":  # two attention blocks in each layer
        return [index for index in range(count) for _ in range(2)]
    if config.family == "dory":
        first, last = config.number("n_input_layers"), count - config.number("n_output_layers")
        passes = 1 if config.get("recurrent_kv_cache_mode") == "last_loop" else config.number("n_recurrent_loops")
    else:
        first, last = config.need("loop_layer_index_start"), config.number("loop_layer_index_end")
        passes = config.number("loop_num_passes")
    return [*range(first), *list(range(first, last)) * passes, *range(last, count)]


def _share(config: _Config, layers: list[LayerCache]) -> list[LayerCache]:
    """Let the last `num_kv_shared_layers` layers read the last earlier layer of their own type."""
    first = len(layers) - (config.get("num_kv_shared_layers") or 0)
    shared = []
    for index in range(first, len(layers)):
        source = max((i for i in range(first) if layers[i].note == layers[index].note), default=None)
        if source is None:
            raise UnreadableConfigError(
                f"layer {index}{config.who} shares K and V, and none of the first {first} layers has its type, "
                f"{layers[index].note}; correct num_kv_shared_layers or layer_types"
            )
        shared.append(LayerCache("shared", source=source, note=layers[index].note))
    return [*layers[:first], *shared]
