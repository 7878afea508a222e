"""One alert a cause: what follows from something that fires already is not told too."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Literal, NamedTuple

from trackside_daemon.model.finding import SEVERITIES

if TYPE_CHECKING:
    from trackside_daemon.model.finding import Finding

AFTER_SECONDS = 120.0
"""So long after a cause its effects are not told: what is learnt of late has to forget it."""

SOON_SECONDS = 60.0
"""What falls silent later than that after a death has gone on without who died."""

REMEMBERED = 10_000
"""Causes of late; with more, the oldest are forgotten."""


class Cause(NamedTuple):
    """Alerts that say nothing new while another fires.

    Attributes:
        alert: The one that fires.
        effects: Those that are not told.
        within: Of the same rank of a run, or of any of its ranks.
        why: The reason.
        soon: Seconds after the cause in which an effect begins; what begins later has another cause.
    """

    alert: str
    effects: tuple[str, ...]
    within: Literal["rank", "run"]
    why: str
    soon: float = inf


CAUSES = (
    Cause(
        "NonFinite",
        ("LossSpike", "LossHardBatch", "LossDiverging", "LossRestart", "GradientExplosion"),
        "rank",
        "a loss that was NaN comes back from anywhere, and gradients with it",
    ),
    Cause(
        "LossDiverging",
        ("LossSpike", "LossHardBatch", "LossRestart"),
        "rank",
        "a loss that rises for long jumps as it does, and passes where it began",
    ),
    Cause(
        "LossSpike",
        ("LossHardBatch", "LossRestart"),
        "rank",
        "the samples of a spike are no batches by themselves, and one to where the loss began is no new model",
    ),
    Cause("ThroughputRegression", ("SlowStep",), "rank", "all steps are slow"),
    Cause("OomKilled", ("TrainingProcessDied",), "run", "the others of a run end without who was killed"),
    *(
        Cause(
            death,
            ("TrainingStalled", "RankSilent"),
            "run",
            "who is dead makes no steps and says nothing, and the others wait for it",
            SOON_SECONDS,
        )
        for death in ("OomKilled", "TrainingProcessDied")
    ),
)

_OF: dict[str, tuple[Cause, ...]] = {
    effect: tuple(cause for cause in CAUSES if effect in cause.effects)
    for effect in {effect for cause in CAUSES for effect in cause.effects}
}
_FOLDED = {"NonFinite": ("rank", "key")}
"""A loss that is NaN makes the gradients' norm NaN, and the loss of evaluation."""

_WITHIN = {cause.alert: cause.within for cause in CAUSES}


def order(alarm: Finding) -> tuple[float, int]:
    """Sorts alarms by time, the worst first."""
    return alarm.time, -SEVERITIES.index(alarm.severity)


def folded(alert: str) -> tuple[str, ...]:
    """The labels by which the same alert of a run is one: of several the first is named."""
    return _FOLDED.get(alert, ("rank",))


class _Known(NamedTuple):
    """A cause of late.

    Attributes:
        until: It explains until then, in Unix seconds; infinite while it fires.
        severity: Its index; it explains what is no worse.
        began: When it showed last.
    """

    until: float
    severity: int
    began: float


_UNKNOWN = _Known(-inf, 0, -inf)


class Causes:
    """What fires, or has fired of late, and may be the cause of more that is no worse.

    A gradient norm that is infinite for one step, as mixed precision has it, is information: it hides no warning.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, str], _Known] = {}

    def note(self, alarm: Finding, now: float) -> None:
        """Remember it if it is a cause."""
        within = _WITHIN.get(alarm.alert)
        if within is not None:
            key = (alarm.alert, alarm.run, _rank(alarm) if within == "rank" else "")
            before = self._known.pop(key, _UNKNOWN)
            severity = max(SEVERITIES.index(alarm.severity), before.severity if before.until >= now else 0)
            if alarm.over:
                self._known[key] = _Known(now + AFTER_SECONDS, severity, before.began)
            else:
                self._known[key] = _Known(now + AFTER_SECONDS if alarm.once else inf, severity, alarm.time)
            if len(self._known) > REMEMBERED:
                del self._known[next(iter(self._known))]

    def explains(self, alarm: Finding, now: float) -> bool:
        """Whether it follows from something that fires or did a moment ago."""
        severity = SEVERITIES.index(alarm.severity)
        for cause in _OF.get(alarm.alert, ()):
            key = (cause.alert, alarm.run, _rank(alarm) if cause.within == "rank" else "")
            known = self._known.get(key, _UNKNOWN)
            if known.until >= now and severity <= known.severity and _began(alarm) <= known.began + cause.soon:
                return True
        return False

    def ended(self, alert: str, run: str, now: float) -> None:
        """An alert of a run is over, whether or not those who said it have said so."""
        for key, known in self._known.items():
            if key[:2] == (alert, run):
                self._known[key] = known._replace(until=min(known.until, now + AFTER_SECONDS))

    def forget(self, now: float) -> None:
        """Those that are over for long, or would be so in what a clock that was set back has made the future."""
        for key, known in list(self._known.items()):
            if known.until < inf and not now <= known.until <= now + AFTER_SECONDS:
                del self._known[key]


def _rank(alarm: Finding) -> str:
    return dict(alarm.labels).get("rank", "")


def _began(alarm: Finding) -> float:
    """Since when it is so, in Unix seconds, which may be long before it is found."""
    since = alarm.evidence.get("since")
    return since if isinstance(since, (int, float)) else alarm.time
