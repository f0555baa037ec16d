"""A model from GGUF metadata: which layers keep what, as llama.cpp reads the file.

Where the file is silent llama.cpp falls back to rules in its source; they stand in ``gguf_architectures.toml``.
Source of every rule: llama.cpp b11434, ``llama_model_base::load_hparams`` and the ``load_arch_hparams`` named there.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

from llmdoctor_core.errors import InputError
from llmdoctor_core.facts import (
    AnyCache,
    ChunkedLocal,
    Compressed,
    Full,
    Indexer,
    Latent,
    Layer,
    Model,
    ModelSource,
    Nothing,
    Quantization,
    SharedWith,
    SlidingWindow,
    State,
)

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MAX_LAYERS = 512
"""LLAMA_MAX_LAYERS, src/llama-hparams.h: llama.cpp stops at a file with more."""


@lru_cache(maxsize=1)
def architectures() -> dict[str, Any]:
    """The table of what llama.cpp knows by architecture beyond the general keys."""
    return tomllib.loads((Path(__file__).parent / "data/gguf_architectures.toml").read_text())


def describe_gguf(source: ModelSource) -> Model:
    """The model that a GGUF header describes, layer by layer, as llama.cpp caches it.

    Raises InputError where a key that llama.cpp requires is missing or of the wrong kind, or the file is no GGUF file.
    """
    if source.gguf is None:
        problem = source.files[0].problem if source.files else None
        raise InputError(f"{source.where} holds no GGUF header" + (f": it is {problem}" if problem else ""))
    keys = Keys(source.gguf, source.where)
    layers, mtp = _layers(keys, source)
    kinds: dict[str, int] = {}
    for group in source.gguf_tensors:
        kinds[group.dtype or ""] = kinds.get(group.dtype or "", 0) + group.bytes
    dominant = max(kinds, key=lambda dtype: kinds[dtype], default="unknown")
    tensors = set(source.gguf_tensor_names)
    return Model(
        name=keys.text("general.name") or source.name,
        origin=source.origin,
        architecture=keys.architecture,
        model_type=keys.architecture,
        layers=layers,
        mtp_layers=mtp,
        hidden_size=keys.number("embedding_length"),
        heads=max(keys.per_layer("attention.head_count", 0)),
        kv_heads=max(keys.kv_heads),
        head_dim=keys.head("attention.key_length"),
        intermediate_size=max(keys.per_layer("feed_forward_length", 0)) or None,
        experts=keys.number("expert_count", 0),
        experts_per_token=max(keys.per_layer("expert_used_count", 0)),
        expert_intermediate_size=max(keys.per_layer("expert_feed_forward_length", 0)) or None,
        vocabulary=source.tokenizer.vocabulary or keys.number("vocab_size", 0),
        training_length=keys.number("context_length"),
        dtype=dominant,
        quantization=None if dominant in ("f32", "f16", "bf16", "unknown") else Quantization(method=dominant),
        tied_embeddings=bool(tensors) and "output.weight" not in tensors,
        multimodal=any(group.kind in ("vision", "audio") for group in source.gguf_tensors),
        encoder_decoder=keys.architecture == "t5",
        pooling=keys.number("pooling_type", 0) > 0,
        weights=source.gguf_tensors,
        weight_bytes=source.weight_bytes,
        source=source,
    )


class Keys:
    """The metadata of one file under its architecture's prefix, with llama.cpp's fall-backs."""

    def __init__(self, metadata: dict[str, Any], where: str) -> None:
        self.metadata, self.where = metadata, where
        architecture = metadata.get("general.architecture")
        if not isinstance(architecture, str) or not architecture:
            raise InputError(f"{where}: general.architecture is missing: it is no language model, or badly converted")
        self.architecture = architecture
        self.blocks = self.number("block_count")
        if not 0 < self.blocks <= MAX_LAYERS:
            raise InputError(
                f"{where}: {architecture}.block_count is {self.blocks:,}; llama.cpp takes 1 to {MAX_LAYERS}"
            )
        self.heads = self.per_layer("attention.head_count", 0)
        self.kv_heads = self.per_layer("attention.head_count_kv", None) if self._has_kv_heads() else self.heads

    def _has_kv_heads(self) -> bool:
        return f"{self.architecture}.attention.head_count_kv" in self.metadata

    def get(self, key: str) -> Any:
        return self.metadata.get(f"{self.architecture}.{key}")

    def text(self, key: str) -> str | None:
        value = self.metadata.get(key)
        return value if isinstance(value, str) else None

    def number(self, key: str, default: int | None = None) -> int:
        """A whole number. Raises InputError where it is missing without a default, or something else."""
        value = self.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 32:
            said = "is missing" if value is None else f"is {value!r}, not a whole number"
            raise InputError(f"{self.where}: {self.architecture}.{key} {said}: llama.cpp cannot load the file")
        return value

    def per_layer(self, key: str, default: int | None) -> list[int]:
        """One number a layer from a number or an array (llama.cpp's get_key_or_arr)."""
        value = self.get(key)
        if not isinstance(value, list):
            return [self.number(key, default)] * self.blocks
        if len(value) < self.blocks or not all(isinstance(item, int) and 0 <= item < 1 << 32 for item in value):
            raise InputError(
                f"{self.where}: {self.architecture}.{key} must hold {self.blocks} whole numbers, one a layer"
            )
        return [int(item) for item in value[: self.blocks]]

    def head(self, key: str, default: int | None = None) -> int:
        """Elements of one head; without the key the embedding divided by the heads of the first layer."""
        if not self.heads[0]:
            return 0
        fallback = self.number("embedding_length") // self.heads[0] if default is None else default
        size = self.number(key, fallback)
        if not size:
            raise InputError(f"{self.where}: {self.architecture}.{key} is 0: llama.cpp cannot load the file")
        return size


def _layers(keys: Keys, source: ModelSource) -> tuple[tuple[Layer, ...], tuple[Layer, ...]]:
    table = architectures()
    if keys.architecture in table["uncached"]["architectures"]:
        return (Layer(caches=(Nothing(),)),) * keys.blocks, ()
    blocks = keys.blocks * keys.number("num_loops", 1) if keys.architecture == "nanbeige" else keys.blocks
    if blocks > MAX_LAYERS:
        raise InputError(f"{keys.where}: num_loops makes {blocks:,} layers; llama.cpp takes {MAX_LAYERS}")
    trunk = blocks - _nextn(keys, source)
    window, slides = _sliding(keys, table["sliding"].get(keys.architecture), trunk)
    states = _states(keys, table["recurrent"].get(keys.architecture), trunk)
    indexed = _indexed(keys, table["indexer"].get(keys.architecture), trunk)
    owning = _owning(keys, table["shared"].get(keys.architecture))
    chunked = table["sliding"].get(keys.architecture, {}).get("chunked", False)
    layers = []
    for number in range(blocks):
        layer = number % keys.blocks
        caches: list[AnyCache] = []
        if number >= owning:
            # gemma3n and gemma4: the last owning layer of the same kind (llama-model.cpp, layer_reuse_cb).
            caches.append(SharedWith(layer=owning - (2 if slides[number] else 1)))
        elif _attends(keys, table["recurrent"].get(keys.architecture), layer, states):
            caches.append(_attention(keys, layer, window if slides[number] else None, chunked))
        if number in indexed:
            caches.append(Indexer(key_dim=keys.number("attention.indexer.key_length"), heads=indexed[number]))
        if layer in states:
            caches.append(states[layer])
        layers.append(Layer(caches=tuple(caches) or (Nothing(),)))
    if keys.architecture == "graniteswitch":
        # One more single-head layer holds the adapter router's keys and values (granite-switch.cpp).
        head = keys.head("attention.key_length")
        layers.append(Layer(caches=(Full(kv_heads=1, key_dim=head, value_dim=keys.head("attention.value_length")),)))
        trunk += 1
    return tuple(layers[:trunk]), tuple(layers[trunk:])


def _nextn(keys: Keys, source: ModelSource) -> int:
    """Multi-token-prediction layers at the end, which only a draft context caches."""
    nextn = keys.number("nextn_predict_layers", 0)
    if nextn > keys.blocks:
        raise InputError(f"{keys.where}: nextn_predict_layers {nextn} exceeds block_count {keys.blocks}")
    if keys.architecture == "deepseek4" and nextn:
        # deepseek4.cpp: a file without the head's projection has no such layer, whatever the key says.
        probe = f"blk.{keys.blocks - nextn}.nextn.eh_proj.weight"
        return nextn if probe in source.gguf_tensor_names else 0
    return 0 if nextn == keys.blocks else nextn


def _sliding(keys: Keys, rule: dict[str, Any] | None, trunk: int) -> tuple[int, list[bool]]:
    """The window and, a layer each, whether it slides; window 0 and none where the model does not slide."""
    none = [False] * (keys.blocks + trunk)
    if rule is None or rule.get("only_layers", trunk) != trunk:
        return 0, none
    given = keys.get("attention.sliding_window")
    if rule.get("optional") and not given:
        return 0, none
    if rule.get("chunked") and given == 0:
        return 0, none
    window = rule.get("forced") or keys.number("attention.sliding_window", rule.get("window"))
    pattern = keys.get("attention.sliding_window_pattern")
    if rule.get("every"):
        slides = [True] * len(none)
    elif isinstance(pattern, list):
        slides = [bool(item) for item in pattern] + none
    elif "pattern" not in rule and pattern is None:
        raise InputError(
            f"{keys.where}: {keys.architecture}.attention.sliding_window_pattern is missing: "
            "llama.cpp cannot load the file"
        )
    else:
        step = keys.number("attention.sliding_window_pattern", rule.get("pattern"))
        dense_first = rule.get("dense_first", False)
        slides = [
            layer < trunk and (step == 0 or (layer % step != 0 if dense_first else layer % step < step - 1))
            for layer in range(len(none))
        ]
    return int(window), slides


def _states(keys: Keys, rule: dict[str, Any] | None, trunk: int) -> dict[int, State]:
    """The state of each recurrent layer. Elements: hparams.n_embd_r and n_embd_s of src/llama-hparams.cpp."""
    if rule is None:
        return {}
    kind = rule["kind"]
    layers = [layer for layer in range(trunk) if _recurrent(keys, rule, layer, trunk)]
    if not layers:
        return {}
    state = State(kind=kind, shapes=_state_shapes(keys, kind), parameters=_state_parameters(keys, kind))
    return dict.fromkeys(layers, state)


def _recurrent(keys: Keys, rule: dict[str, Any], layer: int, trunk: int) -> bool:
    if rule["rule"] in ("all", "both"):
        return True
    if rule["rule"] == "interval":
        listed = keys.get("attention.recurrent_layers")
        if isinstance(listed, list):
            return layer < len(listed) and bool(listed[layer])
        return (layer + 1) % max(keys.number("full_attention_interval", rule["interval"]), 1) != 0
    without_kv = keys.kv_heads[layer] == 0
    if rule["rule"] == "no kv heads, no ffn":
        return without_kv and keys.per_layer("feed_forward_length", 0)[layer] == 0
    return without_kv


def _attends(keys: Keys, rule: dict[str, Any] | None, layer: int, states: dict[int, State]) -> bool:
    if rule is None or rule["rule"] == "both":
        return True
    if rule["rule"] == "all" or layer in states:
        return False
    return rule["rule"] != "no kv heads, no ffn" or keys.per_layer("feed_forward_length", 0)[layer] == 0


def _state_shapes(keys: Keys, kind: str) -> tuple[tuple[int, ...], ...]:
    hidden = keys.number("embedding_length")
    if kind == "rwkv":
        head = keys.number("wkv.head_size")
        return (keys.number("token_shift_count", 2), hidden), (hidden // max(head, 1), head, head)
    if kind == "short_conv":
        return ((hidden, max(keys.number("shortconv.l_cache") - 1, 0)),)
    taps = max(keys.number("ssm.conv_kernel", 4 if kind == "kda" else 0) - 1, 0)
    if kind == "kda":
        heads, head = keys.heads[0], keys.number("kda.head_dim")
        return (3 * heads * head, taps), (heads, head, head)
    if kind == "linear":
        head = keys.head("attention.key_length")
        return ((keys.heads[0], head, head),)
    inner, size, groups = (keys.number(f"ssm.{key}", 0) for key in ("inner_size", "state_size", "group_count"))
    return (inner + 2 * groups * size, taps), (inner, size)


def _state_parameters(keys: Keys, kind: str) -> dict[str, int]:
    names = ("ssm.inner_size", "ssm.state_size", "ssm.group_count", "ssm.time_step_rank", "ssm.conv_kernel")
    return {
        name.partition(".")[2]: keys.number(name) for name in names if keys.get(name) is not None and kind != "rwkv"
    }


def _indexed(keys: Keys, rule: dict[str, Any] | None, trunk: int) -> dict[int, int]:
    """Keys a token that each layer's indexer keeps, by layer; empty where the model or the file has no indexer."""
    if rule is None or not keys.get("attention.indexer.key_length"):
        return {}
    rows = rule.get("rows", 1)
    if rule["layers"] == "after dense":
        layers = range(keys.number("leading_dense_block_count", 0), trunk)
        return dict.fromkeys(layers, rows)
    if rule["layers"] == "all":
        return dict.fromkeys(range(trunk), rows)
    if rule["layers"] == "attention":
        recurrent = architectures()["recurrent"][keys.architecture]
        if keys.architecture == "qwen4exp" and not any(keys.per_layer("attention.compress_ratios", 0)):
            rows = 1  # no pooling: one key a token (qwen4exp.cpp, indexer_kpool)
        return {layer: rows for layer in range(trunk) if not _recurrent(keys, recurrent, layer, trunk)}
    owns = _indexer_types(keys, trunk)
    attending = [layer for layer in range(trunk) if keys.kv_heads[layer] or keys.architecture != "glm5-next"]
    return {layer: rows for layer in attending if owns[layer]}


def _indexer_types(keys: Keys, trunk: int) -> list[bool]:
    listed = keys.get("attention.indexer.types")
    if isinstance(listed, list) and len(listed) >= trunk:
        return [bool(item) for item in listed]
    if keys.architecture == "glm-dsa" and keys.number("context_length") >= 1 << 20:
        # glm-dsa.cpp, GLM_5_2_DEFAULT_INDEXER_TYPES: layers 0 and 1, then one in four.
        return [layer < 2 or layer % 4 == 2 for layer in range(trunk)]
    return [keys.architecture in ("glm-dsa", "glm5-next")] * trunk


def _owning(keys: Keys, rule: dict[str, Any] | None) -> int:
    """How many layers from the first own a cache."""
    if rule is None:
        return MAX_LAYERS
    return int(rule.get("owning", keys.blocks - keys.number("attention.shared_kv_layers", 0)))


def _attention(keys: Keys, layer: int, window: int | None, chunked: bool) -> AnyCache:
    kv_heads = keys.kv_heads[layer]
    if not kv_heads or not keys.heads[0]:
        return Nothing()  # llama.cpp then has heads of no size
    key = keys.head("attention.key_length")
    value = keys.head("attention.value_length")
    key_mla, value_mla = keys.number("attention.key_length_mla", 0), keys.number("attention.value_length_mla", 0)
    if window is not None:
        key = keys.head("attention.key_length_swa", key)
        value = keys.head("attention.value_length_swa", value)
    if key_mla and value_mla and window is None:
        rank = keys.number("attention.kv_lora_rank", 0)
        return Latent(
            rank=rank,
            rope_dim=max(key * kv_heads - rank, 0),
            heads=keys.heads[layer],
            key_dim=key_mla,
            value_dim=value_mla,
            sparse=keys.architecture in architectures()["indexer"],
        )
    if keys.architecture == "deepseek4":
        ratio = keys.per_layer("attention.compress_ratios", 0)[layer]
        index = keys.number("attention.indexer.key_length", 0) if ratio == 4 else 0
        return Compressed(window=window or 0, ratio=ratio, dim=key, index_dim=index)
    if window is None:
        return Full(kv_heads=kv_heads, key_dim=key, value_dim=value)
    if chunked:
        return ChunkedLocal(chunk=window, kv_heads=kv_heads, key_dim=key, value_dim=value)
    if key_mla:
        value = 0  # dots3note's sliding layers keep one latent row a token too: no separate values
    return SlidingWindow(window=window, kv_heads=kv_heads, key_dim=key, value_dim=value)
