"""Reads a model folder in the Hugging Face layout: config.json, safetensors headers, tokenizer files."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import InputError
from ..facts import ModelFile, ModelSource, TensorGroup
from ..facts.model import Origin
from . import safetensors
from .config import weight_shape
from .json_text import MOST_BYTES, json_object
from .tokenizer import sha256, tokenizer_facts

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
ADAPTER = "adapter_model.safetensors"
TRAINING = {"training_args.bin", "optimizer.bin", "optimizer.pt", "scheduler.pt", "scaler.pt", "adapter_model.bin"}
"""What a training run leaves beside the weights (vLLM model_loader/weight_utils.py: filter_files_not_needed)."""
OPTIONAL = {
    "generation_config": "generation_config.json",
    "quantization_config": "hf_quant_config.json",
}


def read_folder(folder: Path, name: str, origin: Origin, revision: str | None = None) -> ModelSource:
    """The model in ``folder``. Raises InputError where its config.json is missing or no JSON object."""
    config = json_object(_bytes(folder / "config.json"), f"{folder / 'config.json'}")
    notes: list[str] = []
    extra: dict[str, Any] = {}
    for field, file in OPTIONAL.items():
        try:
            if (folder / file).is_file():
                extra[field] = json_object(_bytes(folder / file), str(folder / file))
        except InputError as error:
            notes.append(str(error))
    weights = local_weights(folder, config)
    if not _has_tokenizer(folder):
        notes.append(
            f"there is no tokenizer in {folder} (no tokenizer.json, tokenizer.model, vocab.json or their like)"
        )
    tokenizer, tokenizer_notes = tokenizer_facts(
        lambda file: _bytes(folder / file) if (folder / file).is_file() else None,
        lambda file: (folder / file).is_file(),
        lambda file: sha256(_bytes(folder / file, 1 << 30)),
    )
    return ModelSource(
        name=name,
        origin=origin,
        where=str(folder),
        config=config,
        weights=weights.groups,
        weight_bytes=weights.bytes,
        weight_format=weights.format,
        files=weights.files,
        tokenizer=tokenizer,
        revision=revision,
        notes=(*notes, *weights.notes, *tokenizer_notes),
        **extra,
    )


TOKENIZER = re.compile(r"tokeni[sz]|tekken|tiktoken|^vocab\.|^merges\.|sentencepiece|spiece|\.(spm|bpe)(\.|$)", re.I)
"""What a tokenizer's files are called, a model's own code for one included."""


def _has_tokenizer(folder: Path) -> bool:
    """Whether a tokenizer's file is there; a folder that may not be listed is not said to lack one."""
    found = any(TOKENIZER.search(path.name) and path.exists() for path in folder.glob("*"))
    return found or not os.access(folder, os.R_OK)


class Weights(NamedTuple):
    """What the weight files of a model say. ``bytes`` is None where neither headers nor an index tell."""

    groups: tuple[TensorGroup, ...] = ()
    bytes: int | None = None
    format: str | None = None
    files: tuple[ModelFile, ...] = ()
    notes: tuple[str, ...] = ()


def weights_of(
    headers: list[tuple[safetensors.Header | None, ModelFile]],
    config: Mapping[str, Any],
    claimed: int | None,
    notes: tuple[str, ...] = (),
) -> Weights:
    """Sums headers; where one is missing, the index's own total stands in for the bytes."""
    complete = all(header is not None for header, _ in headers)
    files = tuple(file for _, file in headers)
    if not complete:
        said = (
            ()
            if claimed is None
            else (f"weight bytes are the index's own total, {claimed:,}: not all headers were read",)
        )
        return Weights((), claimed, "safetensors", files, (*notes, *said))
    tensors = [tensor for header, _ in headers if header is not None for tensor in header.tensors]
    groups = safetensors.groups(tensors, *weight_shape(config))
    return Weights(groups, sum(group.bytes for group in groups), "safetensors", files, notes)


def local_weights(folder: Path, config: Mapping[str, Any]) -> Weights:
    """The weight files of a folder: safetensors before the older formats, never both."""
    notes: tuple[str, ...] = ()
    if (folder / INDEX).is_file():
        try:
            index = json_object(_bytes(folder / INDEX), str(folder / INDEX))
            names, claimed = safetensors.shards(index, str(folder / INDEX))
        except InputError as error:
            return Weights(
                format="safetensors", files=(ModelFile(name=INDEX, bytes=0, problem=f"unreadable: {error}"),)
            )
        return weights_of([_local(folder / name) for name in names], config, claimed)
    if (folder / SINGLE).exists():
        return weights_of([_local(folder / SINGLE)], config, None)
    others = sorted(path.name for path in folder.glob("*.safetensors") if path.name != ADAPTER)
    consolidated = [name for name in others if name.startswith("consolidated")]
    if chosen := [name for name in others if name not in consolidated] or consolidated:
        if any("-of-" in name for name in chosen):
            notes = (f"{INDEX} is missing beside its shards",)
        return weights_of([_local(folder / name) for name in chosen], config, None, notes)
    bins = [*folder.glob("*.bin"), *folder.glob("*.pt")]
    bins = sorted(path for path in bins if path.name not in TRAINING and path.is_file())
    if bins:
        files = tuple(ModelFile(name=path.name, bytes=path.stat().st_size) for path in bins)
        return Weights(
            files=files, format="bin", notes=("the weights are pickled .bin files, whose tensors are not read",)
        )
    return Weights(files=(ModelFile(name=str(folder), bytes=0, problem=_no_weights(folder)),))


def _no_weights(folder: Path) -> str:
    """Why a folder with a configuration holds no weights, as far as what lies there tells."""
    if not os.access(folder, os.R_OK):
        return "unreadable: the folder may not be listed"
    if (folder / ADAPTER).exists():
        return f"no weights but a LoRA adapter, {ADAPTER}"
    if any((folder / ".cache" / "huggingface" / "download").glob("**/*.incomplete")):
        return "no weights, and an unfinished download in .cache/huggingface/download"
    return "no weights"


def _local(path: Path) -> tuple[safetensors.Header | None, ModelFile]:
    if not path.exists():
        return None, ModelFile(name=path.name, bytes=0, problem="missing")
    return safetensors.local_file(path)


def _bytes(path: Path, most: int = MOST_BYTES * 2) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(most + 1)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist: {path.parent} is no model folder") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
    if len(data) > most:
        raise InputError(f"{path} has more than {most:,} bytes; no such file has")
    return data
