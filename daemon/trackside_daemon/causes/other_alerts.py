"""Alerts of a run that no other cause has, and a best evaluation that is long ago."""

from collections.abc import Iterator

from trackside_daemon.causes.cause import Cause, Evidence, Kind, LostTime, alert_evidence
from trackside_daemon.detectors.key_roles import role
from trackside_daemon.history.read import alert_reader, reader
from trackside_daemon.history.read.charts import chart
from trackside_daemon.model.records import LIFE_CYCLE
from trackside_daemon.model.text import duration, number, percent, shown
from trackside_daemon.model.troubles import TROUBLES

WORSE = 3  # evaluations after the best one from which on it is one of the past
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
# Accounts in which slower steps show, besides evaluations and checkpoints.
WITHIN_STEPS = ("compute", "cpu", "long_steps", "throttled", "data", "communication", "exchange")
_HARMLESS = {*LIFE_CYCLE, "UserAlert", "MonitorBlind", "LossHardBatch"}


def _slowdown(kind: Kind, time: LostTime) -> Iterator[Cause]:
    """Yield what steps lost that became slower and stayed slower, without what other causes explain of it."""
    facts = time.facts
    explained = sum(time.whole.get(account, 0.0) - time.left.get(account, 0.0) for account in WITHIN_STEPS)
    for listed in facts.alerts:
        alert = alert_reader.alert(time.connection, listed["id"]) if listed["alert"] in kind.alerts else None
        value, usual, since = ((alert or {}).get("evidence", {}).get(name) for name in ("value", "usual", "since"))
        if alert is None or not value or not usual or since is None:
            continue
        ended = facts.ended if alert["ended"] is None else alert["ended"]
        advice = kind.advice.format(shown(facts.run["name"]))
        if lost := kind.draw(time, max(0.0, ended - since) * (1 - usual / value) - explained):
            yield kind.found(time, lost, advice=advice)
        elif explained:
            yield kind.found(time, None, advice=advice, summary="steps became slower, which the causes above explain")


def _alerts(_: Kind, time: LostTime) -> Iterator[Cause]:
    """Yield the alerts of the run that no cause so far shows, one for each name, the most severe first."""
    facts = time.facts
    shown_ids = {evidence.path.rpartition("/")[2] for cause in time.found for evidence in cause.evidence}
    listed = {alert["alert"] for alert in facts.alerts if str(alert["id"]) in shown_ids}
    elsewhere = {*_HARMLESS, *listed, *(_SLOW if time.drawn else ())}
    found = {alert["alert"]: alert for alert in facts.alerts if alert["alert"] not in elsewhere}
    run = shown(facts.run["name"])
    worst = sorted(found.values(), key=lambda alert: ("critical", "warning", "info").index(alert["severity"]))
    for alert in worst[:MOST]:
        name, known = alert["alert"], TROUBLES.get(alert["alert"])
        advice = shown(alert["description"]) if known is None else known.advice_of(alert["description"], run)
        shows = tuple(alert_evidence(facts, name))
        yield Cause(_snake_case(name), shown(alert["summary"]), shows, advice, f"alert {name}")


def _snake_case(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")


def _best_evaluation(kind: Kind, time: LostTime) -> Iterator[Cause]:
    """Yield the evaluation loss whose best value is longest ago, as information: more training may not help."""
    facts = time.facts
    keys = [
        series
        for series in reader.series(time.connection, facts.run["id"], tails=time.tails)
        if role(series.series.key) == "evaluation"
    ]
    best: dict[str, tuple[float, float, int]] = {}
    for series in keys[:MOST_KEYS]:
        for _, moment, low, _, _ in chart(time.connection, series.series, series.tail, points=300).points:
            value, at, since_best = best.get(series.series.key, (low, moment, 0))
            best[series.series.key] = (low, moment, 0) if low <= value else (value, at, since_best + 1)
    best = {key: found for key, found in best.items() if found[2] >= WORSE}
    if not best:
        return
    key = min(best, key=lambda key: best[key][1])
    since, lowest = facts.ended - best[key][1], number(best[key][0])
    if since >= LONG_AGO * facts.wall:
        summary = kind.happened.format(shown(key), lowest, duration(since), percent(since / facts.wall))
        evidence = Evidence(f"{shown(key)} did not fall below {lowest} after that", f"{facts.api}/series?key={key}")
        yield kind.found(time, None, evidence, summary=summary, check=f"{shown(key)} in trackside show")


SLOWDOWN = Kind(
    "slowdown",
    "steps became slower, and nothing that was measured explains it",
    "see what differs: trackside capture {}; other processes on these machines",
    "alert ThroughputRegression",
    ("compute",),
    alerts=("ThroughputRegression",),
    lost=_slowdown,
)
ALERTS = Kind("alerts", lost=_alerts)
BEST_EVALUATION = Kind(
    "since_best_evaluation",
    "the best {} of {} was {} before the end, {} of the run",
    "if the evaluation does not improve again, stop earlier, and use the checkpoint of the best one",
    lost=_best_evaluation,
)
