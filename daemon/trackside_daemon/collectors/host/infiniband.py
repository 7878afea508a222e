"""Collect data, congestion, errors and state of InfiniBand and RoCE ports, from /sys/class/infiniband.

RDMA traffic, such as NCCL's, does not appear in /proc/net/dev. Drivers differ: irdma and EFA have no counters/, and
others list files that cannot be read. Each file is therefore read independently.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from trackside_daemon.collectors.base import NothingToCollect
from trackside_daemon.model.families.infiniband import FILES, INFO, PHYSICAL_STATE, RATE, STATE
from trackside_daemon.model.metric import Metric, Sample

Value = TypeVar("Value")

INTERVAL = 10.0  # seconds between two listings of the files, and two reads of values that seldom change
RETRY_SECONDS = 60.0  # seconds until a file that could not be read, or had no number, is read again
GIGABIT = 125_000_000  # bytes
ALL_ONES = 2**64 - 1  # value of counters that some virtual functions do not have


class InfinibandCollector:
    """Every port of every device of /sys/class/infiniband.

    Args:
        sys: Path of sysfs.
        clock: Seconds of the monotonic clock.
    """

    name = "infiniband"

    def __init__(self, sys: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._class = f"{sys}/class/infiniband"
        self._clock = clock
        self._due = 0.0
        self._devices: list[str] = []
        self._ports: dict[str, _Port] = {}

    def collect(self) -> list[Sample]:
        """Return the counters and states of each port; files that are missing or unreadable are left out.

        Raises:
            NothingToCollect: The host has no device.
            OSError: /sys/class/infiniband cannot be listed.
        """
        now = self._clock()
        devices = self._list_devices()
        if now >= self._due or devices != self._devices:
            self._update_ports(devices, now)
        return [sample for port in self._ports.values() for sample in port.samples(now)]

    def _list_devices(self) -> list[str]:
        try:
            with os.scandir(self._class) as entries:
                devices = [entry.name for entry in entries]
        except (FileNotFoundError, NotADirectoryError):
            devices = []
        if not devices:
            self._ports = {}
            raise NothingToCollect(
                f"{self._class} has no device: this host has no InfiniBand or RoCE device with a loaded driver; in a "
                "container, mount the host's /sys and name it in --path.sysfs"
            )
        return devices

    def _update_ports(self, devices: list[str], now: float) -> None:
        """List the ports and their files, and forget ports that are gone."""
        before = self._ports
        self._ports = {}
        for device in sorted(devices):
            ports = os.path.realpath(f"{self._class}/{device}/ports")  # otherwise each read would follow all links
            # By length first, so that port 10 follows port 9.
            for number in sorted(_names(ports), key=lambda name: (len(name), name)):
                directory = f"{ports}/{number}"
                port = before.get(directory) or _Port(directory, (device, number))
                port.update(now)
                self._ports[directory] = port
        self._devices = devices
        self._due = now + INTERVAL


class _Port:
    """One port: its files, and its last states.

    Args:
        directory: The port's directory.
        labels: The device and the port number.
    """

    def __init__(self, directory: str, labels: tuple[str, str]) -> None:
        self._directory = directory
        self._labels = labels
        self._files: list[tuple[str, Metric, int]] = []
        self._states: list[Sample] = []
        self._retry_at: dict[str, float] = {}

    def update(self, now: float) -> None:
        """List the files, and read the values that seldom change, at *now* in seconds of the monotonic clock."""
        self._retry_at = {path: until for path, until in self._retry_at.items() if until > now}
        by_metric: dict[Metric, tuple[str, Metric, int]] = {}
        for directory, files in FILES.items():
            names = _names(f"{self._directory}/{directory}")
            for name, (metric, factor) in files.items():
                if name in names:
                    by_metric.setdefault(metric, (f"{self._directory}/{directory}/{name}", metric, factor))
        self._files = list(by_metric.values())
        states = (
            (STATE, self._read("state", _identifier, now)),
            (PHYSICAL_STATE, self._read("phys_state", _identifier, now)),
            (RATE, self._read("rate", _rate, now)),
        )
        self._states = [Sample(metric, self._labels, value) for metric, value in states if value is not None]
        if layer := self._read("link_layer", bytes.decode, now):
            self._states.append(Sample(INFO, (*self._labels, layer), 1))

    def samples(self, now: float) -> list[Sample]:
        """Return the counters at *now*, in seconds of the monotonic clock, and the last states."""
        samples = []
        labels = self._labels
        retry_at = self._retry_at
        for path, metric, factor in self._files:
            if path in retry_at:
                continue
            try:
                samples.append(Sample(metric, labels, _count(_text(path)) * factor))
            except (OSError, ValueError):
                retry_at[path] = now + RETRY_SECONDS
        return samples + self._states

    def _read(self, name: str, parse: Callable[[bytes], Value], now: float) -> Value | None:
        path = f"{self._directory}/{name}"
        if path in self._retry_at:
            return None
        try:
            return parse(_text(path).strip())
        except (OSError, ValueError):
            self._retry_at[path] = now + RETRY_SECONDS
            return None


def _names(directory: str) -> set[str]:
    try:
        with os.scandir(directory) as entries:
            return {entry.name for entry in entries}
    except OSError:
        return set()


def _text(path: str) -> bytes:
    """Return a file of one short line; `kernel_files.read` reads twice to find the end, at twice the cost."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, 128)
    finally:
        os.close(descriptor)


def _count(text: bytes) -> int:
    count = int(text)
    if not 0 <= count < ALL_ONES:
        raise ValueError(f"{count} is not a count")
    return count


def _identifier(text: bytes) -> int:
    """Return the number of a state such as ``4: ACTIVE``."""
    return int(text.partition(b":")[0])


def _rate(text: bytes) -> float:
    """Return the bytes per second of a rate such as ``100 Gb/sec (4X EDR)``."""
    rate = float(text.partition(b" ")[0]) * GIGABIT
    if not 0 < rate < float("inf"):
        raise ValueError(f"{text!r} is not a rate")
    return rate
