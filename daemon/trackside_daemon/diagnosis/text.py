"""Print a diagnosis in at most 25 lines."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from trackside_daemon.diagnosis.costs import JOULES_PER_KWH
from trackside_daemon.model.text import duration, number, percent, shown
from trackside_daemon.model.time_ledger import ACCOUNTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

LINES = 25  # most lines
RESUMES = 2  # most verdicts on resumes, the newest
PROVEN = 2  # lines of evidence of a cause, of the first one
WORDS = {"step_time": "step time", "gpu_memory": "GPU memory", "host_memory": "host memory"}


def lines(diagnosis: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of `trackside why`: where the time went, then the causes, the costliest first, and the rest."""
    head = list(_head(diagnosis))
    tail = [*_suggestions(diagnosis), *_compared(diagnosis), *_trends(diagnosis), *_unknown(diagnosis)]
    yield from head
    causes = diagnosis["causes"]
    if not causes:
        yield "nothing cost more than 1 % of the time"
    room = LINES - len(head) - len(tail) - 1
    listed = 0
    for place, cause in enumerate(causes, 1):
        block = list(_cause(place, cause, diagnosis["costs"]))
        if len(block) > room:
            break
        yield from block
        room -= len(block)
        listed = place
    if len(causes) > listed:
        yield f"{len(causes) - listed} more: {', '.join(cause['cause'] for cause in causes[listed:])} (--json)"
    yield from tail


def _head(diagnosis: Mapping[str, Any]) -> Iterator[str]:
    wall = diagnosis["wall_seconds"]
    ranks = diagnosis["ranks"]
    yield f"{shown(diagnosis['name'])}: {duration(wall)}" + (f" on {ranks} ranks" if ranks > 1 else "")
    if hang := diagnosis.get("hang"):
        quiet = hang.get("quiet_seconds")  # no alert has the verdict: the run is quiet, but may not hang
        yield f"{'hangs' if quiet is None else f'no step for {duration(quiet)}'}: {shown(hang['text'])}"
    for resume in diagnosis.get("resumes", ())[-RESUMES:]:
        yield f"resumed: {shown(resume.get('text', ''))}"
    shares = [(ACCOUNTS[name], seconds / wall) for name, seconds in diagnosis["ledger"].items() if wall]
    yield "time: " + ", ".join(f"{name} {percent(share)}" for name, share in shares if share >= 0.001)
    yield from _costs(diagnosis["energy"], diagnosis["costs"])


def _cause(place: int, cause: Mapping[str, Any], costs: Mapping[str, Any]) -> Iterator[str]:
    cost = "" if cause["cost"] is None else f", {_money(cause['cost'], costs)}"
    yield f"{place}. {cause['cause']}: {shown(cause['summary'])}{cost}"
    if cause["lost_seconds"] is not None:
        yield f"   expected gain: {duration(cause['low'])} to {duration(cause['high'])}"
    proven = [shown(one["text"]) for one in cause["evidence"] if cause["summary"] not in one["text"]]
    yield from (f"   {text}" for text in proven[: PROVEN if place == 1 else 1])
    yield f"   try: {cause['advice']}"
    yield f"   check: {cause['check']}"


def _costs(joules: Mapping[str, Any], costs: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line with the energy, if a counter measured it, and one with the costs, if there are prices."""
    per = costs["per"]
    if costs["energy_kwh"] is not None:
        idle = f" ({_kwh(joules['gpu_idle_joules'])} of it idle)" if joules["gpu_idle_joules"] else ""
        by_part = f"GPUs {_kwh(joules['gpu_joules'])}{idle}, CPUs {_kwh(joules['cpu_joules'])}"
        each = f", {per['1000_steps']['energy_kwh']:.3g} kWh per 1,000 steps" if "1000_steps" in per else ""
        yield (
            f"energy: {by_part}"
            + (f", {costs['carbon_kg']:.3g} kg CO2" if costs["carbon_kg"] is not None else "")
            + each
        )
    spent = {"GPUs": costs["gpu_cost"], "energy": costs["energy_cost"]}
    known = [f"{name} {_money(value, costs)}" for name, value in spent.items() if value is not None]
    if known:
        source = f"prices: {shown(costs['source'])}" if costs["source"] else "prices without a stated source"
        words = {"1000_steps": "1,000 steps", "million_tokens": "million tokens", "wasted_hour": "wasted hour"}
        each = "".join(
            f", {_money(per[unit]['cost'], costs)} per {word}" for unit, word in words.items() if unit in per
        )
        yield f"cost: {', '.join(known)} for {costs['gpu_hours']:.3g} GPU hours{each} ({source})"


def _suggestions(diagnosis: Mapping[str, Any]) -> Iterator[str]:
    found = [f"{shown(one['summary'])}: {shown(one['advice'])}" for one in diagnosis["suggestions"]]
    if found:
        more = f" ({len(found) - 1} more: --json)" if len(found) > 1 else ""
        yield f"next time: {found[0]}{more}"


def _compared(diagnosis: Mapping[str, Any]) -> Iterator[str]:
    comparison = diagnosis["comparison"]
    known = [one for one in comparison["effects"] if one["ratio"] is not None and one["quantity"] != "step_time_p25"]
    if known:
        which = {"pinned": "pinned", "name": "the run before of this name"}.get(
            comparison["chosen"], comparison["chosen"]
        )
        names = ", ".join(map(shown, comparison["baseline"][:3]))
        yield f"against {names} ({which}): " + ", ".join(map(_effect, islice(known, 5)))


def _effect(effect: Mapping[str, Any]) -> str:
    name = WORDS.get(effect["quantity"], shown(effect["quantity"]).replace("_at_tokens", " at equal tokens"))
    between = (
        "" if effect["low"] is None else f" ({percent(effect['low'] - 1, '+')} to {percent(effect['high'] - 1, '+')})"
    )
    return f"{name} {percent(effect['ratio'] - 1, '+')}{between}"


def _trends(diagnosis: Mapping[str, Any]) -> Iterator[str]:
    found: Sequence[Mapping[str, Any]] = diagnosis["trends"]
    if found:
        yield "trend per 1,000 steps: " + "; ".join(
            f"{shown(one['key'])} {number(one['slope'])} ({number(one['low'])} to {number(one['high'])}), "
            f"R² {one['r_squared']:.2f}, p {'< 0.0001' if one['p'] < 0.0001 else number(one['p'])}"
            for one in found[:3]
        )


def _unknown(diagnosis: Mapping[str, Any]) -> Iterator[str]:
    found = [f"{one['what']} ({shown(one['why'])})" for one in diagnosis["unknown"]]
    if found:
        yield f"unknown: {'; '.join(found[:3])}" + (f"; {len(found) - 3} more: --json" if len(found) > 3 else "")


def _kwh(joules: float | None) -> str:
    return "unknown" if joules is None else f"{joules / JOULES_PER_KWH:.3g} kWh"


def _money(value: float, costs: Mapping[str, Any]) -> str:
    amount = f"{value:,.2f}" if value >= 0.1 or not value else f"{value:.2g}"
    return f"{amount} {shown(costs['currency'])}".rstrip()
