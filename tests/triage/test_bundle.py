"""The bundle: everything in it is redacted, it is read back as it was, and nothing else is taken for one."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from llmdoctor_core.bundle import MANIFEST, extract, is_bundle, pack, read_bundle, write_bundle
from llmdoctor_core.case import Case
from llmdoctor_core.errors import InputError
from llmdoctor_core.facts import LaunchRequest
from llmdoctor_core.redact import Redactor

TOKEN = "hf_abcdefghijklmnopqrstuvwx"
CASE = Case(launch=LaunchRequest(runtime="vllm", argv=("vllm", "serve", "m"), environment={"HF_TOKEN": TOKEN}))


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "b.zip"
    bundle = pack(case=CASE, report={"ok": True}, logs={"server.log": "line\n"}, versions={"vllm": "0.29.0"})
    write_bundle(path, bundle)
    assert is_bundle(path)
    back = read_bundle(path)
    assert back == bundle
    assert back.case is not None
    assert back.case.launch.argv == ("vllm", "serve", "m")  # type: ignore[union-attr]
    assert back.report == {"ok": True}
    assert back.logs == {"server.log": b"line\n"}
    assert [member.name for member in back.manifest.members] == [
        "case.json", "report.json", "versions.json", "logs/server.log",
    ]  # fmt: skip


def test_a_secret_of_one_part_is_gone_from_all_and_named_alike(tmp_path: Path) -> None:
    path = tmp_path / "b.zip"
    secret = "correct-horse-battery"
    bundle = pack(
        case=CASE,
        report={"findings": [{"message": f"the key {secret} was refused"}]},
        logs={"server.log": f"password={secret}\nlogin with {secret} of {TOKEN}\n"},
        redactor=Redactor(hosts=["gpubox7"]),
    )
    write_bundle(path, bundle)
    with zipfile.ZipFile(path) as archive:
        text = " ".join(archive.read(name).decode() for name in archive.namelist())
    assert TOKEN not in text
    assert secret not in text
    report = json.loads(bundle.files["report.json"])
    pseudonym = report["findings"][0]["message"].split()[2]
    assert f"password={pseudonym}" in bundle.files["logs/server.log"].decode()
    rules = {entry.rule for entry in bundle.manifest.redactions}
    assert {"tokens by their shape", "secrets by their name", "secrets seen elsewhere"} & rules
    assert all(entry.count and entry.places for entry in bundle.manifest.redactions)


def test_the_same_content_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.zip", "b.zip"):
        write_bundle(tmp_path / name, pack(case=CASE, logs={"x": "y"}))
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()


def test_what_is_no_bundle_is_refused(tmp_path: Path) -> None:
    text, other, damaged = tmp_path / "t.zip", tmp_path / "o.zip", tmp_path / "d.zip"
    text.write_text("hello")
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("readme", "x")
    write_bundle(damaged, pack(logs={"server.log": "line"}))
    with zipfile.ZipFile(damaged) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(damaged, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data if name == MANIFEST else b"changed")
    for path in (text, other, damaged, tmp_path / "missing.zip"):
        with pytest.raises(InputError, match=path.name):
            read_bundle(path)
    assert not is_bundle(text)
    assert not is_bundle(other)


def test_names_in_the_archive_are_not_paths(tmp_path: Path) -> None:
    path = tmp_path / "b.zip"
    write_bundle(path, pack(logs={"../../etc/passwd": "x", "/var/log/server.log": "y"}))
    assert set(read_bundle(path).logs) == {"passwd", "server.log"}


def test_the_beginning_the_evidence_and_the_end_of_a_log_are_taken() -> None:
    text = extract((f"line {number}" for number in range(1, 5001)), evidence=[2500])
    lines = text.splitlines()
    assert lines[0] == "line 1"
    assert "line 2500" in lines
    assert "line 2475" in lines
    assert lines[-1] == "line 5000"
    assert "line 1000" not in lines
    left_out = sum(int(line.split()[0][1:].replace(",", "")) for line in lines if line.startswith("["))
    assert left_out + sum(line.startswith("line") for line in lines) == 5000


def test_a_short_log_is_taken_whole() -> None:
    assert extract(["a\n", "b"]) == "a\nb\n"


def test_logs_of_one_name_are_all_kept() -> None:
    bundle = pack(logs={"node0/server.log": "first", "node1/server.log": "second"})
    assert [data for name, data in bundle.files.items() if name.startswith("logs/")] == [b"first", b"second"]
