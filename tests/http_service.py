"""An application that the daemon's web server serves on a free port, and connections to it."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from processes import DEADLINE

from trackside_daemon.linux.socket_address import format_address
from trackside_daemon.web.http.address import listen
from trackside_daemon.web.http.config_file import ConfigFile
from trackside_daemon.web.http.connection_limit import LIMITS, HttpLimits
from trackside_daemon.web.http.server import WebServer

if TYPE_CHECKING:
    from pathlib import Path

    from starlette.types import ASGIApp


class HttpService:
    """A served application.

    Args:
        app: The application.
        config: The web configuration file, if any.
        scheme: The scheme of its address: ``https`` if the file has a certificate.
        limits: Limits of the server.

    Attributes:
        address: The host and port to connect to.
        url: ``http://HOST:PORT``, or ``https``.
        server: The web server, which the test stops.
    """

    def __init__(
        self, app: ASGIApp, config: Path | str = "", scheme: str = "http", limits: HttpLimits = LIMITS
    ) -> None:
        listener = listen("127.0.0.1:0")
        self.address = listener.getsockname()
        self.url = f"{scheme}://{format_address(listener)}"
        self.server = WebServer(app, listener, ConfigFile(str(config)), limits)
        self.server.start()

    def connect(self, data: bytes = b"") -> socket.socket:
        """Return a connection that has sent *data*."""
        connection = socket.create_connection(self.address, timeout=DEADLINE)
        connection.sendall(data)
        return connection


def is_closed(connection: socket.socket) -> bool:
    """Return whether the other side has closed a connection; data that has arrived is dropped."""
    timeout = connection.gettimeout()
    connection.setblocking(False)
    try:
        return connection.recv(65536) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
    finally:
        connection.settimeout(timeout)
