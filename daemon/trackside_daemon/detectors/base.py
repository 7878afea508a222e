"""The interface of the detectors of pushed samples.

A detector follows one key of one rank. It gets the key's samples in order, many at once or one by one, with the same result:
a detection at a sample depends only on that sample and those before it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol, runtime_checkable

from trackside.wire import Identity
from trackside_daemon.model.finding import SEVERITIES, Severity
from trackside_daemon.model.text import number

HUGE = 1e300  # larger numbers count as infinite: the sum of two could overflow
RAISED_LATELY = 200  # steps during which a raised learning rate may be the cause of trouble

Layers = dict[str, dict[str, float]]
"""Columns by layer, as `trackside.wire.DistributionFrame` has them."""

State = Literal["firing", "repeated", "resolved"]


class Column(NamedTuple):
    """Samples of one key, in the order in which they were pushed."""

    steps: Sequence[int]  # of the training, which may fall after a restart from a checkpoint
    times: Sequence[float]  # Unix seconds
    values: Sequence[float]  # as pushed, including NaN and infinities


class PastLayers(NamedTuple):
    """The values of a rank's layers at one step, as `LayerDetectors.evaluate` gets them."""

    kind: str
    step: int
    layers: Layers


class Past(NamedTuple):
    """The last stored samples of one rank of an attempt that has not ended, from which new detectors continue."""

    identity: Identity  # the run's id and exported name, the attempt, the rank and the number of ranks
    columns: Sequence[Mapping[str, Column]]  # the samples by key; each mapping has the keys that were pushed together
    pushes: Sequence[tuple[float, int]]  # time, in Unix seconds, and step of each push, in order of time
    roles: Mapping[str, str] = {}  # of keys, as the run states them
    layers: Sequence[PastLayers] = ()  # the last measurements of the rank's layers, in order of time
    total_steps: int | None = None  # the steps that the run is to make; None if it does not state them


class Detection(NamedTuple):
    """A problem that a detector has found, or the end of one.

    Attributes:
        alert: The alert's name, such as ``LossSpike``.
        severity: How severe it is.
        at: The index, in the column, of the sample at which it appears.
        text: What is wrong, how much and since when, in one sentence with numbers; the caller adds run, rank and key.
        over: The problem is over; the next detection is a new problem.
        evidence: Numbers that the search for causes needs; see `slower`.
        accepted: Of an end: the problem stays, and counts as normal from now on.
    """

    alert: str
    severity: Severity
    at: int
    text: str
    over: bool = False
    evidence: Mapping[str, float] = {}
    accepted: bool = False


class Test(NamedTuple):
    """A number that a detector compares with one that it must exceed."""

    what: str
    value: float
    needed: float


class Found(NamedTuple):
    """A detection and its key, which is the name of a layer for the detectors of layers."""

    key: str
    finding: Detection


def slower(value: float, usual: float, since: float) -> dict[str, float]:
    """Return the evidence of slower steps: seconds of a step now and usually, and the Unix time at which they began."""
    return {"value": value, "usual": usual, "since": since}


@dataclass(slots=True)
class SlowSteps:
    """The slow steps of a rank that no schedule explains, reported or not.

    Attributes:
        count: How many there were.
        seconds: The seconds that they lost.
    """

    count: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class Context:
    """Facts about a rank other than the samples of the detector's key. The caller of the detectors maintains it.

    Attributes:
        phase: The innermost phase that the rank is in; empty outside. It is set only while the training pushes its step
            durations itself: durations that the daemon derives exclude pauses already.
        derived: Step durations are derived from the times of the pushes.
        learning_rate: The last finite learning rate; None before the first.
        rates: Learning rates by step, of the samples that were pushed together with the column, and of some before.
        rates_raised: Recent steps at which the learning rate rose by more than a tenth at once.
        losses: Losses of the whole model by step, of the samples that were pushed together with the column, and of some before.
        gradients: The norm of the gradients divided by its recent median, by step, of the samples that were pushed together
            with the column, and of some before.
        restarts: Steps of the losses of the key at hand that seem to be of a new model, and whether that is sure, or the training
            went back.
        slow: The slow steps so far, which `SlowStep` counts.
        lost: Least seconds that slow steps lose.
        total_steps: The steps that the run is to make; None if it does not state them.
    """

    phase: str = ""
    derived: bool = False
    learning_rate: float | None = None
    rates: dict[int, float] = field(default_factory=dict)
    rates_raised: list[int] = field(default_factory=list)
    losses: dict[int, float] = field(default_factory=dict)
    gradients: dict[int, float] = field(default_factory=dict)
    restarts: dict[int, bool] = field(default_factory=dict)
    slow: SlowSteps = field(default_factory=SlowSteps)
    lost: float = 0.0
    total_steps: int | None = None

    def rate_at(self, step: int) -> float | None:
        """Return the learning rate at a recent step; None before the first."""
        return next((rate for since, rate in reversed(self.rates.items()) if since <= step), None)

    def rate_raised(self, step: int) -> str:
        """Return a clause about a raise of the learning rate shortly before *step*; empty when there was none."""
        at = max((other for other in self.rates_raised if other <= step), default=None)
        if at is None or step - at > RAISED_LATELY:
            return ""
        return f"; the learning rate was raised at step {number(at)}"


class Detector(Protocol):
    """Detector of one key of one rank."""

    @property
    def alerts(self) -> tuple[str, ...]:
        """The alerts that it can detect."""

    def evaluate(self, column: Column, context: Context) -> Iterator[Detection]:
        """Yield the detections in the next samples."""


@runtime_checkable
class Explains(Protocol):
    """Detector that states what decides whether its alert fires."""

    def explain(self) -> Iterator[Test]:
        """Yield the tests of the last samples."""


@dataclass(slots=True)
class Streak:
    """Samples in a row that have something in common.

    Attributes:
        count: How many there are.
        since: The step of the first; without meaning while there is none.
    """

    count: int = 0
    since: int = 0

    def add(self, step: int) -> None:
        """Add the next sample."""
        if not self.count:
            self.since = step
        self.count += 1


class Episode:
    """An alert of a detector, which fires from a report of it to its end, again and again.

    Args:
        alert: Its name.
        back: Samples in a row without the trouble after which it is to end.

    Attributes:
        fires: It fires.
        severity: The severity that was reported last.
        seen: Samples since it began.
        calm: The last of them in a row that do not show the trouble.
    """

    __slots__ = ("_alert", "_back", "calm", "fires", "seen", "severity")

    def __init__(self, alert: str, back: int = 0) -> None:
        self._alert, self._back = alert, back
        self.fires = False
        self.severity: Severity = "info"
        self.seen = self.calm = 0

    def report(self, severity: Severity, at: int, text: str, evidence: Mapping[str, float] | None = None) -> Detection:
        """Return the detection with which it begins, or is reported again; see `Detection` for the arguments."""
        if not self.fires:
            self.fires, self.seen, self.calm = True, 0, 0
        self.severity = severity
        return Detection(self._alert, severity, at, text, evidence=evidence or {})

    def follow(self, *, calm: bool) -> bool:
        """Count a sample while it fires, which shows the trouble or is *calm*; return whether it is to end."""
        self.seen += 1
        self.calm = self.calm + 1 if calm else 0
        return calm and self.calm >= self._back

    def worsens(self, severity: Severity) -> bool:
        """Return whether a severity is higher than the one reported last."""
        return SEVERITIES.index(severity) > SEVERITIES.index(self.severity)

    def end(self, at: int, text: str, *, accepted: bool = False) -> Detection:
        """Return the detection with which it ends, as severe as it was."""
        self.fires = False
        return Detection(self._alert, self.severity, at, text, over=True, accepted=accepted)


class Firing:
    """The firing alerts of one rank: an alert of a key fires from its first detection until one ends it."""

    def __init__(self) -> None:
        self._severity: dict[tuple[str, str], Severity] = {}

    def apply(self, key: str, detection: Detection) -> tuple[State, Severity] | None:
        """Apply a detection for a key; return state and severity of its alert, which ends as severe as it was. None if nothing changes."""
        alert = (detection.alert, key)
        if detection.over:
            severity = self._severity.pop(alert, None)
            return severity and ("resolved", severity)
        state: State = "repeated" if alert in self._severity else "firing"
        self._severity[alert] = detection.severity
        return state, detection.severity

    def end(self) -> Iterator[tuple[str, str, Severity]]:
        """Resolve all alerts; return name, key and severity of each."""
        ended, self._severity = self._severity, {}
        return ((alert, key, severity) for (alert, key), severity in ended.items())

    def now(self) -> set[tuple[str, str]]:
        """Return name and key of each firing alert."""
        return set(self._severity)
