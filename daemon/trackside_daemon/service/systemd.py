"""Messages to systemd, and the thread that sends its watchdog's while all other threads work."""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import suppress

PATIENCE_SECONDS = 2.0  # seconds that a message waits while the service manager does not read

log = logging.getLogger("trackside")


class Notifier:
    """Sends notifications to the service manager that started this process, if it expects them.

    Its variables are removed from the environment, so that no child process notifies in the daemon's name.

    Args:
        environ: The environment: ``NOTIFY_SOCKET``, ``WATCHDOG_USEC`` and ``WATCHDOG_PID``.

    Attributes:
        watchdog: Seconds that the service manager waits for a keep-alive; None if it expects none.
    """

    def __init__(self, environ: MutableMapping[str, str] = os.environ) -> None:
        path = environ.pop("NOTIFY_SOCKET", "")
        watchdog = environ.pop("WATCHDOG_USEC", "")
        pid = environ.pop("WATCHDOG_PID", "")
        self.watchdog: float | None = None
        self._socket: socket.socket | None = None
        if not path.startswith(("/", "@")):  # none, or the host of a virtual machine
            return
        self._address = path.replace("@", "\0", 1) if path.startswith("@") else path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(PATIENCE_SECONDS)
        if watchdog.isdecimal() and int(watchdog) and pid in ("", str(os.getpid())):
            self.watchdog = int(watchdog) / 1e6

    def ready(self, status: str) -> None:
        """Report that the daemon serves, also after a reload; *status* is a line of text."""
        self._send("READY=1", f"STATUS={status}")

    def reloading(self) -> None:
        """Report that the daemon loads its configuration; `ready` follows."""
        # Type=notify-reload requires the time, to distinguish this reload from an earlier one.
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def keep_alive(self, status: str) -> None:
        """Report that the daemon works."""
        self._send("WATCHDOG=1", f"STATUS={status}")

    def status(self, status: str) -> None:
        """Report what the daemon does, in a line of text."""
        self._send(f"STATUS={status}")

    def stopping(self) -> None:
        """Report that the daemon stops; it reports nothing after that."""
        self._send("STOPPING=1")
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, *lines: str) -> None:
        if self._socket is not None:
            with suppress(OSError):  # the service manager has gone
                self._socket.sendto("\n".join(lines).encode(), self._address)


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
