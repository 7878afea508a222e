"""Memory of the host, from /proc/meminfo."""

from __future__ import annotations

from pathlib import Path

from trackside_daemon.metric import Metric, Sample


def _family(name: str, field: str, says: str) -> Metric:
    return Metric(f"trackside_host_memory_{name}", "gauge", f"{says}, from /proc/meminfo {field}.", unit="bytes")


FIELDS = {
    "MemTotal": _family("bytes", "MemTotal", "Memory that the kernel can use"),
    "MemAvailable": _family("available_bytes", "MemAvailable", "Memory that programs could get without swapping"),
    "MemFree": _family("free_bytes", "MemFree", "Memory that nothing uses, not even a cache"),
    "Buffers": _family("buffers_bytes", "Buffers", "Cached blocks of devices"),
    "Cached": _family("cached_bytes", "Cached", "Cached files, shared memory and tmpfs"),
    "Shmem": _family("shmem_bytes", "Shmem", "Shared memory and tmpfs, where data loader workers pass their batches"),
    "Dirty": _family("dirty_bytes", "Dirty", "Written to files but not to disk yet, as after a checkpoint"),
    "Writeback": _family("writeback_bytes", "Writeback", "Being written to disk now"),
    "AnonPages": _family("anonymous_bytes", "AnonPages", "Memory of processes that no file backs"),
}


class MemoryCollector:
    """The fields of /proc/meminfo that matter beside a training; one that this kernel lacks is left out.

    Args:
        proc: Where procfs is mounted.
    """

    name = "memory"
    metrics = tuple(FIELDS.values())

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._meminfo = proc / "meminfo"

    def collect(self) -> list[Sample]:
        """One sample a field.

        Raises:
            OSError: /proc/meminfo cannot be read.
            ValueError: A field is not a number.
        """
        samples = []
        with self._meminfo.open(encoding="ascii") as file:
            for line in file:
                field, _, amount = line.partition(":")
                if field in FIELDS:
                    kibibytes = int(amount.split()[0])
                    samples.append(Sample(FIELDS[field], (), kibibytes * 1024))
        return samples
