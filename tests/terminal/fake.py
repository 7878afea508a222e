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
        "clock_hertz": 1.755e9,
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


def process(pid: int, **more: Any) -> dict[str, Any]:
    """Return a process of rank 0, as the API describes it."""
    return {
        "pid": pid,
        "parent": 1,
        "role": "rank",
        "comm": "python3",
        "state": "R",
        "run": "gpt-small",
        "run_id": "gpt-small-1",
        "rank": 0,
        "resident_bytes": 2**30,
        "cpu_seconds": 10.0,
        "threads": 12,
        "started": BEGUN,
        "user": "ann",
        "command": "python train.py",
        "gpus": [],
        **more,
    }


def machine() -> list[dict[str, Any]]:
    """Return ten buckets of the machine, as the API describes them: rising from 0 to the limit."""

    def rising(key: str, top: float, low: float = 0.0) -> dict[str, Any]:
        means = [low + (top - low) * number / 9 for number in range(10)]
        return {"key": key, "points": [[0, BEGUN + number, 0, 0, 0, 0, mean] for number, mean in enumerate(means)]}

    return [
        rising('trackside_host_cpu_seconds_total{mode="user"}', 16.0),
        rising('trackside_host_cpu_seconds_total{mode="idle"}', 0.0, 16.0),
        rising("trackside_host_memory_bytes", 100.0, 100.0),
        rising("trackside_host_memory_available_bytes", 0.0, 100.0),
        rising('trackside_gpu_utilization_ratio{gpu="1",uuid="GPU-1"}', 1.0),
        rising('trackside_gpu_temperature_celsius{gpu="1",sensor="memory",uuid="GPU-1"}', 0.0),
        rising('trackside_gpu_temperature_celsius{gpu="1",sensor="gpu",uuid="GPU-1"}', 100.0),
    ]


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
        processes: The answer to a request for the processes.
        ended: Path and body of the requests to end a process; the first is refused.
        begun: The requests for captures.
        recorded: A capture has ended.
        url: The URL with the token.
        token: The token that requests must have.
    """

    def __init__(self) -> None:
        self.overview: Any = overview()
        self.processes: list[dict[str, Any]] = []
        self.ended: list[tuple[str, Any]] = []
        self.asked: list[dict[str, list[str]]] = []
        self.begun: list[str] = []
        self.recorded = False
        self.url = ""
        self.token = TOKEN

    def answer(self, path: str, authorization: str, body: Any = None) -> tuple[int, Any]:
        """Return the status and the body."""
        if authorization != f"Bearer {self.token}":
            return 401, {"error": {"reason": "unauthorized", "message": "a token is needed"}}
        parts = urlsplit(path)
        fixed = {
            "/api/v1/status": {"version": "0.1.0"},
            "/api/v1/overview": self.overview,
            "/api/v1/machine": {"series": machine()},
            "/api/v1/processes": {"processes": self.processes},
        }
        if parts.path in fixed:
            return 200, fixed[parts.path]
        if parts.path.endswith("/end"):
            self.ended.append((parts.path, body))
            refused = {"error": {"reason": "conflict", "message": "process 12: has ended already"}}
            return (200, {"pid": 12, "signal": "SIGTERM"}) if len(self.ended) > 1 else (409, refused)
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
            sent = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            authorization = self.headers.get("Authorization", "")
            status, body = fake.answer(self.path, authorization, json.loads(sent or "null"))
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
