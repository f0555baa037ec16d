"""``llmdoctor bundle``: case, report and log for support, secrets removed."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from . import options

if TYPE_CHECKING:
    from llmdoctor_core.bundle import Bundle


@click.command("bundle", short_help="Pack case, report and log for support.")
@options.launch_options
@click.option("--case", "case_file", metavar="FILE", help="Pack this case instead of observing the host.")
@click.option("--log", "logs", multiple=True, metavar="FILE", help="A log to take the relevant lines of; repeatable.")
@click.option("-o", "--output", metavar="FILE", default="llmdoctor-bundle.zip", help="Where to write it.")
@click.option("--yes", is_flag=True, help="Write it without asking.")
@click.option("--show", is_flag=True, help="Print the redacted content and write nothing.")
def command(**given: Any) -> int:
    """Pack case, report, log lines and versions for support, after showing the list and every redaction.

    \b
    llmdoctor bundle --log server.log -o case.zip -- vllm serve Qwen/Qwen3-8B
    llmdoctor check --case case.zip        llmdoctor triage case.zip

    Nothing is ever uploaded.
    """
    from llmdoctor_core.bundle import write_bundle

    bundle = _packed(given)
    _list(bundle)
    if given["show"]:
        for name, data in bundle.files.items():
            click.echo(f"== {name}\n{data.decode('utf-8', 'replace')}")
        return 0
    if not given["yes"]:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise click.UsageError("there is no terminal to ask on: look with --show, then add --yes")
        if not click.confirm(f"write {given['output']}?", default=False, err=True):
            return 0
    write_bundle(Path(given["output"]), bundle)
    click.echo(f"wrote {given['output']}", err=True)
    return 0


def _packed(given: dict[str, Any]) -> Bundle:
    import socket

    from llmdoctor_core import __version__
    from llmdoctor_core.bundle import extract, pack
    from llmdoctor_core.examine import examine
    from llmdoctor_core.plugins import catalogue
    from llmdoctor_core.redact import Redactor
    from llmdoctor_core.report import View
    from llmdoctor_core.report.document import document
    from llmdoctor_core.triage import triage
    from llmdoctor_core.triage.sources import opened

    logs = {}
    for log in given["logs"]:
        diagnosis = triage(log)
        evidence = [line.number for condition in diagnosis.conditions for line in condition.evidence]
        with opened(log) as read:
            logs[log] = extract(_lines(read), evidence)
    case = None
    if given["case_file"]:
        options.only_the_case(given)
        case = options.read_case(given["case_file"])
    elif given["command"] or given["runtime"] or given["file"]:
        case = options.case_from(given)
    loaded = catalogue()
    report = document([examine(case, loaded.checks)], View(packages=loaded.packages)) if case else None
    versions = {"llm-serving-doctor": __version__, "python": sys.version}
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    redactor = Redactor(users=_users(), hosts=[socket.gethostname()])
    return pack(case=case, report=report, logs=logs, versions=versions, created_at=created, redactor=redactor)


def _users() -> list[str]:
    """This user's name, where it has one: a container may run under a uid that /etc/passwd does not know."""
    import getpass

    try:
        return [getpass.getuser()]
    except (KeyError, OSError):
        return []


def _lines(read: Callable[[int], bytes]) -> Iterator[str]:
    """Lines of a source read in blocks, gzip already unpacked."""
    rest = b""
    while block := read(1 << 20):
        *whole, rest = (rest + block).split(b"\n")
        yield from (line.decode("utf-8", "replace") for line in whole)
    if rest:
        yield rest.decode("utf-8", "replace")


def _list(bundle: Bundle) -> None:
    for member in bundle.manifest.members:
        click.echo(f"{member.bytes:>10,}  {member.name}: {member.holds}", err=True)
    for redaction in bundle.manifest.redactions:
        click.echo(f"  removed: {redaction.count} x {redaction.rule}, at {', '.join(redaction.places)}", err=True)
    if not bundle.manifest.redactions:
        click.echo("  nothing had to be removed", err=True)
