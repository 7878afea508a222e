"""One alert of the book: since when it fires, of which ranks, and what the history and the page are told of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.alarm import SEVERITIES, Alarm
from trackside_daemon.record import Alert

if TYPE_CHECKING:
    from trackside_daemon.alarm import Severity

OTHERS = "; also on "
NAMED = 8
"""So many other ranks are named; more are counted."""


class Entry:
    """It fires from its first alarm until all ranks that have it say that it is over, or its time has come.

    Attributes:
        severities: What it has been since it began, the last is what it is.
        ranks: Those that have had it since it began, the first is in its labels; one that is empty stands for no rank.
        lasting: Those of them that have it still, until they say otherwise.
        until: It does not resolve before, in Unix seconds.
        ended: When it resolved; None while it fires.
        told: The history knows all of it.
    """

    def __init__(self, alarm: Alarm, until: float) -> None:
        self.alert = alarm.alert
        self.run = alarm.run
        self.labels = dict(alarm.labels)
        self.started = alarm.time
        self.severities: list[Severity] = [alarm.severity]
        self.summary, self.description = alarm.summary, alarm.description
        self.ranks: dict[str, None] = {rank_of(alarm): None}
        self.lasting: set[str] = set()
        self.until = until
        self.ended: float | None = None
        self.told = False

    @property
    def severity(self) -> Severity:
        """What it is now."""
        return self.severities[-1]

    @property
    def fires(self) -> bool:
        """Whether it has not resolved."""
        return self.ended is None

    def renew(self, alarm: Alarm, until: float) -> None:
        """It was found, anew or of another rank. It gets worse, but not better: that is another."""
        rank = rank_of(alarm)
        if rank not in self.ranks:
            self.ranks[rank] = None
            self.told = False
        if alarm.once:
            self.until = max(self.until, until)
        else:
            self.lasting.add(rank)
        if SEVERITIES.index(alarm.severity) > SEVERITIES.index(self.severity):
            self.severities.append(alarm.severity)
            self.summary, self.description = alarm.summary, alarm.description
            self.told = False

    def is_due(self, now: float) -> bool:
        """Whether it fires for nothing any more."""
        return self.fires and not self.lasting and now >= self.until

    def record(self) -> Alert:
        """As the history keeps it."""
        return Alert(
            *(self.alert, self.severity, self.started, self.run, self.labels),
            *(self.summary + self._others(), self.description, self.ended),
        )

    def _others(self) -> str:
        others = [rank for rank in self.ranks if rank][1:]
        if not others:
            return ""
        named = ", ".join(others[:NAMED]) + (", …" if len(others) > NAMED else "")
        return f"{OTHERS}rank {named}" if len(others) == 1 else f"{OTHERS}{len(others):,} other ranks: {named}"


def rank_of(alarm: Alarm) -> str:
    """The rank that it is about; empty for none."""
    return dict(alarm.labels).get("rank", "")


def restored(kept: Alert, until: float) -> Entry:
    """One that fired when a daemon before this one ended; *kept* is what the history has of it."""
    severity: Severity = next((one for one in SEVERITIES if one == kept.severity), "warning")
    labels = tuple(sorted(kept.labels.items()))
    alarm = Alarm(
        kept.alert, severity, labels, kept.started, kept.summary.partition(OTHERS)[0], kept.description, run=kept.run
    )
    entry = Entry(alarm, until)
    entry.told = True
    return entry
