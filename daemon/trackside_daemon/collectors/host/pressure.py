"""Time that tasks of the host have waited for CPU, memory and IO, from /proc/pressure."""

from __future__ import annotations

import errno
from pathlib import Path

from trackside_daemon.collectors.base import NothingToCollect
from trackside_daemon.collectors.kernel_files import no_number, read_base
from trackside_daemon.model.metric import Metric, Sample


def _family(resource: str, how: str, says: str, line: str) -> Metric:
    return Metric(
        f"trackside_host_pressure_{resource}_{how}_seconds_total",
        "counter",
        f"Time in which {says}, from /proc/pressure/{resource} {line}.",
        unit="seconds",
    )


def _waiting(resource: str, what: str) -> Metric:
    return _family(resource, "waiting", f"some task waited for {what}", "some")


def _stalled(resource: str, what: str) -> Metric:
    return _family(resource, "stalled", f"no task got on for want of {what}", "full")


#: By file, what its lines are. The line ``full`` of ``cpu`` says nothing of a whole host.
FILES = {
    "cpu": {b"some": _waiting("cpu", "a CPU")},
    "io": {b"some": _waiting("io", "IO"), b"full": _stalled("io", "IO")},
    "memory": {b"some": _waiting("memory", "memory"), b"full": _stalled("memory", "memory")},
    "irq": {b"full": _family("irq", "stalled", "interrupts kept a task from its CPU", "full")},
}


def stalls(path: str | Path) -> dict[bytes, float]:
    """The totals of one file, of the host or of a cgroup, in seconds, by ``some`` and ``full``; none where it is off.

    Raises:
        OSError: It cannot be read, for another reason than that this kernel does not have or count it.
        ValueError: A total is not a number.
    """
    try:
        lines = read_base(path).splitlines()
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.EOPNOTSUPP):
            return {}
        raise
    totals = {}
    for line in lines:
        head, _, total = line.rpartition(b"total=")
        try:
            totals[head[:4]] = int(total) / 1e6
        except ValueError as error:
            raise no_number(path, "a total", total) from error
    return totals


class PressureCollector:
    """Every total of /proc/pressure that this kernel counts; interrupts from Linux 6.1 on.

    Args:
        proc: Where procfs is mounted.
    """

    name = "pressure"
    metrics = tuple(metric for lines in FILES.values() for metric in lines.values())

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._directory = proc / "pressure"
        self._files = [(self._directory / name, lines) for name, lines in FILES.items()]

    def collect(self) -> list[Sample]:
        """One sample a total.

        Raises:
            NothingToCollect: The kernel counts none.
            OSError: A file cannot be read.
            ValueError: A total is not a number.
        """
        samples = []
        for path, lines in self._files:
            totals = stalls(path)
            samples += [Sample(metric, (), totals[line]) for line, metric in lines.items() if line in totals]
        if not samples:
            raise NothingToCollect(
                f"the kernel tells nothing in {self._directory}; Linux 4.20 or later with CONFIG_PSI does, "
                "where it is off after psi=1 on the kernel's command line"
            )
        return samples
