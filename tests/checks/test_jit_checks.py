"""FlashInfer's JIT and the driver beneath it."""

from __future__ import annotations

import pytest
from packaging.version import Version

from llmdoctor_checks import cuda, jit
from llmdoctor_core.facts import CudaToolkits, JitCompiler, NvidiaDriver, Toolkit, Unavailable
from llmdoctor_core.finding import Outcome

from .building import container, distribution, gpus, request, target

OLD = JitCompiler(nvcc="/usr/bin/nvcc", cuda_home="/usr", chosen_by="which nvcc", version="12.4")
ENGINE = target(distribution("flashinfer-python", "0.6.18.post1"), distribution("vllm", "0.30.0"))


def test_a_newer_toolkit_on_the_machine_is_named() -> None:
    machine = CudaToolkits(toolkits=(Toolkit(path="/usr/local/cuda-13.0", origin="/usr/local", nvcc_version="13.0"),))
    (finding,) = jit.nvcc_too_old_for_flashinfer(OLD, ENGINE, machine, request(version="0.30.0"), None, None)
    assert finding.params["better"] == "/usr/local/cuda-13.0"


def test_prebuilt_kernels_need_no_nvcc() -> None:
    prebuilt = target(
        distribution("flashinfer-python", "0.6.18.post1"), distribution("flashinfer-jit-cache", "0.6.18.post1+cu130")
    )
    assert jit.nvcc_too_old_for_flashinfer(OLD, prebuilt, None, request(version="0.30.0"), None, None) == []


@pytest.mark.parametrize(
    ("version", "sampler", "outcome"),
    [
        ("0.30.0", None, Outcome.FAIL),  # on by default since 0.21
        ("0.19.1", None, Outcome.WARN),  # on request from 0.11 to 0.20
        ("0.19.1", "1", Outcome.FAIL),
        ("0.30.0", "0", Outcome.WARN),  # the sampler is off; other kernels may still be compiled
    ],
)
def test_how_bad_it_is_depends_on_the_sampler(version: str, sampler: str | None, outcome: Outcome) -> None:
    asked = request(version=version, environment={"VLLM_USE_FLASHINFER_SAMPLER": sampler} if sampler else {})
    (finding,) = jit.nvcc_too_old_for_flashinfer(OLD, ENGINE, None, asked, None, None)
    assert finding.outcome is outcome


def test_0_6_16_passes_no_unknown_option() -> None:
    assert jit.flags_unknown_to(Version("12.4"), Version("0.6.16.post3")) == []
    assert [row["flag"] for row in jit.flags_unknown_to(Version("12.4"), Version("0.6.18"))] == ["--compress-mode=size"]
    assert jit.flags_unknown_to(Version("12.8"), Version("0.6.18")) == []


@pytest.mark.parametrize(
    ("capability", "flashinfer", "needed"),
    [
        ((12, 0), "0.6.18", ("120f", "12.9")),
        ((12, 0), "0.7.2", ("120a", "12.8")),
        ((12, 1), "0.7.2", ("121a", "12.9")),
        ((9, 0), "0.7.2", ("90a", "12.0")),
        ((10, 3), "0.7.2", ("103a", "12.9")),
    ],
)
def test_the_nvcc_a_gpu_needs(capability: tuple[int, int], flashinfer: str, needed: tuple[str, str]) -> None:
    assert jit.nvcc_for(capability, Version(flashinfer)) == (needed[0], Version(needed[1]))


def test_a_gpu_out_of_the_table_is_no_pass() -> None:
    found = jit.nvcc_too_old_for_gpu(OLD, ENGINE, gpus(compute_capability=(15, 0)), request(), None)
    assert [finding.outcome for finding in found] == [Outcome.SKIP]


def test_a_version_that_was_not_read_is_no_pass() -> None:
    mute = JitCompiler(nvcc="/usr/bin/nvcc", cuda_home="/usr", chosen_by="which nvcc")
    found = jit.nvcc_too_old_for_flashinfer(mute, ENGINE, None, request(), None, None)
    assert [finding.outcome for finding in found] == [Outcome.SKIP]


def test_vllm_0_32_falls_back_where_there_is_no_nvcc() -> None:
    nothing = JitCompiler(nvcc=None, cuda_home=None, chosen_by="nothing found")
    assert [f.outcome for f in jit.no_nvcc_for_jit(nothing, ENGINE, request(version="0.31.0"), None)] == [Outcome.FAIL]
    assert [f.outcome for f in jit.no_nvcc_for_jit(nothing, ENGINE, request(version="0.32.0"), None)] == [Outcome.WARN]


def test_ninja_beside_the_interpreter_is_pointed_at() -> None:
    lacking = JitCompiler(
        nvcc="/usr/bin/nvcc",
        cuda_home="/usr",
        chosen_by="which nvcc",
        lacks=("ninja",),
        off_path={"ninja": "/venv/bin/ninja"},
    )
    (finding,) = jit.jit_toolchain_incomplete(lacking, ENGINE, request(version="0.30.0"), None)
    assert finding.params["folder"] == "/venv/bin"


def test_pip_nvcc_with_an_older_ptxas_beside_it() -> None:
    home = "/venv/nvidia/cu13"
    compiler = JitCompiler(nvcc=f"{home}/bin/nvcc", cuda_home=home, chosen_by="CUDA_HOME", version="13.0")
    kits = CudaToolkits(
        toolkits=(Toolkit(path=home, origin="environment", nvcc_version="13.0", header_version="13.0"),)
    )
    mixed = target(
        distribution("flashinfer-python", "0.7.2"),
        distribution("nvidia-cuda-nvcc", "13.0.88"),
        distribution("nvidia-nvvm", "13.5.37"),
    )
    (finding,) = jit.cuda_homes_disagree(compiler, kits, mixed)
    assert finding.params == {"nvvm": "13.5.37", "nvcc": "13.0.88"}


def test_minor_versions_of_one_family_run_on_its_first_driver() -> None:
    assert cuda.driver_too_old_for_cuda_build(NvidiaDriver(version="525.60.13"), target(torch_cuda="12.9"), None) == []
    (finding,) = cuda.driver_too_old_for_cuda_build(NvidiaDriver(version="570.86.10"), target(torch_cuda="13.0"), None)
    assert finding.params["need"] == "580"
    assert finding.params["family"] == 12


def test_forward_compatibility_on_a_data_center_gpu_is_fine() -> None:
    compat = container(libcuda=("/usr/local/cuda/compat/libcuda.so.1",))
    driver = NvidiaDriver(version="535.161.07", cuda_version="13.0")
    assert cuda.driver_too_old_for_cuda_build(driver, target(), compat) == []
    assert cuda.forward_compatibility_unsupported(driver, compat, gpus(name="NVIDIA H20")) == []


def test_nvml_that_refuses_for_its_version_names_the_cause() -> None:
    why = "the driver's library and the loaded kernel module are of different versions (reboot after a driver upgrade)"
    assert [f.outcome for f in cuda.driver_library_mismatch(Unavailable(reason=why), None)] == [Outcome.FAIL]
