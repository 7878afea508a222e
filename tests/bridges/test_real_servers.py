"""The real targets, which `make soak` installs: servers of MLflow, Prometheus and VictoriaMetrics with OTLP, W&B's client."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from bridges.extras import put_extras
from bridges.wandb_server import WandbServer
from end_to_end.queries import Queries
from histories import BEGIN, finished, history, ingested, opened
from metrics_page import Page
from processes import DEADLINE, ROOT, eventually, http, require, terminated

import trackside
from trackside_daemon.bridges.finding import find_runs
from trackside_daemon.bridges.mirrors import worker
from trackside_daemon.bridges.mirrors.positions import Positions, RankKey
from trackside_daemon.bridges.mirrors.supervisor import Mirrors
from trackside_daemon.bridges.mirrors.target import make_target
from trackside_daemon.bridges.mirrors.worker import Mirror
from trackside_daemon.bridges.settings import BridgesSection, WandbSection
from trackside_daemon.bridges.wandb import mirror as wandb_mirror
from trackside_daemon.bridges.wandb.log_run import LogRun
from trackside_daemon.history.files.items import Push
from trackside_daemon.http_client import http_request
from trackside_daemon.model.families import daemon as daemon_families

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from histories import History
    from processes import Daemon

pytestmark = [
    pytest.mark.filterwarnings(
        "ignore:The '.*' attribute with value:UserWarning"
    ),  # W&B's older client, newer pydantic
    pytest.mark.filterwarnings(
        "ignore:subprocess .* is still running:ResourceWarning"
    ),  # it has no other end of its service
]

SERVERS = ROOT / "build" / "servers" / "usr" / "bin"
"""Prometheus and VictoriaMetrics of Debian 13, where those of the system are too old; the Makefile fetches them."""

LOGGED = """
import json, math, sys
import mlflow
client, uri = mlflow.MlflowClient(sys.argv[1]), sys.argv[1]
mlflow.set_tracking_uri(uri)
mlflow.set_experiment("e")
with mlflow.start_run(run_name="r", tags={"team": "x"}) as run:
    mlflow.log_params({"lr": 0.1, "depth": 3})
    for step in range(200):
        mlflow.log_metrics({"loss": 1 / (step + 1), "eval/acc": step / 200}, step=step)
    for step, value in enumerate((math.nan, math.inf, -math.inf)):
        mlflow.log_metric("odd", value, step=step)
# A database of MLflow has the largest number in place of an infinity.
shown = lambda x: repr(math.copysign(math.inf, x) if abs(x) == sys.float_info.max else x)
found = {key: sorted((m.timestamp, m.step, shown(m.value)) for m in client.get_metric_history(run.info.run_id, key))
         for key in ("loss", "eval/acc", "odd")}
print(json.dumps([run.info.run_id, found]))
"""


@pytest.fixture(autouse=True)
def _only_in_soak(request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("--soak"):
        pytest.skip("make soak installs the servers of other tools")


@pytest.fixture(autouse=True)
def _own_service() -> Iterator[None]:
    """End the service process of W&B's client, which keeps the settings of the test before."""
    yield
    if "wandb" in sys.modules:
        wandb_mirror._end_service(sys.modules["wandb"])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def process(*command: str, ready: str, end: int = signal.SIGKILL, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Start a server, and wait until an address answers."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **options}
    started = subprocess.Popen(command, start_new_session=True, **quiet)
    try:
        eventually(lambda: started.poll() is not None or _answers(ready))
        assert started.poll() is None, f"{command[0]} did not start"
        yield started
    finally:
        os.killpg(started.pid, end)
        started.wait(DEADLINE)


def _answers(url: str) -> bool:
    try:
        return http.get(url).status_code < 500
    except OSError:
        return False
    except Exception as error:
        if "Connect" in type(error).__name__ or "Remote" in type(error).__name__:
            return False
        raise


def mlflow_python() -> str:
    require("mlflow")
    return sys.executable


@contextmanager
def mlflow_server(store: str, port: int, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    command = (
        mlflow_python(),
        "-m",
        "mlflow",
        "server",
        "--backend-store-uri",
        store,
        "--port",
        str(port),
        "--workers",
        "1",
        *options,
    )
    with process(*command, ready=f"http://127.0.0.1:{port}/health") as started:
        yield started


def stored(place: str) -> dict[str, list[list[Any]]]:
    """Return time in milliseconds, step and value of each key of the only run at a place."""
    (run,) = find_runs(place, {})
    found: dict[str, list[list[Any]]] = {}
    for item in run.items():
        if isinstance(item, Push):
            for key, value in zip(item.keys, item.values, strict=True):
                found.setdefault(key, []).append([item.time // 1000, item.step, repr(value)])
    return {key: sorted(samples) for key, samples in found.items()}


def test_stores_of_mlflow_are_read_as_its_client_reads_them(tmp_path: Path) -> None:
    port = free_port()
    with mlflow_server(f"sqlite:///{tmp_path}/server.db", port):
        places = {
            f"file://{tmp_path}/mlruns": str(tmp_path / "mlruns"),
            f"sqlite:///{tmp_path}/own.db": str(tmp_path / "own.db"),
            f"http://127.0.0.1:{port}": f"http://127.0.0.1:{port}",
        }
        for uri, place in places.items():
            environ = {**os.environ, "MLFLOW_ALLOW_FILE_STORE": "true"}
            done = subprocess.run(
                [mlflow_python(), "-W", "ignore", "-c", LOGGED, uri],
                cwd=tmp_path,
                env=environ,
                capture_output=True,
                text=True,
                check=True,
            )
            run, wanted = json.loads(done.stdout.splitlines()[-1])
            assert stored(place) == wanted, uri
            (read,) = find_runs(place, {})
            assert (read.id, read.name, read.state) == (run, "r", "finished")


def test_a_server_of_mlflow_that_is_killed_and_comes_back_has_each_sample_once(tmp_path: Path) -> None:
    port, store = free_port(), f"sqlite:///{tmp_path}/server.db"
    target: Any = make_target(
        "mlflow", {"url": f"http://127.0.0.1:{port}", "experiment": "e", "token_file": "", "ca_file": ""}
    )
    begin = time.time()
    with history(tmp_path / "history") as one:
        one.put([opened("a", name="gpt", started=begin, config={"lr": 0.1})])

        def poll(number: int) -> float:
            pushes = [
                (s, round((begin + s / 100) * 1e6), {"loss": s / 4}) for s in range(number * 500, number * 500 + 500)
            ]
            one.put([ingested("a", pushes, number=number + 1)])
            return Mirror(one.database.path, Positions(tmp_path / "positions.db"), target).poll()

        with mlflow_server(store, port):
            assert poll(0) == 0.0
        assert poll(1) > 0.0
        with mlflow_server(store, port):
            assert poll(2) == 0.0
            found = stored(f"http://127.0.0.1:{port}")["loss"]
    assert [(step, value) for _, step, value in found] == [(step, repr(step / 4)) for step in range(1500)]


def test_a_run_ends_on_a_server_of_mlflow_that_cannot_store_media_and_the_next_start_sends_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trackside_daemon.bridges.mirrors.positions.time", SimpleNamespace(time=lambda: BEGIN))
    monkeypatch.setattr(worker, "MEDIA_SECONDS", 0.0)
    port, artifacts = free_port(), tmp_path / "artifacts"
    settings = {"url": f"http://127.0.0.1:{port}", "experiment": "e", "token_file": "", "ca_file": ""}
    artifacts.write_text("a file in place of the directory, so that nothing can be stored")
    with (
        mlflow_server(f"sqlite:///{tmp_path}/server.db", port, "--artifacts-destination", str(artifacts)),
        history(tmp_path / "history") as one,
    ):
        put_extras(one)
        one.put([finished("a")])

        def poll() -> Mirror:
            target: Any = make_target("mlflow", settings)
            running = Mirror(one.database.path, Positions(tmp_path / "positions.db"), target)
            assert [running.poll() for _ in range(2)] == [0.0, 0.0]
            return running

        failed = poll()
        assert (failed.status.rejected, "answered 500" in failed.status.left_out) == (4, True)
        (run,) = find_runs(settings["url"], {})
        assert run.state == "finished"
        artifacts.unlink()
        assert poll().status.rejected == 0
    names = sorted(path.name.rpartition("-")[0] for path in artifacts.rglob("media/*/*"))
    assert names == ["step-2", "step-3", "step-3", "step-3"]


def newer(name: str) -> str:
    """Return a server of VictoriaMetrics that accepts OTLP; skip the test if there is none."""
    for path in filter(None, (shutil.which(name), shutil.which(name, path=str(SERVERS)))):
        if "opentelemetry" in subprocess.run([path, "--help"], capture_output=True, text=True, check=False).stdout:
            return path
    pytest.skip(f"{name} is too old for OTLP")


SERVED: list[int] = []
"""Processes of VictoriaMetrics, the newest last."""


class Server(Queries):
    """A server with Prometheus' API."""

    def __init__(self, url: str) -> None:
        self.url = url


@contextmanager
def prometheus(place: Path) -> Iterator[tuple[Server, str]]:
    """Start Debian's Prometheus, and vmagent before it, since Debian builds Prometheus without OTLP."""
    port, agent = free_port(), free_port()
    (place / "prometheus.yml").write_text("{}")
    command = (
        "prometheus",
        f"--config.file={place / 'prometheus.yml'}",
        f"--storage.tsdb.path={place / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--web.enable-remote-write-receiver",
    )
    forward = (
        newer("vmagent"),
        f"-httpListenAddr=127.0.0.1:{agent}",
        f"-remoteWrite.url=http://127.0.0.1:{port}/api/v1/write",
        f"-remoteWrite.tmpDataPath={place / 'queue'}",
        "-remoteWrite.forcePromProto",
    )
    with (
        process(*command, ready=f"http://127.0.0.1:{port}/-/ready"),
        process(*forward, ready=f"http://127.0.0.1:{agent}/health"),
    ):
        yield Server(f"http://127.0.0.1:{port}"), f"http://127.0.0.1:{agent}/opentelemetry/v1/metrics"


@contextmanager
def victoria(place: Path, port: int = 0) -> Iterator[tuple[Server, str]]:
    """Start VictoriaMetrics."""
    port = port or free_port()
    command = (
        newer("victoria-metrics"),
        f"-storageDataPath={place / 'data'}",
        f"-httpListenAddr=127.0.0.1:{port}",
        "-search.latencyOffset=0s",
        "-search.disableCache",
        "-dedup.minScrapeInterval=1ms",
    )
    # Killed, it would lose what it has accepted in the last seconds.
    with process(*command, ready=f"http://127.0.0.1:{port}/health", end=signal.SIGTERM) as started:
        SERVED.append(started.pid)
        yield Server(f"http://127.0.0.1:{port}"), f"http://127.0.0.1:{port}/opentelemetry/v1/metrics"


@pytest.mark.parametrize("server", [prometheus, victoria])
def test_values_over_otlp_equal_those_of_metrics(
    server: Callable[[Path], Any], start_daemon: Callable[..., Daemon], place: Path, tmp_path: Path
) -> None:
    with server(tmp_path) as (asked, path):
        config = place / "trackside.yml"
        config.write_text(json.dumps({"bridges": {"otlp": {"url": path}}}))
        daemon = start_daemon(f"--config.file={config}", "--collector.gpu.simulate=2", "--storage.interval=1s")
        with trackside.init("gpt", endpoint=daemon.endpoint) as run:
            for step in range(50):
                run.push({"eval/bleu": 31.5}, step=step, loss=2.0 - step / 100, lr=0.1, tokens=10)
                time.sleep(0.002)  # servers keep one value of a millisecond
            page = eventually(lambda: _page(daemon, 'trackside_training_step{rank="0",run="gpt"} 49.0'))
            families = ("step", "loss", "learning_rate", "value", "tokens_total")
            wanted = {
                (one.name, tuple(sorted(one.labels.items()))): one.value
                for one in Page(page).series
                if one.name in {f"trackside_training_{family}" for family in families}
            }
            assert len(wanted) == len(families)

            def found() -> dict[Any, float]:
                points = {name: asked.query(name) for name in {name for name, _ in wanted}}
                ignored = {
                    "otel_scope_name",
                    "otel_scope_version",
                    "service.name",
                    "service.instance.id",
                    "scope.name",
                    "host.name",
                }
                return {
                    (name, tuple(sorted((k, v) for k, v in one.labels.items() if k not in ignored))): one.value
                    for name, some in points.items()
                    for one in some
                }

            eventually(lambda: found() == wanted)
            assert eventually(lambda: asked.query("trackside_gpu_power_watts"))
            assert {one.labels["gpu"] for one in asked.query("trackside_gpu_power_watts")} == {"0", "1"}
        lost = next(
            one for one in Page(daemon.get("/metrics").text).series if one.name == "trackside_bridge_lost_total"
        )
        assert lost.value == 0.0


def test_a_server_of_otlp_that_is_slow_or_stopped_has_each_value_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_request, "PATIENCE_SECONDS", 1.0)
    port, begin = free_port(), time.time() - 100
    url = f"http://127.0.0.1:{port}/opentelemetry/v1/metrics"
    target: Any = make_target("otlp", {"url": url, "headers_file": "", "ca_file": ""})
    with history(tmp_path / "history") as one:
        one.put([opened("a", name="gpt", started=begin)])

        def poll(number: int) -> float:
            pushes = [
                (s, round((begin + s / 20) * 1e6), {"loss": s / 4}) for s in range(number * 100, number * 100 + 100)
            ]
            one.put([ingested("a", pushes, number=number + 1)])
            return Mirror(one.database.path, Positions(tmp_path / "positions.db"), target, every_rank=True).poll()

        with victoria(tmp_path, port):
            assert poll(0) == 0.0
            os.kill(SERVED[-1], signal.SIGSTOP)  # it accepts the request, and answers later
            assert poll(1) > 0.0
            os.kill(SERVED[-1], signal.SIGCONT)
            assert poll(2) == 0.0
        assert poll(3) > 0.0
        with victoria(tmp_path, port) as (server, _):
            assert poll(4) == 0.0
            http.get(f"{server.url}/internal/force_flush")
            lines = http.get(f"{server.url}/api/v1/export", params={"match[]": "trackside_training_loss"}).text
    (series,) = [json.loads(line) for line in lines.splitlines()]
    found = dict(zip(series["timestamps"], series["values"], strict=True))
    assert found == {int((begin + s / 20) * 1e6) // 1000: s / 4 for s in range(500)}
    assert len(series["timestamps"]) == 500


def _page(daemon: Daemon, line: str) -> str:
    page = daemon.get("/metrics").text
    return page if line in page else ""


def test_offline_logs_of_wandb_have_each_row_once_after_kills(tmp_path: Path) -> None:
    require("wandb")
    begin = time.time()
    settings = {"project": "p", "entity": "", "mode": "offline", "directory": str(tmp_path / "w"), "ranks": "lowest"}
    start = {
        "name": "wandb",
        "history": str(tmp_path / "history" / "history.db"),
        "positions": str(tmp_path / "positions.db"),
        "settings": {**settings, "interval": 0.2},
    }
    with history(tmp_path / "history") as one:
        one.put([opened("a", name="gpt", started=begin, config={"lr": 0.1}, tags=("x",))])
        for number in range(3):
            pushes = [(s, round((begin + s) * 1e6), {"loss": s / 4}) for s in range(number * 40, number * 40 + 40)]
            one.put([ingested("a", pushes, number=number + 1)])
            with subprocess.Popen(
                [sys.executable, "-m", "trackside_daemon.bridges.mirrors.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "WANDB_SILENT": "true"},
            ) as worker:
                assert worker.stdin is not None
                worker.stdin.write(json.dumps(start).encode() + b"\n")
                worker.stdin.flush()
                eventually(partial(_has_sent, tmp_path / "positions.db", 40 * (number + 1)))
                if number < 2:
                    worker.kill()
                terminated(worker)
    found = []
    for path in sorted((tmp_path / "w").glob("wandb/offline-run-*/run-a.wandb")):
        run = LogRun("a", [path])
        found += [dict(zip(i.keys, i.values, strict=True)) for i in run.read() if isinstance(i, Push)]
        assert (run.name, run.config, list(run.tags), run.ended) == ("gpt", {"lr": 0.1}, ["x"], True)
    assert [(row["trackside/step"], row["loss"]) for row in found] == [(s, s / 4) for s in range(120)]


def test_offline_logs_of_wandb_have_the_media_and_the_curves_of_the_machine_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setattr("trackside_daemon.bridges.mirrors.positions.time", SimpleNamespace(time=lambda: BEGIN))
    settings = {"project": "p", "entity": "", "mode": "offline", "directory": str(tmp_path / "w")}
    with history(tmp_path / "history") as one:
        put_extras(one)
        for _ in range(2):
            target = wandb_mirror.make_target(settings)
            assert Mirror(one.database.path, Positions(tmp_path / "positions.db"), target).poll() == 0.0
    files = sorted(path.parent.name for path in (tmp_path / "w").rglob("media/*/*"))
    assert [name for name in files if name != "images"] in (["html", "html", "table"], ["html", "table"])
    runs = [LogRun("a", [path]) for path in sorted((tmp_path / "w").glob("wandb/offline-run-*/run-a.wandb"))]
    rows = [dict(zip(i.keys, i.values, strict=True)) for run in runs for i in run.read() if isinstance(i, Push)]
    curve = [(row["trackside/step"], row["resources/host_cpu"]) for row in rows if "resources/host_cpu" in row]
    assert curve == [(1, 4.0), (4, 4.0), (7, 4.0), (10, 4.0)]


def test_a_server_of_wandb_that_is_absent_costs_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require("wandb")
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
    monkeypatch.setenv("WANDB_INIT_TIMEOUT", "3")
    begin = time.time()
    with history(tmp_path / "history") as one:
        one.put([opened("a", name="gpt", started=begin)])

        def poll(number: int, mode: str) -> Mirror:
            pushes = [(s, round((begin + s) * 1e6), {"loss": s / 4}) for s in range(number * 20, number * 20 + 20)]
            one.put([ingested("a", pushes, number=number + 1)])
            settings = {"project": "p", "entity": "", "mode": mode, "directory": str(tmp_path / mode)}
            target: Any = make_target("wandb", settings)
            mirror = Mirror(one.database.path, Positions(tmp_path / "positions.db"), target)
            assert (mirror.poll() > 0.0) is (mode == "online"), mirror.status.error
            return mirror

        for number in range(2):
            failed = poll(number, "online").status
            assert failed.error.startswith("the client of W&B: ")
            assert failed.sent == 0
            assert failed.oldest == pytest.approx(begin, abs=1e-3)
        poll(2, "offline")  # what is not sent is all there for the next try
    (path,) = (tmp_path / "offline").glob("wandb/offline-run-*/run-a.wandb")
    found = [dict(zip(i.keys, i.values, strict=True)) for i in LogRun("a", [path]).read() if isinstance(i, Push)]
    assert [(row["trackside/step"], row["loss"]) for row in found] == [(s, s / 4) for s in range(60)]


@pytest.fixture
def wandb_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[WandbServer]:
    require("wandb")
    with WandbServer() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
        yield server


def put_rows(one: History, number: int, begin: float) -> list[tuple[int, float]]:
    """Put twenty rows of the run ``a``, and return step and loss of all rows up to them."""
    steps = range(number * 20, number * 20 + 20)
    one.put([ingested("a", [(s, round((begin + s / 1e3) * 1e6), {"loss": s / 4}) for s in steps], number=number + 1)])
    return [(s, s / 4) for s in range(steps.stop)]


@pytest.mark.parametrize("retries", [True, False], ids=["back soon", "back later"])
def test_a_server_of_wandb_that_fails_in_the_middle_has_each_row_once(
    wandb_server: WandbServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, retries: bool
) -> None:
    if not retries:
        short = {"x_file_stream_retry_max": 1, "x_file_stream_timeout_seconds": 1, "x_graphql_retry_max": 1}
        monkeypatch.setattr(wandb_mirror, "_PATIENCE", wandb_mirror._PATIENCE | short)
        monkeypatch.setenv("WANDB_HTTP_TIMEOUT", "1")
        monkeypatch.setenv("WANDB_INIT_TIMEOUT", "5")
    begin, server = time.time(), wandb_server
    settings = {"project": "p", "entity": "", "mode": "online", "directory": str(tmp_path / "w")}
    with history(tmp_path / "history") as one:
        one.put([opened("a", name="gpt", started=begin)])

        def poll() -> Mirror:
            target: Any = make_target("wandb", settings)
            mirror = Mirror(one.database.path, Positions(tmp_path / "positions.db"), target)
            mirror.poll()
            return mirror

        for number, mode in enumerate(("ok", "500", "lose", "slow", "stop", "403")):
            rows = put_rows(one, number, begin)
            server.when_rows_arrive = mode
            with ThreadPoolExecutor(1) as pool:
                polled = pool.submit(poll)
                if retries and mode not in ("ok", "403"):
                    assert server.failed.wait(DEADLINE)
                    recover(server)
                status = polled.result().status
            if mode == "ok" or (retries and mode != "403"):
                assert (status.error, status.sent, status.oldest) == ("", 20, None), mode
            else:
                assert (status.failures, status.sent) == (1, 0), mode
                assert status.oldest == pytest.approx(begin + number / 50, abs=1e-3)
                if mode == "403":
                    assert "has not accepted all rows; the reason is in" in status.error
                    assert "403 Forbidden" in Path(status.error.rpartition(" in ")[2]).read_text()
                recover(server)
                assert poll().status.sent == 20, mode
            assert server.steps() == rows, mode
        one.put([finished("a", after=time.time() - BEGIN, state="failed")])
        assert poll().status.error == ""
    assert (server.steps(), server.state) == (rows, "failed")
    assert len([path for path in (tmp_path / "w").rglob("run-*") if path.is_dir()]) == 1


def recover(server: WandbServer) -> None:
    if server.mode == "stop":
        server.start()
    server.mode = "ok"
    server.continues.set()
    server.failed.clear()


@pytest.mark.parametrize("mode", ["slow", "stop"])
def test_a_daemon_that_stops_while_wandb_is_away_ends_in_time_and_the_next_one_sends_each_row_once(
    wandb_server: WandbServer, tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, server = time.time() - 1, wandb_server
    monkeypatch.setattr(WandbSection, "interval", 1.0)
    sections = BridgesSection.model_validate({"wandb": {"project": "p"}}).configured()
    with history(tmp_path) as one:
        one.put([opened("a", name="gpt", started=begin)])
        running = Mirrors(sections, one.database.path)
        running.start()
        put_rows(one, 0, begin)
        eventually(lambda: len(server.rows) == 20)
        server.when_rows_arrive = mode
        put_rows(one, 1, begin)
        assert server.failed.wait(DEADLINE)
        (worker,) = running.mirrors
        pid = worker.worker.pid
        assert pid is not None
        eventually(lambda: _lag(running) > 0.0)  # it answers while its client waits
        services = [one for path in Path(f"/proc/{pid}/task").glob("*/children") for one in path.read_text().split()]
        running.stop()
        assert services
        eventually(lambda: not any(Path(f"/proc/{one}/exe").exists() for one in (pid, *services)))

        recover(server)
        rows = put_rows(one, 2, begin)
        running = Mirrors(sections, one.database.path)
        running.start()
        eventually(lambda: len(server.rows) == 60)
        (worker,) = running.mirrors
        assert worker.worker.pid is not None
        os.kill(worker.worker.pid, signal.SIGKILL)
        rows = put_rows(one, 3, begin)
        eventually(lambda: len(server.rows) == 80)
        eventually(lambda: _lag(running) == 0.0)
        running.stop()
    assert server.steps() == rows


def _lag(running: Mirrors) -> float:
    (value,) = [sample.value for sample in running.batch().samples if sample.metric is daemon_families.BRIDGE_LAG]
    assert isinstance(value, float)
    return value


def _has_sent(path: Path, count: int) -> bool:
    if not path.exists():
        return False
    positions = Positions(path)
    try:
        return positions.sent(RankKey("a", 0, 0)).get("loss") == count
    finally:
        positions.close()
