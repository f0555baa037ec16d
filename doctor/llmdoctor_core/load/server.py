"""Reads a server that runs: release, model, cache configuration, and signs of trouble in its metrics over a while."""

from __future__ import annotations

import sys
import time
from functools import lru_cache
from importlib import resources
from typing import Any, Literal

import msgspec
from msgspec import Struct

from llmdoctor_core.errors import InputError
from llmdoctor_core.facts import Figure, Forecast, Launch, Unavailable
from llmdoctor_core.finding import Finding, seen, warn

from .ask import Client, Sample, metrics
from .compare import Row, compare
from .findings import differs

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

POLLS = 5
"""How often within the interval gauges are looked at."""


class Sign(Struct, frozen=True, kw_only=True):
    """A metric that shows trouble, as data/metrics.toml describes it."""

    runtime: str
    name: str
    kind: Literal["counter", "gauge", "ratio"]
    names: tuple[str, ...]
    unit: str
    source: str
    of: tuple[str, ...] = ()
    warn_above: float | None = None
    warn_below: float | None = None
    says: str = ""
    do: str = ""


class Seen(Struct, frozen=True, kw_only=True):
    """What a sign showed: over the interval for counters and ratios, at its highest for gauges."""

    sign: Sign
    value: float | None
    """None where nothing happened that it could be told from (no token drafted in the interval)."""
    metric: str

    @property
    def trouble(self) -> bool:
        if self.value is None:
            return False
        above, below = self.sign.warn_above, self.sign.warn_below
        return (above is not None and self.value > above) or (below is not None and self.value < below)


class ServerReading(Struct, frozen=True, kw_only=True):
    """What a running server says of itself."""

    url: str
    runtime: str
    version: str | None
    model: str | None
    max_model_len: int | None
    cache_config: dict[str, str] = {}
    """vLLM's cache configuration as its metrics show it; llama-server's slots and context."""
    figures: tuple[Figure, ...] = ()
    interval: float = 0.0
    signs: tuple[Seen, ...] = ()
    unread: dict[str, str] = {}
    """Endpoints that did not answer, and why."""


@lru_cache(maxsize=1)
def _signs() -> tuple[Sign, ...]:
    text = resources.files(__package__).joinpath("data/metrics.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text)["sign"], tuple[Sign, ...])


def read_server(url: str, *, key: str | None = None, interval: float = 5.0) -> ServerReading:
    """Ask a running server, and watch its metrics for ``interval`` seconds. Changes nothing and sends no request to the
    model. Raises InputError where nothing answers there, or something that is neither vLLM nor llama-server.
    """
    client = Client(url, key=key)
    runtime, version, unread = _identify(client)
    listed = client.get("/v1/models")
    if not listed.ok:
        unread["/v1/models"] = _why(listed.status, listed.body)
    model, length = _model(listed.json())
    config, figures = _configuration(client, runtime, unread)
    signs = _watch(client, runtime, interval, unread)
    return ServerReading(
        url=client.url,
        runtime=runtime,
        version=version,
        model=model,
        max_model_len=length,
        cache_config=config,
        figures=tuple(figures),
        interval=interval,
        signs=signs,
        unread=unread,
    )


def figures_of(client: Client) -> tuple[Figure, ...]:
    """What the server's own endpoints say of its cache, as figures; empty where it says nothing."""
    return tuple(_vllm_cache(client)[1] or _llamacpp_cache(client, {})[1])


def _identify(client: Client) -> tuple[str, str | None, dict[str, str]]:
    version = client.get("/version")
    if version.status == 0:
        raise InputError(f"{client.url}: no server answers there ({version.body})")
    said = version.json()
    if version.ok and isinstance(said, dict) and isinstance(said.get("version"), str):
        return "vllm", said["version"], {}
    if version.status in (401, 403):
        raise InputError(f"{client.url}: the server asks for a key (HTTP {version.status}): set LLMDOCTOR_API_KEY")
    props = client.get("/props")
    said = props.json()
    if isinstance(said, dict) and "build_info" in said:
        return "llamacpp", str(said["build_info"]), {}
    if props.status == 503:
        raise InputError(f"{client.url}: llama-server is still loading its model")
    if client.get("/metrics").body.find("vllm:") >= 0:
        return "vllm", None, {"/version": _why(version.status, version.body)}
    raise InputError(f"{client.url}: neither vLLM (/version) nor llama-server (/props) answers there")


def _why(status: int, body: str) -> str:
    return f"HTTP {status}" if status else body


def _model(listed: Any) -> tuple[str | None, int | None]:
    data = listed.get("data") if isinstance(listed, dict) else None
    if not isinstance(data, list) or not data or not isinstance(data[0], dict):
        return None, None
    first = data[0]
    length = first.get("max_model_len") or (first.get("meta") or {}).get("n_ctx")
    name = first.get("root") or first.get("id")
    return (str(name) if name else None), (length if isinstance(length, int) else None)


def _configuration(client: Client, runtime: str, unread: dict[str, str]) -> tuple[dict[str, str], list[Figure]]:
    if runtime == "vllm":
        config, figures = _vllm_cache(client)
        if not config:
            unread["vllm:cache_config_info"] = "not among the metrics"
        return config, figures
    return _llamacpp_cache(client, unread)


_VLLM_FIGURES = {
    "num_gpu_blocks": "blocks",
    "effective_attention_block_size": "block_tokens",
    "kv_cache_size_tokens": "cache_tokens",
    "kv_cache_max_concurrency": "max_concurrency",
}
"""Labels of ``vllm:cache_config_info`` to figures."""


def _vllm_cache(client: Client) -> tuple[dict[str, str], list[Figure]]:
    samples = metrics(client.get("/metrics").body).get("vllm:cache_config_info", [])
    if not samples:
        return {}, []
    config = samples[0].labels
    figures = []
    for sample in samples:
        engine = sample.labels.get("engine")
        for label, name in _VLLM_FIGURES.items():
            value = _number(sample.labels.get(label))
            if value is not None:
                device = engine if len(samples) > 1 else None
                # a forecast gives the concurrency as the log prints it, with two decimals; here it is not rounded
                step = 0.01 if name == "max_concurrency" else 0.0
                figures.append(Figure(name=name, value=value, step=step, device=device, source=f"/metrics {label}"))
    return config, figures


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text is not None else None
    except ValueError:
        return None


def _llamacpp_cache(client: Client, unread: dict[str, str]) -> tuple[dict[str, str], list[Figure]]:
    config: dict[str, str] = {}
    figures: list[Figure] = []
    props = client.get("/props")
    said = props.json()
    if props.ok and isinstance(said, dict):
        for name in ("model_path", "model_ftype", "total_slots", "build_info"):
            if name in said:
                config[name] = str(said[name])
        context = (said.get("default_generation_settings") or {}).get("n_ctx")
        if isinstance(context, int):
            config["slot_tokens"] = str(context)
            figures.append(Figure(name="slot_tokens", value=context, source="/props n_ctx"))
        if isinstance(said.get("total_slots"), int):
            figures.append(Figure(name="slots", value=said["total_slots"], source="/props total_slots"))
    else:
        unread["/props"] = _why(props.status, props.body)
    slots = client.get("/slots")
    listed = slots.json()
    if slots.ok and isinstance(listed, list):
        contexts = {str(slot.get("n_ctx")) for slot in listed if isinstance(slot, dict)}
        config["slots"] = f"{len(listed)} with n_ctx {', '.join(sorted(contexts))}"
    else:
        unread["/slots"] = _why(slots.status, slots.body)
    return config, figures


def _watch(client: Client, runtime: str, interval: float, unread: dict[str, str]) -> tuple[Seen, ...]:
    answer = client.get("/metrics")
    if not answer.ok:
        hint = " (llama-server needs --metrics)" if runtime == "llamacpp" else ""
        unread["/metrics"] = _why(answer.status, answer.body[:100]) + hint
        return ()
    rounds = [metrics(answer.body)]
    for _ in range(POLLS if interval > 0 else 0):
        time.sleep(interval / POLLS)
        again = client.get("/metrics")
        if again.ok:
            rounds.append(metrics(again.body))
    wanted = [sign for sign in _signs() if sign.runtime == runtime]
    return tuple(found for sign in wanted if (found := observe(sign, rounds)) is not None)


def observe(sign: Sign, rounds: list[dict[str, list[Sample]]]) -> Seen | None:
    """What the sign showed over rounds of metrics; None where the server has none of its metrics."""
    first, last = rounds[0], rounds[-1]
    metric = next((name for name in sign.names if name in last), None)
    if metric is None:
        return None
    if sign.kind == "gauge":
        return Seen(sign=sign, value=max(_sum(found, (metric,)) for found in rounds), metric=metric)
    change = _sum(last, (metric,)) - _sum(first, (metric,))
    if sign.kind == "counter":
        return Seen(sign=sign, value=max(change, 0.0), metric=metric)
    whole = _sum(last, sign.of) - _sum(first, sign.of)
    return Seen(sign=sign, value=change / whole if whole > 0 else None, metric=metric)


def _sum(found: dict[str, list[Sample]], names: tuple[str, ...]) -> float:
    """Over all engines and models; a usage, which is a share, at its highest."""
    values = [sample.value for name in names for sample in found.get(name, [])]
    if any(name.endswith(("_perc", "_ratio")) for name in names):
        return max(values, default=0.0)
    return sum(values)


def rows(reading: ServerReading, forecast: Forecast | Unavailable) -> tuple[Row, ...]:
    """The server's cache beside the forecast of the deployment's arguments."""
    return () if isinstance(forecast, Unavailable) else compare(forecast, reading.figures)


def findings(
    reading: ServerReading, forecast: Forecast | Unavailable, launch: Launch | Unavailable
) -> tuple[Finding, ...]:
    """Where the server differs from the deployment's arguments, and the trouble that its metrics show."""
    found = [*_differences(reading, launch), *_outside(reading, forecast)]
    for shown in reading.signs:
        if shown.trouble:
            found.append(
                warn(
                    "{sign} {value} {when}: {says}; {do}",
                    evidence=(seen(shown.metric, _shown(shown), f"{reading.url}/metrics"),),
                    sign=shown.sign.name,
                    value=_shown(shown),
                    when=f"within {reading.interval:g} s" if shown.sign.kind != "gauge" else "at the most",
                    says=shown.sign.says,
                    do=shown.sign.do,
                ).of("LOAD005", "serving-under-pressure", None)
            )
    return tuple(found)


def _shown(shown: Seen) -> str:
    if shown.value is None:
        return "-"
    return f"{shown.value:.0%}" if shown.sign.unit == "ratio" else f"{shown.value:,.0f}"


def _differences(reading: ServerReading, launch: Launch | Unavailable) -> list[Finding]:
    """Settings that the server runs with and the deployment's arguments do not say."""
    if isinstance(launch, Unavailable):
        return []
    pairs: list[tuple[str, object, object, str]] = []
    if reading.runtime != launch.runtime:
        pairs.append(("runtime", launch.runtime, reading.runtime, "/version"))
    elif not launch.version_assumed and reading.version and reading.runtime == "vllm":
        pairs.append(("version", launch.version, reading.version, "/version"))
    length = launch.get("max_model_len")
    if reading.runtime == "vllm" and isinstance(length, int) and reading.max_model_len:
        pairs.append(("max_model_len", length, reading.max_model_len, "/v1/models"))
    for argument, label in (
        ("gpu_memory_utilization", "gpu_memory_utilization"),
        ("enable_prefix_caching", "enable_prefix_caching"),
        ("kv_cache_dtype", "cache_dtype"),
        ("mamba_cache_mode", "mamba_cache_mode"),
    ):
        if label in reading.cache_config and launch.get(argument) is not None:
            pairs.append((argument, launch[argument], reading.cache_config[label], "/metrics cache_config_info"))
    return [
        warn(
            "the server runs with {setting} {have}; the deployment's arguments give {wanted}",
            evidence=(seen(setting, have, f"{reading.url}{source}"),),
            setting=setting,
            have=str(have),
            wanted=str(wanted),
        ).of("LOAD006", "server-differs-from-launch", None)
        for setting, wanted, have, source in pairs
        if not _same(wanted, have)
    ]


def _same(wanted: object, have: object) -> bool:
    if isinstance(wanted, float):
        number = _number(str(have))
        return number is not None and abs(number - wanted) < 1e-6
    return str(wanted) == str(have)


def _outside(reading: ServerReading, forecast: Forecast | Unavailable) -> list[Finding]:
    return [differs(row, reading.url) for row in rows(reading, forecast) if row.verdict == "outside"]


def reading_text(reading: ServerReading) -> list[str]:
    """What the server says of itself, one line each, for a terminal."""
    lines = [f"{reading.runtime} {reading.version or 'of unknown release'} at {reading.url}: {reading.model or '-'}"]
    if reading.max_model_len:
        lines.append(f"  context {reading.max_model_len:,} tokens")
    lines += [f"  {figure.name.replace('_', ' ')} {figure.value:,.10g}" for figure in reading.figures]
    for shown in reading.signs:
        over = f"in {reading.interval:g} s" if shown.sign.kind != "gauge" else "at the most"
        lines.append(f"  {shown.sign.name:<24} {_shown(shown):>10} {over}")
    lines += [f"  not read: {endpoint}: {why}" for endpoint, why in reading.unread.items()]
    return lines
