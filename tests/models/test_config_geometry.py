"""Published configurations are understood: heads, layer kinds, bytes of cache equal independently computed ones."""

from __future__ import annotations

import json
from collections import Counter
from math import prod
from pathlib import Path
from typing import Any

import pytest

from llmdoctor_core.facts import (
    AnyCache,
    ChunkedLocal,
    Full,
    Indexer,
    Latent,
    Model,
    ModelSource,
    Nothing,
    SharedWith,
    SlidingWindow,
    State,
)
from llmdoctor_core.models import describe
from llmdoctor_core.models.catalogue import find

CONFIGS = Path(__file__).parents[1] / "configs"
GEOMETRY: dict[str, Any] = json.loads((CONFIGS / "geometry.json").read_text())
MODELLED = sorted(name for name, row in GEOMETRY.items() if "unmodelled" not in row)
KIND = {"gdn": "linear_attention", "mamba1": "mamba1", "mamba2": "mamba2", "kda": "kda", "short_conv": "conv"}


def described(name: str) -> Model:
    config = json.loads((CONFIGS / name).read_text())
    return describe(
        ModelSource(name=name.removesuffix(".json").replace("--", "/"), origin="folder", where=name, config=config)
    )


def kind(caches: tuple[AnyCache, ...], layers: tuple[Any, ...]) -> str:
    first = caches[0]
    if len(caches) == 2 and isinstance(caches[1], State):
        return "both"
    if isinstance(first, SharedWith):
        return kind(layers[first.layer].caches, layers)
    if isinstance(first, State):
        return KIND[first.kind]
    return {
        Full: "full_attention",
        Latent: "full_attention",
        SlidingWindow: "sliding_attention",
        ChunkedLocal: "chunked_attention",
        Nothing: "none",
    }[type(first)]


def token_bytes(cache: AnyCache) -> int:
    """Two bytes an element."""
    if isinstance(cache, Latent):
        return 2 * (cache.rank + cache.rope_dim)
    if isinstance(cache, Indexer):
        return 2 * cache.key_dim
    if isinstance(cache, Full | SlidingWindow | ChunkedLocal):
        return 2 * cache.kv_heads * (cache.key_dim + cache.value_dim)
    return 0


@pytest.mark.parametrize("name", MODELLED)
def test_geometry_of_published_configs(name: str) -> None:
    expected = GEOMETRY[name]
    model = described(name)
    assert len(model.layers) == expected["layers"]
    assert model.hidden_size == expected["hidden"]
    assert (model.heads, model.kv_heads, model.head_dim) == (
        expected["heads"],
        expected["kv_heads"],
        expected["head_dim"],
    )
    kinds = Counter(kind(layer.caches, model.layers) for layer in model.layers)
    shared = sum(isinstance(layer.caches[0], SharedWith) for layer in model.layers)
    if shared:
        kinds["(shared)"] = shared
    assert dict(kinds) == expected["kinds"]

    caches = [cache for layer in model.layers for cache in layer.caches]
    latent = any(isinstance(c, Latent) for c in caches)
    counted = Full | Latent | Indexer if latent else Full | Latent  # MiniMax M3's index keys were left out
    assert sum(token_bytes(c) for c in caches if isinstance(c, counted)) == expected["full_b"]
    windowed = [c for c in caches if isinstance(c, SlidingWindow | ChunkedLocal)]
    assert sum(token_bytes(c) for c in windowed) == expected["swa_b"]
    assert {getattr(c, "window", getattr(c, "chunk", None)) for c in windowed} == (
        {expected["window"]} if windowed else set()
    )
    states = [c for c in caches if isinstance(c, State)]
    assert sum(state_bytes(c) for c in states) == expected["state_b"]


def state_bytes(state: State) -> int:
    """Convolution state in two bytes an element, recurrent state in four."""
    recurrent = 0 if state.kind == "short_conv" else prod(state.shapes[-1]) * 4
    return prod(state.shapes[0]) * 2 + recurrent


def test_layers_that_take_anothers_selection_keep_no_index_keys() -> None:
    """GLM 5.2 selects tokens in 21 of its 78 sparse layers; vLLM 0.32 builds an indexer in these alone."""
    source = find("zai-org/GLM-5.2")
    assert source is not None
    model = describe(source)
    with_indexer = [i for i, layer in enumerate(model.layers) if any(isinstance(c, Indexer) for c in layer.caches)]
    assert len(with_indexer) == 21
    assert with_indexer[:5] == [0, 1, 2, 6, 10]
    assert source.config is not None
    by_rule = {key: value for key, value in source.config.items() if key != "indexer_types"}
    assert describe(ModelSource(name="x", origin="folder", where="", config=by_rule)).layers == model.layers


@pytest.mark.parametrize(
    ("config", "length"),
    [
        ({"max_position_embeddings": 32768}, 32768),
        ({"max_position_embeddings": 32768, "rope_scaling": {"type": "linear", "factor": 4.0}}, 131072),
        ({"max_position_embeddings": 32768, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, 65536),
        (
            {
                "max_position_embeddings": 32768,
                "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
            },
            131072,
        ),
        (
            {
                "max_position_embeddings": 131072,
                "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192},
            },
            131072,
        ),
        (
            {
                "max_position_embeddings": 65536,
                "rope_parameters": {
                    "full_attention": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8192},
                    "sliding_attention": {"rope_type": "default"},
                },
            },
            65536,
        ),
        ({"n_positions": 1024}, 1024),
        ({"max_position_embeddings": 4096, "max_sequence_length": 2048}, 2048),
        ({}, 2048),  # what transformers fills in for llama
    ],
)
def test_training_length_as_transformers_reads_it(config: dict[str, Any], length: int) -> None:
    model = describe(ModelSource(name="x", origin="folder", where="", config={"model_type": "llama", **config}))
    assert model.training_length == length


def test_gemma3_has_its_rope_factor_included() -> None:
    assert described("google--gemma-3-4b-it.json").training_length == 131072


@pytest.mark.parametrize(
    ("quantization", "separate", "method", "bits", "group", "kv_cache"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, None, "awq", 4, 128, None),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1, "desc_act": True}, None, "gptq", 8, None, None),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, None, "fp8", 8, None, None),
        ({"load_in_4bit": True}, None, "bitsandbytes", 4, 64, None),
        ({"quant_method": "mxfp4"}, None, "mxfp4", 4, None, None),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"g": {"weights": {"num_bits": 8, "type": "float"}, "targets": ["Linear"]}},
                "kv_cache_scheme": {"num_bits": 8, "type": "float"},
            },
            None,
            "compressed-tensors",
            8,
            None,
            "fp8",
        ),
        (None, {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}, "modelopt fp8", 8, None, "fp8"),
        (None, {"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": None}}, "modelopt nvfp4", 4, 16, None),
    ],
)
def test_quantisation_and_the_kv_dtype_a_checkpoint_asks_for(
    quantization: dict[str, Any] | None,
    separate: dict[str, Any] | None,
    method: str,
    bits: int,
    group: int | None,
    kv_cache: str | None,
) -> None:
    config = {"model_type": "llama", **({"quantization_config": quantization} if quantization else {})}
    source = ModelSource(name="x", origin="folder", where="", config=config, quantization_config=separate)
    found = describe(source).quantization
    assert found is not None
    assert (found.method, found.bits, found.group_size, found.kv_cache) == (method, bits, group, kv_cache)


def test_what_config_leaves_out_is_filled_in_and_said() -> None:
    model = described("google--gemma-3-4b-it.json")
    assert "num_attention_heads=8" in model.filled
    assert "num_key_value_heads=4" in model.filled
    assert "vocab_size=262208" in model.filled


def test_whisper_keeps_its_encoder_output_beside_the_conversation() -> None:
    model = described("openai--whisper-large-v3.json")
    assert model.encoder_decoder
    assert model.training_length == 448
    assert {type(cache).__name__ for cache in model.layers[0].caches} == {"Full", "Cross"}
    assert model.layers[0].caches[1].encoder_tokens == 1500  # type: ignore[union-attr]
