"""Texts of errors of the system: the reason in a few words in lower case."""

from __future__ import annotations


def os_error_text(error: BaseException) -> str:
    """Return why a call failed: the system's message if the error has one, otherwise its text."""
    return (getattr(error, "strerror", None) or str(error)).lower()


def file_error_text(error: OSError) -> str:
    """Return the file that a call failed on, if the error names it, and why."""
    return f"{error.filename}: {os_error_text(error)}" if error.filename else os_error_text(error)
