"""A daemon that ends while a command asks it."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress
from threading import Thread

import pytest

from trackside_daemon.cli.sources.api_source import ApiSource
from trackside_daemon.cli.sources.source import SourceError

AT_ONCE = struct.pack("ii", 1, 0)


@pytest.mark.parametrize(
    ("connections", "message"),
    [
        (1, "the daemon closed the connection before it answered: it was stopped"),
        (2, "the daemon closed the connection; it probably uses TLS: try https://"),
    ],
)
def test_a_killed_daemon_is_not_mistaken_for_one_that_uses_tls(connections: int, message: str) -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def close_each() -> None:
        for number in range(connections):
            connection, _ = listener.accept()
            with suppress(OSError):
                connection.recv(1)
            if number == connections - 1:
                listener.close()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
            connection.close()

    closing = Thread(target=close_each)
    closing.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with pytest.raises(SourceError) as caught:
        ApiSource(url, "").status()
    closing.join()
    assert str(caught.value) == f"{url}: {message}"
