"""What the commands print: aligned text without colour, that fits the terminal and holds nothing which steers it."""

from __future__ import annotations

import math
import os
import shutil
import sys
import textwrap
import time
import unicodedata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

GAP = "  "
LEAST = 6
"""No column gets narrower."""

LIVE = frozenset(("starting", "running", "stalled"))


def shown(value: object) -> str:
    """A text from outside with what cannot be printed escaped: it must neither steer the terminal nor turn the line."""
    text = str(value)
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def width() -> int:
    """Columns of the terminal, or of $COLUMNS; of a file or pipe as many as it takes."""
    if os.environ.get("COLUMNS", "").isdecimal() or sys.stdout.isatty():
        return shutil.get_terminal_size().columns
    return 100_000


def table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, right: str = "", flexible: str = ""
) -> Iterator[str]:
    """The lines of a table.

    Args:
        header: A name a column.
        rows: A cell each, already fit to be shown.
        right: A letter a column, ``>`` for those that are aligned to the right.
        flexible: Likewise, ``~`` for those that give way when there is not room for all, the widest first.
    """
    columns = list(zip(header, *rows, strict=True))
    widths = [max(map(cells, column)) for column in columns]
    _narrow(widths, [place for place in range(len(widths)) if flexible[place : place + 1] == "~"])
    for row in (header, *rows):
        parts = []
        for place, (text, wide) in enumerate(zip(row, widths, strict=True)):
            fitted = cut(text, wide)
            padding = " " * (wide - cells(fitted))
            parts.append(padding + fitted if right[place : place + 1] == ">" else fitted + padding)
        yield GAP.join(parts).rstrip()


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


def wrapped(text: str, indent: str = "  ", first: str = "") -> Iterator[str]:
    """A text in lines of the terminal's width, set in; the *first* with something else than the *indent*."""
    return iter(textwrap.wrap(text, max(20, width()), initial_indent=first or indent, subsequent_indent=indent))


def number(value: Any) -> str:
    """A number in at most some ten letters; ``nan``, ``inf`` and ``-inf`` come as texts, and nothing as ``-``."""
    if value is None:
        return "-"
    if isinstance(value, str) or (isinstance(value, float) and not math.isfinite(value)):
        return shown(value)
    if float(value).is_integer() and abs(value) < 10_000_000:
        return str(int(value))
    return f"{value:.4g}"


def moment(seconds: float | None) -> str:
    """A Unix time on the local clock."""
    return "-" if seconds is None else _local(seconds, "%Y-%m-%d %H:%M:%S")


def short_moment(seconds: float, now: float) -> str:
    """The same in ten letters or so: without the year in this year, without the time of day before it."""
    this_year = _local(seconds, "%Y") == _local(now, "%Y")
    return _local(seconds, "%m-%d %H:%M" if this_year else "%Y-%m-%d")


def duration(seconds: float | None) -> str:
    """Seconds in the two largest units: ``2d 3h``, ``1h 5m``, ``12s``, ``0.5s``."""
    if seconds is None:
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


def took(run: Mapping[str, Any], now: float) -> float | None:
    """Seconds that a run or an attempt has taken; None where nobody knows when it ended."""
    if run["ended"] is None and run["state"] not in LIVE:
        return None
    return float((now if run["ended"] is None else run["ended"]) - run["started"])


def _local(seconds: float, form: str) -> str:
    try:
        return time.strftime(form, time.localtime(seconds))
    except (OverflowError, ValueError, OSError):
        return f"{seconds:g}"


def _narrow(widths: list[int], flexible: Sequence[int]) -> None:
    """Take from the widest flexible column as long as they do not all fit."""
    over = sum(widths) + len(GAP) * (len(widths) - 1) - width()
    while over > 0 and flexible:
        widest = max(flexible, key=lambda place: widths[place])
        if widths[widest] <= LEAST:
            return
        widths[widest] -= 1
        over -= 1
