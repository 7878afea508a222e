"""The queue of the history writer: which records wait for others in a transaction, and whose turn it is."""

from __future__ import annotations

import threading
from array import array
from collections import Counter
from dataclasses import replace

import pytest
from histories import opened

from trackside.wire import MediaItem
from trackside_daemon.history.record import queue
from trackside_daemon.history.record.queue import Queue, QueueItem
from trackside_daemon.model.columns import Columns
from trackside_daemon.model.records import BatchIngested, MachineSample, RunState, SessionOpened
from trackside_daemon.model.session import Owner, SessionRef

REF = SessionRef(bytes(16))
ROWS = BatchIngested(REF, 1, [Columns(["loss"], array("q", [1]), array("q", [1]), array("d", [1.0]))])


@pytest.fixture
def waiting() -> Queue:
    """A queue that has just handed out rows, and would now collect for ever."""
    found = Queue(commit=3600.0)
    found.put([ROWS], 1)
    assert len(found.get(0.0)[0]) == 1
    return found


@pytest.mark.parametrize("urgent", [BatchIngested(REF, 2), RunState("run", 0, "finished")], ids=["bye", "state"])
def test_rows_wait_for_others_until_something_ends(waiting: Queue, urgent: BatchIngested | RunState) -> None:
    groups = []
    reader = threading.Thread(target=lambda: groups.append(waiting.get(3600.0)[0]))
    waiting.put([ROWS], 2)
    reader.start()
    waiting.put([ROWS], 3)
    waiting.put([urgent], 4)
    reader.join(60.0)
    assert [item.receipt for item in groups[0]] == [2, 3, 4]


def test_few_records_of_many_bytes_leave_no_room() -> None:
    for found, has_room in ((Queue(), True), (Queue(size=1), False)):
        found.put([ROWS], 1)
        assert found.has_room is has_room


def test_rows_wait_while_the_writer_has_other_work(waiting: Queue) -> None:
    waiting.put([ROWS], 2)
    assert waiting.get(0.0) == ([], None)
    assert not waiting.is_due
    waiting.put([BatchIngested(REF, 2)], 3)
    assert waiting.is_due
    assert [item.receipt for item in waiting.get(0.0)[0]] == [2, 3]


def test_a_call_and_the_end_wait_for_nothing(waiting: Queue) -> None:
    waiting.put([ROWS], 2)
    waiting.call(lambda _: None)
    group, call = waiting.get(3600.0)
    assert [item.receipt for item in group] == [2]
    assert call is not None
    waiting.put([ROWS], 3)
    waiting.stop()
    assert [item.receipt for item in waiting.get(3600.0)[0]] == [3]


def of(run: str, owner: str, *, values: int = 1, number: int = 1) -> tuple[SessionOpened, BatchIngested]:
    """Return a session of a run of this owner, and a batch of it."""
    start = replace(opened(run), owner=Owner(owner))
    ones = array("q", [1]) * values
    return start, BatchIngested(start.session, number, [Columns(["loss"], ones, ones, array("d", ones))])


LARGE = of("alice", "uid:1", values=queue.GROUP_BYTES // 240)[1]


@pytest.fixture
def flooded() -> Queue:
    """A queue with sessions of two owners, in which 500 batches of one wait, each a tenth of a transaction."""
    found = Queue()
    for run, owner in (("alice", "uid:1"), ("bob", "uid:2")):
        found.put([of(run, owner)[0]], None)
    found.get(0.0)
    for number in range(500):
        found.put([replace(LARGE, number=number)], ("alice", number))
    return found


def drained(found: Queue) -> list[list[QueueItem]]:
    """Return the transactions of what waits."""
    return [found.get(0.0)[0] for _ in iter(lambda: len(found) > 0, False)]


def test_a_batch_of_one_owner_is_in_the_next_transaction_although_those_of_another_wait(flooded: Queue) -> None:
    flooded.get(0.0)
    for number in range(3):
        flooded.put([of("bob", "uid:2", number=number)[1]], ("bob", number))
    flooded.put([RunState("bob", 0, "finished")], None)  # his as well, so that it comes after them
    groups = drained(flooded)
    first = [item for item in groups[0] if item.receipt is None or item.receipt[0] == "bob"]
    assert [item.receipt for item in first] == [("bob", 0), ("bob", 1), ("bob", 2), None]
    rest = [item.receipt[1] for group in groups for item in group if item.receipt and item.receipt[0] == "alice"]
    assert rest == list(range(500 - len(rest), 500))  # in order, and none is missing


def test_owners_get_equal_shares_in_bytes(flooded: Queue) -> None:
    small = of("bob", "uid:2", values=1000)[1]
    for number in range(5000):
        flooded.put([replace(small, number=number)], ("bob", number))
    for group in drained(flooded)[:20]:
        sizes = Counter[str]()
        for item in group:
            sizes[item.receipt[0]] += item.size
        assert abs(sizes["alice"] - sizes["bob"]) <= queue.GROUP_BYTES / 8


def test_an_item_as_large_as_a_transaction_delays_the_others_by_one() -> None:
    found = Queue(group=1)
    for run, owner in (("alice", "uid:1"), ("bob", "uid:2")):
        for record in of(run, owner) * 2:
            found.put([record], run)
    assert [item.receipt for group in drained(found) for item in group] == ["alice", "bob"] * 4


def test_small_items_have_their_share_beside_items_as_large_as_a_transaction() -> None:
    found, large = Queue(), of("alice", "uid:1", values=queue.GROUP_BYTES // 20)[1]
    for owner in ("uid:1", "uid:2", "uid:3"):
        found.put([of(owner, owner)[0]], None)
    for number in range(20):
        for owner in ("uid:1", "uid:2"):
            found.put([replace(large, session=of(owner, owner)[1].session, number=number)], owner)
        found.put([of("uid:3", "uid:3", number=number)[1]], "uid:3")
    assert [item.receipt for item in found.get(0.0)[0]].count("uid:3") == 20


def test_a_call_comes_after_everything_that_was_queued_before_it_by_any_owner(flooded: Queue) -> None:
    flooded.call(lambda _: None)
    flooded.put([of("bob", "uid:2")[1]], ("bob", 0))
    written = set()
    while True:
        group, call = flooded.get(0.0)
        written |= {item.receipt for item in group}
        if call is not None:
            break
        assert ("bob", 0) in written
    assert written == {("bob", 0), *(("alice", number) for number in range(500))}


def test_records_of_several_owners_wait_with_those_of_their_runs(flooded: Queue) -> None:
    flooded.put([RunState("alice", 0, "lost"), RunState("bob", 0, "lost"), MachineSample(1.0, {})], None)
    group, _ = flooded.get(0.0)
    assert [item.records for item in group[:2]] == [[MachineSample(1.0, {})], [replace(LARGE, number=0)]]
    assert [RunState("bob", 0, "lost")] in [item.records for item in group]
    assert [list(item.records) for item in drained(flooded)[-1]][-1] == [RunState("alice", 0, "lost")]


def test_samples_of_the_machine_are_kept_although_another_owner_fills_the_queue(flooded: Queue) -> None:
    assert not flooded.has_room
    flooded.put([MachineSample(1.0, {})], None)
    assert flooded.get(0.0)[0][0].records == [MachineSample(1.0, {})]


def test_images_count_as_much_as_they_have_bytes() -> None:
    found = Queue()
    start, batch = of("alice", "uid:1")
    found.put([start, replace(batch, media=[MediaItem("image", "k", 1, bytes(queue.QUEUE_BYTES))])], 1)
    assert not found.has_room
