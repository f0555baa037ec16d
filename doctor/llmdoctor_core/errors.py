"""Errors a user can cause: one clear sentence that names the input, which the command line prints before it exits 2."""

from __future__ import annotations


class LlmdoctorError(Exception):
    """Base of all errors with a message for the user."""


class InputError(LlmdoctorError):
    """Something the person gave is unreadable, malformed or unknown. Exit code 2."""
