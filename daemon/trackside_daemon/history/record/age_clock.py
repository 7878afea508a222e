"""Measure the age of runs by a clock that no jump of the system's clock moves far."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from trackside_daemon.linux.adjtimex import discipline

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable

# After a pause of the daemon, this clock is behind. It catches up with the system's clock, but so slowly that nothing is
# lost while a clock is wrong for some minutes, as one without a battery is after a boot.
CATCH_UP = 24.0


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
