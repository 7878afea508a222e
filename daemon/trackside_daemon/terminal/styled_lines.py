"""Lines of a frame: pieces of text, each with a style that has a meaning."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from trackside_daemon.model.text import cells, head
from trackside_daemon.terminal.formatting import pad

Piece = tuple[str, str]
"""A printable text and its style: a key of `SGR`, or empty for the terminal's default."""

Line = list[Piece]

# Parameters of a terminal's SGR sequence by style; the colours are those of the user's palette.
SGR = {
    "title": "1",
    "dim": "2",
    "good": "32",
    "info": "36",
    "warning": "33",
    "critical": "1;31",
    "selected": "7",
}

SEVERITIES = ("critical", "warning", "info")

MARK = "> "
MIN_REST = 6  # columns of the narrowest column that gets the rest


def to_text(line: Line) -> str:
    """Return a line without styles."""
    return "".join(text for text, _ in line).rstrip()


def to_ansi(line: Line) -> str:
    """Return a line with SGR sequences for a terminal."""
    return "".join(f"\x1b[{SGR[style]}m{text}\x1b[0m" if style else text for text, style in line)


def fit(line: Line, width: int) -> Line:
    """Return exactly *width* columns of a line, with ``…`` where words are cut off."""
    fitted: Line = []
    room = width
    for text, style in line:
        fits = cells(text) <= room
        part = text if fits else _cut_off(text, room)
        fitted.append((part, style))
        room -= cells(part)
        if not fits:
            break
    return [*fitted, (" " * room, "")] if room else fitted


def _cut_off(text: str, room: int) -> str:
    """Return the beginning of a text that is too long; if only blanks are lost, without ``…``."""
    return f"{head(text, room - 1)}…" if cells(text.rstrip()) > room > 0 else head(text, room)


def join(pieces: Iterable[Piece], gap: str = "  ") -> Line:
    """Return the pieces with a gap between each two."""
    line: Line = []
    for piece in pieces:
        line += [(gap, ""), piece] if line else [piece]
    return line


def line_width(line: Line) -> int:
    """Return the columns of a line."""
    return sum(cells(text) for text, _ in line)


class TableColumn(NamedTuple):
    """A column of a table.

    Attributes:
        name: Its title, and its key in the cells of a row.
        width: Its width; 0 for what the other columns leave.
        right: Whether its cells are aligned to the right.
        min_frame: Width of the narrowest frame that shows it.
    """

    name: str
    width: int
    right: bool = True
    min_frame: int = 0


def render_table(
    columns: Sequence[TableColumn],
    rows: Sequence[Mapping[str, Any]],
    cells: Callable[[Mapping[str, Any]], Mapping[str, Piece]],
    selected: int,
    size: tuple[int, int],
    *,
    titles: Mapping[str, str],
) -> list[Line]:
    """Return as many lines as *size*, a width and a height, has: the titles, and the rows around the selected one.

    Args:
        columns: Columns from left to right.
        rows: All rows.
        cells: Returns the texts and styles of a row by the name of the column.
        selected: Index of the selected row, whose first cell is marked.
        size: Width and height.
        titles: Titles other than the columns' names, by these.
    """
    width, height = size
    columns = [column for column in columns if width >= column.min_frame]
    rest = max(MIN_REST, width - len(MARK) - sum(column.width + 1 for column in columns) + 1)
    widths = [column.width or rest for column in columns]
    names = [
        pad(titles.get(column.name, column.name), wide, right=column.right)
        for column, wide in zip(columns, widths, strict=True)
    ]
    lines: list[Line] = [[(" " * len(MARK) + " ".join(names), "title")]]
    first = first_visible(len(rows), selected, height)
    for number, row in enumerate(rows[first : first + height - 1], first):
        texts = cells(row)
        line: Line = [(MARK if number == selected else " " * len(MARK), "")]
        for place, (column, wide) in enumerate(zip(columns, widths, strict=True)):
            text, style = texts[column.name]
            style = "selected" if number == selected and not place else style
            # The rest of the line cuts off its end, not its middle.
            is_rest = not column.width and column is columns[-1]
            line += [(" " if place else "", ""), (text if is_rest else pad(text, wide, right=column.right), style)]
        lines.append(line)
    return [fit(line, width) for line in (lines + [[]] * height)[:height]]


def first_visible(count: int, selected: int, height: int) -> int:
    """Return the index of the row in the first line, so that the selected one is visible."""
    visible = max(1, height - 1)
    return max(0, min(selected - visible // 2, count - visible))
