"""Idle connections, and requests that take long, keep neither a scrape nor a probe out."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from http_service import HttpService, is_closed
from processes import DEADLINE, eventually, http
from starlette.responses import PlainTextResponse

from trackside_daemon.web.http.connection_limit import LIMITS, HttpLimits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from processes import Daemon
    from starlette.types import Receive, Scope, Send

ASKED = b"GET /-/healthy HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Service(HttpService):
    """A served application, where `/slow` never answers."""

    def __init__(self, limits: HttpLimits = LIMITS) -> None:
        self.slow = 0
        super().__init__(self._answer, limits=limits)

    def status(self, path: str) -> int:
        return http.get(self.url + path).status_code

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"].endswith("slow"):
            self.slow += 1
            while (await receive())["type"] != "http.disconnect":
                pass
            self.slow -= 1
            return
        await PlainTextResponse("here")(scope, receive, send)


@pytest.fixture
def service(request: pytest.FixtureRequest) -> Iterator[Service]:
    """A server, with the limits of the parameter."""
    service = Service(getattr(request, "param", LIMITS))
    yield service
    service.server.stop()


def answered(connection: socket.socket) -> bool:
    """Return whether a connection gets a whole answer with status 200."""
    received = b""
    while not received.rstrip().endswith((b"here", b"trackside is healthy.")):
        if not (data := connection.recv(65536)):
            return False
        received += data
    return received.startswith(b"HTTP/1.1 200")


def test_more_kept_connections_than_there_is_room_for_keep_no_scrape_out(service: Service) -> None:
    with ExitStack() as ends:
        kept = []
        for _ in range(300):
            kept.append(ends.enter_context(service.connect(ASKED)))
            assert answered(kept[-1])
        assert {service.status(path) for path in ("/metrics", "/-/healthy", "/")} == {200}
        # Those that have been idle longest had to go, and the others are still served.
        eventually(lambda: is_closed(kept[0]))
        kept[-1].sendall(ASKED)
        assert answered(kept[-1])


@pytest.mark.parametrize("service", [HttpLimits(idle=3)], indirect=True)
def test_a_connection_in_use_is_not_idle(service: Service) -> None:
    with ExitStack() as ends:
        used, waiting = (ends.enter_context(service.connect(data)) for data in (ASKED, b"GET /slow HTTP/1.0\r\n\r\n"))
        assert answered(used)
        eventually(lambda: service.slow)
        for _ in range(10):
            assert answered(ends.enter_context(service.connect(ASKED)))
            used.sendall(ASKED)
            assert answered(used)
        assert service.slow == 1
        assert not is_closed(waiting)


@pytest.mark.parametrize("service", [HttpLimits(connections=5)], indirect=True)
def test_without_room_for_any_connection_the_longest_idle_one_makes_way(service: Service) -> None:
    with ExitStack() as ends:
        for _ in range(20):
            assert answered(ends.enter_context(service.connect(ASKED)))
        assert service.status("/metrics") == 200


@pytest.mark.parametrize("service", [HttpLimits(requests=4, reserved=1)], indirect=True)
def test_requests_in_progress_leave_a_reserve_for_scrapes_and_probes(service: Service) -> None:
    with ExitStack() as ends:
        for _ in range(4):
            ends.enter_context(service.connect(b"GET /slow HTTP/1.0\r\n\r\n"))
        eventually(lambda: service.slow == 4)
        refused = http.get(f"{service.url}/")
        assert (refused.status_code, refused.json()["error"]["reason"]) == (503, "busy")
        assert refused.headers["Connection"] == "close"
        assert [service.status(path) for path in ("/metrics", "/-/healthy")] == [200, 200]
        ends.enter_context(service.connect(b"GET /-/slow HTTP/1.0\r\n\r\n"))
        eventually(lambda: service.slow == 5)
        assert [service.status(path) for path in ("/-/healthy", "/metrics")] == [503, 200]
    eventually(lambda: service.status("/") == 200)


def test_a_connection_is_not_kept_for_long() -> None:
    assert LIMITS.keep_alive <= 10
    service = Service(HttpLimits(keep_alive=0.05))
    try:
        with service.connect(ASKED) as connection:
            assert answered(connection)
            assert connection.recv(65536) == b""
    finally:
        service.server.stop()


def test_a_daemon_with_257_idle_connections_is_scraped(start_daemon: Callable[..., Daemon]) -> None:
    daemon = start_daemon("--no-collector.gpu")
    address = ("127.0.0.1", int(daemon.url.rpartition(":")[2]))
    with ExitStack() as ends:
        for _ in range(257):
            connection = ends.enter_context(socket.create_connection(address, timeout=DEADLINE))
            connection.sendall(ASKED)
            assert answered(connection)
        assert [daemon.get(path).status_code for path in ("/metrics", "/-/healthy")] == [200, 200]
