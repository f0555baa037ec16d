"""The published schemas are those of the types, and a real case and forecast follow them."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import jsonschema
import msgspec
import pytest

from llmdoctor_core.case import encode
from llmdoctor_core.derive import Facts
from llmdoctor_core.facts import Forecast
from llmdoctor_core.intake import Intake, build_cases

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("schemas", ROOT / "tools/schemas.py")
assert SPEC is not None
assert SPEC.loader is not None
schemas = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(schemas)


@pytest.mark.parametrize("name", schemas.SCHEMAS)
def test_the_published_schema_is_current(name: str) -> None:
    assert (schemas.FOLDER / name).read_text(encoding="utf-8") == schemas.text_of(schemas.SCHEMAS[name])


def test_a_real_case_and_its_forecast_follow_them() -> None:
    (case,) = build_cases(Intake(command=("vllm", "serve", "google/gemma-3-4b-it"), gpu="L4", offline=True))
    forecast = Facts(case).get(Forecast)
    for name, document in (("case-1.json", encode(case)), ("forecast-1.json", msgspec.json.encode(forecast))):
        schema = json.loads((schemas.FOLDER / name).read_text(encoding="utf-8"))
        jsonschema.Draft202012Validator(schema).validate(json.loads(document))
