"""Every launch that real llama-servers (b10434, b11434) were measured on is forecast as they printed it."""

from __future__ import annotations

import json

import pytest

from gguf_models import DATA, measured_model
from llamacpp_launches import forecast, typed
from make_gguf import SPECS


def measured() -> list[pytest.param]:
    return [
        pytest.param(build, row, id=f"b{build}-{row['model']}-{number}")
        for build in (10434, 11434)
        for number, row in enumerate(json.loads((DATA / f"llamacpp-measured-b{build}.json").read_text()))
    ]


@pytest.mark.parametrize(("build", "row"), measured())
def test_forecast_is_what_the_server_printed(build: int, row: dict[str, object]) -> None:
    made = forecast(measured_model(row["model"]), *typed(row["flags"]), build=f"b{build}")
    if row["status"] != "ready":
        assert made.refused is not None, "the build of that time did not know the flag and stopped"
        assert made.refused.code == "ARG901"
        return
    assert made.refused is None
    assert made.cache is not None
    kv = [line.partition(": ")[2] for line in made.cache.lines if line.startswith("llama_kv_cache: ")]
    rs = [line.partition(": ")[2] for line in made.cache.lines if line.startswith("llama_memory_recurrent: ")]
    warnings = [w for w in made.cache.lines if "possible training context" in w or "- capping" in w]
    assert kv == row["kv"]
    assert rs == row["rs"]
    assert [w.partition(": ")[2] for w in warnings] == row["warn"]
    assert made.cache.tokens == row["n_ctx"]
    assert made.cache.slot_tokens == row["slot"]
    (host,) = made.memory
    printed = dict(row["model_buf"])
    assert f"{host.weights / 2**20:.2f}" == printed["CPU_Mapped"]
    assert f"{host.other / 2**20:.2f}" == row["output"][0][1]
    assert f"{sum(float(size) for _, size in row['kvbuf'] + row['rsbuf']):.1f}" == f"{host.cache / 2**20:.1f}"


def test_every_model_of_the_measurements_is_written() -> None:
    names = {param.values[1]["model"] for param in measured()}
    assert {name.removeprefix("tiny-") for name in names if name.startswith("tiny-")} <= set(SPECS)
