"""The command line: one file a command, each importing what it needs inside itself, so that ``--help`` stays fast."""

from __future__ import annotations

import io
import os
import sys

import click

from llmdoctor_core import __version__

COMMANDS = {
    "check": "Examine a launch before it starts: facts, forecast, checks, verdict.",
    "predict": "Forecast memory and cache of a launch; touches no GPU.",
    "load": "Start the server briefly and hold what it prints against the forecast.",
    "triage": "Read a failed start's log back to its first cause.",
    "fix": "Show, save or apply what ends the findings of a check.",
    "undo": "Undo an applied fix.",
    "history": "List the fixes applied on this host.",
    "explain": "Print the page of a condition.",
    "list": "List conditions, built-in models, GPUs and data tables.",
    "snapshot": "Write all facts of a launch as a case file, to be checked elsewhere.",
    "collector": "Write the one-file probe that any Python interpreter runs.",
    "bundle": "Pack case, report and log tail for support, secrets removed.",
    "calibration": "List or clear what real loads on this host have measured.",
}
"""Every command and its one line of help. Each is the ``command`` of the module of that name in this folder."""


class Commands(click.Group):
    """Imports a command's module only when that command is run."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        import importlib

        module = importlib.import_module(f"{__name__}.{cmd_name}")
        command: click.Command = module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from difflib import get_close_matches

            near = get_close_matches(args[0], COMMANDS, n=1)
            raise click.UsageError(f"no command {args[0]!r}" + (f"; did you mean {near[0]!r}?" if near else ""), ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, "-V", "--version", message="llm-serving-doctor %(version)s")
@click.option("--debug", is_flag=True, help="Show a traceback where llmdoctor itself fails.")
def app(debug: bool) -> None:
    """Tells people who run LLM servers the truth, fast, before it costs them a night.

    \b
    llmdoctor check --gpu A100-80GB -- vllm serve Qwen/Qwen3-8B --max-model-len 32768
    llmdoctor check -- llama-server -m model.gguf -c 32768
    llmdoctor triage server.log

    \b
    Exit codes: 0 nothing at or above --fail-on, 1 something is, 2 wrong usage or input,
    3 could not tell, 4 a fix did not complete, 130 interrupted.
    """


def main() -> None:
    """Run the command line and exit with a code of the contract; an unhandled exception never comes out as 1."""
    _open_streams()
    try:
        code = app.main(prog_name="llmdoctor", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        code = 2
    except (click.Abort, KeyboardInterrupt):
        click.echo("llmdoctor: interrupted", err=True)
        code = 130
    except SystemExit:  # click's answer to a reader that left (| head): no finding, and no fault
        code = 0
    except Exception as error:  # the door out: what happens here is our bug or a user's input
        code = _failed(error)
    sys.exit(code if isinstance(code, int) else 0)


def _open_streams() -> None:
    """Streams that can be used: closed ones (``>&-``) lead nowhere, a foreign encoding shows ? for what it lacks."""
    nowhere = os.open(os.devnull, os.O_RDWR) if None in (sys.stdin, sys.stdout, sys.stderr) else -1
    sys.stdin = sys.stdin or os.fdopen(nowhere, encoding="utf-8", closefd=False)
    sys.stdout = sys.stdout or os.fdopen(nowhere, "w", encoding="utf-8", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(nowhere, "w", encoding="utf-8", closefd=False)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _failed(error: Exception) -> int:
    from llmdoctor_core.errors import LlmdoctorError

    if isinstance(error, LlmdoctorError):
        from llmdoctor_core.text import clean

        click.echo(f"llmdoctor: {clean(str(error))}", err=True)  # it quotes what a stranger's file holds
        return 2
    if "--debug" in sys.argv:
        raise error
    from .crash import write_crash

    click.echo(
        f"llmdoctor: a bug in llmdoctor, not in your machine: {type(error).__name__}: {error}\n"
        f"  the traceback is in {write_crash(error)}",
        err=True,
    )
    return 3
