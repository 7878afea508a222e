"""Parsing of query parameters; an invalid one raises an HTTP 400."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException

from trackside_daemon.history.read.series import Window

if TYPE_CHECKING:
    from starlette.datastructures import QueryParams

_MAX_SECONDS = 9e12  # seconds whose microseconds fit into a 64-bit column


def parse_window(params: QueryParams) -> Window:
    """Return the window that ``by``, ``from`` and ``to`` select."""
    by = params.get("by", "step")
    if by not in ("step", "time"):
        raise HTTPException(400, f"by: must be step or time, not {by!r}")
    limit = _MAX_SECONDS if by == "time" else 2.0**63
    low, high = parse_number(params, "from", limit), parse_number(params, "to", limit)
    return Window("time" if by == "time" else "step", -inf if low is None else low, inf if high is None else high)


def parse_number(params: QueryParams, name: str, limit: float = _MAX_SECONDS) -> float | None:
    """Return a number from -*limit* to *limit*; None when the parameter is absent."""
    text = params.get(name, "")
    try:
        number = float(text) if text else None
    except ValueError:
        number = float("nan")
    # Negated, because every comparison with NaN is false.
    if number is not None and not abs(number) <= limit:
        raise HTTPException(400, f"{name}: {text[:60]!r} is not a number from -{limit:g} to {limit:g}")
    return number


def parse_integer(text: str) -> int:
    """Return a whole number that fits into a 64-bit column.

    Raises:
        ValueError: The text is not such a number.
    """
    # isdecimal() alone accepts digits of other scripts; 18 digits always fit into 64 bits.
    if not (text.isascii() and text.isdecimal()) or len(text) > 18:
        raise ValueError(text)
    return int(text)


def parse_flag(params: QueryParams, name: str, *, default: bool) -> bool:
    """Return a parameter that is true or false; *default* when it is absent."""
    text = params.get(name, "")
    if text not in ("", "true", "false"):
        raise HTTPException(400, f"{name}: must be true or false, not {text[:60]!r}")
    return text == "true" if text else default


def parse_bounded(params: QueryParams, name: str, default: int, limit: int) -> int:
    """Return a whole number from 0 to *limit*; *default* when the parameter is absent."""
    text = params.get(name, "")
    if not text:
        return default
    if not (text.isascii() and text.isdecimal()) or len(text) > 9 or int(text) > limit:
        raise HTTPException(400, f"{name}: {text[:60]!r} is not a number from 0 to {limit}")
    return int(text)
