"""Trimming: the file stays within its bounds, and the order of removal."""

from __future__ import annotations

import math
import os
import random
import shutil
from itertools import pairwise
from typing import TYPE_CHECKING

import layer_frames
import pytest
from history.builders import SECOND, SHIFT, WALL, Bench, block, check_tables, session_id
from session_records import batch_ingested

from trackside_daemon.history.directory import copy_directory
from trackside_daemon.history.layer_rows import MERGED
from trackside_daemon.history.read import layers, reader
from trackside_daemon.history.read.layers import LayerWindow
from trackside_daemon.history.record.maintenance import CATCH_UP, AgeClock
from trackside_daemon.history.record.trimming import STEP_BLOCKS, STEP_ROWS, WAL_BYTES, Bounds, Trimming
from trackside_daemon.linux import adjtimex
from trackside_daemon.model.records import Alert, Event, MachineSample

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

HOUR = 3600.0
DAY = 24 * HOUR


class Keeper:
    """A store that is trimmed by calls of the test."""

    def __init__(self, bench: Bench, size: int = 0, age: float = 0.0) -> None:
        self.bench = bench
        self.trimming = Trimming(bench.connection, bench.database.path, Bounds(size, age))

    def trim(self, now: float = WALL + 100 * DAY, *, until: Callable[[], bool] | None = None) -> None:
        """Trim as much as is due at a time, or until *until* returns true."""
        while True:
            with self.bench.database.transaction():
                deleted = self.trimming.deleted
                more = self.trimming.step(now)
                if self.trimming.deleted != deleted:
                    self.bench.store.reset()
            if not more or (until is not None and until()):
                return

    def blocks_by_run(self) -> dict[str, tuple[int, int]]:
        """Return, for each run, the number of blocks and the number of blocks with samples."""
        rows = self.bench.connection.execute(
            "SELECT uid, count(block.id), count(block.data) FROM run LEFT JOIN stream ON run = run.id LEFT JOIN series "
            "ON stream = stream.id LEFT JOIN block ON block.id >> 24 = series.id WHERE NOT deleted GROUP BY uid"
        )
        return {uid: (blocks, samples) for uid, blocks, samples in rows}


def push(bench: Bench, run: str, blocks: int, *, start: float = WALL, ended: float | None = None) -> None:
    """Push a run of *blocks* and a half full blocks of noise, over half a day."""
    number = len(bench.numbers) + 1
    session = session_id(number)
    bench.open(session, run=run, start=start)
    dice = random.Random(number)
    count = blocks * 4096 + 2048
    for first in range(0, count, 1024):
        steps = range(first, first + 1024)
        stamps = [round((start - WALL) * SECOND + step * (DAY / 2) / count * SECOND) for step in steps]
        bench.send(session, block(["a"], steps, [dice.random() for _ in steps], stamps))
    bench.pack(bench.stream(session))
    if ended is not None:
        bench.end(run, when=ended)
        bench.pack()


def wal_bytes(bench: Bench) -> int:
    """Return the size of the WAL."""
    return bench.database.path.with_name(f"{bench.database.path.name}-wal").stat().st_size


def keep_wal_small(bench: Bench) -> None:
    """Let the file alone count, nearly."""
    for small in ("wal_autocheckpoint = 4", "journal_size_limit = 16384", "wal_checkpoint(TRUNCATE)"):
        bench.connection.execute(f"PRAGMA {small}").fetchall()


@pytest.fixture
def four(bench: Bench) -> Bench:
    """Two ended runs, one pinned, and one that lives."""
    push(bench, "late", 4, start=WALL + DAY, ended=WALL + 9 * DAY)
    push(bench, "early", 4, start=WALL + 2 * DAY, ended=WALL + 5 * DAY)
    push(bench, "pinned", 4, ended=WALL + DAY)
    push(bench, "live", 4, start=WALL + 3 * DAY)
    with bench.database.transaction() as connection:
        connection.execute("UPDATE run SET pinned = 1 WHERE uid = 'pinned'")
    return bench


def test_what_goes_first_is_samples_of_ended_runs_then_of_live_ones_then_ended_runs(four: Bench) -> None:
    keeper = Keeper(four, size=1)
    seen: list[dict[str, tuple[int, int]]] = []

    def record_state() -> bool:
        if not seen or seen[-1] != keeper.blocks_by_run():
            seen.append(keeper.blocks_by_run())
        return False

    keeper.trim(until=record_state)
    p = (5, 5)
    assert seen == [
        {"early": (5, 0), "late": p, "live": p, "pinned": p},
        {"early": (5, 0), "late": (5, 0), "live": p, "pinned": p},
        *({"early": (5, 0), "late": (5, 0), "live": (5, left), "pinned": p} for left in (4, 3, 2, 1)),
        {"late": (5, 0), "live": (5, 1), "pinned": p},
        {"live": (5, 1), "pinned": p},
    ]
    check_tables(four.connection)


@pytest.mark.parametrize("flood", ["ended", "live", "events"])
def test_an_owner_of_more_than_a_share_loses_it_before_others_lose_anything(four: Bench, flood: str) -> None:
    """The others have older runs, ended ones, live ones and imported ones."""
    push(four, "flood", 0 if flood == "events" else 12, start=WALL + 9 * DAY)
    if flood == "ended":
        four.end("flood", when=WALL + 9.5 * DAY)
        four.pack()
    with four.database.transaction() as connection:
        connection.execute("UPDATE run SET pinned = 0, owner = 'uid:1' WHERE uid != 'pinned'")
        connection.execute("UPDATE run SET owner = NULL WHERE uid = 'late'")
        connection.execute("UPDATE run SET owner = 'uid:2' WHERE uid = 'flood'")
        (run,) = connection.execute("SELECT id FROM run WHERE uid = 'flood'").fetchone()
        event = "INSERT INTO event (run, attempt, rank, time, kind, fields) VALUES (?, 0, 0, ?, 'x', ?)"
        connection.executemany(event, [(run, WALL, f'"{"x" * 6000}"')] * (1000 if flood == "events" else 100))
    keep_wal_small(four)
    keeper = Keeper(four, size=four.database.path.stat().st_size // 2)
    before = keeper.blocks_by_run()
    keeper.trim()
    assert keeper.trimming.excess == 0
    assert keeper.blocks_by_run() | {"flood": before["flood"]} == before


def test_resolutions_stay_and_a_chart_still_works(four: Bench) -> None:
    before = four.chart(2, "a")
    wide = [four.chart(stream, "a").points for stream in (1, 2, 4)]
    keeper = Keeper(four, size=four.database.path.stat().st_size // 2)
    keeper.trim(until=lambda: keeper.blocks_by_run()["live"][1] == 2)
    for stream, points in zip((1, 2, 4), wide, strict=True):
        chart = four.chart(stream, "a")
        assert chart.trimmed
        assert min(point[2] for point in chart.points) == min(point[2] for point in points)
        assert max(point[3] for point in chart.points) == max(point[3] for point in points)
    assert before.samples == 4 * 4096 + 2048
    with four.database.reading() as connection:
        assert [reader.run(connection, uid)["trimmed"] for uid in ("early", "pinned", "live")] == [True, False, True]


def test_a_size_that_can_be_held_is_held_and_no_more_goes_than_must(four: Bench) -> None:
    keep_wal_small(four)
    size = four.database.path.stat().st_size * 3 // 4
    keeper = Keeper(four, size=size)
    keeper.trim()
    four.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    assert 0.85 * size <= keeper.trimming.size() <= size * 1.02
    assert keeper.trimming.excess == 0
    assert keeper.blocks_by_run()["pinned"] == (5, 5)


def test_a_limit_that_cannot_be_held_is_logged_once_and_counted(four: Bench, caplog: pytest.LogCaptureFixture) -> None:
    keeper = Keeper(four, size=100_000)
    for _ in range(3):
        keeper.trim()
    assert keeper.trimming.excess > 50_000
    assert len([one for one in caplog.records if "over storage.retention.size" in one.getMessage()]) == 1
    keeper.trimming.bounds = Bounds(2**30)
    keeper.trim()
    assert keeper.trimming.excess == 0


def test_free_pages_go_back_in_small_steps(four: Bench) -> None:
    four.apply(*(Event("early", 0, WALL, "x", fields={"text": "x" * 6000}) for _ in range(1000)))
    keeper = Keeper(four)
    before = keeper.trimming.size()
    four.connection.execute("UPDATE run SET deleted = 1 WHERE uid IN ('early', 'late')")
    sizes: list[int] = []

    def record_state() -> bool:
        sizes.append(four.connection.execute("PRAGMA page_count").fetchone()[0])
        return False

    keeper.trim(until=record_state)
    largest = max(earlier - later for earlier, later in pairwise(sizes))
    assert STEP_ROWS <= largest <= STEP_ROWS + 1, "with SQLite's own map of these pages"
    four.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    assert four.database.path.stat().st_size < before * 0.85 + STEP_ROWS * 4096
    assert set(keeper.blocks_by_run()) == {"live", "pinned"}
    check_tables(four.connection)


def test_runs_that_ended_long_ago_go_by_age_and_the_machine_with_them(four: Bench) -> None:
    for hour in range(5000):
        four.apply(MachineSample(WALL + hour * HOUR / 10, {"trackside_x": 1.0}))
    four.pack(0)
    four.apply(Alert("Hot", "page", WALL + 5.0, ended=WALL + 6.0), Alert("Now", "page", WALL + 5.0))
    keeper = Keeper(four, age=10 * DAY)
    keeper.trim(WALL + 15.5 * DAY)
    assert set(keeper.blocks_by_run()) == {"late", "pinned", "live"}
    four.connection.execute("UPDATE run SET pinned = 0")
    for _ in ("late", "pinned"):  # one at each check
        keeper.trim(WALL + 100 * DAY)
    assert keeper.blocks_by_run() == {"live": (5, 5)}
    alerts = four.connection.execute("SELECT alert FROM alert").fetchall()
    assert alerts[-1] == ("Now",)
    four.end("live", when=WALL + 20 * DAY)
    four.pack()
    keeper.trim(WALL + 101 * DAY)
    assert keeper.blocks_by_run() == {}
    assert four.connection.execute("SELECT alert FROM alert").fetchall() == [("Now",)]
    assert four.connection.execute("SELECT count(*) FROM block").fetchone()[0] == 0
    check_tables(four.connection)


def test_age_deletes_one_run_at_each_check_the_oldest_first(bench: Bench) -> None:
    for number in (3, 1, 2):
        push(bench, f"run {number}", 0, start=WALL + number * DAY, ended=WALL + (number + 1) * DAY)
    keeper = Keeper(bench, age=DAY)
    kept = []
    for _ in range(3):
        keeper.trim()
        kept.append(sorted(keeper.blocks_by_run()))
    assert kept == [["run 2", "run 3"], ["run 3"], []]


class Clocks:
    """The system's clock, the daemon's own time and whether the former is synchronized."""

    def __init__(self, bench: Bench, *, wall: float) -> None:
        self.wall = wall
        self.own = 0.0
        self.synchronized = True
        self.clock = AgeClock(bench.connection, lambda: self.own, lambda: self.synchronized)

    def age_time(self, seconds: float = 5.0, jump: float = 0.0) -> float:
        """Return the time for ages after the daemon lived for some seconds, and the clock jumped besides."""
        self.own += seconds
        self.wall += seconds + jump
        return self.clock.read(self.wall)


def test_a_clock_that_jumps_moves_ages_by_no_more_than_the_daemon_lived_through(bench: Bench) -> None:
    push(bench, "run", 0, ended=WALL + DAY)
    clocks = Clocks(bench, wall=WALL + DAY)
    assert clocks.age_time() == clocks.wall
    before = clocks.wall
    assert clocks.age_time(9, jump=1000 * DAY) == before + 9 * CATCH_UP
    assert clocks.age_time(9, jump=-1000 * DAY) == clocks.wall  # never ahead of the clock
    assert clocks.age_time(5, jump=-DAY) == clocks.wall
    assert clocks.age_time(5, jump=DAY) == clocks.wall  # as it was before


def test_a_clock_that_is_wrong_at_the_start_ages_from_the_newest_row(bench: Bench) -> None:
    push(bench, "ahead", 0, start=WALL + 900 * DAY, ended=WALL + 901 * DAY)
    push(bench, "newest", 0, ended=WALL + DAY)
    bench.apply(Event("newest", 0, WALL + 2 * DAY, "checkpoint"))
    clocks = Clocks(bench, wall=WALL + 1000 * DAY)
    assert clocks.age_time(9) == WALL + 2 * DAY + 9 * CATCH_UP
    clocks.synchronized = False
    assert clocks.age_time(9) == WALL + 2 * DAY + 9 * CATCH_UP + 9
    clocks.synchronized = True
    assert clocks.age_time(1000 * DAY) == clocks.wall


def test_where_the_kernel_does_not_report_whether_the_clock_is_synchronized_ages_do_not_catch_up(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(bench, "run", 0, ended=WALL + DAY)
    monkeypatch.setattr(adjtimex, "_libc", object())  # as on macOS
    own = iter((0.0, 5.0))
    assert AgeClock(bench.connection, lambda: next(own)).read(WALL + 2 * DAY) == WALL + DAY + 5


@pytest.mark.parametrize("by", ["user", "age", "size", "nothing"])
def test_what_deletes_a_run_or_its_samples_deletes_what_questions_wrote_about_the_history(
    by: str, four: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    copy = copy_directory(four.database.path.parent)
    others = tmp_path / "others"
    for path in (copy / "runs" / "date" / "one.parquet", copy.with_name("other") / "one", others / "date" / "one"):
        path.parent.mkdir(parents=True)
        path.touch()
    (copy / "link").symlink_to(others)
    if by == "user":
        four.connection.execute("UPDATE run SET deleted = 1 WHERE uid = 'early'")
    size = round(Keeper(four).trimming.used() * 0.9) if by == "size" else 0
    Keeper(four, size, 90 * DAY if by == "age" else 0.0).trim()
    assert copy.exists() == (by == "nothing")
    assert (others / "date" / "one").exists()
    assert copy.with_name("other").exists()
    if by == "nothing":
        shutil.rmtree(copy)
        copy.symlink_to(others)
        four.connection.execute("UPDATE run SET deleted = 1 WHERE uid = 'early'")
        Keeper(four).trim()
        assert (others / "date" / "one").exists()


def test_nothing_of_a_deleted_run_is_left_in_any_table(four: Bench) -> None:
    four.apply(Event("live", 0, 1.0, "x"), Alert("a", "b", 1.0, "live"), Event("late", 0, 1.0, "x"))
    four.send(session_id(4), block(["b"], [1], [1.0]))
    distributions = [layer_frames.frame(step, {"head": [1.0, 2.5]}) for step in range(9)]
    four.apply(batch_ingested(session_id(4), 10**6, distributions=distributions))
    keeper = Keeper(four)
    four.connection.execute("UPDATE run SET deleted = 1 WHERE uid = 'live'")
    four.store.reset()
    keeper.trim()
    tables = [row[0] for row in four.connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    for table in tables:
        columns = [row[1] for row in four.connection.execute(f"PRAGMA table_info({table})")]
        if "run" in columns:
            assert four.connection.execute(f"SELECT count(*) FROM {table} WHERE run = 4").fetchone()[0] == 0, table
        if "stream" in columns:
            assert four.connection.execute(f"SELECT count(*) FROM {table} WHERE stream = 4").fetchone()[0] == 0, table
    assert four.connection.execute("SELECT count(*) FROM run WHERE id = 4").fetchone()[0] == 0
    assert four.connection.execute("SELECT count(*) FROM log WHERE id >> 32 = 4").fetchone()[0] == 0
    check_tables(four.connection)


@pytest.mark.parametrize("rest", [0, 1])
def test_a_trimmed_run_retains_and_shows_merged_distributions_and_those_that_are_in_none(
    bench: Bench, rest: int
) -> None:
    push(bench, "run", 1)
    steps = MERGED * 2 + rest
    distributions = [layer_frames.frame(step, {"head": [1.0, step + 1.0]}) for step in range(steps)]
    bench.apply(batch_ingested(session_id(1), 10**6, distributions=distributions))
    bench.end("run", when=WALL + DAY)
    bench.pack()
    Keeper(bench, size=1).trim(until=lambda: bench.connection.execute("SELECT trimmed FROM run").fetchone() != (0,))
    kept = bench.connection.execute("SELECT level, number FROM distribution ORDER BY level, number").fetchall()
    assert kept == [(0, MERGED * 2), (1, 0), (1, 1)][1 - rest :]
    left = [MERGED - 1, MERGED * 2 - 1, MERGED * 2][: 2 + rest]
    for window in (
        LayerWindow("run", "weights"),
        LayerWindow("run", "weights", first=50.0, last=60.0 + steps, by="time"),
    ):
        drawn = layers.heat_map(bench.connection, window, "largest")
        assert (drawn["steps"], drawn["values"]) == (left, [[step + 1.0 for step in left]])
    assert layers.kinds(bench.connection, "run") == ["weights"]
    assert layers.newest(bench.connection, "run")["kinds"]["weights"]["step"] == left[-1]


def test_a_session_of_a_run_that_was_deleted_by_age_leaves_nothing_behind(bench: Bench) -> None:
    push(bench, "run", 1, ended=WALL + DAY)
    keeper = Keeper(bench, age=DAY)
    keeper.trim()
    bench.apply(batch_ingested(session_id(1), 10**6, [block(["a"], [1], [1.0])], SHIFT))
    bench.pack()
    check_tables(bench.connection)
    assert bench.connection.execute("SELECT count(*) FROM log").fetchone()[0] == 0


def test_a_run_that_was_trimmed_and_pushes_again_is_trimmed_again(bench: Bench) -> None:
    push(bench, "run", 2, ended=WALL + DAY)
    keeper = Keeper(bench, size=1)
    keeper.trim(until=lambda: keeper.blocks_by_run()["run"][1] == 0)
    keeper.trimming.restart()
    push(bench, "run", 2, ended=WALL + 2 * DAY)
    assert keeper.blocks_by_run()["run"][1] > 0
    keeper.trim(until=lambda: keeper.blocks_by_run()["run"][1] == 0)
    assert keeper.blocks_by_run()["run"][1] == 0


@pytest.mark.parametrize("change", ["pinned = 1", "ended = NULL", "deleted = 2"])
def test_a_run_that_is_pinned_resumed_or_deleted_meanwhile_is_not_trimmed_on(bench: Bench, change: str) -> None:
    push(bench, "run", STEP_BLOCKS + 4, ended=WALL + DAY)
    keeper = Keeper(bench, size=1)
    total = keeper.blocks_by_run()["run"][0]
    keeper.trim(until=lambda: keeper.blocks_by_run()["run"][1] < total)
    bench.connection.execute(f"UPDATE run SET {change}")
    keeper.trim(until=lambda: True)
    blocks, samples = bench.connection.execute("SELECT count(*), count(data) FROM block").fetchone()
    assert (blocks, samples) == (total, total - STEP_BLOCKS)
    bench.connection.execute("UPDATE run SET deleted = 1, pinned = 0, ended = 1")
    keeper.trim()
    check_tables(bench.connection)


def test_a_live_run_that_is_pinned_ended_or_deleted_meanwhile_is_not_trimmed_on(bench: Bench) -> None:
    for change in ("pinned = 1", "ended = 1", "deleted = 2"):
        push(bench, change, 6)
        keeper = Keeper(bench, size=1)
        total = keeper.blocks_by_run()[change][0]
        victims = keeper.trimming._trim_live(math.inf)
        with bench.database.transaction():
            while keeper.blocks_by_run()[change][1] == total:
                next(victims)
        bench.connection.execute(f"UPDATE run SET {change} WHERE uid = ?", (change,))
        with bench.database.transaction():
            assert list(victims) == []
        assert bench.connection.execute("SELECT count(data) FROM block").fetchone()[0] == total - 1, change
        bench.connection.execute("UPDATE run SET deleted = 1")
        keeper.trim()


def test_a_run_that_is_being_imported_neither_ages_nor_is_deleted(four: Bench) -> None:
    four.connection.execute("UPDATE run SET deleted = 2, pinned = 0")
    rows = four.connection.execute("SELECT count(*), count(data) FROM block").fetchone()
    Keeper(four, size=1, age=1.0).trim(WALL + 10**6 * DAY)
    assert four.connection.execute("SELECT count(*), count(data) FROM block").fetchone() == rows
    assert four.connection.execute("SELECT count(*) FROM run WHERE deleted = 2").fetchone()[0] == 4


@pytest.mark.parametrize("age", [1e13, 1e300, math.inf])
def test_an_age_beyond_all_time_retains_everything(age: float, four: Bench) -> None:
    four.apply(MachineSample(WALL, {"trackside_x": 1.0}))
    four.pack(0)
    keeper = Keeper(four, age=age)
    before = keeper.blocks_by_run()
    keeper.trim()
    assert keeper.blocks_by_run() == before


def test_nothing_is_deleted_while_a_reader_keeps_the_wal_from_shrinking(
    four: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    keeper = Keeper(four, size=1)
    before = keeper.blocks_by_run()
    with four.database.reading() as reading:
        reading.execute("SELECT count(*) FROM run").fetchone()
        number = 0.0
        while wal_bytes(four) <= 2 * WAL_BYTES:
            number += 1
            four.apply(Alert("A", "page", number, "live", summary="x " * 500_000))
        for after in (0.0, 10.0, 30.0, 60.0):
            keeper.trim(WALL + after)
    warnings = [one for one in caplog.records if "keeps the history open" in one.getMessage()]
    assert (keeper.blocks_by_run(), len(warnings)) == (before, 1)
    for _ in range(4):
        keeper.trim()
    assert set(keeper.blocks_by_run()) == {"live", "pinned"}


def test_a_wal_that_cannot_shrink_counts_no_more_than_it_may_have(four: Bench) -> None:
    keeper = Keeper(four)
    keeper.trim()
    four.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    before = keeper.trimming.used()
    with four.database.reading() as reading:
        reading.execute("SELECT count(*) FROM run").fetchone()
        while wal_bytes(four) <= 1.5 * WAL_BYTES:
            four.connection.execute("UPDATE block SET step = step + 1")
    assert keeper.trimming.used() == before + WAL_BYTES


def test_a_wal_that_one_large_transaction_made_is_no_reader(four: Bench, caplog: pytest.LogCaptureFixture) -> None:
    keeper = Keeper(four, size=1)
    four.apply(*(Alert("A", "page", float(number), "live", summary="x " * 500_000) for number in range(10)))
    assert wal_bytes(four) > 2 * WAL_BYTES
    for after in (0.0, 30.0, 60.0):
        keeper.trim(WALL + after)
    assert not [one for one in caplog.records if "keeps the history open" in one.getMessage()]
    assert set(keeper.blocks_by_run()) == {"live", "pinned"}


def test_the_blocks_of_many_keys_are_sought_in_steps(bench: Bench) -> None:
    steps = []
    bench.open(session_id(1))
    for keys in (1, 600):
        bench.send(session_id(1), block([f"k{number}" for number in range(keys)], [1], [0.0] * keys))
        bench.pack(1)
        ends: list[bool] = []
        Keeper(bench, size=1).trim(until=lambda ends=ends: ends.append(True))  # type: ignore[misc]
        steps.append(len(ends))
    assert steps[1] - steps[0] >= 2 * (600 // STEP_ROWS), "old blocks are sought, and then all"


def test_a_steady_load_stays_within_its_bound_for_a_month(bench: Bench, count: Callable[[int, int], int]) -> None:
    """Runs follow each other, half a day each, next to the machine's series; the bound is at most a day's data."""
    messages = count(8, 40)
    bound = messages * 600 * 1024
    days = count(2, 30)
    keeper = Keeper(bench, size=bound)
    keeper.trimming.bounds = Bounds(bound)
    dice = random.Random(1)
    noise = [dice.random() for _ in range(64 * 1024)]
    reached = False
    now = float(WALL)
    number = 0
    for day in range(days):
        for half in range(2):
            session = session_id(10_000 + 2 * day + half)
            run = f"run{day}.{half}"
            bench.open(session, run=run, start=now)
            for message in range(messages):
                number += 1
                step = DAY / 2 / messages
                stamps = [round((now - WALL) * SECOND + at * step / 4096 * SECOND) for at in range(4096)]
                at = dice.randrange(len(noise) - 4096 * 8)
                values = noise[at : at + 4096 * 8]
                keys = [f"k{one}" for one in range(8)]
                bench.apply(
                    batch_ingested(
                        session,
                        message + 1,
                        [block(keys, range(message * 4096, message * 4096 + 4096), values, stamps)],
                        SHIFT,
                    ),
                    MachineSample(now, {"trackside_x": 1.0}),
                )
                bench.pack()
                now += step
                keeper.trim(now)
                reached = reached or keeper.trimming.size() >= 0.9 * bound
                if reached:
                    assert keeper.trimming.size() <= 1.05 * bound
            bench.end(run, when=now)
            bench.pack()
        keeper.trim(now)
        if reached:
            bench.connection.execute("PRAGMA wal_checkpoint").fetchall()
            assert 0.9 * bound <= keeper.trimming.size() <= 1.05 * bound, (day, keeper.trimming.size() / bound)
    assert reached
    assert keeper.trimming.excess == 0
    check_tables(bench.connection)


def test_on_a_disk_with_little_room_the_file_stops_growing_and_loses_nothing_that_fits(
    four: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trackside_daemon.history.record.trimming.LEAST_BYTES", 1)
    free = shutil.disk_usage(four.database.path.parent).free
    keeper = Keeper(four)
    keeper.trimming.bounds = Bounds(0, min_free=2 * free)
    before = keeper.blocks_by_run()
    keeper.trim()
    keeper.trim()
    assert keeper.blocks_by_run() == before
    assert len([one for one in caplog.messages if "storage.min-free" in one]) == 1
    used = keeper.trimming.used()
    push(four, "new", 40, start=WALL + 4 * DAY)
    four.pack()
    keeper.trim()
    assert keeper.trimming.used() <= used / 0.97
    assert keeper.blocks_by_run()["new"][1] > 0, "the oldest made room"
    keeper.trimming.bounds = Bounds(0, min_free=1)
    push(four, "more", 40, start=WALL + 5 * DAY)
    four.pack()
    keeper.trim()
    assert keeper.trimming.used() > used / 0.97


def test_a_copy_of_an_older_schema_is_deleted_after_thirty_days(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    path = bench.database.path
    copies = [path.with_name(f"{path.name}.schema-{number}") for number in (2, 3)]
    for copy, days in zip(copies, (31, 29), strict=True):
        copy.touch()
        os.utime(copy, (WALL - days * DAY,) * 2)
    keeper = Keeper(bench)
    keeper.trim(WALL)
    assert [copy.exists() for copy in copies] == [False, True]
    assert f"{copies[0]} is deleted: it was copied more than 30 days ago" in caplog.messages
    keeper.trim(WALL + DAY + HOUR)
    assert not copies[1].exists()


def test_of_a_series_of_the_machine_that_ended_long_ago_nothing_is_left_and_it_may_begin_anew(bench: Bench) -> None:
    dead = {f'trackside_process_resident_memory_bytes{{pid="{number}"}}': 1.0 for number in range(3 * STEP_ROWS)}
    bench.apply(MachineSample(WALL, {**dead, "trackside_x": 1.0}))
    bench.pack(0)
    bench.apply(MachineSample(WALL + 90 * DAY, {"trackside_x": 2.0}))
    bench.pack(0)
    keeper = Keeper(bench, age=10 * DAY)
    for days, left in ((10.5, 1 + len(dead)), (11.5, 1)):  # its last block may be the one that is packed into
        keeper.trim(WALL + days * DAY)
        assert bench.connection.execute("SELECT count(*) FROM series").fetchone() == (left,)
    check_tables(bench.connection)
    steps: list[bool] = []
    bench.apply(MachineSample(WALL + 92 * DAY, dict.fromkeys(dead, 3.0)))
    bench.pack(0)
    keeper.trim(WALL + 92 * DAY, until=lambda: bool(steps.append(True)))  # type: ignore[func-returns-value]
    assert len(steps) >= len(dead) // STEP_ROWS, "old blocks are sought in steps"
    again = [bench.read(0, key) for key in ("trackside_x", next(iter(dead)))]
    assert [[value for *_, value in series] for series in again] == [[1.0, 2.0], [3.0]]
