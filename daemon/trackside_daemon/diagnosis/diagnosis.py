"""Put the diagnosis of a run together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trackside_daemon.diagnosis.causes import account_causes, as_json, resume_causes
from trackside_daemon.diagnosis.costs import FAMILIES as COUNTERS
from trackside_daemon.diagnosis.costs import costs, energy
from trackside_daemon.diagnosis.facts import read_facts
from trackside_daemon.diagnosis.ledger import Slowed, ledger
from trackside_daemon.diagnosis.resource_causes import FAMILIES, resource_causes, throttled
from trackside_daemon.history.read import reader
from trackside_daemon.model.records import STALLS

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator

    from trackside_daemon.diagnosis.facts import Facts
    from trackside_daemon.diagnosis.settings import CostSection

_BAD_LOSS = ("NonFinite", "LossDiverging")


def diagnose(connection: sqlite3.Connection, uid: str, prices: CostSection) -> dict[str, Any]:
    """Return the diagnosis of a run, by its id, as JSON.

    Returns:
        ``run``, ``name``, ``wall_seconds``, ``ranks``; ``hang``: the verdict on it if it hangs now, else None; ``ledger``: wall seconds by account, which sum to the wall time;
        ``resumes``: the verdicts on its resumes; ``causes``: the costliest first, those without measured seconds last; ``energy`` and ``costs``.

    Raises:
        UnknownRunError: There is no run with this id.
        ValueError: A block is damaged.
    """
    facts = read_facts(connection, uid, (*FAMILIES, *COUNTERS))
    accounts = ledger(facts.spans, [*_wasted(facts), *throttled(facts)])
    causes = [*account_causes(facts, accounts), *resume_causes(facts), *resource_causes(facts)]
    causes.sort(key=lambda cause: -(cause.lost_seconds or 0.0))
    joules = energy(facts)
    cost = costs(facts, joules, prices)
    return {
        "run": uid,
        "name": facts.run["name"],
        "wall_seconds": facts.wall,
        "ranks": facts.ranks,
        "hang": _hang(connection, facts),
        "resumes": [dict(resume) for resume in facts.resumes],
        "ledger": accounts,
        "causes": [as_json(cause, facts.ranks, cost["gpu_hour"]) for cause in causes],
        "energy": joules,
        "costs": cost,
    }


def _hang(connection: sqlite3.Connection, facts: Facts) -> dict[str, Any] | None:
    """Return the newest verdict among the alerts about stalls that fire."""
    if facts.run["ended"] is not None:
        return None
    firing = reader.alerts(connection, reader.AlertFilter(facts.run["id"], firing=facts.ended))
    verdicts = [alert["evidence"].get("hang") for alert in firing if alert["alert"] in STALLS]
    return next(filter(None, reversed(verdicts)), None)


def _wasted(facts: Facts) -> Iterator[Slowed]:
    """Yield the times in which a critical alert about the loss fired, until the end of the attempt if it never ended."""
    for alert in facts.alerts:
        if alert["alert"] in _BAD_LOSS and alert["severity"] == "critical":
            yield Slowed("wasted", alert["started"], facts.ended if alert["ended"] is None else alert["ended"], 1.0)
