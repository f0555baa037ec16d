"""Ports, interfaces, name resolution and proxies, without sending anything to the network."""

from __future__ import annotations

import errno
import os
import re
import socket
from typing import Dict, Iterable, List, Optional, Tuple

from .environment import without_secrets
from .host import Fact, Host, table

TRUE = {"1", "ON", "YES", "TRUE"}
LISTEN = "0A"


def probe(host: Host, ports: "Iterable[Tuple[str, int]]") -> Fact:
    """``ports`` are the (address, port) pairs that the launch will listen on: each is bound for a moment."""
    unread: Dict[str, str] = {}
    tokens = re.compile(table("environment.json")["secret_values"])
    proxies = [
        "{}={}".format(name, without_secrets(value, tokens))
        for name, value in sorted(host.environ.items())
        if name.lower() in ("http_proxy", "https_proxy", "all_proxy", "no_proxy") and value
    ]
    offline = any(host.environ.get(name, "").upper() in TRUE for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))
    return {
        "fact": "network",
        "hostname_resolves": _resolves(host, unread),
        "interfaces": host.list("/sys/class/net"),
        "ports": [_port(host, address, port, unread) for address, port in ports],
        "hub_offline": offline,
        "proxies": proxies,
        "unread": unread,
    }


def _resolves(host: Host, unread: Dict[str, str]) -> Optional[bool]:
    """Whether the host's own name has an address, by /etc/hosts and nsswitch alone: DNS is not asked."""
    name = (host.text("/proc/sys/kernel/hostname") or socket.gethostname()).strip()
    for line in (host.text("/etc/hosts") or "").splitlines():
        if name in line.partition("#")[0].split()[1:]:
            return True
    services = re.search(r"^hosts:(.*)", host.text("/etc/nsswitch.conf") or "", re.MULTILINE)
    words = services.group(1).split() if services else []
    if "myhostname" in words:
        return True
    if services and "dns" not in words and "resolve" not in words:
        return False
    unread["hostname_resolves"] = "{!r} is not in /etc/hosts, and DNS was not asked".format(name)
    return None


def _port(host: Host, address: str, port: int, unread: Dict[str, str]) -> Fact:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    found: Fact = {"port": port, "host": address, "free": True, "holder": None}
    try:
        with socket.socket(family, socket.SOCK_STREAM) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((address, port))
            listener.listen(1)
    except (OSError, OverflowError) as error:
        found["free"] = False
        if getattr(error, "errno", None) == errno.EADDRINUSE:
            found["holder"] = _holder(host, port)
        else:
            unread["port {}".format(port)] = str(error)
    return found


def _holder(host: Host, port: int) -> Optional[str]:
    """``NAME (PID)`` of the process that listens on the port, where this user may see it."""
    inodes = set()
    for name in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in (host.text(name) or "").splitlines()[1:]:
            fields = line.split()
            if len(fields) > 9 and fields[3] == LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add("socket:[{}]".format(fields[9]))
    for pid in host.list("/proc"):
        if pid.isdigit() and inodes & set(_open_files(host, pid)):
            return "{} ({})".format((host.text("/proc/{}/comm".format(pid)) or "?").strip(), pid)
    return None


def _open_files(host: Host, pid: str) -> List[str]:
    found = []
    for name in host.list("/proc/{}/fd".format(pid)):
        try:
            found.append(os.readlink(host.path("/proc/{}/fd/{}".format(pid, name))))
        except OSError:
            continue
    return found
