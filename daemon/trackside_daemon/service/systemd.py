"""Notifications to the service manager, as in sd_notify(3); without a service manager they do nothing."""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import MutableMapping

PATIENCE = 2.0  # seconds that a message waits while the service manager does not read


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
        self._socket.settimeout(PATIENCE)
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
