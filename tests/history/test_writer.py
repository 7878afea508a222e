"""The writer thread: it acknowledges only committed messages, despite any failure."""

from __future__ import annotations

import math
import os
import resource
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from concurrent.futures import CancelledError
from contextlib import suppress
from itertools import repeat
from typing import TYPE_CHECKING, Any

import pytest
from history.builders import SHIFT, WALL, Bench, block, check_tables, opened, read, session_id
from processes import DEADLINE, eventually, is_running
from session_records import batch_ingested

from trackside_daemon.history.database import Database
from trackside_daemon.history.directory import HistoryError, lock_history
from trackside_daemon.history.record import maintenance
from trackside_daemon.history.record.maintenance import WriterIntervals
from trackside_daemon.history.record.queue import GROUP_BYTES, QUEUE_ITEMS, Queue
from trackside_daemon.history.record.session_rows import run_id
from trackside_daemon.history.record.store import RecordStore
from trackside_daemon.history.record.trimming import Bounds
from trackside_daemon.history.record.writer import Writer
from trackside_daemon.history.salvage.pages import PAGE_BYTES
from trackside_daemon.model.records import Account, AccountUpdated, Alert, BatchIngested, Event, MachineSample, RunState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trackside_daemon.model.records import Record

ONE = session_id(1)
ROOM = Bounds(2**33)


class House:
    """A running writer, and the numbers that it acknowledged."""

    def __init__(self, place: Path, *, serves: bool = False, queue: Queue | None = None, **more: Any) -> None:
        self.acknowledged: list[Any] = []
        self.read_when_acknowledged: list[tuple[int, int]] | None = None  # no list: nothing is read, and cached
        self.renounced = threading.Event()
        self.database = Database(place, serves=serves)
        self.queue = Queue() if queue is None else queue
        self.writer = Writer(
            self.database,
            ROOM,
            acknowledge=self.acknowledge,
            request_resend=lambda _: self.renounced.set(),
            queue=self.queue,
            **more,
        )

    def acknowledge(self, number: int) -> None:
        """Note a number, and what is committed at this moment: the number of the last message, and of the log's rows."""
        if self.read_when_acknowledged is not None:
            with self.database.reading() as connection:
                row = connection.execute("SELECT max(committed), (SELECT count(*) FROM log) FROM session").fetchone()
            self.read_when_acknowledged.append(row)
        self.acknowledged.append(number)

    def put(self, number: int, *values: float, session: bytes = ONE) -> None:
        """Put a batch in the queue, with its number as the receipt."""
        self.writer.put(
            [batch_ingested(session, number, [block(["a"], [number] * len(values), values)], SHIFT)], number
        )

    def limit(self, pages: int | None) -> None:
        """Limit the file to its present size plus so many pages; None removes the limit."""
        with self.queue._changed:
            now = self.database.connection.execute("PRAGMA page_count").fetchone()[0]
            most = 2**30 if pages is None else now + pages
            self.database.connection.execute(f"PRAGMA max_page_count = {most}").fetchone()

    def read(self, stream: int = 1, key: str = "a") -> list[float]:
        """Return the stored values."""
        return [row[2] for row in read(self.database, stream, key)]


@pytest.fixture
def house(place: Path, request: pytest.FixtureRequest) -> Iterator[House]:
    """A writer that has not started yet, with a session and short retries, or with the group and arguments of its parameter."""
    given = getattr(request, "param", {})
    queue = Queue(group=given.get("group", GROUP_BYTES))
    more = {"intervals": WriterIntervals(retry=0.01), **{name: one for name, one in given.items() if name != "group"}}
    made = House(place, queue=queue, **more)
    made.writer.put([opened(ONE)])
    yield made
    if is_running("trackside-history"):
        made.writer.stop()
    made.database.close()


BIG = [0.1] * 3000


def test_while_the_disk_is_full_nothing_is_acknowledged_and_then_everything_once(
    house: House, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.writer.start()
    house.put(1, 1.0)
    eventually(lambda: house.acknowledged == [1])
    house.limit(0)
    for number in range(2, 40):
        house.put(number, *BIG)
    eventually(lambda: house.writer.stuck)
    before = list(house.acknowledged)
    tries = threading.Semaphore(0)
    undo = maintenance.Maintenance.undo

    def counted(self: maintenance.Maintenance) -> None:
        undo(self)
        tries.release()

    monkeypatch.setattr(maintenance.Maintenance, "undo", counted)
    assert all(tries.acquire(timeout=DEADLINE) for _ in range(5))
    assert house.acknowledged == before
    house.limit(None)
    eventually(lambda: len(house.acknowledged) == 39)
    assert house.acknowledged == list(range(1, 40))
    assert house.read() == [1.0, *BIG * 38]
    assert not house.writer.stuck
    assert len([one for one in caplog.records if "cannot be written" in one.getMessage()]) == 1
    assert 1 <= house.writer.failures["history"] <= 38


def test_packing_that_finds_no_room_continues_when_there_is_some(house: House) -> None:
    values = [math.pi * number for number in range(3000)]
    house.put(1, *values)
    house.writer.start()
    eventually(lambda: house.acknowledged == [1])
    house.limit(0)
    house.writer.put([RunState("run", 0, "finished", "", 1.0)])
    eventually(lambda: house.writer.stuck)
    house.limit(None)
    eventually(lambda: not house.writer.stuck)
    house.put(2, 2.0)
    eventually(lambda: house.acknowledged == [1, 2])
    assert house.read() == [*values, 2.0]


def test_it_ends_while_the_disk_is_full(house: House) -> None:
    house.writer.start()
    house.writer.call(lambda _: None).result(10)
    house.limit(0)
    for number in range(1, 300):
        house.put(number, *BIG)
    eventually(lambda: house.writer.stuck)
    house.writer.stop()
    assert not is_running("trackside-history")
    assert len(house.acknowledged) < 299
    assert len(house.read()) == 3000 * len(house.acknowledged)


def test_a_call_is_answered_with_what_it_gives_or_raises(house: House) -> None:
    house.put(1, 1.0)
    first = house.writer.call(lambda store: run_id(store.connection, "run"))
    wrong = house.writer.call(lambda _: 1 // 0)
    half = house.writer.call(lambda store: store.connection.execute("UPDATE run SET name = 'x'") and 1 // 0)
    house.writer.start()
    assert first.result(10) == 1
    with pytest.raises(ZeroDivisionError):
        wrong.result(10)
    with pytest.raises(ZeroDivisionError):
        half.result(10)
    with house.database.reading() as connection:
        assert connection.execute("SELECT name FROM run").fetchone()[0] == "run"


@pytest.mark.parametrize("house", [{"group": 1}], indirect=True)
def test_a_call_comes_in_the_first_turn_after_what_was_put_before_it(house: House) -> None:

    def committed(store: Any) -> int:
        return int(store.connection.execute("SELECT committed FROM session").fetchone()[0])

    house.put(1, 1.0)
    first = house.writer.call(committed)
    house.put(2, 1.0)
    house.put(3, 1.0)
    second = house.writer.call(committed)
    house.put(4, 1.0)
    house.writer.start()
    assert (first.result(10), second.result(10)) == (1, 3)
    eventually(lambda: house.acknowledged == [1, 2, 3, 4])


def test_only_a_call_that_changes_something_makes_the_writer_read_all_streams_again(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_again: list[bool] = []
    monkeypatch.setattr(maintenance.Maintenance, "refresh", lambda _: read_again.append(True))
    house.put(1, 1.0)
    house.writer.start()
    assert house.writer.flush(10)
    house.writer.call(lambda store: store.connection.execute("SELECT * FROM run").fetchall()).result(10)
    assert not read_again
    house.writer.call(lambda store: store.connection.execute("UPDATE run SET name = 'x'")).result(10)
    assert read_again == [True]


def test_a_call_without_a_waiting_caller_is_left_out(house: House) -> None:
    future = house.writer.call(lambda _: None)
    future.cancel()
    house.writer.start()
    assert house.writer.call(lambda _: 7).result(10) == 7


def test_a_call_after_the_end_is_cancelled(house: House) -> None:
    house.writer.start()
    house.writer.stop()
    with pytest.raises(CancelledError):
        house.writer.call(lambda _: 1).result(10)


def test_a_record_that_no_table_accepts_costs_only_itself(house: House, caplog: pytest.LogCaptureFixture) -> None:
    house.put(1, 1.0)
    house.writer.put([batch_ingested(ONE, 2), Event("run", 0, 1.0, "x", step=2**70)], 2)
    house.writer.put([RunState("run", 2**70, "failed")])
    house.put(3, 3.0)
    house.writer.start()
    eventually(lambda: house.acknowledged == [1, 2, 3])
    assert house.read() == [1.0, 3.0]
    assert house.writer.failures["history"] == 2
    assert len([one for one in caplog.records if "cannot be written" in one.getMessage()]) == 2


def test_a_message_that_comes_again_brings_the_events_in_it_once(house: House) -> None:
    for _ in range(2):
        house.writer.put([batch_ingested(ONE, 1), Event("run", 0, 1.0, "note")], 1)
    house.writer.start()
    eventually(lambda: house.acknowledged == [1, 1])
    with house.database.reading() as connection:
        assert connection.execute("SELECT count(*) FROM event WHERE kind = 'note'").fetchone() == (1,)


def test_what_was_sampled_or_reckoned_gives_way_when_there_is_no_room(house: House) -> None:
    for _ in range(QUEUE_ITEMS + 50):
        house.writer.put([MachineSample(float(WALL), {"x": 1.0})])
    assert not house.writer.has_room()
    house.writer.put([AccountUpdated("", 0, 0, Account(stall=1.0))])
    house.put(1, 1.0)
    house.writer.start()
    eventually(lambda: house.acknowledged == [1])
    assert house.writer.has_room()
    assert len(house.read(0, "x")) == QUEUE_ITEMS - 1


def test_a_file_that_is_found_damaged_is_set_aside_and_nothing_unwritten_is_acknowledged(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    house.put(1, *BIG)
    house.writer.start()
    eventually(lambda: house.acknowledged == [1])
    house.writer.call(lambda store: store.connection.execute("UPDATE log SET data = x'91'")).result(10)
    house.writer.call(lambda store: store.due.update({1: None}))
    assert house.renounced.wait(DEADLINE)
    house.put(2, 2.0)  # its sender has not heard of it yet
    house.writer.put([opened(ONE, acked=1)])
    house.put(2, 2.0)
    house.put(3, 3.0)
    eventually(lambda: len(house.acknowledged) == 4)
    assert house.acknowledged == [1, 2, 2, 3]
    assert house.read() == [2.0, 3.0]
    (aside,) = [one for one in house.database.path.parent.glob("*.damaged-*") if one.name[-4:] not in ("-wal", "-shm")]
    (line,) = [one.getMessage() for one in caplog.records if aside.name in one.getMessage()]
    assert "\n" not in line


def test_what_a_reader_finds_damaged_is_replaced_and_what_was_acknowledged_is_in_the_new_file(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    house.writer.start()
    for number in range(1, 9):
        house.put(number, *BIG)
    eventually(lambda: house.acknowledged == list(range(1, 9)))
    path = house.database.path
    other = sqlite3.connect(path)
    eventually(lambda: len(set(other.execute("PRAGMA wal_checkpoint").fetchone()[1:])) == 1)
    other.close()
    # The writer has these pages in memory, and would not notice. In another process, since this one would lose its locks.
    pages = path.stat().st_size // PAGE_BYTES
    zeros = ["dd", "if=/dev/zero", f"of={path}", f"bs={PAGE_BYTES}", f"count={pages}", "conv=notrunc", "status=none"]
    subprocess.run(zeros, check=True)
    with pytest.raises(sqlite3.DatabaseError):
        house.read()
    assert house.renounced.wait(DEADLINE), "what is committed meanwhile has to be sent again"
    house.put(9, 9.0)
    eventually(lambda: 9 in house.acknowledged)
    assert house.read() == [*BIG * 8, 9.0]
    assert len(list(path.parent.glob("*.damaged-*"))) == 1
    assert "salvaged all 24,000 samples of 1 run" in caplog.text
    assert house.writer.failures["history"] == 1


@pytest.mark.parametrize("house", [{"intervals": WriterIntervals(replace=DEADLINE)}], indirect=True)
def test_nothing_is_acknowledged_into_a_file_that_is_known_to_be_damaged(house: House) -> None:
    house.writer.start()
    house.put(1, 1.0)
    eventually(lambda: house.acknowledged == [1])
    house.database.report("malformed")  # so that it has just replaced the file, and waits before the next time
    assert house.renounced.wait(DEADLINE)
    house.database.report("malformed")
    house.put(2, 2.0)
    eventually(lambda: house.writer.failures["history"] == 2)
    house.writer.stop()
    assert house.acknowledged == [1]
    house.database.close()
    assert not house.database.path.exists(), "it is set aside for the next start"
    again = Database(house.database.path.parent)
    assert [row[2] for row in read(again, 1, "a")][:1] == [1.0]
    again.close()


def test_it_reports_its_own_figures(house: House) -> None:
    house.put(1, *BIG)
    house.writer.start()
    house.writer.stop()
    reported = {sample.metric.name: sample.value for sample in house.writer.samples()}
    assert reported["trackside_history_samples_total"] == 3000
    assert reported["trackside_history_size_bytes"] != 0
    assert reported["trackside_history_excess_bytes"] == 0


FULL = """
import resource, signal, sys, threading, time
from pathlib import Path
from history.builders import SHIFT, block, opened, session_id
from trackside_daemon.history.record import writer as module
from trackside_daemon.history.database import Database
from trackside_daemon.history.directory import HistoryError, lock_history
from trackside_daemon.history.record.trimming import Bounds
from session_records import batch_ingested
import logging
logging.basicConfig(level=logging.INFO, format="log %(message)s")
place, how = Path(sys.argv[1]), sys.argv[2]
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
database = Database(place)
if how == "limit":
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_500_000, resource.RLIM_INFINITY))
acknowledge = lambda number: print("ack", number, flush=True)
writer = module.Writer(database, Bounds(2**33), acknowledge=acknowledge, intervals=module.WriterIntervals(retry=0.02))
writer.start()
one = session_id(1)
writer.put([opened(one)])
for number in range(1, 61):
    values = [float(number)] * 4000
    writer.put([batch_ingested(one, number, [block(["a"], [number] * 4000, values)], SHIFT)], number)
until = time.monotonic() + 120
while not writer.stuck and time.monotonic() < until:
    pass
print("stuck", flush=True)
sys.stdin.readline()
if how == "limit":
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
else:
    (place / "ballast").unlink()
writer.call(lambda _: None).result()
writer.stop()
database.close()
print("failures", writer.failures["history"], flush=True)
"""


@pytest.fixture
def small_disk(place: Path) -> Iterator[Path]:
    """A file system of 12 MiB, nearly full."""
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(place)], check=False, capture_output=True
    )
    if made.returncode:
        pytest.skip("no file system can be mounted here")
    (place / "ballast").write_bytes(bytes(10_900_000))
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_on_a_disk_that_is_full_all_is_written_once_there_is_room(small_disk: Path) -> None:
    _fill("ballast", small_disk)


def test_where_a_file_may_not_grow_all_is_written_once_it_may(place: Path) -> None:
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    _fill("limit", place)


def _fill(how: str, place: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", FULL, str(place), how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,  # two threads that write to one stream would cut into each other's lines
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert child.stdin is not None
    assert child.stdout is not None
    lines = []
    for line in child.stdout:
        lines.append(line.strip())
        if lines[-1] == "stuck":
            break
    before = [int(line[4:]) for line in lines if line.startswith("ack")]
    assert len(before) < 60
    child.stdin.write("go\n")
    child.stdin.close()
    lines += [line.strip() for line in child.stdout]
    assert child.wait(DEADLINE) == 0
    child.stdout.close()
    assert [int(line[4:]) for line in lines if line.startswith("ack")] == list(range(1, 61))
    assert len([line for line in lines if "cannot be written" in line]) == 1
    assert len([line for line in lines if "can be written again" in line]) == 1
    # None, if packing met the full disk first: then each batch was written at the first try, once there was room.
    assert int(next(line for line in lines if line.startswith("failures")).split()[1]) <= 60
    database = Database(place)
    assert [row[2] for row in read(database, 1, "a")] == [float(number) for number in range(1, 61) for _ in range(4000)]
    check_tables(database.connection)
    database.close()


@pytest.mark.parametrize("house", [{"group": 1}], indirect=True)
def test_a_message_is_never_apart_from_its_number(house: House) -> None:
    """Groups of a byte: each message is a transaction, and at each moment all that is counted is there."""
    house.read_when_acknowledged = []
    house.writer.start()
    numbers = list(range(1, 60))
    for number in numbers:
        house.put(number, float(number))
    house.writer.stop()
    assert house.acknowledged == numbers
    assert house.read_when_acknowledged == [(number, number) for number in numbers]
    assert house.read() == [float(number) for number in numbers]


def test_what_a_stranger_sends_is_never_acknowledged_and_it_is_asked_to_greet(place: Path) -> None:
    """The run of such a session was deleted, or the file was replaced; its batches were not written."""
    acknowledged: list[int] = []
    renounced: list[bytes | None] = []
    database = Database(place)
    writer = Writer(database, ROOM, acknowledge=acknowledged.append, request_resend=renounced.append)
    writer.put([opened(ONE)])
    writer.put([batch_ingested(ONE, 1, [block(["a"], [1], [1.0])], SHIFT)], 1)
    stranger = batch_ingested(session_id(2), 7, [block(["a"], [1], [1.0])], SHIFT)
    writer.put([stranger], 7)
    writer.put([opened(session_id(2), run="other")])
    writer.put([stranger], 8)
    writer.start()
    eventually(lambda: acknowledged == [1, 8])
    assert renounced == [session_id(2)]
    assert writer.samples()[1].value == 2
    writer.stop()
    database.close()


def test_a_run_that_is_deleted_while_its_client_lives_begins_again(house: House) -> None:
    house.writer.start()
    house.put(1, 1.0)
    eventually(lambda: house.acknowledged == [1])
    house.writer.call(lambda store: store.connection.execute("UPDATE run SET deleted = 1")).result(10)
    house.put(2, 2.0)
    assert house.renounced.wait(DEADLINE)
    house.writer.put([opened(ONE, acked=1)])
    house.put(2, 2.0)
    eventually(lambda: house.acknowledged == [1, 2])
    with house.database.reading() as connection:
        (stream,) = connection.execute(
            "SELECT stream.id FROM stream JOIN run ON run.id = run WHERE NOT deleted"
        ).fetchone()
    assert house.read(stream) == [2.0]


def no_hardware() -> dict[str, Any]:
    raise ValueError("no such sensor")


@pytest.mark.parametrize("house", [{"hardware": no_hardware}], indirect=True)
def test_a_session_that_no_table_accepts_costs_only_itself(house: House) -> None:
    house.writer.put([opened(session_id(2), run="other")])
    house.writer.start()
    house.put(1, 1.0, session=session_id(2))
    eventually(lambda: house.acknowledged == [1])
    assert house.read(2) == [1.0], "only the hardware is missing"


@pytest.mark.parametrize("house", [{"intervals": WriterIntervals(retry=0.01, trim=0.05)}], indirect=True)
def test_a_file_that_is_deleted_under_it_is_begun_anew_and_nothing_unwritten_is_acknowledged(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    house.writer.start()
    house.put(1, 1.0)
    eventually(lambda: house.acknowledged == [1])
    house.database.path.unlink()
    assert house.renounced.wait(DEADLINE)
    assert "was deleted or replaced" in caplog.text
    house.writer.put([opened(ONE, acked=1)])
    house.put(2, 2.0)
    eventually(lambda: house.acknowledged == [1, 2])
    assert house.read() == [2.0]
    assert house.database.path.exists()


@pytest.fixture
def served(place: Path) -> Iterator[House]:
    """A writer of a daemon, whose directory is not the test's own."""
    (place / "history").mkdir()
    made = House(place / "history", serves=True, intervals=WriterIntervals(retry=0.01))
    made.writer.put([opened(ONE)])
    made.writer.start()
    yield made
    made.writer.stop()
    made.database.close()


def test_a_directory_that_is_deleted_is_made_again_and_only_what_was_acknowledged_before_is_gone(
    served: House, place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    served.put(1, 1.0)
    eventually(lambda: served.acknowledged == [1])
    shutil.rmtree(place / "history")
    served.put(2, 2.0)  # into a file without a name: it is not acknowledged, and its sender greets again
    assert served.renounced.wait(DEADLINE)
    assert served.acknowledged == [1]
    served.writer.put([opened(ONE, acked=1)])
    served.put(2, 2.0)
    served.put(3, 3.0)
    eventually(lambda: served.acknowledged == [1, 2, 3])
    assert served.read() == [2.0, 3.0]
    lines = [one.getMessage() for one in caplog.records if one.levelname == "ERROR"]
    assert len(lines) == 1
    assert "was deleted or replaced" in lines[0]
    with pytest.raises(HistoryError, match="another trackside process writes its history there"):
        lock_history(place / "history")


def test_while_a_directory_cannot_be_made_again_the_writer_waits_and_logs_it_once(
    served: House, place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    served.put(1, 1.0)
    eventually(lambda: served.acknowledged == [1])
    shutil.rmtree(place / "history")
    (place / "history").write_text("a file")
    for number in range(2, 30):
        served.put(number, 1.0)
    eventually(lambda: served.writer.stuck)
    with pytest.raises(sqlite3.OperationalError, match="is not a directory"), served.database.reading():
        pass
    served.queue.pause(0.2)  # some twenty tries
    (place / "history").unlink()
    served.writer.put([opened(ONE)])
    served.put(30, 1.0)
    eventually(lambda: served.acknowledged == [1, 30])
    assert not served.writer.stuck
    assert served.writer.problem == ""
    errors = [one.getMessage() for one in caplog.records if one.levelname == "ERROR"]
    assert len(errors) == 2
    assert "the history cannot be written" in errors[1]


def test_a_wal_that_is_deleted_costs_nothing(served: House, place: Path) -> None:
    served.put(1, 1.0)
    eventually(lambda: served.acknowledged == [1])
    (place / "history" / "history.db-wal").unlink()
    served.put(2, 2.0)
    eventually(lambda: 2 in served.acknowledged)
    assert served.read() == [1.0, 2.0]
    assert (place / "history" / "history.db-wal").exists()


@pytest.mark.parametrize("left", ["nothing", "a file that was closed", "a file of a killed daemon"])
@pytest.mark.parametrize("fault", ["a full disk", "a read-only disk", "no more files"])
def test_a_daemon_that_starts_without_room_reads_what_it_can_and_writes_as_soon_as_it_may(
    small_disk: Path, left: str, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    (small_disk / "ballast").unlink()
    if left != "nothing":
        bench = Bench(small_disk)
        bench.open(ONE)
        bench.send(ONE, block(["a"], range(5), [1.0] * 5))
        files = {file.name: file.read_bytes() for file in small_disk.iterdir()}
        bench.close()
        if left == "a file of a killed daemon":
            for name, data in files.items():
                (small_disk / name).write_bytes(data)
    options = {"a full disk": "rw", "a read-only disk": "remount,ro", "no more files": "remount,nr_inodes=1"}[fault]
    if fault == "a full disk":
        with (small_disk / "ballast").open("wb", buffering=0) as file, suppress(OSError):
            while file.write(bytes(4096)):
                pass
    else:
        used = len(list(small_disk.iterdir())) + 1
        options = options.replace("nr_inodes=1", f"nr_inodes={used}")
        subprocess.run(["mount", "-o", options, str(small_disk)], check=True)
    served = House(small_disk, serves=True, intervals=WriterIntervals(retry=0.01, trim=0.05))
    served.writer.start()
    served.writer.put([Alert("DiskFilling", "warning", 1.0, "", {}, "full", "full")])
    served.writer.put([opened(ONE)])
    served.put(2, 2.0)
    eventually(lambda: served.writer.stuck)
    assert served.acknowledged == []
    if left != "nothing" and fault == "a full disk":
        assert served.read() == [1.0] * 5
    if fault == "a full disk":
        (small_disk / "ballast").unlink()
    else:
        subprocess.run(["mount", "-o", "remount,rw,nr_inodes=1000", str(small_disk)], check=True)
    eventually(lambda: served.acknowledged == [2])
    assert served.read() == [*([1.0] * 5 if left != "nothing" else []), 2.0]
    eventually(lambda: served.database.is_open and not served.database.is_exclusive)
    with served.database.reading() as connection:
        assert connection.execute("SELECT alert FROM alert").fetchall() == [("DiskFilling",)]
    served.writer.stop()
    served.database.close()
    assert len([one for one in caplog.records if one.levelname == "ERROR"]) == 1, caplog.text


@pytest.mark.parametrize("house", [{"intervals": WriterIntervals(retry=0.01, recount=0.05)}], indirect=True)
def test_a_failure_that_lasts_is_counted_again_so_that_its_alert_lasts(house: House) -> None:
    house.writer.start()
    house.writer.call(lambda _: None).result(10)
    house.limit(0)
    house.put(1, *BIG)
    eventually(lambda: house.writer.failures["history"] >= 4)
    house.limit(None)
    eventually(lambda: house.acknowledged == [1])


def test_a_clock_that_jumps_ahead_for_some_seconds_deletes_no_run(place: Path) -> None:
    checks = []
    now = time.time()

    def ahead() -> float:
        checks.append(1)
        return now + 3 * 365 * 86400

    house = House(place, clock=ahead, intervals=WriterIntervals(trim=0.0))
    house.writer.set_bounds(Bounds(2**33, 90 * 86400.0))
    for number in range(3):
        run = f"run {number}"
        house.writer.put([opened(session_id(number), run=run), RunState(run, 0, "finished", "", now)], number)
    house.writer.start()
    eventually(lambda: len(house.acknowledged) == 3 and len(checks) > 20)
    with house.database.reading() as connection:
        assert connection.execute("SELECT count(*) FROM run WHERE NOT deleted").fetchone() == (3,)
    house.writer.stop()
    house.database.close()


def test_the_configuration_is_the_lowest_ranks(house: House) -> None:
    for rank in (2, 1, 3):
        house.writer.put([opened(session_id(10 + rank), rank=rank, config=f'{{"rank":{rank}}}')])
    house.writer.start()
    house.writer.call(lambda _: None).result(10)
    with house.database.reading() as connection:
        assert connection.execute("SELECT config FROM attempt").fetchall() == [('{"rank":1}',)]


def test_a_text_of_the_form_of_a_secret_is_nowhere_in_the_file(house: House) -> None:
    secret = "hf_abcdefghijklmnopqrstuvwxyz012345"
    house.writer.put([opened(session_id(2), run="r", tags=(secret,), config=f'{{"x":"{secret}"}}')])
    house.writer.put([RunState("r", 0, "failed", secret, 1.0)])
    house.writer.put([Event("r", 0, 1.0, "note", fields={"path": secret})])
    house.writer.put([Alert("A", "info", 1.0, "r", {"label": secret}, secret, secret)])
    house.writer.start()
    house.writer.stop()
    house.database.close()
    assert secret.encode() not in house.database.path.read_bytes()


@pytest.fixture
def disturbed(house: House, monkeypatch: pytest.MonkeyPatch) -> Callable[[Iterator[Callable[[], None]]], House]:
    """A function that has the next of some calls made wherever the second message of the writer is written."""

    def disturb(calls: Iterator[Callable[[], None]]) -> House:
        apply = RecordStore.apply

        def disturbing(store: RecordStore, record: Record) -> Record | None:
            if isinstance(record, BatchIngested) and record.number == 2 and record.columns:
                next(calls, lambda: None)()
            return apply(store, record)

        monkeypatch.setattr(RecordStore, "apply", disturbing)
        return house

    return disturb


def fail(error: Exception) -> None:
    raise error


@pytest.mark.parametrize("house", [{"group": 1}, {}], indirect=True)
@pytest.mark.parametrize("times", [1, 1000])
def test_a_message_that_fails_in_an_unexpected_way_is_written_before_those_behind_it_or_dropped_alone(
    disturbed: Callable[[Iterator[Callable[[], None]]], House], times: int, caplog: pytest.LogCaptureFixture
) -> None:
    house = disturbed(repeat(lambda: fail(RuntimeError("an unexpected fault")), times))
    for number in (1, 2, 3, 4):
        house.put(number, float(number))
    house.writer.start()
    eventually(lambda: len(house.acknowledged) == 4)
    assert house.acknowledged == [1, 2, 3, 4]
    assert house.read() == ([1.0, 2.0, 3.0, 4.0] if times == 1 else [1.0, 3.0, 4.0])
    assert ("a record cannot be written and is dropped: RuntimeError" in caplog.text) == (times > 1)
    assert house.writer.failures["history"] > 0


@pytest.mark.parametrize("house", [{"group": 1}], indirect=True)
def test_a_message_in_a_file_that_is_found_damaged_is_in_the_new_one_before_those_behind_it(
    disturbed: Callable[[Iterator[Callable[[], None]]], House], house: House
) -> None:
    disturbed(iter([lambda: house.database.report("malformed")]))
    for number in (1, 2, 3):
        house.put(number, float(number))
    house.writer.start()
    eventually(lambda: len(house.acknowledged) == 3)
    assert house.acknowledged == [1, 2, 3]
    assert house.read() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("house", [{"group": 1}], indirect=True)
def test_at_its_end_it_writes_nothing_behind_a_message_that_cannot_be_written(
    disturbed: Callable[[Iterator[Callable[[], None]]], House],
) -> None:
    house = disturbed(repeat(lambda: fail(sqlite3.OperationalError("database or disk is full"))))
    for number in (1, 2, 3):
        house.put(number, float(number))
    house.writer.start()
    eventually(lambda: house.writer.stuck)
    house.writer.stop()
    assert house.acknowledged == [1]
    assert house.read() == [1.0]


@pytest.mark.parametrize("house", [{"group": 1}], indirect=True)
def test_at_its_end_a_message_that_fails_in_an_unexpected_way_costs_only_itself(
    disturbed: Callable[[Iterator[Callable[[], None]]], House],
) -> None:
    begun, goes_on = threading.Event(), threading.Event()

    def fails() -> None:
        begun.set()
        goes_on.wait(DEADLINE)
        fail(RuntimeError("an unexpected fault"))

    house = disturbed(repeat(fails, 3))
    for number in (1, 2, 3):
        house.put(number, float(number))
    house.writer.start()
    begun.wait(DEADLINE)
    stops = threading.Thread(target=house.writer.stop)
    stops.start()
    eventually(lambda: house.queue.stopping)
    goes_on.set()
    stops.join(DEADLINE)
    assert house.acknowledged == [1, 2, 3]
    assert house.read() == [1.0, 3.0]


def test_a_call_behind_a_message_that_cannot_be_written_at_the_end_is_cancelled(
    disturbed: Callable[[Iterator[Callable[[], None]]], House],
) -> None:
    house = disturbed(repeat(lambda: fail(sqlite3.OperationalError("database or disk is full"))))
    for number in (1, 2):
        house.put(number, float(number))
    called = house.writer.call(lambda _: None)
    house.writer.start()
    eventually(lambda: house.writer.stuck)
    house.writer.stop()
    assert called.cancelled()
