"""The energy of a run, by the counters of its machine, and its costs, by the configured prices."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from trackside_daemon.causes.gpus import IDLE
from trackside_daemon.model.families import gpu as gpu_families
from trackside_daemon.model.families import host

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trackside_daemon.causes.facts import Facts
    from trackside_daemon.diagnosis.measures import Measures
    from trackside_daemon.diagnosis.settings import CostSection
    from trackside_daemon.history.read.resources import Resource

JOULES_PER_KWH = 3.6e6


def energy(facts: Facts) -> dict[str, Any]:
    """Return the joules of the run's GPUs and of its machine's CPU packages in its time; None for what has no counter.

    ``gpus`` has the difference of each counter by the GPU's index, None for a GPU without one, and ``gpu_joules`` is None
    if one is missing. ``gpu_idle_joules`` is the part in samples with a utilization below 1 %. The counters are
    nvmlDeviceGetTotalEnergyConsumption and powercap intel-rapl energy_uj.
    """
    counters = {one.labels.get("gpu", "?"): one for one in facts.gpus(gpu_families.ENERGY)}
    uses = {one.labels.get("gpu", "?"): one for one in facts.gpus(gpu_families.UTILIZATION)}
    gpus = {gpu: counters[gpu].increase if gpu in counters else None for gpu in sorted({*counters, *uses})}
    known = [joules for joules in gpus.values() if joules is not None]
    whole = bool(known) and len(known) == len(gpus)
    packages = [series.increase for series in facts.of(host.CPU_ENERGY)]
    return {
        "gpus": gpus,
        "gpu_joules": sum(known) if whole else None,
        "gpu_idle_joules": sum(_idle_joules(counters[gpu], use) for gpu, use in uses.items())
        if whole and uses
        else None,
        "cpu_joules": sum(packages) if packages else None,
    }


def _idle_joules(counter: Resource, use: Resource) -> float:
    """Return the increases of a counter until the samples in which the GPU did nothing."""
    idle = {moment for moment, value in use.points if value < IDLE}
    return sum(max(0.0, after - before) for (_, before), (moment, after) in pairwise(counter.points) if moment in idle)


def total_joules(joules: Mapping[str, Any]) -> float | None:
    """Return the joules of all that has a counter; None if nothing has, or if a GPU has none."""
    if any(value is None for value in joules["gpus"].values()):
        return None
    measured = [value for value in (joules["gpu_joules"], joules["cpu_joules"]) if value is not None]
    return sum(measured) if measured else None


def costs(
    facts: Facts, joules: Mapping[str, Any], ledger: Mapping[str, float], measures: Measures, prices: CostSection
) -> dict[str, Any]:
    """Return the costs of a run by the configured prices; None for what has no price or was not measured.

    Args:
        facts: The run; each of its ranks has a GPU for the run's whole time, or more if more were seen with a rank.
        joules: Its `energy`.
        ledger: Seconds by account.
        measures: Its steps and tokens.
        prices: The configured prices.

    Returns:
        ``currency``, ``source``, ``gpu_hours``, ``gpu_hour`` (the price), ``gpu_cost``, ``energy_kwh`` (with PUE),
        ``energy_cost``, ``cost`` (the sum of those that are known), ``carbon_kg``, ``wasted_hours`` (wall hours outside of compute), and ``per``: the total ``cost`` and
        ``energy_kwh`` by ``1000_steps``, ``million_tokens`` and ``wasted_hour``.
    """
    gpus = max(facts.ranks, len(facts.gpu_ranks()))
    hours = facts.wall * gpus / 3600
    names = _gpu_names(facts)
    price = prices.price([*names, *places(facts.run)]) if names else None
    whole = total_joules(joules)
    kwh = None if whole is None else whole * prices.pue / JOULES_PER_KWH
    grams = prices.carbon_grams_per_kwh
    gpu_cost = None if price is None else hours * price
    energy_cost = None if kwh is None or prices.kwh is None else kwh * prices.kwh
    known = [cost for cost in (gpu_cost, energy_cost) if cost is not None]
    tokens = measures.steps * measures.tokens / 1e6 if measures.tokens else 0.0
    units = {"1000_steps": measures.steps / 1000, "million_tokens": tokens, "wasted_hour": facts.wall / 3600}
    return {
        "currency": prices.currency,
        "source": prices.source,
        "gpu_hours": hours,
        "gpu_hour": price,
        "gpu_cost": gpu_cost,
        "energy_kwh": kwh,
        "energy_cost": energy_cost,
        "cost": sum(known) if known else None,
        "carbon_kg": None if kwh is None or grams is None else kwh * grams / 1000,
        "wasted_hours": sum(seconds for account, seconds in ledger.items() if account != "compute") / 3600,
        "per": {
            unit: {"cost": sum(known) / amount if known else None, "energy_kwh": None if kwh is None else kwh / amount}
            for unit, amount in units.items()
            if amount
        },
    }


def _gpu_names(facts: Facts) -> list[str]:
    """Return the names of the run's GPUs, or of those of its machine by its last attempt that has them."""
    infos = [one.labels["name"] for one in facts.gpus(gpu_families.INFO) if one.labels.get("name")]
    hardware = [(attempt.get("hardware") or {}).get("gpus") for attempt in reversed(facts.run["attempt_list"])]
    return infos or next((gpus for gpus in hardware if gpus), [])


def places(run: Mapping[str, Any]) -> list[str]:
    """Return the run's host and tags, which may have a price too."""
    hosts = [str(attempt["host"]) for attempt in run["attempt_list"] if attempt.get("host")]
    return [*hosts[-1:], *map(str, run["tags"])]
