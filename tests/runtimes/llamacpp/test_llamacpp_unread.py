"""Weights of files that nobody read: what real servers printed of such files lies within the bounds."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from gguf_models import DATA, from_config, hollow_model
from llamacpp_launches import forecast, stand_ins
from llmdoctor_core.facts import Estimate

MIB = 1 << 20
ROWS = {row["id"]: row for row in map(json.loads, (DATA / "llamacpp-field-logs.jsonl").read_text().splitlines())}
FILES = {
    "l002": ("Qwen--Qwen2.5-7B", "qwen2.5-coder-7b-instruct-q8_0.gguf"),
    "l003": ("Qwen--Qwen3.5-35B-A3B", "Qwen3.5-35B-A3B-Q8_0.gguf"),
    "l007": ("openai--gpt-oss-20b", "gpt-oss-20b-F16.gguf"),
    "l011": ("openai--gpt-oss-20b", "gpt-oss-20b-Q5_K_M.gguf"),
    "l015": ("google--gemma-4-26B-A4B", "gemma-4-26B-A4B-it-UD-IQ4_NL.gguf"),
    "l017": ("Qwen--Qwen2.5-14B-Instruct", "Qwen2.5-14B-Instruct-Q4_K_M.gguf"),
    "l021": ("Qwen--Qwen2.5-32B", "qwen2.5-coder-32b-instruct-q4_k_m-00001-of-00002.gguf"),
    "l023": ("Qwen--Qwen3.5-35B-A3B", "Qwen3.6-35B-A3B-UD-Q4_K_M.gguf"),
    "l031": ("Qwen--Qwen3-30B-A3B", "Qwen3-Coder-30B-A3B-Instruct-UD-Q4_K_XL.gguf"),
}


def printed(row: dict[str, Any]) -> tuple[float, float]:
    """MiB of model buffers on devices and on the host."""
    sizes = {"host": 0.0, "device": 0.0}
    for name, parts in row["printed"]["model_buffers"].items():
        sizes["host" if name.startswith("CPU") or name.endswith("_Host") else "device"] += sum(parts)
    return sizes["device"], sizes["host"]


@pytest.mark.parametrize("name", FILES)
def test_printed_model_buffers_lie_within_the_bounds(name: str) -> None:
    config, file = FILES[name]
    device, host = printed(ROWS[name])
    made = forecast(from_config(config), "-m", file, "-ngl", "99", "-c", "4096", gpus=stand_ins(1, 1 << 40))
    for memory, said in zip(made.memory, (device, host), strict=True):
        bounds = memory.certainty["weights"]
        assert isinstance(bounds, Estimate)
        assert memory.weights is not None
        if memory.device == 0:
            assert bounds.low / MIB <= said <= bounds.high / MIB
            assert memory.weights / MIB == pytest.approx(said, rel=0.12)


def test_sixteen_bits_where_no_file_is_named() -> None:
    """Qwen3 32B is 61 GiB as the converter writes it: not on one card of 24 GB with every layer forced there."""
    made = forecast(from_config("Qwen--Qwen3-32B-FP8"), "-ngl", "99", "-c", "4096", gpus=stand_ins(1, 24 << 30))
    weights = made.memory[0].weights
    assert weights is not None
    assert weights / 2**30 == pytest.approx(59.6, abs=0.3)
    assert made.refused is not None
    assert made.refused.code == "MEM801"


def test_type_in_the_name_decides() -> None:
    model = from_config("Qwen--Qwen3-32B-FP8")
    words = ("-ngl", "99", "-c", "4096", "-np", "1")
    small = forecast(model, "-m", "/models/Qwen3-32B-Q4_K_M.gguf", *words, gpus=stand_ins(1, 24 << 30))
    assert small.refused is None
    tagged = forecast(model, "-hf", "Qwen/Qwen3-32B-GGUF:Q8_0", *words, gpus=stand_ins(1, 24 << 30))
    assert tagged.refused is not None
    untold = forecast(model, "-m", "/models/model.gguf", *words, gpus=stand_ins(1, 24 << 30))
    assert untold.refused is None, "a file of unknown type is not refused"
    bounds = untold.memory[0].certainty["weights"]
    assert isinstance(bounds, Estimate)
    assert bounds.low < 8 << 30
    assert bounds.high > 59 << 30


def test_fit_is_asked_before_memory_is_called_short() -> None:
    model = from_config("Qwen--Qwen3-32B-FP8")
    made = forecast(model, "-c", "4096", gpus=stand_ins(1, 24 << 30))
    assert made.refused is None
    (moved,) = [note for note in made.notes if note.startswith("--fit leaves")]
    assert made.memory[0].weights is not None
    assert made.memory[0].weights < 24 << 30, moved


@pytest.mark.parametrize("devices", [1, 2])
def test_experts_that_fit_moves_are_no_refusal(devices: int) -> None:
    """--fit keeps experts on the CPU; how many is not forecast, so the devices' memory is not called short."""
    model = hollow_model("gpt-oss-20b")
    assert model.weight_bytes is not None
    small = stand_ins(devices, model.weight_bytes // (3 * devices))
    made = forecast(model, gpus=small)
    assert made.refused is None
    forced = forecast(model, "-ngl", "99", gpus=small)
    assert forced.refused is not None
    assert forced.refused.code == "MEM801"


def test_tensors_placed_by_hand_are_not_called_short() -> None:
    made = forecast(hollow_model("gpt-oss-20b"), "-ngl", "99", "-ot", "exps=CPU", gpus=stand_ins(1, 8 << 30))
    assert made.refused is None


def test_a_file_that_was_read_stays_exact() -> None:
    model = hollow_model("qwen3-8b")
    named = replace(model.source, name="model-Q2_K.gguf")
    made = forecast(replace(model, source=named), "-m", "model-Q2_K.gguf", gpus=stand_ins(1, 80 << 30))
    assert made.memory[0].certainty["weights"] == "exact"
