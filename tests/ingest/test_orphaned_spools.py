"""The daemon's counts of the orphaned spools that it reads."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from client.messages import CLOCK, a_session, push
from processes import eventually

from trackside_daemon.ingest.orphaned_spools import OrphanedSpools

if TYPE_CHECKING:
    from pathlib import Path


def test_a_torn_spool_is_counted_once(place: Path, spool: Path) -> None:
    session = a_session(spool)
    push(session, {"loss": 1.0}, 1)
    session.drain(CLOCK)
    session.retire(CLOCK)
    (segment,) = spool.glob("*.spool")
    segment.write_bytes(segment.read_bytes() + b"x")
    spools = OrphanedSpools([f"ipc://{place}/push.sock"])
    assert spools.rejected() == {"spool": 0}
    spools.start()
    try:
        eventually(lambda: spools.rejected()["spool"])
        assert spools._sender is not None
        eventually(lambda: spools._sender is not None and spools._sender._sweep_at > time.monotonic())
        assert spools.rejected() == {"spool": 1}
    finally:
        spools.stop()
