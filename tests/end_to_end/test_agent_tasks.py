"""Tasks that people give to an agent: each is answered right, in at most two calls, by the client of the official SDK.

``pytest -s`` prints the calls and the tokens of each.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING, Any

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from processes import clean_environ, eventually

from trackside_daemon.agents.untrusted import unmark

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from processes import Daemon

MOST_CALLS = 2
LETTERS = 4  # of a token, about
TRAINING = """
import json, math, os, random, sys, time, zipfile
import trackside

def save(run, path, torn=False):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", json.dumps(path))
        archive.writestr("archive/data/0", os.urandom(10_000))
    run.event("checkpoint", path=path)
    if torn:
        os.truncate(path, 5_000)

for place in range(8):
    run = trackside.init(f"sweep-{place}", config={"lr": 10.0 ** -place}, tags=["sweep"])
    noise = random.Random(place)
    level = {3: 0.5, 5: 0.5}.get(place, 0.6 + place / 50)
    for step in range(300):
        run.push(step=step, loss=level + 2 * math.exp(-step / 50) + noise.gauss(0, 0.02))
    run.summary(accuracy=0.7 + place / 100)
    run.finish()
for number, lr in enumerate((0.1, 0.2)):
    run = trackside.init("nightly", id=f"nightly-{number}", config={"lr": lr})
    noise = random.Random(number)
    for step in range(300):
        run.push(step=step, loss=1.0 - number / 10 + noise.gauss(0, 0.01))
    run.finish()
slow = trackside.init("slow-run")
for step, _ in enumerate(slow.data(time.sleep(0.02) for _ in range(150))):
    time.sleep(0.003)
    slow.push(step=step, loss=1.0)
slow.finish()
zed = trackside.init("zed")
for step in range(1, 31):
    zed.push(step=step, loss=3 - step / 15)
    if step % 10 == 0:
        save(zed, os.path.join(sys.argv[1], f"step-{step}.pt"), torn=step == 30)
zed.finish("failed")
main = trackside.init("main", total_steps=10_000)
step = 0
def train(steps, pause=0.01, loss=lambda at: 1 + 5 / (at + 5)):
    global step
    for _ in range(steps):
        step += 1
        main.push(step=step, loss=loss(step) + random.gauss(0, 0.001))
        time.sleep(pause)
train(400)
save(main, os.path.join(sys.argv[1], "main-400.pt"))
train(200)
print("ready", flush=True)
sys.stdin.readline()
train(400, loss=lambda at: 1 + (at - 600) / 50)
print("rose", flush=True)
sys.stdin.readline()
time.sleep(600)
"""


class Agent:
    """An agent with tools, which counts what each task costs."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._calls = 0
        self._letters = 0

    async def ask(self, tool: str, **arguments: Any) -> Any:
        """Call a tool."""
        result = await self._client.call_tool(tool, arguments)
        (block,) = result.content
        assert not result.is_error, block.text
        self._calls += 1
        self._letters += len(block.text)
        return json.loads(block.text)

    def done(self, task: str) -> None:
        """End a task."""
        sys.stdout.write(f"{task}: {self._calls} calls, {self._letters // LETTERS} tokens\n")
        assert self._calls <= MOST_CALLS
        self._calls = self._letters = 0


async def work(daemon: Daemon, training: Any, place: Path) -> None:
    environ = clean_environ({"TRACKSIDE_ENDPOINT": daemon.endpoint})
    command = StdioServerParameters(command=sys.executable, args=["-m", "trackside_daemon", "mcp"], env=environ)
    async with Client(stdio_client(command, errlog=sys.__stderr__ or sys.stderr)) as client:
        agent = Agent(client)
        await end(agent)
        await explain(agent)
        await choose(agent, place)
        await watch(agent, training)


async def end(agent: Agent) -> None:
    """Ask before the training stands still for long."""
    (main,) = (await agent.ask("overview", run="main"))["runs"]
    assert main["health"] in {"ok", "slow"}, "its steps are slower where other tests run beside"
    assert (main["total_steps"], main["step"]) == (10_000, 600)
    assert main["remaining_seconds"] > 30
    assert main["checkpoint"]["step"] == 400
    assert 0 < main["unsaved_seconds"] < 600
    agent.done("is it safe to end main, and how long does it take yet")


async def explain(agent: Agent) -> None:
    found = await agent.ask("why", run="slow-run")
    assert (found["cause"], found["health"]) == ("data_wait", "slow")
    assert "<untrusted>" not in found["advice"]
    agent.done("why is slow-run slow")
    found = await agent.ask("changes", hours=24)
    assert unmark(found["runs"][0]["name"]) == "zed", "what failed comes first"
    assert found["states"] == {"finished": 11, "failed": 1, "running": 1}
    (settings,) = [one for one in found["settings"] if one["run"] == "nightly-1"]
    assert settings["before"] == "nightly-0"
    assert {
        "key": "<untrusted>lr</untrusted>",
        "before": "<untrusted>0.1</untrusted>",
        "now": "<untrusted>0.2</untrusted>",
    } in settings["differs"]
    agent.done("what changed since yesterday")
    found = await agent.ask("alerts", firing=True, run="zed")
    assert {one["alert"] for one in found["alerts"]} >= {"CheckpointDamaged"}
    assert all(one["advice"] for one in found["alerts"])
    agent.done("what is wrong with zed, and what to do")


async def choose(agent: Agent, place: Path) -> None:
    found = await agent.ask("rank", query="tag:sweep", key="loss")
    first = [unmark(one["name"]) for one in found["ranked"]]
    assert set(first[:2]) == {"sweep-3", "sweep-5"}
    assert len(first) == 8
    assert found["tied_with"] == [found["ranked"][1]["id"]], "the others are worse by more than noise"
    agent.done("which of 8 runs is best, and is it real")
    found = await agent.ask("rank", query="tag:sweep", key="accuracy", higher=True)
    assert unmark(found["ranked"][0]["name"]) == "sweep-7"
    agent.done("which of 8 runs has the best accuracy")
    found = await agent.ask("checkpoints", run="zed")
    assert unmark(found["resume_from"]["path"]) == str(place / "step-20.pt")
    assert found["checkpoints"][0]["state"] == "damaged"
    agent.done("resume zed from a good checkpoint")
    found = await agent.ask("rank", runs=["nightly-0", "nightly-1"])
    assert (found["best"], found["tied_with"]) == ("nightly-1", [])
    agent.done("is tonight's run better than yesterday's")


async def alerted(agent: Agent, names: set[str], **since: float) -> float:
    """Wait until one of these alerts fires, and return the time of the answer; others come first on a busy machine."""
    while True:
        found = await agent.ask("wait", run="main", timeout_seconds=120, until=["alert"], **since)
        if {one["alert"] for one in found["alerts"]} & names:
            return float(found["now"])
        since = {"since": found["now"]}
        agent.done("another alert")


async def watch(agent: Agent, training: Any) -> None:
    waiting = asyncio.create_task(alerted(agent, {"LossSpike", "LossDiverging"}))
    await asyncio.sleep(1)  # the call is on its way
    training.stdin.write("rise\n")
    training.stdin.flush()
    now = await waiting
    agent.done("say when main diverges")
    assert await asyncio.to_thread(training.stdout.readline) == "rose\n"
    training.stdin.write("hang\n")
    training.stdin.flush()
    await alerted(agent, {"TrainingStalled"}, since=now)
    found = await agent.ask("why", run="main")
    assert (found["cause"], found["health"]) in {("stall", "broken"), ("training_stalled", "broken")}
    assert "end the process" not in found["advice"], "it may go on"
    agent.done("say when main hangs, and why")


@pytest.mark.usefixtures("only_soak")
def test_an_agent_answers_ten_tasks(
    start_daemon: Callable[..., Daemon], start_training: Callable[..., Any], tmp_path: Path
) -> None:
    daemon = start_daemon()
    training = start_training(daemon, "-c", TRAINING, str(tmp_path))
    assert training.stdout.readline() == "ready\n"
    eventually(
        lambda: (
            [one["state"] for one in daemon.api("runs/zed/checkpoints").json()["checkpoints"]]
            == ["complete", "complete", "damaged"]
        )
    )
    eventually(
        lambda: [one["state"] for one in daemon.api("runs/main/checkpoints").json()["checkpoints"]] == ["complete"]
    )
    asyncio.run(work(daemon, training, tmp_path))
