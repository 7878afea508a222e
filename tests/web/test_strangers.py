"""Idle connections that must not lock out others."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from certificate_authorities import hashed
from http_service import HttpService, is_closed
from processes import DEADLINE, eventually
from starlette.responses import PlainTextResponse

from trackside_daemon.web.http import connection_limit
from trackside_daemon.web.http.connection_limit import LIMITS, HttpLimits

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


ASKED = b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n"


class Service(HttpService):
    """A server with one user, ada."""

    def __init__(self, directory: Path, limits: HttpLimits = LIMITS) -> None:
        file = directory / "web.yml"
        file.write_text(f"basic_auth_users: {{ada: '{hashed('lovelace')}'}}")
        super().__init__(PlainTextResponse("here"), file, limits=limits)

    def scraped(self) -> bool:
        with httpx.Client(timeout=DEADLINE, trust_env=False) as client:
            return client.get(f"{self.url}/metrics", auth=("ada", "lovelace")).text == "here"


@pytest.fixture
def service(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Service]:
    """A server, with the limits of the parameter."""
    made = Service(tmp_path, getattr(request, "param", LIMITS))
    yield made
    made.server.stop()


def received(connection: socket.socket) -> bytes:
    """Return all bytes until the connection is closed."""
    found = b""
    while data := connection.recv(4096):
        found += data
    return found


def test_a_refused_connection_is_closed(service: Service) -> None:
    with service.connect(ASKED) as connection:
        answer = received(connection)
    assert answer.startswith(b"HTTP/1.1 401")
    assert b"connection: close" in answer.lower()


@pytest.mark.parametrize("service", [HttpLimits(request_seconds=0.2)], indirect=True)
def test_half_a_request_after_a_whole_one_is_waited_for_only_so_long(service: Service) -> None:
    password = b"Authorization: Basic YWRhOmxvdmVsYWNl\r\n"
    with service.connect(b"GET /metrics HTTP/1.1\r\nHost: here\r\n" + password + b"\r\n") as connection:
        assert connection.recv(4096).startswith(b"HTTP/1.1 200")
        connection.sendall(b"G")
        assert connection.recv(4096) in (b"", b"here")
        assert received(connection) == b""


@pytest.mark.parametrize("service", [HttpLimits(connections=40, idle=10)], indirect=True)
def test_more_silent_connections_than_there_is_room_for_keep_no_client_out(service: Service) -> None:
    with ExitStack() as ends:
        silent = [ends.enter_context(service.connect()) for _ in range(60)]
        assert service.scraped()

        def closed() -> int:
            return sum(is_closed(one) for one in silent)

        eventually(lambda: closed() >= 50)


def test_without_a_descriptor_left_it_is_logged_once_and_the_next_one_is_served(
    service: Service, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, left = socket.socket._accept, [3]  # type: ignore[attr-defined]

    def accept(self: Any) -> Any:
        if isinstance(self, connection_limit.LimitedListener) and self._spare is not None and left[0]:
            left[0] -= 1
            raise OSError(24, "Too many open files")
        return real(self)

    monkeypatch.setattr(socket.socket, "_accept", accept)
    with ExitStack() as ends:
        for _ in range(3):
            ends.enter_context(service.connect())
        eventually(lambda: not left[0])
        assert service.scraped()
    assert [one.getMessage() for one in caplog.records].count(
        "out of file descriptors; connections get status 503; raise LimitNOFILE or ulimit -n"
    ) == 1
