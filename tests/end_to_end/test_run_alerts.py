"""Alerts about runs with the real daemon and real trainings: a stop, a kill, and an alert of the training itself."""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING, Any

from processes import DEADLINE, ROOT, Daemon, eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from end_to_end.conftest import Process

TRAINS = """
import sys, time, trackside
for step in range(100_000):
    trackside.push(step=step, loss=0.5)
    time.sleep(0.05)
    if step == 20:
        print("trains", flush=True)
"""

ALERTS = """
import sys, trackside
for step in range(10):
    trackside.push(step=step, loss=0.5)
trackside.alert("Reward hacking", "The score rose by 3.", severity="critical")
trackside.push(step=10, loss=0.25)
sys.stdin.readline()
"""


def alerts(daemon: Daemon, name: str) -> list[dict[str, Any]]:
    """Return the alerts of this name in the history."""
    return [one for one in daemon.api("alerts").json()["alerts"] if one["alert"] == name]


def start(start_training: Callable[..., Process], daemon: Daemon, rank: int = 0, world: int = 1) -> Process:
    """Start a training, and wait until it has made some steps."""
    about = {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank), "TRACKSIDE_RUN_ID": "the-run"}
    training = start_training(daemon, "-c", TRAINS, TRACKSIDE_RUN_NAME="net", **about)
    assert training.stdout is not None
    assert training.stdout.readline() == "trains\n"
    return training


def made(daemon: Daemon) -> float:
    """Return the highest step on the page."""
    return max(
        (value for name, value in daemon.series().items() if name.startswith("trackside_training_step{")), default=0
    )


def states(daemon: Daemon) -> list[str]:
    """Return the states of the run and its rank on the page, and of the run in the history."""
    ones = [name for name, value in daemon.series().items() if "_state{" in name and 'run="net"' in name and value == 1]
    found = [next(one for one in ones if f"training_{what}{{" in one) for what in ("state", "rank_state")]
    return [*(one.split('state="')[1].rstrip('"}') for one in found), daemon.api("runs").json()["runs"][0]["state"]]


def test_a_training_that_stands_still_is_stalled(
    start_daemon: Callable[..., Daemon], start_training: Callable[..., Process]
) -> None:
    daemon = start_daemon(environ={"TRACKSIDE_ALERTS__STALL_AFTER": "2"})
    training = start(start_training, daemon)
    eventually(lambda: made(daemon) > 60)
    assert not alerts(daemon, "TrainingStalled")
    training.send_signal(signal.SIGSTOP)
    (alert,) = eventually(lambda: [one for one in alerts(daemon, "TrainingStalled") if one["severity"] == "critical"])
    assert alert["summary"].startswith("run net has made no step since")
    assert eventually(lambda: states(daemon) == ["stalled"] * 3)
    training.send_signal(signal.SIGCONT)
    eventually(lambda: states(daemon) == ["running"] * 3)


def test_ranks_that_are_killed_are_one_alert_with_its_cause(
    daemon: Daemon, start_training: Callable[..., Process]
) -> None:
    ranks = [start(start_training, daemon, rank, 2) for rank in range(2)]
    ranks[1].kill()
    (alert,) = eventually(lambda: alerts(daemon, "TrainingProcessDied"))
    killed = r"rank 1 of run net, at step [\d,]+, was killed by SIGKILL"
    assert re.fullmatch(killed, alert["summary"])
    assert alert["severity"] == "critical"
    ranks[0].kill()
    (alert,) = eventually(lambda: [one for one in alerts(daemon, "TrainingProcessDied") if "also" in one["summary"]])
    assert re.fullmatch(f"{killed}; also on rank 0", alert["summary"])


def test_exceptions_of_the_training_and_its_good_end_are_notified(
    daemon: Daemon, start_training: Callable[..., Process]
) -> None:
    training = start_training(daemon, "-c", ALERTS, TRACKSIDE_RUN_NAME="net")
    (alert,) = eventually(lambda: alerts(daemon, "UserAlert"))
    assert (alert["summary"], alert["severity"]) == ("Reward hacking", "critical")
    training.communicate("end\n", timeout=DEADLINE)
    eventually(lambda: [one["state"] for one in daemon.api("runs").json()["runs"]] == ["finished"])
    assert not alerts(daemon, "RunFinished"), "an event is no alert"
    assert not alerts(daemon, "TrainingProcessDied")


def test_the_condition_in_python_of_the_documentation_raises_its_alert(
    daemon: Daemon, start_training: Callable[..., Process]
) -> None:
    page = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"A condition in your own code .*?```python\n(.*?)```", page, re.DOTALL)
    steps = "import sys, trackside\nrun = trackside.init('net')\nfor step in (1000, 1001):\n    loss = 4.25\n"
    body = "".join(f"    {line}\n" for line in ["run.push(step=step, loss=loss)", *example.splitlines()])
    training = start_training(daemon, "-c", f"{steps}{body}sys.stdin.readline()")
    (alert,) = eventually(lambda: alerts(daemon, "UserAlert"))
    assert (alert["summary"], alert["severity"]) == ("the loss is still above 4", "critical")
    assert alert["description"].startswith("4.25 at step 1001\n")
    training.communicate("end\n", timeout=DEADLINE)
