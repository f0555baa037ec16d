"""``llmdoctor history``: the fixes applied on this host."""

from __future__ import annotations

import click


@click.command("history", short_help="List the fixes applied on this host.")
def command() -> int:
    """List the fixes applied on this host, oldest first."""
    from llmdoctor_core.apply import history

    fixes = history()
    for fix in fixes:
        click.echo(f"{fix.id}  {fix.state:<10}  {fix.title}")
    if not fixes:
        click.echo("no fix was applied on this host")
    return 0
