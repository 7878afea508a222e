"""ZeroMQ without risk to the training process: contexts, sockets, and a thread that gevent does not stop."""

from __future__ import annotations

import fcntl
import resource
import socket
import sys
import threading
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

import zmq

from trackside.environment import keys

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Context = zmq.Context[zmq.Socket[bytes]]


SPARE_DESCRIPTORS = 32  # file descriptors that must be free for a context; ZeroMQ's threads need about ten


class Waker:
    """Wakes the sender thread from any other thread, through a socket pair that the sender thread opens.

    Attributes:
        end: The end that the sender thread polls; None before `open`.
    """

    def __init__(self) -> None:
        self.end: socket.socket | None = None
        self._other: socket.socket | None = None

    def open(self) -> None:
        """Open the socket pair, and wake for all that came before. A second call does nothing.

        Raises:
            OSError: Too many files are open.
        """
        if self.end is None:
            self.end, other = socket.socketpair()
            other.setblocking(False)  # a full socket must not block the training
            self._other = other
            self.wake()

    def wake(self) -> None:
        """Wake the sender thread, if it waits on the socket pair."""
        with suppress(OSError):  # full of wake-ups already, or closed
            if self._other is not None:
                self._other.send(b"\0")

    def close(self) -> None:
        """Close both ends."""
        for end in (self.end, self._other):
            if end is not None:
                end.close()


def new_context() -> Context:
    """Return a context with running threads.

    Raises:
        OSError: Too few file descriptors are free.
    """
    # ZeroMQ aborts the process if it gets no descriptors for its threads, which start with the first socket.
    # Numbers are probed and not allocated: this is tried again and again, and must take none from the training.
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    numbers = range(2**20 if limit == resource.RLIM_INFINITY else limit)
    free = len(tuple(islice(filter(_is_free, numbers), SPARE_DESCRIPTORS)))
    if free < SPARE_DESCRIPTORS:
        raise OSError(f"{free} file descriptors are free, and {SPARE_DESCRIPTORS} are needed")
    context: Context = zmq.Context(io_threads=1)
    context.socket(zmq.DEALER).close(linger=0)  # starts the threads while the descriptors are still free
    return context


def _is_free(descriptor: int) -> bool:
    try:
        fcntl.fcntl(descriptor, fcntl.F_GETFD)
    except OSError:
        return True
    return False


def connect(context: Context, endpoint: str, environ: Mapping[str, str]) -> tuple[zmq.Socket[bytes] | None, str]:
    """Return a connecting socket, or None, and the reason to log if no daemon answers.

    Args:
        context: Result of `new_context`.
        endpoint: ``ipc://PATH`` or ``tcp://HOST:PORT``.
        environ: Environment; ``$TRACKSIDE_KEY_FILE`` names the key for another machine.
    """
    failure = "does not answer"
    socket = None
    try:
        socket = context.socket(zmq.DEALER)
        socket.linger = 0  # closing never waits: the session keeps what is not acknowledged, and sends it again
        socket.immediate = True  # never queue for a daemon that is absent: the session sends again what it misses
        socket.reconnect_ivl = 100
        socket.ipv6 = endpoint.startswith("tcp://[")
        if (key := keys.for_endpoint(endpoint, environ)) is not None:
            key.lock(socket)
            socket.reconnect_ivl = 1000  # each attempt costs the daemon a handshake, even if it refuses
            failure += f", or refuses the key in {key.file}"
        elif endpoint.startswith("tcp://"):
            failure += f", or needs a key, and ${keys.VARIABLE} names none"
        socket.connect(endpoint)
    except (zmq.ZMQError, keys.KeyFileError) as error:
        if socket is not None:
            socket.close()
        # pyzmq appends the address, which the log line has already.
        return None, str(error) if isinstance(error, keys.KeyFileError) else str(error).partition(" (addr=")[0].lower()
    return socket, failure


def native_thread(run: Callable[[], None], name: str) -> threading.Thread | Unpatched:
    """Return a daemon thread that calls *run*, not yet started."""
    # ZeroMQ waits without gevent's knowledge: in a greenlet that would stop the whole program.
    monkey = sys.modules.get("gevent.monkey")
    if monkey is not None and monkey.is_module_patched("threading"):
        return Unpatched(run, *monkey.get_original("_thread", ["start_new_thread", "allocate_lock"]))
    return threading.Thread(target=run, name=name, daemon=True)


class Unpatched:
    """A thread, with the methods of `threading.Thread` that the sender uses."""

    def __init__(self, run: Callable[[], None], start: Callable[..., object], allocate_lock: Callable[[], Any]) -> None:
        self._run, self._start = run, start
        self._running = allocate_lock()

    def start(self) -> None:
        """Start it; RuntimeError if no thread can be had."""
        sys.modules["gevent"].get_hub()  # two threads that make their first hubs at once wait for each other's imports
        self._running.acquire()
        self._start(self._main, ())

    def is_alive(self) -> bool:
        """Return whether it runs."""
        return bool(self._running.locked())

    def join(self, timeout: float) -> None:
        """Wait until it has ended, at most *timeout* seconds."""
        if self._running.acquire(timeout=timeout):
            self._running.release()

    def _main(self) -> None:
        try:
            self._run()
        finally:
            self._running.release()
