"""The examples in docs/web.md."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import bcrypt
from certificate_authorities import Authority
from processes import DEADLINE, ROOT

from trackside_daemon.cli.sources import credentials
from trackside_daemon.web.http.config import HttpSection, RateLimitSection, TlsSection, WebConfig
from trackside_daemon.web.http.config_file import ConfigFile

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

PAGE = (ROOT / "docs" / "web.md").read_text(encoding="utf-8")
SERVER, SCRAPE, COMMANDS = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)


def promtool(kind: str, file: Path) -> tuple[int, str]:
    done = subprocess.run(["promtool", "check", kind, file], capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


def without_roles(text: str) -> str:
    """Return a web configuration without the key that Prometheus' exporters do not have."""
    return text.replace("basic_auth_roles:\n  prometheus: metrics\n", "")


def test_the_configuration_is_accepted_by_promtool_and_by_us(tmp_path: Path) -> None:
    Authority(tmp_path, "client-ca").issue("server")
    file = tmp_path / "web.yml"
    file.write_text(without_roles(SERVER))
    assert promtool("web-config", file)[0] == 0
    file.write_text(SERVER)
    assert ConfigFile(str(file)).authenticates


def test_prometheus_accepts_the_scrape_configuration(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "trackside-ca")
    authority.issue("trackside-client")
    (tmp_path / "trackside.password").write_text("secret")
    file = tmp_path / "prometheus.yml"
    file.write_text(SCRAPE.replace("/etc/prometheus", str(tmp_path)))
    assert promtool("config", file)[0] == 0


def test_our_commands_accept_the_file_of_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Authority(tmp_path, "trackside-ca").issue("ada")
    (tmp_path / "trackside.password").write_text("lovelace\n")
    (tmp_path / "trackside.password").chmod(0o600)
    file = tmp_path / "web.yml"
    for text in (COMMANDS, COMMANDS.replace("# server_name", "server_name")):
        file.write_text(text)
        monkeypatch.setenv("TRACKSIDE_WEB__CREDENTIALS_FILE", str(file))
        given = credentials.load()
        assert (given.user, given.authorization) == ("ada", "Basic YWRhOmxvdmVsYWNl")


def test_the_command_makes_a_hash_of_the_password() -> None:
    commands = {
        re.search(r"python -c '(.*)'", text)[1]  # type: ignore[index]
        for text in (PAGE, (ROOT / "deploy" / "web-config.yml").read_text(encoding="utf-8"))
    }
    assert len(commands) == 1
    ours, theirs = os.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", commands.pop()],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=theirs,
        start_new_session=True,
    ) as process:
        os.close(theirs)
        os.read(ours, 1024)
        os.write(ours, b"secret\n")
        printed, _ = process.communicate(timeout=DEADLINE)
        os.close(ours)
    assert bcrypt.checkpw(b"secret", printed.strip())


def test_every_key_is_documented() -> None:
    models = (TlsSection, HttpSection, WebConfig, RateLimitSection)
    assert [name for model in models for name in model.model_fields if name not in PAGE] == []
