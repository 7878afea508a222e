"""The socket that trainings ask for configurations, its thread, and the processes that ask."""

import os
import socket
import struct
import threading
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from trackside.captures.kineto import SOCKET
from trackside.os_errors import os_error_text
from trackside_daemon.captures.kineto.protocol import DATAGRAM_BYTES, DatagramError, decode, encode
from trackside_daemon.captures.kineto.socket_file import DirectoryError, prepare
from trackside_daemon.linux.pid_namespaces import own_pid
from trackside_daemon.model.families import daemon
from trackside_daemon.model.metric import Sample

POLL_SECONDS = 5.0  # libkineto's interval, if KINETO_CONFIG does not shorten it
DELAY_SECONDS = 5.0  # how late a process may ask on a busy machine
FORGET_SECONDS = 60.0
MAX_PROCESSES = 4096  # maximum number of processes


class PollingProcess(NamedTuple):
    """A process that asks for configurations."""

    at: float  # when it asked last, in seconds of the monotonic clock
    interval: float  # seconds between its last two requests; `POLL_SECONDS` after the first
    accepts: bool  # it accepted a configuration then; False while a profiler was active in it

    @property
    def silent(self) -> bool:
        """True if it has stopped asking."""
        return time.monotonic() - self.at > 2 * self.interval + DELAY_SECONDS


class Pollers:
    """Processes by id. The socket's thread calls `answer`, the threads of captures call the rest.

    A process is asked for one capture at a time, so that nothing here needs a lock: each method makes one change of a dict.
    """

    def __init__(self) -> None:
        self._pollers: dict[int, PollingProcess] = {}
        self._waiting: dict[int, str] = {}

    def get(self, pid: int) -> PollingProcess | None:
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
        self._pollers[pid] = PollingProcess(now, POLL_SECONDS if last is None else now - last.at, accepts)
        oldest = next(iter(self._pollers))
        if len(self._pollers) > MAX_PROCESSES or now - self._pollers[oldest].at > FORGET_SECONDS:
            del self._pollers[oldest]
        return self._waiting.pop(pid, "") if accepts else ""


REASONS = ("format", "user", "process", "address")

_CREDENTIALS = struct.Struct("iII")  # pid, uid and gid of struct ucred (unix(7)), which the kernel fills in
_CREDENTIALS_KIND = getattr(socket, "SCM_CREDENTIALS", 2)
_CREDENTIALS_SPACE = socket.CMSG_SPACE(_CREDENTIALS.size)


class _RefusedError(Exception):
    """A refused datagram; the message is one of `REASONS`."""


class ProfilerSocket:
    """The socket. Only a process that a configuration waits for is answered, and only at an address in the directory.

    libkineto reads an answer that comes late at its next request, so that answers without content would delay all later ones.
    An answer from another directory than its own socket's ends the process.

    Args:
        directory: Its directory, exactly as in ``KINETO_IPC_SOCKET_DIR``.
        pollers: The processes that ask.
        proc: Path of procfs.

    Raises:
        DirectoryError: It cannot be bound.
    """

    def __init__(self, directory: Path, pollers: Pollers, proc: Path = Path("/proc")) -> None:
        self._pollers = pollers
        self._proc = proc
        self._directory = str(directory)
        self._path = directory / SOCKET
        self._stopping = False
        self._refused = Counter(dict.fromkeys(REASONS, 0))
        self._thread = threading.Thread(target=self._run, name="trackside-kineto", daemon=True)
        if not hasattr(socket, "SO_PASSCRED"):
            raise DirectoryError("this system does not report who sends a datagram")
        prepare(directory)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            self._socket.bind(str(self._path))
        except OSError as error:
            self._socket.close()
            raise DirectoryError(f"{self._path}: {os_error_text(error)}") from error

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Remove the file, end the thread if there is one, and close the socket."""
        self._stopping = True
        self._path.unlink(missing_ok=True)
        self._socket.shutdown(socket.SHUT_RDWR)
        if self._thread.is_alive():
            self._thread.join()
        self._socket.close()

    def samples(self) -> list[Sample]:
        """Return the refused datagrams."""
        return [Sample(daemon.DATAGRAMS_REFUSED, (reason,), count) for reason, count in self._refused.items()]

    def _run(self) -> None:
        while not self._stopping:
            try:
                self._handle(*self._socket.recvmsg(DATAGRAM_BYTES, _CREDENTIALS_SPACE))
            except _RefusedError as error:
                self._refused[str(error)] += 1
            except OSError:
                continue  # the process that asked has ended, or reads nothing

    def _handle(self, datagram: bytes, ancillary: list[tuple[int, int, bytes]], _flags: int, address: object) -> None:
        """Answer a datagram.

        Raises:
            _RefusedError: It is refused.
            OSError: The answer cannot be sent.
        """
        if self._stopping:
            return
        pid, uid = next(
            (_CREDENTIALS.unpack(data)[:2] for _, kind, data in ancillary if kind == _CREDENTIALS_KIND), (0, -1)
        )
        if uid != os.getuid():
            raise _RefusedError("user")
        try:
            request = decode(datagram)
        except DatagramError:
            raise _RefusedError("format") from None
        if request is None:
            return
        if pid <= 0 or not self._is(pid, request.pid):
            raise _RefusedError("process")
        if not isinstance(address, str) or address.rpartition("/")[0] != self._directory:
            raise _RefusedError("address")
        configuration = self._pollers.answer(pid, accepts=request.accepts)
        if configuration:
            self._socket.sendto(encode(configuration), socket.MSG_DONTWAIT, address)

    def _is(self, pid: int, claimed: int) -> bool:
        """Return whether a process sees itself as *claimed*."""
        try:
            return pid == claimed or own_pid(self._proc, pid) == claimed
        except OSError:
            return False
