"""Shared memory and file descriptors of a process: when they are reported, and in which message."""

from __future__ import annotations

import os
import resource
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from client.messages import CLOCK, a_session, batches, later, push, send

import trackside
from trackside.environment import exit_status
from trackside.limits import BATCH_ROWS
from trackside.totals.resources import ResourceMonitor
from trackside.wire import Hello, ResourceUsage, decode_body

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from client.router import Router

    from trackside.transport.session import Session
    from trackside.wire import Clock

SECOND = 10**9


class Shm:
    """A file system of 1000 KiB."""

    def __init__(self, used: int = 0) -> None:
        self.used = used

    def statvfs(self, _path: object) -> SimpleNamespace:
        """Return a result like that of `os.statvfs`; blocks reserved for root count as free."""
        return SimpleNamespace(f_frsize=1024, f_bsize=4096, f_blocks=1000, f_bfree=1000 - self.used, f_bavail=0)


@pytest.fixture
def shm(monkeypatch: pytest.MonkeyPatch) -> Shm:
    made = Shm()
    monkeypatch.setattr(os, "statvfs", made.statvfs)
    return made


@pytest.fixture
def fill(shm: Shm) -> Callable[..., ResourceMonitor]:
    """A function that lets a monitor read shared memory, with so many KiB used each time."""
    kept = ResourceMonitor()

    def seen(*used: int) -> ResourceMonitor:
        for shm.used in used:
            kept.poll()
        return kept

    return seen


def shared(reported: ResourceUsage | None) -> tuple[float, ...] | None:
    """Return size, used and peak in KiB."""
    if reported is None:
        return None
    return tuple(-1 if one is None else one / 1024 for one in (reported.shm_size, reported.shm_used, reported.shm_peak))


def usage(monitor: ResourceMonitor, seconds: int = 0) -> ResourceUsage:
    """Return what a monitor reports, which has to be something."""
    reported = monitor.report(seconds * SECOND)
    assert reported is not None
    return reported


def test_the_room_is_sent_at_once_and_then_each_ten_seconds(fill: Callable[..., ResourceMonitor]) -> None:
    assert shared(fill(400).report(0)) == (1000, 400, 400)
    reported = [shared(fill(401).report(moment * SECOND)) for moment in (1, 9, 10, 19, 20)]
    assert reported == [None, None, (1000, 401, 401), None, (1000, 401, 401)]


def test_the_peak_is_of_the_time_since_it_was_sent(fill: Callable[..., ResourceMonitor]) -> None:
    fill(400).report(0)
    assert shared(fill(420, 490, 410).report(10 * SECOND)) == (1000, 410, 490)
    assert shared(fill(405).report(20 * SECOND)) == (1000, 405, 410)


def test_a_rise_by_a_tenth_is_sent_at_once_and_a_fall_is_not(fill: Callable[..., ResourceMonitor]) -> None:
    fill(400).report(0)
    assert fill(499).report(1 * SECOND) is None
    assert shared(fill(500).report(2 * SECOND)) == (1000, 500, 500)
    assert fill(599).report(3 * SECOND) is None
    assert fill(0).report(4 * SECOND) is None
    assert shared(fill(600, 0).report(5 * SECOND)) == (1000, 0, 600)


def test_another_daemon_gets_it_anew(fill: Callable[..., ResourceMonitor]) -> None:
    fill(400).report(0)
    fill(400).reset()
    assert shared(fill(400).report(1 * SECOND)) == (1000, 400, 400)


def test_a_machine_without_shared_memory_or_with_none_that_has_a_size_sends_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rooms = ResourceMonitor(str(tmp_path / "shm"))
    rooms.poll()
    reported = usage(rooms)
    assert shared(reported) == (-1, -1, -1)
    assert reported.open_fds
    unbounded = SimpleNamespace(f_frsize=4096, f_blocks=0, f_bfree=0)
    monkeypatch.setattr(os, "statvfs", lambda _: unbounded)
    rooms.poll()
    assert shared(rooms.report(10 * SECOND)) == (-1, -1, -1)


def test_the_files_that_a_process_opens_are_counted_with_their_limit() -> None:
    rooms = ResourceMonitor()
    before = usage(rooms)
    pipes = [os.pipe() for _ in range(10)]
    after = usage(rooms, 10)
    for end in (end for pipe in pipes for end in pipe):
        os.close(end)
    assert before.open_fds is not None
    assert after.open_fds == before.open_fds + 20
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert after.max_fds == (None if soft == resource.RLIM_INFINITY else soft)


def test_a_directory_without_a_count_is_listed_each_ten_seconds_at_most(
    fill: Callable[..., ResourceMonitor], monkeypatch: pytest.MonkeyPatch
) -> None:
    rooms = fill(0)
    monkeypatch.setattr(rooms, "_files", SimpleNamespace(stat=lambda: SimpleNamespace(st_size=0)))
    names = ["0", "1", "2", "3"]
    monkeypatch.setattr(os, "listdir", lambda _: list(names))
    counts = []
    for moment, used in ((0, 0), (1, 200), (11, 200)):
        counts.append(usage(fill(used), moment).open_fds)
        names.append("9")
    assert counts == [3, 3, 5]  # the listing's own is left out


def test_no_limit_of_files_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert usage(ResourceMonitor()).max_fds is None


def test_where_nothing_can_be_seen_nothing_is_sent_and_nothing_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "resource", None)
    rooms = ResourceMonitor(str(tmp_path / "shm"), str(tmp_path / "fd"))
    rooms.poll()
    assert [rooms.report(moment * SECOND) for moment in (0, 10)] == [None, None]


def greeted() -> Session:
    session = a_session()
    session.greeted = True
    return session


def in_batches(session: Session, clock: Clock) -> list[bool]:
    """Return, for each batch of one push, whether it reports the room."""
    push(session, {"loss": 1.0})
    session.drain(clock)
    return [batch.room is not None for batch in batches(session)]


def in_beat(session: Session, clock: Clock) -> bool:
    """Return whether a beat reports the room."""
    session.drain(clock)
    return decode_body("beat", session.beat(clock)[2]).room is not None


@pytest.mark.usefixtures("shm")
def test_the_next_of_batches_and_beats_carries_it() -> None:
    session = greeted()
    assert in_batches(session, CLOCK) == [True]
    assert not in_beat(session, later(0.5))
    session.acknowledged(1)
    assert in_beat(session, later(10.0))
    assert in_batches(session, later(10.5)) == [False]
    session.acknowledged(2)
    assert in_batches(session, later(20.0)) == [True]


@pytest.mark.usefixtures("shm")
def test_while_a_training_only_idles_the_beats_carry_it() -> None:
    session = greeted()
    assert [in_beat(session, later(second)) for second in range(21)] == [second % 10 == 0 for second in range(21)]


@pytest.mark.usefixtures("shm")
def test_one_of_many_batches_at_once_carries_it() -> None:
    session = greeted()
    for _ in range(3 * BATCH_ROWS):
        push(session, {"loss": 1.0})
    assert sum(in_batches(session, CLOCK)) == 1


@pytest.mark.usefixtures("shm")
def test_a_batch_that_waits_carries_nothing_that_would_come_late() -> None:
    session = a_session()
    assert in_batches(session, CLOCK) == [False]
    session.greeted = True
    assert in_batches(session, later(2.0)) == [False, False]
    assert session.is_stuck(later(2.0))
    assert in_beat(session, later(2.0))


def test_the_peak_of_the_time_without_a_daemon_is_sent_to_the_next(shm: Shm) -> None:
    session = a_session()
    for used, second in ((100, 0), (900, 1), (200, 2)):
        shm.used = used
        session.drain(later(second))
    session.greeted = True
    push(session, {"loss": 1.0})
    session.drain(later(3.0))
    assert shared(batches(session)[0].room) == (1000, 200, 900)
    send(session)
    session.disconnected()
    session.greeted = True
    assert in_beat(session, later(3.5))


def test_a_hello_carries_the_room_and_later_messages_carry_it_too(shm: Shm) -> None:
    session = a_session()
    shm.used = 100
    session.drain(CLOCK)
    for _ in range(2):
        hello: Hello = decode_body("hello", session.hello(CLOCK)[2])
        assert shared(hello.room) == (1000, 100, 100)
    session.greeted = True
    assert in_beat(session, CLOCK)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (RuntimeError("unable to allocate shared memory(shm) for file </torch_1>: No space left on device (28)"), True),
        (RuntimeError("DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that"), True),
        (OSError(28, "No space left on device", "/data/checkpoint"), False),
        (RuntimeError("DataLoader worker (pid 7) exited unexpectedly"), False),
        (None, False),
    ],
)
def test_an_exception_that_a_full_shm_has_caused_is_explained(
    shm: Shm, error: BaseException | None, *, words: bool
) -> None:
    assert exit_status.known_reason(error) == ("/dev/shm is full (size 0.9766 MiB)" if words else "")


def _call(name: str, shape: list[int]) -> str:
    options = "dtype=float (default), device=cpu, layout=Strided (default), memory_format=(nullopt)"
    tensor = f"TensorShape={shape}, TensorDtypes=Float, TensorDeviceTypes=TensorOptions({options})"
    return f"CollectiveFingerPrint(SequenceNumber=3, OpType={name}, {tensor})"


DIFFERENT = (  # PyTorch's, with $TORCH_DISTRIBUTED_DEBUG=DETAIL
    "Detected mismatch between collectives on ranks. Rank {} is running collective: {}, but Rank {} is running collective: {}"
    ".Collectives differ in the following aspects: \t Tensor Tensor shapes: 16vs 8"
)
OUT_OF_MEMORY = (
    "{} out of memory. Tried to allocate 2.50 GiB. GPU 1 has a total {} of 79.14 GiB of which 12.00 MiB is free. Process "
    "7 has 79.12 GiB memory in use. Of the allocated memory 70.00 GiB is allocated by PyTorch"
)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (
            OUT_OF_MEMORY.format("CUDA", "capacity"),
            "GPU 1 is out of memory: 2.50 GiB requested, 12.00 MiB of 79.14 GiB free",
        ),
        (
            OUT_OF_MEMORY.format("HIP", "capacty"),
            "GPU 1 is out of memory: 2.50 GiB requested, 12.00 MiB of 79.14 GiB free",
        ),
        ("CUDA out of memory. Tried to allocate 20.00 MiB. Worded anew", "a GPU is out of memory: 20.00 MiB requested"),
        ("out of memory", ""),
        (
            DIFFERENT.format(1, _call("ALLREDUCE", [16]), 0, _call("ALLREDUCE", [8])),
            "the ranks' collectives differ: rank 0 called ALLREDUCE with [8] and rank 1 called ALLREDUCE with [16]",
        ),
        (
            DIFFERENT.format(0, "CollectiveFingerPrint(SequenceNumber=0OpType=BARRIER)", 1, _call("ALLREDUCE", [8, 2])),
            "the ranks' collectives differ: rank 0 called BARRIER and rank 1 called ALLREDUCE with [8, 2]",
        ),
    ],
)
def test_an_exception_with_a_text_that_states_the_reason_has_it_as_its_cause(text: str, cause: str) -> None:
    assert exit_status.known_reason(RuntimeError(text)) == cause


def test_an_exception_with_a_text_that_raises_is_not_explained() -> None:
    class BadError(Exception):
        def __str__(self) -> str:
            raise ValueError

    assert exit_status.known_reason(BadError()) == ""


def test_an_idle_run_sends_it_to_a_daemon_in_a_beat(router: Router) -> None:
    trackside.init(endpoint=router.endpoint)
    router.welcome()
    reported = router.expect("beat", passing=()).body.room
    assert reported.open_fds > 3
    assert (reported.shm_size is None) == (not os.path.exists(exit_status.SHM))  # noqa: PTH110


def test_a_run_that_pushes_all_the_time_sends_it_in_batches_without_a_beat(router: Router) -> None:
    run = trackside.init(endpoint=router.endpoint)
    router.welcome()
    for _ in range(100):
        run.push(loss=0.5)
        message = router.expect("batch", passing=())
        router.answer(message, "ack", message.number)
        if message.body.room is not None:
            return
    pytest.fail("no batch told it")
