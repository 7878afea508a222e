"""What the commands print: aligned text without colour, that fits the terminal and holds nothing which steers it."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
import time
from typing import TYPE_CHECKING, Any

from trackside_daemon.model.text import cells, cut

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

GAP = "  "
LEAST = 6
"""No column gets narrower."""

LIVE = frozenset(("starting", "running", "stalled"))


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


def wrapped(text: str, indent: str = "  ", first: str = "") -> Iterator[str]:
    """A text in lines of the terminal's width, set in; the *first* with something else than the *indent*."""
    return iter(textwrap.wrap(text, max(20, width()), initial_indent=first or indent, subsequent_indent=indent))


def moment(seconds: float | None) -> str:
    """A Unix time on the local clock."""
    return "-" if seconds is None else _local(seconds, "%Y-%m-%d %H:%M:%S")


def short_moment(seconds: float, now: float) -> str:
    """The same in ten letters or so: without the year in this year, without the time of day before it."""
    this_year = _local(seconds, "%Y") == _local(now, "%Y")
    return _local(seconds, "%m-%d %H:%M" if this_year else "%Y-%m-%d")


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
