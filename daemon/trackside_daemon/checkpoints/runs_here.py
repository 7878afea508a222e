"""The runs with a process on this machine."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from trackside_daemon.model.records import ENDED

if TYPE_CHECKING:
    from trackside_daemon.model.records import RunState, SessionOpened

RUNS = 256  # most runs that are followed
KEPT_SECONDS = 86400.0  # how long an ended run is followed
RETURN_SECONDS = 60.0  # time in which the processes of a run come back to a new daemon


class RunHere(NamedTuple):
    """A run.

    Attributes:
        name: Its exported name.
        attempt: Its last attempt.
        directory: The working directory of its process, for relative paths.
        uid: The user whose files are read; None for all, since that is the daemon's own. A run of an owner without a user
            of this machine, as over TCP, is not followed: this daemon would read for it what only the daemon may.
        started: When the attempt began, in Unix seconds.
        ended: When it ended, in monotonic seconds; None while it is alive.
    """

    name: str
    attempt: int
    directory: str
    uid: int | None
    started: float
    ended: float | None = None


class RunsHere:
    """The runs with a process on this machine, by id.

    Args:
        boot: The boot id of this machine.
    """

    def __init__(self, boot: str) -> None:
        self._boot = boot
        self._runs: dict[str, RunHere] = {}

    def get(self, run: str) -> RunHere | None:
        """Return a run by its id; None if it has no process on this machine."""
        return self._runs.get(run)

    def all(self) -> dict[str, RunHere]:
        """Return the runs by id, in the order in which they were first seen."""
        return dict(self._runs)

    def restore(self, id_: str, name: str, attempt: int, owner: str, now: float) -> None:
        """Follow a run of an earlier daemon, which has ended unless a process of it comes back."""
        if (uid := _uid(owner)) is not None:
            self._runs[id_] = RunHere(name, attempt, "", _other(uid), 0.0, now + RETURN_SECONDS)

    def open(self, record: SessionOpened) -> None:
        """Apply the begin of a session."""
        session, hello = record.session, record.hello
        run = self._runs.get(session.run)
        owner = os.getuid() if record.owner is None else _uid(record.owner.id)
        if hello.identity.boot != self._boot or owner is None or (run is not None and run.attempt > session.attempt):
            return
        directory = "" if hello.about is None else hello.about.directory
        began = run.started if run is not None and run.attempt == session.attempt else record.time
        self._runs[session.run] = RunHere(session.name, session.attempt, directory, _other(owner), began)
        while len(self._runs) > RUNS:
            del self._runs[next(iter(self._runs))]

    def end(self, state: RunState, now: float) -> None:
        """Apply the end of an attempt."""
        run = self._runs.get(state.run)
        if run is not None and state.attempt == run.attempt and state.state in ENDED and run.ended is None:
            self._runs[state.run] = run._replace(ended=now)

    def forget(self, now: float) -> None:
        """Forget the runs that ended long ago."""
        ends = {id_: now if run.ended is None else run.ended for id_, run in self._runs.items()}
        self._runs = {id_: run for id_, run in self._runs.items() if now - ends[id_] < KEPT_SECONDS}

    def is_over(self, id_: str, attempt: int, now: float) -> bool:
        """Return whether no process of an attempt is left."""
        run = self._runs.get(id_)
        return run is None or run.attempt > attempt or (run.ended is not None and now >= run.ended)


def _uid(owner: str) -> int | None:
    """Return the number of the user ``uid:NUMBER``; None of another owner."""
    kind, _, number = owner.partition(":")
    return int(number) if kind == "uid" and number.isdecimal() else None


def _other(uid: int) -> int | None:
    return None if uid == os.getuid() else uid
