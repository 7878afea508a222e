"""The history in the daemon: sessions, runs, and the samples of GPUs and host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from histories import BEGIN, column, finished, opened, session
from processes import DEADLINE

from trackside_daemon.history.directory import UnreadableError
from trackside_daemon.history.read import reader, series
from trackside_daemon.history.read.attempts import StoredSession
from trackside_daemon.history.record.trimming import Bounds
from trackside_daemon.history.recorder import HistoryRecorder
from trackside_daemon.model.metric import Batch, Distribution, Metric, Sample
from trackside_daemon.model.records import Event, Record, RunState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trackside.wire import Identity

HEAT = Metric("trackside_gpu_temperature_celsius", "gauge", "H.", ("gpu",), "celsius")
WORK = Metric("trackside_host_cpu_seconds_total", "counter", "W.", (), "seconds")
SPREAD = Metric("trackside_host_spread", "histogram", "S.", buckets=(1.0,))


@pytest.fixture
def start(place: Path) -> Iterator[Callable[..., HistoryRecorder]]:
    """A function that starts histories in one directory, one after another."""
    started: list[HistoryRecorder] = []

    def make(**more: Any) -> HistoryRecorder:
        for before in started:
            before.stop()
            before.close()
        started[:] = [HistoryRecorder(place, Bounds(0), machine=("gpu", "cpu"), **more)]
        started[0].start()
        return started[0]

    yield make
    for last in started:
        last.stop()
        last.close()


@pytest.fixture
def recorder(start: Callable[..., HistoryRecorder]) -> HistoryRecorder:
    return start()


def write(recorder: HistoryRecorder, *records: Record) -> None:
    """Have them written."""
    recorder.accept(Batch("ingest", records=records))
    settle(recorder)


def settle(recorder: HistoryRecorder) -> None:
    """Wait until all accepted records are written."""
    recorder.writer.call(lambda _: None).result(DEADLINE)


def tick(recorder: HistoryRecorder, after: float) -> None:
    """Record a tick of GPU and CPU."""
    heat, work = Sample(HEAT, ("0",), 50 + after), Sample(WORK, (), after)
    recorder.accept(
        Batch("gpu", [heat, Sample(SPREAD, (), Distribution((1, 0), 0.5))], complete=True, time=BEGIN + after)
    )
    recorder.accept(Batch("cpu", [work], complete=True, time=BEGIN + after + 0.001))
    recorder.accept(Batch("sampler", [Sample(HEAT, ("9",), 0.0)], complete=True, time=BEGIN + after))


def machine(recorder: HistoryRecorder, run: str = "a") -> dict[str, list[float]]:
    """Return the stored values of GPU and host, by series."""
    settle(recorder)
    with recorder.database.reading() as connection:
        found = reader.series(connection, run, [HEAT.name, WORK.name, SPREAD.name])
    return {
        one.series.key: [value for _, _, values in series.samples(recorder.database, one.series) for value in values]
        for one in found
        if one.run == run and one.rank is None
    }


def state(recorder: HistoryRecorder, run: str) -> tuple[str, str, float | None]:
    settle(recorder)
    with recorder.database.reading() as connection:
        known = reader.run(connection, run)
    return known["state"], known["cause"], known["ended"]


def test_a_receipt_is_acknowledged_after_its_commit_and_not_before(start: Callable[..., HistoryRecorder]) -> None:
    committed: list[tuple[int, StoredSession | None]] = []

    def acknowledge(number: int) -> None:
        committed.append((number, history.session(session("a"))))

    history: HistoryRecorder = start(acknowledge=acknowledge)
    history.accept(Batch("ingest", records=[opened("a")]))
    for number in (1, 2, 3):
        history.accept(Batch("ingest", records=[column("a", ["loss"], 4, number=number)], receipt=number))
    settle(history)
    assert [number for number, _ in committed] == [1, 2, 3]
    for number, known in committed:
        assert known is not None, "what is acknowledged can be read"
        assert known.committed >= number


def test_a_batch_that_is_not_yet_written_is_not_known(place: Path) -> None:
    recorder = HistoryRecorder(place, Bounds(0))  # never started
    recorder.accept(Batch("ingest", records=[opened("a"), column("a", ["loss"], 4)], receipt=1))
    assert recorder.session(session("a")) is None
    recorder.close()


def test_the_number_the_attempt_and_the_end_of_a_session_are_known(recorder: HistoryRecorder) -> None:
    write(recorder, opened("a", attempt=2), column("a", ["loss"], 4, number=7, attempt=2))
    assert recorder.session(session("a", 2)) == StoredSession(7, 2, unowned="a", run="a")
    assert recorder.session(session("b")) is None
    write(recorder, Event("a", 2, BEGIN, "rank_ended", 1, fields={"state": "finished"}))
    assert recorder.session(session("a", 2)) == StoredSession(7, 2, unowned="a", run="a"), "that was another rank"
    write(recorder, Event("a", 2, BEGIN, "rank_ended", 0, fields={"state": "lost"}))
    assert recorder.session(session("a", 2)) == StoredSession(7, 2, unowned="a", run="a"), (
        "who was thought lost may come back"
    )
    write(recorder, Event("a", 2, BEGIN, "rank_ended", 0, fields={"state": "failed"}))
    assert recorder.session(session("a", 2)) == StoredSession(7, 2, ended=True, unowned="a", run="a")


def test_the_last_attempt_of_a_run_and_its_end_are_known(recorder: HistoryRecorder) -> None:
    assert recorder.last_attempt("a") is None
    write(recorder, opened("a"))
    assert recorder.last_attempt("a") == (0, None)
    write(recorder, finished("a"), opened("a", attempt=1))
    assert recorder.last_attempt("a") == (1, None)
    write(recorder, finished("a", attempt=1))
    assert recorder.last_attempt("a") == (1, BEGIN + 1060.0)


def everybody(_: Identity) -> bool:
    return True


def test_runs_of_an_earlier_daemon_without_a_process_are_lost_when_they_last_pushed(
    start: Callable[..., HistoryRecorder],
) -> None:
    first = start()
    for run in ("gone", "lives", "ended"):
        write(first, opened(run), column(run, ["loss"], 11))
    write(first, opened("silent"), finished("ended"))
    second = start()
    second.abandon(lambda process: process.run != "lives")
    assert state(second, "gone") == ("lost", "", BEGIN + 10)
    assert state(second, "silent") == ("lost", "", BEGIN), "it never pushed, so it is when it began"
    assert state(second, "lives") == ("starting", "", None)
    assert state(second, "ended") == ("finished", "", BEGIN + 60)


def test_a_run_of_which_one_process_lives_is_not_lost(start: Callable[..., HistoryRecorder]) -> None:
    write(start(), opened("a", rank=0, world=2), opened("a", rank=1, world=2))
    second = start()
    alive = iter([True, False])
    second.abandon(lambda _: next(alive))
    assert state(second, "a")[0] == "starting"


def test_a_run_that_has_come_back_is_not_lost(start: Callable[..., HistoryRecorder]) -> None:
    write(start(), opened("a"))
    second = start()
    write(second, opened("a"))
    second.abandon(everybody)
    assert state(second, "a")[0] == "starting"


def test_a_run_that_comes_back_after_it_was_given_up_lives_again(start: Callable[..., HistoryRecorder]) -> None:
    write(start(), opened("a"))
    second = start()
    second.abandon(everybody)
    number, ended = second.last_attempt("a") or (None, None)
    assert (number, ended is not None) == (0, True), "its time is known once that is written"
    write(second, opened("a"), RunState("a", 0, "running"))
    assert state(second, "a") == ("running", "", None)
    assert second.last_attempt("a") == (0, None)
    second.abandon(everybody)
    assert state(second, "a")[0] == "running"


def test_a_run_that_was_given_up_has_ended_before_that_is_written(
    start: Callable[..., HistoryRecorder], place: Path
) -> None:
    first = start()
    write(first, opened("a"))
    first.stop()
    first.close()
    second = HistoryRecorder(place, Bounds(0))  # never started, as on a disk that is full
    second.abandon(everybody)
    assert second.last_attempt("a") == (0, 0.0)
    second.abandon(everybody)
    assert len(second.writer._queue) == 1, "and is given up once"
    second.close()


def test_gpu_and_host_are_stored_once_an_interval_while_a_run_lives_and_at_its_end_and_each_minute_without_one(
    start: Callable[..., HistoryRecorder],
) -> None:
    recorder = start(interval=10.0)
    for second in range(-130, 1):
        tick(recorder, float(second))
    write(recorder, opened("a"))
    for second in range(1, 36):
        tick(recorder, float(second))
    write(recorder, finished("a"))
    for second in range(36, 60):
        tick(recorder, float(second))
    times = [-130.0, -80.0, -20.0, 1.0, 10.0, 20.0, 30.0, 35.0, 36.0, 40.0]
    assert machine(recorder) == {
        'trackside_gpu_temperature_celsius{gpu="0"}': [50 + after for after in times],
        "trackside_host_cpu_seconds_total": times,
    }


def test_the_last_values_of_gpu_and_host_before_the_end_of_a_run_are_stored_with_its_end(
    start: Callable[..., HistoryRecorder],
) -> None:
    recorder = start(interval=10.0)
    write(recorder, opened("a"), opened("b"))
    for second in range(10):
        tick(recorder, float(second))
    write(recorder, finished("a"))
    write(recorder, finished("b"))
    assert [*machine(recorder).values()] == [[50.0, 59.0], [0.0, 9.0]]


def test_samples_that_come_more_seldom_than_the_interval_are_stored_each_time(
    start: Callable[..., HistoryRecorder],
) -> None:
    recorder = start(interval=1.0)
    write(recorder, opened("a"))
    for second in (0.0, 60.0, 120.0):
        tick(recorder, second)
    assert [len(values) for values in machine(recorder).values()] == [3, 3]


def test_of_several_runs_the_last_that_lives_keeps_gpu_and_host_going(recorder: HistoryRecorder) -> None:
    write(recorder, opened("a"), opened("b"), finished("a"))
    tick(recorder, 0.0)
    write(recorder, finished("b"))
    tick(recorder, 20.0)
    tick(recorder, 30.0)
    write(recorder, RunState("b", 0, "running"))
    tick(recorder, 40.0)
    assert machine(recorder, "b")["trackside_host_cpu_seconds_total"] == [0.0, 20.0, 40.0]


def test_labels_are_written_as_on_the_page(recorder: HistoryRecorder) -> None:
    write(recorder, opened("a"))
    recorder.accept(Batch("gpu", [Sample(HEAT, ('a "b"\\\n',), 1.0)], time=BEGIN))
    assert list(machine(recorder)) == ['trackside_gpu_temperature_celsius{gpu="a \\"b\\"\\\\\\n"}']


def test_an_unreadable_history_leaves_the_ends_of_runs_undecided(
    recorder: HistoryRecorder, caplog: pytest.LogCaptureFixture
) -> None:
    write(recorder, opened("a"))
    recorder.writer.call(lambda store: store.connection.execute("DROP TABLE stream")).result(DEADLINE)
    with pytest.raises(UnreadableError):
        recorder.session(session("a"))
    recorder.abandon(everybody)
    assert "no such table" in caplog.text
