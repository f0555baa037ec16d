"""Arguments, settings, connectors and the host around them."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from llmdoctor_checks import arguments, host, transfer
from llmdoctor_core.facts import ArgumentProblem, CacheDirectory, Environment, Mount, Network, Quantization, Unavailable
from llmdoctor_core.finding import Outcome

from .building import container, distribution, launch, model, request, system, target


def test_a_removed_argument_names_its_successor() -> None:
    gone = ArgumentProblem(
        kind="removed", flag="--swap-space", detail="gone", since="0.18.0", replacement="--kv-offloading-size"
    )
    (finding,) = arguments.argument_removed(launch(problems=(gone,)))
    assert "Write --kv-offloading-size instead" in finding.message
    assert finding.outcome is Outcome.FAIL
    (guessed,) = arguments.argument_removed(replace(launch(problems=(gone,)), version_assumed=True))
    assert guessed.outcome is Outcome.WARN, "an older release may still take it"


def test_a_marlin_variant_of_the_checkpoints_method_is_no_contradiction() -> None:
    stored = model(quantization=Quantization(method="awq", bits=4))
    assert arguments.arguments_contradict(launch(quantization="awq_marlin"), stored, None, None) == []
    assert arguments.arguments_contradict(launch(quantization="gptq"), stored, None, None)


def test_lmcache_keys_of_another_era_are_translated() -> None:
    old = request(environment={"LMCACHE_NIXL_ROLE": "sender"})
    (finding,) = arguments.setting_silently_ignored(None, old, None, target(distribution("lmcache", "0.5.6")))
    assert finding.params["instead"] == "LMCACHE_PD_ROLE"


def test_a_key_of_this_release_only() -> None:
    new = request(environment={"LMCACHE_GDS_BACKEND": "cufile"})
    assert arguments.setting_silently_ignored(None, new, None, target(distribution("lmcache", "0.5.6"))) == []
    assert arguments.setting_silently_ignored(None, new, None, target(distribution("lmcache", "0.4.2")))


def test_tokens_below_the_length_matter_without_chunks_only() -> None:
    assert arguments.batched_tokens_below_need(launch(max_num_batched_tokens=2048)) == []
    whole = launch(max_num_batched_tokens=2048, enable_chunked_prefill=False)
    assert [finding.outcome for finding in arguments.batched_tokens_below_need(whole)] == [Outcome.FAIL]


@pytest.mark.parametrize(("version", "fires"), [("0.12.0", False), ("0.13.0", True)])
def test_a_connector_lives_as_long_as_its_release(version: str, fires: bool) -> None:
    config = {"kv_connector": "SharedStorageConnector", "kv_role": "kv_both"}
    assert bool(transfer.kv_connector_unknown_or_moved(launch(version=version, kv_transfer_config=config))) is fires


@pytest.mark.parametrize(
    ("name", "version", "since"),
    [
        ("NixlPullConnector", "0.23.0", "0.24.0"),
        ("NixlPullConnector", "0.24.0", None),
        ("HiSparseConnector", "0.30.0", None),
        ("MooncakeConnector", "0.11.0", "0.13.0"),  # left with the old engine, came back with the new one
    ],
)
def test_a_connector_of_a_later_release(name: str, version: str, since: str | None) -> None:
    config = {"kv_connector": name, "kv_role": "kv_both"}
    found = transfer.kv_connector_unknown_or_moved(launch(version=version, kv_transfer_config=config))
    assert [finding.params["since"] for finding in found] == ([since] if since else [])


def test_keys_of_old_guides_since_0_32() -> None:
    config = {"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_rank": 0}
    assert transfer.kv_connector_unknown_or_moved(launch(version="0.31.0", kv_transfer_config=config)) == []
    (finding,) = transfer.kv_connector_unknown_or_moved(launch(version="0.32.0", kv_transfer_config=config))
    assert finding.params["key"] == "kv_rank"


def test_connectors_inside_a_multi_connector_are_read() -> None:
    inner = {"kv_connector": "NixlConector", "kv_role": "kv_both"}
    outer = {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"connectors": [inner]},
    }
    (finding,) = transfer.kv_connector_unknown_or_moved(launch(kv_transfer_config=outer))
    assert finding.params["near"] == "NixlConnector"


def test_nixl_of_another_cuda_finds_no_gpu_transport() -> None:
    config = {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
    found = transfer.kv_connector_needs_package(
        launch(kv_transfer_config=config), target(distribution("nixl-cu12", "1.1.0")), None, None
    )
    assert [finding.outcome for finding in found] == [Outcome.WARN]


def test_one_rank_does_not_care_for_shared_memory() -> None:
    assert host.shared_memory_too_small(Unavailable(reason="-"), launch(), request()) == []


def test_shared_memory_between_the_limits_is_a_warning() -> None:
    half = container(shm=Mount(path="/dev/shm", size=512 << 20, free=512 << 20))
    found = host.shared_memory_too_small(half, launch(tensor_parallel_size=2), request())
    assert [finding.outcome for finding in found] == [Outcome.WARN]


def test_compiled_kernels_on_nfs() -> None:
    nfs = Mount(path="/home", filesystem="nfs4", writable=True)
    shared = Environment(
        variables={},
        caches=(CacheDirectory(name="TRITON_CACHE_DIR", path="/home/.triton", set_by="default", mount=nfs),),
    )
    assert [finding.outcome for finding in host.cache_directory_not_writable(shared, system())] == [Outcome.WARN]


def test_a_prefix_names_every_interface_for_nccl_and_none_for_gloo() -> None:
    network = Network(hostname_resolves=True, interfaces=("lo", "eth0"))
    nccl, gloo = (request(environment={name: "eth"}) for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"))
    assert host.hostname_or_interface_unresolvable(network, None, nccl, None) == []
    assert host.hostname_or_interface_unresolvable(network, None, gloo, None)


def test_a_cpu_container_of_llamacpp_is_only_warned() -> None:
    found = host.gpu_devices_missing_in_container(container(devices=()), None, None, request("llamacpp"))
    assert [finding.outcome for finding in found] == [Outcome.WARN]
