"""Lines of a frame: pieces of text, each with a style that has a meaning."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isfinite, nan
from typing import Any, NamedTuple

from trackside_daemon.model.text import cells, cut, head, shown

ABSENT = "-"
_BLOCKS = "▁▂▃▄▅▆▇█"


def to_float(value: object) -> float | None:
    """Return a number, which may be NaN or infinite and then comes as text; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def short_number(value: object) -> str:
    """Return a number in at most nine characters, also NaN and infinities."""
    number = to_float(value)
    if number is None:
        return ABSENT
    if isfinite(number) and number.is_integer() and abs(number) < 10_000_000:
        return str(int(number))
    if not isfinite(number):
        return "NaN" if number != number else str(number)  # noqa: PLR0124
    size = abs(number)
    return f"{number:.4g}" if 1e-3 <= size < 1e4 else f"{number:.0f}" if 1e4 <= size < 1e7 else f"{number:.2e}"


def percent(ratio: object) -> str:
    """Return a ratio in percent, without the decimal for which columns have no room: ``96 %``."""
    number = to_float(ratio)
    return ABSENT if number is None or not isfinite(number) else f"{100 * number:.0f} %"


def with_prefix(value: object, base: int = 1000) -> str:
    """Return a number in at most five characters, such as ``12.3k``; for bytes, *base* is 1024."""
    number = to_float(value)
    if number is None or not isfinite(number):
        return ABSENT
    for prefix in ("", "k" if base == 1000 else "K", "M", "G", "T", "P"):
        # A larger number would be rounded to a digit too many, such as 999.6 to 1000.
        if abs(number) < base * 0.9995:
            return f"{number:.0f}{prefix}" if abs(number) >= 100 or number == int(number) else f"{number:.3g}{prefix}"
        number /= base
    return f"{number:.0f}E"


def text_field(row: Mapping[str, Any], name: str, default: str = "") -> str:
    """Return a field of *row* as printable text; *default* if it is absent or empty."""
    value = row.get(name)
    return default if value is None or value == "" else shown(value)


def pad(text: str, width: int, *, right: bool = False) -> str:
    """Return the text cut or padded to exactly *width* columns; *right* aligns it to the right."""
    part = cut(text, width)
    padding = " " * (width - cells(part))
    return padding + part if right else part + padding


def bar(ratio: object, width: int) -> str:
    """Return a bar of *width* columns, filled by the ratio."""
    number = to_float(ratio)
    if number is None or not isfinite(number):
        return "·" * width
    full = round(width * min(1.0, max(0.0, number)))
    return "█" * full + "░" * (width - full)


def sparkline(values: object, width: int, top: float | None = None) -> str:
    """Return the newest values, one character each; ``!`` for one that is not finite.

    The characters range from the lowest to the highest value, or from 0 to *top*.
    """
    numbers = (
        [nan if (number := to_float(value)) is None else number for value in values] if isinstance(values, list) else []
    )
    numbers = numbers[-width:]
    finite = [number for number in numbers if isfinite(number)]
    low = min(finite, default=0.0) if top is None else 0.0
    span = (max(finite, default=0.0) if top is None else top) - low
    blocks = [
        _BLOCKS[round(7 * min(1.0, max(0.0, (number - low) / (span or 1))))] if isfinite(number) else "!"
        for number in numbers
    ]
    return "".join(blocks).rjust(width)


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
    """A column of a table."""

    name: str  # its title, and its key in the cells of a row
    width: int  # its width; 0 for what the other columns leave
    right: bool = True  # whether its cells are aligned to the right
    min_frame: int = 0  # width of the narrowest frame that shows it


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
