"""The output of a terminal as lines of plain text, and searches in them."""

from __future__ import annotations

import re
from itertools import islice
from typing import NamedTuple

from trackside.redact import redact_text

LINE = 4096  # limit of characters of a line
# All escape sequences but those of colours.
_ESCAPE = re.compile(r"\x1b(?!\[[0-9;]*m)(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_COLOR = re.compile(r"\x1b\[([0-9;]*)m")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_KEY_BEGINS = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY")
_KEY_ENDS = re.compile(r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY")


_COLORS = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
_LOW = [[str(number)] for number in range(16)]  # of the 256 colours, those that have names


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


class Part(NamedTuple):
    """A coloured part of a line.

    Attributes:
        begin: Index of its first character.
        end: Index after its last one.
        style: The name of a colour, ``bold``, or both.
    """

    begin: int
    end: int
    style: str


def split(data: bytes) -> list[str]:
    """Return the lines, of a redrawn line the last text, without escape sequences other than those of colours."""
    text = _ESCAPE.sub("", data.decode("utf-8", "replace").replace("\r\n", "\n"))
    lines = text.split("\n")
    if not lines[-1]:
        del lines[-1]
    return [line.rstrip("\r").rpartition("\r")[2] for line in lines]


def plain(line: str) -> str:
    """Return a line of `split` as a terminal shows it, without colours and control characters."""
    return _CONTROL.sub("", _COLOR.sub("", line) if "\x1b" in line else line)[:LINE]


def colored_parts(line: str) -> list[Part]:
    """Return the coloured parts of a line of `split`, as indices of its `plain` text (ECMA-48, SGR).

    Each line begins without a colour. Backgrounds, and colours beyond the first 16, are left out.
    """
    found, at, color, bold = [], 0, "", False
    for place, text in enumerate(_COLOR.split(line)):
        if place % 2:
            color, bold = _apply(text, color, bold=bold)
            continue
        end = min(at + len(_CONTROL.sub("", text)), LINE)
        if end > at and (style := f"{color} {'bold' if bold else ''}".strip()):
            found.append(Part(at, end, style))
        at = end
    return found


def _apply(codes: str, color: str, *, bold: bool) -> tuple[str, bool]:
    """Return colour and weight after a sequence with these codes."""
    rest = iter(codes.split(";"))
    for code in rest:
        if code.strip("0") == "":
            color, bold = "", False
        elif code in ("1", "22"):
            bold = code == "1"
        elif code == "39":
            color = ""
        elif code in ("38", "48"):  # of 256 colours 5;N, of 24 bits 2;R;G;B
            kind = next(rest, "")
            values = list(islice(rest, 3 if kind == "2" else 1))
            if code == "38":
                color = _COLORS[int(values[0]) % 8] if kind == "5" and values[:1] in _LOW else ""
        elif len(code) == 2 and code[0] in "39" and code[1] in "01234567":
            color = _COLORS[int(code[1])]
    return color, bold


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
