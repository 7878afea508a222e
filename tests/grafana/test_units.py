"""Each panel has a unit that fits its queries; the check finds wrong ones."""

from __future__ import annotations

import pytest
from grafana.boards import committed
from grafana.promql import parsed
from grafana.quantity import QuantityError, measured
from grafana.samples import panel, sample
from grafana.units import fitting, misfits

BOARDS = committed()


@pytest.mark.parametrize("uid", BOARDS)
def test_each_unit_fits_what_is_asked(uid: str) -> None:
    assert list(misfits(BOARDS[uid])) == []


RATE = "[$__rate_interval]"
FITS = [
    ("trackside_host_memory_available_bytes", "bytes", "Bps"),
    (f"rate(trackside_gpu_nvlink_receive_bytes_total{RATE})", "Bps", "bytes"),
    ("trackside_gpu_pcie_receive_bytes_per_second", "Bps", "bytes"),
    (f"8 * rate(trackside_gpu_nvlink_receive_bytes_total{RATE})", "bps", "Bps"),
    (f"sum by (gpu) (rate(trackside_gpu_energy_joules_total{RATE}))", "watt", "joule"),
    ("increase(trackside_gpu_energy_joules_total[$__range])", "joule", "watt"),
    ("sum(increase(trackside_gpu_energy_joules_total[$__range])) / 3.6e6", "kwatth", "joule"),
    ("trackside_gpu_power_watts", "watt", "kwatt"),
    ("trackside_gpu_utilization_ratio", "percentunit", "percent"),
    ("100 * trackside_gpu_utilization_ratio", "percent", "percentunit"),
    ("1 - trackside_gpu_utilization_ratio", "percentunit", "none"),
    ("sum(trackside_gpu_utilization_ratio)", "short", "percent"),
    ("trackside_training_straggler_ratio", "none", "percent"),
    ("trackside_gpu_temperature_celsius", "celsius", "none"),
    ("trackside_gpu_clock_hertz", "hertz", "cps"),
    (f"rate(trackside_training_phase_seconds_total{RATE})", "percentunit", "Bps"),
    (f"rate(trackside_training_phase_seconds_total{RATE})", "s", "ms"),
    ("increase(trackside_gpu_busy_seconds_total[$__range]) / 3600", "h", "s"),
    ("avg_over_time(trackside_gpu_up[$__range]) * $__range_s / 3600", "h", "none"),
    ("sum_over_time(trackside_gpus_visible[$__range:$__interval]) * $__interval_ms / 3600000", "h", "s"),
    ("sum_over_time(trackside_gpu_power_watts[$__range:$__interval]) * $__interval_ms / 3.6e9", "kwatth", "h"),
    (
        f"histogram_quantile(0.9, sum by (le) (rate(trackside_training_step_duration_seconds_bucket{RATE})))",
        "s",
        "short",
    ),
    (
        f"rate(trackside_training_data_wait_seconds_sum{RATE}) / rate(trackside_training_data_wait_seconds_count{RATE})",
        "s",
        "percentunit",
    ),
    (f"rate(trackside_training_tokens_total{RATE})", "cps", "s"),
    (f"600 * rate(trackside_gpu_nvlink_errors_total{RATE})", "short", "cps"),
    (
        f"rate(trackside_gpu_energy_joules_total{RATE}) / rate(trackside_training_tokens_total{RATE})",
        "joule",
        "watt",
    ),
    ("trackside_training_start_timestamp_seconds * 1000", "dateTimeAsIso", "s"),
    ("trackside_training_start_timestamp_seconds", "", "dateTimeAsIso"),
    ("time() - trackside_training_last_step_timestamp_seconds", "dtdurations", "dateTimeFromNow"),
    ("trackside_gpu_memory_used_bytes / trackside_gpu_memory_bytes", "percentunit", "bytes"),
    ("trackside_gpu_memory_bytes * on (gpu) group_left (name) trackside_gpu_info", "bytes", "none"),
    ("count by (state) (trackside_training_state == 1)", "none", "percentunit"),
    ("count(trackside_gpu_temperature_celsius > 80) or vector(0)", "none", "celsius"),
    ("changes(trackside_training_start_timestamp_seconds[$__range])", "none", "dateTimeAsIso"),
    ("trackside_training_loss", "none", "percentunit"),
    (f"sum(rate(trackside_host_cpu_seconds_total{RATE}))", "none", "bytes"),
]


@pytest.mark.parametrize(("expr", "right", "wrong"), FITS)
def test_a_unit_fits_or_not(expr: str, right: str, wrong: str) -> None:
    units = fitting(measured(parsed(expr)))
    assert wrong not in units
    assert not right or right in units


@pytest.mark.parametrize(
    ("expr", "complaint"),
    [
        ("trackside_gpu_memory_bytes + trackside_gpu_power_watts", r"\{'B': 1\} \+ \{'J': 1, 's': -1\}"),
        ("trackside_gpu_memory_bytes > trackside_gpu_power_watts", "'B'"),
        ("1000 * trackside_gpu_memory_bytes - trackside_gpu_memory_bytes", "'B'"),
        ("trackside_gpu_memry_bytes", "trackside_gpu_memry_bytes is no family"),
        ("exp(trackside_training_loss)", r"exp\(\) is not known here"),
    ],
)
def test_a_senseless_unit_is_reported(expr: str, complaint: str) -> None:
    with pytest.raises(QuantityError, match=complaint):
        measured(parsed(expr))


def test_a_panel_with_a_wrong_unit_is_named() -> None:
    board = sample()
    board["panels"][1]["fieldConfig"]["defaults"]["unit"] = "joule"
    [found] = misfits(board)
    assert found.startswith("trackside-sample: panel 'Energy', query A: the unit is joule, not watt: sum by")


def test_an_override_gives_a_query_its_own_unit() -> None:
    board = sample()
    two = panel(3, "Two", "bytes", "trackside_host_memory_bytes", "trackside_gpu_power_watts")
    board["panels"].append(two)
    assert len(list(misfits(board))) == 1
    override = {"properties": [{"id": "unit", "value": "watt"}]}
    for matcher in (
        {"id": "byFrameRefID", "options": "B"},
        {"id": "byName", "options": "Value #B"},
    ):
        two["fieldConfig"]["overrides"] = [{"matcher": matcher, **override}]
        assert list(misfits(board)) == []
    two["transformations"] = [{"id": "organize", "options": {"renameByName": {"Value #B": "Power"}}}]
    assert len(list(misfits(board))) == 1, "the column is called Power now"
    two["fieldConfig"]["overrides"][0]["matcher"]["options"] = "Power"
    assert list(misfits(board)) == []


def test_a_heatmap_has_the_unit_of_its_buckets() -> None:
    board = sample()
    heat = panel(3, "Heat", "s", f"sum by (le) (rate(trackside_training_step_duration_seconds_bucket{RATE}))")
    board["panels"] = [heat | {"type": "heatmap"}]
    assert list(misfits(board)) == []
    board["panels"] = [heat]
    assert len(list(misfits(board))) == 1, "lines of buckets are observations a second"
