"""Lines of a frame: pieces of text, each with a style that has a meaning."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.model.text import cells, head

if TYPE_CHECKING:
    from collections.abc import Iterable

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
