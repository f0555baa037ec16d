"""Models for tests of GGUF files and llama.cpp: tiny ones written once a session, headers of published files."""

from __future__ import annotations

import json
import tempfile
from functools import lru_cache
from pathlib import Path

import msgspec

from llmdoctor_core.facts import Model, ModelSource
from llmdoctor_core.models import describe
from llmdoctor_core.models.gguf import read_gguf
from make_gguf import write_model

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
    """A model of real widths, by its name in make_gguf; the file is sparse and takes a few MiB."""
    path = Path(_folder().name) / f"hollow-{name}.gguf"
    write_model(name, str(path), hollow=True)
    return describe(read_gguf(path))


def from_config(name: str) -> Model:
    """A model by the name of its config.json in tests/configs."""
    config = json.loads((DATA.parent / f"configs/{name}.json").read_text())
    return describe(ModelSource(name=name, origin="folder", where=name, config=config))
