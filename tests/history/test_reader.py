"""Queries about runs."""

from __future__ import annotations

import json
import time
import tracemalloc
from contextlib import nullcontext
from itertools import islice
from math import nan
from typing import TYPE_CHECKING, Any

import pytest
from histories import column, finished, history, opened
from history.builders import SECOND, WALL, block, instructions, session_id

from trackside.wire import ProcessInfo
from trackside_daemon.history.files.selection import count
from trackside_daemon.history.read import attempts, reader
from trackside_daemon.history.read.live_values import KEYS, LatestValues
from trackside_daemon.history.read.reader import RunFilter, UnknownRunError
from trackside_daemon.model.records import Event

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

    from history.builders import Bench


@pytest.fixture
def three(bench: Bench) -> Bench:
    """Three runs: the oldest has ended, the second is tagged, and the third has two ranks."""
    bench.open(session_id(1), run="aa1", name="mnist", start=WALL)
    bench.open(
        session_id(2), run="aa2", name="mnist", start=WALL + 10.0, tags=("big", "x"), about=ProcessInfo(launch="l1")
    )
    bench.open(session_id(3), run="b", name="100%_gpt", start=WALL + 20.0)
    bench.open(session_id(4), run="b", name="100%_gpt", start=WALL + 20.0, rank=1)
    bench.end("aa1", when=WALL + 5.0)
    return bench


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (RunFilter(), ["b", "aa2", "aa1"]),
        (RunFilter(limit=2), ["b", "aa2"]),
        (RunFilter(name="mni"), ["aa2", "aa1"]),
        (RunFilter(name="aa"), ["aa2", "aa1"]),
        (RunFilter(name="%"), ["b"]),
        (RunFilter(name="_"), ["b"]),
        (RunFilter(name="'"), []),
        (RunFilter(tag="x"), ["aa2"]),
        (RunFilter(tag="bi"), []),
        (RunFilter(launch="l1"), ["aa2"]),
        (RunFilter(launch="l"), []),
        (RunFilter(state="finished"), ["aa1"]),
        (RunFilter(since=WALL + 10.0), ["b", "aa2"]),
        (RunFilter(until=WALL + 10.0), ["aa2", "aa1"]),
        (RunFilter(name="mnist", until=WALL + 1.0, limit=1), ["aa1"]),
    ],
)
def test_runs_are_found_by_what_they_are(wanted: RunFilter, found: list[str], three: Bench) -> None:
    with three.database.reading() as connection:
        assert [one["id"] for one in reader.runs(connection, wanted)] == found


@pytest.mark.parametrize(("text", "run"), [("aa1", "aa1"), ("mnist", "aa2"), ("b", "b"), ("100%_gpt", "b")])
def test_a_run_is_named_by_its_id_or_its_name(text: str, run: str, three: Bench) -> None:
    with three.database.reading() as connection:
        assert reader.resolve(connection, text) == run


@pytest.mark.parametrize("text", ["", "aa", "a%", "zzz"])
def test_a_name_of_no_run_or_of_several_is_reported(text: str, three: Bench) -> None:
    with three.database.reading() as connection, pytest.raises(UnknownRunError):
        reader.resolve(connection, text)


def metrics(bench: Bench, run: str = "b") -> dict[tuple[str, int], dict[str, Any]]:
    """Return the summary of each series of a run, by key and rank."""
    with bench.database.reading() as connection:
        reported = reader.run(connection, run)
    json.dumps(reported, allow_nan=False)
    return {(one["key"], one["rank"]): one for one in reported["metrics"]}


def test_a_metric_reads_the_same_fresh_or_packed_or_half(three: Bench) -> None:
    three.send(session_id(3), block(["a", "n"], [1, 2], [1.0, nan, 3.0, nan]))
    three.send(session_id(3), block(["a"], [3], [-5.0]))
    three.send(session_id(4), block(["a"], [9], [float("inf")]))
    fresh = metrics(three)
    with three.database.reading() as connection:
        run = reader.run(connection, "b")
    assert (run["step"], run["loss"]) == (9, None), "also of what is in the log still"
    stream = three.stream(session_id(3))
    three.step(stream)
    assert metrics(three) == fresh
    three.pack(stream)
    three.pack(three.stream(session_id(4)))
    assert metrics(three) == fresh
    assert {name: fresh["a", 0][name] for name in ("count", "min", "max", "last", "last_step")} == {
        "count": 3,
        "min": -5.0,
        "max": 3.0,
        "last": -5.0,
        "last_step": 3,
    }
    assert fresh["a", 0]["mean"] == pytest.approx(-1 / 3)
    assert (fresh["n", 0]["min"], fresh["n", 0]["mean"], fresh["n", 0]["last"]) == ("nan", "nan", "nan")
    assert (fresh["a", 1]["max"], fresh["a", 1]["mean"]) == ("inf", "nan")
    three.send(session_id(3), block(["a"], [4], [7.0]))
    assert (metrics(three)["a", 0]["count"], metrics(three)["a", 0]["max"]) == (4, 7.0)


def test_a_million_keys_are_read_a_page_at_a_time(bench: Bench) -> None:
    """A run of a million keys once needed 1.5 GB for one answer."""
    bench.open(session_id(1))
    with bench.database.transaction() as connection:
        keys = ((1, f"a key that is one of very many, number {number}") for number in range(30_000))
        connection.executemany("INSERT INTO series (stream, key) VALUES (?, ?)", keys)
    bench.send(session_id(1), block(["loss"], [7], [1.0]))
    with bench.database.reading() as connection:
        reader.run(connection, "run", 0)
        tracemalloc.start()
        try:
            page = reader.run(connection, "run", 10, 29_995)
            assert len(list(islice(reader.series(connection, "run"), 10))) == 10
            values = LatestValues("run")
            values.refresh(connection)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert [metric["key"][-5:] for metric in page["metrics"]] == [*map(str, range(29_995, 30_000)), "loss"]
    assert (page["series"], page["step"], page["loss"]) == (30_001, 7, 1.0)
    assert peak < 1_000_000, peak


def test_pages_have_each_metric_once_and_begin_with_the_lowest_rank_and_its_newest_attempt(bench: Bench) -> None:
    places = [(attempt, rank) for attempt in (0, 1) for rank in (0, 1)]
    for number, (attempt, rank) in enumerate(places):
        bench.open(session_id(number), attempt=attempt, rank=rank)
        bench.send(session_id(number), block(["a", "b"], [1], [1.0, 2.0]))
        if attempt:
            bench.pack(bench.stream(session_id(number)))
            bench.send(session_id(number), block(["b", "c"], [2], [1.0, 2.0]))
    with bench.database.reading() as connection:
        pages = [reader.run(connection, "run", 3, offset) for offset in range(0, 12, 3)]
        (whole,) = {len(page["metrics"]) for page in [reader.run(connection, "run")]}
    read = [(one["attempt"], one["rank"], one["key"]) for page in pages for one in page["metrics"]]
    assert whole == pages[0]["series"] == len(read) == len(set(read)) == 10
    assert read[:3] == [(1, 0, "a"), (1, 0, "b"), (1, 0, "c")]


def test_the_newest_values_are_those_of_a_bounded_number_of_keys(bench: Bench) -> None:
    bench.open(session_id(1))
    keys = [f"k{number}" for number in range(KEYS + 1)]
    bench.send(session_id(1), block(keys, [1], [1.0] * len(keys)))
    values = LatestValues("run")
    with bench.database.reading() as connection:
        values.refresh(connection)
    assert list(values.values) == keys[:KEYS]


@pytest.mark.parametrize("key", ["train/loss", "Loss/train"])
def test_the_list_has_step_and_loss_before_anything_is_packed(bench: Bench, key: str) -> None:
    """A run that was imported once had neither for some seconds."""
    bench.open(session_id(1))
    bench.send(session_id(1), block([key, "x"], [7], [1.5, 2.0]))
    with bench.database.reading() as connection:
        (run,) = reader.runs(connection)
    assert (run["step"], run["loss"]) == (7, 1.5)


def test_series_are_of_the_lowest_rank_unless_asked(three: Bench) -> None:
    three.send(session_id(3), block(["a", "b"], [1], [1.0, 2.0]))
    three.send(session_id(4), block(["a"], [1], [1.0]))
    with three.database.reading() as connection:
        found = reader.series(connection, "b")
        assert [(one.rank, one.series.key) for one in found] == [(0, "a"), (0, "b")]
        found = reader.series(connection, "b", ["a"], ())
        assert [(one.rank, one.series.key) for one in found] == [(0, "a"), (1, "a")]
        assert [one.rank for one in reader.series(connection, "b", None, [1])] == [1]
        assert list(reader.series(connection, "b", attempt=1)) == []


def test_the_last_attempt_and_its_processes_are_read(three: Bench) -> None:
    with three.database.reading() as connection:
        assert attempts.last_attempt(connection, "aa1") == (0, 1_700_000_005.0)
        assert attempts.last_attempt(connection, "b") == (0, None)
        assert attempts.last_attempt(connection, "zzz") is None
        assert sorted(one.run for _, one in attempts.unended(connection)) == ["aa2", "b", "b"]
        assert attempts.stored_session(connection, b"?" * 16) is None
        with pytest.raises(UnknownRunError):
            reader.run(connection, "zzz")


def test_reading_many_fresh_series_costs_no_more_than_they_are(bench: Bench) -> None:
    bench.open(session_id(1), run="few")
    bench.open(session_id(2), run="many")
    for number, size in ((1, 200), (2, 1600)):
        keys = [f"layer/{key}/grad_norm" for key in range(size)]
        for step in range(30):
            bench.send(session_id(number), block(keys, [step], [0.5] * size))

    def seconds(work: Callable[[sqlite3.Connection], object]) -> float:
        begun = time.thread_time()
        with bench.database.reading() as connection:
            work(connection)
        return time.thread_time() - begun

    for reported in (reader.run, lambda connection, run: attempts.last_time(connection, run, 0), counted):
        few, many = (
            min(seconds(lambda connection, reported=reported, run=run: reported(connection, run)) for _ in range(3))  # type: ignore[misc]
            for run in ("few", "many")
        )
        assert many < 24 * few + 0.05, "eight times the keys; quadratic would be 64 times the cost"


def counted(connection: sqlite3.Connection, run: str) -> None:
    """Check that an export of a run is not empty."""

    class Open:
        def reading(self) -> AbstractContextManager[sqlite3.Connection]:
            return nullcontext(connection)

    assert count(Open(), run)


def test_the_last_time_is_that_of_the_newest_push_packed_or_not(three: Bench) -> None:
    def last() -> float:
        with three.database.reading() as connection:
            return attempts.last_time(connection, "b", 0)

    assert last() == WALL + 20.0
    three.send(session_id(3), block(["a"], [1, 2], [1.0, 2.0], [50 * SECOND, 40 * SECOND]))
    assert last() == WALL + 50.0
    three.pack(three.stream(session_id(3)))
    assert last() == WALL + 50.0
    three.send(session_id(4), block(["a"], [1], [1.0], [60 * SECOND]))
    assert last() == WALL + 60.0


def test_a_list_asks_once_for_all_runs_that_have_pushed_nothing(three: Bench) -> None:
    statements: list[str] = []
    with three.database.reading() as connection:
        connection.set_trace_callback(statements.append)
        assert [one["step"] for one in reader.runs(connection)] == [None] * 3
        connection.set_trace_callback(None)
    assert len(statements) == 1


def test_what_comes_after_the_end_of_a_run_counts_in_lists_too(tmp_path: Path) -> None:
    with history(tmp_path) as one:
        one.put([opened("a"), column("a", ["loss"], 10), finished("a", state="failed", cause="SIGKILL")])
        one.wait_until_packed()
        one.put([column("a", ["loss"], 12, number=2)])
        one.put([column("a", ["loss"], 14, number=3)])
        one.wait_until_packed()
        with one.database.reading() as connection:
            (listed,) = reader.runs(connection)
            assert (listed["step"], listed["loss"]) == (13, 13.0)
            assert reader.newest(connection, "a") == {"step": 13, "loss": 13.0}


def test_the_newest_values_are_also_those_of_rows_that_were_packed_since_the_last_reading(bench: Bench) -> None:
    bench.open(session_id(1))
    values = LatestValues("run")

    def newest() -> dict[str, tuple[int, float | None]]:
        with bench.database.reading() as connection:
            values.refresh(connection)
        return {key: (ranks[0].step, ranks[0].value) for key, ranks in values.values.items()}

    bench.send(session_id(1), block(["loss"], [1], [3.0]))
    assert newest() == {"loss": (1, 3.0)}
    bench.send(session_id(1), block(["val"], [2], [0.5]))
    bench.send(session_id(1), block(["loss"], [3], [2.0]))
    bench.pack(1)
    assert newest() == {"loss": (3, 2.0), "val": (2, 0.5)}
    bench.send(session_id(1), block(["val"], [4], [0.25]))
    bench.pack(1)
    bench.send(session_id(1), block(["loss"], [5], [1.0]))
    assert newest() == {"loss": (5, 1.0), "val": (4, 0.25)}


def test_the_events_of_a_run_are_found_without_a_reading_of_all_others(three: Bench) -> None:
    three.apply(*(Event("b", 0, WALL + 1.0, "note", step=step) for step in range(1000)), Event("aa1", 0, 1.0, "own"))
    with three.database.reading() as connection:
        assert [event["kind"] for event in reader.events(connection, "aa1")] == ["own"]
        assert [event["step"] for event in reader.events(connection, "b", 2)] == [998, 999]
        assert [event["kind"] for event in reader.events(connection, limit=2)] == ["note", "own"]
        assert instructions(connection, lambda: reader.events(connection, "aa1")) < 1000
