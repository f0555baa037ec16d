"""Arguments and settings: what this version does not know, no longer knows, refuses together, or silently ignores."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from msgspec.structs import replace
from packaging.version import Version

from llmdoctor_core.check import check
from llmdoctor_core.facts import (
    Environment,
    Forecast,
    Launch,
    LaunchRequest,
    Model,
    Place,
    TargetEnvironment,
)
from llmdoctor_core.finding import Finding, Outcome, fail, seen, warn

from .launches import argument, flag, known_by_name, refusal, release
from .tables import Row, table

LMCACHE_OWN = {
    "LMCACHE_CONFIG_FILE",
    "LMCACHE_USE_EXPERIMENTAL",
    "LMCACHE_TRACK_USAGE",
    "LMCACHE_LOG_LEVEL",
    "LMCACHE_USE_UPSTREAM_MP",
}
"""Variables that LMCache reads outside its configuration keys."""


def _name(launch: Launch) -> str:
    return {"vllm": "vLLM", "llamacpp": "llama.cpp"}.get(launch.runtime, launch.runtime)


@check("ARG901", "argument-unknown", runtimes={"vllm", "llamacpp"}, remedy="replace-removed-argument")
def argument_unknown(launch: Launch) -> Iterator[Finding]:
    """The server's version does not know an argument."""
    for problem in launch.problems:
        if problem.kind != "unknown":
            continue
        evidence = (
            seen("argument", problem.flag, "the launch"),
            seen("version", launch.version, "assumed" if launch.version_assumed else "observed"),
        )
        place = Place(kind="argument", name=problem.flag)
        if problem.nearest or problem.replacement:
            yield fail(
                "{runtime} {version} does not know {flag}: {detail}. The nearest it knows is {nearest}",
                evidence=evidence,
                where=place,
                runtime=_name(launch),
                version=launch.version,
                flag=problem.flag,
                detail=problem.detail,
                nearest=problem.replacement or problem.nearest,
            )
        else:
            yield fail(
                "{runtime} {version} does not know {flag}: {detail}. Take it out",
                evidence=evidence,
                where=place,
                runtime=_name(launch),
                version=launch.version,
                flag=problem.flag,
                detail=problem.detail,
            )


@check("ARG902", "argument-removed", runtimes={"vllm", "llamacpp"}, remedy="replace-removed-argument")
def argument_removed(launch: Launch) -> Iterator[Finding]:
    """An argument was removed or renamed in the server's version."""
    # The newest release stands in where none was observed: an older one may still take the argument.
    outcome = Outcome.WARN if launch.version_assumed else Outcome.FAIL
    version = f"{launch.version}, assumed" if launch.version_assumed else launch.version
    for problem in launch.problems:
        if problem.kind not in ("removed", "renamed"):
            continue
        evidence = (
            seen("argument", problem.flag, "the launch"),
            seen("version", launch.version, "assumed" if launch.version_assumed else "observed"),
        )
        place = Place(kind="argument", name=problem.flag)
        if problem.replacement:
            found = fail(
                "{flag} is gone from {runtime} since {since} (this is {version}): {detail}. Write {replacement} "
                "instead",
                evidence=evidence,
                where=place,
                flag=problem.flag,
                runtime=_name(launch),
                since=problem.since or "-",
                version=version,
                detail=problem.detail,
                replacement=problem.replacement,
            )
        else:
            found = fail(
                "{flag} is gone from {runtime} since {since} (this is {version}): {detail}. Take it out",
                evidence=evidence,
                where=place,
                flag=problem.flag,
                runtime=_name(launch),
                since=problem.since or "-",
                version=version,
                detail=problem.detail,
            )
        yield replace(found, outcome=outcome)


def _unknown_parsers(launch: Launch) -> Iterator[tuple[str, str, str]]:
    """Parsers of tool calls and reasoning that this release of vLLM does not register: option, name, since when."""
    version = release(launch.version)
    if launch.runtime != "vllm" or version is None or launch.get("tool_parser_plugin"):
        return
    for name in ("tool_call_parser", "reasoning_parser"):
        parser = launch.get(name)
        if isinstance(parser, str) and parser and launch.given(name):
            known, row = known_by_name(name, parser, version)
            if known is False:
                yield name, parser, _when(row, version)


def _when(row: Row | None, version: Version) -> str:
    """``since 0.10.2``, ``until 0.27.1`` or ``in none up to now``."""
    since = release(row.get("since")) if row else None
    if row and since and version < since:
        return f"since {row['since']}"
    return f"until {row['last']}" if row and "last" in row else "in no release up to now"


@check("ARG903", "arguments-contradict", runtimes={"vllm", "llamacpp"})
def arguments_contradict(
    launch: Launch, model: Model | None, forecast: Forecast | None, environment: Environment | None
) -> Iterator[Finding]:
    """A value is not one the argument takes, or two arguments do not go together."""
    for problem in launch.problems:
        if problem.kind in ("invalid", "incomplete"):
            yield fail(
                "{flag}: {detail}; {runtime} {version} stops at once",
                evidence=(seen("argument", problem.flag, "the launch"),),
                where=Place(kind="argument", name=problem.flag),
                flag=problem.flag,
                detail=problem.detail,
                runtime=_name(launch),
                version=launch.version,
            )
    for name, parser, when in _unknown_parsers(launch):
        # The newest release stands in where none was observed: an older one may still have the parser.
        report = warn if launch.version_assumed else fail
        yield report(
            "{flag} {parser}: vLLM {version} has no parser of that name ({when}) and stops with 'invalid ... parser'. "
            "Take a name that `vllm serve --help` lists, a release that has it, or load your own with "
            "--tool-parser-plugin",
            evidence=(
                seen(name, parser, "arguments"),
                seen("vLLM", launch.version, "assumed" if launch.version_assumed else "observed"),
            ),
            where=argument(launch, name),
            flag=flag(launch, name),
            parser=parser,
            version=launch.version,
            when=when,
        )
    refused = refusal(forecast, "ARG903")
    if refused and refused.detail.get("flag") not in {problem.flag for problem in launch.problems}:
        yield fail(
            "{runtime} {version} refuses these arguments with this model: '{message}'",
            evidence=(seen("refusal", refused.message, "forecast"),),
            runtime=_name(launch),
            version=launch.version,
            message=refused.message or "NotImplementedError",
        )
    if launch.runtime == "vllm" and "LMCache" in str(launch.get("kv_transfer_config")):
        size = launch.environment.get("LMCACHE_MAX_LOCAL_CPU_SIZE") or (
            environment.variables.get("LMCACHE_MAX_LOCAL_CPU_SIZE") if environment else None
        )
        if size is not None and size.strip() in ("0", "0.0"):
            yield fail(
                "LMCACHE_MAX_LOCAL_CPU_SIZE={size} makes LMCache open a buffer of no bytes: 'both buffer length (0) "
                "and count (-1) must not be 0'. Leave the variable out, or give it GiB per rank",
                evidence=(seen("LMCACHE_MAX_LOCAL_CPU_SIZE", size, "environment"),),
                where=Place(kind="environment", name="LMCACHE_MAX_LOCAL_CPU_SIZE"),
                size=size,
            )
    method = launch.get("quantization")
    stored = model.quantization.method.partition(" ")[0] if model and model.quantization else None
    if launch.runtime == "vllm" and isinstance(method, str) and launch.given("quantization") and stored:
        alike = {method.partition("_")[0], method.removesuffix("_marlin"), method.removeprefix("auto_")}
        own = (model.config.get("quantization_config") if model else None) or {}
        unfit = method == "gptq_marlin" and isinstance(own, dict) and own.get("sym") is False
        if unfit or (stored not in alike and stored.partition("_")[0] not in alike):
            yield fail(
                "{flag} {method} contradicts the checkpoint, which is quantized with {stored}: 'does not match the "
                "quantization method specified in the model config'. Drop {flag}, vLLM reads the method from the "
                "checkpoint",
                evidence=(seen("quantization of the checkpoint", stored, "config.json"),),
                where=argument(launch, "quantization"),
                flag=flag(launch, "quantization"),
                method=method,
                stored=stored,
            )


@check("ARG905", "batched-tokens-below-need", runtimes={"vllm"})
def batched_tokens_below_need(launch: Launch) -> Iterator[Finding]:
    """One step may take fewer tokens than the launch needs it to."""
    tokens, sequences, length = (
        launch.get(name) for name in ("max_num_batched_tokens", "max_num_seqs", "max_model_len")
    )
    if not isinstance(tokens, int):
        return
    name = flag(launch, "max_num_batched_tokens")
    place = argument(launch, "max_num_batched_tokens") or Place(kind="argument", name=name)
    if isinstance(sequences, int) and tokens < sequences:
        yield fail(
            "{flag} {tokens} is below --max-num-seqs {sequences}: vLLM refuses, every running sequence needs one "
            "token a step. Raise it to {sequences} or more, or lower --max-num-seqs",
            evidence=(
                seen("max_num_batched_tokens", tokens, "arguments"),
                seen("max_num_seqs", sequences, "arguments"),
            ),
            where=place,
            flag=name,
            tokens=tokens,
            sequences=sequences,
        )
    elif launch.get("enable_chunked_prefill") is False and isinstance(length, int) and tokens < length:
        yield fail(
            "{flag} {tokens} is below --max-model-len {length} with chunked prefill off: a prompt must fit into one "
            "step, vLLM refuses. Raise it to {length}, or drop --no-enable-chunked-prefill",
            evidence=(seen("max_num_batched_tokens", tokens, "arguments"), seen("max_model_len", length, "arguments")),
            where=place,
            flag=name,
            tokens=tokens,
            length=length,
        )


def lmcache_keys(version: Version | None) -> set[str]:
    """Configuration keys that this release of LMCache knows; those of the newest one known where the version is not."""
    keys: set[str] = set()
    for entry in table("lmcache-keys").rows:
        since, last = release(entry.get("since")), release(entry.get("last"))
        if (version is None or since is None or version >= since) and (
            last is None or (version is not None and version <= last)
        ):
            keys |= set(entry["keys"])
    return keys


@check("ARG904", "setting-silently-ignored")
def setting_silently_ignored(
    launch: Launch | None, request: LaunchRequest, environment: Environment | None, target: TargetEnvironment | None
) -> Iterator[Finding]:
    """An environment variable or a configuration key has a name that nothing reads."""
    for problem in launch.problems if launch else ():
        if problem.kind == "ignored":
            yield warn(
                "{flag} has no effect ({detail}). The nearest that is read is {nearest}",
                evidence=(seen("setting", problem.flag, "the launch"),),
                where=Place(kind="argument" if problem.flag.startswith("-") else "environment", name=problem.flag),
                flag=problem.flag,
                detail=problem.detail,
                nearest=problem.replacement or problem.nearest or "-",
            )
    names = dict.fromkeys((*request.environment, *(environment.variables if environment else ())))
    lmcache = target.has("lmcache") if target else None
    keys = lmcache_keys(release(lmcache.version) if lmcache else None)
    renamed = {entry["old"]: entry for entry in table("lmcache-renames").rows}
    for name in names:
        prefix = next((prefix for prefix in ("LMCACHE_", "LM_CACHE_", "LMCACHE-") if name.startswith(prefix)), None)
        if prefix is None or name in LMCACHE_OWN:
            continue
        key = (
            name.removeprefix(prefix).lower().removeprefix("ec_")
            if name.startswith("LMCACHE_EC_")
            else name.removeprefix(prefix).lower()
        )
        if prefix == "LMCACHE_" and key in keys:
            continue
        instead = (
            renamed[key]["new"]
            if key in renamed
            else next(iter(difflib.get_close_matches(key, sorted(keys), n=1, cutoff=0.75)), None)
        )
        if key in keys:
            instead = key
        if instead is None and lmcache is None:
            continue
        yield warn(
            "LMCache reads no variable {name} and says nothing: its default stays in force. Write {instead}",
            evidence=(
                seen("environment variable", name, "the service's environment"),
                seen("LMCache", lmcache.version if lmcache else "not observed", "the target environment"),
            ),
            where=Place(kind="environment", name=name),
            name=name,
            instead=f"LMCACHE_{instead.upper()}" if instead else "-",
        )
