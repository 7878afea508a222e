"""Whether the daemon lives: a thread asks the others, and beats if all go on."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trackside_daemon.service.systemd import Notifier

log = logging.getLogger("trackside")


class Pulse:
    """Beats for the service manager's watchdog, which starts the daemon anew when that stops.

    A part that stands still is late: it has been at one thing for half the time that the watchdog waits. What hangs outside the
    daemon is no reason to end it: a collector, a GPU's driver and a sink are left out by who waits for them, and a disk
    that does not answer is no other after a restart.

    Args:
        notifier: Tells it.
        parts: Say, each by its name, for how many seconds they are late; 0 while all is well.
        readers: The same of those that read the history, and so stand still with its disk.
        disk: Says for how many seconds the history's writer has been at one thing.
        status: A line about the daemon, for people.
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
        self._late: list[str] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trackside-pulse", daemon=True)

    def start(self) -> None:
        """Begin to beat, where the service manager waits for it."""
        if self._notifier.watchdog is not None:
            self._thread.start()

    def stop(self) -> None:
        """Beat no more."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def look(self, watchdog: float) -> None:
        """Beat, unless a part is late; said in the log when it becomes so."""
        bound = watchdog / 2
        parts = self._parts if self._disk() >= bound else {**self._parts, **self._readers}
        late = [name for name, behind in parts.items() if behind() >= bound]
        if late and late != self._late:
            log.error("%s: no turn for %.0f s; the service manager is no longer told that all is well", late[0], bound)
        self._late = late
        if not late:
            self._notifier.beat(self._status())

    def _run(self) -> None:
        watchdog = self._notifier.watchdog
        while watchdog is not None:
            self.look(watchdog)
            if self._ended.wait(watchdog / 8):  # often enough that a part that was late is well again in time
                return
