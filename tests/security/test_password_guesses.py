"""Endless guesses of one client do not keep others from a login."""

from __future__ import annotations

import asyncio
import base64
import time
from typing import TYPE_CHECKING

import bcrypt
import httpx
import pytest
from certificate_authorities import hashed
from starlette.responses import PlainTextResponse

from trackside_daemon.web.http.auth_config import FairQueue, QueueFullError, RequestOrigin, WebConfigMiddleware
from trackside_daemon.web.http.config_file import ConfigFile

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

GUESSES = 120


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WebConfigMiddleware]:
    """An application with two users, whose passwords take 20 ms to check."""
    real = bcrypt.checkpw

    def check(password: bytes, hash_: bytes) -> bool:
        time.sleep(0.02)
        return real(password, hash_)

    monkeypatch.setattr(bcrypt, "checkpw", check)
    file = tmp_path / "web.yml"
    file.write_text(f"basic_auth_users: {{ada: '{hashed('lovelace')}', bob: '{hashed('b')}'}}")
    app = WebConfigMiddleware(PlainTextResponse("here"), ConfigFile(str(file)))
    yield app
    app.close()


async def login(app: WebConfigMiddleware, address: str, user: str, password: str) -> int:
    transport = httpx.ASGITransport(app=app, client=(address, 1))
    authorization = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
    request = httpx.Request("GET", "http://localhost/", headers={"Authorization": authorization})
    return (await transport.handle_async_request(request)).status_code


async def logins(app: WebConfigMiddleware, guessed: list[str], right: list[tuple[str, str, str]]) -> list[int]:
    """Return the statuses of right logins that come after guesses of one address, of each of these users in turn."""
    guesses = [
        asyncio.ensure_future(login(app, "10.6.6.6", guessed[number % len(guessed)], f"guess {number}"))
        for number in range(GUESSES)
    ]
    await asyncio.wait(guesses, return_when=asyncio.FIRST_COMPLETED)
    statuses = await asyncio.gather(*(login(app, *given) for given in right))
    assert set(await asyncio.gather(*guesses)) == {401, 429}
    return list(statuses)


@pytest.mark.parametrize("guessed", [["ada"], ["ada", "bob"], [f"name{number}" for number in range(GUESSES)]])
def test_an_address_that_guesses_keeps_no_other_out(app: WebConfigMiddleware, guessed: list[str]) -> None:
    right = [("10.0.0.1", "ada", "lovelace"), ("10.0.0.2", "ada", "lovelace"), ("10.0.0.2", "bob", "b")]
    assert asyncio.run(logins(app, guessed, right)) == [200, 200, 200]


def test_guesses_of_one_password_keep_no_other_user_of_the_address_out(app: WebConfigMiddleware) -> None:
    right = [("10.6.6.6", "eve", "unknown"), ("10.6.6.6", "bob", "b")]
    assert asyncio.run(logins(app, ["ada"], right)) == [401, 200]


def test_the_queue_is_bounded_and_fair() -> None:
    queue: FairQueue[str] = FairQueue(3, 4)
    for number in range(3):
        assert queue.put(RequestOrigin("a", "x"), f"ax{number}") is None
    with pytest.raises(QueueFullError):
        queue.put(RequestOrigin("a", "x"), "ax3")
    assert queue.put(RequestOrigin("a", "y"), "ay0") is None
    assert queue.put(RequestOrigin("b", "x"), "bx0") == "ax2"
    assert queue.put(RequestOrigin("c", "x"), "cx0") == "ax1"
    with pytest.raises(QueueFullError):
        queue.put(RequestOrigin("a", "z"), "az0")
    assert [queue.get() for _ in range(5)] == ["ax0", "bx0", "cx0", "ay0", None]
