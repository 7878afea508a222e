"""What the files of one cgroup say; a file that is not there or cannot be read costs only what it has.

The root of a hierarchy is left out: it counts the whole machine, which other collectors tell.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from trackside_daemon.collectors.cgroup import families
from trackside_daemon.collectors.host.pressure import stalls
from trackside_daemon.collectors.kernel_files import read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trackside_daemon.linux.cgroups import Cgroup
    from trackside_daemon.model.metric import Metric

    Reading = tuple[Metric, tuple[str, ...], float | None]
    """A family, the values of its labels after the cgroup's, and a value; None for none."""
    Reader = Callable[[str], Iterator[Reading]]

EVENTS = ("low", "high", "max", "oom", "oom_kill", "oom_group_kill")
_TICKS = os.sysconf("SC_CLK_TCK")
_NANOSECONDS = 1e9
_MICROSECONDS = 1e6


def number(file: str) -> int | None:
    """The number in a file; None when it says ``max``, or cannot be read."""
    try:
        return int(read(file))
    except (OSError, ValueError):
        return None


def table(file: str) -> dict[bytes, int]:
    """The numbers of a file that has a name and a number in each line; none when it cannot be read."""
    try:
        words = read(file).split()
        return dict(zip(words[::2], map(int, words[1::2]), strict=False))
    except (OSError, ValueError):
        return {}


def bounded(levels: tuple[Path, ...]) -> list[str]:
    """The directories of these that are not the root of a hierarchy."""
    return [str(level) for level in levels if not _is_root(level)]


def _is_root(directory: Path) -> bool:
    """Some files are only there, of v1, or only elsewhere, of v2 (cgroups(7))."""
    v2 = (directory / "cgroup.controllers").exists()
    return not (directory / "cgroup.events").exists() if v2 else (directory / "release_agent").exists()


def sources(cgroup: Cgroup) -> list[tuple[Reader, str]]:
    """What reads the files of a cgroup, each with its directory."""
    memory = _memory_v1 if "memory" in cgroup.v1 else _memory_v2
    cpu = _cpu_v1 if "cpuacct" in cgroup.v1 else _cpu_v2
    asked: list[tuple[Reader, list[str]]] = [
        (memory, _with("memory.stat", cgroup.levels("memory"))),
        (cpu, bounded(cgroup.levels("cpuacct")[:1])),
        (_processes, _with("pids.current", cgroup.levels("pids"))),
        (_pressure, bounded(cgroup.v2[:1])),
    ]
    return [(reader, directories[0]) for reader, directories in asked if directories]


def _with(file: str, levels: tuple[Path, ...]) -> list[str]:
    """The directories with a file: where the own one lacks it, v2 charges to the one above."""
    return bounded(tuple(level for level in levels if (level / file).exists()))


def _memory_v2(at: str) -> Iterator[Reading]:
    used, stat = number(f"{at}/memory.current"), table(f"{at}/memory.stat")
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
    used, stat = number(f"{at}/memory.usage_in_bytes"), table(f"{at}/memory.stat")
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
    """The files are read one after the other, so that the parts may be more than the whole."""
    if used is None or not all(part in stat for part in parts):
        return None
    return max(0, used - sum(stat[part] for part in parts))


def _cpu_v2(at: str) -> Iterator[Reading]:
    stat = table(f"{at}/cpu.stat")
    for mode, field in (("user", b"user_usec"), ("system", b"system_usec")):
        yield families.CPU_SECONDS, (mode,), _over(stat.get(field), _MICROSECONDS)


def _cpu_v1(at: str) -> Iterator[Reading]:
    stat = table(f"{at}/cpuacct.stat")
    for mode in ("user", "system"):
        yield families.CPU_SECONDS, (mode,), _over(stat.get(mode.encode()), _TICKS)


def throttling(at: str) -> Iterator[Reading]:
    """How often a limit of CPU time was reached, of the cgroup that has it."""
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
