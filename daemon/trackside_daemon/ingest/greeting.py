"""A client's hello, from which a session is resolved: whose it is, to which run and attempt it belongs, what its clock shows."""

import logging
from collections.abc import Callable, Iterator, Mapping
from itertools import count, islice
from typing import NamedTuple

from msgspec.structs import replace

from trackside.wire import GATHER_SECONDS, Envelope, Heartbeat, Hello, Identity, Welcome, WireError
from trackside_daemon.history.directory import UnreadableError
from trackside_daemon.history.read.attempts import StoredSession
from trackside_daemon.ingest.client_clock import ClientClock
from trackside_daemon.ingest.client_session import ClientSession, Consequences, Shared, content_hash
from trackside_daemon.ingest.connection import Connection
from trackside_daemon.ingest.messages import Family, checked, family
from trackside_daemon.ingest.requests import Pacing
from trackside_daemon.ingest.run_owners import MARK, RunOwners
from trackside_daemon.model.log_fields import log_fields
from trackside_daemon.model.metric import Batch
from trackside_daemon.model.records import Event
from trackside_daemon.model.session import Owner, correlation_of, process_of
from trackside_daemon.model.text import cut_bytes
from trackside_daemon.training.admission import numbered
from trackside_daemon.training.moment import Moment

MAX_SESSIONS = 4096  # the most sessions; with more, the one that has been silent for longest is forgotten
STORES = ("distributions", "media")  # what is stored of `Pushes` besides rows, events and alerts

QUIET_SECONDS = 4.0  # a client that has sent nothing for longer is not live: each sends something every 2.4 s at least
MAX_ENDED_RUNS = 10_000  # runs that the history is not asked for again
KIND = "second_process"  # the event of both runs
DISTINCT = "give each process an id of its own (TRACKSIDE_RUN_ID), or its rank (RANK)"

log = logging.getLogger("trackside")


class Rival(NamedTuple):
    """The process that was first: the run that both have asked for, its attempt, and the process, for people."""

    run: str
    attempt: int
    process: str


class UndecidedError(Exception):
    """Another process may be live or not: the client is to greet again in a moment."""


class Rivals:
    """Keeps live processes apart that push as one rank of one run: each but the first gets a run of its own.

    The id of that run ends with a tilde and a number, such as ``train-7~2``. No second process is one that the first has
    started, or that has started the first; one whose launcher counts another restart; one that begins after the first has
    ended or fell silent.

    A client may greet at any time, with any number of others: a hello costs one look at the sessions.
    """

    def __init__(self, shared: Shared, owners: RunOwners) -> None:
        self._sessions, self._runs, _ = shared
        self._owners = owners
        self._ended: set[str] = set()

    def separate(self, entry: ClientSession, hello: Hello, settled: str, now: Moment) -> tuple[Hello, Rival | None]:
        """Return the hello with the id and the name of the run that its session gets, and the rival if it gets a new one.

        Args:
            entry: The session, with the owner and the family of its process, and when it greeted first.
            hello: Its hello.
            settled: The run that it got before; empty for a new session.
            now: This moment.

        Raises:
            UndecidedError: It is to greet again.
            UnreadableError: The history cannot be read at the moment.
            WireError: Its owner opens new runs too fast.
        """
        stem, first = cut_bytes(hello.identity.run, self._owners.label_bytes - 8) + MARK, None
        before = settled.removeprefix(stem)
        if settled.startswith(stem) and before.isdecimal():
            number = int(before)
        elif settled and hello.late:  # the run may have gone on since
            return hello, None
        else:
            peers = self._peers(entry, hello)
            rival = self._find(peers, entry, hello, now)
            if rival is None or rival.identity is None:
                return hello, None
            first = Rival(hello.identity.run, rival.ref.attempt, f"{rival.identity.pid} on {rival.identity.host}")
            number = next(free for free in count(2) if self._is_free(f"{stem}{free}", peers, entry, hello, now))
        run = f"{stem}{number}"
        name = next(islice(numbered(hello.identity.name, self._owners.label_bytes), number - 1, None))
        return replace(hello, identity=replace(hello.identity, run=run, name=name)), first

    def _is_free(
        self, run: str, peers: Mapping[str, list[ClientSession]], entry: ClientSession, hello: Hello, now: Moment
    ) -> bool:
        if run in peers:
            hello = replace(hello, identity=replace(hello.identity, run=run))
            if self._find(peers, entry, hello, now) is not None:
                return False
        if not hello.late and (run in self._ended or self._runs.has_ended(run)):
            self._ended = self._ended if len(self._ended) < MAX_ENDED_RUNS else set()
            self._ended.add(run)
            return False
        return self._owners.bind(run, entry.owner.id, now.monotonic)

    def _peers(self, entry: ClientSession, hello: Hello) -> dict[str, list[ClientSession]]:
        """Return the sessions of other processes that are the rank of the hello in a run of their owner, by the run's id."""
        peers: dict[str, list[ClientSession]] = {}
        process, rank = process_of(hello.identity), hello.identity.rank
        for one in self._sessions.values() if entry.family else ():
            if one.ref.rank == rank and one is not entry and one.family and one.ref.process != process:
                peers.setdefault(one.ref.run, []).append(one)
        return peers

    def _find(
        self, peers: Mapping[str, list[ClientSession]], entry: ClientSession, hello: Hello, now: Moment
    ) -> ClientSession | None:
        """Return the one of the peers that is this rank of the run of the hello; None without one."""
        identity, kin = hello.identity, entry.family
        here = peers.get(identity.run, [])
        if any(one.family[0] in kin or kin[0] in one.family for one in here):
            return None
        if hello.late and here:
            attempt = self._runs.attempt(identity, hello.started / 1e9)
            return next((one for one in here if one.ref.attempt == attempt), None)
        return next((one for one in here if self._is_live(one, entry, hello, now)), None)

    def _is_live(self, one: ClientSession, entry: ClientSession, hello: Hello, now: Moment) -> bool:
        if one.identity is None or one.identity.attempt != hello.identity.attempt or one.ended or one.ref.late:
            return False
        exists = self._runs.exists(one.identity, one.exported)
        if exists is False:
            return False
        if now.monotonic - one.received_at > QUIET_SECONDS:
            one.restart()  # should it speak again, it has to greet, and is the second process then
            return False
        if exists is None and one.received_at <= entry.greets_since:
            raise UndecidedError
        return True


def report(session: ClientSession, rival: Rival, now: Moment) -> list[Event]:
    """Log that a session has got another run than it wanted, and return the events of both runs."""
    ref, host = session.ref, "" if session.identity is None else session.identity.host
    process = f"{ref.process.pid} on {host}"
    text = "run %s rank %d: process %s pushes as this rank, and so does process %s, which gets the run %s (id %s)"
    log.warning(text, rival.run, ref.rank, rival.process, process, ref.name, ref.run, extra=ref.log_fields)
    return [
        Event(rival.run, rival.attempt, now.wall, KIND, ref.rank, fields={"process": process, "run": ref.run}),
        Event(ref.run, ref.attempt, now.wall, KIND, ref.rank, fields={"process": rival.process, "run": rival.run}),
    ]


class Greetings:
    """Resolves sessions at their hellos; arguments as of `ClientSessions`, which receives the messages after them."""

    def __init__(
        self,
        shared: Shared,
        stored: Callable[[bytes], StoredSession | None],
        boot: str,
        follow: Callable[[Connection, Identity, Moment], int | None],
        *,
        owners: RunOwners,
        pacing: Pacing,
        most: int,
    ) -> None:
        self._shared = shared
        self._sessions, self._runs, self._limits = shared
        self._stored = stored
        self._boot = boot
        self._follow = follow
        self._owners = owners
        self._pacing = pacing
        self._most = most
        self._rivals = Rivals(shared, owners)

    def receive_hello(
        self,
        connection: Connection,
        id_: bytes,
        greeting: Hello,
        now: Moment,
        consequences: Consequences,
        *,
        room: bool,
    ) -> None:
        """Resolve a session, by its id, at its hello; arguments as of `ClientSessions.receive`.

        Raises:
            WireError: The session is another owner's, or this one opens too many sessions or runs.
        """
        pid = self._follow(connection, greeting.identity, now)
        known, content = self._sessions.get(id_), content_hash(greeting, pid, greeting.acked, greeting.late)
        if known is not None and known.repeats(connection, content):
            # Its welcome is on the way: the client asks again while this daemon, or the client, is busy.
            known.received_at = now.monotonic
            known.beat(Heartbeat(greeting.clock), now, consequences, "hello")
            self._welcome(known, known.ref.run, consequences)
            return
        hello = checked(greeting, self._runs.bounded(greeting.identity))
        if pid is not None:
            hello = replace(hello, identity=replace(hello.identity, pid=pid))
            self._runs.watch(process_of(hello.identity))
        owner = self._owners.owner(connection, id_, late=hello.late, verified=pid is not None)
        try:
            session, stored, hello, rival = self._admit(id_, hello, owner, family(greeting), now)
            self._limits.accept("hello")
            if hello.late and not session.peer:
                session.is_logged = self._limits.logged_spools.admit(owner.id, now.monotonic)
                if session.is_logged:
                    identity = hello.identity
                    text, fields = (
                        "run %s rank %d: reading the spool that its process left",
                        log_fields(identity.run, identity.name, identity.rank, correlation_id=correlation_of(hello)),
                    )
                    log.info(text, identity.name, identity.rank, extra=fields)
            session.peer, session.speaker = connection.id, connection.owner
            self._resolve(session, hello, stored, now, consequences, rival=rival, room=room)
        except UndecidedError:
            consequences.answer(connection.id, Envelope("hello?", id_))
        except UnreadableError:
            # The client gets no answer and greets again in a moment.
            if (known := self._sessions.get(id_)) is not None:
                known.greeted = False  # what was accepted before is still on its way to the history
        else:
            session.greeting_hash = content
            self._welcome(session, hello.identity.run, consequences)

    def _welcome(self, session: ClientSession, run: str, consequences: Consequences) -> None:
        """Answer a hello, with the run, by its id, that its session got."""
        welcome = Welcome(STORES, run if session.why_other_run else "", session.why_other_run)
        consequences.answer(session.peer, Envelope("welcome", session.ref.id, session.committed), welcome)
        session.gather_milliseconds = round(1000 * GATHER_SECONDS)
        if not session.ref.late:
            consequences.answers.extend(self._pacing.messages([session]))

    def open_spooled(self, hellos: Mapping[bytes, Hello], now: Moment) -> Iterator[Batch]:
        """Open the sessions that have left spools; see `ClientSessions.open_spooled`."""
        for id_, hello in hellos.items():
            consequences, owner = Consequences([], []), self._owners.owner(None, id_, late=True)
            try:
                late = replace(checked(hello, self._runs.bounded(hello.identity)), late=True)
                session, stored, late, rival = self._admit(id_, late, owner, family(late), now)
            except WireError as error:
                self._limits.reject(owner.id, id_, error)
                continue
            self._resolve(session, late, stored, now, consequences, rival=rival, room=True)
            yield from consequences.batches

    def _admit(
        self, id_: bytes, hello: Hello, owner: Owner, kin: Family, now: Moment
    ) -> tuple[ClientSession, StoredSession | None, Hello, Rival | None]:
        """Return the entry of a session, its state in the history, the hello with the id of the run that it gets, and why.

        Raises:
            UndecidedError: It is to greet again: another process may be the same rank.
            WireError: The session is another owner's, or this one opens too many sessions or runs.
        """
        session = self._sessions.get(id_)
        stored = self._stored(id_) if session is None or not session.greeted else None
        before = session.owner.id if session is not None else stored.owner if stored is not None else None
        if hello.late and before == "":
            owner = Owner()  # it has pushed over TCP without a key, as the writer of its spool may, too
        if before not in {None, owner.id}:
            raise WireError("owner", "it continues a session of another user")
        is_new = session is None and stored is None
        if is_new:
            self._limits.open_session(owner.id, now.monotonic)
        wanted = hello.identity.run
        run = self._owners.claim(wanted, owner.id, now.monotonic, "" if stored is None else stored.unowned)
        if run != wanted:
            hello = replace(hello, identity=replace(hello.identity, run=run))
            if is_new:
                self._limits.redirect(owner.id, wanted, run)
        if session is None:
            if len(self._sessions) >= self._most:
                # There are fewer sessions on the page, so that one of the others is evicted.
                evicted = min(self._sessions.values(), key=lambda one: (one.exported is not None, one.received_at))
                del self._sessions[evicted.ref.id]
            session = self._sessions[id_] = ClientSession(id_, self._shared)
        session.owner, session.received_at = owner, now.monotonic
        session.family, session.greets_since = kin, session.greets_since or now.monotonic
        settled = session.ref.run or ("" if stored is None else stored.run)
        hello, rival = self._rivals.separate(session, hello, settled, now)
        if run != wanted:
            session.why_other_run = "the run that it asked for belongs to another user"
        elif rival is not None:
            also = f"process {rival.process} pushes as rank {hello.identity.rank} of the run {wanted}, too"
            session.why_other_run = f"{also}; {DISTINCT}"
        return session, stored, hello, rival

    def _resolve(
        self,
        session: ClientSession,
        hello: Hello,
        stored: StoredSession | None,
        now: Moment,
        consequences: Consequences,
        *,
        rival: Rival | None,
        room: bool,
    ) -> None:
        """Resolve a session that was admitted, also one over a limit of the page, and deliver what follows."""
        same_boot = hello.identity.boot == self._boot
        session.clock = ClientClock(hello.clock, now, same_boot=same_boot, late=hello.late)
        session.greeted = True
        session.commit(max(hello.acked, 0 if stored is None else stored.committed))
        if stored is not None:
            session.had_bye = stored.ended and not session.went_on and not hello.late
        if not session.had_bye:  # otherwise it only missed the ack of its bye, and ends with the welcome
            attached: list[Batch] = []
            ours = session.clock.corrected_hello(hello)
            attempt = session.ref.attempt if stored is None else stored.attempt
            is_known = stored is not None or session.opened_hash is not None
            if not hello.late:
                # A spool is opened before its client speaks, which may live all the same.
                goes_on = attempt if is_known and (stored is not None or session.ref.late) else None
                session.training, attached = self._runs.open(session.training, ours, now, goes_on, session.owner)
            if (exported := session.exported) is not None:
                name, attempt = exported.run.name, exported.run.attempt
            else:
                name = self._runs.name(hello.identity, session.owner)
                if not is_known:
                    attempt = self._runs.attempt(hello.identity, ours.started / 1e9 if hello.late else None)
            session.resolve(hello, name, attempt, now, consequences, room=room)
            consequences.batches.extend(attached)
        if rival is not None:
            consequences.deliver(report(session, rival, now))
