"""The dashboard Trackside itself."""

from __future__ import annotations

from grafana.board import board
from grafana.own import collectors, daemons, taking, telling

UID = "trackside-itself"


def dashboard() -> str:
    """As JSON."""
    return board(
        UID,
        "Itself",
        "The daemons: whether they are there, read what they should, take what is pushed, and tell people.",
        [daemons.overview(), collectors.row(), taking.row(), telling.row(), daemons.cost(), collectors.nvml()],
        variables=[],
    )
