"""Writes a crash of ours to a file that can be pasted into a report."""

from __future__ import annotations

import platform
import time
import traceback
from pathlib import Path

from llmdoctor_core import __version__


def write_crash(error: BaseException) -> Path | str:
    """Write versions and traceback into the state directory; returns the file, or why it could not be written."""
    from llmdoctor_core.state import state_folder

    text = "\n".join(
        (
            f"llm-serving-doctor {__version__}, Python {platform.python_version()}, {platform.platform()}",
            "```",
            "".join(traceback.format_exception(type(error), error, error.__traceback__)).rstrip(),
            "```",
            "",
        )
    )
    try:
        folder = state_folder()
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"crash-{time.strftime('%Y%m%dT%H%M%S')}.md"
        file.write_text(text, encoding="utf-8")
    except OSError as problem:
        return f"nowhere (the state directory is not writable: {problem}); run again with --debug"
    return file
