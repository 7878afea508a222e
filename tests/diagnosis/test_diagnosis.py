"""Diagnoses of runs in a history: the planted cause comes first, and a healthy run has none."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from histories import BEGIN, History, finished, history, ingested, opened

from trackside_daemon.diagnosis.diagnosis import diagnose
from trackside_daemon.diagnosis.settings import CostSection
from trackside_daemon.diagnosis.text import lines
from trackside_daemon.history.read.reader import UnknownRunError
from trackside_daemon.model.records import Account, AccountUpdated, Alert, MachineSample, SessionOpened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from trackside_daemon.model.records import Record

LENGTH = 600
"""Seconds of a run's attempt, which pushes from its second 5 on."""

GPU = 'gpu="{}",uuid="GPU-{}"'


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[History]:
    """A history."""
    with history(tmp_path / "history") as opened_history:
        yield opened_history


def records(
    phases: Mapping[str, float] = {},
    *,
    rank: int = 0,
    world: int = 1,
    attempt: int = 0,
    until: int = LENGTH,
    state: str = "finished",
    ended: float = LENGTH,
) -> list[Record]:
    """Return the records of one rank of an attempt."""
    began = BEGIN + 1000 * attempt
    pushes = [(step, round((began + 5 + step) * 1e6), {"loss": 1 / (1 + step)}) for step in range(until - 5)]
    batch = ingested("run", pushes, rank=rank, attempt=attempt)
    return [
        opened("run", rank=rank, world=world, attempt=attempt),
        batch.__class__(batch.session, batch.number, batch.columns, batch.shift, phases),
        finished("run", attempt=attempt, state=state, after=ended),
    ]


def machine(series: Callable[[int], Mapping[str, float]]) -> list[Record]:
    """Return a sample of the machine for each 10 seconds."""
    return [MachineSample(BEGIN + second, series(second)) for second in range(0, LENGTH, 10)]


def alert(name: str, began: float, severity: str = "critical", ended: float | None = None) -> Alert:
    """Return an alert of the run."""
    return Alert(name, severity, BEGIN + began, "run", {}, f"{name} of the test", ended=ended and BEGIN + ended)


def gpu_values(second: int, *, held_from: int = LENGTH, second_gpu: float = 0.9) -> dict[str, float]:
    """Return readings of two GPUs; the first one's clock is halved from a second on."""
    held = second >= held_from
    values = {
        f"trackside_gpu_utilization_ratio{{{GPU.format(gpu, gpu)}}}": use for gpu, use in ((0, 0.9), (1, second_gpu))
    }
    for gpu in (0, 1):
        clock = 1e9 if held and not gpu else 2e9
        values[f'trackside_gpu_clock_hertz{{domain="sm",{GPU.format(gpu, gpu)}}}'] = clock
        values[f'trackside_gpu_clock_limit_active{{{GPU.format(gpu, gpu)},reason="hw_thermal"}}'] = float(
            held and not gpu
        )
    return values


STORAGE = "trackside_host_pressure_io_stalled_seconds_total"
MEMORY = "trackside_host_pressure_memory_stalled_seconds_total"

PLANTED: dict[str, tuple[Sequence[Record], str | None]] = {
    "healthy": (records({"data": 3, "checkpoint": 4}), None),
    "healthy with GPUs": ([*records({"forward": 200, "backward": 380}), *machine(gpu_values)], None),
    "healthy on four ranks": (
        [one for rank in range(4) for one in records({"data": 1, "forward": 200 + rank}, rank=rank, world=4)],
        None,
    ),
    "healthy with an evaluation": (records({"eval": 5}), None),
    "data wait": (records({"data": 200, "checkpoint": 20}), "data_wait"),
    "a little data wait": (records({"data": 30}), "data_wait"),
    "checkpoints": (records({"checkpoint": 90, "data": 10}), "checkpoint"),
    "evaluation": (records({"eval": 250}), "eval"),
    "straggler": (
        [one for rank in range(4) for one in records({"forward": 400.0 if rank == 2 else 200}, rank=rank, world=4)],
        "straggler",
    ),
    "stall": (
        [*records(until=300), AccountUpdated("run", 0, 0, Account(stall=295))],
        "stall",
    ),
    "idle end": (records(until=400), "idle_end"),
    "a long start": (
        [
            opened("run"),
            ingested(
                "run", [(1, round((BEGIN + 200) * 1e6), {"loss": 1}), (2, round((BEGIN + 590) * 1e6), {"loss": 1})]
            ),
            finished("run", after=600),
        ],
        "start_up",
    ),
    "restart": (
        [*records(state="failed"), *records(attempt=1)],
        "restart",
    ),
    "repeated steps": (
        [
            *records(state="failed", until=990, ended=990),
            *records(attempt=1),
            AccountUpdated("run", 1, 0, Account(restart=415, caught=True)),
        ],
        "repeated",
    ),
    "NaN": ([*records(), alert("NonFinite", 200)], "wasted"),
    "divergence": ([*records(), alert("LossDiverging", 300, ended=500)], "wasted"),
    "throttled": ([*records(), *machine(lambda second: gpu_values(second, held_from=300))], "throttled"),
    "idle GPU": ([*records(), *machine(lambda second: gpu_values(second, second_gpu=0.0))], "idle_gpu"),
    "slow storage": ([*records(), *machine(lambda second: {STORAGE: second / 5})], "slow_storage"),
    "slow storage under the loader": (
        [*records({"data": 150}), *machine(lambda second: {STORAGE: second / 5})],
        "data_wait",
    ),
    "swap": (
        [*records(), *machine(lambda second: {MEMORY: second / 8, "trackside_host_swap_in_pages_total": 100 * second})],
        "memory_pressure",
    ),
    "CPU limit": (
        [
            *records(),
            *machine(lambda second: {'trackside_cgroup_cpu_throttled_seconds_total{cgroup="/job"}': second / 2}),
        ],
        "cpu_limit",
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_the_planted_cause_comes_first_and_the_ledger_sums_to_the_wall_time(kept: History, name: str) -> None:
    planted, cause = PLANTED[name]
    kept.put(planted)
    found = diagnosis(kept)
    assert abs(sum(found["ledger"].values()) - found["wall_seconds"]) < 1e-6 * found["wall_seconds"]
    assert next((one["cause"] for one in found["causes"]), None) == cause
    for one in found["causes"]:
        if one["lost_seconds"] is not None:
            assert 0 <= one["low"] <= one["lost_seconds"] == one["high"] <= found["wall_seconds"]
            assert one["gpu_hours"] == one["lost_seconds"] * found["ranks"] / 3600
    text = list(lines(found))
    assert len(text) <= 25
    assert text[0].startswith("run: ")
    assert text[2].startswith(f"1. {cause}: " if cause else "nothing cost more than 1 %")


def test_a_throttled_gpu_loses_the_share_of_its_clock(kept: History) -> None:
    kept.put(PLANTED["throttled"][0])
    # The clock is half of the usual one for the second half, of which the last sample ends at 590.
    assert diagnosis(kept)["ledger"]["throttled"] == pytest.approx((590 - 290) / 2, rel=0.02)


def test_alerts_are_evidence(kept: History) -> None:
    kept.put(PLANTED["NaN"][0])
    evidence = diagnosis(kept)["causes"][0]["evidence"]
    assert evidence[1].endswith("NonFinite: NonFinite of the test")


@pytest.mark.parametrize("entry", ["2.5", "=2.5", "H100=", "H100=free", "*=-1", "*=nan", "*=inf"])
def test_a_price_that_is_none_is_refused(entry: str) -> None:
    with pytest.raises(ValueError, match="each must be PATTERN=PRICE, such as"):
        CostSection(gpu_hour=(entry,))


def test_a_run_that_lives_is_diagnosed_until_now(kept: History) -> None:
    kept.put([opened("run"), ingested("run", [(1, round((BEGIN + 5) * 1e6), {"loss": 1})])])
    found = diagnosis(kept)
    assert found["wall_seconds"] > LENGTH
    assert sum(found["ledger"].values()) == pytest.approx(found["wall_seconds"])


def test_a_run_that_hangs_has_the_verdict_first(kept: History) -> None:
    stalled = alert("TrainingStalled", 200)
    verdict = {"kind": "never_arrived", "text": "Rank 1 never arrived.", "ranks": [1]}
    kept.put([*records()[:-1], stalled, alert("NonFinite", 200)])
    assert diagnosis(kept)["hang"] is None
    kept.put([replace(stalled, evidence={"hang": verdict})])
    found = diagnosis(kept)
    assert found["hang"] == verdict
    assert list(lines(found))[1] == "hangs: Rank 1 never arrived."
    kept.put([records()[-1]])
    assert diagnosis(kept)["hang"] is None


def test_a_run_without_a_push_and_an_unknown_one(kept: History) -> None:
    kept.put([opened("run"), finished("run")])
    assert diagnosis(kept)["ledger"] == {"start": 60.0}
    with kept.database.reading() as connection, pytest.raises(UnknownRunError, match="run 'other': there is none"):
        diagnose(connection, "other", CostSection())


ENERGY = "trackside_gpu_energy_joules_total"
PACKAGE = 'trackside_host_cpu_energy_joules_total{package="0"}'


def counted(second: int) -> dict[str, float]:
    """Return readings of two GPUs at 300.5 and 100 watts, of which the second is idle, and of a CPU at 50 watts."""
    joules = {f"{ENERGY}{{{GPU.format(gpu, gpu)}}}": 1e9 + watts * second for gpu, watts in ((0, 300.5), (1, 100))}
    return {**gpu_values(second, second_gpu=0.0), **joules, PACKAGE: 50.0 * second}


def test_energy_is_the_difference_of_the_counters(kept: History) -> None:
    kept.put([*records(), *machine(counted)])
    found = diagnosis(kept)
    assert found["energy"] == {
        "gpus": {"0": 300.5 * 590, "1": 100 * 590},
        "gpu_joules": 400.5 * 590,
        "gpu_idle_joules": 100 * 590,
        "cpu_joules": 50 * 590,
    }
    assert "energy: GPUs 0.0656 kWh, CPUs 0.00819 kWh" in list(lines(found))
    assert found["costs"]["gpu_cost"] is found["costs"]["energy_cost"] is found["costs"]["carbon_kg"] is None


def test_without_counters_the_energy_is_unknown(kept: History) -> None:
    kept.put(records())
    found = diagnosis(kept, CostSection(kwh=0.3, carbon_grams_per_kwh=400))
    assert found["energy"] == {"gpus": {}, "gpu_joules": None, "gpu_idle_joules": None, "cpu_joules": None}
    assert found["costs"]["energy_cost"] is None
    assert not any(line.startswith(("energy", "cost")) for line in lines(found))


def test_costs_are_those_of_the_configured_prices(kept: History) -> None:
    session, *rest = records({"data": 300})
    assert isinstance(session, SessionOpened)
    kept.put([replace(session, about={"hardware": {"gpus": ["NVIDIA A100-SXM4"] * 2}}), *rest, *machine(counted)])
    prices = CostSection(
        gpu_hour=("*A100*=9", "*=3.0"), currency="EUR", kwh=0.25, carbon_grams_per_kwh=400, pue=2, source="contract"
    )
    found = diagnosis(kept, prices)
    kwh = 450.5 * 590 * 2 / 3.6e6
    assert found["causes"][0]["cost"] == 300 / 3600 * 9
    text = list(lines(found))
    assert "cost: GPUs 1.50 EUR, energy 0.04 EUR for 0.167 GPU hours (contract)" in text
    assert any(line.startswith("1. data_wait: ") and line.endswith(", 0.75 EUR") for line in text)
    assert found["costs"] == {
        "currency": "EUR",
        "source": "contract",
        "gpu_hours": pytest.approx(600 / 3600),
        "gpu_hour": 9,
        "gpu_cost": pytest.approx(1.5),
        "energy_kwh": pytest.approx(kwh),
        "energy_cost": pytest.approx(kwh * 0.25),
        "carbon_kg": pytest.approx(kwh * 0.4),
    }


def diagnosis(kept: History, prices: CostSection = CostSection()) -> dict[str, Any]:  # noqa: B008  it is frozen
    """Return the diagnosis of the run, as it is after it was JSON."""
    with kept.database.reading() as connection:
        found: dict[str, Any] = json.loads(json.dumps(diagnose(connection, "run", prices)))
    return found
