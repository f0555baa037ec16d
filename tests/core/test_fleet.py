"""Hosts that form one server must agree; a fleet is read in time and memory that grow with the hosts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from llmdoctor_core.case import Case, encode
from llmdoctor_core.examine import Policy
from llmdoctor_core.facts import Gpu, Gpus, LaunchRequest, NvidiaDriver
from llmdoctor_core.fleet import joined


def host(driver: str = "580.95.05") -> Case:
    return Case(
        launch=LaunchRequest(runtime="vllm", version="0.29.0", argv=("vllm", "serve", "m"), model="m"),
        driver=NvidiaDriver(version=driver),
        gpus=Gpus(devices=(Gpu(index=0, name="H100", visible_as=0),)),
    )


def test_the_odd_one_out_is_named() -> None:
    cases = {f"node-{number}": host() for number in range(5)} | {"node-5": host("550.54.15")}
    (finding,) = joined(cases, Policy()).findings
    assert "driver differs" in finding.message
    assert "5 of 6 have 580.95.05" in finding.message
    assert "node-5" in finding.message


def test_what_one_host_did_not_observe_is_no_disagreement() -> None:
    assert joined({"a": host(), "b": replace(host(), driver=Case().driver)}, Policy()).findings == ()


def test_replicas_may_be_told_so() -> None:
    cases = {"a": host(), "b": host("550.54.15")}
    assert joined(cases, Policy()).exit_code == 1
    assert joined(cases, Policy(ignore={"FLEET001": "replicas"})).exit_code == 0


def fleet(folder: Path, count: int) -> tuple[float, int, dict[str, object]]:
    """CPU seconds, peak KiB and report of a check over ``count`` hosts."""
    folder.mkdir()
    for number in range(count):
        (folder / f"node-{number:04}.json").write_bytes(encode(host()))
    code = (
        "import resource, sys\nfrom llmdoctor_core.cli import app\n"
        f"app.main(['check', '--format', 'json', '-o', '{folder}.out', '--case', '{folder}/*.json'], "
        "standalone_mode=False)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    before = os.times()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    after = os.times()
    seconds = after.children_user + after.children_system - before.children_user - before.children_system
    return seconds, int(done.stdout), json.loads(Path(f"{folder}.out").read_text())


@pytest.mark.slow
def test_a_thousand_hosts_in_linear_time_and_memory(tmp_path: Path) -> None:
    few_seconds, few_memory, _ = fleet(tmp_path / "few", 100)
    seconds, memory, report = fleet(tmp_path / "many", 1000)
    hosts = report["hosts"]
    assert isinstance(hosts, list)
    assert len(hosts) == 1001
    assert seconds < 12 * few_seconds
    assert memory - few_memory < 10 * 40_000
    print(f"1,000 hosts: {seconds:.1f} s of CPU, {memory >> 10} MiB; 100: {few_seconds:.1f} s, {few_memory >> 10} MiB")
