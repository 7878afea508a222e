"""The protocol with the clients: greets sessions, takes their messages in order, and says what to answer.

It knows neither sockets nor clocks: frames and the moment of their arrival come in, answers and batches go out.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from trackside.wire import REASONS, VERSION, Envelope, Refused, WireError, decode_body, encode, open_envelope
from trackside_daemon.history.directory import UnreadableError
from trackside_daemon.ingest.client_commands import ANSWERS, Questions
from trackside_daemon.ingest.session import Receipt, Session, shift, told
from trackside_daemon.model.metric import Batch, Metric, Sample
from trackside_daemon.model.records import BatchIngested, Event, Record, RunState, SessionOpened
from trackside_daemon.training.rank import End
from trackside_daemon.training.run import process_of
from trackside_daemon.training.verdict import verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from trackside.wire import Bye, Hello, Identity, Pushes
    from trackside_daemon.history.read.sessions import StoredSession
    from trackside_daemon.ingest.client_commands import Question
    from trackside_daemon.training.moment import Moment
    from trackside_daemon.training.run import Process
    from trackside_daemon.training.runs import Runs
    from trackside_daemon.training.verdict import Exit

MESSAGES = Metric("trackside_ingest_messages_total", "counter", "Messages taken from clients.", ("kind",))
REJECTED = Metric(
    "trackside_ingest_rejected_total",
    "counter",
    "Messages refused, and connections without a known key, by reason.",
    ("reason",),
)
DUPLICATES = Metric("trackside_ingest_duplicates_total", "counter", "Batches that had been taken already.")
GAPS = Metric(
    "trackside_ingest_gaps_total", "counter", "Batches that are missing for good: the client had to drop them."
)

UNNUMBERED = ("beat", *ANSWERS)
KINDS = ("hello", "batch", "skip", "bye", *UNNUMBERED)
LATE_SECONDS = 60.0
"""A batch that is older is no news: the page does not show it."""

SPEAKING_SECONDS = 10.0
"""Who has been silent for longer is not asked anything."""

FORGET_SECONDS = 3600.0
"""A session that is silent for so long is forgotten; should it speak again, it is asked for a hello."""

SESSIONS = 4096
"""With more, the one that is silent for longest is forgotten."""

REFUSED = 64
"""How many refusals of a session are remembered, in case the nack was lost: as many as can be under way."""

TOLD = 1000
"""How many pairs of sender and reason are remembered, so that each is logged once; later ones are only counted."""

log = logging.getLogger("trackside")


class Sessions:
    """All client sessions.

    Args:
        runs: Takes what the messages say.
        recall: Tells what a daemon before this one kept of a session.
        boot: This machine's boot id: a client of the same boot has the same clock.
        meet: Follows the process that greets on a connection to its end, which is told with `exited`; tells its pid as
            this machine counts, or None when it cannot be followed.
        rejected: What was refused before it came here, by reason.
    """

    def __init__(
        self,
        runs: Runs,
        recall: Callable[[bytes], StoredSession | None] = lambda _: None,
        boot: str = "",
        meet: Callable[[bytes, Identity, Moment], int | None] = lambda *_: None,
        rejected: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        self._runs = runs
        self._recall = recall
        self._boot = boot
        self._meet = meet
        self._rejected_before = rejected
        self._sessions: dict[bytes, Session] = {}
        self._messages = dict.fromkeys(KINDS, 0)
        self._rejected = dict.fromkeys((*REASONS, "kind"), 0)
        self._duplicates = self._gaps = 0
        self._resumed: set[bytes] = set()
        self._told: set[tuple[bytes, str]] = set()
        self._questions = Questions()

    def receive(
        self, peer: bytes, frames: list[bytes], now: Moment, *, room: bool = True
    ) -> tuple[list[list[bytes]], list[Batch]]:
        """Take one message.

        Args:
            peer: The ROUTER's name for the connection.
            frames: The message.
            now: When it arrived.
            room: Whether numbered messages can be kept. When not, they are left, and their client sends them again.

        Returns:
            Answers to send now, and batches; a batch with a receipt is answered when it is committed.
        """
        try:
            envelope = open_envelope(frames)
            return self._take(peer, envelope, frames[2], now, room=room)
        except WireError as error:
            self._reject(peer, error)
            if error.reason != "version":
                return [], []
            return [[peer, *encode(Envelope("refused", bytes(16)), Refused([VERSION]))]], []

    def tick(self, now: Moment) -> list[Batch]:
        """Once a second: what time alone changes, and the daemon's own counters."""
        self._sessions = {
            key: one for key, one in self._sessions.items() if now.monotonic - one.heard_at < FORGET_SECONDS
        }
        samples = [Sample(MESSAGES, (kind,), count) for kind, count in self._messages.items()]
        rejected = {**self._rejected, **self._rejected_before()}
        samples += [Sample(REJECTED, (reason,), count) for reason, count in rejected.items()]
        samples += [Sample(DUPLICATES, (), self._duplicates), Sample(GAPS, (), self._gaps), *self._runs.rejected()]
        return [*self._runs.tick(now), Batch("ingest", samples, complete=True), *self._lost(now)]

    def committed(self, receipt: Receipt) -> list[bytes] | None:
        """The pipeline is done with the batch that bore this receipt: what to answer, if its session is still known."""
        session = self._sessions.get(receipt.session)
        if session is None:
            return None
        session.commit(receipt.number)
        if receipt.refused:
            session.refused = {**dict(list(session.refused.items())[-REFUSED:]), receipt.number: receipt.refused}
        return session.answer(receipt.number)

    def exited(self, process: Process, ended: Exit, at: float, now: Moment) -> list[Batch]:
        """A process that `meet` follows is over, since *at* in Unix time."""
        records: list[Record] = []
        for one in self._sessions.values():
            if one.stray is not None and process_of(one.stray) == process:
                one.stray = None
                records.append(RunState(one.run, one.attempt, *verdict(one.bye, ended), at))
        return [*self._runs.exited(process, ended, at, now), *([Batch("ingest", records=records)] if records else [])]

    def foretell(self, heads: Mapping[bytes, Hello], now: Moment) -> Iterator[Batch]:
        """Before anybody speaks: what will be told late, so that a run that lives is not taken for one of those.

        One by one, since each has to be known before the next can be placed.

        Raises:
            UnreadableError: Nobody can tell what is known of them.
        """
        for id_, hello in heads.items():
            known = self._recall(id_)
            session = self._sessions[id_] = Session(id_)
            session.heard_at, session.late = now.monotonic, True
            if known is not None:
                session.commit(known.committed)
                session.attempt = known.attempt
            yield from self._open(session, replace(hello, late=True), now, known)

    def forget(self, session: bytes | None = None) -> None:
        """Ask a session, or every one, for a hello: what was accepted and not committed has to come again."""
        if session is None:
            self._sessions.clear()
        else:
            self._sessions.pop(session, None)

    def ask(self, question: Question, now: Moment) -> list[list[bytes]]:
        """What to send to ask the ranks of a run that speak here; of several sessions of a rank the one heard last."""
        last: dict[int, Session] = {}
        for one in sorted(self._sessions.values(), key=lambda one: one.heard_at):
            if (
                one.run == question.run
                and (question.ranks is None or one.rank in question.ranks)
                and not (one.late or one.over)
                and now.monotonic - one.heard_at < SPEAKING_SECONDS
            ):
                last[one.rank] = one
        question.begin(frozenset(last))
        return [
            [one.peer, *encode(Envelope(question.kind, one.id, self._questions.number(question)))]
            for one in last.values()
        ]

    def _take(
        self, peer: bytes, envelope: Envelope, body: bytes, now: Moment, *, room: bool
    ) -> tuple[list[list[bytes]], list[Batch]]:
        if envelope.kind not in KINDS:
            raise WireError("kind", f"{envelope.kind} is the daemon's to say")
        session = self._sessions.get(envelope.session)
        if envelope.kind == "hello":
            return self._greet(peer, envelope, body, now, room=room)
        if session is None:
            return [[peer, *encode(Envelope("hello?", envelope.session))]], []
        session.peer, session.heard_at = peer, now.monotonic
        if session.over and len(self._resumed) < SESSIONS:  # it is not, and its run has to be shown again
            self._resumed.add(envelope.session)
            del self._sessions[envelope.session]
            return [[peer, *encode(Envelope("hello?", envelope.session))]], []
        if envelope.kind in UNNUMBERED:
            return [], self._unnumbered(envelope, body, session, now)
        if room and not session.opened:  # it greeted when there was none, so that the history does not know it
            del self._sessions[envelope.session]
            return [[peer, *encode(Envelope("hello?", envelope.session))]], []
        return self._in_order(envelope, body, session, now) if room else ([], [])

    def _unnumbered(self, envelope: Envelope, body: bytes, session: Session, now: Moment) -> list[Batch]:
        said = decode_body(envelope.kind, body)
        self._messages[envelope.kind] += 1
        if envelope.kind == "beat":
            return self._runs.beat(envelope.session, said, now)
        self._questions.answered(envelope.kind, envelope.number, session.rank, said)
        return []

    def _greet(
        self, peer: bytes, envelope: Envelope, body: bytes, now: Moment, *, room: bool
    ) -> tuple[list[list[bytes]], list[Batch]]:
        hello = self._met(peer, decode_body("hello", body), now)
        self._messages["hello"] += 1
        try:
            return self._welcome(peer, envelope.session, hello, now, room=room)
        except UnreadableError:  # unanswered, it asks again in a moment
            self._sessions.pop(envelope.session, None)
            return [], []

    def _met(self, peer: bytes, hello: Hello, now: Moment) -> Hello:
        """The same, its pid as this machine counts where the connection tells who it is: then its end will be told."""
        pid = self._meet(peer, hello.identity, now)
        if pid is None:
            return hello
        identity = replace(hello.identity, pid=pid)
        self._runs.watch(process_of(identity))
        return replace(hello, identity=identity)

    def _welcome(
        self, peer: bytes, id_: bytes, hello: Hello, now: Moment, *, room: bool
    ) -> tuple[list[list[bytes]], list[Batch]]:
        if id_ not in self._sessions and len(self._sessions) >= SESSIONS:
            del self._sessions[min(self._sessions, key=lambda key: self._sessions[key].heard_at)]
        known = None if id_ in self._sessions else self._recall(id_)
        session = self._sessions.setdefault(id_, Session(id_))
        session.commit(max(hello.acked, 0 if known is None else known.committed))
        if hello.late and not session.peer:
            log.info("run %s rank %d: what its process has left is taken", hello.identity.name, hello.identity.rank)
        session.peer, session.heard_at = peer, now.monotonic
        welcome = [peer, *encode(Envelope("welcome", id_, session.committed))]
        if known is not None:
            session.over = known.ended and id_ not in self._resumed and not hello.late
            session.attempt = known.attempt
        if session.over:  # it has not heard that its bye was committed, and ends when it does
            return [welcome], []
        session.late = hello.late
        batches = [] if hello.late else self._runs.hello(id_, hello, now, None if known is None else known.attempt)
        opened = self._open(session, hello, now, known)
        if room:
            return [welcome], [*opened, *batches]
        session.opened = 0  # nothing more can wait to be written: it is asked again when there is room
        return [welcome], batches

    def _open(self, session: Session, hello: Hello, now: Moment, known: StoredSession | None) -> list[Batch]:
        """What the history is told of a session; also of those that are over a limit of the page.

        Told once: while the disk is full, clients greet every other second, and what the history is told waits.
        """
        identity, bounded = hello.identity, self._runs.bounded(hello.identity)
        place = self._runs.place(session.id)
        if place is not None:
            name, session.attempt = place
        elif known is None and not session.opened:
            since = hello.started / 1e9 if hello.late else None
            name, session.attempt = identity.name, self._runs.attempt(bounded, since)
        else:
            name = identity.name
        session.stray = identity if place is None and not hello.late else None
        session.identity = bounded
        session.run, session.rank = bounded.run, bounded.rank  # as on the page, and in what is told of its state
        there = hello.late or identity.boot == self._boot  # of what is late nobody knows by how much its clock differed
        session.offset = 0.0 if there else now.wall - hello.clock.wall / 1e9
        hello = replace(hello, identity=replace(identity, run=bounded.run, attempt=bounded.attempt, rank=bounded.rank))
        said = (name, session.attempt, hello.identity, hello.config, hello.tags, hello.total_steps, hello.about)
        opened = hash(msgspec.msgpack.encode(said)) or 1
        if opened == session.opened:
            return []
        session.opened = opened
        record = SessionOpened(session.id, hello, name, session.attempt, now.wall, session.offset)
        return [Batch("ingest", records=[record])]

    def _lost(self, now: Moment) -> list[Batch]:
        """The ends of processes that `Runs` does not know, since they are over a limit."""
        records: list[Record] = []
        for one in self._sessions.values():
            if (
                one.stray is not None
                and one.bye is None
                and self._runs.is_lost(one.stray, now.monotonic - one.heard_at)
            ):
                one.stray = None
                records.append(RunState(one.run, one.attempt, *verdict(None, None), now.wall))
        return [Batch("ingest", records=records)] if records else []

    def _in_order(
        self, envelope: Envelope, body: bytes, session: Session, now: Moment
    ) -> tuple[list[list[bytes]], list[Batch]]:
        """Numbered messages: only the next is taken; an older one is known, and a later one is asked for again."""
        expected = session.accepted + 1
        if envelope.number < expected:
            self._duplicates += 1
            return [session.answer(envelope.number if envelope.number in session.refused else session.committed)], []
        again = [session.answer(session.committed)]
        if envelope.number > expected and envelope.kind != "skip":
            return again, []
        receipt = Receipt(envelope.session, envelope.number)
        batches: list[Batch] = []
        records: list[Record] = [BatchIngested(envelope.session, envelope.number)]
        try:
            message = decode_body(envelope.kind, body)
            if envelope.kind == "skip" and message.first > expected:
                return again, []
            batches, records = self._say(envelope, message, session, now)
        except WireError as error:
            self._reject(envelope.session, error)
            receipt = receipt._replace(refused=error.reason)
        else:
            self._messages[envelope.kind] += 1
            self._gaps += envelope.number - session.accepted if envelope.kind == "skip" else 0
        session.accepted = envelope.number
        return [], [*batches, Batch("ingest", records=records, receipt=receipt)]

    def _say(self, envelope: Envelope, message: Any, session: Session, now: Moment) -> tuple[list[Batch], list[Record]]:
        """What follows from a message, and what of it belongs into one transaction with its number."""
        if envelope.kind == "batch":
            behind = session.shift = shift(message.clock, session.offset)
            batches: list[Batch] = []
            if late := session.late:
                for block in message.blocks:
                    block.columns()
            else:
                age = now.wall - message.clock.wall / 1e9 - session.offset
                late = age > LATE_SECONDS
                batches = self._runs.pushes(session.id, message, now, late=late)
            more = [] if late else self._whole(session, message)
            return [*batches, *more], [
                BatchIngested(
                    *(session.id, envelope.number, message.blocks, behind),
                    *(message.totals.phases, message.totals.paused, late),
                ),
                *told(session, message, behind),
            ]
        taken = BatchIngested(session.id, envelope.number, phases=message.totals.phases)
        if envelope.kind == "skip":
            fields = {"batches": envelope.number - session.accepted}
            gap = Event(session.run, session.attempt, now.wall, "gap", session.rank, fields=fields)
            batches = [] if session.late else self._runs.skip(session.id, message.totals, now)
            return batches, [taken, gap]
        batches = self._runs.bye(session.id, message, now, session.offset)
        records = self._end(session, message)
        for one in records if session.late else ():
            if isinstance(one, RunState) and one.ended is not None and session.identity is not None:
                end = End(one.state, one.cause, one.ended)
                batches += self._runs.missed(session.identity, session.attempt, end, now)
        return batches, [taken, *records]

    def _whole(self, session: Session, message: Pushes) -> list[Batch]:
        """What all ranks have told in parts, now that this is here: as if each had pushed the whole."""
        batches, made = self._runs.whole(session.id, message)
        records = [
            BatchIngested(id_, 0, blocks, one.shift) for id_, blocks in made.items() if (one := self._sessions.get(id_))
        ]
        return [*batches, *([Batch("ingest", records=records)] if records else [])]

    def _end(self, session: Session, bye: Bye) -> Sequence[Record]:
        """How a run ended that `Runs` does not know: it is over a limit, or the word comes late."""
        if self._runs.place(session.id) is not None:
            return ()
        session.bye = bye
        ended = bye.clock.wall / 1e9 + session.offset
        state, cause = verdict(bye, None)
        standing = RunState(session.run, session.attempt, state, cause, ended, late=session.late)
        if not session.late:
            return (standing,)
        log.info("run %s rank %d ended: %s", session.run, session.rank, ": ".join(filter(None, (state, cause))))
        fields = {"state": state, "cause": cause}
        return (Event(session.run, session.attempt, ended, "rank_ended", session.rank, fields=fields), standing)

    def _reject(self, who: bytes, error: WireError) -> None:
        """Count a refusal, and log it once for each sender and reason."""
        self._rejected[error.reason] += 1
        if (who, error.reason) not in self._told and len(self._told) < TOLD:
            self._told.add((who, error.reason))
            log.warning("a message was refused: %s; further ones from there are only counted", error)
