"""All probes together: what they fill, how long they may take, and the collector that carries them elsewhere."""

import ast
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from llmdoctor_core import collector, probes
from llmdoctor_core.case import Case
from llmdoctor_core.errors import InputError
from llmdoctor_core.facts import Gpus, System, Unavailable
from llmdoctor_core.observe import ObserveOptions, from_collector, observe
from llmdoctor_core.probes import collect
from llmdoctor_core.probes.host import Host, run

FOLDER = Path(probes.__file__).parent


def test_every_field_of_a_case_that_the_host_can_fill():
    seen = observe(ObserveOptions(environment={"PATH": os.environ["PATH"], "HOME": "/root"}))
    assert tuple(seen) == collect.FIELDS
    Case(**seen)
    assert isinstance(seen["system"], System)
    assert all(
        not isinstance(fact, Unavailable) or not ("malformed" in fact.reason or "crashed" in fact.reason)
        for fact in seen.values()
    )


def test_gpus_only_asks_for_nothing_else(gpu_host):
    environment = gpu_host(FAKE_NVML_PROFILE="node4").environ
    seen = observe(ObserveOptions(environment=environment, host=False))
    assert len(seen["gpus"].devices) == 4
    assert seen["system"] == Unavailable(reason="this host was not looked at", permanent=True)


def test_a_host_without_gpu_and_target_answers_at_once():
    """Under half a second on a quiet machine; the CPU time is what a busy one cannot falsify."""
    environment = {"PATH": "/usr/bin:/bin", "HOME": "/root"}
    observe(ObserveOptions(environment=environment))
    began, ours = time.monotonic(), os.times()
    observe(ObserveOptions(environment=environment))
    spent, after = time.monotonic() - began, os.times()
    cpu = sum(after[:4]) - sum(ours[:4])
    assert cpu < 0.5
    assert spent < 2.0


def test_a_blocked_driver_does_not_hold_the_rest(gpu_host):
    environment = gpu_host(FAKE_NVML_BLOCK="0").environ
    began = time.monotonic()
    seen = observe(ObserveOptions(environment=environment, limit=1.0))
    assert time.monotonic() - began < 4.0
    assert "did not answer within 1 s" in seen["gpus"].reason
    assert isinstance(seen["system"], System)


class Stuck(Host):
    """A host whose file system does not answer for one file, as a dead network mount, and fails for another."""

    def text(self, name):
        if name == "/proc/sys/kernel/osrelease":
            time.sleep(30)
        if name == "/proc/self/cgroup":
            raise MemoryError("no more")
        return super().text(name)


def test_a_probe_that_hangs_or_crashes_is_said_and_left_behind():
    began = time.monotonic()
    found = collect.collect(Stuck("/", {}), collect.Order(limit=0.3, fields=("system", "container", "network")))
    assert time.monotonic() - began < 3.0
    assert found["system"]["reason"] == "the system probe did not answer within 0.3 s"
    assert found["container"]["reason"] == "the container probe crashed: MemoryError: no more"
    assert found["network"]["fact"] == "network"


def test_a_program_that_ignores_its_end_is_not_waited_for():
    began = time.monotonic()
    answer = run(["/bin/sh", "-c", "echo early; sleep 30"], 0.3, {"PATH": "/usr/bin:/bin"})
    assert time.monotonic() - began < 2.0
    assert (answer.code, answer.out, answer.problem) == (None, "early\n", "no answer within 0.3 s")


def test_programs_that_cannot_start():
    assert run(["/nowhere"], 1, {}).problem == "No such file or directory"
    assert "null byte" in run(["/bin/sh", "\0"], 1, {}).problem


@pytest.fixture(scope="module")
def probe_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("collector") / "probe.pyz"
    collector.write(path)
    return path


@pytest.mark.parametrize("version", [(3, 8), (3, 10), (3, 13)])
def test_the_collector_runs_on_a_bare_interpreter(probe_file, python_of, nvml_folder, tmp_path, version):
    done = subprocess.run(
        [python_of(*version), "-I", "-S", str(probe_file), "--no-annotations"],
        env={
            "PATH": "/usr/bin:/bin",
            "HOME": "/root",
            "LD_LIBRARY_PATH": str(nvml_folder),
            "HF_TOKEN": "hf_abcdefghijk",
        },
        cwd=tmp_path,
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert b"hf_abcdefghijk" not in done.stdout
    seen = from_collector(done.stdout, "facts.json")
    assert isinstance(seen["gpus"], Gpus)
    assert len(seen["gpus"].devices) == 2
    assert isinstance(seen["system"], System)
    assert [type(fact).__name__ for fact in seen.values()].count("Unavailable") <= 2  # target and annotations


def test_the_collector_is_refused_a_place_it_cannot_write(tmp_path):
    with pytest.raises(InputError, match=r"nowhere/probe\.pyz cannot be written"):
        collector.write(tmp_path / "nowhere" / "probe.pyz")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is not a collector's output"),
        (b"[1]", "is not a collector's output"),
        (b'{"facts": {}}', "llmdoctor_probe"),
        (b'{"llmdoctor_probe": "2.0", "facts": {}}', "llmdoctor_probe"),
        (b'{"llmdoctor_probe": "1.0", "facts": 3}', "llmdoctor_probe"),
        (b"[" * 100000, "is not a collector's output"),
        (b"\xff\xfe", "is not a collector's output"),
    ],
)
def test_what_is_no_collectors_output_is_named(data, words):
    with pytest.raises(InputError, match=r"x\.json") as error:
        from_collector(data, "x.json")
    assert words in str(error.value)


def test_a_malformed_fact_is_unavailable_and_leaves_the_others():
    facts = {"system": {"fact": "system", "kernel": 6}, "network": {"fact": "network"}, "other": 1, "gpus": None}
    seen = from_collector(json.dumps({"llmdoctor_probe": "1.0", "facts": facts}).encode(), "x")
    assert "malformed" in seen["system"].reason
    assert "malformed" in seen["gpus"].reason
    assert seen["network"].hub_offline is False
    assert "other" not in seen


def test_probes_import_the_standard_library_and_pynvml_only():
    allowed = set(sys.stdlib_module_names) | {"pynvml"}
    for path in FOLDER.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(), feature_version=(3, 8))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module]
            assert {name.partition(".")[0] for name in names} <= allowed, path


def test_every_row_of_the_probes_tables_has_a_source():
    for path in FOLDER.glob("*.json"):
        for rows in msgspec.json.decode(path.read_bytes()).values():
            for row in rows if isinstance(rows, list) and rows and isinstance(rows[0], dict) else []:
                assert row.get("source"), (path.name, row)
