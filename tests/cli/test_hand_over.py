"""The spools that the command of `trackside run` left, and its end in them."""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from client.messages import later, push, read

from trackside.environment.paths import kept_directory
from trackside.transport.orphaned_spool import orphaned_sessions
from trackside.transport.session import Session
from trackside.wire import Envelope, Identity, ProcessInfo
from trackside_daemon.cli.run.session import hand_over

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_the_end_of_a_command_stands_behind_the_rows_that_it_had_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool, endpoint = tmp_path / "spool", f"ipc://{tmp_path}/push.sock"
    monkeypatch.setenv("TRACKSIDE_SPOOL", str(spool))
    (tmp_path / "push.sock").touch()
    kept = kept_directory(endpoint)
    assert kept is not None
    identity = Identity("run", "name", pid=os.getpid())
    session = Session(identity, spool=spool, about=ProcessInfo(launch="launch"))
    session.greeted, session.asked_at = True, 1.0
    for moment in (0.0, 1.3):  # then the daemon has not answered for more than a second
        for step in range(5):
            push(session, {"loss": 0.5}, step)
        session.drain(later(moment))
    push(session, {"loss": 0.5}, 5)
    session.keep(lambda: later(1.4), kept)
    for one in (session.spool, session.spool._kept):
        assert one is not None
        os.close(one._lock)  # as the kernel does
        one._lock = -1
    command = SimpleNamespace(pid=os.getpid(), code=-signal.SIGKILL)
    hand_over(command, "launch", endpoint)  # type: ignore[arg-type]
    found: list[tuple[Envelope, Any]] = []
    for orphan in orphaned_sessions([spool, kept], None):
        orphan.acknowledged(0)
        found += map(read, orphan.pending)
        orphan.spool.close()
    # The spool has the first two, and what was kept also the third and the end.
    assert sorted({envelope.number for envelope, _ in found}) == [1, 2, 3, 4]
    assert [envelope.kind for envelope, _ in found[:-1]] == ["batch"] * (len(found) - 1)
    assert (found[-1][1].status, found[-1][1].cause) == ("failed", "SIGKILL")
