"""The service manager's end of sd_notify(3), and a daemon that it has started."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from processes import DEADLINE, clean_environ, ended, start

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


class Manager:
    """A socket that receives notifications.

    Args:
        address: A path, or an abstract name that begins with ``@``.
    """

    def __init__(self, address: str | Path) -> None:
        self.address = str(address)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.address.replace("@", "\0", 1) if self.address.startswith("@") else self.address)
        self._socket.settimeout(DEADLINE)

    def receive(self) -> dict[str, str]:
        """Return the next message."""
        lines = self._socket.recv(4096).decode().splitlines()
        return dict(line.split("=", 1) for line in lines)

    def receive_until(self, name: str) -> list[dict[str, str]]:
        """Return all messages up to the one that has *name*."""
        received = [self.receive()]
        while name not in received[-1]:
            received.append(self.receive())
        return received

    def drain(self) -> None:
        """Discard the messages that have arrived."""
        self._socket.setblocking(False)
        with suppress(BlockingIOError):
            while self._socket.recv(4096):
                pass
        self._socket.settimeout(DEADLINE)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


class Service:
    """A command that notifies a `Manager`, and whose log is kept.

    Args:
        manager: The manager to notify.
        command: A command that starts the daemon by exec.
        environ: Variables to set.
        watchdog: Seconds that the manager waits for a beat.
    """

    def __init__(
        self, manager: Manager, command: Sequence[str], environ: Mapping[str, str], *, watchdog: float = 0.0
    ) -> None:
        reported = {"NOTIFY_SOCKET": manager.address}
        if watchdog:
            reported["WATCHDOG_USEC"] = str(round(watchdog * 1e6))
        self.manager = manager
        self.log: list[str] = []
        begin: Any = start if command[0] == sys.executable else subprocess.Popen
        self.process: subprocess.Popen[str] = begin(
            command,
            env=clean_environ({**reported, **environ}),
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def serves(self) -> str:
        """Wait until the daemon is ready; return the address that it reports."""
        try:
            *_, ready = self.manager.receive_until("READY")
        except TimeoutError:
            pytest.fail(f"it does not get ready; its log: {''.join(self.log)}")
        found = re.search(r"serves (http://[^ ,]+)", ready["STATUS"])
        if found is None:
            pytest.fail(f"no address in {ready}; its log: {''.join(self.log)}")
        return found[1]

    def signal(self, number: int) -> None:
        """Send a signal."""
        os.kill(self.process.pid, number)

    def end(self) -> int:
        """Kill the process, unless it has ended; return the exit status."""
        if self.process.poll() is None:
            self.process.kill()
        return ended(self.process, self._reader)

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line)
