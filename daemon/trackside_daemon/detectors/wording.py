"""Format numbers for sentences in alerts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.model.text import number

if TYPE_CHECKING:
    from trackside_daemon.detectors.base import Context

HUGE = 1e300  # larger numbers count as infinite: the sum of two could overflow
RAISED_LATELY = 200  # steps during which a raised learning rate may be the cause of trouble


def times(value: float, other: float, noise: float = 0.0) -> str:
    """Return ``2.4 times the 2.2``, or ``by 0.4 above the -0.1`` if *other* is too close to zero for a ratio."""
    if other > noise and value > 0:
        return f"{factor(value / other)} the {number(other)}"
    return f"by {number(value - other)} above the {number(other)}"


def factor(ratio: float) -> str:
    """Return ``2.41 times`` or ``96 times``; above a thousand, only ``more than 1,000 times``."""
    return f"{number(ratio, 3)} times" if ratio < 999.5 else "more than 1,000 times"


def rate_raised(step: int, context: Context) -> str:
    """Return a clause about a raise of the learning rate shortly before *step*; empty when there was none."""
    at = max((other for other in context.rates_raised if other <= step), default=None)
    if at is None or step - at > RAISED_LATELY:
        return ""
    return f"; the learning rate was raised at step {number(at)}"
