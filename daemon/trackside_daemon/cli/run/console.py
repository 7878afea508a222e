"""The output of a command, copied to this process's own and to files: through a terminal where there is one."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import struct
import termios
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from trackside_daemon.history.console.files import ConsoleWriter
from trackside_daemon.history.console.lines import Redactor

if TYPE_CHECKING:
    from pathlib import Path

CHUNK = 65_536
REST_SECONDS = 1.0  # time limit for the rest of the output after the command's end: its children may keep it open


class Console:
    """Copies what a command prints.

    A terminal gets a terminal in between, so that colours and progress bars stay; a file or pipe gets a pipe. The command
    waits while nobody reads, as without it. Standard input is the command's own.

    Args:
        history: The directory of the history.
        launch: The id of the launch.

    Attributes:
        streams: The command's standard output and error; descriptors to be closed after its start.
        failure: Why the output is no longer kept; empty while it is.

    Raises:
        OSError: The files or terminals cannot be made.
    """

    def __init__(self, history: Path, launch: str) -> None:
        self.failure = ""
        self._writer = ConsoleWriter(history, launch)
        self._closed = False
        self._lock = threading.Lock()
        self._terminals: list[int] = []
        outputs = (1,) if _same_file() else (1, 2)
        pairs = [self._pair(number) for number in outputs]
        self.streams = (pairs[0][1], pairs[-1][1])
        self._redactors = [Redactor() for _ in pairs]
        self._threads = [
            threading.Thread(target=self._copy, args=(reading, number, redactor), name="trackside-console", daemon=True)
            for (reading, _), number, redactor in zip(pairs, outputs, self._redactors, strict=True)
        ]

    def start(self) -> None:
        """Begin to copy, after the command's start."""
        for stream in set(self.streams):
            os.close(stream)
        for thread in self._threads:
            thread.start()
        if self._terminals:
            signal.signal(signal.SIGWINCH, lambda *_: self._resize())

    def stop(self) -> None:
        """Copy the rest, and close the files."""
        for thread in self._threads:
            thread.join(REST_SECONDS)
        with self._lock:
            for redactor in self._redactors:
                self._keep(redactor.feed(b"", end=True))
            self._writer.close()
            self._closed = True

    def _pair(self, number: int) -> tuple[int, int]:
        """Return the descriptors for reading and writing in place of a standard stream."""
        if not os.isatty(number):
            return os.pipe()
        reading, writing = os.openpty()
        settings = termios.tcgetattr(writing)
        settings[1] &= ~termios.OPOST  # the real terminal adds the carriage returns
        termios.tcsetattr(writing, termios.TCSANOW, settings)
        self._terminals.append(reading)
        _copy_size(number, reading)
        return reading, writing

    def _resize(self) -> None:
        for terminal in self._terminals:
            _copy_size(1 if os.isatty(1) else 2, terminal)

    def _copy(self, reading: int, number: int, redactor: Redactor) -> None:
        while True:
            try:
                data = os.read(reading, CHUNK)
            except OSError:  # a terminal whose other end is closed
                data = b""
            if not data:
                return
            with self._lock:
                self._keep(redactor.feed(data))
            if not _write(number, data):
                os.close(reading)  # so that the command notices that its reader is gone
                return

    def _keep(self, data: bytes) -> None:
        """Append to the files; if the disk is full, the command goes on without them."""
        if self.failure or self._closed or not data:
            return
        try:
            self._writer.write(data)
        except OSError as error:
            self.failure = (error.strerror or str(error)).lower()


def _same_file() -> bool:
    """Return whether standard output and error are one file, so that their order stays."""
    return os.path.samestat(os.fstat(1), os.fstat(2))


def _copy_size(source: int, target: int) -> None:
    with suppress(OSError):
        size = fcntl.ioctl(source, termios.TIOCGWINSZ, struct.pack("4H", 0, 0, 0, 0))
        fcntl.ioctl(target, termios.TIOCSWINSZ, size)


def _write(number: int, data: bytes) -> bool:
    """Write all of it; return False if the reader is gone."""
    while data:
        try:
            data = data[os.write(number, data) :]
        except BlockingIOError:
            select.select([], [number], [])
        except OSError:
            return False
    return True
