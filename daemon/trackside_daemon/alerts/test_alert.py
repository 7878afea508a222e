"""The alert that users raise to see whether a notification arrives."""

from __future__ import annotations

import secrets
import threading
from typing import TYPE_CHECKING, NamedTuple

from trackside_daemon.model.finding import Finding

if TYPE_CHECKING:
    from trackside_daemon.model.finding import Severity
    from trackside_daemon.model.metric import Batch

TEST_ALERT = "TestAlert"
MOST = 10
"""So many in `WITHIN_SECONDS`; each is a series for a quarter of an hour."""

WITHIN_SECONDS = 120.0


class TooManyError(Exception):
    """So many were raised of late that no further one is; the message says so."""


class Asked(NamedTuple):
    """A test that is wanted; its label ``test`` makes each an alert of its own."""

    severity: Severity
    run: str
    name: str
    time: float
    test: str


class Trial:
    """A watcher that says what it was asked to say, at the next batch; `ask` may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked: list[Asked] = []
        self._late: list[float] = []

    def ask(self, severity: Severity, run: str, name: str, now: float) -> str:
        """Raise one.

        Args:
            severity: Of the alert.
            run: The id of the run that it is to be about; empty for the machine.
            name: Its name; of a run that nobody knows it is a label all the same.
            now: Unix seconds.

        Returns:
            What its label ``test`` has.

        Raises:
            TooManyError: There were `MOST` of late.
        """
        with self._lock:
            self._late = [one for one in self._late if 0 <= now - one < WITHIN_SECONDS]
            if len(self._late) >= MOST:
                raise TooManyError(
                    f"{MOST} test alerts were raised in the last {WITHIN_SECONDS:.0f} s; wait for a while"
                )
            self._late.append(now)
            asked = Asked(severity, run, name, now, secrets.token_hex(4))
            self._asked.append(asked)
            return asked.test

    def accept(self, _: Batch) -> list[Finding]:
        """What was asked for since the last batch."""
        if not self._asked:
            return []
        with self._lock:
            asked, self._asked = self._asked, []
        return [_alarm(one) for one in asked]


def _alarm(asked: Asked) -> Finding:
    about = {"test": asked.test, **({"run": asked.name} if asked.name else {})}
    return Finding(
        TEST_ALERT,
        asked.severity,
        tuple(sorted(about.items())),
        asked.time,
        f"this is a test: an alert of severity {asked.severity}" + (f" about run {asked.name}" if asked.name else ""),
        "Nothing is wrong: trackside test-alert was called, to see whether a notification arrives.",
        once=True,
        run=asked.run,
    )
