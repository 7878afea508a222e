"""The elements of documents. Functions of contents make them; each writer writes all of them, or leaves out what it cannot draw."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from trackside_daemon.model.text import shown

CELL = 300  # most letters of a cell in a file
ROWS = 500  # most rows of a table in a file


class Code(str):
    """A cell to copy, such as a command, or a line of a traceback."""

    __slots__ = ()


class Bar(NamedTuple):
    """A cell with a bar."""

    text: str
    # Begin and end of each part, from 0 to 1, and its severity, which selects its color.
    parts: Sequence[tuple[float, float, str]]


class Lines(NamedTuple):
    """A cell of several lines."""

    lines: Sequence[str]

    @property
    def text(self) -> str:
        """The lines in one."""
        return " / ".join(self.lines)


Cell: TypeAlias = "str | Bar | Lines"


class Table(NamedTuple):
    """A table; the first cell of each row is its heading."""

    title: str  # what it shows, in lower case; empty for none
    # The names of the columns. Without them, rows of two cells are names with values, and those of one are lines. If
    # the first is empty, the columns are of equal kind, such as runs side by side.
    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]  # the cells
    right: str = ""  # see `text.table`
    flexible: str = ""  # see `text.table`


class Curves(NamedTuple):
    """Charts of keys that a page draws."""

    axes: Sequence[Any]  # the axes of each run, see `diagnosis.report`
    # ``key`` and ``lines``, each with its ``label``, ``run`` (its place) and columns.
    charts: Sequence[Mapping[str, Any]]
    marks: Sequence[Any]  # seconds after its start and severity of each alert, by run
    left_out: int  # the number of keys without a chart


class MediaSeries(NamedTuple):
    """Series of images, texts, tables and histograms, see `diagnosis.report.read_media`, each with its name."""

    series: Sequence[tuple[str, Mapping[str, Any]]]


class Document(NamedTuple):
    """A document with its title; the writers leave out tables without rows."""

    title: str
    elements: Sequence[Table | Curves | MediaSeries]

    @property
    def tables(self) -> list[Table]:
        """The tables with rows: what has a text."""
        return [one for one in self.drawn if isinstance(one, Table)]

    @property
    def drawn(self) -> list[Table | Curves | MediaSeries]:
        """The elements without tables that have no rows."""
        return [one for one in self.elements if not isinstance(one, Table) or any(one.rows)]


def facts(title: str, pairs: Mapping[str, Cell]) -> Table:
    """Return names with their values, without those that have none."""
    return Table(title, (), [(name, value) for name, value in pairs.items() if value])


def listing(title: str, lines: Iterable[str]) -> Table:
    """Return lines of text."""
    return Table(title, (), [(line,) for line in lines])


def columns(title: str, labels: Sequence[str], entries: Iterable[Mapping[str, Cell]]) -> Table:
    """Return a table with a column for each label, which has the *entries* at its place; names with values for a single one."""
    found = list(entries)
    keys = dict.fromkeys(key for cells in found for key in cells)
    return Table(
        title,
        ("", *labels) if len(labels) > 1 else (),
        [(key, *(cells.get(key, "-") for cells in found)) for key in keys],
    )


def text_of(cell: Cell) -> str:
    """Return the text of a cell, as what runs wrote has it."""
    return cell.text if isinstance(cell, Bar | Lines) else str(cell)


def texts(row: Iterable[Cell]) -> list[str]:
    """Return the texts of cells, in which nothing can control a terminal."""
    return [shown(text_of(cell)) for cell in row]


def bounded(table: Table) -> Table:
    """Return a table as files have it: its first rows, and its title and the names of its columns with capitals."""
    more = f" (the first {ROWS} of {len(table.rows):,})" if len(table.rows) > ROWS else ""
    header = table.header if side_by_side(table) else [name[:1].upper() + name[1:] for name in table.header]
    title = shown(table.title[:1].upper() + table.title[1:] + more)
    return table._replace(title=title, header=header, rows=table.rows[:ROWS])


def side_by_side(table: Table) -> bool:
    """Return whether the columns of a table are of equal kind."""
    return len(table.header) > 1 and not table.header[0]


def bounded_lines(cell: Cell) -> list[str]:
    """Return the printable lines of a cell in a file."""
    lines = cell.lines if isinstance(cell, Lines) else [text_of(cell)]
    return [shown(line[:CELL] + ("…" if len(line) > CELL else "")) for line in lines]
