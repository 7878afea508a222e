"""The time by which runs are watched: it comes with the batches, and stands still while nobody looks."""

from __future__ import annotations

APART = 0.9
"""Seconds between two looks at what time alone changes: the collectors of one tick differ by less."""

UNSEEN = 15.0
"""Seconds that may pass between two batches, or `INTERVALS` times what passed last: of more the daemon has seen nothing,
since it was stopped or its machine asleep, and in that time no run was silent."""
INTERVALS = 3.0


class Clock:
    """Follows the time of the batches.

    Attributes:
        now: The newest, in Unix seconds; 0 before the first.
        at: Seconds that were watched: what silences are measured in.
    """

    __slots__ = ("_looked", "_usual", "at", "now")

    def __init__(self) -> None:
        self.now = self.at = 0.0
        self._looked = 0.0
        self._usual = 0.0

    def advance(self, time: float) -> bool:
        """A batch was sampled at *time*; whether it is time to look again."""
        passed = time - self.now
        if passed <= 0:
            if passed < -UNSEEN:  # the machine's clock was set back
                self.now = self._looked = time
            return False
        if self.now:
            self.at += min(passed, max(UNSEEN, INTERVALS * self._usual))
        self.now = time
        if time - self._looked < APART:
            return False
        self._usual = time - self._looked if self._looked else 0.0
        self._looked = time
        return True
