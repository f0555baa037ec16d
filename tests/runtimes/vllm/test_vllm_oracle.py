"""What vLLM's own configuration and planner answered for every configuration, held without vLLM.

The answers come from ``tools/vllm_oracle`` (docs/oracle.md tells how they are made again for a new release).
"""

from __future__ import annotations

import importlib.util
import json
import re
from functools import lru_cache
from types import ModuleType
from typing import Any

import pytest

from llmdoctor_core.facts import Forecast, Model
from llmdoctor_core.runtimes import vllm
from llmdoctor_core.runtimes.vllm import since
from vllm_launches import TESTS, described, gpus, resolve

DATA = TESTS / "data" / "vllm"
RELEASES = sorted((path.stem.removeprefix("oracle-") for path in DATA.glob("oracle-*.jsonl")), key=since.release)
"""Whole since 0.27; of the older ones a sample of 28 models, whose settings matter most."""
POOLS = (68725800333, 402653184)


@lru_cache(maxsize=1)
def cases_tool() -> ModuleType:
    path = TESTS.parent / "tools" / "vllm_oracle" / "cases.py"
    spec = importlib.util.spec_from_file_location("vllm_oracle_cases", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@lru_cache(maxsize=4)
def model(name: str) -> Model:
    """A model as vLLM was given it: the facts, and the keys that vLLM needs beside them."""
    if name.startswith("eagle3"):
        return described(name, cases_tool().EAGLE3)
    config = json.loads((TESTS / "configs" / f"{name}.json").read_text())
    return described(name, cases_tool().filled(name, config))


def answers(release: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / f"oracle-{release}.jsonl").read_text().splitlines()]


def words(args: dict[str, Any]) -> list[str]:
    found: list[str] = []
    for name, value in args.items():
        flag = "--" + name.replace("_", "-")
        if isinstance(value, bool):
            found.append(flag if value else flag.replace("--", "--no-", 1))
        elif isinstance(value, list):
            found += [flag, *map(str, value)]
        else:
            found += [flag, json.dumps(value) if isinstance(value, dict) else str(value)]
    return found


def differences(row: dict[str, Any], release: str, pools: int) -> list[str]:
    made = model(row["model"])
    launch = resolve(made, *words(row["args"]), version=release, card=row["gpu"], entrypoint=row["usage"])
    named = (row["args"].get("speculative_config") or {}).get("model")
    draft = model(named.removeprefix("@")) if named else None
    found = []
    for pool, plan in list(zip(POOLS, row["plans"], strict=False))[:pools]:
        ours = vllm.forecast(launch, made, gpus(row["gpu"], 16), draft, pool)
        if said(ours, plan) != expected(ours, plan):
            found.append(f"{row['model']}/{row['setting']} {pool}: {said(ours, plan)} for {expected(ours, plan)}")
    return found


def expected(ours: Forecast, plan: Any) -> Any:
    return plan["refused"] if isinstance(plan, dict) else tuple(plan)


def said(ours: Forecast, plan: Any) -> Any:
    refused = ours.refused if ours.refused and ours.refused.code != "MEM805" else None
    if refused is not None:
        if refused.code == "TP701" and isinstance(plan, dict):
            return plan["refused"]  # which of several indivisible sizes is named first is the model code's choice
        return re.findall(r"\d+(?:\.\d+)?", refused.message.partition("See https")[0])
    cache = ours.cache
    assert cache is not None
    length, concurrency = cache.request_tokens, f"{cache.max_concurrency:.2f}"
    return (cache.blocks, cache.bytes_per_block, cache.blocks_per_request, cache.tokens, concurrency, length)


KNOWN: dict[tuple[str, str], str] = {
    ("google--gemma-4-26B-A4B", "serve"): "the batch is raised to one image by a processor that was not installed",
    ("google--gemma-4-26B-A4B", "block64"): "the batch is raised to one image by a processor that was not installed",
}
"""Cases in which the asked vLLM itself was not complete."""


@pytest.mark.parametrize("release", RELEASES)
def test_forecast_is_vllms_own_answer(release: str) -> None:
    """Every model with every setting, with a pool that holds it."""
    rows = [row for row in answers(release) if "plans" in row and (row["model"], row["setting"]) not in KNOWN]
    assert len(rows) > (500 if since.release(release) >= (0, 27) else 100)
    found = [line for row in rows for line in differences(row, release, pools=1)]
    assert not found, "\n".join(found[:20])


@pytest.mark.slow
@pytest.mark.parametrize("release", RELEASES)
def test_refusals_are_vllms_own_too(release: str) -> None:
    """The same with a pool of 384 MiB, which most do not fit: the length that would is vLLM's own estimate."""
    rows = [row for row in answers(release) if "plans" in row and (row["model"], row["setting"]) not in KNOWN]
    found = [line for row in rows for line in differences(row, release, pools=2)]
    assert not found, "\n".join(found[:20])


def test_every_configuration_is_asked_or_named_with_a_reason() -> None:
    """A model left out of the newest release's answers says why, case by case."""
    rows = answers(RELEASES[-1])
    assert {row["model"] for row in rows} == {path.stem for path in (TESTS / "configs").glob("*--*.json")}
    assert all(row.get("plans") or row.get("left_out") for row in rows)
    asked = {row["model"] for row in rows if "plans" in row}
    assert len(asked) >= 70
