"""``llmdoctor explain``: the page of a condition, offline."""

from __future__ import annotations

import click

from . import options


@click.command("explain", short_help="Print the page of a condition.")
@click.argument("condition", metavar="CODE|NAME")
@options.LANGUAGE
def command(condition: str, lang: str | None) -> int:
    """Print the page of a condition: what it means, why it matters, how to end it.

    \b
    llmdoctor explain CUDA210
    llmdoctor explain nvcc-too-old-for-flashinfer --lang ko
    """
    from difflib import get_close_matches

    from llmdoctor_core.errors import InputError
    from llmdoctor_core.plugins import packages
    from llmdoctor_core.text import conditions, page

    named = conditions(packages())
    by_name = {name: code for code, name in named.items()}
    code = by_name.get(condition.lower(), condition.upper())
    text = page(code, options.language(lang), packages())
    if text is None:
        near = get_close_matches(condition.upper(), named, n=3) or get_close_matches(condition, by_name, n=3)
        raise InputError(
            f"no condition {condition!r}" + (f"; near are {', '.join(near)}" if near else "; see llmdoctor list")
        )
    click.echo(text)
    return 0
