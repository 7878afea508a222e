"""The sentence on what stops a run, as each command, page and answer has it."""

from __future__ import annotations

import json
import re
import time
from typing import TYPE_CHECKING

from processes import http, run_here

if TYPE_CHECKING:
    from processes import Daemon

WITHIN = 60.0
WIDE = {"COLUMNS": "4000"}


def faces(daemon: Daemon, name: str) -> dict[str, str]:
    """Return the sentence of each face on a run."""
    environ = {"TRACKSIDE_ENDPOINT": daemon.endpoint, **WIDE}

    def printed(*arguments: str) -> str:
        done = run_here(*arguments, environ=environ)
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    found = re.search(r"^health: broken: (.*)$", printed("why", name), re.MULTILINE)
    shown = re.search(r"^verdict\s+(.*)$", printed("show", name), re.MULTILINE)
    top = re.search(
        rf"^\W*(run {name} has made no step.*|rank \d+ of run {name}\b.*)$", printed("top", "--once"), re.MULTILINE
    )
    (listed,) = (one for one in daemon.api("overview").json()["runs"] if one["name"] == name)
    return {
        "why": found[1] if found else "",
        "show": shown[1].strip() if shown else "",
        "top --once": top[1].strip() if top else "",
        "overview": listed["verdict"],
        "header": daemon.api(f"runs/{name}").json()["verdict"],
        "diagnosis": daemon.api(f"runs/{name}/diagnosis").json()["verdict"],
        "MCP": mcp(daemon, name),
        "alert": alert(daemon, name),
    }


def differing(daemon: Daemon, name: str) -> dict[str, str]:
    """Return the sentences of all faces if two still differ after a minute; empty once all are the same.

    They are asked one after another, and the verdict may change meanwhile.
    """
    begun = time.monotonic()
    while len(set((found := faces(daemon, name)).values())) > 1 or not all(found.values()):
        if time.monotonic() - begun > WITHIN:
            return found
        time.sleep(1)
    return {}


def mcp(daemon: Daemon, name: str) -> str:
    """Return what an agent reads."""
    token = (daemon.directory / "push.token").read_text().strip()
    call = {"name": "why", "arguments": {"run": name}}
    answer = http.post(
        f"{daemon.url}/api/v1/mcp",
        json={"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call},
        headers={"Authorization": f"Bearer {token}"},
    )
    verdict = json.loads(answer.json()["result"]["content"][0]["text"])["verdict"]
    return re.sub("</?untrusted>", "", str(verdict))


def alert(daemon: Daemon, name: str) -> str:
    """Return the sentence that the notification of an alert has in its summary and at the beginning of its description."""
    firing = [
        one
        for one in daemon.api("alerts?firing=true").json()["alerts"]
        if one["run"] == name and "hang" in one["evidence"]
    ]
    one = max(firing, key=lambda one: one["alert"] == "TrainingStalled")
    text = one["evidence"]["hang"]["text"]
    assert one["description"].startswith(text), one["description"]
    return f"{one['summary']}. {text}"
