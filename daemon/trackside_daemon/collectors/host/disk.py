"""Block devices: bytes, operations and time, from /proc/diskstats."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from trackside_daemon.collectors.base import NothingToCollect
from trackside_daemon.collectors.kernel_files import read_base
from trackside_daemon.model.metric import Metric, Sample

if TYPE_CHECKING:
    from pathlib import Path

SECTORS = 1 / 512
"""To a byte, of what /proc/diskstats calls a sector, whatever the device's own are."""

MILLISECONDS = 1000
"""To a second."""

COLUMNS = 14
"""A line has at least so many; those of partitions had fewer before Linux 2.6.25, which meant other things."""


def _family(name: str, says: str, unit: str = "") -> Metric:
    return Metric(f"trackside_host_disk_{name}", "counter", f"{says}, from /proc/diskstats.", ("device",), unit)


FIELDS: tuple[tuple[int, Metric, float], ...] = (
    (3, _family("reads_completed_total", "Reads that were completed"), 1),
    (5, _family("read_bytes_total", "Bytes that were read", "bytes"), SECTORS),
    (6, _family("read_time_seconds_total", "Time that all reads took, summed", "seconds"), MILLISECONDS),
    (7, _family("writes_completed_total", "Writes that were completed"), 1),
    (9, _family("written_bytes_total", "Bytes that were written", "bytes"), SECTORS),
    (10, _family("write_time_seconds_total", "Time that all writes took, summed", "seconds"), MILLISECONDS),
    (
        11,
        Metric("trackside_host_disk_io_now", "gauge", "Operations in progress, from /proc/diskstats.", ("device",)),
        1,
    ),
    (12, _family("io_time_seconds_total", "Time in which any operation was in progress", "seconds"), MILLISECONDS),
    (
        13,
        _family("io_time_weighted_seconds_total", "Time that all operations took, those in progress too", "seconds"),
        MILLISECONDS,
    ),
)
"""Column of a line, what it is, and how many make one of its unit."""


class DiskCollector:
    """A line of /proc/diskstats a device; one that never did anything counts from 0, as in node_exporter.

    Args:
        proc: Where procfs is mounted.
        exclude: A regular expression that matches the whole names of the devices to leave out.
    """

    name = "disk"
    metrics = tuple(metric for _, metric, _ in FIELDS)

    def __init__(self, proc: Path, exclude: str) -> None:
        self._diskstats = proc / "diskstats"
        self._excluded = lru_cache(maxsize=1024)(re.compile(exclude).fullmatch)

    def collect(self) -> list[Sample]:
        """Nine samples a device; a line that is not one of numbers is left out.

        Raises:
            NothingToCollect: There is no device, or none but the excluded.
            OSError: /proc/diskstats cannot be read.
            ValueError: It has lines, and none is a device's.
        """
        try:
            lines = read_base(self._diskstats).splitlines()
        except FileNotFoundError:
            raise NothingToCollect(
                f"{self._diskstats} is not there: this kernel tells nothing of block devices, or --path.procfs is not a procfs"
            ) from None
        samples: list[Sample] = []
        left_out = False
        for line in lines:
            columns = line.split()
            if len(columns) < COLUMNS:
                continue
            device = columns[2].decode(errors="replace")
            if self._excluded(device):
                left_out = True
            else:
                samples += _samples((device,), columns)
        if lines and not samples and not left_out:
            raise ValueError(f"{self._diskstats} has no line of a device, but {lines[0]!r}; is --path.procfs a procfs?")
        if not samples:
            raise NothingToCollect(f"{self._diskstats} has no device but those that collector.disk.exclude leaves out")
        return samples


def _samples(labels: tuple[str], columns: list[bytes]) -> list[Sample]:
    try:
        return [Sample(metric, labels, int(columns[column]) / many) for column, metric, many in FIELDS]
    except ValueError:
        return []
