"""Read facts about live runs in the history without waiting for them: a disk may hang, and the tick must go on."""

import logging
import sqlite3
import threading
import time
from collections.abc import Callable
from math import inf
from typing import Generic, TypeVar

from trackside_daemon.history.read.series import Readable

T = TypeVar("T")

MAX_RUNS = 1024  # runs that are remembered
REST_FACTOR = 20.0  # times the duration of a reading for which the thread rests

log = logging.getLogger("trackside")


class RunReadings(Generic[T]):
    """Returns what a thread has read about a run, by its id, and None until then.

    Args:
        history: The history.
        read: Returns it; None if the history does not have it yet.
        every: Seconds after which it is read again.

    Attributes:
        read_at: When each run was last read, in seconds of the monotonic clock.
    """

    def __init__(
        self, history: Readable, read: Callable[[sqlite3.Connection, str], T | None], every: float = inf
    ) -> None:
        self.read_at: dict[str, float] = {}
        self._history, self._read_run, self._every = history, read, every
        self._found: dict[str, T] = {}
        self._thread: threading.Thread | None = None
        self._rests_until = -inf

    def __call__(self, uid: str) -> T | None:
        """Return what was read of a run; begin to read it if that is due, and nothing else is being read."""
        now = time.monotonic()
        due = uid not in self._found or now - self.read_at[uid] >= self._every
        if due and now >= self._rests_until and (self._thread is None or not self._thread.is_alive()):
            self._thread = threading.Thread(target=self._read, args=(uid,), name="trackside-runs", daemon=True)
            self._thread.start()
        return self._found.get(uid)

    def _read(self, uid: str) -> None:
        began = time.monotonic()
        try:
            with self._history.reading() as connection:
                found = self._read_run(connection, uid)
        except Exception as error:  # noqa: BLE001  the daemon must go on
            log.debug("run id %s cannot be read: %r", uid, error)
            found = None
        now = time.monotonic()
        self._rests_until = now + REST_FACTOR * (now - began)
        if len(self.read_at) >= MAX_RUNS:
            self.read_at.clear()
            self._found.clear()
        self.read_at[uid] = now
        if found is not None:
            self._found[uid] = found
