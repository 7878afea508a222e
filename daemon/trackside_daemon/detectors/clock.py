"""The time that detectors of runs use: it comes with the batches and stops while the daemon does."""

from __future__ import annotations

# Least seconds between two evaluations of what time alone changes; the collectors of one tick differ by less.
APART = 0.9

# Seconds between two batches that count as watched, or `INTERVALS` times the last interval if that is more. During
# the rest the daemon was stopped or its machine asleep, so that the silence of a run means nothing.
UNSEEN = 15.0
INTERVALS = 3.0


class Clock:
    """Clock that batches advance.

    Attributes:
        now: The newest time, in Unix seconds; 0 before the first.
        at: Watched seconds, in which silences are measured.
    """

    __slots__ = ("_evaluated_at", "_usual", "at", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self.at = 0.0
        self._evaluated_at = 0.0
        self._usual = 0.0

    def advance(self, time: float) -> bool:
        """Advance to the *time* at which a batch was sampled; return whether the next evaluation is due."""
        passed = time - self.now
        if passed <= 0:
            if passed < -UNSEEN:  # the machine's clock was set back
                self.now = self._evaluated_at = time
            return False
        if self.now:
            self.at += min(passed, max(UNSEEN, INTERVALS * self._usual))
        self.now = time
        if time - self._evaluated_at < APART:
            return False
        self._usual = time - self._evaluated_at if self._evaluated_at else 0.0
        self._evaluated_at = time
        return True
