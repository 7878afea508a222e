"""Load averages, from /proc/loadavg, and tasks that hang."""

from __future__ import annotations

from pathlib import Path

from trackside_daemon.collectors.kernel_files import no_number, number, read, read_base
from trackside_daemon.model.metric import Metric, Sample

LOADS = tuple(
    Metric(
        f"trackside_host_load{minutes}",
        "gauge",
        f"Tasks that run, wait for a CPU or sleep uninterruptibly, averaged over {minutes} min, from /proc/loadavg.",
    )
    for minutes in (1, 5, 15)
)
HUNG_TASKS = Metric(
    "trackside_host_hung_tasks_total",
    "counter",
    "Tasks that slept uninterruptibly for too long, from /proc/sys/kernel/hung_task_detect_count.",
)


class LoadCollector:
    """Three averages, and how often the kernel found a task to hang, where it counts that.

    Args:
        proc: Where procfs is mounted.
    """

    name = "load"
    metrics = (*LOADS, HUNG_TASKS)

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._loadavg = proc / "loadavg"
        self._hung = proc / "sys" / "kernel" / "hung_task_detect_count"

    def collect(self) -> list[Sample]:
        """One sample an average, and the count.

        Raises:
            OSError: /proc/loadavg cannot be read.
            ValueError: It does not begin with three numbers, or the count is none.
        """
        data = read_base(self._loadavg)
        words = data.split(None, len(LOADS))[: len(LOADS)]
        try:
            samples = [Sample(metric, (), float(word)) for metric, word in zip(LOADS, words, strict=True)]
        except ValueError as error:
            raise no_number(self._loadavg, "one of the first three words", data.strip()) from error
        try:
            hung = number(read(self._hung), b"", self._hung)
        except OSError:
            return samples
        return samples if hung is None else [*samples, Sample(HUNG_TASKS, (), hung)]
