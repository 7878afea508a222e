"""Write a document as text: aligned, without colour and control characters, and as wide as the terminal."""

import os
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from itertools import groupby

from trackside_daemon.documents.elements import Code, Document, Table, side_by_side, texts
from trackside_daemon.model.text import GAP, aligned, cells, column_widths, cut, head, shown

MIN_COLUMN_CELLS = 6  # minimum width of a column
CELL = 80  # maximum width of a column, also where no terminal limits it: a long key would widen every line
PATH = 200  # the same of a path, and of the last column, which widens its own line only

MAX_NAME_CELLS = 40  # maximum width of the names of values; longer ones have lines of their own
COLUMN = 10  # minimum width of columns side by side; further ones go to another table
LINES = 4  # maximum number of lines of a cell in one of them
UNLIMITED = 100_000  # width of a file or pipe
READABLE = 120  # width of columns side by side there


def width() -> int:
    """Return the columns of the terminal or of $COLUMNS; a file or pipe has no limit."""
    if os.environ.get("COLUMNS", "").isdecimal() or sys.stdout.isatty():
        return shutil.get_terminal_size().columns or 80  # 0 of Python 3.10: unknown
    return UNLIMITED


def write(document: Document) -> Iterator[str]:
    """Yield the lines of the document's tables; those with the same columns side by side are aligned as one."""
    tables = enumerate(document.tables)
    blocks = groupby(tables, lambda pair: tuple(pair[1].header) if side_by_side(pair[1]) else pair[0])
    for place, (_, block) in enumerate(blocks):
        if place:
            yield ""
        first, *others = (table for _, table in block)
        if others:
            yield from _side_by_side([first, *others])
            continue
        if first.title:
            yield cut(f"{shown(first.title)}:", width())
        indent = "  " if first.title else ""
        if side_by_side(first):
            yield from _side_by_side([first._replace(title="")], indent)
        elif first.header:
            header = [name.upper() for name in texts(first.header)]
            rows = list(map(texts, first.rows))
            yield from table(header, rows, right=first.right, flexible=first.flexible, indent=indent)
        else:
            yield from _named(first, indent) if len(first.rows[0]) > 1 else _listed(first, indent)


def table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, right: str = "", flexible: str = "", indent: str = ""
) -> Iterator[str]:
    """Yield the lines of a table; cells that are longer than `CELL` or `PATH` lose their middle.

    Args:
        header: One name per column.
        rows: One printable text per column.
        right: One letter per column, ``>`` for right-aligned ones.
        flexible: One letter per column, ``~`` for those that shrink if the table is too wide, the widest first; ``/`` for
            one of paths; ``=`` for a last one of whole texts: if the table is too wide, they are below their rows, and if
            that is not enough, each row is a block of lines.
        indent: Begin of each line.
    """
    lines = [header, *rows]
    last, room = len(header) - 1, width() - len(indent)
    natural = column_widths(lines)
    whole = flexible[last:] == "="
    if whole and sum(natural) + len(GAP) * last > room:
        if sum(natural[:-1]) + len(GAP) * (last - 1) > room:
            yield from _blocks(header, rows, indent)
            return
        first, *others = table(header[:-1], [row[:-1] for row in rows], right=right, indent=indent)
        yield first
        for line, row in zip(others, rows, strict=True):
            yield line
            yield from wrapped(row[-1], f"{indent}  ")
        return
    widths = [
        wide
        if whole and place == last
        else min(wide, PATH if place == last or flexible[place : place + 1] == "/" else CELL)
        for place, wide in enumerate(natural)
    ]
    _narrow(widths, [place for place in range(len(widths)) if flexible[place : place + 1] in ("~", "/")], room)
    yield from (f"{indent}{line}" for line in aligned(lines, widths, right))


def _blocks(header: Sequence[str], rows: Sequence[Sequence[str]], indent: str) -> Iterator[str]:
    """Yield each row as lines: its heading, then each other cell with its name."""
    for heading, *row in rows:
        yield from wrapped(heading, f"{indent}  ", indent)
        for name, cell in zip(header[1:], row, strict=True):
            yield from wrapped(f"{name.lower()}: {cell}", f"{indent}    ", f"{indent}  ") if cell else ()


def wrapped(text: str, indent: str = "  ", first: str = "") -> Iterator[str]:
    """Yield a text in lines of the terminal's width, indented; the first line begins with *first* instead."""
    whole = text.replace(" %", "\N{NO-BREAK SPACE}%")
    lines = textwrap.wrap(whole, max(20, width()), initial_indent=first or indent, subsequent_indent=indent)
    return (line.replace("\N{NO-BREAK SPACE}%", " %") for line in lines)


def _narrow(widths: list[int], flexible: Sequence[int], room: int) -> None:
    """Shrink the widest flexible column until the table fits."""
    over = sum(widths) + len(GAP) * (len(widths) - 1) - room
    while over > 0 and flexible:
        widest = max(flexible, key=lambda place: widths[place])
        if widths[widest] <= MIN_COLUMN_CELLS:
            return
        widths[widest] -= 1
        over -= 1


def _named(table: Table, indent: str) -> Iterator[str]:
    """Yield names with their values, which are wrapped unless they are to copy."""
    rows = list(map(texts, table.rows))
    column = max((wide for name, _ in rows if (wide := cells(name)) <= MAX_NAME_CELLS), default=0)
    column = max(column, 0 if indent else len("duration"))
    for (name, value), (_, cell) in zip(rows, table.rows, strict=True):
        if cells(name) > column:
            yield f"{indent}{name}"
        begin = "" if cells(name) > column else name
        first = f"{indent}{begin}{' ' * (column - cells(begin))}{GAP}"
        yield from [first + value] if isinstance(cell, Code) else wrapped(value or "-", " " * len(first), first)


def _listed(table: Table, indent: str) -> Iterator[str]:
    """Yield lines, which keep their indentation when they are wrapped."""
    for [text] in map(texts, table.rows):
        first = indent + text[: len(text) - len(text.lstrip())]
        yield from wrapped(text.strip(), f"{first}{indent}", first) if text.strip() else [""]


def _side_by_side(tables: Sequence[Table], indent: str = "") -> Iterator[str]:
    """Yield columns of equal kind below one header, in as many tables as they need."""
    _, *header = texts(tables[0].header)
    parts = [(shown(one.title), [texts(row) for row in one.rows]) for one in tables]
    rows = [row for _, part in parts for row in part]
    words = [word for name in header for word in name.split()]
    keys = min(CELL, max(cells(key) for key, *_ in rows)) + len(GAP)
    natural = min(CELL, max(COLUMN, *map(cells, words), *(cells(cell) for _, *row in rows for cell in row)))
    room = width()
    if room == UNLIMITED:
        natural = min(natural, CELL // LINES * 2)
        room = max(READABLE, keys + natural + len(GAP))
        fits = (room - keys) // (natural + len(GAP))
    else:
        fits = max(1, (room - min(keys, room // 3)) // (COLUMN + len(GAP)))
    columns = min(fits, len(header))
    keys = min(keys, max(room // 3, room - columns * (natural + len(GAP))))
    column = max(COLUMN, min(natural, (room - keys) // columns - len(GAP)))
    for first in range(0, len(header), fits):
        part = slice(first, first + fits)
        if first:
            yield ""
        yield from _row("", header[part], keys, column)
        for title, section in parts:
            yield from [f"{title}:"] if title else []
            for key, *row in section:
                yield from _row(f"{GAP if title else indent}{key}", row[part], keys, column)


def _row(key: str, row: Sequence[str], keys: int, column: int) -> Iterator[str]:
    """Yield the lines of a row: as many as its longest cell needs, up to `LINES`."""
    pieces = [_pieces(cell, column) for cell in row]
    for line in range(max(map(len, pieces))):
        parts = [piece[line] if line < len(piece) else "" for piece in pieces]
        name = cut(key, keys) if not line else ""
        yield GAP.join(
            [name + " " * (keys - cells(name)), *(" " * (column - cells(part)) + part for part in parts)]
        ).rstrip()


def _pieces(text: str, wide: int) -> list[str]:
    """Return a text in pieces of a width, between words where that is possible; the last one loses its middle."""
    pieces: list[str] = []
    while cells(text) > wide and len(pieces) < LINES - 1:
        fitting = head(text, wide)
        words = head(text, wide + 1).rpartition(" ")[0].rstrip()
        pieces.append(words or fitting)
        text = text[len(pieces[-1]) :].lstrip()
    return [*pieces, cut(text, wide)]
