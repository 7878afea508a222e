"""Storage that tasks wait for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.causes.cause import Kind, series_evidence
from trackside_daemon.causes.readings import LEAST_WAIT
from trackside_daemon.model.families import host, process, training
from trackside_daemon.model.text import byte_size, duration

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trackside_daemon.causes.cause import Cause, LostTime
    from trackside_daemon.causes.readings import Readings, Rise

LEAST_IO = 5e6  # bytes per second of another process that matter


def _rose(readings: Readings) -> Iterator[Rise]:
    """Yield pressure of I/O, or workers that wait for a device; with a longer wait for data, the storage is slow."""
    data = [level for _, level in readings.of(training.PHASE_SECONDS, phase="data") if level.rose(LEAST_WAIT)]
    blocked = any(level.rose(0.5) for _, level in readings.of(process.WORKERS_BLOCKED))
    waited = max(map(readings.share, data), default=0.0)
    name, where = ("slow_storage", ", and the training waits for data") if data else ("io_pressure", "")
    named = readings.heaviest(lambda one: one.io, LEAST_IO, lambda rate: f"{byte_size(rate)}/s")
    others = f"; other processes that read and write: {named}" if named else ""
    what = "the share of time in which tasks of this machine wait for storage"
    waiting = list(readings.longer(name, what, host.IO_WAITING, more=where + others))
    for rise in waiting:
        yield rise._replace(share=max(rise.share or 0.0, blocked * waited))
    if blocked and data and not waiting:
        more = ", and its workers wait for a device or a file system"
        rise = readings.rise(name, "the share of time in which the training waits for data", data[0], more=more)
        yield rise._replace(share=waited)


def _lost(kind: Kind, time: LostTime) -> Iterator[Cause]:
    facts = time.facts
    seconds, family = facts.stalled("io", host.IO_STALLED)
    if lost := kind.draw(time, seconds):
        read, written = (
            sum(counter.increase for counter in facts.of(one)) for one in (host.DISK_READ, host.DISK_WRITTEN)
        )
        rates = f"disks read {byte_size(read / facts.wall)}/s and wrote {byte_size(written / facts.wall)}/s"
        shown = series_evidence(facts, f"{family.name}: +{duration(seconds)}", family)
        yield kind.found(time, lost, shown, series_evidence(facts, rates, host.DISK_READ), check=family.name)


SLOW = Kind(
    "slow_storage",
    "all tasks waited for the storage",
    "copy the data to local storage, or read larger files in sequence; write checkpoints to local storage first",
    accounts=("data", "checkpoint", "eval", "compute"),
    least=0.02,
    alerts=("IoBottleneck", "FilesystemDead", "DataLoaderBottleneck"),
    lost=_lost,
    families=(host.IO_WAITING, process.WORKERS_BLOCKED),
    rose=_rose,
)
