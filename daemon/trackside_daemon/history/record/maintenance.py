"""Pack and trim the history between the commits, a slice of time at a time."""

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from trackside_daemon.history.console import files as console
from trackside_daemon.history.database import Database
from trackside_daemon.history.media.store import MediaStore
from trackside_daemon.history.record.packing import Packing
from trackside_daemon.history.record.store import RecordStore
from trackside_daemon.history.record.trimming import Bounds, Trimming
from trackside_daemon.linux.adjtimex import discipline

# After a pause of the daemon, this clock is behind. It catches up with the system's clock, but so slowly that nothing is
# lost while a clock is wrong for some minutes, as one without a battery is after a boot.
CATCH_UP = 24.0
SLICE_SECONDS = 0.015  # longest time of a slice: a batch that arrives meanwhile waits no longer
BACKLOG_BYTES = 32 * 1024 * 1024  # with more log to pack, a slice is not cut short for a batch that waits
CONSOLE_SECONDS = 7 * 86_400.0  # for how long the output of a command without a run is kept
TRIM_SECONDS = 5.0  # interval at which the size and age of the file are checked


class AgeClock:
    """A clock that begins at the newest time in the history and follows the system's clock.

    It never is ahead of the system's clock. It runs at most `CATCH_UP` times as fast as the daemon's own time, and
    while the system's clock is not synchronized, as fast.

    Args:
        connection: The history.
        monotonic: Returns the seconds of the daemon's own time.
        is_synchronized: Returns whether the system's clock is synchronized.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        monotonic: Callable[[], float] = time.monotonic,
        is_synchronized: Callable[[], bool] | None = None,
    ) -> None:
        self._connection = connection
        self._time = self._newest()
        self._monotonic = monotonic
        self._is_synchronized = is_synchronized or _is_synchronized
        self._read = monotonic()

    def read(self, now: float) -> float:
        """Return the Unix time by which to judge ages, when the system's clock shows *now*."""
        own = self._monotonic()
        passed = own - self._read
        self._read = own
        self._time = self._newest() if self._time is None else self._time
        if self._time is None:  # without a run there is nothing to lose
            return now
        pace = CATCH_UP if self._is_synchronized() else 1.0
        self._time = max(self._time, min(now, self._time + pace * passed))
        return min(now, self._time)

    def _newest(self) -> float | None:
        """Return the Unix time of the newest row: by its id, since a clock that was ahead may have written others."""
        run = "(SELECT max(coalesce(ended, started), imported) FROM run ORDER BY id DESC LIMIT 1)"
        event = "(SELECT time FROM event ORDER BY id DESC LIMIT 1)"
        newest: float | None = self._connection.execute(f"SELECT max(coalesce({event}, {run}), {run})").fetchone()[0]
        return newest


def _is_synchronized() -> bool:
    try:
        return discipline().synchronized
    except (OSError, AttributeError):  # not permitted, or not Linux
        return False


class WriterIntervals(NamedTuple):
    """Intervals of a writer, in seconds."""

    retry: float = 1.0  # between two tries to write
    recount: float = 60.0  # how often a failure that lasts is counted, so that its alert lasts too
    replace: float = 10.0  # least time between two files that are set aside: a broken disk must not fill up with them
    trim: float = TRIM_SECONDS  # how often size and age of the file are checked


class Maintenance:
    """The packing and trimming of one file.

    Args:
        database: The file.
        store: Has the streams to pack.
        bounds: Limits of size and age.
        slice_seconds: See `SLICE_SECONDS`; *trim_seconds* likewise.

    Attributes:
        backlog: Bytes of the log that have to be packed, at the last check.
        size: Bytes of the file and its WAL, at the last check.
    """

    def __init__(
        self,
        database: Database,
        store: RecordStore,
        bounds: Bounds,
        *,
        slice_seconds: float = SLICE_SECONDS,
        trim_seconds: float = TRIM_SECONDS,
    ) -> None:
        self._slice_seconds, self._trim_seconds = slice_seconds, trim_seconds
        self.backlog = 0
        self._connection = database.connection
        self._store = store
        self._trimming = Trimming(database.connection, database.path, bounds)
        self._age_clock = AgeClock(database.connection)
        self._packing: Packing | None = None
        self._trim_at = 0.0
        self._directory = database.path.parent
        self._swept = -1  # deletions when files were swept, so that the first check sweeps
        self.size = self._trimming.size()

    @property
    def excess(self) -> int:
        """Bytes over the size limit that pinned and live runs use."""
        return self._trimming.excess

    def set_bounds(self, bounds: Bounds) -> None:
        """Change the limits."""
        self._trimming.bounds = bounds

    def undo(self) -> None:
        """Begin again: the transaction was rolled back."""
        self._store.reset()
        self._trimming.restart()
        self._packing = None

    def refresh(self) -> None:
        """Check everything anew: other code has changed the tables."""
        self._store.reset()
        self._trimming.restart()
        self._trim_at = 0.0

    def is_idle(self) -> bool:
        """Return whether nothing has to be packed and no check is due."""
        # Less by each step, and not only by whole streams: a full backlog lets no client send, for seconds then.
        self.backlog = self._store.backlog - (0 if self._packing is None else self._packing.packed_bytes)
        return self._packing is None and not self._store.due and time.monotonic() < self._trim_at

    def run_slice(self, now: float, is_waiting: Callable[[], bool]) -> bool:
        """Pack and trim for `SLICE_SECONDS`, in a transaction; return False when nothing is left to do.

        Args:
            now: Unix time.
            is_waiting: Returns whether a batch waits to be written.
        """
        until = time.monotonic() + self._slice_seconds
        more = True
        while more and time.monotonic() < until:
            packs = self._pack()
            trims = self._trim(now)
            more = packs or trims
            if is_waiting() and self.backlog < BACKLOG_BYTES and not trims:
                break
        return more

    def _pack(self) -> bool:
        if self._packing is None:
            stream = next(iter(self._store.due), None)
            if stream is None:
                return False
            self._packing = Packing(self._connection, stream)
        if not self._packing.step():
            self._store.mark_packed(self._packing.stream)
            self._packing = None
        return True

    def _trim(self, now: float) -> bool:
        if time.monotonic() < self._trim_at:
            return False
        self.size = self._trimming.size()
        deleted = self._trimming.deleted
        more = self._trimming.step(now, self._age_clock.read(now))
        if self._trimming.deleted != deleted:
            self._store.reset()
        if self._trimming.deleted != self._swept:
            self._swept = self._trimming.deleted
            sweep_files(self._directory, self._connection, self._store.media, now)
        if not more:
            self._trim_at = time.monotonic() + self._trim_seconds
        return more


def sweep_files(directory: Path, connection: sqlite3.Connection, media: MediaStore | None, now: float) -> None:
    """Delete the media and the console of runs that were deleted."""
    runs = connection.execute("SELECT uid FROM run WHERE deleted != 1").fetchall()
    if media is not None:
        media.sweep([uid for (uid,) in runs])
    query = "SELECT json_extract(about, '$.launch') FROM attempt JOIN run ON run.id = attempt.run WHERE deleted != 1"
    launches = {launch for (launch,) in connection.execute(query)}
    # A command may open its run long after its start.
    console.sweep(directory, launches, now - CONSOLE_SECONDS)
