"""The HTTP application over a state, without a socket."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from scripted_recorder import CapturesHarness
from web.documented import undocumented
from wire_messages import RunsHarness

from trackside_daemon.alerts.firing_alerts import FiringAlerts
from trackside_daemon.alerts.silences import Silences
from trackside_daemon.alerts.test_alert import AlertTester
from trackside_daemon.checkpoints.audit.request import MODULE, Audited, Scanned
from trackside_daemon.checkpoints.checkpoints import CheckpointFollower
from trackside_daemon.checkpoints.settings import CheckpointSection
from trackside_daemon.diagnosis.settings import CostSection
from trackside_daemon.history.record.trimming import Bounds
from trackside_daemon.history.recorder import HistoryRecorder
from trackside_daemon.linux.worker_call import CallWorker
from trackside_daemon.model.families import host
from trackside_daemon.model.metric import Batch, Sample
from trackside_daemon.nvml.handle.handle import Nvml
from trackside_daemon.questions.question import Live
from trackside_daemon.web.api.agents import AgentsApi
from trackside_daemon.web.api.alerts import AlertsApi
from trackside_daemon.web.api.captures import CapturesApi
from trackside_daemon.web.api.daemon import DaemonApi, GpuApi
from trackside_daemon.web.api.history import HistoryApi
from trackside_daemon.web.api.history_access import CHANGE_TIMEOUT, HistoryAccess
from trackside_daemon.web.api.machine_history import MachineApi, MachineHistory
from trackside_daemon.web.api.openapi import document
from trackside_daemon.web.api.overview.handlers import SEND_TIMEOUT, OverviewApi
from trackside_daemon.web.api.overview.overview import Overview
from trackside_daemon.web.api.overview.rates import RateTracker
from trackside_daemon.web.api.processes import ProcessesApi
from trackside_daemon.web.api.state_json import live_runs
from trackside_daemon.web.api.waits import Waits, poll_runs
from trackside_daemon.web.app import WebApp
from trackside_daemon.web.http.auth_token import Token

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from starlette.types import ASGIApp

    from trackside_daemon.collectors.process.process import TrainingProcess
    from trackside_daemon.model.records import Record
    from trackside_daemon.model.state import State

BASE = "http://127.0.0.1:21790"


class Client:
    """A client of an ASGI application."""

    def __init__(self, app: ASGIApp) -> None:
        self.transport = httpx.ASGITransport(app=app)

    def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        async def once() -> httpx.Response:
            async with httpx.AsyncClient(transport=self.transport, base_url=BASE) as client:
                return await client.request(method, path, **options)

        answer = asyncio.run(once())
        if answer.status_code == 200 and path.startswith("/api/v1/"):
            assert undocumented(method, path, answer) == [], f"{method} {path}: see web/api/answers.yaml"
        return answer

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.ask("GET", path, **options)


class Site:
    """Pages, and the token that opens them.

    Attributes:
        wrong: What a reload finds wrong.
        ready: Whether the first samples are there.
        reloads: How often it was reloaded.
        nvml: A real handle, from which nothing reads.
        forgotten: How often the GPUs were to be forgotten.
        history: A real one, on disk.
        recorded: Captures of it.
        checkpoints: Those that are followed: none.
        silences: Those that last.
        trial: Raises test alerts.
        pushed: What the pipeline was given.
        followed: What is followed from tick to tick.
        firing: What fires.
        overview: Made of all of it.
        pages: Those that show it, of the last client.
    """

    def __init__(self, directory: Path, state: State) -> None:
        self.state = state
        self.pushed: list[Batch] = []
        self.token = Token(directory / "push.token", directory / "api.token")
        self.wrong = ""
        self.ready = True
        self.agent_actions = False
        self.reloads = 0
        self.nvml = Nvml()
        self.forgotten = 0
        self.processes: tuple[TrainingProcess, ...] = ()
        state.update(Batch("cpu", [Sample(host.CPUS, (), 4.0)]))
        self.speaking: tuple[frozenset[int], list[Any]] = (frozenset(), [])
        self.history = HistoryRecorder(directory, Bounds(0))
        self.recorded = CapturesHarness(self.history.database, self.history.writer)
        self.checkpoints = CheckpointFollower(
            CheckpointSection(),
            "",
            tuple,
            self.pushed.append,
            auditing=CallWorker(MODULE, Audited),
            scanning=CallWorker(MODULE, Scanned),
        )
        self.silences = Silences()
        self.trial = AlertTester()
        self.history.start()
        self.rates = RateTracker(state)
        self.firing = FiringAlerts()
        self.machine = MachineHistory(state, bytes)
        self.overview = Overview(state, self.rates, self.firing, self.history.database)

    def ask(self, kind: str, run: str) -> tuple[frozenset[int], list[Any]]:
        """Return the prepared answers of a run's ranks."""
        self.asked = kind, run
        return self.speaking

    def ask_layers(self, run: str, steps: int) -> frozenset[int]:
        """Return the ranks that received the request."""
        self.asked = run, str(steps)
        return self.speaking[0]

    def keep(self, *records: Record | Sequence[Record]) -> None:
        """Write records to the history and wait until they are committed."""
        for one in records:
            self.history.writer.put(one if isinstance(one, list) else [one])  # type: ignore[list-item]
        self.history.writer.call(lambda _: None).result(60)

    def _forget(self) -> None:
        self.forgotten += 1

    def _reload(self) -> str:
        self.reloads += 1
        return self.wrong

    def client(
        self,
        *,
        lifecycle: bool = False,
        public_read: bool = False,
        hosts: tuple[str, ...] = (),
        any_host: bool = False,
        origins: tuple[str, ...] = (),
        change_timeout: float = CHANGE_TIMEOUT,
        send_timeout: float = SEND_TIMEOUT,
    ) -> Client:
        live = Live(
            prices=CostSection,
            straggler_ratio=lambda: 1.25,
            runs=lambda: live_runs(self.state, time.monotonic()),
            captures=self.recorded.captures.known,
            silences=self.silences.active,
        )
        kept = HistoryAccess(self.history.database, self.history.writer, live, change_timeout)
        self.pages = OverviewApi(self.state, kept, self.overview, send_timeout)
        captures = CapturesApi(self.recorded.captures, kept, lambda _: 0)
        waits = Waits(partial(poll_runs, self.state, self.history.database))
        pages = WebApp(
            self.state,
            sources=["cpu", "memory", "training"],
            ready=lambda: self.ready,
            access=kept,
            apis=[
                DaemonApi(lambda: {"version": "1"}, self.token, self.pages.disconnect, document),
                HistoryApi(kept, self.ask, self.ask_layers, audit=self.checkpoints.audit_again),
                AlertsApi(kept, self.silences, self.trial, self.pushed.extend, ["GpuHot", "GpuLost", "LossSpike"]),
                captures,
                AgentsApi(kept, captures, waits, actions=self.agent_actions),
                GpuApi(self.nvml, self._forget),
                MachineApi(self.machine, kept),
                ProcessesApi(lambda: self.processes, self.state, Path("/proc")),
                self.pages,
            ],
            reload=self._reload if lifecycle else None,
        )
        named = partial(pages.build, token=self.token, hosts=hosts, origins=origins)
        return Client(named(public_read=public_read, any_host=any_host))

    @property
    def key(self) -> dict[str, str]:
        """Return the header with the API token."""
        return {"Authorization": f"Bearer {self.token.value}"}


@pytest.fixture
def house() -> RunsHarness:
    return RunsHarness()


@pytest.fixture
def site(place: Path, house: RunsHarness) -> Iterator[Site]:
    site = Site(place, house.state)
    yield site
    site.history.stop()
    site.history.close()


@pytest.fixture
def client(site: Site) -> Client:
    """Return a client without a token."""
    return site.client()


@pytest.fixture
def api(site: Site) -> Callable[[str], Any]:
    """Return a function that gets JSON from the API, with the token."""
    return lambda path: site.client().get(f"/api/v1/{path}", headers=site.key).json()
