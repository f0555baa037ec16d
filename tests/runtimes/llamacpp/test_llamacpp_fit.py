"""What --fit decided on a real server (b10434, models of real widths, one RPC device) lies within what is forecast."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gguf_models import DATA, hollow_model
from llamacpp_launches import forecast, stand_ins
from llmdoctor_core.facts import Estimate

MIB = 1 << 20
ROWS = json.loads((DATA / "llamacpp-fit-b10434.json").read_text())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['model']} {row['args'][1]}")
def test_fit_decides_within_the_forecast(row: dict[str, Any]) -> None:
    gpus = stand_ins(row["devices"], row["free_mib"] * MIB)
    made = forecast(hollow_model(row["model"]), *row["args"], build="b10434", gpus=gpus)
    assert made.cache is not None
    bounds = made.cache.certainty
    low, high = (bounds.low, bounds.high) if isinstance(bounds, Estimate) else (made.cache.tokens, made.cache.tokens)
    assert low - 256 <= row["context"] <= high + 256
    assert high - low <= 2304, "a lowered context is known to a few blocks of 256"
    moved = [note for note in made.notes if note.startswith("--fit leaves")]
    if row["layers"] is None:
        assert moved == []
    else:
        (said,) = moved
        least, most = layers_of(said)
        assert least - 1 <= row["layers"] <= most + 1


def layers_of(note: str) -> tuple[int, int]:
    numbers = [int(word) for word in note.split() if word.isdigit()]
    return numbers[0], numbers[1]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['model']} {row['args'][1]}")
def test_projected_use_lies_within_the_forecast(row: dict[str, Any]) -> None:
    gpus = stand_ins(1, 1 << 40)
    made = forecast(hollow_model(row["model"]), "-c", "0", build="b10434", gpus=gpus)
    device = made.memory[0]
    compute = device.certainty["activations"]
    known = device.weights + device.cache
    assert (known + compute.low) // MIB <= row["projected_mib"] <= (known + compute.high) // MIB


def test_nothing_is_changed_where_all_fits() -> None:
    made = forecast(hollow_model("qwen3-8b"), gpus=stand_ins(1, 80 << 30))
    assert made.cache is not None
    assert made.cache.tokens == 40960
    assert made.cache.certainty == "exact"
    assert not [note for note in made.notes if "--fit" in note]


def test_context_given_is_never_lowered() -> None:
    made = forecast(hollow_model("qwen3-8b"), "-c", "40960", gpus=stand_ins(1, 20 << 30))
    assert made.cache is not None
    assert made.cache.tokens == 40960


def test_all_layers_forced_on_a_small_device_is_out_of_memory() -> None:
    made = forecast(hollow_model("qwen3-8b"), "-ngl", "99", gpus=stand_ins(1, 8 << 30))
    assert made.refused is not None
    assert made.refused.code == "MEM801"


def test_cache_that_does_not_fit_beside_the_weights() -> None:
    made = forecast(hollow_model("qwen3-8b"), "-ngl", "99", "-c", "131072", gpus=stand_ins(1, 20 << 30))
    assert made.refused is not None
    assert made.refused.code == "MEM803"
