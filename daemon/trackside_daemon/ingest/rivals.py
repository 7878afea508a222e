"""Keeps live processes apart that push as one rank of one run: each but the first gets a run of its own.

The id of that run ends with a tilde and a number, such as ``train-7~2``. No second process is one that the first has started, or
that has started the first; one whose launcher counts another restart; one that begins after the first has ended or fell silent.
"""

from __future__ import annotations

import logging
from itertools import count, islice
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from trackside_daemon.ingest.run_owners import MARK
from trackside_daemon.model.log_fields import log_fields
from trackside_daemon.model.records import Event
from trackside_daemon.model.session import process_of
from trackside_daemon.training.export_limits import cut, numbered

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trackside.wire import Hello
    from trackside_daemon.ingest.run_owners import RunOwners
    from trackside_daemon.ingest.session import IngestSession
    from trackside_daemon.training.moment import Moment
    from trackside_daemon.training.runs import Runs

QUIET_SECONDS = 4.0  # a client that has sent nothing for longer is not live: each sends something every 2.4 s at least

ENDED = 10_000  # runs that the history is not asked for again

KIND = "second_process"  # the event of both runs

log = logging.getLogger("trackside")


class Rival(NamedTuple):
    """The process that was first: the run that both have asked for, its attempt, and the process, for people."""

    run: str
    attempt: int
    process: str


class UndecidedError(Exception):
    """Another process may be live or not: the client is to greet again in a moment."""


class Rivals:
    """Finds the processes that are the same rank of the same run.

    A client may greet at any time, with any number of others: a hello costs one look at the sessions.

    Args:
        sessions: All sessions, by id.
        runs: The runs.
        owners: Binds runs to their owners.
    """

    def __init__(self, sessions: Mapping[bytes, IngestSession], runs: Runs, owners: RunOwners) -> None:
        self._sessions = sessions
        self._runs = runs
        self._owners = owners
        self._ended: set[str] = set()

    def separate(self, entry: IngestSession, hello: Hello, settled: str, now: Moment) -> tuple[Hello, Rival | None]:
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
        stem = cut(hello.identity.run, self._owners.label_bytes - 8) + MARK
        number = settled.removeprefix(stem)
        if settled.startswith(stem) and number.isdecimal():
            return self._renamed(hello, settled, int(number)), None
        if settled and hello.late:  # the run may have gone on since
            return hello, None
        peers = self._peers(entry, hello)
        rival = self._find(peers, entry, hello, now)
        if rival is None or rival.identity is None:
            return hello, None
        first = Rival(hello.identity.run, rival.ref.attempt, f"{rival.identity.pid} on {rival.identity.host}")
        free = next(number for number in count(2) if self._is_free(f"{stem}{number}", peers, entry, hello, now))
        return self._renamed(hello, f"{stem}{free}", free), first

    def _renamed(self, hello: Hello, run: str, number: int) -> Hello:
        name = next(islice(numbered(hello.identity.name, self._owners.label_bytes), number - 1, None))
        return replace(hello, identity=replace(hello.identity, run=run, name=name))

    def _is_free(
        self, run: str, peers: Mapping[str, list[IngestSession]], entry: IngestSession, hello: Hello, now: Moment
    ) -> bool:
        if run in peers:
            hello = replace(hello, identity=replace(hello.identity, run=run))
            if self._find(peers, entry, hello, now) is not None:
                return False
        if not hello.late and (run in self._ended or self._runs.has_ended(run)):
            self._ended = self._ended if len(self._ended) < ENDED else set()
            self._ended.add(run)
            return False
        return self._owners.bind(run, entry.owner.id, now.monotonic)

    def _peers(self, entry: IngestSession, hello: Hello) -> dict[str, list[IngestSession]]:
        """Return the sessions of other processes that are the rank of the hello in a run of their owner, by the run's id."""
        peers: dict[str, list[IngestSession]] = {}
        process, rank = process_of(hello.identity), hello.identity.rank
        for one in self._sessions.values() if entry.family else ():
            if one.ref.rank == rank and one is not entry and one.family and one.ref.process != process:
                peers.setdefault(one.ref.run, []).append(one)
        return peers

    def _find(
        self, peers: Mapping[str, list[IngestSession]], entry: IngestSession, hello: Hello, now: Moment
    ) -> IngestSession | None:
        """Return the one of the peers that is this rank of the run of the hello; None without one."""
        identity, kin = hello.identity, entry.family
        here = peers.get(identity.run, [])
        if any(one.family[0] in kin or kin[0] in one.family for one in here):
            return None
        if hello.late and here:
            attempt = self._runs.attempt(identity, hello.started / 1e9)
            return next((one for one in here if one.ref.attempt == attempt), None)
        return next((one for one in here if self._is_live(one, entry, hello, now)), None)

    def _is_live(self, one: IngestSession, entry: IngestSession, hello: Hello, now: Moment) -> bool:
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


def report(session: IngestSession, rival: Rival, now: Moment) -> list[Event]:
    """Log that a session has got another run than it wanted, and return the events of both runs."""
    ref, host = session.ref, "" if session.identity is None else session.identity.host
    process = f"{ref.process.pid} on {host}"
    text = "run %s rank %d: process %s pushes as this rank, and so does process %s, which gets the run %s (id %s)"
    fields = log_fields(ref.run, ref.name, ref.rank)
    log.warning(text, rival.run, ref.rank, rival.process, process, ref.name, ref.run, extra=fields)
    return [
        Event(rival.run, rival.attempt, now.wall, KIND, ref.rank, fields={"process": process, "run": ref.run}),
        Event(ref.run, ref.attempt, now.wall, KIND, ref.rank, fields={"process": rival.process, "run": rival.run}),
    ]
