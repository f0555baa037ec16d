"""Hollow GGUF files: the real header in a file of the real size, from disk or over HTTP, and what a full disk does."""

from __future__ import annotations

import http.server
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gguf_models import tiny_file
from llmdoctor_core.errors import InputError
from llmdoctor_core.load.hollow import local_parts, remote_parts, write_hollow
from llmdoctor_core.models.gguf import read_gguf


class Ranges(http.server.BaseHTTPRequestHandler):
    """A file server that gives ranges."""

    files: dict[str, bytes]
    sent = 0

    def do_GET(self) -> None:
        _, _, name = self.path.partition("?")[0].lstrip("/").partition("/")
        body = self.files.get(name)
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if body is None:
            self.send_error(404)
        elif match:
            first, last = int(match[1]), min(int(match[2]), len(body) - 1)
            if first >= len(body):
                self.send_error(416)
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(body)}")
            self.end_headers()
            self.wfile.write(body[first : last + 1])
            Ranges.sent += last + 1 - first
        else:
            self.send_error(400)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def model() -> Path:
    return tiny_file("qwen3-8b")


@pytest.fixture
def web(model: Path) -> Iterator[str]:
    Ranges.files, Ranges.sent = {"model.gguf": model.read_bytes() + bytes(8 << 20), "page.gguf": b"<html>no</html>"}, 0
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Ranges) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_a_hollow_file_reads_like_the_real_one_and_takes_its_header_on_disk(model: Path, tmp_path: Path) -> None:
    hollow = write_hollow(local_parts(model), tmp_path)
    real, empty = read_gguf(model), read_gguf(hollow)
    assert (empty.gguf, empty.gguf_tensors, empty.weight_bytes) == (real.gguf, real.gguf_tensors, real.weight_bytes)
    assert empty.files[0].problem is None
    assert hollow.stat().st_size == model.stat().st_size
    assert hollow.stat().st_blocks * 512 < model.stat().st_size


def test_over_http_only_the_header_is_fetched(model: Path, web: str, tmp_path: Path) -> None:
    hollow = write_hollow(remote_parts(f"{web}/ranges/model.gguf?download=true"), tmp_path)
    assert hollow.name == "model.gguf"
    assert read_gguf(hollow).gguf == read_gguf(model).gguf
    assert hollow.stat().st_size == len(Ranges.files["model.gguf"])
    assert Ranges.sent < len(Ranges.files["model.gguf"])


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/ranges/missing.gguf", "status 404"),
        ("/ranges/page.gguf", "HTML"),
    ],
)
def test_what_cannot_be_had_in_ranges_is_said(web: str, path: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        remote_parts(web + path)


def test_nobody_there_is_said() -> None:
    with pytest.raises(InputError, match=r"http://127\.0\.0\.1:1/x\.gguf"):
        remote_parts("http://127.0.0.1:1/x.gguf")


FILL = """
import resource, sys
from pathlib import Path
from llmdoctor_core.errors import InputError
from llmdoctor_core.load.hollow import local_parts, write_hollow
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), int(sys.argv[3])))
try:
    write_hollow(local_parts(Path(sys.argv[1])), Path(sys.argv[2]))
except InputError as error:
    print(error)
"""


@pytest.mark.parametrize("limit", [1 << 10, 1 << 20], ids=["within the header", "within the data"])
def test_a_file_size_limit_is_named_and_nothing_stays(model: Path, tmp_path: Path, limit: int) -> None:
    argv = [sys.executable, "-c", FILL, str(model), str(tmp_path), str(limit)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert "is not allowed here" in done.stdout, done.stderr
    assert "TMPDIR" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 8 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8k", "none", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("a small file system can only be mounted as root")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_is_named_and_nothing_stays(model: Path, small_disk: Path) -> None:
    with pytest.raises(InputError, match="no space left for the hollow model's headers"):
        write_hollow(local_parts(model), small_disk)
    assert list(small_disk.iterdir()) == []


def test_a_file_that_is_no_model_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_text("version https://git-lfs.github.com/spec/v1")
    with pytest.raises(InputError, match="lfs pointer"):
        local_parts(path)
    with pytest.raises(InputError, match=r"nowhere\.gguf"):
        local_parts(tmp_path / "nowhere.gguf")
