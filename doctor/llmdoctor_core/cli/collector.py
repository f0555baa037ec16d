"""``llmdoctor collector``: the one-file probe."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("collector", short_help="Write the one-file probe.")
@click.option("-o", "--output", required=True, metavar="FILE", help="Where to write it, e.g. probe.pyz.")
def command(output: str) -> int:
    """Write the one-file probe that any Python interpreter (3.8 or newer) runs on a host, in a container, over ssh.

    \b
    llmdoctor collector -o probe.pyz
    ssh gpu-host 'cat > probe.pyz && python3 probe.pyz' < probe.pyz > facts.json
    """
    from llmdoctor_core.collector import write

    write(Path(output))
    click.echo(f"wrote {output}", err=True)
    return 0
