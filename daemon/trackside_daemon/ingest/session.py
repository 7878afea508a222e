"""One client session in ingest: how far it has come, and the reference that later stages get."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec.structs import replace

from trackside.environment.config import CONFIG_BYTES
from trackside.redact import redact, redact_text
from trackside.wire import (
    GATHER_SECONDS,
    HOOK_FAILED,
    Clock,
    Envelope,
    Nack,
    Totals,
    TrainingEvent,
    WireError,
    encode,
    is_commit,
)
from trackside_daemon.ingest.client_clock import ClientClock
from trackside_daemon.model.log_fields import log_fields
from trackside_daemon.model.metric import Batch
from trackside_daemon.model.records import USER_ALERT, Event, RunState, SessionOpened
from trackside_daemon.model.session import Owner, SessionRef, process_of
from trackside_daemon.training.export_limits import cut, redacted
from trackside_daemon.training.moment import Moment
from trackside_daemon.training.rank import End
from trackside_daemon.training.verdict import verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trackside.wire import Bye, Hello, Identity, Pushes, TrainingAlert
    from trackside_daemon.model.records import Record
    from trackside_daemon.training.run import RankSession

    Family = tuple[tuple[int, int], ...]

# What a hello may hold besides its identity, in bytes of msgpack, and what replaces more: a client has far less of each.
# Only it limits its configuration; its text has a header of 5 bytes.
MOST: dict[str, tuple[int, Any]] = {
    "config": (CONFIG_BYTES + 5, ""),
    "tags": (64 * 1024, ()),
    "about": (256 * 1024, None),
}
HOOKS_LOGGED = 32  # limit of a session's failed hooks in the log
TEXT_BYTES = 1 << 20  # limit of the texts of a batch's events and alerts: a client closes it after 64 of 4 KiB
CAUSE_BYTES = 256  # the longest cause of an end, in UTF-8

NOT_GREETED = ClientClock(Clock(0, 0), Moment(0.0, 0.0), same_boot=False, late=True)

log = logging.getLogger("trackside")


class Receipt(NamedTuple):
    """The message to answer once a batch is committed.

    Attributes:
        refused: Why the message was refused; empty if it was accepted.
    """

    session: bytes
    number: int
    refused: str = ""


class Outcome(NamedTuple):
    """The consequences of a message: *answers* to send now, and *batches* for the pipeline."""

    answers: list[list[bytes]]
    batches: list[Batch]

    def add_records(self, records: Sequence[Record], receipt: Receipt | None = None) -> None:
        """Add a batch of records, which *receipt* answers once they are committed."""
        self.batches.append(Batch("ingest", records=records, receipt=receipt))


class IngestSession:
    """A client session: its messages, and what it belongs to.

    Attributes:
        ref: The session as later stages get it, resolved at its hello.
        training: The session in `Runs`; None before its first hello and for a session over a limit.
        owner: Its owner, who owns its run, too.
        speaker: The owner of the connection of its hello, which alone may continue it: its own, or this daemon's that reads
            its spool. None before its hello.
        greeted: Its hello was accepted; otherwise its next message is answered with ``hello?``.
        accepted: The last numbered message that was accepted; *committed* is the last that is written.
        clock: The client's clock, since its hello.
        identity: The identity of its process; None before the first hello.
        stray: The identity of its process, while the session is over a limit of the page and its process has not ended.
        bye: The bye of a stray session, without its totals.
        opened: A hash of its last `SessionOpened`; 0 if the history has none.
        over: It sent its bye to an earlier daemon and nothing but a hello since.
        resumed: It has sent more after that bye, so that it is not over.
        peer: The ROUTER's name for the connection of its last message.
        received_at: When that arrived, in monotonic seconds.
        greets_since: When it greeted first since it had to, in monotonic seconds.
        family: Its process and those above it, by `family`.
        why: Why it has got another run than it wanted; empty if it has not.
        dropped: The most dropped values that a skip has stated: a spool may have lost more after the bye was written.
        is_logged: The log reports its late end; False after that, and if its owner left too many spools at once.
        media: Numbers of images, texts and tables by the number of their message, which is not committed.
        refused: Reasons by number of refused messages whose nack the client may have missed.
        hooks_logged: Number of its failed hooks so far.
        pace: For how many milliseconds its client collects rows.
    """

    def __init__(self, id: bytes) -> None:  # noqa: A002  the wire's word
        self.ref = SessionRef(id)
        self.training: RankSession | None = None
        self.owner = Owner()
        self.speaker: str | None = None
        self.peer = b""
        self.received_at = 0.0
        self.family: Family = ()
        self.why = ""
        self.is_logged = True
        self.hooks_logged = self.dropped = 0
        self.resumed = False
        self._announced = False
        self._paused = 0.0
        self.restart()

    def restart(self) -> None:
        """Require another hello; what was accepted and not committed has to be sent again."""
        self.ref = SessionRef(self.ref.id)
        self.greeted = False
        self.pace = round(1000 * GATHER_SECONDS)  # a client begins with it on each connection
        self.greets_since = 0.0
        self.accepted = 0
        self.committed = 0
        self.clock = NOT_GREETED
        self.identity: Identity | None = None
        self.stray: Identity | None = None
        self.bye: Bye | None = None
        self.opened = 0
        self.over = False
        self.media: dict[int, int] = {}
        self.refused: dict[int, str] = {}

    @property
    def ended(self) -> bool:
        """True after the bye of its client, and once its end is known otherwise, as far as it is on the page."""
        return self.bye is not None or (self.training is not None and bool(self.training.status))

    @property
    def exported(self) -> RankSession | None:
        """The session in `Runs` while its run is on the page and counts it, else None."""
        return self.training if self.training is not None and self.training.attached else None

    def resolve(self, hello: Hello, name: str, attempt: int) -> None:
        """Resolve the session.

        Args:
            hello: Its hello, `checked`.
            name: The exported name of the run.
            attempt: The attempt of the run.
        """
        identity = self.identity = hello.identity
        self.stray = None if self.exported is not None or hello.late else identity
        self.ref = SessionRef(
            id=self.ref.id,
            run=identity.run,
            name=name,
            attempt=attempt,
            rank=identity.rank,
            process=process_of(identity),
            late=hello.late,
        )

    def announce(self, hello: Hello, now: Moment) -> list[Record]:
        """Return the record that opens the session in the history, none if that would not be new; arguments as before."""
        ref = self.ref
        content = (ref.name, ref.attempt, hello.identity, hello.config, hello.tags, hello.total_steps, hello.about)
        opened = hash(msgspec.msgpack.encode(content)) or 1  # 0 stands for none
        if opened == self.opened:
            return []
        self.opened = opened
        again = self._announced
        if not (again or hello.late):
            self._announced = True
            self._paused = hello.totals.paused
        offset = self.clock.offset(hello.clock)
        is_same = self.clock.is_same
        return [SessionOpened(ref, hello, now.wall, offset, again=again, owner=self.owner, same_clock=is_same)]

    def commit(self, number: int) -> None:
        """Note that all messages up to *number* are committed, by this daemon or an earlier one."""
        self.committed = max(self.committed, number)
        self.accepted = max(self.accepted, number)
        if self.media:
            self.media = {waiting: items for waiting, items in self.media.items() if waiting > number}

    def pause(self, paused: float) -> float:
        """Return how much the session's total of paused seconds has grown."""
        grown = max(0.0, paused - self._paused)
        self._paused += grown
        return grown

    def answer(self, number: int) -> list[bytes]:
        """Return the ack of all messages up to *number*, or the nack of this one."""
        if number in self.refused:
            return [self.peer, *encode(Envelope("nack", self.ref.id, number), Nack(self.refused[number]))]
        return [self.peer, *encode(Envelope("ack", self.ref.id, number))]

    def end(self, bye: Bye) -> tuple[End, list[Record]]:
        """End a session that is not on the page: it is over a limit, or its bye is late. Return its end and records.

        The bye has its time by this machine's clock.
        """
        ref = self.ref
        self.bye = replace(bye, totals=Totals())
        at = bye.clock.wall / 1e9
        state, cause = verdict(bye, None)
        end = End(state, cause, at)
        run_state = RunState(ref.run, ref.attempt, state, cause, at, late=ref.late)
        if not ref.late:
            return end, [run_state]
        if self.is_logged:
            self.is_logged = False
            end_text, fields_of = ": ".join(filter(None, (state, cause))), log_fields(ref.run, ref.name, ref.rank)
            log.info("run %s rank %d ended: %s", ref.run, ref.rank, end_text, extra=fields_of)
        fields = {"state": state, "cause": cause}
        return end, [Event(ref.run, ref.attempt, at, "rank_ended", ref.rank, fields=fields), run_state]


def family(hello: Hello) -> Family:
    """Return pid and start time of a client's process and of those above it, in its namespace; nothing for an older client."""
    parents = None if hello.about is None else hello.about.parents
    return () if parents is None else ((hello.identity.pid, hello.identity.start), *parents)


def checked(hello: Hello, bounded: Identity) -> Hello:
    """Return the hello with its *bounded* identity, and without what is larger than `MOST`: a session keeps parts of both."""
    # Older clients send any text that a planted .git leads to.
    commit = bounded.git_commit if is_commit(bounded.git_commit) else ""
    sizes = {name: len(msgspec.msgpack.encode(getattr(hello, name))) for name in MOST}
    over = {name: empty for name, (most, empty) in MOST.items() if sizes[name] > most}
    return replace(hello, identity=replace(bounded, git_commit=commit), **over)


def check_texts(pushes: Pushes) -> None:
    """Check the texts of events and alerts together: a character of them can become twenty bytes in memory.

    Raises:
        WireError: They are longer than `TEXT_BYTES`.
    """
    texts = [text for one in pushes.events for text in (one.kind, one.fields)]
    texts += [text for one in pushes.alerts for text in (one.title, one.text)]
    size = sum(map(len, texts))
    if size > TEXT_BYTES:
        raise WireError("size", f"{size} characters of events and alerts, at most {TEXT_BYTES}")


def checked_bye(bye: Bye) -> Bye:
    """Return the bye with texts for the log, for alerts and for a session that keeps it: short, and without secrets."""
    return replace(
        bye, **{name: redacted(getattr(bye, name), CAUSE_BYTES) for name in ("status", "cause", "requested")}
    )


def log_failed_hooks(session: IngestSession, happened: Sequence[Event], admit: Callable[[], bool]) -> None:
    """Log the hooks of the client that have turned themselves off, `HOOKS_LOGGED` of a session at most, if *admit* returns so."""
    ref = session.ref
    for fields in [event.fields for event in happened if event.kind == HOOK_FAILED]:
        session.hooks_logged += 1
        if session.hooks_logged <= HOOKS_LOGGED and admit():
            hook, error = (cut(str(fields.get(name, "")), CAUSE_BYTES) for name in ("hook", "error"))
            text = "run %s rank %d: the hook %s failed and is off, training goes on: %s"
            log.warning(text, ref.name, ref.rank, hook, error, extra=log_fields(ref.run, ref.name, ref.rank))


def events(session: SessionRef, pushes: Pushes, shifted: int) -> list[Event]:
    """Return the events of a batch, then the user alerts that it raises, without secrets."""

    def event(item: TrainingEvent | TrainingAlert, kind: str, fields: dict[str, Any]) -> Event:
        time = (item.time + shifted) / 1e9
        size = len(item.fields if isinstance(item, TrainingEvent) else item.text)
        return Event(session.run, session.attempt, time, kind, session.rank, item.step, fields, size)

    happened = [event(item, item.kind, _fields(item.fields)) for item in pushes.events]
    raised = [event(notice, USER_ALERT, _alert(notice)) for notice in pushes.alerts]
    return [*happened, *raised]


def _fields(text: str) -> dict[str, Any]:
    """Return the fields of an event, which should be a JSON object."""
    try:
        fields = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        fields = None
    redacted_fields: dict[str, Any] = redact(fields if isinstance(fields, dict) else {"text": text})
    return redacted_fields


def _alert(notice: TrainingAlert) -> dict[str, Any]:
    return {"title": redact_text(notice.title), "severity": notice.severity, "text": redact_text(notice.text)}
