"""The endpoint of the training processes."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import psutil
import pytest
from processes import DEADLINE, eventually
from unprivileged_users import launcher

from trackside_daemon.collectors.process.process import TrainingProcess
from trackside_daemon.model.families import gpu
from trackside_daemon.model.metric import Batch, Sample

UNUSED_PID = 4_200_000  # above the kernel's limit of pids


def test_the_processes_are_shown_as_they_were_seen_last(site: Any) -> None:
    client = site.client()
    assert client.get("/api/v1/processes", headers=site.key).json() == {"processes": []}
    rank = TrainingProcess(
        UNUSED_PID, 1, "rank", "python3", "R", "char-model", "id-7", 0, 4096, 2.5, 12, 1_760_000_000.5
    )
    worker = rank._replace(
        pid=UNUSED_PID + 1, parent=UNUSED_PID, role="dataloader", comm="pt_data_worker", state="S", started=None
    )
    site.processes = (rank, worker)
    first, second = client.get("/api/v1/processes", headers=site.key).json()["processes"]
    assert first == {
        "pid": UNUSED_PID,
        "parent": 1,
        "role": "rank",
        "comm": "python3",
        "state": "R",
        "run": "char-model",
        "run_id": "id-7",
        "rank": 0,
        "resident_bytes": 4096,
        "cpu_seconds": 2.5,
        "threads": 12,
        "started": 1_760_000_000.5,
        "user": None,
        "command": None,
        "gpus": [],
    }
    assert (second["pid"], second["parent"], second["role"], second["started"]) == (
        UNUSED_PID + 1,
        UNUSED_PID,
        "dataloader",
        None,
    )


def test_the_processes_are_not_shown_without_the_token(site: Any) -> None:
    assert site.client().get("/api/v1/processes").status_code == 401


def test_a_process_on_a_gpu_is_listed_and_one_of_a_training_is_ended_if_it_is_the_same(site: Any) -> None:
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)", "--password=geheim"])
    started = psutil.Process(sleeper.pid).create_time()
    one = TrainingProcess(sleeper.pid, 1, "rank", "sleep", "S", "r", "r-1", 3, 1, 0.0, 1, started)
    site.processes = (one,)
    memory = gpu.PROCESS_MEMORY
    samples = [Sample(memory, ("0", "u0", str(pid)), 7.0) for pid in (sleeper.pid, os.getpid())]
    site.state.update(Batch("gpu", samples))
    client = site.client()
    mine, other = client.get("/api/v1/processes", headers=site.key).json()["processes"]
    assert mine["gpus"] == other["gpus"] == [{"gpu": "0", "memory_bytes": 7.0}]
    assert (other["pid"], other["run"], other["role"]) == (os.getpid(), None, "gpu")
    assert mine["command"].startswith(f"{sys.executable} -c")
    assert "geheim" not in mine["command"]

    def end(pid: int, headers: dict[str, str], **body: Any) -> int:
        return int(client.ask("POST", f"/api/v1/processes/{pid}/end", json=body, headers=headers).status_code)

    assert end(sleeper.pid, {}, started=started) == 401
    assert end(sleeper.pid, site.key) == 400
    assert end(sleeper.pid, site.key, started=started - 60) == 409
    assert end(os.getpid(), site.key, started=started) == 409  # no process of a training
    assert sleeper.poll() is None
    assert end(sleeper.pid, site.key, started=started) == 200
    assert sleeper.wait(DEADLINE) == -15
    assert end(sleeper.pid, site.key, started=started) == 409


@pytest.mark.skipif(os.getuid() != 0, reason="only root starts processes of other users")
def test_a_process_of_another_user_below_a_training_is_not_ended(site: Any) -> None:
    """Another user may name any pid, or start a program that runs as root, such as sudo."""
    rank = subprocess.Popen([*launcher(61032), sys.executable, "-c", "import time; time.sleep(1000)"])
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    try:
        eventually(lambda: psutil.Process(rank.pid).uids().real == 61032)
        started = {one.pid: psutil.Process(one.pid).create_time() for one in (rank, child)}
        first = TrainingProcess(rank.pid, 1, "rank", "python3", "S", "r", "r-1", 0, 1, 0.0, 1, started[rank.pid])
        site.processes = (first, first._replace(pid=child.pid, role="other", started=started[child.pid]))
        path, body = f"/api/v1/processes/{child.pid}/end", {"started": started[child.pid]}
        answer = site.client().ask("POST", path, json=body, headers=site.key)
        assert answer.status_code == 403
        assert "another user" in answer.text
        assert child.poll() is None
    finally:
        for one in (rank, child):
            one.kill()
            one.wait(DEADLINE)
