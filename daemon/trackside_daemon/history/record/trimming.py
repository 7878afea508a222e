"""Keeps the history within its bounds, in steps so small that the writing beside them never waits for long.

What goes first: samples of the oldest ended runs; samples of the oldest part of live runs and of the host; ended runs
whole. What stays of a run without samples are its cells, a sixteenth of it or less. Pinned runs keep everything.
"""

from __future__ import annotations

import heapq
import logging
from typing import TYPE_CHECKING, NamedTuple

from trackside_daemon.history.codec import BLOCK
from trackside_daemon.history.database import PAGE_BYTES, WAL_PAGES
from trackside_daemon.history.record.packing import release
from trackside_daemon.history.schema import BLOCK_BITS, HOST, LOG_BITS

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator
    from pathlib import Path

STEP_BLOCKS = 16
"""Blocks that one step trims or deletes."""

STEP_ROWS = 256
"""Rows of other tables, and pages given back to the file system, in one step."""

LIVE_SECONDS = 3600.0
"""The newest hour of live runs is the last to go."""

SLACK = 0.97
"""Of the bound is trimmed to, so that what arrives meanwhile fits."""

FREE = 0.02
"""So much of the file may be free, for what comes next."""

WAL_BYTES = WAL_PAGES * PAGE_BYTES
"""So much of the WAL counts. It is larger only while somebody reads, and then nothing that is deleted makes it smaller."""

HELD_SECONDS = 20.0
"""A WAL that is too large for so long is told of."""

MICROSECONDS = 2.0**63 - 1024
"""The furthest time that a column of them holds."""

log = logging.getLogger("trackside")


class Bounds(NamedTuple):
    """What is kept at most; 0 for no bound.

    Attributes:
        size: Bytes, the WAL with them.
        age: Seconds since a run's end.
    """

    size: int
    age: float = 0.0


class Trimming:
    """Bounds one file.

    Args:
        connection: The writer's, in a transaction at each `step`.
        path: The file's, for the WAL beside it.
        bounds: May be changed at any time.

    Attributes:
        excess: Bytes over the bound that cannot be freed, since pinned and live runs hold them.
        deleted: Rises when rows of runs go, which nobody may remember then.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path, bounds: Bounds) -> None:
        self.bounds = bounds
        self.excess = 0
        self.deleted = 0
        self._connection = connection
        self._wal = path.with_name(path.name + "-wal")
        self._work: Iterator[None] | None = None
        self._told = self._held_told = False
        self._held: float | None = None

    def size(self) -> int:
        """Bytes of the file and its WAL."""
        return self._pages()[0] * self._page_bytes() + self._wal_bytes()

    def step(self, now: float) -> bool:
        """Do a little of what is to be done at *now*, in Unix seconds. Whether there is more."""
        if self._is_held(now):
            self._work = None
            return False
        if self._work is None:
            self._work = self._steps(now)
        if next(self._work, self) is self:
            self._work = None
            return False
        return True

    def restart(self) -> None:
        """The transaction was rolled back."""
        self._work = None

    def _steps(self, now: float) -> Iterator[None]:
        yield from self._delete_marked()
        if self.bounds.age:
            for run in self._all(
                "SELECT id FROM run WHERE NOT pinned AND NOT deleted AND max(ended, imported) < ?",
                now - self.bounds.age,
            ):
                self._mark(run, "storage.retention.age")
            yield from self._delete_marked()
            yield from self._delete_host(now - self.bounds.age)
        if self._is_over():
            yield from self._trim(now)
        else:
            self._note(0)
        yield from self._give_back()

    def _trim(self, now: float) -> Iterator[None]:
        for victims in (
            self._ended(),
            self._live(now - LIVE_SECONDS),
            self._whole(now),
            self._live(now),
        ):
            for _ in victims:
                if not self._is_over():
                    self._note(0)
                    return
                yield
        self._note(self._used() - round(self.bounds.size * SLACK))

    def _ended(self) -> Iterator[None]:
        """Samples of ended runs, the run that ended first before the others."""
        while True:
            run = self._one(
                "SELECT id FROM run WHERE ended NOT NULL AND NOT pinned AND NOT trimmed AND NOT deleted ORDER BY ended"
            )
            if run is None:
                return
            for series, first, end in self._series_of(run):
                for number in range(first, -(-end // BLOCK), STEP_BLOCKS):
                    if self._one(
                        "SELECT 1 FROM run WHERE id = ? AND ended NOT NULL AND NOT pinned AND NOT deleted", run
                    ):
                        self._drop_samples(series, number, min(number + STEP_BLOCKS, -(-end // BLOCK)))
                        yield
            self._connection.execute(
                "UPDATE run SET trimmed = 1 WHERE id = ? AND NOT EXISTS (SELECT 1 FROM series "
                "JOIN stream ON stream.id = stream WHERE stream.run = run.id AND series.trimmed * ? < series.end)",
                (run, BLOCK),
            )
            self._tell(
                run, "has lost its samples, and keeps its minima, maxima and last values: storage.retention.size"
            )
            yield

    def _live(self, before: float) -> Iterator[None]:
        """Samples of live runs and of the host from before a Unix time, oldest first; never a block that still fills."""
        heap: list[tuple[int, int, int, int]] = []
        streams = [
            HOST,
            *self._all(
                "SELECT stream.id FROM stream JOIN run ON run.id = stream.run "
                "WHERE run.ended IS NULL AND NOT pinned AND NOT deleted"
            ),
        ]
        for stream in streams:
            for place, (series, first, end) in enumerate(self._series(stream), 1):
                self._offer(heap, series, first, end // BLOCK)
                if place % STEP_ROWS == 0:
                    yield
            yield
        while heap and heap[0][0] < before * 1e6:
            _, series, number, whole = heapq.heappop(heap)
            if self._lives(series):  # still
                self._drop_samples(series, number, number + 1)
                self._offer(heap, series, number + 1, whole)
                yield

    def _lives(self, series: int) -> bool:
        """Whether a series is one of the host, or of a run that lives and is not pinned."""
        found = self._one(
            "SELECT 1 FROM series JOIN stream ON stream.id = stream LEFT JOIN run ON run.id = run WHERE series.id = ? "
            "AND (stream = ? OR run.ended IS NULL AND NOT pinned AND NOT deleted)",
            series,
            HOST,
        )
        return found is not None

    def _offer(self, heap: list[tuple[int, int, int, int]], series: int, number: int, whole: int) -> None:
        """Put a series' next block, if it has a whole one, on the heap by its age."""
        if number < whole:
            found = self._one(
                "SELECT time_max FROM block WHERE id >= ? AND id < ?",
                series << BLOCK_BITS | number,
                (series << BLOCK_BITS) + whole,
            )
            if found is not None:
                heapq.heappush(heap, (found, series, number, whole))

    def _whole(self, now: float) -> Iterator[None]:
        """What the host was before the oldest run that is left, and ended runs."""
        while True:
            yield from self._delete_host(now)
            run = self._one("SELECT id FROM run WHERE ended NOT NULL AND NOT pinned AND NOT deleted ORDER BY ended")
            if run is None:
                return
            self._mark(run, "storage.retention.size")
            yield from self._delete_marked()

    def _mark(self, run: int, why: str) -> None:
        self._connection.execute("UPDATE run SET deleted = 1 WHERE id = ?", (run,))
        self._tell(run, f"is deleted: {why}")

    def _tell(self, run: int, what: str) -> None:
        name, uid = self._connection.execute("SELECT name, uid FROM run WHERE id = ?", (run,)).fetchone()
        log.info("run %s (id %s) %s", name, uid, what)

    def _delete_marked(self) -> Iterator[None]:
        """Take away the runs that are marked as deleted, bit by bit."""
        while (run := self._one("SELECT id FROM run WHERE deleted = 1")) is not None:
            self.deleted += 1
            for stream in self._all("SELECT id FROM stream WHERE run = ?", run):
                first, last = stream << LOG_BITS, (stream + 1 << LOG_BITS) - 1
                yield from self._delete("log", "id BETWEEN ? AND ?", first, last)
                for series, _, end in self._series(stream):
                    yield from self._delete_blocks(series, 0, -(-end // BLOCK))
                    self._connection.execute("DELETE FROM series WHERE id = ?", (series,))
                self._connection.execute("DELETE FROM session WHERE stream = ?", (stream,))
                self._connection.execute("DELETE FROM stream WHERE id = ?", (stream,))
            for table in ("event", "alert", "attempt"):
                yield from self._delete(table, "run = ?", run)
            self._connection.execute("DELETE FROM run WHERE id = ?", (run,))
            yield

    def _delete_host(self, before: float) -> Iterator[None]:
        """What the host was before a Unix time, and before the oldest run that is left."""
        oldest = self._one("SELECT min(started) FROM run")
        before = before if oldest is None else min(before, oldest)
        for table, time in (("event", "time"), ("alert", "ended")):
            yield from self._delete(table, f"run = {HOST} AND {time} < ?", before)
        for series, _, end in self._series(HOST):
            base = series << BLOCK_BITS
            old = self._all(
                "SELECT id FROM block WHERE id >= ? AND id < ? AND time_max < ?",
                base,
                base + end // BLOCK,
                round(min(MICROSECONDS, max(-MICROSECONDS, before * 1e6))),
            )
            if old:
                yield from self._delete_blocks(series, old[0] - base, old[-1] - base + 1)
                self._connection.execute(
                    "UPDATE series SET trimmed = max(trimmed, ?) WHERE id = ?", (old[-1] - base + 1, series)
                )

    def _delete_blocks(self, series: int, first: int, end: int) -> Iterator[None]:
        for number in range(first, end, STEP_BLOCKS):
            ids = (series << BLOCK_BITS | number, (series << BLOCK_BITS) + min(number + STEP_BLOCKS, end))
            axes = self._axes(
                "SELECT axis, count(*), count(data) FROM block WHERE id >= ? AND id < ? GROUP BY axis", ids
            )
            for table in ("block", "nonfinite"):
                self._connection.execute(f"DELETE FROM {table} WHERE id >= ? AND id < ?", ids)  # noqa: S608
            release(self._connection, axes)
            yield

    def _drop_samples(self, series: int, first: int, end: int) -> None:
        ids = (series << BLOCK_BITS | first, (series << BLOCK_BITS) + end)
        axes = self._axes("SELECT axis, 0, count(data) FROM block WHERE id >= ? AND id < ? GROUP BY axis", ids)
        self._connection.execute("UPDATE block SET data = NULL WHERE id >= ? AND id < ?", ids)
        release(self._connection, axes)
        self._connection.execute("UPDATE series SET trimmed = ? WHERE id = ?", (end, series))

    def _delete(self, table: str, where: str, *values: float) -> Iterator[None]:
        while True:
            ids = self._all(f"SELECT id FROM {table} WHERE {where} LIMIT {STEP_ROWS}", *values)  # noqa: S608
            if not ids:
                return
            self._connection.executemany(f"DELETE FROM {table} WHERE id = ?", [(one,) for one in ids])  # noqa: S608
            yield

    def _give_back(self) -> Iterator[None]:
        """Return free pages to the file system: those beyond a small reserve, and all when the file is over its bound."""
        while True:
            pages, free = self._pages()
            over = self.bounds.size and self._used() + free * self._page_bytes() > self.bounds.size
            if not free or (free <= max(STEP_ROWS, pages * FREE) and not over):
                return
            self._connection.execute(f"PRAGMA incremental_vacuum({STEP_ROWS})").fetchall()
            yield

    def _series_of(self, run: int) -> Iterator[tuple[int, int, int]]:
        for stream in self._all("SELECT id FROM stream WHERE run = ?", run):
            yield from self._series(stream)

    def _series(self, stream: int) -> list[tuple[int, int, int]]:
        """Of each series its id, the first block with samples, and the place of its next sample."""
        found = self._connection.execute("SELECT id, trimmed, end FROM series WHERE stream = ?", (stream,))
        return [(int(series), int(trimmed), int(end)) for series, trimmed, end in found.fetchall()]

    def _axes(self, query: str, ids: tuple[int, int]) -> dict[int, tuple[int, int]]:
        return {
            int(axis): (int(blocks), int(samples)) for axis, blocks, samples in self._connection.execute(query, ids)
        }

    def _is_over(self) -> bool:
        return bool(self.bounds.size) and self._used() > self.bounds.size * SLACK

    def _used(self) -> int:
        pages, free = self._pages()
        return (pages - free) * self._page_bytes() + min(self._wal_bytes(), WAL_BYTES)

    def _is_held(self, now: float) -> bool:
        """Whether somebody who reads keeps the WAL from shrinking, so that deleting would make the file larger.

        It is large after a large transaction too, until the next one begins it anew: so one is made.
        """
        size = self._wal_bytes()
        if size <= 2 * WAL_BYTES:
            self._held, self._held_told = None, False
            return False
        for change in (1, -1):  # writing what stands there already would write nothing
            self._connection.execute("UPDATE stream SET pushes = pushes + ? WHERE id = ?", (change, HOST))
        self._held = now if self._held is None else self._held
        if now - self._held >= HELD_SECONDS and not self._held_told:
            self._held_told = True
            log.warning(
                "%s has %d bytes: somebody who reads holds the history open, and nothing of it is deleted until they "
                "let go",
                self._wal,
                size,
            )
        return True

    def _pages(self) -> tuple[int, int]:
        pragma = self._connection.execute
        return int(pragma("PRAGMA page_count").fetchone()[0]), int(pragma("PRAGMA freelist_count").fetchone()[0])

    def _page_bytes(self) -> int:
        return int(self._connection.execute("PRAGMA page_size").fetchone()[0])

    def _wal_bytes(self) -> int:
        try:
            return self._wal.stat().st_size
        except FileNotFoundError:
            return 0

    def _one(self, query: str, *values: float) -> int | None:
        found = self._connection.execute(query + " LIMIT 1", values).fetchone()
        return None if found is None else found[0]

    def _all(self, query: str, *values: float) -> list[int]:
        return [int(one) for (one,) in self._connection.execute(query, values).fetchall()]

    def _note(self, excess: int) -> None:
        """Say once when the bound cannot be held, and count by how much."""
        self.excess = max(0, excess)
        if self.excess and not self._told:
            log.warning(
                "the history is %d bytes over storage.retention.size, and what is left are pinned and live runs; "
                "unpin some, or raise it",
                self.excess,
            )
        self._told = bool(self.excess)
