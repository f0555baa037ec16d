"""Forecasts a start that somebody else logged and puts the forecast beside what their server printed.

A row holds what the log told: ``settings`` (n_ctx, n_seq_max, n_ubatch, kv_unified, flash_attn, arch),
``structure_printed`` (n_layer, n_head_kv, n_embd_head_k, n_swa, ...) and ``printed`` (caches, states, buffers).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from llmdoctor_core.errors import InputError
from llmdoctor_core.facts import Forecast, LaunchRequest, Model, ModelSource
from llmdoctor_core.models.gguf_describe import describe_gguf
from llmdoctor_core.runtimes.numbers import WHOLE

from . import NEWEST, forecast, resolve

MIB = 1 << 20
_ARCHITECTURES = {"gpt": "gpt-oss"}
"""Names that the log's pattern cut at a hyphen."""
_SSM = {
    "ssm_d_conv": "ssm.conv_kernel",
    "ssm_d_inner": "ssm.inner_size",
    "ssm_d_state": "ssm.state_size",
    "ssm_n_group": "ssm.group_count",
    "ssm_dt_rank": "ssm.time_step_rank",
}


class Replayed(Struct, frozen=True, kw_only=True):
    """One logged start: the figures as forecast and as printed, in MiB with two decimals as the server prints them."""

    id: str
    model: str
    version: str
    skipped: str | None = None
    """Why the row does not say enough to forecast it."""
    predicted: tuple[str, ...] = ()
    printed: tuple[str, ...] = ()
    predicted_mib: float | None = None
    printed_mib: float | None = None
    """Attention caches in all."""

    @property
    def equal(self) -> bool:
        """Whether every cache and state came out as printed."""
        return self.skipped is None and self.predicted == self.printed


def replay(row: Mapping[str, Any]) -> Replayed:
    """The row forecast from its settings and the structure the log printed; a row that says too little is skipped."""
    blank = Replayed(
        id=str(row.get("id")),
        model=str(row.get("model")),
        version=str(row.get("version") or f"not told, {NEWEST} assumed"),
    )
    try:
        made = _forecast(row, model_of(row))
    except InputError as error:
        return replace(blank, skipped=str(error))
    if made.cache is None:
        return replace(blank, skipped=made.refused.message if made.refused else "no cache is forecast")
    printed = row.get("printed") or {}
    return replace(
        blank,
        predicted=tuple(
            f"{part.bytes / MIB:.2f} MiB, {part.layers} layers, {part.cells} cells"
            for part in made.cache.parts
            if part.kind != "state"
        )
        + ((f"states {made.cache.state_bytes / MIB:.2f} MiB",) if made.cache.state_bytes else ()),
        printed=tuple(
            f"{part['size_mib']:.2f} MiB, {part['layers']} layers, {part['cells']} cells"
            for part in printed.get("kv") or ()
            if part.get("layers")
        )
        + tuple(f"states {part['size_mib']:.2f} MiB" for part in printed.get("rs") or ()),
        predicted_mib=(made.cache.bytes or 0) / MIB,
        printed_mib=printed.get("kv_mib"),
    )


def model_of(row: Mapping[str, Any]) -> Model:
    """The model that the log's ``print_info`` lines describe. Raises InputError where they do not say enough."""
    return describe_gguf(source_of(row))


def source_of(row: Mapping[str, Any]) -> ModelSource:
    """What the log's ``print_info`` lines tell of the file. Raises InputError where they do not say enough."""
    where = f"log {row.get('id')}"
    structure, settings = row.get("structure_printed") or {}, row.get("settings") or {}
    name = _ARCHITECTURES.get(str(settings.get("arch")), settings.get("arch"))
    if not structure or not name:
        raise InputError(f"{where}: the log does not print the structure of the model")
    layers, heads = _whole(structure, "n_layer", where), _first(structure.get("n_head"))
    kv_heads = _list(structure.get("n_head_kv"))
    keys: dict[str, Any] = {
        "general.architecture": name,
        f"{name}.block_count": layers,
        f"{name}.context_length": _whole(structure, "n_ctx_train", where),
        f"{name}.embedding_length": int(structure.get("n_embd") or heads * _whole(structure, "n_embd_head_k", where)),
        f"{name}.attention.head_count": heads,
        f"{name}.attention.head_count_kv": kv_heads if len(kv_heads) > 1 else kv_heads[0],
        f"{name}.attention.key_length": _whole(structure, "n_embd_head_k", where),
        f"{name}.attention.value_length": _whole(structure, "n_embd_head_v", where),
    }
    if structure.get("n_swa"):
        keys[f"{name}.attention.sliding_window"] = structure["n_swa"]
    keys |= {f"{name}.{key}": structure[printed] for printed, key in _SSM.items() if printed in structure}
    if name == "gemma4":
        keys |= _gemma4(structure, name, kv_heads, layers, where, row)
    if name.startswith("nemotron_h"):
        raise InputError(
            f"{where}: the log does not print feed_forward_length by layer, which tells states from attention"
        )
    return ModelSource(name=str(row.get("model")), origin="log", where=where, gguf=keys, weight_format="gguf")


def _gemma4(
    structure: Mapping[str, Any], name: str, kv_heads: list[int], layers: int, where: str, row: Mapping[str, Any]
) -> dict[str, Any]:
    """Sliding layers have the smaller head; layers that share a cache are those that the log's caches do not count."""
    widths = _list(structure.get("n_embd_k_gqa"))
    if len(widths) != layers:
        raise InputError(f"{where}: the log does not print the width of every layer")
    per_layer = kv_heads * layers if len(kv_heads) == 1 else kv_heads
    heads = [width // max(kv, 1) for width, kv in zip(widths, per_layer, strict=True)]
    owning = sum(int(part.get("layers") or 0) for part in (row.get("printed") or {}).get("kv") or ())
    return {
        f"{name}.attention.key_length_swa": min(heads),
        f"{name}.attention.value_length_swa": min(heads),
        f"{name}.attention.sliding_window_pattern": [head == min(heads) for head in heads],
        f"{name}.attention.shared_kv_layers": max(layers - owning, 0),
    }


def _forecast(row: Mapping[str, Any], model: Model) -> Forecast:
    version = str(row["version"]) if row.get("version") else None
    request = LaunchRequest(runtime="llamacpp", argv=("llama-server", *words(row)), version=version)
    return forecast(resolve(request, model, None), model, None, None, None)


def words(row: Mapping[str, Any]) -> tuple[str, ...]:
    """The row's settings as they are typed. Raises InputError where the log does not print the context."""
    settings = row.get("settings") or {}
    where = f"log {row.get('id')}"
    arguments = ["-c", str(_whole(settings, "n_ctx", where)), "-np", str(settings.get("n_seq_max") or 1)]
    for name, flag in (("n_batch", "-b"), ("n_ubatch", "-ub")):
        arguments += [flag, str(settings[name])] if settings.get(name) else []
    if str(settings.get("kv_unified")).lower() == "true":
        arguments.append("--kv-unified")
    arguments += ["-fa", {"enabled": "on", "disabled": "off"}.get(str(settings.get("flash_attn")), "auto")]
    for part in ((row.get("printed") or {}).get("kv") or ())[:1]:
        for name, flag in (("k_type", "-ctk"), ("v_type", "-ctv")):
            arguments += [flag, part[name]] if part.get(name) else []
    return tuple(arguments)


def _whole(values: Mapping[str, Any], key: str, where: str) -> int:
    value = values.get(key)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{where}: the log does not print {key} as one number")
    return value


def _first(value: Any) -> int:
    return _list(value)[0]


def _list(value: Any) -> list[int]:
    """A number, a list, or a list printed as text."""
    if isinstance(value, str):
        value = [int(word) for word in value.strip("[]").split(",") if WHOLE.fullmatch(word)]
    if isinstance(value, list) and value:
        return [int(item) for item in value]
    return [int(value or 0)]
