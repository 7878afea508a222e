"""Lines of a frame: pieces of text, each in a colour that has a meaning."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.model.text import cells, head

if TYPE_CHECKING:
    from collections.abc import Iterable

Piece = tuple[str, str]
"""A text, fit to be shown, and its ink: one of `INKS`, or empty for the terminal's own."""

Line = list[Piece]

INKS = {
    "title": "1",
    "dim": "2",
    "good": "32",
    "info": "36",
    "warning": "33",
    "critical": "1;31",
    "chosen": "7",
}
"""What the inks are called, and the parameters of a terminal's SGR sequence; the user's own palette says what they look like."""

SEVERITIES = ("critical", "warning", "info")


def plain(line: Line) -> str:
    """A line without colour."""
    return "".join(text for text, _ in line).rstrip()


def coloured(line: Line) -> str:
    """A line as a terminal takes it."""
    return "".join(f"\x1b[{INKS[ink]}m{text}\x1b[0m" if ink else text for text, ink in line)


def fitted(line: Line, width: int) -> Line:
    """Exactly so many columns of a line, with ``…`` where words are cut off."""
    made: Line = []
    room = width
    for text, ink in line:
        fits = cells(text) <= room
        part = text if fits else _begun(text, room)
        made.append((part, ink))
        room -= cells(part)
        if not fits:
            break
    return [*made, (" " * room, "")] if room else made


def _begun(text: str, room: int) -> str:
    """The beginning of a text that is too long; blanks may go without a sign."""
    return f"{head(text, room - 1)}…" if cells(text.rstrip()) > room > 0 else head(text, room)


def joined(pieces: Iterable[Piece], gap: str = "  ") -> Line:
    """Pieces in a row with a gap between each two."""
    made: Line = []
    for piece in pieces:
        made += [(gap, ""), piece] if made else [piece]
    return made


def wide(line: Line) -> int:
    """Columns that a line takes."""
    return sum(cells(text) for text, _ in line)
