"""An OpenAI-compatible server that streams tokens on a schedule, and fails on request."""

from __future__ import annotations

import json
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self

TOKENS = 6


class StreamingServer:
    """The server; the prompts ``fail``, ``refuse``, ``hang``, ``cut`` and ``unfinished`` fail in their ways.

    The answer to ``whole`` has all tokens in one part.

    Args:
        first: Seconds until the first token.
        gap: Seconds between two tokens.
    """

    def __init__(self, first: float, gap: float) -> None:
        self.requests: list[dict[str, Any]] = []
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.schedule = [first + gap * number for number in range(TOKENS)]
        self._server.requests = self.requests
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"

    def __enter__(self) -> Self:
        Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    schedule: list[float]
    requests: list[dict[str, Any]]


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_POST(self) -> None:
        begun = time.perf_counter()
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append({**body, "path": self.path, "headers": dict(self.headers)})
        prompt = body["messages"][0]["content"]
        if prompt == "fail":
            self.send_response(500)
            self.end_headers()
            self.wfile.write(b"the model is on fire")
            return
        self.send_response(200)
        self.end_headers()
        if prompt == "refuse":
            self._event({"error": {"message": "too long"}})
            return
        for number, moment in enumerate(self.server.schedule[: 1 if prompt == "whole" else None]):
            if prompt == "hang" and number:
                time.sleep(1.0)
                return
            if prompt == "cut" and number == 3:
                return
            time.sleep(max(0.0, begun + moment - time.perf_counter()))
            self._event({"choices": [{"delta": {"content": "word "}, "finish_reason": None}]})
        if prompt != "unfinished":
            self._event({"choices": [{"delta": {}, "finish_reason": "length"}]})
            self._event({"choices": [], "usage": {"completion_tokens": TOKENS}})
            self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, contents: dict[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(contents).encode() + b"\n\n")
        self.wfile.flush()

    def log_message(self, *_: object) -> None:
        pass
