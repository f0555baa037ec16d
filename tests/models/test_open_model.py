"""A model is opened wherever it is, and every way of not being there is one clear sentence."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmdoctor_core.errors import InputError
from llmdoctor_core.facts import ModelSource
from llmdoctor_core.models import describe
from llmdoctor_core.models.catalogue import find, names, near
from llmdoctor_core.models.open import open_model
from models.hub_server import COMMIT, HubServer
from models.model_files import TINY, TINY_BYTES, TOKENIZER, repository


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with HubServer() as server:
        server.repos["acme/tiny"] = repository()
        yield server


@pytest.fixture
def environment(hub: HubServer, tmp_path: Path) -> dict[str, str]:
    return {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path / "hf"), "HOME": str(tmp_path)}


def folder(path: Path, files: dict[str, bytes]) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (path / name).write_bytes(data)
    return path


def snapshot(home: Path, files: dict[str, bytes], name: str = "acme/tiny") -> Path:
    """The hub cache's layout: blobs, a snapshot of links to them, and the ref that names it."""
    root = home / "hub" / ("models--" + name.replace("/", "--"))
    (root / "blobs").mkdir(parents=True)
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text(COMMIT)
    where = root / "snapshots" / COMMIT
    where.mkdir(parents=True)
    for file, data in files.items():
        blob = root / "blobs" / hashlib.sha256(data).hexdigest()
        blob.write_bytes(data)
        (where / file).symlink_to(os.path.relpath(blob, where))
    return where


# folders


def test_a_folder_gives_config_weights_and_tokenizer(tmp_path: Path) -> None:
    source = open_model(str(folder(tmp_path / "tiny", repository())))
    assert source.origin == "folder"
    assert source.name == "tiny"
    assert source.weight_bytes == TINY_BYTES
    assert {file.problem for file in source.files} == {None}
    assert source.tokenizer.kind == "LlamaTokenizer"
    assert source.tokenizer.vocabulary == 256
    assert source.tokenizer.model_max_length == 512
    assert source.tokenizer.chat_template is True
    assert source.tokenizer.fingerprint == hashlib.sha256(TOKENIZER["tokenizer.json"]).hexdigest()
    layer = {group.kind: group.bytes for group in source.weights if group.layer == 1 and group.parts is None}
    assert layer == {"attention": 2 * 2 * 64 * 64, "mlp": 2 * 3 * 128 * 64}
    assert describe(source).weight_bytes == TINY_BYTES


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    files = repository()
    del files["model-00002-of-00002.safetensors"]
    source = open_model(str(folder(tmp_path, files)))
    assert [file.name for file in source.files if file.problem == "missing"] == ["model-00002-of-00002.safetensors"]


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({}, "no weights"),
        ({"training_args.bin": b"PK"}, "no weights"),
        ({"adapter_model.safetensors": b"x"}, "no weights but a LoRA adapter, adapter_model.safetensors"),
        ({"model.bin": b"PK"}, None),
    ],
)
def test_a_folder_without_weights_or_tokenizer_says_so(
    tmp_path: Path, files: dict[str, bytes], problem: str | None
) -> None:
    source = open_model(str(folder(tmp_path / "m", {"config.json": json.dumps(TINY).encode(), **files})))
    assert [file.problem for file in source.files] == [problem]
    assert any(note.startswith("there is no tokenizer in") for note in source.notes)


def test_an_unfinished_download_is_named(tmp_path: Path) -> None:
    where = folder(tmp_path / "m", {"config.json": json.dumps(TINY).encode(), "tokenizer.json": b"{}"})
    folder(where / ".cache" / "huggingface" / "download", {"model.safetensors.abc.incomplete": b"x"})
    (file,) = open_model(str(where)).files
    assert file.problem == "no weights, and an unfinished download in .cache/huggingface/download"


def test_a_truncated_shard_is_named(tmp_path: Path) -> None:
    files = repository()
    files["model-00001-of-00002.safetensors"] = files["model-00001-of-00002.safetensors"][:-100]
    source = open_model(str(folder(tmp_path, files)))
    [file] = [file for file in source.files if file.problem == "truncated"]
    assert file.expected_bytes == file.bytes + 100


def test_an_lfs_pointer_is_no_weight_file(tmp_path: Path) -> None:
    files = repository()
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 4000000000\n"
    files["model-00001-of-00002.safetensors"] = pointer
    source = open_model(str(folder(tmp_path, files)))
    assert source.files[0].problem == "lfs pointer"


@pytest.mark.parametrize("length", [0, 1 << 40, (1 << 63) - 1, (1 << 64) - 1])
def test_an_absurd_header_length_is_refused_without_reading_it(tmp_path: Path, length: int) -> None:
    files = {"config.json": json.dumps(TINY).encode(), "model.safetensors": length.to_bytes(8, "little") + b"{}" * 99}
    source = open_model(str(folder(tmp_path, files)))
    assert source.files[0].problem is not None
    assert source.weight_bytes is None


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "no config.json and no GGUF file"),
        ({"params.json": b"{}"}, "Mistral's own format"),
        ({"adapter_config.json": b"{}"}, "LoRA adapter"),
        ({"config.json": b"{"}, "not JSON"),
        ({"config.json": b"[" * 100_000}, "nested too deeply"),
        ({"config.json": b'{"a":' * 90 + b"1" + b"}" * 90}, "nested more than"),
        ({"config.json": b"[]"}, "not a JSON object"),
        ({"config.json": b'{"n": 1' + b"0" * 30 + b"}"}, "31 digits"),
        ({"config.json": b"\xff\xfe\x00"}, "not JSON"),
        ({"a.gguf": b"GGUF", "b.gguf": b"GGUF"}, "name one of a.gguf, b.gguf"),
    ],
)
def test_what_is_wrong_with_a_folder_is_said(tmp_path: Path, files: dict[str, bytes], said: str) -> None:
    with pytest.raises(InputError, match=said):
        open_model(str(folder(tmp_path / "broken", files)))


# the hub


def test_the_hub_is_read_by_headers_alone(hub: HubServer, environment: dict[str, str]) -> None:
    big = "model-00001-of-00002.safetensors"
    hub.repos["acme/tiny"][big] += bytes(8 << 20)  # data the reader must not fetch
    source = open_model("acme/tiny", environment=environment)
    assert source.origin == "hub"
    assert source.revision == COMMIT
    assert source.weight_bytes == TINY_BYTES
    assert source.tokenizer.fingerprint == hashlib.sha256(TOKENIZER["tokenizer.json"]).hexdigest()
    asked = [ranges for path, ranges, _ in hub.log if path.endswith(big)]
    assert asked
    assert all(asked)
    assert not any("tokenizer.json" in path for path, _, _ in hub.log)


def test_ranges_survive_a_redirect_and_the_token_stays_with_the_hub(
    hub: HubServer, environment: dict[str, str]
) -> None:
    with HubServer() as storage:
        storage.repos = hub.repos
        hub.redirect = storage
        source = open_model("acme/tiny", environment={**environment, "HF_TOKEN": "hf_secret"})
    assert source.weight_bytes == TINY_BYTES
    assert {token for _, _, token in hub.log} == {"Bearer hf_secret"}
    assert {token for _, _, token in storage.log} == {None}
    assert any(ranges for _, ranges, _ in storage.log)


def test_a_hub_without_ranges_is_still_read(hub: HubServer, environment: dict[str, str]) -> None:
    hub.ranges = False
    assert open_model("acme/tiny", environment=environment).weight_bytes == TINY_BYTES


@pytest.mark.parametrize(
    ("reference", "revision", "said"),
    [
        ("acme/nothing", None, "there is no model acme/nothing on http"),
        ("acme/tiny", "v9", 'acme/tiny has no revision "v9"'),
        ("acme/gated", None, "acme/gated is a gated model .*HF_TOKEN"),
        ("acme/empty", None, "acme/empty on http.* has no config.json"),
        ("acme/broken", None, "config.json of acme/broken is not JSON"),
        ("acme/tiny:Q4_K_M", None, "has no GGUF file"),
    ],
)
def test_what_the_hub_refuses_is_said(
    hub: HubServer, environment: dict[str, str], reference: str, revision: str | None, said: str
) -> None:
    hub.repos["acme/gated"] = repository()
    hub.gated.add("acme/gated")
    hub.repos["acme/empty"] = {"README.md": b"hello"}
    hub.repos["acme/broken"] = {"config.json": b"<html>"}
    with pytest.raises(InputError, match=said):
        open_model(reference, revision=revision, environment=environment)


def test_offline_uses_no_network(hub: HubServer, environment: dict[str, str]) -> None:
    for variables, offline in (({}, True), ({"HF_HUB_OFFLINE": "1"}, False)):
        with pytest.raises(InputError, match="neither in the local Hugging Face cache nor in the catalogue"):
            open_model("acme/tiny", offline=offline, environment={**environment, **variables})
    assert hub.log == []


def test_a_complete_cache_is_read_instead_of_the_hub(hub: HubServer, environment: dict[str, str]) -> None:
    snapshot(Path(environment["HF_HOME"]), repository())
    source = open_model("acme/tiny", environment=environment)
    assert source.origin == "hub cache"
    assert source.revision == COMMIT
    assert source.weight_bytes == TINY_BYTES
    assert hub.log == []


def test_a_cache_without_weights_sends_to_the_hub_and_stands_in_for_it(
    hub: HubServer, environment: dict[str, str]
) -> None:
    snapshot(Path(environment["HF_HOME"]), {"config.json": json.dumps(TINY).encode()})
    assert open_model("acme/tiny", environment=environment).origin == "hub"
    hub.failing = 503
    source = open_model("acme/tiny", environment=environment)
    assert source.origin == "hub cache"
    assert any("could not be reached" in note and "503" in note for note in source.notes)


def test_a_cached_gguf_file_is_found_by_its_tag(hub: HubServer, environment: dict[str, str]) -> None:
    files = {"tiny-Q8_0.gguf": gguf(), "tiny-Q4_K_M.gguf": gguf()}
    snapshot(Path(environment["HF_HOME"]), files, "acme/tiny-GGUF")
    source = open_model("acme/tiny-GGUF:Q8_0", environment=environment)
    assert (source.origin, source.name) == ("hub cache", "acme/tiny-GGUF")
    assert source.where.endswith("tiny-Q8_0.gguf")
    assert hub.log == []


def test_an_unreachable_hub_gives_way_to_the_catalogue(tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{closed.getsockname()[1]}"
        environment = {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path), "HOME": str(tmp_path)}
        source = open_model("Qwen/Qwen3-8B", environment=environment)
    assert source.origin == "catalogue"
    assert any("could not be reached" in note for note in source.notes)


def test_a_gguf_file_on_the_hub_and_by_url(hub: HubServer, environment: dict[str, str]) -> None:
    hub.repos["acme/tiny-GGUF"] = {"tiny-Q8_0.gguf": gguf(), "tiny-Q4_K_M.gguf": gguf(), "mmproj-tiny.gguf": gguf()}
    source = open_model("acme/tiny-GGUF", environment=environment)
    assert source.where.endswith("tiny-Q4_K_M.gguf")
    assert source.gguf is not None
    assert source.gguf["general.architecture"] == "llama"
    assert open_model("acme/tiny-GGUF:q8_0", environment=environment).where.endswith("tiny-Q8_0.gguf")
    url = f"{hub.endpoint}/acme/tiny-GGUF/resolve/main/tiny-Q8_0.gguf"
    assert open_model(url, environment=environment).origin == "url"
    with pytest.raises(InputError, match="missing"):
        open_model(f"{hub.endpoint}/acme/tiny-GGUF/resolve/main/none.gguf", environment=environment)


def gguf() -> bytes:
    """The smallest GGUF file with an architecture and no tensors."""
    key, value = b"general.architecture", b"llama"
    pair = len(key).to_bytes(8, "little") + key + (8).to_bytes(4, "little") + len(value).to_bytes(8, "little") + value
    return b"GGUF" + (3).to_bytes(4, "little") + bytes(8) + (1).to_bytes(8, "little") + pair + bytes(64)


# Ollama


def test_ollama_models_are_found_through_their_manifest(tmp_path: Path) -> None:
    digest = hashlib.sha256(gguf()).hexdigest()
    blobs = folder(tmp_path / "ollama" / "blobs", {f"sha256-{digest}": gguf()})
    manifest = {"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest}"}]}
    library = blobs.parent / "manifests" / "registry.ollama.ai" / "library" / "tiny"
    folder(library, {"latest": json.dumps(manifest).encode(), "empty": b"{}"})
    environment = {"OLLAMA_MODELS": str(blobs.parent), "HOME": str(tmp_path)}
    source = open_model("ollama:tiny", environment=environment)
    assert (source.origin, source.name) == ("ollama", "ollama:tiny")
    assert source.where == str(blobs / f"sha256-{digest}")
    for reference, said in (
        ("ollama:none", "Ollama has no model none"),
        ("ollama:tiny:empty", "names no model layer"),
        ("ollama:../../etc/passwd", "is no model name"),
    ):
        with pytest.raises(InputError, match=said):
            open_model(reference, environment=environment)


# names


@pytest.mark.parametrize(
    "reference", ["", "  ", "\x00", "no such thing", "a" * 5000, "./nowhere", "x.gguf", "a//b", "--"]
)
def test_what_names_no_model_is_refused(reference: str) -> None:
    with pytest.raises(InputError):
        open_model(reference, offline=True)


# the catalogue


def test_the_catalogue_needs_no_network_and_no_exact_spelling() -> None:
    assert len(names()) >= 79
    for spelling in ("Qwen/Qwen3-8B", "qwen/qwen3-8b", "Qwen3-8B"):
        source = open_model(spelling, offline=True)
        assert (source.name, source.origin) == ("Qwen/Qwen3-8B", "catalogue")
    assert find("Qwen/Qwen3-8B-Nonsense") is None
    assert "Qwen/Qwen3-8B" in near("Qwen/Qwen3-8b-Instruct")


def test_every_row_of_the_catalogue_is_described_and_names_its_source() -> None:
    for name in names():
        source = find(name)
        assert source is not None
        assert len(source.where) > len("built-in catalogue: ")
        assert describe(source).layers


def test_the_largest_description_is_quick() -> None:
    sources = [find(name) for name in names()]
    slowest = 0.0
    for source in sources:
        assert source is not None
        best = min(_timed(source) for _ in range(5))
        slowest = max(slowest, best)
    assert slowest < 0.010


def _timed(source: object) -> float:
    start = time.perf_counter()
    describe(source)  # type: ignore[arg-type]
    return time.perf_counter() - start


CONFIGS = sorted((Path(__file__).parents[1] / "configs").glob("*--*.json"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_the_catalogue_knows_every_recorded_configuration_alike(path: Path) -> None:
    name = path.stem.replace("--", "/", 1)
    source = find(name)
    assert source is not None
    assert source.config is not None
    ours = describe(source)
    theirs = describe(ModelSource(name=name, origin="folder", where="", config=json.loads(path.read_text())))
    completed = {"arcee-ai/Trinity-Nano-Base"}  # that copy records no widths
    assert ours.layers == theirs.layers
    assert (ours.heads, ours.kv_heads, ours.head_dim) == (theirs.heads, theirs.kv_heads, theirs.head_dim)
    assert ours.architecture == theirs.architecture
    if name not in completed:
        assert ours.hidden_size == theirs.hidden_size
