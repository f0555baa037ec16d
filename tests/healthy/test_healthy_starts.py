"""No false alarm: public logs of starts that went well get no FAIL from the whole catalogue, and no ERROR."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import Any

import pytest

from llmdoctor_core.examine import Examination, examine
from llmdoctor_core.facts import Unavailable
from llmdoctor_core.finding import Outcome
from llmdoctor_core.plugins import catalogue

from .starts import cases_of, rows, unfit

HEALTHY = {row["id"]: row for row in rows() if unfit(row) is None}
UNFIT = {
    "the server refused to start": {"v169", "v177", "v191", "v208", "v209"},
    "the log does not name the model": {
        "v189", "v190", "v192", "l043", "s025", "s027", "s031", "t011", "o005",
    },
    "the log does not print the context": {"l041"},
}  # fmt: skip
KNOWN = {"vllm": (146, 108, 108), "llama.cpp": (27, 27, 27), "sglang": (19, 5, 0), "tensorrt-llm": (5, 4, 0)}
"""By runtime: rows that take part, of these at least so many with a model, and with a forecast."""


@lru_cache(maxsize=1)
def examined() -> dict[str, dict[str, Examination]]:
    loaded = catalogue()
    return {
        row["id"]: {kind: examine(case, loaded.checks, broken=loaded.broken) for kind, case in cases_of(row).items()}
        for row in rows()
        if unfit(row) in (None, "the server refused to start")
    }


def alarms(examination: Examination) -> list[str]:
    loud = (Outcome.FAIL, Outcome.ERROR)
    return [f"{found.code}: {found.message}" for found in examination.findings if found.outcome in loud]


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_start_gets_no_fail(name: str) -> None:
    for kind, examination in examined()[name].items():
        assert alarms(examination) == [], kind


def test_what_is_left_out_is_left_out_for_a_reason() -> None:
    reasons: dict[str, set[str]] = {}
    for row in rows():
        if why := unfit(row):
            reasons.setdefault(why, set()).add(row["id"])
    assert reasons == UNFIT
    incomplete = {row["id"] for row in rows() if not row["complete"]}
    assert set().union(*UNFIT.values()) <= incomplete, "every complete row takes part"


def test_enough_is_known_for_the_silence_to_mean_something() -> None:
    counts = {kind: Counter[str]() for kind in KNOWN}
    for name, row in HEALTHY.items():
        if row["runtime"] in counts:
            counts[row["runtime"]].update(known_of(examined()[name]["memory predicted"]))
    for runtime, (count, models, forecasts) in KNOWN.items():
        assert counts[runtime]["rows"] == count
        assert counts[runtime]["model"] >= models
        assert counts[runtime]["forecast"] >= forecasts
    pools = [name for name, found in examined().items() if "pool as printed" in found]
    assert len(pools) >= 135


def known_of(examination: Examination) -> dict[str, int]:
    model = not isinstance(examination.case.model, Unavailable)
    return {"rows": 1, "model": model, "forecast": not isinstance(examination.forecast, Unavailable)}


@pytest.mark.parametrize(("name", "kind", "code"), [
    ("v169", "memory predicted", "CTX603"),
    ("v191", "pool as printed", "CTX603"),
    ("v208", "memory predicted", "MEM801"),
    ("v209", "pool as printed", "CTX603"),
])  # fmt: skip
def test_a_refused_start_of_the_same_logs_is_named(name: str, kind: str, code: str) -> None:
    assert [alarm.partition(":")[0] for alarm in alarms(examined()[name][kind])] == [code]


def test_a_build_that_names_no_release_is_warned_about_its_state_blocks() -> None:
    """1024 sequences on 408 blocks: releases since 0.20 refuse, this build of an untagged checkout served."""
    found: Any = examined()["v153"]["pool as printed"]
    assert [f.outcome for f in found.findings if f.code == "MEM805"] == [Outcome.WARN]
