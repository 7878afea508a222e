"""Causes outside of the training: CPUs, memory and storage that the machine is short of."""

from collections.abc import Iterator, Sequence

from trackside_daemon.causes.cause import Cause, Kind, LostTime, series_evidence
from trackside_daemon.causes.readings import LEAST_WAIT, Level, Neighbour, Readings, Rise, SeriesLevel, named
from trackside_daemon.model.families import cgroup, host, process, training
from trackside_daemon.model.metric import Metric
from trackside_daemon.model.text import byte_size, duration, number

OWN_CPU = (process.CPU, process.WORKERS_CPU, process.CHILDREN_CPU)
LEAST_CPUS = 0.3  # CPUs that others must use more
NEW_SECONDS = 60.0  # seconds before a slow-down in which a process that began is new
NAMED_CPUS = 0.1  # CPUs of a process that is named as one of the others
FREE_MODES = ("idle", "iowait", "steal")  # the rest of the CPU time is used by processes
NOTHING = Level(0.0, 0.0, 0.0, 0.0)
FAULTS = 100.0  # major page faults per second that slow a process down


def _stolen(readings: Readings) -> Iterator[Rise]:
    cpus = _count(readings)
    for _, stolen in readings.of(host.CPU_SECONDS, mode="steal"):
        share = stolen._replace(
            usual=stolen.usual / cpus, spread=stolen.spread / cpus, high=stolen.high / cpus, now=stolen.now / cpus
        )
        if share.rose(LEAST_WAIT):
            yield readings.rise("cpu_steal", "the share of the CPUs that the hypervisor gives to other machines", share)


def _limited(readings: Readings) -> Iterator[Rise]:
    what = "the share of time in which the CPU limit of {cgroup} keeps tasks waiting"
    return readings.longer("cpu_limit", what, cgroup.THROTTLED)


def _limit(kind: Kind, time: LostTime) -> Iterator[Cause]:
    """Yield the loss by a CPU limit L: tasks that would use D CPUs are throttled for D - L seconds a second."""
    facts = time.facts
    limits = {one.labels.get("cgroup"): one.mean for one in facts.cgroups(cgroup.CPU_LIMIT)}
    for counter in facts.cgroups(cgroup.THROTTLED):
        throttled = counter.increase / facts.wall if facts.wall else 0.0
        limit = limits.get(counter.labels.get("cgroup"), 1.0)
        if lost := kind.draw(time, facts.wall * throttled / (limit + throttled)):
            text = f"{cgroup.THROTTLED.name}: +{duration(counter.increase)} over all CPUs"
            shown = series_evidence(facts, text, cgroup.THROTTLED)
            yield kind.found(time, lost, shown, summary=kind.happened.format(limit))


def _waits(readings: Readings) -> Iterator[Rise]:
    """Yield the cause of a longer wait for CPUs: other processes, or the training itself, if they use more than before."""
    waiting = [level for family in (process.CPU_WAIT, host.CPU_WAITING) for _, level in readings.of(family)]
    rising = [level for level in waiting if level.rose(LEAST_WAIT)]
    if not rising:
        return
    cpus = _count(readings)
    what = "the share of time in which tasks wait for a CPU"
    waits = readings.rise("cpu_pressure", what, max(rising, key=readings.share))
    own = _added([level for family in OWN_CPU for _, level in _of_all(readings, family)])
    free = _added([level for mode in FREE_MODES for _, level in readings.of(host.CPU_SECONDS, mode=mode)])
    usual = 0.0 if readings.slow.lasting else max(0.0, cpus - free.usual - own.usual)
    others = Level(usual, free.spread, usual, cpus - free.now - own.now)
    # The wait has risen by more than chance: if the training does not use more, others do, even if their use varies a lot.
    more = others.rose(LEAST_CPUS) or (others.now - usual > LEAST_CPUS and not own.rose(LEAST_CPUS))
    if free != NOTHING and more:
        before = "" if readings.slow.lasting else f" instead of {usual:.1f}"
        text = (
            f"other processes use {others.now:.1f} of {cpus:.0f} CPUs{before}{users(readings.neighbours)}; {waits.text}"
        )
        yield Rise("cpu_neighbour", text, waits.share, others)
        return
    # On busy CPUs those that have come displace others, or wait for one CPU of many.
    age = readings.slow.ended - readings.slow.began + NEW_SECONDS
    new = [one for one in readings.neighbours if one.age < age]
    if (used := sum(one.cpus for one in new)) >= LEAST_CPUS:
        text = f"other processes that have begun use {used:.1f} of {cpus:.0f} CPUs{users(new)}"
        yield waits._replace(cause="cpu_neighbour", text=f"{text}; {waits.text}")
        return
    itself = f", and the training itself uses {own.now:.1f} of {cpus:.0f} CPUs" if own.rose(LEAST_CPUS) else ""
    yield waits._replace(text=waits.text + itself)


def _count(readings: Readings) -> float:
    return max((one.points[-1][1] for one in readings.series(host.CPUS)), default=1.0)


def users(neighbours: Sequence[Neighbour]) -> str:
    """Return a clause that names the processes that use most CPU time; empty without any."""
    using = named(neighbours, lambda one: one.cpus, NAMED_CPUS, lambda cpus: f"{cpus:.1f} CPUs")
    return f": {using}" if using else ""


def _of_all(readings: Readings, family: Metric) -> list[SeriesLevel]:
    """Return the readings of all ranks, each compared with the time before."""
    return readings._replace(peers=(), ranks=(*readings.ranks, *readings.peers)).of(family)


def _added(levels: Sequence[Level]) -> Level:
    return Level(*(sum(values) for values in zip(*(level[:4] for level in levels), strict=True))) if levels else NOTHING


def _contention(kind: Kind, time: LostTime) -> Iterator[Cause]:
    seconds = time.facts.most_of_processes(process.CPU_WAIT)
    if lost := kind.draw(time, seconds):
        text = f"{process.CPU_WAIT.name}: +{duration(seconds)}"
        yield kind.found(time, lost, series_evidence(time.facts, text, process.CPU_WAIT))


def _page_faults(kind: Kind, time: LostTime) -> Iterator[Cause]:
    facts = time.facts
    faults = facts.most_of_processes(process.MAJOR_FAULTS)
    rate = faults / facts.wall if facts.wall else 0.0
    if rate >= FAULTS:
        shown = series_evidence(facts, f"{process.MAJOR_FAULTS.name}: +{faults:,.0f}", process.MAJOR_FAULTS)
        yield kind.found(time, None, shown, summary=kind.happened.format(number(round(rate))))


STEAL = Kind("cpu_steal", families=(host.CPU_SECONDS, host.CPUS), rose=_stolen)
LIMIT = Kind(
    "cpu_limit",
    "the CPU limit of {:.3g} CPUs kept tasks from running",
    "raise the CPU limit, or use fewer DataLoader workers and threads",
    cgroup.THROTTLED.name,
    ("data", "compute"),
    least=0.02,
    alerts=("CpuSaturated",),
    lost=_limit,
    families=(cgroup.THROTTLED,),
    rose=_limited,
)
CONTENTION = Kind(
    "cpu_contention",
    "the training's main thread waited for a CPU that others used",
    "give the job CPUs of its own; use fewer threads (OMP_NUM_THREADS) and DataLoader workers",
    process.CPU_WAIT.name,
    ("cpu", "compute"),
    least=0.02,
    lost=_contention,
    families=(host.CPU_WAITING, process.CPU_WAIT, *OWN_CPU),
    rose=_waits,
)
PAGE_FAULTS = Kind(
    "page_faults",
    "the training read {} pages per second from disk on page faults, at a cost that is not measured",
    "keep memory-mapped data in memory or on local storage; ask for more memory",
    process.MAJOR_FAULTS.name,
    lost=_page_faults,
)


SWAPPED = 1000  # pages read from swap by which memory pressure is called swapping
PAGE = 4096
NAMED_BYTES = 1e9  # memory of a process that is named as one of the others


def _memory_pressure(readings: Readings) -> Iterator[Rise]:
    largest = named(readings.neighbours, lambda one: one.resident, NAMED_BYTES, byte_size)
    others = f"; the largest other processes: {largest}" if largest else ""
    what = "the share of time in which tasks of this machine wait for memory"
    yield from readings.longer("memory_pressure", what, host.MEMORY_WAITING, more=others)


def _lost_to_memory(kind: Kind, time: LostTime) -> Iterator[Cause]:
    facts = time.facts
    seconds, family = facts.stalled("memory", host.MEMORY_STALLED)
    if not (lost := kind.draw(time, seconds)):
        return
    pages = sum(counter.increase for counter in facts.of(host.SWAP_IN))
    shown, check = (
        series_evidence(facts, f"{family.name}: +{duration(seconds)}", family),
        f"{family.name}, {kind.check}",
    )
    if pages < SWAPPED:
        yield kind.found(time, lost, shown, check=check)
        return
    text = f"pages read back from swap: {pages:,.0f}, {byte_size(pages * PAGE)}"
    happened = "the machine read memory back from swap"
    swapped = series_evidence(facts, text, host.SWAP_IN)
    yield kind.found(time, lost, shown, swapped, cause="swap", summary=happened, check=check)


MEMORY = Kind(
    "memory_pressure",
    "all tasks of the machine waited for memory",
    "use fewer DataLoader workers, or ask for more memory; turn swap off",
    host.SWAP_IN.name,
    ("compute", "data", "checkpoint", "eval"),
    low=0.3,
    least=0.02,
    alerts=("HostMemoryPressure", "ContainerMemoryPressure", "HostMemoryLeak"),
    lost=_lost_to_memory,
    families=(host.MEMORY_WAITING,),
    rose=_memory_pressure,
)


LEAST_IO = 5e6  # bytes per second of another process that matter


def _io_pressure(readings: Readings) -> Iterator[Rise]:
    """Yield pressure of I/O, or workers that wait for a device; with a longer wait for data, the storage is slow."""
    data = [level for _, level in readings.of(training.PHASE_SECONDS, phase="data") if level.rose(LEAST_WAIT)]
    blocked = any(level.rose(0.5) for _, level in readings.of(process.WORKERS_BLOCKED))
    waited = max(map(readings.share, data), default=0.0)
    name, where = ("slow_storage", ", and the training waits for data") if data else ("io_pressure", "")
    readers = named(readings.neighbours, lambda one: one.io, LEAST_IO, lambda rate: f"{byte_size(rate)}/s")
    others = f"; other processes that read and write: {readers}" if readers else ""
    what = "the share of time in which tasks of this machine wait for storage"
    waiting = list(readings.longer(name, what, host.IO_WAITING, more=where + others))
    for rise in waiting:
        yield rise._replace(share=max(rise.share or 0.0, blocked * waited))
    if blocked and data and not waiting:
        more = ", and its workers wait for a device or a file system"
        rise = readings.rise(name, "the share of time in which the training waits for data", data[0], more=more)
        yield rise._replace(share=waited)


def _lost_to_storage(kind: Kind, time: LostTime) -> Iterator[Cause]:
    facts = time.facts
    seconds, family = facts.stalled("io", host.IO_STALLED)
    if lost := kind.draw(time, seconds):
        read, written = (
            sum(counter.increase for counter in facts.of(one)) for one in (host.DISK_READ, host.DISK_WRITTEN)
        )
        rates = f"disks read {byte_size(read / facts.wall)}/s and wrote {byte_size(written / facts.wall)}/s"
        shown = series_evidence(facts, f"{family.name}: +{duration(seconds)}", family)
        yield kind.found(time, lost, shown, series_evidence(facts, rates, host.DISK_READ), check=family.name)


STORAGE = Kind(
    "slow_storage",
    "all tasks waited for the storage",
    "copy the data to local storage, or read larger files in sequence; write checkpoints to local storage first",
    accounts=("data", "checkpoint", "eval", "compute"),
    least=0.02,
    alerts=("IoBottleneck", "FilesystemDead", "DataLoaderBottleneck"),
    lost=_lost_to_storage,
    families=(host.IO_WAITING, process.WORKERS_BLOCKED),
    rose=_io_pressure,
)
