"""The output of a command, copied to this process's own and kept in files: through a terminal where there is one."""

import fcntl
import os
import select
import signal
import struct
import sys
import termios
import threading
from collections import Counter, deque
from contextlib import suppress
from pathlib import Path
from typing import IO

from trackside.os_errors import os_error_text
from trackside_daemon.history.console.files import KEPT_BYTES, ConsoleWriter
from trackside_daemon.history.console.lines import Redactor
from trackside_daemon.linux.child_process import ChildProcess

CHUNK = 65_536
REST_SECONDS = 1.0  # time limit for the rest of the output after the command's end: its children may keep it open
KEEPING_SECONDS = 10.0  # time limit until that is kept

# Of a frame: stream, number of bytes of it that were dropped before, size of what follows.
HEADER = struct.Struct("<BQI")


class ConsoleCopy:
    """Copies what a command prints, and hands it to a process that keeps it.

    A terminal gets a terminal in between, so that colours and progress bars stay; a file or pipe gets a pipe. The command
    waits while nobody reads, as without it, but never for what is kept. Standard input is the command's own.

    Args:
        history: The directory of the history.
        launch: The id of the launch.

    Attributes:
        streams: The command's standard output and error; descriptors to be closed after its start.

    Raises:
        OSError: The process or terminals cannot be made.
    """

    def __init__(self, history: Path, launch: str) -> None:
        self._backlog = Backlog()
        self._terminals: list[int] = []
        outputs = (1,) if _same_file() else (1, 2)
        pairs = [self._pair(number) for number in outputs]
        self.streams = (pairs[0][1], pairs[-1][1])
        frames, self._frames = os.pipe()
        with os.fdopen(frames, "rb") as theirs:
            self._keeper = ChildProcess(
                *("trackside_daemon.cli.run.console", str(history), launch),
                mute=True,
                stdin=theirs,
            )
        self._feeder = threading.Thread(target=self._feed, name="trackside-console-feed", daemon=True)
        self._threads = [
            threading.Thread(target=self._copy, args=(reading, number), name="trackside-console", daemon=True)
            for (reading, _), number in zip(pairs, outputs, strict=True)
        ]

    def start(self) -> None:
        """Begin to copy, after the command's start."""
        for stream in set(self.streams):
            os.close(stream)
        for thread in (self._feeder, *self._threads):
            thread.start()
        if self._terminals:
            signal.signal(signal.SIGWINCH, lambda *_: self._resize())

    def stop(self) -> None:
        """Copy the rest, and wait until it is kept, for some seconds at most."""
        for thread in self._threads:
            thread.join(REST_SECONDS)
        self._backlog.end()
        self._keeper.stop(KEEPING_SECONDS, 0)  # no signal: it ends with its input

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

    def _copy(self, reading: int, number: int) -> None:
        while True:
            try:
                data = os.read(reading, CHUNK)
            except OSError:  # a terminal whose other end is closed
                data = b""
            if not data:
                return
            written = _write(number, data)
            self._backlog.put(number, data)
            if not written:
                os.close(reading)  # so that the command notices that its reader is gone
                return

    def _feed(self) -> None:
        """Hand the output to the process that keeps it, until it has ended."""
        while (chunk := self._backlog.get()) is not None:
            stream, dropped, data = chunk
            if not _write(self._frames, HEADER.pack(stream, dropped, len(data)) + data):
                self._backlog.end()
        os.close(self._frames)


class Backlog:
    """Output that waits to be kept; if there is too much, the oldest is dropped, as it is in the files."""

    def __init__(self, most: int = KEPT_BYTES) -> None:
        self._most = most
        self._changed = threading.Condition()
        self._chunks: deque[tuple[int, bytearray]] = deque()
        self._size = 0
        self._dropped: Counter[int] = Counter()
        self._ended = False

    def put(self, stream: int, data: bytes) -> None:
        """Append bytes of a stream; never wait."""
        with self._changed:
            if self._ended:
                return
            if not self._chunks or self._chunks[-1][0] != stream or len(self._chunks[-1][1]) >= CHUNK:
                self._chunks.append((stream, bytearray()))
            self._chunks[-1][1].extend(data)
            self._size += len(data)
            while self._size > self._most:
                oldest, lost = self._chunks.popleft()
                self._size -= len(lost)
                self._dropped[oldest] += len(lost)
            self._changed.notify()

    def end(self) -> None:
        """Accept no more; what waits is still returned."""
        with self._changed:
            self._ended = True
            self._changed.notify()

    def get(self) -> tuple[int, int, bytearray] | None:
        """Wait for output; return its stream, the bytes of it that were dropped before, and the data; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._chunks or self._ended)
            if not self._chunks:
                return None
            stream, data = self._chunks.popleft()
            self._size -= len(data)
            return stream, self._dropped.pop(stream, 0), data


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


def main() -> None:
    """Keep an output, as ``python -m trackside_daemon.cli.run.console HISTORY LAUNCH``; report on standard error if that fails.

    A process of its own, because removing what looks like a secret takes longer than to print it.
    """
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # its input ends before or with the parent
    history, launch = sys.argv[1:]
    try:
        writer = ConsoleWriter(Path(history), launch)
        try:
            keep(sys.stdin.buffer, writer)
        finally:
            writer.close()
    except OSError as error:
        print(f"trackside: --console: the output is not kept whole: {os_error_text(error)}", file=sys.stderr)  # noqa: T201


def keep(frames: IO[bytes], writer: ConsoleWriter) -> None:
    """Append the redacted content of frames.

    Raises:
        OSError: The disk is full.
    """
    redactors: dict[int, Redactor] = {}
    while len(header := frames.read(HEADER.size)) == HEADER.size:
        stream, dropped, size = HEADER.unpack(header)
        redactor = redactors.setdefault(stream, Redactor())
        if dropped:
            rest = redactor.feed(b"", end=True)
            line = "" if not rest or rest.endswith(b"\n") else "\n"
            writer.write(rest + f"{line}[{dropped:,} bytes of output were not kept]\n".encode())
        writer.write(redactor.feed(frames.read(size)))
    for redactor in redactors.values():
        writer.write(redactor.feed(b"", end=True))


if __name__ == "__main__":
    main()
