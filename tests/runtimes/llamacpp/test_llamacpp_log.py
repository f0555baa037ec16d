"""Logs of llama-server are read in every format that builds since May 2025 print."""

from __future__ import annotations

import json

import pytest

from llmdoctor_core.runtimes.llamacpp.log import LogReader, read_log

MIB = 1 << 20
NEW = """\
0.00.002.161 I cmn  common_param: common_params_print_info: build 11434 (4da6337) with GNU 12.2.0 for Linux x86_64
0.00.010.000 I srv    load_model: loading model '/models/gemma-3-4b.gguf'
0.00.011.000 I llama_kv_cache: size =  1.00 MiB (   256 cells,   1 layers,  1/1 seqs), K (f16):  0.50 MiB, V (f16):  0.50 MiB
0.00.012.000 I common_fit_params: successfully fit params to free device memory
0.00.020.000 I load_tensors: offloaded 35/35 layers to GPU
0.00.020.100 I load_tensors:   CPU_Mapped model buffer size =    92.10 MiB
0.00.020.200 I load_tensors:        CUDA0 model buffer size =  2368.31 MiB
0.00.021.000 I print_info: n_ctx_train           = 131072
0.00.022.000 I llama_context: n_seq_max             = 4
0.00.022.100 I llama_context: n_ctx                 = 8192
0.00.022.200 I llama_context: n_ctx_seq             = 8192
0.00.022.300 I llama_context: flash_attn            = auto
0.00.022.400 I llama_context: kv_unified            = true
0.00.023.000 I llama_kv_cache:      CUDA0 KV buffer size =   160.00 MiB
0.00.023.100 I llama_kv_cache: size =  160.00 MiB (  8192 cells,   5 layers,  4/1 seqs), K (f16):   80.00 MiB, V (f16):   80.00 MiB
0.00.024.000 I sched_reserve:      CUDA0 compute buffer size =   120.02 MiB
0.00.025.000 W srv    load_model: the slot context (262144) exceeds the training context of the model (131072) - capping
0.00.026.000 I srv    load_model: initializing, n_slots = 4, n_ctx_slot = 8192, kv_unified = 'true'
0.00.027.000 I srv  llama_server: listening on http://127.0.0.1:8080
""".splitlines()  # noqa: E501


def test_new_format() -> None:
    log = read_log(NEW)
    assert (log.build, log.model, log.training_length) == (11434, "/models/gemma-3-4b.gguf", 131072)
    assert log.settings == {"n_seq_max": 4, "n_ctx": 8192, "n_ctx_seq": 8192}
    assert (log.flash_attn, log.unified, log.slots, log.slot_tokens, log.ready) == ("auto", True, 4, 8192, True)
    assert log.offloaded == (35, 35)
    (cache,) = log.caches
    assert (cache.bytes, cache.cells, cache.layers, cache.streams) == (160 * MIB, 8192, 5, 1)
    assert [(b.kind, b.device, b.bytes) for b in log.buffers if b.kind == "KV"] == [("KV", "CUDA0", 160 * MIB)]
    assert [warning.rpartition(" - ")[2] for warning in log.warnings] == ["capping"]
    assert log.errors == ()


def test_measuring_pass_of_fit_is_left_out() -> None:
    assert len(read_log(NEW[:3]).caches) == 1
    assert len(read_log(NEW[:4]).caches) == 0


def test_lines_as_json() -> None:
    lines = [json.dumps({"type": "log", "time": 1, "level": "info", "msg": line.partition(" I ")[2]}) for line in NEW]
    log = read_log(lines)
    assert log.settings["n_ctx"] == 8192
    assert log.caches == read_log(NEW).caches
    error = json.dumps({"type": "log", "time": 1, "level": "error", "msg": "failed to load model"})
    assert read_log([error]).errors == ("failed to load model",)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "llama_context: KV self size  =  512.00 MiB, K (f16):  256.00 MiB, V (f16):  256.00 MiB",
            (512 * MIB, None, None, None),
        ),
        (
            "llama_kv_cache_unified: size =  512.00 MiB (  4096 cells,  32 layers,  1 seqs), K (f16):  256.00 MiB, "
            "V (f16):  256.00 MiB",
            (512 * MIB, 4096, 32, None),
        ),
        (
            "llama_kv_cache_unified: size =  512.00 MiB (  4096 cells,  32 layers,  1/1 seqs), K (q8_0):  256.00 MiB, "
            "V (q8_0):  256.00 MiB",
            (512 * MIB, 4096, 32, 1),
        ),
    ],
)
def test_older_cache_lines(line: str, expected: tuple[int | None, ...]) -> None:
    (cache,) = read_log([line]).caches
    assert (cache.bytes, cache.cells, cache.layers, cache.streams) == expected


@pytest.mark.parametrize("tail", ["", ", P (f32):    0.00 MiB"])
@pytest.mark.parametrize(("rollback", "rows"), [("", 0), ("  3 rs_seq", 3)])
def test_state_lines(rollback: str, rows: int, tail: str) -> None:
    line = (
        f"llama_memory_recurrent: size =  201.00 MiB (     1 cells,  32 layers,  1 seqs{rollback}), "
        f"R (f32):    9.00 MiB, S (f32):  192.00 MiB{tail}"
    )
    (state,) = read_log([line]).states
    assert (state.bytes, state.layers, state.rollback) == (201 * MIB, 32, rows)


def test_older_slots_and_settings() -> None:
    log = read_log(
        [
            "build: 6170 (abcdef0) with cc (Ubuntu) for x86_64-linux-gnu",
            "llama_context: n_ctx_per_seq = 2048",
            "srv    load_model: initializing slots, n_slots = 2",
            "slot         init: id  0 | task -1 | new slot n_ctx_slot = 2048",
            "main: server is listening on http://127.0.0.1:8080 - starting the main loop",
        ]
    )
    assert (log.build, log.slots, log.slot_tokens, log.ready) == (6170, 2, 2048, True)
    assert log.settings == {"n_ctx_seq": 2048}


def test_errors_are_kept_and_bounded() -> None:
    reader = LogReader()
    reader.take("llama_model_load: error loading model: unknown model architecture: 'brand-new'")
    for _ in range(1000):
        reader.take("0.00.000.001 E something failed " + "x" * 100_000)
    errors = reader.log().errors
    assert errors[0].endswith("unknown model architecture: 'brand-new'")
    assert len(errors) == 50
    assert max(map(len, errors)) <= 16 << 10
