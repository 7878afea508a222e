"""Trouble that costs no time of its own: a failure, alerts, and a best evaluation that is long ago."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.detectors.key_roles import role
from trackside_daemon.diagnosis.causes import Cause, Evidence, alert_evidence
from trackside_daemon.history.read import alert_reader, reader
from trackside_daemon.history.read.charts import chart
from trackside_daemon.model.records import LIFE_CYCLE
from trackside_daemon.model.text import duration, number, percent, shown
from trackside_daemon.model.troubles import TROUBLES

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Iterator, Sequence

    from trackside_daemon.diagnosis.causes import Pools
    from trackside_daemon.diagnosis.facts import Facts
    from trackside_daemon.history.read.series import LogTails

LONG_AGO = 0.3  # share of the run since its best evaluation that is worth a line
MOST_KEYS = 64  # evaluation losses that are read
MOST = 5  # alerts without a cause of their own
# Alerts of which nothing has to be done, or that concern the monitoring alone; and those of slow steps.
_SLOW = (
    "SlowStep",
    "ThroughputRegression",
    "PerformanceRegression",
    "GpuUnderutilized",
    "CpuSaturated",
    "IoBottleneck",
)
_HARMLESS = {*LIFE_CYCLE, "UserAlert", "MonitorBlind", "LossHardBatch"}


def trouble(
    connection: sqlite3.Connection, facts: Facts, pools: Pools, causes: Sequence[Cause], tails: LogTails
) -> Iterator[Cause]:
    """Yield the slowness that the *causes* do not explain, the failure of a run, then what has no seconds."""
    found = [*causes, *_slowdown(connection, facts, pools), *_failed(facts, pools)]
    yield from found[len(causes) :]
    shown_ids = {evidence.path.rpartition("/")[2] for cause in found for evidence in cause.evidence}
    listed = {alert["alert"] for alert in facts.alerts if str(alert["id"]) in shown_ids}
    yield from _alerts(facts, {*_HARMLESS, *listed, *(_SLOW if pools.drawn else ())})
    yield from _best_evaluation(connection, facts, tails)


def _slowdown(connection: sqlite3.Connection, facts: Facts, pools: Pools) -> Iterator[Cause]:
    """Yield what steps lost that became slower and stayed slower, if no other cause has these seconds."""
    for listed in facts.alerts:
        alert = alert_reader.alert(connection, listed["id"]) if listed["alert"] == "ThroughputRegression" else None
        value, usual, since = ((alert or {}).get("evidence", {}).get(name) for name in ("value", "usual", "since"))
        if alert is None or not value or not usual or since is None:
            continue
        ended = facts.ended if alert["ended"] is None else alert["ended"]
        lost = pools.draw(max(0.0, ended - since) * (1 - usual / value) - pools.drawn, "compute")
        if lost:
            cause = Cause(
                "slowdown",
                "steps became slower, and nothing that was measured explains it",
                tuple(alert_evidence(facts, "ThroughputRegression")),
                f"see what differs: trackside capture {shown(facts.run['name'])}; other processes on these machines",
                "alert ThroughputRegression",
            )
            yield pools.priced(cause, lost, 0.0)


def _failed(facts: Facts, pools: Pools) -> Iterator[Cause]:
    """Yield the failure that ended the run: what it trained since its last checkpoint is lost."""
    last = [span for span in facts.spans if span.attempt == facts.spans[-1].attempt] if facts.spans else []
    if facts.run["state"] not in {"failed", "lost"} or not last:
        return
    saved = max((span.account.saved_at for span in last if span.account.saved_at is not None), default=None)
    since = facts.ended - (last[0].started if saved is None else saved)
    lost = pools.draw(since, "compute", least=0.0)
    kept = "no checkpoint is known" if saved is None else f"its last checkpoint was {duration(since)} before"
    reason = f" ({shown(facts.run['cause'])})" if facts.run["cause"] else ""
    cause = Cause(
        "failed",
        f"the run {'failed' if facts.run['state'] == 'failed' else 'was lost'}{reason}, and {kept}",
        (
            Evidence(f"state {facts.run['state']}", facts.api),
            *alert_evidence(facts, "TrainingProcessDied", "OomKilled"),
        ),
        f"resume from `trackside checkpoints latest {shown(facts.run['name'])} --good`; see the traceback in the job's log",
        "attempts in trackside show",
    )
    yield pools.priced(cause, lost, 0.0)


def _alerts(facts: Facts, elsewhere: Collection[str]) -> Iterator[Cause]:
    """Yield the other alerts of the run, one for each name, the most severe first."""
    found = {alert["alert"]: alert for alert in facts.alerts if alert["alert"] not in elsewhere}
    worst = sorted(found.values(), key=lambda alert: ("critical", "warning", "info").index(alert["severity"]))
    for alert in worst[:MOST]:
        known = TROUBLES.get(alert["alert"])
        yield Cause(
            _snake_case(alert["alert"]),
            shown(alert["summary"]),
            tuple(alert_evidence(facts, alert["alert"])),
            known.advice(run=shown(facts.run["name"])) if known is not None else shown(alert["description"]),
            f"alert {alert['alert']}",
        )


def _snake_case(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")


def _best_evaluation(connection: sqlite3.Connection, facts: Facts, tails: LogTails) -> Iterator[Cause]:
    """Yield the evaluation loss whose best value is longest ago, as information: more training may not help."""
    keys = [
        series
        for series in reader.series(connection, facts.run["id"], tails=tails)
        if role(series.series.key) == "evaluation"
    ]
    best: dict[str, tuple[float, float]] = {}
    for series in keys[:MOST_KEYS]:
        for _, moment, low, _, _ in chart(connection, series.series, series.tail, points=300).points:
            value, _ = best.get(series.series.key, (low, moment))
            if low <= value:
                best[series.series.key] = low, moment
    if not best:
        return
    key = min(best, key=lambda key: best[key][1])
    since = facts.ended - best[key][1]
    if since >= LONG_AGO * facts.wall:
        yield Cause(
            "since_best_evaluation",
            f"the best {shown(key)} of {number(best[key][0])} was {duration(since)} before the end, {percent(since / facts.wall)} of the run",
            (
                Evidence(
                    f"{shown(key)} did not fall below {number(best[key][0])} after that",
                    f"{facts.api}/series?key={key}",
                ),
            ),
            "if the evaluation does not improve again, stop earlier, and use the checkpoint of the best one",
            f"{shown(key)} in trackside show",
        )
