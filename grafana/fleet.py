"""The dashboard Fleet."""

from __future__ import annotations

from grafana.board import board
from grafana.cluster import alerts, gpu_hours, nodes, overview, ray, runs

UID = "trackside-fleet"


def dashboard() -> str:
    """Return the dashboard as JSON."""
    return board(
        UID,
        "Fleet",
        "All runs and nodes: their state, the use of the GPUs, and the firing alerts.",
        [overview.row(), runs.row(), alerts.row(), gpu_hours.row(), nodes.row(), ray.row()],
        variables=["run"],
    )
