"""The verdict on a run that stands still or is broken: one sentence, the same in every command, page, answer and alert."""

import sqlite3
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from trackside_daemon.causes.facts import LAST_TICK, Facts, read_times
from trackside_daemon.detectors.deaths import ALERTS as DEATHS
from trackside_daemon.history.read import alert_reader
from trackside_daemon.history.read.attempts import highest
from trackside_daemon.history.read.series import LogTails
from trackside_daemon.model.records import STALLS
from trackside_daemon.model.stall import QUIET, standing
from trackside_daemon.model.text import number, shown

Health = Literal["ok", "slow", "broken"]

# Alerts after which a run is worth nothing while they last, with what the names of their causes begin with.
DIVERGED = ("NonFinite", "LossDiverging")
DIFFERS = "ReplicasDiffer"
DAMAGED = {"LossDiscontinuity": ("resume_", "loss_discontinuity"), "CheckpointDamaged": ("checkpoint_damaged",)}

ALERTS = 256  # newest alerts of a run that are read
_STANDS = frozenset((*STALLS, *DEATHS))
STOPS = frozenset((*DEATHS, *STALLS, *DIVERGED, DIFFERS, *DAMAGED))  # names of alerts that a verdict may come from


class Verdict(NamedTuple):
    """The reason why a run does not go on; it counts before any share of time."""

    text: str = ""  # one sentence, or one for the run and one for whom it waits; empty if the run goes on
    causes: tuple[str, ...] = ()  # what the names of its causes begin with, the gravest first
    broken: bool = False  # it is proven; else the run only makes no step for much longer than usual
    # The verdict on a run that hangs now: `captures.hang.verdict.HangVerdict` as JSON.
    hang: Mapping[str, Any] | None = None

    def place(self, cause: str) -> int:
        """Return the place of a cause in the order of `causes`; their number if it is none of them."""
        return next((place for place, one in enumerate(self.causes) if cause.startswith(one)), len(self.causes))


def read_verdict(connection: sqlite3.Connection, uid: str) -> Verdict:
    """Return the verdict on a run, by its id.

    Raises:
        UnknownRunError: There is no run with this id.
        ValueError: A block is damaged.
    """
    return verdict(read_times(connection, uid, LogTails(connection)), connection)


def verdict(facts: Facts, connection: sqlite3.Connection) -> Verdict:
    """Return the verdict on a run: that it failed comes before that it stands still, has diverged, or was damaged."""
    run = facts.run
    still = Verdict() if run["state"] == "finished" else _still(facts, connection)
    if run["ended"] is not None and run["state"] in {"failed", "lost"}:
        before = f". Before, {still.text}" if still.text else ""
        causes = ("failed", *_damage(facts).causes)
        return Verdict(f"{_death(facts, connection)}{before}", causes, broken=True)
    return still if still.text else _damage(facts)


def joined(text: str, hang: Mapping[str, Any] | None) -> str:
    """Return the sentence on a run that stands still, with that on the ranks that it waits for."""
    return f"{text}. {shown(hang['text'])}" if hang else text


def _damage(facts: Facts) -> Verdict:
    """Return the verdict on a run that has diverged, whose ranks differ, or that was damaged."""
    for alert in reversed(facts.alerts):
        diverged = alert["alert"] in DIVERGED and alert["severity"] == "critical"
        if _lasts(alert, facts) and (diverged or alert["alert"] == DIFFERS):
            return Verdict(shown(alert["summary"]), ("wasted" if diverged else "replicas_differ",), broken=True)
    for alert in reversed(facts.alerts):
        if alert["alert"] in DAMAGED and alert["started"] >= _began(facts) and alert["severity"] != "info":
            return Verdict(shown(alert["summary"]), DAMAGED[alert["alert"]], broken=True)
    return Verdict()


def _began(facts: Facts) -> float:
    """Return when the last attempt began, in Unix seconds."""
    return max((span.started for span in facts.spans), default=float(facts.run["started"]))


def _last_step(facts: Facts, connection: sqlite3.Connection) -> int | None:
    """Return the highest step of the last attempt, also of pushes that are not packed; None before the first."""
    (row,) = connection.execute("SELECT id FROM run WHERE uid = ?", (facts.run["id"],)).fetchone()
    return highest(connection, row, max((span.attempt for span in facts.spans), default=0))


def _death(facts: Facts, connection: sqlite3.Connection) -> str:
    """Return how the run ended: as the newest alert of it says, else by its state."""
    run = facts.run
    fatal = [one for one in facts.alerts if one["alert"] in DEATHS and one["severity"] == "critical"]
    if newest := next((one for one in reversed(fatal) if one["started"] >= _began(facts)), None):
        return shown(newest["summary"])
    last = _last_step(facts, connection)
    step = "" if last is None else f", at step {number(last)},"
    how = "failed" if run["state"] == "failed" else "was lost"
    return f"run {shown(run['name'])}{step} {how}" + (f": {shown(run['cause'])}" if run["cause"] else "")


def _lasts(alert: Mapping[str, Any], facts: Facts) -> bool:
    """Return whether an alert fires, or fired at the end of the run."""
    if facts.run["ended"] is None:
        return alert["ended"] is None
    return alert["started"] <= facts.ended and (alert["ended"] is None or alert["ended"] >= facts.ended - LAST_TICK)


def _still(facts: Facts, connection: sqlite3.Connection) -> Verdict:
    """Return since when the run stands still, or stood at its end, and for whom it waits: as alerts say, else by its last step."""
    live = [span for span in facts.spans if span.lives]
    pushed = max((span.last or span.started for span in live), default=0.0)
    if any(one["alert"] in _STANDS and _lasts(one, facts) for one in facts.alerts):
        newest = reversed(alert_reader.alerts(connection, alert_reader.AlertFilter(facts.run["id"], limit=ALERTS)))
        # The death of a rank counts if others wait for it: what they push afterwards they had begun before.
        firing = [
            one
            for one in newest
            if _lasts(one, facts)
            and (
                (one["alert"] in STALLS and "recovered" not in one["evidence"])
                or (live and one["alert"] in DEATHS and one["evidence"].get("hang") and one["started"] > pushed - QUIET)
            )
        ]
        # A run that stands still as a whole counts more than one rank of it.
        firing.sort(key=lambda one: (one["alert"] in DEATHS, one["alert"] == "TrainingStalled"), reverse=True)
        if firing:
            hang = next(filter(None, (one["evidence"].get("hang") for one in firing)), None)
            text = joined(shown(firing[0]["summary"]), hang)
            return Verdict(text, ("stall",), broken=True, hang=hang if facts.run["ended"] is None else None)
    if live and all(span.stands for span in live):
        return Verdict(standing(shown(facts.run["name"]), pushed, _last_step(facts, connection)), ("stall",))
    return Verdict()
