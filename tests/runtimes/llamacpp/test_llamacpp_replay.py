"""Public logs of real starts come out of what they print of themselves; their compute buffers lie in bounds."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gguf_models import DATA, from_config
from llamacpp_launches import forecast, stand_ins
from llmdoctor_core.runtimes.llamacpp.replay import replay

ROWS = {row["id"]: row for row in map(json.loads, (DATA / "llamacpp-field-logs.jsonl").read_text().splitlines())}
COMPLETE = {name: row for name, row in ROWS.items() if row["complete"]}
CONFIGS = {
    "l002": "Qwen--Qwen2.5-7B",
    "l003": "Qwen--Qwen3.5-35B-A3B",
    "l007": "openai--gpt-oss-20b",
    "l008": "openai--gpt-oss-20b",
    "l010": "openai--gpt-oss-20b",
    "l011": "openai--gpt-oss-20b",
    "l014": "openai--gpt-oss-20b",
    "l015": "google--gemma-4-26B-A4B",
    "l017": "Qwen--Qwen2.5-14B-Instruct",
    "l021": "Qwen--Qwen2.5-32B",
    "l023": "Qwen--Qwen3.5-35B-A3B",
    "l025": "Qwen--Qwen3.5-35B-A3B",
    "l028": "Qwen--Qwen3.5-35B-A3B",
    "l031": "Qwen--Qwen3-30B-A3B",
    "l036": "Qwen--Qwen3.5-35B-A3B",
}


@pytest.mark.parametrize("name", COMPLETE)
def test_log_is_forecast_as_printed(name: str) -> None:
    replayed = replay(COMPLETE[name])
    assert replayed.skipped is None
    assert replayed.predicted == replayed.printed
    assert replayed.predicted_mib == pytest.approx(replayed.printed_mib, abs=0.006)


@pytest.mark.parametrize("name", sorted(ROWS.keys() - COMPLETE.keys()))
def test_log_that_says_too_little_is_skipped_with_the_reason(name: str) -> None:
    assert "does not print" in (replay(ROWS[name]).skipped or "")


@pytest.mark.parametrize(("name", "config"), CONFIGS.items())
def test_compute_buffer_of_a_device_lies_within_bounds(name: str, config: str) -> None:
    row: dict[str, Any] = ROWS[name]
    settings, buffers = row["settings"], row["printed"]["compute_buffers"]
    on_devices = {device: sizes[-1] for device, sizes in buffers.items() if not device.endswith(("_Host", "CPU"))}
    on_host = [sizes[-1] for device, sizes in buffers.items() if device.endswith(("_Host", "CPU"))]
    arguments = ["-c", str(settings["n_ctx"]), "-np", str(settings["n_seq_max"]), "-ub", str(settings["n_ubatch"])]
    arguments += ["--kv-unified"] if settings["kv_unified"] == "true" else []
    build = row["version"] or "b9000"
    made = forecast(from_config(config), *arguments, build=build, gpus=stand_ins(len(on_devices), 1 << 40))
    for memory, printed in zip(made.memory, [*on_devices.values(), *on_host], strict=True):
        bounds = memory.certainty["activations"]
        assert bounds.low / 2**20 <= printed <= bounds.high / 2**20


def test_nothing_in_a_row_is_trusted() -> None:
    for row in ({}, {"id": "x", "settings": {"arch": "llama", "n_ctx": 1}, "structure_printed": {"n_layer": "many"}}):
        assert replay(row).skipped
