"""Errors of queries to a history."""

from __future__ import annotations


class SourceError(Exception):
    """A query failed; the message is one line with the reason.

    Attributes:
        status: The command's exit status.
    """

    def __init__(self, message: str, status: int = 2) -> None:
        super().__init__(message)
        self.status = status


class NotFoundError(SourceError):
    """The daemon does not have what was asked for."""


class TokenError(SourceError):
    """The daemon requires a token, or a different one."""


class LockedError(SourceError):
    """The credentials file is invalid, or the daemon rejects its content, or its certificate is not trusted."""
