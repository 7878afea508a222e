"""`trackside mcp` reads no further than it answers, whatever its client does."""

from __future__ import annotations

import io
import json
import sys
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from processes import DEADLINE, eventually

from trackside_daemon.agents.fitting import MESSAGE_BYTES
from trackside_daemon.cli.commands import mcp as command
from trackside_daemon.cli.sources import daemon_lookup

if TYPE_CHECKING:
    import pytest


class Client:
    """A client that sends messages on standard input, and counts those that are read."""

    def __init__(self, messages: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
        self.read = 0
        self.answering = 0
        self.gate = Event()
        self._messages = iter(messages)
        self._rest = b""
        self.output = io.StringIO()
        monkeypatch.setattr(sys, "stdin", self)
        monkeypatch.setattr(sys, "stdout", self.output)
        monkeypatch.setattr(daemon_lookup, "find_history", lambda *_: self)

    @property
    def buffer(self) -> Client:
        return self

    def readline(self, most: int) -> bytes:
        line = self._rest or next(self._messages, b"")
        self.read += not self._rest
        self._rest = line[most:]
        return line[:most]

    def answer_agent(self, line: bytes, *, actions: bool) -> dict[str, Any] | None:
        del actions
        try:
            message = json.loads(line)
        except ValueError:
            return {"id": None}
        if message["method"] == "tools/call":
            self.answering += 1
            assert self.gate.wait(DEADLINE)
        return {"id": message["id"]}

    def answers(self) -> list[Any]:
        return [json.loads(line)["id"] for line in self.output.getvalue().splitlines()]


def message(id_: int, method: str = "tools/call") -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": id_, "method": method, "params": {}}).encode() + b"\n"


def test_only_so_many_calls_are_read_before_one_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client([message(id_) for id_ in range(10_000)], monkeypatch)
    running = Thread(target=command.mcp, kwargs={"allow_actions": False, "storage_path": None, "url": ""})
    running.start()
    try:
        eventually(lambda: client.answering == command.MOST_MESSAGES)
        assert client.read <= command.MOST_MESSAGES + 1
    finally:
        client.gate.set()
        running.join(DEADLINE)
    assert not running.is_alive()
    assert sorted(client.answers()) == list(range(10_000))


def test_what_calls_no_tool_is_answered_in_order_and_before_later_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    methods = ["initialize", "tools/list", "ping", "unknown"]
    client = Client([message(id_, method) for id_, method in enumerate(methods)] + [message(9)], monkeypatch)
    client.gate.set()
    command.mcp(allow_actions=False, storage_path=None, url="")
    assert client.answers() == [0, 1, 2, 3, 9]


def test_a_message_that_could_fill_the_memory_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client([b"x" * (5 * MESSAGE_BYTES) + b"\n", message(1, "ping")], monkeypatch)
    command.mcp(allow_actions=False, storage_path=None, url="")
    assert client.answers() == [None, 1]
