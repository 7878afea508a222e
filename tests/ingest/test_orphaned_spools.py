"""The daemon's counts of the orphaned spools that it reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from client.messages import CLOCK, a_session, push
from processes import eventually

from trackside.transport.orphaned_spool import orphaned_sessions
from trackside.transport.sender import Sender, SenderIntervals
from trackside_daemon.ingest.orphaned_spools import OrphanedSpools

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pytest


def torn(spool: Path) -> None:
    """Leave a spool whose last bytes are damaged."""
    session = a_session(spool)
    push(session, {"loss": 1.0}, 1)
    session.drain(CLOCK)
    session.retire(CLOCK)
    (segment,) = spool.glob("*.spool")
    segment.write_bytes(segment.read_bytes() + b"x")


def test_a_torn_spool_is_counted(place: Path, spool: Path) -> None:
    torn(spool)
    spools = OrphanedSpools([f"ipc://{place}/push.sock"])
    assert spools.rejected() == {"spool": 0}
    spools.start()
    try:
        eventually(lambda: spools.rejected()["spool"])
        assert spools.rejected() == {"spool": 1}
    finally:
        spools.stop()


def test_a_torn_spool_that_no_daemon_accepts_is_counted_once(
    place: Path, spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torn(spool)
    found: list[Any] = []

    def noting(*arguments: Any) -> Iterator[Any]:
        for orphan in orphaned_sessions(*arguments):
            found.append(orphan)
            yield orphan

    monkeypatch.setattr("trackside.transport.sender.orphaned_sessions", noting)
    intervals = SenderIntervals(drain=0.01, answer=0.02, no_daemon=0.02, sweep=0.01)
    sending = Sender(f"ipc://{place}/push.sock", spools=[spool], intervals=intervals)
    try:
        eventually(lambda: len(found) >= 3)
        assert sending.torn == 1
    finally:
        sending.stop(1.0)
