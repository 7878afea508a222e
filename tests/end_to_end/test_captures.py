"""`trackside capture` of a real training that `trackside run` has started, whose PyTorch records itself."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import processes
import pytest
from processes import clean_environ, command, eventually, require, terminated

from trackside.captures.kineto import is_tested
from trackside_daemon.captures.kineto.environment import torch_version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from end_to_end.conftest import Process
    from processes import Daemon

require("torch")
if not is_tested(torch_version(sys.executable)):
    pytest.skip("the installed PyTorch is not a tested version", allow_module_level=True)

SCRIPT = Path(__file__).with_name("captured_script.py")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


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


class Ranks:
    """`trackside run` with two ranks of the script, in its own directories."""

    def __init__(self, place: Path) -> None:
        self.history = place / "history"
        self.history.mkdir()
        self.environ = clean_environ(
            {
                "XDG_RUNTIME_DIR": str(place),
                "TRACKSIDE_WEB__LISTEN_ADDRESS": "127.0.0.1:0",
                "TRACKSIDE_STORAGE__PATH": str(self.history),
                "GLOO_SOCKET_IFNAME": "lo",
            }
        )
        self._log = (place / "log").open("w+")
        self._process = subprocess.Popen(
            command("run", "--", *TORCHRUN, str(SCRIPT)), env=self.environ, stdout=self._log, stderr=self._log
        )

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command of trackside with this daemon."""
        return processes.run(command(*arguments), env=self.environ)

    def captured(self, *flags: str) -> dict[str, Any]:
        """Return a capture of the run."""
        done = self.run("capture", "captured_script", "--json", *flags)
        assert done.returncode == 0, done.stdout + done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def traces(self, capture: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the traces of a capture, by rank."""
        directory = self.history / "captures" / capture["id"]
        return [json.loads(gzip.decompress((directory / file["name"]).read_bytes())) for file in capture["files"]]

    def both_train(self) -> bool:
        """Return whether two ranks push steps."""
        done = self.run("show", "captured_script", "--json")
        metrics = json.loads(done.stdout)["metrics"] if done.returncode == 0 else []
        return {one["rank"] for one in metrics if one["last_step"] > 10} == {0, 1}

    def close(self) -> None:
        """End all."""
        terminated(self._process)
        self._log.close()


@pytest.fixture(scope="module")
def ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    """The ranks, once they train."""
    if not request.config.getoption("--soak"):
        pytest.skip("two ranks that train for a minute: under --soak; tests/captures/kineto has one")
    with tempfile.TemporaryDirectory(prefix="ts-", dir="/tmp") as place:
        made = Ranks(Path(place))
        try:
            eventually(made.both_train, pause=0.5)
            yield made
        finally:
            made.close()


def count(trace: dict[str, Any], name: str) -> int:
    return sum(event["name"].startswith(name) for event in trace["traceEvents"] if event.get("ph") == "X")


def test_all_ranks_record_exactly_the_steps_and_the_slow_one_is_named(ranks: Ranks) -> None:
    capture = ranks.captured("--steps", "6")
    assert (capture["state"], capture["kind"], capture["reason"]) == ("summarised", "profile", "")
    summaries = capture["summary"]["ranks"]
    assert {rank: len(summary["steps"]) for rank, summary in summaries.items()} == {"0": 6, "1": 6}
    assert {"aten::addmm", "aten::mul"} <= {row["name"] for row in summaries["1"]["operators"]}
    traces = ranks.traces(capture)
    for name in ("ProfilerStep#", "Optimizer.step#"):
        assert [count(trace, name) for trace in traces] == [6, 6]
    assert [trace["distributedInfo"] for trace in traces] == [
        {"backend": "gloo", "rank": rank, "world_size": 2} for rank in (0, 1)
    ]
    found = capture["summary"]["bottleneck"]
    assert (found["class"], found["name"], found["rank"], found["last"]) == ("communication", "gloo:all_reduce", 0, 1)


def test_one_rank_with_its_python_functions_as_text(ranks: Ranks) -> None:
    done = ranks.run("capture", "captured_script", "--ranks", "1", "--steps", "4", "--stacks")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) <= 40
    assert "host: " in lines[1]
    assert re.search(r"captured_script\.py:\d+ in slow_transform", lines[1])
    assert "rank 1, 4 steps: operators by their own time" in lines
    assert re.search(r"aten::addmm  \S*captured_script\.py:\d+ in main", done.stdout)


def test_captures_are_listed_and_saved_and_a_failed_one_reports_why(ranks: Ranks, tmp_path: Path) -> None:
    refused = ranks.run("capture", "captured_script", "--ranks", "7")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert len(refused.stderr.splitlines()) == 1
    listed = ranks.run("captures", "captured_script", "--output", str(tmp_path / "new"))
    assert listed.returncode == 0, listed.stderr
    saved = {path.name for path in (tmp_path / "new").rglob("*.json.gz")}
    assert len(saved) == 2
    assert all(name.startswith("trace_") for name in saved)
    assert "failed" in listed.stdout.splitlines()[-1]


def test_without_the_environment_the_client_records_as_planned_and_asked(
    daemon: Daemon, start_training: Callable[..., Process]
) -> None:
    start_training(daemon, "-c", PLAIN)
    eventually(lambda: [state(one) for one in listed(daemon)] == [("profile", "plan", "summarised")])
    address = f"--url={daemon.url}/#token={(daemon.directory / 'push.token').read_text().strip()}"
    done = processes.run(command("capture", "plain", "--steps", "3", "--json", address))
    assert done.returncode == 0, done.stdout + done.stderr
    [summary] = json.loads(done.stdout)["summary"]["ranks"].values()
    assert len(summary["steps"]) == 3
    assert "aten::addmm" in {row["name"] for row in summary["operators"]}
    memory = processes.run(command("capture", "plain", "--memory", address))
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
    late = processes.run(command("capture", "plain", address))
    assert late.stderr.endswith("plain: it was killed by SIGKILL; only a run that trains can be recorded\n")


def listed(daemon: Daemon) -> list[dict[str, Any]]:
    """Return the captures of the run, none before it begins."""
    found: list[dict[str, Any]] = daemon.api("runs/plain-1/captures").json().get("captures", [])
    return found


def state(capture: dict[str, Any]) -> tuple[str, str, str]:
    """Return kind, trigger and state of a capture."""
    return capture["kind"], capture["trigger"], capture["state"]
