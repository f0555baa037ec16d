"""What a GGUF header means layer by layer, with the rules that llama.cpp hard-codes where the file is silent."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from gguf_models import from_config, header_of, measured_model, tiny_file
from llmdoctor_core.errors import InputError
from llmdoctor_core.facts import (
    ChunkedLocal,
    Compressed,
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
from llmdoctor_core.models.gguf import read_gguf


def described(architecture: str, **keys: Any) -> Model:
    """A model of eight layers with a few keys of its own."""
    common = {
        "block_count": 8,
        "context_length": 4096,
        "embedding_length": 512,
        "attention.head_count": 8,
        "attention.head_count_kv": 2,
    }
    given = common | {key.replace("__", "."): value for key, value in keys.items()}
    metadata = {"general.architecture": architecture}
    metadata |= {f"{architecture}.{key}": value for key, value in given.items() if value is not None}
    return describe(ModelSource(name="m", origin="file", where="m.gguf", gguf=metadata, weight_format="gguf"))


def kinds(model: Model) -> list[type]:
    return [type(layer.caches[0]) for layer in model.layers]


F, S, C = Full, SlidingWindow, ChunkedLocal


@pytest.mark.parametrize(
    ("architecture", "window", "expected"),
    [
        ("gemma2", None, [S, F] * 4),
        ("gemma3", 512, [S, S, S, S, S, F, S, S]),
        ("gemma3", None, [F] * 8),
        ("gpt-oss", 128, [S, F] * 4),
        ("cohere2", 512, [S, S, S, F] * 2),
        ("cohere2moe", 512, [F, S, S, S] * 2),
        ("olmo2", 512, [S, S, S, F] * 2),
        ("olmo2", None, [F] * 8),
        ("exaone4", 512, [F] * 8),
        ("llama4", None, [C, C, C, F] * 2),
        ("llama4", 0, [F] * 8),
        ("smallthinker", 512, [F, S, S, S] * 2),
        ("plamo3", 512, [S] * 7 + [F]),
        ("phi3", 512, [F] * 8),
        ("llama", 512, [F] * 8),
        ("qwen2", 512, [F] * 8),
    ],
)
def test_layers_slide_where_llama_cpp_says(architecture: str, window: int | None, expected: list[type]) -> None:
    assert kinds(described(architecture, attention__sliding_window=window)) == expected


def test_windows_that_llama_cpp_forces() -> None:
    assert described("smallthinker", attention__sliding_window=512).layers[1].caches[0].window == 4096
    assert described("llama4").layers[0].caches[0].chunk == 8192
    assert described("gemma2").layers[0].caches[0].window == 4096


def test_array_in_the_file_wins_over_the_pattern() -> None:
    listed = [True, True, False, True, True, True, True, False]
    model = described("gemma3", attention__sliding_window=512, attention__sliding_window_pattern=listed)
    assert [kind is S for kind in kinds(model)] == listed


def test_exaone4_slides_only_with_64_layers() -> None:
    model = described("exaone4", block_count=64, attention__sliding_window=512)
    assert kinds(model)[:4] == [S, S, S, F]


def test_latent_attention_and_its_expanded_form() -> None:
    compressed = measured_model("tiny-dsv2-lite-mla").layers[0].caches[0]
    assert compressed == Latent(rank=512, rope_dim=64, heads=4, key_dim=192, value_dim=128)
    expanded = describe(read_gguf(tiny_file("dsv2-lite-expanded")))
    assert expanded.layers[0].caches[0] == Full(kv_heads=16, key_dim=192, value_dim=128)
    assert "blk.0.attn_kv_b.weight" in expanded.source.gguf_tensor_names


def test_indexer_beside_latent_attention() -> None:
    first, second = measured_model("tiny-dsv32-dsa").layers[0].caches
    assert isinstance(first, Latent)
    assert first.sparse
    assert second == Indexer(key_dim=128)


def test_glm_5_owns_an_indexer_in_every_layer_and_5_2_in_one_of_four() -> None:
    mla = {"attention__key_length_mla": 192, "attention__value_length_mla": 128, "attention__key_length": 576}
    mla |= {"attention__kv_lora_rank": 512, "attention__head_count_kv": 1, "attention__indexer__key_length": 128}
    owners = [len(layer.caches) == 2 for layer in described("glm-dsa", **mla).layers]
    assert owners == [True] * 8
    newer = described("glm-dsa", **mla, context_length=1 << 20)
    assert [len(layer.caches) == 2 for layer in newer.layers] == [True, True, True, False, False, False, True, False]


def test_layers_that_share_a_cache() -> None:
    model = measured_model("tiny-gemma4")
    assert sum(isinstance(layer.caches[0], SharedWith) for layer in model.layers) == 15
    assert model.layers[15].caches[0] == SharedWith(layer=13)
    assert model.layers[19].caches[0] == SharedWith(layer=14)


def test_two_head_sizes_in_one_model() -> None:
    sliding, full = (measured_model("tiny-gemma4").layers[layer].caches[0] for layer in (0, 4))
    assert sliding == SlidingWindow(window=512, kv_heads=1, key_dim=256, value_dim=256)
    assert full == Full(kv_heads=1, key_dim=512, value_dim=512)


@pytest.mark.parametrize(
    ("name", "attending", "state", "elements"),
    [
        ("tiny-qwen35-9b", 8, "gdn", 3 * 8192 + 128 * 4096),
        ("tiny-jamba", 2, "mamba1", 3 * 256 + 16 * 256),
        ("tiny-mamba2", 0, "mamba2", 3 * 512 + 128 * 256),
        ("tiny-lfm2", 6, "short_conv", 2 * 128),
    ],
)
def test_states_and_attention_of_hybrids(name: str, attending: int, state: str, elements: int) -> None:
    model = measured_model(name)
    caches = [layer.caches[0] for layer in model.layers]
    assert sum(isinstance(cache, Full) for cache in caches) == attending
    states = [cache for cache in caches if isinstance(cache, State)]
    assert {cache.kind for cache in states} == {state}
    assert sum(a * b for a, b in ((shape[0], _rest(shape)) for shape in states[0].shapes)) == elements


def _rest(shape: tuple[int, ...]) -> int:
    product = 1
    for extent in shape[1:]:
        product *= extent
    return product


def test_prediction_layers_stand_apart() -> None:
    model = describe(read_gguf(tiny_file("qwen35-9b-mtp")))
    assert len(model.layers) == 32
    assert [type(layer.caches[0]) for layer in model.mtp_layers] == [Full]


def test_nemotron_h_layers_of_three_kinds() -> None:
    model = described(
        "nemotron_h",
        attention__head_count_kv=[0, 0, 2, 0, 0, 0, 2, 0],
        feed_forward_length=[0, 64, 0, 0, 64, 0, 0, 64],
        ssm__conv_kernel=4,
        ssm__inner_size=1024,
        ssm__state_size=16,
        ssm__group_count=2,
    )
    assert kinds(model) == [State, Nothing, Full, State, Nothing, State, Full, Nothing]


def test_deepseek_v4_keeps_a_window_and_compressed_rows() -> None:
    model = described(
        "deepseek4",
        attention__key_length=512,
        attention__sliding_window=128,
        attention__compress_ratios=[0, 0, 4, 128, 4, 128, 4, 0],
        attention__indexer__key_length=128,
    )
    assert model.layers[2].caches == (Compressed(window=128, ratio=4, dim=512, index_dim=128),)
    assert model.layers[3].caches == (Compressed(window=128, ratio=128, dim=512),)


def test_encoders_keep_nothing() -> None:
    assert set(kinds(described("bert"))) == {Nothing}


def test_tied_embeddings_and_weights_are_read_from_the_tensors() -> None:
    assert measured_model("smollm2-135m-q4_1").tied_embeddings
    assert not measured_model("tiny-gpt-oss-20b").tied_embeddings
    model = measured_model("smollm2-135m-q4_1")
    assert (model.vocabulary, model.training_length, model.hidden_size) == (49152, 8192, 576)
    assert model.weight_bytes == sum(group.bytes for group in model.weights) == 96576768


@pytest.mark.parametrize(
    ("architecture", "keys", "message"),
    [
        ("llama", {"block_count": None}, "llama.block_count is missing"),
        ("llama", {"block_count": 1 << 31}, "llama.cpp takes 1 to 512"),
        ("llama", {"block_count": "eight"}, "'eight', not a whole number"),
        ("llama", {"context_length": 4096.5}, "not a whole number"),
        ("llama", {"attention__head_count_kv": [2, 2]}, "must hold 8 whole numbers"),
        ("llama", {"attention__head_count_kv": [2] * 7 + [-1]}, "must hold 8 whole numbers"),
        ("gemma4", {"attention__sliding_window": 512}, "sliding_window_pattern is missing"),
        ("gpt-oss", {}, "attention.sliding_window is missing"),
        ("qwen35", {"nextn_predict_layers": 9}, "exceeds block_count"),
    ],
)
def test_header_that_llama_cpp_could_not_load_is_named(architecture: str, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        described(architecture, **keys)
    assert str(caught.value).startswith("m.gguf")


def test_file_without_architecture_is_named() -> None:
    with pytest.raises(InputError, match=r"general\.architecture is missing"):
        describe(ModelSource(name="m", origin="file", where="m.gguf", gguf={}, weight_format="gguf"))


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("qwen3-8b", "Qwen--Qwen3-8B"),
        ("gemma3-4b", "google--gemma-3-4b-it"),
        ("gpt-oss-20b", "openai--gpt-oss-20b"),
        ("qwen35-9b", "Qwen--Qwen3.5-9B"),
    ],
)
def test_file_and_config_of_one_model_keep_the_same(name: str, config: str) -> None:
    file, folder = describe(header_of(name, hollow=True)), from_config(config)
    assert [_elements(layer.caches) for layer in file.layers] == [_elements(layer.caches) for layer in folder.layers]


def _elements(caches: tuple[Any, ...]) -> list[tuple[str, int]]:
    return [
        (type(cache).__name__, sum(a * _rest(shape) for shape in cache.shapes for a in shape[:1]))
        if isinstance(cache, State)
        else (type(cache).__name__, cache.kv_heads * (cache.key_dim + cache.value_dim))
        for cache in caches
    ]


def test_header_without_a_file_is_what_the_file_says() -> None:
    written = read_gguf(tiny_file("gemma3-4b"))
    made = header_of("gemma3-4b", hollow=False)
    assert made.gguf is not None
    assert written.gguf is not None
    exact = {key: value for key, value in made.gguf.items() if not isinstance(value, float)}
    assert exact == {key: written.gguf[key] for key in exact}
    offset = written.files[0].expected_bytes - made.files[0].expected_bytes
    moved = [replace(group, start=group.start + offset, end=group.end + offset) for group in made.gguf_tensors]
    assert tuple(moved) == written.gguf_tensors
