"""Alerts about runs with the real daemon and real trainings: a kill, and an alert of the training itself."""

from __future__ import annotations

import re
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


def test_ranks_that_are_killed_are_one_alert_with_its_cause(
    daemon: Daemon, start_training: Callable[..., Process]
) -> None:
    ranks = [start(start_training, daemon, rank, 2) for rank in range(2)]
    eventually(lambda: len(daemon.api("processes").json()["processes"]) == 2)
    ranks[1].kill()
    (alert,) = eventually(lambda: [one for one in alerts(daemon, "TrainingProcessDied") if "events" in one["evidence"]])
    killed = r"rank 1 of run net, at step [\d,]+ or later, was killed by SIGKILL"
    assert re.fullmatch(killed, alert["summary"])
    assert alert["severity"] == "critical"
    evidence = alert["evidence"]
    (end,) = [one for one in evidence["events"] if one["kind"] == "rank_ended"]
    assert (evidence["cause"], end["rank"], end["fields"]["cause"]) == ("SIGKILL", 1, "SIGKILL")
    assert evidence["ranks"]["1"]["loss"] == 0.5
    assert ranks[0].pid in [one["pid"] for one in evidence["processes"]]
    assert evidence["host"]["memory_bytes"] > 0
    ranks[0].kill()
    (alert,) = eventually(lambda: [one for one in alerts(daemon, "TrainingProcessDied") if "also" in one["summary"]])
    assert re.fullmatch(f"{killed}; also on rank 0", alert["summary"])


def test_a_condition_in_python_raises_its_alert_and_a_good_end_none(
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
    eventually(lambda: [one["state"] for one in daemon.api("runs").json()["runs"]] == ["finished"])
    for event in ("RunStarted", "RunFinished", "TrainingProcessDied"):
        assert not alerts(daemon, event), "an event is no alert"


RAISES = """
import sys, trackside
trackside.init(sys.argv[1], page=sys.argv[1] == "important").push(step=1, loss=0.5)
raise ValueError("a typo")
"""


def test_a_users_bug_is_a_warning_with_its_owner_and_an_important_runs_is_critical(
    start_daemon: Callable[..., Daemon], start_training: Callable[..., Process]
) -> None:
    """On this daemon, its own user's runs do not page either."""
    daemon = start_daemon(environ={"TRACKSIDE_ALERTS__PAGE": "tag=page"})
    for name in ("try", "important"):
        start_training(daemon, "-c", RAISES, name, SLURM_JOB_PARTITION="gpu").wait(DEADLINE)
    eventually(lambda: len(alerts(daemon, "TrainingProcessDied")) == 2)
    found = alerts(daemon, "TrainingProcessDied")
    assert {one["name"]: one["severity"] for one in found} == {"try": "warning", "important": "critical"}
    assert {one["labels"]["partition"] for one in found} == {"gpu"}
    firing = [name for name, value in daemon.series().items() if name.startswith("trackside_alert_firing{") and value]
    user = f'user="{found[0]["labels"]["user"]}"'
    assert sum(user in name and 'partition="gpu"' in name for name in firing) == 2
