"""``llmdoctor predict``: memory and cache of a launch, without touching a GPU."""

from __future__ import annotations

from typing import Any

import click

from . import options


@click.command("predict", short_help="Forecast memory and cache of a launch.")
@options.launch_options
@click.option("--format", "format_name", type=click.Choice(["terminal", "json"]), default="terminal")
@click.option("--sweep", multiple=True, metavar="NAME=FROM..TO", help="Forecast over a range: max_model_len=4k..256k.")
@options.OUTPUT
def command(**given: Any) -> int:
    """Forecast memory and cache of a launch; touches no GPU.

    \b
    llmdoctor predict --gpu A100-80GB -- vllm serve Qwen/Qwen3-8B --max-model-len 32768
    llmdoctor predict --runtime llamacpp --model DIR --format json -- llama-server -c 32768
    """
    from llmdoctor_core.derive import Facts
    from llmdoctor_core.errors import InputError
    from llmdoctor_core.facts import Forecast, Unavailable

    case = options.case_from(given, gpus_only=True)
    if given["sweep"]:
        from llmdoctor_core.sweep import render, sweep

        options.write(given["output"], render(sweep(case, given["sweep"]), given["format_name"]))
        return 0
    forecast = Facts(case).get(Forecast)
    if isinstance(forecast, Unavailable):
        raise InputError(f"no forecast: {forecast.reason}")
    options.write(given["output"], _text(forecast, given["format_name"]))
    return 0


def _text(forecast: Any, format_name: str) -> str:
    if format_name == "json":
        import msgspec

        return msgspec.json.format(msgspec.json.encode(forecast), indent=1).decode() + "\n"
    import io

    from llmdoctor_core.report import View
    from llmdoctor_core.report.terminal import console_for, render_forecast, said

    from .terminal import columns

    out = io.StringIO()
    console = console_for(out, View(width=columns("-")))
    if forecast.refused:
        console.print(said(f"WILL NOT START  {forecast.refused.code}: {forecast.refused.message}"))
    render_forecast(console, forecast)
    return out.getvalue()
