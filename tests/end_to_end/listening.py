"""A server of the Prometheus project as a process, which logs where it listens."""

from __future__ import annotations

import re
import subprocess
import threading

import pytest
from processes import DEADLINE, ended, terminated


class Listening:
    """A server on a free port.

    Args:
        command: The command and its arguments, with 0 as the port to listen on.

    Attributes:
        process: The process of the server.
        url: ``http://127.0.0.1:PORT``.
        log: The lines of its log so far.
    """

    def __init__(self, *command: str) -> None:
        self.url = ""
        self.log: list[str] = []
        self._listening = threading.Event()
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if not self._listening.wait(DEADLINE) or not self.url:
            self.stop()
            pytest.fail(f"{command[0]} did not start: " + "".join(self.log))

    def stop(self) -> None:
        """End the process."""
        terminated(self.process)
        ended(self.process, self._reader)

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line)
            if (found := re.search(r'msg="Listening on" address=(\S+)', line)) is not None:
                self.url = f"http://{found[1]}"
                self._listening.set()
        self._listening.set()
