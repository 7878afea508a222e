"""The tools that act on a training, for an agent whose person has started ``trackside mcp --allow-actions``.

They ask the API as commands of that person do: the daemon offers them to agents only by its setting ``web.agent-actions``.
"""

import asyncio
import json
from collections.abc import Callable
from typing import Any

from trackside_daemon import __version__
from trackside_daemon.agents.answers import recorded
from trackside_daemon.agents.protocol import Protocol
from trackside_daemon.agents.tools import TOOLS, CaptureArguments
from trackside_daemon.agents.untrusted import unmark
from trackside_daemon.cli.sources.source import SourceError

Record = Callable[[str, dict[str, Any]], dict[str, Any]]


class Actions:
    """Has a method for each tool that acts.

    Args:
        record: Begins a capture of a run by the body of its request, and returns it with its summary.
    """

    def __init__(self, record: Record) -> None:
        self._record = record

    async def capture(self, wanted: CaptureArguments) -> dict[str, Any]:
        """Record a run."""
        body: dict[str, Any] = {"kind": wanted.kind, "stacks": wanted.stacks}
        if wanted.kind == "profile":
            body["steps"] = wanted.steps
        try:
            return recorded({"text": [], **self._record(unmark(wanted.run), body)})
        except SourceError as error:
            raise LookupError(str(error)) from None


def answer(message: bytes, record: Record) -> dict[str, Any] | None:
    """Answer a message that lists the tools or calls one that acts; None for another message."""
    try:
        asked = json.loads(message)
        tool = TOOLS.get(asked["params"]["name"]) if asked["method"] == "tools/call" else None
        if asked["method"] != "tools/list" and (tool is None or not tool.acts):
            return None
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    return asyncio.run(Protocol(Actions(record), __version__).answer(message, actions=True)) or {}
