"""Answer messages of the Model Context Protocol, revisions 2024-11-05 to 2025-11-25; newer clients fall back to these.

Source: https://modelcontextprotocol.io/specification/2025-11-25. The transport is the caller's: a line of standard input,
or the body of a request.
"""

import json
import sqlite3
from typing import Any

from trackside_daemon.agents import tools
from trackside_daemon.agents.answers import NotLiveError
from trackside_daemon.agents.fitting import fitted
from trackside_daemon.agents.untrusted import mark
from trackside_daemon.history.directory import HistoryError
from trackside_daemon.history.read.reader import UnknownKeyError, UnknownRunError
from trackside_daemon.model.text import shown

REVISIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
MOST_LETTERS = 500  # letters of an error

PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS = -32700, -32600, -32601, -32602


class Protocol:
    """Answers messages.

    Args:
        answers: Has a method for each tool, such as `Answers`.
        version: This program's version.
    """

    def __init__(self, answers: object, version: str) -> None:
        self._answers = answers
        self._version = version

    async def answer(self, data: bytes, *, actions: bool) -> dict[str, Any] | None:
        """Return the answer to a message; None if it needs none.

        Args:
            data: One message, as JSON.
            actions: Whether tools that act are allowed.
        """
        try:
            message = json.loads(data)
        except (ValueError, RecursionError):
            return _error(None, PARSE_ERROR, "the message is not JSON")
        if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
            return _error(None, INVALID_REQUEST, "a JSON-RPC 2.0 message is expected, and no batch")
        if "id" not in message or "method" not in message:  # a notification, or an answer
            return None
        params = message.get("params")
        return await self._handle(
            message["id"], message["method"], params if isinstance(params, dict) else {}, actions=actions
        )

    async def _handle(self, id_: Any, method: Any, params: dict[str, Any], *, actions: bool) -> dict[str, Any]:
        if method == "initialize":
            return _result(id_, self._greeting(params.get("protocolVersion")))
        if method == "ping":
            return _result(id_, {})
        if method == "tools/list":
            return _result(id_, {"tools": tools.listed(actions=actions)})
        if method == "tools/call":
            if not isinstance(params.get("name"), str):
                return _error(id_, INVALID_PARAMS, "name: the name of a tool is expected")
            return _result(id_, await self._call(params["name"], params.get("arguments"), actions=actions))
        return _error(id_, METHOD_NOT_FOUND, f"method {str(method)[:60]!r}: there is none")

    def _greeting(self, revision: Any) -> dict[str, Any]:
        return {
            "protocolVersion": revision if revision in REVISIONS else REVISIONS[0],
            "capabilities": {"tools": {"listChanged": False}},
            "serverInfo": {"name": "trackside", "version": self._version},
            "instructions": tools.INSTRUCTIONS,
        }

    async def _call(self, name: str, given: Any, *, actions: bool) -> dict[str, Any]:
        """Return the answer of a tool; an error is one too, so that the agent reads it."""
        try:
            text = fitted(await tools.call(self._answers, name, given, actions=actions))
            return {**_content(text), "structuredContent": json.loads(text)}
        except (LookupError, ValueError, NotLiveError, HistoryError, OSError, sqlite3.Error) as error:
            return {**_content(failure(error)), "isError": True}


def failure(error: BaseException) -> str:
    """Return an error in one line; that of an unknown run lists names of runs."""
    text = str(error.args[0]) if isinstance(error, LookupError) and error.args else str(error)
    return mark(text) if isinstance(error, (UnknownKeyError, UnknownRunError)) else shown(text)[:MOST_LETTERS]


def _content(text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}]}


def _result(id_: Any, result: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id_, "result": result}


def _error(id_: Any, code: int, text: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id_, "error": {"code": code, "message": text}}
