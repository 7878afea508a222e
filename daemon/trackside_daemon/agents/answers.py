"""The answers to an agent's questions about runs, from the history."""

import re
import time
from asyncio import gather
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import msgspec

from trackside_daemon.agents.fitting import fits
from trackside_daemon.agents.tools import (
    CaptureArguments,
    CompareArguments,
    RunsArguments,
    SeriesArguments,
    WaitArguments,
    WhyArguments,
)
from trackside_daemon.agents.untrusted import mark, marked, unmark
from trackside_daemon.questions import table
from trackside_daemon.questions.question import Question
from trackside_daemon.questions.runs import Head

Ask = Callable[[Question], Awaitable[dict[str, Any]]]


RUN_FIELDS = ("id", "name", "state", "cause", "started", "ended", "attempt", "step", "loss", "tags")
CAUSE_FIELDS = ("cause", "summary", "lost_seconds", "low", "high", "gpu_hours", "cost", "advice", "check")
METRIC_FIELDS = ("key", "rank", "attempt", "last", "min", "max", "last_step")
SHOWN_METRICS = 200  # keys in a list of keys
SHOWN_ALERTS = 20
VERDICT_LETTERS = 1200  # letters of what stops a run: places in the code of a few ranks

_OWN_NAME = re.compile(r"[a-z][a-z0-9_]{1,40}")
_STATES = frozenset(("state", "severity"))  # fields with our own words


class NotLiveError(Exception):
    """The question needs a running daemon."""


class LiveWork(Protocol):
    """Work that only a running daemon can do."""

    async def wait(self, run: str, arguments: WaitArguments) -> dict[str, Any]:
        """Wait for an event of the run with this id; return ``reason`` and ``step``."""
        ...

    async def capture(self, run: str, arguments: CaptureArguments) -> dict[str, Any]:
        """Record the run with this id, wait for the summary, and return the capture as the API does."""
        ...


class Answers:
    """Answers questions; each answer is a JSON object, with the most useful field first.

    Args:
        ask: Answers a question of the history.
        live: The running daemon; None if none runs.
    """

    def __init__(self, ask: Ask, live: LiveWork | None = None) -> None:
        self._ask = ask
        self._live = live

    async def runs(self, wanted: RunsArguments) -> dict[str, Any]:
        """List runs."""
        name, tag, query = map(unmark, (wanted.name, wanted.tag, wanted.query))
        found = await self._ask(table.Runs(name=name, tag=tag, state=wanted.state, query=query, limit=wanted.limit))
        runs = [marked(_picked(run, RUN_FIELDS), _STATES) for run in found["runs"][: wanted.limit]]
        return {"runs": runs, **({"hint": marked(found["hint"])} if found.get("hint") else {})}

    async def why(self, wanted: WhyArguments) -> dict[str, Any]:
        """Explain why a run is slow or broken: the costliest cause first."""
        name = unmark(wanted.run)
        diagnosis, run = await gather(self._ask(table.Diagnosis(id=name)), self._ask(Head(id=name)))
        hang = diagnosis["hang"]
        causes = [_cause(cause) for cause in diagnosis["causes"]]
        wall = diagnosis["wall_seconds"]
        first = causes[0] if causes and diagnosis["causes"][0]["listed"] else {}
        return {
            "cause": first.get("cause", "none"),
            **first,
            "health": diagnosis["health"],
            "verdict": mark(diagnosis["verdict"], VERDICT_LETTERS) if diagnosis["verdict"] else None,
            "hang": mark(hang["text"], VERDICT_LETTERS) if hang else None,
            "run": marked(_picked(run, ("id", "name", "state", "cause", "step", "loss")), _STATES),
            "wall_seconds": wall,
            "ledger": diagnosis["ledger"],
            "further_causes": causes[1:] if first else causes,
        }

    async def compare(self, wanted: CompareArguments) -> dict[str, Any]:
        """Compare runs with their baseline, each quantity with its interval."""
        run, baseline, key = (tuple(map(unmark, texts)) for texts in (wanted.runs, wanted.baseline, wanted.keys))
        found = await self._ask(table.Comparison(run=run, baseline=baseline, key=key))
        if not found["baseline"] and len(run) > 1:  # the first one, as of the command compare
            found = await self._ask(table.Comparison(run=run[1:], baseline=run[:1], key=key))
        effects = [
            {key: value for key, value in effect.items() if value not in {None, ""}} for effect in found["effects"]
        ]
        return {
            "effects": marked(effects, {"unit", "better"}),
            **marked(_picked(found, ("runs", "baseline", "chosen")), {"chosen"}),
            **({} if found["baseline"] else {"missing": "no run to compare with was found: name one in baseline"}),
        }

    async def series(self, wanted: SeriesArguments) -> dict[str, Any]:
        """Return curves in few points, each with its minimum, maximum and last value; without keys, the keys."""
        name, keys = unmark(wanted.run), tuple(map(unmark, wanted.keys))
        if not keys:
            run = await self._ask(table.Run(id=name, limit=SHOWN_METRICS))
            return {"keys": [marked(_picked(one, METRIC_FIELDS)) for one in run["metrics"]], "series": run["series"]}
        asked = table.Series(
            run=(name,),
            key=keys,
            rank=() if wanted.rank is None else (str(wanted.rank),),
            attempt=wanted.attempt,
            first=wanted.first_step,
            last=wanted.last_step,
            points=max(1, wanted.points // len(keys)),
        )
        while True:
            found = (await self._ask(asked))["series"]
            answer = {"columns": ["step", "min", "max", "last"], "series": [_curve(one) for one in found]}
            if asked.points == 1 or (len(found) * asked.points <= wanted.points and fits(answer)):
                return answer
            # Fewer points, rather than an end cut off; attempts and series of the machine share them.
            fewer = min(asked.points * 3 // 4, wanted.points // len(found))
            asked = msgspec.structs.replace(asked, points=max(1, fewer))

    async def wait(self, wanted: WaitArguments) -> dict[str, Any]:
        """Wait for an alert, the end of the run, or a step."""
        uid = await self._resolve(wanted.run)
        begun = time.time()
        reached = await self._running().wait(uid, wanted)
        run, found = await gather(self._ask(Head(id=uid)), self._ask(table.Alerts(run=uid, evidence=False)))
        since = begun if wanted.since is None else wanted.since
        alerts = [
            one for one in found["alerts"] if one["started"] >= since or (one["ended"] is None and run["ended"] is None)
        ]
        return {
            **reached,
            "state": run["state"],
            **marked(_picked(run, ("cause", "loss"))),
            "alerts": [_alert(alert) for alert in alerts[-SHOWN_ALERTS:]],
            "run": marked(uid),
            "now": time.time(),
        }

    async def capture(self, wanted: CaptureArguments) -> dict[str, Any]:
        """Record a run for some steps, and return the summary as lines of text."""
        return recorded(await self._running().capture(await self._resolve(wanted.run), wanted))

    async def _resolve(self, run: str) -> str:
        return str((await self._ask(Head(id=unmark(run))))["id"])

    def _running(self) -> LiveWork:
        if self._live is None:
            raise NotLiveError(
                "no daemon runs here, so there is nothing to wait for and nothing to record; start one with trackside daemon"
            )
        return self._live


def recorded(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer about a capture as the API has it."""
    return {"state": found["state"], **marked({name: found[name] for name in ("id", "reason", "text")})}


def _curve(series: Mapping[str, Any]) -> dict[str, Any]:
    """Return a series without the times of its points."""
    points = [[step, *values] for step, _, *values in series["points"]]
    return {"key": marked(series["key"]), "rank": series["rank"], "attempt": series["attempt"], "points": points}


def _picked(found: Mapping[str, Any], fields: tuple[str, ...]) -> dict[str, Any]:
    """Return some fields, without those that are empty."""
    return {field: found[field] for field in fields if found.get(field) not in (None, "", [], {})}


def _cause(cause: Mapping[str, Any]) -> dict[str, Any]:
    shown = {**_picked(cause, CAUSE_FIELDS), "evidence": [one["text"] for one in cause["evidence"]]}
    # An advice may name a host, and a cause be an alert of the training code: only names as ours are left as they are.
    return dict(marked(shown, {"cause"} if _OWN_NAME.fullmatch(cause["cause"]) else ()))


def _alert(alert: Mapping[str, Any]) -> dict[str, Any]:
    return dict(marked(_picked(alert, ("alert", "severity", "started", "ended", "summary", "id")), _STATES))
