"""The watchdog: a thread that checks the others, and keeps the service manager informed while all of them work."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trackside_daemon.service.systemd import Notifier

log = logging.getLogger("trackside")


class Watchdog:
    """Sends keep-alives to the service manager, which restarts the daemon when they stop.

    A part is stuck if it has worked at one thing for half the watchdog's interval. What hangs outside the daemon is no
    reason to restart it: a collector, a GPU's driver or a sink is abandoned by the part that waits for it, and a disk that
    does not answer would be the same after a restart.

    Args:
        notifier: Sends the keep-alives.
        parts: Return, by name, for how many seconds a part has been stuck; 0 while it works.
        readers: The same for parts that read the history, and so are stuck with its disk.
        disk: Returns for how many seconds the history's writer has been busy with one thing.
        status: Returns a line about the daemon.
    """

    def __init__(
        self,
        notifier: Notifier,
        parts: Mapping[str, Callable[[], float]],
        readers: Mapping[str, Callable[[], float]],
        *,
        disk: Callable[[], float],
        status: Callable[[], str],
    ) -> None:
        self._notifier = notifier
        self._parts = parts
        self._readers = readers
        self._disk = disk
        self._status = status
        self._stuck: list[str] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trackside-watchdog", daemon=True)

    def start(self) -> None:
        """Start the thread, if the service manager expects keep-alives."""
        if self._notifier.watchdog is not None:
            self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def check(self, watchdog: float) -> None:
        """Send a keep-alive unless a part is stuck, which is logged once; *watchdog* is the interval in seconds."""
        bound = watchdog / 2
        # While the disk does not answer, the readers are stuck for that reason alone.
        parts = self._parts if self._disk() >= bound else {**self._parts, **self._readers}
        stuck = [name for name, behind in parts.items() if behind() >= bound]
        if stuck and stuck != self._stuck:
            log.error("%s has been stuck for %.0f s: the service manager gets no keep-alives", stuck[0], bound)
        self._stuck = stuck
        if not stuck:
            self._notifier.keep_alive(self._status())

    def _run(self) -> None:
        watchdog = self._notifier.watchdog
        while watchdog is not None:
            self.check(watchdog)
            if self._ended.wait(watchdog / 8):  # often enough that a part that recovers is noticed in time
                return
