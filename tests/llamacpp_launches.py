"""Launches of llama-server for the tests: as typed, resolved and forecast in one call."""

from __future__ import annotations

from llmdoctor_core import runtimes
from llmdoctor_core.facts import Forecast, Gpu, Gpus, LaunchRequest, Model

RUNTIME = runtimes.runtime("llamacpp")
_VALUES = {
    "c": "-c", "np": "-np", "ctk": "-ctk", "ctv": "-ctv", "ub": "-ub", "b": "-b", "fa": "-fa",
    "per_slot": "--kv-unified-per-slot",
}  # fmt: skip
_BARE = {"swa_full": "--swa-full", "kvu": "--kv-unified"}


def stand_ins(count: int, free: int = 8 << 30) -> Gpus:
    """GPUs that have nothing but memory."""
    return Gpus(
        devices=tuple(
            Gpu(index=number, visible_as=number, name="stand-in", memory_total=free, memory_free=free)
            for number in range(count)
        )
    )


TWO = stand_ins(2)


def typed(flags: dict[str, object]) -> tuple[str, ...]:
    """The flags of a measurement as they were typed; warm-up and repacking were off in all of them."""
    words = ["--no-warmup", "-nr"]
    for name, value in flags.items():
        if name == "fit":
            words += ["-fit", "on" if value else "off"]
        elif name in _BARE:
            words += [_BARE[name]]
        else:
            words += [_VALUES[name], str(value)]
    return tuple(words)


def forecast(
    model: Model,
    *arguments: str,
    build: str | None = "b11434",
    gpus: Gpus | None = None,
    draft: Model | None = None,
) -> Forecast:
    """The forecast of ``llama-server`` with these arguments."""
    request = LaunchRequest(runtime="llamacpp", argv=("llama-server", *arguments), version=build)
    return RUNTIME.forecast(RUNTIME.resolve(request, model, gpus), model, gpus, draft, None)
