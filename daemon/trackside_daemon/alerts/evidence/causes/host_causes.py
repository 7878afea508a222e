"""Causes on the host: memory and storage that tasks wait for, CPUs that others use, and the phases of the step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.alerts.evidence.causes.cause import SlowDownCause, rises
from trackside_daemon.alerts.evidence.causes.level import Level
from trackside_daemon.model.families import cgroup, host, process, training
from trackside_daemon.model.text import byte_size, percent

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trackside_daemon.alerts.evidence.causes.readings import Neighbour, Reading, Readings
    from trackside_daemon.model.metric import Metric

OWN_CPU = (process.CPU, process.WORKERS_CPU, process.CHILDREN_CPU)
FAMILIES = (
    *(host.CPU_WAITING, host.IO_WAITING, host.MEMORY_WAITING, host.CPU_SECONDS, host.CPUS),
    *(process.CPU_WAIT, cgroup.THROTTLED, *OWN_CPU, process.WORKERS_BLOCKED),
)

LEAST = 0.05  # share of the time by which a wait must rise
LEAST_CPUS = 0.3  # CPUs that others must use more
NEW_SECONDS = 60.0  # seconds before a slow-down in which a process that began is new
NAMED_CPUS = 0.1  # CPUs of a process that is named as one of the others
NAMED_BYTES = 1e9  # memory of a process that is named as one of the others
LEAST_IO = 5e6  # bytes per second of another process that matter
FREE_MODES = ("idle", "iowait", "steal")  # the rest of the CPU time is used by processes
NOTHING = Level(0.0, 0.0, 0.0, 0.0)

# Phases in which a step waits, with the words for them; the training itself is in the others.
_PHASES = {"data": "waiting for data", "checkpoint": "writing checkpoints", "eval": "evaluating"}


def host_causes(readings: Readings) -> Iterator[SlowDownCause]:
    """Yield the causes on the host, and the phases that take longer."""
    yield from _memory(readings)
    yield from _storage(readings)
    yield from _cpus(readings)
    yield from _phases(readings)


def _memory(readings: Readings) -> Iterator[SlowDownCause]:
    large = sorted((one for one in readings.neighbours if one.resident >= NAMED_BYTES), key=lambda one: -one.resident)[
        :2
    ]
    named = ", ".join(f"{one.command} (pid {one.pid}, {byte_size(one.resident)})" for one in large)
    others = f"; the largest other processes: {named}" if named else ""
    for _, waiting in readings.of(host.MEMORY_WAITING):
        if waiting.rose(LEAST):
            text = rises("the share of time in which tasks of this machine wait for memory", waiting, readings, percent)
            yield SlowDownCause("memory_pressure", text + others, _share(readings, waiting), waiting)


def _storage(readings: Readings) -> Iterator[SlowDownCause]:
    """Yield pressure of I/O, or workers that wait for a device; with a longer wait for data, the storage is slow."""
    data = [level for _, level in readings.of(training.PHASE_SECONDS, phase="data") if level.rose(LEAST)]
    blocked = any(level.rose(0.5) for _, level in readings.of(process.WORKERS_BLOCKED))
    waited = max((_share(readings, level) for level in data), default=0.0)
    name, where = ("slow_storage", ", and the training waits for data") if data else ("io_pressure", "")
    waiting = [level for _, level in readings.of(host.IO_WAITING) if level.rose(LEAST)]
    movers = sorted((one for one in readings.neighbours if one.io >= LEAST_IO), key=lambda one: -one.io)[:2]
    named = ", ".join(f"{one.command} (pid {one.pid}, {byte_size(one.io)}/s)" for one in movers)
    others = f"; other processes that read and write: {named}" if named else ""
    for level in waiting:
        text = rises("the share of time in which tasks of this machine wait for storage", level, readings, percent)
        yield SlowDownCause(name, text + where + others, max(_share(readings, level), blocked * waited), level)
    if blocked and data and not waiting:
        text = rises("the share of time in which the training waits for data", data[0], readings, percent)
        yield SlowDownCause(name, f"{text}, and its workers wait for a device or a file system", waited, data[0])


def _cpus(readings: Readings) -> Iterator[SlowDownCause]:
    """Yield what keeps the training from its CPUs: the hypervisor, a limit, other processes, or too few CPUs."""
    cpus = max((one.points[-1][1] for one in readings.series(host.CPUS)), default=1.0)
    for _, stolen in readings.of(host.CPU_SECONDS, mode="steal"):
        share = stolen._replace(
            usual=stolen.usual / cpus, spread=stolen.spread / cpus, high=stolen.high / cpus, now=stolen.now / cpus
        )
        if share.rose(LEAST):
            text = rises("the share of the CPUs that the hypervisor gives to other machines", share, readings, percent)
            yield SlowDownCause("cpu_steal", text, _share(readings, share), share)
    for labels, limited in readings.of(cgroup.THROTTLED):
        if limited.rose(LEAST):
            what = (
                f"the share of time in which the CPU limit of {labels.get('cgroup', 'the cgroup')} keeps tasks waiting"
            )
            yield SlowDownCause(
                "cpu_limit", rises(what, limited, readings, percent), _share(readings, limited), limited
            )
    waits = [
        level
        for family in (process.CPU_WAIT, host.CPU_WAITING)
        for _, level in readings.of(family)
        if level.rose(LEAST)
    ]
    if waits:
        yield _contention(readings, max(waits, key=lambda level: _share(readings, level)), cpus)


def _contention(readings: Readings, wait: Level, cpus: float) -> SlowDownCause:
    """Return the cause of a longer wait for CPUs: other processes, or the training itself, if they use more than before."""
    share = _share(readings, wait)
    waits = rises("the share of time in which tasks wait for a CPU", wait, readings, percent)
    own = _added([level for family in OWN_CPU for _, level in _of_all(readings, family)])
    free = _added([level for mode in FREE_MODES for _, level in readings.of(host.CPU_SECONDS, mode=mode)])
    usual = 0.0 if readings.slow.lasting else max(0.0, cpus - free.usual - own.usual)
    others = Level(usual, free.spread, usual, cpus - free.now - own.now)
    # The wait has risen by more than chance: if the training does not use more, others do, even if their use varies a lot.
    more = others.rose(LEAST_CPUS) or (others.now - usual > LEAST_CPUS and not own.rose(LEAST_CPUS))
    if free != NOTHING and more:
        before = "" if readings.slow.lasting else f" instead of {usual:.1f}"
        text = f"other processes use {others.now:.1f} of {cpus:.0f} CPUs{before}{_users(readings.neighbours)}"
        return SlowDownCause("cpu_neighbour", f"{text}; {waits}", share, others)
    # On busy CPUs those that have come displace others, or wait for one CPU of many.
    new = [one for one in readings.neighbours if one.age < readings.slow.ended - readings.slow.began + NEW_SECONDS]
    if (used := sum(one.cpus for one in new)) >= LEAST_CPUS:
        text = f"other processes that have begun use {used:.1f} of {cpus:.0f} CPUs{_users(new)}"
        return SlowDownCause("cpu_neighbour", f"{text}; {waits}", share, wait)
    itself = f", and the training itself uses {own.now:.1f} of {cpus:.0f} CPUs" if own.rose(LEAST_CPUS) else ""
    return SlowDownCause("cpu_pressure", waits + itself, share, wait)


def _users(neighbours: Sequence[Neighbour]) -> str:
    """Return a clause that names the processes that use most CPU time; empty without any."""
    busiest = sorted((one for one in neighbours if one.cpus >= NAMED_CPUS), key=lambda one: -one.cpus)[:2]
    named = ", ".join(f"{one.command} (pid {one.pid}, {one.cpus:.1f} CPUs)" for one in busiest)
    return f": {named}" if named else ""


def _of_all(readings: Readings, family: Metric) -> list[Reading]:
    """Return the readings of all ranks, each compared with the time before."""
    return readings._replace(peers=(), ranks=(*readings.ranks, *readings.peers)).of(family)


def _added(levels: Sequence[Level]) -> Level:
    return Level(*(sum(values) for values in zip(*(level[:4] for level in levels), strict=True))) if levels else NOTHING


def _phases(readings: Readings) -> Iterator[SlowDownCause]:
    for phase, doing in _PHASES.items():
        for labels, level in readings.of(training.PHASE_SECONDS, phase=phase):
            if level.rose(LEAST):
                text = rises(f"the share of time that rank {labels['rank']} spends {doing}", level, readings, percent)
                yield SlowDownCause(
                    f"{phase}_wait" if phase == "data" else phase, text, _share(readings, level), level, symptom=True
                )


def _share(readings: Readings, level: Level) -> float:
    return readings.slow.can_explain(level.usual, level.during)
