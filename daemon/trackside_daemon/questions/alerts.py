"""Questions about alerts and silences."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta

from trackside_daemon.model.finding import Severity
from trackside_daemon.questions.question import Limit, MissingError, OfRun, Question, RunName

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence

    from trackside_daemon.model.records import Silence
    from trackside_daemon.questions.question import History, Live

MOST, MOST_WITH_EVIDENCE = 10_000, 1000  # each evidence has up to 96 KiB


class Alerts(Question, frozen=True, kw_only=True):
    """List alerts that fire or have fired, oldest first."""

    path = "/alerts"
    fields = ("alerts",)
    about = (
        "silenced_until is the end of the silence that matches a firing alert. notified lists the receivers that got a"
        " notification. dismissed has the time and the comment of a mark as false alarm. limit is at most 10000; only "
        "the newest 1000 have their evidence."
    )
    run: RunName = ""
    severity: Annotated[Severity | None, Meta(description="info, warning or critical.")] = None
    alert: Annotated[
        str, Meta(max_length=256, description="An alert's name. * matches any text and ? one character.")
    ] = ""
    firing: Annotated[
        bool | None, Meta(description="true returns only alerts of this machine that fire now, false only others.")
    ] = None
    evidence: Annotated[bool, Meta(description="false omits the evidence, which may be long.")] = True
    limit: Annotated[Limit, Meta(le=MOST)] = MOST_WITH_EVIDENCE

    def answer(self, history: History, live: Live) -> dict[str, Any]:
        """See `Question`."""
        from trackside_daemon.alerts.silences import with_silenced_until
        from trackside_daemon.history.read import alert_reader, reader

        now = time.time()
        firing, past = now if self.firing else None, now if self.firing is False else None
        with history.reading() as connection:
            run = reader.resolve(connection, self.run) if self.run else ""
            wanted = alert_reader.AlertFilter(run, self.severity or "", self.alert, firing, past, self.limit, False)
            found = alert_reader.alerts(connection, wanted)
            if self.evidence:
                few = wanted._replace(limit=min(self.limit, MOST_WITH_EVIDENCE), evidence=True)
                newest = alert_reader.alerts(connection, few)
                found = [*found[: len(found) - len(newest)], *newest]
        return {"alerts": with_silenced_until(found, _active_silences(history, live))}


class Alert(Question, frozen=True, kw_only=True):
    """Return one alert with its evidence."""

    path = "/alerts/{number}"
    fields = ("id",)
    number: Annotated[int, Meta(description="An alert's id.")]

    def answer(self, history: History, live: Live) -> dict[str, Any]:
        """See `Question`."""
        from trackside_daemon.alerts.silences import with_silenced_until
        from trackside_daemon.history.read import alert_reader

        with history.reading() as connection:
            alert = alert_reader.alert(connection, self.number)
        if alert is None:
            raise MissingError(
                f"alert {self.number}: no such alert; `trackside alerts` and /api/v1/alerts list them with their ids"
            )
        return with_silenced_until([alert], _active_silences(history, live))[0]


class Batches(OfRun, frozen=True, kw_only=True):
    """Return which samples of the data were in the batches of a run's steps: those of its alerts, and those that its ranks keep."""

    path = "/runs/{id}/batches"
    fields = ("batches",)
    about = (
        "Alerts about the loss or the gradients have the batches of the step at which they began, and with before of "
        "the step before; alert is the id. With step, a live run is asked too, whose ranks keep some last steps: "
        "the rank, or the first 64. "
        "samples has indices in the data set, or its own ids, and names of some; of a large batch only a part, of "
        "which count is the whole. why says why they are unknown."
    )
    step: Annotated[int | None, Meta(description="Only batches of this step.")] = None
    rank: Annotated[int | None, Meta(description="Only those of this rank.")] = None

    def _read(self, connection: sqlite3.Connection, _live: Live) -> dict[str, Any]:
        from trackside_daemon.history.read import alert_reader

        uid = self.uid(connection)
        return {"run": uid, "batches": alert_reader.batches(connection, uid, step=self.step, rank=self.rank)}

    def complete(self, found: dict[str, Any], live: Live) -> dict[str, Any]:
        """See `Question`."""
        known = {(one["step"], one["rank"]) for one in found["batches"]}
        asked = [] if self.step is None else live.batches(found["run"], self.step, self.rank)
        new = [one for one in asked if (one["step"], one["rank"]) not in known]
        return {**found, "batches": [*found["batches"], *new]}


class Silences(Question, frozen=True, kw_only=True):
    """List the active silences by their end, earliest first."""

    path = "/silences"
    fields = ("silences",)

    def answer(self, history: History, live: Live) -> dict[str, Any]:
        """See `Question`."""
        return {"silences": [asdict(silence) for silence in _active_silences(history, live)]}


def _active_silences(history: History, live: Live) -> Sequence[Silence]:
    """Return the silences that are active now: those of the daemon, else of the history."""
    from trackside_daemon.history.read import alert_reader

    now = time.time()
    if live.silences is not None:
        return live.silences(now)
    with history.reading() as connection:
        return alert_reader.silences(connection, now)
