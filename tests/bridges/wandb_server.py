"""A server with the part of W&B's API that its client uses online, which keeps rows by their line number, and can fail."""

from __future__ import annotations

import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from processes import DEADLINE

HISTORY, SUMMARY = "wandb-history.jsonl", "wandb-summary.json"


class WandbServer:
    """The server, for one run, on a free port, as a context manager.

    Attributes:
        mode: ``ok``, ``500``, ``403`` (it refuses rows for good, and nothing else), ``lose`` (it keeps what the request
            brings, and closes the connection), ``slow`` (it keeps it, and answers when *continues* is set), or ``stop``.
        when_rows_arrive: The mode from the next request with rows on, which is the middle of a batch; empty for no change.
        failed: Set once a request has not been answered as it should.
        rows: The rows of the run by line number.
        state: The run's state; empty before its first start.
    """

    def __init__(self) -> None:
        self.mode, self.when_rows_arrive = "ok", ""
        self.failed, self.continues = threading.Event(), threading.Event()
        self.rows: dict[int, dict[str, Any]] = {}
        self.state = ""
        self._summary = "{}"
        self._run: dict[str, Any] = {}
        self._address = ("127.0.0.1", 0)
        self._lock = threading.Lock()

    def __enter__(self) -> WandbServer:  # noqa: PYI034  Self came with Python 3.11
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.continues.set()
        self.stop()

    @property
    def url(self) -> str:
        """The address, which stays the same."""
        return f"http://127.0.0.1:{self._address[1]}"

    def start(self) -> None:
        """Start, also again after `stop`, with all that it has kept."""
        self.mode = "ok"
        self.failed.clear()
        self._server = ThreadingHTTPServer(self._address, type("Handler", (_Handler,), {"owner": self}))
        self._address = ("127.0.0.1", self._server.server_address[1])
        serve = self._server.serve_forever
        threading.Thread(target=serve, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def stop(self) -> None:
        """Refuse connections, and keep nothing more."""
        self.mode = "stop"
        self._server.shutdown()
        self._server.server_close()

    def steps(self) -> list[tuple[int, float]]:
        """Return step and loss of all rows, by line number."""
        return [(self.rows[line]["trackside/step"], self.rows[line]["loss"]) for line in sorted(self.rows)]

    def stream(self, body: dict[str, Any]) -> None:
        """Keep what a request to the file stream brings: lines that come again replace the same lines."""
        with self._lock:
            history = body.get("files", {}).get(HISTORY, {"offset": 0, "content": []})
            self.rows |= {history["offset"] + place: json.loads(line) for place, line in enumerate(history["content"])}
            if SUMMARY in body.get("files", {}):
                (self._summary,) = body["files"][SUMMARY]["content"]
            if body.get("complete"):
                self.state = "failed" if body["exitcode"] else "finished"

    def answer(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to any query of GraphQL, of which the client reads what it has asked for."""
        with self._lock:
            inserted = not self.state
            if "upsertBucket" in query:
                self._run |= {name: value for name, value in variables.items() if value is not None}
                self.state = "running"
            bucket = self._bucket() if self.state else None
        me: dict[str, Any] = {"id": "u", "entity": "me", "username": "me", "email": "", "admin": False, "flags": "{}"}
        files = [{"name": name, "uploadUrl": f"{self.url}/{name}"} for name in variables.get("files", ())]
        return {
            "viewer": {**me, "teams": {"edges": []}, "apiKeys": {"edges": []}},
            "serverInfo": {"features": []},
            "model": {"id": "p", "name": "p", "entity": {"id": "e", "name": "me"}, "bucket": bucket},
            "project": {"run": bucket},
            "RunType": {"fields": []},  # a probe of older clients
            "upsertBucket": {"bucket": bucket, "inserted": inserted},
            "createRunFiles": {"runID": "b", "uploadHeaders": [], "files": files},
        }

    def _bucket(self) -> dict[str, Any]:
        tail = [json.dumps(self.rows[max(self.rows)])] if self.rows else []
        return {
            "id": "b",
            "projectId": "1",
            "project": {"id": "p", "name": "p", "entity": {"id": "e", "name": "me"}},
            "name": self._run["name"],
            "displayName": self._run.get("displayName"),
            "config": self._run.get("config", "{}"),
            "tags": self._run.get("tags", []),
            "state": self.state,
            "stopped": False,
            "sweepName": None,
            "systemMetrics": "{}",
            "user": {"name": "me", "username": "me"},
            "wandbConfig": '{"t": 1}',
            "summaryMetrics": self._summary,
            "historyLineCount": len(self.rows),
            "historyTail": json.dumps(tail),
            "eventsTail": "[]",
            "eventsLineCount": 0,
            "logLineCount": 0,
        }


class _Handler(BaseHTTPRequestHandler):
    owner: WandbServer

    def do_POST(self) -> None:
        server = self.owner
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        streamed = self.path.endswith("/file_stream")
        if server.when_rows_arrive and streamed and HISTORY.encode() in body:
            server.mode, server.when_rows_arrive = server.when_rows_arrive, ""
            server.continues.clear()
            if server.mode == "stop":
                server.stop()
        mode = server.mode
        if mode in ("ok", "lose", "slow") and streamed:
            server.stream(json.loads(body))
        if mode != "ok":
            server.failed.set()
        if mode == "500" or (mode == "403" and streamed):
            self.send_error(int(mode))
            return
        if mode in ("stop", "lose"):
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        if mode == "slow":
            server.continues.wait(DEADLINE)
        asked = json.loads(body) if self.path == "/graphql" else {}
        self._send({"data": server.answer(asked["query"], asked.get("variables") or {})} if asked else {})

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self._send({})

    def _send(self, answer: dict[str, Any]) -> None:
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Write nothing."""
