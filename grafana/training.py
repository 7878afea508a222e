"""The dashboard Training run."""

from __future__ import annotations

from grafana.board import board
from grafana.run import attempts, devices, goodput, learning, overview, processes, ranks, speed, waiting

UID = "trackside-training"


def dashboard() -> str:
    """As JSON."""
    return board(
        UID,
        "Training run",
        "One run: whether it goes well, how fast it goes, and what it waits for, down to its ranks and their GPUs.",
        [room.row() for room in (overview, learning, speed, waiting, goodput, ranks, devices, processes, attempts)],
        variables=["run", "rank"],
        single=["run"],
        annotations=attempts.marked(),
    )
