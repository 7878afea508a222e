"""Texts of the product: escaped, cut to a width, with its one spelling of numbers, shares, sizes, durations and times.

The page's `format.js` spells them alike; `tests/model/spelling.json` has cases of both.
"""

import math
import re
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta, timezone
from fnmatch import fnmatchcase
from typing import Any

GAP = "  "  # between the columns of a table
MAX_RANGES = 8  # most ranges of numbers that a text names
_SPECIAL = re.compile(r"[\\`*_{}\[\]()<>#|~&!]")  # of Markdown
_SEPARATING = frozenset(',;"')  # separate cells of CSV, or quote them

# A spreadsheet takes a cell for a formula if it begins so; Excel also accepts the wide forms. The apostrophe before it makes
# it a text. A cell that has apostrophes already gets one more, so that an import can remove it.
_FORMULA = re.compile(r"'*[=+\-@\t\r\uFF1D\uFF0B\uFF0D\uFF20]")
_SIGNED = re.compile(r"[+-]([\d.,]+(e[+-]?\d+)?( [%\w/]+)?)?")
NONFINITE = ("nan", "inf", "-inf")  # numbers that the API has as texts

# Dates that `datetime.fromisoformat` reads in all versions of Python; later ones read more.
_DATE = re.compile(r"\d{4}-\d\d-\d\d(?P<time>T\d\d:\d\d(:\d\d(?P<fraction>\.\d{1,20})?)?(Z|[+-]\d\d:\d\d)?)?", re.ASCII)
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def shown(value: object) -> str:
    """Return a text from outside with unprintable characters escaped, so that it cannot control the terminal."""
    text = str(value)
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def csv_line(names: Iterable[str], *, signed: bool = False) -> str:
    """Return a line of CSV that no spreadsheet evaluates, for any characters.

    The csv module quotes no lone CR, and on Python 3.10 refuses a NUL. A semicolon is quoted, too: it separates columns in some
    countries. With *signed*, numbers and ``-`` stay as they are.
    """
    cells = (
        f"'{name}" if _FORMULA.match(name) and not (signed and _SIGNED.fullmatch(name)) else name for name in names
    )
    return (
        ",".join(
            cell if cell.isprintable() and _SEPARATING.isdisjoint(cell) else '"{}"'.format(cell.replace('"', '""'))
            for cell in cells
        )
        + "\n"
    )


def csv_name(cell: str) -> str:
    """Return what a cell of `csv_line` stands for, which was read from a file."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell


def escaped(text: str) -> str:
    """Return a text without its meaning for Markdown."""
    return _SPECIAL.sub(r"\\\g<0>", text)


def markdown_rows(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield a table in Markdown; the first row is its header."""
    for place, row in enumerate(rows):
        yield f"| {' | '.join(map(escaped, row))} |"
        if not place:
            yield f"| {' | '.join(['---'] * len(row))} |"


def shown_lines(text: str) -> str:
    """Return a text of several lines as by `shown`, whose lines stay."""
    return "\n".join(map(shown, text.replace("\r\n", "\n").split("\n")))


def cells(text: str) -> int:
    """Return the columns that a text occupies: two for each wide East Asian letter, none for a combining mark."""
    if text.isascii():
        return len(text)
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else not unicodedata.combining(char) for char in text)


def cut(text: str, wide: int) -> str:
    """Return at most *wide* columns of a text, with ``…`` for its middle, since names often differ at their ends."""
    if cells(text) <= wide:
        return text
    tail = head(text[::-1], (wide - 1) // 2)[::-1]
    return f"{head(text, wide - 1 - cells(tail))}…{tail}"


def cut_bytes(text: str, size: int) -> str:
    """Return *text* cut to *size* bytes of UTF-8, at a character."""
    return text.encode("utf-8", "replace")[:size].decode("utf-8", "ignore")


def head(text: str, wide: int) -> str:
    """Return the beginning of a text that fits into *wide* columns."""
    used = 0
    for index, char in enumerate(text):
        used += cells(char)
        if used > wide:
            return text[:index]
    return text


def column_widths(rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the width of each column of a table."""
    return [max(map(cells, column)) for column in zip(*rows, strict=True)]


def aligned(rows: Sequence[Sequence[str]], widths: Sequence[int], right: str = "") -> Iterator[str]:
    """Yield the rows of a table as lines.

    Args:
        rows: One printable text per column, which is cut to its width.
        widths: The width of each column.
        right: One letter per column, ``>`` for right-aligned ones.
    """
    for row in rows:
        parts = []
        for place, (text, wide) in enumerate(zip(row, widths, strict=True)):
            fitted = cut(text, wide)
            padding = " " * (wide - cells(fitted))
            parts.append(padding + fitted if right[place : place + 1] == ">" else fitted + padding)
        yield GAP.join(parts).rstrip()


def number(value: Any, digits: int = 4) -> str:
    """Return a number in *digits* digits: ``5.31``, ``0.0001234``, ``NaN``, ``infinite``; ``-`` for None.

    A whole number keeps all its digits, ``12,340``. The API's ``nan`` and ``inf`` are numbers; another text passes, escaped.
    """
    if value is None:
        return "-"
    if isinstance(value, str):
        if value not in NONFINITE:
            return shown(value)
        value = float(value)
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "infinite" if value > 0 else "minus infinite"
    if abs(value) < 1e15 and (float(value).is_integer() or abs(value) >= 10**digits - 0.5):
        return f"{value + 0.0:,.0f}"
    return f"{value:.{digits}g}"


def factor(ratio: float) -> str:
    """Return ``2.41 times`` or ``96 times``; above a thousand, only ``more than 1,000 times``."""
    return f"{number(ratio, 3)} times" if ratio < 999.5 else "more than 1,000 times"


def times(value: float, other: float, noise: float = 0.0) -> str:
    """Return ``2.4 times the 2.2``, or ``by 0.4 above the -0.1`` if *other* is too close to zero for a ratio."""
    if other > noise and value > 0:
        return f"{factor(value / other)} the {number(other)}"
    return f"by {number(value - other)} above the {number(other)}"


def percent(ratio: float | None, sign: str = "") -> str:
    """Return a ratio in percent, ``96.0 %``, ``0.03 %``, or ``+1.5 %`` with the *sign* ``+``; ``-`` if not finite."""
    if ratio is None or not math.isfinite(ratio):
        return "-"
    value = 100 * ratio
    return f"{value:{sign}.1g} %" if 1e-4 <= abs(value) < 0.05 else f"{round(value, 1) + 0.0:{sign},.1f} %"


def byte_size(count: float | None) -> str:
    """Return bytes with a binary prefix: ``512 B``, ``23.5 GiB``; ``-`` for None or not finite."""
    return _prefixed(count, 1024, ("B", "KiB", "MiB", "GiB", "TiB", "PiB"))


def with_unit(value: float | None, unit: str) -> str:
    """Return a value of another unit with a decimal prefix: ``1.7 GHz``, ``12.3 kJ``; ``-`` for None or not finite."""
    return _prefixed(value, 1000, [f"{prefix}{unit}" for prefix in ("", "k", "M", "G", "T", "P")])


def measured(value: float, unit: str, digits: int = 4) -> str:
    """Return a value in the unit of the API: ``ratio``, ``bytes``, ``bytes per second``, ``hertz``, ``watts`` or another."""
    if unit in _SPELT:
        return _SPELT[unit](value)
    return f"{number(value, digits)} {unit}".rstrip()


def _prefixed(value: float | None, base: int, units: Sequence[str]) -> str:
    """Return a value in three digits and the unit, each *base* times the one before, in which it is below a thousand."""
    if value is None or not math.isfinite(value):
        return "-"
    power = next((power for power in range(len(units)) if abs(value) < 999.5 * base**power), len(units) - 1)
    return f"{number(value / base**power, 3)} {units[power]}"


def duration(seconds: float | None) -> str:
    """Return seconds in at most two units: ``12.5 ms``, ``42.1 s``, ``1 min 14 s``, ``2 d 4 h``; ``-`` if not finite."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    if seconds < 0.9995:
        scale, unit = (1e3, "ms") if seconds >= 0.0009995 else (1e6, "µs")
        return f"{number(seconds * scale, 3)} {unit}" if seconds > 0 else "0 s"
    if seconds < 59.95:
        return f"{number(seconds, 3)} s"
    whole = round(seconds)
    units = ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"))
    large, unit, small, smaller = next(each for each in units if whole >= each[0])
    rest = whole % large // small
    return f"{number(whole // large)} {unit}" + (f" {rest} {smaller}" if rest else "")


def rfc3339(seconds: float, digits: str = "microseconds") -> str:
    """Return a Unix time in RFC 3339, in UTC, such as ``2026-11-29T00:40:12.250000Z``."""
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec=digits).replace("+00:00", "Z")


def moment(seconds: float | None, zone: str = "") -> str:
    """Return a Unix time as local date and time, with the *zone* `` %Z`` also that; ``-`` for None."""
    return "-" if seconds is None else _local(seconds, f"%Y-%m-%d %H:%M:%S{zone}")


def utc(seconds: float, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    """Return a Unix time in UTC, such as ``2026-11-29 00:40:12 UTC``."""
    return datetime.fromtimestamp(seconds, timezone.utc).strftime(f"{form} UTC")


def short_moment(seconds: float, now: float) -> str:
    """Return a Unix time in about ten letters: with the time of day in this year, with the year before."""
    this_year = _local(seconds, "%Y") == _local(now, "%Y")
    return _local(seconds, "%m-%d %H:%M" if this_year else "%Y-%m-%d")


def _local(seconds: float, form: str) -> str:
    try:
        return time.strftime(form, time.localtime(seconds))
    except (OverflowError, ValueError, OSError):
        return f"{seconds:g}"


def counted(count: float, noun: str, many: str = "") -> str:
    """Return a number of things: ``1 checkpoint``, ``1,234 steps``; *many* is an irregular plural."""
    return f"{number(count)} {noun if count == 1 else many or f'{noun}s'}"


def some(names: Sequence[str], most: int) -> str:
    """Return ``a, b and 3 more``: the first *most* names, and the number of others."""
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")


def ranges(numbers: Iterable[int]) -> str:
    """Return ``0 to 3, 5 and 7``; of many ranges, only the first."""
    spans: list[list[int]] = []
    for one in sorted(numbers):
        if spans and one == spans[-1][-1] + 1:
            spans[-1].append(one)
        else:
            spans.append([one])
    words = [text for span in spans for text in ([f"{span[0]} to {span[-1]}"] if len(span) > 2 else map(str, span))]
    if len(words) > MAX_RANGES:
        words[MAX_RANGES:] = ["more"]
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


_SPELT: dict[str, Callable[[float], str]] = {
    "ratio": percent,
    "bytes": byte_size,
    "bytes per second": lambda value: f"{byte_size(value)}/s",
    "hertz": lambda value: with_unit(value, "Hz"),
    "watts": lambda value: with_unit(value, "W"),
    "joules": lambda value: with_unit(value, "J"),
    "seconds": duration,
}


def matches_wildcards(value: str, pattern: str) -> bool:
    """Return True if a text matches a pattern with ``*`` and ``?``."""
    # fnmatch has more wildcards, all of which begin with a bracket.
    return value == pattern or fnmatchcase(value, pattern.replace("[", "[[]"))


def seconds(value: object) -> object:
    """Return the seconds of a duration: ``1s``, ``500ms``, ``1h30m`` or a number of seconds."""
    if not isinstance(value, str) or re.fullmatch(r"[\d.]+", value):
        return value
    if not re.fullmatch(r"(\d+(\.\d+)?(ms|s|m|h|d))+", value):  # a search for parts begins anew at each digit
        raise ValueError(f"{value!r} is not a duration such as 1s, 500ms or 1h30m")
    parts = re.findall(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", value)
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def duration_seconds(text: str, *, bare: bool = True) -> float:
    """Return the seconds of a duration, as `seconds`; NaN if it is none, which no limits include.

    A *bare* number is of seconds, where nobody can mean hours.
    """
    try:
        return float(str(seconds(text))) if bare or text[-1:].isalpha() else math.nan
    except ValueError:
        return math.nan


def read_moment(text: str, *, end: bool = False) -> float:
    """Return the Unix seconds of a duration before now, or of a date; a day without a time begins, or *end*s, at midnight.

    Raises:
        ValueError: The text is neither.
    """
    try:
        return time.time() - float(str(seconds(text)))
    except ValueError:
        pass
    try:
        date = _DATE.fullmatch(text)
        fraction = (date and date["fraction"]) or ""
        # Before Python 3.11, fromisoformat rejects the Z, and most fractions of a second.
        found = datetime.fromisoformat(re.sub("Z$", "+00:00", text.replace(fraction, "", 1)) if date else "")
        days = timedelta(days=1 if end and date and not date["time"] else 0)
        return (found + days).timestamp() + float(fraction or 0)
    except (ValueError, OverflowError):
        raise ValueError(
            f"{text!r} is neither a duration such as 7d or 12h, nor a date such as 2026-11-01 or 2026-11-01T08:00"
        ) from None


def size_bytes(value: object) -> object:
    """Return the bytes of a size: ``10GiB``, ``500MB`` or a number of bytes."""
    if not isinstance(value, str) or value.isdecimal():
        return value
    found = re.fullmatch(r"(\d{1,15}(?:\.\d+)?)\s*([kKMGT])(i?)B?", value.strip())
    if found is None:
        raise ValueError(f"{value!r} is not a size such as 10GiB, 500MB or a number of bytes")
    number, prefix, binary = found.groups()
    return round(float(number) * (1024 if binary else 1000) ** (" KMGT".index(prefix.upper())))
