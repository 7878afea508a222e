"""The processes that ask for configurations, and the configurations that wait for them."""

from __future__ import annotations

import time
from typing import NamedTuple

POLL_SECONDS = 5.0  # libkineto's interval, if KINETO_CONFIG does not shorten it
DELAY_SECONDS = 5.0  # how late a process may ask on a busy machine
FORGET_SECONDS = 60.0
MOST = 4096  # maximum number of processes


class Poller(NamedTuple):
    """A process that asks for configurations.

    Attributes:
        at: When it asked last, in seconds of the monotonic clock.
        interval: Seconds between its last two requests; `POLL_SECONDS` after the first.
        accepts: It accepted a configuration then; False while a profiler was active in it.
    """

    at: float
    interval: float
    accepts: bool

    @property
    def silent(self) -> bool:
        """True if it has stopped asking."""
        return time.monotonic() - self.at > 2 * self.interval + DELAY_SECONDS


class Pollers:
    """Processes by id. The socket's thread calls `answer`, the threads of captures call the rest.

    A process is asked for one capture at a time, so that nothing here needs a lock: each method makes one change of a dict.
    """

    def __init__(self) -> None:
        self._pollers: dict[int, Poller] = {}
        self._waiting: dict[int, str] = {}

    def get(self, pid: int) -> Poller | None:
        """Return what is known of a process; None if it has not asked."""
        return self._pollers.get(pid)

    def offer(self, pid: int, configuration: str) -> None:
        """Give a process a configuration when it next asks and accepts one."""
        self._waiting[pid] = configuration

    def withdraw(self, pid: int) -> None:
        """Withdraw the configuration that waits for a process, if there still is one, at the end of a recording."""
        self._waiting.pop(pid, None)
        if (poller := self._pollers.get(pid)) is not None:
            # The recording itself may be why it accepted none when it asked last; another capture may follow at once.
            self._pollers[pid] = poller._replace(accepts=True)

    def waits(self, pid: int) -> bool:
        """Return whether a configuration still waits for a process."""
        return pid in self._waiting

    def answer(self, pid: int, *, accepts: bool) -> str:
        """Note that a process asks, and return the configuration that waits for it; empty for none."""
        now = time.monotonic()
        last = self._pollers.pop(pid, None)  # so that the order is that of the last requests
        self._pollers[pid] = Poller(now, POLL_SECONDS if last is None else now - last.at, accepts)
        oldest = next(iter(self._pollers))
        if len(self._pollers) > MOST or now - self._pollers[oldest].at > FORGET_SECONDS:
            del self._pollers[oldest]
        return self._waiting.pop(pid, "") if accepts else ""
