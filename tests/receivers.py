"""Receivers of alerts, as real servers on the loopback."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, NamedTuple

from end_to_end.listening import Listening
from processes import DEADLINE, eventually

if TYPE_CHECKING:
    from pathlib import Path


class Got(NamedTuple):
    """One POST."""

    path: str
    headers: dict[str, str]
    json: Any


class Receiver:
    """A server that keeps the requests posted to it.

    Attributes:
        answers: The statuses to answer with; the last one stays.
        go: An event; while it is cleared, no request gets an answer.
        got: The accepted requests.
        tries: The number of requests.
    """

    def __init__(self, *answers: int, port: int = 0) -> None:
        self.answers = list(answers) or [200]
        self.go = threading.Event()
        self.go.set()
        self.got: list[Got] = []
        self.tries = 0
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                text = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.tries += 1
                receiver.go.wait(DEADLINE)
                status = receiver.answers.pop(0) if len(receiver.answers) > 1 else receiver.answers[0]
                if status < 300:
                    receiver.got.append(Got(self.path, dict(self.headers), json.loads(text)))
                self.send_response(status)
                if 300 <= status < 400:
                    self.send_header("Location", "/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Write nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_port
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def wait(self, count: int = 1) -> list[Got]:
        """Wait until *count* requests are accepted; return all accepted ones."""
        eventually(lambda: len(self.got) >= count)
        return self.got

    def stop(self) -> None:
        """Stop the server."""
        self.go.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class Alertmanager(Listening):
    """A real Alertmanager that notifies a receiver.

    Args:
        directory: The directory for its configuration and storage.
        receiver: The webhook to notify.
    """

    def __init__(self, directory: Path, receiver: Receiver) -> None:
        route = {"receiver": "hook", "group_by": ["run"], "group_wait": "100ms", "group_interval": "200ms"}
        hook = {"name": "hook", "webhook_configs": [{"url": f"{receiver.url}/am", "send_resolved": True}]}
        config = directory / "alertmanager.yml"  # JSON is YAML
        config.write_text(json.dumps({"route": route, "receivers": [hook]}))
        super().__init__(
            "prometheus-alertmanager",
            f"--config.file={config}",
            f"--storage.path={directory / 'alertmanager'}",
            "--web.listen-address=127.0.0.1:0",
            "--cluster.listen-address=",
        )
