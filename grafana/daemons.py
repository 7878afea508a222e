"""The dashboard Itself, about the daemons."""

from __future__ import annotations

from grafana.board import board
from grafana.daemon import collectors, ingestion, notifications, overview

UID = "trackside-itself"


def dashboard() -> str:
    """Return the dashboard as JSON."""
    return board(
        UID,
        "Itself",
        "The daemons: whether they are up, read their sources, receive pushes and send notifications.",
        [
            overview.row(),
            collectors.row(),
            ingestion.row(),
            notifications.row(),
            overview.resources(),
            collectors.nvml(),
        ],
        variables=[],
    )
