"""ACME serves nothing without an API key: the check, and the remedy that ends it."""

from __future__ import annotations

from collections.abc import Iterator

from llmdoctor_core.check import check
from llmdoctor_core.derive import Facts
from llmdoctor_core.facts import Launch
from llmdoctor_core.finding import Finding, fail
from llmdoctor_core.remedy import AnyAction, SetArgument, remedy


@check("ACME001", "no-api-key", runtimes={"vllm"}, remedy="ask-for-api-key")
def no_api_key(launch: Launch) -> Iterator[Finding]:
    """The server would answer anybody who reaches its port."""
    if not launch.given("api_key") and "VLLM_API_KEY" not in launch.environment:
        yield fail("{model} would be served without an API key; give --api-key or VLLM_API_KEY", model=launch.model)


@remedy("ask-for-api-key", "Ask for an API key", ends=("ACME001",))
def ask_for_api_key(finding: Finding, facts: Facts) -> Iterator[tuple[AnyAction, ...]]:
    yield (SetArgument(name="api_key", value="$ACME_API_KEY"),)
