"""What a short load changes in the person's command, and what it refuses to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmdoctor_core.errors import InputError
from llmdoctor_core.load.command import api_key, prepare, typed, whole_environment
from llmdoctor_core.load.output import Output, clean
from llmdoctor_core.load.phases import Line, Progress, phases

SERVE = ("vllm", "serve", "X", "--port", "8000")
LLAMA = ("llama-server", "-m", "x.gguf")


def llama(*words: str, until: str = "ready", **environment: str) -> tuple[str, ...]:
    prepared = prepare("llamacpp", (*LLAMA, *words), environment, port=1, until=until)  # type: ignore[arg-type]
    return prepared.argv[len(LLAMA) + len(words) :]


def test_vllm_gets_a_port_of_its_own_and_nothing_else() -> None:
    assert prepare("vllm", SERVE, {}, port=1, until="ready").argv == (*SERVE, "--host", "127.0.0.1", "--port", "1")
    dummy = prepare("vllm", SERVE, {}, port=1, until="ready", weightless=True)
    assert dummy.argv[-2:] == ("--load-format", "dummy")
    assert any("random weights" in change for change in dummy.changed)


def test_llamacpp_is_made_to_talk() -> None:
    assert llama() == ("--host", "127.0.0.1", "--port", "1", "-lv", "4", "-nr")
    assert llama("-lv", "5", "--repack") == ("--host", "127.0.0.1", "--port", "1")
    assert "-lv" in llama("--verbosity", "2")
    assert "-lv" not in llama(LLAMA_ARG_LOG_VERBOSITY="4")
    assert "-nr" not in llama(LLAMA_ARG_REPACK="1")
    assert llama(until="plan")[-5:] == ("-lv", "5", "-nr", "-fit", "on")


def test_a_hollow_file_stands_in_for_whatever_was_to_be_downloaded() -> None:
    argv = ("llama-server", "-hf", "owner/repo:Q4_K_M", "--model-url=http://x/y.gguf", "-c", "512")
    prepared = prepare("llamacpp", argv, {}, port=1, until="cache", hollow=Path("/tmp/h.gguf"))
    assert prepared.argv[:3] == ("llama-server", "-c", "512")
    assert prepared.argv[-3:] == ("-m", "/tmp/h.gguf", "--no-warmup")


def test_a_build_that_knows_no_flag_is_spared_it() -> None:
    prepared = prepare("llamacpp", LLAMA, {}, port=1, until="ready", without=("-nr",))
    assert "-nr" not in prepared.argv


@pytest.mark.parametrize(
    ("runtime", "argv", "until", "says"),
    [
        ("vllm", SERVE, "plan", "--until cache --weightless"),
        ("vllm", (*SERVE, "--uds", "/s"), "ready", "--uds"),
        ("vllm", ("--model", "X"), "ready", "whole command"),
        ("vllm", (), "ready", "whole command"),
        ("sglang", ("sglang", "serve"), "ready", "sglang"),
    ],
)
def test_what_cannot_be_loaded_is_said(runtime: str, argv: tuple[str, ...], until: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        prepare(runtime, argv, {}, port=1, until=until)  # type: ignore[arg-type]


def test_assignments_and_wrappers_in_front_of_the_command() -> None:
    assert typed(("FOO=1", "env", "BAR=2", *SERVE)) == (SERVE, {"FOO": "1", "BAR": "2"})
    assert typed(("numactl", "--cpunodebind=0", *SERVE))[0][-len(SERVE) :] == SERVE


@pytest.mark.parametrize(
    "words", [("docker", "run", "--gpus", "all", "vllm/vllm-openai:v0.32.0", "--model", "X"), ("sudo", *SERVE)]
)
def test_what_the_load_could_not_end_is_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(InputError, match=r"inside the docker|sudo"):
        typed(words)


def test_the_target_interpreter_comes_first_on_path(tmp_path: Path) -> None:
    environment = whole_environment({"A": "b"}, str(tmp_path / "bin" / "python"))
    assert environment["PATH"].startswith(f"{tmp_path}/bin:")
    assert environment["A"] == "b"


def test_the_key_of_the_server_is_found() -> None:
    assert api_key((*SERVE, "--api-key=a,b"), {}) == "a"
    assert api_key(SERVE, {"VLLM_API_KEY": "k"}) == "k"
    assert api_key(SERVE, {}) is None


def test_every_phase_says_what_is_usually_behind_its_stall_and_where_its_lines_come_from() -> None:
    for runtime in ("vllm", "llamacpp"):
        known = phases(runtime)
        assert known[0].begins == ()
        assert known[-1].name == "first token"
        for phase in known:
            assert phase.behind
            assert phase.source
            assert phase.patience > 0
            assert bool(phase.stage) == bool(phase.proof)


def test_kernel_builds_come_between_any_two_phases_and_no_phase_goes_back() -> None:
    progress = Progress("vllm")
    for at, text in enumerate(
        (
            "Starting to load model x",
            "Model loading took 1.0 GiB",
            "flashinfer.jit: Loading JIT ops: sampling",
            "Starting to load model draft",
            "GPU KV cache size: 1 tokens, Maximum concurrency for 1 tokens per request: 1.00x",
        ),
        1,
    ):
        progress.feed(Line(float(at), text))
    names = [phase.name for phase in progress.times(9.0, complete=False)]
    assert names == ["configuration", "weights", "profiling", "kernel build", "cache"]
    assert progress.stage == "cache"


def test_the_measuring_pass_of_llamacpp_is_its_plan_whatever_it_prints() -> None:
    progress = Progress("llamacpp")
    for text in (
        "common_init_: fitting params to device memory ...",
        "llama_model_loader: loaded meta data with 33 key-value pairs",
        "sched_reserve: graph splits = 1",
        "common_params_fit_impl: projected to use 199 MiB of host memory",
    ):
        progress.feed(Line(1.0, text))
    assert (progress.current.name, progress.stage) == ("plan", "plan")
    progress.feed(Line(2.0, "common_fit_params: successfully fit params to free device memory"))
    progress.feed(Line(3.0, "load_tensors: loading model tensors"))
    assert progress.current.name == "weights"


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"\x1b[1;31mred\x1b[0m", "red"),
        (b"\x1b]0;title\x07x", "x"),
        (b"\xff\xfeok", "��ok"),
        (b"a\x00b\x08c\x9b", "abc�"),
        ("한글 로그".encode(), "한글 로그"),
    ],
)
def test_lines_come_out_clean(raw: bytes, text: str) -> None:
    assert clean(raw) == text


def test_characters_cut_by_a_read_are_whole_again() -> None:
    got: list[str] = []
    output = Output(lambda line: got.append(line.text), lambda _text: False)
    raw = "가중치 로딩\r\n끝".encode()
    for position in range(len(raw)):
        output.feed(raw[position : position + 1], 0.0)
    output.close(1.0)
    assert [text for text in got if text] == ["가중치 로딩", "끝"]
