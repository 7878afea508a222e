"""Panels about NCCL's collectives, as its Inspector measures them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grafana.board import Row
from grafana.panels import Query, below, lines

from trackside_daemon.alerts.settings import ThresholdsSection
from trackside_daemon.model.families.foreign import BANDWIDTH, EXEC_TIME

if TYPE_CHECKING:
    from grafana_foundation_sdk.builders import timeseries

SHAPE = "comm_name, collective, message_size"
LEGEND = "{{comm_name}} {{collective}} {{message_size}}"
SLOWER = ThresholdsSection().collective_ratio


def row() -> Row:
    """Return the row with the bandwidth of each communicator, against its past and its peers, and the time of operations."""
    now = f"avg by ({SHAPE}, nranks) ({BANDWIDTH[0]}{{HERE}})"
    before = f"avg by ({SHAPE}, nranks) (avg_over_time({BANDWIDTH[0]}{{HERE}}[1h]))"
    peers = f"avg by (collective, message_size, nranks) ({BANDWIDTH[0]}{{HERE}})"
    return Row(
        "Collectives",
        lines(
            "Bus bandwidth, GB/s",
            "Of each operation and size of a communicator, as a mean over its ranks. It needs NCCL's Inspector.",
            "none",
            Query(now, LEGEND),
            minimum=0,
        ),
        _compared(
            "Bandwidth against the last hour",
            "Below the line CollectiveSlow may fire, which names the node and whether its link is slow or a rank late.",
            f"{now} / {before}",
        ),
        _compared(
            "Bandwidth against the peers",
            "Against all communicators with the same operation, size and number of ranks.",
            f"{now} / on (collective, message_size, nranks) group_left () {peers}",
        ),
        lines(
            "Time of an operation, µs",
            "On the GPU, from the arrival of a rank to the end: the longest of the ranks waits longest for a late one.",
            "none",
            Query(f"max by ({SHAPE}) ({EXEC_TIME[0]}{{HERE}})", LEGEND),
            minimum=0,
        ),
        collapsed=True,
    )


def _compared(title: str, description: str, ratio: str) -> timeseries.Panel:
    """Return a panel of bandwidths in relation to others, with the line below which they are slow."""
    return lines(title, description, "percentunit", Query(ratio, LEGEND), levels=below(1 / SLOWER), minimum=0)
