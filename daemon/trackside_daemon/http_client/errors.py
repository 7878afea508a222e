"""Errors of requests and of the settings that they need; their texts are one line without secrets."""

from typing import Literal

Retry = Literal["soon", "later", "never"]
"""Retry policy: with a growing back-off; once a minute, because a person must fix the cause; or not for this message."""


class SendError(Exception):
    """A message could not be sent.

    Attributes:
        retry: When to retry.
        code: The status code with which the server refused it; 0 for none.
    """

    def __init__(self, text: str, retry: Retry = "soon", code: int = 0) -> None:
        super().__init__(text)
        self.retry, self.code = retry, code


class SettingError(Exception):
    """A setting cannot be used; the text names it and the remedy."""
