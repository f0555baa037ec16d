"""Kinds of cache beyond the first measurements, as a real server (b10434) printed them: DeepSeek V4, KDA, hybrids."""

from __future__ import annotations

import json
from typing import Any

import pytest

import make_gguf_more
from gguf_models import DATA, measured_model
from llamacpp_launches import forecast

ROWS = json.loads((DATA / "llamacpp-more-b10434.json").read_text())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['model']} {' '.join(row['args'])}")
def test_forecast_is_what_the_server_printed(row: dict[str, Any]) -> None:
    made = forecast(measured_model(f"tiny-{row['model']}"), *row["args"], "-nr", build="b10434")
    assert made.refused is None
    assert made.cache is not None
    lines = [line.partition(": ")[2] for line in made.cache.lines]
    assert [line for line in lines if "K (" in line or "R (f32)" in line or " ratio = " in line] == row["lines"]
    assert made.cache.slot_tokens == row["slot"]
    (host,) = made.memory
    assert f"{host.weights / 2**20:.2f}" == row["model_buf"][0]
    bounds = host.certainty["activations"]
    assert bounds.low / 2**20 <= float(row["compute"][0]) <= bounds.high / 2**20


def test_every_kind_was_measured() -> None:
    assert {row["model"] for row in ROWS} == set(make_gguf_more.MORE)
