"""A likely cause of a slow-down, and the words for its numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from trackside_daemon.alerts.evidence.causes.level import Level
    from trackside_daemon.alerts.evidence.causes.readings import Readings

LEAST_SHARE = 0.2  # share of the lost time that a cause must be able to explain
UNKNOWN = 0.5  # place, among the shares, of a cause whose share is unknown
SYMPTOM = 0.5  # weight of the share of a symptom: what causes it says more


class SlowDownCause(NamedTuple):
    """One likely cause.

    Attributes:
        cause: Its name, in snake case.
        text: What has changed, with its numbers, as the beginning of a sentence.
        share: Share of the lost time that it can explain at most, 0 to 1; None if unknown.
        level: Its reading.
        symptom: It shows where the time is lost, but not why.
    """

    cause: str
    text: str
    share: float | None
    level: Level | None = None
    symptom: bool = False

    @property
    def weight(self) -> float:
        """Place among other causes: the highest is the likeliest."""
        share = UNKNOWN if self.share is None else self.share
        # Shares are upper limits, so that small differences between them mean nothing.
        return round(share * (SYMPTOM if self.symptom else 1.0), 1)

    @property
    def counts(self) -> bool:
        """True if it explains enough to be named."""
        return self.share is None or self.share >= LEAST_SHARE

    def as_json(self) -> dict[str, Any]:
        """Return the cause as evidence of an alert."""
        known = {} if self.level is None else {"usual": self.level.usual, "now": self.level.during}
        share = {} if self.share is None else {"explains_ratio": round(self.share, 3)}
        return {"cause": self.cause, "text": self.text, **share, **known}


def rises(what: str, level: Level, readings: Readings, form: Callable[[float], str]) -> str:
    """Return a sentence about a change, such as ``the clock fell from 1,980 MHz to 1,200 MHz``."""
    usual, now = form(level.usual), form(level.during)
    if readings.peers:
        return f"{what} is {now}, while that of other ranks is {usual}"
    if readings.slow.lasting:
        return f"{what} is {now}"
    return f"{what} {'rose' if level.now > level.usual else 'fell'} from {usual} to {now}"
