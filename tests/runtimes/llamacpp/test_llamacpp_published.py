"""Figures that people measured and published with llama.cpp come out of a config.json to the last printed digit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gguf_models import from_config, tiny_file
from llamacpp_launches import forecast
from llmdoctor_core.models import describe
from llmdoctor_core.models.gguf import read_gguf

TESTS = Path(__file__).parents[2]
CONFIGS = {
    "Qwen3-8B": "Qwen--Qwen3-8B",
    "Mistral-7B-v0.3": "mistralai--Mistral-7B-Instruct-v0.3",
    "gemma-3-4b": "google--gemma-3-4b-it",
    "gpt-oss-20b": "openai--gpt-oss-20b",
    "DeepSeek-V2-Lite": "deepseek-ai--DeepSeek-V2-Lite",
    "Qwen3.5-9B": "Qwen--Qwen3.5-9B",
}


def published() -> list[dict[str, Any]]:
    return json.loads((TESTS / "data/published.json").read_text())["llama.cpp"]["rows"]


@pytest.mark.parametrize("row", published(), ids=lambda row: "-".join(str(v) for v in row.values())[:60])
def test_published_figure(row: dict[str, Any]) -> None:
    if row.get("expanded_mla"):
        model = describe(read_gguf(tiny_file("dsv2-lite-expanded")))
    else:
        model = from_config(CONFIGS[row["model"]])
    kind = row.get("cache_type", "f16")
    arguments = ["-ngl", "99", "-fa", "on", "-np", "1", "-c", str(row["ctx"]), "-ctk", kind, "-ctv", kind]
    arguments += ["-ub", str(row["ubatch"])] if "ubatch" in row else []
    arguments += ["--swa-full"] if row.get("swa_full") else []
    made = forecast(model, *arguments)
    assert made.refused is None
    assert made.cache is not None
    digits = len(str(row["kv_mib"]).partition(".")[2])
    assert round(made.cache.bytes / 2**20, digits) == row["kv_mib"]
    assert made.cache.state_bytes / 2**20 == row.get("state_mib", 0)
    assert made.cache.slot_tokens == row.get("slot_ctx", min(row["ctx"], made.cache.request_tokens))


def test_window_of_every_slot_is_kept_by_default() -> None:
    """Four slots on one pool hold four windows: 1162 MiB for Gemma 3 4B at 32K instead of 814."""
    made = forecast(from_config("google--gemma-3-4b-it"), "-c", "32768")
    assert made.cache is not None
    assert made.cache.bytes == 1162 * 2**20


@pytest.mark.parametrize("path", sorted((TESTS / "configs").glob("*.json")), ids=lambda path: path.stem)
def test_every_configuration_is_forecast_or_refused_by_name(path: Path) -> None:
    config = json.loads(path.read_text())
    if "model_type" not in config:
        pytest.skip("no model configuration")
    made = forecast(from_config(path.stem), "-c", "8192", "-np", "1")
    if made.refused is not None:
        assert made.refused.code == "MODEL513"
        assert made.refused.message.endswith(config["architectures"][0])
    else:
        assert made.cache is not None
        assert made.cache.bytes + made.cache.state_bytes > 0
