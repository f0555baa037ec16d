"""Triage: the first cause under the noise, whatever carries the lines; and the case that the log tells."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmdoctor_core.bundle import pack, write_bundle
from llmdoctor_core.case import decode, encode
from llmdoctor_core.derive import Facts
from llmdoctor_core.errors import InputError
from llmdoctor_core.facts import Forecast, Launch, LaunchRequest, ModelSource
from llmdoctor_core.finding import Outcome
from llmdoctor_core.triage import case_from, findings, triage, triage_lines
from llmdoctor_core.triage.scan import LOOKED, Scan

COMPILER = """\
(APIServer pid=1) INFO 07-15 10:00:00 [api_server.py:1896] vLLM API server version 0.29.0
(APIServer pid=1) INFO 07-15 10:00:00 [utils.py:233] non-default args: {'model_tag': 'Qwen/Qwen3-8B', 'model': \
'Qwen/Qwen3-8B', 'max_model_len': 32768, 'tensor_parallel_size': 2, 'gpu_memory_utilization': 0.85}
(Worker_TP0 pid=60) INFO 07-15 10:00:20 [gpu_model_runner.py:2653] Model loading took 7.61 GiB memory and 8.1 seconds
(Worker_TP0 pid=60) ERROR 07-15 10:00:25 [multiproc_executor.py:671] Traceback (most recent call last):
(Worker_TP0 pid=60) ERROR 07-15 10:00:25 [multiproc_executor.py:671]   File "/x/flashinfer/jit/core.py", line 205
(Worker_TP0 pid=60) ERROR 07-15 10:00:25 [multiproc_executor.py:671] RuntimeError: Ninja build failed. Ninja output:
(Worker_TP0 pid=60) nvcc fatal   : Unknown option '--compress-mode=size'
(Worker_TP1 pid=61) nvcc fatal   : Unknown option '--compress-mode=size'
(Worker_TP0 pid=60) ninja: build stopped: subcommand failed.
(EngineCore_DP0 pid=59) ERROR 07-15 10:00:26 [core.py:708] EngineCore failed to start.
(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""


def codes(text: str) -> list[str]:
    return [condition.code for condition in triage_lines(text.splitlines()).conditions]


def test_the_compilers_line_is_the_cause_and_what_wraps_it_is_not_shown() -> None:
    diagnosis = triage_lines(COMPILER.splitlines(), "server.log")
    (condition,) = diagnosis.conditions
    assert (condition.code, condition.name) == ("CUDA210", "nvcc-too-old-for-flashinfer")
    assert condition.params["option"] == "--compress-mode=size"
    assert "--compress-mode=size" in condition.message
    assert [(line.source, line.number, line.process) for line in condition.evidence] == [
        ("server.log", 7, "Worker_TP0")
    ]
    assert condition.count == 2, "both ranks said it"
    assert "CUDA214" in diagnosis.candidates


def test_only_the_wrapper_gives_no_cause_and_says_where_to_look() -> None:
    diagnosis = triage_lines(COMPILER.splitlines()[-1:])
    (condition,) = diagnosis.conditions
    assert (condition.code, condition.rank, condition.confidence) == ("LOAD003", "wrapper", "low")
    assert "whole log" in condition.next


def test_an_exception_that_no_signature_knows_is_shown() -> None:
    log = """\
(EngineCore_DP0 pid=59) ERROR 07-15 10:00:26 [core.py:708] Traceback (most recent call last):
(EngineCore_DP0 pid=59) ERROR 07-15 10:00:26 [core.py:708]   File "/x/vllm/a.py", line 3, in run
(Worker_TP0 pid=60) INFO 07-15 10:00:26 [a.py:1] another process between
(EngineCore_DP0 pid=59) ERROR 07-15 10:00:26 [core.py:708]     do()
(EngineCore_DP0 pid=59) ERROR 07-15 10:00:26 [core.py:708] mylib.errors.WidgetError: the frobnicator is upside down
(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above.
"""
    (line,) = triage_lines(log.splitlines()).unexplained
    assert (line.number, line.process) == (5, "EngineCore_DP0")
    assert line.text == "mylib.errors.WidgetError: the frobnicator is upside down"


def test_memory_that_ran_out_is_told_by_how_far_the_start_came() -> None:
    oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 22 GiB"
    loading = "INFO 07-15 10:00:08 [gpu_model_runner.py:2602] Starting to load model m..."
    loaded = "INFO 07-15 10:00:20 [gpu_model_runner.py:2653] Model loading took 7.6 GiB and 8.1 seconds"
    ready = "INFO:     Application startup complete."
    assert codes("\n".join([loading, oom])) == ["MEM801"]
    assert codes("\n".join([loading, loaded, oom])) == ["MEM804"]
    assert codes("\n".join([loading, loaded, ready, oom])) == ["MEM809"]
    assert codes("\n".join([loading, loaded, ready, "Killed", loading, oom]))[0] == "MEM806", "the earlier death"
    assert codes("\n".join([loading, loaded, ready, loading, oom])) == ["MEM801"], "of the second start"


def test_another_process_that_holds_the_memory_comes_before_the_memory_that_ran_out() -> None:
    assert codes(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 79 GiB "
        "of which 0.20 GiB is free. Process 4103 has 71.20 GiB memory in use."
    )[:2] == ["GPU002", "MEM804"]


def test_what_a_start_outlived_is_a_warning() -> None:
    diagnosis = triage_lines(
        [
            "warning: no usable GPU found, --gpu-layers option will be ignored",
            "main: server is listening on http://[::1]:1",
        ]
    )
    assert [(c.code, c.rank) for c in diagnosis.conditions] == [("GGUF509", "warning")]
    assert findings(diagnosis)[0].outcome is Outcome.WARN


def test_a_buffer_that_was_got_at_the_second_try_is_a_warning() -> None:
    log = [
        "E ggml_backend_cuda_buffer_type_alloc_buffer: allocating 51748.72 MiB on device 1: cudaMalloc failed",
        "W sched_reserve: compute buffer allocation failed, retrying without pipeline parallelism",
        "I srv    load_model: initializing, n_slots = 1, n_ctx_slot = 50176, kv_unified = 'false'",
    ]
    assert [(c.code, c.rank) for c in triage_lines(log).conditions] == [("MEM801", "warning")]
    assert [(c.code, c.rank) for c in triage_lines(log[:2]).conditions] == [("MEM801", "cause")]


def test_what_sglang_kills_itself_was_not_killed_for_memory() -> None:
    stopped = "Watchdog timeout (self.watchdog_timeout=300)\nReceived sigquit from a child process.\nKilled"
    assert codes(stopped) == ["LOAD003"]
    assert codes("Load weight begin. avail mem=22.46 GB\nKilled") == ["MEM806"]


def test_a_fabric_manager_without_a_switch_stops_nothing() -> None:
    log = [
        "nv-fabricmanager[41]: request to query NVSwitch device information from NVSwitch driver failed with "
        "error:WARNING Nothing to do [NV_WARN_NOTHING_TO_DO]",
        "systemd[1]: nvidia-fabricmanager.service: Control process exited, code=exited, status=1/FAILURE",
    ]
    assert [(c.code, c.rank) for c in triage_lines(log).conditions] == [("GPU010", "warning")]


def test_a_log_that_ends_where_the_gpus_first_talk() -> None:
    log = ["INFO x", "vLLM is using nccl==2.27.3"]
    assert [c.code for c in triage_lines(log).conditions] == ["LINK104"]
    assert not triage_lines([*log, *["something else"] * 60]).conditions, "it went on"


CAUSE = "RuntimeError: Could not find nvcc and default cuda_home='/usr/local/cuda' doesn't exist"


@pytest.mark.parametrize("carried", [
    json.dumps({"log": CAUSE + "\n", "stream": "stderr", "time": "2026-01-01T00:00:00Z"}),
    json.dumps({"level": "error", "msg": "start failed\nTraceback (most recent call last):\n" + CAUSE, "time": 1}),
    "2026-01-01T00:00:00.000000001Z stderr F (EngineCore_0 pid=7) ERROR 07-15 10:00:00 [core.py:700] " + CAUSE,
    "Jul 15 10:00:00 host vllm[123]: " + CAUSE,
    "[pod/vllm-0/server] \x1b[1;36m(Worker_TP1 pid=99)\x1b[0;0m " + CAUSE,
    "vllm-1  | [rank1]: " + CAUSE,
    "[2026-01-01 00:00:00 TP0] " + CAUSE,
    "Loading:  10%|#   \rLoading: 100%|####\r" + CAUSE,
])  # fmt: skip
def test_lines_are_taken_out_of_their_carriers(carried: str) -> None:
    (condition,) = triage_lines([carried]).conditions
    assert condition.code == "CUDA212"
    assert condition.evidence[-1].text == CAUSE


def test_broken_bytes_and_very_long_lines(tmp_path: Path) -> None:
    path = tmp_path / "broken.log"
    path.write_bytes(b"\xff\xfe\x00 start\n" + b"x" * 5_000_000 + b"\n" + CAUSE.encode() + b" \xc3\x28\n")
    diagnosis = triage(path)
    assert [c.code for c in diagnosis.conditions] == ["CUDA212"]
    assert diagnosis.conditions[0].evidence[0].number == 3
    assert diagnosis.lines == 3
    assert sum(map(len, diagnosis.tail)) < 10_000


def test_gzip_standard_streams_several_files_and_a_bundle_read_alike(tmp_path: Path) -> None:
    plain, packed = tmp_path / "a.log", tmp_path / "b.log.gz"
    plain.write_text("nothing here\n")
    packed.write_bytes(gzip.compress(CAUSE.encode()))
    bundle = tmp_path / "c.zip"
    write_bundle(bundle, pack(logs={"server.log": CAUSE}))
    for source in (packed, bundle, io.BytesIO(CAUSE.encode())):
        assert [c.code for c in triage(plain, source).conditions] == ["CUDA212"]
    assert triage(plain, packed).conditions[0].evidence[0].source == str(packed)


def test_a_source_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"gone\.log"):
        triage(tmp_path / "gone.log")
    damaged = tmp_path / "damaged.gz"
    damaged.write_bytes(gzip.compress(b"x" * 100_000)[:60])
    with pytest.raises(InputError, match=r"damaged\.gz"):
        triage(damaged)


@given(st.binary(max_size=4000))
@settings(max_examples=60, deadline=None)
def test_no_log_makes_it_fall_over(data: bytes) -> None:
    with contextlib.suppress(InputError):  # random bytes may begin like a packed file
        diagnosis = triage(io.BytesIO(data))
        case_from(diagnosis)
        findings(diagnosis)


def test_the_case_of_a_vllm_log_can_be_forecast_and_written() -> None:
    log = [
        *COMPILER.splitlines(),
        "Free memory on device cuda:0 (60.00/79.15 GiB) on startup is less than desired GPU memory utilization (0.85, "
        "67.28 GiB).",
    ]
    case = case_from(triage_lines(log))
    assert isinstance(case.launch, LaunchRequest)
    assert case.launch.argv[:3] == ("vllm", "serve", "Qwen/Qwen3-8B")
    assert (case.launch.version, case.launch.runtime) == ("0.29.0", "vllm")
    assert decode(encode(case), "case") == case
    facts = Facts(case)
    launch, forecast = facts.get(Launch), facts.get(Forecast)
    assert isinstance(launch, Launch)
    assert launch["tensor_parallel_size"] == 2
    assert isinstance(forecast, Forecast), forecast
    assert forecast.cache is not None
    assert forecast.cache.request_tokens == 32768


def test_the_case_of_a_llama_server_log_has_its_gguf_metadata() -> None:
    log = [
        "build: 6448 (c4510dc9) with cc (Ubuntu 13.3.0) for x86_64-linux-gnu",
        "llama_model_loader: loaded meta data with 28 key-value pairs and 399 tensors from /m/q.gguf "
        "(version GGUF V3 (latest))",
        "llama_model_loader: - kv   0:                       general.architecture str              = qwen3",
        "llama_model_loader: - kv   1:                          qwen3.block_count u32              = 36",
        "llama_model_loader: - kv  15:                      tokenizer.ggml.tokens arr[str,151936]  = [\"!\", ...",
        "  Device 0: NVIDIA A100-SXM4-80GB, compute capability 8.0, VMM: yes",
        "llama_kv_cache:      CUDA0 KV buffer size =   576.00 MiB",
    ]  # fmt: skip
    diagnosis = triage_lines(log)
    case = case_from(diagnosis)
    assert isinstance(case.model, ModelSource)
    assert case.model.gguf == {
        "general.architecture": "qwen3",
        "qwen3.block_count": 36,
        "tokenizer.ggml.tokens": {"array": "str", "length": 151936},
    }
    assert isinstance(case.launch, LaunchRequest)
    assert (case.launch.runtime, case.launch.version) == ("llamacpp", "6448")
    assert [(f.name, f.value, f.device) for f in diagnosis.reading.figures] == [("cache", 576 * 2**20, "CUDA0")]


def test_an_empty_log_tells_nothing_and_shows_nothing() -> None:
    diagnosis = triage_lines([])
    assert (diagnosis.conditions, diagnosis.first, diagnosis.reading.runtime) == ((), None, None)
    assert findings(diagnosis) == ()


def test_lines_that_differ_in_digits_alone_are_each_looked_at() -> None:
    lines = [f"cuda driver library init failure: {number}" for number in (1, 2, 802)]
    assert [c.code for c in triage_lines(lines).conditions] == ["GPU010"]
    repeated = io.BytesIO(b"traceback 1\n" * (LOOKED * 3))
    assert len(list(Scan(repeated.read, []))) <= LOOKED * 2 + 500


def serving_log(path: Path, megabytes: int) -> None:
    """Access lines, statistics and requests with prompts of their own; the cause is the last line."""
    words = ["the", "memory", "device", "model", "token", "request", "error", "failed", "write", "history", "server"]
    with path.open("w") as log:
        size = number = 0
        while size < megabytes << 20:
            number += 1
            lines = (
                f'INFO:     10.0.{number % 251}.7:{number % 60000} - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
                * 6
                + f"INFO 07-15 10:{number % 60:02}:00 [loggers.py:123] Engine 000: Avg throughput: {number / 7:.1f}"
                f" tokens/s, Running: {number % 99} reqs, GPU KV cache usage: {number % 100}.{number % 10}%\n"
                * 3
                + f"INFO 07-15 [logger.py:43] Received request cmpl-{number * 2654435761 % 2**64:016x}: prompt: "
                f"'{' '.join(words[(number * k) % len(words)] for k in range(1, 30))}', params: SamplingParams(n=1)\n"
            )
            log.write(lines)
            size += len(lines)
        log.write(CAUSE + "\n")


MEASURE = """
import sys
from llmdoctor_core.triage import triage
diagnosis = triage(sys.argv[1])
(peak,) = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
print(diagnosis.conditions[0].code, int(peak.split()[1]) // 1024)
"""


@pytest.mark.slow
def test_a_large_log_is_read_in_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "large.log"
    serving_log(path, 150)
    answer = subprocess.run([sys.executable, "-c", MEASURE, str(path)], capture_output=True, text=True, check=True)
    code, megabytes = answer.stdout.split()
    assert code == "CUDA212"
    assert int(megabytes) < 100


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-8-sig"])
def test_a_log_that_powershell_wrote(encoding: str) -> None:
    wide = (CAUSE.replace("\n", "\r\n") * 30_000).encode(encoding)
    assert [c.code for c in triage(io.BytesIO(wide)).conditions] == ["CUDA212"]


@pytest.mark.parametrize("front", ["\x1b[31m", "\x1b[36mvllm-1  | \x1b[0m", "#033[31m", "Nov 29 22:00:00 "])
def test_what_stands_directly_before_a_message_hides_none(front: str) -> None:
    lines = ["HeaderTooLarge", "undefined symbol: _ZNK12tensorrt_llm8executor8Response11getErrorMsgB5cxx11Ev", "Killed"]
    for line in lines:
        plain = [c.code for c in triage_lines([line]).conditions]
        assert plain
        assert [c.code for c in triage_lines([front + line]).conditions] == plain
        assert [c.code for c in triage_lines([json.dumps({"log": front + line + "\n"})]).conditions] == plain


@pytest.mark.parametrize(
    "carrier",
    [
        "Nov 29 22:00:00.123456 host vllm[123]: {}",
        "2025-11-29T22:00:00+0000 host vllm[123]: {}",
        '{{"MESSAGE": "{}", "_PID": "1"}}',
        '{{"textPayload": "{}"}}',
        '{{"jsonPayload": {{"message": "{}"}}}}',
    ],
)
def test_journald_and_googles_logging_carry_messages(carrier: str) -> None:
    assert [c.code for c in triage_lines([carrier.format("Killed")]).conditions] == ["MEM806"]


@pytest.mark.parametrize(("head", "command"), [(b"\xfd7zXZ\x00..", "xz -dc"), (b"PK\x03\x04..", "unzip -p")])
def test_a_packed_log_is_not_read_as_one(tmp_path: Path, head: bytes, command: str) -> None:
    (tmp_path / "a.log").write_bytes(head)
    with pytest.raises(InputError, match=command):
        triage(tmp_path / "a.log")


def test_what_is_no_servers_log_is_no_good_news() -> None:
    assert triage_lines([]).silent
    assert triage_lines(["root:x:0:0:root:/root:/bin/bash"]).silent
    assert not triage_lines(["main: server is listening on http://[::1]:1"]).silent


def test_keys_that_the_server_printed_are_not_shown_again() -> None:
    line = "non-default args: {'model_tag': 'Qwen/Qwen3-8B', 'api_key': ['k3y-1', 'k3y-2'], 'hf_token': 'hf_xyz123'}"
    diagnosis = triage_lines([f"INFO 11-29 22:00:01 [utils.py:233] {line}"])
    told = repr((diagnosis.reading, case_from(diagnosis)))
    assert diagnosis.reading.model == "Qwen/Qwen3-8B"
    assert not re.search("k3y|hf_xyz", told)


@pytest.mark.parametrize(
    "line",
    [
        "INFO 07-15 10:00:00 [logger.py:43] Received request cmpl-1: prompt: 'why {}', params: SamplingParams(n=1)",
        "DEBUG 07-15 10:00:00 [logger.py:51] Request cmpl-1 details: prompt: 'why {}', prompt_token_ids: None",
        "INFO 07-15 10:00:00 [logger.py:120] Generated response cmpl-1 (streaming): output: 'as {}', finish_reason: s",
        "[2025-03-09 00:57:15] Receive: obj=GenerateReqInput(rid='1', text='why {}', input_ids=None)",
        'time=2025-03-09T10:00:00Z level=DEBUG source=routes.go:1 msg="chat request" images=0 prompt="why {}"',
    ],
)
def test_what_users_wrote_is_no_message_of_the_server(line: str) -> None:
    assert not triage_lines([line.format("CUDA error: out of memory")]).conditions
