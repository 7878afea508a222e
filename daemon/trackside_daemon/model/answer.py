"""The answer of a rank to a question of the daemon, from `ingest` to those who ask."""

from __future__ import annotations

from typing import Any, NamedTuple


class Answer(NamedTuple):
    """The answer of one rank.

    Attributes:
        seconds: Time from the question to the answer.
        body: The decoded message; None for a kind without a body.
    """

    rank: int
    seconds: float
    body: Any
