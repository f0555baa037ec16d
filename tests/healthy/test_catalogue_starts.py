"""No false alarm without a log either: models of the catalogue on GPUs that hold them with room to spare."""

from __future__ import annotations

import pytest

from llmdoctor_core import models
from llmdoctor_core.case import Case
from llmdoctor_core.examine import examine
from llmdoctor_core.facts import LaunchRequest, Model
from llmdoctor_core.finding import Outcome
from llmdoctor_core.gpu_table import gpus_from
from llmdoctor_core.models import catalogue
from llmdoctor_core.models.weights import bytes_per_rank
from llmdoctor_core.plugins import catalogue as checks

SPARE = 0.6
"""Share of a GPU that the weights of a rank may take."""
SPLIT_OF_BLOCKS = {
    "MiniMaxAI/MiniMax-M2.5",
    "MiniMaxAI/MiniMax-M2.7",
    "Qwen/Qwen3-235B-A22B-FP8",
    "stepfun-ai/Step-3.7-Flash-FP8",
}
"""Experts in FP8 blocks of 128 that so many ranks cut: vLLM refuses before 0.29 (Qwen3-235B-A22B-FP8 on 8), where TP703
is right, and refines the blocks since."""
VERSIONS = {"0.19.0": SPLIT_OF_BLOCKS, "0.33.0": set[str]()}
"""Models that do not start at all, by release."""


def ranks_that_fit(model: Model, memory: int) -> int | None:
    for ranks in (1, 2, 4, 8):
        size = bytes_per_rank(model, tensor_parallel=ranks)
        if size is not None and size <= SPARE * memory and not (model.heads and model.heads % ranks):
            return ranks
    return None


@pytest.mark.slow
@pytest.mark.parametrize(("version", "refused"), VERSIONS.items())
def test_models_on_gpus_that_hold_them(version: str, refused: set[str]) -> None:
    card = gpus_from("H100-80GB").devices[0]
    alarms: dict[str, list[str]] = {}
    tried = 0
    for name in catalogue.names():
        source = catalogue.find(name)
        assert source is not None
        model = models.describe(source)
        ranks = ranks_that_fit(model, card.memory_total or 0)
        if ranks is None:
            continue
        tried += 1
        length = str(min(2048, model.training_length or 2048))
        words = ("vllm", "serve", name, "--max-model-len", length, "--max-num-seqs", "64", "--trust-remote-code")
        case = Case(
            launch=LaunchRequest(
                runtime="vllm", argv=(*words, "--tensor-parallel-size", str(ranks)), version=version, model=name
            ),
            model=source,
            gpus=gpus_from(f"H100-80GBx{ranks}"),
        )
        found = examine(case, checks().checks).findings
        loud = [f"{one.code} {one.message}" for one in found if one.outcome in (Outcome.FAIL, Outcome.ERROR)]
        split = [text for text in loud if text.startswith("TP703")]
        if len(loud) != (name in refused) or loud != split:
            alarms[name] = loud
    assert tried >= 100
    assert alarms == {}
