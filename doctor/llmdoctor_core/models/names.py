"""From the name of a Hugging Face tensor to what it is: its layer, its kind, and how tensor parallel splits it."""

from __future__ import annotations

import re

OTHER_TOWERS = (
    (
        "vision",
        re.compile(
            r"(^|\.)(vision_tower|visual|vision_model|vision_encoder|vision_embed\w*|vit|embed_vision|patch_embed"
            r"|image_newline|multi_modal_projector|mm_projector|vision_adapter|patch_merger|mlp1|connector)(\.|$)"
        ),
    ),
    ("audio", re.compile(r"(^|\.)(audio_tower|audio_model|audio_encoder|embed_audio|audio_projector)(\.|$)")),
)
LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|block|layer)\.(\d{1,5})\.")
MTP = re.compile(r"(^|\.)(mtp|mtp_block|nextn|model_mtp|mtp_layers)(\.|$)")
EMBEDDING = re.compile(
    r"(^|\.)(embed_tokens|embed_tokens_per_layer|wte|wpe|word_embeddings|tok_embeddings|embedding|embeddings|embed_in"
    r"|embed_positions|position_embeddings|token_type_embeddings)(\.|$)"
)
OUTPUT = re.compile(r"(^|\.)(lm_head|output|embed_out|score)\.(weight|bias|weight_scale\w*|scales?|qweight|qzeros)$")
NORM = re.compile(r"(^|\.|_)(norm\w*|\w*layernorm\w*|ln_\w+|ln\d?|rms\w*)\.(weight|bias)$", re.IGNORECASE)
INDEXER = re.compile(r"(^|\.)(indexer|index_\w+)(\.|$)")
SHARED = re.compile(r"(^|\.)(shared_experts?|shared_mlp|share_expert|shared_expert_gate)(\.|$)")
ROUTER = re.compile(
    r"(^|\.)(router|gate|moe_gate|block_sparse_moe\.gate)\.(weight|bias|e_score_correction_bias|wg|layer\.weight)"
)
EXPERTS = re.compile(r"(^|\.)(experts|switch_mlp|moe\.(up|gate|down)_proj)(\.|$|_)")
STATE = re.compile(
    r"(^|\.)(linear_attn|mamba|ssm|conv|short_conv|kda|A_log|dt_bias|conv1d"
    r"|mixer\.(D|in_proj|out_proj|norm|x_proj|dt_proj))(\.|$)"
)
ATTENTION = re.compile(
    r"(^|\.)(self_attn|attn|attention|self_attention|cross_attn|encoder_attn|mixer\.[qkvo]_proj|wqkv|c_attn)(\.|$)"
)
FEED_FORWARD = re.compile(
    r"(^|\.)(mlp|feed_forward|ffn|fc1|fc2|dense_h_to_4h|dense_4h_to_h|mixer\.(up|down)_proj|c_fc|c_proj)(\.|$)"
)
WHOLE = re.compile(r"(^|\.)(q_a_proj|kv_a_proj_with_mqa|fused_qkv_a_proj|kv_a_proj)(\.|$)")
"""Projections that vLLM holds whole on every rank: MLA's way down to the latent (deepseek_v2.py, 0.32)."""

KEY_VALUE = re.compile(r"(^|\.)[kv]_proj\.")
ENCODER = re.compile(r"(^|\.)encoder\.(layers|conv\d|embed_positions|layer_norm)\.")
"""The encoder of an encoder-decoder model (Whisper); BERT's layers are ``encoder.layer``."""


def place(name: str, layers: int | None, kv_heads: int | None) -> tuple[int | None, str, int | None]:
    """``layer``, ``kind`` and ``parts`` (see ``facts.TensorGroup``) of the tensor of that name.

    ``layers``: decoder layers of the model; a layer behind them is multi-token prediction.
    """
    for kind, pattern in OTHER_TOWERS:
        if pattern.search(name):
            return None, kind, None
    found = LAYER.search(name)
    layer = int(found[1]) if found else None
    kind = _kind(name)
    parts = kv_heads if KEY_VALUE.search(name) else None
    if kind in ("norm", "router", "indexer") or WHOLE.search(name):
        parts = 1
    if MTP.search(name) or (layer is not None and layers is not None and layer >= layers):
        return None, "mtp", parts
    if ENCODER.search(name):
        return None, "audio", parts
    return layer, kind, parts


def _kind(name: str) -> str:
    for kind, pattern in (
        ("indexer", INDEXER),
        ("norm", NORM),
        ("shared experts", SHARED),
        ("router", ROUTER),
        ("experts", EXPERTS),
        ("output", OUTPUT),
        ("embedding", EMBEDDING),
        ("state", STATE),
        ("attention", ATTENTION),
        ("mlp", FEED_FORWARD),
    ):
        if pattern.search(name):
            return kind
    return "other"
