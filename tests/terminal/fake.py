"""A daemon with the contract of `/api/v1/overview` and `/api/v1/series`, whose answers a test sets."""

from __future__ import annotations

import json
import math
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator

TOKEN = "secret"
BEGUN = 1_790_000_000.0


def run(name: str, **more: Any) -> dict[str, Any]:
    """Return a run that trains, as the API describes it."""
    return {
        "id": f"{name}-1",
        "name": name,
        "state": "running",
        "attempt": 1,
        "world_size": 1,
        "started": BEGUN,
        "step": 1000,
        "total_steps": 5000,
        "progress_ratio": 0.2,
        "remaining_seconds": 4000.0,
        "loss": 2.125,
        "tokens_per_second": 51200.0,
        "step_seconds": 0.02,
        "last_step_time": BEGUN + 1000,
        "alerts": {"critical": 0, "warning": 0, "info": 0},
        "sparkline": [5 / (1 + step / 10) for step in range(60)],
        **more,
    }


def gpu(number: int, **more: Any) -> dict[str, Any]:
    """Return a busy GPU, as the API describes it."""
    return {
        "gpu": str(number),
        "uuid": f"GPU-{number}",
        "name": "NVIDIA H100 80GB HBM3",
        "up": True,
        "utilization_ratio": 0.97,
        "memory_used_bytes": 76_600_000_000,
        "memory_bytes": 85_520_809_984,
        "power_watts": 643.0,
        "power_limit_watts": 700.0,
        "temperature_celsius": 64.0,
        "limited": [],
        "ranks": [{"run": "gpt-small", "rank": number}],
        **more,
    }


def alert(severity: str, name: str, **more: Any) -> dict[str, Any]:
    """Return a firing alert, as the API describes it."""
    return {
        "id": 1,
        "alert": name,
        "severity": severity,
        "run": "gpt-small",
        "rank": 0,
        "key": "loss",
        "gpu": None,
        "subject": "gpt-small",
        "summary": "gpt-small: loss: NaN at step 413; the last finite value was 1.801",
        "started": BEGUN + 900,
        "silenced": False,
        **more,
    }


def overview(**more: Any) -> dict[str, Any]:
    """Return an overview of a host with two GPUs and two runs, and an alert of each severity."""
    return {
        "time": BEGUN + 1000,
        "version": "0.1.0",
        "host": {
            "name": "gpu7",
            "cpus": 16,
            "cpu_ratio": 0.34,
            "memory_bytes": 128 * 2**30,
            "memory_available_bytes": 87 * 2**30,
            "swap_used_bytes": 0,
            "disks": [{"mountpoint": "/", "size_bytes": 1000, "avail_bytes": 390}],
            "receive_bytes_per_second": 1.2e6,
            "transmit_bytes_per_second": 3e5,
        },
        "gpus": [gpu(0), gpu(1, limited=["power_cap"])],
        "runs": [run("gpt-small", alerts={"critical": 1, "warning": 1, "info": 0}), run("gpt-wide", loss=1.5)],
        "alerts": [
            alert("critical", "NonFinite"),
            alert("warning", "ThroughputDrop", summary="tokens a second are 40 % of what they were"),
            alert("info", "RunStarted", summary="it has begun"),
        ],
        **more,
    }


def points(key: str, first: int, last: int, most: int) -> list[list[Any]]:
    """Return points of buckets of equal size, at 50 steps a second."""
    size = max(1, -(-(last - first + 1) // most))
    steps = range(min(last, first + size - 1), last + 1, size)

    def value(step: int) -> float:
        return 1.5 + 4 * math.exp(-step / 200) if key == "loss" else 1024.0

    return [[step, BEGUN + step / 50, value(step) - 0.1, value(step) + 0.1, value(step)] for step in steps]


class Fake:
    """A daemon's API with settable answers.

    Attributes:
        overview: The answer to a request for the overview; a test may replace it, also by an invalid one.
        asked: The queries for series, oldest first.
        begun: The requests for captures.
        recorded: A capture has ended.
        url: The URL with the token.
        token: The token that requests must have.
    """

    def __init__(self) -> None:
        self.overview: Any = overview()
        self.asked: list[dict[str, list[str]]] = []
        self.begun: list[str] = []
        self.recorded = False
        self.url = ""
        self.token = TOKEN

    def answer(self, path: str, authorization: str) -> tuple[int, Any]:
        """Return the status and the body."""
        if authorization != f"Bearer {self.token}":
            return 401, {"error": {"reason": "unauthorized", "message": "a token is needed"}}
        parts = urlsplit(path)
        if parts.path == "/api/v1/status":
            return 200, {"version": "0.1.0"}
        if parts.path == "/api/v1/overview":
            return 200, self.overview
        if parts.path == "/api/v1/runs/gpt-small-1/captures":
            self.begun.append(parts.path)
            return 200, {"id": "c1", "state": "recording"}
        if parts.path == "/api/v1/captures/c1":
            lines = ["profile c1: summarised", *(f"[b]{number}" for number in range(40))]
            return 200, {"id": "c1", "state": "summarised" if self.recorded else "recording", "text": lines}
        query = parse_qs(parts.query)
        self.asked.append(query)
        first, last = (int(query.get(name, [default])[0]) for name, default in (("from", "1"), ("to", "1000")))
        of = {"run": query["run"][0], "attempt": 1, "rank": 0}
        found = [
            {**of, "key": key, "points": points(key, first, last, int(query["points"][0]))}
            for key in ("loss", "tokens")
            if key in query["key"]
        ]
        return 200, {"series": found}


@contextmanager
def serving(fake: Fake, port: int = 0) -> Iterator[Fake]:
    """Serve the API on loopback within the block."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            """See `http.server`."""
            status, body = fake.answer(self.path, self.headers.get("Authorization", ""))
            text = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_POST = do_GET  # noqa: N815  of `http.server`

        def log_message(self, *_: Any) -> None:
            """Write nothing."""

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        fake.url = f"http://127.0.0.1:{server.server_port}/#token={TOKEN}"
        try:
            yield fake
        finally:
            server.shutdown()
            thread.join()
