"""Propose thresholds with which alerts that a user has marked as false alarms would not have fired."""

from __future__ import annotations

from math import floor, log10
from typing import TYPE_CHECKING, NamedTuple

from trackside_daemon.detectors.what_if import decisions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trackside_daemon.detectors.settings import DetectorThresholds
    from trackside_daemon.detectors.what_if import Moment, Recording

SLACK = 60.0  # seconds by which a replayed alert may be earlier or later than the stored one


class Judged(NamedTuple):
    """A stored alert of a run.

    Attributes:
        id: Its id in the history.
        began: Unix seconds.
        ended: Unix seconds; infinite while it fires.
        false: A user has marked it as a false alarm.
    """

    id: int
    key: str
    rank: int
    began: float
    ended: float
    false: bool

    def has(self, moment: Moment) -> bool:
        """Return whether a report of a replay belongs to this alert."""
        change, time = moment
        near = self.began - SLACK <= time <= self.ended + SLACK
        return near and change.state != "resolved" and (change.key, change.rank) == (self.key, self.rank)


class Case(NamedTuple):
    """A run, and its stored alerts of one name."""

    name: str
    recording: Recording
    alerts: Sequence[Judged]

    def firing(self, alert: str, thresholds: DetectorThresholds) -> set[int]:
        """Return the ids of the stored alerts that fire in a replay."""
        moments = list(self.recording.moments(alert, thresholds))
        return {judged.id for judged in self.alerts if any(map(judged.has, moments))}


class Proposal(NamedTuple):
    """A changed threshold, and the ids of the stored alerts that fire in a replay without it and with it.

    Attributes:
        setting: Its name in the configuration; empty if no setting alone silences the false alarms.
        false: The ids of the false alarms among them.
    """

    alert: str
    setting: str
    value: float
    proposed: float
    before: frozenset[int]
    after: frozenset[int]
    false: frozenset[int]


def propose(alert: str, cases: Sequence[Case], thresholds: DetectorThresholds) -> Proposal:
    """Return the change of one threshold that silences all false alarms and the fewest other alerts."""
    false = frozenset(judged.id for case in cases for judged in case.alerts if judged.false)
    wrong = [case for case in cases if any(judged.false for judged in case.alerts)]

    def firing(other: DetectorThresholds, among: Sequence[Case] = cases) -> frozenset[int]:
        return frozenset(one for case in among for one in case.firing(alert, other))

    before = firing(thresholds)
    nothing = Proposal(alert, "", 0.0, 0.0, before, before, false)
    if not before & false:
        return nothing
    found = [nothing]
    for setting, value, turns in decisions(alert, thresholds, lambda other: bool(firing(other, wrong) & false)):
        if turns is not None:
            proposed = _rounded(turns, value)
            after = firing(thresholds.model_copy(update={setting.replace("-", "_"): proposed}))
            found.append(Proposal(alert, setting, value, proposed, before, after, false))
    # The decisions are in the order of their distance, and the first of equal ones is the result.
    return max(found, key=lambda one: (bool(one.setting), len(one.after - false)))


def _rounded(value: float, present: float) -> float:
    """Return a value with two digits, away from the present one."""
    unit = 10.0 ** (floor(log10(value)) - 1)
    count = value / unit
    return round((floor(count) + 1 if value > present else floor(count)) * unit, 12)
