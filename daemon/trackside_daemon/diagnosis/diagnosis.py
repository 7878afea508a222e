"""Put the diagnosis of a run together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trackside.totals.phases import SAVES
from trackside_daemon.causes import engine
from trackside_daemon.causes.cause import as_json
from trackside_daemon.causes.facts import read_facts
from trackside_daemon.causes.suggestions import suggestions
from trackside_daemon.diagnosis.accounts import divide
from trackside_daemon.diagnosis.comparison import read_comparison
from trackside_daemon.diagnosis.costs import costs, energy, total_joules
from trackside_daemon.diagnosis.measures import read_measures, with_usage
from trackside_daemon.diagnosis.resources import resources
from trackside_daemon.diagnosis.trend import trends
from trackside_daemon.history.read import alert_reader
from trackside_daemon.history.read.series import LogTails
from trackside_daemon.model.families import cgroup, host
from trackside_daemon.model.families import gpu as gpu_families
from trackside_daemon.model.records import STALLS
from trackside_daemon.model.time_ledger import ACCOUNTS, SYNC_PHASES

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Iterator, Mapping

    from trackside_daemon.causes.facts import Facts
    from trackside_daemon.diagnosis.settings import CostSection


def diagnose(
    connection: sqlite3.Connection,
    uid: str,
    prices: CostSection,
    *,
    baseline: Collection[str] = (),
    keys: Collection[str] = (),
) -> dict[str, Any]:
    """Return the diagnosis of a run, by its id, as JSON.

    Args:
        connection: In a transaction.
        uid: The run's id.
        prices: The configured prices.
        baseline: Runs or tags to compare with; empty for the run's own baseline.
        keys: Keys whose trend and comparison to add.

    Returns:
        ``run``, ``name``, ``wall_seconds``, ``ranks``; ``hang``: the verdict on it if it hangs now, else None; ``resumes``: the
        verdicts on its resumes; ``ledger``: wall seconds by account, means over the ranks, which sum to the wall time;
        ``accounts``: the words of each; ``ledger_by_rank``: those of each rank;
        ``causes``: the costliest first, those without measured seconds last; ``unknown``: what is not measured, and why;
        ``energy`` and ``costs``; ``resources``; ``suggestions``; ``trends``; ``comparison`` with the baseline.

    Raises:
        UnknownRunError: There is no run with this id, or a baseline is unknown.
        ValueError: A block is damaged.
    """
    tails = LogTails(connection)
    facts, accounts = divide(read_facts(connection, uid, tails))
    joules = energy(facts)
    measures = read_measures(connection, uid, tails)
    cost = costs(facts, joules, accounts.whole, measures, prices)
    whole = total_joules(joules)
    measures = with_usage(measures, facts, whole, cost["cost"])
    noise = measures.noise * facts.wall
    found = engine.of_run(facts, accounts, connection, tails)
    causes = [as_json(one, facts, noise, cost["gpu_hour"], whole) for one in found]
    rows = resources(facts)
    return {
        "run": uid,
        "name": facts.run["name"],
        "wall_seconds": facts.wall,
        "ranks": facts.ranks,
        "hang": _hang(connection, facts),
        "resumes": [dict(resume) for resume in facts.resumes],
        "ledger": accounts.whole,
        "accounts": {account: ACCOUNTS[account] for account in accounts.whole},
        "ledger_by_rank": {str(rank): entries for rank, entries in accounts.by_rank.items()},
        "causes": sorted(causes, key=lambda cause: -(cause["gpu_hours"] or 0.0)),
        "unknown": [{"what": what, "why": why} for what, why in unknown(facts, joules)],
        "energy": joules,
        "costs": cost,
        "resources": rows,
        "suggestions": [as_json(one, facts, noise, None, None) for one in suggestions(facts, rows, accounts.whole)],
        "trends": trends(connection, uid, keys, tails),
        "comparison": read_comparison(
            connection, [uid], list(baseline), keys, prices, known={uid: measures}, tails=tails
        ),
    }


def _hang(connection: sqlite3.Connection, facts: Facts) -> dict[str, Any] | None:
    """Return the newest verdict among the alerts about stalls that fire."""
    if facts.run["ended"] is not None:
        return None
    firing = alert_reader.alerts(connection, alert_reader.AlertFilter(facts.run["id"], firing=facts.ended))
    verdicts = [alert["evidence"].get("hang") for alert in firing if alert["alert"] in STALLS]
    return next(filter(None, reversed(verdicts)), None)


def unknown(facts: Facts, joules: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what is unknown, each with the reason and how to measure it."""
    phases = {phase for span in facts.spans for phase in span.phases}
    gpus = bool(facts.of(gpu_families.UTILIZATION))
    if "data" not in phases:
        yield "data wait", "no phase `data`: wrap the loader in run.data(loader), or use run.watch or an integration"
    if facts.ranks > 1 and phases.isdisjoint({"forward", *SYNC_PHASES}):
        yield "wait for the slowest rank", "the ranks report no phases: use run.watch(model)"
    if phases.isdisjoint(SAVES):
        yield "checkpoints", 'no phase `checkpoint`: save within run.phase("checkpoint")'
    if gpus and not any(span.busy is not None for span in facts.spans):
        yield "what GPUs hide", "no rank was seen on a GPU, so that waits count in full"
    if not gpus:
        yield "GPUs", "no GPU was read in the time of the run"
    elif facts.profile is None:
        yield "waits within steps", f"no profile: trackside capture {facts.run['name']}"
    if not facts.of(host.MEMORY_STALLED) and not facts.of(cgroup.STALLED):
        yield "memory and storage pressure", "the kernel has no /proc/pressure"
    missing = [gpu for gpu, value in joules["gpus"].items() if value is None]
    if missing:
        yield "energy", f"no counter on GPU {', '.join(missing)}"
    elif joules["gpu_joules"] is None and joules["cpu_joules"] is None:
        yield "energy", "no counter of a GPU or a CPU"
