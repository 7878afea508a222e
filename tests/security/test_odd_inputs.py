"""Inputs that once left their path as an error of ours: each costs itself, with one line."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from processes import eventually

from trackside.wire import WireError
from trackside_daemon.cli.gate import Condition, ExpressionError
from trackside_daemon.history.files.items import AlertFields
from trackside_daemon.history.files.layer_lines import frame_of
from trackside_daemon.model.configuration import changes

if TYPE_CHECKING:
    from processes import Daemon


@pytest.mark.parametrize("kind", [1, None, [], "unknown"])
def test_layers_of_an_unknown_kind_are_refused_in_a_line(kind: Any) -> None:
    with pytest.raises((ValueError, WireError)):
        frame_of({"of": kind, "layers": {"a": {}}, "step": 1, "time": 1.0})


def test_an_imported_alert_has_one_of_the_severities() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"alert": "A", "severity": "apocalypse", "started": 1}', type=AlertFields)


def test_an_imported_command_with_a_list_in_it_does_not_stop_a_report() -> None:
    assert changes({"command": ["python", ["a", "b"]]}, {"command": []}) == [["command", "python ['a', 'b']", "-"]]


def test_a_number_of_four_hundred_digits_is_named_as_too_large() -> None:
    with pytest.raises(ExpressionError, match="too large"):
        Condition(f"loss > {'9' * 400}").holds(lambda _: 1.0)


def test_a_client_that_leaves_within_its_request_writes_no_traceback(daemon: Daemon) -> None:
    host, _, port = daemon.url.removeprefix("http://").partition(":")
    token = (daemon.directory / "push.token").read_text().strip()
    for path in ("/mcp", "/api/v1/mcp", "/api/v1/import"):
        with socket.create_connection((host, int(port))) as peer:
            head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nTransfer-Encoding: chunked\r\n\r\n"
            peer.sendall(head.encode() + b"5\r\nabcde\r\nzz\r\n")
            peer.recv(100)
    eventually(lambda: daemon.get("/-/healthy").status_code == 200)
    assert not [line for line in daemon.log if "Traceback" in line]
