"""The command mcp: answers for agents, a JSON-RPC message a line."""

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import BoundedSemaphore, Lock
from typing import Annotated, Any, BinaryIO

from trackside_daemon.agents.fitting import MESSAGE_BYTES
from trackside_daemon.cli.errors import errors_reported
from trackside_daemon.cli.options import StoragePath, Url, flag

MOST_MESSAGES = 64  # calls of tools that are answered at once: some of them wait for an event


def mcp(
    *,
    allow_actions: Annotated[
        bool, flag("--allow-actions", "Also offer the tools that act on a training: capture.")
    ] = False,
    storage_path: StoragePath = None,
    url: Url = "",
) -> None:
    """Answer an agent: list runs, explain why one is slow or broken, compare, wait for events.

    It speaks the Model Context Protocol on standard input and output; see docs/agents.md.
    """
    with errors_reported(), ThreadPoolExecutor(MOST_MESSAGES) as pool:
        writing, free = Lock(), BoundedSemaphore(MOST_MESSAGES)
        for line in _lines(sys.stdin.buffer):
            answer = partial(_answer, line, storage_path, url, actions=allow_actions, writing=writing)
            if _is_call(line):
                free.acquire()  # no further line is read while so many wait, or while nobody reads the answers
                pool.submit(answer).add_done_callback(lambda _: free.release())
            else:  # in the order of the messages: a client expects the greeting first
                answer()


def _lines(stream: BinaryIO) -> Iterator[bytes]:
    """Yield the messages; of one that is too long, its beginning, which is none."""
    while line := stream.readline(MESSAGE_BYTES + 1):
        rest = line
        while len(rest) > MESSAGE_BYTES and not rest.endswith(b"\n"):
            rest = stream.readline(MESSAGE_BYTES + 1)
        if line.strip():
            yield line


def _is_call(line: bytes) -> bool:
    """Return whether a message calls a tool, which may take long."""
    try:
        return bool(json.loads(line)["method"] == "tools/call")
    except (ValueError, LookupError, TypeError, RecursionError):
        return False


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
