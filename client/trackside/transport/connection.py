"""Open ZeroMQ contexts and sockets without risk to the training process."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import zmq

from trackside.transport import keys

if TYPE_CHECKING:
    from collections.abc import Mapping

    Context = zmq.Context[zmq.Socket[bytes]]

SPARE_DESCRIPTORS = 32  # file descriptors that must be free for a context; ZeroMQ's threads need about ten


def new_context() -> Context:
    """Return a context with running threads.

    Raises:
        OSError: Too few file descriptors are free.
    """
    # ZeroMQ aborts the process if it gets no descriptors for its threads, which start with the first socket.
    spare: list[int] = []
    reading, writing = os.pipe()
    try:
        while len(spare) < SPARE_DESCRIPTORS:
            spare.append(os.dup(reading))
    finally:
        for descriptor in (*spare, reading, writing):
            os.close(descriptor)
    context: Context = zmq.Context(io_threads=1)
    context.socket(zmq.DEALER).close(linger=0)  # starts the threads while the descriptors are still free
    return context


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
            failure += f", or needs a key, named in ${keys.VARIABLE}"
        socket.connect(endpoint)
    except (zmq.ZMQError, keys.KeyFileError) as error:
        if socket is not None:
            socket.close()
        # pyzmq appends the address, which the log line has already.
        return None, str(error) if isinstance(error, keys.KeyFileError) else str(error).partition(" (addr=")[0].lower()
    return socket, failure
