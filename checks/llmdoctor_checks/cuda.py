"""The NVIDIA driver against the CUDA build: whether it is new enough, and which libcuda the server will load."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import Version

from llmdoctor_core.check import check
from llmdoctor_core.facts import Container, Gpus, NvidiaDriver, Place, TargetEnvironment, Unavailable
from llmdoctor_core.finding import Finding, fail, seen, skip, warn

from .launches import listed, release
from .tables import row, table

ENGINES = ("vllm", "sglang", "trtllm")
CONSUMER_NAMES = ("GeForce", "TITAN", "RTX 20", "RTX 30", "RTX 40", "RTX 50")


def _compat_first(container: Container) -> str | None:
    """The forward-compatibility libcuda, where the loader finds it before the driver's own."""
    first = container.libcuda[0] if container.libcuda else None
    return first if first and "/compat" in first else None


def _own_cuda(driver: Version) -> Version | None:
    """The CUDA version that a driver's own libcuda offers."""
    shipped = [entry for entry in table("toolkit-drivers").rows if Version(entry["driver"]) <= driver]
    return max((Version(entry["cuda"]) for entry in shipped), default=None)


@check("CUDA201", "driver-too-old-for-cuda-build", runtimes=ENGINES, remedy="by-hand")
def driver_too_old_for_cuda_build(
    driver: NvidiaDriver, target: TargetEnvironment, container: Container | None
) -> Iterator[Finding]:
    """The driver is older than the CUDA version that torch was built for needs."""
    if target.torch_cuda in (None, "none"):
        return
    cuda, version = release(target.torch_cuda), release(driver.version)
    floor = row("drivers", cuda=str(cuda.major)) if cuda else None
    if cuda is None or version is None or floor is None:
        yield skip(
            "the oldest driver for CUDA {cuda} is not in the table, or driver {driver} is no version",
            cuda=target.torch_cuda,
            driver=driver.version,
        )
        return
    if version >= Version(floor["driver"]):
        return
    offered = release(driver.cuda_version)
    if container and _compat_first(container) and offered and offered >= cuda:
        return
    yield fail(
        "driver {have} is older than {need}, the oldest that runs CUDA {cuda}, and torch {torch} is built for CUDA "
        "{cuda}: 'The NVIDIA driver on your system is too old'. Upgrade the driver on the host to {need} or newer, or "
        "install a build for CUDA {family}.x, which this driver runs (on data center GPUs the cuda-compat package is a "
        "third way)",
        evidence=(
            seen("driver", driver.version, "NVML"),
            seen("torch CUDA", target.torch_cuda, "torch/version.py"),
            seen("CUDA of the driver", driver.cuda_version, "libcuda"),
        ),
        have=driver.version,
        need=floor["driver"],
        cuda=target.torch_cuda,
        torch=getattr(target.has("torch"), "version", ""),
        family=getattr(_own_cuda(version), "major", cuda.major - 1),
    )


@check("CUDA202", "wrong-libcuda-wins", remedy="by-hand")
def wrong_libcuda_wins(driver: NvidiaDriver, container: Container) -> Iterator[Finding]:
    """The loader finds an older libcuda, from a forward-compatibility package, before the driver's own."""
    compat = _compat_first(container)
    if compat is None:
        return
    version, offered = release(driver.kernel_module_version or driver.version), release(driver.cuda_version)
    own = _own_cuda(version) if version else None
    if own is None or offered is None:
        yield skip("which CUDA version {path} and the driver's own libcuda offer is not known", path=compat)
    elif offered < own:
        yield fail(
            "{path} (CUDA {offered}) is found before the libcuda of driver {driver} (CUDA {own}): CUDA answers error "
            "803 'unsupported display driver / cuda driver combination' although nvidia-smi works. Put the driver's "
            "folder first: LD_LIBRARY_PATH=/usr/local/nvidia/lib64:$LD_LIBRARY_PATH, or remove the cuda-compat entry "
            "from /etc/ld.so.conf.d and run ldconfig",
            evidence=(
                seen("libcuda in the loader's order", listed(container.libcuda), "ldconfig, LD_LIBRARY_PATH"),
                seen("driver", driver.version, "NVML"),
            ),
            path=compat,
            offered=str(offered),
            driver=driver.version,
            own=str(own),
        )


@check("CUDA203", "forward-compatibility-unsupported", remedy="by-hand")
def forward_compatibility_unsupported(driver: NvidiaDriver, container: Container, gpus: Gpus) -> Iterator[Finding]:
    """A forward-compatibility libcuda is in use on a GPU of a class that has no such thing."""
    compat = _compat_first(container)
    version, offered = release(driver.kernel_module_version or driver.version), release(driver.cuda_version)
    own = _own_cuda(version) if version else None
    if compat is None or (own and offered and offered <= own):
        return
    for name in dict.fromkeys(gpu.name for gpu in gpus.visible):
        if any(word in name for word in CONSUMER_NAMES):
            yield fail(
                "{path} is a forward-compatibility libcuda, which {gpu} does not support: CUDA answers error 804 "
                "'forward compatibility was attempted on non supported HW'. Upgrade the host's driver, and take {path} "
                "off the loader's path",
                evidence=(
                    seen("libcuda in the loader's order", listed(container.libcuda), "ldconfig, LD_LIBRARY_PATH"),
                    seen("GPU", name, "NVML"),
                ),
                path=compat,
                gpu=name,
            )


@check("CUDA204", "driver-library-mismatch", remedy="by-hand")
def driver_library_mismatch(driver: NvidiaDriver | Unavailable, container: Container | None) -> Iterator[Finding]:
    """The driver's libraries and its loaded kernel module have different versions."""
    if isinstance(driver, Unavailable):
        if "different versions" in driver.reason:
            yield fail(
                "the driver's libraries were upgraded and the old kernel module is still loaded: {reason}. Reboot the "
                "host, or unload the nvidia modules and load them again; a container needs a restart after that",
                evidence=(seen("NVML", driver.reason, "libnvidia-ml.so.1"),),
                reason=driver.reason,
            )
        else:
            yield skip("the driver was not observed: {reason}", reason=driver.reason)
        return
    version, offered = release(driver.kernel_module_version or driver.version), release(driver.cuda_version)
    own = _own_cuda(version) if version else None
    first = container.libcuda[0] if container and container.libcuda and not _compat_first(container) else None
    if first and own and offered and offered > own:
        yield warn(
            "{path} offers CUDA {offered}, and driver {driver} comes with CUDA {own}: it belongs to another, newer "
            "driver ('unsupported display driver / cuda driver combination'). Install the libraries of driver "
            "{driver} alone (dpkg -l 'libnvidia-compute*', rpm -qa 'nvidia*'), or the newer driver as a whole",
            evidence=(
                seen("CUDA of libcuda", driver.cuda_version, first),
                seen("driver", driver.version, "/proc/driver/nvidia/version"),
            ),
            where=Place(kind="file", name=first),
            path=first,
            offered=str(offered),
            driver=driver.version,
            own=str(own),
        )
    if driver.nvml_version is None or driver.kernel_module_version is None:
        yield skip("the versions of the driver's library and of its kernel module were not both read")
        return
    library = driver.nvml_version.split(".", 1)[1] if driver.nvml_version.count(".") >= 2 else driver.nvml_version
    if library != driver.kernel_module_version and not driver.nvml_version.endswith(driver.kernel_module_version):
        report = fail if "nvml" in driver.unread else warn
        yield report(
            "the driver's library is {library} and the loaded kernel module {module}: the next CUDA or NVML start can "
            "answer 'Driver/library version mismatch'. Reboot the host so that both are {library}",
            evidence=(
                seen("NVML library", driver.nvml_version, "nvmlSystemGetNVMLVersion"),
                seen("kernel module", driver.kernel_module_version, "/proc/driver/nvidia/version"),
            ),
            library=library,
            module=driver.kernel_module_version,
        )
