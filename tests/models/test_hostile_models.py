"""Whatever a model's files hold, the answer is a description or one clear sentence, and it comes in bounded time."""

from __future__ import annotations

import json
import struct
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmdoctor_core.errors import InputError
from llmdoctor_core.facts import Model, ModelSource
from llmdoctor_core.models import describe, safetensors
from llmdoctor_core.models.json_text import json_object
from llmdoctor_core.models.open import open_model
from llmdoctor_core.models.tables import table
from llmdoctor_core.models.tokenizer import entries
from llmdoctor_core.models.weights import bytes_per_rank

CONFIGS = sorted((Path(__file__).parents[1] / "configs").glob("*--*.json"))
LOADED = [json.loads(path.read_text()) for path in CONFIGS]
RELAXED = settings(max_examples=80, deadline=10_000, suppress_health_check=list(HealthCheck))

absurd = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, -1, 1, 2, 3, 1 << 31, 1 << 53, 1 << 63, -(1 << 63), 10**400]),
    st.sampled_from([float("nan"), float("inf"), -float("inf"), 0.0, -1.5, 1e308, 3.0]),
    st.text(max_size=8),
    st.sampled_from(["auto", "re:(", "*", "L", "\ud800"]),
    st.lists(st.one_of(st.none(), st.integers(-2, 70), st.text(max_size=3)), max_size=6),
    st.dictionaries(st.text(max_size=5), st.integers(-1, 9), max_size=3),
    st.recursive(st.none(), lambda inner: st.lists(inner, max_size=2), max_leaves=20),
)


def keys_of(config: dict[str, Any]) -> list[tuple[str, ...]]:
    out: list[tuple[str, ...]] = []
    for key, value in config.items():
        out.append((key,))
        if isinstance(value, dict):
            out += [(key, *path) for path in keys_of(value)]
    return out


def replaced(config: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    head, *rest = path
    return {**config, head: replaced(config[head], tuple(rest), value) if rest else value}


def understood(config: Any) -> Model | None:
    """The model, with all that is derived from it, or None where it was refused in one sentence."""
    try:
        model = describe(ModelSource(name="hostile", origin="folder", where="x", config=config))
    except InputError as error:
        refusal = str(error)
    else:
        bytes_per_rank(model, tensor_parallel=2, pipeline_parallel=2, stage=1)
        return model
    assert 0 < len(refusal) < 600
    return None


@RELAXED
@given(st.data())
def test_one_absurd_value_in_a_real_configuration(data: st.DataObject) -> None:
    config = data.draw(st.sampled_from(LOADED))
    for _ in range(data.draw(st.integers(1, 3))):
        config = replaced(config, data.draw(st.sampled_from(keys_of(config))), data.draw(absurd))
    understood(config)


KNOWN_KEYS = sorted({key for row in table("absent")["absent"].values() for key in row})


@RELAXED
@given(
    st.sampled_from(sorted(table("layers")["rules"])),
    st.dictionaries(st.sampled_from(KNOWN_KEYS), absurd, max_size=6),
    st.dictionaries(st.text(max_size=12), absurd, max_size=3),
)
def test_absurd_values_for_every_model_type(model_type: str, known: dict[str, Any], other: dict[str, Any]) -> None:
    understood({"model_type": model_type, "architectures": ["X"], **other, **known})


@pytest.mark.parametrize("model_type", sorted(table("absent")["absent"]))
def test_every_model_type_with_nothing_but_its_defaults(model_type: str) -> None:
    model = understood({"model_type": model_type})
    if model is not None:
        assert model.layers
        assert model.vocabulary > 0


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("num_hidden_layers", 1 << 63, "num_hidden_layers is 9223372036854775808"),
        ("num_hidden_layers", -1, "num_hidden_layers is -1"),
        ("num_hidden_layers", "32", 'num_hidden_layers is "32"'),
        ("num_attention_heads", float("nan"), "num_attention_heads is NaN"),
        ("num_attention_heads", 0, "num_attention_heads is 0"),
        ("num_key_value_heads", True, "num_key_value_heads is true"),
        ("hidden_size", 1e300, "hidden_size is 1e"),
        ("vocab_size", [1], r"vocab_size is \[1\]"),
        ("head_dim", {}, r"head_dim is \{\}"),
        ("max_position_embeddings", 1 << 62, "max_position_embeddings is"),
        ("layer_types", ["full_attention"], "layer_types names 1 layers"),
        ("layer_types", ["strange"] * 36, r'layer_types\[0\] is "strange"'),
        ("quantization_config", [1], "quantization_config is"),
        ("rope_scaling", {"rope_type": 3}, "rope_type is 3"),
    ],
)
def test_the_sentence_names_the_key(key: str, value: Any, said: str) -> None:
    config = json.loads((CONFIGS[0].parent / "Qwen--Qwen3-8B.json").read_text())
    with pytest.raises(InputError, match=said):
        describe(ModelSource(name="Qwen/Qwen3-8B", origin="folder", where="x", config={**config, key: value}))


@pytest.mark.parametrize("config", [None, {}, {"model_type": ""}, {"model_type": 7}, {"model_type": "no-such-model"}])
def test_no_model_configuration(config: Any) -> None:
    with pytest.raises(InputError):
        describe(ModelSource(name="x", origin="folder", where="x", config=config))


@RELAXED
@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_no_configuration(data: bytes) -> None:
    try:
        value = json_object(data, "config.json")
    except InputError:
        return
    assert isinstance(value, dict)


@RELAXED
@given(st.recursive(absurd, lambda inner: st.dictionaries(st.text(max_size=4), inner, max_size=3), max_leaves=8))
def test_what_is_read_survives_a_case_file(value: Any) -> None:
    """What json_object lets through must be the same after it was written into a case and read again."""
    try:
        kept = json_object(json.dumps({"v": value}).encode(), "config.json")
    except InputError:
        return
    source = ModelSource(name="x", origin="folder", where="x", config=kept)
    assert msgspec.json.decode(msgspec.json.encode(source), type=ModelSource) == source


header_values = st.one_of(
    absurd,
    st.fixed_dictionaries(
        {
            "dtype": st.sampled_from(["BF16", "F8_E4M3", "XX", 7]),
            "shape": st.lists(st.sampled_from([0, 1, 2, -1, 1 << 63]), max_size=3),
            "data_offsets": st.lists(st.sampled_from([0, 2, 4, 8, -1, 1 << 63]), max_size=3),
        }
    ),
)


@RELAXED
@given(st.dictionaries(st.text(max_size=8), header_values, max_size=4), st.integers(-40, 40), st.binary(max_size=40))
def test_hostile_safetensors_headers(header: dict[str, Any], shift: int, data: bytes) -> None:
    text = json.dumps(header).encode()
    file = struct.pack("<Q", max(0, len(text) + shift)) + text + data
    found, facts = safetensors.file_facts(lambda offset, length: file[offset : offset + length], len(file), "x")
    assert found is not None or facts.problem
    if found is not None:
        safetensors.groups(found.tensors, 2, 1)
        assert found.expected_bytes <= len(file) or facts.problem == "truncated"


@RELAXED
@given(st.binary(max_size=200), st.binary(max_size=200), st.binary(max_size=200))
def test_hostile_files_in_a_folder(config: bytes, index: bytes, tokenizer: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        path.joinpath("config.json").write_bytes(b'{"model_type": "llama", "x": ' + config + b"}")
        path.joinpath("model.safetensors.index.json").write_bytes(index)
        path.joinpath("tokenizer.json").write_bytes(b'{"model": {"vocab": ' + tokenizer)
        path.joinpath("tokenizer_config.json").write_bytes(tokenizer)
        try:
            source = open_model(folder)
        except InputError:
            return
        assert source.config is not None


@pytest.mark.parametrize("name", ["../../../etc/passwd", "/etc/passwd", "a/b.safetensors", "", 7, None])
def test_an_index_names_only_files_of_its_folder(tmp_path: Path, name: Any) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"t": name}}))
    source = open_model(str(tmp_path))
    [file] = source.files
    assert file.name == "model.safetensors.index.json"
    assert (file.problem or "").startswith("unreadable")


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b'"vocab":',
        b'{"vocab": [[',
        b'{"vocab": {"a": 1e999}}',
        b'{"vocab": {"a": -5}}',
        b'"vocab":' + b"[" * 99999,
    ],
)
def test_a_broken_vocabulary_has_no_size(text: bytes) -> None:
    assert entries(text) is None
