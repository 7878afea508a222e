"""Messages of clients in the real wire format, made by tests, and the page that results from them."""

from __future__ import annotations

import os
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import zmq
from msgspec.structs import replace
from processes import DEADLINE

from trackside.environment.identity import identify
from trackside.packing import pack
from trackside.wire import Block, Bye, Clock, Envelope, Heartbeat, Hello, Pushes, Skip, Totals, encode, open_envelope
from trackside_daemon.model.columns import decode
from trackside_daemon.model.rank_process import RankProcesses
from trackside_daemon.model.records import EarlierAttempts
from trackside_daemon.model.session import Owner
from trackside_daemon.model.state import State
from trackside_daemon.training.admission import PageLimits
from trackside_daemon.training.moment import Moment
from trackside_daemon.training.runs import Runs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from trackside.wire import Identity
    from trackside_daemon.model.metric import Batch, Distribution
    from trackside_daemon.model.records import Record
    from trackside_daemon.model.stall import Stall
    from trackside_daemon.training.run import RankSession

    Values = Mapping[str, float]

WALL = 1_700_000_000.0
"""When the tests' time begins, in Unix time; the monotonic clock of the machine then is at 50 s."""
OWN = Owner(f"uid:{os.getuid()}")

PATIENCE_MILLISECONDS = round(1000 * DEADLINE)
"""Only a test that fails waits for so long."""


def moment(after: float = 0.0) -> Moment:
    """Return the daemon's clocks after *after* seconds."""
    return Moment(WALL + after, 50.0 + after)


def clock(after: float = 0.0) -> Clock:
    """Return the client's clocks after *after* seconds."""
    return Clock(round((WALL + after) * 1e9), round((50.0 + after) * 1e9))


def pushed(keys: Iterable[str], *rows: tuple[float, int, tuple[float, ...]]) -> Block:
    """Return a block of rows: each has its time in seconds after the beginning, its step, and its values."""
    times = [round((50.0 + after) * 1e9) for after, _, _ in rows]
    values = [value for _, _, row in rows for value in row]
    return Block(list(keys), pack("q", [step for _, step, _ in rows]), pack("q", times), pack("d", values))


@cache
def _identity_of(_: int) -> Identity:
    """Return the identity of this process, whose pid this is; it is expensive."""
    return identify("train", "id-1", environ={})


class FakeSession:
    """One client session. Each message carries a time of *after* seconds after the start.

    Args:
        run: The run's id.
        identity: Fields that differ from those of this process: ``name`` (else ``train``), ``rank``, ``attempt``, …
    """

    def __init__(self, run: str = "id-1", **identity: Any) -> None:
        self.id = os.urandom(16)
        name = identity.pop("name", "train")
        self.identity: Identity = replace(_identity_of(os.getpid()), run=run, name=name, **identity)
        self.totals = Totals()

    def hello(self, after: float = 0.0, **more: Any) -> Hello:
        """Build a hello with the present totals."""
        return Hello(self.identity, clock(after), clock().wall, self.totals, **more)

    def pushes(self, values: Values, *, step: int = 1, after: float = 0.0, **totals: Any) -> Pushes:
        """Build a batch of one row; pushes and steps each grow by one unless *totals* sets them."""
        grown = {"pushes": self.totals.pushes + 1, "steps": self.totals.steps + 1}
        self.totals = replace(self.totals, **{**grown, **totals})
        return Pushes(clock(after), self.totals, [pushed(values, (after, step, tuple(values.values())))])

    def bye(self, status: str = "finished", after: float = 0.0) -> Bye:
        """Build a bye."""
        return Bye(clock(after), self.totals, status)

    def frames(self, kind: str, body: Any = None, number: int = 0) -> list[bytes]:
        """Encode a message."""
        return encode(Envelope(kind, self.id, number), body)

    def batch(self, number: int, values: Values | None = None, **more: Any) -> list[bytes]:
        """Encode a numbered batch of one row; without *values*, its loss is the number."""
        return self.frames("batch", self.pushes(values or {"loss": float(number)}, **{"step": number, **more}), number)

    def skip(self, first: int, last: int) -> list[bytes]:
        """Encode a known gap."""
        return self.frames("skip", Skip(first, self.totals), last)


class Client:
    """A DEALER socket, as the client of a training process has one."""

    def __init__(self, endpoint: str) -> None:
        self.context: zmq.Context[Any] = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.rcvtimeo = PATIENCE_MILLISECONDS
        self.socket.sndhwm = 0
        self.socket.connect(endpoint)

    def send(self, *frames: bytes) -> None:
        """Send a message."""
        self.socket.send_multipart(frames)

    def receive(self) -> tuple[str, int]:
        """Wait for an answer; return its kind and number. For how long to collect rows is no answer."""
        while (envelope := open_envelope(self.socket.recv_multipart())).kind == "pace":
            pass
        return envelope.kind, envelope.number

    def await_ack(self, last: int, first: int = 0) -> None:
        """Wait until all messages up to *last* are acknowledged; each ack covers more than the one before, from *first* on."""
        acked = first
        while acked < last:
            kind, number = self.receive()
            assert kind == "ack"
            assert acked < number <= last
            acked = number

    def greet(self, speaker: FakeSession) -> None:
        """Send the hello of *speaker* and expect to be welcomed as a new session."""
        self.send(*speaker.frames("hello", speaker.hello()))
        assert self.receive() == ("welcome", 0)

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()
        self.context.term()


class SeriesKey(NamedTuple):
    """A series: its family without ``trackside_training_``, and the values of its labels."""

    family: str
    labels: tuple[str, ...]


class RunsHarness:
    """`Runs` and the state that it fills, with a clock that tests advance.

    Attributes:
        records: All records for the history.
    """

    def __init__(
        self,
        linger: float = 60.0,
        past: Callable[[str], tuple[int, float | None] | None] = lambda _: None,
        stalls: Iterable[Stall] = (),
        before: Callable[[str, int], EarlierAttempts] = lambda *_: EarlierAttempts(),
        peak: Callable[[str, int], float | None] = lambda *_: None,
        **limits: Any,
    ) -> None:
        self.state = State()
        self.processes = RankProcesses()
        self.runs = Runs(
            PageLimits(**limits),
            linger,
            last_attempt=past,
            before=before,
            peak=peak,
            processes=self.processes,
            stalls=stalls,
        )
        self.sessions: dict[bytes, RankSession] = {}
        self.records: list[Record] = []
        self.after = 0.0

    @property
    def now(self) -> Moment:
        """The present moment on the daemon's clocks."""
        return moment(self.after)

    def hello(self, speaker: FakeSession, **more: Any) -> None:
        """Apply the hello of *speaker*."""
        self.open(speaker.id, speaker.hello(self.after, **more))

    def greet(self, run: str = "id-1", **identity: Any) -> FakeSession:
        """Apply the hello of a new `FakeSession`, and return it."""
        speaker = FakeSession(run, **identity)
        self.hello(speaker)
        return speaker

    def push(self, speaker: FakeSession, values: Values, step: int = 1, **totals: Any) -> None:
        """Apply a push of *speaker*."""
        self.ingest(speaker.id, speaker.pushes(values, step=step, after=self.after, **totals))

    def beat(self, speaker: FakeSession, **more: Any) -> None:
        """Apply a heartbeat of *speaker*; *more* sets its fields."""
        if (session := self.session(speaker.id)) is not None:
            self.accept(self.runs.beat(session, Heartbeat(clock(self.after), **more), self.now))

    def bye(self, speaker: FakeSession, status: str = "finished") -> None:
        """Apply the bye of *speaker*."""
        self.close(speaker.id, speaker.bye(status, self.after))

    def session(self, id_: bytes) -> RankSession | None:
        """Return a session that is on the page."""
        session = self.sessions.get(id_)
        return session if session is not None and session.attached else None

    def open(self, id_: bytes, hello: Hello) -> None:
        """Apply a hello."""
        session, batches = self.runs.open(self.sessions.get(id_), hello, self.now, owner=OWN)
        if session is not None:
            self.sessions[id_] = session
        self.accept(batches)

    def ingest(self, id_: bytes, pushes: Pushes, *, late: bool = False) -> None:
        """Apply pushed rows."""
        columns = decode(pushes.blocks)
        if (session := self.session(id_)) is not None:
            self.accept(self.runs.push(session, pushes, columns, self.now, late=late))

    def skip(self, id_: bytes, totals: Totals) -> None:
        """Apply a known gap."""
        if (session := self.session(id_)) is not None:
            self.accept(self.runs.skip(session, totals, self.now))

    def close(self, id_: bytes, bye: Bye) -> None:
        """Apply a bye."""
        if (session := self.session(id_)) is not None:
            self.accept(self.runs.close(session, bye, self.now))

    def wait(self, seconds: float) -> None:
        """Advance the clock, then tick."""
        self.after += seconds
        self.accept(self.runs.tick(self.now))

    def accept(self, batches: Iterable[Batch]) -> None:
        """Update the state and collect the records, as the pipeline does."""
        for batch in batches:
            self.state.update(batch)
            self.records += batch.records

    def page(self) -> dict[SeriesKey, float | Distribution]:
        """Return all training series."""
        return {
            SeriesKey(rows.metric.name.removeprefix("trackside_training_"), series.labels): value
            for rows in self.state.snapshot(self.now.monotonic)
            for series, value in zip(rows.series, rows.values, strict=True)
        }

    def get(self, family: str, *labels: str) -> float | Distribution | None:
        """Return the value of a series; None if it is not on the page."""
        return self.page().get(SeriesKey(family, labels or ("train", "0")))

    def has(self, run: str) -> set[str]:
        """Return the families on the page for a run."""
        return {one.family for one in self.page() if one.labels[0] == run}

    def runs_in(self, state: str) -> list[str]:
        """Return the names of the runs in a state."""
        on = (one for one, value in self.page().items() if one.family == "state" and value == 1.0)
        return [one.labels[0] for one in on if one.labels[1] == state]

    def state_of(self, run: str = "train", rank: str | None = None) -> str | None:
        """Return the state of a run or a rank; None if it is not on the page."""
        family, labels = ("state", (run,)) if rank is None else ("rank_state", (run, rank))
        on = (one for one, value in self.page().items() if one.family == family and value == 1.0)
        return next((one.labels[-1] for one in on if one.labels[:-1] == labels), None)

    def rejected(self) -> dict[str, float]:
        """Return the counts over a limit by reason, without zeros."""
        return {sample.labels[0]: sample.value for sample in self.runs.rejected() if sample.value}  # type: ignore[misc]
