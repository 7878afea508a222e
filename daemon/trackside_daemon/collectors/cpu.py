"""CPU time of the host by mode, and the CPUs that this process may run on."""

from __future__ import annotations

import os
from pathlib import Path

from trackside_daemon.metric import Metric, Sample

#: The columns of a ``cpu`` line of /proc/stat, in order. ``user`` and ``nice`` include guest time, as in node_exporter.
MODES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")

SECONDS = Metric(
    "trackside_host_cpu_seconds_total",
    "counter",
    "CPU time by mode, summed over all CPUs, from /proc/stat; user and nice include guest time.",
    ("mode",),
    "seconds",
)
CPUS = Metric("trackside_host_cpus", "gauge", "CPUs that the daemon may run on, from sched_getaffinity(2).")

STEP_BACK = 3.0
"""A counter that falls by less, in seconds, is held: iowait and idle may step back a little, and a scrape would read
that as a reset. A larger fall is CPUs that went offline. node_exporter's `jumpBackSeconds` is the same."""


class CpuCollector:
    """The first line of /proc/stat.

    Args:
        proc: Where procfs is mounted.
    """

    name = "cpu"
    metrics = (SECONDS, CPUS)

    def __init__(self, proc: Path = Path("/proc"), *, per_cpu: bool = False) -> None:  # noqa: ARG002
        self._stat = proc / "stat"
        self._ticks_a_second = os.sysconf("SC_CLK_TCK")
        self._last: dict[str, float] = {}

    def collect(self) -> list[Sample]:
        """One sample for each mode that this kernel counts, and the number of CPUs.

        Raises:
            OSError: /proc/stat cannot be read.
            ValueError: It does not begin with a ``cpu`` line.
        """
        with self._stat.open(encoding="ascii") as file:
            label, *ticks = file.readline().split()
        if label != "cpu":
            raise ValueError(f"{self._stat} begins with {label!r}, not with the line of all CPUs; is procfs mounted?")
        for mode, count in zip(MODES, ticks, strict=False):  # kernels before 2.6.11 have no steal, later ones add guest
            self._last[mode] = self._forward(mode, int(count) / self._ticks_a_second)
        samples = [Sample(SECONDS, (mode,), seconds) for mode, seconds in self._last.items()]
        return [*samples, Sample(CPUS, (), len(os.sched_getaffinity(0)))]

    def _forward(self, mode: str, seconds: float) -> float:
        last = self._last.get(mode, 0.0)
        return last if 0 < last - seconds < STEP_BACK else seconds
