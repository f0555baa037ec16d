"""CUDA toolkits of the host, and the compiler that FlashInfer's just-in-time build would pick."""

import sys

import pytest

from llmdoctor_core.observe import facts_from
from llmdoctor_core.probes import jit, target, toolkits
from llmdoctor_core.probes.host import Host, table

NOWHERE = target.Target({"fact": "unavailable", "reason": "none"})


@pytest.fixture
def toolkit(tmp_path):
    """Writes a CUDA toolkit: an nvcc that names its release, and every part a build needs but those left out."""

    def make(where, release="12.4", header=None, without=(), root=None):
        home = tmp_path / where
        for part in table("toolkit.json")["parts"]:
            if part["name"] not in without:
                path = home / part["paths"][0]
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text("")
        if "nvcc" not in without:
            nvcc = home / "bin/nvcc"
            nvcc.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {release}, V{release}.131'\n")
            nvcc.chmod(0o755)
        major, _, minor = (header or release).partition(".")
        (home / "include").mkdir(parents=True, exist_ok=True)
        (home / "include/cuda.h").write_text(f"#define CUDA_VERSION {int(major) * 1000 + int(minor) * 10}\n")
        return home

    return make


@pytest.fixture
def tools(tmp_path):
    """A folder with the programs a build calls, to stand on PATH."""
    folder = tmp_path / "tools"
    folder.mkdir()
    for name, text in {"which": "", "ninja": "", "c++": "", "gcc": "echo 14.2.0"}.items():
        (folder / name).write_text("#!/bin/sh\n" + text + "\n")
        (folder / name).chmod(0o755)
    return folder


def picked(where=NOWHERE, **environ):
    return facts_from({"jit": jit.probe(Host("/", environ), where)})["jit"]


def test_cuda_home_comes_before_cuda_path_and_path(toolkit, tools):
    one, two, three = toolkit("one", "12.4"), toolkit("two", "12.8"), toolkit("three", "13.0")
    path = f"{three / 'bin'}:{tools}"
    seen = picked(CUDA_HOME=str(one), CUDA_PATH=str(two), PATH=path)
    assert (seen.version, seen.cuda_home, seen.chosen_by) == ("12.4", str(one), "CUDA_HOME")
    assert (picked(CUDA_HOME="", CUDA_PATH=str(two), PATH=path).chosen_by) == "CUDA_PATH"
    assert picked(PATH=path).version == "13.0"
    assert picked(PATH=path).chosen_by == "which nvcc"
    assert seen.host_compiler_version == "14.2.0"


def test_a_wrapper_on_path_makes_its_folder_the_home(toolkit, tools):
    """Links are not followed: a wrapper in /usr/local/bin makes /usr/local the toolkit, which has no headers."""
    real = toolkit("cuda-13.0", "13.0")
    (tools.parent / "bin").mkdir()
    (tools.parent / "bin/nvcc").symlink_to(real / "bin/nvcc")
    seen = picked(PATH=f"{tools.parent / 'bin'}:{tools}")
    assert seen.cuda_home == str(tools.parent)
    assert seen.version == "13.0"
    assert {"cuda_runtime.h", "curand.h", "libcudart.so"} <= set(seen.lacks)


def test_a_compiler_of_its_own_keeps_the_flags_of_cuda_home(toolkit, tools):
    old, new = toolkit("old", "12.4"), toolkit("new", "13.0")
    seen = picked(CUDA_HOME=str(new), FLASHINFER_NVCC=str(old / "bin/nvcc"), PATH=str(tools))
    assert (seen.nvcc, seen.version, seen.flags_version) == (str(old / "bin/nvcc"), "12.4", "13.0")
    assert seen.chosen_by == "FLASHINFER_NVCC"


def test_a_home_that_does_not_exist_is_still_the_choice(toolkit, tools):
    good = toolkit("good", "13.0")
    seen = picked(CUDA_HOME="/opt/none", CUDA_PATH=str(good), PATH=f"{good / 'bin'}:{tools}")
    assert (seen.nvcc, seen.exists, seen.version) == ("/opt/none/bin/nvcc", False, None)


def test_nothing_found(fake_root):
    seen = facts_from({"jit": jit.probe(fake_root({}, {"PATH": "/bin"}), NOWHERE)})["jit"]
    assert (seen.nvcc, seen.cuda_home, seen.exists) == (None, None, False)
    assert {"nvcc", "ninja", "which", "c++"} <= set(seen.lacks)
    assert seen.unread["Python.h"] == "the target environment is not known"


def test_parts_that_are_missing_are_named(toolkit, tools):
    home = toolkit("cuda", without=("curand.h", "libcudart.so"))
    (tools / "ninja").unlink()
    seen = picked(CUDA_HOME=str(home), PATH=str(tools))
    assert {"curand.h", "libcudart.so", "ninja"} <= set(seen.lacks)
    assert not {"which", "c++", "nvcc", "cuda_runtime.h"} & set(seen.lacks)
    (home / "lib64/stubs").mkdir(parents=True)
    (home / "lib64/stubs/libcuda.so").write_text("")
    assert "libcuda.so" not in picked(CUDA_HOME=str(home), PATH=str(tools)).lacks


def test_ninja_of_an_environment_that_is_not_activated(toolkit, tools, environment_of):
    root = environment_of(sys.executable)
    (root / "bin/ninja").write_text("")
    (tools / "ninja").unlink()
    where = target.probe(Host("/", {}), str(root / "bin/python"), None, 10)
    seen = picked(where, CUDA_HOME=str(toolkit("cuda")), PATH=str(tools))
    assert "ninja" in seen.lacks
    assert seen.off_path == {"ninja": str(root / "bin/ninja")}
    assert "Python.h" not in seen.unread


def test_a_compiler_variable_that_cannot_be_read(toolkit, tools):
    seen = picked(CUDA_HOME=str(toolkit("cuda")), PATH=str(tools), CC="'gcc", CXX="nowhere-c++ -O2")
    assert "c++" in seen.lacks
    assert seen.host_compiler is None


def test_every_toolkit_is_listed_once_with_its_origin(toolkit, environment_of):
    one, two = toolkit("one", "12.4", header="13.0"), toolkit("two", "12.8", without=("curand.h",))
    root = environment_of(sys.executable)
    packages = next(root.glob("lib/*/site-packages"))
    toolkit(packages / "nvidia/cu13", "13.5", without=("libcudart.so",))
    where = target.probe(Host("/", {}), str(root / "bin/python"), None, 10)
    host = Host("/", {"CUDA_HOME": str(one), "PATH": str(two / "bin"), "CUDA_PATH": str(one), "CC": "gcc-13"})
    seen = facts_from({"toolkits": toolkits.probe(host, where.fact)})["toolkits"]
    own = [kit for kit in seen.toolkits if str(one.parent) in kit.path]
    assert [(kit.origin, kit.nvcc_version, kit.header_version) for kit in own] == [
        ("CUDA_HOME", "12.4", "13.0"),
        ("PATH", "12.8", "12.8"),
        ("environment", "13.5", "13.5"),
    ]
    assert own[1].lacks == ("curand.h",)
    assert own[2].lacks == ("libcudart.so",)
    assert seen.variables == {"CUDA_HOME": str(one), "CUDA_PATH": str(one), "CC": "gcc-13"}
    assert seen.nvcc_on_path == str(two / "bin/nvcc")
