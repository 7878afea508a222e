"""Memory that tasks wait for, or that the machine swaps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.causes.cause import Kind, series_evidence
from trackside_daemon.model.families import host
from trackside_daemon.model.text import byte_size, duration

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trackside_daemon.causes.cause import Cause, LostTime
    from trackside_daemon.causes.readings import Readings, Rise

SWAPPED = 1000  # pages read from swap by which memory pressure is called swapping
PAGE = 4096
NAMED_BYTES = 1e9  # memory of a process that is named as one of the others


def _rose(readings: Readings) -> Iterator[Rise]:
    named = readings.heaviest(lambda one: one.resident, NAMED_BYTES, byte_size)
    others = f"; the largest other processes: {named}" if named else ""
    what = "the share of time in which tasks of this machine wait for memory"
    yield from readings.longer("memory_pressure", what, host.MEMORY_WAITING, more=others)


def _lost(kind: Kind, time: LostTime) -> Iterator[Cause]:
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


PRESSURE = Kind(
    "memory_pressure",
    "all tasks of the machine waited for memory",
    "use fewer DataLoader workers, or ask for more memory; turn swap off",
    host.SWAP_IN.name,
    ("compute", "data", "checkpoint", "eval"),
    low=0.3,
    least=0.02,
    alerts=("HostMemoryPressure", "ContainerMemoryPressure", "HostMemoryLeak"),
    lost=_lost,
    families=(host.MEMORY_WAITING,),
    rose=_rose,
)
