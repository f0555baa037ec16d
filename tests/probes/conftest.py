"""Shared by the tests of the probes: a stand-in libnvidia-ml.so.1, fake roots, and a target environment to look at."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from llmdoctor_core.probes.host import Host

HERE = Path(__file__).parent


def compiled(source: Path, output: Path, *flags: str) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    output.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", *flags, "-o", str(output), str(source)], check=True)
    return output


@pytest.fixture(scope="session")
def nvml_folder(tmp_path_factory):
    """Folder with the stand-in NVML."""
    folder = tmp_path_factory.mktemp("nvml")
    compiled(HERE / "fake_nvml.c", folder / "libnvidia-ml.so.1", "-Wl,-soname,libnvidia-ml.so.1")
    return folder


@pytest.fixture
def gpu_host(nvml_folder):
    """A host whose driver is the stand-in: ``gpu_host(FAKE_NVML_PROFILE="mig")``."""

    def make(root="/", **variables):
        return Host(str(root), {**os.environ, "LD_LIBRARY_PATH": str(nvml_folder), **variables})

    return make


@pytest.fixture
def fake_root(tmp_path):
    """Writes files under a root: ``fake_root({"/proc/cmdline": "iommu=pt"})`` gives a host that looks there."""

    def make(files, environ=None):
        for name, content in files.items():
            path = tmp_path / "root" / name.lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, bytes):
                path.write_bytes(content)
            else:
                path.write_text(content)
        (tmp_path / "root").mkdir(exist_ok=True)
        return Host(str(tmp_path / "root"), environ or {})

    return make


@pytest.fixture
def environment_of(tmp_path):
    """A virtual environment's folder layout around a real interpreter, with distributions written into it."""

    def make(interpreter, distributions=(), files=None, name="venv"):
        root = tmp_path / name
        version = subprocess.run(
            [interpreter, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
        packages = root / "lib" / f"python{version}" / "site-packages"
        packages.mkdir(parents=True)
        (root / "bin").mkdir()
        (root / "bin" / "python").symlink_to(Path(interpreter).resolve())
        (root / "pyvenv.cfg").write_text(f"home = {Path(interpreter).resolve().parent}\n")
        for distribution, release, *lines in distributions:
            info = packages / f"{distribution.replace('-', '_')}-{release}.dist-info"
            info.mkdir()
            head = [f"Name: {distribution}", f"Version: {release}", *lines]
            (info / "METADATA").write_text("Metadata-Version: 2.1\n" + "\n".join(head) + "\n\nName: not-a-header\n")
        for path, content in (files or {}).items():
            (packages / path).parent.mkdir(parents=True, exist_ok=True)
            (packages / path).write_text(content)
        return root

    return make


def interpreters():
    """Python interpreters of this machine by (major, minor), beside the one that runs the tests."""
    found = {}
    places = [*Path.home().glob(".pyenv/versions/3.*/bin/python"), *Path("/usr/bin").glob("python3.*")]
    for path in places:
        done = subprocess.run(
            [str(path), "-c", "import sys; print(*sys.version_info[:2])"], capture_output=True, text=True
        )
        if done.returncode == 0:
            found.setdefault(tuple(map(int, done.stdout.split())), str(path))
    return found


@pytest.fixture(scope="session")
def python_of():
    """``python_of(3, 10)`` is an interpreter of that version; the test is skipped where there is none."""
    known = interpreters()

    def find(major, minor):
        if (major, minor) not in known:
            pytest.skip(f"no Python {major}.{minor} on this machine")
        return known[major, minor]

    return find
