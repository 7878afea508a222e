"""Output of the commands: aligned text without colour and control characters that fits the terminal."""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
import time
from typing import TYPE_CHECKING, Any

import typer

from trackside_daemon.model.text import GAP, aligned, column_widths

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

LEAST = 6  # minimum width of a column
CELL = 80  # maximum width of a column, also where no terminal limits it: a long key would widen every line
PATH = 200  # the same of a path, and of the last column, which widens its own line only

LIVE = frozenset(("starting", "running", "stalled"))


def width() -> int:
    """Return the columns of the terminal or of $COLUMNS; a file or pipe has no limit."""
    if os.environ.get("COLUMNS", "").isdecimal() or sys.stdout.isatty():
        return shutil.get_terminal_size().columns or 80  # 0 of Python 3.10: unknown
    return 100_000


def table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, right: str = "", flexible: str = ""
) -> Iterator[str]:
    """Yield the lines of a table; cells that are longer than `CELL` or `PATH` lose their middle.

    Args:
        header: One name per column.
        rows: One printable text per column.
        right: One letter per column, ``>`` for right-aligned ones.
        flexible: One letter per column, ``~`` for those that shrink if the table is too wide, the widest first; ``/`` for
            one of paths.
    """
    lines = [header, *rows]
    widths = [
        min(wide, PATH if place == len(header) - 1 or flexible[place : place + 1] == "/" else CELL)
        for place, wide in enumerate(column_widths(lines))
    ]
    _narrow(widths, [place for place in range(len(widths)) if flexible[place : place + 1] in ("~", "/")])
    yield from aligned(lines, widths, right)


def wrapped(text: str, indent: str = "  ", first: str = "") -> Iterator[str]:
    """Yield a text in lines of the terminal's width, indented; the first line begins with *first* instead."""
    return iter(textwrap.wrap(text, max(20, width()), initial_indent=first or indent, subsequent_indent=indent))


def print_lines(lines: Iterable[str]) -> None:
    """Print lines; characters that the terminal's encoding lacks are escaped."""
    encoding = sys.stdout.encoding or "utf-8"
    for line in lines:
        typer.echo(line.encode(encoding, "backslashreplace").decode(encoding))


def print_json(value: Any) -> None:
    """Print a value as indented JSON."""
    typer.echo(json.dumps(value, indent=2))


def moment(seconds: float | None) -> str:
    """Return a Unix time as local date and time."""
    return "-" if seconds is None else _local(seconds, "%Y-%m-%d %H:%M:%S")


def short_moment(seconds: float, now: float) -> str:
    """Return a Unix time in about ten letters: with the time of day in this year, with the year before."""
    this_year = _local(seconds, "%Y") == _local(now, "%Y")
    return _local(seconds, "%m-%d %H:%M" if this_year else "%Y-%m-%d")


def elapsed(run: Mapping[str, Any], now: float) -> float | None:
    """Return the seconds that a run or an attempt lasted; None if its end is unknown."""
    if run["ended"] is None and run["state"] not in LIVE:
        return None
    return float((now if run["ended"] is None else run["ended"]) - run["started"])


def _local(seconds: float, form: str) -> str:
    try:
        return time.strftime(form, time.localtime(seconds))
    except (OverflowError, ValueError, OSError):
        return f"{seconds:g}"


def _narrow(widths: list[int], flexible: Sequence[int]) -> None:
    """Shrink the widest flexible column until the table fits."""
    over = sum(widths) + len(GAP) * (len(widths) - 1) - width()
    while over > 0 and flexible:
        widest = max(flexible, key=lambda place: widths[place])
        if widths[widest] <= LEAST:
            return
        widths[widest] -= 1
        over -= 1
