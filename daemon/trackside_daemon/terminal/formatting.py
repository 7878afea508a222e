"""What a daemon says, which may be absent, in few letters."""

from __future__ import annotations

from math import isfinite, nan
from typing import TYPE_CHECKING, Any

from trackside_daemon.model.text import cells, cut, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

NONE = "-"
_BLOCKS = "▁▂▃▄▅▆▇█"


def real(value: object) -> float | None:
    """A number, of which NaN and infinities come as texts; None of what is none."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def brief(value: object) -> str:
    """A number in at most nine letters, NaN and infinities as such."""
    found = real(value)
    if found is None:
        return NONE
    if isfinite(found) and found.is_integer() and abs(found) < 10_000_000:
        return str(int(found))
    if not isfinite(found):
        return str(found)
    size = abs(found)
    return f"{found:.4g}" if 1e-3 <= size < 1e4 else f"{found:.0f}" if 1e4 <= size < 1e7 else f"{found:.2e}"


def percent(ratio: object) -> str:
    """A ratio of a whole, in at most four letters."""
    found = real(ratio)
    return NONE if found is None or not isfinite(found) else f"{100 * found:.0f}%"


def large(value: object, base: int = 1000) -> str:
    """A number in at most five letters: ``12.3k``; of bytes with a *base* of 1024."""
    found = real(value)
    if found is None or not isfinite(found):
        return NONE
    for unit in ("", "k" if base == 1000 else "K", "M", "G", "T", "P"):
        if abs(found) < base * 0.9995:
            return f"{found:.0f}{unit}" if abs(found) >= 100 or found == int(found) else f"{found:.3g}{unit}"
        found /= base
    return f"{found:.0f}E"


def told(of: Mapping[str, Any], name: str, default: str = "") -> str:
    """A text from outside, fit to be shown; *default* where there is none."""
    value = of.get(name)
    return default if value is None or value == "" else shown(value)


def cell(text: str, width: int, *, right: bool = False) -> str:
    """A text in exactly so many columns."""
    part = cut(text, width)
    padding = " " * (width - cells(part))
    return padding + part if right else part + padding


def bar(ratio: object, width: int) -> str:
    """A ratio of a whole as a bar."""
    found = real(ratio)
    if found is None or not isfinite(found):
        return "·" * width
    full = round(width * min(1.0, max(0.0, found)))
    return "█" * full + "░" * (width - full)


def sparkline(values: object, width: int) -> str:
    """The newest of some values, a letter each; ``!`` for one that is not finite."""
    numbers = [nan if (found := real(one)) is None else found for one in values] if isinstance(values, list) else []
    numbers = numbers[-width:]
    finite = [one for one in numbers if isfinite(one)]
    low, span = (min(finite), max(finite) - min(finite)) if finite else (0.0, 0.0)
    letters = [_BLOCKS[round(7 * (one - low) / (span or 1))] if isfinite(one) else "!" for one in numbers]
    return "".join(letters).rjust(width)
