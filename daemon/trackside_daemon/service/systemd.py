"""What the service manager is told of this daemon, as sd_notify(3) has it; without one, nothing and nobody."""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import MutableMapping

PATIENCE = 2.0
"""Seconds that a message waits for room, while the service manager reads nothing."""


class Notifier:
    """Speaks to the service manager that started this process, where one did and wants to know.

    Its variables are taken out of the environment, lest a child process speak for the daemon.

    Args:
        environ: Of this process: ``NOTIFY_SOCKET``, ``WATCHDOG_USEC`` and ``WATCHDOG_PID``.

    Attributes:
        watchdog: Seconds that the service manager waits for a beat; None when it waits for none.
    """

    def __init__(self, environ: MutableMapping[str, str] = os.environ) -> None:
        path = environ.pop("NOTIFY_SOCKET", "")
        watchdog, whose = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
        self.watchdog: float | None = None
        self._socket: socket.socket | None = None
        if not path.startswith(("/", "@")):  # none, or the host of a virtual machine
            return
        self._address = path.replace("@", "\0", 1) if path.startswith("@") else path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(PATIENCE)
        if watchdog.isdecimal() and int(watchdog) and whose in ("", str(os.getpid())):
            self.watchdog = int(watchdog) / 1e6

    def ready(self, status: str) -> None:
        """It serves, or does again after a reload; *status* is a line for people."""
        self._tell("READY=1", f"STATUS={status}")

    def reloading(self) -> None:
        """It reads its configuration; `ready` follows."""
        self._tell("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def beat(self, status: str) -> None:
        """It lives."""
        self._tell("WATCHDOG=1", f"STATUS={status}")

    def status(self, status: str) -> None:
        """What it does, in a line for people."""
        self._tell(f"STATUS={status}")

    def stopping(self) -> None:
        """It ends; nothing is told after that."""
        self._tell("STOPPING=1")
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _tell(self, *lines: str) -> None:
        if self._socket is not None:
            with suppress(OSError):  # nobody listens any more
                self._socket.sendto("\n".join(lines).encode(), self._address)
