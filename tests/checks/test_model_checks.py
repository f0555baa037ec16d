"""The model's files, GGUF metadata, draft models and tensor parallel arithmetic."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from llmdoctor_checks import draft, gguf, model, parallel
from llmdoctor_core.facts import (
    Argument,
    Draft,
    Forecast,
    Full,
    Latent,
    Layer,
    ModelFile,
    Quantization,
    Refusal,
    Unavailable,
)
from llmdoctor_core.finding import Outcome

from .building import cache, forecast, gpus, launch, llama, request, source
from .building import gguf as file
from .building import model as plain

EXPANDED = {
    "attention.kv_lora_rank": 512,
    "rope.dimension_count": 64,
    "attention.head_count": 16,
    "attention.key_length": 192,
    "attention.value_length": 128,
}


def test_expanded_mla_costs_its_factor() -> None:
    held: Forecast = forecast(cache=cache(blocks=None, bytes=8640 << 20))
    (finding,) = gguf.mla_stored_expanded(file("deepseek2", metadata=EXPANDED), held)
    assert round(finding.params["factor"], 2) == 8.89
    assert (finding.params["have"], finding.params["instead"]) == ("8.44 GiB", "972.0 MiB")


def test_a_window_that_llamacpp_ignores_is_told() -> None:
    phi = plain(architecture="phi3", source=file("phi3", metadata={"attention.sliding_window": 2048}))
    (finding,) = gguf.sliding_window_lost(phi, None)
    assert finding.params["window"] == 2048


def test_the_build_decides_on_the_architecture() -> None:
    assert [f.outcome for f in gguf.architecture_unknown_to_build(llama("b6630"), file("deepseek4"))] == [Outcome.FAIL]
    assert gguf.architecture_unknown_to_build(llama("b11434"), file("deepseek4")) == []


def test_a_build_newer_than_the_tables_is_no_pass() -> None:
    found = gguf.architecture_unknown_to_build(llama("b99999"), file("of-tomorrow"))
    assert [finding.outcome for finding in found] == [Outcome.SKIP]


def test_only_bpe_vocabularies_have_a_pre_tokenizer() -> None:
    unigram = file(general={"tokenizer.ggml.model": "t5", "tokenizer.ggml.pre": "of-tomorrow"})
    assert gguf.pre_tokenizer_unknown_to_build(llama("b11434"), unigram) == []


def test_missing_bytes_are_counted() -> None:
    short = file(files=(ModelFile(name="m.gguf", bytes=3 << 30, expected_bytes=4 << 30, problem="truncated"),))
    (finding,) = gguf.file_shorter_than_header(short)
    assert finding.params["missing"] == "1.00 GiB"


def test_the_option_for_other_vocabularies_is_named_since_0_25() -> None:
    other = Draft(model=plain())
    asked = {"speculative_config": {"model": "d"}}
    new, old = (
        draft.draft_vocabulary_differs(launch(version=version, **asked), plain(vocabulary=152064), other)
        for version in ("0.25.0", "0.24.0")
    )
    assert "use_heterogeneous_vocab" in new[0].message
    assert "came with 0.25" in old[0].message
    allowed = launch(version="0.25.0", speculative_config={"model": "d", "use_heterogeneous_vocab": True})
    assert [f.outcome for f in draft.draft_vocabulary_differs(allowed, plain(vocabulary=152064), other)] == [
        Outcome.WARN
    ]


def test_eagle_drafts_share_the_target_vocabulary() -> None:
    eagle = launch(speculative_config={"model": "d", "method": "eagle3"})
    assert draft.draft_vocabulary_differs(eagle, plain(vocabulary=152064), Draft(model=plain(vocabulary=32000))) == []


@pytest.mark.parametrize(("kv_heads", "ranks", "fires"), [(10, 4, True), (10, 2, False), (8, 16, False), (3, 8, True)])
def test_kv_heads_divide_or_are_divided(kv_heads: int, ranks: int, fires: bool) -> None:
    layer = Layer(caches=(Full(kv_heads=kv_heads, key_dim=128, value_dim=128),))
    found = parallel.heads_not_divisible(launch(tensor_parallel_size=ranks), plain(heads=240, layers=(layer,)), None)
    assert bool(found) is fires


def test_what_else_the_forecast_refuses_to_split_is_told() -> None:
    refused = forecast(refused=Refusal(code="TP701", message="6 is not divisible by 4"))
    (finding,) = parallel.heads_not_divisible(launch(tensor_parallel_size=4), plain(), refused)
    assert finding.params["message"] == "6 is not divisible by 4"


def test_a_latent_cache_is_never_split() -> None:
    latent = Latent(rank=512, rope_dim=64, heads=16, key_dim=192, value_dim=128)
    found = parallel.kv_heads_replicated(launch(tensor_parallel_size=2), plain(layers=(Layer(caches=(latent,)),)), None)
    assert [finding.outcome for finding in found] == [Outcome.WARN]


def test_231_groups_do_not_split_in_two() -> None:
    quantized = Quantization(method="awq", bits=4, group_size=128)
    (finding,) = parallel.quantization_group_split(
        launch(tensor_parallel_size=2), plain(intermediate_size=29568, quantization=quantized)
    )
    assert finding.params["count"] == 231


def test_experts_in_blocks_are_cut_whole_or_refined() -> None:
    """Expert parallel keeps them whole; data parallel ranks cut them too; vLLM 0.29 refines what does not divide."""
    blocks = Quantization(method="fp8", bits=8, block=(128, 128))
    experts = plain(experts=128, expert_intermediate_size=1536, intermediate_size=12288, quantization=blocks)

    def parts(**arguments: object) -> list[object]:
        found = parallel.quantization_group_split(launch(**arguments), experts)  # type: ignore[arg-type]
        return [finding.params["part"] for finding in found]

    assert parts(version="0.28.0", tensor_parallel_size=8) == ["192"]
    assert parts(version="0.28.0", tensor_parallel_size=2, data_parallel_size=4) == ["192"]
    assert parts(version="0.28.0", tensor_parallel_size=4) == []
    assert parts(version="0.28.0", tensor_parallel_size=8, enable_expert_parallel=True) == []
    assert parts(version="0.29.0", tensor_parallel_size=8) == []


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        ({"data_parallel_size": 2, "tensor_parallel_size": 2}, [4]),
        ({"data_parallel_size": 4, "data_parallel_size_local": 2}, []),
        ({"data_parallel_size": 8, "data_parallel_rank": 0}, []),
        ({"data_parallel_size": 8, "data_parallel_backend": "ray"}, []),
    ],
)
def test_data_parallel_engines_of_this_node_need_gpus_of_their_own(
    arguments: dict[str, object], asked: list[int]
) -> None:
    found = parallel.more_ranks_than_gpus(launch(**arguments), gpus(2))
    assert [finding.params["asked"] for finding in found] == asked


def test_own_code_is_not_needed_where_the_engine_knows_the_type() -> None:
    known = source(config={"model_type": "qwen3", "auto_map": {"AutoConfig": "c.C"}})
    assert model.custom_code_not_trusted(launch(), known, None) == []


def test_the_catalogue_does_not_know_of_own_code() -> None:
    listed = source(origin="catalogue", unrecorded=("auto_map",))
    assert [f.outcome for f in model.custom_code_not_trusted(launch(), listed, None)] == [Outcome.SKIP]


def test_a_pooling_model_needs_no_chat_template() -> None:
    from llmdoctor_core.facts import TokenizerFacts

    bare = source(tokenizer=TokenizerFacts(chat_template=False))
    assert model.no_chat_template(bare, launch(), plain(pooling=True)) == []


NO_WEIGHTS = source(files=(ModelFile(name="/models/a", bytes=0, problem="no weights"),))


@pytest.mark.parametrize(
    ("argv", "settings", "expected"),
    [
        (("vllm", "serve", "/models/a"), {}, [Outcome.FAIL]),
        (("vllm", "serve", "/models/a"), {"load_format": "dummy"}, []),
        (("vllm", "serve", "/models/a"), {"load_format": "tensorizer"}, [Outcome.SKIP]),
        (("vllm", "serve", "org/other"), {}, [Outcome.SKIP]),
    ],
)
def test_a_folder_without_weights_is_no_pass(
    argv: tuple[str, ...], settings: dict[str, str], expected: list[Outcome]
) -> None:
    asked = request(argv=argv, model="/models/a")
    found = model.model_file_missing_or_truncated(NO_WEIGHTS, launch(**settings), asked)
    assert [one.outcome for one in found] == expected


def test_a_tokenizer_of_its_own_stands_in_for_the_missing_one() -> None:
    bare = source(notes=("there is no tokenizer in /models/a",))
    assert [f.outcome for f in model.tokenizer_unreadable(bare, None, launch(), None)] == [Outcome.FAIL]
    assert model.tokenizer_unreadable(bare, None, launch(tokenizer="org/other"), None) == []


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (("vllm", "serve"), Outcome.WARN),
        (("vllm", "serve", "--config=/in/the/container.yaml"), Outcome.SKIP),
        ((), Outcome.SKIP),
    ],
)
def test_vllms_default_model_is_no_pass(argv: tuple[str, ...], expected: Outcome) -> None:
    nothing = Unavailable(reason="the launch names no model")
    assert [f.outcome for f in model.model_not_reachable(nothing, request(argv=argv))] == [expected]


def test_llama_server_loads_no_folder() -> None:
    here = source(where="/models/a", config={"model_type": "qwen3"})
    typed = request("llamacpp", argv=("llama-server", "-m", "/models/a"), model="/models/a")
    assert [f.outcome for f in gguf.not_a_gguf_file(here, typed)] == [Outcome.FAIL]
    assert gguf.not_a_gguf_file(here, request("llamacpp", argv=("llama-server",), model="/models/a")) == []


def test_more_ranks_than_gpus_where_an_older_release_takes_to_ray() -> None:
    by_itself = Argument(name="distributed_executor_backend", value="ray", origin="derived")
    older = launch(tensor_parallel_size=2)
    older = replace(older, arguments={**older.arguments, by_itself.name: by_itself})
    assert [f.outcome for f in parallel.more_ranks_than_gpus(older, gpus())] == [Outcome.WARN]
    assert [f.outcome for f in parallel.more_ranks_than_gpus(launch(tensor_parallel_size=2), gpus())] == [Outcome.FAIL]
    asked = launch(tensor_parallel_size=2, distributed_executor_backend="ray")
    assert parallel.more_ranks_than_gpus(asked, gpus()) == []
