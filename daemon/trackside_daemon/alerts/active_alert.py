"""One alert of the book: since when it fires, of which ranks, and what the history and the page are told of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.alerts.inhibition import folded
from trackside_daemon.model.finding import SEVERITIES, Finding
from trackside_daemon.model.records import Alert

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trackside_daemon.model.finding import Severity

OTHERS = "; also "
NAMED = 8
"""So many other ranks are named; more are counted."""

PLACES = 10_000
"""So many are counted."""

Where = tuple[str, ...]
"""A rank, and where keys are folded a key."""


class ActiveAlert:
    """It fires from its first alarm until all ranks that have it say that it is over, or its time has come.

    Attributes:
        severities: What it has been since it began, the last is what it is.
        had: What has had it since it began, by the labels that are `folded`; the first is in its labels.
        lasting: What of that has it still, until it says otherwise: the alarm by which it said so.
        until: It does not resolve before, in Unix seconds.
        hold: Seconds that it fires at least, from when it was found last.
        ended: When it resolved; None while it fires.
        silenced: A silence has it, or had when it resolved.
        told: The history knows all of it.
        restored: It fired before this daemon.
    """

    def __init__(self, alarm: Finding, until: float, hold: float) -> None:
        self.alert = alarm.alert
        self.run = alarm.run
        self.labels = dict(alarm.labels)
        self.started = alarm.time
        self.severities: list[Severity] = [alarm.severity]
        self.summary, self.description = alarm.summary, alarm.description
        self.evidence = dict(alarm.evidence)
        self.had: dict[Where, None] = {where(alarm): None}
        self.lasting: dict[Where, Finding] = {}
        self.until = until
        self.hold = hold
        self.ended: float | None = None
        self.silenced = self.told = self.restored = False

    @property
    def severity(self) -> Severity:
        """What it is now."""
        return self.severities[-1]

    @property
    def fires(self) -> bool:
        """Whether it has not resolved."""
        return self.ended is None

    @property
    def worth(self) -> int:
        """How much it is worth its place in the book: what fires more than what has resolved, and the worse the more."""
        return SEVERITIES.index(self.severity) + 1 if self.fires else 0

    def renew(self, alarm: Finding, until: float) -> bool:
        """It was found, anew or of another rank. It gets worse, but not better: that is another.

        Returns:
            Whether it is worse.
        """
        place = where(alarm)
        if place not in self.had and len(self.had) < PLACES:
            self.had[place] = None
            self.told = False
        if alarm.once:
            self.until = max(self.until, until)
        else:
            self.lasting[place] = alarm
        worse = SEVERITIES.index(alarm.severity) > SEVERITIES.index(self.severity)
        if worse:
            self.severities.append(alarm.severity)
            self.summary, self.description = alarm.summary, alarm.description
            self.evidence |= alarm.evidence
            self.told = False
        return worse

    def is_due(self, now: float) -> bool:
        """Whether it fires for nothing any more. After a clock was set back it fires for no longer than it would have."""
        self.until = min(self.until, now + self.hold)
        return self.fires and not self.lasting and now >= self.until

    def record(self) -> Alert:
        """As the history keeps it."""
        return Alert(
            *(self.alert, self.severity, self.started, self.run, self.labels),
            *(self.summary + self._others(), self.description, self.ended, self.evidence, self.silenced),
        )

    def _others(self) -> str:
        columns = list(zip(*self.had, strict=True))
        ranks, keys = (list(dict.fromkeys(column))[1:] for column in (columns[0], columns[-1]))
        said = [f"of {_listed(keys)}"] if keys and len(columns) > 1 else []
        if ranks:
            said.append(
                f"on rank {ranks[0]}" if len(ranks) == 1 else f"on {len(ranks):,} other ranks: {_listed(ranks)}"
            )
        return OTHERS + " and ".join(said) if said else ""


def where(alarm: Finding) -> Where:
    """What of it is folded: its rank and the like; empty where it has none."""
    labels = dict(alarm.labels)
    return tuple(labels.get(name, "") for name in folded(alarm.alert))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:NAMED]) + (", …" if len(names) > NAMED else "")


def restored(kept: Alert, until: float, hold: float) -> ActiveAlert:
    """One that fired when a daemon before this one ended; *kept* is what the history has of it."""
    entry = ActiveAlert(alarm_of(kept), until, hold)
    entry.silenced = kept.silenced
    entry.told = entry.restored = True
    return entry


def alarm_of(kept: Alert) -> Finding:
    """By what an alert of the history would have begun."""
    severity: Severity = next((one for one in SEVERITIES if one == kept.severity), "warning")
    labels = tuple(sorted(kept.labels.items()))
    said = kept.summary.partition(OTHERS)[0], kept.description
    return Finding(kept.alert, severity, labels, kept.started, *said, run=kept.run, evidence=kept.evidence)
