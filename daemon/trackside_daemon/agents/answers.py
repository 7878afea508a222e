"""The answers to an agent's questions about runs, from the history."""

import re
import time
from asyncio import gather
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Protocol

import msgspec

from trackside_daemon.agents import shapes, tools
from trackside_daemon.agents.fitting import fits, page
from trackside_daemon.agents.untrusted import identifier, key, mark, marker, unmark
from trackside_daemon.model.configuration import changes, config, setting
from trackside_daemon.model.records import ENDED
from trackside_daemon.model.troubles import TROUBLES
from trackside_daemon.questions import table
from trackside_daemon.questions.question import Question
from trackside_daemon.questions.runs import Head, RunTexts, Standing

Ask = Callable[[Question], Awaitable[dict[str, Any]]]

CAUSE_FIELDS = ("cause", "lost_seconds", "low", "high", "gpu_hours", "cost")
SENTENCES = ("summary", "advice", "check")
ALERT_FIELDS = ("id", "alert", "severity", "started", "ended", "silenced_until")
CHECKPOINT_FIELDS = ("path", "step", "state", "good", "reason", "time", "checked", "value", "attempt")
RANK_FIELDS = ("value", "difference", "difference_low", "difference_high", "at", "unknown")
SHOWN_METRICS = 1000  # keys in a list of keys
SHOWN_LINES = 100  # of output
SHOWN_ALERTS = 20  # of what is new
SHOWN_LIVE = 16  # live runs in an overview
READ_ALERTS = 1000  # newest alerts that are looked through
READ_RUNS = 1000  # newest runs that are looked through for changes
COMPARED = 8  # runs whose settings are compared with those of the run before
DIFFERENCES = 20  # settings of each
VERDICT_LETTERS = 1200  # letters of what stops a run: places in the code of a few ranks

_OWN_NAME = re.compile(r"[a-z][a-z0-9_]{1,40}")


class NotLiveError(Exception):
    """The question needs a running daemon."""


class LiveWork(Protocol):
    """Work that only a running daemon can do."""

    async def wait(self, run: str, arguments: tools.WaitArguments) -> dict[str, Any]:
        """Wait for an event of the run with this id; return ``reason`` and ``step``."""
        ...

    async def capture(self, run: str, arguments: tools.CaptureArguments) -> dict[str, Any]:
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

    async def overview(self, wanted: tools.OverviewArguments) -> dict[str, Any]:
        """Return the state of the live runs, or of one run, what fires, and the runs that ended last."""
        now = time.time()
        one = unmark(wanted.run)
        listed = (await self._ask(table.Runs(limit=SHOWN_LIVE)))["runs"]
        alive = [run for run in listed if run["state"] not in ENDED]
        found = (await self._ask(table.Alerts(firing=True, evidence=False, limit=READ_ALERTS)))["alerts"]
        ids = [await self._resolve(one)] if one else [run["id"] for run in alive[:SHOWN_LIVE]]
        values = {run["id"]: run for run in listed}
        standings = await gather(*(self._ask(Standing(id=uid)) for uid in ids))
        speak = await self._marker(ids)
        runs = [_standing(run, values.get(run["id"], {}), found, speak, now) for run in standings]
        runs.sort(key=lambda run: ("broken", "slow", "ok").index(run["health"]))
        health = runs[0]["health"] if runs else "ok"
        if one:
            settings = [[mark(name), mark(setting(value))] for name, value in config(standings[0]).items()]
            return {"health": health, "runs": runs, "config": settings}
        rest = {
            "health": health,
            "more_alive": len(alive) - len(ids),
            "machine_alerts": [_alert(alert, speak) for alert in found if not alert["run"]],
            "ended": [_run(run) for run in listed if run["state"] in ENDED][:3],
        }
        answer = page("runs", runs, 0, SHOWN_LIVE, **rest)
        return {"health": health, "runs": answer.pop("runs"), **answer}

    async def runs(self, wanted: tools.RunsArguments) -> dict[str, Any]:
        """List runs."""
        name, tag, query = map(unmark, (wanted.name, wanted.tag, wanted.query))
        limit = wanted.offset + wanted.limit + 1
        asked = table.Runs(name=name, tag=tag, state=wanted.state, since=wanted.since, query=query, limit=limit)
        found = await self._ask(asked)
        hint = {"hint": mark(found["hint"])} if found.get("hint") else {}
        return {**page("runs", [_run(run) for run in found["runs"]], wanted.offset, wanted.limit), **hint}

    async def why(self, wanted: tools.WhyArguments) -> dict[str, Any]:
        """Explain why a run is slow or broken: what stops it first, then the costliest cause."""
        name = unmark(wanted.run)
        diagnosis, run = await gather(self._ask(table.Diagnosis(id=name)), self._ask(Head(id=name)))
        speak = await self._marker([run["id"]])
        hang = diagnosis["hang"]
        causes = [_cause(cause, speak) for cause in diagnosis["causes"]]
        first = causes[0] if causes and diagnosis["causes"][0]["listed"] else {}
        verdict = diagnosis["verdict"]
        if verdict:  # that on a hang has lines of the training's code
            verdict = mark(verdict, VERDICT_LETTERS) if hang else speak(verdict)
        return {
            "cause": first.get("cause", "none"),
            "health": diagnosis["health"],
            **first,
            "verdict": verdict or None,
            "hang": mark(hang["text"], VERDICT_LETTERS) if hang else None,
            "run": _run(run),
            "wall_seconds": diagnosis["wall_seconds"],
            "ledger": diagnosis["ledger"],
            "further_causes": causes[1:] if first else causes,
        }

    async def changes(self, wanted: tools.ChangesArguments) -> dict[str, Any]:
        """Return which runs began and ended since a time, which alerts began, and which settings are new."""
        now = time.time()
        since = now - 3600 * wanted.hours if wanted.since is None else wanted.since
        listed = (await self._ask(table.Runs(limit=READ_RUNS)))["runs"]
        recent = [run for run in listed if max(run["started"], run["ended"] or 0.0) >= since]
        found = (await self._ask(table.Alerts(evidence=False, limit=READ_ALERTS)))["alerts"]
        alerts = [alert for alert in reversed(found) if alert["started"] >= since]
        speak = await self._marker({alert["run"] for alert in alerts[:SHOWN_ALERTS] if alert["run"]})
        settings = []
        for run in [run for run in recent if run["started"] >= since][:COMPARED]:
            earlier = (one for one in listed if one["name"] == run["name"] and one["started"] < run["started"])
            if (before := next(earlier, None)) is None:
                continue
            pair = await gather(*(self._ask(Head(id=one["id"])) for one in (before, run)))
            rows = changes(*(one["attempt_list"][-1] if one["attempt_list"] else {} for one in pair))
            differs = [{"key": mark(key), "before": mark(old), "now": mark(new)} for key, old, new in rows]
            settings.append(
                {"run": identifier(run["id"]), "before": identifier(before["id"]), "differs": differs[:DIFFERENCES]}
            )
        states: dict[str, int] = {}
        for run in recent:
            states[run["state"]] = states.get(run["state"], 0) + 1
        # What went wrong comes first, and is what stays if there is no room.
        recent.sort(key=lambda run: run["state"] not in {"failed", "lost", "stalled"})
        shown = [_alert(alert, speak) for alert in alerts[:SHOWN_ALERTS]]
        answer = page(
            "runs",
            [_run(run) for run in recent],
            wanted.offset,
            100,
            settings=[one for one in settings if one["differs"]],
            alerts=shown,
        )
        return {"since": since, "states": states, "began_alerts": len(alerts), **answer}

    async def rank(self, wanted: tools.RankArguments) -> dict[str, Any]:
        """Rank runs by a key or a result: each with its difference from the best, and whether that is more than noise."""
        name = unmark(wanted.key)
        if wanted.runs:
            ids = list(dict.fromkeys([await self._resolve(run) for run in wanted.runs]))
        else:
            listed = await self._ask(table.Runs(query=unmark(wanted.query), limit=tools.MOST_RANKED))
            ids = [run["id"] for run in listed["runs"]]
        heads = {uid: await self._ask(Head(id=uid)) for uid in ids}
        results = {uid: head["summary"].get(name) for uid, head in heads.items()}
        rows: list[dict[str, Any]] = [
            {"id": uid, "value": value} for uid, value in results.items() if isinstance(value, int | float)
        ]
        note = tools.RESULT_NOTE
        if not rows:
            rows, note = await self._compared(ids, name, higher=wanted.higher), tools.RANK_NOTE
        known = [row for row in rows if isinstance(row.get("value"), int | float)]
        known.sort(key=lambda row: row.get("difference", row["value"]), reverse=wanted.higher)
        shown = [{**row, "id": identifier(row["id"]), "name": mark(heads[row["id"]]["name"])} for row in known]
        others = {row["id"]: row.get("unknown") for row in rows if row not in known}
        return {
            "best": shown[0]["id"] if shown else None,
            "tied_with": [row["id"] for row in shown[1:] if row.get("tied")],
            "key": key(name),
            "ranked": shown,
            "not_ranked": [
                {"id": identifier(uid), "why": mark(others.get(uid) or f"it has neither a key nor a result {name}")}
                for uid in ids
                if uid not in {row["id"] for row in known}
            ],
            "note": note,
        }

    async def _compared(self, ids: list[str], name: str, *, higher: bool) -> list[dict[str, Any]]:
        """Return a row for each run that has a key, with its difference from the best one, and the 95 % interval of it."""
        reference, rows = ids[0] if ids else "", []
        for _ in range(2):  # the first reference is a guess: the differences from it show the best run
            rows = [await self._against(uid, reference, name) for uid in ids]
            known = [row for row in rows if "difference" in row]
            finest = (max if higher else min)(known, key=lambda row: row["difference"], default={"id": reference})
            if finest["id"] == reference:
                break
            reference = finest["id"]
        return rows

    async def _against(self, uid: str, reference: str, name: str) -> dict[str, Any]:
        found = await self._ask(table.Comparison(run=(uid,), baseline=(reference,), key=(name,)))
        effect: dict[str, Any] = next((one for one in found["effects"] if one["quantity"] == name), {})
        row = {"id": uid, **_picked(effect, RANK_FIELDS)}
        low, high = row.get("difference_low"), row.get("difference_high")
        if uid != reference and "difference" in row:
            row["tied"] = low is None or high is None or low <= 0 <= high
        return row

    async def checkpoints(self, wanted: tools.CheckpointsArguments) -> dict[str, Any]:
        """Return the checkpoint to resume from, the best one, and all of them, the newest first."""
        found = await self._ask(table.Checkpoints(id=unmark(wanted.run), metric=unmark(wanted.metric)))
        listed, now = found["checkpoints"], time.time()
        good = [one for one in listed if one["good"]]
        shown = [_checkpoint(one, now) for one in reversed(listed)]
        rated = [one for one in good if isinstance(one["value"], int | float)]  # NaN is a text
        finest = (max if wanted.higher else min)(rated, key=lambda one: one["value"], default=None)
        rest = {
            "resume_from": _checkpoint(good[-1], now) if good else None,
            "best": _checkpoint(finest, now) if finest else None,
            "metric": key(found["metric"]),
            "run": identifier(found["run"]),
            "check": "trackside checkpoints latest RUN --good reads the files again before it prints the path",
        }
        return page("checkpoints", shown, wanted.offset, 100, **rest)

    async def alerts(self, wanted: tools.AlertsArguments) -> dict[str, Any]:
        """List alerts, the newest first, those that fire with what to do."""
        uid = await self._resolve(wanted.run) if wanted.run else ""
        asked = table.Alerts(
            run=uid, firing=wanted.firing or None, severity=wanted.severity, evidence=False, limit=READ_ALERTS
        )
        found = list(reversed((await self._ask(asked))["alerts"]))
        found = [one for one in found if wanted.since is None or one["started"] >= wanted.since]
        shown = found[: wanted.offset + tools.MOST_ALERTS + 1]
        speak = await self._marker({one["run"] for one in shown if one["run"]})
        return page("alerts", [_alert(one, speak) for one in shown], wanted.offset, tools.MOST_ALERTS)

    async def compare(self, wanted: tools.CompareArguments) -> dict[str, Any]:
        """Compare runs with their baseline, each quantity with its interval."""
        run, baseline, keys = (tuple(map(unmark, texts)) for texts in (wanted.runs, wanted.baseline, wanted.keys))
        found = await self._ask(table.Comparison(run=run, baseline=baseline, key=keys))
        if not found["baseline"] and len(run) > 1:  # the first one, as of the command compare
            found = await self._ask(table.Comparison(run=run[1:], baseline=run[:1], key=keys))
        speak = await self._marker([*found["runs"], *found["baseline"]])
        return {
            "effects": [_effect(effect, speak) for effect in found["effects"]],
            "runs": list(map(identifier, found["runs"])),
            "baseline": list(map(identifier, found["baseline"])),
            "chosen": found["chosen"],
            **({} if found["baseline"] else {"missing": "no run to compare with was found: name one in baseline"}),
        }

    async def series(self, wanted: tools.SeriesArguments) -> dict[str, Any]:
        """Return curves in few points, each with its minimum, maximum and last value; without keys, the keys."""
        name, keys = unmark(wanted.run), tuple(map(unmark, wanted.keys))
        if not keys:
            run = await self._ask(table.Run(id=name, limit=SHOWN_METRICS))
            shown = [{**_picked(one, shapes.METRIC), "key": key(one["key"])} for one in run["metrics"]]
            return page("keys", shown, wanted.offset, SHOWN_METRICS, series=run["series"])
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
                lacking = [key(one) for one in keys if one not in {one["key"] for one in found}]
                return {**answer, **({"missing": lacking} if lacking and not keys[0].startswith("trackside_") else {})}
            # Fewer points, rather than an end cut off; attempts and series of the machine share them.
            fewer = min(asked.points * 3 // 4, wanted.points // len(found))
            asked = msgspec.structs.replace(asked, points=max(1, fewer))

    async def logs(self, wanted: tools.LogsArguments) -> dict[str, Any]:
        """Return the last lines that the command of a run printed, the newest first."""
        most = wanted.offset + SHOWN_LINES + 1
        found = await self._ask(table.Console(id=unmark(wanted.run), lines=most, search=unmark(wanted.search)))
        lines = [[number, mark(text)] for number, text in reversed(found["lines"])]
        missing = (
            {} if found["total"] else {"missing": "trackside run --console keeps lines; of this run there are none"}
        )
        return page("lines", lines, wanted.offset, SHOWN_LINES, total=found["total"], **missing)

    async def layers(self, wanted: tools.LayersArguments) -> dict[str, Any]:
        """Return the layers of an observed model that stand out most."""
        from trackside_daemon.history.read.layers import alerts_by_layer, ranked

        kinds = (found := await self._ask(table.LayerValues(id=unmark(wanted.run))))["kinds"]
        firing = await self._ask(table.Alerts(run=found["run"], firing=True, evidence=False))
        layers = ranked(kinds, alerts_by_layer(firing["alerts"]))
        shown = [
            {
                **one,
                "layer": mark(one["layer"]),
                "alerts": [name if name in TROUBLES else mark(name) for name in one["alerts"]],
            }
            for one in layers
        ]
        missing = (
            {}
            if kinds
            else {"missing": "run.observe(model) in the training measures layers; of this run there are none"}
        )
        return page(
            "layers", shown, wanted.offset, 100, steps={kind: one["step"] for kind, one in kinds.items()}, **missing
        )

    async def wait(self, wanted: tools.WaitArguments) -> dict[str, Any]:
        """Wait for an alert, the end of the run, or a step."""
        uid = await self._resolve(wanted.run)
        begun = time.time()
        reached = await self._running().wait(uid, wanted)
        run, found = await gather(self._ask(Head(id=uid)), self._ask(table.Alerts(run=uid, evidence=False)))
        since = begun if wanted.since is None else wanted.since
        alerts = [one for one in reversed(found["alerts"]) if one["started"] >= since or one["ended"] is None]
        speak = await self._marker([uid])
        shown = {**reached, "state": run["state"], **_picked(_run(run), ("cause", "loss")), "run": identifier(uid)}
        return page("alerts", [_alert(alert, speak) for alert in alerts], 0, tools.MOST_ALERTS, **shown)

    async def capture(self, wanted: tools.CaptureArguments) -> dict[str, Any]:
        """Record a run for some steps, and return the summary as lines of text."""
        return recorded(await self._running().capture(await self._resolve(wanted.run), wanted))

    async def _resolve(self, run: str) -> str:
        return str((await self._ask(Head(id=unmark(run))))["id"])

    async def _marker(self, ids: Iterable[str]) -> Callable[[str], str]:
        """Return what marks the texts of these runs in our sentences; of an imported run, every sentence is a text of it."""
        found = await self._ask(RunTexts(run=tuple(ids)))
        return mark if found["imported"] else marker(found["texts"])

    def _running(self) -> LiveWork:
        if self._live is None:
            raise NotLiveError(
                "no daemon runs here, so there is nothing to wait for and nothing to record; start one with trackside daemon"
            )
        return self._live


def recorded(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer about a capture as the API has it."""
    reason = {"reason": mark(found["reason"])} if found["reason"] else {}
    return {"state": found["state"], "id": found["id"], **reason, "text": list(map(mark, found["text"]))}


def _curve(series: Mapping[str, Any]) -> dict[str, Any]:
    """Return a series without the times of its points."""
    points = [[step, *values] for step, _, *values in series["points"]]
    return {"key": key(series["key"]), "rank": series["rank"], "attempt": series["attempt"], "points": points}


def _picked(found: Mapping[str, Any], fields: Iterable[str]) -> dict[str, Any]:
    """Return some fields, without those that are empty."""
    return {field: found[field] for field in fields if found.get(field) not in (None, "", [], {})}


def _run(run: Mapping[str, Any]) -> dict[str, Any]:
    shown = _picked(run, shapes.RUN)
    shown["id"] = identifier(run["id"])
    for name in ("name", "cause"):
        if name in shown:
            shown[name] = mark(shown[name])
    if "tags" in shown:
        shown["tags"] = list(map(mark, shown["tags"]))
    if "summary" in shown:
        results = list(shown["summary"].items())[:8]
        shown["summary"] = [
            [mark(key), value if isinstance(value, int | float) else mark(str(value))] for key, value in results
        ]
    return shown


def _standing(
    run: Mapping[str, Any],
    listed: Mapping[str, Any],
    alerts: Iterable[Mapping[str, Any]],
    speak: Callable[[str], str],
    now: float,
) -> dict[str, Any]:
    """Return how a run stands: what stops it, how far it is, and what its end would lose."""
    attempt = run["attempt_list"][-1] if run["attempt_list"] else {}
    lowest: dict[str, Any] = next(iter(listed.get("ranks", ())), {})
    firing = [one for one in alerts if one["run"] == run["id"]]
    slows = any(one["alert"] in TROUBLES and TROUBLES[one["alert"]].group == "Speed" for one in firing)
    saved = run["checkpoint"]
    since = saved["time"] if saved else run["started"]
    return {
        **_picked(_run(run), ("id", "name", "state", "cause")),
        "health": "slow" if slows and run["health"] == "ok" else run["health"],
        **({"verdict": speak(run["verdict"])} if run["verdict"] else {}),
        **_picked({**run, **listed}, ("step", "loss", "started", "ended")),
        **_picked(attempt, ("total_steps",)),
        **({} if run["verdict"] else _picked(lowest, ("remaining_seconds",))),  # what stands still has no end
        **({"unsaved_seconds": now - since} if run["ended"] is None else {}),
        "checkpoint": _checkpoint(saved, now) if saved else None,
        "firing": [_alert(one, speak) for one in firing[-4:]],
    }


def _checkpoint(found: Mapping[str, Any], now: float) -> dict[str, Any]:
    shown = _picked(found, CHECKPOINT_FIELDS) | {"path": mark(found["path"]), "good": found["good"]}
    if "reason" in shown:
        shown["reason"] = mark(shown["reason"])
    return {**shown, "age_seconds": now - shown.pop("time")}


def _cause(cause: Mapping[str, Any], speak: Callable[[str], str]) -> dict[str, Any]:
    shown = _picked(cause, CAUSE_FIELDS) | {name: speak(cause[name]) for name in SENTENCES if cause[name]}
    if not _OWN_NAME.fullmatch(cause["cause"]):  # an alert of the training code
        shown["cause"] = mark(cause["cause"])
    return {**shown, "evidence": [speak(one["text"]) for one in cause["evidence"]]}


def _alert(alert: Mapping[str, Any], speak: Callable[[str], str]) -> dict[str, Any]:
    known = TROUBLES.get(alert["alert"])
    shown = _picked(alert, ALERT_FIELDS)
    if known is None:
        shown["alert"] = mark(alert["alert"])
    if known is None or alert["alert"] == "UserAlert":
        speak = mark
    run = {"run": identifier(alert["run"])} if alert["run"] else {}
    advice = {"advice": known.advice_of(alert["description"])} if known and alert["ended"] is None else {}
    return {**shown, **run, "summary": speak(alert["summary"]), **advice}


def _effect(effect: Mapping[str, Any], speak: Callable[[str], str]) -> dict[str, Any]:
    known = {name: value for name, value in effect.items() if value not in {None, ""}}
    if not effect["unit"]:
        known["quantity"] = key(effect["quantity"])
    return {**known, **({"unknown": speak(effect["unknown"])} if effect["unknown"] else {})}
