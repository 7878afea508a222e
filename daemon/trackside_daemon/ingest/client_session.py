"""One client session in ingest: how far it has come, what follows from its messages, and the reference for later stages."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from trackside.limits import IN_FLIGHT
from trackside.wire import (
    GATHER_SECONDS,
    HOOK_FAILED,
    Body,
    Bye,
    Clock,
    Envelope,
    Heartbeat,
    Hello,
    Identity,
    Nack,
    Pushes,
    Skip,
    Totals,
    WireError,
    encode,
)
from trackside_daemon.ingest.client_clock import ClientClock
from trackside_daemon.ingest.connection import Connection
from trackside_daemon.ingest.messages import CAUSE_BYTES, Family, MessageLimits, events
from trackside_daemon.model.columns import Columns
from trackside_daemon.model.metric import Batch
from trackside_daemon.model.records import BatchIngested, Event, Record, RunState, SessionOpened
from trackside_daemon.model.session import Owner, SessionRef, correlation_of, process_of
from trackside_daemon.model.text import cut_bytes
from trackside_daemon.training.end_state import Exit, verdict
from trackside_daemon.training.moment import Moment
from trackside_daemon.training.rank import End
from trackside_daemon.training.run import RankSession
from trackside_daemon.training.runs import Runs

LATE_SECONDS = 60.0  # an older batch is not shown on the page
SPEAKING_SECONDS = 10.0  # a session that has been silent for longer gets no messages but answers
HOOKS_LOGGED = 32  # limit of a session's failed hooks in the log
MEDIA_WAITING = 1024  # images, texts and tables of an owner that may wait for the history: a tenth of a second of it

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


class Consequences(NamedTuple):
    """The consequences of a message: *answers* to send now, and *batches* for the pipeline."""

    answers: list[list[bytes]]
    batches: list[Batch]

    def answer(self, peer: bytes, envelope: Envelope, body: Body = None) -> None:
        """Add a message to a connection."""
        self.answers.append([peer, *encode(envelope, body)])

    def deliver(self, records: Sequence[Record], receipt: Receipt | None = None) -> None:
        """Add a batch of records, if there are any, which *receipt* answers once they are committed."""
        if records:
            self.batches.append(Batch("sessions", records=records, receipt=receipt))


class Shared(NamedTuple):
    """The registry of all sessions, and what their messages change.

    Attributes:
        sessions: All of them, by id.
        runs: Applies their messages to runs and ranks.
        limits: Counts their messages, and limits what each owner sends.
    """

    sessions: dict[bytes, ClientSession]
    runs: Runs
    limits: MessageLimits


class ClientSession:
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
        opened_hash: A hash of its last `SessionOpened`; None if the history has none.
        greeting_hash: A hash of its last hello that was resolved, without what each hello has anew.
        had_bye: It sent its bye to an earlier daemon and nothing but a hello since.
        went_on: It has sent more after that bye, so that it has not ended.
        peer: The ROUTER's name for the connection of its last message.
        received_at: When that arrived, in monotonic seconds.
        greets_since: When it greeted first since it had to, in monotonic seconds.
        family: Its process and those above it, by `family`.
        why_other_run: Why it has got another run than it wanted; empty if it has not.
        is_logged: The log reports its late end; False after that, and if its owner left too many spools at once.
        media: Numbers of images, texts and tables by the number of their message, which is not committed.
        refused: Reasons by number of refused messages whose nack the client may have missed.
        gather_milliseconds: For how long its client collects rows.
    """

    def __init__(self, id: bytes, shared: Shared) -> None:  # noqa: A002  the wire's word
        self.ref = SessionRef(id)
        self.training: RankSession | None = None
        self.owner = Owner()
        self.speaker: str | None = None
        self.peer = b""
        self.received_at = 0.0
        self.family: Family = ()
        self.why_other_run = ""
        self.is_logged = True
        self.went_on = False
        self._shared = shared
        self._hooks_logged = 0
        # The most dropped values that a skip has stated: a spool may have lost more after the bye was written.
        self._dropped = 0
        self._announced = False
        self._paused = 0.0
        self.restart()

    def restart(self) -> None:
        """Require another hello; what was accepted and not committed has to be sent again."""
        self.ref = SessionRef(self.ref.id)
        self.greeted = False
        self.gather_milliseconds = round(1000 * GATHER_SECONDS)  # a client begins with it on each connection
        self.greets_since = 0.0
        self.accepted = 0
        self.committed = 0
        self.clock = NOT_GREETED
        self.identity: Identity | None = None
        self.stray: Identity | None = None
        self.bye: Bye | None = None
        self.opened_hash: int | None = None
        self.greeting_hash = 0
        self.had_bye = False
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

    def speaks(self, now: Moment) -> bool:
        """Return whether its client is there to get messages besides answers."""
        return self.greeted and not self.ref.late and now.monotonic - self.received_at < SPEAKING_SECONDS

    def repeats(self, connection: Connection, content: int) -> bool:
        """Return whether a hello on a connection, of this hash, repeats the last one, from which nothing has changed."""
        is_open = self.greeted and not self.had_bye and self.opened_hash is not None
        same = self.peer, self.speaker, self.greeting_hash
        return is_open and same == (connection.id, connection.owner, content)

    def resolve(
        self, hello: Hello, name: str, attempt: int, now: Moment, consequences: Consequences, *, room: bool
    ) -> None:
        """Resolve the session, and deliver the record that opens it in the history, if that is new.

        Args:
            hello: Its hello, `checked`.
            name: The exported name of the run.
            attempt: The attempt of the run.
            now: When the hello arrived.
            consequences: Gets the record.
            room: The history has room for it. Otherwise its next message is answered with ``hello?``.
        """
        identity = self.identity = hello.identity
        self.stray = None if self.exported is not None or hello.late else identity
        process = process_of(identity)
        ref = self.ref = SessionRef(
            self.ref.id, identity.run, name, attempt, identity.rank, process, hello.late, correlation_of(hello)
        )
        before, again = self.opened_hash, self._announced
        self.opened_hash = content_hash(hello, name, attempt) if room else None
        if self.opened_hash in {None, before}:
            return
        if not (again or hello.late):
            self._announced = True
            self._paused = hello.totals.paused
        offset, is_same = self.clock.offset(hello.clock), self.clock.is_same
        consequences.deliver(
            [SessionOpened(ref, hello, now.wall, offset, again=again, owner=self.owner, same_clock=is_same)]
        )

    def commit(self, number: int, refused: str = "") -> None:
        """Note that all messages up to *number* are committed, by this daemon or an earlier one; why this one was refused."""
        self.committed = max(self.committed, number)
        self.accepted = max(self.accepted, number)
        if self.media:
            self.media = {waiting: items for waiting, items in self.media.items() if waiting > number}
        if refused:
            self.refused = {**dict(list(self.refused.items())[-IN_FLIGHT:]), number: refused}

    def answer(self, number: int) -> list[bytes]:
        """Return the ack of all messages up to *number*, or the nack of this one."""
        if number in self.refused:
            return [self.peer, *encode(Envelope("nack", self.ref.id, number), Nack(self.refused[number]))]
        return [self.peer, *encode(Envelope("ack", self.ref.id, number))]

    def beat(self, message: Heartbeat, now: Moment, consequences: Consequences, kind: str = "beat") -> None:
        """Apply a sign of life, which came in a message of that *kind*."""
        self._shared.limits.accept(kind)
        if (exported := self.exported) is not None:
            message.clock = self.clock.receive(message.clock, now)
            consequences.batches.extend(self._shared.runs.beat(exported, message, now))

    def is_next(self, envelope: Envelope, consequences: Consequences) -> bool:
        """Return whether a numbered message is the next; answer a lower one, a duplicate, and a higher one, which comes again."""
        number, ahead = envelope.number, envelope.number - self.accepted
        if ahead == 1 or (ahead > 1 and envelope.kind == "skip"):
            return True
        self._shared.limits.duplicates += ahead < 1
        consequences.answers.append(self.answer(number if number in self.refused else self.committed))
        return False

    def receive_numbered(
        self, envelope: Envelope, message: Any, columns: list[Columns], now: Moment, consequences: Consequences
    ) -> None:
        """Apply the next numbered message, unless it has to come again; its records and its number are one transaction."""
        kind, number = envelope.kind, envelope.number
        if self._has_to_wait(message, now):
            consequences.answers.append(self.answer(self.committed))
            return
        if kind == "batch":
            self._push(number, message, columns, now, consequences)
        elif kind == "skip":
            self._skip(number, message, now, consequences)
        else:
            self._close(number, message, now, consequences)
        self._shared.limits.accept(kind)
        self.accepted = number

    def refuse(self, number: int, error: WireError, consequences: Consequences) -> None:
        """Refuse the next numbered message: through the history, since to a client a nack means that all before is committed."""
        self._shared.limits.reject(self.owner.id, self.ref.id, error)
        consequences.deliver([BatchIngested(self.ref, number)], Receipt(self.ref.id, number, error.reason))
        self.accepted = number

    def end_stray(self, ended: Exit | None, at: float) -> RunState:
        """Return the end, *at* in Unix seconds, of a session over a limit of the page, which `Runs` does not follow.

        Its process has ended so; None if that is lost.
        """
        self.stray = None
        state, cause = verdict(self.bye, ended)
        return RunState(self.ref.run, self.ref.attempt, state, cause, at)

    def _has_to_wait(self, message: Pushes | Skip | Bye, now: Moment) -> bool:
        """Return whether a message has to come again: one before it is missing, or its owner's earlier ones cost others time."""
        if isinstance(message, Skip):
            return message.first > self.accepted + 1
        if isinstance(message, Bye):
            return False
        owner, sessions = self.owner.id, self._shared.sessions.values()
        if (message.events or message.alerts) and not self._shared.limits.search.admit(owner, now.monotonic, 0.0):
            return True
        if not message.media:
            return False
        return sum(sum(one.media.values()) for one in sessions if one.owner.id == owner) > MEDIA_WAITING

    def _push(
        self, number: int, message: Pushes, columns: list[Columns], now: Moment, consequences: Consequences
    ) -> None:
        """Apply a batch: values for the page in batches of their rank, and all of it in one for the history and detectors."""
        ref, runs = self.ref, self._shared.runs
        message.clock = self.clock.receive(message.clock, now)
        if message.media:
            self.media[number] = len(message.media)
        happened = self._events(message, now) if message.events or message.alerts else []
        late = ref.late or self.clock.age(message.clock, now) > LATE_SECONDS
        if (exported := self.exported) is not None and not ref.late:
            consequences.batches.extend(runs.push(exported, message, columns, now, late=late))
            if not late and (derived := runs.derive(exported, columns)):
                self._deliver_derived(derived, consequences)
        ingested = BatchIngested(
            ref,
            number,
            columns,
            self.clock.shift,
            message.totals.phases,
            self._pause(message.totals.paused),
            late,
            message.distributions,
            message.media,
            message.clock.monotonic,
            message.totals.step_duration,
            message.hashes,
        )
        consequences.deliver([ingested, *happened], Receipt(ref.id, number))

    def _events(self, message: Pushes, now: Moment) -> list[Event]:
        """Return the events of a batch, none if its owner sends more than others have room for; log failed hooks."""
        ref, limits, owner = self.ref, self._shared.limits, self.owner.id
        if not limits.admit_events(owner, message, now.monotonic):
            return []
        began = limits.spent()
        happened = events(ref, message, self.clock.shift)
        limits.search.charge(owner, now.monotonic, limits.spent() - began)
        for fields in [event.fields for event in happened if event.kind == HOOK_FAILED]:
            self._hooks_logged += 1
            if self._hooks_logged <= HOOKS_LOGGED and limits.logged_hooks.admit(owner, now.monotonic):
                hook, error = (cut_bytes(str(fields.get(name, "")), CAUSE_BYTES) for name in ("hook", "error"))
                text = "run %s rank %d: the hook %s failed and is off, training goes on: %s"
                log.warning(text, ref.name, ref.rank, hook, error, extra=ref.log_fields)
        return happened

    def _deliver_derived(self, derived: dict[RankSession, list[Columns]], consequences: Consequences) -> None:
        """Deliver what follows for all ranks of a run from the parts that each pushes: as if each had pushed the whole."""
        consequences.batches.extend(self._shared.runs.apply_derived(derived))
        live = [one for one in self._shared.sessions.values() if one.greeted and one.training is not None]
        consequences.deliver(
            [
                BatchIngested(one.ref, 0, derived[one.training], one.clock.shift)
                for one in live
                if one.training in derived
            ]
        )

    def _pause(self, paused: float) -> float:
        """Return how much the session's total of paused seconds has grown."""
        grown = max(0.0, paused - self._paused)
        self._paused += grown
        return grown

    def _skip(self, number: int, message: Skip, now: Moment, consequences: Consequences) -> None:
        """Apply a known gap."""
        ref = self.ref
        self._dropped = max(self._dropped, message.totals.dropped)
        missing = number - self.accepted
        self._shared.limits.gaps += missing
        if (exported := self.exported) is not None and not ref.late:
            consequences.batches.extend(self._shared.runs.skip(exported, message.totals, now))
        fields: dict[str, object] = {"batches": missing}
        if message.values:
            fields["values"] = message.values
        if message.steps is not None:
            fields["steps"] = "{} to {}".format(*message.steps)
        gap = Event(ref.run, ref.attempt, now.wall, "gap", ref.rank, fields=fields)
        consequences.deliver([BatchIngested(ref, number, phases=message.totals.phases), gap], Receipt(ref.id, number))

    def _close(self, number: int, message: Bye, now: Moment, consequences: Consequences) -> None:
        """Apply the end of the session."""
        ref, runs, receipt = self.ref, self._shared.runs, Receipt(self.ref.id, number)
        message.clock = self.clock.receive(message.clock, now)
        ingested = BatchIngested(ref, number, phases=message.totals.phases)
        if (exported := self.exported) is not None:
            consequences.batches.extend(runs.close(exported, message, now))
            consequences.deliver([ingested], receipt)
            return
        # It is not on the page: it is over a limit, or its bye is late.
        self.bye = replace(message, totals=Totals())
        state, cause = verdict(message, None)
        end = End(state, cause, message.clock.wall / 1e9)
        run_state = RunState(ref.run, ref.attempt, *end, late=ref.late)
        if not ref.late:
            consequences.deliver([ingested, run_state], receipt)
            return
        if self.is_logged:
            self.is_logged = False
            end_text = ": ".join(filter(None, (state, cause)))
            log.info("run %s rank %d ended: %s", ref.run, ref.rank, end_text, extra=ref.log_fields)
        fields = {"state": state, "cause": cause}
        ended = Event(ref.run, ref.attempt, end.at, "rank_ended", ref.rank, fields=fields)
        consequences.deliver([ingested, ended, run_state], receipt)
        if self.identity is not None:  # after the event, whose cause is in the alert
            dropped = max(self._dropped, message.totals.dropped)
            missed = runs.missed(self.identity, ref.attempt, end, self.owner, now, dropped=dropped)
            consequences.batches.extend(missed)


def content_hash(hello: Hello, *more: object) -> int:
    """Return a hash of what a hello says of its run, without its clocks and what it has pushed, and of *more*."""
    return hash(
        msgspec.msgpack.encode((*more, hello.identity, hello.config, hello.tags, hello.total_steps, hello.about))
    )
