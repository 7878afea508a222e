"""`trackside capture` of a real training; tests/captures/kineto has one whose PyTorch records itself."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import processes
import pytest
from processes import clean_environ, command, eventually, require, run_here

from trackside.captures.kineto import is_tested
from trackside_daemon.captures.kineto.environment import torch_version

if TYPE_CHECKING:
    from collections.abc import Callable

    from end_to_end.conftest import Process
    from processes import Daemon

require("torch")
if not is_tested(torch_version(sys.executable)):
    pytest.skip("the installed PyTorch is not a tested version", allow_module_level=True)


PLAIN = """
import time, torch, trackside
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters())
trackside.init("plain", id="plain-1", profile={"epochs": [1], "steps": 3})
while True:
    time.sleep(0.02)  # one step needs far less, and the other processes of the test have the processor
    loss = model(torch.ones(8, 64)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    trackside.push(loss=loss, epoch=1)
"""


def test_without_the_environment_the_client_records_as_planned_and_asked(
    daemon: Daemon, start_training: Callable[..., Process]
) -> None:
    start_training(daemon, "-c", PLAIN)
    eventually(lambda: [state(one) for one in listed(daemon)] == [("profile", "plan", "summarised")])
    address = f"--url={daemon.url}/#token={(daemon.directory / 'push.token').read_text().strip()}"
    done = run_here("capture", "plain", "--steps", "3", "--json", address)
    assert done.returncode == 0, done.stdout + done.stderr
    [summary] = json.loads(done.stdout)["summary"]["ranks"].values()
    assert len(summary["steps"]) == 3
    assert "aten::addmm" in {row["name"] for row in summary["operators"]}
    memory = run_here("capture", "plain", "--memory", address)
    assert (memory.returncode, memory.stderr) == (0, "")
    assert "rank 0, process: " in memory.stdout


def test_a_training_that_is_killed_while_it_is_recorded_is_reported_as_killed(
    daemon: Daemon, start_training: Callable[..., Process]
) -> None:
    training = start_training(daemon, "-c", PLAIN.replace(', profile={"epochs": [1], "steps": 3}', ""))
    eventually(lambda: daemon.series().get('trackside_training_step{rank="0",run="plain"}'))
    address = f"--url={daemon.url}/#token={(daemon.directory / 'push.token').read_text().strip()}"
    record = command("capture", "plain", "--seconds", "100", "--stacks", address)
    with processes.start(record, env=clean_environ(), stderr=subprocess.PIPE, text=True) as recording:
        eventually(lambda: [one["state"] for one in listed(daemon)] == ["recording"])
        training.kill()
        assert recording.communicate()[1].endswith("plain: rank 0: while it was recorded, it was killed by SIGKILL\n")
    assert [(one["kind"], one["state"]) for one in listed(daemon)] == [("profile", "failed")]
    late = run_here("capture", "plain", address)
    assert late.stderr.endswith("plain: it was killed by SIGKILL; only a run that trains can be recorded\n")


def listed(daemon: Daemon) -> list[dict[str, Any]]:
    """Return the captures of the run, none before it begins."""
    found: list[dict[str, Any]] = daemon.api("runs/plain-1/captures").json().get("captures", [])
    return found


def state(capture: dict[str, Any]) -> tuple[str, str, str]:
    """Return kind, trigger and state of a capture."""
    return capture["kind"], capture["trigger"], capture["state"]
