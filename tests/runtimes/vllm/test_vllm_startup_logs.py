"""Public logs of real starts: what was printed beside what is forecast, by the tool that replays them."""

from __future__ import annotations

import importlib.util
import json
import sys
from functools import lru_cache
from types import ModuleType
from typing import Any

from vllm_launches import TESTS, forecast, model


@lru_cache(maxsize=1)
def tool() -> ModuleType:
    path = TESTS.parent / "tools" / "replay_logs.py"
    spec = importlib.util.spec_from_file_location("replay_logs", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["replay_logs"] = module
    spec.loader.exec_module(module)
    return module


@lru_cache(maxsize=1)
def replayed() -> list[Any]:
    lines = (TESTS / "data" / "vllm" / "startup-logs.jsonl").read_text().splitlines()
    found = [tool().replay(json.loads(line)) for line in lines]
    return [row for row in found if isinstance(row, tool().Replay)]


def test_bytes_per_token_with_the_printed_pool() -> None:
    """Within 0.1 % and what the printed pool's two decimals leave open, on 95 % of the logs."""
    rows = [row for row in replayed() if row.pool_error is not None]
    assert len(rows) >= 85
    good = [row for row in rows if abs(row.pool_error) <= 0.001 + row.slack]
    assert len(good) >= 0.95 * len(rows), [row.id for row in rows if row not in good]


def test_everything_predicted_is_near_and_inside_the_bounds() -> None:
    """From model, GPU and arguments alone: 85 % of the logs within 5 %, 95 % inside what we state as bounds."""
    rows = [row for row in replayed() if row.error is not None]
    assert len(rows) >= 60
    near = [row for row in rows if abs(row.error) <= 0.05]
    inside = [row for row in rows if row.low <= row.printed <= row.high]
    assert len(near) >= 0.85 * len(rows)
    assert len(inside) >= 0.95 * len(rows)


def test_graphs_are_inside_the_budget_only_where_the_release_subtracts_them() -> None:
    made = model("Qwen--Qwen3-8B")
    inside = {
        version: forecast(made, "--max-model-len", "8192", version=version, card="A100").memory[0].graphs
        for version in ("0.19.0", "0.22.1", "0.27.1", "0.29.0")
    }
    # 0.22.1 and 0.27.1 run Qwen3 with the V2 runner, whose estimate came with 0.29.
    assert inside["0.19.0"] == inside["0.22.1"] == inside["0.27.1"] == 0
    assert inside["0.29.0"]
    eager = forecast(made, "--enforce-eager", version="0.29.0", card="A100")
    assert eager.memory[0].graphs == 0


def test_budget_is_a_share_of_all_memory_and_the_parts_add_up() -> None:
    made = forecast(model("meta-llama--Meta-Llama-3.1-8B"), "--gpu-memory-utilization", "0.5", version="0.33.0")
    device = made.memory[0]
    assert device.total is not None
    assert device.budget is not None
    assert device.cache is not None
    assert device.headroom == device.total - device.budget
    parts = [device.weights, device.activations, device.graphs, device.other]
    assert abs(device.budget - device.cache - sum(part or 0 for part in parts)) <= 4
    assert made.cache is not None
    assert made.cache.bytes == device.cache


def test_without_a_gpu_the_request_is_exact_and_the_pool_unknown() -> None:
    made = forecast(model("google--gemma-3-4b-it"), "--max-model-len", "32768", version="0.29.0", card=None)
    assert made.cache is not None
    assert made.cache.bytes is None
    assert made.cache.tokens is None
    assert made.cache.bytes_per_request == made.cache.bytes_per_block * made.cache.blocks_per_request
    assert sum(part.bytes for part in made.cache.parts) == made.cache.bytes_per_request
    assert any("no GPU" in note for note in made.notes)


def test_a_pool_whose_upper_bound_holds_a_request_is_not_refused_yet() -> None:
    """Qwen2.5 14B on two L4: some lengths are above the predicted pool and below its upper bound."""
    made = model("Qwen--Qwen2.5-14B-Instruct")
    words = ("--tensor-parallel-size", "2", "--max-num-seqs", "128", "--max-model-len")
    sure = forecast(made, *words, "8192", version="0.28.0", card="L4")
    assert sure.cache is not None
    assert sure.cache.tokens is not None
    assert sure.cache.tokens_certainty is not None
    between = round((sure.cache.tokens + sure.cache.tokens_certainty.high) / 2)
    if between <= 32768:
        open_question = forecast(made, *words, str(between), version="0.28.0", card="L4")
        assert open_question.refused is None
        assert open_question.cache is not None
    too_much = forecast(made, *words, "32768", version="0.28.0", card="L4", kv_memory=1 << 30)
    assert too_much.refused is not None
    assert too_much.refused.code == "CTX603"
    assert too_much.cache is not None
    assert too_much.cache.bytes == 1 << 30


def peak(*words: str, version: str, card: str = "H100", name: str = "Qwen--Qwen3-8B") -> float:
    """GiB of activations that are forecast."""
    return (forecast(model(name), *words, version=version, card=card).memory[0].activations or 0) / (1 << 30)


def test_the_sampler_sorts_before_0_17() -> None:
    """1,024 rows of 151,936: 5.58 and 5.59 GiB were printed by 0.10.2, with experts and without; 2.2 since 0.17."""
    assert 5.5 < peak("--max-model-len", "8192", version="0.10.2") < 5.65
    assert 5.5 < peak("--max-model-len", "8192", version="0.16.0") < 5.65
    assert 2.1 < peak("--max-model-len", "8192", version="0.17.1") < 2.3


def test_experts_workspace_stays_since_0_13() -> None:
    name = "Qwen--Qwen3-30B-A3B"
    assert peak(version="0.12.0", name=name) == peak(version="0.12.0")
    assert peak(version="0.13.0", name=name) > peak(version="0.13.0") + 0.4


def test_flashinfer_samples_without_a_sort_where_it_is_installed_up_to_0_10() -> None:
    """Whether the package is there no command tells: the lower bound has it, the figure does not."""
    old, new = (
        forecast(model("Qwen--Qwen3-8B"), version=version, card="H100").memory[0] for version in ("0.10.2", "0.11.2")
    )
    assert old.activations == new.activations
    assert old.certainty["activations"].low < 0.5 * new.certainty["activations"].low


def test_the_vision_encoder_is_profiled_over_the_largest_image() -> None:
    """Qwen3.6 35B with one sequence: 2.3 GiB on one GPU of 0.24.0; 1.30 and 1.36 on two of 0.27.1."""
    name, few = "Qwen--Qwen3.5-35B-A3B", ("--max-num-seqs", "1", "--max-model-len", "131072")
    alone = peak(*few, version="0.24.0", card="RTX 5090", name=name)
    assert 2.1 < alone < 2.4
    assert 1.2 < peak(*few, "--tensor-parallel-size", "2", version="0.27.1", card="RTX 5090", name=name) < 1.5
    assert (
        peak(*few, "--tensor-parallel-size", "2", "--mm-encoder-tp-mode", "data", version="0.27.1", name=name) == alone
    )
    for silent in (("--language-model-only",), ("--limit-mm-per-prompt", '{"image": 0, "video": 0}')):
        assert peak(*few, *silent, version="0.24.0", card="RTX 5090", name=name) < 1
    many = peak("--max-model-len", "131072", version="0.24.0", name=name)
    assert many > 3.4  # the sampler's rows outweigh the image


def test_memory_beside_pytorchs_of_unified_memory_and_of_many_ranks() -> None:
    made = model("Qwen--Qwen3-8B")
    spark = forecast(made, version="0.25.1", card="GB10").memory[0].other or 0
    discrete = forecast(made, version="0.25.1", card="H100").memory[0].other or 0
    assert spark - discrete > 1.5 * (1 << 30)
    two, eight = (
        forecast(made, "--tensor-parallel-size", str(ranks), version="0.10.2", card="H100").memory[0].other or 0
        for ranks in (2, 8)
    )
    assert eight - two > 2 * (1 << 30)
