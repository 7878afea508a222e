"""The times at which the directories of each run are scanned."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

BACK_OFF_SECONDS = 60.0  # wait after the first scan that fails; twice as long after each further one
LONGEST_BACK_OFF_SECONDS = 3600.0


class Scans:
    """The next scan of each run, in monotonic seconds. A run whose scans fail waits longer each time.

    Attributes:
        current: The id of the run that is scanned now, or was last.
    """

    def __init__(self) -> None:
        self.current = ""
        self._due: dict[str, float] = {}
        self._failures: dict[str, int] = {}

    def keep(self, runs: Iterable[str]) -> None:
        """Scan these runs and no others; a new one is due at once."""
        self._due = {run: self._due.get(run, 0.0) for run in runs}
        self._failures = {run: count for run, count in self._failures.items() if run in self._due}

    def next(self, now: float) -> str | None:
        """Return the run that has been due for longest; None if none is due."""
        run = min(self._due, key=self._due.__getitem__, default=None)
        return run if run is not None and self._due[run] <= now else None

    def begin(self, run: str, due: float) -> None:
        """Note that a run is scanned now, and when the next scan of it is due."""
        self.current, self._due[run] = run, due

    def hurry(self, run: str) -> None:
        """Scan a run as soon as possible, unless its last scan failed."""
        if run not in self._failures:
            self._due[run] = 0.0

    def succeed(self) -> None:
        """Note that the current scan has ended well."""
        self._failures.pop(self.current, None)

    def fail(self, now: float) -> None:
        """Note that the current scan has failed."""
        count = self._failures[self.current] = self._failures.get(self.current, 0) + 1
        self._due[self.current] = now + min(BACK_OFF_SECONDS * 2 ** min(count - 1, 16), LONGEST_BACK_OFF_SECONDS)
