"""``llmdoctor list``: conditions, built-in models and GPUs, and how old the data tables are."""

from __future__ import annotations

import json
from typing import Any

import click


@click.command("list", short_help="List conditions, models, GPUs and data tables.")
@click.option("--models", "what", flag_value="models", help="Models of the built-in catalogue.")
@click.option("--gpus", "what", flag_value="gpus", help="GPUs of the built-in table.")
@click.option("--data", "what", flag_value="data", help="Data tables with their dates.")
@click.option("--format", "format_name", type=click.Choice(["terminal", "json"]), default="terminal")
def command(what: str | None, format_name: str) -> int:
    """List conditions (default), built-in models, GPUs, or data tables with their age."""
    rows = {None: _conditions, "models": _models, "gpus": _gpus, "data": _data}[what]()
    if format_name == "json":
        click.echo(json.dumps(rows, ensure_ascii=False, indent=1))
        return 0
    for row in rows:
        click.echo("  ".join(str(value) for value in row.values() if value not in (None, "")))
    return 0


def _conditions() -> list[dict[str, Any]]:
    from llmdoctor_core.plugins import catalogue
    from llmdoctor_core.text import conditions

    loaded = catalogue()
    checks = {check.code: check for check in loaded.checks}
    return [
        {
            "code": code,
            "name": name,
            "check": code in checks,
            "runtimes": sorted(checks[code].runtimes) if code in checks else [],
            "summary": checks[code].summary if code in checks else "recognised in logs",
        }
        for code, name in conditions(loaded.packages).items()
    ]


def _models() -> list[dict[str, Any]]:
    from llmdoctor_core.models.catalogue import names

    return [{"name": name} for name in names()]


def _gpus() -> list[dict[str, Any]]:
    from llmdoctor_core.gpu_table import rows

    return [{"name": row.name, "memory": row.total_bytes, "source": row.source} for row in rows()]


def _data() -> list[dict[str, Any]]:
    from llmdoctor_core.plugins import packages
    from llmdoctor_core.tables import tables

    return [{"date": t.date, "rows": t.rows, "title": t.title, "file": t.file} for t in tables(packages())]
