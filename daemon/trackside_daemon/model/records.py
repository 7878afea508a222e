"""Records of what happened: a `Batch` carries them to the history and the detectors, as it carries samples to the state.

Times are Unix seconds.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from trackside_daemon.model.capture import Capture
from trackside_daemon.model.checkpoint import Checkpoint
from trackside_daemon.model.finding import Finding, severity_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trackside.wire import DistributionFrame, Hello, Histogram, MediaItem, TensorHash
    from trackside_daemon.model.columns import Columns
    from trackside_daemon.model.session import Owner, SessionRef

T = TypeVar("T")

# The final states of a rank, an attempt or a run. A run ends in the first of these that one of its ranks ended in.
ENDS = ("failed", "lost", "stopped", "finished")

ENDED = frozenset(ENDS)

# The kind of event that a training raises with `run.alert`; its fields are `title`, `severity` and `text`.
USER_ALERT = "user_alert"

# The kind of the event with the verdict on a resumed attempt; its fields are those of `checkpoints.resumes`.
CONTINUITY = "continuity"

# The kind of the event with what a user notes at a moment of a run; its field is the text.
ANNOTATION = "annotation"

# The kind of the event with the modules of a watched model: `trackside.pytorch.parameters`.
MODEL = "model"

# For which the clock of another machine may be ahead.
AHEAD_SECONDS = 86400.0


class Account(NamedTuple):
    """Time and work of a rank in one attempt that only the daemon measures."""

    restart: float = 0.0  # seconds from the end of the previous attempt to the first step beyond it
    stall: float = 0.0  # seconds that the rank was stalled
    caught: bool = False  # the rank has made that first step, so that ``restart`` is final
    flops: float | None = None  # floating-point operations of the model, as the client counts them
    peak: float | None = None  # peak FLOP/s of the rank's GPUs
    first_wait: float = 0.0  # seconds that it waited for the first batches of epochs
    saves: int = 0  # number of its checkpoints
    saved_at: float | None = None  # when it wrote the last one, in Unix seconds


class EarlierAttempts(NamedTuple):
    """A run before one of its attempts."""

    lost: Mapping[int, Mapping[str, float]] = {}  # lost seconds by rank and cause
    step: int | None = None  # the highest step; None before the first
    ended: float | None = None  # when the last attempt ended, in Unix seconds; None if there was none
    # The stored accounts of the attempt itself, by rank, if an earlier daemon followed it.
    kept: Mapping[int, Account] = {}


@dataclass(frozen=True, slots=True)
class AccountUpdated:
    """A rank's account, which replaces the stored one."""

    run: str
    attempt: int
    rank: int
    account: Account


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """A client session belongs to an attempt of a run from now on."""

    session: SessionRef  # the session; its name and attempt are the run's as this daemon exports them
    hello: Hello  # the client's hello, with run, attempt and rank within the limits
    time: float  # when the hello arrived
    offset: float = 0.0  # seconds by which this machine's clock is ahead of the client's
    # Facts about process and machine of an imported run; None to derive them from the hello.
    about: Mapping[str, Any] | None = None
    again: bool = False  # the session was opened before; something in its hello has changed
    owner: Owner | None = None  # who owns the run; None for an imported one, which is the daemon's user's
    same_clock: bool = False  # the process has this machine's clocks, so that *offset* has no error


@dataclass(frozen=True, slots=True)
class BatchIngested:
    """A numbered message of a session was accepted, with its rows; a bye and a skip have none."""

    session: SessionRef
    number: int  # the message's number; 0 for rows that the daemon derived from the messages of several ranks
    columns: Sequence[Columns] = ()  # the rows, decoded
    shift: int = 0  # nanoseconds from the client's monotonic clock to Unix time
    phases: Mapping[str, float] = field(default_factory=dict)  # seconds that the session has spent in each phase so far
    # Seconds of evaluation and checkpoints, outside the steps, since the session's previous message.
    paused: float = 0.0
    late: bool = False  # the rows are a minute old or more, so that they raise no notification
    distributions: Sequence[DistributionFrame] = ()  # distributions of layers, checked
    media: Sequence[MediaItem] = ()  # images, texts and tables, not checked
    closed: int = 0  # when the message was closed, in nanoseconds of the client's monotonic clock
    # Durations of the session's steps so far, without evaluation and checkpoints; None before the first.
    durations: Histogram | None = None
    hashes: Sequence[TensorHash] = ()  # hashes of parts of the model, checked


@dataclass(frozen=True, slots=True)
class RunState:
    """The state of an attempt of a run."""

    run: str
    attempt: int
    state: str
    cause: str = ""
    ended: float | None = None  # when it ended; None while it is alive
    # Only one rank has reported this, after its process was gone. The attempt ends with its last rank.
    late: bool = False


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened at one moment; *rank* is None for an event of the whole run."""

    run: str
    attempt: int
    time: float
    kind: str
    rank: int | None = None
    step: int | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    size: int = field(default=0, compare=False)  # characters of the fields as a client sent them


class Notified(NamedTuple):
    """The last notification about an alert."""

    severity: str  # the severity that was sent
    summary: str  # the summary that was sent
    over: bool = False  # the notification was that the alert is resolved


# Findings about the life cycle of a run. Sinks send them like alerts, but the run's events have them, not the alerts.
LIFE_CYCLE = frozenset({"RunStarted", "RunRestarted", "RunFinished"})


# Alerts about ranks that make no steps, for which the daemon finds out where they wait.
STALLS = frozenset({"TrainingStalled", "RankSilent"})

# Alerts that the samples of a batch can cause, so that the ranks are asked for them: their evidence has the step.
OF_BATCHES = frozenset({"NonFinite", "LossSpike", "LossHardBatch", "GradientExplosion", "LossDiverging"})
STEP = "step"  # name of the evidence with the step at which such an alert began
CRITICAL = "critical"  # name of the evidence that an alert is critical, though its run may not page
CALM = "calm_seconds"  # name of the evidence with the seconds in which the trouble was over before it came again


AlertKey = tuple[str, str, tuple[tuple[str, str], ...], float]


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert that fires or has ended. A record with the same name, labels and start replaces the earlier one."""

    alert: str
    severity: str
    started: float
    run: str = ""  # the id of the run; empty for an alert about the machine
    labels: Mapping[str, str] = field(default_factory=dict)
    summary: str = ""
    description: str = ""
    ended: float | None = None  # when it ended; None while it fires
    # Facts that help to understand it, as JSON values; an `AlertNote` adds later ones.
    evidence: Mapping[str, Any] = field(default_factory=dict)
    silenced: bool = False  # a silence matches it, so that no notification is sent. The history does not store this
    # The last notification of each sink, from the history; sinks that sent none are absent.
    notified: Mapping[str, Notified] = field(default_factory=dict)

    @property
    def key(self) -> AlertKey:
        """The fields that identify it, in the history too."""
        return self.alert, self.run, tuple(sorted(self.labels.items())), self.started

    def as_finding(self, time: float) -> Finding:
        """Return the finding with which it goes on at this time, in Unix seconds."""
        labels, texts = tuple(sorted(self.labels.items())), (self.summary, self.description)
        return Finding(self.alert, severity_of(self.severity), labels, time, *texts, run=self.run)

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that identify the alert from its begin on, also before the history has a number for it."""
        return fingerprint(self.alert, self.run, self.labels, self.started)


def is_critical(alert: Mapping[str, Any]) -> bool:
    """Return whether the trouble of an alert, as the API has it, is critical, whomever it notifies."""
    return alert["severity"] == CRITICAL or bool(alert["evidence"].get(CRITICAL))


def fingerprint(alert: str, run: str, labels: Mapping[str, str], started: float) -> str:
    """Return `Alert.fingerprint`."""
    text = json.dumps([alert, run, sorted(labels.items()), started])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class AlertNote:
    """An addition to an alert; the first four fields identify it.

    Attributes:
        evidence: Added to the alert's evidence; entries of the same name are replaced.
        notified: New notifications by sink; those of other sinks stay.
    """

    alert: str
    started: float
    run: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    evidence: Mapping[str, Any] = field(default_factory=dict)
    notified: Mapping[str, Notified] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Silence:
    """Matching alerts send no notifications for a while. A record with the same id replaces the silence."""

    id: str  # eight hexadecimal digits
    # Patterns with ``*`` and ``?`` by label name; all must match. ``alert`` is the alert's name and ``run`` the run's
    # name.
    labels: Mapping[str, str]
    started: float
    until: float  # when it ends, in Unix seconds; for a silence that was ended early, the time of that
    comment: str = ""  # the reason that the user gave


@dataclass(frozen=True, slots=True)
class MachineSample:
    """GPU and host at one moment: the value of each series, whose name is written as on /metrics."""

    time: float
    values: Mapping[str, float]
    run: str = ""  # the id of the imported run that it came with; empty for this machine


Record = (
    SessionOpened
    | BatchIngested
    | RunState
    | Event
    | Alert
    | AlertNote
    | Silence
    | MachineSample
    | AccountUpdated
    | Capture
    | Checkpoint
)
