"""Collect bytes, operations and time of block devices, from /proc/diskstats."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from trackside_daemon.collectors.base import NothingToCollect
from trackside_daemon.collectors.kernel_files import read_base
from trackside_daemon.model.families import host
from trackside_daemon.model.metric import Sample

if TYPE_CHECKING:
    from pathlib import Path

# Divisors of the columns by the family's unit: a column has milliseconds, or sectors of 512 bytes, whatever the device's own
# size is.
DIVISORS = {"seconds": 1000, "bytes": 1 / 512, "": 1}

# Partitions had fewer columns before Linux 2.6.25, with other meanings.
COLUMNS = 14  # least columns of a line


class DiskCollector:
    """The devices of /proc/diskstats; a device without any operation has counters of 0, as in node_exporter.

    Args:
        proc: Path of procfs.
        exclude: A regular expression that matches the whole names of the devices to leave out.
    """

    name = "disk"
    metrics = tuple(host.DISKSTATS.values())

    def __init__(self, proc: Path, exclude: str) -> None:
        self._diskstats = proc / "diskstats"
        # Cached, because a pattern costs more than a lookup and the devices are the same in each tick.
        self._excluded = lru_cache(maxsize=1024)(re.compile(exclude).fullmatch)

    def collect(self) -> list[Sample]:
        """Return nine samples per device; lines with other columns than numbers are left out.

        Raises:
            NothingToCollect: There is no device that is not excluded.
            OSError: /proc/diskstats cannot be read.
            ValueError: It has lines, but none of a device.
        """
        try:
            lines = read_base(self._diskstats).splitlines()
        except FileNotFoundError:
            raise NothingToCollect(
                f"{self._diskstats} does not exist: this kernel has no block devices, or --path.procfs is not a procfs"
            ) from None
        samples: list[Sample] = []
        excluded = False
        for line in lines:
            columns = line.split()
            if len(columns) < COLUMNS:
                continue
            device = columns[2].decode(errors="replace")
            if self._excluded(device):
                excluded = True
            else:
                samples += _samples((device,), columns)
        if lines and not samples and not excluded:
            raise ValueError(f"{self._diskstats} has no line of a device, but {lines[0]!r}; is --path.procfs a procfs?")
        if not samples:
            raise NothingToCollect(f"{self._diskstats} has only devices that collector.disk.exclude leaves out")
        return samples


def _samples(labels: tuple[str], columns: list[bytes]) -> list[Sample]:
    try:
        return [
            Sample(metric, labels, int(columns[column]) / DIVISORS[metric.unit])
            for column, metric in host.DISKSTATS.items()
        ]
    except ValueError:
        return []
