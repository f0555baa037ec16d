"""Layers, caches and model buffers land on the devices where a real server (b10434, two RPC devices) put them."""

from __future__ import annotations

import json

import pytest

from gguf_models import DATA, measured_model
from llamacpp_launches import TWO, forecast

ROWS = json.loads((DATA / "llamacpp-devices-b10434.json").read_text())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['model']} {' '.join(row['args'])}")
def test_buffers_are_where_the_server_put_them(row: dict[str, object]) -> None:
    made = forecast(
        measured_model(row["model"]), "-c", "4096", "-np", "1", "-fit", "off", *row["args"], build="b10434", gpus=TWO
    )
    printed: dict[tuple[str, str], float] = {}
    for kind, device, size in row["buffers"]:
        kind = "cache" if kind in ("KV", "RS") else kind
        printed[kind, device] = printed.get((kind, device), 0) + float(size)
    first = 1 if "-mg" in row["args"] else 0
    for memory in made.memory:
        device = "CPU" if memory.device == -1 else f"DEV{memory.device + first}"
        assert memory.cache / 2**20 == pytest.approx(printed.get(("cache", device), 0), abs=0.006)
        mapped = "CPU_Mapped" if device == "CPU" else device
        assert memory.weights / 2**20 == pytest.approx(printed.get(("model", mapped), 0), abs=0.006)
        assert memory.certainty["weights"] == "exact"
