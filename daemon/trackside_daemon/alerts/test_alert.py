"""Alert that users raise to test whether notifications arrive."""

import secrets
import threading
from typing import NamedTuple

from trackside_daemon.model.finding import Finding, Severity
from trackside_daemon.model.metric import Batch
from trackside_daemon.model.troubles import TROUBLES

TEST_ALERT = "TestAlert"

MAX_TEST_ALERTS = 10  # most test alerts within `WITHIN_SECONDS`; each is a series for a quarter of an hour

WITHIN_SECONDS = 120.0


class TooManyTestAlertsError(Exception):
    """The limit of test alerts is reached; the message states it."""


class _TestRequest(NamedTuple):
    """Requested test alert; the unique label ``test`` makes each a separate alert."""

    severity: Severity
    run: str
    name: str
    time: float
    test: str


class AlertTester:
    """Finding source that reports requested test alerts with the next batch; any thread may call `request`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: list[_TestRequest] = []
        self._recent: list[float] = []

    def request(self, severity: Severity, run: str, name: str, now: float) -> str:
        """Request a test alert.

        Args:
            severity: Severity of the alert.
            run: Id of the run that the alert concerns; empty for the machine.
            name: Name of that run; a label of the alert even if the daemon has no such run.
            now: Unix time, in seconds.

        Returns:
            The value of the alert's label ``test``.

        Raises:
            TooManyError: `MAX_TEST_ALERTS` test alerts were requested recently.
        """
        with self._lock:
            # A clock that was set back must not block further requests.
            self._recent = [requested for requested in self._recent if 0 <= now - requested < WITHIN_SECONDS]
            if len(self._recent) >= MAX_TEST_ALERTS:
                raise TooManyTestAlertsError(
                    f"{MAX_TEST_ALERTS} test alerts were raised in the last {WITHIN_SECONDS:.0f} s; wait and try again"
                )
            self._recent.append(now)
            request = _TestRequest(severity, run, name, now, secrets.token_hex(4))
            self._requests.append(request)
            return request.test

    def accept(self, _: Batch) -> list[Finding]:
        """Return the findings of the requests since the last batch."""
        # Read without the lock, because this runs for every batch; a new request waits for the next batch at most.
        if not self._requests:
            return []
        with self._lock:
            requests, self._requests = self._requests, []
        return [_finding(request) for request in requests]


def _finding(request: _TestRequest) -> Finding:
    labels = {"test": request.test, **({"run": request.name} if request.name else {})}
    about = f" about run {request.name}" if request.name else ""
    return Finding(
        TEST_ALERT,
        request.severity,
        tuple(sorted(labels.items())),
        request.time,
        f"this is a test: an alert of severity {request.severity}{about}",
        TROUBLES[TEST_ALERT].advice(),
        once=True,
        run=request.run,
    )
