"""The thresholds of panels equal those of the alerts on the same values."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from grafana.boards import committed, panels
from grafana.promql import parsed
from grafana.samples import panel, sample
from grafana.thresholds import DEFAULTS, DETECTED, bounds, is_step, like, met, same, shape, strange

from trackside_daemon.alerts.rules import builtin

BOARDS = committed()


@pytest.mark.parametrize("uid", BOARDS)
def test_thresholds_are_the_alerts(uid: str) -> None:
    assert list(strange(BOARDS[uid])) == []


UNSHOWN = (
    "trackside_host_pressure",  # the machine's own pressure and its limits are no part of a training's page
    "trackside_cgroup",
    "trackside_host_filesystem_avail_bytes",  # by when it is full
    "trackside_host_infiniband",
    "trackside_training_straggler_ratio",  # of one machine, where the page compares all
    "trackside_training_data_wait_seconds_sum",  # as a share it is shown by phase
    "trackside_gpu_clock_limit_active",  # for boards that do not count its time
    "trackside_gpu_temperature_celsius",  # its distance has the sign of a margin on the page
    "trackside_gpu_nvlink_errors_total",  # a rate on the page
)
"""Families without a threshold on any panel."""


def test_each_bound_is_met_by_a_panel() -> None:
    there = met(BOARDS.values())
    missing = [(what, bound) for what, bound in bounds() if (what, bound) not in there and not is_step(what, bound)]
    assert [one for one in missing if not any(family in repr(one) for family in UNSHOWN)] == []


def _columns(board: Any, title: str, column: str) -> Any:
    """Return the threshold steps of a panel or of its column."""
    config = next(one["fieldConfig"] for one in panels(board) if one["title"] == title)
    if not column:
        return config["defaults"]["thresholds"]["steps"]
    return next(
        one["value"]["steps"]
        for override in config["overrides"]
        if override["matcher"]["options"] == column
        for one in override["properties"]
        if one["id"] == "thresholds"
    )


WRONG = [
    ("trackside-gpus", "GPUs", "Temperature", 60),
    ("trackside-gpus", "GPUs", "Memory", 0.5),
    ("trackside-gpus", "GPUs", "Utilization", 0.9),
    ("trackside-training", "Temperature by rank", "", 60),
    ("trackside-training", "Device memory in use by rank", "", 0.5),
    ("trackside-training", "GPU utilization by rank", "", 0.9),
    ("trackside-training", "GPU utilization", "", 0.9),
    ("trackside-training", "Time spent waiting for data", "", 0.9),
    ("trackside-fleet", "All nodes", "Disk free", 0.5),
    ("trackside-fleet", "All nodes", "Memory available", 0.5),
]


@pytest.mark.parametrize(("uid", "title", "column", "value"), WRONG)
def test_another_threshold_of_a_dashboard_is_reported(uid: str, title: str, column: str, value: float) -> None:
    board = deepcopy(BOARDS[uid])
    _columns(board, title, column)[-1]["value"] = value
    [reported] = strange(board)
    assert reported.startswith(f"{title}, {column}: " if column else f"{title}: ")


MEMORY = "trackside_gpu_memory_used_bytes"
PHASES = "trackside_training_phase_seconds_total"
SAME = [
    (f"{MEMORY} / trackside_gpu_memory_bytes", {0.97}),
    (f"max by (gpu) ({MEMORY}{{gpu=~'$gpu'}} / on (gpu, uuid) trackside_gpu_memory_bytes) > 0", {0.97}),
    ("avg_over_time(trackside_gpu_utilization_ratio[1m])", {0.3, 0.005}),
    ('trackside_gpu_thermal_margin_celsius{threshold="slowdown"}', {5.0}),
    ('rate(trackside_gpu_clock_limited_seconds_total{reason="sw_power_cap"}[1m])', {0.9}),
    ("trackside_training_straggler_ratio", {1.1}),
    (
        f'sum(rate({PHASES}{{phase="data"}}[1m])) / sum(rate({PHASES}[1m]))',
        {0.3},
    ),
    (f"trackside_gpu_rank_info * on (gpu) group_left () ({MEMORY} / trackside_gpu_memory_bytes)", {0.97}),
]
LIKE = [
    ("avg by (run) (trackside_gpu_utilization_ratio)", {0.3, 0.005}),
    ("trackside_gpu_thermal_margin_celsius", {5.0}),
    ("sum by (gpu) (rate(trackside_gpu_clock_limited_seconds_total[1m]))", {0.5, 0.9}),
    ("increase(trackside_gpu_xid_errors_total[1h])", {0.0}),
    ("sum(trackside_gpu_memory_used_bytes) / sum(trackside_gpu_memory_bytes)", {0.97}),
]
OTHER = [
    MEMORY,
    "count(trackside_gpu_utilization_ratio < 0.3)",
    'rate(trackside_training_phase_seconds_total{phase="forward"}[1m])',
    'trackside_gpu_temperature_celsius{sensor="memory"}',
    "rate(trackside_gpu_xid_errors_total[1h])",
    "trackside_gpu_memory_bytes / trackside_gpu_memory_used_bytes",
]


def _alike(expr: str, how: Any) -> set[float]:
    return {bound for what, bound in bounds() if how(shape(parsed(expr)), what)}


@pytest.mark.parametrize(("expr", "expected"), SAME)
def test_the_query_of_an_alert_is_recognized(expr: str, expected: set[float]) -> None:
    assert _alike(expr, same) == expected


@pytest.mark.parametrize(("expr", "expected"), LIKE)
def test_the_query_of_an_alert_among_others_is_no_other_one(expr: str, expected: set[float]) -> None:
    assert _alike(expr, same) == set()
    assert _alike(expr, like) == expected


@pytest.mark.parametrize("expr", OTHER)
def test_a_query_of_no_alert_has_no_bound(expr: str) -> None:
    assert _alike(expr, like) == set()


def test_every_rule_s_bound_is_among_them() -> None:
    rules = [one for one in builtin.rules(DEFAULTS) if not one.absent]
    assert {bound for _, bound in bounds()} == {one.threshold for one in rules} | {bound for _, bound in DETECTED}


def _with(steps: list[float | None], expr: str = f"{MEMORY} / trackside_gpu_memory_bytes") -> Any:
    board = sample()
    made = panel(1, "GPU", "percentunit", expr)
    colours = [{"color": "green", "value": value} for value in steps]
    made["fieldConfig"]["defaults"]["thresholds"] = {"mode": "absolute", "steps": colours}
    board["panels"] = [made]
    return board


def test_another_threshold_or_none_is_reported() -> None:
    assert list(strange(_with([None, 0.97]))) == []
    assert list(strange(_with([None, 0.9]))) == ["GPU: thresholds [0.9], and its alerts have [0.97]"]
    assert list(strange(_with([None]))) == ["GPU: thresholds [], and its alerts have [0.97]"]


def test_a_mean_may_have_an_alert_s_threshold_or_none() -> None:
    mean = "avg(trackside_gpu_utilization_ratio)"
    assert list(strange(_with([None], mean))) == list(strange(_with([None, 0.3], mean))) == []
    assert list(strange(_with([None, 0.5], mean))) == ["GPU: thresholds [0.5], and its alerts have [0.005, 0.3]"]


def test_of_what_merely_happens_a_colour_from_one_on_is_enough() -> None:
    lost = "trackside_gpu_row_remap_failed"
    assert list(strange(_with([None, 1], lost))) == list(strange(_with([None], lost))) == []
    assert list(strange(_with([None, 2], lost))) == ["GPU: thresholds [2.0], and its alerts have [1.0]"]
