"""Access to the HTTP server: the Host header, the token, and the errors of refused requests."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Any

import pytest

from trackside_daemon.web.http.auth_token import Token

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


OPEN = ("/metrics", "/-/healthy", "/-/ready")
GUARDED = ("/", "/static/app.js", "/api/v1/runs", "/api/v1/status", "/api/v1/nothing", "/elsewhere", "/metrics/")


def status(client: Any, path: str, host: str, **headers: str) -> int:
    answer: int = client.get(path, headers={"Host": host, **headers}).status_code
    return answer


@pytest.mark.parametrize("path", GUARDED)
def test_a_foreign_name_gets_nothing_of_the_dashboard(client: Any, path: str) -> None:
    response = client.get(path, headers={"Host": "rebound.example"})
    assert response.status_code == 421
    assert response.json() == {
        "error": {
            "reason": "host",
            "message": "the host 'rebound.example' is not served; to allow it, set web.allowed-hosts",
        }
    }


@pytest.mark.parametrize("path", OPEN)
def test_a_scraper_needs_no_token(client: Any, path: str) -> None:
    assert status(client, path, "localhost") == 200


def test_what_is_known_of_a_run_is_for_no_foreign_name(site: Any) -> None:
    assert status(site.client(), "/-/run/gpt/live", "rebound.example") == 421
    assert status(site.client(), "/-/run/gpt/live", "10.0.0.1") == 200  # as a kubelet asks
    assert status(site.client(any_host=True), "/-/run/gpt/live", "node7.example") == 200


@pytest.mark.parametrize("path", OPEN[1:])
def test_a_probe_may_come_under_any_name(client: Any, path: str) -> None:
    assert status(client, path, "rebound.example") == 200


@pytest.mark.parametrize(
    "host",
    ["localhost", "localhost:21790", "LocalHost", "127.0.0.1", "127.0.0.1:9", "[::1]", "[::1]:21790"],
)
def test_this_machines_own_names_are_always_allowed(client: Any, host: str) -> None:
    assert status(client, "/", host) == 200


@pytest.mark.parametrize(
    "host",
    ["", "::1.evil", "localhost.evil", "127.0.0.1.evil", "[::2]", "evil:127.0.0.1", "localhost:1:2"],
)
def test_names_that_only_resemble_them_are_not(client: Any, host: str) -> None:
    assert status(client, "/", host) == 421


@pytest.mark.parametrize(
    ("allowed", "host"),
    [
        ("box", "box"),
        ("box", "BOX:80"),
        ("Box.Example.org", "box.example.org"),
        ("box:21790", "box"),
        ("fe80::1", "[fe80::1]:21790"),
        ("[fe80::1]:21790", "[fe80::1]"),
        ("192.168.0.7", "192.168.0.7:21790"),
    ],
)
def test_a_name_that_is_allowed_is_allowed_however_it_is_written(site: Any, allowed: str, host: str) -> None:
    assert status(site.client(hosts=(allowed,)), "/", host) == 200


def test_listening_on_all_addresses_allows_no_empty_name(site: Any) -> None:
    assert status(site.client(hosts=(":21790", "")), "/", "") == 421


@pytest.mark.parametrize("path", ["/api/v1/runs", "/api/v1/status", "/api/v1/nothing", "/api/", "/%61pi/v1/runs"])
@pytest.mark.parametrize(
    "authorization", ["", "Bearer", "Bearer ", "Bearer wrong", "Basic {}", "{}", "Bearer {}x", "Bearer x{}", "Bearer é"]
)
def test_without_the_token_the_api_is_closed(site: Any, path: str, authorization: str) -> None:
    header = authorization.replace("{}", site.token.value).encode("latin-1")
    response = site.client().get(path, headers={"Authorization": header})
    assert response.status_code == 401
    assert response.headers["WWW-Authenticate"] == "Bearer"
    assert response.json() == {
        "error": {
            "reason": "token",
            "message": f"the API requires 'Authorization: Bearer TOKEN' with the token in {site.token.path}",
        }
    }


@pytest.mark.parametrize("authorization", ["Bearer {}", "bearer {}", "BEARER  {} "])
def test_with_the_token_it_is_open(site: Any, authorization: str) -> None:
    header = authorization.format(site.token.value)
    assert status(site.client(), "/api/v1/runs", "localhost", Authorization=header) == 200


def test_a_foreign_name_is_refused_even_with_the_token(site: Any) -> None:
    assert status(site.client(), "/api/v1/runs", "rebound.example", **site.key) == 421


def test_public_read_opens_reading_and_nothing_else(site: Any) -> None:
    client = site.client(public_read=True)
    assert client.get("/api/v1/runs").status_code == 200
    assert client.ask("HEAD", "/api/v1/runs").status_code == 200
    assert client.ask("POST", "/api/v1/runs").status_code == 401
    assert client.ask("DELETE", "/api/v1/runs").status_code == 401
    assert status(client, "/api/v1/runs", "rebound.example") == 421


def test_after_a_rotation_the_old_token_opens_nothing(site: Any) -> None:
    client, old = site.client(), dict(site.key)
    assert client.ask("POST", "/api/v1/token").status_code == 401
    assert client.ask("POST", "/api/v1/token", headers={**old, "Sec-Fetch-Site": "cross-site"}).status_code == 403
    new = client.ask("POST", "/api/v1/token", headers=old).json()["token"]
    assert status(client, "/api/v1/runs", "localhost", **old) == 401
    assert status(client, "/api/v1/runs", "localhost", Authorization=f"Bearer {new}") == 200
    assert site.token.path.read_text() == f"{new}\n"


def test_the_old_token_stays_valid_when_the_new_one_cannot_be_stored(
    site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site.token, "_stored", site.token.path / "nowhere")
    client, old = site.client(), dict(site.key)
    assert client.ask("POST", "/api/v1/token", headers=old).status_code == 507
    assert status(client, "/api/v1/runs", "localhost", **old) == 200


@pytest.fixture
def token(place: Path) -> Callable[[], Token]:
    """A function that starts a daemon's token, for commands in "token", and in "stored" for the next start."""
    return lambda: Token(place / "token", place / "stored")


def test_the_token_survives_a_restart_and_is_readable_by_this_user_alone(
    place: Path, token: Callable[[], Token]
) -> None:
    (place / "token").write_text("old")
    (place / "token").chmod(0o666)
    before = os.umask(0)
    try:
        first = token()
        first.remove()
        assert token().value == first.value
    finally:
        os.umask(before)
    for path in (place / "token", place / "stored"):
        assert path.read_text() == f"{first.value}\n"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    (place / "stored").unlink()
    assert token().value != first.value


PLANTED = "a" * 32


def _replace_by_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


@pytest.mark.parametrize(
    "plant",
    [
        lambda path: path.chmod(0o640),
        lambda path: path.with_name("other").hardlink_to(path),
        lambda path: path.rename(path.with_name("other")).with_name(path.name).symlink_to("other"),
        lambda path: path.write_text("too short"),
        lambda path: path.write_bytes(b"\xff" * 32),
        _replace_by_fifo,
        pytest.param(
            lambda path: os.chown(path, 12345, -1),
            marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user"),
        ),
    ],
    ids=["open to a group", "two names", "link", "no token", "not text", "fifo", "another's"],
)
def test_a_token_that_others_could_read_is_replaced(
    place: Path, token: Callable[[], Token], plant: Callable[[Path], object]
) -> None:
    (place / "stored").touch(0o600)
    (place / "stored").write_text(PLANTED)
    assert token().value == PLANTED
    plant(place / "stored")
    new = token().value
    assert new != PLANTED
    assert token().value == new


def test_without_room_for_the_token_the_daemon_starts(place: Path) -> None:
    assert len(Token(place / "token", place / "nowhere" / "stored").value) == 32


@pytest.mark.parametrize("name", ["token", "stored"])
def test_a_link_in_the_tokens_place_is_replaced_and_not_followed(
    place: Path, token: Callable[[], Token], name: str
) -> None:
    (place / "precious").write_text("as it was")
    (place / name).symlink_to(place / "precious")
    token()
    assert not (place / name).is_symlink()
    assert (place / "precious").read_text() == "as it was"


def test_the_token_is_removed_once_and_again(place: Path, token: Callable[[], Token]) -> None:
    first = token()
    first.remove()
    first.remove()
    assert not (place / "token").exists()
