"""Wait for events of runs: one poll a second for all who wait, and none while nobody does."""

import asyncio
import sqlite3
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from trackside_daemon.history.database import Database
from trackside_daemon.model.records import ENDED
from trackside_daemon.model.state import State
from trackside_daemon.web.api.overview.runs import TwoClocks, visible_runs

PERIOD = 1.0
RUNS = 500  # runs in one query; SQLite has a limit of parameters


class RunNow(NamedTuple):
    """The state, the step, and the start of the newest alert of a run; None for what is unknown."""

    state: str
    step: int | None
    alerted: float | None


class WaitCondition(NamedTuple):
    """The events that end a wait."""

    alert: float | None  # an alert that began at this Unix time or later; None for no alert
    end: bool  # the end of the run
    step: int | None  # this step or a later one; None for no step

    def reason(self, now: RunNow) -> str:
        """Return what has happened; empty while nothing has."""
        if self.alert is not None and now.alerted is not None and now.alerted >= self.alert:
            return "alert"
        if self.step is not None and now.step is not None and now.step >= self.step:
            return "step"
        return "end" if now.state in ENDED and (self.end or self.step is not None) else ""


class _Waiter(NamedTuple):
    condition: WaitCondition
    found: asyncio.Future[tuple[str, RunNow]]


class Waits:
    """All who wait for events. All methods but `stop` run in the server's event loop.

    Args:
        poll: Returns the runs with these ids as they are now, in a thread.
        period: Seconds between polls.
    """

    def __init__(self, poll: Callable[[Collection[str]], Mapping[str, RunNow]], period: float = PERIOD) -> None:
        self._poll = poll
        self._period = period
        self._waiters: dict[str, set[_Waiter]] = {}
        self._checked: dict[str, RunNow] = {}  # by run, what all who wait for it have been checked against
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped = False

    async def wait(self, run: str, condition: WaitCondition, seconds: float) -> tuple[str, int | None]:
        """Wait for so many seconds at most; return the reason, or ``timeout``, and the run's step."""
        self._loop = asyncio.get_running_loop()
        waiter = _Waiter(condition, self._loop.create_future())
        self._waiters.setdefault(run, set()).add(waiter)
        self._checked.pop(run, None)
        if self._task is None:
            self._task = asyncio.ensure_future(self._run())
        try:
            await asyncio.wait((waiter.found,), timeout=0 if self._stopped else seconds)
            if waiter.found.done():
                reason, now = waiter.found.result()
                return reason, now.step
            now_or_none = (await asyncio.to_thread(self._poll, [run])).get(run)
            return (now_or_none and condition.reason(now_or_none)) or "timeout", now_or_none and now_or_none.step
        finally:
            self._waiters[run].discard(waiter)
            if not self._waiters[run]:
                del self._waiters[run]
                self._checked.pop(run, None)

    def stop(self) -> None:
        """End all waits; callable from any thread."""
        self._stopped = True
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed, so nobody waits
                self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        for waiter in set().union(*self._waiters.values()):
            if not waiter.found.done():
                waiter.found.set_result(("stopping", RunNow("", None, None)))

    async def _run(self) -> None:
        try:
            while self._waiters:
                with suppress(sqlite3.Error):  # the history may be busy: the next poll reads it
                    self._check(await asyncio.to_thread(self._poll, list(self._waiters)))
                await asyncio.sleep(self._period)
        finally:
            self._task = None

    def _check(self, runs: Mapping[str, RunNow]) -> None:
        for run, waiters in self._waiters.items():
            now = runs.get(run)
            if now is None or now == self._checked.get(run):
                continue
            self._checked[run] = now
            for waiter in waiters:
                if not waiter.found.done() and (reason := waiter.condition.reason(now)):
                    waiter.found.set_result((reason, now))


def poll_runs(state: State, database: Database, ids: Collection[str]) -> dict[str, RunNow]:
    """Return the runs with these ids, as they are now."""
    visible = visible_runs(state, TwoClocks(time.monotonic(), time.time()))
    steps = {run.attempt[0]: int(max(run.ranks[1].values())) for run in visible if run.ranks[1]}  # STEP of `GAUGES`
    wanted = list(ids)
    found: dict[str, RunNow] = {}
    with database.reading() as connection:
        for begin in range(0, len(wanted), RUNS):
            part = wanted[begin : begin + RUNS]
            rows: list[tuple[Any, ...]] = connection.execute(
                "SELECT uid, state, step, (SELECT max(started) FROM alert WHERE alert.run = run.id) FROM run "  # noqa: S608
                f"WHERE uid IN ({', '.join('?' * len(part))})",
                part,
            ).fetchall()
            for uid, state_name, step, alerted in rows:
                live = steps.get(uid)
                found[uid] = RunNow(state_name, step if live is None else live, alerted)
    return found
