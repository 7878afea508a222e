"""Read the files of one cgroup; a file that is missing or unreadable affects only its own values.

The root of a hierarchy is left out: its values are those of the whole machine, which other collectors read.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from trackside_daemon.collectors.host.pressure import stalls
from trackside_daemon.collectors.kernel_files import read
from trackside_daemon.linux.cgroups import Cgroup
from trackside_daemon.model.families import cgroup as families
from trackside_daemon.model.metric import Metric

Reading = tuple[Metric, tuple[str, ...], float | None]
"""A family, its label values after the cgroup's, and the value; None for a missing value."""
Reader = Callable[[str], Iterator[Reading]]


EVENTS = ("low", "high", "max", "oom", "oom_kill", "oom_group_kill")
_TICKS = os.sysconf("SC_CLK_TCK")
_NANOSECONDS = 1e9
_MICROSECONDS = 1e6


def number(file: str) -> int | None:
    """Return the number in a file; None when it contains ``max`` or cannot be read."""
    try:
        return int(read(file))
    except (OSError, ValueError):
        return None


def table(file: str) -> dict[bytes, int]:
    """Return the numbers of a file with a name and a number per line, by name; empty when it cannot be read."""
    try:
        words = read(file).split()
        return dict(zip(words[::2], map(int, words[1::2]), strict=False))
    except (OSError, ValueError):
        return {}


def bounded(levels: tuple[Path, ...]) -> list[str]:
    """Return the directories that are not the root of a hierarchy."""
    return [str(level) for level in levels if not _is_root(level)]


def _is_root(directory: Path) -> bool:
    """Return whether a directory is a root: with v1 by a file that only roots have, with v2 by one that they lack."""
    v2 = (directory / "cgroup.controllers").exists()
    return not (directory / "cgroup.events").exists() if v2 else (directory / "release_agent").exists()


def sources(cgroup: Cgroup) -> list[tuple[Reader, str]]:
    """Return the readers of a cgroup's files, each with its directory."""
    memory = _memory_v1 if "memory" in cgroup.v1 else _memory_v2
    cpu = _cpu_v1 if "cpuacct" in cgroup.v1 else _cpu_v2
    candidates: list[tuple[Reader, list[str]]] = [
        (memory, _with("memory.stat", cgroup.levels("memory"))),
        # With v2, cpu.stat and the pressure files exist even where no controller is enabled.
        (cpu, bounded(cgroup.levels("cpuacct")[:1])),
        (_processes, _with("pids.current", cgroup.levels("pids"))),
        (_pressure, bounded(cgroup.v2[:1])),
    ]
    return [(reader, directories[0]) for reader, directories in candidates if directories]


def _with(file: str, levels: tuple[Path, ...]) -> list[str]:
    """Return the directories that have a file; v2 charges a cgroup without it to the one above."""
    return bounded(tuple(level for level in levels if (level / file).exists()))


def _memory_v2(at: str) -> Iterator[Reading]:
    used = number(f"{at}/memory.current")
    stat = table(f"{at}/memory.stat")
    yield families.USED, (), used
    yield families.PEAK, (), number(f"{at}/memory.peak")
    yield families.SWAP, (), number(f"{at}/memory.swap.current")
    yield families.WORKING_SET, (), _less(used, stat, b"inactive_file")
    yield families.UNRECLAIMABLE, (), _less(used, stat, b"inactive_file", b"active_file", b"slab_reclaimable")
    yield families.ANONYMOUS, (), stat.get(b"anon")
    yield families.FILE, (), stat.get(b"file")
    yield families.SHMEM, (), stat.get(b"shmem")
    events = table(f"{at}/memory.events")
    for event in EVENTS:
        yield families.EVENTS, (event,), events.get(event.encode())


def _memory_v1(at: str) -> Iterator[Reading]:
    used = number(f"{at}/memory.usage_in_bytes")
    stat = table(f"{at}/memory.stat")
    yield families.USED, (), used
    yield families.PEAK, (), number(f"{at}/memory.max_usage_in_bytes")
    yield families.SWAP, (), stat.get(b"total_swap")
    yield families.WORKING_SET, (), _less(used, stat, b"total_inactive_file")
    yield families.UNRECLAIMABLE, (), _less(used, stat, b"total_inactive_file", b"total_active_file")
    yield families.ANONYMOUS, (), stat.get(b"total_rss")
    yield families.FILE, (), stat.get(b"total_cache")
    yield families.SHMEM, (), stat.get(b"total_shmem")
    yield families.EVENTS, ("max",), number(f"{at}/memory.failcnt")
    yield families.EVENTS, ("oom_kill",), table(f"{at}/memory.oom_control").get(b"oom_kill")


def _less(used: int | None, stat: dict[bytes, int], *parts: bytes) -> int | None:
    """Return the memory in use without some parts, in bytes; None when one of them is missing."""
    if used is None or not all(part in stat for part in parts):
        return None
    return max(0, used - sum(stat[part] for part in parts))  # two files, not read at the same moment


def _cpu_v2(at: str) -> Iterator[Reading]:
    stat = table(f"{at}/cpu.stat")
    for mode, field in (("user", b"user_usec"), ("system", b"system_usec")):
        yield families.CPU_SECONDS, (mode,), _over(stat.get(field), _MICROSECONDS)


def _cpu_v1(at: str) -> Iterator[Reading]:
    stat = table(f"{at}/cpuacct.stat")
    for mode in ("user", "system"):
        yield families.CPU_SECONDS, (mode,), _over(stat.get(mode.encode()), _TICKS)


def throttling(at: str) -> Iterator[Reading]:
    """Yield the counters of a CPU limit, of the cgroup that has it."""
    stat = table(f"{at}/cpu.stat")
    yield families.PERIODS, (), stat.get(b"nr_periods")
    yield families.THROTTLED_PERIODS, (), stat.get(b"nr_throttled")
    v1 = _over(stat.get(b"throttled_time"), _NANOSECONDS)
    yield families.THROTTLED, (), v1 if v1 is not None else _over(stat.get(b"throttled_usec"), _MICROSECONDS)


def _over(count: int | None, unit: float) -> float | None:
    return None if count is None else count / unit


def _processes(at: str) -> Iterator[Reading]:
    yield families.PROCESSES, (), number(f"{at}/pids.current")


def _pressure(at: str) -> Iterator[Reading]:
    for resource in ("cpu", "io", "memory"):
        totals: dict[bytes, float] = {}
        with suppress(OSError, ValueError):
            totals = stalls(f"{at}/{resource}.pressure")
        yield families.WAITING, (resource,), totals.get(b"some")
        yield families.STALLED, (resource,), totals.get(b"full")
