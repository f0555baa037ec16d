"""What counts: selection, ignored and required checks, from flags, a config file and a baseline."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from .check import Check
from .errors import InputError
from .examine import Policy, known_selectors
from .finding import Outcome

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILES = ("llmdoctor.toml", "pyproject.toml")
KINDS: dict[type, str] = {list: 'list, ["GPU", "MEM801"]', dict: 'table, [ignore] with CODE = "reason"', str: "string"}
KEYS: dict[str, type] = {
    "select": list,
    "ignore": dict,
    "require": list,
    "fail-on": str,
    "profile": str,
    "baseline": str,
}


def policy_from(
    flags: dict[str, Any], checks: Iterable[Check], conditions: Mapping[str, str], folder: Path = Path()
) -> Policy:
    """The policy of flags over the config file over defaults. Raises InputError for what names nothing known."""
    known = tuple(checks)
    config = read_config(flags.get("config_file"), folder)
    ignored = dict(config.get("ignore", {}))
    for entry in flags["ignore"]:
        codes, _, reason = entry.partition("=")
        ignored |= dict.fromkeys(selectors((codes,), "--ignore"), reason)
    select = selectors(flags["select"] or config.get("select", ()), "--select")
    require = selectors(flags["require"] or config.get("require", ()), "--require")
    known_selectors((*select, *ignored, *require), {**conditions, **{check.code: check.name for check in known}})
    profile = flags["profile"] or config.get("profile", "preflight")
    profiles = {"preflight", *(name for check in known for name in check.profiles)}
    if profile not in profiles:
        raise InputError(f"unknown profile {profile!r}; known are {', '.join(sorted(profiles))}")
    baseline = flags["baseline"] or config.get("baseline")
    return Policy(
        select=select,
        ignore=ignored,
        require=require,
        fail_on=_outcome(flags["fail_on"] or config.get("fail-on", "fail")),
        profile=profile,
        baseline=read_baseline(baseline) if baseline else frozenset(),
    )


def selectors(entries: Iterable[str], option: str) -> tuple[str, ...]:
    """Selectors, several of them joined by commas. Raises InputError for an empty one: it would mean every check."""
    found = [selector.strip() for entry in entries for selector in str(entry).split(",")]
    if not all(found):
        raise InputError(f"{option} names an empty condition; write codes, names or prefixes, or leave it out")
    return tuple(found)


def _outcome(text: str) -> Outcome:
    if text not in ("fail", "warn"):
        raise InputError(f"fail-on must be fail or warn, not {text!r}")
    return Outcome(text)


def read_config(given: str | None, folder: Path) -> dict[str, Any]:
    """``llmdoctor.toml``, or ``[tool.llmdoctor]`` of pyproject.toml; empty where there is none and none was given."""
    for path in [Path(given)] if given else [folder / name for name in FILES]:
        if not given and not path.is_file():
            continue
        try:
            data = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(f"{path}: {error}") from None
        if path.name == "pyproject.toml":
            data = data.get("tool", {}).get("llmdoctor")
            if data is None and not given:
                continue
        return _checked(data or {}, path)
    return {}


def _checked(data: dict[str, Any], path: Path) -> dict[str, Any]:
    for key, value in data.items():
        if key not in KEYS:
            near = get_close_matches(key, KEYS, n=1)
            raise InputError(f"{path}: unknown key {key!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
        if not isinstance(value, KEYS[key]):
            raise InputError(f"{path}: {key} must be a {KINDS[KEYS[key]]}")
    for selector, reason in data.get("ignore", {}).items():
        selectors((selector,), f"{path}: ignore")
        if not isinstance(reason, str) or not reason.strip():
            raise InputError(f"{path}: ignore {selector!r} needs a reason")
    return data


def read_baseline(path: str) -> frozenset[str]:
    """Fingerprints of an earlier JSON report's findings. Raises InputError when it is none."""
    try:
        report = json.loads(Path(path).read_text(encoding="utf-8"))
        hosts = report.get("hosts", [report])
        return frozenset(finding["fingerprint"] for host in hosts for finding in host["findings"])
    except (OSError, ValueError, AttributeError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"baseline {path} is no JSON report of llmdoctor: {type(error).__name__} {error}") from None
