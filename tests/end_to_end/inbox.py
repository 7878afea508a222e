"""A local HTTP server that keeps its requests, in place of Slack, PagerDuty or a webhook."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple


class Letter(NamedTuple):
    """A request.

    Attributes:
        path: The path without its slash: the name of the receiver.
        body: The decoded JSON.
        at: The time of its arrival, by the monotonic clock.
    """

    path: str
    body: Any
    at: float

    def fires(self, alert: str) -> bool:
        """Return whether this message of Alertmanager's webhook reports the alert as firing."""
        return self.has(alert, "firing")

    def has(self, alert: str, status: str) -> bool:
        """Return whether the message has an alert with this status."""
        return any(one["status"] == status for one in self.of(alert))

    def of(self, alert: str) -> list[dict[str, Any]]:
        """Return what the message has of an alert."""
        return [one for one in self.body["alerts"] if one["labels"]["alertname"] == alert]


class Inbox:
    """The server, on a free port.

    Attributes:
        url: ``http://127.0.0.1:PORT``.
        letters: The requests so far.
    """

    def __init__(self) -> None:
        self.letters: list[Letter] = []
        letters = self.letters

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                letters.append(Letter(self.path.strip("/"), body, time.monotonic()))
                self.send_response(202)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_: object) -> None:
                """Write nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def of(self, receiver: str) -> list[Letter]:
        """Return the messages that a receiver got."""
        return [one for one in list(self.letters) if one.path == receiver]

    def close(self) -> None:
        """End the server."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
