"""Write whole runs to one target, once they have ended."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, cast

from trackside_daemon.bridges.mirrors.mirror import Mirror
from trackside_daemon.bridges.mirrors.unsent import mirrored_runs

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable
    from pathlib import Path

    from trackside_daemon.bridges.mirrors.positions import Positions
    from trackside_daemon.bridges.mirrors.target import MirroredRun, RunTarget, Target


class RunMirror(Mirror):
    """A mirror of whole runs.

    Args:
        history: The history's file.
        positions: The runs that the target has.
        target: The target.
        ending: Returns True when no time is left.
    """

    def __init__(
        self, history: Path, positions: Positions, target: RunTarget, *, ending: Callable[[], bool] = lambda: False
    ) -> None:
        super().__init__(history, positions, cast("Target", target), ending=ending)  # only `_mirror` sends to it
        self._files = target

    def _mirror(self, connection: sqlite3.Connection, run: MirroredRun) -> None:
        if run.ended is None or self._ending():
            return
        self._wait(run.ended)
        if self._silent:
            return
        connection.execute("BEGIN")
        try:
            # As it is in this transaction: it may have gone on, or be deleted.
            for now in mirrored_runs(connection, self._positions, run.id):
                if now.ended is not None:
                    self.status.sent += self._files.write(connection, now) or 0
                    self._positions.finish(run.id, {}, now.end)
        finally:
            connection.execute("ROLLBACK")
            self.status.lost = self._files.lost
        self._oldest.pop()
        self.status.success = time.time()
