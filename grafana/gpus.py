"""The dashboard GPUs."""

from __future__ import annotations

from grafana.board import board
from grafana.gpu import health, heat, links, overview, work

UID = "trackside-gpus"


def dashboard() -> str:
    """As JSON."""
    return board(
        UID,
        "GPUs",
        "The GPUs of the chosen nodes, runs and ranks: what they do, what slows them down, and what is broken. Where there are "
        "hundreds, choose nodes or a run first.",
        [overview.row(), *work.rows(), *heat.rows(), links.row(), health.row()],
        variables=["run", "rank", "gpu"],
        refresh="1m",
    )
