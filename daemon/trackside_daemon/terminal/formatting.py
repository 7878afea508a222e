"""Short texts of values from the daemon, any of which may be absent."""

from collections.abc import Mapping
from math import isfinite, nan
from typing import Any

from trackside_daemon.model.text import cells, cut, shown

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
