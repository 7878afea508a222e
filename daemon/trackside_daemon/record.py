"""What the history is told: the daemon's words for what happened, beside `metric` for what is.

A `Batch` carries records to the history as it carries samples to the state. Times are Unix seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trackside.wire import Block, Hello


ENDS = ("failed", "lost", "stopped", "finished")
"""How a rank, an attempt or a run can have ended. Of several ranks the first of these is how their run has."""

ENDED = frozenset(ENDS)

USER_ALERT = "user_alert"
"""The kind of event that a training raises with ``run.alert``: its fields are ``title``, ``severity`` and ``text``."""


@dataclass(frozen=True, slots=True)
class Opened:
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
class Taken:
    """A numbered message of a session was taken, with the steps that it brought; a bye and a skip bring none.

    Attributes:
        shift: Nanoseconds from the client's monotonic clock to Unix time.
        phases: Seconds that the session has spent in each phase so far.
        late: What it brings is a minute old or more: it is no news.
    """

    session: bytes
    number: int
    blocks: Sequence[Block] = ()
    shift: int = 0
    phases: Mapping[str, float] = field(default_factory=dict)
    late: bool = False


@dataclass(frozen=True, slots=True)
class Standing:
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


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert fires, or ends; *run* is empty when it is about the machine.

    Attributes:
        ended: When it ended; None while it fires. The same name, labels and start again renew it.
    """

    alert: str
    severity: str
    started: float
    run: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    summary: str = ""
    description: str = ""
    ended: float | None = None


@dataclass(frozen=True, slots=True)
class Sampled:
    """GPU and host at one moment: a value by series, written as on /metrics."""

    time: float
    values: Mapping[str, float]


Record = Opened | Taken | Standing | Event | Alert | Sampled
