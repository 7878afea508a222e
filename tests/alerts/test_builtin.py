"""Each built-in rule fires on its trouble, and none on a healthy machine."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

import pytest
from alerts.ticking import Machine
from documents import generator

from trackside_daemon.alerts.rules import builtin
from trackside_daemon.alerts.rules.template import check
from trackside_daemon.alerts.rules.vector import Vector
from trackside_daemon.alerts.settings import ThresholdsSection
from trackside_daemon.model.families import alerts, derived
from trackside_daemon.model.families.catalogue import catalogue, metrics
from trackside_daemon.model.records import Alert

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

GPU = "{gpu=0,uuid=G}"
GIB = 2.0**30
PORT = "{device=mlx5_0,port=1}"


def of_gpu(name: str, **labels: str) -> str:
    more = "".join(f",{label}={value}" for label, value in labels.items())
    return f"trackside_gpu_{name}{{gpu=0,uuid=G{more}}}"


def healthy(now: float) -> dict[str, float]:
    """Return all values, *now* seconds into a healthy training."""
    return {
        of_gpu("up"): 1.0,
        of_gpu("temperature_celsius", sensor="gpu"): 68.0 + 4 * math.sin(now / 30),
        of_gpu("thermal_margin_celsius", threshold="slowdown"): 19.0 - 4 * math.sin(now / 30),
        of_gpu("clock_limited_seconds_total", reason="hw_thermal"): 3.0 + 0.01 * now,
        of_gpu("clock_limited_seconds_total", reason="sw_power_cap"): 0.5 * now,
        of_gpu("clock_limit_active", reason="hw_slowdown"): 0.0,
        of_gpu("xid_errors_total", xid="79"): 0.0,
        of_gpu("xid_errors_total", xid="13"): 0.0,
        of_gpu("xid_errors_total", xid="45"): 0.0,
        of_gpu("ecc_errors_total", kind="uncorrected"): 3.0,
        of_gpu("ecc_errors_total", kind="corrected"): 3.0 + now // 100,
        of_gpu("row_remap_pending"): 0.0,
        of_gpu("row_remap_failed"): 0.0,
        of_gpu("nvlink_links"): 18.0,
        of_gpu("nvlink_links_up"): 18.0,
        of_gpu("nvlink_errors_total", error="recovery"): 2.0,
        of_gpu("nvlink_errors_total", error="crc"): 5.0 + now // 60,
        of_gpu("memory_used_bytes"): 70 * GIB,
        of_gpu("memory_bytes"): 80 * GIB,
        of_gpu("pcie_link_width_lanes"): 16.0,
        of_gpu("pcie_link_max_width_lanes"): 16.0,
        "trackside_gpus_visible": 1.0,
        "trackside_gpus_expected": 1.0,
        "trackside_gpus_pci": 8.0,
        f"trackside_host_infiniband_port_state{PORT}": 4.0,
        "trackside_host_infiniband_port_state{device=mlx5_1,port=1}": 1.0,
        f"trackside_host_infiniband_link_downed_total{PORT}": 2.0,
        "trackside_ray_node_deaths_total": 0.0,
        "trackside_ray_object_store_used_bytes{ray_node=ab}": GIB,
        "trackside_ray_object_store_size_bytes{ray_node=ab}": 10 * GIB,
        "trackside_ray_actor_restarts_total": 1.0,
        of_gpu("utilization_ratio"): 0.0 if now % 60 < 20 else 0.9,
        "trackside_gpu_rank_info{gpu=0,uuid=G,run=r,rank=0}": 1.0,
        "trackside_training_steps_total{run=r,rank=0}": 2 * now,
        "trackside_training_shm_peak_bytes{run=r,rank=0}": 0.5 * GIB,
        "trackside_training_shm_size_bytes{run=r,rank=0}": GIB,
        "trackside_training_open_fds{run=r,rank=0}": 100.0,
        "trackside_training_max_fds{run=r,rank=0}": 1024.0,
        "trackside_host_memory_available_bytes": 100 * GIB,
        "trackside_host_memory_bytes": 500 * GIB,
        "trackside_host_pressure_memory_stalled_seconds_total": 0.01 * now,
        "trackside_host_pressure_io_stalled_seconds_total": 0.05 * now,
        "trackside_host_pressure_cpu_waiting_seconds_total": 0.2 * now,
        "trackside_cgroup_memory_unreclaimable_bytes{cgroup=/a}": 50 * GIB,
        "trackside_cgroup_memory_limit_used_bytes{cgroup=/a}": 64 * GIB,
        "trackside_cgroup_memory_limit_bytes{cgroup=/a}": 64 * GIB,
        "trackside_cgroup_pressure_waiting_seconds_total{cgroup=/a,resource=memory}": 0.01 * now,
        "trackside_cgroup_cpu_throttled_periods_total{cgroup=/a}": 0.5 * now,
        "trackside_cgroup_cpu_periods_total{cgroup=/a}": 10 * now,
        "trackside_cgroup_oom_kills_total{cgroup=/a}": 2.0,
        "trackside_host_filesystem_avail_bytes{mountpoint=/data,fstype=xfs}": 3e11 - 1e6 * now,
        "trackside_host_filesystem_size_bytes{mountpoint=/data,fstype=xfs}": 1e12,
        "trackside_host_filesystem_readonly{mountpoint=/data,fstype=xfs}": 0.0,
        "trackside_host_filesystem_device_error{mountpoint=/data,fstype=xfs}": 0.0,
        "trackside_host_filesystem_avail_bytes{mountpoint=/snap,fstype=squashfs}": 0.0,
        "trackside_host_filesystem_size_bytes{mountpoint=/snap,fstype=squashfs}": 1e8,
        "trackside_host_filesystem_readonly{mountpoint=/snap,fstype=squashfs}": 1.0,
    }


TROUBLE_AT = 720
"""Seconds into the training at which the trouble begins, when all windows but an hour's are full."""

Trouble = "Callable[[float], Mapping[str, float | None]]"
"""Returns the values that differ, so many seconds into the trouble; None for a missing series."""

MARGIN = of_gpu("thermal_margin_celsius", threshold="slowdown")
TEMPERATURE = of_gpu("temperature_celsius", sensor="gpu")
THRESHOLD = of_gpu("temperature_threshold_celsius", threshold="slowdown")
STALLED = "trackside_host_pressure_{}_seconds_total"
HOST_AVAILABLE = "trackside_host_memory_available_bytes"
AVAILABLE = "trackside_host_filesystem_avail_bytes{mountpoint=/data,fstype=xfs}"

TROUBLES: list[tuple[str, str, int, Callable[[float], Mapping[str, float | None]]]] = [
    ("GpuHot", "warning", 70, lambda _: {MARGIN: 4.0, TEMPERATURE: 83.0}),
    ("GpuHot", "warning", 70, lambda _: {MARGIN: None, THRESHOLD: 89.0, TEMPERATURE: 85.0}),
    ("GpuHot", "warning", 70, lambda _: {MARGIN: None, TEMPERATURE: 87.0}),
    (
        "GpuThrottled",
        "warning",
        70,
        lambda since: {of_gpu("clock_limited_seconds_total", reason="hw_thermal"): 20.0 + 0.9 * since},
    ),
    ("GpuThrottled", "warning", 70, lambda _: {of_gpu("clock_limit_active", reason="hw_slowdown"): 1.0}),
    (
        "GpuPowerCapped",
        "info",
        700,
        lambda since: {of_gpu("clock_limited_seconds_total", reason="sw_power_cap"): 360 + since},
    ),
    ("GpuXid", "critical", 2, lambda _: {of_gpu("xid_errors_total", xid="79"): 1.0}),
    ("GpuXid", "critical", 2, lambda _: {of_gpu("xid_errors_total", xid="140"): 1.0}),
    ("GpuXid", "warning", 2, lambda _: {of_gpu("xid_errors_total", xid="13"): 2.0}),
    ("GpuXid", "warning", 2, lambda _: {of_gpu("xid_errors_total", xid="63"): 1.0}),
    ("GpuXid", "info", 2, lambda _: {of_gpu("xid_errors_total", xid="45"): 1.0}),
    ("GpuEccUncorrectable", "critical", 2, lambda _: {of_gpu("ecc_errors_total", kind="uncorrected"): 4.0}),
    ("GpuRowRemap", "warning", 2, lambda _: {of_gpu("row_remap_pending"): 1.0}),
    ("GpuRowRemap", "critical", 2, lambda _: {of_gpu("row_remap_failed"): 1.0}),
    ("GpuLost", "critical", 12, lambda _: {of_gpu("up"): 0.0}),
    ("GpuMissing", "critical", 310, lambda _: {"trackside_gpus_expected": 2.0}),
    ("PcieDegraded", "warning", 310, lambda _: {of_gpu("pcie_link_width_lanes"): 8.0}),
    ("InfinibandDegraded", "warning", 4000, lambda _: {f"trackside_host_infiniband_port_state{PORT}": 1.0}),
    (
        "InfinibandDegraded",
        "warning",
        70,
        lambda _: {
            f"trackside_host_infiniband_port_state{PORT}": 1.0,
            f"trackside_host_infiniband_link_downed_total{PORT}": None,
        },
    ),
    ("InfinibandDegraded", "warning", 2, lambda _: {f"trackside_host_infiniband_link_downed_total{PORT}": 3.0}),
    ("NvlinkDegraded", "warning", 70, lambda _: {of_gpu("nvlink_links_up"): 17.0}),
    ("NvlinkDegraded", "warning", 2, lambda _: {of_gpu("nvlink_errors_total", error="recovery"): 3.0}),
    ("NvlinkDegraded", "warning", 2, lambda _: {of_gpu("nvlink_errors_total", error="crc"): 500.0}),
    ("GpuMemoryPressure", "info", 125, lambda _: {of_gpu("memory_used_bytes"): 78.5 * GIB}),
    ("GpuUnderutilized", "warning", 320, lambda _: {of_gpu("utilization_ratio"): 0.1}),
    ("GpuIdleButHeld", "warning", 660, lambda _: {of_gpu("utilization_ratio"): 0.0}),
    (
        "HostMemoryPressure",
        "critical",
        190,
        lambda since: {HOST_AVAILABLE: 10 * GIB, STALLED.format("memory_stalled"): 10 + 0.2 * since},
    ),
    ("HostMemoryPressure", "warning", 370, lambda _: {HOST_AVAILABLE: 10 * GIB}),
    ("HostMemoryPressure", "warning", 70, lambda since: {STALLED.format("memory_stalled"): 10 + 0.2 * since}),
    ("IoBottleneck", "warning", 370, lambda since: {STALLED.format("io_stalled"): 40 + 0.5 * since}),
    ("CpuSaturated", "warning", 370, lambda since: {STALLED.format("cpu_waiting"): 150 + 0.7 * since}),
    (
        "CpuSaturated",
        "warning",
        370,
        lambda since: {"trackside_cgroup_cpu_throttled_periods_total{cgroup=/a}": 360 + 5 * since},
    ),
    (
        "ContainerMemoryPressure",
        "critical",
        190,
        lambda since: {
            "trackside_cgroup_memory_unreclaimable_bytes{cgroup=/a}": 62 * GIB,
            "trackside_cgroup_pressure_waiting_seconds_total{cgroup=/a,resource=memory}": 10 + 0.3 * since,
        },
    ),
    (
        "ContainerMemoryPressure",
        "warning",
        310,
        lambda _: {"trackside_cgroup_memory_unreclaimable_bytes{cgroup=/a}": 62 * GIB},
    ),
    (
        "ContainerMemoryPressure",
        "warning",
        100,
        lambda since: {"trackside_cgroup_pressure_waiting_seconds_total{cgroup=/a,resource=memory}": 10 + 0.3 * since},
    ),
    ("OomKilled", "info", 2, lambda _: {"trackside_cgroup_oom_kills_total{cgroup=/a}": 3.0}),
    ("DiskFilling", "warning", 370, lambda _: {AVAILABLE: 4e10}),
    ("DiskFilling", "warning", 4500, lambda since: {AVAILABLE: 3e11 - 2e7 * since}),
    (
        "DiskFilling",
        "warning",
        12,
        lambda _: {"trackside_training_checkpoint_room_ratio{run=r,directory=/data}": 0.4},
    ),
    (
        "FilesystemDead",
        "warning",
        12,
        lambda _: {"trackside_host_filesystem_device_error{mountpoint=/data,fstype=xfs}": 1.0},
    ),
    (
        "FilesystemDead",
        "critical",
        125,
        lambda _: {"trackside_host_filesystem_device_error{mountpoint=/data,fstype=xfs}": 1.0},
    ),
    ("ShmFull", "warning", 2, lambda _: {"trackside_training_shm_peak_bytes{run=r,rank=0}": 0.95 * GIB}),
    ("FdsExhausted", "warning", 40, lambda _: {"trackside_training_open_fds{run=r,rank=0}": 1000.0}),
    ("RayNodeDead", "warning", 2, lambda _: {"trackside_ray_node_deaths_total": 1.0}),
    ("RayObjectStoreFull", "warning", 70, lambda _: {"trackside_ray_object_store_used_bytes{ray_node=ab}": 9.5 * GIB}),
    ("RayActorsRestarting", "warning", 2, lambda _: {"trackside_ray_actor_restarts_total": 5.0}),
    ("DataLoaderDied", "critical", 2, lambda _: {"trackside_dataloader_deaths_total{run=r,rank=0,cause=SIGBUS}": 1.0}),
]


@pytest.mark.parametrize(
    ("alert", "severity", "within", "trouble"), TROUBLES, ids=[f"{one[0]}-{at}" for at, one in enumerate(TROUBLES)]
)
def test_it_fires_only_on_its_trouble_and_ends_with_it(
    alert: str, severity: str, within: int, trouble: Callable[[float], Mapping[str, float | None]]
) -> None:
    machine = Machine()
    every = 10.0 if within > 1000 else 5.0 if within > 100 else 1.0
    assert machine.run(TROUBLE_AT, healthy, 10.0) == []

    def faulty_values(since: float) -> dict[str, float]:
        values = {**healthy(TROUBLE_AT + since), **trouble(since)}
        return {name: value for name, value in values.items() if value is not None}

    found = machine.run(within, faulty_values, every)
    consequences = {"GpuIdleButHeld": {"GpuUnderutilized"}}.get(alert, set())
    assert {one.alert for one in found} - consequences == {alert}
    first = next(one for one in found if (one.alert, one.severity) == (alert, severity))
    assert not first.over
    assert sum((one.alert, one.severity, one.over) == (alert, severity, False) for one in found) == 1, "reported once"
    assert not re.search(r"[{}]", first.summary + first.description), first
    well, ended = machine.now, []
    while machine.firing and machine.now < well + 2000:
        ended += machine.tick(healthy(TROUBLE_AT + within + machine.now - well), 5.0)
    assert alert in {one.alert for one in ended if one.over}
    assert not machine.firing


def test_every_alert_has_a_trouble_here() -> None:
    assert {rule.alert for rule in builtin.rules(ThresholdsSection())} == {alert for alert, *_ in TROUBLES}


def test_a_healthy_machine_raises_no_alert_for_two_hours() -> None:
    assert Machine().run(7200, healthy, every=10.0) == []


def test_a_rule_can_name_every_exported_family_but_those_of_alerts_and_of_many_ranks() -> None:
    exported = {metric.name for members in generator().sections().values() for metric in members}
    of_alerts = {metric.name for metric in metrics(vars(alerts))}
    assert exported - catalogue().keys() == of_alerts | {derived.RANK_STATISTIC.name, derived.EXTREME_RANK.name}


def test_every_family_that_a_rule_names_exists_and_has_its_labels() -> None:
    exported = {metric.name for members in generator().sections().values() for metric in members}
    assert catalogue().keys() <= exported
    for rule in builtin.rules(ThresholdsSection()):
        vectors = [Vector(rule.query)]
        for vector in vectors:
            query = vector.query
            assert query.metric.name in exported
            assert {matcher.label for matcher in query.matchers} <= set(query.metric.labels)
            assert set(query.by or ()) <= set(query.metric.labels)
            assert set(query.on) <= set(query.metric.labels)
            parts = (query.over, query.minus, *query.only, *query.unless)
            vectors += [Vector(part) for part in parts if part is not None]
        for text in (rule.summary, rule.description):
            check(text, rule.query.by if rule.query.by is not None else rule.query.metric.labels)


def test_a_threshold_can_be_set() -> None:
    loose = builtin.rules(ThresholdsSection(gpu_hot_margin_celsius=1.0))
    machine = Machine(loose)
    assert machine.run(120, lambda now: {**healthy(now), MARGIN: 4.0}) == []
    assert [one.alert for one in machine.run(120, lambda now: {**healthy(now), MARGIN: 0.5})] == ["GpuHot"]


def test_a_small_share_of_a_large_machine_is_enough() -> None:
    """5 % of 2 TiB are 90 GiB, and of a mount of 1 PB they are 49 TB."""
    large = {HOST_AVAILABLE: 90 * GIB, "trackside_host_memory_bytes": 2000 * GIB, AVAILABLE: 49e12}
    size = {"trackside_host_filesystem_size_bytes{mountpoint=/data,fstype=xfs}": 1e15}
    assert Machine().run(1200, lambda now: {**healthy(now), **large, **size}, 10.0) == []


@pytest.mark.parametrize(("runs", "whose"), [((), None), (("r",), "r"), (("r", "q"), None)])
def test_what_slows_the_only_run_of_a_machine_is_an_alert_of_the_run(runs: tuple[str, ...], whose: str | None) -> None:
    def slow(now: float) -> dict[str, float]:
        alive = {f"trackside_training_state{{run={run},state=running}}": 1.0 for run in runs}
        ended = {"trackside_training_state{run=old,state=finished}": 1.0}
        return {**healthy(now), **alive, **ended, STALLED.format("cpu_waiting"): 0.9 * now}

    (found,) = Machine().run(500, slow, 10.0)
    assert (found.alert, dict(found.labels).get("run")) == ("CpuSaturated", whose)


def test_what_slows_the_machine_is_no_longer_an_alert_of_a_run_that_has_ended() -> None:
    def slow(now: float) -> dict[str, float]:
        alive = f"trackside_training_state{{run={'b' if now > 500 else 'a'},state=running}}"
        return {**healthy(now), alive: 1.0, STALLED.format("cpu_waiting"): 0.9 * now}

    found = Machine().run(1000, slow, 10.0)
    assert [(one.over, dict(one.labels)["run"]) for one in found] == [(False, "a"), (True, "a"), (False, "b")]


@pytest.mark.parametrize(
    ("alert", "trouble"),
    [
        ("GpuUnderutilized", {of_gpu("utilization_ratio"): 0.1}),
        ("PcieDegraded", {of_gpu("pcie_link_width_lanes"): 1.0}),
    ],
)
def test_what_slows_a_gpu_is_an_alert_of_the_run_that_uses_it(alert: str, trouble: dict[str, float]) -> None:
    machine = Machine()
    (found,) = machine.run(700, lambda now: {**healthy(now), **trouble}, 10.0)
    assert (found.alert, found.labels) == (alert, (("gpu", "0"), ("run", "r"), ("uuid", "G")))
    again = Machine()
    record = Alert(alert, "warning", 0.0, "id", {**dict(found.labels), "user": "ann"}, "slow", "")
    again.evaluator.restore(record)
    (restored,) = again.run(60, lambda now: {**healthy(now), **trouble}, 10.0)
    assert restored.labels == found.labels  # the same alert, also without its owner
    assert not machine.evaluator.evaluate(machine.now)


def test_a_hot_gpu_is_not_also_throttled() -> None:
    machine = Machine()
    active = of_gpu("clock_limit_active", reason="hw_slowdown")
    found = machine.run(300, lambda now: {**healthy(now), MARGIN: 0.5, active: 1.0})
    assert [one.alert for one in found] == ["GpuHot"]


def test_a_lost_gpu_is_not_also_reported_as_missing() -> None:
    lost = {of_gpu("up"): 0.0, "trackside_gpus_visible": 0.0}
    assert [one.alert for one in Machine().run(900, lambda now: {**healthy(now), **lost}, 5.0)] == ["GpuLost"]


def test_a_narrow_link_without_a_training_is_healthy() -> None:
    narrow = {of_gpu("pcie_link_width_lanes"): 1.0}
    idle = {"trackside_training_steps_total{run=r,rank=0}": 0.0}
    assert Machine().run(900, lambda now: {**healthy(now), **narrow, **idle}, 5.0) == []


def test_a_board_without_bridges_has_no_degraded_nvlinks() -> None:
    found = Machine().run(300, lambda now: {**healthy(now), of_gpu("nvlink_links_up"): 0.0})
    assert found == []


def test_a_gpu_that_waits_for_its_run_to_begin_is_not_underutilized() -> None:
    idle = {of_gpu("utilization_ratio"): 0.0, of_gpu("memory_used_bytes"): GIB}
    steps = {"trackside_training_steps_total{run=r,rank=0}": 0.0}
    assert Machine().run(900, lambda now: {**healthy(now), **idle, **steps}, 5.0) == []


def test_gpus_of_a_run_that_generates_its_own_data_may_be_idle() -> None:
    def waits(now: float) -> dict[str, float]:
        generates = {"trackside_rl_generation_seconds_total{run=r,rank=1}": 0.7 * now}
        return {**healthy(now), **generates, of_gpu("utilization_ratio"): 0.1}

    assert Machine().run(1200, waits, every=10.0) == []
