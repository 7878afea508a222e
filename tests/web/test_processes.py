"""The endpoint of the training processes."""

from __future__ import annotations

from typing import Any

from trackside_daemon.collectors.process.process import Process


def test_the_processes_are_shown_as_they_were_seen_last(site: Any) -> None:
    client = site.client()
    assert client.get("/api/v1/processes", headers=site.key).json() == {"processes": []}
    rank = Process(50, 1, "rank", "python3", "R", "char-model", "id-7", 0, 4096, 2.5, 12, 1_760_000_000.5)
    worker = rank._replace(pid=51, parent=50, role="dataloader", comm="pt_data_worker", state="S", started=None)
    site.processes = (rank, worker)
    first, second = client.get("/api/v1/processes", headers=site.key).json()["processes"]
    assert first == {
        "pid": 50,
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
    }
    assert (second["pid"], second["parent"], second["role"], second["started"]) == (51, 50, "dataloader", None)


def test_the_processes_are_not_shown_without_the_token(site: Any) -> None:
    assert site.client().get("/api/v1/processes").status_code == 401
