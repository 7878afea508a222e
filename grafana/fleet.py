"""The dashboard Fleet."""

from __future__ import annotations

from grafana.board import board
from grafana.cluster import alerts, hours, nodes, overview, runs

UID = "trackside-fleet"


def dashboard() -> str:
    """As JSON."""
    return board(
        UID,
        "Fleet",
        "All runs and nodes: how they stand, what the GPUs were used for, and what fires.",
        [overview.row(), runs.row(), alerts.row(), hours.row(), nodes.row()],
        variables=["run"],
    )
