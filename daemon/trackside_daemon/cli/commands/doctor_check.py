"""One result of `trackside doctor`."""

from __future__ import annotations

from typing import Literal, NamedTuple

Level = Literal["ok", "warn", "FAIL"]


class Check(NamedTuple):
    """A result, printed as one line; *text* contains the remedy unless the level is ok."""

    level: Level
    about: str
    text: str
