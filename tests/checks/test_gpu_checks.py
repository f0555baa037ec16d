"""GPUs, their links and their compute capability."""

from __future__ import annotations

from llmdoctor_checks import capability, gpu, links
from llmdoctor_core.facts import GpuProcess, Link, Links, Quantization, Unavailable
from llmdoctor_core.finding import Outcome

from .building import GIB, gpus, launch, model, t4, target
from .building import links as joined

PCIE4 = joined(*((a, b, "NODE", 0) for a in range(4) for b in range(a + 1, 4)))
PAIRED = joined(
    (0, 1, "NODE", 0), (0, 2, "NODE", 0), (0, 3, "NODE", 0), (1, 2, "NODE", 0), (1, 3, "NODE", 0), (2, 3, "PHB", 4)
)


def test_the_share_asked_for_is_of_the_total() -> None:
    held = gpus(memory_total=int(22.05 * GIB), memory_free=int(19.77 * GIB))
    (finding,) = gpu.free_memory_below_utilization(held, launch(gpu_memory_utilization=0.9))
    assert finding.params["asked"] == "19.84 GiB"
    assert finding.params["missing"] == "76.8 MiB"
    assert finding.params["fits"] == 0.89


def test_free_memory_that_was_not_read_is_no_pass() -> None:
    blind = gpus(memory_free=None, unread={"memory_free": "not supported"})
    assert [finding.outcome for finding in gpu.free_memory_below_utilization(blind, launch())] == [Outcome.SKIP]


def test_assumed_gpus_are_no_pass() -> None:
    assumed = gpus(host={"assumed": "1 x A100-80GB"})
    assert [finding.outcome for finding in gpu.gpu_memory_errors(assumed, None)] == [Outcome.SKIP]


def test_only_gpus_of_the_launch_are_looked_at() -> None:
    busy = gpus(2)
    busy = busy.__class__(devices=(busy.devices[0], gpus(processes=(GpuProcess(pid=1, memory=9 * GIB),)).devices[0]))
    assert gpu.gpu_memory_held_by_other_process(busy, launch()) == []


def test_a_crumb_of_memory_is_not_mentioned() -> None:
    desktop = gpus(processes=(GpuProcess(pid=1, name="Xorg", memory=90 << 20),))
    assert gpu.gpu_memory_held_by_other_process(desktop, launch()) == []


def test_an_xid_of_software_is_no_lost_gpu() -> None:
    assert gpu.gpu_lost(gpus(xid=(13, 31))) == []
    assert [finding.params["xid"] for finding in gpu.gpu_lost(gpus(xid=(13, 79)))] == [79]


def test_uuids_crash_vllm_before_0_24_only() -> None:
    by_uuid = gpus(host={"visible_devices": "GPU-0"})
    assert [finding.outcome for finding in gpu.visible_devices_invalid(by_uuid, launch(version="0.20.1"))] == [
        Outcome.FAIL
    ]
    assert gpu.visible_devices_invalid(by_uuid, launch(version="0.24.0")) == []


def test_slices_cannot_work_together() -> None:
    slices = gpus(2, mig_parent="GPU-p", mig_profile="3g.40gb")
    assert [finding.outcome for finding in gpu.mig_misuse(slices, launch(tensor_parallel_size=2))] == [Outcome.FAIL]


def test_a_switch_whose_state_is_not_told_is_no_pass() -> None:
    silent = gpus(fabric_state=None)
    assert [found.outcome for found in gpu.fabric_not_ready(silent, Links(pairs=(), nvswitch=True))] == [Outcome.SKIP]
    assert gpu.fabric_not_ready(silent, Links(pairs=())) == []


def test_slow_pairs_are_named_with_their_cost() -> None:
    (finding,) = links.tensor_parallel_without_nvlink(
        gpus(2), joined((0, 1, "PHB", 0)), launch(tensor_parallel_size=2), model()
    )
    assert finding.outcome is Outcome.WARN
    assert finding.params["pairs"] == "0-1 PHB"
    # 36 layers x 2 all-reduces x 4096 x 2 bytes x 8192 tokens x 2(2-1)/2, over 25 GB/s
    assert finding.params["moved"] == "4.50 GiB"
    assert finding.params["ms"] == 193


def test_a_pair_with_nvlink_is_proposed() -> None:
    (finding,) = links.tensor_parallel_without_nvlink(gpus(4), PAIRED, launch(tensor_parallel_size=2), model())
    assert finding.params["better"] == "2,3"


def test_pipeline_stages_need_no_nvlink_between_them() -> None:
    staged = launch(tensor_parallel_size=2, pipeline_parallel_size=2)
    both = joined(
        (0, 1, "PHB", 4), (2, 3, "PHB", 4), (0, 2, "SYS", 0), (0, 3, "SYS", 0), (1, 2, "SYS", 0), (1, 3, "SYS", 0)
    )
    assert links.tensor_parallel_without_nvlink(gpus(4), both, staged, model()) == []


def test_one_rank_needs_no_links() -> None:
    assert links.tensor_parallel_without_nvlink(gpus(4), Unavailable(reason="not asked"), launch(), model()) == []


def test_an_unknown_way_is_no_pass() -> None:
    unknown = Links(pairs=(Link(a=0, b=1, path="unknown"),))
    found = links.tensor_parallel_without_nvlink(gpus(2), unknown, launch(tensor_parallel_size=2), model())
    assert [finding.outcome for finding in found] == [Outcome.SKIP]


def test_gpus_of_the_table_without_nvlink_are_warned_about() -> None:
    found = links.tensor_parallel_without_nvlink(
        gpus(4, host={"assumed": "4 x L4"}),
        joined(*((a, b, "unknown", 0) for a in range(4) for b in range(a + 1, 4))),
        launch(tensor_parallel_size=4),
        model(),
    )
    assert [finding.outcome for finding in found] == [Outcome.WARN]


def test_machine_code_runs_on_later_minor_versions() -> None:
    assert capability.runs_on("80", (8, 6))
    assert capability.runs_on("120f", (12, 1))
    assert not capability.runs_on("90a", (9, 1))
    assert not capability.runs_on("86", (8, 0))
    assert not capability.runs_on("75", (8, 0))


def test_an_architecture_list_that_was_not_read_is_no_pass() -> None:
    from .building import distribution

    unread = target(distribution("torch", "2.13.0"), torch_architectures=())
    assert [finding.outcome for finding in capability.no_kernels_for_gpu(gpus(), unread, None)] == [Outcome.SKIP]


def test_auto_falls_back_since_0_9_and_a_given_bfloat16_does_not() -> None:
    auto, old, given = launch(default=("dtype",)), launch(version="0.8.5", default=("dtype",)), launch(dtype="bfloat16")
    outcomes = [capability.dtype_unsupported_by_gpu(t4(), one, model())[0].outcome for one in (auto, old, given)]
    assert outcomes == [Outcome.WARN, Outcome.FAIL, Outcome.FAIL]
    assert capability.dtype_unsupported_by_gpu(t4(), launch(dtype="float16"), model()) == []


def test_gemma_does_not_run_in_float16() -> None:
    gemma = model(model_type="gemma3_text")
    assert [f.outcome for f in capability.dtype_unsupported_by_gpu(gpus(), launch(dtype="half"), gemma)] == [
        Outcome.FAIL
    ]


def test_fp8_weights_on_ampere_are_unpacked_not_refused() -> None:
    stored = model(quantization=Quantization(method="fp8", bits=8))
    (finding,) = capability.quantization_unsupported_by_gpu(gpus(), launch(), stored)
    assert finding.outcome is Outcome.WARN
    assert finding.params["format"] == "FP8"


def test_an_fp8_cache_the_checkpoint_asks_for_counts() -> None:
    asks = model(quantization=Quantization(method="modelopt fp8", bits=8, kv_cache="fp8"))
    found = capability.kv_dtype_or_attention_unsupported_by_gpu(gpus(), launch(), asks, None)
    assert [finding.outcome for finding in found] == [Outcome.WARN]
