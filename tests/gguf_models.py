"""Models for tests of GGUF files and llama.cpp: tiny ones written once a session, headers of published files."""

from __future__ import annotations

import json
import math
import tempfile
from functools import lru_cache
from pathlib import Path

import msgspec

from llmdoctor_core.facts import Model, ModelSource
from llmdoctor_core.models import describe
from llmdoctor_core.models.gguf import Header, Tensor, file_of, read_gguf, source_from, storage_types
from make_gguf import SPECS, write_model

DATA = Path(__file__).parent / "data"


@lru_cache(maxsize=1)
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="llmdoctor-gguf-")


@lru_cache(maxsize=64)
def tiny_file(name: str) -> Path:
    """The file of a tiny model, by its name in make_gguf."""
    path = Path(_folder().name) / f"tiny-{name}.gguf"
    write_model(name, str(path))
    return path


@lru_cache(maxsize=64)
def measured_model(name: str) -> Model:
    """A model by its name in the measurements: ``tiny-...``, or a published file whose header facts are kept here."""
    if name.startswith("tiny-"):
        return describe(read_gguf(tiny_file(name.removeprefix("tiny-"))))
    return describe(msgspec.json.decode((DATA / f"{name}.source.json").read_bytes(), type=ModelSource))


@lru_cache(maxsize=64)
def hollow_model(name: str) -> Model:
    """A model of real widths, by its name in make_gguf: its header alone, for its vocabulary takes seconds to write."""
    return describe(header_of(name, hollow=True))


def header_of(name: str, *, hollow: bool) -> ModelSource:
    """What reading the file of that model would give, without a file."""
    spec = SPECS[name][0](hollow)
    kinds = storage_types()
    vocabulary = next(shape[1] for tensor, shape, _ in spec.tensors if tensor == "token_embd.weight")
    metadata = {"general.architecture": spec.arch, "general.name": f"{'hollow' if hollow else 'tiny'}-{name}"}
    metadata |= {
        f"{spec.arch}.{key}": list(value) if isinstance(value, tuple) else value for key, value in spec.kv.items()
    }
    metadata |= {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": {"array": "string", "length": vocabulary}}
    tensors, place = [], 0
    for tensor, shape, kind in spec.tensors:
        size = kinds[int(kind)].row(math.prod(shape))
        tensors.append(Tensor(tensor, tuple(shape), kinds[int(kind)], place, size))
        place += -(-size // 32) * 32
    header = Header(version=3, metadata=metadata, tensors=tuple(tensors), data_offset=0, expected_bytes=place)
    return source_from([header], [file_of(header, f"{name}.gguf", place)], name=name, where=name, origin="file")


def from_config(name: str) -> Model:
    """A model by the name of its config.json in tests/configs."""
    config = json.loads((DATA.parent / f"configs/{name}.json").read_text())
    return describe(ModelSource(name=name, origin="folder", where=name, config=config))
