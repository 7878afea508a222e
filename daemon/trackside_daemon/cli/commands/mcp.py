"""The command mcp: answers for agents, a JSON-RPC message a line."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trackside_daemon.cli.errors import errors_reported
from trackside_daemon.cli.options import StoragePath, Url

if TYPE_CHECKING:
    from pathlib import Path

MOST_MESSAGES = 64  # messages that are answered at once: some of them wait for an event


def mcp(
    *,
    allow_actions: Annotated[
        bool, typer.Option("--allow-actions", help="Also offer the tools that act on a training: capture.")
    ] = False,
    storage_path: StoragePath = None,
    url: Url = "",
) -> None:
    """Answer an agent: list runs, explain why one is slow or broken, compare, wait for events.

    It speaks the Model Context Protocol on standard input and output. An agent starts it itself; see docs/agents.md.
    """
    with errors_reported(), ThreadPoolExecutor(MOST_MESSAGES) as pool:
        writing = Lock()
        for line in sys.stdin.buffer:
            if line.strip():
                pool.submit(_answer, line, storage_path, url, actions=allow_actions, writing=writing)


def _answer(line: bytes, directory: Path | None, url: str, *, actions: bool, writing: Lock) -> None:
    from trackside_daemon.cli.sources.daemon_lookup import find_history

    try:
        # Searched anew for each message: a daemon may start or end meanwhile.
        answer = find_history(directory, url).answer_agent(line, actions=actions)
    except Exception as error:  # noqa: BLE001  the agent waits for an answer, and this is its only one
        answer = _failed(line, str(error))
    if answer:
        with writing:
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()


def _failed(line: bytes, reason: str) -> dict[str, Any]:
    """Return the error that answers a message; empty if it needs no answer."""
    try:
        id_ = json.loads(line)["id"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return {}
    return {"jsonrpc": "2.0", "id": id_, "error": {"code": -32603, "message": reason}}
