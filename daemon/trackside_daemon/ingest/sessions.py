"""The protocol with the clients, and the daemon's only registry of their sessions.

It uses neither sockets nor clocks: frames and the moment of their arrival come in, answers and batches go out.
The file is longer than others, so that all messages of the protocol are handled in one place.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from msgspec.structs import replace

from trackside.wire import (
    GATHER_SECONDS,
    VERSION,
    Envelope,
    Refused,
    Welcome,
    WireError,
    decode_body,
    encode,
    open_envelope,
)
from trackside_daemon.history.directory import UnreadableError
from trackside_daemon.ingest.client_clock import SET_SECONDS, ClientClock
from trackside_daemon.ingest.client_commands import SPEAKING_SECONDS, Questions
from trackside_daemon.ingest.message_counts import KINDS, UNNUMBERED, MessageCounts
from trackside_daemon.ingest.pacing import Pacing
from trackside_daemon.ingest.rivals import Rivals, UndecidedError, report
from trackside_daemon.ingest.run_owners import RunOwners
from trackside_daemon.ingest.session import (
    IngestSession,
    Outcome,
    Receipt,
    check_texts,
    checked,
    checked_bye,
    events,
    family,
    log_failed_hooks,
)
from trackside_daemon.ingest.stray_sessions import exited_strays, lost_strays
from trackside_daemon.model.columns import decode
from trackside_daemon.model.metric import Batch
from trackside_daemon.model.records import ENDED, BatchIngested, Event, Record, bounded
from trackside_daemon.model.session import process_of
from trackside_daemon.model.text import byte_size, duration
from trackside_daemon.training.export_limits import OwnerRate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from trackside.wire import Bye, Hello, Identity, Pushes, Skip
    from trackside_daemon.history.read.sessions import StoredSession
    from trackside_daemon.ingest.client_commands import Question
    from trackside_daemon.ingest.connection import Connection
    from trackside_daemon.ingest.rivals import Rival
    from trackside_daemon.ingest.session import Family
    from trackside_daemon.model.columns import Columns
    from trackside_daemon.model.session import Owner, Process
    from trackside_daemon.training.moment import Moment
    from trackside_daemon.training.run import RankSession
    from trackside_daemon.training.runs import Runs
    from trackside_daemon.training.verdict import Exit

LATE_SECONDS = 60.0  # an older batch is not shown on the page

# A session that has been silent for so long has to greet again; it is forgotten unless it is on the page.
FORGET_SECONDS = 3600.0

SESSIONS = 4096  # the most sessions; with more, the one that has been silent for longest is forgotten

STORES = ("distributions", "media")  # what is stored of `Pushes` besides rows, events and alerts

DISTINCT = "give each process an id of its own (TRACKSIDE_RUN_ID), or its rank (RANK)"

# How many refusals of a session are remembered in case a nack was lost: as many as can be unacknowledged.
REFUSED = 64

# New sessions of one owner: so many at once, and so many a second. A job of 1,024 ranks may restart three times at once.
SESSIONS_BURST, SESSIONS_RATE = 4096.0, 16.0
# Bytes of its events and alerts: each has some, and those of its texts.
EVENTS_BURST, EVENTS_RATE, EVENT_BYTES = 2.0**26, 2.0**16, 100
# Seconds of this thread for the secrets in them: a text can be made so that each MiB takes one. Further batches come again.
SEARCH_BURST, SEARCH_RATE = 1.0, 0.1
MEDIA_WAITING = 1024  # images, texts and tables of an owner that may wait for the history: a tenth of a second of it

log = logging.getLogger("trackside")


class Sessions:
    """All client sessions.

    A session that is on the page is never forgotten: its entry links the client's id with its run, attempt and rank.

    Args:
        runs: Applies the messages to runs and ranks.
        stored: Returns what the history has of a session of an earlier daemon.
        boot: This machine's boot id: a client of the same boot has the same clock.
        follow: Follows the process that greets on a connection to its end, which `exited` applies. Returns its pid in this
            process's namespace, or None if it cannot be followed.
        rejected: Returns, by reason, what was refused before it reached the protocol.
        owners: Binds runs to their owners.
        restarts: Returns how often the worker was replaced.
        spent: Returns the processor time of this thread in seconds.
    """

    def __init__(
        self,
        runs: Runs,
        stored: Callable[[bytes], StoredSession | None] = lambda _: None,
        boot: str = "",
        follow: Callable[[Connection, Identity, Moment], int | None] = lambda *_: None,
        rejected: Callable[[], Mapping[str, int]] = dict,
        *,
        owners: RunOwners | None = None,
        restarts: Callable[[], int] = lambda: 0,
        spent: Callable[[], float] = time.thread_time,
    ) -> None:
        self._runs = runs
        self._stored = stored
        self._boot = boot
        self._follow = follow
        self._rejected_before = rejected
        self._owners = owners or RunOwners()
        self._restarts = restarts
        self._spent = spent
        self._sessions: dict[bytes, IngestSession] = {}
        self._counts = MessageCounts()
        self._logged_spools = OwnerRate()
        self._logged_hooks = OwnerRate()
        self._new_sessions = OwnerRate(SESSIONS_BURST, SESSIONS_RATE)
        self._event_bytes = OwnerRate(EVENTS_BURST, EVENTS_RATE)
        self._search_seconds = OwnerRate(SEARCH_BURST, SEARCH_RATE)
        self._questions = Questions()
        self._pacing = Pacing()
        self._rivals = Rivals(self._sessions, runs, self._owners)
        self._scale: float | None = None
        """Unix time less the time since the start of this machine, which changes only where its clock is set."""

    def receive(self, connection: Connection, frames: list[bytes], now: Moment, *, room: bool = True) -> Outcome:
        """Accept one message.

        Args:
            connection: Where it came from.
            frames: The message.
            now: When it arrived.
            room: The history can store numbered messages. Otherwise they are ignored, and their client sends them again.

        Returns:
            Answers and batches; a batch with a receipt is answered when it is committed.
        """
        outcome = Outcome([], self._follow_clock(now))
        try:
            envelope = open_envelope(frames)
            self._accept(connection, envelope, frames[2], now, outcome, room=room)
        except WireError as error:
            self._counts.reject(connection.owner, connection.id, error)
            if error.reason == "version":
                outcome.answers.append([connection.id, *encode(Envelope("refused", bytes(16)), Refused([VERSION]))])
        return outcome

    def tick(self, now: Moment) -> list[Batch]:
        """Apply once a second what time alone changes, and return the daemon's own counters."""
        moved = self._follow_clock(now)
        for key, session in list(self._sessions.items()):
            if now.monotonic - session.received_at >= FORGET_SECONDS:
                session.restart()
                if session.exported is None:
                    del self._sessions[key]
            if session.training is not None and session.training.run.displaced:
                session.stray = session.identity
            session.training = session.exported  # a run that has left the page must not stay in memory
        self._questions.give_up(self._is_over)
        samples = [*self._counts.samples(self._rejected_before(), self._restarts()), *self._runs.rejected()]
        strays = lost_strays(self._sessions.values(), self._runs.is_lost, now)
        return [*moved, *self._runs.tick(now), Batch("ingest", samples, complete=True), *strays]

    def _is_over(self, id_: bytes) -> bool:
        session = self._sessions.get(id_)
        return session is None or session.over or (session.training is not None and session.training.status in ENDED)

    def pace(self, load: float, now: Moment) -> list[list[bytes]]:
        """Return once a second the messages to clients that are to collect rows for another time.

        Args:
            load: Share of a core that the daemon has used in the last second.
            now: This moment.
        """
        live = [
            session
            for session in self._sessions.values()
            if session.greeted and not session.ref.late and now.monotonic - session.received_at < SPEAKING_SECONDS
        ]
        self._pacing.update(len(live), load)
        return self._pacing.messages(live)

    def committed(self, receipt: Receipt) -> list[bytes] | None:
        """Return the answer to a committed message; None if its session has to greet again."""
        session = self._sessions.get(receipt.session)
        if session is None or not session.greeted:
            return None
        session.commit(receipt.number)
        if receipt.refused:
            session.refused = {**dict(list(session.refused.items())[-REFUSED:]), receipt.number: receipt.refused}
        return session.answer(receipt.number)

    def exited(self, process: Process, ended: Exit, at: float, now: Moment) -> list[Batch]:
        """Apply the exit of a followed process, *at* in Unix seconds."""
        strays = exited_strays(self._sessions.values(), process, ended, at)
        return [*self._runs.exited(process, ended, at, now), *strays]

    def open_spooled(self, hellos: Mapping[bytes, Hello], now: Moment) -> Iterator[Batch]:
        """Open the sessions that have left spools, before any client sends: otherwise a live run looks like one of them.

        Batches come one by one, since each has to be stored before the next session can be resolved.

        Raises:
            UnreadableError: The history cannot be read.
        """
        for id_, hello in hellos.items():
            owner = self._owners.owner(None, id_, late=True)
            try:
                session, stored, late, rival = self._admit(id_, replace(self._checked(hello), late=True), owner, now)
            except WireError as error:
                self._counts.reject(owner.id, id_, error)
                continue
            session.received_at = now.monotonic
            if stored is not None:
                session.commit(stored.committed)
            session.greeted = True
            session.clock = self._client_clock(late, now)
            self._resolve(session, late, stored)
            records: list[Record] = session.announce(late, now)
            yield Batch("ingest", records=[*records, *([] if rival is None else report(session, rival, now))])

    def forget(self, session: bytes | None = None) -> None:
        """Require a hello of a session, or of all: what was accepted and not committed has to be sent again."""
        for one in self._sessions.values() if session is None else filter(None, [self._sessions.get(session)]):
            one.restart()

    def ask(self, question: Question, now: Moment) -> list[list[bytes]]:
        """Return the messages that ask the ranks of a run; of several sessions of a rank the last active one."""
        live = [session for id_, session in self._sessions.items() if not self._is_over(id_)]
        return self._questions.messages(question, live, now)

    def _follow_clock(self, now: Moment) -> list[Batch]:
        """Require another hello of all sessions if this machine's clock was set: by it the history moves their begin."""
        scale = now.wall - now.monotonic - now.asleep
        moved = 0.0 if self._scale is None else scale - self._scale
        if self._scale is not None and abs(moved) <= SET_SECONDS:
            return []
        self._scale = scale
        if not moved:
            return []
        text = (
            "the clock of this machine was set %s by %s; the times of earlier samples stay, and no duration counts it"
        )
        log.warning(text, "forward" if moved > 0 else "back", duration(abs(moved)))
        for session in self._sessions.values():
            if not session.ref.late:
                session.greeted, session.opened = False, 0
        return self._runs.move_clock(moved)

    def _accept(
        self, connection: Connection, envelope: Envelope, body: bytes, now: Moment, outcome: Outcome, *, room: bool
    ) -> None:
        if envelope.kind not in KINDS:
            raise WireError("kind", f"only the daemon sends {envelope.kind}")
        if envelope.kind == "hello":
            self._greet(connection, envelope, body, now, outcome, room=room)
            return
        session = self._sessions.get(envelope.session)
        if session is not None and session.speaker != connection.owner:
            session = None  # it may not continue the session before its hello shows that both have the same owner
        if session is not None and session.greeted:
            session.peer = connection.id
            session.received_at = now.monotonic
            if session.over:
                # It is alive after all, and its run has to be on the page again.
                session.resumed = True
                session.restart()
            elif envelope.kind not in UNNUMBERED and room and (not session.opened or self._lost_name(session)):
                # It greeted while there was no room, so that the history has no `SessionOpened`; or its name is another's.
                session.restart()
        if session is None or not session.greeted:
            outcome.answers.append([connection.id, *encode(Envelope("hello?", envelope.session))])
        elif envelope.kind in UNNUMBERED:
            self._accept_unnumbered(envelope, body, session, now, outcome)
        elif room:
            self._accept_in_order(envelope, body, session, now, outcome)

    def _lost_name(self, session: IngestSession) -> bool:
        """Return whether another owner's run has got the name under which a session off the page would raise alerts."""
        return session.exported is None and session.ref.name in self._runs.names_of_others(session.owner)

    def _accept_unnumbered(
        self, envelope: Envelope, body: bytes, session: IngestSession, now: Moment, outcome: Outcome
    ) -> None:
        message = decode_body(envelope.kind, body)
        self._counts.accept(envelope.kind)
        if envelope.kind != "beat":
            self._questions.answered(envelope.kind, envelope.number, session.ref.id, message)
        elif (exported := session.exported) is not None:
            message.clock = session.clock.receive(message.clock, now)
            outcome.batches.extend(self._runs.beat(exported, message, now))

    def _greet(
        self, connection: Connection, envelope: Envelope, body: bytes, now: Moment, outcome: Outcome, *, room: bool
    ) -> None:
        greeting: Hello = decode_body("hello", body)
        hello, verified = self._followed(connection, self._checked(greeting), now)
        try:
            owner = self._owners.owner(connection, envelope.session, late=hello.late, verified=verified)
            session, stored, hello, rival = self._admit(envelope.session, hello, owner, now, family(greeting))
            self._counts.accept("hello")
            if hello.late and not session.peer:
                session.is_logged = self._logged_spools.admit(owner.id, now.monotonic)
                if session.is_logged:
                    identity = hello.identity
                    log.info("run %s rank %d: reading the spool that its process left", identity.name, identity.rank)
            session.peer = connection.id
            session.speaker = connection.owner
            session.received_at = now.monotonic
            self._welcome(session, hello, now, outcome, stored, room=room)
            if rival is not None:
                outcome.add_records(report(session, rival, now))
        except UndecidedError:
            outcome.answers.append([connection.id, *encode(Envelope("hello?", envelope.session))])
        except UnreadableError:
            # The client gets no answer and greets again in a moment.
            self.forget(envelope.session)

    def _checked(self, hello: Hello) -> Hello:
        return checked(hello, self._runs.bounded(hello.identity))

    def _followed(self, connection: Connection, hello: Hello, now: Moment) -> tuple[Hello, bool]:
        """Follow the client's process if possible; return the hello with its pid in this process's namespace, and if it was."""
        pid = self._follow(connection, hello.identity, now)
        if pid is None:
            return hello, False
        identity = replace(hello.identity, pid=pid)
        self._runs.watch(process_of(identity))
        return replace(hello, identity=identity), True

    def _admit(
        self, id_: bytes, hello: Hello, owner: Owner, now: Moment, kin: Family = ()
    ) -> tuple[IngestSession, StoredSession | None, Hello, Rival | None]:
        """Return the entry of a session, its state in the history, the hello with the id of the run that it gets, and why.

        Raises:
            UndecidedError: It is to greet again: another process may be the same rank.
            WireError: The session is another owner's, or this one opens too many runs.
        """
        session = self._sessions.get(id_)
        stored = self._stored(id_) if session is None or not session.greeted else None
        before = session.owner.id if session is not None else stored.owner if stored is not None else None
        if before not in {None, owner.id}:
            raise WireError("owner", "it continues a session of another user")
        if session is None and stored is None and not self._new_sessions.admit(owner.id, now.monotonic):
            more = f"more than {SESSIONS_BURST:g} new sessions at once, or {SESSIONS_RATE:g} a second, of one user"
            raise WireError("rate", f"{more}: it is accepted later")
        wanted = hello.identity.run
        unowned = "" if stored is None else stored.unowned
        run = self._owners.claim(wanted, owner.id, now.monotonic, unowned)
        if run != wanted:
            hello = replace(hello, identity=replace(hello.identity, run=run))
            if session is None and stored is None:
                self._counts.redirect(owner.id, wanted, run)
        entry = self._entry(id_)
        entry.owner, entry.received_at = owner, now.monotonic
        entry.family, entry.greets_since = kin or family(hello), entry.greets_since or now.monotonic
        settled = entry.ref.run or ("" if stored is None else stored.run)
        hello, rival = self._rivals.separate(entry, hello, settled, now)
        if run != wanted:
            entry.why = "the run that it asked for belongs to another user"
        elif rival is not None:
            entry.why = (
                f"process {rival.process} pushes as rank {hello.identity.rank} of the run {wanted}, too; {DISTINCT}"
            )
        return entry, stored, hello, rival

    def _welcome(
        self,
        session: IngestSession,
        hello: Hello,
        now: Moment,
        outcome: Outcome,
        stored: StoredSession | None,
        *,
        room: bool,
    ) -> None:
        session.greeted = True
        session.clock = self._client_clock(hello, now)
        session.commit(max(hello.acked, 0 if stored is None else stored.committed))
        other = hello.identity.run if session.why else ""
        body = Welcome(STORES, other, session.why)
        welcome = [session.peer, *encode(Envelope("welcome", session.ref.id, session.committed), body)]
        if stored is not None:
            session.over = stored.ended and not session.resumed and not hello.late
        if not session.over:  # otherwise it only missed the ack of its bye, and ends with the welcome
            attached: list[Batch] = []
            if not hello.late:
                # A spool is opened before its client speaks, which may live all the same.
                spooled = session.ref.attempt if session.opened and session.ref.late else None
                attempt = spooled if stored is None else stored.attempt
                ours = session.clock.corrected_hello(hello)
                session.training, attached = self._runs.open(session.training, ours, now, attempt, session.owner)
            self._resolve(session, hello, stored)
            if not room:
                session.opened = 0  # the history has no room for it: its next message is answered with ``hello?``
            elif records := session.announce(hello, now):
                outcome.add_records(records)
            outcome.batches.extend(attached)
        outcome.answers.append(welcome)
        session.pace = round(1000 * GATHER_SECONDS)
        if not session.ref.late:
            outcome.answers.extend(self._pacing.messages([session]))

    def _entry(self, id_: bytes) -> IngestSession:
        """Return the entry of a session, made if it is new; then another one may have to go."""
        if id_ not in self._sessions and len(self._sessions) >= SESSIONS:
            # There are fewer sessions on the page, so that one of the others is evicted.
            evicted = min(self._sessions.values(), key=lambda one: (one.exported is not None, one.received_at))
            del self._sessions[evicted.ref.id]
        return self._sessions.setdefault(id_, IngestSession(id_))

    def _client_clock(self, hello: Hello, now: Moment) -> ClientClock:
        return ClientClock(hello.clock, now, same_boot=hello.identity.boot == self._boot, late=hello.late)

    def _resolve(self, session: IngestSession, hello: Hello, stored: StoredSession | None) -> None:
        """Resolve a session, also one over a limit of the page."""
        attempt = session.ref.attempt if stored is None else stored.attempt
        name = self._runs.name(hello.identity, session.owner)
        if (exported := session.exported) is not None:
            name = exported.run.name
            attempt = exported.run.attempt
        elif stored is None and not session.opened:
            began = session.clock.corrected_hello(hello).started / 1e9 if hello.late else None
            attempt = self._runs.attempt(hello.identity, began)
        session.resolve(hello, name, attempt)

    def _accept_in_order(
        self, envelope: Envelope, body: bytes, session: IngestSession, now: Moment, outcome: Outcome
    ) -> None:
        """Accept a numbered message if it is the next; a lower one is a duplicate, a higher one has to come again."""
        expected = session.accepted + 1
        if envelope.number < expected:
            self._counts.duplicates += 1
            number = envelope.number if envelope.number in session.refused else session.committed
            outcome.answers.append(session.answer(number))
            return
        if envelope.number > expected and envelope.kind != "skip":
            outcome.answers.append(session.answer(session.committed))
            return
        try:
            message = decode_body(envelope.kind, body)
            if envelope.kind == "batch":
                check_texts(message)
                if self._has_to_wait(message, session, now):
                    outcome.answers.append(session.answer(session.committed))  # it has to come again
                    return
                self._accept_batch(envelope.number, message, session, now, outcome)
            elif envelope.kind == "bye":
                self._accept_bye(envelope.number, checked_bye(message), session, now, outcome)
            elif message.first > expected:
                outcome.answers.append(session.answer(session.committed))
                return
            else:
                self._accept_skip(envelope.number, message, session, now, outcome)
        except WireError as error:
            self._counts.reject(session.owner.id, envelope.session, error)
            receipt = Receipt(envelope.session, envelope.number, error.reason)
            # Through the history, since a client takes a nack to mean that everything before it is committed.
            outcome.add_records([BatchIngested(session.ref, envelope.number)], receipt)
        else:
            self._counts.accept(envelope.kind)
        session.accepted = envelope.number

    def _has_to_wait(self, message: Pushes, session: IngestSession, now: Moment) -> bool:
        """Return whether a batch has to come again: its owner's earlier texts or media still cost all owners time."""
        owner = session.owner.id
        if (message.events or message.alerts) and not self._search_seconds.admit(owner, now.monotonic, 0.0):
            return True
        if not message.media:
            return False
        return sum(sum(one.media.values()) for one in self._sessions.values() if one.owner.id == owner) > MEDIA_WAITING

    def _accept_batch(
        self, number: int, message: Pushes, session: IngestSession, now: Moment, outcome: Outcome
    ) -> None:
        """Apply a batch; its records and its number belong into one transaction."""
        ref, columns = session.ref, decode(message.blocks)
        for frame in message.distributions:
            frame.check()
        message.clock = session.clock.receive(message.clock, now)
        if message.media:
            session.media[number] = len(message.media)
        self._drop_events(message, session.owner.id, now)
        began = self._spent()
        happened = events(ref, message, session.clock.shift)
        self._search_seconds.charge(session.owner.id, now.monotonic, self._spent() - began)
        log_failed_hooks(session, happened, lambda: self._logged_hooks.admit(session.owner.id, now.monotonic))
        late = ref.late or session.clock.age(message.clock, now) > LATE_SECONDS
        if (exported := session.exported) is not None and not ref.late:
            outcome.batches.extend(self._runs.push(exported, message, columns, now, late=late))
            if not late:
                self._derive(exported, columns, outcome)
        ingested = BatchIngested(
            ref,
            number,
            columns,
            session.clock.shift,
            bounded(message.totals.phases),
            session.pause(message.totals.paused),
            late,
            message.distributions,
            message.media,
            message.clock.monotonic,
            message.totals.step_duration,
        )
        outcome.add_records([ingested, *happened], Receipt(ref.id, number))

    def _drop_events(self, message: Pushes, owner: str, now: Moment) -> None:
        """Remove the events and alerts of a batch if its owner sends more of them than others have room for."""
        size = sum(EVENT_BYTES + len(one.kind) + len(one.fields) for one in message.events)
        size += sum(EVENT_BYTES + len(one.title) + len(one.text) for one in message.alerts)
        if not self._event_bytes.admit(owner, now.monotonic, size):
            message.events, message.alerts = [], []
            more = f"more than {byte_size(EVENTS_BURST)} of events at once, or {byte_size(EVENTS_RATE)} a second"
            self._counts.reject(owner, b"", WireError("rate", f"{more}, of one user: they are left out"))

    def _accept_skip(self, number: int, message: Skip, session: IngestSession, now: Moment, outcome: Outcome) -> None:
        """Apply a known gap."""
        ref = session.ref
        session.dropped = max(session.dropped, message.totals.dropped)
        missing = number - session.accepted
        self._counts.gaps += missing
        if (exported := session.exported) is not None and not ref.late:
            outcome.batches.extend(self._runs.skip(exported, message.totals, now))
        fields: dict[str, object] = {"batches": missing}
        if message.values:
            fields["values"] = message.values
        if message.steps is not None:
            fields["steps"] = "{} to {}".format(*message.steps)
        gap = Event(ref.run, ref.attempt, now.wall, "gap", ref.rank, fields=fields)
        ingested = BatchIngested(ref, number, phases=bounded(message.totals.phases))
        outcome.add_records([ingested, gap], Receipt(ref.id, number))

    def _accept_bye(self, number: int, message: Bye, session: IngestSession, now: Moment, outcome: Outcome) -> None:
        """Apply the end of a session."""
        ref = session.ref
        message.clock = session.clock.receive(message.clock, now)
        records: list[Record] = [BatchIngested(ref, number, phases=bounded(message.totals.phases))]
        if (exported := session.exported) is not None:
            outcome.batches.extend(self._runs.close(exported, message, now))
            outcome.add_records(records, Receipt(ref.id, number))
            return
        end, ended = session.end(message)
        outcome.add_records([*records, *ended], Receipt(ref.id, number))
        if ref.late and session.identity is not None:  # after the event, whose cause is in the alert
            dropped = max(session.dropped, message.totals.dropped)
            missed = self._runs.missed(session.identity, ref.attempt, end, session.owner, now, dropped=dropped)
            outcome.batches.extend(missed)

    def _derive(self, exported: RankSession, columns: list[Columns], outcome: Outcome) -> None:
        """Append what follows for all ranks of a run from the parts that each pushes: as if each had pushed the whole."""
        derived = self._runs.derive(exported, columns)
        if not derived:
            return
        outcome.batches.extend(self._runs.apply_derived(derived))
        records = [
            BatchIngested(one.ref, 0, derived[one.training], one.clock.shift)
            for one in self._sessions.values()
            if one.training is not None and one.training in derived and one.greeted
        ]
        if records:
            outcome.add_records(records)
