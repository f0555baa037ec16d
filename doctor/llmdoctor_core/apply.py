"""Applies a plan on this host: each action journalled before it happens, atomic, undone also after a crash."""

from __future__ import annotations

import ast
import difflib
import hashlib
import io
import os
import secrets
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from . import state
from .errors import InputError, LlmdoctorError
from .remedy import ON_HOST, ON_LAUNCH, AnyAction, ByHand, EditFile, Install, MakeDirectory, Plan, PostponeAnnotations

FORMAT_VERSION = "1.0"
COMMAND_LIMIT = 1800
"""Seconds an installation may take."""


class FixIncompleteError(LlmdoctorError):
    """A plan stopped part way; the message says what was put back."""


class SavedPlan(Struct, frozen=True, kw_only=True):
    """Plans as ``fix --out`` writes them and ``fix --plan`` reads them."""

    format_version: str = FORMAT_VERSION
    plans: tuple[Plan, ...]


class Entry(Struct, frozen=True, kw_only=True):
    """One line of a journal, written and synced before (``begun``) and after (``done``) each step."""

    step: int
    state: str
    """``begun``, ``done``, ``undone``."""
    action: EditFile | Install | MakeDirectory
    original: str | None = None
    """Name of the saved original in the journal's folder."""
    scratch: str | None = None
    """Path of the temporary file beside the target, removed by undo where a crash left it."""
    created: bool = False


class Fix(Struct, frozen=True, kw_only=True):
    """One applied plan, as ``history`` shows it."""

    id: str
    when: str
    title: str
    state: str
    """``applied``, ``incomplete``, ``undone``."""


def encode_plans(plans: list[Plan]) -> bytes:
    """Plans as a JSON document."""
    return msgspec.json.format(msgspec.json.encode(SavedPlan(plans=tuple(plans))), indent=1) + b"\n"


def decode_plans(data: bytes, name: str) -> list[Plan]:
    """Plans of a saved document. Raises InputError naming the file."""
    try:
        saved = msgspec.json.decode(data, type=SavedPlan)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputError(f"{name} is not a plan: {error}") from None
    if saved.format_version.partition(".")[0] != FORMAT_VERSION.partition(".")[0]:
        raise InputError(f"{name} has plan format {saved.format_version}; this llmdoctor reads {FORMAT_VERSION}")
    return list(saved.plans)


def state_folder() -> Path:
    """Where journals and originals are kept."""
    return state.state_folder() / "fixes"


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def prepared(plan: Plan) -> Plan:
    """The plan with each change of a source file worked out against the file as it stands.

    A file that is not on this host leaves its action as it is: the plan can be shown, not applied.
    """
    return replace(plan, actions=tuple(_prepared(action) for action in plan.actions))


def _prepared(action: AnyAction) -> AnyAction:
    if not isinstance(action, PostponeAnnotations) or not Path(action.path).is_file():
        return action
    try:
        data = Path(action.path).read_bytes()
        text = data.decode("utf-8")
        line = _future_line(text)
    except (OSError, ValueError, SyntaxError, RecursionError) as error:
        raise InputError(f"{action.path} cannot be changed: {error}") from None
    lines = _lines(text)
    content = "".join((*lines[:line], FUTURE, *lines[line:]))
    verify = (action.python, "-I", "-c", COMPILES, action.path)
    return EditFile(path=action.path, sha256=hashlib.sha256(data).hexdigest(), content=content, verify=verify)


FUTURE = "from __future__ import annotations\n"
COMPILES = "import sys; compile(open(sys.argv[1], 'rb').read(), sys.argv[1], 'exec')"


def _lines(text: str) -> list[str]:
    """Lines as Python counts them: a form feed inside one does not end it, as it does for ``str.splitlines``."""
    return io.StringIO(text, newline="").readlines()


def _future_line(text: str) -> int:
    """How many lines stand before the first place for a ``__future__`` import: comments and the docstring."""
    body = ast.parse(text).body
    if not body:
        return len(_lines(text))
    first = body[0]
    if isinstance(first, ast.Expr) and isinstance(getattr(first.value, "value", None), str):
        return first.end_lineno or 0
    decorators: list[ast.expr] = getattr(first, "decorator_list", [])
    return min([first.lineno, *(decorator.lineno for decorator in decorators)]) - 1


def diff(action: EditFile) -> str:
    """The change of a file as a unified diff against the file as it stands."""
    before = Path(action.path).read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
    after = action.content.splitlines(keepends=True)
    return "".join(difflib.unified_diff(before, after, action.path, action.path, n=2))


def stale(plan: Plan) -> list[str]:
    """What of the facts under a plan has changed since it was made, in words; empty where it still fits."""
    return [problem for action in plan.actions if (problem := _stale(action))]


def _stale(action: AnyAction) -> str | None:
    if isinstance(action, EditFile):
        try:
            now = sha256(Path(action.path))
        except OSError as error:
            return f"{action.path}: {error.strerror or error}"
        return None if now == action.sha256 else f"{action.path} has changed since the plan was made"
    if isinstance(action, Install):
        now_installed = installed_version(action.python, action.package)
        if now_installed != action.before:
            return f"{action.package} is {now_installed or 'not installed'} now; the plan was made for {action.before}"
    return None


def installed_version(python: str, package: str) -> str | None:
    """Version of a package by the metadata of that interpreter's environment; the package is not imported."""
    code = "import sys,importlib.metadata as m\ntry: print(m.version(sys.argv[1]))\nexcept m.PackageNotFoundError: pass"
    try:
        done = subprocess.run([python, "-I", "-c", code, package], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def apply(plan: Plan, folder: Path | None = None, pause: Callable[[str], None] = lambda _: None) -> str:
    """Carry out the host actions of a plan and return the fix's id.

    ``pause`` is called with a word between any two steps. Raises InputError, before anything happens, when facts
    under the plan have changed or it has a step for a person only; FixIncompleteError when a step failed: what was
    done is put back then.
    """
    plan = prepared(plan)
    actions = [action for action in plan.actions if isinstance(action, ON_HOST)]
    if missing := [action.path for action in plan.actions if isinstance(action, PostponeAnnotations)]:
        raise InputError(f"{plan.remedy}: {', '.join(missing)} is not on this host")
    if by_hand := [action.text for action in plan.actions if isinstance(action, ByHand)]:
        raise InputError(f"{plan.remedy} has steps that only a person can take: {'; '.join(by_hand)}")
    if not actions or any(isinstance(action, ON_LAUNCH) for action in plan.actions):
        raise InputError(f"{plan.remedy} changes the launch, which is yours: see llmdoctor fix --print-launch")
    if changed := stale(plan):
        raise InputError(f"{plan.remedy}: {'; '.join(changed)}; make a new plan")
    root = folder or state_folder()
    try:
        journal = _Journal.begin(root, plan)
    except OSError as error:
        raise InputError(f"nothing was changed: the journal cannot be written to {root}: {error}") from None
    try:
        for step, action in enumerate(actions):
            _perform(journal, step, action, pause)
    except (OSError, subprocess.SubprocessError, FixIncompleteError) as error:
        undone = undo(journal.id, root)
        raise FixIncompleteError(f"{plan.remedy} did not complete: {error}; {undone}") from None
    journal.finish("applied")
    return journal.id


def _perform(journal: _Journal, step: int, action: AnyAction, pause: Callable[[str], None]) -> None:
    pause(f"{step}: before the journal")
    if isinstance(action, EditFile):
        target = Path(action.path).resolve()
        original = journal.keep(step, target)
        scratch = target.with_name(f".{target.name}.llmdoctor-{journal.id}")
        journal.write(Entry(step=step, state="begun", action=action, original=original, scratch=str(scratch)))
        pause(f"{step}: journalled")
        _replace(target, action.content.encode(), scratch, pause)
        pause(f"{step}: replaced")
        _verify(action)
    elif isinstance(action, MakeDirectory):
        path = Path(action.path)
        journal.write(Entry(step=step, state="begun", action=action, created=not path.exists()))
        pause(f"{step}: journalled")
        path.mkdir(parents=True, exist_ok=True)
    elif isinstance(action, Install):
        journal.write(Entry(step=step, state="begun", action=action))
        pause(f"{step}: journalled")
        _run(action.argv)
    else:
        raise InputError(f"{type(action).__name__} is not done on the host")
    pause(f"{step}: before done")
    journal.write(Entry(step=step, state="done", action=action))


def _replace(target: Path, content: bytes, scratch: Path, pause: Callable[[str], None]) -> None:
    """Put content in place of the file in one step: the file is the old or the new one at any moment."""
    status = target.stat()
    with scratch.open("wb") as file:
        os.fchmod(file.fileno(), status.st_mode & 0o7777)
        if os.geteuid() == 0 or status.st_uid == os.geteuid():
            os.fchown(file.fileno(), status.st_uid, status.st_gid)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    pause("scratch written")
    scratch.replace(target)
    _sync_folder(target.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _verify(action: EditFile) -> None:
    if not action.verify:
        return
    done = subprocess.run(action.verify, capture_output=True, text=True, timeout=60)
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise FixIncompleteError(f"the check of {action.path} after the change failed: {last[0]}")


def _run(argv: tuple[str, ...]) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=COMMAND_LIMIT)
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise FixIncompleteError(f"{' '.join(argv)}: {last[0]}")


class _Journal:
    """The journal of one fix: a folder with ``plan.json``, ``journal.jsonl`` and the originals."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.id = folder.name

    @classmethod
    def begin(cls, root: Path, plan: Plan) -> _Journal:
        name = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{secrets.token_hex(2)}"
        folder = root / name
        folder.mkdir(parents=True, mode=0o700)
        journal = cls(folder)
        journal._save("plan.json", encode_plans([plan]))
        _sync_folder(root)
        return journal

    @classmethod
    def open(cls, root: Path, fix: str) -> _Journal:
        folder = root / fix
        if not (folder / "plan.json").is_file() or folder.parent != root:
            raise InputError(f"no fix {fix!r}; see llmdoctor history")
        return cls(folder)

    def _save(self, name: str, data: bytes) -> None:
        path = self.folder / name
        with path.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        _sync_folder(self.folder)

    def keep(self, step: int, target: Path) -> str:
        """Save the original beside the journal; returns its name there."""
        name = f"{step}.original"
        self._save(name, target.read_bytes())
        return name

    def original(self, name: str) -> bytes:
        return (self.folder / name).read_bytes()

    def write(self, entry: Entry) -> None:
        with (self.folder / "journal.jsonl").open("ab") as file:
            file.write(msgspec.json.encode(entry) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        _sync_folder(self.folder)

    def finish(self, state: str) -> None:
        self._save("state", state.encode())

    @property
    def state(self) -> str:
        path = self.folder / "state"
        return path.read_text() if path.is_file() else "incomplete"

    def begun(self) -> list[Entry]:
        """Entries of every step that was begun, in order; a last line cut by a crash is left out."""
        path = self.folder / "journal.jsonl"
        entries = []
        for line in path.read_bytes().splitlines() if path.is_file() else []:
            try:
                entries.append(msgspec.json.decode(line, type=Entry))
            except msgspec.DecodeError:
                break
        return [entry for entry in entries if entry.state == "begun"]

    def plan(self) -> Plan:
        return decode_plans((self.folder / "plan.json").read_bytes(), str(self.folder / "plan.json"))[0]


def undo(fix: str | None = None, folder: Path | None = None) -> str:
    """Put back what a fix changed, the last one where none is named; also one that a crash cut short.

    Returns what was done, in words. Raises InputError where there is nothing to undo, FixIncompleteError where
    something cannot be put back because it was changed since.
    """
    root = folder or state_folder()
    if fix is None:
        candidates = [found for found in history(root) if found.state != "undone"]
        if not candidates:
            raise InputError("there is no fix to undo")
        fix = candidates[-1].id
    journal = _Journal.open(root, fix)
    if journal.state == "undone":
        raise InputError(f"fix {fix} is undone already")
    try:
        done = [_put_back(journal, entry) for entry in reversed(journal.begun())]
        journal.finish("undone")
    except (OSError, subprocess.SubprocessError) as error:
        raise FixIncompleteError(f"fix {fix} cannot be put back: {error}; what it keeps is in {root / fix}") from None
    return f"fix {fix} undone: {'; '.join(done) or 'nothing had been changed'}"


def _put_back(journal: _Journal, entry: Entry) -> str:
    action = entry.action
    if isinstance(action, EditFile):
        return _put_file_back(journal, entry, action)
    if isinstance(action, MakeDirectory):
        path = Path(action.path)
        if entry.created and path.is_dir() and not any(path.iterdir()):
            path.rmdir()
            return f"{path} removed"
        return f"{path} stays: it was there before or is in use"
    if action.before is None:
        argv: tuple[str, ...] = (action.python, "-m", "pip", "uninstall", "-y", action.package)
    else:
        argv = (action.python, "-m", "pip", "install", "--no-deps", f"{action.package}=={action.before}")
    if installed_version(action.python, action.package) != action.before:
        _run(argv)
    return f"{action.package} is {action.before or 'not installed'} again"


def _put_file_back(journal: _Journal, entry: Entry, action: EditFile) -> str:
    target = Path(action.path).resolve()
    if entry.scratch:
        Path(entry.scratch).unlink(missing_ok=True)
    now = sha256(target)
    if now == action.sha256:
        return f"{target} is as it was"
    if now != hashlib.sha256(action.content.encode()).hexdigest():
        kept = journal.folder / str(entry.original)
        raise FixIncompleteError(f"{target} was changed by someone after the fix; its original is kept at {kept}")
    scratch = target.with_name(f".{target.name}.llmdoctor-{journal.id}")
    _replace(target, journal.original(str(entry.original)), scratch, lambda _: None)
    return f"{target} restored"


def history(folder: Path | None = None) -> list[Fix]:
    """All fixes of this host, oldest first."""
    root = folder or state_folder()
    fixes = []
    for path in sorted(root.iterdir()) if root.is_dir() else []:
        if (path / "plan.json").is_file():
            journal = _Journal(path)
            fixes.append(
                Fix(id=path.name, when=path.name.partition("-")[0], title=_title(journal), state=journal.state)
            )
    return fixes


def _title(journal: _Journal) -> str:
    try:
        return journal.plan().title
    except (InputError, OSError):
        return "(its plan cannot be read)"
