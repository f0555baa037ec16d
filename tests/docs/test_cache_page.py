"""The figures of docs/cache.md are what the forecast says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from llmdoctor_core.derive import Facts
from llmdoctor_core.facts import CacheForecast, Forecast
from llmdoctor_core.intake import Intake, build_cases

PAGE = Path(__file__).parents[2] / "docs/cache.md"
ROW = re.compile(r"^\| ([^|]+/[^|]+) \| [^|]+ \| *[\d.]+ \| *([\d.]+) \| *([\d.]+) \| *([\d.]+) \|$", re.MULTILINE)
ROWS = ROW.findall(PAGE.read_text(encoding="utf-8"))


def cache(version: str, *command: str) -> CacheForecast:
    (case,) = build_cases(Intake(command=command, gpu="A100-80GB", runtime_version=version, offline=True))
    forecast = Facts(case).get(Forecast)
    assert isinstance(forecast, Forecast)
    assert forecast.cache is not None
    return forecast.cache


def mib(size: int) -> str:
    return f"{size / 2**20:.2f}"


@pytest.mark.parametrize(("model", "one_slot", "default", "vllm"), ROWS, ids=[row[0] for row in ROWS])
def test_row(model: str, one_slot: str, default: str, vllm: str) -> None:
    for figure, slots in ((one_slot, ("-np", "1")), (default, ())):
        found = cache("b11549", "llama-server", "--model", model, "-c", "32768", *slots)
        assert mib((found.bytes or 0) + found.state_bytes) == figure
    found = cache("0.33.0", "vllm", "serve", model, "--max-model-len", "32768")
    assert mib(found.bytes_per_request) == vllm


def test_the_page_has_a_row_for_every_kind() -> None:
    assert len(ROWS) == 12
