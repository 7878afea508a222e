"""The daemon as its unit runs it: a user with few permissions, and everything read-only but its own directories.

No systemd runs here. A mount namespace stands for the machine, with the users and groups that systemd-sysusers makes,
and an empty /run and /var/lib with the directories that systemd makes there. The tests change nothing outside of it.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deploy.pod import possible
from processes import DEADLINE, ROOT, command, eventually, http
from service_manager import Manager, Service
from unprivileged_users import launcher

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from processes import Daemon

pytestmark = pytest.mark.skipif(not possible(), reason="needs root and mount namespaces (CAP_SYS_ADMIN)")

PLACE = ROOT / "deploy" / "systemd"
USER, TRAINER = 61011, 61012
HOST = ("cpu", "disk", "filesystem", "gpu", "load", "memory", "network", "pressure", "process", "time", "vmstat")

TRAINING = """
import logging, sys
logging.basicConfig(format="%(message)s")
import trackside
trackside.push(step=1, loss=0.5)
print("pushed", flush=True)
sys.stdin.readline()
trackside.finish()
"""


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """Copies of this machine's tables of users and groups, with those of the unit under an unused number."""
    (tmp_path / "etc").mkdir()
    for name in ("passwd", "group"):
        lines = Path("/etc", name).read_text().splitlines(keepends=True)
        (tmp_path / "etc" / name).write_text("".join(line for line in lines if not line.startswith("trackside:")))
    described = tmp_path / "trackside.conf"
    described.write_text((PLACE / "trackside.sysusers").read_text().replace("trackside -", f"trackside {USER}"))
    subprocess.run(["systemd-sysusers", f"--root={tmp_path}", described], check=True, capture_output=True)
    return tmp_path / "etc"


@pytest.fixture
def enter(tables: Path) -> Iterator[list[str]]:
    """The beginning of a command that runs the rest on the machine, as root."""
    own = ["install", "-d", "-o", str(USER), "-g", str(USER)]
    steps = [
        ["mount", "--bind", str(tables / "passwd"), "/etc/passwd"],
        ["mount", "--bind", str(tables / "group"), "/etc/group"],
        *(["mount", "-t", "tmpfs", "-o", "mode=755", "none", where] for where in ("/run", "/var/lib")),
        [*own, "-m", "0750", "/run/trackside", "/var/lib/trackside"],
        [*own, "-m", "3770", "/var/lib/trackside/spool"],
        *(["mount", "-o", "remount,bind,ro", where] for where in ("/", "/sys")),
    ]
    script = "\n".join(["set -e", *map(shlex.join, steps), "echo ready", "exec cat"])
    pipe = subprocess.PIPE
    with subprocess.Popen(["unshare", "--mount", "sh", "-c", script], stdin=pipe, stdout=pipe, text=True) as held:
        assert held.stdout is not None
        assert held.stdout.readline() == "ready\n"
        yield ["nsenter", f"--mount=/proc/{held.pid}/ns/mnt", "--"]
        held.communicate(timeout=DEADLINE)


@pytest.fixture
def start(enter: list[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], tuple[Service, str]]]:
    """A function that starts the daemon of the unit, and returns it and its address."""
    monkeypatch.delenv("TRACKSIDE_SPOOL")
    manager = Manager(f"@trackside-sandbox-{os.getpid()}")
    started: list[Service] = []

    def begin() -> tuple[Service, str]:
        flags = ("--web.listen-address=127.0.0.1:0", "--collector.gpu.simulate=2", "--sample.interval=500ms")
        confined = [sys.executable, str(ROOT / "tests/deploy/confine.py"), str(PLACE / "trackside.service")]
        environ = {"RUNTIME_DIRECTORY": "/run/trackside", "HOME": "/var/lib/trackside", "USER": "trackside"}
        full = [*enter, *launcher(USER), *confined, *command("daemon", *flags)]
        started.append(Service(manager, full, environ, watchdog=60.0))
        return started[-1], started[-1].serves()

    yield begin
    for one in started:
        one.end()
    manager.close()


@pytest.fixture
def train(enter: list[str]) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """A function that starts a training of a user; the training discovers the daemon."""
    pipe = subprocess.PIPE
    started: list[subprocess.Popen[str]] = []

    def begin(name: str, user: int, *groups: int) -> subprocess.Popen[str]:
        environ = {one: value for one, value in os.environ.items() if not one.startswith(("TRACKSIDE_", "XDG_"))}
        environ |= {"TRACKSIDE_RUN_NAME": name, "HOME": "/nowhere"}
        full = [*enter, *launcher(user, *groups), sys.executable, "-c", TRAINING]
        started.append(subprocess.Popen(full, env=environ, stdin=pipe, stdout=pipe, stderr=pipe, text=True))
        return started[-1]

    yield begin
    for one in started:
        one.kill()
        one.communicate(timeout=DEADLINE)


def series(url: str) -> dict[str, float]:
    lines = http.get(f"{url}/metrics").text.splitlines()
    pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs}


def settled(url: str) -> dict[str, float]:
    """Return all series once they include those of GPUs, which take longest; else none."""
    now = series(url)
    return now if any(name.startswith("trackside_gpu_utilization_ratio") for name in now) else {}


def test_what_is_collected_outside_is_collected_inside(
    start: Callable[[], tuple[Service, str]], start_daemon: Callable[..., Daemon]
) -> None:
    service, url = start()
    works = [f'trackside_collector_success{{collector="{name}"}}' for name in HOST]
    outside = start_daemon("--collector.gpu.simulate=2")
    alone, inside = (eventually(partial(settled, where)) for where in (outside.url, url))
    assert [name for name in works if inside[name] < alone[name]] == []
    lines = "".join(service.log)
    assert [line for line in service.log if "level=error" in line or "Traceback" in line] == [], lines
    readonly = {name for name in alone.keys() & inside.keys() if name.startswith("trackside_host_filesystem_readonly")}
    assert {name: inside[name] for name in readonly} == {name: alone[name] for name in readonly}
    assert any('mountpoint="/"' in name for name in readonly)
    missing = {name.partition("{")[0] for name in alone} - {name.partition("{")[0] for name in inside}
    assert {name for name in missing if name.startswith("trackside_host_")} <= {
        "trackside_host_time_synchronized",  # see clock.conf
        "trackside_host_time_offset_seconds",
    }


def test_a_user_in_the_group_pushes_and_how_the_training_ends_is_seen(
    start: Callable[[], tuple[Service, str]], train: Callable[..., subprocess.Popen[str]]
) -> None:
    _, url = start()
    training = train("friend", TRAINER, USER)
    eventually(lambda: series(url).get('trackside_training_steps_total{rank="0",run="friend"}') == 1)
    training.send_signal(signal.SIGSEGV)
    assert training.wait(DEADLINE)
    eventually(lambda: series(url).get('trackside_training_state{run="friend",state="failed"}') == 1)


def test_leftovers_of_the_shared_spool_are_read(
    enter: list[str], start: Callable[[], tuple[Service, str]], train: Callable[..., subprocess.Popen[str]]
) -> None:
    service, _ = start()
    service.signal(signal.SIGTERM)
    assert service.process.wait(DEADLINE) == 0
    training = train("left", TRAINER, USER)
    assert training.communicate("\n", timeout=DEADLINE)[0] == "pushed\n"
    service, url = start()
    token = subprocess.run(
        [*enter, "cat", "/run/trackside/push.token"], capture_output=True, text=True, check=True
    ).stdout
    asked = {"Authorization": f"Bearer {token.strip()}"}

    def runs() -> list[tuple[str, str]]:
        reported = http.get(f"{url}/api/v1/runs", headers=asked).json()
        return [(run["name"], run["state"]) for run in reported["runs"]]

    eventually(lambda: runs() == [("left", "finished")])
