"""The version before this one together with this one: clients, spools, daemons and histories. Git has the older version.

A shallow clone has none; there `client/wire_frames.txt` has every kind of message as it always was.
"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from processes import DEADLINE, ROOT, Daemon, clean_environ, eventually

from trackside_daemon import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

STEPS = 300
TRAINING = f"""
import sys, trackside

run = trackside.init(id=sys.argv[1], config={{"lr": 0.1}})
for step in range({STEPS}):
    with trackside.phase("forward"):
        pass
    run.push(step=step, loss=1 / (1 + step), tokens=8)
trackside.log_text("sample", "a text", step=1)
trackside.finish()
"""
LOSSES = {step: 1 / (1 + step) for step in range(STEPS)}


def git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, timeout=DEADLINE, check=False)


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables with which Python imports the last commit of the version before this one."""
    place = tmp_path_factory.mktemp("before")
    bump = git("log", "-1", "--format=%H^", f'-S"{__version__}"', "--", "daemon/trackside_daemon/__init__.py")
    archive = git("archive", bump.stdout.decode().strip() or "HEAD", "client", "daemon")
    if archive.returncode:
        pytest.skip("a shallow clone has no older version")
    subprocess.run(["tar", "xf", "-", "-C", place], input=archive.stdout, check=True, timeout=DEADLINE)
    return {"PYTHONPATH": f"{place}/client:{place}/daemon"}


@pytest.fixture
def serving(place: Path) -> Iterator[Any]:
    """A function that starts a daemon of a version, and ends the one before."""
    daemons: list[Daemon] = []

    def start(version: Mapping[str, str]) -> Daemon:
        for daemon in daemons:
            assert daemon.stop() == 0
        daemons.append(Daemon(place, environ=version, fresh=True))
        return daemons[-1]

    yield start
    for daemon in daemons:
        daemon.stop()


def train(run: str, endpoint: str, version: Mapping[str, str]) -> None:
    environ = clean_environ({**version, "TRACKSIDE_ENDPOINT": endpoint})
    command = [sys.executable, "-W", "error", "-c", TRAINING, run]
    ran = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert (ran.returncode, ran.stdout) == (0, ""), ran.stderr


def is_whole(daemon: Daemon, run: str) -> bool:
    """Return whether a run has ended, with every value once."""
    (found,) = [one for one in daemon.api("runs").json()["runs"] if one["id"] == run] or [{"state": ""}]
    return bool(found["state"] == "finished" and daemon.values(run, "loss") == LOSSES)


@pytest.mark.usefixtures("only_soak")
@pytest.mark.parametrize("older", ["client", "daemon"])
def test_what_one_version_pushes_or_spools_the_other_stores(
    older: str, before: dict[str, str], serving: Any, place: Path
) -> None:
    clients, daemons = (before, {}) if older == "client" else ({}, before)
    train("spooled", f"ipc://{place}/push.sock", clients)
    assert list((place / "spool").glob("*.spool"))
    daemon = serving(daemons)
    train("pushed", daemon.endpoint, clients)
    eventually(lambda: is_whole(daemon, "pushed") and is_whole(daemon, "spooled"))
    daemon = serving({})
    assert daemon.api("status").json()["version"] == __version__
    assert is_whole(daemon, "pushed")
    assert is_whole(daemon, "spooled")
