"""The spools that the command of `trackside run` left, and its end in them."""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import pytest
from client.messages import later, push, read

from trackside.environment.paths import kept_directory
from trackside.transport.orphaned_spool import orphaned_sessions
from trackside.transport.session import Session
from trackside.wire import Envelope, Identity, ProcessInfo
from trackside_daemon.cli.run.command_daemon import CommandDaemon
from trackside_daemon.cli.run.session import hand_over
from trackside_daemon.cli.run.summary import CommandSummary

if TYPE_CHECKING:
    from pathlib import Path

    from trackside.transport.orphaned_spool import OrphanedSession
    from trackside_daemon.cli.run.signal_forwarding import Signals
    from trackside_daemon.cli.sources.api_source import ApiSource


class Killed(NamedTuple):
    """The session of a command that is killed, and where it spools and keeps its last pushes."""

    session: Session
    spool: Path
    kept: Path

    def push(self, count: int) -> None:
        for step in range(count):
            push(self.session, {"loss": 0.5}, step)

    @property
    def endpoint(self) -> str:
        return f"ipc://{self.kept.with_suffix('.sock')}"

    def die(self) -> None:
        for one in filter(None, (self.session.spool, self.session.spool._kept)):
            if one._lock >= 0:
                os.close(one._lock)  # as the kernel does
                one._lock = -1

    def handed_over(self) -> list[tuple[Envelope, Any]]:
        """Kill the command; return what is in its files once its end is in them."""
        self.die()
        command = SimpleNamespace(pid=os.getpid(), code=-signal.SIGKILL)
        hand_over(command, "launch", self.endpoint)  # type: ignore[arg-type]
        found: list[tuple[Envelope, Any]] = []
        for orphan in orphaned_sessions([self.spool, self.kept], None):
            orphan.acknowledged(0)
            found += map(read, orphan.pending)
            orphan.spool.close()
        return found


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Killed:
    monkeypatch.setenv("TRACKSIDE_SPOOL", str(tmp_path / "spool"))
    (tmp_path / "push.sock").touch()
    kept = kept_directory(f"ipc://{tmp_path}/push.sock")
    assert kept is not None
    identity = Identity("run", "name", pid=os.getpid())
    session = Session(identity, spool=tmp_path / "spool", about=ProcessInfo(launch="launch"))
    session.greeted, session.asked_at = True, 1.0
    return Killed(session, tmp_path / "spool", kept)


def test_the_end_of_a_command_stands_behind_the_rows_that_it_had_kept(command: Killed) -> None:
    for moment in (0.0, 1.3):  # then the daemon has not answered for more than a second
        command.push(5)
        command.session.drain(later(moment))
    command.push(1)
    command.session.keep(lambda: later(1.4), command.kept)
    found = command.handed_over()
    # The spool has the first two, and what was kept also the third and the end.
    assert sorted({envelope.number for envelope, _ in found}) == [1, 2, 3, 4]
    assert [envelope.kind for envelope, _ in found[:-1]] == ["batch"] * (len(found) - 1)
    assert (found[-1][1].status, found[-1][1].cause) == ("failed", "SIGKILL")


def test_the_end_of_a_command_is_read_where_it_had_kept_more_before(command: Killed) -> None:
    for number, count in enumerate((40, 1)):
        command.push(count)
        command.session.keep(lambda: later(0.1), command.kept)
        if not number:
            command.session.drain(later(0.2))
            command.session.acknowledged(1)
    found = command.handed_over()
    assert [(envelope.kind, envelope.number) for envelope, _ in found] == [("skip", 1), ("batch", 2), ("bye", 3)]
    assert (found[-1][1].status, found[-1][1].cause) == ("failed", "SIGKILL")


class Reading:
    """A daemon that reads what the command kept while `trackside run` waits for it, and the signals that end the wait."""

    live = True
    ending = 0

    def __init__(self, command: Killed) -> None:
        self._command = command
        self._reads = orphaned_sessions([command.kept], None)
        self._orphan: OrphanedSession | None = None

    def get(self, _: float) -> None:
        if self._orphan is None:
            self._orphan = next(self._reads)
        else:
            self._orphan.acknowledged(self._orphan.spool.last)
            self._orphan.spool.close()

    def ask(self, question: Any) -> dict[str, Any]:
        step = 137 if list(self._command.kept.glob("*.spool")) else 153
        run = {"id": "run", "name": "name", "state": "failed", "cause": "", "started": 0.0, "ended": 1.0, "step": step}
        alert = {"alert": "TrainingProcessDied"}
        return {"runs": [run], "alerts": [alert], "events": [], "run": "run", "checkpoints": []}


def test_a_summary_waits_until_a_daemon_has_read_what_a_killed_command_kept(command: Killed) -> None:
    command.push(5)
    command.session.keep(lambda: later(0.1), command.kept)
    command.die()
    reading = Reading(command)
    daemon = CommandDaemon(command.endpoint, cast("ApiSource", reading), "")
    facts = CommandSummary("launch", daemon, None, "").facts(cast("Signals", reading), print)
    assert facts.step == 153
    assert list(command.kept.iterdir()) == []
