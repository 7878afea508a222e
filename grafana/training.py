"""The dashboard Training run."""

from __future__ import annotations

from grafana.board import board
from grafana.run import (
    attempts,
    devices,
    goodput,
    optimization,
    overview,
    processes,
    ranks,
    reinforcement,
    speed,
    time_spent,
)

UID = "trackside-training"


def dashboard() -> str:
    """Return the dashboard as JSON."""
    return board(
        UID,
        "Training run",
        "One run: whether it goes well, how fast it is, and what it waits for, down to its ranks and their GPUs.",
        [
            part.row()
            for part in (
                overview,
                optimization,
                speed,
                time_spent,
                goodput,
                ranks,
                devices,
                processes,
                reinforcement,
                attempts,
            )
        ],
        variables=["run", "rank"],
        single=["run"],
        annotations=attempts.run_annotations(),
    )
