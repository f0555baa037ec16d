"""What vLLM refuses before it touches a GPU, and rules that changed from one release to the next."""

from __future__ import annotations

import pytest

from llmdoctor_core.facts import Forecast
from vllm_launches import GIB, forecast, model

MINIMAX, MIMO, GEMMA = "MiniMaxAI--MiniMax-M2.5", "XiaomiMiMo--MiMo-V2-Flash", "google--gemma-3-4b-it"


def made(name: str, *words: str, version: str, card: str = "H100", pool: int = 64 * GIB) -> Forecast:
    return forecast(model(name), *words, version=version, card=card, kv_memory=pool)


def test_experts_in_fp8_blocks_are_cut_between_blocks() -> None:
    """1536 columns over eight ranks are 192, one block and a half: refused up to 0.28, whose words these are."""
    refused = made(MINIMAX, "-tp", "8", version="0.27.1").refused
    assert refused is not None
    assert refused.code == "TP703"
    words = "The output_size of gate's and up's weight = 192 is not divisible by weight quantization block_n = 128."
    assert refused.message == words


@pytest.mark.parametrize(
    ("words", "version"),
    [
        (("-tp", "4"), "0.27.1"),  # 384 columns
        (("-tp", "8", "--enable-expert-parallel"), "0.27.1"),  # whole experts
        (("-tp", "8"), "0.29.0"),  # scales refined to blocks of 64
    ],
)
def test_experts_in_fp8_blocks_otherwise_load(words: tuple[str, ...], version: str) -> None:
    assert made(MINIMAX, *words, version=version).refused is None


def test_mimo_keeps_its_own_kv_dtype_up_to_0_31() -> None:
    """Its layers are made without vLLM's cache configuration, so --kv-cache-dtype does not reach them."""
    sizes = {}
    for version in ("0.31.0", "0.32.0"):
        cache = made(MIMO, "-tp", "2", "--kv-cache-dtype", "fp8", "--max-model-len", "8192", version=version).cache
        assert cache is not None
        sizes[version] = cache.bytes_per_block
    assert sizes["0.31.0"] == 2 * sizes["0.32.0"]


def test_offloading_switches_the_hybrid_manager_off_in_no_release() -> None:
    """Up to 0.21 the size becomes a connector too late to be seen; since 0.22 that connector supports the manager."""
    for version in ("0.20.2", "0.21.0", "0.22.1", "0.33.0"):
        plain = made(GEMMA, "--max-model-len", "32768", version=version).cache
        offloaded = made(GEMMA, "--max-model-len", "32768", "--kv-offloading-size", "8", version=version).cache
        assert plain is not None
        assert offloaded is not None
        assert offloaded.blocks_per_request == plain.blocks_per_request


def test_deepseek_v32_packs_an_unnamed_cache_in_0_11_0_alone() -> None:
    """656 bytes a token (fp8_ds_mla) there, two bytes a value since; the indexer keeps 132 beside."""
    sizes = {}
    for version in ("0.11.0", "0.11.1", "0.17.1"):
        cache = made("deepseek-ai--DeepSeek-V3.2", "-tp", "8", "--max-model-len", "8192", version=version).cache
        assert cache is not None
        sizes[version] = cache.bytes_per_block / 64 / 61
    assert sizes == {"0.11.0": 656 + 132, "0.11.1": 1152 + 132, "0.17.1": 1152 + 132}


def test_a_pool_that_is_not_known_is_said_with_its_reason() -> None:
    """A device without weights has no pool; what one request takes is told all the same."""
    found = forecast(model("deepseek-ai--DeepSeek-V4-Flash"), "-tp", "8", version="0.33.0", card="B200")
    assert found.refused is None
    assert found.cache is not None
    unknown = [note for note in found.notes if "cannot be counted" in note]
    assert bool(unknown) == (found.cache.blocks is None)
    assert found.cache.bytes_per_request > 0
