"""Format numbers for sentences in alerts."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trackside_daemon.detectors.base import Context

HUGE = 1e300  # larger numbers count as infinite: the sum of two could overflow
RAISED_LATELY = 200  # steps during which a raised learning rate may be the cause of trouble


def number(value: float) -> str:
    """Return four significant digits: ``5.31``, ``0.0001234``, ``12,340``; or ``NaN``, ``infinite``, ``minus infinite``."""
    if not isfinite(value):
        return "NaN" if value != value else "infinite" if value > 0 else "minus infinite"  # noqa: PLR0124  the test of a NaN
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e9 else f"{value:.4g}"


def count(value: float) -> str:
    """Return a whole number with thousands separators: ``31,219``."""
    return f"{value:,.0f}"


def times(value: float, other: float, noise: float = 0.0) -> str:
    """Return ``2.4 times the 2.2``, or ``by 0.4 above the -0.1`` if *other* is too close to zero for a ratio."""
    if other > noise and value > 0:
        return f"{factor(value / other)} the {number(other)}"
    return f"by {number(value - other)} above the {number(other)}"


def factor(ratio: float) -> str:
    """Return ``2.41 times`` or ``96 times``; above a thousand, only ``more than 1,000 times``."""
    return f"{ratio:.3g} times" if ratio < 999.5 else "more than 1,000 times"


def lasted(seconds: float) -> str:
    """Return the duration of a step in three digits, ``0.336 s``, ``42.1 s``; from 100 s on like `span`, ``8 h``."""
    return f"{seconds:.3g} s" if seconds < 100 else span(seconds)


def rate_raised(step: int, context: Context) -> str:
    """Return a clause about a raise of the learning rate shortly before *step*; empty when there was none."""
    at = max((other for other in context.rates_raised if other <= step), default=None)
    if at is None or step - at > RAISED_LATELY:
        return ""
    return f"; the learning rate was raised at step {count(at)}"


def span(seconds: float) -> str:
    """Return a duration in at most two units: ``0.31 s``, ``42 s``, ``5 min 20 s``, ``3 h 5 min``, ``2 d 4 h``."""
    if seconds < 10:
        return f"{max(0.0, seconds):.2g} s"
    whole = round(seconds)
    for size, unit, small, smaller in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // small
            return f"{whole // size} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{whole} s"


def in_bytes(count: float) -> str:
    """Return bytes in three digits: ``512 B``, ``1.5 GB``."""
    rest = abs(count)
    for unit in ("B", "kB", "MB", "GB"):
        if rest < 999.5:
            return f"{count:.3g} {unit}"
        rest, count = rest / 1000, count / 1000
    return f"{count:.3g} TB"
