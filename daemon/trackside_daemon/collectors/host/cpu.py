"""Collect CPU time of the host by mode, the number of CPUs, and runnable and blocked tasks, from /proc/stat."""

import os
from pathlib import Path

from trackside_daemon.collectors.kernel_files import not_a_number, number, read_base
from trackside_daemon.model.families import host
from trackside_daemon.model.metric import Sample

# Columns of a `cpu` line of /proc/stat, in order. `user` and `nice` include guest time, as in node_exporter.
MODES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")

# The counters iowait and idle may step back a little, which Prometheus would read as a reset. A larger step means that
# CPUs went offline. node_exporter's jumpBackSeconds has the same value.
STEP_BACK = 3.0  # a counter that falls by less, in seconds, keeps its last value


class CpuCollector:
    """The CPU values of /proc/stat.

    Args:
        proc: Path of procfs.
        per_cpu: Also collect the time of each CPU.

    Attributes:
        text: The file as it was in the last tick.
    """

    # Read the file once a tick: on a large host the kernel needs milliseconds to write it.

    name = "cpu"
    metrics = (host.CPU_SECONDS, host.CPU_CORE_SECONDS, host.CPUS, *host.STAT_NUMBERS.values())

    def __init__(self, proc: Path = Path("/proc"), *, per_cpu: bool = False) -> None:
        self._stat = proc / "stat"
        self._per_cpu = per_cpu
        self._ticks_per_second = os.sysconf("SC_CLK_TCK")
        self._last: dict[bytes, list[float]] = {}
        self.text = b""

    def collect(self) -> list[Sample]:
        """Return one sample per mode and per number that this kernel has.

        Raises:
            OSError: /proc/stat cannot be read.
            ValueError: It does not begin with a ``cpu`` line, or a field is not a number.
        """
        self.text = data = read_base(self._stat)
        first = data[: data.find(b"\n")]
        if not first.startswith(b"cpu "):
            label = first.partition(b" ")[0].decode(errors="replace")
            raise ValueError(f"{self._stat} begins with {label!r}, not with the line of all CPUs; is procfs mounted?")
        seconds = self._seconds(first)  # kernels before 2.6.11 have no steal
        samples = [Sample(host.CPU_SECONDS, (mode,), value) for mode, value in zip(MODES, seconds, strict=False)]
        if self._per_cpu:
            samples += self._cores(data)
        for name, metric in host.STAT_NUMBERS.items():
            value = number(data, name, self._stat)
            if value is not None:
                samples.append(Sample(metric, (), value))
        # The line of all CPUs is not counted: as the first one, it has no newline before it.
        if (cpus := data.count(b"\ncpu")) > 0:
            samples.append(Sample(host.CPUS, (), cpus))
        return samples

    def _cores(self, data: bytes) -> list[Sample]:
        samples = []
        for line in data.splitlines()[1:]:
            if not line.startswith(b"cpu"):
                break
            cpu = line[3 : line.find(b" ")].decode()
            samples += [
                Sample(host.CPU_CORE_SECONDS, (cpu, mode), value)
                for mode, value in zip(MODES, self._seconds(line), strict=False)
            ]
        return samples

    def _seconds(self, line: bytes) -> list[float]:
        """Return the modes of one line in seconds, without small steps back."""
        label, *ticks = line.split(None, len(MODES) + 1)
        try:
            now = [int(count) / self._ticks_per_second for count in ticks[: len(MODES)]]
        except ValueError as error:
            word = next(word for word in ticks if not word.isdigit())
            raise not_a_number(self._stat, f"a count of {label.decode()}", word) from error
        last = self._last.get(label, now)
        self._last[label] = now = [
            before if 0 < before - value < STEP_BACK else value for value, before in zip(now, last, strict=False)
        ]
        return now
