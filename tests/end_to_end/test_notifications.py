"""The chain from a failing training to notifications, through Debian's Prometheus and Alertmanager as packaged."""

from __future__ import annotations

import json
import signal
import socket
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from end_to_end.alert_chain import Road
from end_to_end.queries import SCRAPED
from processes import Daemon, eventually

import trackside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from end_to_end.conftest import Process

    from trackside.run import Run

PAGE = "training-page"
NAN = "TracksideNonFinite"
STALLED = "TracksideTrainingStalled"
MINUTES = 600.0
"""Seconds that a resolve may take in its own time: two minutes of firing, ten samples, `group_interval`."""

TRAINS = """
import time, trackside
for step in range(100_000):
    trackside.push(step=step, loss=0.5)
    time.sleep(0.05)
    if step == 20:
        print("trains", flush=True)
"""


@pytest.fixture
def address() -> str:
    """A free address, at which a daemon can listen again after its death."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


@pytest.fixture
def start_road(tmp_path: Path) -> Iterator[Callable[..., Road]]:
    """A function that starts Prometheus and Alertmanager, once, and waits for the first scrape."""
    with ExitStack() as ends:

        def start(daemon: Daemon, *, hurried: bool = True) -> Road:
            road = ends.enter_context(Road(tmp_path, daemon.url, hurried=hurried))
            eventually(lambda: road.value("up") == 1, pause=SCRAPED)
            return road

        yield start


def begin(daemon: Daemon, start_training: Callable[..., Process], name: str) -> Process:
    """Start a training in a new process, and wait until it has made some steps."""
    training = start_training(daemon, "-c", TRAINS, TRACKSIDE_RUN_NAME=name)
    assert training.stdout is not None
    assert training.stdout.readline() == "trains\n"
    return training


def break_down(run: Run, steps: int = 3) -> None:
    """Push some good steps, and then NaN."""
    for step in range(steps):
        run.push(step=step, loss=2.5)
    run.push(step=steps, loss=float("nan"))


def test_a_nan_is_sent_once_with_its_description_and_remedy_and_is_over_in_the_end(
    start_daemon: Callable[..., Daemon], start_road: Callable[..., Road], tmp_path: Path
) -> None:
    config = tmp_path / "trackside.yml"
    config.write_text("{}")
    daemon = start_daemon(f"--config.file={config}")
    road = start_road(daemon)
    with trackside.init("net", endpoint=daemon.endpoint) as run:
        break_down(run)
        letter = eventually(lambda: road.letters_about(PAGE, NAN))[0]
        (alert,) = letter.body["alerts"]
        config.write_text(json.dumps({"alerts": {"off": ["NonFinite"]}}))  # over at once: else it fires for two minutes
        daemon.process.send_signal(signal.SIGHUP)
        eventually(lambda: road.letters_about(PAGE, NAN, "resolved"))
    assert letter.body["groupLabels"] == {"cluster": "main", "run": "net"}
    about = {name: alert["labels"][name] for name in ("severity", "run", "rank", "key")}
    assert about == {"severity": "critical", "run": "net", "rank": "0", "key": "loss"}
    assert alert["annotations"]["runbook_url"].endswith("docs/alerts.md#nonfinite")
    assert alert["annotations"]["summary"].startswith("net: loss: NaN at step ")
    assert "run id" in alert["annotations"]["description"]
    assert len(road.letters_about(PAGE, NAN)) == 1
    assert {one.path for one in road.inbox.letters} - {"heartbeat"} == {PAGE}


def test_a_nan_is_over_by_itself_with_the_times_that_are_shipped(
    request: pytest.FixtureRequest, daemon: Daemon, start_road: Callable[..., Road]
) -> None:
    if not request.config.getoption("--soak"):
        pytest.skip("takes two minutes and more: under --soak")
    road = start_road(daemon, hurried=False)
    with trackside.init("net", endpoint=daemon.endpoint) as run:
        break_down(run)
        eventually(lambda: road.letters_about(PAGE, NAN))
        for step in range(4, 50):
            run.push(step=step, loss=2.5)
        eventually(lambda: road.letters_about(PAGE, NAN, "resolved"), MINUTES)
    assert len(road.letters_about(PAGE, NAN)) == 1


def test_a_daemon_that_is_killed_during_a_nan_and_a_stall_neither_resolves_nor_sends_them_again(
    start_daemon: Callable[..., Daemon],
    start_road: Callable[..., Road],
    start_training: Callable[..., Process],
    address: str,
) -> None:
    def start() -> Daemon:
        return start_daemon(f"--web.listen-address={address}", environ={"TRACKSIDE_ALERTS__STALL_AFTER": "2"})

    daemon = start()
    road = start_road(daemon)
    training = begin(daemon, start_training, "still")
    with trackside.init("net", endpoint=daemon.endpoint) as run:
        eventually(lambda: daemon.series().get('trackside_training_step{rank="0",run="still"}', 0.0) > 60)
        training.send_signal(signal.SIGSTOP)
        break_down(run)
        eventually(lambda: road.letters_about(PAGE, STALLED, run="still") and road.letters_about(PAGE, NAN))
        since = {
            alert: f'max(ALERTS_FOR_STATE{{alertname="{alert}",run="{name}",severity="critical"}})'
            for alert, name in ((NAN, "net"), (STALLED, "still"))
        }
        before = {alert: road.value(expression) for alert, expression in since.items()}
        assert None not in before.values()

        def goes_on() -> bool:
            return {alert: road.value(expression) for alert, expression in since.items()} == before

        daemon.stop(signal.SIGKILL)
        eventually(lambda: road.value("up") == 0, pause=SCRAPED)
        _scrapes(road, 2)
        assert goes_on()
        again = start()
        eventually(lambda: road.value("up") == 1, pause=SCRAPED)
        assert goes_on()
        run.push(step=4, loss=float("nan"))
        eventually(lambda: 'trackside_training_step{rank="0",run="net"}' in again.series())
        _scrapes(road, 5)
    for alert, name in ((NAN, "net"), (STALLED, "still")):
        assert len(road.letters_about(PAGE, alert, run=name)) == 1
        assert not road.letters_about(PAGE, alert, "resolved", run=name)


def _scrapes(road: Road, number: int) -> None:
    """Wait for so many scrapes, a second apart; meanwhile rules are evaluated and messages flushed."""
    seen = road.value("timestamp(up)") or 0.0
    eventually(lambda: (road.value("timestamp(up)") or 0.0) > seen + number, pause=SCRAPED)
