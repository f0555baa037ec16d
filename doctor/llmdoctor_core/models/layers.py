"""From a text configuration to what each layer keeps: kinds by model type (data/layers.json), then their shapes."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..errors import InputError
from ..facts import (
    AnyCache,
    ChunkedLocal,
    Compressed,
    Cross,
    Full,
    Indexer,
    Latent,
    Layer,
    Nothing,
    SharedWith,
    SlidingWindow,
    State,
)
from .keys import MOST_LAYERS, MOST_TOKENS, Keys, shown
from .tables import table


class Heads(NamedTuple):
    """Attention shape of the model: query heads, KV heads, and the sizes of one key and one value."""

    query: int
    kv: int
    key_dim: int
    value_dim: int


def rule_of(model_type: str) -> dict[str, Any]:
    """The row of data/layers.json; empty for a model whose layers are all full attention."""
    row: dict[str, Any] = table("layers")["rules"].get(model_type, {})
    return row


def layers(config: Keys, model_type: str, count: int, hidden: int, heads: Heads) -> tuple[Layer, ...]:
    """What every decoder layer keeps. Raises InputError naming the key that is absurd or of an unknown kind."""
    rule = rule_of(model_type)
    build = _Builder(config, rule, hidden, heads)
    kinds = _kinds(config, rule, count)
    built = [build.layer(i, kind) for i, kind in enumerate(kinds)]
    shared = config.count("num_kv_shared_layers", most=MOST_LAYERS) or 0
    return tuple(_share(built, kinds, min(shared, count)))


def mtp_layers(config: Keys, model_type: str, main: tuple[Layer, ...], hidden: int, heads: Heads) -> tuple[Layer, ...]:
    """Layers of the multi-token-prediction modules, which attend as the model's full-attention layers do."""
    rule = rule_of(model_type)
    count = config.count("num_nextn_predict_layers", "mtp_num_hidden_layers", most=MOST_LAYERS)
    if count is None and config.flag("use_mtp"):
        modules = config.count("num_mtp_modules", most=MOST_LAYERS) or 0
        count = modules * (config.count("mtp_transformer_layers", most=MOST_LAYERS) or 1)
    if count is None:
        count = rule.get("mtp", 0)
    build = _Builder(config, rule, hidden, heads)
    pattern = nemotron_pattern(config, "mtp_") if model_type == "nemotron_h" else None
    kinds = [LETTER_KINDS[letter] for letter in pattern] if pattern else [rule.get("mtp_kind", "full")]
    build.selection, build.selects_every = None, 1  # such a layer always selects for itself
    return tuple(build.layer(len(main), kind) for kind in (kinds * min(count, MOST_LAYERS))[:MOST_LAYERS])


def _share(built: list[Layer], kinds: list[str], shared: int) -> list[Layer]:
    """The last ``shared`` layers read the cache of the last layer of their kind that owns one (Gemma 3n, Gemma 4)."""
    own = len(built) - shared
    out = built[:own]
    for i in range(own, len(built)):
        target = next((j for j in range(own - 1, -1, -1) if kinds[j] == kinds[i]), None)
        out.append(built[i] if target is None else Layer(caches=(SharedWith(layer=target),)))
    return out


def _kinds(config: Keys, rule: dict[str, Any], count: int) -> list[str]:
    if "by" in rule and rule["by"] in BY_KEY:
        found: list[str] | None = BY_KEY[rule["by"]](config, rule, count)
        if found is not None:
            return found
    if "every" in rule:
        return [rule["every"]] * count
    named = config.sequence("layer_types")
    if named is None and rule.get("state"):
        named = config.sequence("layers_block_type")
    if named is not None:
        return _by_name(config, named, count)
    if "period" in rule:
        return _by_period(config, rule, count)
    return ["full" if _no_window(config, rule, i) else "sliding" for i in range(count)]


def _by_name(config: Keys, named: list[Any], count: int) -> list[str]:
    names = table("layers")["names"]
    if len(named) < count:
        raise InputError(f"{config.where}: layer_types names {len(named)} layers, the model has {count}")
    for i, name in enumerate(named):
        if not isinstance(name, str) or name not in names:
            raise InputError(
                f"{config.where}: layer_types[{i}] is {shown(name)}, a kind of layer llmdoctor does not know"
            )
    return [names[name] for name in named[:count]]


def _by_period(config: Keys, rule: dict[str, Any], count: int) -> list[str]:
    """Every ``period``-th layer is full attention, the others are of the rule's other kind."""
    period = rule["period"]
    key = rule.get("key")
    pattern = config.values.get(key) if key else None
    if isinstance(pattern, str):
        # EXAONE 4 writes the pattern out: L local, G global.
        if not pattern or len(pattern) > MOST_LAYERS or set(pattern) - {"L", "G"}:
            raise config.wrong(str(key), pattern, "a number of layers or a pattern of L and G")
        return ["full" if pattern[i % len(pattern)] == "G" else rule["others"] for i in range(count)]
    if key:
        period = config.own_count(key, least=1, most=MOST_LAYERS) or period
    kinds = ["full" if (i + 1) % period == 0 else rule["others"] for i in range(count)]
    if rule.get("last"):
        kinds[-1] = rule["last"]
    return kinds


def _no_window(config: Keys, rule: dict[str, Any], layer: int) -> bool:
    window = rule.get("window")
    if window == "use_sliding_window":
        if not config.flag("use_sliding_window"):
            return True
        first = config.count("max_window_layers", most=MOST_LAYERS)
        return layer < (28 if first is None else first)
    return window != "always"


def _llama4(config: Keys, rule: dict[str, Any], count: int) -> list[str] | None:
    rotary = config.counts("no_rope_layers")
    if not rotary or "layer_types" in config:
        return None
    _enough(config, "no_rope_layers", rotary, count)
    return [rule["others"] if flag else "full" for flag in rotary[:count]]


def _minimax(config: Keys, rule: dict[str, Any], count: int) -> list[str] | None:
    kinds = config.counts("attn_type_list")
    if not kinds:
        return None
    _enough(config, "attn_type_list", kinds, count)
    return ["full" if kind else rule["others"] for kind in kinds[:count]]


def _jamba(config: Keys, rule: dict[str, Any], count: int) -> list[str] | None:
    if "layer_types" in config or "layers_block_type" in config:
        return None
    period = config.count("attn_layer_period", least=1, most=MOST_LAYERS) or 8
    offset = config.count("attn_layer_offset", most=MOST_LAYERS)
    return ["full" if i % period == (4 if offset is None else offset) else "state" for i in range(count)]


def _listed(key: str) -> Any:
    """Layers named in ``key`` are full attention, the others keep a state."""

    def kinds(config: Keys, rule: dict[str, Any], count: int) -> list[str] | None:
        if "layer_types" in config or "layers_block_type" in config:
            return None
        named = config.counts(key, most=MOST_LAYERS)
        if named is None and key == "full_attn_idxs":
            # LFM2 without a list has attention everywhere; Granite and Bamba without one have none.
            return ["full"] * count
        return ["full" if i in set(named or ()) else "state" for i in range(count)]

    return kinds


def _nemotron_h(config: Keys, rule: dict[str, Any], count: int) -> list[str] | None:
    pattern = nemotron_pattern(config)
    if pattern is None:
        return None
    _enough(config, "hybrid_override_pattern", pattern, count)
    return [LETTER_KINDS[letter] for letter in pattern[:count]]


LETTER_KINDS = {"M": "state", "*": "full", "-": "nothing", "E": "nothing"}
BLOCK_LETTERS = {"mamba": "M", "attention": "*", "mlp": "-", "moe": "E"}


def nemotron_pattern(config: Keys, prefix: str = "") -> str | None:
    """Nemotron-H's layers as letters: M Mamba 2, * attention, - feed-forward, E experts; None where it has no list.

    ``prefix`` is ``mtp_`` for the layers of its multi-token-prediction module.
    """
    name = f"{prefix}hybrid_override_pattern"
    letters = config.text(name)
    if letters is None:
        name = f"{prefix}layers_block_type"
        listed = config.sequence(name)
        if listed is None:
            return None
        letters = "".join(BLOCK_LETTERS.get(entry, "?") if isinstance(entry, str) else "?" for entry in listed)
    if len(letters) > MOST_LAYERS or set(letters) - LETTER_KINDS.keys():
        kinds = "M, *, - and E" if name.endswith("pattern") else ", ".join(BLOCK_LETTERS)
        raise config.wrong(name, config.values[name], f"at most {MOST_LAYERS} of {kinds}")
    return letters


def _zamba2(config: Keys, rule: dict[str, Any], count: int) -> list[str] | None:
    if "layers_block_type" in config or "layer_types" in config:
        return None
    listed = config.counts("hybrid_layer_ids", most=MOST_LAYERS)
    hybrid = set(listed) if listed is not None else {i for i in range(count) if i % 6 == 5}
    return ["both" if i in hybrid else "state" for i in range(count)]


def _kimi_linear(config: Keys, rule: dict[str, Any], count: int) -> list[str] | None:
    linear = config.below("linear_attn_config")
    if linear is None or "layer_types" in config:
        return None
    full = linear.counts("full_attn_layers", most=MOST_LAYERS)
    if full is None:
        raise InputError(f"{linear.where} has no full_attn_layers")
    # Both lists count layers from 1.
    return ["full" if i + 1 in set(full) else "state" for i in range(count)]


def _mimo_v2(config: Keys, rule: dict[str, Any], count: int) -> list[str] | None:
    pattern = config.counts("hybrid_layer_pattern")
    if pattern is None:
        return None
    _enough(config, "hybrid_layer_pattern", pattern, count)
    return ["sliding" if flag else "full" for flag in pattern[:count]]


def _block_configs(config: Keys, rule: dict[str, Any], count: int) -> list[str] | None:
    blocks = list(config.objects("block_configs"))
    if not blocks:
        return None
    _enough(config, "block_configs", blocks, count)
    kinds = []
    for block in blocks[:count]:
        attention = block.below("attention")
        silent = attention is None or attention.flag("no_op") or attention.flag("replace_with_linear")
        kinds.append("nothing" if silent else "full")
    return kinds


def _baichuan(config: Keys, rule: dict[str, Any], count: int) -> list[str] | None:
    sliding = set(config.counts("sliding_window_layers", most=MOST_LAYERS) or ())
    return ["sliding" if i in sliding else "full" for i in range(count)]


def _mllama(config: Keys, rule: dict[str, Any], count: int) -> list[str] | None:
    cross = config.counts("cross_attention_layers", most=MOST_LAYERS)
    listed = {3, 8, 13, 18, 23, 28, 33, 38} if cross is None else set(cross)
    return ["cross" if i in listed else "full" for i in range(count)]


def _deepseek_v4(config: Keys, rule: dict[str, Any], count: int) -> list[str] | None:
    ratios = config.counts("compress_ratios", most=MOST_TOKENS)
    if ratios is not None:
        _enough(config, "compress_ratios", ratios, count)
    return ["compressed"] * count


def _enough(config: Keys, key: str, entries: Any, count: int) -> None:
    if len(entries) < count:
        raise InputError(f"{config.where}: {key} describes {len(entries)} layers, the model has {count}")


BY_KEY = {
    "no_rope_layers": _llama4,
    "attn_type_list": _minimax,
    "attn_layer_period": _jamba,
    "attn_layer_indices": _listed("attn_layer_indices"),
    "full_attn_idxs": _listed("full_attn_idxs"),
    "hybrid_override_pattern": _nemotron_h,
    "layers_block_type": _zamba2,
    "linear_attn_config": _kimi_linear,
    "hybrid_layer_pattern": _mimo_v2,
    "block_configs": _block_configs,
    "sliding_window_layers": _baichuan,
    "cross_attention_layers": _mllama,
    "compress_ratios": _deepseek_v4,
}


class _Builder:
    """Shapes of one model's caches; what is equal for all layers is read once."""

    def __init__(self, config: Keys, rule: dict[str, Any], hidden: int, heads: Heads) -> None:
        self.config = config
        self.rule = rule
        self.hidden = hidden
        self.heads = heads
        self.memo: dict[str, tuple[AnyCache, ...]] = {}
        self.blocks = list(config.objects("block_configs")) if rule.get("by") == "block_configs" else []
        self.ratios = config.counts("compress_ratios", most=MOST_TOKENS) or []
        self.sparse = self._sparse()
        self.selection = config.sequence("indexer_types")
        pattern = config.text("index_topk_pattern")
        if self.selection is None and pattern is not None:
            self.selection = ["shared" if letter == "S" else "full" for letter in pattern[:MOST_LAYERS]]
        self.selects_every = config.own_count("index_topk_freq", least=1, most=MOST_LAYERS) or 1
        self.selects_from = config.own_count("index_skip_topk_offset", most=MOST_LAYERS)

    def layer(self, index: int, kind: str) -> Layer:
        if kind == "full" and index < len(self.blocks):
            return Layer(caches=(self._full_of_block(self.blocks[index]),))
        if kind == "compressed":
            return Layer(caches=(self._compressed(index),))
        if kind not in self.memo:
            self.memo[kind] = self._caches(kind)
        caches = self.memo[kind]
        if kind == "full" and self.sparse is not None and self._is_sparse(index):
            caches = (*caches, self.sparse)
        if kind == "full" and not self._selects(index):
            caches = tuple(cache for cache in caches if not isinstance(cache, Indexer))
        return Layer(caches=caches)

    def _selects(self, index: int) -> bool:
        """Whether a sparse-attention layer has an indexer of its own, or takes another's selection (GLM 5.2).

        The rule is vLLM's (deepseek_v2.py, 0.32): every ``index_topk_freq``-th layer from ``index_skip_topk_offset``.
        """
        if self.selection is not None:
            return index >= len(self.selection) or self.selection[index] != "shared"
        start = 2 if self.selects_from is None else self.selects_from
        return max(index - start + 1, 0) % self.selects_every == 0

    def _caches(self, kind: str) -> tuple[AnyCache, ...]:
        if kind == "full":
            return self._full()
        if kind == "sliding":
            return (self._sliding(),)
        if kind == "chunked":
            return (self._chunked(),)
        if kind == "state":
            return (self._state(),)
        if kind == "both":
            return (*self._full(), self._state())
        if kind == "nothing":
            return (Nothing(),)
        if kind == "decoder":
            return (*self._full(), self._cross())
        if kind == "cross":
            return (self._vision_cross(),)
        raise InputError(f"{self.config.where}: llmdoctor does not know what a layer of this model keeps ({kind})")

    def _full(self) -> tuple[AnyCache, ...]:
        latent = self._latent()
        if latent is None:
            heads = self._global_heads()
            return (Full(kv_heads=heads.kv, key_dim=heads.key_dim, value_dim=heads.value_dim),)
        index = self.config.count("index_head_dim")
        if not index:
            return (latent,)
        return (latent, Indexer(key_dim=index))

    def _global_heads(self) -> Heads:
        """Gemma 4's full layers have their own head size and, where keys serve as values, their own KV heads."""
        size = self.config.count("global_head_dim")
        if not size:
            return self.heads
        kv = self.heads.kv
        if self.config.flag("attention_k_eq_v"):
            kv = self.config.count("num_global_key_value_heads", least=1) or kv
        return Heads(self.heads.query, kv, size, size)

    def _full_of_block(self, block: Keys) -> Full:
        attention = block.below("attention")
        group = attention.count("n_heads_in_group", least=1) if attention is not None else None
        kv = max(1, self.heads.query // group) if group else self.heads.kv
        return Full(kv_heads=kv, key_dim=self.heads.key_dim, value_dim=self.heads.value_dim)

    def _latent(self) -> Latent | None:
        rank = self.config.count("kv_lora_rank")
        if not rank:
            return None
        rope = self.config.count("qk_rope_head_dim") or 0
        nope = self.config.count("qk_nope_head_dim") or 0
        return Latent(
            rank=rank,
            rope_dim=rope,
            heads=self.heads.query,
            key_dim=nope + rope,
            value_dim=self.config.count("v_head_dim") or nope,
            sparse=bool(self.config.count("index_head_dim")),
        )

    def _window(self) -> int | None:
        if "sliding_window" in self.config.values and self.config.values["sliding_window"] is None:
            return None
        return self.config.count("sliding_window", "sliding_window_size", most=MOST_TOKENS) or None

    def _sliding(self) -> AnyCache:
        window = self._window()
        if window is None:
            return self._full()[0]
        heads = self.heads
        kv = self.config.count("swa_num_key_value_heads", "num_swa_key_value_heads", least=1) or heads.kv
        key = self.config.count("swa_head_dim", least=1) or heads.key_dim
        value = self.config.count("swa_v_head_dim", least=1) or (
            key if heads.key_dim == heads.value_dim else heads.value_dim
        )
        return SlidingWindow(window=window, kv_heads=kv, key_dim=key, value_dim=value)

    def _chunked(self) -> AnyCache:
        chunk = self.config.count("attention_chunk_size", most=MOST_TOKENS)
        if not chunk:
            return self._full()[0]
        heads = self.heads
        return ChunkedLocal(chunk=chunk, kv_heads=heads.kv, key_dim=heads.key_dim, value_dim=heads.value_dim)

    def _cross(self) -> Cross:
        tokens = self.config.count("max_source_positions", "max_position_embeddings", "n_positions", most=MOST_TOKENS)
        heads = self.heads
        return Cross(kv_heads=heads.kv, key_dim=heads.key_dim, value_dim=heads.value_dim, encoder_tokens=tokens or 0)

    def _vision_cross(self) -> Cross:
        # Llama 3.2 Vision: at most 4 tiles of (560 / 14)^2 patches and one class token each (mllama of transformers).
        heads = self.heads
        tokens = 4 * ((560 // 14) ** 2 + 1)
        return Cross(kv_heads=heads.kv, key_dim=heads.key_dim, value_dim=heads.value_dim, encoder_tokens=tokens)

    def _compressed(self, index: int) -> Compressed:
        ratio = self.ratios[index] if index < len(self.ratios) else 0
        # Only the mildly compressed layers (ratio 4) select among their vectors with an indexer.
        index_dim = (self.config.count("index_head_dim") or 0) if 0 < ratio <= 4 else 0
        return Compressed(window=self._window() or 0, ratio=ratio, dim=self.heads.key_dim, index_dim=index_dim)

    def _sparse(self) -> Indexer | None:
        """MiniMax M3's block-sparse attention keeps index keys beside full keys and values."""
        sparse = self.config.below("sparse_attention_config")
        if sparse is None or not sparse.flag("use_sparse_attention"):
            return None
        self.sparse_layers = sparse.counts("sparse_attention_freq")
        size = sparse.count("sparse_index_dim")
        return Indexer(key_dim=size) if size else None

    def _is_sparse(self, index: int) -> bool:
        flags = self.sparse_layers
        return flags is None or (index < len(flags) and bool(flags[index]))

    def _state(self) -> State:
        kind = self.rule.get("state")
        if kind is None:
            # A model type the table does not know names its own linear layers: the keys tell which kind it is.
            kind = next((k for k, key in STATE_KEYS if key in self.config), None)
        build = {
            "gdn": self._gdn,
            "mamba1": self._mamba1,
            "mamba2": self._mamba2,
            "kda": self._kda,
            "linear": self._linear,
            "short_conv": self._short_conv,
        }.get(kind or "")
        if build is None:
            raise InputError(f"{self.config.where}: llmdoctor does not know the state that this model's layers keep")
        return build()

    def _gdn(self) -> State:
        config = self.config
        keys, values = config.need("linear_num_key_heads"), config.need("linear_num_value_heads")
        key_dim, value_dim = config.need("linear_key_head_dim"), config.need("linear_value_head_dim")
        kernel = config.need("linear_conv_kernel_dim", most=4096)
        return State(
            kind="gdn",
            shapes=((2 * keys * key_dim + values * value_dim, kernel - 1), (values, value_dim, key_dim)),
            parameters={
                "key_heads": keys,
                "value_heads": values,
                "key_dim": key_dim,
                "value_dim": value_dim,
                "conv_kernel": kernel,
            },
        )

    def _mamba1(self) -> State:
        config = self.config
        expand = config.need("mamba_expand", "expand", most=4096)
        inner = expand * self.hidden
        size, kernel = config.need("mamba_d_state", "state_size"), config.need("mamba_d_conv", "conv_kernel", most=4096)
        return State(
            kind="mamba1",
            shapes=((inner, kernel - 1), (inner, size)),
            parameters={"inner": inner, "state_size": size, "conv_kernel": kernel},
        )

    def _mamba2(self) -> State:
        config = self.config
        kernel = config.need("mamba_d_conv", "conv_kernel", most=4096)
        size = config.need("mamba_d_state", "ssm_state_size", "state_size")
        groups = config.need("mamba_n_groups", "mamba_ngroups", "n_groups")
        heads = config.need("mamba_n_heads", "n_mamba_heads", "mamba_num_heads", "num_heads")
        head_dim = self._mamba2_head_dim(heads)
        inner = config.count("mamba_d_ssm", least=1) or heads * head_dim
        return State(
            kind="mamba2",
            shapes=((inner + 2 * groups * size, kernel - 1), (heads, head_dim, size)),
            parameters={
                "heads": heads,
                "head_dim": head_dim,
                "groups": groups,
                "state_size": size,
                "inner": inner,
                "conv_kernel": kernel,
            },
        )

    def _mamba2_head_dim(self, heads: int) -> int:
        config = self.config
        key = config.present("mamba_d_head", "mamba_headdim", "mamba_head_dim")
        if key is not None and config.values[key] != "auto":
            return config.need(key)
        if config.present("mamba_num_heads") is not None:
            return config.need("mamba_head_dim")
        if self.rule.get("every") == "state":
            return config.need("head_dim")
        # "auto", and what transformers fills in: the expanded width divided among the heads.
        inner = config.count("mamba_d_ssm", least=1) or config.need("mamba_expand", most=4096) * self.hidden
        return max(1, inner // heads)

    def _kda(self) -> State:
        linear = self.config.below("linear_attn_config")
        if linear is None:
            raise InputError(f"{self.config.where} has no linear_attn_config, which this model type needs")
        heads, size = linear.need("num_heads"), linear.need("head_dim")
        kernel = linear.count("short_conv_kernel_size", least=1, most=4096) or 4
        return State(
            kind="kda",
            shapes=((3 * heads * size, kernel - 1), (heads, size, size)),
            parameters={"heads": heads, "head_dim": size, "conv_kernel": kernel},
        )

    def _linear(self) -> State:
        heads, size = self.heads.query, self.heads.key_dim
        return State(kind="linear", shapes=((heads, size, size),), parameters={"heads": heads, "head_dim": size})

    def _short_conv(self) -> State:
        kernel = self.config.need("conv_L_cache", most=4096)
        channels = self.config.own_count("conv_dim", least=1) or self.hidden
        return State(
            kind="short_conv",
            shapes=((channels, kernel - 1),),
            parameters={"channels": channels, "conv_kernel": kernel},
        )


STATE_KEYS = (
    ("gdn", "linear_num_value_heads"),
    ("kda", "linear_attn_config"),
    ("mamba2", "mamba_n_heads"),
    ("mamba2", "mamba_num_heads"),
    ("mamba1", "mamba_d_state"),
    ("short_conv", "conv_L_cache"),
)
