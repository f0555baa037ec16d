"""Variables without their secrets, the folders servers write to, and the network without a packet sent."""

import os
import socket

import pytest

from llmdoctor_core.observe import facts_from
from llmdoctor_core.probes import environment, network
from llmdoctor_core.probes.host import Host, table


def environment_of(host):
    return facts_from({"environment": environment.probe(host)})["environment"]


def network_of(host, ports=()):
    return facts_from({"network": network.probe(host, ports)})["network"]


SECRETS = {
    "HF_TOKEN": "hf_abcdefghijklmnop",
    "VLLM_API_KEY": "s3cret-value",
    "AWS_SECRET_ACCESS_KEY": "s3cret-value",
    "OPENAI_API_KEY": "sk-s3cret-value",
    "MY_PASSWORD": "s3cret-value",
    "LMCACHE_REMOTE_URL": "redis://user:s3cret-value@cache:6379",
    "https_proxy": "http://me:s3cret-value@proxy:3128",
    "VLLM_EXTRA": "--key sk-s3cret-value --hub hf_abcdefghijklmnop",
}


def test_no_secret_is_read_out(fake_root):
    host = fake_root({}, {"HOME": "/root", **SECRETS})
    seen = environment_of(host)
    shown = repr(seen) + repr(network_of(host))
    assert "s3cret" not in shown
    assert "abcdefghijklmnop" not in shown
    assert seen.variables["HF_TOKEN"] == "<set>"
    assert seen.variables["LMCACHE_REMOTE_URL"] == "redis://<set>@cache:6379"
    assert {"HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "OPENAI_API_KEY", "MY_PASSWORD", "VLLM_API_KEY"} == set(seen.secrets)
    assert "AWS_SECRET_ACCESS_KEY" not in seen.variables


@pytest.mark.parametrize(
    "name", ["VLLM_MAX_TOKENS_PER_EXPERT_FP4_MOE", "TOKENIZERS_PARALLELISM", "HF_TOKEN_PATH", "VLLM_KEYED", "MONKEY_X"]
)
def test_what_only_looks_like_a_secret_is_shown(name):
    assert not environment.is_secret(name, table("environment.json")["secret_words"])


def test_caches_follow_their_variables(fake_root):
    host = fake_root(
        {
            "/data/hf/hub/x": "",
            "/proc/self/mountinfo": "1 0 0:1 / / rw - ext4 /dev/a rw\n2 1 0:2 / /data rw - nfs s:/x rw\n",
        },
        {"HOME": "/home/me", "USER": "me", "HF_HOME": "/data/hf", "XDG_CACHE_HOME": "/var/cache/me", "TMPDIR": "~/t"},
    )
    seen = {cache.name: cache for cache in environment_of(host).caches}
    assert (seen["HF_HOME"].path, seen["HF_HOME"].set_by) == ("/data/hf", "environment")
    assert (seen["HF_HUB_CACHE"].path, seen["HF_HUB_CACHE"].set_by) == ("/data/hf/hub", "default")
    assert seen["HF_HUB_CACHE"].mount.filesystem == "nfs"
    assert seen["HF_HUB_CACHE"].mount.exists
    assert seen["VLLM_CACHE_ROOT"].path == "/var/cache/me/vllm"
    assert not seen["VLLM_CACHE_ROOT"].mount.exists
    assert seen["VLLM_CACHE_ROOT"].mount.free > 0  # of the nearest folder that exists
    assert seen["FLASHINFER_WORKSPACE_BASE"].path == "/home/me/.cache/flashinfer"
    assert seen["TRITON_CACHE_DIR"].path == "/home/me/.triton/cache"
    assert seen["TMPDIR"].path == "/home/me/t"


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written(fake_root, tmp_path):
    host = fake_root({"/ro/x": ""}, {"HF_HOME": "/ro"})
    (tmp_path / "root/ro").chmod(0o555)
    seen = {cache.name: cache for cache in environment_of(host).caches}
    assert seen["HF_HOME"].mount.writable is False


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"/etc/hosts": "127.0.0.1 localhost\n10.0.0.2 box.example box # note\n"}, True),
        ({"/etc/hosts": "127.0.0.1 localhost # box\n", "/etc/nsswitch.conf": "hosts: files dns\n"}, None),
        ({"/etc/hosts": "", "/etc/nsswitch.conf": "hosts: files\n"}, False),
        ({"/etc/hosts": "", "/etc/nsswitch.conf": "passwd: files\nhosts: files myhostname dns\n"}, True),
    ],
)
def test_the_hosts_own_name(fake_root, files, expected):
    seen = network_of(fake_root({"/proc/sys/kernel/hostname": "box\n", **files}))
    assert seen.hostname_resolves is expected
    assert ("hostname_resolves" in seen.unread) == (expected is None)


def test_ports_free_and_taken():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        (busy,) = network_of(Host("/", {}), [("127.0.0.1", number)]).ports
    (free,) = network_of(Host("/", {}), [("127.0.0.1", number)]).ports
    assert (busy.free, free.free) == (False, True)
    assert busy.holder.endswith(f"({os.getpid()})")


def test_a_port_that_cannot_exist_is_told():
    seen = network_of(Host("/", {}), [("127.0.0.1", 99999), ("no.such.address.invalid", 8000)])
    assert [port.free for port in seen.ports] == [False, False]
    assert "0-65535" in seen.unread["port 99999"]


def test_offline_and_proxies():
    seen = network_of(Host("/", {"HF_HUB_OFFLINE": "1", "HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": ""}))
    assert seen.hub_offline
    assert seen.proxies == ("HTTPS_PROXY=http://proxy:3128",)
    assert not network_of(Host("/", {"HF_HUB_OFFLINE": "0"})).hub_offline
