"""The daemon warns of a configuration with secrets that others may read, and of a history that they may replace."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import processes
import pytest
from processes import command

from trackside_daemon.config.loading import file_warnings
from trackside_daemon.history.directory import mode_warnings
from trackside_daemon.service.config import Config

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from processes import Daemon

SECRET = "alerts: {sinks: {webhook: {url: 'https://hooks.example/T0/s3cret', severity: 'off'}}}\n"
OWNER = 61203


def configuration(place: Path, text: str, mode: int, owner: int) -> Path:
    file = place / "trackside.yml"
    file.write_text(text)
    file.chmod(mode)
    if os.getuid() == 0:
        os.chown(file, owner, owner)
    elif owner == 0:
        pytest.skip("only root can make a file of root")
    return file


@pytest.mark.parametrize(
    ("text", "mode", "owner", "warned"),
    [
        (SECRET, 0o644, OWNER, True),
        (SECRET, 0o640, OWNER, True),
        (SECRET, 0o600, OWNER, False),
        (SECRET, 0o644, 0, True),
        (SECRET, 0o660, 0, True),
        (SECRET, 0o640, 0, False),
        ("alerts.sinks.webhook.url-file: /etc/url\n", 0o644, OWNER, False),
        ("", 0o666, OWNER, False),
    ],
)
def test_a_secret_that_others_may_read_is_named(place: Path, text: str, mode: int, owner: int, warned: bool) -> None:
    file = configuration(place, text, mode, owner)
    line = f"{file}: others may read it, and alerts.sinks.webhook.url is secret: chmod 600 {file}"
    assert list(file_warnings(Config, file)) == [line] * warned


@pytest.mark.parametrize(("mode", "warned"), [(0o700, 0), (0o755, 0), (0o775, 1), (0o777, 1), (0o1777, 1)])
def test_a_history_that_others_may_replace_is_named(place: Path, mode: int, warned: int) -> None:
    place.chmod(mode)
    line = f"{place}: others may write there, and so replace the history: chmod go-w {place}"
    assert list(mode_warnings(place)) == [line] * warned


def test_the_daemon_and_the_check_warn_and_show_no_secret(start_daemon: Callable[..., Daemon], place: Path) -> None:
    file = configuration(place, SECRET, 0o644, os.getuid())
    (place / "history").mkdir()
    (place / "history").chmod(0o777)
    daemon = start_daemon("--no-collector.gpu", f"--config.file={file}")
    checked = processes.run(command("check-config", str(file)), check=True)
    assert daemon.stop() == 0
    log = "".join(daemon.log)
    assert f'level=warning msg="{file}: others may read it, and alerts.sinks.webhook.url is secret: chmod 600' in log
    assert f'level=warning msg="{place}/history: others may write there, and so replace the history: chmod go-w' in log
    assert checked.stderr.startswith(f"trackside: {file}: others may read it, and alerts.sinks.webhook.url is secret")
    assert "s3cret" not in log + checked.stdout + checked.stderr
