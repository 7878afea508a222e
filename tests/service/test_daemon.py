"""The daemon as a process: its start, its reloads, its stop, and the files that it leaves behind."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import httpx
import processes
import pytest
from processes import DEADLINE, LEAN, clean_environ, command, eventually, http
from wire_messages import Client, FakeSession

from trackside.wire import Heartbeat
from trackside_daemon import __version__
from trackside_daemon.pipeline.pipeline import STAGES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from processes import Daemon

QUIET = ("--no-collector.gpu", "--no-collector.process", *LEAN, "--sample.interval=250ms")


@pytest.fixture
def connect() -> Iterator[Callable[[Daemon], Client]]:
    """A function that connects a client; the connections close when the test ends."""
    clients: list[Client] = []

    def make(daemon: Daemon) -> Client:
        clients.append(Client(daemon.endpoint))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


def flags_of(place: Path) -> list[str]:
    """Return the flags of a daemon whose files are all in one directory."""
    (place / "history").mkdir()
    return [
        f"--push.endpoint=ipc://{place}/push.sock",
        "--web.listen-address=127.0.0.1:0",
        f"--storage.path={place}/history",
        *QUIET,
    ]


def run_script(script: str, *arguments: str, place: Path) -> subprocess.CompletedProcess[str]:
    """Run Python code that runs the command in a changed environment."""
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env=clean_environ({"PYTHONPATH": os.pathsep.join([str(place), os.environ.get("PYTHONPATH", "")])}),
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )


@pytest.mark.parametrize(
    ("library", "extra", "arguments"),
    [
        ("typer", "daemon", ["daemon"]),
        ("yaml", "daemon", ["daemon", "--config.file=trackside.yml"]),
        ("typer", "demo", ["demo"]),
        ("typer", "daemon,top", ["top"]),
        ("numpy", "daemon,arrow", ["archive", "runs"]),
    ],
)
def test_without_a_package_the_command_names_the_extra_to_install(
    place: Path, library: str, extra: str, arguments: list[str]
) -> None:
    (place / f"{library}.py").write_text(f"raise ModuleNotFoundError('No module', name={library!r})\n")
    ended = run_script("from trackside_daemon.__main__ import main; main()", *arguments, place=place)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == (
        f"trackside: this command needs the package {library}; install it with: pip install 'trackside[{extra}]'"
        f" (uvx: append [{extra}] to what follows --from)\n"
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_stops_as_asked_and_leaves_nothing_but_the_lock_and_its_history(
    start_daemon: Callable[..., Daemon], number: signal.Signals
) -> None:
    daemon = start_daemon(*QUIET)
    assert {one.name for one in daemon.directory.iterdir()} == {
        *("push.sock", "push.sock.lock", "push.token", "push.address", "push.kineto", "history"),
    }
    assert daemon.stop(number) == 0
    assert {one.name for one in daemon.directory.iterdir()} == {"push.sock.lock", "push.kineto", "history"}
    assert {one.name for one in daemon.history.iterdir()} == {
        *("api.token", "history.db", "history.lock", "sinks.json"),
    }
    assert f"stopping on {number.name}" in daemon.log[-1]
    assert not any("Traceback" in line for line in daemon.log)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_during_the_start_stops_it_as_asked(place: Path, number: signal.Signals) -> None:
    with subprocess.Popen(
        command("daemon", *flags_of(place)), env=clean_environ(), stderr=subprocess.PIPE, text=True
    ) as process:
        eventually((place / "push.sock.lock").exists)
        process.send_signal(signal.SIGHUP)
        process.send_signal(number)
        assert process.wait(DEADLINE) == 0
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()
    assert {one.name for one in place.iterdir()} - {"history", "push.kineto"} == {"push.sock.lock"}


def test_what_was_pushed_just_before_the_end_is_acknowledged(
    start_daemon: Callable[..., Daemon], connect: Callable[[Daemon], Client]
) -> None:
    daemon = start_daemon(*QUIET)
    client, session, stranger = connect(daemon), FakeSession(), FakeSession()
    client.greet(session)
    for number in range(1, 65):
        client.send(*session.batch(number))
    client.send(*stranger.frames("beat", Heartbeat(session.hello().clock)))
    received = [client.receive()]
    while received[-1] != ("hello?", 0):  # the answer to the stranger: all that came before has arrived
        received.append(client.receive())
    daemon.process.send_signal(signal.SIGTERM)
    while ("ack", 64) not in received:
        received.append(client.receive())
    acks = [number for kind, number in received if kind == "ack"]
    assert acks == sorted(set(acks))
    assert daemon.stop() == 0


def test_a_client_continues_with_the_next_daemon_and_the_page_is_full_at_once(
    start_daemon: Callable[..., Daemon], connect: Callable[[Daemon], Client]
) -> None:
    first = start_daemon(*QUIET)
    client, session = connect(first), FakeSession()
    client.greet(session)
    client.send(*session.batch(1, {"loss": 2.5}, steps=41))
    assert client.receive() == ("ack", 1)
    first.stop(signal.SIGKILL)
    second = start_daemon(*QUIET)
    client.send(*session.batch(2, {"loss": 1.5}, steps=42))
    assert client.receive() == ("hello?", 0)
    client.send(*session.frames("hello", session.hello(acked=1, last={"loss": 1.5}, step=2, progress_age=0)))
    assert client.receive() == ("welcome", 1)
    client.send(*session.batch(2, {"loss": 1.5}, steps=42))
    assert client.receive() == ("ack", 2)
    series = second.series()
    assert series['trackside_training_loss{rank="0",run="train"}'] == 1.5
    assert series['trackside_training_steps_total{rank="0",run="train"}'] == 42.0


def reloaded(daemon: Daemon) -> tuple[float, float]:
    """Return whether the last reload was successful, and the time of the last successful one."""
    series = daemon.series()
    return (
        series["trackside_config_last_reload_successful"],
        series["trackside_config_last_reload_success_timestamp_seconds"],
    )


def test_a_hangup_reloads_and_a_bad_file_leaves_the_old_configuration(
    start_daemon: Callable[..., Daemon], place: Path
) -> None:
    file = place / "t.yml"
    file.write_text("run: {linger: 1h}\nlog: {format: logfmt}\n")
    daemon = start_daemon(*QUIET, f"--config.file={file}")
    held, began = reloaded(daemon)
    assert held == 1.0
    settings = daemon.series()["trackside_config_hash"]

    file.write_text("run: {linger: soon}\nlog: {format: json}\n")
    daemon.process.send_signal(signal.SIGHUP)
    eventually(lambda: reloaded(daemon)[0] == 0.0)
    assert reloaded(daemon) == (0.0, began)
    assert daemon.series()["trackside_config_hash"] == settings
    eventually(lambda: any("the configuration is not reloaded" in line for line in daemon.log))
    bad = next(line for line in daemon.log if "the configuration is not reloaded" in line)
    assert "run.linger: 'soon' is not a duration" in bad
    assert bad.startswith("time="), "the format is as it was"

    file.write_text("run: {linger: 2h}\nlog: {format: json}\nlimits: {runs: 3}\n")
    daemon.process.send_signal(signal.SIGHUP)
    eventually(lambda: reloaded(daemon)[0] == 1.0)
    assert reloaded(daemon)[1] > began
    assert daemon.series()["trackside_config_hash"] != settings
    eventually(lambda: any('"configuration reloaded"' in line for line in daemon.log))
    assert any("changes of limits need a restart" in line for line in daemon.log)
    assert json.loads(daemon.log[-1])["msg"] == "configuration reloaded"
    assert daemon.stop() == 0


def test_prices_that_were_reloaded_hold_for_the_next_question_and_a_linger_for_the_next_end(
    start_daemon: Callable[..., Daemon], connect: Callable[[Daemon], Client], place: Path
) -> None:
    file = place / "t.yml"
    file.write_text("run: {linger: 1h}\ncost: {currency: EUR}\n")
    daemon = start_daemon(*QUIET, f"--config.file={file}", "--web.enable-lifecycle")
    client, session = connect(daemon), FakeSession()
    client.greet(session)
    client.send(*session.batch(1))
    assert client.receive() == ("ack", 1)
    key = {"Authorization": f"Bearer {(place / 'push.token').read_text().strip()}"}

    def currencies() -> set[str]:
        found = [daemon.api(f"runs/{session.identity.run}/{name}").json() for name in ("diagnosis", "report")]
        return {found[0]["costs"]["currency"], found[1]["diagnosis"]["costs"]["currency"]}

    assert currencies() == {"EUR"}
    file.write_text("run: {linger: 0}\ncost: {currency: USD}\n")
    assert http.post(f"{daemon.url}/-/reload", headers=key).text == "reloaded\n"
    assert currencies() == {"USD"}
    client.send(*session.frames("bye", session.bye(), 2))
    assert client.receive() == ("ack", 2)
    eventually(lambda: 'trackside_training_loss{rank="0",run="train"}' not in daemon.series())
    assert daemon.series()['trackside_training_state{run="train",state="finished"}'] == 1.0
    file.write_text("run: {linger: [}\n")
    refused = http.post(f"{daemon.url}/-/reload", headers=key)
    assert refused.status_code == 500
    assert refused.json()["error"]["message"].startswith(f"{file}: not YAML: line 1, column 16")


def test_without_collectors_it_is_ready_all_the_same(start_daemon: Callable[..., Daemon]) -> None:
    daemon = start_daemon("--no-collector.cpu", "--no-collector.memory", "--no-collector.gpu")
    assert daemon.get("/-/ready").status_code == 200
    assert daemon.get("/metrics?collect[]=cpu").status_code == 400


def test_it_serves_ipv6_under_an_address_that_can_be_asked(start_daemon: Callable[..., Daemon]) -> None:
    daemon = start_daemon(*QUIET, "--web.listen-address=[::1]:0")
    assert daemon.url.startswith("http://[::1]:")
    assert daemon.api("status").json()["listen_address"] == daemon.url.removeprefix("http://")


def test_it_may_be_asked_under_the_names_that_it_was_given(start_daemon: Callable[..., Daemon]) -> None:
    daemon = start_daemon(*QUIET, "--web.allowed-hosts=box, Other.example", "--web.public-read")
    assert [
        daemon.get("/api/v1/runs", host=host).status_code for host in ("box", "other.example:80", "localhost", "evil")
    ] == [200, 200, 200, 421]


def test_the_status_reports_the_state_of_the_daemon(daemon: Daemon) -> None:
    def status() -> Any:
        return daemon.api("status").json()

    eventually(lambda: status()["metrics"]["trackside_ingest_messages_total"])
    reported = status()
    where = {"listen_address", "url", "push_endpoints", "storage_path", "storage_problem"}
    where |= {"otlp_endpoint", "textfile_directory"}
    assert set(reported) == {"version", "started", "gpus", "nvml", "collectors", "notifications", "metrics", *where}
    assert (reported["gpus"], set(reported["nvml"]) >= {"error", "absent", "expected", "paused_until"}) == ([], True)
    assert reported["storage_path"] == str(daemon.history)
    assert (reported["version"], reported["push_endpoints"]) == (__version__, [daemon.endpoint])
    assert f"http://{reported['listen_address']}" == reported["url"] == daemon.url
    metrics = reported["metrics"]
    assert set(metrics["trackside_collector_success"]) >= {"cpu", "memory", "cgroup", "process", "gpu", "nvml", "ranks"}
    assert {name for name, how in reported["collectors"].items() if how == {"state": "ok"}} >= {
        "cpu",
        "memory",
        "process",
    }
    assert metrics["trackside_ingest_messages_total"]["hello"] == 0.0
    assert metrics["trackside_pipeline_failures_total"] == dict.fromkeys(STAGES, 0.0)
    assert metrics["trackside_history_samples_total"] == 0.0
    assert metrics["trackside_history_size_bytes"] > 0


def test_it_works_with_its_standard_streams_closed(place: Path) -> None:
    closed = ("sh", "-c", 'exec "$@" 0<&- 1>&- 2>&-', "sh")
    endpoint, history = f"--push.endpoint=ipc://{place}/push.sock", f"--storage.path={place}"
    daemon = subprocess.Popen(
        [*closed, *command("daemon", endpoint, history, "--web.listen-address=127.0.0.1:0", *QUIET)],
        env=clean_environ(),
    )
    try:
        address = place / "push.address"
        eventually(lambda: address.exists() and address.read_text())
        assert "trackside_build_info" in http.get(f"{address.read_text().strip()}/metrics").text
    finally:
        daemon.terminate()
    assert daemon.wait(DEADLINE) == 0


def test_a_head_has_no_body_and_gzip_is_used_over_a_real_socket(daemon: Daemon) -> None:
    head = httpx.head(f"{daemon.url}/metrics")
    assert (head.status_code, head.content) == (200, b"")
    assert int(head.headers["Content-Length"]) > 0
    assert daemon.get("/metrics", accept_encoding="gzip").headers["Content-Encoding"] == "gzip"


def test_a_part_that_dies_ends_the_daemon(place: Path) -> None:
    script = (
        "from trackside_daemon.ingest.client_sessions import ClientSessions\n"
        "def tick(self, now): raise RuntimeError('broken')\n"
        "ClientSessions.tick = tick\n"
        "from trackside_daemon.__main__ import main; main()\n"
    )
    ended = processes.run([sys.executable, "-c", script, "daemon", *flags_of(place)])
    assert ended.returncode == 1
    assert "trackside-ingest failed: RuntimeError('broken')" in ended.stderr
    assert all(line.startswith("time=") for line in ended.stderr.splitlines())
    assert {one.name for one in place.iterdir()} == {"push.sock.lock", "push.kineto", "history"}


def test_the_address_is_written_for_this_user_alone_and_where_it_cannot_be_the_daemon_serves_all_the_same(
    start_daemon: Callable[..., Daemon], place: Path
) -> None:
    address = place / "push.address"
    address.touch(0o644)
    first = start_daemon(*QUIET)
    assert stat.S_IMODE(address.stat().st_mode) == 0o600
    assert address.read_text() == f"{first.url}\n"
    assert first.stop() == 0
    (place / "other").write_text("mine")
    address.symlink_to(place / "other")
    second = start_daemon(*QUIET)
    assert address.read_text() == f"{second.url}\n"
    assert not address.is_symlink()
    assert second.stop() == 0
    assert (place / "other").read_text() == "mine"
    address.mkdir()
    third = start_daemon(*QUIET)
    assert any(f"{address}: " in line and "commands find this daemon only with --url" in line for line in third.log)
    assert third.stop() == 0
