"""The runs of all machines come from a real Prometheus or VictoriaMetrics and from an archive; one that is down costs itself."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
import time
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bridges.test_real_servers import free_port
from end_to_end.prometheus import Prometheus
from http_service import HttpService
from processes import eventually, terminated
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from trackside_daemon.bridges import fleet as fleet_module
from trackside_daemon.bridges.fleet import FIRST_QUERIES, QUERIES, Fleet, joined
from trackside_daemon.bridges.parquet import fleet as archived_module
from trackside_daemon.bridges.parquet.layout import schemas
from trackside_daemon.bridges.settings import FleetSection, PrometheusSection
from trackside_daemon.history.read.run_query import QueryError
from trackside_daemon.model.families import training as f
from trackside_daemon.model.metric import Batch, Sample
from trackside_daemon.model.state import State
from trackside_daemon.web.api.state_json import live_runs
from trackside_daemon.web.exposition import render

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from starlette.requests import Request

NOW = time.time()


class Machine:
    """A daemon's page, and its own list of runs."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.state = State()
        self._samples: list[Sample] = []
        self.service = HttpService(Starlette(routes=[Route("/metrics", lambda _: Response(self.page))]))

    @property
    def page(self) -> bytes:
        return render(self.state.snapshot(0.0), openmetrics=False)

    def run(self, name: str, ranks: range, state: str = "running", key: str = "loss") -> Machine:
        about = {
            "run": name,
            "run_id": f"{name}-id",
            "attempt": "1",
            "world_size": "4",
            "host": self.host,
            "user": "ann",
        }
        info = tuple(about.get(label, "") for label in f.RUN_INFO.labels)
        self._samples += [
            Sample(f.RUN_INFO, info, 1),
            *(Sample(f.STATE, (name, one), float(one == state)) for one in f.STATES),
        ]
        for rank in ranks:
            of = name, str(rank)
            family, labels = (f.KNOWN["loss"], of) if key == "loss" else (f.VALUE, (*of, key))
            self._samples += [
                Sample(f.STEP, of, 100.0 + rank),
                Sample(family, labels, 2.5 + rank),
                Sample(f.STARTED, of, NOW - 60),
            ]
            self._samples += [Sample(f.ENDED_AT, of, NOW)] if state == "failed" else []
        self.state.update(Batch("training", self._samples))
        return self

    def listed(self) -> dict[str, tuple[Any, ...]]:
        """Return state, highest step and loss of each run, as the daemon's own page has them."""
        return {
            run["id"]: (run["state"], max(int(rank["step"]) for rank in run["ranks"]), run["ranks"][0].get("loss"))
            for run in live_runs(self.state, 0.0)
        }


@pytest.fixture
def machines() -> Iterator[list[Machine]]:
    one = Machine("node1").run("llama", range(2)).run("other", range(1), key="loss/train")
    both = [one, Machine("node2").run("llama", range(2, 4)).run("dead", range(1), "failed")]
    yield both
    for machine in both:
        machine.service.server.stop()


@contextmanager
def victoria_metrics(directory: Path, targets: list[str]) -> Iterator[str]:
    config = directory / "scrape.json"
    static = [{"job_name": "t", "static_configs": [{"targets": targets}]}]
    config.write_text(json.dumps({"global": {"scrape_interval": "1s"}, "scrape_configs": static}))
    address = f"127.0.0.1:{free_port()}"
    flags = [f"-storageDataPath={directory / 'data'}", f"-httpListenAddr={address}", f"-promscrape.config={config}"]
    with subprocess.Popen(
        ["victoria-metrics", *flags, "-search.latencyOffset=0s"], stderr=subprocess.DEVNULL
    ) as process:
        try:
            yield f"http://{address}"
        finally:
            terminated(process)


def archived(place: Path, run: str, **values: Any) -> None:
    schema = schemas()["runs"]
    began = datetime(2026, 11, 1, tzinfo=timezone.utc)
    row = dict.fromkeys(schema.names) | {
        "run": run,
        "name": run,
        "host": "node2",
        "state": "finished",
        "started": began,
    }
    row |= {"ended": began, "tags": ["sweep"], "config": '{"lr": 0.001}', "loss": 1.5, "step": 9, **values}
    folder = place / "runs" / "date=2026-11-01" / "name=a"
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist([row], schema=schema), folder / f"{run}@node2-00.1.parquet")


def listed(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {run["id"]: run for run in found["runs"]}


def numbers(runs: dict[str, dict[str, Any]]) -> dict[str, tuple[Any, ...]]:
    return {id_: (run["state"], run["step"], run["loss"]) for id_, run in runs.items()}


def fleet_of(url: str) -> Fleet:
    return Fleet(FleetSection(prometheus=PrometheusSection(url=url)), "")


def check_live(url: str, machines: list[Machine], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_module, "LIVE_SECONDS", (0.0, 60.0))
    fleet = fleet_of(url)
    runs = eventually(lambda: (found := listed(fleet.runs())).keys() == {"llama-id", "other-id", "dead-id"} and found)
    one, two = machines
    assert eventually(lambda: listed(fleet.runs())["llama-id"]["host"] == "node1, node2")
    own = {**two.listed(), **one.listed()}
    own["llama-id"] = (*own["llama-id"][:1], 103, 2.5)  # the highest step of both, and the loss of the lowest rank
    assert eventually(lambda: numbers(listed(fleet.runs())) == own)
    runs = listed(fleet.runs())
    assert runs["llama-id"]["url"] == f"{one.service.url}/runs/llama-id"
    assert runs["dead-id"]["url"] == f"{two.service.url}/runs/dead-id"
    assert [runs["dead-id"]["ended"], runs["llama-id"]["ended"]] == [pytest.approx(NOW, abs=1), None]
    assert listed(fleet.runs("failed")).keys() == {"dead-id"}
    assert listed(fleet.runs("host=node1 live")).keys() == {"other-id"}
    assert fleet.runs("name=lama")["hint"].startswith("no run has name=lama")
    with pytest.raises(QueryError):
        fleet.runs('"')


def test_prometheus_has_the_numbers_of_each_daemon(
    machines: list[Machine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = {"other": {"static_configs": [{"targets": [machines[1].service.url.partition("://")[2]]}]}}
    with Prometheus(tmp_path, machines[0].service.url, jobs=other) as prometheus:
        check_live(prometheus.url, machines, monkeypatch)


@pytest.mark.usefixtures("only_soak")
def test_victoria_metrics_has_them_too(
    machines: list[Machine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    targets = [machine.service.url.partition("://")[2] for machine in machines]
    with victoria_metrics(tmp_path, targets) as url:
        eventually(lambda: not fleet_of(url).runs()["problems"])
        check_live(url, machines, monkeypatch)


def test_an_engine_that_is_down_costs_only_its_own_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    archived(tmp_path, "old")
    archived(tmp_path, "older", config='{"lr": 0.1}', state="failed")
    archived(tmp_path, "large", config=f'{{"lr": 0.1, "text": "{"x" * 5_000_000}"}}')
    archived(tmp_path, "deep", config="[" * 100_000)
    (tmp_path / "runs" / "date=2026-11-01" / "name=a" / "bad@node2-00.1.parquet").write_bytes(b"no file of Parquet")
    url = f"http://127.0.0.1:{free_port()}"
    fleet = Fleet(FleetSection(prometheus=PrometheusSection(url=url), daemon_url="https://{instance}/t"), ".")
    assert "The archive is being read" in fleet.runs()["notes"]
    found = eventually(lambda: (answer := fleet.runs())["runs"] and answer)
    assert listed(found).keys() == {"old", "older", "large", "deep"}
    down, left_out = found["problems"]
    assert down.startswith(f"Live runs are missing: {url}")
    assert "bad@node2-00.1.parquet" in left_out
    assert listed(fleet.runs("lr=1e-3 tag:sweep")).keys() == {"old"}
    assert listed(fleet.runs())["old"]["url"] == "https://node2:21790/t/runs/old"


def test_of_an_archive_the_newest_runs_have_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for day in range(1, 5):
        archived(tmp_path, f"day{day}", started=datetime(2026, 10, day, tzinfo=timezone.utc))
    monkeypatch.setattr(archived_module, "ANSWER_BYTES", archived_module.SPARE_BYTES + 550)
    found = archived_module.read(str(tmp_path))
    assert [run["id"] for run in found.runs] == ["day4", "day3"]
    assert found.left_out == ["2 runs for which there is no room"]


@contextmanager
def server(samples: Callable[[str], list[tuple[dict[str, str], str]]]) -> Iterator[Fleet]:
    """Yield the fleet of a server that answers each query of a name with some series and their values."""

    def answer(request: Request) -> Response:
        known = [*QUERIES.items(), *FIRST_QUERIES.items()]
        of = next(one for one, text in known if text == request.query_params["query"])
        found = [{"metric": labels, "value": [1, value]} for labels, value in samples(of)]
        return Response(json.dumps({"status": "success", "data": {"result": found}}))

    service = HttpService(Starlette(routes=[Route("/api/v1/query", answer)]))
    try:
        yield fleet_of(service.url)
    finally:
        # The second answer may be under way, and a server that stops meanwhile leaves its connections open.
        eventually(lambda: not [one for one in threading.enumerate() if one.name.startswith("trackside-fleet")])
        service.server.stop()


@pytest.mark.parametrize("name", ["attempt", "ended", "rank", "started", "step", "loss", "other losses"])
def test_a_target_with_impossible_numbers_is_listed_without_them(name: str) -> None:
    labels = {"run": "r", "run_id": "id", "instance": "a:1", "state": "failed", "rank": "0", "attempt": "2"}
    labels |= {name: "9" * 5000} if name in labels else {}
    value = "none" if "loss" in name else "NaN"
    with server(lambda of: [(labels, "1" if of != name else value)]) as fleet:
        (run,) = eventually(lambda: fleet.runs()["runs"])
        assert run["id"] == "id"
        json.dumps(run, allow_nan=False)
        fleet.runs("duration>1")


def test_a_server_with_unreadable_answers_is_named_and_not_asked_again_at_once() -> None:
    asked: list[str] = []

    def answer(request: Request) -> Response:
        asked.append(request.query_params["query"])
        return Response('{"status": "success", "data": {"more": ' + "[" * 50_000 + "]" * 50_000 + "}}")

    service = HttpService(Starlette(routes=[Route("/api/v1/query", answer)]))
    try:
        fleet = fleet_of(service.url)
        (problem,) = eventually(lambda: fleet.runs()["problems"])
        known = len(asked)
        assert problem.startswith("Live runs are missing: ")
        assert fleet.runs()["problems"] == [problem]
        assert len(asked) == known
    finally:
        service.server.stop()


def test_two_clusters_with_equal_hosts_and_names_keep_their_numbers() -> None:
    def samples(of: str) -> list[tuple[dict[str, str], str]]:
        own = {
            "info": {"host": "node1", "exported_host": "node1"},
            "loss": {"rank": "0"},
            "state": {"state": "running"},
        }
        target = {"run": "llama", "instance": "node1:21790"}
        return [
            ({**target, **own.get(of, {}), "cluster": one, **({"run_id": one} if of == "info" else {})}, str(number))
            for number, one in enumerate(("a", "b"))
        ]

    with server(samples) as fleet:
        runs = eventually(lambda: listed(fleet.runs()))
    assert {one: (run["step"], run["loss"], run["started"]) for one, run in runs.items()} == {
        "a": (0, 0.0, 0.0),
        "b": (1, 1.0, 1.0),
    }


def test_of_a_run_that_has_ended_the_archive_has_the_numbers() -> None:
    live = {"id": "a", "state": "failed", "attempt": 2, "loss": None}
    assert joined([live, {**live, "loss": 1.5}]) == [{**live, "loss": 1.5}]
    again = {**live, "attempt": 3}
    assert joined([again, live]) == [again]
    running = {**live, "state": "running"}
    assert joined([running, live]) == [running]


def test_no_request_waits_for_a_server_that_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_module, "PATIENCE_SECONDS", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        fleet = fleet_of(f"http://127.0.0.1:{silent.getsockname()[1]}")
        found = [fleet.runs() for _ in range(2)]
        assert [(one["runs"], one["problems"], one["notes"]) for one in found] == [
            ([], [], ["Live runs are being read"])
        ] * 2


def test_an_archive_that_is_missing_is_named(tmp_path: Path) -> None:
    fleet = Fleet(FleetSection(), str(tmp_path / "none"))
    missing = eventually(
        lambda: [text for text in fleet.runs()["problems"] if text.startswith("Ended runs are missing")]
    )
    assert "no archived runs" in missing[0]
    assert Fleet(FleetSection(), "").runs()["problems"] == [
        "Set fleet.prometheus.url, the address of a Prometheus-compatible server"
    ]
