"""The web configuration's middleware: rate limit, headers, passwords, and access with credentials."""

from __future__ import annotations

import asyncio
import base64
import threading
from typing import TYPE_CHECKING, Any

import bcrypt
import pytest
from certificate_authorities import hashed
from web.conftest import Client

from trackside_daemon.web.http import auth_config as module
from trackside_daemon.web.http.auth_config import Passwords, TokenBucket, WebConfigMiddleware, parse_basic
from trackside_daemon.web.http.config_file import ConfigFile

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import httpx

PATHS = ("/", "/metrics", "/-/run/x/live", "/static/app.js", "/api/v1/runs", "/nowhere")
ADA = ("ada", "lovelace")
HEADERS = "http_server_config: {headers: {X-Frame-Options: deny, Content-Security-Policy: default-src 'self'}}\n"


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the thread names of bcrypt's checks."""
    made: list[str] = []
    real = bcrypt.checkpw

    def check(password: bytes, hashed_password: bytes) -> bool:
        made.append(threading.current_thread().name)
        return real(password, hashed_password)

    monkeypatch.setattr(bcrypt, "checkpw", check)
    return made


@pytest.fixture
def gate(site: Any, tmp_path: Path) -> Callable[..., Client]:
    """Return a function that builds the application behind a web configuration."""

    def make(text: str, **options: Any) -> Client:
        (tmp_path / "web.yml").write_text(text)
        return Client(WebConfigMiddleware(site.client(**options).transport.app, ConfigFile(str(tmp_path / "web.yml"))))

    return make


def users(**given: str) -> str:
    return "basic_auth_users:\n" + "".join(f"  {name}: {hashed(one)}\n" for name, one in given.items())


@pytest.mark.parametrize("path", PATHS)
def test_every_path_but_those_of_probes_wants_a_password(gate: Callable[..., Client], path: str) -> None:
    client = gate(users(ada="lovelace"))
    answers = [client.get(path), client.get(path, auth=("ada", "wrong")), client.get(path, auth=("eve", "lovelace"))]
    assert [one.status_code for one in answers] == [401] * 3
    assert len({one.text for one in answers}) == 1, "the answer does not reveal which users there are"
    assert all(one.headers["WWW-Authenticate"].startswith("Basic realm=") for one in answers)
    assert client.get(path, auth=ADA).status_code == (404 if path == "/nowhere" else 200)


@pytest.mark.parametrize(
    "header", ["", "Basic", "Basic !", "Basic YWRh", "Bearer {}", "basic YWRhOg==", "Basic /w==", "Basic Ojo="]
)
def test_what_is_no_password_is_none(gate: Callable[..., Client], site: Any, header: str) -> None:
    client = gate(users(ada="lovelace"), public_read=True)
    given = {"Authorization": header.replace("{}", site.token.value)} if header else {}
    assert client.get("/api/v1/runs", headers=given).status_code == 401


def test_a_password_opens_the_api_under_any_name_and_without_the_token(gate: Callable[..., Client]) -> None:
    client = gate(users(ada="lovelace"), lifecycle=True)
    elsewhere = {"Host": "gpu7.example"}
    assert client.get("/api/v1/runs", auth=ADA, headers=elsewhere).status_code == 200
    assert client.ask("POST", "/-/reload", auth=ADA, headers=elsewhere).status_code == 200


def test_a_certificate_that_is_not_required_opens_nothing(gate: Callable[..., Client]) -> None:
    assert gate(HEADERS).get("/api/v1/runs").status_code == 401


FOREIGN: list[dict[str, str]] = [
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "cross-site", "Origin": "http://gpu7:21790"},
    {"Origin": "http://evil.example"},
    {"Origin": "https://gpu7:21790"},
    {"Origin": "http://gpu7"},
    {"Origin": "null"},
]
OWN: list[dict[str, str]] = [
    {},
    {"Sec-Fetch-Site": "same-origin", "Origin": "http://gpu7:21790"},
    {"Sec-Fetch-Site": "none"},
    {"Origin": "http://GPU7:21790"},
]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
@pytest.mark.parametrize("headers", FOREIGN)
def test_another_sites_page_changes_nothing_by_a_password_that_the_browser_sends(
    gate: Callable[..., Client], site: Any, method: str, headers: dict[str, str]
) -> None:
    client = gate(users(ada="lovelace"), lifecycle=True)
    for path in ("/-/reload", "/api/v1/silences"):
        answer = client.ask(method, path, auth=ADA, headers={"Host": "gpu7:21790", **headers})
        assert (answer.status_code, answer.json()["error"]["reason"]) == (403, "cross_site")
    assert site.reloads == 0


@pytest.mark.parametrize("headers", OWN)
def test_our_own_page_and_what_is_no_browser_may_change_things(
    gate: Callable[..., Client], site: Any, headers: dict[str, str]
) -> None:
    client = gate(users(ada="lovelace"), lifecycle=True)
    assert client.ask("POST", "/-/reload", auth=ADA, headers={"Host": "gpu7:21790", **headers}).status_code == 200
    assert site.reloads == 1


def test_what_another_site_only_reads_is_not_kept_from_it_by_us(gate: Callable[..., Client]) -> None:
    answer = gate(users(ada="lovelace")).get("/api/v1/runs", auth=ADA, headers={"Sec-Fetch-Site": "cross-site"})
    assert answer.status_code == 200
    assert not [name for name in answer.headers if name.startswith("access-control")], "the browser keeps it from it"


def test_an_unknown_user_follows_the_same_path(gate: Callable[..., Client], checks: list[str]) -> None:
    client = gate(users(ada="lovelace", bob="b"))
    for number, user in enumerate(("ada", "eve", "bob", "", "ada"), 1):
        assert client.get("/", auth=(user, "wrong")).status_code == 401
        assert len(checks) == number
    assert client.get("/").status_code == 401
    assert len(checks) == 5, "without a password there is nothing to check"


def test_what_was_right_is_remembered_and_what_was_wrong_is_not(gate: Callable[..., Client], checks: list[str]) -> None:
    client = gate(users(ada="lovelace", bob="b"))
    for auth in (ADA, ADA, ("bob", "b"), ADA, ("bob", "b")):
        assert client.get("/", auth=auth).status_code == 200
    assert len(checks) == 2
    for number in range(5):
        assert client.get("/", auth=("ada", f"guess {number}")).status_code == 401
    assert client.get("/", auth=ADA).status_code == 200
    assert len(checks) == 7
    assert all(name.startswith("trackside-bcrypt") for name in checks), "never in the thread that serves"


def test_another_password_holds_at_once_and_the_old_one_no_more(gate: Callable[..., Client], tmp_path: Path) -> None:
    client = gate(users(ada="lovelace"))
    assert client.get("/", auth=ADA).status_code == 200
    (tmp_path / "web.yml").write_text(users(ada="new"))
    assert client.get("/", auth=ADA).status_code == 401
    assert client.get("/", auth=("ada", "new")).status_code == 200


def test_one_password_is_checked_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    inside, most = 0, 0

    def check(password: bytes, hashed_password: bytes) -> bool:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        threading.Event().wait(0.01)
        inside -= 1
        return False

    monkeypatch.setattr(bcrypt, "checkpw", check)
    passwords = Passwords()

    async def ask() -> list[bool]:
        return await asyncio.gather(
            *(passwords.verify({"ada": hashed("x")}, name, b"y") for name in ("ada", "b", "c", "ada"))
        )

    assert asyncio.run(ask()) == [False] * 4
    assert most == 1
    passwords.close()


def test_the_limit_of_waiting_passwords_does_not_grow_with_each_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bcrypt, "checkpw", lambda _password, _hashed: threading.Event().wait(0.01))
    passwords = Passwords()

    async def guess(count: int) -> list[object]:
        guesses = (passwords.verify({"ada": "$2b$04$x"}, "ada", b"%d" % number) for number in range(count))
        return await asyncio.gather(*guesses, return_exceptions=True)

    async def ask() -> list[object]:
        await guess(3)
        return await guess(module.MAX_WAITING + 2)

    refused = [isinstance(answer, module.QueueFullError) for answer in asyncio.run(ask())]
    assert refused == [False] * (1 + module.MAX_WAITING) + [True], "one is being checked"
    passwords.close()


@pytest.mark.parametrize("password", ["lovelace" * 20, "nul\0l", "é", ""])
def test_any_password_may_be_tried(password: str) -> None:
    stored = bcrypt.hashpw(password.encode()[:72], bcrypt.gensalt(4)).decode()
    passwords = Passwords()
    assert asyncio.run(passwords.verify({"ada": stored}, "ada", password.encode()))
    assert not asyncio.run(passwords.verify({"ada": stored}, "ada", b"x" + password.encode()))
    assert not asyncio.run(passwords.verify({"ada": stored}, "eve", password.encode()))
    passwords.close()


def test_the_hash_for_an_unknown_user_costs_what_that_of_a_user_does(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[bytes] = []
    monkeypatch.setattr(bcrypt, "checkpw", lambda _, stored: checked.append(stored))
    passwords = Passwords()
    assert not asyncio.run(passwords.verify({"a": "$2b$12$x", "b": "$2y$09$x"}, "eve", b"x"))
    assert [stored[:7] for stored in checked] == [b"$2b$12$"]
    passwords.close()


def test_no_stored_form_has_the_password() -> None:
    passwords = Passwords()
    users = {"ada": hashed("lovelace")}
    assert asyncio.run(passwords.verify(users, "ada", b"lovelace"))
    assert passwords.is_cached(users, "ada", b"lovelace")
    assert b"lovelace" not in repr(vars(passwords)).encode()
    passwords.close()


def test_a_name_with_a_colon_in_its_password_is_parted_at_the_first() -> None:
    header = "Basic " + base64.b64encode(b"ada:a:b").decode()
    assert parse_basic(header) == ("ada", b"a:b")


@pytest.mark.parametrize("path", PATHS)
def test_headers_are_on_every_answer_in_the_place_of_a_pages_own(gate: Callable[..., Client], path: str) -> None:
    client = gate(HEADERS + users(ada="lovelace"))

    def wanted(answer: httpx.Response) -> bool:
        found = [answer.headers.get_list(name) for name in ("X-Frame-Options", "Content-Security-Policy")]
        return found == [["deny"], ["default-src 'self'"]]

    assert wanted(client.get(path))
    assert wanted(client.get(path, auth=ADA))
    assert wanted(client.ask("POST", path, auth=ADA, headers={"Origin": "null"}))


def test_what_comes_too_fast_is_answered_429_before_any_password_is_checked(
    gate: Callable[..., Client], checks: list[str]
) -> None:
    client = gate(HEADERS + users(ada="lovelace") + "rate_limit: {interval: 1h, burst: 3}\n")
    answers = [client.get("/metrics", auth=("ada", f"guess {number}")) for number in range(5)]
    assert [one.status_code for one in answers] == [401, 401, 401, 429, 429]
    assert len(checks) == 3
    assert answers[-1].headers["X-Frame-Options"] == "deny"
    assert answers[-1].json()["error"]["reason"] == "rate_limit"
    probes = [client.get(path) for path in ("/-/healthy", "/-/ready")]
    assert [(one.status_code, one.headers["Connection"]) for one in probes] == [(200, "close")] * 2
    assert client.ask("POST", "/-/healthy").status_code == 429


def test_the_rate_is_limited_without_users_too(gate: Callable[..., Client]) -> None:
    client = gate("rate_limit: {interval: 1h, burst: 2}\n")
    assert [client.get("/metrics").status_code for _ in range(3)] == [200, 200, 429]


def test_tokens_come_back_one_each_interval_and_not_more_than_the_burst() -> None:
    now = 0.0
    bucket = TokenBucket(2.0, 3, lambda: now)
    assert [bucket.try_acquire() for _ in range(4)] == [True, True, True, False]
    now = 2.0
    assert [bucket.try_acquire() for _ in range(2)] == [True, False]
    now = 3.9
    assert not bucket.try_acquire()
    now = 1000.0
    assert [bucket.try_acquire() for _ in range(4)] == [True, True, True, False]
