"""How workers die, and what is told of it: real processes, by a clock that is set."""

from __future__ import annotations

import errno
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from collectors.trees import member
from processes import DEADLINE, clean_environ, eventually

from trackside.wire import Room
from trackside_daemon import exits
from trackside_daemon.collectors import followed
from trackside_daemon.collectors.below import Whose
from trackside_daemon.collectors.deaths import CAUSES, LINGER_SECONDS, Deaths, cause
from trackside_daemon.collectors.followed import LAG_SECONDS, OWN, PATIENCE_SECONDS, Dead
from trackside_daemon.collectors.names import Life
from trackside_daemon.collectors.room import MEMORY_SECONDS, Rooms, Use
from trackside_daemon.collectors.tree import Stat, look
from trackside_daemon.oom import TEARDOWN_SECONDS, OomKills

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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


NONE = dict.fromkeys(CAUSES, 0)
WHOSE = Whose("char-model", "3")


class Cgroups:
    """Two jobs' cgroups, as files."""

    def __init__(self, place: Path) -> None:
        self.proc, self._cgroups = place / "proc", place / "cgroup"
        (self.proc / "self").mkdir(parents=True)
        mount = f"30 23 0:26 / {self._cgroups} rw shared:4 - cgroup2 cgroup2 rw\n"
        (self.proc / "self" / "mountinfo").write_text(mount)
        for name in ("job", "other"):
            (self._cgroups / name).mkdir(parents=True)
            self.kills(name, 3)
        self.machine(3)

    def kills(self, name: str, count: int) -> None:
        (self._cgroups / name / "memory.events").write_text(f"oom {count}\noom_kill {count}\n")

    def machine(self, count: int) -> None:
        (self.proc / "vmstat").write_text(f"nr_free_pages 1\noom_kill {count}\npgfault 2\n")

    def enter(self, pid: int) -> None:
        """A process is in the job's."""
        (self.proc / str(pid)).mkdir()
        (self.proc / str(pid) / "cgroup").write_text("0::/job\n")


class Training:
    """A rank whose workers end as they are told, and what is told of them.

    Args:
        place: For the files of its cgroup.
        launcher: A command that starts it.

    Attributes:
        now: What the clock shows.
        most: How full /dev/shm was.
    """

    def __init__(self, place: Path, launcher: Sequence[str] = ()) -> None:
        self.process = subprocess.Popen(
            [*launcher, sys.executable, "-c", SCRIPT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=clean_environ(),
        )
        self.cgroups = Cgroups(place)
        self.deaths = Deaths(PROC, OomKills(self.cgroups.proc))
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
        self.cgroups.enter(pid)
        self.follow(pid, self.process.pid)
        return pid

    def follow(self, pid: int, rank: int) -> None:
        for _ in range(2):
            self.deaths.follow([process(pid)], process(rank), self.member, self.now)
        assert self.look(1.0) == []

    def look(self, after: float = 0.0) -> list[Event]:
        """What is told so many seconds later."""
        self.now += after
        self.deaths.look(self.now, WALL, self.most)
        return list(self.deaths.reports())

    def counts(self) -> dict[str, Any]:
        """The deaths on the page, by their cause."""
        found = list(self.deaths.samples({WHOSE}, self.now))
        assert {one.labels[:2] for one in found} <= {WHOSE}
        return {one.labels[2]: one.value for one in found}

    def left_open(self) -> int:
        """Pidfds that are open now, and were not when this began."""
        return descriptors() - self._descriptors

    def forget(self) -> None:
        """Follow nobody, as one that has just begun."""
        self.deaths.close()
        self.deaths = Deaths(PROC, OomKills(self.cgroups.proc))

    def close(self) -> None:
        self.deaths.close()
        assert self.left_open() == 0
        self.process.kill()
        self.process.wait(DEADLINE)
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Training]:
    one = Training(tmp_path)
    yield one
    one.close()


def process(pid: int) -> Stat:
    found = look("/proc", pid)
    assert found is not None
    return found


def await_end(*pids: int) -> None:
    """Until these are over, whoever waits for them."""
    for pid in pids:
        with suppress(ProcessLookupError):
            pidfd = os.pidfd_open(pid)
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            assert poll.poll(DEADLINE * 1000)
            os.close(pidfd)


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
    assert training.counts() == {**NONE, word: 1}
    assert caplog.messages == [f"run char-model rank 3: data loader worker {pid} died: {fields['cause']}"]
    assert training.left_open() == 0


@pytest.mark.parametrize("end", ["os._exit(0)", kill("SIGTERM"), "signal.signal(2, signal.SIG_DFL);" + kill("SIGINT")])
def test_a_worker_that_ends_as_it_should_is_no_news(training: Training, end: str) -> None:
    training.worker(end)
    training.do("go()")
    assert [*training.look(), *training.look(LAG_SECONDS)] == []
    assert training.counts() == NONE
    assert training.left_open() == 0


def test_several_that_die_at_once_have_one_line_in_the_log(
    training: Training, caplog: pytest.LogCaptureFixture
) -> None:
    pids = [training.worker(kill("SIGSEGV")) for _ in range(3)]
    training.do("go()")
    assert training.look() == []
    assert [event.fields["pid"] for event in training.look(LAG_SECONDS)] == pids
    named = ", ".join(map(str, pids))
    assert caplog.messages == [f"run char-model rank 3: data loader workers {named} died: killed by SIGSEGV"]
    assert training.counts() == {**NONE, "SIGSEGV": 3}


def test_a_kill_soon_after_one_for_want_of_memory_in_the_cgroup_is_taken_for_that(training: Training) -> None:
    training.worker(kill("SIGKILL"))
    training.cgroups.kills("job", 4)
    training.do("go()")
    training.look()
    training.look(LAG_SECONDS)
    assert training.counts() == {**NONE, "OOM": 1}
    training.worker(kill("SIGKILL"))
    training.look(TEARDOWN_SECONDS)
    training.do("go()")
    training.look()
    [event] = training.look(LAG_SECONDS)
    assert event.fields["cause"] == "killed by SIGKILL"


def test_a_kill_for_want_of_memory_of_another_job_is_not_taken_for_the_workers(training: Training) -> None:
    training.worker(kill("SIGKILL"))
    training.cgroups.kills("other", 4)
    training.cgroups.machine(4)
    training.do("go()")
    training.look()
    [event] = training.look(LAG_SECONDS)
    assert event.fields["cause"] == "killed by SIGKILL"
    assert training.counts() == {**NONE, "SIGKILL": 1}


def test_with_a_kill_for_want_of_memory_it_is_waited_for_how_the_rank_ended(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the rank is killed, too, and nobody has waited for it yet."""
    rank = training.process.pid
    pid = training.worker("os.read(0, 1)")
    training.cgroups.kills("job", 4)
    for one in (pid, rank):
        os.kill(one, signal.SIGKILL)
        await_end(one)

    def hidden(pidfd: int, pid: int, start: int, proc: Path) -> int | None:
        return None if pid == rank else exits.exit_code(pidfd, pid, start, proc)

    monkeypatch.setattr(followed, "exit_code", hidden)
    assert [*training.look(), *training.look(LAG_SECONDS)] == []
    assert len(training.deaths._followed) == 1
    monkeypatch.undo()
    assert training.look() == []
    assert len(training.deaths._followed) == 0
    assert training.counts() == NONE


@pytest.mark.parametrize("rank_first", [True, False])
def test_who_is_killed_with_its_rank_is_no_news(training: Training, *, rank_first: bool) -> None:
    pid = training.worker("os.read(0, 1)")
    for one in (training.process.pid, pid) if rank_first else (pid, training.process.pid):
        os.kill(one, signal.SIGKILL)
        if one == training.process.pid:
            training.process.wait(DEADLINE)
        assert training.look() == []
    eventually(lambda: training.look(LAG_SECONDS) == [] and not len(training.deaths._followed))
    assert training.look(PATIENCE_SECONDS) == []
    assert training.left_open() == 0


def test_a_rank_that_raises_because_of_its_worker_takes_the_news_not_along(training: Training) -> None:
    training.worker(kill("SIGKILL"))
    training.do("go()")
    training.say("sys.exit('DataLoader worker is killed')")
    training.process.wait(DEADLINE)
    [event] = eventually(lambda: training.look(LAG_SECONDS))
    assert event.fields["cause"] == "killed by SIGKILL"
    assert training.counts() == {**NONE, "SIGKILL": 1}


@pytest.mark.parametrize("name", ["SIGKILL", "SIGHUP"])
def test_a_worker_that_is_killed_after_its_rank_is_no_news_however_that_ended(training: Training, name: str) -> None:
    """As by Slurm, which sweeps up what a rank has left."""
    pid = training.worker("os.read(0, 1)")
    training.say("os._exit(1)")
    training.process.wait(DEADLINE)
    os.kill(pid, signal.Signals[name])
    await_end(pid)
    assert [*training.look(), *training.look(LAG_SECONDS)] == []
    assert training.counts() == NONE
    assert len(training.deaths._followed) == 0


def test_workers_that_a_rank_takes_along_as_the_first_of_its_namespace_are_no_news(tmp_path: Path) -> None:
    launcher = ["unshare", "--pid", "--fork", "--kill-child"]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*launcher, "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip("only root may make a pid namespace here")
    training = Training(tmp_path, launcher)
    training.do("worker('signal.pause()')")
    [rank] = children(training.process.pid)
    [worker] = children(rank)
    training.follow(worker, rank)
    training.say("os._exit(1)")
    training.process.wait(DEADLINE)
    await_end(worker)
    assert [*training.look(), *training.look(LAG_SECONDS)] == []
    assert training.counts() == NONE
    assert len(training.deaths._followed) == 0
    training.close()


@pytest.mark.parametrize("name", ["SIGQUIT", "SIGUSR1", "SIGXCPU"])
def test_a_signal_to_all_is_no_news_of_each_worker_and_one_to_a_worker_is(training: Training, name: str) -> None:
    pid = training.worker("os.read(0, 1)")
    os.kill(pid, signal.Signals[name])
    await_end(pid)
    training.look()
    [event] = training.look(LAG_SECONDS)
    assert event.fields == {"pid": pid, "signal": name, "cause": f"killed by {name}"}
    pid = training.worker("os.read(0, 1)")
    for one in (pid, training.process.pid):
        os.kill(one, signal.Signals[name])
        await_end(one)
    assert [*training.look(), *training.look(LAG_SECONDS)] == []
    assert len(training.deaths._followed) == 0
    assert training.counts() == {**NONE, name: 1}


def test_only_what_a_process_does_itself_is_its_own_death() -> None:
    assert {one.name for one in OWN} == {"SIGBUS", "SIGSEGV", "SIGABRT", "SIGILL", "SIGFPE", "SIGSYS", "SIGTRAP"}


def test_who_has_turned_out_to_be_no_worker_is_not_told_of(training: Training) -> None:
    first, second = training.worker("os._exit(1)"), training.worker("os._exit(1)")
    training.deaths.leave([process(first).life, Life(1, 1)])
    training.do("go()")
    assert training.look() == []
    [event] = training.look(LAG_SECONDS)
    assert event.fields["pid"] == second
    training.deaths.leave([Life(second, 1)])


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
    pids = [training.worker(kill("SIGSEGV")) for _ in range(2)]
    training.do("go(reap=False)")
    await_end(*pids)
    assert training.look() == []
    assert len(training.deaths._followed) == 2
    assert training.look(PATIENCE_SECONDS) == []
    assert len(training.deaths._followed) == 0
    assert training.left_open() == 0


def test_no_more_are_followed_than_there_are_files_for_and_that_is_told_once(
    training: Training, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(followed, "DESCENDANTS", 2)
    training.forget()
    for _ in range(3):
        training.worker("")
    assert len(training.deaths._followed) == 2
    monkeypatch.setattr(followed, "DESCENDANTS", 1024)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (4, 4))
    training.forget()
    caplog.clear()
    for _ in range(3):
        training.worker("")
    assert len(training.deaths._followed) == 1
    [message] = caplog.messages
    assert message == (
        "the daemon follows 1 data loader workers and can follow no more, so that deaths of others are not told: it may "
        "open 4 files, and leaves most of them to others; raise LimitNOFILE= of its unit, or ulimit -n, and start it again"
    )
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    training.forget()
    training.worker("")
    assert len(training.deaths._followed) == 1


@pytest.mark.parametrize("what", ["os.pidfd_open", "select.epoll.register"])
def test_a_process_that_the_system_lets_nobody_follow_is_told_of_too(
    training: Training, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    def refuses(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    if what == "os.pidfd_open":
        monkeypatch.setattr(os, "pidfd_open", refuses)
    else:
        monkeypatch.setattr(training.deaths._followed, "_epoll", SimpleNamespace(register=refuses, close=int))
    training.worker("")
    assert len(training.deaths._followed) == 0
    assert ["No space left on device; raise LimitNOFILE=" in message for message in caplog.messages] == [True]


def test_another_process_of_the_same_pid_is_not_followed(training: Training, caplog: pytest.LogCaptureFixture) -> None:
    pid = int(training.do("worker('')"))
    worker, rank = process(pid), process(training.process.pid)
    others = (worker._replace(start=worker.start - 1), worker._replace(pid=2**22 + 1))
    training.deaths.follow(others, rank, training.member, training.now)
    assert len(training.deaths._followed) == 0
    assert caplog.messages == []


def test_deaths_are_shown_for_a_while_after_their_rank(training: Training) -> None:
    training.worker(kill("SIGSEGV"))
    training.do("go()")
    training.look()
    training.look(LAG_SECONDS)
    shown = len(CAUSES)
    assert len(list(training.deaths.samples((), training.now + LINGER_SECONDS))) == shown
    assert len(list(training.deaths.samples({WHOSE}, training.now + LINGER_SECONDS))) == shown
    assert len(list(training.deaths.samples((), training.now + 2 * LINGER_SECONDS))) == shown
    assert list(training.deaths.samples((), training.now + 2 * LINGER_SECONDS + 1)) == []


def test_a_rank_that_has_workers_has_deaths_from_0_on_and_one_without_has_none(training: Training) -> None:
    assert training.counts() == {}
    training.worker("")
    assert training.counts() == NONE


SIZE = 64 * MIB


@pytest.mark.parametrize(
    ("code", "oom", "use", "expected"),
    [
        (-7, False, Use(SIZE, SIZE), ("SIGBUS", "killed by SIGBUS: /dev/shm is full (64 of 64 MiB)")),
        (
            *(-7, False, Use(SIZE // 2, SIZE)),
            ("SIGBUS", "killed by SIGBUS, most often because /dev/shm is full; the training saw at most 32 of 64 MiB"),
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


def test_the_fullest_that_a_rank_has_told_of_lately_is_remembered_and_nobody_else_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: pytest.fail("a dead mount would hold the tick up"))
    rooms, told = Rooms(), member(10, room=Room(shm_size=100, shm_used=20, shm_peak=95))
    rooms.hear([told], 0.0)
    rooms.hear([told._replace(room=Room(shm_size=100, shm_used=30))], 1.0)
    rooms.hear([member(11), member(12, room=Room(open_fds=3)), member(os.getpid())], 2.0)
    assert rooms.most() == {10: Use(95, 100)}
    rooms.hear([], MEMORY_SECONDS)
    assert rooms.most() == {10: Use(30, 100)}
    rooms.hear([], MEMORY_SECONDS + 1)
    assert rooms.most() == {}


def children(pid: int) -> list[int]:
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def descriptors() -> int:
    """Pidfds that are open here."""
    links = []
    for one in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the one that reads the directory
            links.append(str(one.readlink()))
    return sum("pidfd" in link for link in links)
