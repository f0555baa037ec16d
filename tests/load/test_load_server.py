"""A server that already runs: what it says of itself, where it differs from the arguments, and signs of trouble."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator

import pytest

from llmdoctor_core.errors import InputError
from llmdoctor_core.facts import Argument, CacheForecast, Forecast, Launch, ModelId, RuntimeId, Unavailable
from llmdoctor_core.load.server import findings, read_server, reading_text

NOT_SEEN = Unavailable(reason="not looked for")
INFO = (
    'vllm:cache_config_info{block_size="16",cache_dtype="auto",effective_attention_block_size="16",'
    'enable_prefix_caching="True",engine="0",gpu_memory_utilization="0.9",kv_cache_max_concurrency="22.2694",'
    'kv_cache_size_tokens="729735",num_gpu_blocks="45608"} 1.0'
)
LAUNCH = Launch(
    runtime="vllm", version="0.32.0", version_assumed=False, entrypoint="serve", model="Qwen/Qwen3-8B",
    arguments={name: Argument(name=name, value=value, origin="given") for name, value in {
        "max_model_len": 32768, "gpu_memory_utilization": 0.9, "enable_prefix_caching": True, "kv_cache_dtype": "auto",
    }.items()},
)  # fmt: skip
FORECAST = Forecast(
    runtime=RuntimeId(name="vllm", version="0.32.0"),
    model=ModelId(name="Qwen3-8B", layers=36, origin="hub"),
    cache=CacheForecast(
        request_tokens=32768, bytes_per_request=1, bytes_per_token=1.0, parts=(), block_tokens=16, blocks=45_608,
        bytes=None, tokens=729_735, max_concurrency=22.27,
    ),
)  # fmt: skip


class Vllm(http.server.BaseHTTPRequestHandler):
    """As much of vLLM's HTTP as is read, with counters that go on at every look."""

    looks = 0
    step: dict[str, float]
    key: str | None = None

    def do_GET(self) -> None:
        if self.key and self.headers.get("Authorization") != f"Bearer {self.key}":
            self.say(401, "{}")
        elif self.path == "/version":
            self.say(200, json.dumps({"version": "0.32.0"}))
        elif self.path == "/v1/models":
            self.say(200, json.dumps({"data": [{"id": "qwen", "root": "Qwen/Qwen3-8B", "max_model_len": 32768}]}))
        elif self.path == "/metrics":
            Vllm.looks += 1
            lines = [INFO]
            for name, step in self.step.items():
                value = 1_000_000 + step * Vllm.looks if name.endswith("_total") else step
                lines.append(f'{name}{{engine="0",model_name="Qwen/Qwen3-8B"}} {value}')
            self.say(200, "\n".join(lines) + "\n")
        else:
            self.say(404, "")

    def say(self, status: int, body: str) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def vllm() -> Iterator[str]:
    Vllm.looks, Vllm.key = 0, None
    Vllm.step = {
        "vllm:num_preemptions_total": 0, "vllm:num_requests_waiting": 0, "vllm:kv_cache_usage_perc": 0.2,
        "vllm:prefix_cache_hits_total": 30, "vllm:prefix_cache_queries_total": 100,
        "vllm:spec_decode_num_accepted_tokens_total": 6, "vllm:spec_decode_num_draft_tokens_total": 10,
    }  # fmt: skip
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Vllm) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_release_model_and_cache_are_read_and_a_server_as_predicted_is_quiet(vllm: str) -> None:
    reading = read_server(vllm, interval=0.1)
    assert (reading.runtime, reading.version, reading.model) == ("vllm", "0.32.0", "Qwen/Qwen3-8B")
    assert reading.max_model_len == 32768
    assert reading.unread == {}
    assert findings(reading, FORECAST, LAUNCH) == ()
    assert any("729,735" in line for line in reading_text(reading))


def test_rates_are_of_the_interval_and_not_since_the_start(vllm: str) -> None:
    signs = {shown.sign.name: shown.value for shown in read_server(vllm, interval=0.1).signs}
    assert signs["prefix cache hit rate"] == pytest.approx(0.3)
    assert signs["speculative acceptance"] == pytest.approx(0.6)
    assert signs["preemptions"] == 0


def test_trouble_is_a_finding_with_what_to_do(vllm: str) -> None:
    Vllm.step |= {"vllm:num_preemptions_total": 2, "vllm:num_requests_waiting": 5, "vllm:kv_cache_usage_perc": 0.99,
                  "vllm:spec_decode_num_accepted_tokens_total": 1}  # fmt: skip
    found = findings(read_server(vllm, interval=0.1), FORECAST, LAUNCH)
    assert {finding.code for finding in found} == {"LOAD005"}
    said = " | ".join(finding.message for finding in found)
    for words in (
        "preemptions 10",
        "requests waiting 5",
        "cache use 99%",
        "speculative acceptance 10%",
        "--max-num-seqs",
    ):
        assert words in said


def test_an_idle_server_says_nothing_of_rates(vllm: str) -> None:
    Vllm.step |= dict.fromkeys(("vllm:prefix_cache_queries_total", "vllm:spec_decode_num_draft_tokens_total"), 0)
    Vllm.step |= dict.fromkeys(("vllm:prefix_cache_hits_total", "vllm:spec_decode_num_accepted_tokens_total"), 0)
    reading = read_server(vllm, interval=0.1)
    assert {shown.value for shown in reading.signs if shown.sign.kind == "ratio"} == {None}
    assert findings(reading, FORECAST, LAUNCH) == ()


def test_other_arguments_than_the_deployment_says_are_named(vllm: str) -> None:
    given = {**LAUNCH.arguments, "max_model_len": Argument(name="max_model_len", value=16384, origin="given"),
             "gpu_memory_utilization": Argument(name="gpu_memory_utilization", value=0.95, origin="given")}  # fmt: skip
    launch = Launch(
        runtime="vllm", version="0.31.0", version_assumed=False, entrypoint="serve", model="x", arguments=given
    )
    found = findings(read_server(vllm, interval=0), NOT_SEEN, launch)
    assert {(finding.code, finding.params["setting"]) for finding in found} == {
        ("LOAD006", "version"), ("LOAD006", "max_model_len"), ("LOAD006", "gpu_memory_utilization"),
    }  # fmt: skip


def test_an_older_release_under_other_names_is_read_too(vllm: str) -> None:
    Vllm.step = {"vllm:gpu_cache_usage_perc": 0.97, "vllm:gpu_prefix_cache_hits_total": 1,
                 "vllm:gpu_prefix_cache_queries_total": 4}  # fmt: skip
    signs = {shown.sign.name: shown.value for shown in read_server(vllm, interval=0.1).signs}
    assert signs == {"cache use": 0.97, "prefix cache hit rate": pytest.approx(0.25)}


def test_a_key_is_asked_for_and_used(vllm: str) -> None:
    Vllm.key = "secret"
    with pytest.raises(InputError, match="asks for a key"):
        read_server(vllm, interval=0)
    assert read_server(vllm, key="secret", interval=0).version == "0.32.0"


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "ftp://x", "http://", "http://h:99999", "nonsense url"])
def test_no_server_there_is_one_sentence(url: str) -> None:
    with pytest.raises(InputError, match=r"no server answers|not the address of a server"):
        read_server(url, interval=0)
