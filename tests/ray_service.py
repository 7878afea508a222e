"""The processes, the dashboard and the metrics ports of Ray, as a collector sees them; `make soak` has real nodes."""

from __future__ import annotations

import json
import subprocess
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

HEAD, OTHER = "f3" * 28, "14" * 28
PAGE = """# TYPE ray_resources gauge
ray_resources{Component="raylet",Name="CPU",NodeAddress="10.0.0.1",SessionName="session_1",State="USED",WorkerId=""} 1.0
ray_resources{Component="raylet",Name="CPU",NodeAddress="10.0.0.1",SessionName="session_1",State="AVAILABLE",WorkerId=""} 1.0
ray_object_store_used_memory{Component="raylet"} 2.5e7
ray_object_store_available_memory{Component="raylet"} 7.5e7
ray_tasks{Component="core_worker",Name="f",SessionName="session_1",State="RUNNING"} 2.0
ray_tasks{Component="core_worker",Name="g",SessionName="session_1",State="RUNNING"} 1.0
ray_tasks{Component="core_worker",Name="g",SessionName="session_1",State="FINISHED"} 9.0
"""


class Ray:
    """Two nodes of Ray on a machine: processes in a directory, and a server for the dashboard and both metrics ports."""

    def __init__(self, place: Path) -> None:
        self.proc, self.session = place / "proc", place / "session"
        self.session.mkdir()
        self.proc.mkdir()
        self.states = {HEAD: "ALIVE", OTHER: "ALIVE"}
        self.messages: dict[str, str] = {}
        self.restarts, self.garbled = "1", False
        self.answers, self.page, self.actor = 0, PAGE, "sampler-0"
        self.token, self.given = "", list[str]()  # the token that the dashboard wants, and the headers that came
        self.redirect = ""  # where the dashboard sends to
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                given = self.headers.get("Authorization", "")
                if self.path == "/metrics":
                    assert not given, "the port of the metrics needs no token"
                else:
                    service.given.append(given)
                    if service.redirect:
                        self.send_response(302)
                        self.send_header("Location", service.redirect)
                        self.end_headers()
                        return
                    if service.token and given != f"Bearer {service.token}":
                        self.send_error(403 if given else 401)
                        return
                body = service.answer(self.path)
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                """Print nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        for pid, node in ((100, HEAD), (200, OTHER)):
            self.start(pid, f"/x/raylet\0--node_id={node}\0--session_dir={self.session}\0--labels=\0")
            (self.session / f"metrics_export_port_{node}").write_text(f"{self.port}")
        self.start(101, "ray::RolloutWorker.spin\0\0\0", parent=100)
        self.start(102, "ray::IDLE\0", parent=100)
        self.start(103, "ray::count_words()\0", parent=100)
        self.start(201, "ray::Learner\0", parent=200)
        self.start(1, "init\0")

    def start(self, pid: int, line: str, parent: int = 1) -> None:
        (self.proc / f"{pid}").mkdir()
        (self.proc / f"{pid}" / "cmdline").write_text(line)
        (self.proc / f"{pid}" / "stat").write_text(f"{pid} (a) b) S {parent} 1 1 0")

    def kill(self, pid: int) -> None:
        (self.proc / f"{pid}" / "cmdline").write_text("")

    def answer(self, path: str) -> bytes:
        if path == "/metrics":
            return self.page.encode()
        self.answers += 1
        if self.garbled:
            return b'{"data": {"result": [1, 2]}}'
        if path == "/logical/actors":
            address, pid = {"nodeId": HEAD}, 101
            one = {
                "address": address,
                "pid": pid,
                "name": self.actor,
                "className": "RolloutWorker",
                "jobId": "01000000",
            }
            return json.dumps(
                {"data": {"actors": {"a": {**one, "state": "ALIVE", "numRestarts": self.restarts}}}}
            ).encode()
        nodes = [
            {
                "node_id": node,
                "state": state,
                "state_message": self.messages.get(node),
                "resources_total": {"CPU": 2.0, "memory": 1e9, "node:10.0.0.1": 1.0},
            }
            for node, state in self.states.items()
        ]
        return json.dumps({"data": {"result": {"result": nodes}}}).encode()

    def process(self) -> subprocess.Popen[bytes]:
        """Start a process of this machine that looks like the raylet of the first node."""
        arguments = ("/x/raylet", "-c", "read line", f"--node_id={HEAD}", f"--session_dir={self.session}")
        return subprocess.Popen(arguments, executable="/bin/sh", stdin=subprocess.PIPE)

    def stop(self) -> None:
        """Stop the server."""
        self.server.shutdown()
        self.server.server_close()
