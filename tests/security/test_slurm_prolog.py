"""The prolog of Slurm starts the daemon although another user listens at its port, and reports that user's process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from processes import DEADLINE, ROOT
from unprivileged_users import launcher

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(shutil.which("ss") is None or os.getuid() != 0, reason="needs root and ss of iproute2")

USER = 61031
LISTENER = """
import http.server
class Healthy(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
server = http.server.HTTPServer(("127.0.0.1", 0), Healthy)
print(server.server_port, flush=True)
server.serve_forever()
"""


@pytest.fixture
def squatter() -> Iterator[tuple[int, int]]:
    """The pid of another user's process that answers as healthy, and its port."""
    begin = [*launcher(USER), sys.executable, "-c", LISTENER]
    with subprocess.Popen(begin, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.pid, int(process.stdout.readline())
        process.kill()


def prologue(place: Path, port: int, group: str, *, active: bool) -> list[str]:
    """Run the prolog with a systemd that states these of the service; return its calls."""
    calls = place / "calls"
    systemd = {
        "systemctl": f'echo systemctl "$@" >> {calls}\n'
        f'case "$*" in *show*) echo {group} ;; *is-active*) exit {0 if active else 3} ;; esac',
        "logger": f'echo logger "$@" >> {calls}',
    }
    for name, text in systemd.items():
        (place / name).write_text(f"#!/bin/sh\n{text}\n")
        (place / name).chmod(0o755)
    environ = {
        "PATH": f"{place}:{os.environ['PATH']}",
        "SLURM_JOB_ID": "7",
        "TRACKSIDE_PORT": str(port),
        "TRACKSIDE_URL": f"http://127.0.0.1:{port}",  # of the prolog before
    }
    subprocess.run([ROOT / "deploy/slurm/prolog.sh"], env=environ, check=True, timeout=DEADLINE)
    return calls.read_text().splitlines() if calls.exists() else []


def warnings(calls: list[str]) -> list[str]:
    return [line.partition(" job 7: ")[2] for line in calls if line.startswith("logger ")]


def test_a_process_of_another_user_at_the_port_does_not_keep_the_daemon_off(
    tmp_path: Path, squatter: tuple[int, int]
) -> None:
    pid, port = squatter
    calls = prologue(tmp_path, port, "", active=False)
    assert "systemctl --quiet --no-block start trackside" in calls
    state, stranger = warnings(calls)
    assert state == "the service is not active; see systemctl status trackside"
    assert stranger.startswith(f"process {pid} of ")
    assert f" listens at port {port}, and not the daemon" in stranger


def test_it_is_reported_next_to_a_daemon_that_runs(tmp_path: Path, squatter: tuple[int, int]) -> None:
    """A unit of the same name in the user's own systemd does not count."""
    pid, port = squatter
    calls = prologue(tmp_path, port, "/system.slice/trackside.service", active=True)
    assert not [line for line in calls if " start " in line]
    (stranger,) = warnings(calls)
    assert stranger.startswith(f"process {pid} of ")


def test_the_daemon_of_the_service_is_not_reported(tmp_path: Path, squatter: tuple[int, int]) -> None:
    pid, port = squatter
    group = Path(f"/proc/{pid}/cgroup").read_text().splitlines()[-1].rpartition(":")[2]
    assert warnings(prologue(tmp_path, port, group, active=True)) == []
