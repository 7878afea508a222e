"""Why a question of a command has no answer."""

from __future__ import annotations


class SourceError(Exception):
    """A question has no answer; the message says why in one line.

    Attributes:
        status: The command's exit status.
    """

    def __init__(self, message: str, status: int = 2) -> None:
        super().__init__(message)
        self.status = status


class TokenError(SourceError):
    """The daemon wants a token, or another one."""


class LockedError(SourceError):
    """The daemon wants other credentials, or its certificate is not trusted, or the file with these cannot be used."""
