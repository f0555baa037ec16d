"""Where llmdoctor keeps what it writes on a host: journals of fixes, measurements of loads, traces of crashes."""

from __future__ import annotations

from pathlib import Path


def state_folder() -> Path:
    """The user's state directory; that of ``/``, as HOME is in a container, for a user without a home."""
    from platformdirs import user_state_path

    try:
        return Path(user_state_path("llmdoctor"))
    except RuntimeError:  # no HOME, and a uid that /etc/passwd does not know
        return Path("/.local/state/llmdoctor")
