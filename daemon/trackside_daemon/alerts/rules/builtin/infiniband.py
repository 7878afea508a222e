"""Rules for InfiniBand and RoCE ports.

| alert | why this threshold |
|---|---|
| InfinibandDegraded | a port was up within the last hour and has been down for a minute; or its link went down in the last ten minutes, which should never happen |

A port that was never up has no cable and raises no alert.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.alerts.rules.query import Query
from trackside_daemon.alerts.rules.rule import Rule
from trackside_daemon.model.families import infiniband

if TYPE_CHECKING:
    from trackside_daemon.alerts.settings import ThresholdsSection

PORT = ("device", "port")
HOUR = 3600.0
LATELY = 600.0


def rules(_thresholds: ThresholdsSection) -> list[Rule]:
    """Return the rules in the order of the table."""
    return [
        Rule(
            "InfinibandDegraded",
            "warning",
            Query(infiniband.STATE, function="change", window=HOUR, by=PORT, below=-0.5),
            "port {port} of {device} is down, and was up within the last {window}",
            lasting=60.0,
            variant="down",
        ),
        Rule(
            "InfinibandDegraded",
            "warning",
            Query(infiniband.COUNTERS["link_downed"], function="change", window=LATELY, by=PORT, above=0.0),
            "the link of port {port} of {device} went down {value:whole} times in the last {window}",
            variant="flaps",
        ),
    ]
