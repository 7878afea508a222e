"""Count and word what is left out of a file, for all readers.

A damaged record costs itself: a reader counts it here, and goes on with the next one that is whole.
"""

from collections.abc import Iterator
from functools import partial
from typing import IO, AnyStr, NamedTuple

from trackside_daemon.history.files.items import LINE_BYTES
from trackside_daemon.model.text import counted, shown

SHOWN = 3  # names in a line

DAMAGED = "damaged part(s)"
DAMAGED_ROW = "damaged row(s)"
DAMAGED_LINE = "damaged line(s)"
TORN_LINE = "incomplete last line(s)"
NO_NUMBER = "non-numeric value(s)"


class _Kind(NamedTuple):
    number: int = 0
    size: int = 0
    names: tuple[str, ...] = ()


class LeftOut:
    """Counts by kind.

    Attributes:
        reason: Why the first record is left out, for the case that no other is there; empty without one.
        guesses: Sentences about what a reader has guessed.
    """

    def __init__(self) -> None:
        self.reason = ""
        self.guesses: list[str] = []
        self._kinds: dict[str, _Kind] = {}

    def add(self, kind: str, name: str = "", count: int = 1, size: int = 0, reason: str = "") -> None:
        """Count what is left out.

        Args:
            kind: What it is, as a plural with its ending in parentheses: ``damaged line(s)``.
            name: Its key, or its place in the file.
            count: Number of it.
            size: Bytes of it.
            reason: Why, with the place.
        """
        self.reason = self.reason or reason
        had = self._kinds.get(kind, _Kind())
        names = (*had.names, name) if name and name not in had.names and len(had.names) < SHOWN else had.names
        self._kinds[kind] = _Kind(had.number + count, had.size + size, names)

    def clear(self) -> None:
        """Forget everything, before a file is read again from its beginning."""
        self.reason = ""
        self.guesses.clear()
        self._kinds.clear()

    def notes(self) -> list[str]:
        """Return the guesses, and a sentence for each kind."""
        return [*self.guesses, *(_sentence(kind, found) for kind, found in self._kinds.items())]


def _sentence(kind: str, found: _Kind) -> str:
    what = kind.replace("(s)", "" if found.number == 1 else "s")
    size = f" of {counted(found.size, 'byte')}" if found.size else ""
    names = ", ".join(map(shown, found.names))
    return f"left out: {found.number:,} {what}{size}" + (f": {names}" if names else "")


def lines(stream: IO[AnyStr], left_out: LeftOut) -> Iterator[tuple[int, AnyStr]]:
    """Yield the lines of a file with their numbers, from 1; one that could fill the memory is left out."""
    number, whole = 0, True
    for line in iter(partial(stream.readline, LINE_BYTES + 1), stream.read(0)):
        number += whole
        begins, whole = whole, len(line) <= LINE_BYTES
        if begins and whole:
            yield number, line
        elif begins:
            why = f"line {number}: longer than {LINE_BYTES >> 20} MiB"
            left_out.add(DAMAGED_LINE, f"line {number}", reason=why)
