"""Runs the detectors over what was pushed once: the same ones, one push after the other, as a daemon would have."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from trackside_daemon.detectors.base import Column
from trackside_daemon.detectors.firing import Firing
from trackside_daemon.detectors.rank_detectors import DEFAULTS, RankDetectors
from trackside_daemon.detectors.roles import role
from trackside_daemon.model.finding import SEVERITIES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from trackside_daemon.detectors.base import Detection
    from trackside_daemon.detectors.firing import State
    from trackside_daemon.detectors.settings import DetectorThresholds
    from trackside_daemon.model.finding import Severity


class Row(NamedTuple):
    """Values of one rank that were pushed together.

    Attributes:
        place: Where it is; None for what is counted key by key.
        time: Unix seconds.
        derived: It is a step's duration, derived from when steps were pushed.
    """

    place: int | None
    attempt: int
    rank: int
    step: int
    time: float
    phase: str
    values: Mapping[str, float]
    derived: bool = False


class Change(NamedTuple):
    """An alert fires, is found anew while it does, or does no more.

    Attributes:
        place: Of the row, or of the sample of its key where rows have none.
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
        """As it is told."""
        return {"index" if name == "place" else name: value for name, value in self._asdict().items()}


class Wanted(NamedTuple):
    """Which findings count.

    Attributes:
        alerts: Only these; empty for all.
        least: Not those that are less severe.
        off: Not these.
    """

    alerts: Collection[str] = ()
    least: Severity = "info"
    off: Collection[str] = ()

    def has(self, finding: Detection) -> bool:
        """Whether it does; what is over was severe enough if it fires."""
        severe = finding.over or SEVERITIES.index(finding.severity) >= SEVERITIES.index(self.least)
        return severe and (not self.alerts or finding.alert in self.alerts) and finding.alert not in self.off


class _Rank:
    """One rank of one attempt."""

    def __init__(self, attempt: int, thresholds: DetectorThresholds, lost: float) -> None:
        self.attempt = attempt
        self.detectors = RankDetectors(thresholds, lost=lost)
        self.firing = Firing()


class Replay:
    """The detectors of all ranks.

    Args:
        wanted: Which findings count.
        thresholds: Where they begin.
        lost: Seconds that a slow step loses at least.

    Attributes:
        samples: How many were looked at, by rank and key.
    """

    def __init__(
        self,
        wanted: Wanted = Wanted(),  # noqa: B008  it is frozen
        thresholds: DetectorThresholds = DEFAULTS,
        *,
        lost: float = 0.0,
    ) -> None:
        self.samples: Counter[tuple[int, str]] = Counter()
        self._wanted = wanted
        self._thresholds = thresholds
        self._lost = lost
        self._ranks: dict[int, _Rank] = {}

    def evaluate(self, row: Row) -> Iterator[Change]:
        """What the row changes; a new attempt begins anew, and nothing of the last fires any more."""
        rank = self._ranks.get(row.rank)
        if rank is None or rank.attempt != row.attempt:
            if rank is not None:
                yield from self._ended(row, rank)
            rank = self._ranks[row.rank] = _Rank(row.attempt, self._thresholds, self._lost)
        watched = {key: value for key, value in row.values.items() if role(key)}
        self.samples.update((row.rank, key) for key in watched)
        rank.detectors.context.phase, rank.detectors.context.derived = row.phase, row.derived
        steps, times = [row.step], [row.time]
        columns = {key: Column(steps, times, [value]) for key, value in watched.items()}
        for key, finding in rank.detectors.evaluate(columns):
            if not self._wanted.has(finding):
                continue
            severity = rank.firing.severity(key, finding) if finding.over else finding.severity
            state = rank.firing.apply(key, finding)
            if state is not None:
                place = self._place(row, key)
                yield Change(finding.alert, state, severity, key, row.rank, place, row.step, finding.text)

    def _ended(self, row: Row, rank: _Rank) -> Iterator[Change]:
        for alert, key, severity in rank.firing.end():
            said = f"attempt {row.attempt} begins"
            yield Change(alert, "resolved", severity, key, row.rank, self._place(row, key), row.step, said)

    def _place(self, row: Row, key: str) -> int:
        return self.samples[row.rank, key] - 1 if row.place is None else row.place
