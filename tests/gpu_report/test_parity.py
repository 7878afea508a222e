"""The comparison of /metrics with nvidia-smi, rehearsed with the fake driver and a fake nvidia-smi of the same scenario."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from processes import DEADLINE

from bench.gpu_report import nvidia_smi, parity
from bench.gpu_report.parity_columns import COLUMNS, TEXTS
from bench.gpu_report.rehearsal import write_command
from bench.gpu_report.result import Result
from trackside_daemon.collectors.gpu.gpu import GpuCollector
from trackside_daemon.model.metric import Batch
from trackside_daemon.model.state import State
from trackside_daemon.nvml.handle.handle import Nvml
from trackside_daemon.nvml.reading import WorkerSettings
from trackside_daemon.web.exposition import render

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from nvml.fake.library import Scenario

LONG = DEADLINE


@pytest.fixture
def read_page(scenario: Scenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], str]]:
    """A function that reads the GPUs and returns a page; the fake nvidia-smi is the first in $PATH."""
    write_command(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(parity, "TICK", 0.0)
    nvml = Nvml(WorkerSettings(extra=("all",)))
    collector = GpuCollector(nvml, timeout=LONG)

    def read() -> str:
        state = State()
        state.update(Batch("gpu", collector.collect()))
        return render(state.snapshot(0.0), openmetrics=False).decode()

    yield read
    nvml.close()


def test_every_value_of_two_gpus_agrees_and_one_that_differs_is_found(
    read_page: Callable[[], str], scenario: Scenario
) -> None:
    compared = parity.settled(read_page, Result())
    assert {key: one for key, one in compared.items() if one.agrees is False} == {}
    assert sum(one.agrees is True for one in compared.values()) > 2 * 45
    page = parity.gpus_of(read_page())
    scenario.set(
        "1 nvmlDeviceGetTemperature 75", "* nvmlDeviceGetCurrentClocksEventReasons 64", "1 nvmlDeviceGetSerial 7"
    )
    answer = nvidia_smi.query([column.name for column in COLUMNS] + list(TEXTS))
    wrong = {key for key, one in parity.compare(answer, page, page).items() if one.agrees is False}
    first, second = page
    reasons = {
        (uuid, f"clocks_event_reasons.{reason}")
        for uuid in (first, second)
        for reason in ("sw_power_cap", "hw_thermal_slowdown")
    }
    assert wrong == {(second, "temperature.gpu"), *reasons}


def test_a_value_may_lie_between_two_pages_and_only_one_source_is_no_difference() -> None:
    answer = nvidia_smi.Answer([{"uuid": "GPU-a", "clocks.sm": "1500", "fan.speed": "40"}], [])
    before, after = ({"GPU-a": parity.Gpu({("clock_hertz", "sm"): hertz}, {})} for hertz in (345e6, 1980e6))
    compared = parity.compare(answer, before, after)
    assert {column: one.agrees for (_, column), one in compared.items()} == {"clocks.sm": True, "fan.speed": None}
    assert parity.compare(answer, before, before)["GPU-a", "clocks.sm"].agrees is False


def test_a_column_that_nvidia_smi_lacks_is_left_out(read_page: Callable[[], str]) -> None:
    answer = nvidia_smi.query(["name", "moon.phase", "pstate", "tides"])
    assert answer.refused == ["moon.phase", "tides"]
    assert [(row["name"], row["pstate"]) for row in answer.rows] == 2 * [("NVIDIA H100 80GB HBM3", "P0")]
    assert nvidia_smi.process_memory() == {1: 69632.0 * 2**20}
