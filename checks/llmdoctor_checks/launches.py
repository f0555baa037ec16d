"""What a launch asks of the machine, in the words that several checks share."""

from __future__ import annotations

from typing import Any

from packaging.version import Version

from llmdoctor_core.facts import (
    Distribution,
    Environment,
    Forecast,
    Gpu,
    Gpus,
    Launch,
    LaunchRequest,
    Place,
    Refusal,
    TargetEnvironment,
)

from .tables import Row, table


def size(launch: Launch, name: str) -> int:
    """A parallel size of the launch (``tensor_parallel_size``), 1 where it is not set."""
    value = launch.get(name)
    return value if isinstance(value, int) and value > 0 else 1


def ranks(launch: Launch) -> int:
    """GPUs that one engine takes: tensor times pipeline parallel size."""
    return size(launch, "tensor_parallel_size") * size(launch, "pipeline_parallel_size")


def taken(gpus: Gpus, launch: Launch | None) -> tuple[Gpu, ...]:
    """The GPUs the launch will use: vLLM takes as many as ranks, llama.cpp spreads over all."""
    if launch is None or launch.runtime != "vllm":
        return gpus.visible
    return gpus.visible[: ranks(launch) * size(launch, "data_parallel_size")]


def flag(launch: Launch, name: str) -> str:
    """The argument as the person spelled it, else in its long form."""
    argument = launch.arguments.get(name)
    return argument.flag if argument and argument.flag else "--" + name.replace("_", "-")


def argument(launch: Launch, name: str) -> Place | None:
    """Where the argument stands, None where the person did not give it."""
    return Place(kind="argument", name=flag(launch, name)) if launch.given(name) else None


def variable(name: str, request: LaunchRequest | None, environment: Environment | None) -> str | None:
    """An environment variable as the server will see it: what the launch sets wins over what was observed."""
    if request and name in request.environment:
        return request.environment[name]
    return environment.variables.get(name) if environment else None


def refusal(forecast: Forecast | None, code: str) -> Refusal | None:
    """The forecast's refusal, where it is this condition that keeps the server from starting."""
    refused = forecast.refused if forecast else None
    return refused if refused and refused.code == code else None


def release(text: str | None) -> Version | None:
    """A version, or None for what is no version (``main``, an empty text)."""
    try:
        return Version(text) if text else None
    except ValueError:  # InvalidVersion, or a number of more digits than Python reads
        return None


def choices(name: str) -> Any:
    """What vLLM chooses among, by its name in the table."""
    return next(row["values"] for row in table("vllm-choices").rows if row["name"] == name)


def within(row: Row, version: Version) -> bool | None:
    """Whether a release has what the row names: ``since`` and ``last`` are the first and last release seen with it,
    ``absent_in`` and ``gone_in`` their neighbours without; None for a release between two that were looked at."""
    since, absent, last, gone = (release(row.get(key)) for key in ("since", "absent_in", "last", "gone_in"))
    if (since is None or version >= since) and (last is None or version <= last):
        return True
    if (absent is not None and version <= absent) or (gone is not None and version >= gone):
        return False
    return None


def releases_of(name: str) -> tuple[Version, Version]:
    """The oldest and the newest release that a table was made from, by its title."""
    oldest, newest = table(name).title.rpartition("releases, ")[2].rstrip(")").split(" to ")
    return Version(oldest), Version(newest)


def known_by_name(kind: str, name: str, version: Version) -> tuple[bool | None, Row | None]:
    """Whether the release of vLLM knows the name, and the row that says since when or until when another does."""
    rows = [row for row in table("vllm-names").rows if row["kind"] == kind and name in row["names"]]
    oldest, newest = releases_of("vllm-names")
    if version < oldest:
        return None, None
    if not rows:
        return (None if version > newest else False), None
    answers = [within(row, version) for row in rows]
    return (True if True in answers else None if None in answers else False), rows[-1]


def installed(target: TargetEnvironment, *names: str) -> Distribution | None:
    """The first of the distributions that is installed."""
    return next(filter(None, map(target.has, names)), None)


def listed(words: object) -> str:
    """``a, b, c`` of anything that can be walked."""
    return ", ".join(str(word) for word in words)  # type: ignore[attr-defined]
