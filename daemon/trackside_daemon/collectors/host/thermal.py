"""Temperatures of CPUs, from hwmon, and their energy, from RAPL's powercap."""

from __future__ import annotations

import logging
import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from trackside_daemon.collectors.base import NothingToCollect
from trackside_daemon.collectors.kernel_files import read
from trackside_daemon.model.metric import Metric, Sample

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

log = logging.getLogger("trackside")

TEMPERATURE = Metric(
    "trackside_host_cpu_temperature_celsius",
    "gauge",
    "Temperature of a CPU's sensor, from /sys/class/hwmon tempN_input; sensor is its tempN_label where it has one.",
    ("chip", "sensor"),
    "celsius",
)
ENERGY = Metric(
    "trackside_host_cpu_energy_joules_total",
    "counter",
    "Energy of a CPU package, from /sys/class/powercap intel-rapl:N energy_uj, which AMD's have too.",
    ("package",),
    "joules",
)

CHIPS = re.compile(r"coretemp|k8temp|k10temp|zenpower|via_cputemp|cpu\d*[_-]thermal")
"""What the hwmon drivers of CPUs call themselves."""

LOOK_EVERY = 60.0
"""Seconds between two looks at what sensors there are."""


class _Sensor(NamedTuple):
    labels: tuple[str, str]
    path: Path


class _Package:
    """The energy of a package, which the kernel counts from 0 again when it has reached *most*."""

    def __init__(self, name: str, path: Path, most: int) -> None:
        self.labels = (name,)
        self.path = path
        self._most = most
        self._carried = self._last = 0

    def joules(self, microjoules: int) -> float:
        """All so far, of which now so many are in the file; a fall from less than half way is a reset."""
        if microjoules < self._last:
            wrapped = self._last - microjoules > self._most / 2
            self._carried += self._most if wrapped else self._last
        self._last = microjoules
        return (self._carried + microjoules) / 1e6


class ThermalCollector:
    """Every temperature of a CPU, and the energy of every package where it may be read.

    Args:
        sys: Where sysfs is mounted.
        clock: Seconds of the monotonic clock.
    """

    name = "thermal"
    metrics = (TEMPERATURE, ENERGY)

    def __init__(self, sys: Path = Path("/sys"), *, clock: Callable[[], float] = time.monotonic) -> None:
        self._hwmon = sys / "class" / "hwmon"
        self._powercap = sys / "class" / "powercap"
        self._clock = clock
        self._look_at = -1.0
        self._sensors: list[_Sensor] = []
        self._packages: dict[Path, _Package] = {}
        self._told: set[object] = set()

    def collect(self) -> list[Sample]:
        """One sample a sensor and a package; one that does not answer now is left out.

        Raises:
            NothingToCollect: There is none, or none that may be read.
        """
        if self._clock() >= self._look_at:
            self._sensors = list(_sensors(self._hwmon))
            self._find_packages()
            self._look_at = self._clock() + LOOK_EVERY
        temperatures = [(sensor.labels, self._number(sensor.path)) for sensor in self._sensors]
        energies = [(package, self._number(package.path)) for package in self._packages.values()]
        samples = [Sample(TEMPERATURE, labels, value / 1000) for labels, value in temperatures if value is not None]
        samples += [Sample(ENERGY, one.labels, one.joules(value)) for one, value in energies if value is not None]
        if not samples:
            raise NothingToCollect(
                f"no CPU has a sensor in {self._hwmon} nor an energy that may be read in {self._powercap}; virtual "
                "machines have none, others after `modprobe coretemp` (Intel) or `modprobe k10temp` (AMD)"
            )
        return samples

    def _find_packages(self) -> None:
        """Adds the packages that are new: what others have carried over stays."""
        for zone in sorted(self._powercap.glob("intel-rapl:*")):
            path = zone / "energy_uj"
            name = _text(zone / "name")
            most = self._number(zone / "max_energy_range_uj")
            if path not in self._packages and name.startswith("package-") and most is not None:
                self._packages[path] = _Package(name.removeprefix("package-"), path, most)

    def _number(self, path: Path) -> int | None:
        """What a file says; None when it does not answer now, as the sensor of a CPU that is offline."""
        try:
            return int(read(path))
        except PermissionError:
            self._tell(
                PermissionError, path, "only root may read it; run the daemon as root, or with CAP_DAC_READ_SEARCH"
            )
        except OSError:
            pass
        except ValueError as error:
            self._tell(path, path, f"{error}; does path.sysfs name a sysfs?")
        return None

    def _tell(self, once: object, path: Path, why: str) -> None:
        if once not in self._told:
            self._told.add(once)
            log.warning("%s is left out: %s", path, why)


def _sensors(hwmon: Path) -> Iterator[_Sensor]:
    """Those of CPUs. Where two of a chip have one label, they go by their file's name."""
    for directory in sorted(hwmon.glob("hwmon*")):
        name = _text(directory / "name")
        if not CHIPS.fullmatch(name):
            continue
        chip = _chip(directory, name)
        paths = {path.name.removesuffix("_input"): path for path in sorted(directory.glob("temp*_input"))}
        labels = {temp: _text(directory / f"{temp}_label") for temp in paths}
        for temp, path in paths.items():
            alone = list(labels.values()).count(labels[temp]) == 1
            yield _Sensor((chip, labels[temp] if labels[temp] and alone else temp), path)


def _chip(directory: Path, name: str) -> str:
    """As node_exporter calls it: by the bus and the device, since each socket has a chip of the same *name*."""
    if not (directory / "device").exists():
        return name
    bus, device = Path(os.path.realpath(directory / "device")).parts[-2:]
    return "_".join(re.sub("[^a-z0-9:_]", "_", part.lower()).strip("_") for part in (bus, device))


def _text(path: Path) -> str:
    """What a file says; nothing when it is not there or cannot be read now."""
    try:
        return read(path).decode(errors="replace").strip()
    except OSError:
        return ""
