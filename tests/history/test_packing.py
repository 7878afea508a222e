"""Packing: however it is cut and interrupted, readers get the samples that were appended."""

from __future__ import annotations

import itertools
import math
import random
import time
import tracemalloc
from typing import TYPE_CHECKING

import pytest
from history.builders import SHIFT, Bench, block, check_tables, session_id
from processes import DEADLINE

from trackside_daemon.history import log_rows
from trackside_daemon.history.record import maintenance, packing
from trackside_daemon.history.record.maintenance import Maintenance
from trackside_daemon.history.record.packing import Packing, PackingLimits
from trackside_daemon.history.record.trimming import Bounds

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trackside.wire import Block

VALUES: tuple[Callable[[random.Random], float], ...] = (
    lambda dice: dice.gauss(0, 1),
    lambda dice: round(dice.gauss(2, 1), 3),
    lambda dice: dice.choice((math.nan, math.inf, -math.inf, -0.0, 1e308, -1e308)),
    lambda dice: float(dice.randrange(9)),
    lambda _: math.nan,
)


class Pusher:
    """A source of random pushes: keys that come and go, several sessions and ranks, steps that fall and repeat."""

    def __init__(self, bench: Bench, dice: random.Random, *, most: int) -> None:
        self.bench = bench
        self.dice = dice
        self.most = most
        self.sessions: list[bytes] = []
        self.at = 0
        self.keys = [f"k{number}" for number in range(dice.randint(1, 7))]
        self.habit = dice.choice((0.0, 0.1, 0.5, 0.9))
        for _ in range(dice.randint(1, 3)):
            self.join()

    def join(self) -> None:
        """Open another session, of the first rank or the second."""
        self.sessions.append(session_id(len(self.sessions)))
        self.bench.open(self.sessions[-1], rank=self.dice.randrange(2))

    def push(self) -> None:
        """Send another message."""
        blocks = [self.block() for _ in range(self.dice.choice((1, 1, 1, 2, 3)))]
        self.bench.send(self.dice.choice(self.sessions), *blocks, shift=SHIFT + self.dice.choice((0, -7, 10**12)))

    def block(self) -> Block:
        """Return some pushes of the same keys."""
        dice = self.dice
        some = self.keys if dice.random() > self.habit else dice.sample(self.keys, dice.randint(1, len(self.keys)))
        count = dice.choice((1, 1, 3, dice.randint(1, self.most), 16))
        first = self.at if dice.random() < 0.8 else dice.randrange(-50, self.at + 50)
        self.at = first + count
        stride = dice.choice((1, 1, 1, 0, -1, 100))
        value = dice.choice(VALUES)
        steps = [first + stride * number for number in range(count)]
        return block(
            some,
            steps,
            [value(dice) for _ in range(count * len(some))],
            [self.at * 10**8 + dice.randrange(10**6) for _ in range(count)],
        )


@pytest.mark.parametrize("seed", range(4))
def test_what_is_read_is_what_was_appended_whatever_happens_between(
    seed: int, place: Path, small: int, count: Callable[[int, int], int]
) -> None:
    for number in range(count(5, 300)):
        (place / str(number)).mkdir()
        bench = Bench(place / str(number))
        bench.limits = PackingLimits(bytes=1500, rows=3)
        dice = random.Random(f"{seed} {number}")
        pusher = Pusher(bench, dice, most=40)
        for _ in range(40):
            event = dice.random()
            if event < 0.6:
                pusher.push()
            elif event < 0.85:
                bench.step(bench.stream(dice.choice(pusher.sessions)))
            elif event < 0.89:
                bench.rolled_back(dice.randint(1, 4), bench.stream(dice.choice(pusher.sessions)))
            elif event < 0.92:
                bench.reopen()
            elif event < 0.95:
                bench.pack(bench.stream(dice.choice(pusher.sessions)))
            elif event < 0.97:
                pusher.join()
            else:
                bench.check()
        bench.check()
        bench.end()
        bench.pack()
        bench.check()
        assert bench.connection.execute("SELECT count(*) FROM log").fetchone()[0] == 0
        full = f"SELECT count(*) FROM block WHERE count < {small} AND id + 1 IN (SELECT id FROM block)"
        assert bench.connection.execute(full).fetchone()[0] == 0
        counts = bench.connection.execute("SELECT stream, key, count FROM series").fetchall()
        assert {(stream, key): many for stream, key, many in counts} == {
            name: len(rows_) for name, rows_ in bench.pushed.items()
        }
        bench.close()


@pytest.mark.parametrize("seed", range(2))
def test_so_it_is_with_blocks_of_4096(seed: int, bench: Bench, count: Callable[[int, int], int]) -> None:
    dice = random.Random(seed)
    pusher = Pusher(bench, dice, most=5000)
    for _ in range(count(8, 100)):
        pusher.push()
        if dice.random() < 0.4:
            bench.pack()
        if dice.random() < 0.2:
            bench.step(bench.stream(pusher.sessions[0]))
    bench.check()
    bench.end()
    bench.pack()
    bench.check()
    assert bench.connection.execute("SELECT count(*) FROM log").fetchone()[0] == 0


def test_a_key_that_a_second_packing_does_not_meet_is_left_as_the_first_made_it(bench: Bench) -> None:
    """The first packing was interrupted before it dropped the log, so the second finds old rows of the key alone."""
    bench.open(session_id(1))
    bench.send(session_id(1), block(["a", "b"], [1, 2], [1.0, 2.0, 3.0, 4.0]))
    bench.step(1)
    bench.reopen()
    bench.send(session_id(1), block(["b"], [3], [5.0]))
    bench.pack(1)
    bench.check()


def test_sums_beyond_float64_in_both_directions_are_packed_all_the_same(bench: Bench) -> None:
    bench.open(session_id(1))
    for sign in (1, -1, 1):
        bench.send(session_id(1), block(["a"], [1, 2, 3], [sign * 1.7e308] * 3))
        bench.pack(1)
    bench.check()


def test_keys_that_are_pushed_together_share_their_axis(bench: Bench) -> None:
    bench.open(session_id(1))
    for first in range(0, 6000, 500):
        bench.send(session_id(1), block(["a", "b", "c"], range(first, first + 500), [0.5] * 1500))
        bench.pack(1)
    bench.check()
    assert bench.connection.execute("SELECT count(*), sum(blocks) FROM axis").fetchone() == (2, 6)


def test_what_comes_after_a_trimmed_last_block_begins_a_block_of_its_own(bench: Bench) -> None:
    bench.open(session_id(1))
    bench.send(session_id(1), block(["a"], range(100), [1.0] * 100))
    bench.pack(1)
    with bench.database.transaction() as connection:
        connection.execute("UPDATE block SET data = NULL")
        packing.release(connection, {1: (0, 1)})
    bench.pushed.clear()
    for _ in range(2):
        bench.send(session_id(1), block(["a"], range(100, 150), [2.0] * 50))
        bench.check()
        bench.pack(1)
    bench.check()
    assert bench.connection.execute("SELECT id & 0xFFFFFF, count FROM block").fetchall() == [(0, 100), (1, 100)]


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE block SET data = x'66'",
        "UPDATE block SET data = x'0102'",
        "UPDATE axis SET data = x'ffffffff'",
        "UPDATE axis SET data = NULL",
        "DELETE FROM axis",
        "UPDATE log SET data = x'93'",
    ],
)
def test_damage_that_packing_meets_is_a_value_error(damage: str, bench: Bench) -> None:
    bench.open(session_id(1))
    bench.send(session_id(1), block(["a"], range(100), [1 / 3] * 100))
    bench.pack(1)
    bench.send(session_id(1), block(["a"], range(100), [1 / 3] * 100))
    bench.apply()
    bench.connection.execute(damage)
    with pytest.raises(ValueError, match=r"damaged|missing|integers|unknown"):
        bench.pack(1)


def test_a_message_with_many_keys_is_packed_a_key_at_a_time(bench: Bench) -> None:
    bench.open(session_id(1))
    keys = [f"layer.{number}" for number in range(1000)]
    bench.send(session_id(1), block(keys, [1, 2], [float(number) for number in range(2000)]))
    with bench.database.transaction() as connection:
        work = Packing(connection, 1)
        steps = 1
        while work.step():
            assert connection.execute("SELECT count(*) FROM block").fetchone()[0] == steps
            steps += 1
    assert steps == 1001
    bench.check()


def test_a_large_log_is_read_and_dropped_in_slices_and_packed_in_batches(bench: Bench, read_rows: list[int]) -> None:
    bench.limits = PackingLimits(bytes=64 * 1024)
    bench.open(session_id(1))
    for number in range(200):
        bench.send(session_id(1), block(["a", "b"], range(50 * number, 50 * number + 50), [0.5] * 100))
    for number in range(200, 210):
        bench.send(session_id(1), block(["a"], range(50 * number, 50 * number + 5000), [0.5] * 5000))
    count = "SELECT count(*) FROM log"
    blocks = "SELECT count(*) FROM block"
    left = [bench.connection.execute(count).fetchone()[0]]
    made = [0]
    held = 0
    more = True
    while more:
        before = len(read_rows)
        more = bench.step(1)
        left.append(bench.connection.execute(count).fetchone()[0])
        made.append(bench.connection.execute(blocks).fetchone()[0])
        assert len(read_rows) - before <= bench.limits.rows, "rows in a step"
        assert left[-2] - left[-1] <= bench.limits.rows
        assert made[-1] - made[-2] <= 2
        held = max(held, len(read_rows) - (left[0] - left[-1]))
    assert left[-1] == 0
    assert held <= bench.limits.rows, "rows that are read and not yet deleted: the first slice has the bytes of a batch"
    bench.check()


def test_packing_keys_without_end_needs_memory_for_some_of_them(bench: Bench) -> None:
    bench.open(session_id(1))
    for number in range(40):
        bench.send(session_id(1), block([f"{number}/{key}" for key in range(100)], [number], [0.5] * 100))
    tracemalloc.start()
    try:
        with bench.database.transaction() as connection:
            work = Packing(connection, 1, PackingLimits(columns=300, rows=4))
            while work.step():
                pass
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert bench.connection.execute("SELECT count(*) FROM series").fetchone()[0] == 4000
    assert bench.connection.execute("SELECT count(*) FROM log").fetchone()[0] == 0
    assert peak < 750_000, peak


def test_rows_that_come_while_a_log_is_packed_are_left_to_the_next_packing(bench: Bench) -> None:
    bench.open(session_id(1))
    for number in range(100):
        bench.send(session_id(1), block(["a", "b"], [number], [0.5, 1.0]))
    for number in range(100, 110):
        assert bench.step(1) == (number < 104), number
        if bench.packing is None:
            break
        bench.send(session_id(1), block(["a", "c"], [number], [0.5, 1.0]))
        bench.check()
    assert bench.connection.execute("SELECT count(*) FROM log").fetchone()[0] == 4
    bench.check()


def test_nothing_to_pack_changes_nothing(bench: Bench) -> None:
    bench.open(session_id(1))
    bench.pack(1)
    assert bench.connection.execute("SELECT count(*) FROM series").fetchone()[0] == 0
    check_tables(bench.connection)
    assert log_rows.decode(log_rows.encode([]), 0) == []


@pytest.mark.usefixtures("small")
def test_a_slice_with_enough_time_packs_all(bench: Bench) -> None:
    bench.open(session_id(1))
    for step in range(40):
        bench.send(session_id(1), block(["a"], [step], [1.0]))
    bench.end()
    upkeep = Maintenance(bench.database, bench.store, Bounds(2**33), slice_seconds=DEADLINE)
    assert not upkeep.is_idle()
    with bench.database.transaction():
        assert not upkeep.run_slice(0.0, lambda: False)
    assert upkeep.is_idle()
    bench.check()


@pytest.mark.usefixtures("small")
def test_the_backlog_falls_while_one_stream_is_packed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance.Maintenance, "_trim", lambda *_: False)
    bench.open(session_id(1))
    keys = [f"k{number}" for number in range(50)]
    for step in range(40):
        bench.send(session_id(1), block(keys, [step], [1.0] * len(keys)))
    bench.end()
    upkeep = Maintenance(bench.database, bench.store, Bounds(2**33), slice_seconds=1.5)
    monkeypatch.setattr(time, "monotonic", map(float, itertools.count(1)).__next__)  # a second a look: one step a slice
    backlogs: list[int] = []
    more = True
    while more:
        assert not upkeep.is_idle()
        backlogs.append(upkeep.backlog)
        with bench.database.transaction():
            more = upkeep.run_slice(0.0, lambda: False)
    assert backlogs == sorted(backlogs, reverse=True)
    assert len(set(backlogs)) > len(keys)
