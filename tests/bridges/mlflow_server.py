"""A server with the part of MLflow's API that mirrors and imports use, which keeps equal metrics once, and can fail."""

from __future__ import annotations

import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from processes import DEADLINE

PAGE = 3  # elements of a page


class MlflowServer(ThreadingHTTPServer):
    """The server, on a free port, as a context manager.

    Attributes:
        mode: ``ok``, ``500``, ``lose`` (it stores the request, and closes the connection), or ``slow`` (it
            stores the request, and answers when *continues* is set).
        runs: The runs by id, each with ``info``, ``tags``, ``params`` and ``metrics``.
        requests: Number of requests.
        artifacts: The artifacts by path.
        keeps_artifacts: Whether it keeps artifacts of new runs itself.
        artifact_error: Status with which it refuses artifacts; 0 for none.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.mode = "ok"
        self.continues = threading.Event()
        self.runs: dict[str, dict[str, Any]] = {}
        self.experiments: dict[str, str] = {}
        self.requests = 0
        self.artifacts: dict[str, bytes] = {}
        self.keeps_artifacts = True
        self.artifact_error = 0
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        """The address."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def __enter__(self) -> MlflowServer:  # noqa: PYI034  Self came with Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    def metrics(self, key: str) -> list[tuple[int, float, int]]:
        """Return step, value and time of a metric of the only run, in order of time."""
        (run,) = self.runs.values()
        return sorted(((s, v, t) for k, t, s, v in run["metrics"] if k == key), key=lambda one: (one[2], one[0]))

    def answer(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a request."""
        name = path.rpartition("mlflow/")[2]
        if name == "experiments/search":
            return {"experiments": [{"experiment_id": id_, "name": one} for one, id_ in self.experiments.items()]}
        if name == "experiments/create":
            self.experiments[body["name"]] = str(len(self.experiments) + 1)
            return {"experiment_id": self.experiments[body["name"]]}
        if name == "runs/create":
            id_ = f"run{len(self.runs)}"
            info = {"run_id": id_, "run_name": body["run_name"], "status": "RUNNING"}
            info["artifact_uri"] = f"{'mlflow-artifacts' if self.keeps_artifacts else 's3'}:/1/{id_}/artifacts"
            tags = {tag["key"]: tag["value"] for tag in body["tags"]}
            self.runs[id_] = {"info": info, "tags": tags, "params": {}, "metrics": set()}
            return {"run": {"info": info}}
        if name == "runs/search":
            wanted = body.get("filter", "").rpartition("= ")[2].strip("'")
            found = [run for run in self.runs.values() if wanted in ("", run["tags"].get("trackside.run"))]
            begin = int(body.get("page_token") or 0)
            more = {"next_page_token": str(begin + PAGE)} if begin + PAGE < len(found) else {}
            return {"runs": [_described(run) for run in found[begin : begin + PAGE]], **more}
        if name == "metrics/get-history":
            metrics = sorted(one for one in self.runs[body["run_id"]]["metrics"] if one[0] == body["metric_key"])
            begin = int(body.get("page_token") or 0)
            more = {"next_page_token": str(begin + PAGE)} if begin + PAGE < len(metrics) else {}
            page = metrics[begin : begin + PAGE]
            return {"metrics": [{"key": k, "timestamp": t, "step": s, "value": v} for k, t, s, v in page], **more}
        run = self.runs[body["run_id"]]
        if name == "runs/log-batch":
            assert len(body.get("metrics", ())) <= 1000
            run["params"] |= {one["key"]: one["value"] for one in body.get("params", ())}
            run["metrics"] |= {
                (m["key"], m["timestamp"], m["step"], float(m["value"])) for m in body.get("metrics", ())
            }
        elif name == "runs/update":
            run["info"] |= {"status": body["status"], "end_time": body["end_time"]}
        return {"run": _described(run)} if name == "runs/get" else {}


def _described(run: dict[str, Any]) -> dict[str, Any]:
    data = {name: [{"key": key, "value": value} for key, value in run[name].items()] for name in ("params", "tags")}
    metrics = [{"key": key} for key in sorted({one[0] for one in run["metrics"]})]
    return {"info": run["info"], "data": {**data, "metrics": metrics}}


class _Handler(BaseHTTPRequestHandler):
    server: MlflowServer

    def do_POST(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def do_PUT(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        if self.server.artifact_error:
            self.send_error(self.server.artifact_error)
            return
        self.server.artifacts[self.path] = content
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_GET(self) -> None:
        self._answer({name: one for name, (one,) in parse_qs(urlsplit(self.path).query).items()})

    def _answer(self, body: dict[str, Any]) -> None:
        server = self.server
        server.requests += 1
        if server.mode == "500":
            self.send_error(500)
            return
        answer = json.dumps(server.answer(urlsplit(self.path).path, body)).encode()
        if server.mode == "lose":
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        if server.mode == "slow":
            server.continues.wait(DEADLINE)
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        """Write nothing."""
