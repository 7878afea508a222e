"""Deaths of workers and the events about them: real processes, with a clock that the test sets."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from collectors.dying import LABELS, MIB, NONE, WALL, Training, kill
from collectors.trees import member

from trackside.wire import ResourceUsage
from trackside_daemon.collectors.process.process_tree import ProcessKey
from trackside_daemon.collectors.process.shm import MEMORY_SECONDS, ShmHistory, ShmUse
from trackside_daemon.collectors.process.worker_deaths import (
    CAUSES,
    LAG_SECONDS,
    LINGER_SECONDS,
    DeadWorker,
    cause_of_death,
)
from trackside_daemon.linux.oom import TEARDOWN_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Training]:
    one = Training(tmp_path)
    yield one
    one.close()


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
def test_a_worker_that_dies_is_reported_once(
    training: Training,
    caplog: pytest.LogCaptureFixture,
    end: str,
    fields: dict[str, int | str],
    word: str,
    *,
    reap: bool,
) -> None:
    training.most = {training.process.pid: ShmUse(67_000_000, 64 * MIB)}
    pid = training.worker(end)
    training.do(f"go({reap})")
    reported = [*training.reports_after(), *training.reports_after(LAG_SECONDS), *training.reports_after(1.0)]
    [event] = reported
    assert (event.run, event.attempt, event.rank, event.kind, event.time) == ("id-7", 2, 3, "dataloader_died", WALL)
    assert event.fields == {"pid": pid, **fields}
    assert training.counts() == {**NONE, word: 1}
    assert caplog.messages == [f"run char-model rank 3: data loader worker {pid} died: {fields['cause']}"]
    assert training.left_open() == 0


def test_a_zombie_worker_is_reported_once_however_often_it_is_seen(training: Training) -> None:
    pid = training.worker(kill("SIGKILL"))
    training.do("go(False)")
    training.reports_after()
    assert len(training.reports_after(LAG_SECONDS)) == 1
    for _ in range(3):
        training.follow(pid, training.process.pid)  # nothing is told of it
    assert training.counts() == {**NONE, "SIGKILL": 1}


@pytest.mark.parametrize("end", ["os._exit(0)", kill("SIGTERM"), "signal.signal(2, signal.SIG_DFL);" + kill("SIGINT")])
def test_a_worker_that_ends_as_it_should_is_no_news(training: Training, end: str) -> None:
    training.worker(end)
    training.do("go()")
    assert [*training.reports_after(), *training.reports_after(LAG_SECONDS)] == []
    assert training.counts() == NONE
    assert training.left_open() == 0


def test_several_that_die_at_once_have_one_line_in_the_log(
    training: Training, caplog: pytest.LogCaptureFixture
) -> None:
    pids = [training.worker(kill("SIGSEGV")) for _ in range(3)]
    training.do("go()")
    assert training.reports_after() == []
    assert [event.fields["pid"] for event in training.reports_after(LAG_SECONDS)] == pids
    named = ", ".join(map(str, pids))
    assert caplog.messages == [f"run char-model rank 3: data loader workers {named} died: killed by SIGSEGV"]
    assert training.counts() == {**NONE, "SIGSEGV": 3}


def test_a_kill_soon_after_one_for_want_of_memory_in_the_cgroup_is_attributed_to_that(training: Training) -> None:
    training.worker(kill("SIGKILL"))
    training.cgroups.kills("job", 4)
    training.do("go()")
    training.reports_after()
    training.reports_after(LAG_SECONDS)
    assert training.counts() == {**NONE, "OOM": 1}
    training.worker(kill("SIGKILL"))
    training.reports_after(TEARDOWN_SECONDS)
    training.do("go()")
    training.reports_after()
    [event] = training.reports_after(LAG_SECONDS)
    assert event.fields["cause"] == "killed by SIGKILL"


def test_a_kill_for_want_of_memory_of_another_job_is_not_mistaken_for_the_workers(training: Training) -> None:
    training.worker(kill("SIGKILL"))
    training.cgroups.kills("other", 4)
    training.cgroups.machine(4)
    training.do("go()")
    training.reports_after()
    [event] = training.reports_after(LAG_SECONDS)
    assert event.fields["cause"] == "killed by SIGKILL"
    assert training.counts() == {**NONE, "SIGKILL": 1}


def test_deaths_are_shown_for_a_while_after_their_rank(training: Training) -> None:
    training.worker(kill("SIGSEGV"))
    training.do("go()")
    training.reports_after()
    training.reports_after(LAG_SECONDS)
    shown = len(CAUSES)
    assert len(list(training.deaths.samples((), training.now + LINGER_SECONDS))) == shown
    assert len(list(training.deaths.samples({LABELS}, training.now + LINGER_SECONDS))) == shown
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
        (-7, False, ShmUse(SIZE, SIZE), ("SIGBUS", "killed by SIGBUS: /dev/shm is full (64 of 64 MiB)")),
        (
            *(-7, False, ShmUse(SIZE // 2, SIZE)),
            ("SIGBUS", "killed by SIGBUS, most often because /dev/shm is full; the training saw at most 32 of 64 MiB"),
        ),
        (-7, False, None, ("SIGBUS", "killed by SIGBUS, most often because /dev/shm is full")),
        (-9, True, None, ("OOM", "killed by the kernel because memory ran out")),
        (-9, False, ShmUse(SIZE, SIZE), ("SIGKILL", "killed by SIGKILL")),
        (-40, False, None, ("signal 40", "killed by signal 40")),
        (1, False, None, ("exit", "exit status 1")),
    ],
)
def test_a_cause_states_the_evidence(code: int, use: ShmUse | None, expected: tuple[str, str], *, oom: bool) -> None:
    assert cause_of_death(DeadWorker(member(10), ProcessKey(10, 1), 11, code, oom), use) == expected


@pytest.mark.parametrize(
    ("use", "text"),
    [
        (ShmUse(67_000_000, 64 * MIB), "63.9 of 64 MiB"),
        (ShmUse(0, 1024**4), "0 of 1 TiB"),
        (ShmUse(3 * 1024**3, 503 * 1024**3), "3 of 503 GiB"),
        (ShmUse(512, 512), "0.5 of 0.5 KiB"),
    ],
)
def test_a_use_is_written_in_the_unit_of_the_size(use: ShmUse, text: str) -> None:
    assert str(use) == text


def test_the_fullest_that_a_rank_has_sent_lately_is_remembered_and_no_other_source_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: pytest.fail("a dead mount would hold the tick up"))
    rooms, reported = ShmHistory(), member(10, room=ResourceUsage(shm_size=100, shm_used=20, shm_peak=95))
    rooms.update([reported], 0.0)
    rooms.update([reported._replace(room=ResourceUsage(shm_size=100, shm_used=30))], 1.0)
    rooms.update([member(11), member(12, room=ResourceUsage(open_fds=3)), member(os.getpid())], 2.0)
    assert rooms.fullest() == {10: ShmUse(95, 100)}
    rooms.update([], MEMORY_SECONDS)
    assert rooms.fullest() == {10: ShmUse(30, 100)}
    rooms.update([], MEMORY_SECONDS + 1)
    assert rooms.fullest() == {}
