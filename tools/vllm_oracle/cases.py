"""Writes the cases for ``ask.py``: every configuration with every setting that means something for it."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).parent
EAGLE3 = {
    "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 1, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256,
    "draft_vocab_size": 32000, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "hidden_act": "silu",
    "rope_theta": 500000.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "bos_token_id": 128000,
    "eos_token_id": 128001,
}  # fmt: skip
"""The shape of a published EAGLE-3 head for Llama 3.1 8B: one Llama layer of the target's width."""


FILLED: dict[str, dict[str, Any]] = {
    "LiquidAI--LFM2-1.2B": {
        "conv_dim": 2048, "conv_dim_out": 2048, "block_dim": 2048, "block_multiple_of": 256,
        "block_auto_adjust_ff_dim": True, "block_ffn_dim_multiplier": 1.0, "block_ff_dim": 12288,
    },
    "MiniMaxAI--MiniMax-M2.5": {"scoring_func": "sigmoid", "rotary_dim": 64, "use_qk_norm": True},
    "XiaomiMiMo--MiMo-V2-Flash": {
        "layernorm_epsilon": 1e-5, "hidden_act": "silu", "attention_bias": False, "norm_topk_prob": True,
        "n_group": 1, "topk_group": 1, "tie_word_embeddings": False, "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
    },
    "XiaomiMiMo--MiMo-7B-Base": {"model_type": "qwen2"},
    "Qwen--Qwen3.5-9B": {"text_config": {"mamba_ssm_dtype": "float32"}},
    "Qwen--Qwen3.8-27B": {"text_config": {"mamba_ssm_dtype": "float32"}},
    "arcee-ai--Trinity-Nano-Base": {
        "score_func": "sigmoid", "route_norm": True, "route_scale": 2.448, "n_group": 1, "topk_group": 1,
        "mup_enabled": True, "num_shared_experts": 1, "num_dense_layers": 2,
    },
    "deepseek-ai--DeepSeek-V2-Lite": {
        "n_group": 1, "topk_group": 1, "topk_method": "greedy", "routed_scaling_factor": 1.0, "norm_topk_prob": False,
        "scoring_func": "softmax", "moe_layer_freq": 1,
    },
    "deepseek-ai--DeepSeek-V4-Flash": {
        "rms_norm_eps": 1e-6, "hidden_act": "silu", "norm_topk_prob": True, "swiglu_limit": 10.0,
        "routed_scaling_factor": 1.5, "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc",
    },
    "ibm-granite--granite-4.0-h-small": {"max_position_embeddings": 131072},
    "ibm-granite--granite-4.0-h-tiny": {"max_position_embeddings": 131072},
    "nvidia--Qwen3.6-27B-NVFP4": {
        "quantization_config": {
            "quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16,
            "ignore": [],
        },
    },
}  # fmt: skip
"""Keys that the fact files leave out and vLLM's code asks for; apart from Granite's length and Qwen3.5's state dtype
none changes what a cache keeps. MiMo's own configuration class, a Qwen2Config by another name, comes with the
checkpoint."""


def filled(name: str, config: dict[str, Any]) -> dict[str, Any]:
    """The configuration with the keys that vLLM needs and the facts lack."""
    more = FILLED.get(name, {})
    nested = {key: {**config[key], **value} for key, value in more.items() if key in config and key == "text_config"}
    return {**config, **more, **nested}


def traits(name: str, config: dict[str, Any]) -> set[str]:
    """What of a model a setting can ask for."""
    text = {**config, **config.get("text_config", {})}
    found = {name}
    if any(text.get(key) for key in ("num_nextn_predict_layers", "mtp_num_hidden_layers", "mtp_num_layers")):
        found.add("mtp")
    if text.get("kv_lora_rank"):
        found.add("latent")
    kinds = set(text.get("layer_types") or ())
    model_type = text.get("model_type", "")
    state = kinds & {"linear_attention", "mamba", "conv"} or text.get("linear_attn_config")
    if state or any(
        word in model_type
        for word in ("mamba", "jamba", "falcon_h1", "nemotron_h", "qwen3_5", "qwen3_next", "lfm2", "hybrid")
    ):
        found.add("state")
    if model_type in ("qwen3", "llama", "qwen2") and config.get("architectures", [""])[0] != "DeciLMForCausalLM":
        found.add("plain")
    return found


def longest(config: dict[str, Any]) -> int:
    """A length that the model surely allows."""
    text = {**config, **config.get("text_config", {})}
    for key in ("max_position_embeddings", "n_positions", "max_target_positions", "seq_length"):
        if text.get(key):
            scaling = text.get("rope_scaling") or text.get("rope_parameters") or {}
            return min(int(text[key]), int(scaling.get("original_max_position_embeddings") or text[key]))
    return 131072


def release(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def cases(configs: Path, folder: Path, version: str) -> list[dict[str, Any]]:
    """All cases, and below ``folder`` one directory a model as vLLM wants it."""
    table = tomllib.loads((HERE / "settings.toml").read_text())
    models = {path.stem: json.loads(path.read_text()) for path in sorted(configs.glob("*--*.json"))}
    for name, config in {**models, "eagle3-llama-3.1-8b": EAGLE3}.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "config.json").write_text(json.dumps(filled(name, config)))
    found = []
    for name, config in models.items():
        for key, setting in table["settings"].items():
            if "needs" in setting and not traits(name, config) & set(setting["needs"]):
                continue
            if "until" in setting and release(version) > release(setting["until"]):
                continue
            args = json.loads(json.dumps(setting["args"]).replace('"@', f'"{folder}/'))
            if 0 < args.get("max_model_len", 0) < 1_000_000:
                args["max_model_len"] = min(args["max_model_len"], longest(config))
            gpu = table["gpus"][setting["gpu"]]
            base = {"id": f"{name}/{key}", "model": str(folder / name), "usage": setting["usage"], "gpu": gpu}
            found.append({**base, "args": args, "pools": table["pools"]})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("configs", type=Path, help="folder of ORGANISATION--MODEL.json files")
    parser.add_argument("folder", type=Path, help="where to write a directory for each model")
    parser.add_argument("out", type=Path, help="the cases, a line each")
    parser.add_argument("version", help="release of vLLM that is going to be asked")
    options = parser.parse_args()
    lines = [json.dumps(case) for case in cases(options.configs, options.folder.resolve(), options.version)]
    options.out.write_text("\n".join(lines) + "\n")
    print(f"{len(lines)} cases", file=sys.stderr)


if __name__ == "__main__":
    main()
