"""Print a diagnosis in at most 25 lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trackside_daemon.diagnosis.costs import JOULES_PER_KWH
from trackside_daemon.diagnosis.ledger import ACCOUNTS
from trackside_daemon.model.text import duration, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

CAUSES = 5  # most causes that are printed, at up to four lines each


def lines(diagnosis: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of `trackside why`: where the time went, then the causes, the costliest first."""
    wall = diagnosis["wall_seconds"]
    ranks = diagnosis["ranks"]
    yield f"{shown(diagnosis['name'])}: {duration(wall)}" + (f" on {ranks} ranks" if ranks > 1 else "")
    if hang := diagnosis.get("hang"):
        quiet = hang.get("quiet_seconds")  # no alert has the verdict: the run is quiet, but may not hang
        yield f"{'hangs' if quiet is None else f'no step for {duration(quiet)}'}: {shown(hang['text'])}"
    shares = [(ACCOUNTS[name], seconds / wall) for name, seconds in diagnosis["ledger"].items() if wall]
    yield "time: " + ", ".join(f"{name} {share:.1%}" for name, share in shares if share >= 0.001)
    yield from _costs(diagnosis["energy"], diagnosis["costs"])
    causes = diagnosis["causes"]
    if not causes:
        yield "nothing cost more than 1 % of the time"
    for number, cause in enumerate(causes[:CAUSES], 1):
        cost = "" if cause["cost"] is None else f", {_money(cause['cost'], diagnosis['costs'])}"
        yield f"{number}. {cause['cause']}: {shown(cause['summary'])}{cost}"
        yield from (f"   {shown(line)}" for line in cause["evidence"][1:2])
        yield f"   try: {cause['advice']}"
        yield f"   check: {cause['check']}"
    if len(causes) > CAUSES:
        yield f"{len(causes) - CAUSES} more causes: --json"


def _costs(joules: Mapping[str, Any], costs: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line with the energy, if a counter measured it, and one with the costs, if there are prices."""
    if costs["energy_kwh"] is not None:
        parts = {"GPUs": joules["gpu_joules"], "CPUs": joules["cpu_joules"]}
        by_part = ", ".join(f"{name} {'unknown' if value is None else _kwh(value)}" for name, value in parts.items())
        yield f"energy: {by_part}" + (f", {costs['carbon_kg']:.3g} kg CO2" if costs["carbon_kg"] is not None else "")
    spent = {"GPUs": costs["gpu_cost"], "energy": costs["energy_cost"]}
    known = [f"{name} {_money(value, costs)}" for name, value in spent.items() if value is not None]
    if known:
        source = f" ({shown(costs['source'])})" if costs["source"] else ""
        yield f"cost: {', '.join(known)} for {costs['gpu_hours']:.3g} GPU hours{source}"


def _kwh(joules: float) -> str:
    return f"{joules / JOULES_PER_KWH:.3g} kWh"


def _money(value: float, costs: Mapping[str, Any]) -> str:
    return f"{value:,.2f} {shown(costs['currency'])}".rstrip()
