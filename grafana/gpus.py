"""The dashboard GPUs."""

from __future__ import annotations

from grafana.board import board
from grafana.gpu import collectives, health, links, overview, power, utilization

UID = "trackside-gpus"


def dashboard() -> str:
    """Return the dashboard as JSON."""
    return board(
        UID,
        "GPUs",
        "The GPUs of the selected nodes, runs and ranks: what they do, what slows them down, and what is broken. With hundreds "
        "of GPUs, select nodes or a run first.",
        [overview.row(), *utilization.rows(), *power.rows(), links.row(), collectives.row(), health.row()],
        variables=["run", "rank", "gpu"],
        refresh="1m",
    )
