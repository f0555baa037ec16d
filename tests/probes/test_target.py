"""The target environment: which interpreter it is, and what is read of it without importing anything."""

import os
import sys
from pathlib import Path

import pytest

from llmdoctor_core.facts import BrokenInterpreter, TargetEnvironment, Unavailable
from llmdoctor_core.observe import facts_from
from llmdoctor_core.probes import target
from llmdoctor_core.probes.host import Host

from .conftest import compiled

DISTRIBUTIONS_PYTHON = sorted(Path("/usr/bin").glob("python3.[0-9]*[0-9]"))


def see(python=None, command=None, **environ):
    host = Host("/", {"PATH": "", **environ})
    return facts_from({"target": target.probe(host, python, command, 10).fact})["target"]


def test_distributions_with_their_pins(environment_of):
    root = environment_of(
        sys.executable,
        [
            (
                "vllm",
                "0.29.0",
                "Requires-Python: >=3.10,<3.14",
                "Requires-Dist: flashinfer-python==0.6.18",
                "Requires-Dist: torch == 2.13.0",
                'Requires-Dist: Ray[cgraph]>=2.48; sys_platform == "linux"',
                'Requires-Dist: bitsandbytes>=0.46; extra == "bitsandbytes"',
                "Requires-Dist: mistral_common[image] (>=1.8)",
                "Requires-Dist: six @ https://example.org/six.whl",
            ),
            ("Flash_Infer.Python", "1.0"),
        ],
    )
    seen = see(str(root / "bin/python"))
    assert isinstance(seen, TargetEnvironment)
    assert seen.version == sys.version_info[:3]
    assert seen.prefix == str(root)
    assert seen.chosen_by == "--python"
    vllm = seen.has("VLLM")
    assert (vllm.version, vllm.requires_python) == ("0.29.0", ">=3.10,<3.14")
    assert [(one.name, one.specifier, one.marker) for one in vllm.requires] == [
        ("flashinfer-python", "==0.6.18", None),
        ("torch", "==2.13.0", None),
        ("ray", ">=2.48", 'sys_platform == "linux"'),
        ("mistral-common", ">=1.8", None),
        ("six", "", None),
    ]
    assert seen.has("flash-infer-python").version == "1.0"
    assert "not-a-header" not in {one.name for one in seen.distributions.values()}


@pytest.mark.skipif(not DISTRIBUTIONS_PYTHON, reason="no Python of the distribution")
def test_a_virtual_environment_around_the_distributions_python(environment_of):
    """Debian's ``site`` names dist-packages alone unless it takes itself to be in a virtual environment."""
    root = environment_of(str(DISTRIBUTIONS_PYTHON[0]), [("vllm", "0.29.0")])
    seen = see(str(root / "bin/python"))
    assert seen.prefix == str(root)
    assert seen.has("vllm").version == "0.29.0"
    with (root / "pyvenv.cfg").open("a") as file:
        file.write("include-system-site-packages = true\n")
    shared = see(str(root / "bin/python"), PYTHONNOUSERSITE="1")
    assert shared.has("vllm").version == "0.29.0"
    own = see(str(DISTRIBUTIONS_PYTHON[0]), PYTHONNOUSERSITE="1")
    assert set(own.site_packages) == {folder for folder in shared.site_packages if not folder.startswith(str(root))}


def test_nothing_of_the_environment_is_executed(environment_of, tmp_path):
    trap = f"open({str(tmp_path / 'executed')!r}, 'w').close()\n"
    root = environment_of(
        sys.executable,
        [("torch", "2.13.0")],
        {"torch/__init__.py": trap, "torch/version.py": "cuda = '13.0'\n", "trap.pth": "import sys; " + trap,
         "sitecustomize.py": trap, "json.py": trap, "usercustomize.py": trap},
    )  # fmt: skip
    assert see(str(root / "bin/python"), PYTHONPATH=str(root / "lib")).torch_cuda == "13.0"
    assert not (tmp_path / "executed").exists()


def test_folders_of_path_files_are_looked_into(environment_of, tmp_path):
    root = environment_of(sys.executable, [], {"editable.pth": f"{tmp_path}/src\n# {tmp_path}\nimport os\n"})
    info = tmp_path / "src" / "mine-3.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Name: mine\nVersion: 3\n")
    assert see(str(root / "bin/python")).has("mine").location == str(tmp_path / "src")


def test_pythonpath_wins_as_it_does_for_the_server(environment_of, tmp_path):
    info = tmp_path / "early" / "torch-9.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Name: torch\nVersion: 9\n")
    root = environment_of(sys.executable, [("torch", "2.13.0")])
    assert see(str(root / "bin/python"), PYTHONPATH=str(tmp_path / "early")).has("torch").version == "9"


def installed(folder, name, version):
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")


def test_the_environments_own_packages_win_over_the_users_and_the_bases(environment_of, tmp_path):
    root = environment_of(sys.executable, [("vllm", "3")], {"editable.pth": f"{tmp_path}/src\n"})
    with (root / "pyvenv.cfg").open("a") as file:
        file.write("include-system-site-packages = true\n")
    version = ".".join(map(str, sys.version_info[:2]))
    users = tmp_path / "home" / ".local" / "lib" / f"python{version}" / "site-packages"
    for folder, name in ((users, "vllm"), (users, "torch"), (tmp_path / "src", "torch")):
        installed(folder, name, "3" if folder != users else "2")
    seen = see(str(root), HOME=str(tmp_path / "home"))
    assert (seen.has("vllm").version, seen.has("torch").version) == ("3", "3")


def test_an_egg_of_setup_py_install_is_read(environment_of):
    root = environment_of(
        sys.executable,
        [],
        {
            "easy-install.pth": "./flash_attn.egg\n",
            "flash_attn.egg/EGG-INFO/PKG-INFO": "Name: flash-attn\nVersion: 2\n",
        },
    )
    assert see(str(root)).has("flash-attn").version == "2"


def test_a_name_that_path_does_not_know_is_a_file_of_this_folder(environment_of, monkeypatch):
    root = environment_of(sys.executable, [("vllm", "3")])
    monkeypatch.chdir(root / "bin")
    (root / "bin" / "wrapper").write_text(f'#!/bin/sh\necho activated\nexec {root}/bin/python "$@"\n')
    (root / "bin" / "wrapper").chmod(0o755)
    assert see("wrapper", PATH=os.environ["PATH"]).has("vllm")
    (root / "bin" / "python").rename(root / "bin" / "python3")
    assert see(str(root)).prefix == str(root)


def test_half_removed_installation_is_told(environment_of):
    root = environment_of(sys.executable)
    packages = next(root.glob("lib/*/site-packages"))
    (packages / "gone-1.dist-info").mkdir()
    seen = see(str(root / "bin/python"))
    assert seen.unread == {str(packages / "gone-1.dist-info"): "no metadata: a half-removed installation"}


@pytest.mark.parametrize(
    ("text", "cuda"),
    [
        ("from typing import Optional\ncuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n", "12.8"),
        ("__version__ = '2.13.0+cpu'\ncuda = None\n", "none"),
        ("debug = False\n", None),
    ],
)
def test_torch_tells_its_cuda_in_text(environment_of, text, cuda):
    root = environment_of(sys.executable, [("torch", "2.13.0")], {"torch/version.py": text})
    seen = see(str(root / "bin/python"))
    assert seen.torch_cuda == cuda
    assert ("torch_cuda" in seen.unread) == (cuda is None)


def test_torch_architectures_even_where_the_text_is_glued(environment_of):
    root = environment_of(sys.executable, [("torch", "2.9.1")], {"torch/version.py": "cuda = '12.8'\n"})
    library = next(root.glob("lib/*/site-packages/torch")) / "lib" / "libtorch_python.so"
    library.parent.mkdir()
    library.write_bytes(b"\0ipc_hsm_70 sm_75 sm_80 sm_90a sm_120\0... sm_1x")
    assert see(str(root / "bin/python")).torch_architectures == ("70", "75", "80", "90a", "120")


def test_native_libraries_and_what_they_miss(environment_of, tmp_path):
    root = environment_of(sys.executable, [("vllm", "0.29.0"), ("torch", "2.13.0")], {"vllm/__init__.py": ""})
    packages = next(root.glob("lib/*/site-packages"))
    source = tmp_path / "empty.c"
    source.write_text("int unused(void) { return 0; }\n")
    (packages / "torch/lib").mkdir(parents=True)
    torch = compiled(source, packages / "torch/lib/libtorch.so", "-Wl,-soname,libtorch.so")
    cuda = compiled(source, tmp_path / "stub/libcudart.so", "-Wl,-soname,libcudart.so.12")
    own = compiled(source, packages / "vllm.libs/libown.so", "-Wl,-soname,libown.so")
    compiled(
        source, packages / "vllm/_C.abi3.so", "-Wl,--no-as-needed", "-Wl,-rpath,$ORIGIN/../vllm.libs",
        *(str(path) for path in (torch, cuda, own)),
    )  # fmt: skip
    (packages / "vllm/_moe_C.abi3.so").write_bytes(b"truncated")
    seen = see(str(root / "bin/python"))
    (library,) = seen.native
    assert (library.distribution, library.unresolved) == ("vllm", ("libcudart.so.12",))
    assert {"libtorch.so", "libown.so", "libcudart.so.12"} <= set(library.needed)
    assert seen.unread[str(packages / "vllm/_moe_C.abi3.so")] == "not an ELF file"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: None, "does not exist"),
        (lambda path: path.symlink_to("/nowhere/python3.10"), "is a link to /nowhere/python3.10, which does not exist"),
        (lambda path: path.write_text("#!/bin/sh\n"), "may not be executed"),
        (lambda path: (path.write_text("#!/bin/sh\nexit 3\n"), path.chmod(0o755)), "exit status 3"),
        (lambda path: (path.write_text("#!/bin/sh\necho hello\n"), path.chmod(0o755)), "exit status 0: hello"),
        (lambda path: (path.write_text("#!/bin/sh\necho [1]\n"), path.chmod(0o755)), "exit status 0: [1]"),
        (lambda path: (path.write_bytes(b"\x7fELF junk"), path.chmod(0o755)), "Exec format error"),
        (
            lambda path: (
                path.write_text("#!/bin/sh\necho 'error while loading shared libraries: libpython' >&2; exit 127\n"),
                path.chmod(0o755),
            ),
            "error while loading shared libraries: libpython",
        ),
    ],
)
def test_a_broken_interpreter_is_a_finding_not_a_crash(tmp_path, make, words):
    python = tmp_path / "python"
    make(python)
    seen = see(str(python))
    assert isinstance(seen, BrokenInterpreter)
    assert seen.python == str(python)
    assert words in seen.problem


def test_an_interpreter_that_hangs_is_given_up(tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nsleep 60\n")
    python.chmod(0o755)
    fact = target.probe(Host("/", {"PATH": os.environ["PATH"]}), str(python), None, 0.5).fact
    assert fact["problem"] == "no answer within 0.5 s"


@pytest.mark.parametrize(
    "head",
    [
        "#!{python}\n",
        "#!/bin/sh\n'''exec' {python} \"$0\" \"$@\"\n' '''\n",
        "#!/bin/sh\n'''exec' \"$(dirname -- \"$(realpath -- \"$0\")\")\"/'python' \"$0\" \"$@\"\n' '''\n",
        "#!/usr/bin/env python3\n",
    ],
)
def test_the_interpreter_in_front_of_vllm(environment_of, head):
    root = environment_of(sys.executable, [("vllm", "0.29.0")])
    (root / "bin/python3").symlink_to("python")
    script = root / "bin/vllm"
    script.write_text(head.format(python=root / "bin/python") + "import sys\n")
    script.chmod(0o755)
    seen = see(PATH=str(root / "bin"))
    assert seen.prefix == str(root)
    assert seen.has("vllm")
    assert seen.chosen_by == f"vllm on PATH ({script})"
    assert str(script) in seen.scripts
    assert see(command=str(script), PATH=str(root / "bin")).prefix == str(root)


def test_without_vllm_the_virtual_environment_counts(environment_of):
    root = environment_of(sys.executable)
    assert see(VIRTUAL_ENV=str(root)).chosen_by == "VIRTUAL_ENV"
    assert see(str(root)).prefix == str(root)


def test_without_any_hint_there_is_no_target():
    seen = see()
    assert isinstance(seen, Unavailable)
    assert "VIRTUAL_ENV is not set" in seen.reason


@pytest.mark.parametrize("version", [(3, 8), (3, 9), (3, 10), (3, 12), (3, 13)])
def test_interpreters_of_other_versions_are_read(environment_of, python_of, version):
    root = environment_of(python_of(*version), [("torch", "2.13.0")])
    seen = see(str(root / "bin/python"))
    assert seen.version[:2] == version
    assert seen.has("torch").version == "2.13.0"
