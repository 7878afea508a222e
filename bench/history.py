"""Measure the history, compared with a table of plain rows: charts, bytes per sample, writing, waits of writes.

Run by ``make bench``; prints tables in Markdown.

"""

from __future__ import annotations

import random
import sqlite3
import statistics
import tempfile
import threading
import time
from array import array
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import histories
import httpx
from processes import ROOT, Daemon, eventually

from bench.table import head, row
from trackside.wire import Clock, Hello, Identity, Totals
from trackside_daemon.history.codec import BLOCK
from trackside_daemon.history.database import Database
from trackside_daemon.history.read import charts, reader, series
from trackside_daemon.history.read.series import Window
from trackside_daemon.history.record.trimming import Bounds
from trackside_daemon.history.record.writer import Writer
from trackside_daemon.model.columns import Columns
from trackside_daemon.model.records import BatchIngested, RunState, SessionOpened
from trackside_daemon.model.session import SessionRef

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trackside_daemon.history.record.store import RecordStore

ROWS = 512
SECOND = 1_000_000_000
BEGIN = 1_700_000_000 * SECOND
REPEATS = 30
LOGS = ROOT.parent / "shared" / "data" / "dev"


class Filling:
    """A run whose pushes are cheap to make: the same jittered times and values, shifted each time."""

    def __init__(self, writer: Writer, name: str, keys: list[str], noise: Callable[[], float]) -> None:
        self.writer = writer
        self.keys = keys
        self.session = SessionRef(name.encode().ljust(16, b"\0")[:16], name, name)
        self.number = self.rows = 0
        rng = random.Random(1)
        self._stamps = array("q", [row * SECOND // 10 + rng.randrange(4_000_000) for row in range(ROWS)])
        self._values = [array("d", [noise() for _ in range(ROWS * len(keys))]) for _ in range(16)]
        identity = Identity(run=name, name=name)
        hello = Hello(identity, Clock(BEGIN, 0), BEGIN, Totals())
        writer.put([SessionOpened(self.session, hello, BEGIN / SECOND)])

    def push(self, rows: int) -> BatchIngested:
        """Accept the next message, of *rows* pushes."""
        self.number += 1
        steps = array("q", range(self.rows, self.rows + rows))
        values = self._values[self.number % 16][: rows * len(self.keys)]
        columns = Columns(self.keys, steps, self._stamps[:rows], values)
        shift = BEGIN + self.rows * SECOND // 10
        self.rows += rows
        return BatchIngested(self.session, self.number, [columns], shift)

    def fill(self, rows: int) -> None:
        """Push rows as fast as they are accepted."""
        while self.rows < rows:
            measured = self.push(min(ROWS, rows - self.rows))
            eventually(self.writer.has_room) if not self.writer.has_room() else None
            self.writer.put([measured])

    def settle(self) -> None:
        """Wait until everything is packed."""
        self.writer.call(lambda _: None).result()
        eventually(lambda: self.writer.call(lambda store: not store.due).result(), 600)
        eventually(lambda: self.writer.call(free_pages).result() <= 2000, 600)


def free_pages(store: RecordStore) -> int:
    """Return the pages that packing left free for reuse or truncation."""
    return int(store.connection.execute("PRAGMA freelist_count").fetchone()[0])


def floats() -> Callable[[], float]:
    """Return values that fit float32, like the loss of a framework."""
    rng = random.Random(2)
    return lambda: array("f", [2.5 + rng.gauss(0, 0.1)])[0]


def timed(work: Callable[[], Any], repeats: int = REPEATS) -> tuple[float, Any]:
    """Return median milliseconds, and the last result."""
    times = []
    for _ in range(repeats):
        begun = time.perf_counter()
        found = work()
        times.append(time.perf_counter() - begun)
    return statistics.median(times) * 1000, found


def chart(database: Database, run: str, key: str, window: Window) -> charts.Chart:
    with database.reading() as connection:
        (found,) = reader.series(connection, run, [key])
        return charts.chart(connection, found.series, found.tail, window)


def windows(rows: int) -> Iterator[tuple[str, Window]]:
    """Return the whole range, and zooms down to single pixels."""
    yield "all", series.EVERYTHING
    for share in (0.3, 0.05, 0.005, 0.0002):
        low = int(rows * 0.437)
        high = low + int(rows * share)
        yield f"{share:.2%} by step", Window("step", low, high)
        yield f"{share:.2%} by time", Window("time", BEGIN / SECOND + low / 10, BEGIN / SECOND + high / 10)


def drawn(directory: Path, rows: int, keys: int) -> dict[str, tuple[float, int, int, float]]:
    """Return milliseconds per window: of the query, and through the API of a real daemon."""
    one = histories.History(directory / "history")
    database, writer = one.database, one.writer
    names = [f"key{number}" for number in range(keys)]
    filling = Filling(writer, "long", names, floats())
    begun = time.perf_counter()
    filling.fill(rows)
    filling.settle()
    took = time.perf_counter() - begun
    filling.fill(rows + -rows % BLOCK)  # a full block packs what came during the last packing, too
    filling.settle()
    filling.fill(filling.rows + 300)  # fresh ones, which are not packed
    writer.call(lambda _: None).result()
    print(f"\n{rows * keys / 1e6:,.0f} million samples, {keys} series: written and packed in {took:.1f} s.", flush=True)
    found = {}
    for name, window in windows(rows):
        asked, made = timed(partial(chart, database, "long", "key0", window))
        found[name] = asked, len(made.points), made.unit
    one.close()
    daemon = Daemon(directory, fresh=True)
    try:
        return {
            name: (*found[name], through_api(daemon, f"series?run=long&key=key0{question(window)}"))
            for name, window in windows(rows)
        }
    finally:
        daemon.stop()


def question(window: Window) -> str:
    return "" if window.whole else f"&by={window.by}&from={window.low}&to={window.high}"


def through_api(daemon: Daemon, path: str) -> float:
    token = (daemon.directory / "push.token").read_text().strip()
    with httpx.Client(trust_env=False, headers={"Authorization": f"Bearer {token}"}, timeout=60) as client:

        def ask() -> None:
            client.get(f"{daemon.url}/api/v1/{path}").raise_for_status()

        ask()
        return timed(ask)[0]


def plain(directory: Path, rows: int) -> tuple[float, float, float]:
    """Measure a table of rows: samples/s written, bytes per sample, milliseconds for a chart of all."""
    path = directory / "plain.db"
    with sqlite3.connect(path, isolation_level=None) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = normal")
        connection.execute("CREATE TABLE sample (series INTEGER, step INTEGER, time REAL, value REAL)")
        noise = floats()
        values = [noise() for _ in range(8192)]
        begun = time.perf_counter()
        for first in range(0, rows, ROWS * 20):
            many = range(first, min(rows, first + ROWS * 20))
            connection.execute("BEGIN")
            connection.executemany(
                "INSERT INTO sample VALUES (1, ?, ?, ?)", ((row, 1.7e9 + row / 10, values[row % 8192]) for row in many)
            )
            connection.execute("COMMIT")
        connection.execute("CREATE INDEX by_step ON sample (series, step)")
        took = time.perf_counter() - begun
        query = (
            "SELECT max(step), max(time), min(value), max(value) FROM sample WHERE series = 1 "
            f"GROUP BY step / {max(1, rows // 2000)}"
        )
        asked = timed(lambda: connection.execute(query).fetchall(), 3)[0]
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return rows / took, path.stat().st_size / rows, asked


def at_rest(keys: int, noise: Callable[[], float]) -> float:
    """Return bytes per sample of an ended run, with everything in the file included."""
    with tempfile.TemporaryDirectory(prefix="ts-") as place:
        one = histories.History(Path(place))
        filling = Filling(one.writer, "run", [f"metric{number}" for number in range(keys)], noise)
        filling.fill(2_000_000 // keys)
        one.put([RunState("run", 0, "finished", "", BEGIN / SECOND)])
        filling.settle()
        return closed_size(one) / (filling.rows * keys)


def closed_size(one: histories.History) -> int:
    """Return the size of the file after free pages were released and it was closed."""
    eventually(lambda: one.writer.call(free_pages).result() <= 256, 120)
    one.close()
    return one.database.path.stat().st_size


def logs() -> tuple[int, float] | None:
    """Return the number of samples of real training logs, and bytes per sample."""
    if not LOGS.is_dir():
        return None
    with tempfile.TemporaryDirectory(prefix="ts-") as place:
        one, samples = histories.History(Path(place)), 0
        for path in sorted(LOGS.glob("*/*.csv")):
            samples += one.import_file(path.read_bytes(), f"{path.parent.name}-{path.stem}.csv", begin=0.0).samples
        one.wait_until_packed()
        return samples, closed_size(one) / samples


def throughput() -> tuple[float, float]:
    """Return samples/s committed, and packed too, in steps of 20 values."""
    with tempfile.TemporaryDirectory(prefix="ts-") as place:
        with histories.history(Path(place)) as one:
            filling = Filling(one.writer, "run", [f"metric{number}" for number in range(20)], floats())
            begun = time.perf_counter()
            filling.fill(200_000)
            one.writer.call(lambda _: None).result()
            written = time.perf_counter() - begun
            one.wait_until_packed()
            packed = time.perf_counter() - begun
        return 4_000_000 / written, 4_000_000 / packed


def waits() -> list[float]:
    """Return milliseconds that a message waits for its acknowledgement while 1,000 keys of 4,096 samples are packed."""
    reported: dict[int, float] = {}
    arrived = threading.Event()

    def acknowledge(receipt: int) -> None:
        reported[receipt] = time.perf_counter()
        arrived.set()

    with tempfile.TemporaryDirectory(prefix="ts-") as place:
        database = Database(Path(place))
        writer = Writer(database, Bounds(0), acknowledge=acknowledge)
        writer.start()
        wide = Filling(writer, "wide", [f"metric{number}" for number in range(1000)], floats())
        small = Filling(writer, "small", ["loss"], floats())
        writer.call(lambda _: None).result()
        wide.fill(4096)
        found = []
        while writer.call(lambda store: bool(store.due)).result():
            arrived.clear()
            begun = time.perf_counter()
            writer.put([small.push(2)], small.number)
            arrived.wait(60)
            found.append((reported[small.number] - begun) * 1000)
        writer.stop()
        database.close()
    return found


def listing(directory: Path) -> tuple[float, float]:
    """Return milliseconds for the list of 10,000 runs: of the query, and through the API."""
    one = histories.History(directory / "history")
    database, writer = one.database, one.writer
    for number in range(10_000):
        name = f"run-{number:05}"
        hello = Hello(
            Identity(run=name, name=name), Clock(BEGIN, 0), BEGIN + number * SECOND, Totals(), tags=("sweep",)
        )
        eventually(writer.has_room)
        writer.put(
            [
                SessionOpened(SessionRef(name.encode().ljust(16), name, name), hello, 0.0),
                RunState(name, 0, "finished", "", 1.7e9 + number),
            ]
        )
    writer.call(lambda _: None).result()

    def read_runs() -> list[dict[str, Any]]:
        with database.reading() as connection:
            return reader.runs(connection)

    query, found = timed(read_runs)
    assert len(found) == 10_000
    one.close()
    daemon = Daemon(directory, fresh=True)
    try:
        return query, through_api(daemon, "runs")
    finally:
        daemon.stop()


def main() -> None:
    """Print the tables."""
    with tempfile.TemporaryDirectory(prefix="ts-", dir="/tmp") as place:
        several = {}
        for name, rows, keys in (("10", 10_000_000, 1), ("100", 10_000_000, 10)):
            directory = Path(place) / name
            directory.mkdir()
            several[name] = drawn(directory, rows, keys)
        rate, size, asked = plain(Path(place), 10_000_000)
        directory = Path(place) / "list"
        directory.mkdir()
        query, api = listing(directory)
    head(
        "window of 10,000,000 samples",
        *("buckets", "unit", "query, ms", "API, ms", "query with 100M in the file, ms", "API with 100M, ms"),
    )
    for name, (one, buckets, unit, through) in several["10"].items():
        ten, _, _, ten_through = several["100"][name]
        row(name, f"{buckets:,}", f"{unit:,}", *(f"{took:.1f}" for took in (one, through, ten, ten_through)))
    row("all, from plain rows with an index", "2,000", "", f"{asked:,.0f}", "", "", "")
    print(f"\nThe list of 10,000 runs: {query:.1f} ms in the query, {api:.1f} ms through the API.", flush=True)
    written, packed = throughput()
    rng, real = random.Random(3), logs()
    head("written", "samples/s", "bytes per sample")
    row("20 values per step, committed", f"{written:,.0f}", "")
    row("the same, packed", f"{packed:,.0f}", f"{at_rest(20, floats()):.2f}")
    row("one value per step, float32", "", f"{at_rest(1, floats()):.2f}")
    row("20 values per step, full float64", "", f"{at_rest(20, rng.random):.2f}")
    if real:
        row(f"{real[0]:,} samples of 137 real training logs", "", f"{real[1]:.2f}")
    row("plain rows with an index", f"{rate:,.0f}", f"{size:.1f}")
    held = sorted(waits())
    print(
        f"\nWhile the daemon packs 1,000 keys of 4,096 samples, it acknowledges a message after {statistics.median(held):.1f} ms "
        f"(p99 {held[int(len(held) * 0.99)]:.1f}, max {held[-1]:.1f}; {len(held)} messages)."
    )


if __name__ == "__main__":
    main()
