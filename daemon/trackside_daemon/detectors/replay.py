"""Runs the detectors over samples that were pushed before, push by push, as a daemon would have."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from trackside_daemon.detectors.base import Column, Detection, Firing, State, Test
from trackside_daemon.detectors.key_roles import BY_NAME, KeyRoles
from trackside_daemon.detectors.rank_detectors import RankDetectors
from trackside_daemon.detectors.settings import DEFAULTS, DetectorThresholds
from trackside_daemon.model.finding import SEVERITIES, Severity


class PushedRow(NamedTuple):
    """Values of one rank that were pushed together.

    Attributes:
        place: Where the row is in the input; None for an input that counts key by key.
        time: Unix seconds.
        phase: The innermost phase; empty outside.
        derived: The row is a step duration, derived from the times of pushes.
    """

    place: int | None
    attempt: int
    rank: int
    step: int
    time: float
    phase: str
    values: Mapping[str, float]
    derived: bool = False


class AlertChange(NamedTuple):
    """An alert begins to fire, is detected again while it fires, or is resolved.

    Attributes:
        place: The place of the row; for rows without one, the index of the sample among those of its key.
    """

    alert: str
    state: State
    severity: Severity
    key: str
    rank: int
    place: int
    step: int
    message: str

    def fields(self) -> dict[str, str | int]:
        """Return the fields for the output; the place is called ``index`` there."""
        return {"index" if name == "place" else name: value for name, value in self._asdict().items()}


class Wanted(NamedTuple):
    """The detections that count.

    Attributes:
        alerts: Only these alerts count; empty for all.
        least: The least severity that counts.
        off: These alerts do not count.
    """

    alerts: Collection[str] = ()
    least: Severity = "info"
    off: Collection[str] = ()

    def has(self, detection: Detection) -> bool:
        """Return whether a detection counts; an end counts whatever its severity."""
        severe = detection.over or SEVERITIES.index(detection.severity) >= SEVERITIES.index(self.least)
        return severe and (not self.alerts or detection.alert in self.alerts) and detection.alert not in self.off


class _ReplayedRank(NamedTuple):
    """One rank of one attempt."""

    attempt: int
    detectors: RankDetectors
    firing: Firing


class Replay:
    """The detectors of all ranks.

    Args:
        wanted: The detections that count.
        thresholds: Where detections begin.
        lost: Least seconds that a slow step loses.
        roles: The roles of the keys.

    Attributes:
        samples: The number of evaluated samples by rank and key.
    """

    def __init__(
        self,
        wanted: Wanted = Wanted(),  # noqa: B008  it is frozen
        thresholds: DetectorThresholds = DEFAULTS,
        *,
        lost: float = 0.0,
        roles: KeyRoles = BY_NAME,
    ) -> None:
        self.samples: Counter[tuple[int, str]] = Counter()
        self._wanted = wanted
        self._thresholds = thresholds
        self._lost = lost
        self._roles = roles
        self._ranks: dict[int, _ReplayedRank] = {}

    def evaluate(self, row: PushedRow) -> Iterator[AlertChange]:
        """Yield what the row changes; a new attempt resolves the alerts of the previous one."""
        rank = self._ranks.get(row.rank)
        if rank is None or rank.attempt != row.attempt:
            if rank is not None:
                yield from self._ended(row, rank)
            detectors = RankDetectors(self._thresholds, lost=self._lost, roles=self._roles)
            rank = self._ranks[row.rank] = _ReplayedRank(row.attempt, detectors, Firing())
        watched = {key: value for key, value in row.values.items() if self._roles.of(key)}
        self.samples.update((row.rank, key) for key in watched)
        rank.detectors.context.phase = row.phase
        rank.detectors.context.derived = row.derived
        steps, times = [row.step], [row.time]
        columns = {key: Column(steps, times, [value]) for key, value in watched.items()}
        for key, detection in rank.detectors.evaluate(columns):
            if not self._wanted.has(detection):
                continue
            if (applied := rank.firing.apply(key, detection)) is not None:
                place = self._place(row, key)
                yield AlertChange(detection.alert, *applied, key, row.rank, place, row.step, detection.text)

    def readings(self) -> Iterator[tuple[int, str, str]]:
        """Yield rank, key and reason of each loss that is read as an objective."""
        for number, rank in sorted(self._ranks.items()):
            for key, reason in rank.detectors.readings.items():
                yield number, key, reason

    def tests(self, alert: str) -> Iterator[tuple[str, Test]]:
        """Yield key and test of what decided at the last rows whether an alert fires."""
        for rank in self._ranks.values():
            yield from rank.detectors.tests(alert)

    def _ended(self, row: PushedRow, rank: _ReplayedRank) -> Iterator[AlertChange]:
        for alert, key, severity in rank.firing.end():
            message = f"attempt {row.attempt} begins"
            yield AlertChange(alert, "resolved", severity, key, row.rank, self._place(row, key), row.step, message)

    def _place(self, row: PushedRow, key: str) -> int:
        return self.samples[row.rank, key] - 1 if row.place is None else row.place
