"""GPUs, driver and links through the real pynvml over a stand-in libnvidia-ml.so.1."""

import time

import pytest

from llmdoctor_core.observe import facts_from
from llmdoctor_core.probes import nvml
from llmdoctor_core.probes.host import Host

GIB, MIB = 1 << 30, 1 << 20


@pytest.fixture
def seen(gpu_host):
    def see(profile="pcie2", limit=10.0, **variables):
        return facts_from(nvml.probe(gpu_host(FAKE_NVML_PROFILE=profile, **variables), limit))

    return see


def labels(links):
    return {(pair.a, pair.b): pair.label for pair in links.pairs}


def test_two_gpus_of_one_host_bridge(seen):
    facts = seen("pcie2")
    first, second = facts["gpus"].devices
    assert (first.name, first.compute_capability, first.visible_as) == ("NVIDIA A10G", (8, 6), 0)
    assert first.memory_total == 24 * GIB - 553 * MIB - 500 * MIB
    assert first.memory_reserved == 500 * MIB
    assert first.memory_free == first.memory_total - 524 * MIB
    assert (first.processes[0].pid, first.processes[0].name, first.processes[0].memory) == (
        1,
        "/usr/bin/python3",
        512 * MIB,
    )
    assert (first.ecc_enabled, first.ecc_uncorrected, first.remapped_pending) == (True, 0, False)
    assert first.throttling == ("software power cap",)
    assert second.throttling == ()
    assert (first.pcie_width, first.pcie_width_max, first.pcie_generation, first.pcie_generation_max) == (8, 16, 1, 4)
    assert first.unread["mig_enabled"] == "not supported"
    assert labels(facts["links"]) == {(0, 1): "PHB"}
    assert facts["links"].pairs[0].p2p == "ok"
    assert facts["links"].pairs[0].p2p_nvlink == "not supported"
    assert facts["driver"].version == "580.95.05"
    assert facts["driver"].cuda_version == "13.0"


def test_four_gpus_across_one_numa_node(seen):
    facts = seen("node4")
    assert set(labels(facts["links"]).values()) == {"NODE"}
    assert len(facts["links"].pairs) == 6


def test_nvlink_bridges_are_counted_by_pair(seen):
    links = seen("nvlink4")["links"]
    assert set(labels(links).values()) == {"NV4"}
    assert {pair.nvlink_generation for pair in links.pairs} == {"3.1"}
    assert not links.nvswitch
    assert links.between(3, 1).p2p_nvlink == "ok"


def test_nvswitch_joins_all_by_all_links(seen):
    facts = seen("nvswitch8")
    assert set(labels(facts["links"]).values()) == {"NV18"}
    assert len(facts["links"].pairs) == 28
    assert facts["links"].nvswitch
    assert all(pair.through_switch and pair.path == "NODE" for pair in facts["links"].pairs)
    assert {gpu.fabric_state for gpu in facts["gpus"].devices} == {"completed"}
    assert {gpu.fabric_health for gpu in facts["gpus"].devices} == {"healthy"}


def test_fabric_that_is_not_ready(seen):
    gpu = seen("nvswitch8", FAKE_NVML_FABRIC="2")["gpus"].devices[0]
    assert (gpu.fabric_state, gpu.fabric_health) == ("in progress", None)


def test_mig_slices_stand_beside_their_parent(seen):
    gpus = seen("mig")["gpus"]
    parent, first, second = gpus.devices
    assert (parent.mig_enabled, parent.mig_parent, parent.visible_as) == (True, None, None)
    assert (first.mig_parent, first.mig_profile, first.memory_total) == (parent.uuid, "3g.20gb", (20096 - 500) * MIB)
    assert (first.visible_as, second.visible_as) == (0, None)
    assert "one MIG slice" in gpus.visible_problem


@pytest.mark.parametrize(
    ("value", "chosen"),
    [
        ("MIG-00000065-0000-5000-8000-00000000f00d", 2),
        ("MIG-00000065", 2),
        ("0", 1),
        ("MIG-GPU-a0000000-0000-4000-8000-00000000f00d/2/0", 2),
    ],
)
def test_a_mig_slice_can_be_chosen(seen, value, chosen):
    gpus = seen("mig", CUDA_VISIBLE_DEVICES=value)["gpus"]
    assert [position for position, gpu in enumerate(gpus.devices) if gpu.visible_as == 0] == [chosen]
    assert gpus.visible_problem is None


def test_a_lost_gpu_does_not_hide_the_others(seen):
    facts = seen("node4", FAKE_NVML_LOST="1")
    assert [gpu.lost for gpu in facts["gpus"].devices] == [None, "GPU is lost", None, None]
    assert (1, 2) not in labels(facts["links"])
    assert labels(facts["links"])[0, 2] == "NODE"


def test_a_lost_gpu_is_named_by_the_kernel_module(gpu_host, tmp_path):
    for bus in ("0000:10:00.0", "0000:11:00.0"):
        folder = tmp_path / "proc/driver/nvidia/gpus" / bus
        folder.mkdir(parents=True)
        (folder / "information").write_text("Model: \t\t NVIDIA A10G\nGPU UUID: \t GPU-b0\nBus Location: \t x\n")
    lost = facts_from(nvml.probe(gpu_host(tmp_path, FAKE_NVML_LOST="1"), 10))["gpus"].devices[1]
    assert (lost.name, lost.uuid, lost.bus_id) == ("NVIDIA A10G", "GPU-b0", "0000:11:00.0")


def test_xids_of_the_kernel_log(gpu_host, tmp_path):
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/kmsg").write_bytes(
        b"4,1,1,-;NVRM: Xid (PCI:0000:11:00): 79, pid=7, GPU has fallen off the bus.\n"
        b"4,2,2,-;NVRM: Xid (PCI:0000:11:00): 48, pid='<unknown>'\n4,3,3,-;other\n"
    )
    healthy, faulty = facts_from(nvml.probe(gpu_host(tmp_path), 10))["gpus"].devices
    assert (healthy.xid, faulty.xid) == ((), (79, 48))


def test_unreadable_kernel_log_is_said(gpu_host, tmp_path):
    gpu = facts_from(nvml.probe(gpu_host(tmp_path), 10))["gpus"].devices[0]
    assert gpu.xid is None
    assert "kernel log cannot be read" in gpu.unread["xid"]


def test_a_gpu_that_shares_the_hosts_memory(gpu_host, tmp_path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal:  127600748 kB\nMemFree: 5 kB\nMemAvailable:  100000000 kB\n")
    gpu = facts_from(nvml.probe(gpu_host(tmp_path, FAKE_NVML_PROFILE="gb10"), 10))["gpus"].devices[0]
    assert gpu.unified_memory
    assert (gpu.memory_total, gpu.memory_free) == (127600748 * 1024, 100000000 * 1024)


def test_process_memory_that_the_driver_does_not_tell(seen):
    assert seen("wsl")["gpus"].devices[0].processes[0].memory is None


def test_an_old_driver_does_not_tell_its_reserve_apart(seen):
    gpu = seen("pcie2", FAKE_NVML_OLD="1")["gpus"].devices[0]
    assert gpu.memory_total == 24 * GIB - 553 * MIB
    assert gpu.memory_reserved is None
    assert "still contain it" in gpu.unread["memory_reserved"]


def test_mixed_models_leave_the_order_uncertain(seen):
    assert "NVIDIA A10G, NVIDIA L4" in seen("mixed")["gpus"].order_uncertain
    assert seen("mixed", CUDA_DEVICE_ORDER="PCI_BUS_ID")["gpus"].order_uncertain is None
    assert seen("pcie2")["gpus"].order_uncertain is None


def test_no_gpu_is_an_observation(seen):
    facts = seen("none")
    assert facts["gpus"].devices == ()
    assert facts["links"].pairs == ()


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("9", "kernel module is not loaded"),
        ("18", "different versions"),
        ("4", "no permission"),
        ("999", "unknown error"),
    ],
)
def test_each_failure_to_start_has_its_own_reason(seen, code, words):
    facts = seen(FAKE_NVML_INIT=code)
    assert words in facts["gpus"].reason
    assert words in facts["links"].reason
    assert facts["driver"].version == "580.95.05"  # the library still tells its own version
    assert words in facts["driver"].unread["nvml"]


def test_library_and_kernel_module_of_different_versions(gpu_host, tmp_path):
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  575.57.08  Release Build  (dvs-builder@U22)\n"
        "GCC version:  gcc version 12.3.0 (Ubuntu 12.3.0-1ubuntu1~22.04)\n"
    )
    driver = facts_from(nvml.probe(gpu_host(tmp_path, FAKE_NVML_INIT="18"), 10))["driver"]
    assert (driver.version, driver.kernel_module_version) == ("580.95.05", "575.57.08")
    assert driver.open_kernel_module


def test_without_the_library_the_pci_bus_is_asked(fake_root):
    host = fake_root(
        {
            "/sys/bus/pci/devices/0000:01:00.0/vendor": "0x10de\n",
            "/sys/bus/pci/devices/0000:01:00.0/class": "0x030200\n",
            "/sys/bus/pci/devices/0000:01:00.1/vendor": "0x10de\n",
            "/sys/bus/pci/devices/0000:01:00.1/class": "0x040300\n",
        }
    )
    reason = facts_from(nvml.probe(host, 10))["gpus"].reason
    assert "libnvidia-ml.so.1 was not found" in reason
    assert reason.endswith("the PCI bus shows 1 NVIDIA GPU")


def test_a_blocked_driver_is_given_up_at_the_limit(seen):
    began = time.monotonic()
    facts = seen("node4", limit=1.0, FAKE_NVML_BLOCK="2")
    assert time.monotonic() - began < 2.0
    assert facts["gpus"].reason == "NVML did not answer within 1 s (reading GPU 2)"
    assert facts["links"].reason == facts["gpus"].reason
    assert facts["driver"].version == "580.95.05"  # asked before the driver blocked


def test_without_the_wrapper_it_is_said(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "nvidia-ml-py" in facts_from(nvml.probe(Host("/", {}), 5))["gpus"].reason
