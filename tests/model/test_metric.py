"""Names of families, which state their kind and their unit."""

from __future__ import annotations

from typing import Any

import pytest

from trackside_daemon.model.metric import Metric


@pytest.mark.parametrize(
    ("name", "kind", "unit", "family"),
    [
        ("trackside_loss", "gauge", "", "trackside_loss"),
        ("trackside_power_watts", "gauge", "watts", "trackside_power_watts"),
        ("trackside_steps_total", "counter", "", "trackside_steps"),
        ("trackside_energy_joules_total", "counter", "joules", "trackside_energy_joules"),
        ("trackside_step_duration_seconds", "histogram", "seconds", "trackside_step_duration_seconds"),
        ("trackside_build_info", "info", "", "trackside_build"),
    ],
)
def test_a_name_ends_in_its_unit_and_its_kind(name: str, kind: Any, unit: str, family: str) -> None:
    assert Metric(name, kind, "Help.", unit=unit).family == family


@pytest.mark.parametrize(
    ("name", "kind", "unit"),
    [
        ("trackside_steps", "counter", ""),
        ("trackside_build", "info", ""),
        ("trackside_power", "gauge", "watts"),
        ("trackside_energy_total", "counter", "joules"),
        ("trackside_energy_total_joules", "counter", "joules"),
        ("trackside_powerwatts", "gauge", "watts"),
    ],
)
def test_a_name_that_does_not_is_refused(name: str, kind: Any, unit: str) -> None:
    with pytest.raises(ValueError, match=f"{name}: a {kind} in .* ends in _"):
        Metric(name, kind, "Help.", unit=unit)


def test_two_families_of_one_name_are_not_the_same() -> None:
    assert Metric("trackside_loss", "gauge", "Help.") != Metric("trackside_loss", "gauge", "Help.")
