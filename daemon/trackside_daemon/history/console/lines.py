"""The output of a terminal as lines of plain text, and searches in them."""

from __future__ import annotations

import re
from itertools import islice
from typing import NamedTuple

from trackside.redact import redact_text

LINE = 4096  # limit of characters of a line
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_KEY_BEGINS = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY")
_KEY_ENDS = re.compile(r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY")


class Lines(NamedTuple):
    """Lines of an output.

    Attributes:
        lines: Their numbers from 1 and their texts, the oldest first.
        total: Number of all lines.
        more: There are earlier ones.
    """

    lines: list[tuple[int, str]]
    total: int
    more: bool


def plain(data: bytes) -> list[str]:
    """Return the lines as a terminal shows them: without escape sequences, and of a redrawn line the last text."""
    text = _ESCAPE.sub("", data.decode("utf-8", "replace").replace("\r\n", "\n"))
    lines = text.split("\n")
    if not lines[-1]:
        del lines[-1]
    return [_CONTROL.sub("", line.rstrip("\r").rpartition("\r")[2])[:LINE] for line in lines]


def select(lines: list[str], count: int, before: int = 0, search: str = "") -> Lines:
    """Return the newest *count* lines, those before line number *before* if it is not 0, that contain *search*."""
    end = min(before - 1, len(lines)) if before else len(lines)
    wanted = search.lower()
    newest = ((number, lines[number - 1]) for number in range(end, 0, -1) if wanted in lines[number - 1].lower())
    found = list(islice(newest, count + 1))
    return Lines(found[:count][::-1], len(lines), len(found) > count)


class Redactor:
    """Removes what looks like a secret from output that arrives in pieces; a line is judged as a whole.

    The rest of an unfinished line waits for its end, or for `LINE` characters.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._in_key = False

    def feed(self, data: bytes, *, end: bool = False) -> bytes:
        """Return the redacted lines that are complete with this piece; with *end*, also the last one."""
        data = self._rest + data
        cut = len(data) if end or len(data) > LINE * 4 else max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        self._rest = data[cut:]
        return b"".join(map(self._line, re.split(rb"(?<=[\r\n])", data[:cut])))

    def _line(self, line: bytes) -> bytes:
        text = line.decode("utf-8", "surrogateescape")
        if self._in_key:
            self._in_key = not _KEY_ENDS.search(text)
            return b""
        self._in_key = bool(_KEY_BEGINS.search(text)) and not _KEY_ENDS.search(text)
        stripped = text.rstrip("\r\n")
        return (redact_text(stripped) + text[len(stripped) :]).encode("utf-8", "surrogateescape")
