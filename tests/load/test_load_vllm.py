"""The real vLLM on the CPU: it starts, its cache is the forecast for that pool, one token comes, and all is gone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from llmdoctor_core.case import Case
from llmdoctor_core.derive import Facts
from llmdoctor_core.facts import Forecast, LaunchRequest, Unavailable
from llmdoctor_core.load.ask import Client
from llmdoctor_core.load.process import Process, free_port
from llmdoctor_core.load.server import findings, read_server
from llmdoctor_core.models.open import open_model
from load.real_servers import vllm_environment, vllm_metadata, write_config

ENVIRONMENT = vllm_environment()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(ENVIRONMENT is None, reason="no vLLM in LLMDOCTOR_SLOW/vllm (tests/slow_requirements)"),
]
START = 540.0
"""Seconds for one start: half a minute on an idle host of two CPUs, several times that on a busy one."""
COMMON: dict[str, Any] = {
    "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 1024, "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6, "rope_theta": 1e6, "hidden_act": "silu", "tie_word_embeddings": False,
    "attention_bias": False, "torch_dtype": "bfloat16", "eos_token_id": 2, "bos_token_id": 1,
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "plain": COMMON | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"},
    "sliding window": COMMON | {
        "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "num_hidden_layers": 8,
        "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 1024, "query_pre_attn_scalar": 64,
        "layer_types": ["sliding_attention"] * 5 + ["full_attention"] + ["sliding_attention"] * 2,
        "rope_local_base_freq": 1e4,
    },
    "latent": COMMON | {
        "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "num_hidden_layers": 3,
        "num_key_value_heads": 4, "moe_intermediate_size": 128, "kv_lora_rank": 512, "q_lora_rank": None,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 8,
        "n_shared_experts": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1, "moe_layer_freq": 1,
        "n_group": 1, "topk_group": 1, "topk_method": "greedy", "scoring_func": "softmax", "norm_topk_prob": False,
        "routed_scaling_factor": 1.0,
    },
    "hybrid": COMMON | {
        "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "moe_intermediate_size": 128,
        "shared_expert_intermediate_size": 128, "partial_rotary_factor": 0.25, "linear_num_key_heads": 4,
        "linear_num_value_heads": 8, "linear_key_head_dim": 64, "linear_value_head_dim": 64,
        "linear_conv_kernel_dim": 4, "full_attention_interval": 4, "num_experts": 4, "num_experts_per_tok": 2,
        "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
    },
}  # fmt: skip
"""Tiny models by kind."""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a vLLM on the CPU with a cache of 1 GiB; no process and no file of it may be left."""
    assert ENVIRONMENT is not None
    scratch = Path(tempfile.mkdtemp(prefix="drill-"))  # short, as a socket's path must be
    tag = f"vllm-{os.getpid()}-{time.monotonic_ns()}"
    shared = set(Path("/dev/shm").iterdir())
    yield {
        **{name: value for name, value in os.environ.items() if not name.startswith("VLLM_")},
        "PATH": f"{ENVIRONMENT}/bin{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(vllm_metadata(tmp_path / "metadata")),
        "TMPDIR": str(scratch),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "DRILL": tag,
    }
    assert [process.pid for process in psutil.process_iter() if _tag(process) == tag] == []
    assert list(scratch.iterdir()) == []
    scratch.rmdir()
    assert set(Path("/dev/shm").iterdir()) <= shared


def _tag(process: psutil.Process) -> str | None:
    try:
        return process.environ().get("DRILL")
    except psutil.Error:
        return None


def command(folder: Path) -> tuple[str, ...]:
    """Nothing that would say what the CPU's platform decides: block, batch, scheduling and pool are its defaults."""
    words = "--load-format dummy --skip-tokenizer-init --enforce-eager --max-model-len 4096"
    return ("vllm", "serve", str(folder), *words.split())


@pytest.mark.parametrize("kind", MODELS)
def test_it_starts_as_predicted_and_gives_one_token(kind: str, place: dict[str, str], tmp_path: Path) -> None:
    folder = write_config(tmp_path / "model", MODELS[kind])
    assert ENVIRONMENT is not None
    argv = [sys.executable, "-m", "llmdoctor_core", "load", "--until", "first-token", "--timeout", str(START)]
    argv += ["--python", f"{ENVIRONMENT}/bin/python", "--format", "json"]
    # the doctor's own environment is not the server's: only the command's is
    assigned = [f"{name}={place[name]}" for name in sorted(place) if place[name] != os.environ.get(name)]
    own = {**os.environ, "XDG_STATE_HOME": place["XDG_STATE_HOME"]}
    done = subprocess.run(
        [*argv, "--", "env", *assigned, *command(folder)], capture_output=True, text=True, env=own, timeout=600
    )
    assert done.stdout, done.stderr
    report = json.loads(done.stdout)
    measured = report["load"]["measured"]
    assert measured["reached"] == "first-token", (done.stderr, measured["tail"], measured["notes"])
    assert measured["left"] == []
    rows = {row["name"]: row for row in report["load"]["rows"]}
    for name in ("cache_tokens", "max_concurrency", "blocks", "block_tokens", "request_tokens"):
        assert rows[name]["verdict"] == "equal", rows[name]
    assert report["findings"] == []
    assert done.returncode == 0
    assert {phase["name"] for phase in measured["phases"]} >= {"weights", "cache", "ready", "first token"}


def test_a_vllm_that_runs_is_read_and_compared(place: dict[str, str], tmp_path: Path) -> None:
    folder = write_config(tmp_path / "model", MODELS["plain"])
    port = free_port()
    argv = command(folder)
    with Process(place) as process:
        process.start((*argv, "--host", "127.0.0.1", "--port", str(port)))
        client = Client(f"http://127.0.0.1:{port}")
        while not client.get("/health").ok:
            process.wait(0.5)
            assert process.running(), process.output.text()
            assert process.seconds() < START
        reading = read_server(client.url, interval=0.5)
    assert (reading.runtime, reading.version, reading.max_model_len) == ("vllm", "0.32.0", 4096)
    assert reading.cache_config["num_gpu_blocks"] == "4096"
    assert reading.unread == {}
    assert {shown.sign.name for shown in reading.signs} >= {"preemptions", "requests waiting", "cache use"}
    launch = LaunchRequest(
        runtime="vllm", argv=argv, version="0.32.0", version_source="test", environment=place, platform="cpu"
    )
    facts = Facts(Case(launch=launch, model=open_model(str(folder), offline=True)))
    assert findings(reading, facts.get(Forecast), Unavailable(reason="-")) == ()


def test_a_start_that_fails_is_the_condition_it_is(place: dict[str, str], tmp_path: Path) -> None:
    """An architecture that vLLM does not know: read from its own log, before anything was loaded."""
    assert ENVIRONMENT is not None
    config = COMMON | {"architectures": ["NoSuchForCausalLM"], "model_type": "qwen3"}
    folder = write_config(tmp_path / "model", config)
    argv = [sys.executable, "-m", "llmdoctor_core", "load", "--timeout", str(START), "--format", "json"]
    argv += ["--python", f"{ENVIRONMENT}/bin/python", "--", *command(folder)]
    done = subprocess.run(argv, capture_output=True, text=True, env=place, timeout=600)
    assert done.returncode == 1, done.stderr
    codes = [finding["code"] for finding in json.loads(done.stdout)["findings"]]
    assert "MODEL513" in codes
    assert codes.index("MODEL513") < codes.index("LOAD003")
