"""Simulated GPUs are plausible, reproducible, and have every default family of their board."""

from __future__ import annotations

import itertools
import math
import re
from collections import defaultdict
from typing import TYPE_CHECKING, get_args

import msgspec
import pytest
from nvml.fake.library import Scenario
from processes import DEADLINE, eventually

from trackside_daemon.collectors.settings import GpuSection
from trackside_daemon.model.families.gpu import FAMILIES
from trackside_daemon.nvml.handle.counter_continuity import CounterContinuity
from trackside_daemon.nvml.handle.handle import Nvml, NvmlUnavailable
from trackside_daemon.nvml.reader_groups import GROUPS
from trackside_daemon.nvml.reading import Reading, WorkerSettings
from trackside_daemon.nvml.simulation.boards import BOARDS
from trackside_daemon.nvml.simulation.faults import FAULTS, LOST_SECONDS
from trackside_daemon.nvml.simulation.simulate import READ_BY, SimulatedCalls, WorkerStart, simulate

if TYPE_CHECKING:
    from pathlib import Path

    from trackside_daemon.nvml.reading import GpuReading

EVERY = (*((board, ()) for board in BOARDS), *(("h100", (f"{trouble}:0",)) for trouble in FAULTS))
"""All boards, and all faults of one."""

EXTRA = {
    "engine_utilization_ratio": "group engines",
    "sm_cycles_total": "group cycles",
    "sm_active_cycles_total": "group cycles",
    "tensor_active_cycles_total": "group cycles",
    "bar1_memory_bytes": "group bar1",
    "bar1_memory_used_bytes": "group bar1",
    "nvlink_up": "group links",
    "nvlink_link_transmit_bytes_total": "group links",
    "nvlink_link_receive_bytes_total": "group links",
    "process_max_memory_bytes": "group accounting",
}
NOWHERE = {
    "mma_stall_ratio": "no board is known to answer it",
    "fan_speed_ratio": "the chassis cools them",
    "module_power_watts": "superchips",
    "c2c_link_up": "superchips",
    "c2c_errors_total": "superchips",
    "retired_pages_total": "boards before Ampere",
    "retired_pages_pending": "boards before Ampere",
    "process_memory_bytes": "there is no process",
    "process_sm_utilization_ratio": "there is no process",
    "process_memory_utilization_ratio": "there is no process",
    "xid_errors_total": "told beside the values",
    "xid_last_timestamp_seconds": "told beside the values",
    **dict.fromkeys((family for family in FAMILIES if family.startswith("mig_") and family != "mig_mode"), "no MIG"),
}
HOPPER = {
    *("graphics_engine_active_ratio", "sm_active_ratio", "sm_occupancy_ratio", "tensor_active_ratio"),
    *("pipe_active_ratio", "dram_active_ratio", "sram_threshold_exceeded", "recovery_action"),
    *("fabric_state", "fabric_healthy", "fabric_problem"),
    *("pcie_transmit_bytes_per_second", "pcie_receive_bytes_per_second"),
}
NVLINK = {family for family in FAMILIES if family.startswith("nvlink_")}
ABSENT = {
    "h100": {"temperature_threshold_celsius"},
    "a100": {"thermal_margin_celsius", *HOPPER},
    "l40s": {"temperature_threshold_celsius", "mig_mode", *HOPPER, *NVLINK},
}
"""Families that a board does not have."""

Values = dict[tuple[str, tuple[str, ...]], float]


def values(gpu: GpuReading) -> Values:
    return {(family, labels): value for family, labels, value in gpu.values}


def at(now: float, *troubles: str, profile: str = "h100") -> Values:
    """Return the series of a single GPU."""
    return values(simulate(1, now, profile, troubles).gpus[0])


def plain(gpu: Values) -> dict[str, float]:
    """Return the values of families without extra labels."""
    return {family: value for (family, labels), value in gpu.items() if not labels}


@pytest.mark.parametrize(("profile", "troubles"), EVERY)
def test_the_same_moment_gives_the_same_reading(profile: str, troubles: tuple[str, ...]) -> None:
    assert simulate(8, 1234.5, profile, troubles) == simulate(8, 1234.5, profile, troubles)


def test_two_gpus_differ() -> None:
    first, second = simulate(2, 1000.0).gpus
    assert (first.uuid, second.uuid) == (
        "GPU-00000000-0000-0000-0000-000000000000",
        "GPU-00000000-0000-0000-0000-000000000001",
    )
    assert plain(values(first))["utilization_ratio"] != plain(values(second))["utilization_ratio"]


@pytest.mark.parametrize("profile", BOARDS)
def test_a_board_has_every_default_family_that_it_can_have(profile: str) -> None:
    expected = set(FAMILIES) - set(EXTRA) - set(NOWHERE) - ABSENT[profile]
    assert {family for family, _ in at(1000.0, profile=profile)} == expected


def test_every_family_has_as_many_labels_as_its_metric_and_no_series_comes_twice() -> None:
    for profile in BOARDS:
        gpu = simulate(1, 1000.0, profile).gpus[0]
        assert len(gpu.values) == len(values(gpu))
        for family, labels, _ in gpu.values:
            assert len(labels) == len(FAMILIES[family].metric.labels) - 2, family


@pytest.mark.parametrize("profile", BOARDS)
def test_info_reports_that_it_is_simulated(profile: str) -> None:
    for index, gpu in enumerate(simulate(8, 0.0, profile).gpus):
        assert gpu.info["source"] == "simulated"
        assert gpu.info["name"].startswith("Simulated ")
        assert gpu.info["minor"] == str(index)
        assert gpu.info["numa_node"] == str(index // 4)


@pytest.mark.parametrize("now", [0.0, 17.3, 3600.0, 1e6, 3e7])
@pytest.mark.parametrize(("profile", "troubles"), EVERY)
def test_every_value_is_one_that_a_card_could_have(profile: str, troubles: tuple[str, ...], now: float) -> None:
    for gpu in simulate(8, now, profile, troubles).gpus:
        for family, _, value in gpu.values:
            assert FAMILIES[family].low <= value <= FAMILIES[family].high, family
        there = values(gpu)
        if not there["up", ()]:
            continue
        used, free, reserved = (there[f"memory_{part}_bytes", ()] for part in ("used", "free", "reserved"))
        assert used + free + reserved == there["memory_bytes", ()]
        assert there["power_watts", ()] <= there["power_limit_watts", ("enforced",)]
        for domain in ("graphics", "sm", "memory", "video"):
            assert 0 < there["clock_hertz", (domain,)] <= there["clock_max_hertz", (domain,)]


def test_parts_of_a_gpu_are_busy_for_less_time_than_the_whole() -> None:
    for now in range(200):
        gpu = plain(at(float(now)))
        assert gpu["tensor_active_ratio"] < gpu["sm_active_ratio"] < gpu["utilization_ratio"]
        assert gpu["sm_occupancy_ratio"] < gpu["sm_active_ratio"]


@pytest.mark.parametrize("trouble", [(), ("hot",), ("throttled",)])
@pytest.mark.parametrize("profile", BOARDS)
def test_every_counter_grows_as_fast_as_its_gauge_reports(profile: str, trouble: tuple[str, ...]) -> None:
    """Integrate by Simpson's rule over half a second, which is exact enough for waves of 4 s and more."""
    early, middle, late = (at(now, *trouble, profile=profile) for now in (99.5, 99.75, 100.0))

    def integral(gauge: str, labels: tuple[str, ...] = ()) -> float:
        return (early[gauge, labels] + 4 * middle[gauge, labels] + late[gauge, labels]) / 12

    def grown(counter: str, labels: tuple[str, ...] = ()) -> float:
        return late[counter, labels] - early[counter, labels]

    assert grown("energy_joules_total") == pytest.approx(integral("power_watts"), rel=1e-5)
    assert grown("busy_seconds_total") == pytest.approx(integral("utilization_ratio"), rel=1e-5)
    for reason in ("sw_power_cap", "sw_thermal", "hw_thermal", "hw_power_brake", "sync_boost"):
        active = integral("clock_limit_active", (reason,))
        assert grown("clock_limited_seconds_total", (reason,)) == pytest.approx(active)
    for traffic in ("pcie_receive_bytes_total", *(["nvlink_transmit_bytes_total"] if profile != "l40s" else [])):
        assert grown(traffic) / grown("busy_seconds_total") == pytest.approx(
            late[traffic, ()] / late["busy_seconds_total", ()], rel=1e-6
        )


def test_the_average_power_is_the_energy_of_the_second_before() -> None:
    before, now = plain(at(99.0)), plain(at(100.0))
    assert now["power_average_watts"] == pytest.approx(now["energy_joules_total"] - before["energy_joules_total"])


@pytest.mark.parametrize(("profile", "troubles"), EVERY)
def test_no_counter_goes_back(profile: str, troubles: tuple[str, ...]) -> None:
    history: dict[tuple[str, tuple[str, ...]], list[float]] = defaultdict(list)
    for second in range(600):
        for series, value in at(float(second), *troubles, profile=profile).items():
            if FAMILIES[series[0]].metric.kind == "counter":
                history[series].append(value)
    for series, counts in history.items():
        assert counts == sorted(counts), series


def test_values_move_smoothly_from_second_to_second() -> None:
    for before, after in itertools.pairwise(at(float(second)) for second in range(200)):
        moved = {series: abs(after[series] - before[series]) for series in after}
        assert moved["utilization_ratio", ()] < 0.06
        assert moved["temperature_celsius", ("gpu",)] < 3
        assert moved["power_watts", ()] < 35


def test_a_fault_without_an_index_is_the_last_gpus() -> None:
    hottest = [
        max(range(4), key=lambda index: values(gpus[index])["temperature_celsius", ("gpu",)])
        for gpus in (simulate(4, 50.0, "h100", [trouble]).gpus for trouble in ("hot", "hot:1"))
    ]
    assert hottest == [3, 1]


@pytest.mark.parametrize("profile", BOARDS)
def test_a_hot_gpu_is_at_its_threshold_and_slow(profile: str) -> None:
    well, hot = at(1000.0, profile=profile), at(1000.0, "hot", profile=profile)
    assert abs(hot["temperature_celsius", ("gpu",)] - BOARDS[profile].slowdown) < 1
    if ("thermal_margin_celsius", ("slowdown",)) in hot:
        assert abs(hot["thermal_margin_celsius", ("slowdown",)]) < 1 < hot["thermal_margin_celsius", ("shutdown",)]
        assert well["thermal_margin_celsius", ("slowdown",)] > 10
    assert hot["clock_hertz", ("sm",)] < 0.7 * well["clock_hertz", ("sm",)]
    assert hot["clock_limit_active", ("hw_thermal",)] == 1
    assert hot["clock_limit_active", ("hw_power_brake",)] == 0
    assert hot["clock_limited_seconds_total", ("hw_thermal",)] == 1000.0


def test_a_throttled_gpu_draws_less_and_is_slow() -> None:
    well, throttled = at(1000.0), at(1000.0, "throttled")
    assert throttled["power_watts", ()] < 0.7 * well["power_watts", ()]
    assert throttled["clock_hertz", ("sm",)] < 0.5 * well["clock_hertz", ("sm",)]
    assert throttled["clock_hertz", ("memory",)] == well["clock_hertz", ("memory",)]
    for reason in ("sw_power_cap", "hw_power_brake"):
        assert throttled["clock_limit_active", (reason,)] == 1
        assert throttled["clock_limited_seconds_total", (reason,)] == 1000.0


def test_a_gpu_without_trouble_is_limited_by_nothing() -> None:
    well = at(1000.0)
    assert not any(value for (family, _), value in well.items() if family.startswith("clock_limit"))
    assert not any(value for (family, _), value in well.items() if "errors" in family)
    assert simulate(8, 1000.0).xids == {}


def test_an_xid_comes_each_minute_and_the_gpu_stays() -> None:
    start = WorkerStart(monotonic=600.0, epoch=1_700_000_000.0)
    uuid = simulate(2, 0.0).gpus[1].uuid

    def reading(now: float) -> dict[str, dict[int, tuple[int, float]]]:
        return simulate(2, now, "h100", ["xid"], start).xids

    assert reading(659.0) == {}
    assert reading(660.0) == {uuid: {94: (1, 1_700_000_660.0)}}
    assert reading(725.0) == {uuid: {94: (2, 1_700_000_720.0)}}
    ill = values(simulate(2, 725.0, "h100", ["xid"], start).gpus[1])
    assert ill["up", ()] == 1
    assert ill["ecc_volatile_errors_total", ("uncorrected",)] == 12
    assert ill["row_remap_pending", ()] == 1
    assert ill["recovery_action", ()] == 1


def test_a_lost_gpu_returns_every_four_minutes_and_the_others_stay() -> None:
    for now, up in ((10.0, True), (119.9, True), (120.0, False), (239.9, False), (240.0, True)):
        other, lost = simulate(2, now, "h100", ["lost"]).gpus
        assert len(other.values) > 60
        assert (len(lost.values) > 60) is up
        assert lost.values[0] == ("up", (), float(up))
        assert lost.info["name"] == other.info["name"]


def test_a_gpu_is_as_busy_over_two_workers_as_over_one() -> None:
    def reading(now: float, begun: float) -> Reading:
        return simulate(1, now, start=WorkerStart(begun, 0.0))

    one = values(reading(5100.0, 5000.0).gpus[0])["busy_seconds_total", ()]
    continued = CounterContinuity()
    continued.accept(reading(5060.0, 5000.0))
    continued.worker_replaced()
    two = values(continued.accept(reading(5100.0, 5060.0)).gpus[0])["busy_seconds_total", ()]
    assert two == pytest.approx(one)
    assert 0 < one < 100


def test_troubles_come_together() -> None:
    both = at(10.0, "hot", "throttled", "xid")
    assert both["clock_limit_active", ("hw_thermal",)] == both["clock_limit_active", ("sw_power_cap",)] == 1
    assert math.isclose(both["clock_hertz", ("sm",)], at(10.0, "throttled")["clock_hertz", ("sm",)])


@pytest.mark.parametrize(
    ("profile", "trouble", "message"),
    [
        ("h200", "hot", "no simulated profile 'h200'; the profiles are h100, a100, l40s"),
        *(
            ("h100", one, f"{one!r} is none of hot, throttled, xid, lost, with or without :INDEX of the GPU")
            for one in ("cold", "cold:1", "hot:", "hot:x", "hot:-1", "hot:1\n")
        ),
        ("h100", "hot:2", "'hot:2' is for a GPU that is not simulated; give an index from 0 to 1"),
    ],
)
def test_invalid_simulations_are_errors(profile: str, trouble: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        simulate(2, 0.0, profile, [trouble])


def test_a_reading_is_the_same_at_the_other_end_of_the_pipe() -> None:
    reading = simulate(2, 725.0, "a100", ["xid", "hot:0"])
    assert msgspec.json.decode(msgspec.json.encode(reading), type=Reading) == reading


def test_a_worker_with_invalid_settings_reports_the_error() -> None:
    nvml = Nvml(WorkerSettings(simulate=2, faults=("cold",)))
    with pytest.raises(NvmlUnavailable, match="'cold' is none of hot, throttled, xid, lost"):
        nvml.read(timeout=DEADLINE)
    nvml.close()


@pytest.mark.parametrize(("profile", "board"), [("h100", "h100-busy"), ("a100", "a100")])
def test_it_has_every_series_that_is_read_of_such_a_board(
    profile: str, board: str, nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Simulated series have the names and labels of those that the readers read from the fake driver."""
    environ = {"LD_LIBRARY_PATH": str(nvml_library.parent), **Scenario(tmp_path / "board", board).environ}
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    nvml = Nvml(WorkerSettings())
    read = {series for _ in range(2) for series in values(nvml.read(timeout=DEADLINE).gpus[0])}
    nvml.close()
    assert len(read) > 60
    assert {series for series in read if series[0] not in NOWHERE} <= set(at(1000.0, profile=profile))


@pytest.mark.parametrize(("profile", "board"), [("h100", "h100-busy"), ("a100", "a100")])
def test_its_calls_are_of_functions_that_such_a_board_is_read(
    profile: str, board: str, nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = {"LD_LIBRARY_PATH": str(nvml_library.parent), **Scenario(tmp_path / "board", board, gpus=1).environ}
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    simulating, real = Nvml(WorkerSettings(simulate=1, profile=profile)), Nvml(WorkerSettings())
    simulating.read(timeout=DEADLINE)
    simulated = simulating.read(timeout=DEADLINE)
    assert simulated.calls.keys() == simulated.call_seconds.keys()
    for function, results in simulated.calls.items():
        assert results["success"] == 2 * (4 if function == "nvmlDeviceGetClockInfo" else 1)
    # GPM's samples are 0.1 s apart.
    eventually(lambda: simulated.calls.keys() <= real.read(timeout=DEADLINE).calls.keys())
    calls = real.read(timeout=DEADLINE).calls
    assert [name for name in simulated.calls if not calls[name].get("success")] == []
    simulating.close()
    real.close()


def test_of_a_lost_gpu_the_handle_is_asked_for_and_no_more() -> None:
    calls = SimulatedCalls()
    calls.count_cycle(simulate(2, 0.75 * LOST_SECONDS, faults=["lost:1"]).gpus)
    assert calls.counts["nvmlDeviceGetHandleByIndex"] == {"success": 1, "gpu_is_lost": 1}
    assert calls.counts["nvmlDeviceGetTemperature"] == {"success": 1}


def test_the_settings_offer_every_board_that_can_be_simulated() -> None:
    assert get_args(GpuSection.model_fields["profile"].annotation) == tuple(BOARDS)


@pytest.mark.parametrize("profile", BOARDS)
def test_each_simulated_value_is_of_one_group_of_readers_and_is_left_out_with_it(profile: str) -> None:
    assert set(READ_BY) <= set(GROUPS)
    (every,) = simulate(1, 1234.5, profile).gpus
    left = {name: simulate(1, 1234.5, profile, skip=[name]).gpus[0].values for name in READ_BY}
    kept = {name: len(every.values) - len(values) for name, values in left.items()}
    assert sum(kept.values()) == len(every.values) - 1, "all but up are of one group"
    assert simulate(1, 1234.5, profile, skip=READ_BY).gpus[0].values == [("up", (), 1.0)]
