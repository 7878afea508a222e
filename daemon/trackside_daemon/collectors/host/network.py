"""Network devices: bytes, packets, errors, speed.

In a container, ``/proc/net`` is a link to ``self/net``, so that even the host's /proc mounted there tells of the
container's own network. What is read is therefore the network of process 1 of `--path.procfs`: the host's, when that is
the host's /proc or the container shares the host's pids, and this machine's own everywhere else. node_exporter reads
``net/dev`` and needs the host's network to tell of the host.
"""

from __future__ import annotations

import os
import re
import time
from functools import lru_cache
from typing import TYPE_CHECKING

from trackside_daemon.collectors.base import NothingToCollect
from trackside_daemon.collectors.kernel_files import read, read_base
from trackside_daemon.model.metric import Metric, Sample

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Set as AbstractSet
    from pathlib import Path

LABELS = ("device",)


def _family(name: str, says: str, unit: str = "") -> Metric:
    return Metric(f"trackside_host_network_{name}_total", "counter", f"{says}, from /proc/net/dev.", LABELS, unit)


FIELDS: tuple[tuple[int, Metric], ...] = (
    (0, _family("receive_bytes", "Bytes that the device received", "bytes")),
    (1, _family("receive_packets", "Packets that the device received")),
    (2, _family("receive_errs", "Packets that were received with an error")),
    (3, _family("receive_drop", "Packets that were received and dropped, as without room for them")),
    (8, _family("transmit_bytes", "Bytes that the device sent", "bytes")),
    (9, _family("transmit_packets", "Packets that the device sent")),
    (10, _family("transmit_errs", "Packets that could not be sent for an error")),
    (11, _family("transmit_drop", "Packets that were dropped instead of sent")),
)
"""Column after a device's name, and what it is."""

UP = Metric("trackside_host_network_up", "gauge", "1 when /sys/class/net/DEVICE/operstate is up, else 0.", LABELS)
CARRIER_CHANGES = Metric(
    "trackside_host_network_carrier_changes_total",
    "counter",
    "Times that the link came or went, from /sys/class/net/DEVICE/carrier_changes.",
    LABELS,
)
SPEED = Metric(
    "trackside_host_network_speed_bytes_per_second",
    "gauge",
    "Speed of the link in one direction, where it is known, from /sys/class/net/DEVICE/speed.",
    LABELS,
    "bytes_per_second",
)

Counts = dict[str, list[bytes]]
"""The columns after a device's name, by that."""

BYTES = (0, 8)
"""The columns of the bytes that it received, and that it sent."""

MEGABIT = 125_000
"""Bytes."""

UNKNOWN = (65535, 2**32 - 1)
"""-1 as kernels and drivers write it that do not know a speed."""

INTERVAL = 10.0
"""Seconds between two looks at /sys/class/net: a speed waits for a lock that whoever changes a network holds."""


class NetworkCollector:
    """A line of /proc/net/dev a device, and some files of /sys/class/net.

    Args:
        proc: Where procfs is mounted.
        sys: Where sysfs is mounted. Nothing is taken from it when it has other devices than procfs, or other counts of
            them, and so is that of another network.
        exclude: A regular expression that matches the whole names of the devices to leave out.
        clock: Seconds of the monotonic clock.
    """

    name = "network"
    metrics = (*(metric for _, metric in FIELDS), UP, CARRIER_CHANGES, SPEED)

    def __init__(self, proc: Path, sys: Path, exclude: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        first = proc / "1" / "net" / "dev"
        self._dev = first if _readable(first) else proc / "net" / "dev"
        self._class = f"{sys}/class/net"
        self._excluded = lru_cache(maxsize=1024)(re.compile(exclude).fullmatch)
        self._clock = clock
        self._due = clock()
        self._links: dict[str, list[Sample]] = {}

    def collect(self) -> list[Sample]:
        """Eight samples a device, and up to three of its link; a line that is not one of numbers is left out.

        Raises:
            NothingToCollect: There is none but the excluded.
            OSError: /proc/net/dev cannot be read.
            ValueError: It has no line of a device.
        """
        every = self._read()
        devices = {device: counts for device, counts in every.items() if not self._excluded(device)}
        if not every:
            raise ValueError(f"{self._dev} has no line of a device; is procfs mounted?")
        if not devices:
            raise NothingToCollect(f"{self._dev} has no device but those that collector.network.exclude leaves out")
        self._look(every.keys(), devices)
        return [
            sample
            for device, counts in devices.items()
            for sample in (*_samples((device,), counts), *self._links.get(device, ()))
        ]

    def _read(self) -> Counts:
        found = {}
        for line in read_base(self._dev).splitlines():
            name, colon, counts = line.partition(b":")
            if colon:
                found[name.strip().decode(errors="replace")] = counts.split()
        return found

    def _look(self, every: AbstractSet[str], devices: Counts) -> None:
        """Reads the links of the devices anew when it is time, again at the next tick if a device came or went meanwhile."""
        now = self._clock()
        if now < self._due:
            return
        if _names(self._class) == every and self._is_of_this_network(devices):
            self._links = {device: _link(f"{self._class}/{device}", (device,)) for device in devices}
            self._due = now + INTERVAL
        elif now >= self._due + INTERVAL:
            self._links = {}

    def _is_of_this_network(self, before: Counts) -> bool:
        """Whether sysfs counts bytes as procfs does: names alone are alike everywhere, such as lo and eth0."""
        told = {device: _bytes(f"{self._class}/{device}/statistics") for device in before}
        after = self._read()
        return all(
            count is None or _number(before[device], column) <= count <= _number(after.get(device, []), column)
            for device, counts in told.items()
            for column, count in zip(BYTES, counts, strict=True)
        )


def _names(directory: str) -> set[str]:
    try:
        with os.scandir(directory) as entries:
            return {entry.name for entry in entries} - {"bonding_masters"}
    except OSError:
        return set()


def _samples(labels: tuple[str], counts: list[bytes]) -> list[Sample]:
    try:
        return [Sample(metric, labels, int(counts[column])) for column, metric in FIELDS]
    except (ValueError, IndexError):
        return []


def _bytes(directory: str) -> list[int | None]:
    """What sysfs counts of `BYTES`; None for what is not told."""
    words = (_text(f"{directory}/{name}") for name in ("rx_bytes", "tx_bytes"))
    return [int(word) if word.isdigit() else None for word in words]


def _number(counts: list[bytes], column: int) -> int:
    """A column's number, -1 when it is none."""
    try:
        return int(counts[column])
    except (ValueError, IndexError):
        return -1


def _link(directory: str, labels: tuple[str]) -> list[Sample]:
    """What the files of one device say; one that is missing or refuses is left out."""
    samples = []
    if state := _text(f"{directory}/operstate"):
        samples.append(Sample(UP, labels, float(state == b"up")))
    changes = _text(f"{directory}/carrier_changes")
    if changes.isdigit():
        samples.append(Sample(CARRIER_CHANGES, labels, int(changes)))
    speed = _text(f"{directory}/speed")
    if speed.isdigit() and int(speed) and int(speed) not in UNKNOWN:
        samples.append(Sample(SPEED, labels, int(speed) * MEGABIT))
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
