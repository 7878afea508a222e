"""Reloads of the web configuration, and invalid versions that leave the last valid one active."""

from __future__ import annotations

import logging
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import pytest
from certificate_authorities import Authority, hashed

from trackside_daemon.web.http.config_file import ConfigFile

if TYPE_CHECKING:
    from pathlib import Path

OPEN = ""
USERS = "basic_auth_users: {ada: '{}'}"
TLS = "tls_server_config: {cert_file: server.pem, key_file: server.key"
CLIENTS = f"{TLS}, client_auth_type: RequireAndVerifyClientCert, client_ca_file: ca.pem"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    made = Authority(tmp_path)
    made.issue("server")
    return made


def write(path: Path, text: str) -> ConfigFile:
    path.write_text(text)
    return ConfigFile(str(path))


def users(**passwords: str) -> str:
    return "basic_auth_users:\n" + "".join(f"  {name}: {hashed(one)}\n" for name, one in passwords.items())


def test_users_come_and_go(tmp_path: Path) -> None:
    file = write(tmp_path / "web.yml", users(ada="1"))
    before = file.current()
    assert list(before.config.basic_auth_users) == ["ada"]
    assert file.current() is before, "what did not change is not read again"
    (tmp_path / "web.yml").write_text(users(bob="1", cyd="2"))
    assert list(file.current().config.basic_auth_users) == ["bob", "cyd"]
    (tmp_path / "new").write_text(users(dan="1"))
    (tmp_path / "new").replace(tmp_path / "web.yml")
    assert list(file.current().config.basic_auth_users) == ["dan"]


@pytest.mark.parametrize("name", ["server.pem", "server.key", "ca.pem"])
def test_each_certificate_is_read_anew_and_one_that_only_was_touched_is_not(
    tmp_path: Path, authority: Authority, name: str
) -> None:
    file = write(tmp_path / "web.yml", f"{CLIENTS}}}")
    before = file.current().tls
    (tmp_path / name).touch()
    assert file.current().tls is before
    Authority(tmp_path).issue("server")
    after = file.current().tls
    assert after is not before
    assert after is not None
    assert before is not None
    assert after.client_policy != before.client_policy, "the authority is another one, too"


def test_a_certificate_that_waits_for_its_key_is_not_used_and_then_both_are(
    tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    file = write(tmp_path / "web.yml", f"{TLS}}}")
    before = file.current()
    cert, key = authority.issue("next")
    cert.replace(tmp_path / "server.pem")
    assert file.current() is before
    key.replace(tmp_path / "server.key")
    assert file.current() is not before
    assert "the key does not match the certificate" in caplog.text


BROKEN = {
    "empty": OPEN,
    "no yaml": "basic_auth_users: {",
    "unknown key": "users: {}",
    "no hash": "basic_auth_users: {ada: secret}",
    "users gone": f"{CLIENTS}}}",
    "client certificates gone": f"{TLS}}}\n" + users(ada="1"),
    "TLS gone": users(ada="1"),
    "sans gone": f"{CLIENTS}}}\n" + users(ada="1"),
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
def test_what_is_wrong_or_would_open_is_logged_once_and_the_last_good_one_stays(
    tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    good = f"{CLIENTS}, client_allowed_sans: [a]}}\n" + users(ada="1")
    file = write(tmp_path / "web.yml", good)
    before = file.current()
    (tmp_path / "web.yml").write_text(text)
    assert [file.current() for _ in range(3)] == [before] * 3
    assert [one.levelno for one in caplog.records] == [logging.ERROR]
    message = caplog.records[0].getMessage()
    assert message.startswith(f"the previous web configuration stays active: {tmp_path}/web.yml: ")
    (tmp_path / "web.yml").write_text(good + users(ada="1").replace("basic_auth_users:\n  ada", "  bob"))
    assert list(file.current().config.basic_auth_users) == ["ada", "bob"]


def test_a_file_that_is_gone_leaves_the_last_good_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = write(tmp_path / "web.yml", users(ada="1"))
    (tmp_path / "web.yml").unlink()
    assert file.current().config.basic_auth_users
    assert "no such file or directory" in caplog.text


def test_tls_and_a_rate_begin_with_a_restart(
    tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    file = write(tmp_path / "web.yml", OPEN)
    (tmp_path / "web.yml").write_text(f"{TLS}}}\n" + users(ada="1"))
    assert file.current().config.basic_auth_users == {}
    assert "tls_server_config: switching TLS on or off needs a restart" in caplog.text
    (tmp_path / "web.yml").write_text("rate_limit: {interval: 1h, burst: 2}\n" + users(ada="1"))
    assert list(file.current().config.basic_auth_users) == ["ada"]
    assert "a change of rate_limit needs a restart" in caplog.text


@pytest.mark.parametrize("year", [2031, 2049, 2050, 2101])
def test_the_end_of_the_certificate_in_use_follows_its_replacement(
    tmp_path: Path, authority: Authority, year: int
) -> None:
    file = write(tmp_path / "web.yml", f"{TLS}}}")
    ends: list[float | None] = []
    file.reloaded = lambda: ends.append(file.certificate_end)
    until = datetime(year, 3, 4, 5, 6, 7, tzinfo=timezone.utc)
    authority.issue("server", until=until)
    file.current()
    assert ends == [until.timestamp()]
    assert write(tmp_path / "plain.yml", "").certificate_end is None
