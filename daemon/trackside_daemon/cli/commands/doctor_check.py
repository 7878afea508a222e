"""What the doctor says of one thing."""

from __future__ import annotations

from typing import Literal, NamedTuple

Level = Literal["ok", "warn", "FAIL"]


class Check(NamedTuple):
    """One line: *text* has the remedy, unless all is well."""

    level: Level
    about: str
    text: str
