"""Inhibition: an active alert suppresses the alerts that are its consequences."""

from math import inf
from typing import Literal, NamedTuple

from trackside_daemon.model.finding import SEVERITIES, Finding

# Seconds after its end for which an alert still inhibits, until the detectors' recent windows have forgotten it.
AFTER_SECONDS = 120.0

# Seconds after a death within which a silence counts as its consequence; a rank that pushed for longer did not depend
# on it.
SOON_SECONDS = 60.0

MAX_REMEMBERED = 10_000  # most inhibiting alerts that are remembered; with more, the oldest are dropped


class InhibitionRule(NamedTuple):
    """One rule of inhibition."""

    source: str  # alert that inhibits
    targets: tuple[str, ...]  # alerts that it inhibits
    within: Literal["rank", "run"]  # scope: the same rank of a run, or any of its ranks
    reason: str  # why a target is a consequence of the source
    soon: float = inf  # seconds after the source within which a target must begin; a later one has another cause


INHIBITION_RULES = (
    InhibitionRule(
        "NonFinite",
        ("LossSpike", "LossHardBatch", "LossDiverging", "LossRestart", "GradientExplosion"),
        "rank",
        "a loss that was NaN can come back at any value, and the gradients with it",
    ),
    InhibitionRule(
        "LossDiverging",
        ("LossSpike", "LossHardBatch", "LossRestart"),
        "rank",
        "a loss that keeps rising jumps on the way, and passes its initial value",
    ),
    InhibitionRule(
        "LossSpike",
        ("LossHardBatch", "LossRestart"),
        "rank",
        "the samples of a spike are not single hard batches, and a spike up to the initial loss is not a new model",
    ),
    InhibitionRule("ThroughputRegression", ("SlowStep",), "rank", "all steps are slow"),
    InhibitionRule(
        "OomKilled", ("TrainingProcessDied",), "run", "the other ranks of a run end because one of them was killed"
    ),
    *(
        InhibitionRule(
            death,
            ("TrainingStalled", "RankSilent"),
            "run",
            "a dead rank makes no steps and pushes nothing, and the others wait for it",
            SOON_SECONDS,
        )
        for death in ("OomKilled", "TrainingProcessDied")
    ),
)

_RULES_BY_TARGET: dict[str, tuple[InhibitionRule, ...]] = {
    target: tuple(rule for rule in INHIBITION_RULES if target in rule.targets)
    for target in {target for rule in INHIBITION_RULES for target in rule.targets}
}
# A loss that is NaN makes the gradient norm and the evaluation loss NaN too, so they are one alert.
_MERGED_LABELS = {"NonFinite": ("rank", "key")}

_SCOPES = {rule.source: rule.within for rule in INHIBITION_RULES}


def evaluation_order(finding: Finding) -> tuple[float, int]:
    """Return a sort key: by time, the most severe first."""
    return finding.time, -SEVERITIES.index(finding.severity)


def merged_labels(alert: str) -> tuple[str, ...]:
    """Return the labels whose values one alert of a run merges; its own labels have the first values."""
    return _MERGED_LABELS.get(alert, ("rank",))


class _Source(NamedTuple):
    """Alert that inhibits others."""

    until: float  # Unix time until which it inhibits; infinite while it fires
    severity: int  # index of its severity; it inhibits only targets that are no more severe
    began: float  # Unix time of its latest finding
    attempt: int | None = None  # the attempt of that finding; None if unknown


_NO_SOURCE = _Source(-inf, 0, -inf)


class Inhibitions:
    """Alerts that fire, or fired recently, and inhibit others.

    A source does not inhibit a target that is more severe: a gradient norm that is infinite for one step, as in mixed
    precision, is an info and hides no warning. Nor does it inhibit one of a later attempt, which has another cause.
    """

    def __init__(self) -> None:
        self._sources: dict[tuple[str, str, str], _Source] = {}

    def register(self, finding: Finding, now: float) -> None:
        """Remember a finding if its alert inhibits others."""
        scope = _SCOPES.get(finding.alert)
        if scope is None:
            return
        key = (finding.alert, finding.run, _rank(finding) if scope == "rank" else "")
        # Removed and inserted again, so that the oldest source is the first of the dict.
        before = self._sources.pop(key, _NO_SOURCE)
        # A source that is still active keeps its highest severity.
        severity = max(SEVERITIES.index(finding.severity), before.severity if before.until >= now else 0)
        if finding.over:
            self._sources[key] = before._replace(until=now + AFTER_SECONDS, severity=severity)
        else:
            until = now + AFTER_SECONDS if finding.once else inf
            self._sources[key] = _Source(until, severity, finding.time, finding.attempt)
        if len(self._sources) > MAX_REMEMBERED:
            del self._sources[next(iter(self._sources))]

    def inhibits(self, finding: Finding, now: float) -> bool:
        """Return True if a finding is the consequence of an alert that fires or fired recently."""
        severity = SEVERITIES.index(finding.severity)
        for rule in _RULES_BY_TARGET.get(finding.alert, ()):
            key = (rule.source, finding.run, _rank(finding) if rule.within == "rank" else "")
            source = self._sources.get(key, _NO_SOURCE)
            later = None not in {source.attempt, finding.attempt} and finding.attempt != source.attempt
            soon = _began(finding) <= source.began + rule.soon
            if source.until >= now and severity <= source.severity and soon and not later:
                return True
        return False

    def end(self, alert: str, run: str, now: float) -> None:
        """Register that an alert of a run has ended, even if no finding has reported that."""
        for key, source in self._sources.items():
            if key[:2] == (alert, run):
                self._sources[key] = source._replace(until=min(source.until, now + AFTER_SECONDS))

    def expire(self, now: float) -> None:
        """Drop the sources that ended long ago, or that end in the future because a clock was set back."""
        for key, source in list(self._sources.items()):
            if source.until < inf and not now <= source.until <= now + AFTER_SECONDS:
                del self._sources[key]


def _rank(finding: Finding) -> str:
    return dict(finding.labels).get("rank", "")


def _began(finding: Finding) -> float:
    """Return the Unix time at which the problem began, which may be long before it was found."""
    since = finding.evidence.get("since")
    return since if isinstance(since, (int, float)) else finding.time
