"""How workers die, and what is told of it: real processes, by a clock that is set."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from collectors.trees import Proc, member
from processes import DEADLINE, clean_environ, eventually

from trackside.wire import Room
from trackside_daemon import exits
from trackside_daemon.collectors import deaths as module
from trackside_daemon.collectors import followed
from trackside_daemon.collectors.deaths import LINGER_SECONDS, OOM_SECONDS, Deaths, cause
from trackside_daemon.collectors.followed import LAG_SECONDS, PATIENCE_SECONDS, Dead
from trackside_daemon.collectors.names import Life
from trackside_daemon.collectors.room import MEMORY_SECONDS, Rooms, Use
from trackside_daemon.collectors.tree import look

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trackside_daemon.record import Event

MIB = 1024**2
PROC = Path("/proc")
WALL = 1_760_000_000.0
SCRIPT = """
import os, signal, sys
gates = []
def worker(end):
    reads, writes = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(writes)
        os.read(reads, 1)
        exec(end)
        os._exit(0)
    gates.append(writes)
    print(pid, flush=True)
def go(reap=True):
    for gate in gates:
        os.close(gate)
    for _ in gates:
        os.wait() if reap else os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
    gates.clear()
    print(flush=True)
for line in sys.stdin:
    exec(line)
"""


class Training:
    """A rank whose workers end as they are told, and what is told of them.

    Attributes:
        now: What the clock shows.
        most: How full /dev/shm was.
    """

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=clean_environ(),
        )
        self.deaths = Deaths(PROC)
        self.member = member(self.process.pid, 3, attempt=2)
        self.now = 100.0
        self.most: dict[int, Use] = {}
        self._descriptors = descriptors()

    def do(self, line: str) -> str:
        """Have the rank do something that prints a line."""
        self.say(line)
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def worker(self, end: str) -> int:
        """Its pid; it is followed, and ends so when the rank goes on."""
        pid = int(self.do(f"worker({end!r})"))
        worker, rank = look("/proc", pid), look("/proc", self.process.pid)
        assert worker is not None
        assert rank is not None
        for _ in range(2):
            self.deaths.follow(worker, rank, self.member)
        assert self.look() == []
        return pid

    def look(self, after: float = 0.0) -> list[Event]:
        """What is told so many seconds later."""
        self.now += after
        self.deaths.look(self.now, WALL, self.most)
        return list(self.deaths.reports())

    def counts(self) -> dict[str, Any]:
        """The deaths on the page, by their cause."""
        found = list(self.deaths.samples({("char-model", "3")}, self.now))
        assert {one.labels[:2] for one in found} <= {("char-model", "3")}
        return {one.labels[2]: one.value for one in found}

    def left_open(self) -> int:
        """Pidfds that are open now, and were not when this began."""
        return descriptors() - self._descriptors

    def forget(self) -> None:
        """Follow nobody, as one that has just begun."""
        self.deaths.close()
        self.deaths = Deaths(PROC)

    def close(self) -> None:
        self.deaths.close()
        assert self.left_open() == 0
        self.process.kill()
        self.process.wait(DEADLINE)
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()


@pytest.fixture
def training() -> Iterator[Training]:
    one = Training()
    yield one
    one.close()


def kill(name: str) -> str:
    return f"os.kill(os.getpid(), signal.{name})"


@pytest.mark.parametrize(
    ("end", "fields", "word"),
    [
        (
            kill("SIGBUS"),
            {"signal": "SIGBUS", "cause": "killed by SIGBUS: /dev/shm is full (63.9 of 64 MiB)"},
            "SIGBUS",
        ),
        (kill("SIGSEGV"), {"signal": "SIGSEGV", "cause": "killed by SIGSEGV"}, "SIGSEGV"),
        (kill("SIGKILL"), {"signal": "SIGKILL", "cause": "killed by SIGKILL"}, "SIGKILL"),
        ("os._exit(7)", {"status": 7, "cause": "exit status 7"}, "exit"),
    ],
)
@pytest.mark.parametrize("reap", [True, False], ids=["reaped", "zombie"])
def test_a_worker_that_dies_is_told_of_once(
    training: Training,
    caplog: pytest.LogCaptureFixture,
    end: str,
    fields: dict[str, int | str],
    word: str,
    *,
    reap: bool,
) -> None:
    training.most = {training.process.pid: Use(67_000_000, 64 * MIB)}
    pid = training.worker(end)
    training.do(f"go({reap})")
    told = [*training.look(), *training.look(LAG_SECONDS), *training.look(1.0)]
    [event] = told
    assert (event.run, event.attempt, event.rank, event.kind, event.time) == ("id-7", 2, 3, "dataloader_died", WALL)
    assert event.fields == {"pid": pid, **fields}
    assert training.counts() == {word: 1}
    assert caplog.messages == [f"run char-model rank 3: data loader worker {pid} died: {fields['cause']}"]
    assert training.left_open() == 0


@pytest.mark.parametrize("end", ["os._exit(0)", kill("SIGTERM"), "signal.signal(2, signal.SIG_DFL);" + kill("SIGINT")])
def test_a_worker_that_ends_as_it_should_is_no_news(training: Training, end: str) -> None:
    training.worker(end)
    training.do("go()")
    assert [*training.look(), *training.look(LAG_SECONDS)] == []
    assert training.counts() == {}
    assert training.left_open() == 0


def test_several_that_die_at_once_have_one_line_in_the_log(
    training: Training, caplog: pytest.LogCaptureFixture
) -> None:
    pids = [training.worker(kill("SIGSEGV")) for _ in range(3)]
    training.do("go()")
    assert [event.fields["pid"] for event in training.look()] == pids
    named = ", ".join(map(str, pids))
    assert caplog.messages == [f"run char-model rank 3: data loader workers {named} died: killed by SIGSEGV"]
    assert training.counts() == {"SIGSEGV": 3}


def test_a_kill_soon_after_one_for_want_of_memory_is_taken_for_that(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    kills = 4
    monkeypatch.setattr(module, "read", lambda _: f"nr_free_pages 1\noom_kill {kills}\npgfault 2\n".encode())
    training.worker(kill("SIGKILL"))
    kills = 5
    training.do("go()")
    training.look()
    training.look(LAG_SECONDS)
    assert training.counts() == {"OOM": 1}
    training.worker(kill("SIGKILL"))
    training.look(OOM_SECONDS)
    training.do("go()")
    training.look()
    [event] = training.look(LAG_SECONDS)
    assert event.fields["cause"] == "killed by SIGKILL"


@pytest.mark.parametrize("rank_first", [True, False])
def test_who_is_killed_with_its_rank_is_no_news(training: Training, *, rank_first: bool) -> None:
    pid = training.worker("os.read(0, 1)")
    for one in (training.process.pid, pid) if rank_first else (pid, training.process.pid):
        os.kill(one, signal.SIGKILL)
        if one == training.process.pid:
            training.process.wait(DEADLINE)
        assert training.look() == []
    eventually(lambda: training.look() == [] and not len(training.deaths._followed))
    assert training.look(PATIENCE_SECONDS) == []
    assert training.left_open() == 0


def test_a_rank_that_raises_because_of_its_worker_takes_the_news_not_along(training: Training) -> None:
    training.worker(kill("SIGKILL"))
    training.do("go()")
    training.say("sys.exit('DataLoader worker is killed')")
    training.process.wait(DEADLINE)
    [event] = eventually(training.look)
    assert event.fields["cause"] == "killed by SIGKILL"
    assert training.counts() == {"SIGKILL": 1}


def test_a_rank_that_ends_well_has_lost_nobody(training: Training) -> None:
    training.worker(kill("SIGKILL"))
    training.do("go()")
    training.say("os._exit(0)")
    training.process.wait(DEADLINE)
    assert [*training.look(), *training.look(LAG_SECONDS)] == []
    assert training.left_open() == 0


def test_how_it_ended_that_is_not_known_is_waited_for_and_not_guessed(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the zombie is another user's."""
    monkeypatch.setattr(exits, "of_zombie", lambda *_: None)
    training.worker(kill("SIGSEGV"))
    training.worker(kill("SIGSEGV"))
    training.do("go(reap=False)")
    assert training.look() == []
    assert len(training.deaths._followed) == 2
    assert training.look(PATIENCE_SECONDS) == []
    assert len(training.deaths._followed) == 0
    assert training.left_open() == 0


def test_no_more_are_followed_than_there_are_files_for(training: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followed, "MOST", 2)
    training.forget()
    for _ in range(3):
        training.worker("")
    assert len(training.deaths._followed) == 2
    monkeypatch.setattr(followed, "MOST", 1024)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (4, 4))
    training.forget()
    training.worker("")
    training.worker("")
    assert len(training.deaths._followed) == 1
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    training.forget()
    training.worker("")
    assert len(training.deaths._followed) == 1


def test_another_process_of_the_same_pid_is_not_followed(training: Training) -> None:
    pid = int(training.do("worker('')"))
    worker, rank = look("/proc", pid), look("/proc", training.process.pid)
    assert worker is not None
    assert rank is not None
    training.deaths.follow(worker._replace(start=worker.start - 1), rank, training.member)
    training.deaths.follow(worker._replace(pid=2**22 + 1), rank, training.member)
    assert len(training.deaths._followed) == 0


def test_deaths_are_shown_for_a_while_after_their_rank(training: Training) -> None:
    training.worker(kill("SIGSEGV"))
    training.do("go()")
    training.look()
    assert len(list(training.deaths.samples((), training.now + LINGER_SECONDS))) == 1
    assert len(list(training.deaths.samples({("char-model", "3")}, training.now + LINGER_SECONDS))) == 1
    assert len(list(training.deaths.samples((), training.now + 2 * LINGER_SECONDS))) == 1
    assert list(training.deaths.samples((), training.now + 2 * LINGER_SECONDS + 1)) == []


SIZE = 64 * MIB


@pytest.mark.parametrize(
    ("code", "oom", "use", "expected"),
    [
        (-7, False, Use(SIZE, SIZE), ("SIGBUS", "killed by SIGBUS: /dev/shm is full (64 of 64 MiB)")),
        (
            *(-7, False, Use(SIZE // 2, SIZE)),
            ("SIGBUS", "killed by SIGBUS, most often because /dev/shm is full; it was at most 32 of 64 MiB"),
        ),
        (-7, False, None, ("SIGBUS", "killed by SIGBUS, most often because /dev/shm is full")),
        (-9, True, None, ("OOM", "killed by the kernel for want of memory")),
        (-9, False, Use(SIZE, SIZE), ("SIGKILL", "killed by SIGKILL")),
        (-40, False, None, ("signal 40", "killed by signal 40")),
        (1, False, None, ("exit", "exit status 1")),
    ],
)
def test_a_cause_says_what_is_known(code: int, use: Use | None, expected: tuple[str, str], *, oom: bool) -> None:
    assert cause(Dead(member(10), Life(10, 1), 11, code, oom), use) == expected


@pytest.mark.parametrize(
    ("use", "text"),
    [
        (Use(67_000_000, 64 * MIB), "63.9 of 64 MiB"),
        (Use(0, 1024**4), "0 of 1 TiB"),
        (Use(3 * 1024**3, 503 * 1024**3), "3 of 503 GiB"),
        (Use(512, 512), "0.5 of 0.5 KiB"),
    ],
)
def test_a_use_is_told_in_the_unit_of_the_size(use: Use, text: str) -> None:
    assert str(use) == text


def test_the_fullest_that_shared_memory_was_lately_is_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rooms, told = Rooms(tmp_path), member(10, room=Room(shm_size=100, shm_used=20, shm_peak=95))
    rooms.look({10: told}, 0.0)
    rooms.look({10: told._replace(room=Room(shm_size=100, shm_used=30))}, 1.0)
    rooms.look({11: member(11), 12: member(12, room=Room(open_fds=3))}, 2.0)
    assert rooms.most() == {10: Use(95, 100)}
    rooms.look({}, MEMORY_SECONDS)
    assert rooms.most() == {10: Use(30, 100)}
    rooms.look({}, MEMORY_SECONDS + 1)
    assert rooms.most() == {}


def test_shared_memory_is_looked_at_where_the_rank_is() -> None:
    rooms = Rooms(PROC)
    rooms.look({os.getpid(): member(os.getpid())}, 0.0)
    size = os.statvfs("/dev/shm")
    assert rooms.most()[os.getpid()].size == size.f_blocks * size.f_frsize


def test_a_count_of_kills_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    deaths = Deaths(Proc(tmp_path / "proc").place)
    deaths._look_for_kills(0.0)
    (tmp_path / "proc" / "vmstat").write_text("pgfault 2\n")
    deaths._look_for_kills(1.0)
    (tmp_path / "proc" / "vmstat").unlink()
    deaths._look_for_kills(2.0)
    assert (deaths._kills, deaths._killed) == (3, -inf)


def descriptors() -> int:
    """Pidfds that are open here."""
    links = []
    for one in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the one that reads the directory
            links.append(str(one.readlink()))
    return sum("pidfd" in link for link in links)
