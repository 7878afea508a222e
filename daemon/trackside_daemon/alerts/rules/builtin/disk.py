"""What file systems are short of.

| alert | why this threshold |
|---|---|
| DiskFilling | less than 5 % is free; or the line of the last hour ends at 0 within four hours and less than 40 % is free, so that one large file is no trend |
| FilesystemDead | it does not answer, as a network mount whose server is gone; ten seconds are more than a slow one takes |

Read-only file systems are full by nature, and /dev/shm has an alert of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.alerts.rules.query import Matcher, Query
from trackside_daemon.alerts.rules.rule import Rule

if TYPE_CHECKING:
    from trackside_daemon.alerts.settings import ThresholdsSection

MOUNT = ("mountpoint", "fstype")
NOT_SHM = (Matcher("mountpoint", "/dev/shm", "!="),)  # noqa: S108  only named
WRITABLE = Query("trackside_host_filesystem_readonly", below=0.5)
AVAILABLE = "trackside_host_filesystem_avail_bytes"
SIZE = Query("trackside_host_filesystem_size_bytes")
SOME = 0.4
LOOK = (
    "Since {since}. Checkpoints, caches of data sets and core files are what grows; a checkpoint that cannot be written ends "
    "the run."
)


def rules(thresholds: ThresholdsSection) -> list[Rule]:
    """In the order of the table."""
    return [*_filling(thresholds), _dead()]


def _filling(thresholds: ThresholdsSection) -> list[Rule]:
    return [
        Rule(
            "DiskFilling",
            "warning",
            Query(AVAILABLE, NOT_SHM, over=SIZE, on=MOUNT, below=thresholds.disk_ratio, only=(WRITABLE,)),
            "{mountpoint} has {value:percent} of its space left",
            LOOK,
            lasting=60.0,
            keep_firing=60.0,
        ),
        Rule(
            "DiskFilling",
            "warning",
            Query(
                AVAILABLE,
                NOT_SHM,
                how="predict",
                window=3600.0,
                ahead=thresholds.disk_full_in,
                on=MOUNT,
                below=0.0,
                only=(WRITABLE, Query(AVAILABLE, over=SIZE, on=MOUNT, below=SOME)),
            ),
            "{mountpoint} is full within hours if it goes on filling as in the last hour",
            LOOK,
            lasting=600.0,
            keep_firing=600.0,
            variant="trend",
        ),
    ]


def _dead() -> Rule:
    return Rule(
        "FilesystemDead",
        "critical",
        Query("trackside_host_filesystem_device_error", above=0.5),
        "the file system at {mountpoint} does not answer",
        "Since {since}. Whatever reads or writes there hangs in state D: look at its server and at dmesg.",
        lasting=10.0,
    )
