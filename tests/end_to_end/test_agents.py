"""`trackside mcp` and the daemon's port, used by the client of the official SDK."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING, Any

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from processes import DEADLINE, clean_environ

from trackside_daemon.agents.fitting import ANSWER_BYTES
from trackside_daemon.agents.tools import TOOLS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from processes import Daemon

TRAINING = """
import select, sys, trackside
run = trackside.init("gpt", id="run-1", total_steps=100)
for step in range(1, 21):
    run.push(step=step, loss=1 / step)
print("pushed", flush=True)
sys.stdin.readline()
run.push(step=50, loss=0.01)
number = 0
while not select.select([sys.stdin], [], [], 0.5)[0]:  # a wait that begins after an alert is for the next one
    number += 1
    run.alert(f"Diverged {number}", "by hand")
run.finish("failed")
"""


def content(result: Any) -> dict[str, Any]:
    (block,) = result.content
    assert not result.is_error, block.text
    assert len(block.text) <= ANSWER_BYTES
    found: dict[str, Any] = json.loads(block.text)
    assert result.structured_content == found
    return found


async def ask(client: Any, tool: str, **arguments: Any) -> dict[str, Any]:
    return content(await client.call_tool(tool, arguments))


async def use_stdio(daemon: Daemon, training: Any) -> None:
    environ = clean_environ({"TRACKSIDE_ENDPOINT": daemon.endpoint})
    command = StdioServerParameters(command=sys.executable, args=["-m", "trackside_daemon", "mcp"], env=environ)
    async with Client(stdio_client(command, errlog=sys.__stderr__ or sys.stderr)) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == list(TOOLS)[:-1]
        listed = await ask(client, "runs")
        assert "run-1" in listed["runs"][0]["id"]
        waits = [
            asyncio.create_task(ask(client, "wait", run="gpt", **until))
            for until in ({"step": 50, "until": []}, {"until": ["alert"]}, {"until": ["end"]})
        ]
        answered = await ask(client, "wait", run="gpt", timeout_seconds=0)
        assert (answered["reason"], answered["step"]) == ("timeout", 20)
        (run,) = (await ask(client, "overview"))["runs"]
        assert (run["step"], run["total_steps"], run["checkpoint"]) == (20, 100, None)
        assert run["health"] in {"ok", "slow"}  # a machine that is busy otherwise slows it down
        assert run["unsaved_seconds"] > 0
        training.stdin.write("\n")
        training.stdin.flush()
        step, alert = await asyncio.gather(*waits[:2])
        assert (step["reason"], step["step"]) == ("step", 50)
        assert alert["reason"] == "alert"
        assert "Diverged" in alert["alerts"][-1]["summary"]
        training.stdin.write("\n")
        training.stdin.flush()
        assert (await waits[2])["state"] == "failed"


async def use_actions(daemon: Daemon) -> None:
    environ = clean_environ({"TRACKSIDE_ENDPOINT": daemon.endpoint})
    arguments = ["-m", "trackside_daemon", "mcp", "--allow-actions"]
    command = StdioServerParameters(command=sys.executable, args=arguments, env=environ)
    async with Client(stdio_client(command, errlog=sys.__stderr__ or sys.stderr)) as client:
        assert [tool.name for tool in (await client.list_tools()).tools][-2:] == ["wait", "capture"]
        stacks = await ask(client, "capture", run="<untrusted>gpt</untrusted>", kind="stacks")
        assert stacks["state"] == "summarised"
        refused = await client.call_tool("capture", {"run": "another"})
        assert refused.is_error
        assert "another" in str(refused.content[0])
        refused = await client.call_tool("capture", {"run": "gpt", "steps": 0})
        assert refused.is_error
        assert (await ask(client, "runs"))["runs"]


async def use_the_port(daemon: Daemon, directory: Path) -> None:
    url = f"{daemon.url}/api/v1/mcp"
    token = (directory / "push.token").read_text().strip()
    async with httpx2.AsyncClient() as stranger:
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        assert (await stranger.post(url, json=message)).status_code == 401
    async with (
        httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}, timeout=DEADLINE) as http,
        Client(streamable_http_client(f"{url}?allow-actions=true", http_client=http)) as client,
    ):
        assert "capture" not in [tool.name for tool in (await client.list_tools()).tools]
        assert (await ask(client, "why", run="run-1"))["run"]["state"] == "failed"
        curve = await ask(client, "series", run="run-1", keys=["loss"])
        assert curve["series"][0]["points"][-1] == [50, 0.01, 0.01, 0.01]
        refused = await client.call_tool("capture", {"run": "another"})
        assert refused.is_error


def test_the_sdk_s_client_gets_answers_over_stdio_and_over_the_port(
    start_daemon: Callable[..., Daemon], start_training: Callable[..., Any], place: Path
) -> None:
    daemon = start_daemon()
    training = start_training(daemon, "-c", TRAINING)
    assert training.stdout.readline() == "pushed\n"
    asyncio.run(use_actions(daemon))
    asyncio.run(use_stdio(daemon, training))
    asyncio.run(use_the_port(daemon, place))
