"""Runs the probes side by side, each within its time limit, and gives their facts by the name of the case's field."""

from __future__ import annotations

import threading
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from . import container, environment, import_annotations, jit, network, nvml, system, target, toolkits
from .host import Fact, Host, unavailable

GRACE = 0.5
"""Seconds beyond its own limit after which a probe is given up: its thread is left behind."""


class Order(NamedTuple):
    """What to observe. ``limit`` bounds each probe, in seconds; ``reading_limit`` the reading of sources."""

    python: Optional[str] = None
    command: Optional[str] = None
    """First word of the launch: its interpreter is the target's where it is a server's script."""
    ports: Tuple[Tuple[str, int], ...] = ()
    limit: float = 5.0
    reading_limit: float = 8.0
    annotations: bool = True
    fields: Optional[Tuple[str, ...]] = None
    """Fields of the case to fill; None for all."""


def collect(host: Host, order: Order) -> Dict[str, Fact]:
    """The facts asked for, each under the name of the case's field. Never raises and never hangs."""
    found: Dict[str, Fact] = {}
    wanted = FIELDS if order.fields is None else order.fields
    tasks: List[_Task] = []
    for fields, run, limit in _probes(host, order):
        if any(field in wanted for field in fields):
            tasks.append(_Task(fields, run, limit))
    for task in tasks:
        found.update(task.answer())
    return {field: found[field] for field in FIELDS if field in wanted}


FIELDS = (
    "driver", "gpus", "links", "toolkits", "jit", "target", "annotations", "system", "container", "environment",
    "network",
)  # fmt: skip
OF_TARGET = ("target", "toolkits", "jit", "annotations")


def _probes(host: Host, order: Order) -> List[Tuple[Tuple[str, ...], Callable[[], Dict[str, Fact]], float]]:
    return [
        (("driver", "gpus", "links"), lambda: nvml.probe(host, order.limit), order.limit),
        (OF_TARGET, lambda: _of_target(host, order), 2 * order.limit + order.reading_limit),
        (("system",), lambda: {"system": system.probe(host)}, order.limit),
        (("container",), lambda: {"container": container.probe(host)}, order.limit),
        (("environment",), lambda: {"environment": environment.probe(host)}, order.limit),
        (("network",), lambda: {"network": network.probe(host, order.ports)}, order.limit),
    ]


def _of_target(host: Host, order: Order) -> Dict[str, Fact]:
    """The target environment and what depends on it, again side by side."""
    wanted = OF_TARGET if order.fields is None else order.fields
    environment_ = target.probe(host, order.python, order.command, order.limit)
    later = {
        "toolkits": lambda: toolkits.probe(host, environment_.fact),
        "jit": lambda: jit.probe(host, environment_),
        "annotations": lambda: _annotations(environment_, order),
    }  # type: Dict[str, Callable[[], Fact]]
    limit = order.limit + order.reading_limit
    tasks = [_Task((name,), _named(name, probe), limit) for name, probe in later.items() if name in wanted]
    found = {"target": environment_.fact}
    for task in tasks:
        found.update(task.answer())
    return found


def _named(name: str, probe: Callable[[], Fact]) -> Callable[[], Dict[str, Fact]]:
    return lambda: {name: probe()}


def _annotations(environment_: target.Target, order: Order) -> Fact:
    if not order.annotations:
        return unavailable("the sources were not read", permanent=True)
    return import_annotations.probe(environment_, time.monotonic() + order.reading_limit)


class _Task:
    """One probe in a thread of its own, which does not keep the process alive."""

    def __init__(self, fields: Tuple[str, ...], run: Callable[[], Dict[str, Any]], limit: float) -> None:
        self.fields = fields
        self.limit = limit
        self.deadline = time.monotonic() + limit + GRACE
        self.found: Optional[Dict[str, Any]] = None
        self.thread = threading.Thread(target=self._run, args=(run,), daemon=True, name=fields[0])
        self.thread.start()

    def _run(self, run: Callable[[], Dict[str, Any]]) -> None:
        try:
            self.found = run()
        except Exception as error:  # a crash of one probe must not take the others' facts away
            reason = "the {} probe crashed: {}: {}".format(self.fields[0], type(error).__name__, error)
            self.found = {field: unavailable(reason) for field in self.fields}

    def answer(self) -> Dict[str, Fact]:
        self.thread.join(max(0.0, self.deadline - time.monotonic()))
        if self.found is None:
            reason = "the {} probe did not answer within {:g} s".format(self.fields[0], self.limit)
            return {field: unavailable(reason) for field in self.fields}
        return self.found
