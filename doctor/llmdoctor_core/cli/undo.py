"""``llmdoctor undo``: put back what a fix changed."""

from __future__ import annotations

import click


@click.command("undo", short_help="Undo an applied fix.")
@click.argument("fix", metavar="[ID]", required=False)
def command(fix: str | None) -> int:
    """Put back what a fix changed (the last one where no ID is given), also one that a crash cut short."""
    from llmdoctor_core.apply import FixIncompleteError, undo
    from llmdoctor_core.examine import Exit

    try:
        click.echo(undo(fix))
    except FixIncompleteError as error:
        click.echo(f"llmdoctor: {error}", err=True)
        return int(Exit.FIX_INCOMPLETE)
    return int(Exit.OK)
