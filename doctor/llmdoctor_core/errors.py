"""Errors a user can cause. Each carries one clear sentence that names the input; the command line prints it and exits 2."""

from __future__ import annotations


class LlmdoctorError(Exception):
    """Base of all errors with a message for the user."""


class InputError(LlmdoctorError):
    """Something the person gave is unreadable, malformed or unknown. Exit code 2."""
