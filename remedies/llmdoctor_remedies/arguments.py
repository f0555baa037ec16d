"""Remedies of the command line: arguments that this version does not take, and speculative decoding."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from llmdoctor_core.derive import Facts
from llmdoctor_core.facts import ArgumentProblem, Launch, LaunchRequest
from llmdoctor_core.finding import Finding
from llmdoctor_core.remedy import AnyAction, Cost, ReplaceArgument, Safety, SetArgument, SetVariable, remedy
from llmdoctor_core.units import whole

from .search import launch_of
from .tables import table

Alternatives = Iterator[tuple[AnyAction, ...]]
SPECULATIVE: dict[str, str] = {row["flag"]: row["key"] for row in table("values")["speculative"]}
"""The flags that vLLM dropped, and the keys of --speculative-config in their place."""


def typed(request: LaunchRequest) -> dict[str, str]:
    """Flags of the command with their values as typed; an empty string for one without."""
    found: dict[str, str] = {}
    words = list(request.argv)
    while words:
        flag, equals, value = words.pop(0).partition("=")
        if flag.startswith("--"):
            takes = not equals and words and not words[0].startswith("-")
            found[flag.replace("_", "-")] = words.pop(0) if takes else value
    return found


@remedy("speculative-config", "Write speculative decoding as this version takes it", ends=("ARG902",))
def speculative_config(finding: Finding, facts: Facts) -> Alternatives:
    request = facts.optional(LaunchRequest)
    given = {flag: value for flag, value in typed(request).items() if flag in SPECULATIVE} if request else {}
    if not given or (request and request.runtime != "vllm"):
        return
    config: dict[str, Any] = {}
    for flag, value in given.items():
        config[SPECULATIVE[flag]] = value if (number := whole(value)) is None else number
    if config.get("model") in ("[ngram]", "ngram"):
        config["method"] = "ngram"
        del config["model"]
    elif "model" in config:
        config = {"method": "draft_model", **config}
    first, *rest = given
    yield (
        ReplaceArgument(flag=first, words=("--speculative-config", json.dumps(config))),
        *(ReplaceArgument(flag=flag, words=()) for flag in rest),
    )


@remedy("replace-removed-argument", "Use what took the argument's place", ends=("ARG901", "ARG902"))
def replace_removed_argument(finding: Finding, facts: Facts) -> Alternatives:
    request = facts.optional(LaunchRequest)
    if request is None:
        return
    values = typed(request)
    for problem in _told(finding, facts):
        successor = problem.replacement or (problem.nearest if problem.kind == "unknown" else None)
        if problem.flag in SPECULATIVE or problem.kind not in ("unknown", "removed", "renamed"):
            continue
        name = problem.flag.partition("=")[0]
        if successor == problem.flag.replace("=", " ", 1):
            yield (ReplaceArgument(flag=name, words=tuple(successor.split(" ", 1))),)
        elif successor and successor.startswith("-") and " " not in successor:
            value = values.get(problem.flag.replace("_", "-"), "")
            yield (ReplaceArgument(flag=problem.flag, words=(successor, value) if value else (successor,)),)


@remedy("drop-argument", "Leave the argument out", ends=("ARG901", "ARG902"), cost=Cost.SPEED, safety=Safety.UNSAFE)
def drop_argument(finding: Finding, facts: Facts) -> Alternatives:
    """Only where nothing takes its place: the person asked for something this version cannot do."""
    for problem in _told(finding, facts):
        if problem.kind in ("unknown", "removed") and not problem.replacement and problem.flag not in SPECULATIVE:
            yield (ReplaceArgument(flag=problem.flag, words=()),)


def _told(finding: Finding, facts: Facts) -> Iterator[ArgumentProblem]:
    """The problems of the argument that the finding is about."""
    launch = launch_of(facts)
    problems = launch.problems if launch else ()
    return (problem for problem in problems if problem.flag == finding.params.get("flag"))


def _speculative(launch: Launch | None) -> dict[str, Any] | None:
    config = launch.get("speculative_config") if launch and launch.runtime == "vllm" else None
    return dict(config) if isinstance(config, dict) else None


def _written(config: dict[str, Any], facts: Facts) -> dict[str, Any]:
    """The keys the person wrote, not those a default filled in."""
    request = facts.optional(LaunchRequest)
    text = typed(request).get("--speculative-config") if request else None
    try:
        written = json.loads(text) if text else config
    except ValueError:
        written = config
    return dict(written) if isinstance(written, dict) else config


@remedy("allow-heterogeneous-vocabulary", "Let draft and target speak different vocabularies", ends=("DRAFT401",))
def allow_heterogeneous_vocabulary(finding: Finding, facts: Facts) -> Alternatives:
    """vLLM 0.25 and newer; the drafts are then sampled greedily (vllm/config/speculative.py)."""
    config = _speculative(launch_of(facts))
    if config is not None:
        config = _written(config, facts) | {"use_heterogeneous_vocab": True}
        yield (SetArgument(name="speculative_config", value=json.dumps(config)),)


@remedy("draft-by-ngram", "Draft from the prompt's own n-grams, without a model", ends=("DRAFT401", "DRAFT402"),
        cost=Cost.SPEED)  # fmt: skip
def draft_by_ngram(finding: Finding, facts: Facts) -> Alternatives:
    config = _speculative(launch_of(facts))
    if config is not None and config.get("method") != "ngram":
        tokens = config.get("num_speculative_tokens") or 3
        ngram = {"method": "ngram", "num_speculative_tokens": tokens, "prompt_lookup_max": 4}
        yield (SetArgument(name="speculative_config", value=json.dumps(ngram)),)


@remedy("same-draft-tensor-parallel", "Split the draft as the target is split", ends=("DRAFT403",))
def same_draft_tensor_parallel(finding: Finding, facts: Facts) -> Alternatives:
    launch = launch_of(facts)
    config = _speculative(launch)
    if launch is not None and config is not None:
        config = _written(config, facts) | {"draft_tensor_parallel_size": launch.get("tensor_parallel_size")}
        yield (SetArgument(name="speculative_config", value=json.dumps(config)),)


@remedy("set-dtype-half", "Compute in float16, which this GPU has", ends=("GPU012",), cost=Cost.ACCURACY)
def set_dtype_half(finding: Finding, facts: Facts) -> Alternatives:
    launch = launch_of(facts)
    if launch is not None:
        yield (SetArgument(name="dtype", value="half", before=str(launch.get("dtype"))),)


@remedy("trust-remote-code", "Run the model repository's own code", ends=("MODEL511",), safety=Safety.UNSAFE)
def trust_remote_code(finding: Finding, facts: Facts) -> Alternatives:
    yield (SetArgument(name="trust_remote_code", value="true", before="false"),)


@remedy("rename-connector", "Name the KV connector as this release does", ends=("KVT401",))
def rename_connector(finding: Finding, facts: Facts) -> Alternatives:
    """The check names the successor; a nested connector (MultiConnector) is renamed where it stands."""
    launch = launch_of(facts)
    config = launch.get("kv_transfer_config") if launch else None
    old, new = finding.params.get("name"), finding.params.get("instead") or finding.params.get("near")
    if isinstance(config, dict) and isinstance(old, str) and isinstance(new, str) and new != "-":
        yield (SetArgument(name="kv_transfer_config", value=json.dumps(_renamed(config, old, new))),)


@remedy("drop-connector-key", "Leave out the key that this release refuses", ends=("KVT401",))
def drop_connector_key(finding: Finding, facts: Facts) -> Alternatives:
    launch, key = launch_of(facts), finding.params.get("key")
    config = launch.get("kv_transfer_config") if launch else None
    if isinstance(config, dict) and key in config:
        kept = {name: value for name, value in config.items() if name != key}
        yield (SetArgument(name="kv_transfer_config", value=json.dumps(kept)),)


def _renamed(config: Any, old: str, new: str) -> Any:
    if isinstance(config, dict):
        return {
            key: new if key == "kv_connector" and value == old else _renamed(value, old, new)
            for key, value in config.items()
        }
    return [_renamed(item, old, new) for item in config] if isinstance(config, list) else config


@remedy("rename-variable", "Set the variable that is read", ends=("ARG904",))
def rename_variable(finding: Finding, facts: Facts) -> Alternatives:
    request = facts.optional(LaunchRequest)
    old = finding.params.get("name") or finding.params.get("flag")
    new = finding.params.get("instead") or finding.params.get("nearest")
    if request is None or old not in request.environment or not isinstance(new, str) or not new.isidentifier():
        return
    yield (SetVariable(name=new, value=request.environment[old]), SetVariable(name=str(old), value=None))
