"""A real training fails: the page, the API, the command and the log show it, also after the daemon was killed."""

from __future__ import annotations

import getpass
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from processes import DEADLINE, Daemon, clean_environ, eventually, start

import trackside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trackside.run import Run

FIRES = (
    'trackside_alert_firing{{alert="NonFinite",gpu="",k8s_namespace="",key="loss",partition="",rank="0",run="{run}",'
    'severity="critical",subject="",tags="",user="{user}",uuid=""}}'
)


@pytest.fixture
def training(daemon: Daemon) -> Iterator[Run]:
    """A run of this process."""
    with trackside.init("trouble", id="trouble-1", endpoint=daemon.endpoint) as run:
        yield run


def firing(daemon: Daemon, run: str = "trouble") -> float | None:
    return daemon.series().get(FIRES.format(run=run, user=getpass.getuser()))


def alerts(daemon: Daemon) -> list[dict[str, Any]]:
    """Return the alerts above info; an info is, for example, that the run has begun."""
    return [one for one in daemon.api("alerts").json()["alerts"] if one["severity"] != "info"]


def test_a_nan_is_on_the_page_in_the_history_and_in_the_log(daemon: Daemon, training: Run) -> None:
    training.push(step=1, loss=2.5)
    training.push(step=2, loss=float("nan"))
    eventually(lambda: firing(daemon) == 1)
    (kept,) = eventually(lambda: alerts(daemon))
    assert (kept["run"], kept["name"], kept["alert"], kept["severity"]) == (
        "trouble-1",
        "trouble",
        "NonFinite",
        "critical",
    )
    about = {"key": "loss", "rank": "0", "run": "trouble", "user": getpass.getuser()}
    assert kept["labels"] == about
    assert kept["summary"] == "trouble: loss: NaN at step 2; the last finite value was 2.5"
    assert kept["ended"] is None
    assert "checkpoint" in kept["description"]
    assert [line for line in daemon.log if "NonFinite" in line and "level=error" in line]


def test_an_alert_that_is_off_is_not_sent(start_daemon: Callable[..., Daemon]) -> None:
    daemon = start_daemon(environ={"TRACKSIDE_ALERTS__OFF": "NonFinite@qui*"})
    for name in ("quiet", "loud"):
        with trackside.init(name, endpoint=daemon.endpoint) as run:
            run.push(step=1, loss=float("nan"))
    eventually(lambda: firing(daemon, "loud") == 1)
    assert firing(daemon, "quiet") is None
    assert [one["name"] for one in alerts(daemon)] == ["loud"]


STALLS = {"TRACKSIDE_ALERTS__STALL_AFTER": "2s"}
SAMPLED = 'trackside_collector_last_success_timestamp_seconds{collector="cpu"}'
TRAIN = """
import sys, time
import trackside
run = trackside.init("stuck", id="stuck-1", endpoint=sys.argv[1])
for step in range(20):
    run.push(step=step, loss=float("nan") if step > 15 else 2.0 - step / 100)
    time.sleep(0.1)
print("waits", flush=True)
sys.stdin.readline()
run.push(step=20, loss=2.0)
run.finish()
"""


def states(daemon: Daemon) -> set[str]:
    """Return the states of the run on the page and in the history."""
    page = daemon.api("runs").json()["runs"]
    shown = [name for name, value in daemon.series().items() if name.startswith("trackside_training_state{") and value]
    return {*(run["state"] for run in page), *(name.split('state="')[1].rstrip('"}') for name in shown)}


@pytest.mark.usefixtures("only_soak")
def test_a_stall_and_a_nan_outlive_the_daemon_and_are_sent_once(start_daemon: Callable[..., Daemon]) -> None:
    daemon = start_daemon(environ=STALLS)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = start([sys.executable, "-c", TRAIN, daemon.endpoint], env=clean_environ(), text=True, **pipes)
    try:
        found = {"NonFinite", "TrainingStalled"}
        eventually(lambda: {one["alert"] for one in alerts(daemon) if one["severity"] == "critical"} >= found)
        before = alerts(daemon)
        eventually(lambda: states(daemon) == {"stalled"})
        daemon.stop(signal.SIGKILL)
        again = start_daemon(environ=STALLS)
        eventually(lambda: firing(again, "stuck") == 1)
        stuck = [name for name in again.series() if name.startswith('trackside_alert_firing{alert="TrainingStalled"')]
        assert [again.series()[name] for name in stuck] == [1]
        eventually(lambda: again.series().get('trackside_training_step{rank="0",run="stuck"}') == 19)
        since = again.series()[SAMPLED]
        seen: list[set[str]] = []

        def watched() -> bool:
            seen.append(states(again))
            return again.series()[SAMPLED] > since + 4

        eventually(watched)
        assert seen == [{"stalled"}] * len(seen)
        assert [(one["alert"], one["started"], one["ended"]) for one in alerts(again)] == [
            (one["alert"], one["started"], None) for one in before
        ]
        assert not [line for line in again.log if "NonFinite" in line or "TrainingStalled" in line]
        process.communicate("\n", timeout=DEADLINE)
        eventually(lambda: [one for one in alerts(again) if one["alert"] == "TrainingStalled" and one["ended"]])
        assert len(alerts(again)) == len(before)
    finally:
        process.kill()
        process.wait()
