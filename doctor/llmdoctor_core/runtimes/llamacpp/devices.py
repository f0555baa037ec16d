"""Which device gets which layer, and the model buffers that follow: exact from the tensor table of a GGUF header,
estimated where no file was read.

Source: ``llama_model_base::load_tensors`` (src/llama-model.cpp) and ``create_tensor`` (src/llama-model-loader.cpp),
llama.cpp b11434; held against two RPC devices on b10434.
"""

from __future__ import annotations

import re
import struct
from bisect import bisect_right

from msgspec import Struct

from llmdoctor_core.facts import Certainty, Estimate, Gpu, Gpus, Launch, Model, TensorGroup

from .context import as_number
from .unread import Counted, counted

HOST = -1
"""The CPU, where a device number is asked for."""
AUTOMATIC = ("auto", -1)
"""Values of -ngl that leave the number of layers to --fit."""
SCATTERED = "-ot and the row and tensor split modes place parts of tensors, which is not forecast"


class Split(Struct, frozen=True, kw_only=True):
    """The devices in use and the device of every layer; the layer after the last is the output."""

    devices: tuple[Gpu, ...]
    of_layer: tuple[int, ...]
    """Device number by layer (an index into ``devices``), HOST for the CPU; one more entry for the output layer."""
    cache_on_host: bool = False
    notes: tuple[str, ...] = ()

    @property
    def output(self) -> int:
        return self.of_layer[-1]

    def cache_of(self, layer: int) -> int:
        """The device that holds the layer's cache."""
        return HOST if self.cache_on_host else self.of_layer[layer]

    def layers_on(self, device: int) -> frozenset[int]:
        """Layers whose cache the device holds."""
        return frozenset(layer for layer in range(len(self.of_layer) - 1) if self.cache_of(layer) == device)


def split(launch: Launch, layers: int, gpus: Gpus | None, gpu_layers: int | None = None) -> Split:
    """The split of ``layers`` layers (those of multi-token prediction included) over the devices of the launch.

    ``gpu_layers`` is what --fit decided for an automatic -ngl; without it all layers go to the devices.
    """
    devices, notes = chosen_devices(launch, gpus)
    asked = launch.get("gpu_layers", "auto")
    if asked in AUTOMATIC and gpu_layers is not None:
        asked = gpu_layers
    number = as_number(asked)
    count = layers + 1 if number is None or number < 0 else number
    start = max(layers + 1 - count, 0)
    active = min(count, layers + 1) if devices else 0
    shares = _shares(launch, devices)
    of_layer = []
    for layer in range(layers + 1):
        if layer < start or layer - start >= active:
            of_layer.append(HOST)
        else:
            of_layer.append(bisect_right(shares, _single((layer - start) / active)))
    return Split(
        devices=devices,
        of_layer=tuple(min(device, len(devices) - 1) for device in of_layer),
        cache_on_host=launch.get("kv_offload") is False,
        notes=notes,
    )


def chosen_devices(launch: Launch, gpus: Gpus | None) -> tuple[tuple[Gpu, ...], tuple[str, ...]]:
    """The GPUs that the launch uses, in its order, and what the reader must know about them."""
    visible = gpus.visible if gpus else ()
    named = launch.get("device")
    if named == "none":
        return (), ()
    if not visible:
        return (), ("no GPU is known here: everything is counted on the CPU",)
    if named:
        numbers = [re.search(r"(\d+)$", word) for word in str(named).split(",")]
        picked = [int(match[1]) for match in numbers if match]
        visible = tuple(visible[number] for number in picked if number < len(visible))
    if launch.get("split_mode") == "none":
        main = int(launch.get("main_gpu", 0))
        visible = visible[main : main + 1]
    return visible, ()


def _shares(launch: Launch, devices: tuple[Gpu, ...]) -> list[float]:
    """The cumulative, normalised split points in single precision: -ts, else the free memory of each device."""
    given = re.split(r"[,/]+", str(launch.get("tensor_split") or ""))
    numbers = [float(word) for word in given if re.fullmatch(r"\s*\d+(\.\d*)?\s*", word)][: len(devices)]
    numbers += [0.0] * (len(devices) - len(numbers))
    if not any(numbers):
        numbers = [float(gpu.memory_free or gpu.memory_total or 1) for gpu in devices]
    sums, total = [], 0.0
    for number in numbers:
        total = _single(total + _single(number))
        sums.append(total)
    return [_single(part / total) for part in sums] if total else []


def _single(number: float) -> float:
    (value,) = struct.unpack("f", struct.pack("f", number))
    return float(value)


class ModelBuffers(Struct, frozen=True, kw_only=True):
    """Model buffers in bytes: on each device the sum of its tensors, on the host what is mapped or read."""

    on_device: tuple[int, ...]
    on_host: int
    host_name: str
    """The buffer's name in the log: ``CPU_Mapped`` where the file is mapped, ``CPU`` where it is read."""
    estimate: Counted | None = None
    """Where no file was read: the count behind the sizes."""
    scattered: str = ""
    """Why tensors may lie elsewhere."""

    def certainty(self, size: int) -> Certainty:
        """Of one of the buffers."""
        least, most = (self.estimate.least, self.estimate.most) if self.estimate else (1.0, 1.0)
        if self.scattered:
            return Estimate(low=0, high=round((self.on_host + sum(self.on_device)) * most), why=self.scattered)
        if self.estimate is None:
            return "exact"
        return Estimate(low=round(size * least), high=round(size * most), why=self.estimate.why)


def model_buffers(launch: Launch, model: Model, split: Split, trunk: int) -> ModelBuffers | None:
    """The model buffers of the launch; None where neither the tensors of the file nor the configuration are known.

    ``trunk``: number of layers without multi-token prediction, whose tensors are loaded only for a draft context.
    """
    tensors = model.source.gguf_tensors if model.source.weight_bytes is not None else ()
    estimate = None if tensors else counted(launch, model)
    groups = [group for group in (estimate.groups if estimate else tensors) if _loaded(group, launch, trunk)]
    if not groups:
        return None
    on_device = [0] * len(split.devices)
    host: list[TensorGroup] = []
    for group in groups:
        device = _device_of(group, split)
        if device == HOST or _kept_on_host(group, launch):
            host.append(group)
        else:
            on_device[device] += group.bytes
    if split.output != HOST and model.tied_embeddings:
        # The embedding is the output too: a second copy on the output's device (TENSOR_DUPLICATED).
        on_device[split.output] += sum(group.bytes for group in groups if _is_token_embedding(group, model))
    mapped = maps_file(launch)
    scattered = bool(launch.get("override_tensor")) or launch.get("split_mode") in ("row", "tensor")
    return ModelBuffers(
        on_device=tuple(on_device),
        on_host=_mapped_range(host) if mapped and estimate is None else sum(group.bytes for group in host),
        host_name="CPU_Mapped" if mapped else "CPU",
        estimate=estimate,
        scattered=SCATTERED if scattered else "",
    )


def maps_file(launch: Launch) -> bool:
    """Whether the file is mapped into memory (the default) rather than read."""
    return launch.get("mmap") is not False and launch.get("load_mode") not in ("none", "mlock", "dio")


def _loaded(group: TensorGroup, launch: Launch, trunk: int) -> bool:
    if group.kind == "mtp" or (group.layer is not None and group.layer >= trunk):
        return "draft-mtp" in str(launch.get("spec_type") or "")
    return True


def _device_of(group: TensorGroup, split: Split) -> int:
    if group.layer is not None:
        return split.of_layer[min(group.layer, len(split.of_layer) - 1)]
    if group.kind == "embedding":
        return HOST
    if group.kind in ("output", "norm"):
        return split.output
    # rope_freqs and their kin are created with the first layer (TENSOR_DUPLICATED for the others of other devices).
    return split.of_layer[0]


def _kept_on_host(group: TensorGroup, launch: Launch) -> bool:
    """-cmoe and -ncmoe leave the experts of all or of the first layers on the CPU."""
    if group.kind != "experts" or group.layer is None:
        return False
    return bool(launch.get("cpu_moe")) or group.layer < int(launch.get("n_cpu_moe") or 0)


def _is_token_embedding(group: TensorGroup, model: Model) -> bool:
    return group.kind == "embedding" and group.elements == model.vocabulary * model.hidden_size


def _mapped_range(groups: list[TensorGroup]) -> int:
    """What is mapped of each file: from its first tensor on the host to its last (get_mapping_range of the loader)."""
    total = 0
    for file in {group.file for group in groups}:
        here = [group for group in groups if group.file == file]
        total += max(group.end or 0 for group in here) - min(group.start or 0 for group in here)
    return total
