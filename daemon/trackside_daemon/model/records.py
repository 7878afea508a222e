"""What the history is told: the daemon's words for what happened, beside `metric` for what is.

A `Batch` carries records to the history as it carries samples to the state. Times are Unix seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from trackside.totals.phases import EVALS, SAVES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trackside.wire import Block, Hello
T = TypeVar("T")

ENDS = ("failed", "lost", "stopped", "finished")
"""How a rank, an attempt or a run can have ended. Of several ranks the first of these is how their run has."""

ENDED = frozenset(ENDS)

USER_ALERT = "user_alert"
"""The kind of event that a training raises with ``run.alert``: its fields are ``title``, ``severity`` and ``text``."""

PHASES = 65
PHASE_BYTES = 512
"""A client tells no more phases, nor longer names."""


def bounded(told: Mapping[str, T]) -> dict[str, T]:
    """Those of what a session tells by phase or by device that a client can tell."""
    return dict(islice((one for one in told.items() if len(one[0].encode()) <= PHASE_BYTES), PHASES))


LOST_PHASES = {"data": frozenset(("data",)), "checkpoint": SAVES, "eval": EVALS}
"""Phases whose time trains nothing, by the cause that it is lost to."""


def lost_in(phases: Mapping[str, float]) -> dict[str, float]:
    """Seconds by cause, of those causes that any of these phases is of."""
    found: dict[str, float] = {}
    for cause, names in LOST_PHASES.items():
        if not names.isdisjoint(phases):
            found[cause] = sum(phases.get(name, 0.0) for name in names)
    return found


class Account(NamedTuple):
    """What of a rank's time and work only the daemon knows, of one attempt.

    Attributes:
        restart: Seconds from the end of the attempt before to the first step beyond; ``caught`` once that was made.
        stall: Seconds that it stood still.
        flops: Floating-point operations of the model, as its client has told.
        peak: FLOP/s that its GPUs can do at most.
    """

    restart: float = 0.0
    stall: float = 0.0
    caught: bool = False
    flops: float | None = None
    peak: float | None = None


class EarlierAttempts(NamedTuple):
    """What is known of a run before an attempt.

    Attributes:
        lost: Seconds by rank and cause.
        step: The highest; None when none was made.
        ended: When the last attempt ended, in Unix seconds; None when there was none.
        kept: What was kept of this attempt itself, by rank.
    """

    lost: Mapping[int, Mapping[str, float]] = {}
    step: int | None = None
    ended: float | None = None
    kept: Mapping[int, Account] = {}


@dataclass(frozen=True, slots=True)
class AccountUpdated:
    """A rank's account is to be kept in the place of what was kept of it before."""

    run: str
    attempt: int
    rank: int
    account: Account


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """A client session belongs to an attempt of a run from now on.

    Attributes:
        name: The run's, as it is exported.
        attempt: As this daemon counts; a resumed run's goes on.
        offset: Seconds by which this machine's clock is ahead of the client's.
        about: What is kept of the process and its machine, of a run that was imported; None to make it of the hello.
    """

    session: bytes
    hello: Hello
    name: str
    attempt: int
    time: float
    offset: float = 0.0
    about: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class BatchIngested:
    """A numbered message of a session was taken, with the steps that it brought; a bye and a skip bring none.

    Attributes:
        number: The message's; 0 for steps that no message of its own has brought, since they follow from others'.
        shift: Nanoseconds from the client's monotonic clock to Unix time.
        phases: Seconds that the session has spent in each phase so far.
        paused: Those of evaluation and checkpoints that are no part of the steps which have ended.
        late: What it brings is a minute old or more: it is no news.
    """

    session: bytes
    number: int
    blocks: Sequence[Block] = ()
    shift: int = 0
    phases: Mapping[str, float] = field(default_factory=dict)
    paused: float = 0.0
    late: bool = False


@dataclass(frozen=True, slots=True)
class RunState:
    """The state of an attempt of a run; *ended* is None while it lives.

    Attributes:
        late: It is one rank's word, found when its process was gone: the attempt has ended once all its ranks have.
    """

    run: str
    attempt: int
    state: str
    cause: str = ""
    ended: float | None = None
    late: bool = False


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened at one moment; *rank* is None when it is about all of the run."""

    run: str
    attempt: int
    time: float
    kind: str
    rank: int | None = None
    step: int | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)


class Notified(NamedTuple):
    """What people were told of an alert last.

    Attributes:
        over: That it is over, as it was with the severity and the summary.
    """

    severity: str
    summary: str
    over: bool = False


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert fires, or ends; *run* is empty when it is about the machine.

    Attributes:
        ended: When it ended; None while it fires. The same name, labels and start again renew it.
        evidence: What helps to understand it, as JSON has it; what is added later is in `AlertNote`.
        silenced: A silence has it: people are not told. Not kept.
        notified: What each sink has told people of it last, as the history knows it; those that have told nothing are not there.
    """

    alert: str
    severity: str
    started: float
    run: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    summary: str = ""
    description: str = ""
    ended: float | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)
    silenced: bool = False
    notified: Mapping[str, Notified] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AlertNote:
    """What is learnt of an alert after it was told; the first four say which.

    Attributes:
        evidence: Added to what it has; what is of the same name is replaced.
        notified: What sinks have told people of it now; the others' word stays.
    """

    alert: str
    started: float
    run: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    evidence: Mapping[str, Any] = field(default_factory=dict)
    notified: Mapping[str, Notified] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Silence:
    """People are not told of some alerts for a while. The same id again changes it.

    Attributes:
        id: Eight hexadecimal digits.
        labels: What the alerts are to have, as patterns with ``*`` and ``?``; ``alert`` is one of the names, and ``run`` the
            run's name. All of them must fit.
        until: When it ends, in Unix seconds; one that was ended early has the time of that.
        comment: Why, in the user's words.
    """

    id: str
    labels: Mapping[str, str]
    started: float
    until: float
    comment: str = ""


@dataclass(frozen=True, slots=True)
class MachineSample:
    """GPU and host at one moment: a value by series, written as on /metrics."""

    time: float
    values: Mapping[str, float]


Record = SessionOpened | BatchIngested | RunState | Event | Alert | AlertNote | Silence | MachineSample | AccountUpdated
