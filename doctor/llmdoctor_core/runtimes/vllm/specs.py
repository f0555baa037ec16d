"""From a model and a launch to what each of vLLM's layers keeps, as the planner takes it.

Everything here is exact: shapes of the model, dtypes, block sizes and the split among ranks as the release makes them.
What differs between releases stands in ``data/specs.toml``.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, Literal

import msgspec
from msgspec import Struct

from llmdoctor_core.errors import InputError
from llmdoctor_core.facts import (
    AnyCache,
    ChunkedLocal,
    Compressed,
    Cross,
    Full,
    Gpus,
    Indexer,
    Latent,
    Launch,
    Layer,
    Model,
    Nothing,
    SharedWith,
    SlidingWindow,
    State,
)
from llmdoctor_core.models.keys import Keys
from llmdoctor_core.models.weights import stage_layers
from llmdoctor_core.runtimes.numbers import WHOLE

from . import planner, releases
from .length import derived_length
from .planner import Need, Spec
from .since import at, release, table

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "half": 2, "float": 4}
DSA_SCALE_ELEMENTS = 128
"""The indexer of DeepSeek sparse attention keeps one float32 scale for 128 FP8 elements."""
STATE_SIZES = {
    "gdn": {"key_heads", "key_dim", "value_heads", "value_dim", "conv_kernel"},
    "mamba2": {"groups", "inner", "state_size", "heads", "head_dim", "conv_kernel"},
    "mamba1": {"inner", "state_size", "conv_kernel"},
    "kda": {"heads", "head_dim", "conv_kernel"},
    "short_conv": {"channels", "conv_kernel"},
    "linear": {"heads", "head_dim"},
}
"""Parameters that each kind of state is worked out from."""
NGRAM_LIKE = ("ngram", "ngram_gpu", "suffix", "[ngram]")
"""Speculative methods without layers of their own."""


class KvDtype(Struct, frozen=True, kw_only=True):
    """How a KV dtype stores a token; see ``data/specs.toml``."""

    name: str
    since: str
    bits: int
    head: int = 0
    scaled: int | None = None
    key_bits: int | None = None
    value_bits: int | None = None
    token: int | None = None
    mla: bool = False
    source: str = ""


class Rules(Struct, frozen=True, kw_only=True):
    """What of a release decides the specs; see ``data/specs.toml`` for each row's source."""

    prefix_types: tuple[str, ...]
    skip_layers_share_page: bool
    modules_retain_tokens: bool
    window_and_one_types: tuple[str, ...]
    checkpoint_kv_dtype: bool
    sparse_latent_auto: Literal["auto", "fp8_ds_mla"]
    own_value_dim: bool
    sliding_block: Literal["primary", "smallest"]
    window_block_fills_page: bool
    kv_dtype_ignored: tuple[str, ...]
    cpu_kernel_block: int
    in_flight: Literal["one batch", "concurrent batches"]
    chunked_with_hybrid_manager: bool
    connector_switches_off: Literal["always", "unless it supports it", "unless it and its children support it"]
    offloading_seen: bool
    one_manager_keeps_value_dim: bool
    events_switch_off: bool
    latent_hybrid_alignment: int
    blackwell_head_256_alignment: int
    speculative_state_blocks: bool
    convolution_speculates: tuple[str, ...]
    checkpoint_kinds: tuple[str, ...]
    gdn_checkpoint_alignment: int
    kda_checkpoints: bool
    qwen3_5_state_dtype: bool
    nemotron_h_state_dtype: str
    glm_dsa_fp8: bool


class Layout(Struct, frozen=True, kw_only=True):
    """What the planner is given: the specs of each pipeline stage's layers, and what it reads of the launch."""

    stages: tuple[tuple[Spec, ...], ...]
    need: Need
    kv_dtype: str
    block_size: int
    notes: tuple[str, ...] = ()


@lru_cache(maxsize=32)
def rules_for(version: str) -> Rules:
    """The rules of a release."""
    return msgspec.convert(at(table("specs.toml")["rule"], version), Rules)


@lru_cache(maxsize=1)
def kv_dtypes() -> dict[str, KvDtype]:
    """KV dtypes by name."""
    rows = msgspec.convert(table("specs.toml")["dtype"], tuple[KvDtype, ...])
    return {row.name: row for row in rows}


def layout(launch: Launch, model: Model, draft: Model | None, gpus: Gpus | None) -> Layout:
    """The specs of every layer of the launch. Raises InputError for a KV dtype or a layer this does not know."""
    return _Layout(launch, model, draft, capability_of(gpus)).build()


def capability_of(gpus: Gpus | None) -> tuple[int, int] | None:
    """Compute capability of the first GPU the server sees, or None."""
    visible = gpus.visible if gpus else ()
    return visible[0].compute_capability if visible else None


# ------------------------------------------------------------------ what decides dtypes


def kv_dtype_of(launch: Launch, model: Model, capability: tuple[int, int] | None) -> str:
    """The KV dtype in effect: ``auto`` resolved to the checkpoint's scheme or the model's dtype."""
    rules = rules_for(launch.version)
    asked = str(launch.get("kv_cache_dtype") or "auto")
    sparse = any(isinstance(cache, Latent) and cache.sparse for layer in model.layers for cache in layer.caches)
    if _compresses(model) and (asked == "auto" or asked.startswith("fp8")):
        return "fp8_ds_mla"
    if sparse and rules.sparse_latent_auto == "fp8_ds_mla" and (asked == "auto" or asked.startswith("fp8")):
        return "fp8_ds_mla"
    if asked == "bfloat16" and sparse:
        asked = "auto"
    stored = model.quantization.kv_cache if model.quantization else None
    if asked == "auto" and stored in ("fp8", "nvfp4") and rules.checkpoint_kv_dtype:
        return stored
    if (
        asked == "auto"
        and rules.glm_dsa_fp8
        and model.architecture == "GlmMoeDsaForCausalLM"
        and _major(capability) == 10
    ):
        asked = "fp8_e4m3"
    if asked == "auto":
        return model_dtype(launch, model)
    return asked


def model_dtype(launch: Launch, model: Model) -> str:
    """The dtype the model runs in: ``--dtype``, else its own; a float32 checkpoint runs in half precision."""
    asked = str(launch.get("dtype") or "auto")
    names = {"half": "float16", "float": "float32", "auto": model.dtype}
    dtype = names.get(asked, asked)
    return "bfloat16" if dtype == "float32" and asked == "auto" else dtype


def _major(capability: tuple[int, int] | None) -> int | None:
    return capability[0] if capability else None


def token_bytes(dtype: KvDtype, heads: int, key_dim: int, value_dim: int) -> int:
    """Bytes of one token in one attention layer: ``heads`` KV heads on this rank, keys and values.

    Source: v1/kv_cache_interface.py (AttentionSpec.page_size_bytes) and, for TurboQuant, its slot_size_aligned.
    """
    if dtype.key_bits is not None and dtype.value_bits is not None:
        key = key_dim if dtype.key_bits == 8 else _ceil(key_dim * dtype.key_bits, 8) + 2
        slot = key + _ceil(value_dim * dtype.value_bits, 8) + 4
        return heads * (slot + slot % 2)
    elements = key_dim + value_dim
    size = elements * dtype.bits // 8 + dtype.head
    if dtype.scaled:
        size += elements // dtype.scaled
    return heads * size


# ------------------------------------------------------------------ speculation


class Speculation(Struct, frozen=True, kw_only=True):
    """What of ``--speculative-config`` enters the cache."""

    method: str
    tokens: int
    layers: tuple[Layer, ...] = ()
    model: Model | None = None
    """The model whose shapes the layers have: the target itself for MTP."""
    retained_tokens: int = 0
    notes: tuple[str, ...] = ()


def speculation(launch: Launch, model: Model, draft: Model | None) -> Speculation | None:
    """The speculation of the launch, or None. Layers of a draft that could not be read are taken as the target's."""
    given = launch.get("speculative_config")
    if not isinstance(given, dict) or not given:
        return None
    tokens = int(given.get("num_speculative_tokens") or 0)
    method = str(given.get("method") or _method(given, draft))
    if method in NGRAM_LIKE:
        return Speculation(method=method, tokens=tokens)
    if method.endswith("mtp"):
        modules = model.mtp_layers
        first = model.layers[0].caches[0] if model.layers and model.layers[0].caches else None
        if isinstance(first, Compressed):  # its prediction layers keep the window only
            alone = Layer(caches=(Compressed(window=first.window, ratio=0, dim=first.dim),))
            modules = tuple(alone for _ in modules)
        tokens = tokens or len(modules)
        several = rules_for(launch.version).modules_retain_tokens and min(len(modules), tokens) > 1
        retained = tokens - 1 if several else 0
        return Speculation(method="mtp", tokens=tokens, layers=modules, model=model, retained_tokens=retained)
    if draft is not None:
        return Speculation(method=method, tokens=tokens, layers=draft.layers, model=draft)
    if method in ("eagle", "eagle3"):
        own = next(
            (layer for layer in model.layers if isinstance(layer.caches[0], Full | SlidingWindow | Latent)), None
        )
        note = "the EAGLE head was not read: one layer of the target's shape is assumed"
        return Speculation(method=method, tokens=tokens, layers=(own,) if own else (), model=model, notes=(note,))
    return Speculation(method=method, tokens=tokens, notes=("the draft model was not read: its cache is left out",))


def _method(given: dict[str, Any], draft: Model | None) -> str:
    if str(given.get("model") or "") in NGRAM_LIKE:
        return "ngram"
    architecture = draft.architecture.lower() if draft else ""
    for name in ("eagle3", "eagle", "medusa"):
        if name in architecture:
            return name
    return "draft_model" if given.get("model") else "mtp"


# ------------------------------------------------------------------ the hybrid manager and the runner


def one_manager(launch: Launch, model: Model, speculates: Speculation | None) -> bool:
    """Whether the hybrid KV cache manager is off: asked for, or forced by what it does not support."""
    rules = rules_for(launch.version)
    asked = launch.get("disable_hybrid_kv_cache_manager")
    if launch.given("disable_hybrid_kv_cache_manager") and asked is not None:
        return bool(asked)
    chunked = any(isinstance(cache, ChunkedLocal) for layer in model.layers for cache in layer.caches)
    allowed = launch.environment.get("VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE")
    if chunked:
        if speculates is not None and speculates.method in ("eagle", "eagle3", "mtp"):
            return True
        if not (rules.chunked_with_hybrid_manager if allowed is None else allowed.strip() == "1"):
            return True
    if launch.get("kv_events_config") and rules.events_switch_off:
        return True
    connector = connector_of(launch)
    given = launch.get("kv_transfer_config")
    if connector is None or not (given or rules.offloading_seen):
        return False
    if rules.connector_switches_off == "always":
        return True
    held: list[str] = []
    if connector == "MultiConnector" and rules.connector_switches_off == "unless it and its children support it":
        held = [str(config.get("kv_connector")) for config in releases.connectors(given)[1:]]
        if not held:  # all_children_support_hma is false without children
            return True
    return not all(works_with_hybrid_manager(name, launch.version) for name in (connector, *held))


def connector_of(launch: Launch) -> str | None:
    """Class name of the KV connector, given or chosen by ``--kv-offloading-size``."""
    given = launch.get("kv_transfer_config")
    if isinstance(given, dict) and given.get("kv_connector"):
        return str(given["kv_connector"])
    if launch.get("kv_offloading_size"):
        backend = str(launch.get("kv_offloading_backend") or "native")
        return "OffloadingConnector" if backend == "native" else "LMCacheConnectorV1"
    return None


def works_with_hybrid_manager(connector: str, version: str) -> bool:
    """Whether the KV connector's class derives from SupportsHMA in this release; False for a class not known."""
    era = releases.release(version).connector(connector)
    if era is not None:
        return era.hybrid
    rows = table("specs.toml")["unregistered_connector"]
    return any(row["name"] == connector and release(row["since"]) <= release(version) for row in rows)


def in_flight_tokens(launch: Launch) -> int:
    """Tokens scheduled and not yet settled (config/vllm.py: max_in_flight_tokens; one batch before 0.26)."""
    batched = int(launch["max_num_batched_tokens"])
    if rules_for(launch.version).in_flight == "one batch":
        return batched
    return batched * concurrent_batches(launch)


def concurrent_batches(launch: Launch) -> int:
    """Batches that may be scheduled at once (config/vllm.py: max_concurrent_batches)."""
    stages = int(launch.get("pipeline_parallel_size") or 1)
    if not launch.get("async_scheduling"):
        return stages
    if launch.get("model_runner") == "V2":
        return stages + 1
    return 2 if stages <= 1 else stages


def max_model_len(launch: Launch, model: Model) -> int:
    """The maximum length before any fitting."""
    asked = launch.get("max_model_len")
    if isinstance(asked, int) and asked > 0:
        return asked
    return derived_length(model, launch.version).default


def _compresses(model: Model) -> bool:
    """DeepSeek V4, whose backends put the block outermost so that pages of many sizes are packed into one."""
    return any(isinstance(cache, Compressed) for layer in model.layers for cache in layer.caches)


def _has_state(model: Model) -> bool:
    return any(isinstance(cache, State) for layer in model.layers for cache in layer.caches)


def stage_partition(launch: Launch) -> tuple[int, ...] | None:
    """Layers of each pipeline stage as VLLM_PP_LAYER_PARTITION gives them, or None. Raises InputError."""
    given = launch.environment.get("VLLM_PP_LAYER_PARTITION")
    if not given:
        return None
    parts = [int(part) if WHOLE.fullmatch(part) else 0 for part in given.split(",")]
    if not all(parts):
        raise InputError(f"VLLM_PP_LAYER_PARTITION is {given!r}; it must be numbers of layers above 0, with commas")
    return tuple(parts)


# ------------------------------------------------------------------ the layers


class _Layout:
    """One launch's specs; what is the same for all layers is worked out once."""

    def __init__(self, launch: Launch, model: Model, draft: Model | None, capability: tuple[int, int] | None) -> None:
        self.launch = launch
        self.model = model
        self.capability = capability
        self.rules = rules_for(launch.version)
        self.planning = planner.rules_for(launch.version)
        self.tensor = int(launch.get("tensor_parallel_size") or 1)
        self.dtype = model_dtype(launch, model)
        self.kv_dtype = kv_dtype_of(launch, model, capability)
        self.speculates = speculation(launch, model, draft)
        self.tokens = self.speculates.tokens if self.speculates else 0
        self.one_manager = one_manager(launch, model, self.speculates)
        self.window_values_forgotten = self.one_manager and not self.rules.one_manager_keeps_value_dim
        self.notes: list[str] = list(self.speculates.notes) if self.speculates else []
        self.mode = self._mode()
        self.state_page = self._largest_state()
        self.kernel_block = self.rules.cpu_kernel_block if launch.platform == "cpu" else 16
        self.shared_page: int | None = None
        self.primary_block = self._primary_block()

    def build(self) -> Layout:
        launch = self.launch
        stages = self._stages()
        batched = int(launch["max_num_batched_tokens"])
        need = Need(
            max_model_len=max_model_len(launch, self.model),
            in_flight_tokens=in_flight_tokens(launch),
            encoder_tokens=batched,
            context_shards=self._context_shards(),
            state_mode=self.mode,
            one_manager=self.one_manager,
            blocks_override=launch.get("num_gpu_blocks_override"),
            automatic_length=bool(launch.get("max_model_len_is_automatic")),
            retained_tokens=self.speculates.retained_tokens if self.speculates else 0,
            block_outermost=_compresses(self.model),
            device="CPU" if launch.platform == "cpu" and self.planning.device_named else "GPU",
        )
        return Layout(
            stages=stages,
            need=need,
            kv_dtype=self.kv_dtype,
            block_size=self.primary_block,
            notes=tuple(dict.fromkeys(self.notes)),
        )

    def _context_shards(self) -> int:
        decode = int(self.launch.get("decode_context_parallel_size") or 1)
        prefill = int(self.launch.get("prefill_context_parallel_size") or 1)
        return decode * prefill if self.planning.sharded_by_prefill else decode

    def _mode(self) -> str:
        if not _has_state(self.model):
            return "none"
        return str(self.launch.get("mamba_cache_mode") or "none")

    def _stages(self) -> tuple[tuple[Spec, ...], ...]:
        count = int(self.launch.get("pipeline_parallel_size") or 1)
        sizes = stage_partition(self.launch) or stage_layers(len(self.model.layers), count)
        stages, first = [], 0
        for size in sizes:
            layers = self.model.layers[first : first + size]
            stages.append([s for n, layer in enumerate(layers, first) for s in self._of_layer(layer, self.model, n)])
            first += size
        if self.speculates and self.speculates.model:
            own = self.speculates.model
            stages[-1] += [s for layer in self.speculates.layers for s in self._of_layer(layer, own, None)]
        return tuple(tuple(stage) for stage in stages)

    def _of_layer(self, layer: Layer, model: Model, number: int | None) -> list[Spec]:
        found: list[Spec] = []
        for cache in layer.caches:
            if isinstance(cache, Compressed):
                found += self._compressed(cache)
            elif (spec := self._of_cache(cache, model, number)) is not None:
                found.append(spec)
        return found

    def _compressed(self, cache: Compressed) -> list[Spec]:
        """DeepSeek V4's caches of a layer in the order in which they register (models/deepseek_v4/attention.py): the
        indexer and its compressor's state, the window, the compressed vectors and their compressor's state."""
        rows = table("specs.toml")["deepseek_v4"]
        block, found = self.primary_block, []
        if cache.index_dim and cache.ratio > 1:
            token = cache.index_dim + cache.index_dim // DSA_SCALE_ELEMENTS * 4
            found.append(_packed("latent", block, block // cache.ratio * token, None, "indexer", rows))
            found.append(_compressor_state(cache.ratio, cache.index_dim, "indexer state", rows))
        window = rows["window_block"]
        found.append(_packed("sliding latent", window, window * rows["token"], cache.window, "window", rows))
        if cache.ratio > 1:
            found.append(_packed("latent", block, block // cache.ratio * rows["token"], None, "latent", rows))
            found.append(_compressor_state(cache.ratio, cache.dim, "latent state", rows))
        return found

    def _of_cache(self, cache: AnyCache, model: Model, number: int | None) -> Spec | None:
        if isinstance(cache, Nothing | SharedWith):
            return None
        if isinstance(cache, Full | Cross):
            kind: planner.Kind = "cross" if isinstance(cache, Cross) else "full"
            return self._attention(kind, cache, None, number)
        if isinstance(cache, SlidingWindow):
            more = int(model.model_type in self.rules.window_and_one_types)
            return self._attention("sliding", cache, cache.window + more, number)
        if isinstance(cache, ChunkedLocal):
            return self._attention("chunked", cache, cache.chunk, number)
        if isinstance(cache, Latent):
            return self._latent(cache)
        if isinstance(cache, Indexer):
            token = cache.heads * (cache.key_dim + cache.key_dim // DSA_SCALE_ELEMENTS * 4)
            return Spec(
                kind="latent",
                block_size=self.primary_block,
                page=self.primary_block * token,
                content=("indexer", token),
            )
        if isinstance(cache, State):
            return self._state(cache)
        raise InputError(
            f"{model.name}: the cache of {type(cache).__name__} layers is not forecast for vLLM {self.launch.version}"
        )

    def _attention(
        self,
        kind: planner.Kind,
        cache: Full | Cross | SlidingWindow | ChunkedLocal,
        window: int | None,
        number: int | None,
    ) -> Spec:
        heads = max(1, cache.kv_heads // self.tensor)
        own = self.rules.own_value_dim and not (kind == "sliding" and self.window_values_forgotten)
        value = cache.value_dim if own else cache.key_dim
        name = self.dtype if self._unquantized(kind, number) else self.kv_dtype
        token = token_bytes(self._kv(name), heads, cache.key_dim, value)
        block = self._block_of(kind, token)
        padded = self.shared_page if kind == "sliding" else None
        return Spec(
            kind=kind,
            block_size=block,
            page=padded or block * token,
            unpadded=block * token if padded else None,
            content=(heads, cache.key_dim, value, name),
            window=window,
        )

    def _block_of(self, kind: planner.Kind, token: int) -> int:
        if kind == "sliding" and self.shared_page and self.rules.window_block_fills_page:
            return max(self.kernel_block, self.shared_page // token // self.kernel_block * self.kernel_block)
        if kind == "sliding" and self.rules.sliding_block == "smallest":
            return self.kernel_block
        return self.primary_block

    def _unquantized(self, kind: planner.Kind, number: int | None) -> bool:
        skipped = self.launch.get("kv_cache_dtype_skip_layers") or ()
        if self.model.config.get("model_type") in self.rules.kv_dtype_ignored:
            return True
        if number is None or self.kv_dtype == self.dtype:
            return False
        if str(number) in {str(entry) for entry in skipped}:
            return True
        if kind == "sliding" and "sliding_window" in skipped:
            return True
        # TurboQuant leaves the first and the last two layers of a dense model as they are.
        return self._boundary_skips() and (number < 2 or number >= len(self.model.layers) - 2)

    def _kv(self, name: str) -> KvDtype:
        known = kv_dtypes().get(name)
        if known is None:
            raise InputError(f"the KV cache dtype {name} of vLLM is not known to this llmdoctor")
        return known

    def _latent(self, cache: Latent) -> Spec:
        token = self._latent_token(cache)
        block = self.primary_block
        content = ("latent", cache.rank + cache.rope_dim, self._latent_dtype(cache))
        return Spec(kind="latent", block_size=block, page=block * token, content=content)

    def _latent_dtype(self, cache: Latent) -> str:
        quantized = self.kv_dtype.startswith("fp8")
        if cache.sparse and quantized and _major(self.capability) != 10:
            return "fp8_ds_mla"
        return self.kv_dtype

    def _latent_token(self, cache: Latent) -> int:
        dtype = self._kv(self._latent_dtype(cache))
        return dtype.token or (cache.rank + cache.rope_dim) * dtype.bits // 8

    def _state(self, cache: State) -> Spec:
        size = self.state_bytes(cache)
        keeps = cache.kind in self.rules.checkpoint_kinds or self._gdn_checkpoints() or self._kda_checkpoints(cache)
        padded = self.state_page_padded()
        return Spec(
            kind="state",
            block_size=self.primary_block if self.mode in ("align", "all") else max_model_len(self.launch, self.model),
            page=padded or size,
            unpadded=size if padded and padded != size else None,
            content=(cache.kind, *cache.shapes),
            speculative_blocks=self.tokens if self.rules.speculative_state_blocks else 0,
            checkpoint_blocks=int(keeps),
        )

    # -------------------------------------------------------------- states

    def state_bytes(self, cache: State) -> int:
        """Bytes of one sequence's state in one layer on one rank (MambaStateShapeCalculator of mamba_utils.py)."""
        conv, temporal = self.state_dtypes(cache)
        size, ranks = cache.parameters, self.tensor
        if missing := STATE_SIZES.get(cache.kind, set()) - size.keys():
            raise InputError(
                f"{self.model.name}: its files do not tell {', '.join(sorted(missing))} of its {cache.kind} layers, "
                "which vLLM's state is worked out from (a GGUF header has other words: give the model's config.json)"
            )
        more = self.tokens if cache.kind in self.rules.convolution_speculates else 0
        if cache.kind == "gdn":
            channels = 2 * size["key_heads"] * size["key_dim"] + size["value_heads"] * size["value_dim"]
            recurrent = size["value_heads"] // ranks * size["value_dim"] * size["key_dim"]
        elif cache.kind == "mamba2":
            groups = size["groups"] if size["groups"] % ranks == 0 else ranks
            channels = size["inner"] + 2 * groups * size["state_size"]
            recurrent = size["heads"] // ranks * size["head_dim"] * size["state_size"]
        elif cache.kind == "mamba1":
            channels, recurrent = size["inner"], size["inner"] // ranks * size["state_size"]
        elif cache.kind == "kda":
            channels = 3 * size["heads"] * size["head_dim"]
            recurrent = size["heads"] // ranks * size["head_dim"] ** 2
        elif cache.kind == "short_conv":
            channels, recurrent = size["channels"], 0
        elif cache.kind == "linear":
            return size["heads"] // ranks * size["head_dim"] ** 2 * temporal
        else:
            raise InputError(f"{self.model.name}: vLLM {self.launch.version} has no state of the kind {cache.kind}")
        return channels // ranks * (size["conv_kernel"] - 1 + more) * conv + recurrent * temporal

    def state_dtypes(self, cache: State) -> tuple[int, int]:
        """Bytes of an element of the convolution's and of the recurrent state. InputError for a strange dtype."""
        asked = str(self.launch.get("mamba_cache_dtype") or "auto")
        conv = self._state_bytes_of(self.dtype if asked == "auto" else asked)
        temporal = str(self.launch.get("mamba_ssm_cache_dtype") or "auto")
        if temporal == "auto":
            temporal = self._own_state_dtype(cache)
        return conv, conv if temporal == "auto" else self._state_bytes_of(temporal)

    def _state_bytes_of(self, dtype: str) -> int:
        if dtype not in BYTES:
            raise InputError(f"{self.model.name}: the dtype of a recurrent state is {dtype[:40]!r}, which vLLM has not")
        return BYTES[dtype]

    def _own_state_dtype(self, cache: State) -> str:
        text = self.model.text_config
        if cache.kind == "kda":
            return "float32"
        if cache.kind == "gdn" and self.rules.qwen3_5_state_dtype and "Qwen3_5" in self.model.architecture:
            # Every published Qwen3.5 names float32; a configuration without the key is an abridged one.
            return str(text.get("mamba_ssm_dtype") or "float32")
        if self.model.model_type == "nemotron_h" and self.rules.nemotron_h_state_dtype != "auto":
            return str(text.get("mamba_ssm_cache_dtype") or self.rules.nemotron_h_state_dtype)
        return "auto"

    def _largest_state(self) -> int:
        states = [cache for layer in self.model.layers for cache in layer.caches if isinstance(cache, State)]
        return max((self.state_bytes(cache) for cache in states), default=0)

    def state_page_padded(self) -> int | None:
        """A state's page in a model that has attention too: the attention page, so that blocks are alike."""
        token = self._token_of_hybrid()
        return self.primary_block * token if token else None

    def _gdn_checkpoints(self) -> bool:
        """FlashInfer's GDN prefill: on SM90, and on SM10x and SM12x with keys of 128 (needs CUDA 13)."""
        if not self.rules.gdn_checkpoint_alignment or self.mode != "align":
            return False
        major = _major(self.capability)
        state = next(c for layer in self.model.layers for c in layer.caches if isinstance(c, State))
        if state.kind != "gdn":
            return False
        return major == 9 or (major in (10, 12) and state.parameters["key_dim"] == 128)

    def _kda_checkpoints(self, cache: State) -> bool:
        """FlashKDA's prefill: on SM90, SM10x and SM12x, with keys of 128 and a gate that is bounded from below."""
        if not self.rules.kda_checkpoints or cache.kind != "kda" or self.launch.platform == "cpu":
            return False
        gates = self._text().below("linear_attn_config")
        bound = gates.number("gate_lower_bound") if gates else None
        wide = cache.parameters["head_dim"] == 128 and self.dtype == "bfloat16"
        return bound is not None and wide and _major(self.capability) in (9, 10, 12)

    # -------------------------------------------------------------- block size

    def _primary_block(self) -> int:
        given = self.launch.get("block_size") if self.launch.given("block_size") else None
        row = self._backend_block()
        block = int(given) if given and not row.get("whatever_given") else int(row["size"])
        token = self._token_of_hybrid() if self.state_page else 0
        if token:
            block = max(block, self._aligned_block(token, block))
        block, self.shared_page = self._shared_page(block)
        return block

    def _backend_block(self) -> dict[str, Any]:
        """The row of the block size that the attention backend of this release, platform and device takes."""
        latent = next((c for layer in self.model.layers for c in layer.caches if isinstance(c, Latent)), None)
        kind = "prefix" if self._multimodal_prefix() else "compressed" if _compresses(self.model) else "full"
        if latent is not None:
            kind = "sparse" if latent.sparse else "latent"
        quantized = self.kv_dtype.startswith("fp8")
        for row in table("specs.toml")["block"]:
            low, high = row.get("capability", (0, 99))
            kinds = (kind,) if latent is not None or kind == "compressed" else (*self._wide(), kind, "full")
            fits = row["kind"] in kinds and release(row["since"]) <= release(self.launch.version)
            fits = fits and row.get("platform", "cuda") == self.launch.platform
            if fits and low <= (_major(self.capability) or 8) <= high and row.get("quantized", quantized) == quantized:
                return dict(row)
        return {"size": 16}

    def _wide(self) -> tuple[str, ...]:
        wide = any(isinstance(c, Full) and c.key_dim == 512 for layer in self.model.layers for c in layer.caches)
        return ("wide",) if wide else ()

    def _multimodal_prefix(self) -> bool:
        config = self.model.config
        if not self.model.multimodal or self.launch.get("language_model_only") or self.model.head_dim < 256:
            return False
        both_ways = self.model.text_config.get("use_bidirectional_attention")
        return config.get("model_type") in self.rules.prefix_types or both_ways == "vision"

    def _shared_page(self, block: int) -> tuple[int, int | None]:
        """Block size and the page that layers kept unquantised share (_align_heterogeneous_kv_block_size)."""
        skips = self.launch.get("kv_cache_dtype_skip_layers") or self._boundary_skips()
        first = next(
            (c for layer in self.model.layers for c in layer.caches if isinstance(c, Full | SlidingWindow)), None
        )
        if not skips or first is None or not self.rules.skip_layers_share_page or self.kv_dtype == self.dtype:
            return block, None
        heads = max(1, first.kv_heads // self.tensor)
        packed = self.kv_dtype.startswith("turboquant")  # the first layer's backend counts, which does not pack
        primary = token_bytes(self._kv("fp8" if packed else self.kv_dtype), heads, first.key_dim, first.value_dim)
        largest = token_bytes(self._kv(self.dtype), heads, first.key_dim, first.value_dim)
        if largest == primary:
            return block, None
        align = max(self.kernel_block, block)
        needed = max(largest * self.kernel_block, self._token_of_hybrid() * block if self.state_page else 0)
        aligned = max(block, align * _ceil(needed, align * primary))
        return aligned, aligned * primary

    def _boundary_skips(self) -> bool:
        return self.kv_dtype.startswith("turboquant") and not _has_state(self.model)

    def _token_of_hybrid(self) -> int:
        """Bytes of one token in one attention layer of a model with states; 0 where it has no attention."""
        for layer in self.model.layers:
            for cache in layer.caches:
                if isinstance(cache, Full):
                    heads = max(1, cache.kv_heads // self.tensor)
                    return token_bytes(self._kv(self.kv_dtype), heads, cache.key_dim, cache.value_dim)
                if isinstance(cache, Latent):
                    return self._latent_token(cache)
        return 0

    def _aligned_block(self, token: int, block: int) -> int:
        """The smallest block whose attention page holds a state (_align_hybrid_block_size of platforms/interface.py,
        up to 0.19 HybridAttentionMambaModelConfig of models/config.py)."""
        align = self._alignment(block)
        if self.mode == "all" and self.planning.all_mode:
            chunk = math.lcm(self._chunk_size(), align)
            return chunk * _ceil(_ceil(self.state_page, token), chunk)
        return align * _ceil(self.state_page, align * token)

    def _alignment(self, block: int) -> int:
        latent = any(isinstance(cache, Latent) for layer in self.model.layers for cache in layer.caches)
        if release(self.launch.version) < release("0.20"):
            align = self.rules.latent_hybrid_alignment if latent else 16
            if not latent and _major(self.capability) == 10 and self.model.head_dim == 256:
                align = self.rules.blackwell_head_256_alignment
            return align
        align = max(self.kernel_block, block)
        if latent:
            align = max(align, self.rules.latent_hybrid_alignment)
        if self._gdn_checkpoints():
            align = math.lcm(align, self.rules.gdn_checkpoint_alignment)
        return align

    def _chunk_size(self) -> int:
        given = self.launch.get("mamba_block_size")
        chunked = any(isinstance(c, State) and c.kind == "mamba2" for layer in self.model.layers for c in layer.caches)
        absent = 256 if chunked else 2048  # what transformers fills in; what vLLM takes where there is no chunk
        return int(given or self._text().count("mamba_chunk_size", "chunk_size") or absent)

    def _text(self) -> Keys:
        return Keys(self.model.text_config, f"config.json of {self.model.name}")


def _packed(kind: planner.Kind, block: int, size: int, window: int | None, content: str, rows: dict[str, Any]) -> Spec:
    page = _ceil(size, rows["alignment"]) * rows["alignment"]
    return Spec(kind=kind, block_size=block, page=page, unpadded=size, window=window, content=(content, size))


def _compressor_state(ratio: int, dim: int, content: str, rows: dict[str, Any]) -> Spec:
    """Sums and scores of the tokens not compressed yet, in float32; ratio 4 overlaps its neighbour."""
    overlap = 2 if ratio == 4 else 1
    block = rows["state_blocks"].get(str(ratio))
    if block is None:
        raise InputError(f"compress_ratios names {ratio}; vLLM compresses by {', '.join(rows['state_blocks'])}")
    return _packed("sliding latent", block, block * 2 * overlap * dim * 4, overlap * ratio, content, rows)


def _ceil(value: int, by: int) -> int:
    return -(-value // by)
