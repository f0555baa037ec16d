"""Context and memory: what fits, what does not, and the number that would."""

from __future__ import annotations

from llmdoctor_checks import context, memory
from llmdoctor_core.facts import CachePart, HostSurprise, Layer, State, Unavailable
from llmdoctor_core.finding import Outcome

from .building import GIB, cache, container, device, estimate, forecast, launch, llama, model, request, system
from .cases import GEMMA, HYBRID

GEMMA_CACHE = cache(
    request_tokens=32768,
    bytes_per_request=2682 << 20,
    parts=(
        CachePart(kind="full", layers=5, bytes=640 << 20, grows_with="tokens"),
        CachePart(kind="sliding", layers=29, bytes=2042 << 20, grows_with="sequences", window=1024),
    ),
    bytes=2300 << 20,
    blocks=7000,
    blocks_per_request=8582,
)


def test_windows_are_reserved_whatever_the_length() -> None:
    # 2300 MiB less 2042 of windows leave 258 of 640 MiB: 32,768 x 258 / 640, in whole blocks of 16
    assert context.length_that_fits(GEMMA_CACHE) == 13200


def test_nothing_fits_where_the_windows_alone_do_not() -> None:
    from msgspec.structs import replace

    assert context.length_that_fits(replace(GEMMA_CACHE, bytes=2000 << 20)) is None


def test_within_an_estimate_it_is_a_warning() -> None:
    unsure = forecast(cache=cache(blocks=2100, certainty=estimate(1900, 2300)))
    (finding,) = context.cache_below_one_request(launch(), unsure)
    assert finding.outcome is Outcome.WARN
    assert finding.params["fits"] == 30400


def test_an_unknown_gpu_is_no_pass() -> None:
    blind = forecast(cache=cache(blocks=None, bytes=None), memory=())
    assert [finding.outcome for finding in context.cache_below_one_request(launch(), blind)] == [Outcome.SKIP]
    assert [finding.outcome for finding in memory.weights_do_not_fit(launch(), model(), blind)] == [Outcome.SKIP]


def test_four_default_slots_share_one_pool() -> None:
    pool = forecast(cache=cache(blocks=None, blocks_per_request=None, tokens=32768, slot_tokens=32768))
    (finding,) = context.context_shared_among_slots(llama(ctx_size=32768, parallel=-1), pool)
    assert (finding.params["each"], finding.params["wanted"]) == (8192, 131072)


def test_one_slot_on_purpose_is_fine() -> None:
    pool = forecast(cache=cache(blocks=None, blocks_per_request=None, tokens=32768, slot_tokens=32768))
    assert context.context_shared_among_slots(llama(ctx_size=32768, parallel=1), pool) == []


def test_memory_above_the_training_length_is_counted() -> None:
    capped = forecast(cache=cache(blocks=None, bytes=18432 << 20, tokens=131072, slot_tokens=40960))
    (finding,) = context.slot_capped_at_training_length(llama(ctx_size=131072, parallel=1), model(), capped)
    assert finding.params["unused"] == "12.38 GiB"
    assert finding.params["enough"] == 40960


def test_the_least_tensor_parallel_size_that_holds_the_weights() -> None:
    (finding,) = memory.weights_do_not_fit(launch(), model(), forecast(memory=(device(weights=140 * GIB),)))
    assert finding.params["gpus"] == 4


def test_a_budget_below_the_weights_leaves_no_cache_rather_than_failing_to_load() -> None:
    tight = forecast(memory=(device(weights=30 * GIB, budget=24 * GIB),))
    assert memory.weights_do_not_fit(launch(), model(), tight) == []
    assert [f.outcome for f in memory.no_memory_left_for_cache(launch(gpu_memory_utilization=0.3), tight)] == [
        Outcome.FAIL
    ]


def test_graphs_that_take_the_last_request() -> None:
    tight = forecast(cache=cache(blocks=2000, bytes=int(4.4 * GIB)), memory=(device(cache=int(4.4 * GIB), graphs=GIB),))
    assert memory.fits_only_without_graphs(launch(), tight)
    assert memory.fits_only_without_graphs(launch(enforce_eager=True), tight) == []


def test_state_blocks_within_an_estimate() -> None:
    unsure = forecast(cache=cache(blocks=1100, certainty=estimate(900, 1200)))
    (finding,) = memory.state_blocks_below_max_num_seqs(launch(max_num_seqs=1024), HYBRID, unsure)
    assert finding.outcome is Outcome.WARN
    eager = launch(max_num_seqs=1024, enforce_eager=True)
    assert memory.state_blocks_below_max_num_seqs(eager, HYBRID, unsure) == []


def test_lmcache_counts_per_rank_and_the_cgroup_counts_too() -> None:
    asked = request(environment={"LMCACHE_MAX_LOCAL_CPU_SIZE": "10"})
    eight = launch(tensor_parallel_size=8)
    assert memory.host_memory_below_need(asked, eight, None, None, system(), None, None) == []
    boxed = container(memory_limit=64 * GIB)
    (finding,) = memory.host_memory_below_need(asked, eight, None, None, system(), boxed, None)
    assert finding.params["need"] == "80.00 GiB"


def test_a_launch_without_host_pools_asks_nothing_of_the_host() -> None:
    assert memory.host_memory_below_need(request(), launch(), None, None, Unavailable(reason="-"), None, None) == []


def test_checkpoints_and_prompt_cache_add_up() -> None:
    grows = forecast(
        memory=(),
        host=(
            HostSurprise(name="prompt cache", bytes=8 * GIB, why="--cache-ram"),
            HostSurprise(name="context checkpoints", bytes=14 * GIB, why="32 a slot"),
        ),
    )
    (finding,) = memory.host_caches_uncounted(grows, system(memory_available=16 * GIB), None)
    assert finding.params["total"] == "22.00 GiB"


def test_a_model_without_windows_loses_no_promise() -> None:
    assert memory.cache_promise_lost(launch(disable_hybrid_kv_cache_manager=True), model(), None) == []
    assert memory.cache_promise_lost(llama(swa_full=True), GEMMA, None)


def test_a_gguf_file_that_was_not_read_is_warned_about_where_only_the_middle_is_too_large() -> None:
    """16 bits on 24 GB: at least 20 GiB fit, the 60 that are likely do not; none is said where --fit decides."""
    weights = estimate(20 * GIB, 62 * GIB)
    small = device(total=24 * GIB, weights=60 * GIB, cache=GIB, certainty={"weights": weights})
    forced = list(memory.weights_do_not_fit(llama(gpu_layers=99), model(), forecast(memory=(small,))))
    assert [found.outcome for found in forced] == [Outcome.WARN]
    every = list(memory.weights_do_not_fit(llama(gpu_layers="all"), model(), forecast(memory=(small,))))
    assert [found.outcome for found in every] == [Outcome.WARN]
    assert not list(memory.weights_do_not_fit(llama(), model(), forecast(memory=(small,))))
    sure = device(total=24 * GIB, weights=60 * GIB, cache=GIB, certainty={"weights": estimate(58 * GIB, 62 * GIB)})
    found = list(memory.weights_do_not_fit(llama(gpu_layers=99), model(), forecast(memory=(sure,))))
    assert [one.outcome for one in found] == [Outcome.FAIL]


def test_state_blocks_are_a_warning_where_the_release_does_not_refuse() -> None:
    short = forecast(cache=cache(blocks=400))
    hybrid = model(layers=(Layer(caches=(State(kind="gdn", shapes=((8, 4),)),)),))
    for version, outcome in (("0.32.0", Outcome.FAIL), ("0.19.1", Outcome.WARN)):
        found = memory.state_blocks_below_max_num_seqs(launch(version=version, max_num_seqs=1024), hybrid, short)
        assert [one.outcome for one in found] == [outcome]
    piecewise = launch(max_num_seqs=1024, cudagraph_mode="PIECEWISE")
    assert not list(memory.state_blocks_below_max_num_seqs(piecewise, hybrid, short))
