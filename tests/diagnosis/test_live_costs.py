"""The energy and the costs of live runs, with simulated GPUs: exactly the differences of their counters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from diagnosis.simulated_job import TICK, Job, SimulatedJob
from in_process_daemon import InProcessDaemon
from processes import eventually
from wire_messages import moment

from trackside_daemon.diagnosis.costs import Begin, LiveCosts, read_begin
from trackside_daemon.diagnosis.diagnosis import diagnose
from trackside_daemon.diagnosis.settings import CostSection
from trackside_daemon.model.families import gpu as gpu_families
from trackside_daemon.model.metric import Batch, Sample
from trackside_daemon.model.rank_process import RankProcess
from trackside_daemon.model.state import State
from trackside_daemon.nvml.simulation.simulate import simulate, uuid
from trackside_daemon.service.run_readings import RunReadings

if TYPE_CHECKING:
    from pathlib import Path

PRICES = CostSection(gpu_hour=("*H100*=3.6",), currency="EUR", kwh=0.36, pue=1.25)


class Machine:
    """Two simulated GPUs whose readings reach a state, and a run of two ranks."""

    def __init__(self, prices: CostSection = PRICES, begin: Begin | None = Begin(0.0)) -> None:  # noqa: B008
        self.state = State()
        self.ranks = [rank("run", "id-1", number) for number in range(2)]
        self.costs = LiveCosts(self.state, lambda: self.ranks, lambda _: begin, prices)

    def tick(self, now: float, *, counters: int = 2, on: tuple[int, ...] = (0, 1)) -> dict[tuple[str, ...], float]:
        """Return the values of the counters by the end of their family's name and their labels."""
        gpus = simulate(2, now).gpus
        samples = [
            Sample(gpu_families.RANK_INFO, (str(gpu), uuid(gpu), "run", str(rank)), 1) for rank, gpu in enumerate(on)
        ]
        for gpu in gpus:
            energy = next(value for family, _, value in gpu.values if family == "energy_joules_total")
            samples += [Sample(gpu_families.ENERGY, (str(gpu.index), gpu.uuid), energy)] if gpu.index < counters else []
            labels = {"gpu": str(gpu.index), "uuid": gpu.uuid, **gpu.info}
            samples.append(
                Sample(gpu_families.INFO, tuple(labels.get(name, "") for name in gpu_families.INFO.labels), 1)
            )
        self.state.update(Batch("machine", samples, complete=True))
        found = self.costs.batch(now, now).samples
        return {(sample.metric.name.split("_")[2], *sample.labels): float(sample.value) for sample in found}  # type: ignore[arg-type]


def rank(run: str, run_id: str, number: int) -> RankProcess:
    return RankProcess(run, run_id, 0, number, number, "", 100 + number)


def joules(gpu: int, since: float, now: float) -> float:
    """Return how much the counter of a simulated GPU grows."""
    ends = [
        value
        for moment in (since, now)
        for family, _, value in simulate(2, moment).gpus[gpu].values
        if family == "energy_joules_total"
    ]
    return ends[1] - ends[0]


def test_energy_is_the_difference_of_the_counters_and_costs_follow_from_it() -> None:
    machine = Machine()
    machine.tick(100)
    found = machine.tick(3700)
    for number in range(2):
        spent = joules(number, 100, 3700)
        assert found["energy", "run", str(number)] == pytest.approx(spent, rel=1e-12)
        price = 3.6 * 3700 / 3600 + 0.36 * 1.25 * spent / 3.6e6
        assert found["cost", "run", str(number), "EUR"] == pytest.approx(price)


def test_without_prices_there_are_no_costs_and_without_a_counter_no_energy() -> None:
    machine = Machine(CostSection())
    assert {key[:3] for key in machine.tick(100, counters=1)} == {("energy", "run", "0")}


def test_ranks_on_one_gpu_share_its_energy_and_its_price() -> None:
    machine = Machine()
    machine.tick(100, on=(0, 0))
    found = machine.tick(200, on=(0, 0))
    assert found["energy", "run", "0"] == found["energy", "run", "1"] == pytest.approx(joules(0, 100, 200) / 2)
    assert found["cost", "run", "0", "EUR"] < 3.6 * 200 / 3600


def test_counters_go_on_after_a_restart_and_stay_for_a_minute_after_the_end() -> None:
    before = {uuid(gpu): joules(gpu, 0, 100) + joules_at_zero(gpu) for gpu in range(2)}
    machine = Machine(begin=Begin(0.0, (), before))
    machine.tick(1000)
    found = machine.tick(1010)
    assert found["energy", "run", "0"] == pytest.approx(joules(0, 100, 1010))
    machine.ranks = []
    assert machine.tick(1060) == found
    assert machine.tick(1080) == {}


def joules_at_zero(gpu: int) -> float:
    """Return the counter of a simulated GPU at the start of its clock."""
    return next(value for family, _, value in simulate(2, 0.0).gpus[gpu].values if family == "energy_joules_total")


def test_a_new_run_of_the_same_name_takes_over_the_series() -> None:
    machine = Machine()
    machine.tick(100)
    machine.tick(200)
    machine.ranks = [rank("run", "id-2", 0)]
    assert machine.tick(210)["energy", "run", "0"] == 0.0


def test_the_history_has_the_same_energy_and_the_begin_of_the_run(tmp_path: Path) -> None:
    """The machine is sampled from 10 s after the job's start until 1 s after its end."""
    daemon = InProcessDaemon(tmp_path, machine=("host", "gpu"))
    seconds = SimulatedJob(Job(steps=100, board=True), daemon).run().seconds
    daemon.history.writer.call(lambda _: None).result(60)
    with daemon.history.database.reading() as connection:
        begin = read_begin(connection, "job")
        found = diagnose(connection, "job", PRICES)
    first, last = (moment(after).monotonic for after in (TICK, seconds + 1.0))
    assert found["energy"]["gpus"] == {"0": joules(0, first, last)}
    kwh = found["energy"]["gpu_joules"] / 3.6e6 * 1.25
    assert found["costs"]["cost"] == pytest.approx(seconds / 3600 * 3.6 + kwh * 0.36)
    begins = RunReadings(daemon.history.database, read_begin)
    eventually(lambda: begins("job") == begin)
    assert begin is not None
    assert begin.places[0] == "node-1"
    assert begin.joules[uuid(0)] == pytest.approx(joules(0, 0, first) + joules_at_zero(0))
    assert begins("other") is None
    daemon.close()
