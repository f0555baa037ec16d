"""Speculative decoding with a draft model: whether the two fit each other, and whether this release has the method."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from packaging.version import Version

from llmdoctor_core.check import check
from llmdoctor_core.facts import Draft, Launch, Model, Place, Unavailable
from llmdoctor_core.finding import Finding, fail, seen, skip, warn

from .launches import release, size
from .tables import table

HETEROGENEOUS_SINCE = Version("0.25")
"""use_heterogeneous_vocab exists since vLLM 0.25.0 (config/speculative.py): greedy requests only, V1 model runner."""
SAME_VOCABULARY_SINCE = Version("0.15")
DRAFTS_END_SINCE = Version("0.11.1")
"""Beyond the draft's own length nothing is drafted (v1/worker/gpu_model_runner.py input_fits_in_drafter)."""
CONFIG = Place(kind="argument", name="--speculative-config")


def _speculative(launch: Launch) -> dict[str, Any]:
    config = launch.get("speculative_config")
    return config if isinstance(config, dict) else {}


def _method(config: dict[str, Any]) -> str | None:
    """The method as written, or what a bare draft model means (vLLM config/speculative.py)."""
    method = config.get("method")
    if isinstance(method, str):
        return method
    return "draft_model" if config.get("model") else None


@check("DRAFT401", "draft-vocabulary-differs", runtimes={"vllm", "llamacpp"}, remedy="allow-heterogeneous-vocabulary")
def draft_vocabulary_differs(launch: Launch, model: Model, draft: Draft | Unavailable) -> Iterator[Finding]:
    """The draft model's vocabulary has another size than the target's."""
    config = _speculative(launch)
    if launch.runtime == "vllm" and _method(config) != "draft_model":
        return
    if isinstance(draft, Unavailable):
        if not draft.permanent:
            yield skip("the draft model was not read: {reason}", reason=draft.reason)
        return
    mine, its = model.vocabulary, draft.model.vocabulary
    if mine == its:
        return
    evidence = (
        seen("vocabulary of the target", mine, model.source.where),
        seen("vocabulary of the draft", its, draft.model.source.where),
    )
    version = release(launch.version)
    same_tokens = model.source.tokenizer.fingerprint
    padded = same_tokens is not None and same_tokens == draft.model.source.tokenizer.fingerprint
    if launch.runtime == "llamacpp":
        report = fail if abs(mine - its) > 128 else warn
        yield report(
            "the draft's vocabulary has {draft} entries and the target's {target}: llama.cpp compares them and drops "
            "the draft where they differ by more than 128 or in their first tokens. Take a draft of the same family "
            "and size of vocabulary",
            evidence=evidence,
            draft=its,
            target=mine,
        )
    elif version is None or version < SAME_VOCABULARY_SINCE:
        yield warn(
            "the draft's vocabulary has {draft} entries and the target's {target}; vLLM {version} does not compare "
            "them (0.15 and later do) and may draft tokens that the target does not have. Take a draft whose "
            "config.json says vocab_size {target}",
            evidence=evidence,
            where=CONFIG,
            draft=its,
            target=mine,
            version=launch.version,
        )
    elif config.get("use_heterogeneous_vocab") and version >= HETEROGENEOUS_SINCE:
        yield warn(
            "draft and target have different vocabularies ({draft} and {target}) and use_heterogeneous_vocab allows "
            "it: only greedy requests (temperature 0) are drafted for, and tokens without a counterpart are never "
            "accepted",
            evidence=evidence,
            where=CONFIG,
            draft=its,
            target=mine,
        )
    elif version >= HETEROGENEOUS_SINCE:
        yield fail(
            "vLLM {version} refuses a draft with {draft} vocabulary entries for a target with {target} ('Target and "
            'draft model should have the same vocabulary size\'). Add "use_heterogeneous_vocab": true to '
            "--speculative-config (greedy requests only), or take a draft with {target}",
            evidence=(
                *evidence,
                seen(
                    "same vocabulary file",
                    "yes, only padded differently" if padded else "not known to be",
                    "SHA-256 of the tokenizer",
                ),
            ),
            where=CONFIG,
            version=launch.version,
            draft=its,
            target=mine,
        )
    else:
        yield fail(
            "vLLM {version} refuses a draft with {draft} vocabulary entries for a target with {target} ('Target and "
            "draft model should have the same vocabulary size'), and the option that allows it came with 0.25. Take a "
            'draft with {target}, "method": "ngram", or vLLM 0.25 or newer',
            evidence=evidence,
            where=CONFIG,
            version=launch.version,
            draft=its,
            target=mine,
        )


@check("DRAFT402", "draft-method-unsupported-by-version", runtimes={"vllm"}, remedy="draft-by-ngram")
def draft_method_unsupported_by_version(launch: Launch) -> Iterator[Finding]:
    """This release of vLLM has not got the speculative method that was asked for."""
    method, version = _method(_speculative(launch)), release(launch.version)
    if method is None:
        return
    known = next(
        (
            entry
            for entry in table("speculative-methods").rows
            if method == entry["method"] or method.endswith(entry.get("suffix", "\0"))
        ),
        None,
    )
    if known is None or version is None:
        yield skip("which releases have the speculative method {method} is not in the table", method=method)
        return
    if version < Version(known["since"]):
        yield fail(
            'vLLM {version} has no speculative method {method}: {why}. It works since {since}; meanwhile "method": '
            '"ngram" needs no draft model',
            evidence=(
                seen("speculative method", method, "--speculative-config"),
                seen("vLLM", launch.version, "the launch"),
            ),
            where=CONFIG,
            version=launch.version,
            method=method,
            why=known["why"],
            since=known["since"],
        )


@check("DRAFT403", "draft-tensor-parallel-differs", runtimes={"vllm"}, remedy="same-draft-tensor-parallel")
def draft_tensor_parallel_differs(launch: Launch) -> Iterator[Finding]:
    """The draft model is asked to run on another number of ranks than the target."""
    config, version = _speculative(launch), release(launch.version)
    asked, tensor = config.get("draft_tensor_parallel_size"), size(launch, "tensor_parallel_size")
    if (
        isinstance(asked, int)
        and asked not in (tensor, 1 if _method(config) != "draft_model" else tensor)
        and version
        and version >= SAME_VOCABULARY_SINCE
    ):
        yield fail(
            "draft_tensor_parallel_size {asked} differs from tensor_parallel_size {tensor}: vLLM since 0.15 refuses "
            "('must be the same'). Drop it from --speculative-config, the draft then follows the target",
            evidence=(
                seen("draft_tensor_parallel_size", asked, "--speculative-config"),
                seen("tensor_parallel_size", tensor, "arguments"),
            ),
            where=CONFIG,
            asked=asked,
            tensor=tensor,
        )


@check("DRAFT404", "draft-context-below-target", runtimes={"vllm"})
def draft_context_below_target(launch: Launch, draft: Draft | Unavailable) -> Iterator[Finding]:
    """The draft was trained for fewer tokens than a request may have."""
    if isinstance(draft, Unavailable):
        if not draft.permanent:
            yield skip("the draft model was not read: {reason}", reason=draft.reason)
        return
    length, its, version = launch.get("max_model_len"), draft.model.training_length, release(launch.version)
    if its is None:
        yield skip("the context the draft was trained for is not known: {where}", where=draft.model.source.where)
        return
    if not isinstance(length, int) or its >= length:
        return
    evidence = (
        seen("context of the draft", its, draft.model.source.where),
        seen("max_model_len", length, "arguments"),
    )
    if version and version < DRAFTS_END_SINCE:
        yield warn(
            "the draft was trained for {draft} tokens and requests may have {length}: vLLM {version} drafts on beyond "
            "that, and longer requests end in an error or in wrong memory accesses. Set --max-model-len {draft}, take "
            "vLLM 0.11.1 or newer (it stops drafting there), or a draft of the target's context",
            evidence=evidence,
            where=CONFIG,
            draft=its,
            length=length,
            version=launch.version,
        )
    else:
        yield warn(
            "the draft was trained for {draft} tokens and requests may have {length}: from token {draft} on vLLM "
            "drafts nothing, so long requests run at the speed without speculation. Take a draft of the target's "
            "context, or expect that",
            evidence=evidence,
            where=CONFIG,
            draft=its,
            length=length,
        )
