"""One alert a cause: what follows from something that fires already is not told too."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Literal, NamedTuple

from trackside_daemon.alarm import SEVERITIES

if TYPE_CHECKING:
    from trackside_daemon.alarm import Alarm

AFTER_SECONDS = 120.0
"""So long after a cause its effects are not told: what is learnt of late has to forget it."""

REMEMBERED = 10_000
"""Causes of late; with more, the oldest are forgotten."""


class Cause(NamedTuple):
    """Alerts that say nothing new while another fires.

    Attributes:
        alert: The one that fires.
        effects: Those that are not told.
        within: Of the same rank of a run, or of any of its ranks.
        why: The reason.
    """

    alert: str
    effects: tuple[str, ...]
    within: Literal["rank", "run"]
    why: str


CAUSES = (
    Cause(
        "NonFinite",
        ("LossSpike", "LossHardBatch", "LossDiverging", "GradientExplosion"),
        "rank",
        "a loss that was NaN comes back from anywhere, and gradients with it",
    ),
    Cause("LossDiverging", ("LossSpike", "LossHardBatch"), "rank", "a loss that rises for long jumps as it does"),
    Cause("LossSpike", ("LossHardBatch",), "rank", "the samples of a spike are no batches by themselves"),
    Cause("ThroughputRegression", ("SlowStep",), "rank", "all steps are slow"),
    Cause(
        "OomKilled",
        ("TrainingProcessDied", "TrainingStalled", "RankSilent"),
        "run",
        "the others of a run end, or wait without end, for who was killed",
    ),
    Cause(
        "TrainingProcessDied", ("TrainingStalled", "RankSilent"), "run", "who is dead makes no steps and says nothing"
    ),
)

_OF: dict[str, tuple[Cause, ...]] = {
    effect: tuple(cause for cause in CAUSES if effect in cause.effects)
    for effect in {effect for cause in CAUSES for effect in cause.effects}
}
_FOLDED = {"NonFinite": ("rank", "key")}
"""A loss that is NaN makes the gradients' norm NaN, and the loss of evaluation."""

_WITHIN = {cause.alert: cause.within for cause in CAUSES}


def precedence(alarm: Alarm) -> tuple[float, int, int]:
    """Sorts alarms by time, causes before what follows from them, and the worst first."""
    names = list(_WITHIN)
    order = names.index(alarm.alert) if alarm.alert in _WITHIN else len(names)
    return alarm.time, order, -SEVERITIES.index(alarm.severity)


def folded(alert: str) -> tuple[str, ...]:
    """The labels by which the same alert of a run is one: of several the first is named."""
    return _FOLDED.get(alert, ("rank",))


class Causes:
    """What fires, or has fired of late, and may be the cause of more."""

    def __init__(self) -> None:
        self._until: dict[tuple[str, str, str], float] = {}

    def note(self, alarm: Alarm, now: float) -> None:
        """Remember it if it is a cause."""
        within = _WITHIN.get(alarm.alert)
        if within is not None:
            key = (alarm.alert, alarm.run, _rank(alarm) if within == "rank" else "")
            lasts = not (alarm.over or alarm.once)
            self._until.pop(key, None)
            self._until[key] = inf if lasts else now + AFTER_SECONDS
            if len(self._until) > REMEMBERED:
                del self._until[next(iter(self._until))]

    def explains(self, alarm: Alarm, now: float) -> bool:
        """Whether it follows from something that fires or did a moment ago."""
        return any(
            self._until.get((cause.alert, alarm.run, _rank(alarm) if cause.within == "rank" else ""), -inf) >= now
            for cause in _OF.get(alarm.alert, ())
        )

    def ended(self, alert: str, run: str, now: float) -> None:
        """An alert of a run is over, whether or not those who said it have said so."""
        for key, until in self._until.items():
            if key[:2] == (alert, run):
                self._until[key] = min(until, now + AFTER_SECONDS)

    def forget(self, now: float) -> None:
        """Those that are over for long."""
        for key in [key for key, until in self._until.items() if until < now]:
            del self._until[key]


def _rank(alarm: Alarm) -> str:
    return dict(alarm.labels).get("rank", "")
