"""Environment variables that matter to serving, and the folders that they and their defaults make servers write to."""

from __future__ import annotations

import os
import re
from typing import Any, Dict, List, Mapping

from . import mounts
from .host import Fact, Host, table


def probe(host: Host) -> Fact:
    """The service's variables, the names of its secrets, and the folders it writes to."""
    rows = table("environment.json")
    secrets = [name for name in sorted(host.environ) if is_secret(name, rows["secret_words"])]
    return {
        "fact": "environment",
        "variables": shown(host.environ),
        "secrets": secrets,
        "caches": caches(host, rows["caches"]),
    }


def shown(environ: Mapping[str, str]) -> Dict[str, str]:
    """The variables that serving reads; a secret is ``<set>``, also where it stands inside another value."""
    rows = table("environment.json")
    prefixes, names = tuple(rows["prefixes"]), set(rows["names"])
    return {
        name: unless_secret(name, value)
        for name, value in sorted(environ.items())
        if name in names or name.startswith(prefixes)
    }


def unless_secret(name: str, value: str) -> str:
    """The value of a variable or option, ``<set>`` where its name or the value itself says that it is a secret."""
    rows = table("environment.json")
    if value and is_secret(name.replace("-", "_"), rows["secret_words"]):
        return "<set>"
    return without_secrets(value, re.compile(rows["secret_values"]))


def is_secret(name: str, words: List[str]) -> bool:
    """Whether a variable's name says that its value is a secret: one of its words does (TOKEN, not TOKENS)."""
    if name.endswith(("_PATH", "_FILE", "_DIR")):
        return False
    return any(word in words for word in name.upper().split("_"))


def without_secrets(value: str, tokens: "re.Pattern[str]") -> str:
    """The value with credentials in URLs and known kinds of tokens replaced by ``<set>``."""
    return tokens.sub("<set>", re.sub(r"://[^/@\s]+@", "://<set>@", value))


def caches(host: Host, rows: List[Dict[str, Any]]) -> List[Fact]:
    """Each folder as the variables and defaults resolve it, with the space and permission found there."""
    home = host.environ.get("HOME") or os.path.expanduser("~")
    base = {
        "HOME": home if os.path.isabs(home) else "/",  # a container's uid that /etc/passwd does not know has none
        "USER": host.environ.get("USER") or host.environ.get("LOGNAME") or str(os.getuid()),
        "TMPDIR": host.environ.get("TMPDIR") or "/tmp",
    }
    base["XDG_CACHE_HOME"] = host.environ.get("XDG_CACHE_HOME") or os.path.join(base["HOME"], ".cache")
    table_of_mounts = mounts.table(host)
    found = []
    for row in rows:
        given = host.environ.get(row["name"])
        folder = _expanded(given, base) if given else row["default"].format(**base)
        base[row["name"]] = folder
        path = os.path.normpath(os.path.join(folder, row["below"]))
        found.append(
            {
                "name": row["name"],
                "path": path,
                "set_by": "environment" if given else "default",
                "mount": mounts.observe(host, path, table_of_mounts),
            }
        )
    return found


def _expanded(path: str, base: Mapping[str, str]) -> str:
    return base["HOME"] + path[1:] if path == "~" or path.startswith("~/") else path
