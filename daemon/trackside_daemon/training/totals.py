"""The totals of several sessions of one rank, as one."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import TypeVar

from msgspec.structs import replace

from trackside.limits import PHASE_LENGTH, SESSION_PHASES
from trackside.wire import CheckpointTotals, DataWaits, Device, Histogram, Memory, Totals

A = TypeVar("A")
K = TypeVar("K")
N = TypeVar("N", int, float)


def summed(sessions: Iterable[Totals]) -> Totals:
    """Sum the totals of a rank's sessions, given in order; of a state, such as memory, return the last."""
    every = list(sessions)
    return Totals(
        pushes=sum(one.pushes for one in every),
        dropped=sum(one.dropped for one in every),
        resent=sum(one.resent for one in every),
        spooled=sum(one.spooled for one in every),
        overhead=sum(one.overhead for one in every),
        steps=sum(one.steps for one in every),
        samples=_sum_of_some([one.samples for one in every]),
        tokens=_sum_of_some([one.tokens for one in every]),
        nonfinite=_by_key([one.nonfinite for one in every]),
        step_duration=_histogram([one.step_duration for one in every]),
        phases=_by_key([one.phases for one in every]),
        data_wait=_waits([one.data_wait for one in every if one.data_wait is not None]),
        device=_device([one.device for one in every if one.device is not None]),
        saves=_saves([one.saves for one in every if one.saves is not None]),
    )


def bounded(totals: Totals) -> Totals:
    """Return the totals within the limits of one client, also the sum of many: another program may have any number of phases."""
    totals.phases = _first(totals.phases)
    if totals.device is not None:
        totals.device.phases = _first(totals.device.phases)
        totals.device.memory = _first(totals.device.memory)
        totals.device.amounts = _first(totals.device.amounts)
    return totals


def _first(values: Mapping[str, A]) -> dict[str, A]:
    return dict(islice((item for item in values.items() if len(item[0]) <= PHASE_LENGTH), SESSION_PHASES + 1))


def _by_key(several: Sequence[Mapping[K, N]]) -> dict[K, N]:
    keys = dict.fromkeys(key for one in several for key in one)
    return {key: sum(one.get(key, 0) for one in several) for key in keys}


def _waits(several: Sequence[DataWaits]) -> DataWaits | None:
    if (waits := _histogram(several)) is None:
        return None
    return DataWaits(waits.counts, waits.sum, waits.fine, _histogram([one.first for one in several]))


def _device(several: Sequence[Device]) -> Device | None:
    if not several:
        return None
    return Device(
        phases=_by_key([one.phases for one in several]),
        memory=_memory([one.memory for one in several]),
        flops=_sum_of_some([one.flops for one in several]),
        peak_flops=_newest([one.peak_flops for one in several]),
        amounts=_by_key([one.amounts for one in several]),
    )


def _memory(several: Sequence[Mapping[str, Memory]]) -> dict[str, Memory]:
    newest: dict[str, Memory] = {}
    for uuid, memory in ((uuid, memory) for devices in several for uuid, memory in devices.items()):
        before = newest.get(uuid, Memory())
        failed = memory.out_of_memory + before.out_of_memory
        newest[uuid] = replace(memory, peak=max(memory.peak, before.peak), out_of_memory=failed)
    return newest


def _saves(several: Sequence[CheckpointTotals]) -> CheckpointTotals | None:
    if not several:
        return None
    return CheckpointTotals(
        count=sum(one.count for one in several),
        duration=_histogram([one.duration for one in several]),
        bytes=_newest([one.bytes for one in several]),
        at=max((one.at for one in several if one.at is not None), default=None),
    )


def _newest(several: Sequence[A | None]) -> A | None:
    return next((one for one in reversed(several) if one is not None), None)


def _histogram(several: Sequence[Histogram | None]) -> Histogram | None:
    present = [one for one in several if one is not None]
    counts = [sum(column) for column in zip(*(one.counts for one in present), strict=True)]
    fine = _by_key([one.fine for one in present])
    return Histogram(counts, sum(one.sum for one in present), fine) if present else None


def _sum_of_some(amounts: Sequence[float | None]) -> float | None:
    present = [amount for amount in amounts if amount is not None]
    return sum(present) if present else None
