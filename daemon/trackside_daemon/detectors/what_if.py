"""Replays of recorded pushes with other thresholds.

They tell which setting decides whether an alert fires and how nearly, and with which one those alerts had not fired that a user has
marked as false alarms.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from math import floor, inf, isinf, log10, sqrt
from typing import NamedTuple

from trackside_daemon.detectors.key_roles import BY_NAME, KeyRoles
from trackside_daemon.detectors.replay import AlertChange, PushedRow, Replay, Wanted
from trackside_daemon.detectors.settings import DEFAULTS, DetectorThresholds

EXTREME = 1000.0  # factor by which a threshold is changed at most
EXACT = 1.03  # ratio of two thresholds that count as equal

SLACK = 60.0  # seconds by which a replayed alert may be earlier or later than the stored one

# Settings that decide how severe an alert is, not whether it fires.
SEVERITY = frozenset({"critical_after"})


class TimedChange(NamedTuple):
    """A change of an alert, and the Unix time of its row."""

    change: AlertChange
    time: float


class Decision(NamedTuple):
    """A setting of an alert.

    Attributes:
        name: Its name in the configuration, such as ``loss-spike-scales``.
        value: The present value.
        turns: The nearest value found at which the outcome is the other one; None if no value changes it.
    """

    name: str
    value: float
    turns: float | None

    @property
    def factor(self) -> float:
        """The ratio of the two values; infinite if no value changes the outcome."""
        return _ratio(self.turns, self.value) if self.turns else inf


def settings_of(alert: str) -> list[str]:
    """Return the thresholds that decide whether an alert fires, by their field names."""
    fields = DetectorThresholds.model_fields.items()
    named = ((name, (field.description or "").partition(":")[0]) for name, field in fields)
    return [name for name, alerts in named if alert in alerts.split(", ") and name not in SEVERITY]


class RecordedPushes:
    """Recorded pushes for many replays, without the keys that have no detector.

    Args:
        rows: The pushes, oldest first.
        lost: Minimum number of seconds that slow steps lose.
        ranks: The ranks to keep; empty for all.
        roles: The roles of the keys.
    """

    def __init__(
        self, rows: Iterable[PushedRow], *, lost: float = 0.0, ranks: Collection[int] = (), roles: KeyRoles = BY_NAME
    ) -> None:
        watched = (row._replace(values=_watched(row, roles)) for row in rows if not ranks or row.rank in ranks)
        self._rows = [row for row in watched if row.values]
        self._lost = lost
        self._roles = roles

    def until(self, step: int, rank: int) -> RecordedPushes:
        """Return the rows of a rank up to the last one of a step."""
        own = [row for row in self._rows if row.rank == rank]
        end = max((at for at, row in enumerate(own) if row.step == step), default=-1)
        return RecordedPushes(own[: end + 1], lost=self._lost, roles=self._roles)

    def last(self, key: str, count: int) -> list[tuple[int, float]]:
        """Return step and value of the last samples of a key."""
        return [(row.step, row.values[key]) for row in self._rows if key in row.values][-count:]

    def steps(self, rank: int) -> list[int]:
        """Return the steps of a rank, in the order of their pushes."""
        return [row.step for row in self._rows if row.rank == rank]

    def moments(self, alert: str, thresholds: DetectorThresholds = DEFAULTS) -> Iterator[TimedChange]:
        """Yield the changes of an alert."""
        replay = Replay(Wanted({alert}), thresholds, lost=self._lost, roles=self._roles)
        for row in self._rows:
            for change in replay.evaluate(row):
                yield TimedChange(change, row.time)

    def replayed(self, thresholds: DetectorThresholds = DEFAULTS) -> Replay:
        """Return the detectors after all rows."""
        replay = Replay(thresholds=thresholds, lost=self._lost, roles=self._roles)
        for row in self._rows:
            for _ in replay.evaluate(row):
                pass
        return replay

    def firing(self, alert: str, thresholds: DetectorThresholds = DEFAULTS) -> AlertChange | None:
        """Return the last report of an alert that fires at the end of the rows; None if none does."""
        firing: dict[tuple[str, int], AlertChange] = {}
        for change, _ in self.moments(alert, thresholds):
            if change.state == "resolved":
                firing.pop((change.key, change.rank), None)
            else:
                firing[change.key, change.rank] = change
        return max(firing.values(), key=lambda change: change.place, default=None)


def decisions(
    alert: str, thresholds: DetectorThresholds, fires: Callable[[DetectorThresholds], bool]
) -> list[Decision]:
    """Return for each setting of an alert the value at which *fires* changes, the one that is nearest first."""
    found = [
        Decision(name.replace("_", "-"), getattr(thresholds, name), _turn(name, thresholds, fires))
        for name in settings_of(alert)
    ]
    return sorted(found, key=lambda decision: decision.factor)


def _turn(name: str, thresholds: DetectorThresholds, fires: Callable[[DetectorThresholds], bool]) -> float | None:
    """Return the nearest value of a setting at which the outcome is another one; the other settings stay."""
    value = getattr(thresholds, name)
    now = fires(thresholds)

    def turned(other: float) -> bool:
        return fires(thresholds.model_copy(update={name: other})) != now

    turns = [_nearest(value, end, turned) for end in _extremes(name, value) if turned(end)]
    return min(turns, key=lambda turn: _ratio(turn, value), default=None)


def _nearest(value: float, end: float, turned: Callable[[float], bool]) -> float:
    """Return about the nearest number to *value*, towards *end*, with another outcome."""
    near, far = value, end
    while _ratio(near, far) > EXACT:
        middle = sqrt(near * far)
        near, far = (near, middle) if turned(middle) else (middle, far)
    return far


def _extremes(name: str, value: float) -> list[float]:
    """Return the lowest and the highest value of a setting that are tried; none for a setting that is 0."""
    limits = {
        kind: getattr(one, kind)
        for one in DetectorThresholds.model_fields[name].metadata
        for kind in ("ge", "le")
        if hasattr(one, kind)
    }
    low = max(value / EXTREME, limits.get("ge", 0.0))
    high = min(value * EXTREME, limits.get("le", inf))
    return [end for end in (low, high) if end > 0 and end != value and not isinf(end)]


def _ratio(one: float, other: float) -> float:
    return max(one / other, other / one)


def _watched(row: PushedRow, roles: KeyRoles) -> dict[str, float]:
    return {key: value for key, value in row.values.items() if roles.of(key)}


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

    def has(self, moment: TimedChange) -> bool:
        """Return whether a report of a replay belongs to this alert."""
        change, time = moment
        near = self.began - SLACK <= time <= self.ended + SLACK
        return near and change.state != "resolved" and (change.key, change.rank) == (self.key, self.rank)


class StoredAlerts(NamedTuple):
    """A run, and its stored alerts of one name."""

    name: str
    recording: RecordedPushes
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


def propose(alert: str, cases: Sequence[StoredAlerts], thresholds: DetectorThresholds) -> Proposal:
    """Return the change of one threshold that silences all false alarms and the fewest other alerts."""
    false = frozenset(judged.id for case in cases for judged in case.alerts if judged.false)
    wrong = [case for case in cases if any(judged.false for judged in case.alerts)]

    def firing(other: DetectorThresholds, among: Sequence[StoredAlerts] = cases) -> frozenset[int]:
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
