"""The host as facts: GPUs, links, CUDA toolkits, the target Python environment, system and container.

Probes observe these as plain JSON; ``case.decode`` turns that into these types, strictly. All sizes are bytes.
A field that could not be read is None and its reason stands in the fact's ``unread`` under the field's name.
"""

from __future__ import annotations

from msgspec import Struct

from .base import Fact


class NvidiaDriver(Fact, frozen=True, kw_only=True):
    """The NVIDIA driver as NVML and the kernel module tell it."""

    version: str
    cuda_version: str | None = None
    """Highest CUDA version that the libcuda in use offers, ``13.0``."""
    kernel_module_version: str | None = None
    open_kernel_module: bool | None = None
    nvml_version: str | None = None
    unread: dict[str, str] = {}


class GpuProcess(Struct, frozen=True, kw_only=True):
    pid: int
    name: str | None = None
    memory: int | None = None


class Gpu(Struct, frozen=True, kw_only=True):
    """One GPU or MIG slice. ``index`` is NVML's (PCI bus order); ``visible_as`` the number a CUDA process sees."""

    index: int
    uuid: str | None = None
    name: str
    visible_as: int | None = None
    """None where CUDA_VISIBLE_DEVICES hides it."""
    compute_capability: tuple[int, int] | None = None
    bus_id: str | None = None
    memory_total: int | None = None
    """What CUDA can use: NVML's total without the driver's reserve."""
    memory_reserved: int | None = None
    memory_used: int | None = None
    memory_free: int | None = None
    processes: tuple[GpuProcess, ...] = ()
    ecc_enabled: bool | None = None
    ecc_uncorrected: int | None = None
    remapped_pending: bool | None = None
    remapped_failed: bool | None = None
    retired_pending: bool | None = None
    xid: tuple[int, ...] | None = None
    throttling: tuple[str, ...] | None = None
    persistence: bool | None = None
    mig_enabled: bool | None = None
    mig_parent: str | None = None
    """UUID of the parent where this is a MIG slice."""
    mig_profile: str | None = None
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    numa_node: int | None = None
    fabric_state: str | None = None
    """``completed``, ``in progress``, ``not started``, ``not supported``."""
    fabric_health: str | None = None
    unified_memory: bool = False
    lost: str | None = None
    """Why the GPU does not answer ("GPU is lost"), None where it does."""
    unread: dict[str, str] = {}


class Gpus(Fact, frozen=True, kw_only=True):
    """All GPUs of the host, in NVML's order, with what CUDA_VISIBLE_DEVICES leaves of them."""

    devices: tuple[Gpu, ...]
    visible_devices: str | None = None
    """The variable as set; None where it is not set."""
    visible_problem: str | None = None
    """Why the variable selects fewer GPUs than it names (an unknown index or UUID ends the list)."""
    order_uncertain: str | None = None
    """Why CUDA may number the GPUs otherwise (models differ and CUDA_DEVICE_ORDER is not PCI_BUS_ID)."""
    assumed: str | None = None
    """Set where the GPUs come from the built-in table (``--gpu A100-80GB``), not from this host."""

    @property
    def visible(self) -> tuple[Gpu, ...]:
        """The GPUs a CUDA process sees, in its order."""
        seen = [gpu for gpu in self.devices if gpu.visible_as is not None]
        return tuple(sorted(seen, key=lambda gpu: gpu.visible_as or 0))


class Link(Struct, frozen=True, kw_only=True):
    """The way between two GPUs, by their NVML indices. ``path`` is nvidia-smi's word for the PCIe way."""

    a: int
    b: int
    path: str
    """``PIX``, ``PXB``, ``PHB``, ``NODE``, ``SYS``, or ``unknown``."""
    nvlinks: int = 0
    nvlink_generation: str | None = None
    through_switch: bool = False
    p2p: str | None = None
    """``ok``, or NVML's reason why not (``chipset not supported``, ...)."""
    p2p_nvlink: str | None = None
    """The same for peer access over NVLink, which is what vLLM asks before it uses its custom all-reduce."""

    @property
    def label(self) -> str:
        return f"NV{self.nvlinks}" if self.nvlinks else self.path


class Links(Fact, frozen=True, kw_only=True):
    """How the GPUs are joined, one entry a pair with a < b."""

    pairs: tuple[Link, ...]
    nvswitch: bool = False
    unread: dict[str, str] = {}

    def between(self, a: int, b: int) -> Link | None:
        """The link of two GPUs, whichever is named first."""
        for pair in self.pairs:
            if {pair.a, pair.b} == {a, b}:
                return pair
        return None


class Toolkit(Struct, frozen=True, kw_only=True):
    """One CUDA toolkit, on the host or inside the target environment's pip packages."""

    path: str
    origin: str
    """``CUDA_HOME``, ``CUDA_PATH``, ``PATH``, ``/usr/local``, ``environment`` (pip)."""
    nvcc: str | None = None
    nvcc_version: str | None = None
    header_version: str | None = None
    """From cuda.h's CUDA_VERSION, ``12.8``."""
    lacks: tuple[str, ...] = ()
    """Parts a JIT build needs and this one has not: ``nvcc``, ``curand.h``, ``cublasLt.h``, ``libcudart``, ..."""


class CudaToolkits(Fact, frozen=True, kw_only=True):
    """Every CUDA toolkit found, and the variables that choose among them, as the service will see them."""

    toolkits: tuple[Toolkit, ...]
    variables: dict[str, str] = {}
    """CUDA_HOME, CUDA_PATH, FLASHINFER_NVCC, FLASHINFER_CUDA_ARCH_LIST, CC, CXX, ... where set."""
    nvcc_on_path: str | None = None


class JitCompiler(Fact, frozen=True, kw_only=True):
    """The compiler FlashInfer's JIT will pick, by its own order, in the service's environment."""

    nvcc: str | None
    cuda_home: str | None
    chosen_by: str
    """The step of FlashInfer's order that decided: ``CUDA_HOME``, ``which nvcc``, ``/usr/local/cuda``, ..."""
    version: str | None = None
    exists: bool = True
    lacks: tuple[str, ...] = ()
    """``ninja``, ``which``, ``curand.h``, ``Python.h``, ``c++``, ``libcuda.so``, ..."""
    flags_version: str | None = None
    """The version FlashInfer goes by when it chooses flags: of ``$cuda_home/bin/nvcc``, never of FLASHINFER_NVCC."""
    off_path: dict[str, str] = {}
    """What it lacks but the environment's own scripts folder has (``ninja``), with the path there."""
    host_compiler: str | None = None
    host_compiler_version: str | None = None
    unread: dict[str, str] = {}


class Requirement(Struct, frozen=True, kw_only=True):
    """One Requires-Dist line without an extra: what, which versions, under which marker."""

    name: str
    specifier: str = ""
    marker: str | None = None


class Distribution(Struct, frozen=True, kw_only=True):
    """One installed distribution as its metadata tells it."""

    name: str
    version: str
    location: str | None = None
    requires: tuple[Requirement, ...] = ()
    requires_python: str | None = None


class NativeLibrary(Struct, frozen=True, kw_only=True):
    """One shared library of the environment, read from its ELF file."""

    path: str
    distribution: str | None = None
    needed: tuple[str, ...] = ()
    symbol_versions: dict[str, str] = {}
    """Highest version asked of each symbol set: ``{"GLIBC": "2.34", "GLIBCXX": "3.4.30"}``."""
    architectures: tuple[str, ...] = ()
    """GPU architectures with machine code inside: ``80``, ``90``; empty where none were looked for. Whether code for
    90 is for 90a the file does not tell."""
    ptx: tuple[str, ...] = ()
    """Architectures with PTX inside, which the driver compiles for any newer GPU."""
    unresolved: tuple[str, ...] = ()
    """Needed libraries that neither the environment nor the system has."""


class TargetEnvironment(Fact, frozen=True, kw_only=True):
    """The Python environment the server will run in, read by its own interpreter in isolated mode; nothing imported."""

    python: str
    version: tuple[int, int, int]
    implementation: str = "CPython"
    platform: str | None = None
    machine: str | None = None
    prefix: str | None = None
    site_packages: tuple[str, ...] = ()
    distributions: dict[str, Distribution] = {}
    """By normalised name."""
    torch_cuda: str | None = None
    """``13.0`` from torch/version.py, ``none`` for a CPU build, None where torch is not installed."""
    torch_architectures: tuple[str, ...] = ()
    native: tuple[NativeLibrary, ...] = ()
    scripts: tuple[str, ...] = ()
    chosen_by: str = "--python"
    unread: dict[str, str] = {}

    def has(self, name: str) -> Distribution | None:
        """The distribution of that name however it is spelled (PEP 503), or None."""
        return self.distributions.get(name.lower().replace("_", "-").replace(".", "-"))


class BrokenInterpreter(Fact, frozen=True, kw_only=True):
    """The interpreter of the target environment does not start: what was tried and what it said."""

    python: str
    problem: str


class AnnotationUse(Struct, frozen=True, kw_only=True):
    """An annotation that the module evaluates at import and that this interpreter cannot evaluate."""

    path: str
    line: int
    expression: str
    reason: str
    """``array.array is not subscriptable before Python 3.12``."""
    evaluated_by: str
    """What makes it run at import: ``function annotation``, ``decorator @dataclass``, ``class body``."""
    distribution: str | None = None
    postponable: bool = True
    """True where ``from __future__ import annotations`` would end it."""
    imported_by: str | None = None


class ImportAnnotations(Fact, frozen=True, kw_only=True):
    """Annotations of the environment's sources that its interpreter cannot evaluate."""

    uses: tuple[AnnotationUse, ...]
    scanned: tuple[str, ...]
    """Distributions whose sources were read, with versions."""
    python: str
    unread: dict[str, str] = {}
    """Distributions or files whose sources were not read to the end, and why."""


class Mount(Struct, frozen=True, kw_only=True):
    path: str
    filesystem: str | None = None
    size: int | None = None
    free: int | None = None
    writable: bool | None = None
    exists: bool = True


class CacheDirectory(Struct, frozen=True, kw_only=True):
    """A directory the server writes to, as its variables and defaults resolve it for this user."""

    name: str
    """The variable that moves it: ``HF_HOME``, ``VLLM_CACHE_ROOT``, ``TRITON_CACHE_DIR``, ..."""
    path: str
    set_by: str
    """``environment`` or ``default``."""
    mount: Mount


class System(Fact, frozen=True, kw_only=True):
    """Kernel, libraries, CPU, memory and limits of the host or container this runs in."""

    kernel: str
    distribution: str | None = None
    glibc: str | None = None
    libstdcxx: str | None = None
    """Highest GLIBCXX symbol version of the system's libstdc++."""
    machine: str = "x86_64"
    cpu_model: str | None = None
    cpu_flags: tuple[str, ...] = ()
    cpus: int | None = None
    """CPUs this process may use: affinity and cgroup quota considered."""
    numa_nodes: int | None = None
    memory_total: int | None = None
    memory_available: int | None = None
    swap_total: int | None = None
    hugepages_free: int | None = None
    hugepage_size: int | None = None
    memlock: int | None = None
    """Soft limit in bytes; -1 for unlimited."""
    open_files: int | None = None
    stack: int | None = None
    user: str | None = None
    uid: int | None = None
    has_passwd_entry: bool | None = None
    iommu: str | None = None
    """``off``, ``on``, ``passthrough`` where the kernel's command line tells."""
    acs: bool | None = None
    """Whether PCI access control services redirect peer traffic, where readable."""
    wsl: bool = False
    unread: dict[str, str] = {}


class Container(Fact, frozen=True, kw_only=True):
    """What a container (or the bare host) grants: memory, CPU, shared memory, GPU device nodes."""

    kind: str
    """``none``, ``docker``, ``podman``, ``kubernetes``, ``lxc``, ``container``."""
    image: str | None = None
    memory_limit: int | None = None
    """cgroup limit in bytes; None for none."""
    memory_used: int | None = None
    cpu_limit: float | None = None
    shm: Mount | None = None
    devices: tuple[str, ...] = ()
    """NVIDIA device nodes present: ``/dev/nvidia0``, ``/dev/nvidiactl``, ``/dev/nvidia-uvm``."""
    libcuda: tuple[str, ...] = ()
    """Paths of libcuda.so.1 in the loader's order; the first wins."""
    infiniband: bool | None = None
    ipc_host: bool | None = None
    unread: dict[str, str] = {}


class Environment(Fact, frozen=True, kw_only=True):
    """Environment variables that matter to serving. Values of secrets are never read: they are ``<set>``."""

    variables: dict[str, str]
    secrets: tuple[str, ...] = ()
    caches: tuple[CacheDirectory, ...] = ()


class Port(Struct, frozen=True, kw_only=True):
    port: int
    host: str
    free: bool
    holder: str | None = None


class Network(Fact, frozen=True, kw_only=True):
    """Ports, interfaces and name resolution, without sending anything to the network."""

    hostname_resolves: bool | None = None
    interfaces: tuple[str, ...] = ()
    ports: tuple[Port, ...] = ()
    hub_offline: bool = False
    proxies: tuple[str, ...] = ()
    unread: dict[str, str] = {}
