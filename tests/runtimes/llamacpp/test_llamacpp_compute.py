"""The bounds of the compute buffer hold on everything that was measured, and are not so wide that they say nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gguf_models import DATA, hollow_model, measured_model
from llamacpp_launches import TWO, forecast, typed

MEASURED = [
    (f"b{build}", row["model"], typed(row["flags"]), float(row["compute"][0][1]))
    for build in (10434, 11434)
    for row in json.loads((DATA / f"llamacpp-measured-b{build}.json").read_text())
    if row["status"] == "ready"
]


def holds(memory: Any, printed: float) -> None:
    bounds = memory.certainty["activations"]
    assert bounds.low / 2**20 - 0.01 <= printed <= bounds.high / 2**20 + 0.01, (bounds.low / 2**20, bounds.high / 2**20)


@pytest.mark.parametrize(("build", "name", "arguments", "printed"), MEASURED)
def test_bounds_hold_on_measured_starts(build: str, name: str, arguments: tuple[str, ...], printed: float) -> None:
    made = forecast(measured_model(name), *arguments, build=build)
    holds(made.memory[-1], printed)


@pytest.mark.parametrize("row", json.loads((DATA / "llamacpp-compute-b10434.json").read_text()))
def test_bounds_hold_on_real_widths_and_stay_useful(row: dict[str, Any]) -> None:
    made = forecast(hollow_model(row["model"]), *row["args"], build="b10434")
    holds(made.memory[-1], float(row["compute"]))
    bounds = made.memory[-1].certainty["activations"]
    assert bounds.high < bounds.low * (12 if "dsa" in row["model"] else 3.5)


@pytest.mark.parametrize("row", json.loads((DATA / "llamacpp-devices-b10434.json").read_text()))
def test_bounds_hold_on_devices(row: dict[str, Any]) -> None:
    arguments = ("-c", "4096", "-np", "1", "-fit", "off", *row["args"])
    made = forecast(measured_model(row["model"]), *arguments, build="b10434", gpus=TWO)
    printed = {device: float(size) for kind, device, size in row["buffers"] if kind == "compute"}
    first = 1 if "-mg" in row["args"] else 0
    for memory in made.memory:
        holds(memory, printed.get("CPU" if memory.device == -1 else f"DEV{memory.device + first}", 0.0))


def test_files_of_the_measurements_are_here() -> None:
    assert len(MEASURED) > 160
    assert Path(DATA / "llamacpp-compute-b10434.json").stat().st_size > 1000
