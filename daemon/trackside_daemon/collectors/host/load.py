"""Collect load averages from /proc/loadavg, and the number of hung tasks."""

from __future__ import annotations

from pathlib import Path

from trackside_daemon.collectors.kernel_files import not_a_number, number, read, read_base
from trackside_daemon.model.families import host
from trackside_daemon.model.metric import Sample


class LoadCollector:
    """The three load averages, and the kernel's count of hung tasks where it has one.

    Args:
        proc: Path of procfs.
    """

    name = "load"
    metrics = (*host.LOADS, host.HUNG_TASKS)

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._loadavg = proc / "loadavg"
        self._hung = proc / "sys" / "kernel" / "hung_task_detect_count"

    def collect(self) -> list[Sample]:
        """Return one sample per average, and the count.

        Raises:
            OSError: /proc/loadavg cannot be read.
            ValueError: It does not begin with three numbers, or the count is not a number.
        """
        data = read_base(self._loadavg)
        words = data.split(None, len(host.LOADS))[: len(host.LOADS)]
        try:
            samples = [Sample(metric, (), float(word)) for metric, word in zip(host.LOADS, words, strict=True)]
        except ValueError as error:
            raise not_a_number(self._loadavg, "one of the first three words", data.strip()) from error
        try:
            hung = number(read(self._hung), b"", self._hung)
        except OSError:
            return samples  # an older kernel, or one without the detection of hung tasks
        return samples if hung is None else [*samples, Sample(host.HUNG_TASKS, (), hung)]
