"""The answers to an agent's questions about runs, from the history."""

from __future__ import annotations

import re
import time
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Protocol

from trackside_daemon.agents.fitting import fits
from trackside_daemon.agents.untrusted import marked, unmark
from trackside_daemon.diagnosis.comparison import read_comparison
from trackside_daemon.diagnosis.diagnosis import diagnose
from trackside_daemon.history.read import alert_reader, reader
from trackside_daemon.history.read.charts import chart
from trackside_daemon.history.read.series import Window
from trackside_daemon.model.metric import json_number

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Awaitable, Callable, Mapping

    from trackside_daemon.agents.arguments import (
        CaptureArguments,
        CompareArguments,
        RunsArguments,
        SeriesArguments,
        WaitArguments,
        WhyArguments,
    )
    from trackside_daemon.diagnosis.settings import CostSection

    Read = Callable[[Callable[[sqlite3.Connection], Any]], Awaitable[Any]]

LEAST_SHARE = 0.02  # a cause of less lost time is no trouble
RUN_FIELDS = ("id", "name", "state", "cause", "started", "ended", "attempt", "step", "loss", "tags")
CAUSE_FIELDS = ("cause", "summary", "lost_seconds", "low", "high", "gpu_hours", "cost", "advice", "check")
SHOWN_METRICS = 200  # keys in a list of keys
SHOWN_ALERTS = 20

_OWN_NAME = re.compile(r"[a-z][a-z0-9_]{1,40}")
_STATES = frozenset(("state", "severity"))  # fields with our own words


class NotLiveError(Exception):
    """The question needs a running daemon."""


class Live(Protocol):
    """Work that only a running daemon can do."""

    async def wait(self, run: str, arguments: WaitArguments) -> dict[str, Any]:
        """Wait for an event of the run with this id; return ``reason`` and ``step``."""
        ...

    async def capture(self, run: str, arguments: CaptureArguments) -> dict[str, Any]:
        """Record the run with this id, wait for the summary, and return the capture as the API does."""
        ...

    async def hang(self, run: str) -> dict[str, Any] | None:
        """Return the verdict on why the run with this id makes no step; None if it makes some."""
        ...


class Answers:
    """Answers questions; each answer is a JSON object, with the most useful field first.

    Args:
        read: Runs a query on the history and returns its result.
        prices: Returns the configured prices.
        live: The running daemon; None if none runs.
    """

    def __init__(self, read: Read, prices: Callable[[], CostSection], live: Live | None = None) -> None:
        self._read = read
        self._prices = prices
        self._live = live

    async def runs(self, wanted: RunsArguments) -> dict[str, Any]:
        """List runs."""
        filter_ = reader.RunFilter(unmark(wanted.name), unmark(wanted.tag), wanted.state, limit=wanted.limit)
        found = await self._read(lambda connection: reader.runs(connection, filter_))
        return {"runs": [marked(_picked(run, RUN_FIELDS), _STATES) for run in found]}

    async def why(self, wanted: WhyArguments) -> dict[str, Any]:
        """Explain why a run is slow or broken: the costliest cause first."""
        name, prices = unmark(wanted.run), self._prices()

        def query(connection: sqlite3.Connection) -> tuple[dict[str, Any], dict[str, Any]]:
            uid = reader.resolve(connection, name)
            return diagnose(connection, uid, prices), reader.head(connection, uid)

        diagnosis, run = await self._read(query)
        hang = diagnosis.get("hang") or (self._live and await self._live.hang(diagnosis["run"]))
        causes = [_cause(cause) for cause in diagnosis["causes"]]
        wall = diagnosis["wall_seconds"]
        first = causes[0] if causes and _is_trouble(diagnosis["causes"][0], wall) else {}
        return {
            "cause": first.get("cause", "none"),
            **first,
            "hang": marked(hang and hang["text"]),
            "run": marked(_picked(run, ("id", "name", "state", "cause", "step", "loss")), _STATES),
            "wall_seconds": wall,
            "ledger": diagnosis["ledger"],
            "further_causes": causes[1:] if first else causes,
        }

    async def compare(self, wanted: CompareArguments) -> dict[str, Any]:
        """Compare runs with their baseline, each quantity with its interval."""
        runs, baseline, keys = (list(map(unmark, texts)) for texts in (wanted.runs, wanted.baseline, wanted.keys))
        prices = self._prices()
        found = await self._read(lambda connection: read_comparison(connection, runs, baseline, keys, prices))
        effects = [
            {key: value for key, value in effect.items() if value not in {None, ""}} for effect in found["effects"]
        ]
        return {
            "effects": marked(effects, {"unit", "better"}),
            **marked(_picked(found, ("runs", "baseline", "chosen")), {"chosen"}),
        }

    async def series(self, wanted: SeriesArguments) -> dict[str, Any]:
        """Return curves in few points, each with its minimum, maximum and last value; without keys, the keys."""
        points = wanted.points
        while True:
            answer: dict[str, Any] = await self._read(partial(_series, wanted=wanted, points=points))
            if points == 1 or fits(answer):
                return answer
            points = points * 3 // 4  # fewer points, rather than an end cut off

    async def wait(self, wanted: WaitArguments) -> dict[str, Any]:
        """Wait for an alert, the end of the run, or a step."""
        uid = await self._resolve(wanted.run)
        begun = time.time()
        reached = await self._running().wait(uid, wanted)

        def query(connection: sqlite3.Connection) -> dict[str, Any]:
            run = reader.head(connection, uid)
            since = begun if wanted.since is None else wanted.since
            alerts = [
                one
                for one in alert_reader.alerts(connection, alert_reader.AlertFilter(uid, evidence=False))
                if one["started"] >= since or (one["ended"] is None and run["ended"] is None)
            ]
            return {
                "state": run["state"],
                **marked(_picked(run, ("cause", "loss"))),
                "alerts": [_alert(alert) for alert in alerts[-SHOWN_ALERTS:]],
                "run": marked(uid),
                "now": time.time(),
            }

        return {**reached, **await self._read(query)}

    async def capture(self, wanted: CaptureArguments) -> dict[str, Any]:
        """Record a run for some steps, and return the summary as lines of text."""
        return recorded(await self._running().capture(await self._resolve(wanted.run), wanted))

    async def _resolve(self, run: str) -> str:
        return str(await self._read(lambda connection: reader.resolve(connection, unmark(run))))

    def _running(self) -> Live:
        if self._live is None:
            raise NotLiveError(
                "no daemon runs here, so there is nothing to wait for and nothing to record; start one with trackside daemon"
            )
        return self._live


def recorded(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer about a capture as the API has it."""
    return {"state": found["state"], **marked({name: found[name] for name in ("id", "reason", "text")})}


def _series(connection: sqlite3.Connection, wanted: SeriesArguments, points: int) -> dict[str, Any]:
    uid = reader.resolve(connection, unmark(wanted.run))
    if not wanted.keys:
        run = reader.run(connection, uid, SHOWN_METRICS)
        fields = ("key", "rank", "attempt", "last", "min", "max", "last_step")
        return {"keys": [marked(_picked(one, fields)) for one in run["metrics"]], "series": run["series"]}
    ranks = None if wanted.rank is None else [wanted.rank]
    window = Window(
        "step",
        -inf if wanted.first_step is None else wanted.first_step,
        inf if wanted.last_step is None else wanted.last_step,
    )
    selected = list(reader.series(connection, uid, list(map(unmark, wanted.keys)), ranks, wanted.attempt))
    each = max(1, points // max(1, len(selected)))
    return {
        "columns": ["step", "min", "max", "last"],
        "series": [
            {
                "key": marked(one.series.key),
                "rank": one.rank,
                "attempt": one.attempt,
                "points": [
                    [point[0], *map(json_number, point[2:])]
                    for point in chart(
                        connection,
                        one.series,
                        one.tail,
                        window if one.rank is not None else _lifetime(connection, uid),
                        each,
                    ).points
                ],
            }
            for one in selected
        ],
    }


def _lifetime(connection: sqlite3.Connection, uid: str) -> Window:
    begin, end = reader.span(connection, uid)
    return Window("time", begin, inf if end is None else end)


def _picked(found: Mapping[str, Any], fields: tuple[str, ...]) -> dict[str, Any]:
    """Return some fields, without those that are empty."""
    return {field: found[field] for field in fields if found.get(field) not in (None, "", [], {})}


def _cause(cause: Mapping[str, Any]) -> dict[str, Any]:
    shown = {**_picked(cause, CAUSE_FIELDS), "evidence": [one["text"] for one in cause["evidence"]]}
    # An advice may name a host, and a cause be an alert of the training code: only names as ours are left as they are.
    return dict(marked(shown, {"cause"} if _OWN_NAME.fullmatch(cause["cause"]) else ()))


def _is_trouble(cause: Mapping[str, Any], wall: float) -> bool:
    return cause["lost_seconds"] is None or cause["lost_seconds"] >= LEAST_SHARE * wall


def _alert(alert: Mapping[str, Any]) -> dict[str, Any]:
    return dict(marked(_picked(alert, ("alert", "severity", "started", "ended", "summary", "id")), _STATES))
