"""Questions about runs and their events."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from trackside_daemon.model.families.training import STATES
from trackside_daemon.questions.question import InvalidError, Limit, OfRun, Question, RunName, Seconds

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Mapping

    from trackside_daemon.history.read.reader import RunFilter
    from trackside_daemon.questions.question import Live

MOST_RUNS = 10_000
MOST_EVENTS = 10_000  # in one answer
MOST_METRICS = 100_000  # summaries of series in one answer, about 25 MB of JSON


class Runs(Question, frozen=True, kw_only=True):
    """List the runs, newest first."""

    path = "/runs"
    fields = ("runs",)
    about = (
        "metrics has the last, min and max of each metric on the run's lowest rank, as far as the history has packed "
        "them. Runs that are on /metrics have the values of their ranks. limit is at most 10000, the default; live "
        "runs are listed beyond it, unless there is another filter. next is null, or what to set after to for the runs"
        " that follow, so that no run comes twice. With query, the answer has its terms, among how many runs it chose,"
        " and in hint why it selects none, and what is near; see docs/queries.md."
    )
    name: Annotated[str, Meta(description="A part of the run's name, or the beginning of its id.")] = ""
    tag: Annotated[str, Meta(description="A tag of the run.")] = ""
    state: Annotated[str, Meta(description="The run's state.", extra={"choices": STATES})] = ""
    since: Annotated[Seconds | None, Meta(description="Only runs that began then or later.")] = None
    until: Annotated[Seconds | None, Meta(description="Only runs that began then or earlier.")] = None
    limit: Annotated[Limit, Meta(le=MOST_RUNS)] = 0
    after: Annotated[str, Meta(description="Only runs that follow this one: next of the answer before.")] = ""
    launch: Annotated[
        str, Meta(description="Only runs with this $TRACKSIDE_LAUNCH, which `trackside run` sets for its command.")
    ] = ""
    query: Annotated[
        str,
        Meta(
            max_length=1000,
            description="Only runs that this selects, such as `lr=3e-4 bs>=64 tag:sweep failed -debug older:7d`.",
        ),
    ] = ""
    config: Annotated[bool, Meta(description="Also the configuration of each run.")] = False
    metric: Annotated[tuple[str, ...], Meta(max_length=64, description="A pushed key.")] = ()

    def _read(self, connection: sqlite3.Connection, live: Live) -> dict[str, Any]:
        from trackside_daemon.history.read import reader, run_query
        from trackside_daemon.model.records import ENDED

        asked = msgspec.structs.asdict(self)
        selection = reader.RunFilter(**{name: asked[name] for name in reader.RunFilter._fields})
        limit = (not self.query and self.limit) or MOST_RUNS
        stored = reader.runs(connection, selection._replace(limit=limit + 1))
        last = stored[limit - 1]["id"] if len(stored) > limit else None
        runs = _merged(connection, stored[:limit], live.runs(), selection)
        if self.after and not self.query and not any(selection._replace(limit=0, after="")):
            # Without a filter, all live ones came with the first answer.
            alive = {run["id"] for run in live.runs() if run["state"] not in ENDED}
            runs = [run for run in runs if run["id"] not in alive]
        answer: dict[str, Any] = {"next": last}
        if self.query:
            among = len(runs)
            try:
                terms = run_query.parse(self.query)
                runs, hint = run_query.select(connection, terms, runs)
            except run_query.QueryError as error:
                raise InvalidError(f"query: {error}") from None
            most = self.limit or MOST_RUNS
            answer["next"] = runs[most - 1]["id"] if len(runs) > most else last
            runs = runs[:most]
            answer |= {"terms": [term.text for term in terms], "among": among, "hint": hint}
        more: dict[str, Mapping[str, Any]] = {}
        if self.config:
            more["config"] = run_query.configurations(connection)
        if self.metric:
            values = run_query.values(connection, list(dict.fromkeys(self.metric)))
            more["metrics"] = {run["id"]: values.get(run["id"], {}) for run in runs}
        listed = [{**run, **{name: of_run.get(run["id"]) for name, of_run in more.items()}} for run in runs]
        return {"runs": listed, **answer}


class Fleet(Question, frozen=True, kw_only=True):
    """List the runs of all machines, newest first: live ones from a server, ended ones from the archive."""

    path = "/fleet"
    fields = ("runs",)
    reads = False
    about = (
        "Runs are as in /runs, each with its hosts, and as url the address of its page at its daemon. problems names each engine "
        "whose runs are missing: fleet.prometheus.url has the live runs, bridges.parquet.url the ended ones. notes names each that "
        "has not answered yet; ask again a second later."
    )
    query: Annotated[str, Meta(max_length=1000, description="Only runs that this selects; see docs/queries.md.")] = ""

    def complete(self, _found: dict[str, Any], live: Live) -> dict[str, Any]:
        """Return the answer of others than the history."""
        try:
            return live.fleet(self.query)
        except ValueError as error:
            raise InvalidError(f"query: {error}") from None


class Keys(Question, frozen=True, kw_only=True):
    """List the keys that runs have pushed, those of the most runs first."""

    path = "/keys"
    fields = ("keys",)

    def _read(self, connection: sqlite3.Connection, _live: Live) -> dict[str, Any]:
        from trackside_daemon.history.read import run_query

        return {"keys": run_query.keys(connection)}


class Run(OfRun, frozen=True, kw_only=True):
    """Return everything about a run except its samples."""

    path = "/runs/{id}"
    fields = ("id",)
    about = (
        "series is the number of the run's series; metrics are limit of them, the lowest ranks and their newest "
        "attempts first. Of an attempt, phases are seconds by phase and rank, lost those that are not useful compute, "
        "by rank and account, and step_seconds the mean duration of a step, without evaluation and checkpoints. "
        "verdict says in a sentence what stops the run (it failed, stands still, has diverged or is damaged), and is "
        "empty if nothing does. goodput is the share of useful compute in the run's time, and lost the shares of the "
        "other accounts, as means over the ranks; they are absent if the run reported nothing of its time. mfu is the "
        "model's FLOPs over what the GPUs could have done during its attempts. reinforcement, null for other "
        "trainings, has the key of each quantity with a factor of its values, and the ranks' seconds by role. trends "
        "are those of /diagnosis for the loss and the step time."
    )
    limit: Annotated[int, Meta(le=MOST_METRICS, description="At most so many metrics.")] = 5000
    offset: Annotated[int, Meta(le=999_999_999, description="Number of metrics to skip.")] = 0

    def _read(self, connection: sqlite3.Connection, _live: Live) -> dict[str, Any]:
        from trackside_daemon.diagnosis.accounts import read_run
        from trackside_daemon.diagnosis.diagnosis import trends

        uid = self.uid(connection)
        return {**read_run(connection, uid, self.limit, self.offset), "trends": trends(connection, uid)}


class Head(OfRun, frozen=True, kw_only=True):
    """Return a run without its series and without where its time went, in a moment; agents ask, and the API does not."""

    def _read(self, connection: sqlite3.Connection, _live: Live) -> dict[str, Any]:
        from trackside_daemon.history.read import reader

        return reader.head(connection, self.uid(connection))


class Standing(OfRun, frozen=True, kw_only=True):
    """Return a run as of `Head`, what stops it, and its newest intact checkpoint; agents ask, and the API does not."""

    def _read(self, connection: sqlite3.Connection, _live: Live) -> dict[str, Any]:
        from trackside_daemon.causes.verdict import read_verdict
        from trackside_daemon.checkpoints.overview import overview
        from trackside_daemon.history.read import reader

        uid = self.uid(connection)
        found = read_verdict(connection, uid)
        saved = [one for one in overview(connection, uid)["checkpoints"] if one["state"] == "complete"]
        saved.sort(key=lambda one: one["good"])  # one that no audit has read may be damaged
        health = "broken" if found.broken else "slow" if found.text else "ok"
        last = saved[-1] if saved else None
        return {**reader.head(connection, uid), "verdict": found.text, "health": health, "checkpoint": last}


class RunTexts(Question, frozen=True, kw_only=True):
    """Return the texts that a training chose, and what is wholly of others, as is an imported run; agents ask, and the API does not."""

    run: tuple[str, ...]  # ids of runs

    def _read(self, connection: sqlite3.Connection, _live: Live) -> dict[str, Any]:
        from trackside_daemon.history.read import reader, text_reader

        heads = [reader.head(connection, uid) for uid in dict.fromkeys(self.run)]
        found = [text_reader.texts(connection, head) for head in heads]
        return {
            "texts": sorted({text for texts in found for text in texts}),
            "imported": [head["id"] for head in heads if text_reader.is_imported(connection, head["id"])],
        }


class Events(Question, frozen=True, kw_only=True):
    """List events, oldest first."""

    path = "/events"
    fields = ("events",)
    about = "limit is at most 10000."
    run: RunName = ""
    limit: Annotated[Limit, Meta(le=MOST_EVENTS)] = 1000

    def _read(self, connection: sqlite3.Connection, _live: Live) -> dict[str, Any]:
        from trackside_daemon.history.read import reader

        uid = reader.resolve(connection, self.run) if self.run else ""
        return {"events": reader.events(connection, uid, self.limit)}


def _merged(
    connection: sqlite3.Connection, stored: list[dict[str, Any]], live: list[dict[str, Any]], selection: RunFilter
) -> list[dict[str, Any]]:
    """Return the list from the history with the current values of live runs.

    Without a filter it has all live runs: those that are not written yet come first, those that the limit cut off last.
    """
    from trackside_daemon.history.read import reader
    from trackside_daemon.model.records import ENDED

    current_runs = {run["id"]: run for run in live}
    if not any(selection._replace(limit=0)):
        alive = [uid for uid, run in current_runs.items() if run["state"] not in ENDED]
        cut_off = set(alive).difference(run["id"] for run in stored)
        stored += reader.runs(connection, among=cut_off) if cut_off else []
        unwritten = cut_off.difference(run["id"] for run in stored)
        stored = [*(_unwritten(current_runs[uid]) for uid in alive if uid in unwritten), *stored]
    for run in stored:
        current = current_runs.get(run["id"])
        if current is None or current["attempt"] != run["attempt"]:
            run["ranks"] = []
            continue
        run.update(current)
        ranks = [rank for rank in current["ranks"] if "step" in rank]
        if ranks:
            run["step"] = max(int(rank["step"]) for rank in ranks)
            run["loss"] = next((rank["loss"] for rank in ranks if rank.get("loss") is not None), None)
    return stored


def _unwritten(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the list has of a run that is not in the history, as long as that is not known from its ranks."""
    started = min((rank["started"] for rank in run["ranks"] if "started" in rank), default=time.time())
    absent = dict.fromkeys(("ended", "step", "loss"))
    return {"cause": "", "started": started, **absent, "tags": [], "pinned": False, "summary": {}, "notes": "", **run}
