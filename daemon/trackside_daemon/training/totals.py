"""What several sessions of one rank have told in all, as one."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import replace

from trackside.wire import CheckpointTotals, DataWaits, Device, Histogram, Memory, Totals

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

A = TypeVar("A")
N = TypeVar("N", int, float)


def summed(several: Iterable[Totals]) -> Totals:
    """One rank's totals, of its sessions in order: sums; of a state, as memory is one, what was told last."""
    every = list(several)
    return Totals(
        pushes=sum(one.pushes for one in every),
        dropped=sum(one.dropped for one in every),
        resent=sum(one.resent for one in every),
        spooled=sum(one.spooled for one in every),
        overhead=sum(one.overhead for one in every),
        steps=sum(one.steps for one in every),
        samples=_of_known([one.samples for one in every]),
        tokens=_of_known([one.tokens for one in every]),
        nonfinite=_by_key([one.nonfinite for one in every]),
        step_duration=_of_histograms([one.step_duration for one in every]),
        phases=_by_key([one.phases for one in every]),
        data_wait=_waits([one.data_wait for one in every if one.data_wait is not None]),
        device=_device([one.device for one in every if one.device is not None]),
        saves=_saves([one.saves for one in every if one.saves is not None]),
    )


def _by_key(several: Sequence[Mapping[str, N]]) -> dict[str, N]:
    keys = dict.fromkeys(key for one in several for key in one)
    return {key: sum(one.get(key, 0) for one in several) for key in keys}


def _waits(several: Sequence[DataWaits]) -> DataWaits | None:
    if (all_ := _of_histograms(several)) is None:
        return None
    return DataWaits(all_.counts, all_.sum, _of_histograms([one.first for one in several]))


def _device(several: Sequence[Device]) -> Device | None:
    if not several:
        return None
    return Device(
        phases=_by_key([one.phases for one in several]),
        memory=_memory([one.memory for one in several]),
        flops=_of_known([one.flops for one in several]),
        peak_flops=_newest([one.peak_flops for one in several]),
    )


def _memory(several: Sequence[Mapping[str, Memory]]) -> dict[str, Memory]:
    newest: dict[str, Memory] = {}
    for uuid, one in ((uuid, one) for by in several for uuid, one in by.items()):
        before = newest.get(uuid, Memory())
        failed = one.out_of_memory + before.out_of_memory
        newest[uuid] = replace(one, peak=max(one.peak, before.peak), out_of_memory=failed)
    return newest


def _saves(several: Sequence[CheckpointTotals]) -> CheckpointTotals | None:
    if not several:
        return None
    return CheckpointTotals(
        count=sum(one.count for one in several),
        duration=_of_histograms([one.duration for one in several]),
        bytes=_newest([one.bytes for one in several]),
        at=max((one.at for one in several if one.at is not None), default=None),
    )


def _newest(several: Sequence[A | None]) -> A | None:
    return next((one for one in reversed(several) if one is not None), None)


def _of_histograms(several: Sequence[Histogram | None]) -> Histogram | None:
    known = [one for one in several if one is not None]
    counts = [sum(column) for column in zip(*(one.counts for one in known), strict=True)]
    return Histogram(counts, sum(one.sum for one in known)) if known else None


def _of_known(amounts: Sequence[float | None]) -> float | None:
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if known else None
