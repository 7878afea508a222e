"""GPUs that were up keep their UUID."""

from __future__ import annotations

from trackside_daemon.nvml.handle.handle import KnownGpus
from trackside_daemon.nvml.reading import DOWN, GpuReading, Reading

INFO = {"name": "NVIDIA H100"}


def up(index: int, uuid: str) -> GpuReading:
    return GpuReading(index, uuid, INFO, [("up", (), 1.0), ("power_watts", (), 400.0)])


def down(index: int, uuid: str = "", info: dict[str, str] | None = None) -> GpuReading:
    return GpuReading(index, uuid, info or {}, DOWN)


def call(roster: KnownGpus, *gpus: GpuReading) -> tuple[list[GpuReading], list[GpuReading]]:
    reading = roster.accept(Reading(list(gpus)))
    return reading.gpus, reading.gone


def test_a_gpu_that_cannot_report_its_name_is_the_one_that_was_there() -> None:
    roster = KnownGpus()
    call(roster, up(0, "A"), up(1, "B"))
    assert call(roster, up(0, "A"), down(1)) == ([up(0, "A"), down(1, "B", INFO)], [])


def test_a_gpu_that_never_reported_its_name_has_none() -> None:
    assert call(KnownGpus(), up(0, "A"), down(1)) == ([up(0, "A"), down(1)], [])


def test_indexes_that_moved_up_carry_no_name_along() -> None:
    roster = KnownGpus()
    call(roster, up(0, "A"), up(1, "B"), up(2, "C"))
    assert call(roster, up(0, "B"), up(1, "C")) == ([up(0, "B"), up(1, "C")], [down(0, "A", INFO)])


def test_a_name_is_not_given_twice() -> None:
    roster = KnownGpus()
    call(roster, up(0, "A"), up(1, "B"))
    assert call(roster, up(0, "B"), down(1))[0] == [up(0, "B"), down(1)]


def test_a_gpu_that_is_up_without_a_uuid_is_not_remembered() -> None:
    roster = KnownGpus()
    assert call(roster, up(0, "")) == ([up(0, "")], [])
    assert call(roster, down(0)) == ([down(0)], [])


def test_a_gpu_without_a_uuid_reports_the_reason_and_its_last_uuid() -> None:
    roster = KnownGpus()
    call(roster, up(0, "A"), up(1, "B"))
    why = {"up": "it is lost"}
    assert call(roster, up(0, "A"), GpuReading(1, "", {}, DOWN, why))[0][1] == GpuReading(1, "B", INFO, DOWN, why)
