"""Collect temperatures of CPUs from hwmon, and their energy from RAPL (powercap)."""

import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from trackside.log_once import LogOnce
from trackside_daemon.collectors.base import NothingToCollect
from trackside_daemon.collectors.kernel_files import read
from trackside_daemon.model.families import host
from trackside_daemon.model.metric import Sample

log = logging.getLogger("trackside")

# Names of the hwmon drivers of CPUs.
CHIPS = re.compile(r"coretemp|k8temp|k10temp|zenpower|via_cputemp|cpu\d*[_-]thermal")

SEARCH_SECONDS = 60.0  # interval of searching for sensors


class _Sensor(NamedTuple):
    labels: tuple[str, str]
    path: Path


class _Package:
    """The energy counter of a package, which starts from 0 again when it has reached *maximum*."""

    def __init__(self, name: str, path: Path, maximum: int) -> None:
        self.labels = (name,)
        self.path = path
        self._maximum = maximum
        self._carried = 0
        self._last = 0

    def joules(self, microjoules: int) -> float:
        """Return the total, given the file's current value; a fall of less than half the maximum is a reset."""
        if microjoules < self._last:
            wrapped = self._last - microjoules > self._maximum / 2
            self._carried += self._maximum if wrapped else self._last
        self._last = microjoules
        return (self._carried + microjoules) / 1e6


class ThermalCollector:
    """The temperatures of CPUs, and the energy of packages where this user may read it.

    Args:
        sys: Path of sysfs.
        clock: Seconds of the monotonic clock.
    """

    name = "thermal"

    def __init__(self, sys: Path = Path("/sys"), *, clock: Callable[[], float] = time.monotonic) -> None:
        self._hwmon = sys / "class" / "hwmon"
        self._powercap = sys / "class" / "powercap"
        self._clock = clock
        self._search_at = -1.0
        self._sensors: list[_Sensor] = []
        self._packages: dict[Path, _Package] = {}
        self._warned = LogOnce()

    def collect(self) -> list[Sample]:
        """Return one sample per sensor and package; those that cannot be read now are left out.

        Raises:
            NothingToCollect: There is none that this user may read.
        """
        if self._clock() >= self._search_at:
            self._sensors = list(_sensors(self._hwmon))
            self._find_packages()
            self._search_at = self._clock() + SEARCH_SECONDS
        temperatures = [(sensor.labels, self._number(sensor.path)) for sensor in self._sensors]
        energies = [(package, self._number(package.path)) for package in self._packages.values()]
        samples = [
            Sample(host.CPU_TEMPERATURE, labels, value / 1000) for labels, value in temperatures if value is not None
        ]
        samples += [
            Sample(host.CPU_ENERGY, package.labels, package.joules(value))
            for package, value in energies
            if value is not None
        ]
        if not samples:
            raise NothingToCollect(
                f"no CPU has a sensor in {self._hwmon} or a readable energy counter in {self._powercap}; virtual machines have "
                "none, other machines after `modprobe coretemp` (Intel) or `modprobe k10temp` (AMD)"
            )
        return samples

    def _find_packages(self) -> None:
        """Add new packages; known ones keep what they have carried over."""
        for zone in sorted(self._powercap.glob("intel-rapl:*")):
            path = zone / "energy_uj"
            name = _text(zone / "name")
            maximum = self._number(zone / "max_energy_range_uj")
            if path not in self._packages and name.startswith("package-") and maximum is not None:
                self._packages[path] = _Package(name.removeprefix("package-"), path, maximum)

    def _number(self, path: Path) -> int | None:
        """Return the number in a file; None when it cannot be read now, such as the sensor of an offline CPU."""
        try:
            return int(read(path))
        except PermissionError:
            self._warn_once(
                PermissionError, path, "only root may read it; run the daemon as root, or with CAP_DAC_READ_SEARCH"
            )
        except OSError:
            pass
        except ValueError as error:
            self._warn_once(path, path, f"{error}; is path.sysfs a sysfs?")
        return None

    def _warn_once(self, key: object, path: Path, why: str) -> None:
        if self._warned.first(key):
            log.warning("%s is left out: %s", path, why)


def _sensors(hwmon: Path) -> Iterator[_Sensor]:
    """Yield the sensors of CPUs; sensors of a chip with the same label have the file's name instead."""
    for directory in sorted(hwmon.glob("hwmon*")):
        name = _text(directory / "name")
        if not CHIPS.fullmatch(name):
            continue
        chip = _chip(directory, name)
        paths = {path.name.removesuffix("_input"): path for path in sorted(directory.glob("temp*_input"))}
        labels = {temp: _text(directory / f"{temp}_label") for temp in paths}
        for temp, path in paths.items():
            unique = list(labels.values()).count(labels[temp]) == 1
            yield _Sensor((chip, labels[temp] if labels[temp] and unique else temp), path)


def _chip(directory: Path, name: str) -> str:
    """Return node_exporter's name of a chip: bus and device, because each socket has a chip of the same *name*."""
    if not (directory / "device").exists():
        return name
    bus, device = Path(os.path.realpath(directory / "device")).parts[-2:]
    return "_".join(re.sub("[^a-z0-9:_]", "_", part.lower()).strip("_") for part in (bus, device))


def _text(path: Path) -> str:
    """Return the text of a file; empty when it is missing or cannot be read now."""
    try:
        return read(path).decode(errors="replace").strip()
    except OSError:
        return ""
