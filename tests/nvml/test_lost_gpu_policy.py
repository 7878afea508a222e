"""GPUs that hang or fall off the bus, while the others are still read."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from scripted_workers import LONG, Machine, pid, reap, unavailable_reason

from trackside_daemon.nvml.handle.handle import LostGpuPolicy
from trackside_daemon.nvml.handle.worker_protocol import Quarantine
from trackside_daemon.nvml.reading import DOWN, GpuReading

if TYPE_CHECKING:
    from pathlib import Path

    from scripted_workers import Clock, Workers

ALL = {"GPU-0": True, "GPU-1": True, "GPU-2": True}
WITHOUT_ONE = {**ALL, "GPU-1": False}


@pytest.fixture
def machine(worker: Workers, tmp_path: Path) -> Machine:
    """Return a machine whose three GPUs have been read once."""
    machine = Machine(worker, tmp_path / "ails")
    assert machine.up() == ALL
    return machine


def test_a_gpu_that_hangs_is_quarantined_and_the_others_are_read(machine: Machine, clock: Clock) -> None:
    machine.set_faults(gpu1="hang")
    machine.hang(1)
    clock.now += 10.5
    assert "hung for 10 s at GPU 1, which is skipped for a while, and is replaced" in unavailable_reason(
        machine.nvml, 0.01
    )
    assert machine.nvml.quarantined == {1}
    reap(machine.nvml)
    clock.now += 1.5
    assert machine.up() == WITHOUT_ONE
    assert machine.up() == WITHOUT_ONE
    assert machine.nvml.restarts["timeout"] == 1
    assert machine.nvml.restarts["gpu_lost"] == 0


def test_a_gpu_that_hung_is_tried_again_after_a_minute_by_the_same_worker(machine: Machine, clock: Clock) -> None:
    _hang_at_one(machine, clock)
    machine.set_faults()
    clock.now += 57
    assert machine.up() == WITHOUT_ONE
    kept = pid(machine.nvml)
    clock.now += 2
    assert machine.nvml.quarantined == frozenset()
    assert machine.up() == ALL
    assert pid(machine.nvml) == kept


def test_a_gpu_that_hangs_again_is_quarantined_for_longer_until_it_has_answered(machine: Machine, clock: Clock) -> None:
    _hang_at_one(machine, clock)
    clock.now += 60
    _hang_at_one(machine, clock)
    clock.now += 100
    assert machine.up() == WITHOUT_ONE
    machine.set_faults()
    clock.now += 20
    assert machine.up() == ALL
    _hang_at_one(machine, clock)
    clock.now += 60
    assert machine.nvml.quarantined == frozenset()


def test_another_gpu_that_has_the_index_of_one_that_hung_is_read(machine: Machine, clock: Clock) -> None:
    _hang_at_one(machine, clock)
    machine.set_faults(gpu1="gone")
    assert machine.up() == {"GPU-0": True, "GPU-2": True}
    assert [gpu.uuid for gpu in machine.nvml.last.gone] == ["GPU-1"]
    assert machine.nvml.quarantined == frozenset()


def test_a_gpu_that_hung_at_the_first_reading_is_quarantined_by_its_index(
    worker: Workers, clock: Clock, tmp_path: Path
) -> None:
    machine = Machine(worker, tmp_path / "first")
    machine.set_faults(gpu1="hang")
    machine.hang(1)
    clock.now += 60.5
    unavailable_reason(machine.nvml, 0.01)
    reap(machine.nvml)
    clock.now += 1.5
    for _ in range(2):
        assert machine.up() == {"GPU-0": True, "": False, "GPU-2": True}


@pytest.mark.parametrize("after", [("GPU-0", ""), ("GPU-0", "", "GPU-1")])
def test_the_quarantine_ends_when_its_indexes_mean_other_gpus(after: tuple[str, ...]) -> None:
    avoided = Quarantine()
    assert avoided.accept([_gpu(0, "GPU-0"), _gpu(1, "GPU-1"), _gpu(2, "GPU-2")], frozenset())
    avoided.add(1, 0.0)
    assert avoided.accept([_gpu(0, "GPU-0"), _gpu(1, ""), _gpu(2, "GPU-2")], frozenset({1}))
    assert avoided.indexes(1.0) == {1}
    assert not avoided.accept([_gpu(index, uuid) for index, uuid in enumerate(after)], frozenset({1}))
    assert avoided.indexes(1.0) == frozenset()
    assert not avoided.accept([_gpu(0, "GPU-0"), _gpu(1, "")], frozenset({1}))  # requested before
    assert avoided.accept([_gpu(0, "GPU-0"), _gpu(1, "GPU-2")], frozenset())


def test_resume_ends_the_quarantine(machine: Machine, clock: Clock) -> None:
    _hang_at_one(machine, clock)
    machine.set_faults()
    machine.nvml.resume()
    assert machine.up() == ALL


def test_a_gpu_is_quarantined_for_ten_minutes_at_most() -> None:
    avoided = Quarantine()
    for wait in (60, 120, 240, 480, 600, 600):
        avoided.add(3, 0.0)
        assert avoided.indexes(wait - 1) == {3}
        assert avoided.indexes(wait + 1) == frozenset()


def test_a_hang_before_any_gpu_is_no_gpus_fault(machine: Machine, clock: Clock) -> None:
    machine.set_faults(init="hang")
    machine.hang(None)
    clock.now += 10.5
    assert "hung for 10 s and is replaced" in unavailable_reason(machine.nvml, 0.01)
    assert machine.nvml.quarantined == frozenset()


def test_a_lost_gpu_costs_one_worker_and_retains_its_name(machine: Machine) -> None:
    before = pid(machine.nvml)
    machine.set_faults(gpu1="lost")
    assert machine.up() == WITHOUT_ONE
    assert machine.up() == WITHOUT_ONE
    assert pid(machine.nvml) == before
    reap(machine.nvml)
    assert machine.up() == WITHOUT_ONE
    after = pid(machine.nvml)
    assert after != before
    assert machine.up() == WITHOUT_ONE
    assert pid(machine.nvml) == after
    assert machine.nvml.restarts["gpu_lost"] == 1


def test_a_gpu_that_came_back_can_be_lost_again(machine: Machine, clock: Clock) -> None:
    for times in (1, 2):
        _lose_one(machine)
        assert machine.nvml.restarts["gpu_lost"] == times
        machine.set_faults()
        assert machine.up() == ALL
        clock.now += 60


def test_a_gpu_that_comes_and_goes_costs_few_workers(machine: Machine, clock: Clock) -> None:
    lost_at: list[float] = []
    while len(lost_at) < 5:
        for what in ({"gpu1": "lost"}, {}):
            machine.set_faults(**what)
            machine.up()
            clock.now += 10
        if machine.nvml.restarts["gpu_lost"] > len(lost_at):
            lost_at.append(clock.now)
            reap(machine.nvml)
    assert [later - before for before, later in pairwise(lost_at)] == [60, 120, 240, 480]


def test_another_gpu_that_is_lost_costs_a_worker_at_once(machine: Machine) -> None:
    _lose_one(machine)
    machine.set_faults(gpu1="lost", gpu2="lost")
    machine.up()
    machine.up()
    assert machine.nvml.restarts["gpu_lost"] == 2


def test_losses_of_a_gpu_cost_a_worker_less_and_less_often_until_it_has_been_well_for_long() -> None:
    losses, now = LostGpuPolicy(), 0.0
    for wait in (60, 120, 240, 480, 600, 600 + 601, 60):
        assert _costs(losses, now)
        assert not _costs(losses, now + min(wait, 600) - 1)
        now += wait


def test_a_gpu_that_is_not_counted_any_longer_is_reported_as_gone(machine: Machine) -> None:
    machine.set_faults(gpu2="gone")
    machine.nvml.read(LONG)
    machine.nvml.read(LONG)
    reap(machine.nvml)
    for _ in range(2):
        reading = machine.nvml.read(LONG)
        assert [gpu.index for gpu in reading.gpus] == [0, 1]
        assert [(gpu.uuid, gpu.values) for gpu in reading.gone] == [("GPU-2", [("up", (), 0.0)])]
    assert machine.nvml.restarts["gpu_lost"] == 1
    machine.set_faults()
    assert machine.up() == ALL
    assert machine.nvml.last.gone == []


def test_a_pause_forgets_the_gpus_that_are_gone(machine: Machine) -> None:
    machine.nvml.pause()
    machine.set_faults(gpu2="gone")
    machine.nvml.resume()
    assert machine.nvml.read(LONG).gone == []


def _gpu(index: int, uuid: str) -> GpuReading:
    return GpuReading(index, uuid, {}, [("up", (), 1.0)] if uuid else DOWN)


def _costs(losses: LostGpuPolicy, now: float) -> bool:
    """Return whether a loss replaces a new worker that sees it."""
    losses.worker_replaced()
    return [losses.accept([_gpu(0, "GPU-0")] if is_up else [], now) for is_up in (True, False, False)][-1]


def _lose_one(machine: Machine) -> None:
    """Read until a new worker reads the other GPUs."""
    machine.set_faults(gpu1="lost")
    machine.up()
    machine.up()
    reap(machine.nvml)
    assert machine.up() == WITHOUT_ONE


def _hang_at_one(machine: Machine, clock: Clock) -> None:
    """Read until a new worker reads the other GPUs."""
    machine.set_faults(gpu1="hang")
    machine.hang(1)
    clock.now += 10.5
    unavailable_reason(machine.nvml, 0.01)
    reap(machine.nvml)
    clock.now += 1.5
    assert machine.up() == WITHOUT_ONE
