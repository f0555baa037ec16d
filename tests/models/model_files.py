"""Small model files for the tests of this room: safetensors, tokenizer, a tiny configuration."""

from __future__ import annotations

import json
import struct
from typing import Any

TINY: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}


def llama_tensors(layers: range, ends: bool = True) -> dict[str, tuple[str, list[int]]]:
    """Tensors of TINY as its checkpoint names them."""
    out: dict[str, tuple[str, list[int]]] = {}
    if ends:
        out["model.embed_tokens.weight"] = ("BF16", [256, 64])
        out["lm_head.weight"] = ("BF16", [256, 64])
        out["model.norm.weight"] = ("BF16", [64])
    for i in layers:
        name = f"model.layers.{i}"
        out[f"{name}.self_attn.q_proj.weight"] = ("BF16", [64, 64])
        out[f"{name}.self_attn.k_proj.weight"] = ("BF16", [32, 64])
        out[f"{name}.self_attn.v_proj.weight"] = ("BF16", [32, 64])
        out[f"{name}.self_attn.o_proj.weight"] = ("BF16", [64, 64])
        out[f"{name}.mlp.gate_proj.weight"] = ("BF16", [128, 64])
        out[f"{name}.mlp.up_proj.weight"] = ("BF16", [128, 64])
        out[f"{name}.mlp.down_proj.weight"] = ("BF16", [64, 128])
        out[f"{name}.input_layernorm.weight"] = ("BF16", [64])
        out[f"{name}.post_attention_layernorm.weight"] = ("BF16", [64])
    return out


def safetensors(tensors: dict[str, tuple[str, list[int]]]) -> bytes:
    """A safetensors file of zeros."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape) in tensors.items():
        size = {"BF16": 2, "F32": 4, "F8_E4M3": 1, "U8": 1, "I32": 4}[dtype]
        for n in shape:
            size *= n
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(end)


def sharded() -> dict[str, bytes]:
    """TINY's checkpoint in two shards with an index."""
    parts = {
        "model-00001-of-00002.safetensors": llama_tensors(range(1)),
        "model-00002-of-00002.safetensors": llama_tensors(range(1, 2), ends=False),
    }
    total = sum(len(safetensors(p)) for p in parts.values())
    index = {"metadata": {"total_size": total}, "weight_map": {t: f for f, p in parts.items() for t in p}}
    return {
        "model.safetensors.index.json": json.dumps(index).encode(),
        **{name: safetensors(part) for name, part in parts.items()},
    }


TINY_BYTES = 2 * (2 * 256 * 64 + 64 + 2 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 128 * 64 + 2 * 64))

TOKENIZER = {
    "tokenizer.json": json.dumps(
        {
            "added_tokens": [{"id": 255, "content": "<end>"}],
            "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "{": 2, '"': 3}, "merges": ["a b"]},
        }
    ).encode(),
    "tokenizer_config.json": json.dumps(
        {"tokenizer_class": "LlamaTokenizer", "model_max_length": 512, "chat_template": "{{ messages }}"}
    ).encode(),
}


def repository() -> dict[str, bytes]:
    """All files of the tiny model."""
    return {"config.json": json.dumps(TINY).encode(), **sharded(), **TOKENIZER}
