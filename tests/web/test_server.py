"""The HTTP server with real sockets: idle, broken and concurrent requests."""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from http_service import HttpService
from processes import DEADLINE, eventually, http, is_running
from starlette.responses import PlainTextResponse

from trackside_daemon.web.http.connection_limit import LIMITS, HttpLimits

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator

    from starlette.types import Receive, Scope, Send


class Service(HttpService):
    """A served application; `/slow` answers once it is released, and `/broken` raises."""

    def __init__(self, limits: HttpLimits = LIMITS) -> None:
        self.entered, self.go_on = threading.Event(), threading.Event()
        super().__init__(self._answer, limits=limits)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/broken":
            raise RuntimeError("broken")
        if scope["path"] == "/slow":
            self.entered.set()
            assert self.go_on.wait(DEADLINE)
        await PlainTextResponse(f"{scope['client'][0]} {scope['scheme']}")(scope, receive, send)

    def get(self, path: str = "/", **headers: str) -> httpx.Response:
        return http.get(self.url + path, headers=headers, timeout=DEADLINE)


@pytest.fixture
def service(request: pytest.FixtureRequest) -> Iterator[Service]:
    """A server, with the limits of the parameter."""
    made = Service(getattr(request, "param", LIMITS))
    yield made
    made.go_on.set()
    made.server.stop()


# A twentieth of a second for a request.
impatient = pytest.mark.parametrize("service", [HttpLimits(request_seconds=0.05)], indirect=True)


def read(connection: socket.socket) -> bytes:
    """Return all bytes until the other side closes."""
    parts = []
    while part := connection.recv(65536):
        parts.append(part)
    return b"".join(parts)


def test_it_serves_and_leaves_the_connection_open(service: Service) -> None:
    with httpx.Client(base_url=service.url) as client:
        for _ in range(3):
            assert client.get("/").status_code == 200
    assert "server" not in service.get().headers


@pytest.mark.parametrize(
    ("service", "statuses"),
    [(HttpLimits(connections=512, idle=10), {200}), (HttpLimits(connections=40, idle=10), {200, 503})],
    indirect=["service"],
)
def test_of_a_burst_of_requests_each_gets_a_status(statuses: set[int], service: Service) -> None:
    """Most connections of a burst were once closed without a word, since their requests had not been read yet."""
    slow = service.connect(b"GET /slow HTTP/1.1\r\nHost: here\r\n\r\n")
    assert service.entered.wait(DEADLINE)  # the event loop waits in it
    burst = [service.connect(b"GET / HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n") for _ in range(100)]
    service.go_on.set()
    answers = [read(connection) for connection in burst]
    assert {int(answer.split()[1]) for answer in answers} == statuses
    assert all(answer.count(b"\r\n\r\n") == 1 for answer in answers)
    for connection in (slow, *burst):
        connection.close()


def test_what_a_proxy_claims_is_not_believed(service: Service) -> None:
    answer = service.get(**{"X-Forwarded-For": "10.0.0.1", "X-Forwarded-Proto": "https"})
    assert answer.text == "127.0.0.1 http"


@impatient
def test_idle_connections_do_not_keep_scrapes_out(service: Service) -> None:
    idle = [service.connect() for _ in range(10)]
    assert [read(connection) for connection in idle] == [b""] * 10, "each is closed without a word"
    assert eventually(lambda: service.get().status_code == 200)
    for connection in idle:
        connection.close()


@impatient
def test_a_request_that_is_never_finished_is_not_waited_for(service: Service) -> None:
    with service.connect(b"GET / HTTP/1.1\r\nHost: x\r\n") as dribbling:
        assert read(dribbling) == b""
    assert service.get().status_code == 200


@impatient
def test_a_slow_request_is_not_cut_off(service: Service) -> None:
    answers: list[int] = []
    asker = threading.Thread(target=lambda: answers.append(service.get("/slow").status_code))
    asker.start()
    assert service.entered.wait(DEADLINE)
    service.go_on.set()
    asker.join(DEADLINE)
    assert answers == [200]


@pytest.mark.parametrize(
    "garbage",
    [b"\x00" * 100, b"garbage\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"],
    ids=["zeros", "words", "no host"],
)
def test_garbage_is_answered_400_and_not_logged(
    service: Service, caplog: pytest.LogCaptureFixture, garbage: bytes
) -> None:
    caplog.set_level(logging.ERROR)
    with service.connect(garbage) as connection:
        assert read(connection).startswith(b"HTTP/1.1 400 ")
    assert service.get().status_code == 200
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_a_request_line_without_end_is_cut_off(service: Service) -> None:
    with service.connect(b"A" * 100_000) as connection, suppress(ConnectionResetError):
        assert read(connection) is not None
    assert service.get().status_code == 200


def test_an_application_that_breaks_is_a_500_and_the_server_continues(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    assert service.get("/broken").status_code == 500
    assert service.get().status_code == 200
    assert any(record.exc_info for record in caplog.records)


def test_a_stop_answers_what_is_under_way(service: Service) -> None:
    answers: list[int] = []
    asker = threading.Thread(target=lambda: answers.append(service.get("/slow").status_code))
    asker.start()
    assert service.entered.wait(DEADLINE)
    stopper = threading.Thread(target=service.server.stop)
    stopper.start()
    service.go_on.set()
    for thread in (asker, stopper):
        thread.join(DEADLINE)
    assert answers == [200]


@pytest.mark.parametrize("data", [b"", b"GET / HTTP/1.1\r\n"], ids=["silent", "dribbling"])
def test_a_stop_does_not_wait_for_connections_that_ask_nothing(service: Service, data: bytes) -> None:
    with service.connect(data):
        assert service.get().status_code == 200  # the server accepts connections in their order
        service.server.stop()
    assert not is_running("trackside-web")


def test_a_server_that_is_stopped_at_once_ends() -> None:
    for _ in range(5):
        server = Service().server
        server.stop()
        assert not is_running("trackside-web")


def test_many_ask_at_once(service: Service, count: Callable[[int, int], int]) -> None:
    answers: list[Any] = []

    def ask() -> None:
        answers.extend(service.get().status_code for _ in range(count(5, 200)))

    threads = [threading.Thread(target=ask) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    assert set(answers) == {200}
