"""``llmdoctor calibration``: what real loads on this host have measured."""

from __future__ import annotations

from typing import Any

import click


@click.group("calibration", short_help="List or clear what real loads on this host have measured.")
def command() -> None:
    """What real loads on this host have measured, and what the next forecast uses in place of its estimates."""


@command.command("list")
@click.option("--format", "format_name", type=click.Choice(["terminal", "json"]), default="terminal")
def list_entries(format_name: str) -> int:
    """Show the measurements, newest last."""
    from llmdoctor_core.load import calibration

    entries = sorted(calibration.read().entries, key=lambda entry: entry.measured_at)
    if format_name == "json":
        import msgspec

        click.echo(msgspec.json.format(msgspec.json.encode(entries), indent=1).decode())
        return 0
    for line in calibration.described(entries):
        click.echo(line)
    if not entries:
        click.echo(f"no measurements yet ({calibration.path()}); llmdoctor load makes them", err=True)
    return 0


@command.command("clear")
@click.option("--architecture", metavar="NAME", help="Only those of this model architecture.")
def clear_entries(architecture: str | None) -> int:
    """Forget measurements, so that forecasts are estimates again."""
    from llmdoctor_core.load import calibration

    def keep(entry: Any) -> bool:
        return architecture is not None and entry.key.architecture != architecture

    count = calibration.clear(keep=keep)
    click.echo(f"forgot {count} measurement{'' if count == 1 else 's'}", err=True)
    return 0
