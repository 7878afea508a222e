"""Workers that died, and workers that ended with their rank: real processes, with a clock that the test sets."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from collectors.dying import NONE, Training, await_end, children, kill, process
from processes import DEADLINE, eventually

from trackside_daemon.collectors.process import worker_deaths as worker_exit
from trackside_daemon.collectors.process.process_tree import ProcessKey
from trackside_daemon.collectors.process.worker_deaths import LAG_SECONDS, SELF_INFLICTED, SETTLE_SECONDS
from trackside_daemon.linux import process_exit

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Training]:
    one = Training(tmp_path)
    yield one
    one.close()


def test_with_a_kill_for_want_of_memory_it_is_waited_for_how_the_rank_ended(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rank has been killed too, and its parent has not waited for it yet."""
    rank = training.process.pid
    pid = training.worker("os.read(0, 1)")
    training.cgroups.kills("job", 4)
    for one in (pid, rank):
        os.kill(one, signal.SIGKILL)
        await_end(one)

    def hidden(pidfd: int, pid: int, start: int, proc: Path) -> int | None:
        return None if pid == rank else process_exit.exit_code(pidfd, pid, start, proc)

    monkeypatch.setattr(worker_exit, "exit_code", hidden)
    assert [*training.reports_after(), *training.reports_after(LAG_SECONDS)] == []
    assert training.followed() == 1
    monkeypatch.undo()
    assert training.reports_after() == []
    assert training.followed() == 0
    assert training.counts() == NONE


@pytest.mark.parametrize("rank_first", [True, False])
def test_a_worker_that_is_killed_with_its_rank_is_no_news(training: Training, *, rank_first: bool) -> None:
    pid = training.worker("os.read(0, 1)")
    for one in (training.process.pid, pid) if rank_first else (pid, training.process.pid):
        os.kill(one, signal.SIGKILL)
        if one == training.process.pid:
            training.process.wait(DEADLINE)
        assert training.reports_after() == []
    eventually(lambda: training.reports_after(LAG_SECONDS) == [] and not training.followed())
    assert training.reports_after(SETTLE_SECONDS) == []
    assert training.left_open() == 0


def test_a_rank_that_raises_because_of_its_worker_does_not_hide_the_news(training: Training) -> None:
    training.worker(kill("SIGKILL"))
    training.do("go()")
    training.send("sys.exit('DataLoader worker is killed')")
    training.process.wait(DEADLINE)
    [event] = eventually(lambda: training.reports_after(LAG_SECONDS))
    assert event.fields["cause"] == "killed by SIGKILL"
    assert training.counts() == {**NONE, "SIGKILL": 1}


@pytest.mark.parametrize("name", ["SIGKILL", "SIGHUP"])
def test_a_worker_that_is_killed_after_its_rank_is_no_news_however_that_ended(training: Training, name: str) -> None:
    """Slurm, for example, kills the processes that a rank leaves behind."""
    pid = training.worker("os.read(0, 1)")
    training.send("os._exit(1)")
    training.process.wait(DEADLINE)
    os.kill(pid, signal.Signals[name])
    await_end(pid)
    assert [*training.reports_after(), *training.reports_after(LAG_SECONDS)] == []
    assert training.counts() == NONE
    assert training.followed() == 0


def test_workers_that_end_with_the_first_process_of_their_namespace_are_no_news(tmp_path: Path) -> None:
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
    training.send("os._exit(1)")
    training.process.wait(DEADLINE)
    await_end(worker)
    assert [*training.reports_after(), *training.reports_after(LAG_SECONDS)] == []
    assert training.counts() == NONE
    assert training.followed() == 0
    training.close()


@pytest.mark.parametrize("name", ["SIGQUIT", "SIGUSR1", "SIGXCPU"])
def test_a_signal_to_all_is_no_news_of_each_worker_and_one_to_a_worker_is(training: Training, name: str) -> None:
    pid = training.worker("os.read(0, 1)")
    os.kill(pid, signal.Signals[name])
    await_end(pid)
    training.reports_after()
    [event] = training.reports_after(LAG_SECONDS)
    assert event.fields == {"pid": pid, "signal": name, "cause": f"killed by {name}"}
    pid = training.worker("os.read(0, 1)")
    for one in (pid, training.process.pid):
        os.kill(one, signal.Signals[name])
        await_end(one)
    assert [*training.reports_after(), *training.reports_after(LAG_SECONDS)] == []
    assert training.followed() == 0
    assert training.counts() == {**NONE, name: 1}


def test_only_what_a_process_does_itself_is_its_own_death() -> None:
    assert {one.name for one in SELF_INFLICTED} == {
        "SIGBUS",
        "SIGSEGV",
        "SIGABRT",
        "SIGILL",
        "SIGFPE",
        "SIGSYS",
        "SIGTRAP",
    }


def test_a_process_that_turned_out_to_be_no_worker_is_not_reported(training: Training) -> None:
    first, second = training.worker("os._exit(1)"), training.worker("os._exit(1)")
    training.deaths.unfollow([process(first).key, ProcessKey(1, 1)])
    training.do("go()")
    assert training.reports_after() == []
    [event] = training.reports_after(LAG_SECONDS)
    assert event.fields["pid"] == second
    training.deaths.unfollow([ProcessKey(second, 1)])


def test_a_rank_that_ends_well_has_lost_no_worker(training: Training) -> None:
    training.worker(kill("SIGKILL"))
    training.do("go()")
    training.send("os._exit(0)")
    training.process.wait(DEADLINE)
    assert [*training.reports_after(), *training.reports_after(LAG_SECONDS)] == []
    assert training.left_open() == 0


def test_an_unknown_exit_is_waited_for_and_not_guessed(training: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exit status of another user's zombie cannot be read, for example."""
    monkeypatch.setattr(process_exit, "zombie_wait_status", lambda *_: None)
    pids = [training.worker(kill("SIGSEGV")) for _ in range(2)]
    training.do("go(reap=False)")
    await_end(*pids)
    assert training.reports_after() == []
    assert training.followed() == 2
    assert training.reports_after(SETTLE_SECONDS) == []
    assert training.followed() == 0
    assert training.left_open() == 0


def test_no_more_are_followed_than_there_are_files_for_and_that_is_logged_once(
    training: Training, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(worker_exit, "DESCENDANTS", 2)
    training.forget()
    for _ in range(3):
        training.worker("")
    assert training.followed() == 2
    monkeypatch.setattr(resource, "getrlimit", lambda _: (4, 4))
    training.forget()
    caplog.clear()
    for _ in range(3):
        training.worker("")
    assert training.followed() == 1
    [message] = caplog.messages
    assert message == (
        "the daemon follows 1 data loader workers and cannot follow more, so deaths of others are not reported: its limit of "
        "open files is 4, and workers may use a quarter of them; raise LimitNOFILE= of its unit, or ulimit -n, and restart it"
    )
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    training.forget()
    training.worker("")
    assert training.followed() == 1


@pytest.mark.parametrize("what", [(os, "pidfd_open"), (process_exit.PidfdPoller, "register")])
def test_a_process_that_the_system_lets_no_one_follow_is_reported_too(
    training: Training, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, what: tuple[Any, str]
) -> None:
    def refuses(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(*what, refuses)
    training.worker("")
    assert training.followed() == 0
    assert ["No space left on device; raise LimitNOFILE=" in message for message in caplog.messages] == [True]


def test_another_process_of_the_same_pid_is_not_workers(training: Training, caplog: pytest.LogCaptureFixture) -> None:
    pid = int(training.do("worker('')"))
    worker, rank = process(pid), process(training.process.pid)
    others = (worker._replace(start=worker.start - 1), worker._replace(pid=2**22 + 1))
    training.deaths.follow(others, rank, training.member, training.now)
    assert training.followed() == 0
    assert caplog.messages == []
