"""The parameters of a question, read and bounded; what is wrong with one is answered 400."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException

from trackside_daemon.history.read.series import Window

if TYPE_CHECKING:
    from starlette.datastructures import QueryParams

_FAR = 9e12
"""Seconds whose microseconds fit into a column."""


def window(asked: QueryParams) -> Window:
    """What part of a series is asked for."""
    by = asked.get("by", "step")
    if by not in ("step", "time"):
        raise HTTPException(400, f"by: step or time, not {by!r}")
    most = _FAR if by == "time" else 2.0**63
    low, high = number(asked, "from", most), number(asked, "to", most)
    return Window("time" if by == "time" else "step", -inf if low is None else low, inf if high is None else high)


def number(asked: QueryParams, name: str, most: float = _FAR) -> float | None:
    """A parameter that is a number, of at most *most*; None when it is not given."""
    text = asked.get(name, "")
    try:
        number = float(text) if text else None
    except ValueError:
        number = float("nan")
    if number is not None and not abs(number) <= most:
        raise HTTPException(400, f"{name}: {text[:60]!r} is not a number from -{most:g} to {most:g}")
    return number


def whole(text: str) -> int:
    """A whole number that a column can hold.

    Raises:
        ValueError: It is none.
    """
    if not (text.isascii() and text.isdecimal()) or len(text) > 18:
        raise ValueError(text)
    return int(text)


def flag(asked: QueryParams, name: str, *, default: bool) -> bool:
    """A parameter that is true or false; *default* when it is not given."""
    text = asked.get(name, "")
    if text not in ("", "true", "false"):
        raise HTTPException(400, f"{name}: true or false, not {text[:60]!r}")
    return text == "true" if text else default


def bounded(asked: QueryParams, name: str, default: int, most: int) -> int:
    """A parameter that is a whole number from 0 to *most*; *default* when it is not given."""
    text = asked.get(name, "")
    if not text:
        return default
    if not (text.isascii() and text.isdecimal()) or len(text) > 9 or int(text) > most:
        raise HTTPException(400, f"{name}: {text[:60]!r} is not a number from 0 to {most}")
    return int(text)
