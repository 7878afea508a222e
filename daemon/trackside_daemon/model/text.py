"""Text for terminals: escaped, cut to a width, with short numbers and durations."""

from __future__ import annotations

import math
import unicodedata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

GAP = "  "  # between the columns of a table


def shown(value: object) -> str:
    """Return a text from outside with unprintable characters escaped, so that it cannot control the terminal."""
    text = str(value)
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def shown_lines(text: str) -> str:
    """Return a text of several lines as by `shown`, whose lines stay."""
    return "\n".join(map(shown, text.replace("\r\n", "\n").split("\n")))


def cells(text: str) -> int:
    """Return the columns that a text occupies: two for each wide East Asian letter, none for a combining mark."""
    if text.isascii():
        return len(text)
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else not unicodedata.combining(char) for char in text)


def cut(text: str, wide: int) -> str:
    """Return at most *wide* columns of a text, with ``…`` for its middle, since names often differ at their ends."""
    if cells(text) <= wide:
        return text
    tail = head(text[::-1], (wide - 1) // 2)[::-1]
    return f"{head(text, wide - 1 - cells(tail))}…{tail}"


def head(text: str, wide: int) -> str:
    """Return the beginning of a text that fits into *wide* columns."""
    used = 0
    for index, char in enumerate(text):
        used += cells(char)
        if used > wide:
            return text[:index]
    return text


def column_widths(rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the width of each column of a table."""
    return [max(map(cells, column)) for column in zip(*rows, strict=True)]


def aligned(rows: Sequence[Sequence[str]], widths: Sequence[int], right: str = "") -> Iterator[str]:
    """Yield the rows of a table as lines.

    Args:
        rows: One printable text per column, which is cut to its width.
        widths: The width of each column.
        right: One letter per column, ``>`` for right-aligned ones.
    """
    for row in rows:
        parts = []
        for place, (text, wide) in enumerate(zip(row, widths, strict=True)):
            fitted = cut(text, wide)
            padding = " " * (wide - cells(fitted))
            parts.append(padding + fitted if right[place : place + 1] == ">" else fitted + padding)
        yield GAP.join(parts).rstrip()


def number(value: Any) -> str:
    """Return a number in about ten characters at most; texts such as ``nan`` and ``inf`` pass, and None is ``-``."""
    if value is None:
        return "-"
    if isinstance(value, str) or (isinstance(value, float) and not math.isfinite(value)):
        return shown(value)
    if float(value).is_integer() and abs(value) < 10_000_000:
        return str(int(value))
    return f"{value:.4g}"


def file_size(size: float) -> str:
    """Return a size of files in kB or MB, such as ``15.3 kB``."""
    return f"{size / 1e6:,.1f} MB" if size >= 1e6 else f"{size / 1e3:.1f} kB"


def duration(seconds: float | None) -> str:
    """Return seconds in the two largest units: ``2d 3h``, ``1h 5m``, ``12s``, ``0.5s``; ``-`` for None or not finite."""
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
