"""The output of a terminal as lines of plain text, and searches in them."""

import re
from itertools import islice
from typing import NamedTuple

from trackside.redact import CONTROL, judged, redact_text

LINE = 4096  # limit of characters of a line
WAITING = 4 * LINE
# All escape sequences but those of colours.
_ESCAPE = re.compile(rf"\x1b(?!\[[0-9;]*m){CONTROL}")
_COLOR = re.compile(r"\x1b\[([0-9;]*)m")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")

_COLORS = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
_LOW = [[str(number)] for number in range(16)]  # of the 256 colours, those that have names


class OutputLines(NamedTuple):
    """Lines of an output."""

    lines: list[tuple[int, str]]  # their numbers from 1 and their texts, the oldest first
    total: int  # number of all lines
    more: bool  # there are earlier ones


class ColouredPart(NamedTuple):
    """A coloured part of a line."""

    begin: int  # index of its first character
    end: int  # index after its last one
    style: str  # the name of a colour, ``bold``, or both


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


def colored_parts(line: str) -> list[ColouredPart]:
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
            found.append(ColouredPart(at, end, style))
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


def select(lines: list[str], count: int, before: int = 0, search: str = "") -> OutputLines:
    """Return the newest *count* lines, those before line number *before* if it is not 0, that contain *search*."""
    end = min(before - 1, len(lines)) if before else len(lines)
    wanted = search.lower()
    newest = ((number, lines[number - 1]) for number in range(end, 0, -1) if wanted in lines[number - 1].lower())
    found = list(islice(newest, count + 1))
    return OutputLines(found[:count][::-1], len(lines), len(found) > count)


class Redactor:
    """Removes what looks like a secret from output that arrives in pieces; lines are judged as a whole.

    What may belong to more waits for that, up to `WAITING` bytes: the rest of a line, a private key, a name without its value.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes, *, end: bool = False) -> bytes:
        """Return the redacted lines that are complete with this piece; with *end*, also the last one."""
        data = self._rest + data
        text = data.decode("latin-1")  # which changes no byte: all that is looked for is ASCII
        lines = max(text.rfind("\n"), text.rfind("\r")) + 1
        cut = len(text) if end else judged(text[:lines])
        if len(text) - cut > WAITING:
            cut = len(text)
        self._rest = data[cut:]
        return redact_text(text[:cut]).encode("latin-1")
