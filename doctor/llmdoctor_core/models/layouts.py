"""Every parameter of a model, counted from its configuration: which matrices a layer has, and of what shape.

Follows the modules of vLLM 0.32 (model_executor/models); what differs by model type stands in data/weights.json.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from ..errors import InputError
from ..facts import (
    ChunkedLocal,
    Cross,
    Full,
    Indexer,
    Latent,
    Layer,
    Model,
    Nothing,
    SharedWith,
    SlidingWindow,
    State,
)
from .config import rope_parts, text_keys
from .keys import MOST_TOKENS, Keys
from .layers import nemotron_pattern
from .tables import table


class Weight(NamedTuple):
    """One parameter. ``out`` x ``into`` matrices, ``copies`` of them (experts), or a vector where ``into`` is 0."""

    kind: str
    name: str
    out: int
    into: int = 0
    parts: int | None = None
    copies: int = 1
    layer: int | None = None
    plain: bool = False
    """Never quantised, whatever the scheme: embeddings, norms, routers."""
    element: int | None = None
    """Bytes of an element where they do not follow the model's dtype."""

    @property
    def elements(self) -> int:
        return self.out * max(self.into, 1) * self.copies


def parameters(model: Model) -> Iterator[Weight]:
    """Every parameter of the model. Raises InputError where the configuration leaves out a size it needs."""
    root = Keys(model.config, f"config.json of {model.name}")
    text = text_keys(root, model.source.unrecorded)
    layout = _Layers(model, text)
    hidden, vocabulary = model.hidden_size, model.vocabulary
    yield Weight("embedding", "model.embed_tokens", vocabulary, hidden, plain=True)
    if not model.tied_embeddings:
        yield Weight("output", "lm_head", vocabulary, hidden)
    yield from layout.once()
    for index, layer in enumerate(model.layers):
        for weight in layout.layer(index, layer):
            yield weight._replace(layer=index, name=f"model.layers.{index}.{weight.name}")
    for layer in model.mtp_layers:
        yield Weight("mtp", "mtp.eh_proj", hidden, 2 * hidden)
        for weight in layout.layer(len(model.layers), layer):
            yield weight._replace(kind="mtp", name=f"mtp.layers.0.{weight.name}")
    yield from _towers(root, hidden)
    yield from _rotary(text, model, layout.row)


class _Layers:
    """The matrices of one model's layers."""

    def __init__(self, model: Model, text: Keys) -> None:
        rows = table("weights")
        self.model, self.text = model, text
        self.row: dict[str, Any] = {**rows["default"], **rows["layouts"].get(model.model_type, {})}
        if "unknown" in self.row:
            raise InputError(f"the weights of a {model.model_type} model are not counted: {self.row['unknown']}")
        self.hidden = model.hidden_size
        self.plain_mlp = self.row["mlp"] == "plain"
        self.all_biases = bool(self.row.get("biases_all")) and text.flag(self.row["biases_all"]) is not False
        self.norm_width = 2 if self.row.get("norm_bias") else 1
        self.pattern = nemotron_pattern(text) if model.model_type == "nemotron_h" else None
        self.experts_at = self._experts_at()

    # what belongs to no layer

    def once(self) -> Iterator[Weight]:
        text, hidden, count = self.text, self.hidden, len(self.model.layers)
        yield self._norm(None)
        positions = self.row.get("positions")
        if positions:
            rows = text.need(positions, most=MOST_TOKENS)
            yield Weight("embedding", "model.embed_positions", rows, hidden, parts=1, plain=True)
        per_layer = text.count("hidden_size_per_layer_input") or 0
        if per_layer:
            rows = text.need("vocab_size_per_layer_input")
            yield Weight("embedding", "model.embed_tokens_per_layer", rows, per_layer * count, plain=True)
            yield Weight("other", "model.per_layer_model_projection", per_layer * count, hidden)
        if self.model.model_type == "gemma3n_text":
            inputs = text.need("altup_num_inputs")
            yield Weight("other", "model.altup_projections", hidden, hidden, parts=1, copies=2 * (inputs - 1))
        if self.row.get("whisper"):
            yield from self._whisper_encoder()

    def _whisper_encoder(self) -> Iterator[Weight]:
        text, hidden = self.text, self.hidden
        layers, width = text.need("encoder_layers", most=4096), text.need("encoder_ffn_dim")
        mels = text.need("num_mel_bins")
        for index in range(layers):
            name = f"model.encoder.layers.{index}"
            yield Weight("audio", f"{name}.self_attn", 4 * hidden, hidden)
            yield Weight("audio", f"{name}.mlp", 2 * width, hidden)
            yield Weight("audio", f"{name}.vectors", 3 * hidden + width + 5 * hidden, parts=1)
        yield Weight("audio", "model.encoder.conv", 3 * hidden * (mels + hidden) + 2 * hidden, parts=1)
        yield Weight("audio", "model.encoder.embed_positions", text.need("max_source_positions"), hidden, parts=1)

    # layers

    def layer(self, index: int, layer: Layer) -> Iterator[Weight]:
        yield from (self._norm(None) for _ in range(self.row["norms"]))
        for cache in layer.caches:
            if isinstance(cache, State):
                yield from self._state(cache)
            elif isinstance(cache, Latent):
                yield from self._latent(cache)
            elif isinstance(cache, Indexer):
                yield from self._indexer(cache)
            elif isinstance(cache, Full | SlidingWindow | ChunkedLocal):
                yield from self._attention(cache.kv_heads, cache.key_dim, cache.value_dim, cache)
            elif isinstance(cache, SharedWith):
                yield from self._shared_attention(cache)
            elif isinstance(cache, Cross):
                yield from self._attention(cache.kv_heads, cache.key_dim, cache.value_dim, cache)
            elif not isinstance(cache, Nothing):
                raise InputError(f"{self.text.where}: the weights of a {type(cache).__name__} layer are not known")
        if self.model.model_type == "gemma3n_text":
            yield from self._gemma3n()
        per_layer = self.text.count("hidden_size_per_layer_input") or 0
        if per_layer:
            yield Weight("other", "per_layer_input_gate", per_layer, self.hidden, parts=1)
            yield Weight("other", "per_layer_projection", self.hidden, per_layer, parts=1)
        yield from self._feed_forward(index)

    def _norm(self, size: int | None) -> Weight:
        return Weight("norm", "norm", (size or self.hidden) * self.norm_width, parts=1)

    def _attention(self, kv: int, key: int, value: int, cache: object) -> Iterator[Weight]:
        row, text, hidden, query = self.row, self.text, self.hidden, self.model.heads
        if isinstance(cache, SlidingWindow):
            query = text.count("swa_num_attention_heads", least=1) or query
        gated = row.get("gate") and text.flag("attn_output_gate") is not False
        query_width = query * key * (2 if gated else 1)
        # The keys of Gemma 4's full layers serve as values, but vLLM loads them into both places.
        yield Weight("attention", "self_attn.q_proj", query_width, hidden)
        yield Weight("attention", "self_attn.k_proj", kv * key, hidden, parts=kv)
        yield Weight("attention", "self_attn.v_proj", kv * value, hidden, parts=kv)
        yield Weight("attention", "self_attn.o_proj", hidden, query * value)
        if row.get("gate_proj"):
            yield Weight("attention", "self_attn.gate_proj", query * key, hidden)
        configured = bool(row.get("biases") and text.flag(row["biases"])) or self.all_biases
        if row.get("qkv_bias") or configured or (row.get("qkv_biases") and text.flag(row["qkv_biases"])):
            yield Weight("attention", "self_attn.q_proj.bias", query_width)
            yield Weight("attention", "self_attn.kv_proj.bias", kv * (key + value), parts=kv)
        if row.get("o_bias") or configured:
            yield Weight("attention", "self_attn.o_proj.bias", hidden, parts=1)
        if row.get("sinks"):
            yield Weight("attention", "self_attn.sinks", query)
        norm = row.get("qk_norm")
        if norm == "use_qk_norm":
            norm = "head" if text.flag("use_qk_norm") else None
        if norm == "head":
            yield Weight("norm", "self_attn.qk_norm", 2 * key, parts=1)
        elif norm == "all":
            yield Weight("norm", "self_attn.qk_norm", query * key + kv * key, parts=1)

    def _shared_attention(self, cache: SharedWith) -> Iterator[Weight]:
        """A layer that reads another's cache has a query and an output projection only (since vLLM 0.32)."""
        target = self.model.layers[cache.layer].caches[0]
        if isinstance(target, Full | SlidingWindow):
            width = self.model.heads * target.key_dim
            yield Weight("attention", "self_attn.q_proj", width, self.hidden)
            yield Weight("attention", "self_attn.o_proj", self.hidden, width)
            yield Weight("norm", "self_attn.q_norm", target.key_dim, parts=1)

    def _latent(self, cache: Latent) -> Iterator[Weight]:
        hidden, heads = self.hidden, cache.heads
        low = self._query_rank()
        width = heads * cache.key_dim
        if low:
            yield Weight("attention", "self_attn.q_a_proj", low, hidden, parts=1)
            yield Weight("norm", "self_attn.q_a_layernorm", low, parts=1)
            yield Weight("attention", "self_attn.q_b_proj", width, low)
        else:
            yield Weight("attention", "self_attn.q_proj", width, hidden)
        yield Weight("attention", "self_attn.kv_a_proj_with_mqa", cache.rank + cache.rope_dim, hidden, parts=1)
        yield Weight("norm", "self_attn.kv_a_layernorm", cache.rank, parts=1)
        expanded = heads * (cache.key_dim - cache.rope_dim + cache.value_dim)
        yield Weight("attention", "self_attn.kv_b_proj", expanded, cache.rank)
        yield Weight("attention", "self_attn.o_proj", hidden, heads * cache.value_dim)
        if self.text.flag("mla_use_output_gate"):
            yield Weight("attention", "self_attn.g_proj", heads * cache.value_dim, hidden)

    def _query_rank(self) -> int | None:
        """Rank of MLA's compressed query; null, which DeepSeek-V2-Lite writes, means an uncompressed one."""
        return None if self.text.null("q_lora_rank") else self.text.count("q_lora_rank")

    def _indexer(self, cache: Indexer) -> Iterator[Weight]:
        low = self._query_rank() or self.hidden
        heads = self.text.count("index_n_heads") or 1
        yield Weight("indexer", "self_attn.indexer.wq_b", heads * cache.key_dim, low, parts=1)
        yield Weight("indexer", "self_attn.indexer.wk", cache.key_dim, self.hidden, parts=1, plain=True)
        yield Weight("indexer", "self_attn.indexer.weights_proj", heads, self.hidden, parts=1, plain=True)
        yield Weight("norm", "self_attn.indexer.k_norm", 2 * cache.key_dim, parts=1, element=4)

    def _state(self, cache: State) -> Iterator[Weight]:
        hidden, at = self.hidden, cache.parameters
        kernel = at.get("conv_kernel", 0)
        if cache.kind == "gdn":
            keys, values = at["key_heads"] * at["key_dim"], at["value_heads"] * at["value_dim"]
            for name, width in (("in_proj_qkv", 2 * keys + values), ("in_proj_z", values)):
                yield Weight("state", f"linear_attn.{name}", width, hidden)
            yield Weight("state", "linear_attn.in_proj_ba", 2 * at["value_heads"], hidden)
            yield Weight("state", "linear_attn.conv1d", (2 * keys + values) * kernel)
            yield Weight("state", "linear_attn.A_log", at["value_heads"], element=4)
            yield Weight("state", "linear_attn.dt_bias", at["value_heads"])
            yield Weight("norm", "linear_attn.norm", at["value_dim"], parts=1)
            yield Weight("state", "linear_attn.out_proj", hidden, values)
        elif cache.kind == "mamba2":
            inner, heads, mixed = at["inner"], at["heads"], at["inner"] + 2 * at["groups"] * at["state_size"]
            # Ranks beyond the number of groups hold copies of one (mamba_mixer2.py, extra_groups_for_head_shards).
            groups, shared = at["groups"], mixed - inner
            yield Weight("state", "mamba.in_proj", 2 * inner + heads, hidden)
            yield Weight("state", "mamba.in_proj", shared, hidden, parts=groups)
            yield Weight("state", "mamba.conv1d", inner * kernel)
            yield Weight("state", "mamba.conv1d", shared * kernel, parts=groups)
            if self.text.flag("use_conv_bias") is not False and self.text.flag("mamba_conv_bias") is not False:
                yield Weight("state", "mamba.conv1d.bias", mixed)
            yield Weight("state", "mamba.A", heads, element=4)
            yield Weight("state", "mamba.vectors", 2 * heads)
            if self.model.model_type != "falcon_h1" or self.text.flag("mamba_rms_norm"):
                yield Weight("state", "mamba.norm", inner)
            yield Weight("state", "mamba.out_proj", hidden, inner)
        elif cache.kind == "mamba1":
            inner, size = at["inner"], at["state_size"]
            rank = self.text.own_count("mamba_dt_rank", "time_step_rank", least=1) or -(-hidden // 16)
            yield Weight("state", "mamba.in_proj", 2 * inner, hidden)
            yield Weight("state", "mamba.conv1d", inner * (kernel + 1))
            yield Weight("state", "mamba.x_proj", rank + 2 * size, inner)
            yield Weight("state", "mamba.dt_proj", inner, rank)
            yield Weight("state", "mamba.A", inner * size, element=4)
            yield Weight("state", "mamba.vectors", 2 * inner)
            yield Weight("norm", "mamba.norms", rank + 2 * size, parts=1)
            yield Weight("state", "mamba.out_proj", hidden, inner)
        elif cache.kind == "kda":
            yield from self._kda(at["heads"] * at["head_dim"], at["heads"], at["head_dim"], kernel)
        elif cache.kind == "short_conv":
            yield Weight("state", "conv.in_proj", 3 * at["channels"], hidden)
            yield Weight("state", "conv.conv", at["channels"] * kernel)
            yield Weight("state", "conv.out_proj", hidden, at["channels"])
        elif cache.kind == "linear":
            width = at["heads"] * at["head_dim"]
            yield Weight("state", "self_attn.qkv_proj", 3 * width, hidden)
            yield Weight("state", "self_attn.output_gate", width, hidden)
            yield Weight("state", "self_attn.out_proj", hidden, width)
            yield Weight("norm", "self_attn.norm", width, parts=1)

    def _kda(self, width: int, heads: int, size: int, kernel: int) -> Iterator[Weight]:
        linear = self.text.below("linear_attn_config")
        full_rank = linear is not None and bool(linear.flag("use_full_rank_gate"))
        for name in ("q_proj", "k_proj", "v_proj"):
            yield Weight("state", f"self_attn.{name}", width, self.hidden)
        yield Weight("state", "self_attn.conv1d", 3 * width * kernel)
        yield Weight("state", "self_attn.f_a_proj", size, self.hidden, parts=1)
        yield Weight("state", "self_attn.f_b_proj", width, size)
        yield Weight("state", "self_attn.b_proj", heads, self.hidden)
        if full_rank:
            yield Weight("state", "self_attn.g_proj", width, self.hidden)
        else:
            yield Weight("state", "self_attn.g_a_proj", size, self.hidden, parts=1)
            yield Weight("state", "self_attn.g_b_proj", width, size)
        yield Weight("state", "self_attn.A_log", heads, element=4)
        yield Weight("state", "self_attn.dt_bias", width, element=4)
        yield Weight("norm", "self_attn.o_norm", size, parts=1)
        yield Weight("state", "self_attn.o_proj", self.hidden, width)

    def _gemma3n(self) -> Iterator[Weight]:
        rank, inputs = self.text.need("laurel_rank"), self.text.need("altup_num_inputs")
        yield Weight("other", "laurel.linear_left", rank, self.hidden, parts=1)
        yield Weight("other", "laurel.linear_right", self.hidden, rank, parts=1)
        yield Weight("other", "altup", inputs * (inputs * inputs + inputs) + inputs * self.hidden, parts=1)
        yield Weight("other", "altup.correct_output_scale", self.hidden, parts=1, element=4)
        yield Weight("norm", "laurel.norm", 3 * self.hidden, parts=1)

    # feed forward

    def _feed_forward(self, index: int) -> Iterator[Weight]:
        if self.pattern is not None:
            letter = self.pattern[index] if index < len(self.pattern) else "E"
            if letter not in "-E":
                return
        # A multi-token-prediction layer, behind the others, has experts where the model has.
        if self.experts_at[index] if index < len(self.experts_at) else any(self.experts_at):
            yield from self._experts()
            if not self.text.flag("enable_moe_block"):
                return
        if self.model.model_type == "nemotron-nas" or self.model.model_type == "deci":
            yield from self._deci_mlp(index)
            return
        yield from self._mlp(self._dense_width(index), "mlp", "mlp")

    def _mlp(self, width: int, kind: str, name: str, copies: int = 1) -> Iterator[Weight]:
        if width == 0:
            return
        if not self.plain_mlp:
            yield Weight(kind, f"{name}.gate_proj", width, self.hidden, copies=copies)
        yield Weight(kind, f"{name}.up_proj", width, self.hidden, copies=copies)
        yield Weight(kind, f"{name}.down_proj", self.hidden, width, copies=copies)
        if kind == "mlp" and (self.row.get("mlp_bias") or self.all_biases):
            yield Weight(kind, f"{name}.bias", width + self.hidden)

    def _dense_width(self, index: int) -> int:
        text = self.text
        listed = text.values.get("intermediate_size")
        if isinstance(listed, list | tuple):
            widths = text.counts("intermediate_size") or []
            return widths[min(index, len(widths) - 1)] if widths else 0
        wide = text.own_count("dense_intermediate_size", "intermediate_size_mlp")
        if wide is not None and any(self.experts_at):
            return wide
        if self.model.model_type.startswith("lfm2"):
            return self._lfm2_width()
        if "wide" in self.row:
            return self.model.intermediate_size or int(self.row["wide"]) * self.hidden
        width = self.model.intermediate_size
        if width is None:
            raise InputError(f"{text.where} has no intermediate_size")
        shared = text.count("shared_intermediate_size")
        if self.model.model_type == "granitemoehybrid" and shared:
            return shared
        if text.flag("use_double_wide_mlp") and index >= len(self.model.layers) - (
            text.count("num_kv_shared_layers") or 0
        ):
            return 2 * width
        return width

    def _lfm2_width(self) -> int:
        """LFM2 rounds two thirds of its nominal width up (transformers models/lfm2, block_auto_adjust_ff_dim)."""
        text = self.text
        width = text.own_count("block_ff_dim") or text.need("intermediate_size")
        if text.flag("block_auto_adjust_ff_dim") is False:
            return width
        multiple = text.count("block_multiple_of", least=1) or 256
        factor = text.number("block_ffn_dim_multiplier")
        width = int((1.0 if factor is None else min(max(factor, 0.0), 1e6)) * (2 * width // 3))
        return multiple * -(-width // multiple)

    def _deci_mlp(self, index: int) -> Iterator[Weight]:
        blocks = list(self.text.objects("block_configs"))
        ffn = blocks[index].below("ffn") if index < len(blocks) else None
        factor = ffn.number("ffn_mult") if ffn is not None else None
        if ffn is None or ffn.flag("no_op") or factor is None:
            return
        # modeling_decilm: two thirds of the multiple, rounded up to 256
        width = int(2 * min(max(factor, 0.0), 1e4) * self.hidden / 3)
        yield from self._mlp(-(-width // 256) * 256, "mlp", "mlp")

    def _experts(self) -> Iterator[Weight]:
        text, hidden, count = self.text, self.hidden, self.model.experts
        size = self.model.expert_intermediate_size or self.model.intermediate_size
        if not size:
            raise InputError(f"{text.where} has no moe_intermediate_size")
        latent = text.own_count("routed_expert_hidden_size", "moe_latent_size", least=1)
        inner = latent or hidden
        inner, size = padded_experts(self.model, inner, size)
        element = self.row.get("router_element")
        yield Weight("router", "mlp.gate", count, hidden, parts=1, plain=True, element=element)
        yield from (self._norm(None) for _ in range(self.row.get("expert_norms", 0)))
        if self.row.get("router_bias"):
            yield Weight("router", "mlp.gate.bias", count, parts=1)
        matrices = ("up_proj", "down_proj") if self.plain_mlp else ("gate_proj", "up_proj", "down_proj")
        for name in matrices:
            out, into = (inner, size) if name == "down_proj" else (size, inner)
            yield Weight("experts", f"mlp.experts.0.{name}", out, into, copies=count)
        if self.row.get("expert_bias"):
            yield Weight("experts", "mlp.experts.bias", count * (2 * size + inner))
        if latent:
            yield Weight("mlp", "mlp.latent_proj", 2 * latent, hidden, parts=1)
        yield from self._mlp(self._shared_width(), "shared experts", "mlp.shared_experts")
        if self.row.get("shared_gate"):
            yield Weight("shared experts", "mlp.shared_expert_gate", 1, hidden, parts=1, plain=True)

    def _shared_width(self) -> int:
        text = self.text
        size = self.model.expert_intermediate_size or self.model.intermediate_size or 0
        if self.model.model_type == "llama4_text":
            return size
        width = text.count(
            "shared_expert_intermediate_size",
            "moe_shared_expert_intermediate_size",
            "share_expert_dim",
            "shared_intermediate_size",
        )
        shared = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
        number = None if text.null(*shared) else text.count(*shared)
        if width is not None:
            return width
        return (number or 0) * size

    def _experts_at(self) -> list[bool]:
        """Which layers have experts, by the keys that say it in the different model types."""
        text, count = self.text, len(self.model.layers)
        if not self.model.experts:
            return [False] * count
        flags = text.values.get("moe_layer_freq")
        if isinstance(flags, list | tuple):
            listed = text.counts("moe_layer_freq") or []
            return [i < len(listed) and bool(listed[i]) for i in range(count)]
        if self.pattern is not None:
            return [letter == "E" for letter in self.pattern[:count]]
        model_type = self.model.model_type
        if model_type == "jamba":
            period = text.count("expert_layer_period", least=1) or 2
            offset = text.count("expert_layer_offset") or 0
            return [i % period == offset for i in range(count)]
        if model_type == "llama4_text":
            step = text.count("interleave_moe_layer_step", least=1) or 1
            return [(i + 1) % step == 0 for i in range(count)]
        if model_type == "gemma4_text":
            return [bool(text.flag("enable_moe_block"))] * count
        dense = text.count("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index") or 0
        step = text.count("moe_layer_freq", "decoder_sparse_step", "moe_layer_interval", least=1) or 1
        only = set(text.counts("mlp_only_layers") or ())
        offset = 1 if "decoder_sparse_step" in text.values else 0
        return [i >= dense and i not in only and (i + offset) % step == 0 for i in range(count)]


def padded_experts(model: Model, hidden: int, size: int) -> tuple[int, int]:
    """Sizes of an expert as vLLM pads them: gpt-oss's 2880 for the Marlin kernel (quantization/mxfp4.py)."""
    padding = table("weights")["layouts"].get(model.model_type, {}).get("expert_padding")
    if padding is None or model.quantization is None or model.quantization.method != "mxfp4":
        return hidden, size
    return -(-hidden // padding[0]) * padding[0], -(-size // padding[1]) * padding[1]


def _towers(root: Keys, hidden: int) -> Iterator[Weight]:
    """The vision encoder and the projector from it into the text model, where the configuration tells their shape."""
    absent = table("weights")["vision"].get(root.values.get("model_type"))
    given = root.below("vision_config")
    if given is None and (absent is None or "vision_config" in root.values or "vision_config" in root.unknown):
        return
    values = {**(absent or {}), **({} if given is None else given.values)}
    vision = Keys(values, f"{root.where}, vision_config")
    width = vision.own_count("embed_dim", "hidden_size", least=1)
    depth = vision.own_count("depth", "num_hidden_layers", "num_layers", least=1, most=4096)
    inner = vision.own_count("intermediate_size", least=1)
    if width is None or depth is None or inner is None or not isinstance(vision.values.get("patch_size", 14), int):
        return
    kind = vision.text("model_type") or ""
    gated = kind == "pixtral" or kind.startswith("qwen2_5")
    patch, frames = vision.own_count("patch_size", least=1) or 14, vision.own_count("temporal_patch_size", least=1)
    matrices = 4 * width + (3 if gated else 2) * inner
    vectors = 2 * width if gated else 9 * width + inner
    yield Weight("vision", "visual.blocks", depth * (matrices * width + vectors))
    yield Weight("vision", "visual.patch_embed", width * 3 * patch**2 * (frames or 1), parts=1)
    merge = (vision.own_count("spatial_merge_size") or root.own_count("spatial_merge_size") or 1) ** 2
    side = (vision.own_count("image_size") or 448) // patch
    if "siglip" in kind:
        yield Weight("vision", "visual.positions", side * side * width, parts=1)
        yield Weight("vision", "projector", width * hidden + 3 * width, parts=1)
    elif frames:
        wide = width * merge
        mergers = 1 + len(vision.sequence("deepstack_visual_indexes") or ())
        positions = vision.own_count("num_position_embeddings") or 0
        yield Weight("vision", "visual.positions", positions * width, parts=1)
        yield Weight("vision", "visual.merger", mergers * (wide**2 + wide * hidden))
    elif kind.startswith("kimi"):
        yield Weight("vision", "visual.positions", 64 * 64 * width, parts=1)
        yield Weight("vision", "projector", (4 * width) ** 2 + 4 * width * hidden)
    elif kind == "llama4_vision_model":
        low, out = vision.own_count("projector_output_dim") or 0, vision.own_count("vision_output_dim") or 0
        yield Weight("vision", "visual.positions", (side * side + 2) * width, parts=1)
        yield Weight("vision", "vision_adapter", (inner + low) * low)
        yield Weight("vision", "projector", out * hidden, parts=1)
    elif kind == "pixtral":
        yield Weight("vision", "projector", hidden * hidden + width * hidden + merge * width * width)


def _rotary(text: Keys, model: Model, row: dict[str, Any]) -> Iterator[Weight]:
    """vLLM's tables of sines and cosines (layers/rotary_embedding), one a kind of embedding, whole on every rank.

    Their length is that of the positions they reach: Gemma 3's linear scaling by 8 makes half a gibibyte of one.
    """
    if row.get("no_rotary") or (row.get("no_rotary_if") and text.flag(row["no_rotary_if"])):
        return
    if text.values.get("position_embedding_type") == "nope":
        return
    length = text.count("max_position_embeddings", least=1, most=MOST_TOKENS)
    if length is None or not model.heads:
        return
    element = row.get("rotary_element")
    parts = rope_parts(text)
    share = _rotated_share(parts[0] if parts else None, text) or row.get("rotary_share", 1.0)
    latent = text.count("qk_rope_head_dim") if text.count("kv_lora_rank") else None
    size = latent or text.own_count("rotary_dim", least=1) or int(model.head_dim * share)
    nested = [part for part in parts if part.text("rope_type", "type") is not None]
    reaches = [_positions(part, text, length) for part in nested] or [length]
    if row.get("rotaries") == 2 and len(reaches) == 1:
        reaches = [length, *reaches]
    # Gemma 4's full layers have heads of their own size and a table for it.
    wide = text.count("global_head_dim") or size
    for i, reach in enumerate(reaches):
        width = wide if i == 0 and len(reaches) > 1 else size
        yield Weight("rotary", "rotary_emb.cos_sin_cache", reach * width, parts=1, plain=True, element=element)


def _rotated_share(rope: Keys | None, text: Keys) -> float | None:
    share = text.number("partial_rotary_factor")
    if share is None and rope is not None:
        share = rope.number("partial_rotary_factor")
    return share if share is not None and 0 < share <= 1 else None


def _positions(rope: Keys, text: Keys, length: int) -> int:
    """Positions that the table of one rotary embedding reaches."""
    kind, factor = rope.text("rope_type", "type") or "default", rope.number("factor")
    original = rope.count("original_max_position_embeddings", least=1, most=MOST_TOKENS)
    if kind == "longrope" or kind == "su":
        short = original or text.count("original_max_position_embeddings", least=1, most=MOST_TOKENS) or 0
        return length + short
    if factor is None or not 1 <= factor <= 1 << 20:
        return length
    if "yarn" in kind:
        return min(int((original or length) * factor), MOST_TOKENS)
    return min(int(length * factor), MOST_TOKENS) if kind in ("linear", "dynamic", "ntk") else length
