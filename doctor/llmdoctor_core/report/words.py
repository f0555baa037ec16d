"""What every format says in the same words: what was examined, the verdict, the figures of a cache."""

from __future__ import annotations

from llmdoctor_core.examine import Examination
from llmdoctor_core.facts import CacheForecast, Forecast, Gpus, Launch, ModelSource
from llmdoctor_core.finding import Outcome
from llmdoctor_core.text import clean
from llmdoctor_core.units import gib

PARTS = (
    ("weights", "weights", "blue"),
    ("activations", "activations", "cyan"),
    ("graphs", "graphs", "magenta"),
    ("other", "other", "bright_black"),
    ("cache", "cache", "green"),
    ("headroom", "left", "white"),
)
"""Parts of a device's memory: field of ``DeviceMemory``, label, colour on a terminal."""


def subject(examination: Examination) -> str:
    """What was examined: runtime and version, model and where it was read, GPUs."""
    launch = examination.launch
    if not isinstance(launch, Launch):
        return ""
    version = f"{launch.version}{' (assumed: the newest known)' if launch.version_assumed else ''}"
    model = examination.case.model
    text = f"{launch.runtime} {version} · {launch.model or 'no model named'}"
    if isinstance(model, ModelSource):
        text += f" ({model.origin})"
    gpus = examination.case.gpus
    if isinstance(gpus, Gpus) and gpus.visible:
        text += f" · {_devices(gpus)}"
    return clean(text)


def model_notes(examination: Examination) -> tuple[str, ...]:
    """What a reader must know of how the model was read (from the catalogue, not from its own files; ...)."""
    model = examination.case.model
    return tuple(f"{model.name}: {note}" for note in model.notes) if isinstance(model, ModelSource) else ()


def verdict(examination: Examination) -> tuple[str, Outcome]:
    """The answer in one line, and the outcome whose colour it has."""
    refused = examination.forecast.refused if isinstance(examination.forecast, Forecast) else None
    if refused:
        return f"WILL NOT START  {refused.code}: {clean(refused.message)}", Outcome.FAIL
    if count := examination.count(Outcome.FAIL):
        return f"NOT READY  {count} {_plural('problem', count)} below", Outcome.FAIL
    if count := examination.count(Outcome.ERROR):
        return f"COULD NOT TELL  {count} {_plural('check', count)} crashed", Outcome.ERROR
    unknown = examination.count(Outcome.SKIP)
    note = f"; {unknown} checks could not be made for want of facts" if unknown else ""
    if count := examination.count(Outcome.WARN):
        return f"READY with {count} {_plural('warning', count)}{note}", Outcome.WARN
    return f"READY as far as seen{note}", Outcome.PASS


def _devices(gpus: Gpus) -> str:
    names: dict[str, int] = {}
    for gpu in gpus.visible:
        names[gpu.name] = names.get(gpu.name, 0) + 1
    text = ", ".join(f"{count} x {name}" if count > 1 else name for name, count in names.items())
    return f"{text} (assumed)" if gpus.assumed else text


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"


def cache_rows(cache: CacheForecast) -> list[tuple[str, str]]:
    """Label and value of everything that is known of a cache."""
    rows = [
        (
            f"one request of {cache.request_tokens:,} tokens",
            f"{gib(cache.bytes_per_request)} ({cache.bytes_per_token:,.0f} bytes a token)",
        )
    ]
    for part in cache.parts:
        window = f", window {part.window:,}" if part.window else ""
        rows.append((f"  {part.layers} {part.kind} layers{window}", f"{gib(part.bytes)}, grows with {part.grows_with}"))
    if cache.state_bytes:
        rows.append(("recurrent state", gib(cache.state_bytes)))
    if cache.bytes is not None:
        rows.append(("cache", gib(cache.bytes)))
    if cache.blocks is not None:
        rows.append(("blocks", f"{cache.blocks:,} of {cache.block_tokens or 0:,} tokens"))
    if cache.tokens is not None:
        bounds = cache.tokens_certainty
        within = f" (estimate {bounds.low:,.0f} to {bounds.high:,.0f})" if bounds else ""
        rows.append(("cache.tokens", f"{cache.tokens:,}{within}"))
    if cache.max_concurrency is not None:
        rows.append(("max_concurrency", f"{cache.max_concurrency:.2f}x"))
    if cache.slot_tokens is not None:
        rows.append(("one slot's context", f"{cache.slot_tokens:,} tokens"))
    return rows
