"""LoRA adapters: whether the launch and vLLM load them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from llmdoctor_core.check import check
from llmdoctor_core.facts import Launch, LaunchRequest, Place
from llmdoctor_core.finding import Finding, fail, seen, skip
from llmdoctor_core.runtimes.vllm.arguments import ADAPTER_CONFIG, adapter_folders

from .launches import choices, listed


@check("MODEL517", "lora-adapter-unusable", runtimes={"vllm"})
def lora_adapter_unusable(launch: Launch, request: LaunchRequest) -> Iterator[Finding]:
    """A LoRA adapter is larger, or of another kind, than this launch loads."""
    most = launch.get("max_lora_rank")
    for name, folder in adapter_folders(launch.get("lora_modules")).items():
        path = f"{folder}/{ADAPTER_CONFIG}"
        adapter = _adapter(request.config_files.get(path))
        if adapter is None:
            yield skip("the configuration of adapter {name} was not read: {path}", name=name, path=path)
            continue
        rank = _rank(adapter)
        evidence = (seen("rank", rank, path), seen("max_lora_rank", most, "arguments"))
        if rank is not None and isinstance(most, int) and rank > most:
            fitting = next((one for one in choices("lora ranks") if one >= rank), None)
            yield fail(
                "adapter {name} has rank {rank} and this launch takes {most} at most: 'LoRA rank {rank} is greater "
                "than max_lora_rank {most}'. Start with --max-lora-rank {fitting}",
                evidence=evidence,
                where=Place(kind="argument", name="--max-lora-rank"),
                name=name,
                rank=rank,
                most=most,
                fitting=fitting or rank,
            )
        refused = ["use_dora"] if adapter.get("use_dora") else []
        whole = adapter.get("modules_to_save")
        if isinstance(whole, list) and not {"classifier", "score"}.issuperset(map(str, whole)):
            refused.append("modules_to_save")
        if adapter.get("bias") not in (None, "none"):
            refused.append("bias")
        if refused:
            yield fail(
                "adapter {name} sets {keys} in its adapter_config.json, which vLLM does not load. Merge the adapter "
                "into its base model and serve the result, or train it without",
                evidence=tuple(seen(key, adapter[key], path) for key in refused),
                where=Place(kind="file", name=path),
                name=name,
                keys=listed(refused),
            )


def _adapter(text: str | None) -> dict[str, Any] | None:
    try:
        content = json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def _rank(adapter: dict[str, Any]) -> int | None:
    """The largest rank of any layer (vllm lora/peft_helper.py validate_legal)."""
    pattern = adapter.get("rank_pattern")
    ranks = [adapter.get("r"), *(pattern.values() if isinstance(pattern, dict) else ())]
    return max((rank for rank in ranks if isinstance(rank, int)), default=None)
