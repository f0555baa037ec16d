"""Third parties come in through the door that our own catalogue uses, and a broken one harms nobody."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "docs/example-plugin"
QWEN = ("--offline", "--gpu", "A100-80GB", "--", "vllm", "serve", "Qwen/Qwen3-8B")


def run(*arguments: str, path: Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "llmdoctor_core", *arguments],
        capture_output=True,
        text=True,
        input=stdin,
        env={**os.environ, "PYTHONPATH": str(path), "LANG": "C.UTF-8"},
    )


def installed(root: Path, name: str, group: str, target: str) -> None:
    """A distribution as pip leaves it: its metadata with one entry point."""
    info = root / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {target}\n")


@pytest.fixture
def example(tmp_path: Path) -> Path:
    shutil.copytree(EXAMPLE / "llmdoctor_example", tmp_path / "llmdoctor_example")
    for group in ("checks", "remedies"):
        installed(tmp_path, f"llmdoctor_example_{group}", f"llmdoctor.{group}", "llmdoctor_example.catalog")
    return tmp_path


def test_a_plug_in_adds_check_remedy_page_and_signature(example: Path) -> None:
    report = json.loads(run("check", "--format", "json", "--select", "ACME001", *QWEN, path=example).stdout)
    assert [(f["code"], f["outcome"]) for f in report["findings"]] == [("ACME001", "fail")]
    assert "--api-key '$ACME_API_KEY'" in run("fix", "--print-launch", *QWEN, path=example).stdout
    assert "서버가 포트에" in run("explain", "ACME001", "--lang", "ko", path=example).stdout
    log = "INFO starting\nacme-gateway: backend rejected: unauthenticated (10.1.2.3:80)\n"
    assert "FIRST CAUSE  ACME001 no-api-key" in run("triage", "-", path=example, stdin=log).stdout


def test_a_broken_plug_in_is_one_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "broken_rules.py").write_text("raise RuntimeError('written for another version')\n")
    installed(tmp_path, "broken-rules", "llmdoctor.checks", "broken_rules")
    done = run("check", "--format", "json", *QWEN, path=tmp_path)
    errors = [finding for finding in json.loads(done.stdout)["findings"] if finding["outcome"] == "error"]
    assert [error["code"] for error in errors] == ["PLUG001"]
    assert "broken-rules" in errors[0]["message"]
    assert "written for another version" in errors[0]["message"]
    assert done.returncode == 3


def test_a_code_that_is_taken_does_not_displace_ours(tmp_path: Path) -> None:
    (tmp_path / "thief.py").write_text("from llmdoctor_checks.catalog import CHECKS\nCHECKS = CHECKS[:1]\n")
    installed(tmp_path, "thief", "llmdoctor.checks", "thief")
    done = run("check", "--format", "json", *QWEN, path=tmp_path)
    (error,) = [finding for finding in json.loads(done.stdout)["findings"] if finding["outcome"] == "error"]
    assert "is taken" in error["message"]


@pytest.mark.slow
def test_the_example_installs_as_its_readers_would_install_it(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(tmp_path), str(EXAMPLE)]
    subprocess.run(argv, check=True)
    done = run("check", "--format", "json", "--select", "ACME001", *QWEN, path=tmp_path)
    assert json.loads(done.stdout)["findings"][0]["code"] == "ACME001"
