"""Delivery from a session to a daemon despite failures: no value that a disk can keep is lost, and none is doubled."""

from __future__ import annotations

import errno
import os
import struct
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO
from zlib import crc32

import pytest
from client.messages import (
    CLOCK,
    NO_DISK,
    Daemon,
    a_session,
    fill,
    later,
    left_behind,
    numbers,
    push,
    read,
    send,
    train,
)
from hypothesis import example, given
from hypothesis import strategies as st

from trackside.environment.paths import open_regular
from trackside.limits import IN_FLIGHT
from trackside.transport import spool as spool_module
from trackside.transport.orphaned_spool import OrphanedSession, orphaned_hellos, orphaned_sessions
from trackside.transport.session import Session
from trackside.transport.spool import SpooledMessage, SpoolLimits
from trackside.wire import Skip, decode_body

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trackside.transport.outbox import Outbox, Pending

#: What is taken up from the disk is more than memory may hold, and is put back.
PUT_BACK = [("push", 4), ("drain", 1), *[("push", 4)] * 5]

OPERATIONS = (
    "push",
    "drain",
    "send",
    "deliver",
    "commit",
    "acknowledge",
    "rewind",
    "lose",
    "reconnect",
    "crash",
    "wait",
)


class Road:
    """A session, a daemon, and the messages between them, with a method for each of `OPERATIONS` and those of a disk.

    Attributes:
        full: True if the disk is full.
    """

    def __init__(self, spool: Path = NO_DISK, **limits: int) -> None:
        self.session: Outbox = a_session(spool, **limits)
        self._limits = self.session.spool.limits
        self.daemon = Daemon()
        self.pushed: list[float] = []
        self.full = self._over = False
        self._clock = CLOCK
        self._spool = spool
        self._on_the_way: list[Pending] = []
        self._answers: list[int] = []

    def push(self, amount: int) -> None:
        if isinstance(self.session, Session) and not self._over:
            for _ in range(amount):
                self.pushed.append(float(len(self.pushed)))
                push(self.session, {"k": self.pushed[-1]}, len(self.pushed))

    def drain(self, _: int) -> None:
        self.session.drain(self._clock) if isinstance(self.session, Session) else self.session.settle(self._clock)

    def wait(self, seconds: int) -> None:
        self._clock = later((self._clock.monotonic - CLOCK.monotonic) / 1e9 + seconds)

    def send(self, _: int) -> None:
        self._on_the_way += send(self.session)

    def deliver(self, amount: int) -> None:
        for message in self._on_the_way[:amount]:
            self.daemon.receive(message)
        del self._on_the_way[:amount]

    def commit(self, _: int) -> None:
        self._answers.append(self.daemon.commit())

    def acknowledge(self, amount: int) -> None:
        for number in self._answers[:amount]:
            self.session.acknowledged(number)
        del self._answers[:amount]

    def rewind(self, _: int) -> None:
        self.session.rewind()

    def lose(self, amount: int) -> None:
        del self._on_the_way[:amount]

    def reconnect(self, _: int) -> None:
        self._on_the_way, self._answers = [], []
        self.session.disconnected()
        assert decode_body("hello", self.session.hello(self._clock)[2]).acked <= self.daemon.committed
        self.session.acknowledged(self.daemon.committed)

    def crash(self, amount: int) -> None:
        self.daemon.crash()
        self.reconnect(amount)

    def fill(self, _: int) -> None:
        self.full = True

    def free(self, _: int) -> None:
        self.full = False

    def exit(self, amount: int) -> None:
        """End the process; another process picks up the session that it has left."""
        if isinstance(self.session, Session):
            self.session.end(self._clock, "finished", "", provisional=False)
        self.session.retire(self._clock)
        found = next(orphaned_sessions([self._spool], None), None)
        if found is None:
            self.session = a_session(self._spool)  # nothing was left; another run follows, of which nothing is pushed
            self._over = True
        else:
            self.session = found
            found.spool.limits = self._limits
        self.reconnect(amount)

    def settle(self) -> None:
        """End the session over a connection that holds."""
        self.full = False
        if isinstance(self.session, Session):
            self.session.end(self._clock, "finished", "", provisional=False)
        self.reconnect(0)
        for _ in range(1000):
            self.session.settle(self._clock)
            for message in send(self.session):
                self.daemon.receive(message)
            self.session.acknowledged(self.daemon.commit())
            if self.session.done:
                self.session.spool.close()
                return
            self.session.rewind()
        pytest.fail("the session did not come to its end")


def happenings(*more: str) -> st.SearchStrategy[list[tuple[str, int]]]:
    return st.lists(st.tuples(st.sampled_from((*OPERATIONS, *more)), st.integers(1, 4)), max_size=60)


def travel(road: Road, happens: list[tuple[str, int]]) -> None:
    for operation, amount in happens:
        getattr(road, operation)(amount)
    road.settle()


# Limits of memory and of a segment that hold only a few messages.
SMALL: dict[str, Any] = {"pending_bytes": 900, "window": 3, "segment_bytes": 1500}


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ts-") as path:
        yield Path(path)


@given(happens=happenings())
def test_every_value_arrives_exactly_once_and_in_order_whatever_happens_on_the_way(
    happens: list[tuple[str, int]],
) -> None:
    road = Road()
    travel(road, happens)
    assert road.daemon.values == road.pushed
    assert road.daemon.ended
    assert not road.daemon.gaps
    totals = road.session.totals
    assert totals.dropped == 0
    assert totals.pushes == totals.steps == len(road.pushed)


@given(happens=happenings())
def test_with_little_memory_and_no_disk_what_does_not_arrive_is_counted_and_the_rest_arrives_once_and_in_order(
    happens: list[tuple[str, int]],
) -> None:
    road = Road(**SMALL)
    travel(road, happens)
    arrived = road.daemon.values
    assert arrived == sorted(set(arrived))
    assert set(arrived) <= set(road.pushed)
    assert len(road.pushed) - len(arrived) <= road.session.totals.dropped <= len(road.pushed)


@example(happens=PUT_BACK)
@given(happens=happenings("exit"))
def test_with_little_memory_and_a_disk_every_value_arrives_though_the_process_ends_before(
    directory: Path, happens: list[tuple[str, int]]
) -> None:
    road = Road(directory, **SMALL)
    travel(road, happens)
    assert road.daemon.values == road.pushed
    assert not road.daemon.gaps
    assert list(directory.iterdir()) == []


@given(happens=happenings("fill", "free"))
def test_rows_that_a_full_disk_refuses_wait_in_memory(directory: Path, happens: list[tuple[str, int]]) -> None:
    road = Road(directory, window=3)
    write = os.write

    def full(file: int, data: bytes) -> int:
        if not road.full:
            return write(file, data)
        write(file, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trackside.transport.spool.os.write", full)
        travel(road, happens)
    assert road.daemon.values == road.pushed
    assert not road.daemon.gaps
    assert list(directory.iterdir()) == []


@example(happens=PUT_BACK)
@given(happens=happenings("exit"))
def test_a_full_spool_loses_its_oldest_and_counts_them(directory: Path, happens: list[tuple[str, int]]) -> None:
    road = Road(directory, **SMALL, spool_bytes=4000)
    travel(road, [("push", 4), ("drain", 1), *happens])
    arrived = road.daemon.values
    assert arrived == sorted(set(arrived))
    assert list(directory.iterdir()) == []
    if isinstance(road.session, Session):
        assert road.session.totals.dropped == len(road.pushed) - len(arrived)


def test_while_no_daemon_answers_memory_holds_no_more_than_a_window_and_the_disk_the_rest(spool: Path) -> None:
    session = a_session()
    train(session, 300)
    assert (len(session.pending), session.pending[0].number, session.spool.last) == (IN_FLIGHT, 1, 300)
    assert session.totals.spooled == 300
    session.acknowledged(299)
    assert numbers(list(session.pending)) == [300]
    session.acknowledged(300)
    assert not session.backlog
    assert [path.suffix for path in spool.iterdir()] == [".lock"]
    session.spool.close()
    assert list(spool.iterdir()) == []


def test_a_segment_that_was_deleted_is_a_reported_gap(spool: Path) -> None:
    session, daemon = a_session(segment_bytes=1), Daemon()
    train(session, 100)
    for number in (70, 71, 90):
        (path,) = spool.glob(f"*.{number:016d}.spool")
        path.unlink()
    while session.pending:
        for message in send(session):
            daemon.receive(message)
        session.acknowledged(daemon.commit())
    assert daemon.gaps == [(70, 71), (90, 90)]
    assert len(daemon.values) == 97


class Unreadable:
    """A file of which the disk cannot read what is behind so many bytes."""

    def __init__(self, file: BinaryIO, readable: int) -> None:
        self._file, self._readable = file, readable

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        if self._file.tell() > self._readable:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def test_what_the_disk_cannot_read_now_stops_nothing_and_is_sent_once_it_can(
    spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, daemon = a_session(), Daemon()
    train(session, 2 * IN_FLIGHT)
    (segment,) = spool.glob("*.spool")
    readable = segment.stat().st_size * 3 // 4
    with monkeypatch.context() as broken:
        broken.setattr(spool_module, "open_regular", lambda path: Unreadable(open_regular(path), readable))
        for _ in range(2 * IN_FLIGHT):
            for message in send(session):
                daemon.receive(message)
            session.acknowledged(daemon.commit())
    train(session, 1)
    assert IN_FLIGHT < len(daemon.values) < 2 * IN_FLIGHT
    session.end(CLOCK, "finished", "", provisional=False)
    deliver(session, daemon)
    assert (daemon.gaps, len(daemon.values), daemon.ended) == ([], 2 * IN_FLIGHT + 1, True)


def test_a_spool_without_its_last_segment_begins_another_one(spool: Path) -> None:
    session, daemon = a_session(), Daemon()
    train(session, 2 * IN_FLIGHT)
    (segment,) = spool.glob("*.spool")
    segment.unlink()
    session.acknowledged(IN_FLIGHT)
    for second in range(IN_FLIGHT):
        push(session, {"loss": second}, second)
        session.drain(later(1000 + second))
    session.end(later(2000), "finished", "", provisional=False)
    session.retire(later(2000))
    (left,) = orphaned_sessions([spool], None)
    daemon.committed = IN_FLIGHT
    deliver(left, daemon)
    assert (daemon.gaps, len(daemon.values), daemon.ended) == ([(IN_FLIGHT + 1, 2 * IN_FLIGHT)], IN_FLIGHT, True)


def test_a_segment_that_fails_to_close_ends_no_spool(spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network file system reports only then that the user's quota is exceeded."""

    def close(descriptor: int, original: Callable[[int], None] = os.close) -> None:
        is_segment = os.readlink(f"/proc/self/fd/{descriptor}").endswith(".spool")  # noqa: PTH115
        original(descriptor)
        if is_segment:
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    session = a_session(segment_bytes=1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "close", close)
        train(session, 5)
        assert (session.unspooled_values, session.spool.failure, len(list(spool.glob("*.spool")))) == (0, "", 5)
        session.acknowledged(5)
    assert [path.suffix for path in spool.iterdir()] == [".lock"]


@pytest.mark.parametrize(
    "damaged", [lambda data: data[:-1], lambda data: b"trackside/9".join(data.rsplit(b"trackside/1", 1))]
)
def test_a_torn_last_record_costs_only_itself(spool: Path, damaged: Callable[[bytes], bytes]) -> None:
    _, segment = left_behind(spool, 3)
    segment.write_bytes(damaged(segment.read_bytes()))
    (left,) = orphaned_sessions([spool], None)
    left.settle(CLOCK)
    assert numbers(send(left)) == [1, 2]
    left.acknowledged(2)
    assert left.done


def test_a_leftover_sends_the_hello_of_its_process_and_that_it_is_late(spool: Path) -> None:
    session = a_session()
    push(session, {"loss": 1.0}, 5)
    session.end(CLOCK, "failed", "ValueError", provisional=True)
    session.retire(CLOCK)
    (left,) = orphaned_sessions([spool], None)
    hello = decode_body("hello", left.hello(CLOCK)[2])
    assert (hello.identity, hello.config, hello.late) == (session.identity, '{"lr": 0.1}', True)
    left.settle(CLOCK)
    assert [read(message)[0].kind for message in send(left)] == ["batch", "bye"]
    left.acknowledged(2)
    left.spool.close()
    assert list(spool.iterdir()) == []


def test_what_a_daemon_has_lost_of_a_leftover_before_its_spool_is_a_gap(spool: Path) -> None:
    session = a_session()
    train(session, 2)
    session.acknowledged(2)
    train(session, 1)
    session.retire(later(9))
    (left,) = orphaned_sessions([spool], None)
    left._acked = 1
    left.settle(CLOCK)
    skip = read(send(left)[0])[1]
    assert isinstance(skip, Skip)
    assert skip.first == 2


def test_only_what_its_process_has_left_is_found_and_only_this_machines(spool: Path) -> None:
    session = a_session()
    push(session, {"loss": 1.0}, 1)
    session.settle(CLOCK)
    session.drain(CLOCK)
    session.settle(CLOCK, everything=True)
    assert list(orphaned_sessions([spool], None)) == []
    session.spool.close()
    assert list(orphaned_sessions([spool], "another")) == []
    (left,) = orphaned_sessions([spool, spool / "nowhere"], None)
    assert isinstance(left, OrphanedSession)
    assert list(orphaned_sessions([spool], None)) == []  # it is held now


@pytest.mark.parametrize("error", [PermissionError, TimeoutError])
def test_a_place_that_cannot_be_read_has_nothing_and_the_others_are_read(
    spool: Path, monkeypatch: pytest.MonkeyPatch, error: type[OSError]
) -> None:
    session = a_session()
    push(session, {"loss": 1.0}, 1)
    session.drain(CLOCK)
    session.settle(CLOCK, everything=True)
    session.spool.close()
    closed, stat = spool / "closed", Path.stat

    def refuses(path: Path, **more: bool) -> os.stat_result:
        if path == closed:
            raise error
        return stat(path, **more)

    monkeypatch.setattr(Path, "stat", refuses)
    assert [session for session, _, _ in orphaned_hellos([closed, spool], None)]
    assert len(list(orphaned_sessions([closed, spool], None))) == 1


@pytest.mark.parametrize("content", [b"", b"trackside spool 1\n", b"trackside spool 1\n" + bytes(28), bytes(1000)])
def test_a_file_that_is_no_segment_is_left_alone(spool: Path, content: bytes) -> None:
    spool.mkdir()
    (spool / f"{'ab' * 16}.{1:016d}.spool").write_bytes(content)
    (spool / "strange.spool").write_bytes(content)
    os.mkfifo(spool / f"{'cd' * 16}.{1:016d}.spool")
    assert list(orphaned_sessions([spool], None)) == []
    assert len(list(spool.glob("*.spool"))) == 3


@pytest.mark.parametrize("mode", [None, 0o3770], ids=["new", "shared by a group"])
def test_no_other_user_may_read_what_is_left(spool: Path, mode: int | None) -> None:
    if mode is not None:
        spool.mkdir()
        spool.chmod(mode)
    left_behind(spool)
    assert spool.stat().st_mode & 0o7777 == (mode or 0o700)
    assert {path.stat().st_mode & 0o777 for path in spool.iterdir()} == {0o600}


def test_a_full_directory_loses_its_oldest_files_of_ended_processes(spool: Path) -> None:
    for _ in range(2):
        size = left_behind(spool, segment_bytes=1)[1].stat().st_size
    session = a_session(segment_bytes=1, spool_bytes=int(size * 3.5))
    train(session, 9)
    assert {path.name.partition(".")[0] for path in spool.glob("*.spool")} == {session.id.hex()}
    assert session.totals.dropped > 0


def test_forged_or_undeletable_files_stop_no_process(spool: Path) -> None:
    session, segment = left_behind(spool)
    data = segment.read_bytes()
    (spool / segment.name.upper().replace("SPOOL", "spool")).write_bytes(data)
    (spool / f"{'0' * 32}.{1:016d}.spool").write_bytes(data)  # of another session than its name says
    empty = spool_module.Spool(session.id, spool)
    segment.unlink()
    assert empty.append(SpooledMessage(1, 1, 0, []), lambda: session.hello(CLOCK))
    empty.close()
    (left,) = orphaned_sessions([spool], None)
    assert (left.id, len(left.spool.damage), left.backlog) == (session.id, 1, False)
    assert list(orphaned_sessions([spool], None, {left.spool.lock_path})) == []


def test_the_files_of_a_spool_pass_its_bound_by_a_record_at_most(spool: Path) -> None:
    files = spool_module.Spool(bytes(16), spool, spool_module.SpoolLimits(spool_bytes=5000, segment_bytes=2000))
    for number in range(1, 100):
        assert files.append(SpooledMessage(number, number, 1, [b"x" * 50] * 3), lambda: [b"hello"] * 3)
        if (gone := files.drop_excess(0)) is not None:
            files.write_hole(gone[0], [b"skip"] * 3, lambda: [b"hello"] * 3)
        assert sum(path.stat().st_size for path in spool.glob("*.spool")) < 5000 + 200
    files.close()


def deliver(session: Outbox, daemon: Daemon) -> None:
    """Send all that a session has."""
    while not session.done:
        session.settle(CLOCK)
        for message in send(session):
            daemon.receive(message)
        session.acknowledged(daemon.commit())


def overflow(spool: Path, sent: int = 0) -> Session:
    """Return a session whose spool has overflowed by a half; a daemon has got the first *sent* messages, and then went away."""
    session = a_session(segment_bytes=1)
    for second in range(200):
        push(session, {"loss": second}, second)
        session.drain(later(second))
        if second < sent:
            send(session)
        if second == 100:
            size = sum(path.stat().st_size for path in spool.glob("*.spool"))
            session.spool.limits = SpoolLimits(segment_bytes=1, spool_bytes=size)
    return session


def test_a_spool_past_its_bound_loses_its_oldest_and_the_skip_names_them(spool: Path) -> None:
    session = overflow(spool)
    dropped = session.totals.dropped
    assert dropped > 50
    session.retire(later(999))
    (left,) = orphaned_sessions([spool], None)
    daemon = Daemon()
    deliver(left, daemon)
    assert daemon.values == [float(second) for second in range(dropped, 200)]
    assert daemon.gaps == [(1, dropped)]
    assert (daemon.skips[0].values, daemon.skips[0].steps) == (dropped, (0, dropped - 1))
    assert daemon.skips[0].totals.dropped == dropped
    assert list(spool.glob("*.spool")) == []


def test_what_was_sent_may_have_arrived_and_stays(spool: Path) -> None:
    session, daemon = overflow(spool, sent=3), Daemon()
    session.disconnected()
    session.end(later(300), "finished", "", provisional=False)
    dropped = session.totals.dropped
    deliver(session, daemon)
    assert daemon.values == [0.0, 1.0, 2.0, *(float(second) for second in range(3 + dropped, 200))]
    assert [(skip.values, skip.steps) for skip in daemon.skips] == [(dropped, (3, 2 + dropped))]
    assert session.totals.dropped == dropped > 50


def test_without_a_disk_the_skip_names_what_memory_had_no_room_for() -> None:
    session, daemon = a_session(NO_DISK, pending_bytes=2000), Daemon()
    for second in range(50):
        push(session, {"loss": second, "lr": 0.1}, second)
        session.drain(later(second))
    session.end(later(300), "finished", "", provisional=False)
    deliver(session, daemon)
    lost = sum(skip.values for skip in daemon.skips)
    assert lost == session.totals.dropped == 100 - len(daemon.values)
    assert (daemon.skips[0].steps, len(daemon.skips)) == ((0, lost // 2 - 1), 1)


FLIPS = st.tuples(st.integers(0, 2**32), st.integers(0, 7))


@given(flip=FLIPS)
@example(flip=(3, 0))  # in the mark at the beginning of a file
@example(flip=(len(spool_module.MAGIC) + 2, 7))  # in the length of a head
def test_a_flipped_bit_costs_the_record_that_it_is_in(directory: Path, flip: tuple[int, int]) -> None:
    session = a_session(directory, segment_bytes=1500)
    train(session, 15)
    session.end(later(15), "finished", "", provisional=False)
    session.retire(later(99))
    files = sorted(directory.glob("*.spool"))
    assert len(files) > 1
    data = bytearray(b"".join(path.read_bytes() for path in files))
    place, bit = flip[0] % len(data), flip[1]
    data[place] ^= 1 << bit
    for path in files:
        size = path.stat().st_size
        path.write_bytes(data[:size])
        del data[:size]
    (left,) = orphaned_sessions([directory], None)
    daemon = Daemon()
    deliver(left, daemon)
    assert daemon.values == sorted(set(daemon.values))
    lost = 15 - len(daemon.values)
    assert lost <= 1
    assert len(left.spool.damage) == (1 if lost or not daemon.ended else len(left.spool.damage)) <= 1
    assert sum(skip.values for skip in daemon.skips) <= lost
    assert list(directory.glob("*.spool")) == []
    left.spool.close()


def test_a_damaged_record_is_named_and_its_values_are_counted_also_by_its_own_process(spool: Path) -> None:
    session, daemon = a_session(), Daemon()
    for second in range(2 * IN_FLIGHT):
        push(session, {"loss": second, "lr": 0.1}, second)
        session.drain(later(second))
    (segment,) = spool.glob("*.spool")
    data = bytearray(segment.read_bytes())
    record = data.index(b"trackside/1", len(data) * 3 // 4)
    data[record + 40] ^= 1
    segment.write_bytes(data)
    session.end(later(300), "finished", "", provisional=False)
    deliver(session, daemon)
    assert (len(daemon.values), session.totals.dropped, daemon.skips[0].values) == (4 * IN_FLIGHT - 2, 2, 2)
    (text,) = session.spool.damage.values()
    assert text == f"{segment} is damaged at byte {record - 31}: 2 values are left out, and what follows is read"


def test_a_spool_with_nothing_but_a_damaged_head_stays_where_it_is(spool: Path) -> None:
    _, segment = left_behind(spool)
    data = bytearray(segment.read_bytes())
    data[len(spool_module.MAGIC) + 40] ^= 1
    segment.write_bytes(data)
    assert list(orphaned_sessions([spool], None)) == []
    assert segment.read_bytes() == data


def test_a_forged_segment_keeps_no_process_busy(spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, segment = left_behind(spool)
    size = 500_000
    forged = struct.pack("<IIQQI", size, 0, 1, 1, 1) + b"\x93\xc4\x0btrackside/1"
    segment.write_bytes(segment.read_bytes() + forged * 30_000)
    sizes: list[int] = []
    monkeypatch.setattr(spool_module, "crc32", lambda data: sizes.append(len(data)) or crc32(data))  # type: ignore[func-returns-value]
    (left,) = orphaned_sessions([spool], None)
    assert (left.backlog, len(left.spool.damage)) == (True, 1)
    assert sizes.count(size) <= 2 * (4 * spool_module.SEARCH_BYTES // size + 1)  # it is read twice


def test_large_messages_on_disk_are_not_dropped_for_want_of_memory() -> None:
    session, daemon = a_session(pending_bytes=2_000_000), Daemon()
    fill(session, 10)
    assert session.size <= 2_000_000
    last = session.spool.last
    while session.pending:
        for message in send(session):
            daemon.receive(message)
        session.acknowledged(daemon.commit())
        session.settle(CLOCK)
    assert (daemon.committed, session.totals.dropped, len(daemon.values)) == (last, 0, 10 * 8 * 514)
