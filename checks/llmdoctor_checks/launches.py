"""What a launch asks of the machine, in the words that several checks share."""

from __future__ import annotations

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


def installed(target: TargetEnvironment, *names: str) -> Distribution | None:
    """The first of the distributions that is installed."""
    return next(filter(None, map(target.has, names)), None)


def listed(words: object) -> str:
    """``a, b, c`` of anything that can be walked."""
    return ", ".join(str(word) for word in words)  # type: ignore[attr-defined]
