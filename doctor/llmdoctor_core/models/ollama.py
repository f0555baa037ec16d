"""Finds the GGUF file behind a model that Ollama has pulled, through its manifests."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from ..errors import InputError
from .hub import home
from .json_text import json_object

MODEL = "application/vnd.ollama.image.model"
"""Media type of the GGUF layer of a manifest (ollama server/layer.go, 0.12)."""


def blob_of(name: str, environment: Mapping[str, str]) -> Path:
    """The GGUF blob of ``NAME[:TAG]``. Raises InputError where Ollama has no such model here."""
    folders = _folders(environment)
    parts = _manifest_parts(name)
    for folder in folders:
        manifest = folder.joinpath("manifests", *parts)
        try:
            text = manifest.read_bytes()
        except OSError:
            continue
        layers = json_object(text, str(manifest)).get("layers")
        for layer in layers if isinstance(layers, list) else ():
            digest = layer.get("digest") if isinstance(layer, dict) and layer.get("mediaType") == MODEL else None
            if isinstance(digest, str) and re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
                return folder / "blobs" / digest.replace(":", "-")
        raise InputError(f"{manifest} names no model layer: ollama:{name} is no GGUF model")
    looked = ", ".join(str(folder) for folder in folders)
    raise InputError(f"Ollama has no model {name} in {looked} (ollama list shows those it has, ollama pull gets one)")


def _folders(environment: Mapping[str, str]) -> list[Path]:
    own = environment.get("OLLAMA_MODELS")
    if own:
        return [Path(own)]
    return [Path(home(environment), ".ollama", "models"), Path("/usr/share/ollama/.ollama/models")]


def _manifest_parts(name: str) -> list[str]:
    path, _, tag = name.partition(":")
    parts = path.split("/")
    words = [*parts, tag or "latest"]
    if len(parts) > 3 or not all(re.fullmatch(r"[\w.-]{1,128}", word) and word not in (".", "..") for word in words):
        raise InputError(f"ollama:{name} is no model name: write ollama:NAME or ollama:NAME:TAG")
    host = parts.pop(0) if len(parts) == 3 or (len(parts) > 1 and "." in parts[0]) else "registry.ollama.ai"
    return [host, *(["library", *parts] if len(parts) == 1 else parts), tag or "latest"]
