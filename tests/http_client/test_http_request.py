"""HTTP posts to faulty servers and proxies: the errors, and the time limits."""

from __future__ import annotations

import select
import socket
import ssl
import threading
from contextlib import closing, suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import pytest
from processes import DEADLINE

from trackside_daemon.alerts.sinks.sink import SinkError
from trackside_daemon.http_client import http_request
from trackside_daemon.http_client.errors import SendError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Answer = Callable[[socket.socket], None]


@pytest.fixture
def serve() -> Iterator[Callable[[Answer], int]]:
    """A function that starts a server for one connection and returns its port."""
    threads: list[threading.Thread] = []

    def start(answer: Answer) -> int:
        listening = socket.create_server(("127.0.0.1", 0))

        def accept_one() -> None:
            with closing(listening), closing(listening.accept()[0]) as one, suppress(OSError):
                answer(one)

        threads.append(threading.Thread(target=accept_one, daemon=True))
        threads[-1].start()
        return int(listening.getsockname()[1])

    yield start
    for thread in threads:
        thread.join(DEADLINE)


def sent(url: str, body: bytes = b"{}", headers: Any = None) -> SendError:
    with pytest.raises(SendError) as caught:
        http_request.post(url, body, headers or {}, ssl.create_default_context())
    return caught.value


def _forever(beginning: bytes, more: bytes, asked: bytes = b"{}") -> Answer:
    """Respond after a request with this end, until the other side disconnects."""

    def answer(one: socket.socket) -> None:
        received = one.recv(65536)
        while not received.endswith(asked):
            received += one.recv(65536)
        one.sendall(beginning)
        while not select.select([one], [], [], 0.05)[0]:
            one.sendall(more)

    return answer


@pytest.mark.parametrize(
    ("beginning", "more"), [(b"HTTP/1.1 200 OK\r\nX: ", b"a"), (b"", b"HTTP/1.1 100 Continue\r\n\r\n")]
)
def test_a_server_that_responds_slowly_without_end_is_abandoned(
    serve: Callable[[Answer], int], monkeypatch: pytest.MonkeyPatch, beginning: bytes, more: bytes
) -> None:
    monkeypatch.setattr(http_request, "LONGEST_SECONDS", 0.5)
    problem = sent(f"http://127.0.0.1:{serve(_forever(beginning, more))}/")
    assert "no response within" in str(problem)
    assert problem.retry == "soon"


def test_a_handshake_without_end_is_abandoned(serve: Callable[[Answer], int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_request, "LONGEST_SECONDS", 0.5)
    record = b"\x16\x03\x03\x40\x00\x02\x00\x3f\xfc\x03\x03"  # the beginning of a long ServerHello
    assert "no response within" in str(sent(f"https://127.0.0.1:{serve(_forever(record, bytes(1), b''))}/"))


def test_a_response_before_the_whole_request_was_read_is_used(serve: Callable[[Answer], int]) -> None:
    def early(one: socket.socket) -> None:
        one.recv(100)
        one.sendall(b"HTTP/1.1 413 X\r\nContent-Length: 0\r\n\r\n")

    problem = sent(f"http://127.0.0.1:{serve(early)}/", b"x" * 5_000_000)
    assert f"answered 413 {HTTPStatus(413).phrase}; the message is too long for it" in str(problem)
    assert problem.retry == "never"


def test_a_proxy_that_cannot_be_reached_is_named_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://ada:hush@127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    reported = str(sent("http://example.org/hush"))
    assert reported == "http://example.org cannot be reached through the proxy http://127.0.0.1:1: connection refused"


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_that_requires_a_password_is_named(
    serve: Callable[[Answer], int], monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    def refuse(one: socket.socket) -> None:
        one.recv(65536)
        one.sendall(b"HTTP/1.1 407 hush\r\nContent-Length: 0\r\n\r\n")

    port = serve(refuse)
    monkeypatch.setenv(f"{scheme}_proxy", f"http://ada:hush@127.0.0.1:{port}")
    monkeypatch.delenv("no_proxy", raising=False)
    problem = sent(f"{scheme}://example.org/hush")
    assert str(problem) == (
        f"the proxy http://127.0.0.1:{port} answered 407 Proxy Authentication Required; "
        "check its user and password in the daemon's environment"
    )
    assert problem.retry == "later"


def test_an_address_that_http_cannot_carry_is_not_retried_soon(tmp_path: Path) -> None:
    problem = sent("http://127.0.0.1:1/", headers={"A": "€"})
    assert (str(problem), problem.retry) == (
        "http://127.0.0.1:1: HTTP cannot carry the address or a header; check both",
        "later",
    )
    token = tmp_path / "token"
    token.write_text("h€sh\n")
    with pytest.raises(SinkError, match=r"^a\.bearer-file: .*token: a token may have ASCII characters only$"):
        http_request.bearer_header(str(token), "a.bearer-file")


def test_without_a_thread_to_bound_its_time_a_message_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    problem = sent("http://127.0.0.1:1/")
    assert str(problem).endswith("no thread can be started to bound its time; raise the limit of threads")
    assert problem.retry == "soon"
