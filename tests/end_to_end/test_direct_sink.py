"""The chain from a failing training to the daemon's webhook, without Prometheus."""

from __future__ import annotations

import json
import signal
import socket
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from end_to_end.inbox import Inbox
from end_to_end.test_history import PATIENT
from processes import Daemon, eventually

import trackside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from end_to_end.conftest import Process
    from end_to_end.inbox import Letter

NAN = "TracksideNonFinite"
NAN_THEN_EXIT = """
import sys, trackside
for step in range(20):
    trackside.push(step=step, loss=0.5)
trackside.push(step=20, loss=float("nan"))
sys.exit("loss is NaN")
"""


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    """The server that the webhook posts to."""
    with closing(Inbox()) as box:
        yield box


@pytest.fixture
def environ(inbox: Inbox) -> dict[str, str]:
    """The environment that makes a daemon post to the inbox."""
    return {"TRACKSIDE_ALERTS__SINKS__WEBHOOK__URL": f"{inbox.url}/direct"}


def letters_about(inbox: Inbox, alert: str, status: str = "firing") -> list[Letter]:
    return [letter for letter in inbox.of("direct") if letter.has(alert, status)]


def test_a_nan_of_a_run_that_ends_at_once_is_firing_in_the_first_message(
    inbox: Inbox, environ: dict[str, str], start_daemon: Callable[..., Daemon], start_training: Callable[..., Process]
) -> None:
    daemon = start_daemon(environ=environ)
    start_training(daemon, "-c", NAN_THEN_EXIT, TRACKSIDE_RUN_NAME="net", **PATIENT)
    eventually(lambda: letters_about(inbox, NAN) or letters_about(inbox, NAN, "resolved"))
    assert [letter.fires(NAN) for letter in inbox.of("direct") if letter.of(NAN)] == [True]
    daemon.stop()
    assert [one["status"] for letter in inbox.of("direct") for one in letter.of(NAN)] == ["firing", "resolved"]


def test_a_nan_that_the_earlier_daemon_could_not_send_is_sent_as_firing_although_its_run_has_ended(
    inbox: Inbox, environ: dict[str, str], start_daemon: Callable[..., Daemon], start_training: Callable[..., Process]
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        unused = f"http://127.0.0.1:{closed.getsockname()[1]}/"
        daemon = start_daemon(environ={"TRACKSIDE_ALERTS__SINKS__WEBHOOK__URL": unused})
        start_training(daemon, "-c", NAN_THEN_EXIT, TRACKSIDE_RUN_NAME="net", **PATIENT)
        eventually(lambda: [one for one in nans(daemon) if one["ended"] is not None])
        daemon.stop(signal.SIGKILL)
    again = start_daemon(environ=environ)
    eventually(lambda: letters_about(inbox, NAN))
    again.stop()
    assert [one["status"] for letter in inbox.of("direct") for one in letter.of(NAN)] == ["firing", "resolved"]


def test_an_alert_of_a_rule_that_is_gone_is_resolved_for_its_receivers(
    inbox: Inbox, environ: dict[str, str], start_daemon: Callable[..., Daemon], tmp_path: Path
) -> None:
    config = tmp_path / "trackside.yml"
    config.write_text("alerts: {rules: [{alert: RewardLow, metric: 'key:reward', below: 0.1}]}")
    daemon = start_daemon(f"--config.file={config}", environ=environ)
    with trackside.init("poor", endpoint=daemon.endpoint) as run:
        run.push(step=1, reward=0.01)
        eventually(lambda: [one for one in _alerts(daemon) if "webhook" in one["notified"]])
        daemon.stop(signal.SIGKILL)
        config.write_text("alerts: {}")
        start_daemon(f"--config.file={config}", environ=environ)
        eventually(lambda: letters_about(inbox, "TracksideRewardLow", "resolved"))


def test_a_sink_that_a_reload_adds_is_sent_only_what_fires(
    inbox: Inbox, start_daemon: Callable[..., Daemon], start_training: Callable[..., Process], tmp_path: Path
) -> None:
    config = tmp_path / "trackside.yml"
    config.write_text("{}")
    daemon = start_daemon(f"--config.file={config}")
    start_training(daemon, "-c", NAN_THEN_EXIT, TRACKSIDE_RUN_NAME="net", **PATIENT)
    with trackside.init("alive", endpoint=daemon.endpoint) as run:
        run.alert("fires on", severity="critical")
        eventually(lambda: [one for one in nans(daemon) if one["ended"] is not None])
        eventually(lambda: "UserAlert" in {one["alert"] for one in _alerts(daemon)})
        config.write_text(json.dumps({"alerts": {"sinks": {"webhook": {"url": f"{inbox.url}/direct"}}}}))
        daemon.process.send_signal(signal.SIGHUP)
        eventually(lambda: letters_about(inbox, "TracksideUserAlert"))
        daemon.stop()
    assert not any(letter.of(NAN) for letter in inbox.of("direct"))


def nans(daemon: Daemon) -> list[dict[str, Any]]:
    """Return the NonFinite alerts in the API."""
    return [one for one in _alerts(daemon) if one["alert"] == "NonFinite"]


def _alerts(daemon: Daemon) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = daemon.api("alerts").json()["alerts"]
    return found
