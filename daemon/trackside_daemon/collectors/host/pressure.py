"""Collect the time in which tasks of the host waited for CPU, memory and I/O, from /proc/pressure."""

import errno
from pathlib import Path

from trackside_daemon.collectors.base import NothingToCollect
from trackside_daemon.collectors.kernel_files import not_a_number, read_base
from trackside_daemon.model.families import host
from trackside_daemon.model.metric import Sample


def stalls(path: str | Path) -> dict[bytes, float]:
    """Return the totals of one file, of the host or of a cgroup, in seconds by ``some`` and ``full``; empty where it is off.

    Raises:
        OSError: The file cannot be read although this kernel has it and counts.
        ValueError: A total is not a number.
    """
    try:
        lines = read_base(path).splitlines()
    except OSError as error:
        # ENOENT: the kernel lacks the file. EOPNOTSUPP: it has the file, but PSI is off.
        if error.errno in (errno.ENOENT, errno.EOPNOTSUPP):
            return {}
        raise
    totals = {}
    for line in lines:
        head, _, total = line.rpartition(b"total=")
        try:
            totals[head[:4]] = int(total) / 1e6  # "some" or "full"; the unit is µs
        except ValueError as error:
            raise not_a_number(path, "a total", total) from error
    return totals


class PressureCollector:
    """The totals of /proc/pressure that this kernel counts; interrupts from Linux 6.1 on.

    Args:
        proc: Path of procfs.
    """

    name = "pressure"

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._directory = proc / "pressure"
        self._files = [(self._directory / name, lines) for name, lines in host.PRESSURE.items()]

    def collect(self) -> list[Sample]:
        """Return one sample per total.

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
                f"{self._directory} has no data; this needs Linux 4.20 or later with CONFIG_PSI, and where PSI is off by default, "
                "psi=1 on the kernel's command line"
            )
        return samples
