"""A real daemon notifies about a real NaN: once, despite its death, a reload and a wrong password."""

from __future__ import annotations

import json
import signal
import sqlite3
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from processes import Daemon, clean_environ, command, eventually
from processes import run as run_process
from receivers import Receiver

import trackside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    one = Receiver()
    yield one
    one.stop()


def configured(directory: Path, **sinks: Any) -> str:
    file = directory / "trackside.yml"
    file.write_text(json.dumps({"alerts": {"sinks": sinks}}))  # JSON is YAML
    return f"--config.file={file}"


def nan(daemon: Daemon) -> dict[str, Any]:
    """Wait for the NaN alert in the API, and return it."""

    def find_alert() -> Any:
        return next((one for one in daemon.api("alerts").json()["alerts"] if one["alert"] == "NonFinite"), None)

    return dict(eventually(find_alert))


def notifications(receiver: Receiver) -> list[tuple[str, str]]:
    """Return the notifications about the NaN that the receiver got."""
    received = [one for got in receiver.got for one in got.json["alerts"]]
    return [
        (one["labels"]["alertname"], one["status"])
        for one in received
        if one["labels"]["alertname"].endswith("NonFinite")
    ]


def test_a_nan_is_sent_once_however_often_the_daemon_is_killed(
    start_daemon: Callable[..., Daemon], receiver: Receiver, place: Path
) -> None:
    flag = configured(place, webhook={"url": f"{receiver.url}/hush", "also": []})
    daemon = start_daemon(flag)
    with trackside.init("trouble", endpoint=daemon.endpoint) as run:
        run.push(step=1, loss=float("nan"))
        receiver.wait()
        eventually(lambda: sorted(nan(daemon)["notified"]) == ["log", "webhook"])
        daemon.stop(signal.SIGKILL)
        receiver.answers = [503]
        daemon = start_daemon(flag)
        run.push(step=2, loss=float("nan"))
        with trackside.init("other", id="other-1", endpoint=daemon.endpoint) as other:
            other.push(step=1, loss=float("nan"))
            eventually(lambda: daemon.api("status").json()["notifications"]["webhook"]["failed"])
            daemon.stop(signal.SIGKILL)
            receiver.answers = [200]
            again = start_daemon(flag)
            receiver.wait(2)
            eventually(lambda: again.series()['trackside_notifications_total{sink="webhook"}'] == 1)
    assert notifications(receiver) == [("TracksideNonFinite", "firing")] * 2
    assert [got.json["groupLabels"]["run"] for got in receiver.got] == ["trouble", "other"]


def test_an_end_that_was_not_sent_when_the_daemon_died_is_sent_by_the_next_once(
    start_daemon: Callable[..., Daemon], receiver: Receiver, place: Path
) -> None:
    flag = configured(place, webhook={"url": f"{receiver.url}/hush", "also": []})
    daemon = start_daemon(flag)
    with trackside.init("trouble", endpoint=daemon.endpoint) as run:
        run.push(step=1, loss=float("nan"))
        eventually(lambda: "webhook" in nan(daemon)["notified"])
        daemon.stop(signal.SIGKILL)
    with closing(sqlite3.connect(daemon.history / "history.db")) as history, history:
        history.execute("UPDATE alert SET ended = ?", (time.time(),))  # as if it had died a moment later
    daemon = start_daemon(flag)
    receiver.wait(2)
    daemon.stop()
    start_daemon(flag).stop()
    assert notifications(receiver) == [("TracksideNonFinite", "firing"), ("TracksideNonFinite", "resolved")]


def test_no_secret_is_in_the_log_the_page_the_api_or_the_history(
    start_daemon: Callable[..., Daemon], receiver: Receiver, place: Path
) -> None:
    urls = place / "urls"
    urls.write_text(f"json://ada:hush@127.0.0.1:{receiver.port}/hush\n")
    receiver.answers = [401]
    flag = configured(
        place,
        webhook={"url": f"{receiver.url.replace('//', '//ada:hush@')}/hush"},
        apprise={"urls-file": str(urls)},
    )
    daemon = start_daemon(flag, "--log.level=debug")
    with trackside.init("trouble", endpoint=daemon.endpoint) as run:
        run.push(step=1, loss=float("nan"))

        def failed() -> bool:
            sinks = daemon.api("status").json()["notifications"]
            return all(sinks[name]["failed"] for name in sinks.keys() - {"log"}) and len(sinks) == 3

        eventually(failed)
        answered = daemon.api("status").text + daemon.get("/metrics").text + daemon.api("alerts").text
    daemon.stop()
    kept = b"".join(file.read_bytes() for file in daemon.history.iterdir())
    assert "answered 401 Unauthorized" in answered
    assert "hush" not in answered + "".join(daemon.log)
    assert b"hush" not in kept
    shown = run_process(command("check-config", "--settings", flag.partition("=")[2]), check=True)
    assert "alerts.sinks.webhook.url: **********" in shown.stdout
    assert "hush" not in shown.stdout + shown.stderr


def test_sinks_change_at_a_reload_and_sent_alerts_are_not_sent_again(
    start_daemon: Callable[..., Daemon], receiver: Receiver, place: Path
) -> None:
    daemon = start_daemon(configured(place, webhook={"url": "http://127.0.0.1:1/gone", "severity": "critical"}))
    with trackside.init("trouble", endpoint=daemon.endpoint) as run:
        run.push(step=1, loss=float("nan"))
        eventually(lambda: daemon.api("status").json()["notifications"]["webhook"]["failed"])
        configured(place, webhook={"url": receiver.url, "bearer-file": str(place / "no")})
        daemon.process.send_signal(signal.SIGHUP)
        eventually(lambda: [line for line in daemon.log if "webhook.bearer-file" in line and "not reloaded" in line])
        configured(place, webhook={"url": receiver.url, "severity": "critical", "also": []}, log={"severity": "off"})
        daemon.process.send_signal(signal.SIGHUP)
        receiver.wait()
        run.push(step=2, loss=float("nan"))
    eventually(lambda: daemon.series().get('trackside_training_state{run="trouble",state="finished"}') == 1)
    assert notifications(receiver) == [("TracksideNonFinite", "firing")]
    assert len([line for line in daemon.log if "NonFinite (critical)" in line]) == 1


def test_a_daemon_does_not_start_with_a_sink_that_cannot_work(place: Path) -> None:
    flag = configured(place, webhook={"url-file": str(place / "no")})
    for asked in (("daemon", flag, f"--storage.path={place}"), ("check-config", flag.partition("=")[2])):
        done = run_process(
            command(*asked, *([f"--push.endpoint=ipc://{place}/p"] if asked[0] == "daemon" else [])),
            env=clean_environ({"TRACKSIDE_WEB__LISTEN_ADDRESS": "127.0.0.1:0"}),
        )
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1
        assert "alerts.sinks.webhook.url-file: " in done.stderr
        assert "no such file or directory; name a file that the daemon can read" in done.stderr
