"""System, container and control groups from roots made here."""

import pytest

from llmdoctor_core.observe import facts_from
from llmdoctor_core.probes import cgroup, container, system

GIB = 1 << 30


def system_of(host):
    return facts_from({"system": system.probe(host)})["system"]


def container_of(host):
    return facts_from({"container": container.probe(host)})["container"]


def test_the_host_as_its_kernel_tells(fake_root):
    seen = system_of(
        fake_root(
            {
                "/proc/sys/kernel/osrelease": "6.8.0-51-generic\n",
                "/etc/os-release": 'NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 22.04.5 LTS"\n',
                "/proc/meminfo": "MemTotal: 1000 kB\nMemAvailable: 600 kB\nSwapTotal: 5 kB\nHugePages_Free:  7\n"
                "Hugepagesize: 2048 kB\n",
                "/proc/cpuinfo": "model name\t: AMD EPYC\nflags\t\t: fpu avx2 avx512f\n\nmodel name\t: AMD EPYC\n",
                "/sys/devices/system/node/node0/x": "",
                "/sys/devices/system/node/node1/x": "",
                "/proc/cmdline": "BOOT_IMAGE=/vmlinuz intel_iommu=on iommu=pt quiet",
            }
        )
    )
    assert (seen.kernel, seen.distribution, seen.wsl) == ("6.8.0-51-generic", "Ubuntu 22.04.5 LTS", False)
    assert (seen.memory_total, seen.memory_available, seen.swap_total) == (1000 << 10, 600 << 10, 5 << 10)
    assert (seen.hugepages_free, seen.hugepage_size, seen.numa_nodes) == (7, 2 << 20, 2)
    assert (seen.cpu_model, seen.cpu_flags) == ("AMD EPYC", ("fpu", "avx2", "avx512f"))
    assert seen.iommu == "passthrough"
    assert seen.has_passwd_entry is False
    assert "was not found" in seen.unread["glibc"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [("quiet", None), ("amd_iommu=off", "off"), ("intel_iommu=on,sm_on", "on"), ("iommu.passthrough=1", "passthrough")],
)
def test_iommu_by_the_kernels_command_line(fake_root, words, expected):
    assert system_of(fake_root({"/proc/cmdline": words})).iommu == expected


def test_windows_subsystem(fake_root):
    assert system_of(fake_root({"/proc/sys/kernel/osrelease": "5.15.153.1-microsoft-standard-WSL2"})).wsl


def bridge(control):
    config = bytearray(4096)
    config[0x100:0x104] = (0x0001 | 0x140 << 20).to_bytes(4, "little")  # error reporting, next at 0x140
    config[0x140:0x144] = 0x000D.to_bytes(4, "little")  # access control services, the last
    config[0x146:0x148] = control.to_bytes(2, "little")
    return bytes(config)


@pytest.mark.parametrize(
    ("config", "expected"),
    [(bridge(0x1D), True), (bridge(0x1), False), (bytes(64), None), (bridge(0x1D)[:256], None)],
)
def test_access_control_services_of_a_bridge(fake_root, config, expected):
    seen = system_of(
        fake_root(
            {
                "/sys/bus/pci/devices/0000:00:01.0/class": "0x060400\n",
                "/sys/bus/pci/devices/0000:00:01.0/config": config,
            }
        )
    )
    assert seen.acs is expected
    assert ("root only" in seen.unread.get("acs", "")) == (expected is None)


def test_cgroup_version_2_takes_the_tightest_of_the_parents(fake_root):
    host = fake_root(
        {
            "/proc/self/cgroup": "0::/user.slice/job.scope\n",
            "/sys/fs/cgroup/cgroup.controllers": "cpu memory\n",
            "/sys/fs/cgroup/user.slice/memory.max": str(8 * GIB),
            "/sys/fs/cgroup/user.slice/memory.current": str(3 * GIB),
            "/sys/fs/cgroup/user.slice/job.scope/memory.max": "max\n",
            "/sys/fs/cgroup/user.slice/job.scope/cpu.max": "150000 100000\n",
        }
    )
    assert cgroup.memory(host) == (8 * GIB, 3 * GIB)
    assert cgroup.cpu_limit(host) == 1.5
    assert system_of(host).cpus <= 2


def test_cgroup_version_2_inside_a_container_without_namespace(fake_root):
    host = fake_root(
        {
            "/proc/self/cgroup": "0::/system.slice/docker-abc.scope\n",
            "/sys/fs/cgroup/cgroup.controllers": "memory\n",
            "/sys/fs/cgroup/memory.max": str(4 * GIB),
        }
    )
    assert cgroup.memory(host) == (4 * GIB, None)


def test_cgroup_version_1(fake_root):
    host = fake_root(
        {
            "/proc/self/cgroup": "9:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n",
            "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "/sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes": str(16 * GIB),
            "/sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes": "5",
            "/sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us": "400000",
            "/sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_period_us": "100000",
        }
    )
    assert cgroup.memory(host) == (16 * GIB, 5)
    assert cgroup.cpu_limit(host) == 4.0


def test_no_limit_is_none(fake_root):
    host = fake_root(
        {
            "/proc/self/cgroup": "0::/\n",
            "/sys/fs/cgroup/cgroup.controllers": "",
            "/sys/fs/cgroup/memory.max": "max",
            "/sys/fs/cgroup/cpu.max": "max 100000",
        }
    )
    assert cgroup.memory(host) == (None, None)
    assert cgroup.cpu_limit(host) is None


@pytest.mark.parametrize(
    ("files", "environ", "kind", "image"),
    [
        ({}, {}, "none", None),
        ({"/.dockerenv": ""}, {}, "docker", None),
        ({"/run/.containerenv": 'engine="podman-4"\nimage="docker.io/vllm:1"\n'}, {}, "podman", "docker.io/vllm:1"),
        ({"/.dockerenv": ""}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes", None),
        ({"/proc/1/cgroup": "0::/lxc.payload.x\n"}, {}, "lxc", None),
        ({"/run/systemd/container": "systemd-nspawn"}, {}, "container", None),
    ],
)
def test_what_kind_of_container(fake_root, files, environ, kind, image):
    seen = container_of(fake_root(files, environ))
    assert (seen.kind, seen.image) == (kind, image)


def test_shared_memory_devices_and_libcuda(fake_root):
    seen = container_of(
        fake_root(
            {
                "/.dockerenv": "",
                "/dev/shm/x": "",
                "/dev/nvidia0": "",
                "/dev/nvidiactl": "",
                "/dev/nvidia-caps/x": "",
                "/dev/infiniband/uverbs0": "",
                "/proc/self/mountinfo": "25 1 0:5 / / rw - overlay overlay rw\n"
                "30 25 0:9 / /dev/shm rw,nosuid - tmpfs shm rw,size=65536k\n",
                "/usr/local/cuda/compat/libcuda.so.1": "compat",
                "/usr/lib64/libcuda.so.1": "driver",
            },
            {"LD_LIBRARY_PATH": "/usr/local/cuda/compat:/usr/lib64:/none"},
        )
    )
    assert seen.shm.filesystem == "tmpfs"
    assert seen.shm.size > 0
    assert seen.devices == ("/dev/nvidia0", "/dev/nvidiactl")
    assert seen.libcuda == ("/usr/local/cuda/compat/libcuda.so.1", "/usr/lib64/libcuda.so.1")
    assert seen.infiniband is True
    assert seen.ipc_host is False


def test_a_host_without_shared_memory_says_so(fake_root):
    assert container_of(fake_root({})).unread == {"shm": "/dev/shm does not exist"}
