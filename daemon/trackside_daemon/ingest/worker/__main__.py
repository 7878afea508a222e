"""``python -m trackside_daemon.ingest.worker SETTINGS``, as the daemon starts it: see `IngestWorker`."""

import json
import resource
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress

from trackside_daemon.captures.kineto.socket_file import remove_after
from trackside_daemon.ingest.worker.worker import IngestWorker, ServeError
from trackside_daemon.ingest.worker_channel import Channel
from trackside_daemon.linux.signals import reset_signals

# ZeroMQ stores a message until it has arrived whole, and bounds neither the number of its frames nor of messages.
# A thousand clients need 70 MiB, and twice that if all connect anew while their last connections are open.
DATA_BYTES = 384 << 20  # private memory (RLIMIT_DATA); without more, ZeroMQ aborts this process

END_SECONDS = 1.0  # time for the kernel to close the sockets of a daemon that was killed


def main(arguments: Sequence[str]) -> int | str:
    """Serve until the daemon closes the channel or ends; return an error, for `sys.exit`, if the sockets cannot be served."""
    settings = json.loads(arguments[0])
    reset_signals()
    _limit(resource.RLIMIT_CORE, 0)  # a core would have what the clients push
    _limit(resource.RLIMIT_DATA, DATA_BYTES)
    channel = Channel(socket.socket(fileno=settings["channel"]))
    try:
        worker = IngestWorker(channel, settings["listeners"], settings["keys"], settings["frame_bytes"])
    except ServeError as error:
        return str(error)
    worker.run()
    from pathlib import Path  # which takes 1 MiB, and nothing before needs

    remove_after(Path(settings["profiler"]), END_SECONDS)  # the daemon has removed it, unless it was killed
    worker.close()
    return 0


def _limit(number: int, most: int) -> None:
    hard = resource.getrlimit(number)[1]
    with suppress(OSError, ValueError):  # some containers forbid the change
        resource.setrlimit(number, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
