"""The energy of a run, by the counters of its machine, and its costs, by the configured prices."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from trackside_daemon.diagnosis.resource_causes import IDLE, UTILIZATION

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trackside_daemon.diagnosis.facts import Facts
    from trackside_daemon.diagnosis.settings import CostSection
    from trackside_daemon.history.read.resources import Resource

GPU_ENERGY = "trackside_gpu_energy_joules_total"
CPU_ENERGY = "trackside_host_cpu_energy_joules_total"
FAMILIES = (GPU_ENERGY, CPU_ENERGY)
JOULES_PER_KWH = 3.6e6


def energy(facts: Facts) -> dict[str, Any]:
    """Return the joules of the machine's GPUs and CPU packages in the time of the run; None for what has no counter.

    ``gpus`` has the difference of each counter by the GPU's index. ``gpu_idle_joules`` is the part of it in samples with
    a utilization below 1 %. The counters are nvmlDeviceGetTotalEnergyConsumption and powercap intel-rapl energy_uj.
    """
    gpus = {series.labels.get("gpu", "?"): series.increase for series in facts.of(GPU_ENERGY)}
    packages = [series.increase for series in facts.of(CPU_ENERGY)]
    uses = {use.labels.get("gpu", "?"): use for use in facts.of(UTILIZATION)}
    idle = sum(_idle_joules(series, uses.get(series.labels.get("gpu", "?"))) for series in facts.of(GPU_ENERGY))
    return {
        "gpus": gpus,
        "gpu_joules": sum(gpus.values()) if gpus else None,
        "gpu_idle_joules": idle if gpus and uses else None,
        "cpu_joules": sum(packages) if packages else None,
    }


def _idle_joules(counter: Resource, use: Resource | None) -> float:
    """Return the increases of a counter until the samples in which the GPU did nothing."""
    idle = {moment for moment, value in use.points if value < IDLE} if use else set()
    return sum(max(0.0, after - before) for (_, before), (moment, after) in pairwise(counter.points) if moment in idle)


def costs(facts: Facts, joules: Mapping[str, Any], prices: CostSection) -> dict[str, Any]:
    """Return the costs of a run by the configured prices; None for what has no price or was not measured.

    Args:
        facts: The run; each of its ranks has a GPU for the run's whole time.
        joules: Its `energy`.
        prices: The configured prices.

    Returns:
        ``currency``, ``source``, ``gpu_hours``, ``gpu_hour`` (the price), ``gpu_cost``, ``energy_kwh`` (with PUE),
        ``energy_cost``, ``carbon_kg``.
    """
    hours = facts.wall * facts.ranks / 3600
    known = (price for name in _gpu_names(facts.run) if (price := prices.price(name)) is not None)
    price = next(known, None)
    measured = [value for value in (joules["gpu_joules"], joules["cpu_joules"]) if value is not None]
    kwh = sum(measured) * prices.pue / JOULES_PER_KWH if measured else None
    grams = prices.carbon_grams_per_kwh
    return {
        "currency": prices.currency,
        "source": prices.source,
        "gpu_hours": hours,
        "gpu_hour": price,
        "gpu_cost": None if price is None else hours * price,
        "energy_kwh": kwh,
        "energy_cost": None if kwh is None or prices.kwh is None else kwh * prices.kwh,
        "carbon_kg": None if kwh is None or grams is None else kwh * grams / 1000,
    }


def _gpu_names(run: Mapping[str, Any]) -> list[str]:
    """Return the names of the GPUs of the run's machine, by its last attempt that knows them."""
    hardware = [(attempt.get("hardware") or {}).get("gpus") for attempt in reversed(run["attempt_list"])]
    return next((gpus for gpus in hardware if gpus), [])
