"""A Hugging Face config.json understood: which part is the text model, and what its keys and absent keys mean."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from ..errors import InputError
from ..facts import Model, ModelSource
from .keys import MOST_LAYERS, MOST_TOKENS, MOST_VOCABULARY, Keys, absent_values
from .layers import Heads, layers, mtp_layers, nemotron_pattern, rule_of
from .quantization import quantization

TEXT_PARTS = (
    ("text_config",),
    ("llm_config",),
    ("transformer_layer_config",),
    ("language_config",),
    ("thinker_config", "text_config"),
    ("decoder",),
    ("generator",),
    ("text_encoder",),
)
"""Where the text model's configuration is, in transformers' order (get_text_config) and vLLM's;
``transformer_layer_config`` is that of the speculators library's drafts."""
TEXT_TYPE = {"kimi_k25": "kimi_k2", "mistral3": "mistral", "mllama": "mllama_text_model", "internvl_chat": "qwen2"}
"""model_type of a text part that does not name its own, where it is not the root's with ``_text`` behind it."""

LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
DECODER_LAYERS = ("num_decoder_layers", "decoder_layers")
PER_LAYER = ("layer_types", "layers_block_type", "hybrid_override_pattern", "block_configs")
"""Keys with one entry a layer, which tell how many there are where no other key does (Nemotron 3 Ultra)."""
HIDDEN = ("hidden_size", "n_embd", "d_model", "dim")
HEADS = ("decoder_attention_heads", "num_attention_heads", "n_head", "n_heads", "num_heads")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num", "kv_n_heads")
HEAD_DIM = ("head_dim", "attention_head_dim", "kv_channels", "d_kv")
INTERMEDIATE = ("decoder_ffn_dim", "intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "d_ff")
EXPERTS = ("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts")
EXPERTS_PER_TOKEN = ("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "experts_per_token", "moe_top_k")
LENGTHS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "max_target_positions",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
POOLING = re.compile(
    r"ForSequenceClassification|ForTokenClassification|RewardModel|EmbeddingModel|ForMaskedLM|BertModel"
    r"|RobertaModel|(?<!LMHead)Model$|Encoder$"
)


def describe_config(source: ModelSource) -> Model:
    """The model that a config.json describes. Raises InputError naming the key that is missing, malformed or absurd."""
    where = f"config.json of {source.name}"
    root = Keys(source.config, where)
    text = text_keys(root, source.unrecorded)
    model_type = text.values["model_type"]
    count = _layers(text)
    hidden = text.need(*HIDDEN)
    heads = _heads(text, model_type, hidden)
    own = layers(text, model_type, count, hidden, heads)
    prediction = mtp_layers(text, model_type, own, hidden, heads)
    experts = 0 if _dense_hybrid(text) else text.count(*EXPERTS) or 0
    architecture = _architecture(root, text, model_type)
    length, length_notes = training_length(text, model_type)
    found = quantization(root, text, source.quantization_config)
    expert_size = text.count("moe_intermediate_size", "expert_intermediate_size") if experts else None
    tied = _tied(root, text)
    vocabulary = text.need("vocab_size", "padded_vocab_size", most=MOST_VOCABULARY)
    intermediate = _intermediate(text, most=1 << 26)
    dtype = _dtype(root, text)
    per_token = (text.count(*EXPERTS_PER_TOKEN) or 0) if experts else 0
    return Model(
        name=source.name,
        origin=source.origin,
        architecture=architecture,
        model_type=model_type,
        layers=own,
        mtp_layers=prediction,
        hidden_size=hidden,
        heads=heads.query,
        kv_heads=heads.kv,
        head_dim=heads.key_dim,
        intermediate_size=intermediate,
        experts=experts,
        experts_per_token=per_token,
        expert_intermediate_size=expert_size,
        vocabulary=vocabulary,
        training_length=length,
        dtype=dtype,
        quantization=found,
        tied_embeddings=tied,
        multimodal=_multimodal(root, text),
        encoder_decoder=bool(root.flag("is_encoder_decoder")) or rule_of(model_type).get("every") == "decoder",
        pooling=bool(POOLING.search(architecture)),
        weights=source.weights,
        weight_bytes=source.weight_bytes,
        filled=tuple(f"{key}={_plain(value)}" for key, value in sorted(text.filled.items())),
        source=source,
        notes=(*source.notes, *length_notes),
    )


def weight_shape(config: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Decoder layers and KV heads of a configuration, None where it does not tell: enough to place its tensors."""
    try:
        text = text_keys(Keys(config, "config.json"))
        query = text.count(*HEADS, least=1)
        kv = None if query is None else _kv_heads(text, text.values["model_type"], query)
        return _layers(text), kv
    except InputError:
        return None, None


def text_keys(root: Keys, unrecorded: tuple[str, ...] = ()) -> Keys:
    """The text model's part of a configuration, its ``model_type`` set. Raises InputError where it has none."""
    part = _text_part(root)
    model_type = part.values.get("model_type")
    root_type = root.values.get("model_type")
    for value in (model_type, root_type):
        if value is not None and not isinstance(value, str):
            raise root.wrong("model_type", value, "a text")
    if not model_type or model_type == root_type:
        model_type = _text_type(str(root_type or ""), nested=part is not root)
    if not model_type and not root.values.get("architectures"):
        raise InputError(f"{root.where} names neither model_type nor architectures: it is no model configuration")
    values = {**part.values, "model_type": model_type}
    return Keys(values, part.where, absent_values().get(model_type, {}), unknown=frozenset(unrecorded))


def _text_part(root: Keys) -> Keys:
    for path in TEXT_PARTS:
        part: Keys | None = root
        for key in path:
            part = part.below(key) if part is not None and isinstance(part.values.get(key), Mapping) else None
        if part is not None and part.present(*LAYERS, *DECODER_LAYERS, *HIDDEN) is not None:
            return part
    return root


def _text_type(root_type: str, nested: bool) -> str:
    if not nested:
        return root_type
    named = TEXT_TYPE.get(root_type)
    if named is not None:
        return named
    return f"{root_type}_text" if f"{root_type}_text" in absent_values() else root_type


def _layers(text: Keys) -> int:
    if text.present(*DECODER_LAYERS) is not None:
        return text.need(*DECODER_LAYERS, most=MOST_LAYERS)
    listed = text.values.get(text.present(*PER_LAYER) or "")
    if text.present(*LAYERS) is None and isinstance(listed, list | tuple | str) and 0 < len(listed) <= MOST_LAYERS:
        return len(listed)
    return text.need(*LAYERS, *DECODER_LAYERS, most=MOST_LAYERS)


def _heads(text: Keys, model_type: str, hidden: int) -> Heads:
    if rule_of(model_type).get("every") == "state":
        return Heads(0, 0, 0, 0)
    query = text.need(*HEADS)
    kv = _kv_heads(text, model_type, query)
    size = _head_dim(text, hidden, query)
    value = size
    if not text.count("kv_lora_rank"):
        value = text.count("v_head_dim", least=1) or size
    return Heads(query, kv, size, value)


def _kv_heads(text: Keys, model_type: str, query: int) -> int:
    if model_type in ("falcon", "RefinedWeb", "RefinedWebModel"):
        if text.flag("new_decoder_architecture"):
            return text.own_count("num_kv_heads", "n_head_kv", least=1) or query
        return 1 if text.flag("multi_query") in (None, True) else query
    if model_type == "gpt_bigcode":
        return 1 if text.flag("multi_query") in (None, True) else query
    if "attn_config" in text and isinstance(text.values["attn_config"], Mapping):
        attention = text.below("attn_config")
        nested = attention.count("kv_n_heads", least=1) if attention is not None else None
        if nested is not None:
            return nested
    if text.null(*KV_HEADS):
        return query
    name, value = text.raw(*KV_HEADS)
    if value is None or value == "num_attention_heads":
        if name in text.filled:
            text.filled[name] = query
        return query
    return text.need(*KV_HEADS)


def _head_dim(text: Keys, hidden: int, query: int) -> int:
    name, value = text.raw(*HEAD_DIM)
    if isinstance(value, str) and name in text.filled:
        size = (2 * hidden if value.startswith("2 *") else hidden) // query
        text.filled[name] = size
    elif value is None:
        size = hidden // query
    else:
        return text.need(*HEAD_DIM)
    if size < 1:
        raise InputError(f"{text.where}: hidden_size {hidden} cannot be divided among {query} attention heads")
    return size


def _dense_hybrid(text: Keys) -> bool:
    """Nemotron-H fills in experts that a pattern without expert layers never has."""
    pattern = nemotron_pattern(text) if text.values["model_type"] == "nemotron_h" else None
    return pattern is not None and "E" not in pattern


def _intermediate(text: Keys, most: int) -> int | None:
    """Width of a dense feed-forward block; the first where the layers have different ones (Gemma 3n)."""
    value = text.raw(*INTERMEDIATE)[1]
    if isinstance(value, list | tuple):
        listed = text.counts("intermediate_size", most=most)
        return listed[0] if listed else None
    return text.count(*INTERMEDIATE, most=most)


def _architecture(root: Keys, text: Keys, model_type: str) -> str:
    for keys in (root, text):
        named = keys.sequence("architectures")
        if named:
            if not isinstance(named[0], str):
                raise keys.wrong("architectures", named, "a list of class names")
            return str(named[0])
    return model_type


def _multimodal(root: Keys, text: Keys) -> bool:
    """Whether it takes images or sound beside text: it has an encoder's configuration, or its text part is nested."""
    encoders = ("vision_config", "audio_config", "visual", "num_mel_bins")
    return root.present(*encoders) is not None or text.where != root.where


def _tied(root: Keys, text: Keys) -> bool:
    """The root's word wins over the text part's: it is the root that transformers reads."""
    if "tie_word_embeddings" in root:
        return bool(root.flag("tie_word_embeddings"))
    return bool(text.flag("tie_word_embeddings"))


def _dtype(root: Keys, text: Keys) -> str:
    """dtype of what is not quantised; ``bfloat16`` where none is named, as vLLM then loads it."""
    for keys in (text, root):
        name = keys.text("dtype", "torch_dtype")
        if name is not None and name != "auto":
            return name.removeprefix("torch.")
    text.filled["dtype"] = "bfloat16"
    return "bfloat16"


def training_length(text: Keys, model_type: str) -> tuple[int | None, tuple[str, ...]]:
    """Tokens the model was trained for, in the reading of transformers, and notes on how it came about.

    The smallest of the length keys; Cohere's ``model_max_length`` wins over it; linear and dynamic rope scaling
    multiply it (Gemma 3 has the factor included), YaRN reaches ``original_max_position_embeddings * factor``.
    """
    lengths = [text.own_count(name, least=1, most=MOST_TOKENS) for name in LENGTHS]
    found = [length for length in lengths if length is not None]
    length = min(found) if found else text.count(*LENGTHS, least=1, most=MOST_TOKENS)
    longest = text.own_count("model_max_length", least=1, most=MOST_TOKENS)
    if longest is not None and (length is None or model_type in ("cohere", "cohere2")):
        length = longest
    if length is None:
        return None, ()
    for rope in rope_parts(text):
        kind = rope.text("rope_type", "type")
        factor = rope.number("factor")
        if kind is None or factor is None or not 0 < factor <= MOST_TOKENS:
            continue
        original = rope.count("original_max_position_embeddings", least=1, most=MOST_TOKENS)
        if "yarn" in kind and original is not None:
            length = max(length, min(int(original * factor), MOST_TOKENS))
        elif kind in ("linear", "dynamic", "ntk") and not model_type.startswith("gemma3"):
            return min(int(length * factor), MOST_TOKENS), (
                f"training length includes {kind} rope scaling by {factor:g}",
            )
    return length, ()


def rope_parts(text: Keys) -> list[Keys]:
    """The rope scaling: ``rope_parameters`` (transformers 5, possibly one a layer type) or ``rope_scaling``."""
    for name in ("rope_parameters", "rope_scaling"):
        value = text.values.get(name)
        if not isinstance(value, Mapping):
            continue
        whole = text.below(name)
        assert whole is not None
        parts = [whole.below(key) for key, part in value.items() if isinstance(key, str) and isinstance(part, Mapping)]
        return [whole, *(part for part in parts if part is not None)]
    return []


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
