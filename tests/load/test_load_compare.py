"""Predicted beside measured: when a figure is equal, within or outside, and what a finding says of it."""

from __future__ import annotations

from msgspec.structs import replace

from llmdoctor_core.facts import (
    CacheForecast,
    CachePart,
    DeviceMemory,
    Estimate,
    Figure,
    Forecast,
    Gpu,
    GpuProcess,
    Gpus,
    Launch,
    Measured,
    ModelId,
    PhaseTime,
    RuntimeId,
    ServerEnd,
    System,
    Unavailable,
)
from llmdoctor_core.finding import Outcome
from llmdoctor_core.load.compare import Row, circumstances, compare, printed
from llmdoctor_core.load.figures import settled
from llmdoctor_core.load.findings import findings
from llmdoctor_core.runtimes.vllm.log import read as read_vllm

GIB, MIB = 1 << 30, 1 << 20
NOT_SEEN = Unavailable(reason="not looked for")
CACHE = CacheForecast(
    request_tokens=4096,
    bytes_per_request=8 * MIB,
    bytes_per_token=2048.0,
    parts=(CachePart(kind="full", layers=4, bytes=8 * MIB, grows_with="tokens"),),
    block_tokens=16,
    blocks=1000,
    bytes=GIB,
    tokens=16_000,
    max_concurrency=3.91,
)
VLLM = Forecast(
    runtime=RuntimeId(name="vllm", version="0.32.0"),
    model=ModelId(name="tiny", layers=4, origin="test"),
    cache=CACHE,
    memory=(
        DeviceMemory(
            device=0, total=80 * GIB, budget=72 * GIB, weights=15 * GIB, activations=2 * GIB, graphs=GIB, other=None,
            cache=50 * GIB, headroom=8 * GIB,
            certainty={"weights": "exact", "activations": Estimate(low=1.5 * GIB, high=3 * GIB, why="profiled")},
        ),
    ),
)  # fmt: skip
LLAMA = replace(
    VLLM,
    runtime=RuntimeId(name="llama.cpp", version="b10434"),
    cache=replace(
        CACHE, bytes=90 * MIB, slot_tokens=4096, state_bytes=0,
        lines=("llama_kv_cache: size =   90.00 MiB (  4096 cells)", "srv    load_model: n_ctx_slot = 4096"),
    ),
    memory=(
        DeviceMemory(device=0, name="A100", total=None, budget=None, weights=60 * MIB, activations=None, graphs=None,
                     other=None, cache=None, headroom=None, certainty={"weights": "exact"}),
        DeviceMemory(device=-1, name="CPU", total=None, budget=None, weights=30 * MIB, activations=None, graphs=None,
                     other=None, cache=None, headroom=None, certainty={"weights": "exact"}),
    ),
)  # fmt: skip
LOADED = Measured(
    runtime="vllm", command=("vllm",), until="ready", reached="ready", ending="reached",
    phases=(PhaseTime(name="cache", began=1.0, seconds=2.0),), tail=("the last line",),
)  # fmt: skip


def gib(name: str, value: float, step: float = 0.01) -> Figure:
    return Figure(name=name, value=value * GIB, step=step * GIB, source="a line")


def row(rows: tuple[Row, ...], name: str, device: str | None = None) -> Row:
    return next(row for row in rows if row.name == name and device in (None, row.device))


def test_a_printed_figure_stands_for_half_a_step_around_it() -> None:
    assert row(compare(VLLM, [gib("weights", 15.004)]), "weights").verdict == "equal"
    assert row(compare(VLLM, [gib("weights", 15.006)]), "weights").verdict == "outside"


def test_a_figure_whose_trailing_zeros_are_not_printed_is_as_exact_as_any() -> None:
    """Since 0.14 vLLM prints ``round(x, 2)``: 15.0 stands for 15.00, not for all from 14.95 to 15.05."""
    (weights,) = read_vllm(["Model loading took 15.0 GiB memory and 8.264104 seconds"]).figures
    assert row(compare(VLLM, [weights]), "weights").verdict == "equal"
    (weights,) = read_vllm(["Model loading took 14.96 GiB memory and 8.264104 seconds"]).figures
    assert row(compare(VLLM, [weights]), "weights").verdict == "outside"
    heavier = replace(VLLM.memory[0], weights=int(15.04 * GIB))
    (weights,) = read_vllm(["Model loading took 15.0 GiB memory and 8.264104 seconds"]).figures
    assert row(compare(replace(VLLM, memory=(heavier,)), [weights]), "weights").verdict == "outside"


def test_an_estimate_is_within_its_bounds_or_outside() -> None:
    assert row(compare(VLLM, [gib("activations", 2.5)]), "activations").verdict == "within"
    assert row(compare(VLLM, [gib("activations", 3.2)]), "activations").verdict == "outside"
    assert row(compare(VLLM, []), "activations").verdict == "not measured"


def test_of_several_ranks_the_smallest_cache_counts() -> None:
    rows = compare(VLLM, [gib("available_cache", 50.5), gib("available_cache", 50.0)])
    assert row(rows, "available_cache").verdict == "equal"


def test_the_log_is_believed_before_the_endpoints() -> None:
    figures = [Figure(name="max_concurrency", value=3.91, step=0.01, source="GPU KV cache size ..."),
               Figure(name="max_concurrency", value=3.90625, source="/metrics")]  # fmt: skip
    assert row(compare(VLLM, figures), "max_concurrency").verdict == "equal"


def test_activations_are_compared_without_the_graphs_that_a_release_prints_within_them() -> None:
    printed_by_v1 = [gib("activations", 3.5), gib("graphs_estimate", 1.0), gib("graphs", 0.7)]
    rows = compare(VLLM, settled(printed_by_v1, VLLM))
    assert row(rows, "activations").verdict == "within"
    assert row(rows, "graphs_estimate").verdict == "equal"
    assert row(rows, "graphs").verdict == "not predicted"


def test_graphs_that_a_release_takes_outside_the_budget_are_not_held_against_it() -> None:
    outside = replace(VLLM, memory=tuple(replace(device, graphs=0) for device in VLLM.memory))
    rows = compare(outside, settled([gib("activations", 2.5), gib("graphs_estimate", 1.0)], outside))
    assert row(rows, "activations").verdict == "within"
    assert row(rows, "graphs_estimate").verdict == "not predicted"


def test_llamacpp_devices_and_caches_are_summed_by_device() -> None:
    figures = [
        Figure(name="weights", value=60 * MIB, step=MIB / 100, device="CUDA0"),
        Figure(name="weights", value=20 * MIB, step=MIB / 100, device="CPU_Mapped"),
        Figure(name="weights", value=10 * MIB, step=MIB / 100, device="CUDA_Host"),
        Figure(name="cache", value=40 * MIB, step=MIB / 100, source="size ="),
        Figure(name="cache", value=50 * MIB, step=MIB / 100, source="size ="),
        Figure(name="cache", value=1 * MIB, step=MIB / 100, device="CUDA0"),
    ]
    rows = compare(LLAMA, figures)
    assert row(rows, "weights", "0").verdict == "equal"
    assert row(rows, "weights", "CPU").verdict == "equal"
    assert row(rows, "cache").verdict == "equal"


def test_lines_are_compared_word_for_word_without_indent_and_source() -> None:
    log = "0.01 I llama_kv_cache: size = 90.00 MiB ( 4096 cells), more\n0.02 I srv  load_model: n_ctx_slot = 2048\n"
    assert [found for _, found in printed(LLAMA, log)] == [True, False]


def test_an_exact_figure_outside_is_a_fail_that_says_how_to_send_the_case() -> None:
    rows = compare(VLLM, [Figure(name="cache_tokens", value=15_984, source="GPU KV cache size: 15,984 tokens")])
    (found,) = findings(LOADED, rows, NOT_SEEN)
    assert (found.code, found.outcome) == ("LOAD001", Outcome.FAIL)
    assert "15,984 tokens measured, 16,000 tokens predicted exactly" in found.message
    assert "llmdoctor bundle" in found.message


def test_an_estimate_outside_is_a_warning_with_its_bounds() -> None:
    (found,) = findings(LOADED, compare(VLLM, [gib("activations", 4.0)]), NOT_SEEN)
    assert found.outcome is Outcome.WARN
    assert "1.50 GiB to 3.00 GiB" in found.message


def test_weights_without_weights_are_no_promise() -> None:
    rows = compare(VLLM, [gib("weights", 14.0)])
    (found,) = findings(replace(LOADED, weightless=True), rows, NOT_SEEN)
    assert found.outcome is Outcome.WARN


def test_known_reasons_are_named_where_they_hold() -> None:
    busy = Gpus(devices=(Gpu(index=0, name="A100", visible_as=0, processes=(GpuProcess(pid=7),)),))
    launch = Launch(
        runtime="vllm", version="0.32.0", version_assumed=False, entrypoint="serve", model="x", arguments={}
    )
    holds = circumstances(LOADED, VLLM, launch, busy)
    assert "other process on a GPU" in holds
    rows = compare(VLLM, [Figure(name="cache_tokens", value=1.0)], holds)
    assert any("another process holds memory" in reason for reason in row(rows, "cache_tokens").reasons)
    idle = circumstances(LOADED, VLLM, launch, Gpus(devices=()))
    rows = compare(VLLM, [Figure(name="cache_tokens", value=1.0)], idle)
    assert not any("another process holds memory" in reason for reason in row(rows, "cache_tokens").reasons)


def test_memory_that_stays_and_what_is_left_is_told() -> None:
    kept = replace(LOADED, memory_kept={"GPU-1": 3 * GIB}, left=("process 99",))
    found = findings(kept, (), NOT_SEEN)
    assert [finding.code for finding in found] == ["LOAD004", "LOAD004"]
    assert "3.00 GiB of GPU GPU-1" in found[0].message
    assert "process 99" in found[1].message


def test_an_illegal_instruction_names_what_the_cpu_lacks() -> None:
    died = replace(LOADED, ending="died", end=ServerEnd(signal="SIGILL"))
    system = System(kernel="6", cpu_model="Xeon", cpu_flags=("avx", "avx2", "avx512f"))
    log = "0.0 I system_info: n_threads = 2 | CPU : AVX = 1 | AVX_VNNI = 1 | AVX2 = 1 | AVX512 = 1 | AMX_INT8 = 1"
    cpu, end = findings(died, (), system, log)
    assert (cpu.code, end.code) == ("HOST109", "LOAD003")
    assert "it uses avx_vnni, amx_int8" in cpu.message
    assert findings(replace(died, end=ServerEnd(exit_status=132)), (), NOT_SEEN)[0].code == "HOST109"
