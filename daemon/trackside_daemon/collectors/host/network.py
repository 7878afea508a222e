"""Collect bytes, packets, errors and speed of network devices, from /proc/1/net/dev and /sys/class/net.

In a container, ``/proc/net`` is a link to ``self/net``, so even a mounted /proc of the host shows the container's network.
The collector therefore reads the network of process 1 of `--path.procfs`. That is the host's when the path is the host's
/proc or the container shares the host's pids, and this machine's own everywhere else. node_exporter reads ``net/dev`` and
needs the host's network to show the host.
"""

import os
import re
import time
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from functools import lru_cache
from pathlib import Path

from trackside_daemon.collectors.base import NothingToCollect
from trackside_daemon.collectors.kernel_files import read, read_base
from trackside_daemon.model.families import host
from trackside_daemon.model.metric import Sample

Counts = dict[str, list[bytes]]
"""The columns after a device's name, by the name."""

BYTES = (0, 8)  # the columns of the bytes received and sent
MEGABIT = 125_000  # bytes
UNKNOWN = (65535, 2**32 - 1)  # speeds that mean unknown: kernels and drivers write -1 in these forms

# Reading a speed waits for a lock (rtnl) that every change of the network holds.
INTERVAL = 10.0  # seconds between two reads of /sys/class/net


class NetworkCollector:
    """The devices of /proc/net/dev, with some files of /sys/class/net.

    Args:
        proc: Path of procfs.
        sys: Path of sysfs. It is ignored when its devices or their counters differ from those of procfs, because it then
            belongs to another network namespace.
        exclude: A regular expression that matches the whole names of the devices to leave out.
        clock: Seconds of the monotonic clock.
    """

    name = "network"

    def __init__(self, proc: Path, sys: Path, exclude: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        first = proc / "1" / "net" / "dev"
        self._dev = first if _readable(first) else proc / "net" / "dev"
        self._class = f"{sys}/class/net"
        # Bounded, because container engines name their devices at random, so new names never end.
        self._excluded = lru_cache(maxsize=1024)(re.compile(exclude).fullmatch)
        self._clock = clock
        self._due = clock()
        self._links: dict[str, list[Sample]] = {}

    def collect(self) -> list[Sample]:
        """Return eight samples per device, and up to three of its link; lines without numbers are left out.

        Raises:
            NothingToCollect: All devices are excluded.
            OSError: /proc/net/dev cannot be read.
            ValueError: It has no line of a device.
        """
        every = self._read()
        devices = {device: counts for device, counts in every.items() if not self._excluded(device)}
        if not every:
            raise ValueError(f"{self._dev} has no line of a device; is procfs mounted?")
        if not devices:
            raise NothingToCollect(f"{self._dev} has only devices that collector.network.exclude leaves out")
        self._update_links(every.keys(), devices)
        return [
            sample
            for device, counts in devices.items()
            for sample in (*_samples((device,), counts), *self._links.get(device, ()))
        ]

    def _read(self) -> Counts:
        counts_by_name = {}
        for line in read_base(self._dev).splitlines():
            name, colon, counts = line.partition(b":")
            if colon:
                counts_by_name[name.strip().decode(errors="replace")] = counts.split()
        return counts_by_name

    def _update_links(self, every: AbstractSet[str], devices: Counts) -> None:
        """Read the links of the devices every `INTERVAL`, again at the next tick if the devices changed meanwhile."""
        now = self._clock()
        if now < self._due:
            return
        if _names(self._class) == every and self._is_same_network(devices):
            self._links = {device: _link(f"{self._class}/{device}", (device,)) for device in devices}
            self._due = now + INTERVAL
        # A device that came or went between the two reads explains one difference, but not one that lasts.
        elif now >= self._due + INTERVAL:
            self._links = {}

    def _is_same_network(self, before: Counts) -> bool:
        """Return whether the byte counters of sysfs agree with those of procfs."""
        # Names are no proof: lo and eth0 exist in every network namespace.
        sysfs = {device: _bytes(f"{self._class}/{device}/statistics") for device in before}
        # procfs is read before and after sysfs, because the counters of a busy device increase in between.
        after = self._read()
        return all(
            count is None or _number(before[device], column) <= count <= _number(after.get(device, []), column)
            for device, counts in sysfs.items()
            for column, count in zip(BYTES, counts, strict=True)
        )


def _names(directory: str) -> set[str]:
    try:
        with os.scandir(directory) as entries:
            return {entry.name for entry in entries} - {"bonding_masters"}  # a file of the bonding driver, no device
    except OSError:
        return set()


def _samples(labels: tuple[str], counts: list[bytes]) -> list[Sample]:
    try:
        return [Sample(metric, labels, int(counts[column])) for column, metric in host.NET_DEV.items()]
    except (ValueError, IndexError):
        return []


def _bytes(directory: str) -> list[int | None]:
    """Return sysfs's counters of `BYTES`; None for an unreadable one."""
    words = (_text(f"{directory}/{name}") for name in ("rx_bytes", "tx_bytes"))
    return [int(word) if word.isdigit() else None for word in words]


def _number(counts: list[bytes], column: int) -> int:
    """Return a column's number, -1 when it is not a number."""
    try:
        return int(counts[column])
    except (ValueError, IndexError):
        return -1


def _link(directory: str, labels: tuple[str]) -> list[Sample]:
    """Return the samples of one device's files; files that are missing or unreadable are left out."""
    samples = []
    if state := _text(f"{directory}/operstate"):
        samples.append(Sample(host.NETWORK_UP, labels, float(state == b"up")))
    changes = _text(f"{directory}/carrier_changes")
    if changes.isdigit():
        samples.append(Sample(host.NETWORK_CARRIER_CHANGES, labels, int(changes)))
    # For a link that is down, the read of this file fails.
    speed = _text(f"{directory}/speed")
    if speed.isdigit() and int(speed) and int(speed) not in UNKNOWN:
        samples.append(Sample(host.NETWORK_SPEED, labels, int(speed) * MEGABIT))
    return samples


def _text(path: str) -> bytes:
    try:
        return read(path).strip()
    except OSError:
        return b""


def _readable(path: Path) -> bool:
    try:
        return bool(read(path))
    except OSError:
        return False
