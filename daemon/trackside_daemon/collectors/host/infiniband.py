"""InfiniBand and RoCE ports: data, congestion, errors and state.

RDMA goes past /proc/net/dev, so that this is where the traffic of NCCL is. Drivers differ in what they have: irdma and
EFA lack counters/, others list files and refuse to be asked; each file stands for itself.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, TypeVar

from trackside_daemon.collectors.base import NothingToCollect
from trackside_daemon.collectors.host.infiniband_files import FILES, INFO, PHYSICAL_STATE, RATE, STATE
from trackside_daemon.model.metric import Metric, Sample

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Answer = TypeVar("Answer")

INTERVAL = 10.0
"""Seconds between two looks at which files there are, and at what seldom changes."""

PATIENCE = 60.0
"""Seconds for which a file that could not be read, or held no number, is not tried again."""

GIGABIT = 125_000_000
"""Bytes."""

ALL_ONES = 2**64 - 1
"""What some virtual functions answer for what they do not count."""


class InfinibandCollector:
    """Every port of every device of /sys/class/infiniband.

    Args:
        sys: Where sysfs is mounted.
        clock: Seconds of the monotonic clock.
    """

    name = "infiniband"
    metrics = tuple(
        dict.fromkeys(
            [*(metric for files in FILES.values() for metric, _ in files.values()), STATE, PHYSICAL_STATE, RATE, INFO]
        )
    )

    def __init__(self, sys: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._class = f"{sys}/class/infiniband"
        self._clock = clock
        self._due = 0.0
        self._devices: list[str] = []
        self._ports: dict[str, _Port] = {}

    def collect(self) -> list[Sample]:
        """What each port counts and is; a file that is missing or refuses is left out.

        Raises:
            NothingToCollect: There is no device.
            OSError: /sys/class/infiniband cannot be listed.
        """
        now = self._clock()
        devices = self._listed()
        if now >= self._due or devices != self._devices:
            self._look(devices, now)
        return [sample for port in self._ports.values() for sample in port.samples(now)]

    def _listed(self) -> list[str]:
        try:
            with os.scandir(self._class) as entries:
                devices = [entry.name for entry in entries]
        except (FileNotFoundError, NotADirectoryError):
            devices = []
        if not devices:
            self._ports = {}
            raise NothingToCollect(
                f"{self._class} has no device: this host has no InfiniBand or RoCE device whose driver is loaded; in a "
                "container, mount the host's /sys and name it in --path.sysfs"
            )
        return devices

    def _look(self, devices: list[str], now: float) -> None:
        """Ports that are gone are forgotten, with the files that they refused."""
        before, self._ports = self._ports, {}
        for device in sorted(devices):
            ports = os.path.realpath(f"{self._class}/{device}/ports")  # of links, the kernel follows each at each read
            for number in sorted(_names(ports), key=lambda name: (len(name), name)):
                directory = f"{ports}/{number}"
                port = before.get(directory) or _Port(directory, (device, number))
                port.look(now)
                self._ports[directory] = port
        self._devices = devices
        self._due = now + INTERVAL


class _Port:
    """One port: the files that it has, and what it last said of itself.

    Args:
        directory: Where its files are.
        labels: Its device and its number.
    """

    def __init__(self, directory: str, labels: tuple[str, str]) -> None:
        self._directory = directory
        self._labels = labels
        self._files: list[tuple[str, Metric, int]] = []
        self._said: list[Sample] = []
        self._refused: dict[str, float] = {}

    def look(self, now: float) -> None:
        """Lists the files, and reads what seldom changes, at *now* in seconds of the monotonic clock."""
        self._refused = {path: until for path, until in self._refused.items() if until > now}
        found: dict[Metric, tuple[str, Metric, int]] = {}
        for directory, files in FILES.items():
            names = _names(f"{self._directory}/{directory}")
            for name, (metric, factor) in files.items():
                if name in names:
                    found.setdefault(metric, (f"{self._directory}/{directory}/{name}", metric, factor))
        self._files = list(found.values())
        told = (
            (STATE, self._asked("state", _identifier, now)),
            (PHYSICAL_STATE, self._asked("phys_state", _identifier, now)),
            (RATE, self._asked("rate", _rate, now)),
        )
        self._said = [Sample(metric, self._labels, value) for metric, value in told if value is not None]
        if layer := self._asked("link_layer", bytes.decode, now):
            self._said.append(Sample(INFO, (*self._labels, layer), 1))

    def samples(self, now: float) -> list[Sample]:
        """What the port counts at *now*, in seconds of the monotonic clock, and what it last said of itself."""
        samples = []
        labels, refused = self._labels, self._refused
        for path, metric, factor in self._files:
            if path in refused:
                continue
            try:
                samples.append(Sample(metric, labels, _count(_text(path)) * factor))
            except (OSError, ValueError):
                refused[path] = now + PATIENCE
        return samples + self._said

    def _asked(self, name: str, parse: Callable[[bytes], Answer], now: float) -> Answer | None:
        path = f"{self._directory}/{name}"
        if path in self._refused:
            return None
        try:
            return parse(_text(path).strip())
        except (OSError, ValueError):
            self._refused[path] = now + PATIENCE
            return None


def _names(directory: str) -> set[str]:
    try:
        with os.scandir(directory) as entries:
            return {entry.name for entry in entries}
    except OSError:
        return set()


def _text(path: str) -> bytes:
    """What a file holds, which is one short line; `files.read` looks for more, at twice the cost."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, 128)
    finally:
        os.close(descriptor)


def _count(text: bytes) -> int:
    count = int(text)
    if not 0 <= count < ALL_ONES:
        raise ValueError(f"{count} counts nothing")
    return count


def _identifier(text: bytes) -> int:
    """The number of ``4: ACTIVE``."""
    return int(text.partition(b":")[0])


def _rate(text: bytes) -> float:
    """Bytes a second, of ``100 Gb/sec (4X EDR)``."""
    rate = float(text.partition(b" ")[0]) * GIGABIT
    if not 0 < rate < float("inf"):
        raise ValueError(f"{text!r} is no rate")
    return rate
