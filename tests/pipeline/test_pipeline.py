"""The pipeline: its order, its bounds, and the isolation of failures."""

from __future__ import annotations

import threading
import time
from array import array
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from processes import DEADLINE, eventually

from trackside_daemon.alerts.active_alerts import ActiveAlerts
from trackside_daemon.detectors.run_watch import RunWatch
from trackside_daemon.history.record.queue import QUEUE_ITEMS
from trackside_daemon.history.record.trimming import Bounds
from trackside_daemon.history.recorder import HistoryRecorder
from trackside_daemon.model.columns import Columns
from trackside_daemon.model.families import alerts, daemon
from trackside_daemon.model.finding import Finding
from trackside_daemon.model.metric import Batch, Metric, Sample
from trackside_daemon.model.records import BatchIngested
from trackside_daemon.model.session import SessionRef
from trackside_daemon.model.state import State
from trackside_daemon.pipeline import pipeline as module
from trackside_daemon.pipeline.pipeline import PUSHED_BYTES, PUSHES_WAITING, TICKS_WAITING, Pipeline

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

GAUGE = Metric("trackside_a", "gauge", "A.", ("name",))
QUIET = {(stage,): 0.0 for stage in module.STAGES}
"""No failures."""


class Watched(State):
    """A state that records the sources of its batches, blocks while *go_on* is cleared, and fails on ``bad`` ones."""

    def __init__(self) -> None:
        super().__init__()
        self.accepted: list[str] = []
        self.go_on = threading.Event()
        self.go_on.set()
        self.holds = threading.Event()

    def update(self, batch: Batch) -> None:
        self.holds.set()
        assert self.go_on.wait(DEADLINE)
        self.accepted.append(batch.source)
        if batch.source == "bad":
            raise RuntimeError("broken")
        super().update(batch)


class Acknowledged:
    """A callable that records receipts, and can wait for a number of them."""

    def __init__(self) -> None:
        self.receipts: list[Any] = []
        self._changed = threading.Condition()

    def __call__(self, receipt: Any) -> None:
        with self._changed:
            self.receipts.append(receipt)
            self._changed.notify_all()

    def wait_for(self, number: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.receipts) >= number, DEADLINE)


@pytest.fixture
def state() -> Watched:
    return Watched()


@pytest.fixture
def acknowledged() -> Acknowledged:
    return Acknowledged()


@pytest.fixture
def history(place: Path, acknowledged: Acknowledged) -> Iterator[HistoryRecorder]:
    """A started history, which stops with the test."""
    made = HistoryRecorder(place, Bounds(0), acknowledge=acknowledged)
    made.start()
    yield made
    made.stop()
    made.close()


@pytest.fixture
def pipeline(state: Watched, history: HistoryRecorder) -> Iterator[Pipeline]:
    """A started pipeline, which stops with the test."""
    made = Pipeline(state, history)
    made.start()
    yield made
    state.go_on.set()
    made.stop()


def hold(pipeline: Pipeline, state: Watched) -> None:
    """Keep the pipeline busy with a batch until `go_on`."""
    state.go_on.clear()
    pipeline.push([Batch("first")])
    assert state.holds.wait(DEADLINE)


def failures(state: State) -> dict[tuple[str, ...], object]:
    return dict(state.values(0.0, daemon.PIPELINE_FAILURES)[0])


def test_what_is_sampled_goes_before_what_is_pushed(pipeline: Pipeline, state: Watched) -> None:
    hold(pipeline, state)
    pipeline.push([Batch("push 1"), Batch("push 2")])
    pipeline.tick([Batch("tick 1"), Batch("tick 2")])
    state.go_on.set()
    pipeline.stop()
    assert state.accepted == ["first", "tick 1", "tick 2", "pipeline", "history", "push 1", "push 2"]


def test_a_batch_is_acknowledged_after_the_page_has_it(
    pipeline: Pipeline, state: Watched, acknowledged: Acknowledged
) -> None:
    hold(pipeline, state)
    pipeline.push([Batch("s", [Sample(GAUGE, ("x",), 1.0)], receipt=7), Batch("s", receipt=8)])
    assert acknowledged.receipts == []
    state.go_on.set()
    acknowledged.wait_for(2)
    assert acknowledged.receipts == [7, 8]
    assert state.values(0.0, GAUGE) == [{("x",): 1.0}]


def test_a_batch_without_a_receipt_is_not_acknowledged(pipeline: Pipeline, acknowledged: Acknowledged) -> None:
    pipeline.push([Batch("s"), Batch("s", receipt=1)])
    acknowledged.wait_for(1)
    assert acknowledged.receipts == [1]


def test_a_stage_that_fails_is_counted_and_logged_once_and_holds_nothing_up(
    pipeline: Pipeline, state: Watched, acknowledged: Acknowledged, caplog: pytest.LogCaptureFixture
) -> None:
    pipeline.push([Batch("bad", receipt=1), Batch("bad"), Batch("s", [Sample(GAUGE, ("x",), 1.0)], receipt=2)])
    acknowledged.wait_for(2)
    pipeline.tick([])
    pipeline.stop()
    assert failures(state) == {**QUIET, ("state",): 2.0}
    assert state.values(0.0, GAUGE) == [{("x",): 1.0}]
    assert caplog.messages == ["stage state failed on a batch of bad; further failures of this kind are only counted"]
    assert caplog.records[0].exc_info is not None


def test_failures_are_on_the_page_at_0_with_the_first_tick(pipeline: Pipeline, state: Watched) -> None:
    pipeline.tick([])
    pipeline.stop()
    assert failures(state) == QUIET


def test_it_reports_that_there_is_no_room_without_waiting(pipeline: Pipeline, state: Watched) -> None:
    hold(pipeline, state)
    pipeline.push([Batch(str(number)) for number in range(PUSHES_WAITING - 1)])
    assert pipeline.has_room()
    pipeline.push([Batch("last")])
    assert not pipeline.has_room()
    state.go_on.set()
    pipeline.stop()
    assert pipeline.has_room()
    assert state.accepted[-1] == "last"


def test_a_few_large_pushes_leave_no_room(pipeline: Pipeline, state: Watched) -> None:
    hold(pipeline, state)
    columns = Columns(["loss"], array("q", [1]), array("q", [1]), array("d", [1.0]) * (PUSHED_BYTES // 16))
    large = Batch("s", records=[BatchIngested(SessionRef(bytes(16)), 1, [columns])])
    pipeline.push([large])
    assert pipeline.has_room()
    pipeline.push([large])
    assert not pipeline.has_room()
    state.go_on.set()
    pipeline.stop()
    assert pipeline.has_room()


def test_a_tick_never_waits_and_the_oldest_gives_way(pipeline: Pipeline, state: Watched) -> None:
    hold(pipeline, state)
    pipeline.push([Batch("push")] * PUSHES_WAITING)
    for number in range(TICKS_WAITING):
        pipeline.tick([Batch(f"tick {number}")])
    state.go_on.set()
    pipeline.stop()
    ticks = [source for source in state.accepted if source not in {"first", "push"}]
    whole, rest = divmod(TICKS_WAITING, 3)  # of a tick, its batch and those of the pipeline and the history itself
    assert ticks[rest::3] == [f"tick {number}" for number in range(TICKS_WAITING - whole, TICKS_WAITING)]
    assert len(ticks) == TICKS_WAITING


def test_a_stop_stores_and_acknowledges_what_is_queued(
    pipeline: Pipeline, history: HistoryRecorder, state: Watched, acknowledged: Acknowledged
) -> None:
    hold(pipeline, state)
    pipeline.push([Batch("s", receipt=number) for number in range(100)])
    stopper = threading.Thread(target=pipeline.stop)
    stopper.start()
    state.go_on.set()
    stopper.join(DEADLINE)
    history.stop()
    assert acknowledged.receipts == list(range(100))


def test_what_is_pushed_after_the_end_neither_waits_nor_is_acknowledged(
    pipeline: Pipeline, history: HistoryRecorder, acknowledged: Acknowledged
) -> None:
    pipeline.stop()
    pipeline.push([Batch("s", receipt=number) for number in range(PUSHES_WAITING + 1)])
    pipeline.push([Batch("s", receipt=0)])
    pipeline.tick([Batch("s")])
    history.stop()
    assert acknowledged.receipts == []


def test_a_full_history_leaves_no_room_without_waiting(state: Watched, place: Path) -> None:
    history = HistoryRecorder(place, Bounds(0))  # never started: nothing leaves its queue
    pipeline = Pipeline(state, history)
    pipeline.start()
    for number in range(QUEUE_ITEMS):
        assert pipeline.has_room()
        pipeline.accept(Batch("s", receipt=number))
    assert not pipeline.has_room()
    pipeline.push([Batch("s", receipt=-1)])
    pipeline.stop()
    assert state.accepted[-1] == "s"
    history.close()


def test_a_history_that_fails_once_continues_and_is_counted(state: Watched, place: Path) -> None:
    reported: list[int] = []

    def acknowledge(receipt: int) -> None:
        if receipt == 1:
            raise RuntimeError("no socket")
        reported.append(receipt)

    history = HistoryRecorder(place, Bounds(0), acknowledge=acknowledge)
    made = Pipeline(state, history)
    history.start()
    made.start()
    made.push([Batch("s", receipt=1)])
    eventually(lambda: history.writer.failures["history"] == 1)
    made.push([Batch("s", receipt=2)])
    eventually(lambda: reported == [2])
    made.stop()
    history.stop()
    history.close()


def test_while_ranks_are_restored_batches_have_the_first_seconds_and_then_half_of_the_time(
    state: Watched, history: HistoryRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    moment = 100.0
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: moment, time=time.time))

    def restore() -> bool:
        nonlocal moment
        state.accepted.append("restored")
        moment += 7.0
        made.push([Batch("while it was restored")])
        return state.accepted.count("restored") < 2

    made = Pipeline(state, history, restore=restore)
    made.start()

    def passes(source: str) -> None:
        made.push([Batch(source)])
        eventually(lambda: source in state.accepted)

    passes("at the start")
    moment += module.RESTORE_AFTER
    passes("after the start")
    eventually(lambda: state.accepted[-1] == "while it was restored")
    passes("soon after it")
    moment += 7.0
    passes("long after it")
    eventually(lambda: state.accepted.count("while it was restored") == 2)
    made.stop()
    assert state.accepted == [
        "at the start",
        "after the start",
        "restored",
        "while it was restored",
        "soon after it",
        "long after it",
        "restored",
        "while it was restored",
    ]


class Nags:
    """A stage with a finding for each batch that fails on ``worse`` ones."""

    def accept(self, batch: Batch) -> list[Finding]:
        if batch.source == "worse":
            raise RuntimeError("broken")
        over = batch.source == "good"
        return [Finding("Nag", "warning", (), 1.0, batch.source, over=over)] if batch.source != "nothing" else []


def test_findings_of_watchers_follow_the_same_path_as_all_else(state: Watched, history: HistoryRecorder) -> None:
    now = [1000.0]
    made = Pipeline(state, history, [Nags()], ActiveAlerts(), wall=lambda: now[0])
    labels = ("Nag", "warning", *[""] * 10)
    made.accept(Batch("wrong"))
    assert state.values(0.0, alerts.FIRING) == [{labels: 1.0}]
    assert eventually(lambda: [(one.alert, one.run, one.ended) for one in history.firing(now[0])]) == [
        ("Nag", "", None)
    ]
    made.accept(Batch("good"))
    now[0] = 1119.0
    made.accept(Batch("nothing"))
    assert state.values(0.0, alerts.FIRING) == [{labels: 1.0}]
    now[0] = 1120.0
    made.accept(Batch("nothing"))
    assert state.values(0.0, alerts.FIRING) == [{labels: 0.0}]
    eventually(lambda: not history.firing(now[0]))


class Measures(RunWatch):
    """A stage with samples."""

    def changed_batches(self) -> list[Batch]:
        return [Batch("measured")]


def test_a_clock_that_is_set_back_stops_no_measurements(state: Watched, history: HistoryRecorder) -> None:
    now = iter((1000.0, 500.0))
    made = Pipeline(state, history, [Measures()], ActiveAlerts(), wall=lambda: next(now))
    made.accept(Batch("nothing"))
    made.accept(Batch("nothing"))
    assert state.accepted.count("measured") == 2


def test_a_watcher_that_fails_is_counted_and_blocks_no_other(state: Watched, history: HistoryRecorder) -> None:
    made = Pipeline(state, history, [Nags(), Nags()], ActiveAlerts())
    made.accept(Batch("worse"))
    made.accept(Batch("wrong"))
    made.tick([])
    made.start()
    made.stop()
    assert failures(state) == {**QUIET, ("detectors",): 2.0}
    assert len(state.values(0.0, alerts.FIRING)[0]) == 1
