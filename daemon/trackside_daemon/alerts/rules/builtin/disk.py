"""Rules for file systems.

| alert | why this threshold |
|---|---|
| DiskFilling | less than 5 % is free; or the trend of the last hour reaches 0 within four hours. The trend needs less than 40 % free, so that one large file does not count as a trend; or the next checkpoint, of the size of the last one, does not fit |
| FilesystemDead | no answer for ten seconds, as from a network mount whose server is gone; a slow one answers sooner |

Read-only file systems are always full, and /dev/shm has a separate alert.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.alerts.rules.query import Matcher, Query
from trackside_daemon.alerts.rules.rule import Rule
from trackside_daemon.model.families import host, training

if TYPE_CHECKING:
    from trackside_daemon.alerts.settings import ThresholdsSection

MOUNT = ("mountpoint", "fstype")
NOT_SHM = (Matcher("mountpoint", "/dev/shm", "!="),)  # noqa: S108  only named
WRITABLE = Query(host.FILESYSTEM_READONLY, below=0.5)
AVAILABLE = host.FILESYSTEM_AVAIL
SIZE = Query(host.FILESYSTEM_SIZE)
TREND_FREE_RATIO = 0.4


def rules(thresholds: ThresholdsSection) -> list[Rule]:
    """Return the rules in the order of the table."""
    return [*_filling(thresholds), _dead()]


def _filling(thresholds: ThresholdsSection) -> list[Rule]:
    return [
        Rule(
            "DiskFilling",
            "warning",
            Query(AVAILABLE, NOT_SHM, over=SIZE, on=MOUNT, below=thresholds.disk_ratio, only=(WRITABLE,)),
            "{mountpoint} has {value:percent} of its space left",
            lasting=60.0,
            keep_firing=60.0,
        ),
        Rule(
            "DiskFilling",
            "warning",
            Query(
                AVAILABLE,
                NOT_SHM,
                function="predict",
                window=3600.0,
                ahead=thresholds.disk_full_in,
                on=MOUNT,
                below=0.0,
                only=(WRITABLE, Query(AVAILABLE, over=SIZE, on=MOUNT, below=TREND_FREE_RATIO)),
            ),
            "{mountpoint} will be full within hours at the rate of the last hour",
            lasting=600.0,
            keep_firing=600.0,
            variant="trend",
        ),
        Rule(
            "DiskFilling",
            "warning",
            Query(training.CHECKPOINT_ROOM, below=1.0),
            "the next checkpoint of run {run} does not fit: {directory} has room for {value:percent} of it",
            lasting=5.0,
            keep_firing=30.0,
            variant="checkpoint",
        ),
    ]


def _dead() -> Rule:
    return Rule(
        "FilesystemDead",
        "critical",
        Query(host.FILESYSTEM_DEVICE_ERROR, above=0.5),
        "the file system at {mountpoint} does not answer",
        lasting=10.0,
    )
