"""Launches that llama-server refuses are refused, in its own words and under the condition's code."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gguf_models import from_config, hollow_model, measured_model
from llamacpp_launches import forecast, stand_ins
from llmdoctor_core.facts import ModelFile
from llmdoctor_core.models import describe


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("-ctv", "q8_0", "-fa", "off"), "GGUF508", "quantized V cache requires flash_attn to be enabled"),
        (("--no-such",), "ARG901", "--no-such: b11434 stops with 'invalid argument'"),
        (("--draft-max", "4"), "ARG902", "--draft-max"),
        (("-np", "300"), "ARG903", "n_seq_max must be <= 256"),
        (("-np", "0"), "ARG903", "invalid value for n_parallel"),
    ],
)
def test_refused(arguments: tuple[str, ...], code: str, words: str) -> None:
    made = forecast(measured_model("tiny-qwen3-8b"), *arguments)
    assert made.refused is not None
    assert made.refused.code == code
    assert words in made.refused.message


def test_quantised_values_turn_flash_attention_on_by_themselves() -> None:
    assert forecast(measured_model("tiny-qwen3-8b"), "-ctv", "q8_0").refused is None


def test_latent_cache_wants_equal_types() -> None:
    made = forecast(measured_model("tiny-dsv2-lite-mla"), "-ctk", "q8_0")
    assert made.refused is not None
    assert made.refused.message == "model does not support different K (q8_0) and V (f16) cache types"


def test_head_size_that_a_block_does_not_divide() -> None:
    source = measured_model("tiny-qwen3-8b").source
    keys = {**(source.gguf or {}), "qwen3.attention.key_length": 80, "qwen3.attention.value_length": 80}
    odd = describe(replace(source, gguf=keys))
    made = forecast(odd, "-ctk", "q8_0")
    assert made.refused is not None
    assert made.refused.message == "K cache type q8_0 with block size 32 does not divide n_embd_head_k=80"
    assert forecast(odd, "-ctk", "q8_0", "-fa", "off").refused is None


def test_architecture_that_the_build_does_not_know() -> None:
    newer = from_config("moonshotai--Kimi-K3")
    made = forecast(newer, build="b9093")
    assert made.refused is not None
    assert made.refused.code == "GGUF503"
    assert made.refused.message == "unknown model architecture: 'kimi-k3'"
    assert forecast(newer, build="b11434").refused is None


def test_model_that_the_converter_does_not_know() -> None:
    made = forecast(from_config("openai--whisper-large-v3"))
    assert made.refused is not None
    assert made.refused.code == "MODEL513"


def test_pre_tokenizer_that_the_build_does_not_know() -> None:
    model = measured_model("smollm2-135m-q4_1")
    assert forecast(model, "-c", "4096").refused is None
    source = model.source
    odd = describe(replace(source, tokenizer=replace(source.tokenizer, pre_tokenizer="brand-new")))
    made = forecast(odd, "-c", "4096")
    assert made.refused is not None
    assert (made.refused.code, made.refused.message) == ("GGUF504", "unknown pre-tokenizer type: 'brand-new'")


@pytest.mark.parametrize(("problem", "code"), [("missing", "GGUF505"), ("truncated", "GGUF506")])
def test_files_that_are_not_whole(problem: str, code: str) -> None:
    source = measured_model("tiny-qwen3-8b").source
    broken = describe(replace(source, files=(ModelFile(name="a.gguf", bytes=1, expected_bytes=2, problem=problem),)))
    made = forecast(broken)
    assert made.refused is not None
    assert made.refused.code == code


def test_host_memory_that_nobody_sees() -> None:
    """Gemma 3 4B: 116 MiB a checkpoint (measured 116.012 with its header), Qwen3.5 9B 50.25."""
    gemma = {found.name: found for found in forecast(hollow_model("gemma3-4b"), "-np", "1").host}
    assert gemma["prompt cache"].bytes == 8192 << 20
    assert gemma["context checkpoints"].bytes == 32 * 116 << 20
    assert "116.00 MiB each" in gemma["context checkpoints"].why
    qwen = {found.name: found for found in forecast(hollow_model("qwen35-9b"), "-np", "2").host}
    assert qwen["context checkpoints"].bytes == int(2 * 32 * 50.25 * 2**20)
    plain = forecast(hollow_model("qwen3-8b"), "--cache-ram", "0").host
    assert plain == ()
    assert [found.name for found in forecast(hollow_model("gemma3-4b"), "--swa-full").host] == ["prompt cache"]


def test_weights_on_the_cpu_may_be_held_twice() -> None:
    model = measured_model("smollm2-135m-q4_1")
    found = {surprise.name: surprise.bytes for surprise in forecast(model).host}
    assert 0 < found["repacked weights"] < model.weight_bytes
    assert "repacked weights" not in {surprise.name for surprise in forecast(model, "-nr").host}
    assert "repacked weights" not in {surprise.name for surprise in forecast(model, gpus=stand_ins(1)).host}


def test_build_between_two_sources_is_said() -> None:
    latent = measured_model("tiny-dsv2-lite-mla")
    said = "no source between b7780 and b8054 was read"
    assert any(note.startswith(said) for note in forecast(latent, "-c", "4096", "-np", "1", build="b7900").notes)
    assert not any(note.startswith("no source") for note in forecast(latent, build="b8430").notes)
    dense = measured_model("tiny-qwen3-8b")
    assert not any(
        note.startswith("no source") for note in forecast(dense, "-c", "4096", "-np", "1", build="b7900").notes
    )


def test_latent_cache_held_values_before_b7780() -> None:
    """x 1.89 of today: 512 of 576 elements once more as values."""
    latent = measured_model("tiny-dsv2-lite-mla")
    old = forecast(latent, "-c", "4096", "-np", "1", build="b7550").cache
    new = forecast(latent, "-c", "4096", "-np", "1", build="b11434").cache
    assert old is not None
    assert new is not None
    assert old.bytes * 576 == new.bytes * (576 + 512)


def test_a_negative_context_is_refused_and_takes_no_negative_bytes() -> None:
    """A real server (b10434) reads -5 as 4,294,967,291 tokens and does not start."""
    made = forecast(measured_model("tiny-qwen3-8b"), "-c", "-5")
    assert made.refused is not None
    assert made.refused.code == "ARG903"
    assert made.cache is not None
    assert made.cache.bytes is not None
    assert made.cache.bytes > 0


def test_a_negative_physical_batch_is_as_large_as_the_logical_one() -> None:
    """`-c 512 -ub -3` prints n_ubatch = 512 (b10434)."""
    model = measured_model("tiny-qwen3-8b")
    odd, plain = (forecast(model, "-c", "512", "-np", "1", "-ub", size, gpus=stand_ins(1)) for size in ("-3", "512"))
    assert odd.refused is None
    assert odd.memory[0].activations == plain.memory[0].activations
