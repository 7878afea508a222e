"""The process of one mirror: ``python -m trackside_daemon.bridges.mirrors.worker``.

The first request is a `Start`, each further one null; each answer is the mirror's `Status`. At the end of the input the mirror
sends what it has not sent yet, for `FLUSH_SECONDS` at most, and the process ends.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, cast

from trackside_daemon.bridges.mirrors.messages import FLUSH_SECONDS, Start, Status
from trackside_daemon.bridges.mirrors.mirror import Mirror
from trackside_daemon.bridges.mirrors.positions import Positions
from trackside_daemon.bridges.mirrors.target import RunTarget
from trackside_daemon.bridges.mirrors.targets import make_target
from trackside_daemon.bridges.mirrors.unsent import mirrored_runs
from trackside_daemon.http_client.errors import SettingError
from trackside_daemon.linux.worker_call import serve

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable

    from trackside_daemon.bridges.mirrors.target import MirroredRun, Target


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


def main() -> NoReturn:
    """Mirror until the end of the input."""
    mirroring = _Mirroring()
    serve(Start | None, mirroring.answer, expected=(SettingError,))
    mirroring.end()
    os._exit(0)  # a request may hang


class _Mirroring:
    """The mirror, and the thread that runs it."""

    def __init__(self) -> None:
        self._ending = threading.Event()
        self._thread = threading.Thread()
        self._mirror: Mirror | None = None
        self._deadline = inf

    def answer(self, start: Start | None) -> Status:
        """Begin with the first request, and return the counters."""
        if start is not None:
            self._begin(start)
        return Status() if self._mirror is None else self._mirror.status

    def end(self) -> None:
        """Send what is left."""
        self._deadline = time.monotonic() + FLUSH_SECONDS
        self._ending.set()
        if self._mirror is not None:
            self._thread.join(FLUSH_SECONDS)

    def _begin(self, start: Start) -> None:
        os.nice(10)
        target = make_target(start.name, start.settings)
        history, positions = Path(start.history), Positions(Path(start.positions))
        if isinstance(target, RunTarget):
            self._mirror = RunMirror(history, positions, target, ending=self._is_late)
        else:
            every_rank = start.settings["ranks"] == "all"
            self._mirror = Mirror(history, positions, target, every_rank=every_rank, ending=self._is_late)
        interval = start.settings["interval"]
        self._thread = threading.Thread(target=_run, args=(self._mirror, target, interval, self._ending))
        # The connection of the positions belongs to the thread that opened it.
        self._thread.start()

    def _is_late(self) -> bool:
        return time.monotonic() > self._deadline


def _run(mirror: Mirror, target: Target | RunTarget, interval: float, ending: threading.Event) -> None:
    try:
        while not ending.is_set():
            pause = mirror.poll()
            ending.wait(max(interval, pause))
        mirror.poll()
        target.close()
    except Exception as error:  # noqa: BLE001  the daemon reports the last line, and starts another process
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        sys.stderr.flush()
        os._exit(1)  # else the main thread would go on to answer, as if samples were sent


if __name__ == "__main__":
    main()
