"""The queue of the history writer: which records wait for others in a transaction."""

from __future__ import annotations

import threading
from array import array

import pytest

from trackside_daemon.history.record import queue
from trackside_daemon.history.record.queue import Queue
from trackside_daemon.model.columns import Columns
from trackside_daemon.model.records import BatchIngested, RunState
from trackside_daemon.model.session import SessionRef

REF = SessionRef(bytes(16))
ROWS = BatchIngested(REF, 1, [Columns(["loss"], array("q", [1]), array("q", [1]), array("d", [1.0]))])


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> Queue:
    """A queue that has just handed out rows, and would now collect for ever."""
    found = Queue()
    found.put([ROWS], 1)
    assert len(found.get(0.0)[0]) == 1
    monkeypatch.setattr(queue, "COMMIT_SECONDS", 3600.0)
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


def test_few_records_of_many_bytes_leave_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Queue()
    found.put([ROWS], 1)
    assert found.has_room
    monkeypatch.setattr(queue, "QUEUE_BYTES", 1)
    assert not found.has_room


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
