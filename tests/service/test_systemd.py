"""Messages of the daemon to the service manager, and the moment when they stop."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from processes import DEADLINE, command, eventually, http
from service_manager import Manager, Service

from trackside_daemon.service.systemd import Notifier, Watchdog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STUCK = """
import os, sys, threading
import trackside_daemon.{module} as module
real = module.{part}
def stuck(self, *arguments):
    if os.path.exists({flag!r}):
        threading.Event().wait()
    return real(self, *arguments)
module.{part} = stuck
from trackside_daemon.__main__ import main
sys.argv = ["trackside", *sys.argv[1:]]
main()
"""


OFF = (
    "gpu",
    "disk",
    "filesystem",
    "network",
    "infiniband",
    "cgroup",
    "process",
    "time",
    "thermal",
    "ranks",
    "vmstat",
    "load",
)
"""Collectors: a stuck sampler is noticed later by the time that all of them may take."""


@pytest.fixture
def manager(request: pytest.FixtureRequest, place: Path) -> Iterator[Manager]:
    """A manager with a path, or with an abstract name where a test has that as a parameter."""
    abstract = getattr(request, "param", "path") == "abstract"
    listening = Manager(f"@trackside-test-{os.getpid()}" if abstract else place / "notify")
    yield listening
    listening.close()


@pytest.fixture
def start(manager: Manager, place: Path) -> Iterator[Callable[..., Service]]:
    started: list[Service] = []

    def begin(first: list[str], watchdog: float = 0.0) -> Service:
        (place / "history").mkdir()
        flags = (
            f"--push.endpoint=ipc://{place}/push.sock",
            f"--storage.path={place}/history",
            *("--web.listen-address=127.0.0.1:0", "--sample.interval=100ms"),
            *(f"--no-collector.{name}" for name in OFF),
        )
        started.append(Service(manager, [*first, *flags], {}, watchdog=watchdog))
        return started[-1]

    yield begin
    for one in started:
        one.end()


@pytest.mark.parametrize("manager", ["path", "abstract"], indirect=True)
def test_a_daemon_notifies_when_it_serves_reloads_and_stops(start: Callable[..., Service]) -> None:
    service = start(command("daemon"))
    url = service.serves()
    assert http.get(f"{url}/metrics").status_code == 200
    assert not [line for line in service.log if "Traceback" in line]

    service.signal(signal.SIGHUP)
    reloading, ready = service.manager.receive(), service.manager.receive()
    assert (reloading["RELOADING"], reloading["MONOTONIC_USEC"].isdecimal()) == ("1", True)
    assert ready["READY"] == "1"
    assert ready["STATUS"] == f"serves {url}, 0 runs on this machine"

    service.signal(signal.SIGTERM)
    assert service.manager.receive() == {"STOPPING": "1"}
    assert service.process.wait(DEADLINE) == 0


def test_a_daemon_beats_as_long_as_it_lives(start: Callable[..., Service]) -> None:
    service = start(command("daemon"), watchdog=0.5)
    service.serves()
    for _ in range(3):
        assert service.manager.receive()["WATCHDOG"] == "1"


def test_a_daemon_that_was_stopped_for_a_while_continues(start: Callable[..., Service]) -> None:
    service = start(command("daemon"), watchdog=0.5)
    service.serves()
    stat = Path(f"/proc/{service.process.pid}/stat")
    service.signal(signal.SIGSTOP)
    eventually(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T")
    time.sleep(1.0)  # beats have been due meanwhile
    service.manager.drain()
    service.signal(signal.SIGCONT)
    for _ in range(3):
        assert service.manager.receive()["WATCHDOG"] == "1"
    assert service.process.poll() is None


def test_a_part_that_was_late_once_beats_again_before_the_watchdog_bites() -> None:
    counted: Any = _Beats()
    late = iter([9.0, 9.0, 0.0])
    pulse = Watchdog(counted, {"web": lambda: next(late, 0.0)}, {}, disk=lambda: 0.0, status=lambda: "")
    pulse.start()
    eventually(lambda: counted.beats > 1)
    pulse.stop()
    beats = counted.beats
    pulse.check(1.0)
    assert counted.beats == beats + 1


@pytest.mark.parametrize(
    ("module", "part", "named"),
    [
        ("pipeline.pipeline", "Pipeline.accept", "pipeline"),
        ("sampling.sampler", "Sampler.tick", "sampler"),
        ("ingest.client_sessions", "ClientSessions.tick", "ingest"),
        ("web.http.server", "_Server._clear_probe", "web"),
    ],
)
def test_a_daemon_that_stands_still_stops_to_beat(
    start: Callable[..., Service], place: Path, module: str, part: str, named: str
) -> None:
    flag = place / "stuck"
    code = STUCK.format(module=module, part=part, flag=str(flag))
    service = start([sys.executable, "-c", code, "daemon"], watchdog=4.0)
    service.serves()
    assert service.manager.receive()["WATCHDOG"] == "1"

    flag.touch()
    eventually(lambda: [line for line in service.log if f"{named} has been stuck for" in line], 2 * DEADLINE)
    for _ in range(2):  # between two reloads there would be a beat
        service.signal(signal.SIGHUP)
        service.manager.receive_until("RELOADING")
        reported = service.manager.receive_until("READY")
    assert not [one for one in reported if "WATCHDOG" in one]


def test_its_variables_are_for_no_child(place: Path) -> None:
    environ = {"NOTIFY_SOCKET": f"{place}/notify", "WATCHDOG_USEC": "60000000", "WATCHDOG_PID": str(os.getpid())}
    notifier = Notifier(environ)
    assert (notifier.watchdog, environ) == (60, {})
    notifier.stopping()


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"WATCHDOG_USEC": "60000000"},
        {"NOTIFY_SOCKET": "vsock:2:1234", "WATCHDOG_USEC": "60000000"},
        {"NOTIFY_SOCKET": "/nowhere/notify"},
        {"NOTIFY_SOCKET": "@nobody-listens", "WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "1"},
        {"NOTIFY_SOCKET": "@nobody-listens", "WATCHDOG_USEC": "0"},
        {"NOTIFY_SOCKET": "@nobody-listens", "WATCHDOG_USEC": "often"},
    ],
)
def test_without_a_listener_nothing_is_notified_and_nothing_fails(environ: dict[str, str]) -> None:
    notifier = Notifier(environ)
    notifier.ready("serves")
    notifier.stopping()
    assert notifier.watchdog is None


class _Beats:
    """A notifier that counts its beats."""

    watchdog = 0.02

    def __init__(self) -> None:
        self.beats = 0

    def keep_alive(self, _: str) -> None:
        self.beats += 1


@pytest.mark.parametrize(
    ("late", "disk", "beats"),
    [
        ({}, 0.0, 1),
        ({"sampler": 9.0}, 0.0, 0),
        ({"pipeline": 9.0}, 0.0, 0),
        ({"pipeline": 9.0, "ingest": 9.0}, 9.0, 1),
        ({"pipeline": 9.0}, float("inf"), 1),
        ({"web": 9.0}, float("inf"), 0),
    ],
)
def test_a_disk_that_does_not_answer_excuses_the_parts_that_read_from_it(
    late: dict[str, float], disk: float, beats: int
) -> None:
    counted: Any = _Beats()
    parts, readers = (
        {name: (lambda name=name: late.get(name, 0.0)) for name in names}
        for names in (("sampler", "web"), ("pipeline", "ingest"))
    )
    Watchdog(counted, parts, readers, disk=lambda: disk, status=lambda: "").check(counted.watchdog)
    assert counted.beats == beats
