"""Draft models and prediction layers get contexts of their own, as a real server (b10434) opened them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gguf_models import DATA, from_config, measured_model
from llamacpp_launches import forecast


@pytest.mark.parametrize("row", json.loads((DATA / "llamacpp-draft-b10434.json").read_text()))
def test_second_context_is_what_the_server_opened(row: dict[str, Any]) -> None:
    draft = measured_model(f"tiny-{row['draft']}") if row["draft"] else None
    arguments = (["-md", "draft.gguf"] if draft else []) + row["args"]
    made = forecast(measured_model(f"tiny-{row['model']}"), *arguments, build="b10434", draft=draft)
    assert made.cache is not None
    lines = [line.partition(": ")[2] for line in made.cache.lines if "MiB (" in line]
    assert lines == row["lines"]
    assert made.memory[-1].weights / 2**20 == pytest.approx(sum(map(float, row["weights"])), abs=0.02)
    assert any("then not used" in note for note in made.notes) is not row["used"]


def test_draft_context_follows_the_target_in_newer_builds() -> None:
    target, draft = measured_model("tiny-small-ctx"), measured_model("tiny-qwen3-8b")
    made = forecast(target, "-md", "d", "--spec-type", "draft-simple", build="b11434", draft=draft)
    assert made.cache is not None
    assert [part.cells for part in made.cache.parts] == [2048, 2048]


def test_prediction_rows_are_kept_only_where_states_can_be_rolled_back() -> None:
    """Qwen3-Next has no rollback: the state stays one row a sequence whatever is drafted."""
    made = forecast(from_config("Qwen--Qwen3-Next-80B-A3B-Instruct"), "-np", "1", "--spec-type", "draft-mtp")
    plain = forecast(from_config("Qwen--Qwen3-Next-80B-A3B-Instruct"), "-np", "1")
    assert made.cache is not None
    assert plain.cache is not None
    assert made.cache.state_bytes == plain.cache.state_bytes
