"""Panels about NCCL's collectives, as its Inspector measures them."""

from __future__ import annotations

from grafana.board import Row
from grafana.panels import Query, below, lines

from trackside_daemon.alerts.settings import ThresholdsSection
from trackside_daemon.model.families.foreign import BANDWIDTH, EXEC_TIME

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
        lines(
            "Bandwidth against the last hour",
            "Below the line CollectiveSlow may fire, which names the node and whether its link is slow or a rank late.",
            "percentunit",
            Query(f"{now} / {before}", LEGEND),
            levels=below(1 / SLOWER),
            minimum=0,
        ),
        lines(
            "Bandwidth against the peers",
            "Against all communicators with the same operation, size and number of ranks.",
            "percentunit",
            Query(f"{now} / on (collective, message_size, nranks) group_left () {peers}", LEGEND),
            levels=below(1 / SLOWER),
            minimum=0,
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
