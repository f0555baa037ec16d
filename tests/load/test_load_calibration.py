"""What one load measured stands in for the next forecast's estimates, on this host and for such a launch only."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from llmdoctor_core.facts import (
    Argument,
    CacheForecast,
    DeviceMemory,
    Estimate,
    Figure,
    Forecast,
    Gpu,
    Gpus,
    Launch,
    Measured,
    Model,
    ModelId,
    ModelSource,
    RuntimeId,
    Unavailable,
)
from llmdoctor_core.load import calibration

GIB = 1 << 30
MODEL = Model(
    name="m", origin="folder", architecture="Qwen3ForCausalLM", model_type="qwen3", layers=(), hidden_size=4096,
    heads=32, kv_heads=8, head_dim=128, vocabulary=1000, training_length=4096, dtype="bfloat16", weight_bytes=15 * GIB,
    source=ModelSource(name="m", origin="folder", where="/m"),
)  # fmt: skip
A100 = Gpus(devices=(Gpu(index=0, name="NVIDIA A100", visible_as=0),))
L4 = Gpus(devices=(Gpu(index=0, name="NVIDIA L4", visible_as=0),))
CACHE = CacheForecast(
    request_tokens=4096, bytes_per_request=1, bytes_per_token=1.0, parts=(), block_tokens=16, blocks=4000,
    bytes=50 * GIB, tokens=64_000, max_concurrency=15.6, certainty=Estimate(low=3000, high=5000, why="profiled"),
)  # fmt: skip
GUESS = Forecast(
    runtime=RuntimeId(name="vllm", version="0.32.0"),
    model=ModelId(name="m", layers=36, origin="folder"),
    cache=CACHE,
    memory=(
        DeviceMemory(
            device=0, name="NVIDIA A100", total=80 * GIB, budget=72 * GIB, weights=15 * GIB, activations=5 * GIB,
            graphs=2 * GIB, other=0, cache=50 * GIB, headroom=8 * GIB,
            certainty={"weights": "exact", "activations": Estimate(low=2 * GIB, high=8 * GIB, why="formula"),
                       "graphs": Estimate(low=GIB, high=3 * GIB, why="formula"),
                       "cache": Estimate(low=45 * GIB, high=55 * GIB, why="overheads")},
        ),
    ),
)  # fmt: skip
LOADED = Measured(
    runtime="vllm", version="0.32.0", command=("vllm",), until="ready", reached="ready", ending="reached",
    started_at="2026-11-29T12:00:00Z",
    figures=(Figure(name="activations", value=4 * GIB), Figure(name="activations", value=5 * GIB),
             Figure(name="graphs_estimate", value=GIB), Figure(name="graphs", value=3 * GIB),
             Figure(name="consumed", value=16 * GIB), Figure(name="weights", value=15 * GIB),
             Figure(name="available_cache", value=51 * GIB), Figure(name="ready_seconds", value=60.0)),
)  # fmt: skip


def launch(**arguments: object) -> Launch:
    return Launch(
        runtime="vllm", version="0.32.0", version_assumed=False, entrypoint="serve", model="m",
        arguments={name: Argument(name=name, value=value, origin="given") for name, value in arguments.items()},
    )  # fmt: skip


def forecast_for(pool: int) -> Forecast:
    return replace(GUESS, cache=replace(CACHE, bytes=pool, blocks=pool // GIB, tokens=16 * (pool // GIB)))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    entry = calibration.entry_of(LOADED, launch(max_num_seqs=256), MODEL, A100, GUESS)
    assert entry is not None
    # of activations the rank that takes most, without the graphs' estimate that is printed within them
    assert entry.overheads == {"activations": 4 * GIB, "graphs": GIB, "other": GIB, "outside cache": 21 * GIB}
    assert entry.ready_seconds == 60.0
    calibration.add(entry, tmp_path / "state" / "calibration.json")
    return tmp_path / "state" / "calibration.json"


def applied(store: Path, key: calibration.CalibrationKey) -> Forecast:
    return calibration.apply(GUESS, key, calibration.read(store).entries, forecast_for)


def test_a_measurement_replaces_the_estimates_and_moves_the_cache(store: Path) -> None:
    forecast = applied(store, calibration.key_of(launch(max_num_seqs=256), MODEL, A100))
    (device,) = forecast.memory
    assert (device.activations, device.graphs, device.other, device.cache) == (4 * GIB, GIB, GIB, 51 * GIB)
    why = device.certainty["activations"]
    assert isinstance(why, Estimate)
    assert why.why == "measured on this host on 2026-11-29"
    assert forecast.cache is not None
    assert forecast.cache.blocks == 51
    assert isinstance(forecast.cache.certainty, Estimate)
    assert forecast.cache.certainty.low < 51 < forecast.cache.certainty.high
    assert any("measured on this host" in note for note in forecast.notes)


@pytest.mark.parametrize(
    "key",
    [
        calibration.key_of(launch(max_num_seqs=64), MODEL, A100),
        calibration.key_of(launch(max_num_seqs=256, enforce_eager=True), MODEL, A100),
        calibration.key_of(
            launch(max_num_seqs=256), MODEL, Gpus(devices=(Gpu(index=0, name="NVIDIA L4", visible_as=0),))
        ),
        calibration.key_of(launch(max_num_seqs=256), replace(MODEL, hidden_size=5120), A100),
        calibration.key_of(launch(max_num_seqs=256), MODEL, A100, version="0.33.0"),
    ],
    ids=["other arguments", "eager", "other GPU", "other size", "other release"],
)
def test_another_launch_keeps_its_estimates(store: Path, key: calibration.CalibrationKey) -> None:
    assert applied(store, key) == GUESS


def test_a_load_without_weights_or_that_died_early_teaches_nothing() -> None:
    for measured in (replace(LOADED, weightless=True), replace(LOADED, reached="nothing"), replace(LOADED, figures=())):
        assert calibration.entry_of(measured, launch(), MODEL, A100, GUESS) is None


def test_the_newest_measurement_of_a_launch_replaces_the_older(store: Path) -> None:
    later = replace(LOADED, started_at="2026-12-01T00:00:00Z", figures=(Figure(name="activations", value=2 * GIB),))
    entry = calibration.entry_of(later, launch(max_num_seqs=256), MODEL, A100, GUESS)
    assert entry is not None
    calibration.add(entry, store)
    assert calibration.read(store).entries == (entry,)


def test_clearing_forgets_all_or_those_not_kept(store: Path) -> None:
    assert calibration.clear(store, keep=lambda entry: entry.key.architecture == "Qwen3ForCausalLM") == 0
    assert calibration.clear(store) == 1
    assert isinstance(calibration.observe("vllm", store), Unavailable)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\x00", b'{"format_version": 99, "entries": []}', b'{"entries": 3}']
)
def test_a_damaged_store_is_an_empty_one(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "calibration.json"
    file.write_bytes(content)
    assert calibration.read(file).entries == ()
    entry = calibration.entry_of(LOADED, launch(), MODEL, A100, GUESS)
    assert entry is not None
    calibration.add(entry, file)
    assert calibration.read(file).entries == (entry,)


def test_a_state_directory_that_cannot_be_written_costs_nothing_but_the_memory(tmp_path: Path) -> None:
    entry = calibration.entry_of(LOADED, launch(), MODEL, A100, GUESS)
    assert entry is not None
    (tmp_path / "file").write_text("")
    calibration.add(entry, tmp_path / "file" / "calibration.json")
