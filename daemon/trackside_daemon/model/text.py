"""What a terminal is shown: texts that cannot steer it, their width, and numbers and durations in few letters."""

from __future__ import annotations

import math
import unicodedata
from typing import Any


def shown(value: object) -> str:
    """A text from outside with what cannot be printed escaped: it must neither steer the terminal nor turn the line."""
    text = str(value)
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def cells(text: str) -> int:
    """Columns that a text takes on a terminal: two for the wide letters of East Asia, none for combining marks."""
    if text.isascii():
        return len(text)
    return sum(2 if unicodedata.east_asian_width(one) in "WF" else not unicodedata.combining(one) for one in text)


def cut(text: str, wide: int) -> str:
    """At most so many columns of a text, with ``…`` for its middle: names often differ at their ends."""
    if cells(text) <= wide:
        return text
    tail = head(text[::-1], (wide - 1) // 2)[::-1]
    return f"{head(text, wide - 1 - cells(tail))}…{tail}"


def head(text: str, wide: int) -> str:
    """As much of the beginning of a text as so many columns hold."""
    used = 0
    for place, one in enumerate(text):
        used += cells(one)
        if used > wide:
            return text[:place]
    return text


def number(value: Any) -> str:
    """A number in at most some ten letters; ``nan``, ``inf`` and ``-inf`` come as texts, and nothing as ``-``."""
    if value is None:
        return "-"
    if isinstance(value, str) or (isinstance(value, float) and not math.isfinite(value)):
        return shown(value)
    if float(value).is_integer() and abs(value) < 10_000_000:
        return str(int(value))
    return f"{value:.4g}"


def duration(seconds: float | None) -> str:
    """Seconds in the two largest units: ``2d 3h``, ``1h 5m``, ``12s``, ``0.5s``; what is not finite is none, ``-``."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    if seconds < 10:
        return f"{max(0.0, seconds):.1f}s"
    rest = round(seconds)
    parts: list[str] = []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, rest = divmod(rest, size)
        if count or parts:
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2])
