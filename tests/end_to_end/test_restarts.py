"""`trackside run --restart` and `--stop-on` with real commands, daemons and checkpoints."""

from __future__ import annotations

import json
import signal
import sys
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from end_to_end.test_run_command import started  # noqa: F401  a fixture
from processes import DEADLINE

if TYPE_CHECKING:
    from pathlib import Path

    from end_to_end.test_run_command import Started

TRAINING = """
import os, signal, subprocess, sys, time
from pathlib import Path
import trackside
directory = Path(sys.argv[1])
number = len(list(directory.glob("start-*")))
(directory / f"start-{number}").touch()
run = trackside.init("heals")
checkpoints = trackside.Checkpoints(directory / "checkpoints")
state = checkpoints.load() or {"sum": 0}
print("begins at", checkpoints.next_step, "of", trackside.resume_path(), sys.argv[2:], flush=True)
for step in range(checkpoints.next_step, 130):
    state["sum"] += step
    time.sleep(0.03)
    run.push(step=step, loss=1 / (1 + step))
    if step % 20 == 19:
        checkpoints.save(state, step)
    if number == 0 and step == 45:
        orphan = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        (directory / "orphan").write_text(str(orphan.pid))
        newest = directory / "checkpoints" / "step-00000039" / "state.zip"
        newest.write_bytes(newest.read_bytes()[:-9])
        raise ValueError("lo\\0st")
    if number == 1 and step == 105:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        time.sleep(1000)
print("sum", state["sum"], flush=True)
"""
NAN = """
import math, time, trackside
for step in range(1000):
    trackside.push(step=step, loss=1.0 if step < 100 else math.nan)
    time.sleep(0.01)
time.sleep(1000)
"""
STUBBORN = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
print("begins", flush=True)
time.sleep(1000)
"""


def of_run(started: Started, name: str) -> dict[str, Any]:  # noqa: F811
    return dict(json.loads(started.command("show", name, "--json").stdout))


def test_a_run_goes_on_after_a_crash_and_after_a_hang(started: Started, tmp_path: Path) -> None:  # noqa: F811
    """The result is that of an undisturbed run; the history has each step, and the causes of three attempts.

    The first leaves a damaged checkpoint.
    """
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    flags = ["--restart=3", "--restart.args=--resume {checkpoint}"]
    status, printed, complaints = started.run(
        *(sys.executable, str(script), str(tmp_path)), flags=flags, TRACKSIDE_ALERTS__STALL_AFTER="5s"
    )
    assert status == 0, complaints
    first, second, third, last = printed.splitlines()
    at = tmp_path / "checkpoints"
    assert first == "begins at 0 of None []"
    assert second == f"begins at 20 of {at}/step-00000019 ['--resume', '{at}/step-00000019']"
    assert third == f"begins at 100 of {at}/step-00000099 ['--resume', '{at}/step-00000099']"
    assert last == f"sum {sum(range(130))}"
    assert f"trackside: {at}/step-00000039 is skipped: state.zip: " in complaints
    said = [line for line in complaints.splitlines() if "restart" in line]
    assert (
        said[0]
        == f"trackside: restart 1 of 3 in 5 s from {at}/step-00000019, after crash: ValueError: lo\\x00st, at step 45"
    )
    assert "after hang: rank 0 is at train.py:26 in <module>, at step 105" in said[1]
    assert said[2].startswith(
        "trackside: restarted 2 times: crash at step 45, hang at step 105; without --restart it would"
    )
    run = of_run(started, "heals")
    assert [one["state"] for one in run["attempt_list"]] == ["failed", "finished", "finished"]
    assert [
        (one["attempt"], one["first_step"], one["last_step"]) for one in run["metrics"] if one["key"] == "loss"
    ] == [
        (0, 0, 45),
        (1, 20, 105),
        (2, 100, 129),
    ]
    restarts = [event["fields"] for event in run["events"] if event["kind"] == "restart"]
    assert [(one["number"], one["checkpoint"]) for one in restarts] == [
        (1, f"{at}/step-00000019"),
        (2, f"{at}/step-00000099"),
    ]
    assert not psutil.pid_exists(int((tmp_path / "orphan").read_text()))


def test_what_a_command_leaves_running_stays_when_no_restart_follows(started: Started) -> None:  # noqa: F811
    left = "sleep 1000 >/dev/null 2>&1 & echo $!; exit 2"
    ended, printed, _ = started.run("sh", "-c", left, flags=["--restart=3"])
    background = psutil.Process(int(printed))
    assert (ended, background.name()) == (2, "sleep")
    background.kill()


def test_a_signal_for_the_command_line_is_never_answered_by_a_restart(started: Started) -> None:  # noqa: F811
    process = started.start(sys.executable, "-c", STUBBORN, flags=["--restart=3"])
    assert process.stdout is not None
    assert process.stdout.readline() == "begins\n"
    process.send_signal(signal.SIGTERM)
    printed, complaints = process.communicate(timeout=DEADLINE)
    assert (process.returncode, printed) == (5, "")
    assert "restart" not in complaints


def test_nothing_starts_again_once_the_command_line_is_killed(started: Started, tmp_path: Path) -> None:  # noqa: F811
    """The command goes on to its end."""
    script = 'echo begins; until test -e "$0"; do sleep 0.1; done; echo ends; exit 3'
    process = started.start("sh", "-c", script, str(tmp_path / "end"), flags=["--restart=3"])
    assert process.stdout is not None
    assert process.stdout.readline() == "begins\n"
    process.kill()
    (tmp_path / "end").touch()
    assert process.communicate(timeout=DEADLINE)[0] == "ends\n"


def test_an_alert_ends_the_command_with_a_status_of_its_own(started: Started) -> None:  # noqa: F811
    status, _, complaints = started.run(sys.executable, "-c", NAN, flags=["--stop-on=NonFinite", "--restart=3"])
    assert status == 79
    (line,) = [line for line in complaints.splitlines() if "--stop-on" in line]
    assert line.startswith("trackside: --stop-on NonFinite, which has fired for")
    assert line.endswith("; the command is ended")
    assert "restart" not in complaints


@pytest.mark.parametrize("value", ["--requeue", "--restart.args=a"])
def test_a_flag_about_restarts_needs_them(started: Started, value: str) -> None:  # noqa: F811
    status, printed, complaints = started.run("echo", "begins", flags=[value], SLURM_JOB_ID="1")
    assert (status, printed) == (2, "")
    assert complaints == f"trackside: {value.partition('=')[0]} is for restarts: give --restart, too\n"
