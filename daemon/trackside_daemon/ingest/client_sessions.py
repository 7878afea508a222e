"""The protocol with the clients: the daemon's only registry of their sessions.

It uses neither sockets nor clocks: frames and the moment of their arrival come in, answers and batches go out.
"""

import logging
from collections.abc import Callable, Iterator, Mapping

from trackside.wire import VERSION, Envelope, Hello, Identity, Nack, Refused, WireError, open_envelope
from trackside_daemon.history.read.attempts import StoredSession
from trackside_daemon.ingest.client_clock import SET_SECONDS
from trackside_daemon.ingest.client_session import ClientSession, Consequences, Receipt, Shared
from trackside_daemon.ingest.connection import Connection
from trackside_daemon.ingest.greeting import MAX_SESSIONS, Greetings
from trackside_daemon.ingest.messages import ANSWERS, KINDS, UNNUMBERED, MessageLimits, read
from trackside_daemon.ingest.requests import Pacing, Questions, RankQuestion
from trackside_daemon.ingest.run_owners import RunOwners
from trackside_daemon.model.metric import Batch
from trackside_daemon.model.records import ENDED
from trackside_daemon.model.session import Process, process_of
from trackside_daemon.model.text import duration
from trackside_daemon.training.end_state import Exit
from trackside_daemon.training.moment import Moment
from trackside_daemon.training.runs import Runs

# A session that has been silent for so long has to greet again; it is forgotten unless it is on the page.
FORGET_SECONDS = 3600.0

log = logging.getLogger("trackside")


class ClientSessions:
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
        most: The most sessions; see `MAX_SESSIONS`.
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
        limits: MessageLimits | None = None,
        restarts: Callable[[], int] = lambda: 0,
        most: int = MAX_SESSIONS,
    ) -> None:
        self._runs = runs
        self._rejected_before = rejected
        self._restarts = restarts
        self._sessions: dict[bytes, ClientSession] = {}
        self._limits = limits or MessageLimits()
        self._questions = Questions()
        self._pacing = Pacing()
        shared = Shared(self._sessions, runs, self._limits)
        owners = owners or RunOwners()
        self._greetings = Greetings(shared, stored, boot, follow, owners=owners, pacing=self._pacing, most=most)
        self._scale: float | None = None
        """Unix time less the time since the start of this machine, which changes only where its clock is set."""

    def receive(self, connection: Connection, frames: list[bytes], now: Moment, *, room: bool = True) -> Consequences:
        """Accept one message.

        Args:
            connection: Where it came from.
            frames: The message.
            now: When it arrived.
            room: The history can store numbered messages. Otherwise they are ignored, and their client sends them again.

        Returns:
            Answers and batches; a batch with a receipt is answered when it is committed.
        """
        consequences, session = Consequences([], self._follow_clock(now)), None
        try:
            envelope = open_envelope(frames)
            kind, id_, number = envelope.kind, envelope.session, envelope.number
            if kind not in KINDS:
                raise WireError("kind", f"only the daemon sends {kind}")  # noqa: TRY301  as those of a bad envelope
            if (
                kind != "hello"
                and (session := self._recipient(connection, envelope, now, consequences, room=room)) is None
            ):
                return consequences
            message, columns = read(kind, frames[2])
            if kind in ANSWERS:
                self._limits.accept(kind)
                self._questions.answered(kind, number, id_, message)
            elif session is None:
                self._greetings.receive_hello(connection, id_, message, now, consequences, room=room)
            elif kind == "beat":
                session.beat(message, now, consequences)
            else:
                session.receive_numbered(envelope, message, columns, now, consequences)
        except WireError as error:
            if session is not None and kind not in UNNUMBERED:
                session.refuse(number, error, consequences)
                return consequences
            self._limits.reject(connection.owner, connection.id, error)
            if error.reason == "version":
                consequences.answer(connection.id, Envelope("refused", bytes(16)), Refused([VERSION]))
            elif error.reason == "owner" and message.late:
                consequences.answer(connection.id, Envelope("nack", id_), Nack(error.reason))
        return consequences

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
        samples = [*self._limits.samples(self._rejected_before(), self._restarts()), *self._runs.rejected()]
        lost = [
            session.end_stray(None, now.wall)
            for session in self._sessions.values()
            if session.stray is not None
            and session.bye is None
            and self._runs.is_lost(session.stray, now.monotonic - session.received_at)
        ]
        consequences = Consequences([], [*moved, *self._runs.tick(now), Batch("ingest", samples, complete=True)])
        consequences.deliver(lost)
        return consequences.batches

    def _is_over(self, id_: bytes) -> bool:
        session = self._sessions.get(id_)
        return session is None or session.had_bye or (session.training is not None and session.training.status in ENDED)

    def pace(self, load: float, now: Moment) -> list[list[bytes]]:
        """Return once a second the messages to clients that are to collect rows for another time.

        Args:
            load: Share of a core that the daemon has used in the last second.
            now: This moment.
        """
        live = [session for session in self._sessions.values() if session.speaks(now)]
        self._pacing.update(len(live), load)
        return self._pacing.messages(live)

    def committed(self, receipt: Receipt) -> list[bytes] | None:
        """Return the answer to a committed message; None if its session has to greet again."""
        session = self._sessions.get(receipt.session)
        if session is None or not session.greeted:
            return None
        session.commit(receipt.number, receipt.refused)
        return session.answer(receipt.number)

    def exited(self, process: Process, ended: Exit, at: float, now: Moment) -> list[Batch]:
        """Apply the exit of a followed process, *at* in Unix seconds."""
        strays = [
            session.end_stray(ended, at)
            for session in self._sessions.values()
            if session.stray is not None and process_of(session.stray) == process
        ]
        consequences = Consequences([], self._runs.exited(process, ended, at, now))
        consequences.deliver(strays)
        return consequences.batches

    def open_spooled(self, hellos: Mapping[bytes, Hello], now: Moment) -> Iterator[Batch]:
        """Open the sessions that have left spools, before any client sends: otherwise a live run looks like one of them.

        Batches come one by one, since each has to be stored before the next session can be resolved.

        Raises:
            UnreadableError: The history cannot be read.
        """
        return self._greetings.open_spooled(hellos, now)

    def forget(self, session: bytes | None = None) -> None:
        """Require a hello of a session, or of all: what was accepted and not committed has to be sent again."""
        for one in self._sessions.values() if session is None else filter(None, [self._sessions.get(session)]):
            one.restart()

    def ask(self, question: RankQuestion, now: Moment) -> list[list[bytes]]:
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
                session.greeted, session.opened_hash = False, None
        return self._runs.move_clock(moved)

    def _recipient(
        self, connection: Connection, envelope: Envelope, now: Moment, consequences: Consequences, *, room: bool
    ) -> ClientSession | None:
        """Return the session that a message is for; None if its client has to send another one first, or again."""
        session, is_numbered = self._sessions.get(envelope.session), envelope.kind not in UNNUMBERED
        if session is not None and session.speaker != connection.owner:
            session = None  # it may not continue the session before its hello shows that both have the same owner
        if session is not None and session.greeted:
            session.peer = connection.id
            session.received_at = now.monotonic
            if session.had_bye:
                # It is alive after all, and its run has to be on the page again.
                session.went_on = True
                session.restart()
            elif is_numbered and room and (session.opened_hash is None or self._lost_name(session)):
                # It greeted while there was no room, so that the history has no `SessionOpened`; or its name is another's.
                session.greeted = False  # what was accepted before is still on its way there
        if session is None or not session.greeted:
            consequences.answer(connection.id, Envelope("hello?", envelope.session))
            return None
        return session if not is_numbered or (room and session.is_next(envelope, consequences)) else None

    def _lost_name(self, session: ClientSession) -> bool:
        """Return whether another owner's run has got the name under which a session off the page would raise alerts."""
        return session.exported is None and session.ref.name in self._runs.names_of_others(session.owner)
