"""Keep the history within its bounds, in steps so small that a batch never waits long for its transaction.

The order of removal: samples of the oldest ended runs; the oldest samples of live runs and of the host; whole ended
runs. A run without samples keeps its cells, a sixteenth of the size or less. Pinned runs keep everything. Owners who have
more than their share, which is the same for all, come first: nobody pushes the runs of another user out.
"""

import heapq
import logging
import os
import sqlite3
import sys
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import NamedTuple

from trackside.log_once import LogOnce
from trackside_daemon.history.codec import BLOCK
from trackside_daemon.history.database import WAL_PAGES
from trackside_daemon.history.directory import delete_copy, lacks_room
from trackside_daemon.history.layer_rows import MERGED
from trackside_daemon.history.record.packing import release
from trackside_daemon.history.salvage.pages import PAGE_BYTES
from trackside_daemon.history.schema import BLOCK_BITS, HOST, IMPORTED_HOST, LOG_BITS
from trackside_daemon.model.setting_types import LEAST_BYTES

STEP_BLOCKS = 16  # blocks that one step trims or deletes
STEP_RUNS = 16  # runs whose bytes one step counts
STEP_ROWS = 256  # rows of other tables that one step deletes, and pages that it returns to the file system
LIVE_SECONDS = 3600.0  # the newest hour of live runs goes last
OPEN_SECONDS = 86400.0  # how much later the last block of a host series is deleted than full ones
TARGET_SHARE = 0.97  # share of the size bound that trimming aims at, so that new samples fit
FREE_SHARE = 0.02  # share of the file that may stay free, for new rows

# Largest size of the WAL that counts: it is larger only while somebody reads, and then deleting does not shrink it.
WAL_BYTES = WAL_PAGES * PAGE_BYTES

COPY_SECONDS = 30 * 86400.0  # how long a copy of an older schema is kept, and how often its age is checked
COPY_CHECK_SECONDS = 3600.0
WARN_SECONDS = 20.0  # a warning is logged after the WAL was too large for this long
# The furthest time, in microseconds, that a column can have: the largest float below 2**63.
MICROSECONDS = 2.0**63 - 1024

_OF_RUN = "FROM {} JOIN stream ON stream.id = stream WHERE run = ?"
# About how many bytes a run has: a sample is a number of 8 bytes, which is often packed to fewer.
_BYTES = (
    "SELECT coalesce(sum(100 + length(fields)), 0) FROM event WHERE run = ?",
    "SELECT coalesce(sum(length(config) + length(about)), 0) FROM attempt WHERE run = ?",
    f"SELECT coalesce(sum(8 * max(0, end - {BLOCK} * trimmed) + 200 * (1 + end / {BLOCK})), 0) {_OF_RUN.format('series')}",
    f"SELECT coalesce(sum(100 + length(numbers) + length(buckets)), 0) {_OF_RUN.format('distribution')}",
)
_OWNER = f"coalesce(owner, 'uid:{os.getuid()}')"  # imported runs are those of the daemon's user
_OF_OWNER = f"{_OWNER} = coalesce(?, {_OWNER})"  # None stands for all

log = logging.getLogger("trackside")


class Bounds(NamedTuple):
    """Limits of the history; 0 for no limit."""

    size: int  # bytes, including the WAL
    age: float = 0.0  # seconds since a run's end
    min_free: int = 0  # free bytes of the disk below which the file does not grow


def delete_copies(path: Path, before: float) -> None:
    """Delete the copies of a history's file of older schemas that were made before a Unix time."""
    for copy in path.parent.glob(f"{path.name}.schema-*"):
        with suppress(OSError):
            if copy.stat().st_mtime < before:
                copy.unlink()
                log.info("%s is deleted: it was copied more than %d days ago", copy, COPY_SECONDS / 86400)


class Trimming:
    """Trims one file.

    Args:
        connection: The writer's, in a transaction at each `step`.
        path: The file, whose WAL is next to it.
        bounds: The limits, which may change at any time.

    Attributes:
        excess: Bytes over the limit that cannot be freed because pinned and live runs use them.
        deleted: A counter that rises when rows of runs are deleted, and cached ids become invalid.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path, bounds: Bounds) -> None:
        self.bounds = bounds
        self.excess = 0
        self.deleted = 0
        self._connection = connection
        self._wal = path.with_name(path.name + "-wal")
        self._work: Iterator[None] | None = None
        self._logged = LogOnce()
        self._sizes: dict[tuple[int, int, float | None], int] = {}  # about the bytes of ended runs, as they were then
        self._large_wal_since: float | None = None
        self._path = path
        self._size = bounds.size  # the limit at the moment
        self._copies_at = -inf  # when old copies were last deleted

    def size(self) -> int:
        """Return the bytes of the file and its WAL."""
        return self._pages()[0] * self._page_bytes() + self._wal_bytes()

    def used(self) -> int:
        """Return the bytes that count against the limit: those of the file in use, and of its WAL what it always keeps."""
        pages, free = self._pages()
        return (pages - free) * self._page_bytes() + min(self._wal_bytes(), WAL_BYTES)

    def step(self, now: float, aged: float | None = None) -> bool:
        """Do a small part of the work that is due, and return False when nothing is left to do.

        Args:
            now: Unix time.
            aged: Unix time by which ages are judged; None for *now*.
        """
        if self._wal_is_pinned(now):
            self._work = None
            return False
        if self._work is None:
            self._work = self._steps(now, now if aged is None else aged)
        if next(self._work, self) is self:
            self._work = None
            return False
        return True

    def restart(self) -> None:
        """Begin the work again: the transaction was rolled back."""
        self._work = None

    def _steps(self, now: float, aged: float) -> Iterator[None]:
        self._limit_size()
        if aged - self._copies_at > COPY_CHECK_SECONDS:
            self._copies_at = aged
            delete_copies(self._path, aged - COPY_SECONDS)
        yield from self._delete_marked()
        if self.bounds.age:
            # One at each check: a wrong clock that nothing has noticed must not cost all runs at once.
            run = self._one(
                "SELECT id FROM run WHERE NOT pinned AND NOT deleted AND max(ended, imported) < ? ORDER BY ended",
                aged - self.bounds.age,
            )
            if run is not None:
                self._mark(run, "storage.retention.age")
            yield from self._delete_marked()
            yield from self._delete_host(aged - self.bounds.age)
        if self._is_over():
            yield from self._trim(now)
        else:
            self._set_excess(0)
        yield from self._return_pages()

    def _trim(self, now: float) -> Iterator[None]:
        over_share = yield from self._over_share()
        for owner, excess in (*over_share, (None, inf)):
            enough = self.used() - excess
            for _ in self._works(now, owner):
                if not self._is_over():
                    self._set_excess(0)
                    return
                if self.used() <= enough:
                    break
                yield
        self._set_excess(self.used() - round(self._size * TARGET_SHARE))

    def _works(self, now: float, owner: str | None) -> Iterator[None]:
        """Delete step by step what there is of an owner, or of all for None."""
        yield from self._trim_ended(owner)
        yield from self._trim_live(now - LIVE_SECONDS, owner)
        yield from self._delete_oldest(now, owner)
        yield from self._trim_live(now, owner)
        if owner is not None:  # the last that an owner with too much has
            live = f"SELECT id FROM run WHERE ended IS NULL AND NOT pinned AND NOT deleted AND {_OF_OWNER}"  # noqa: S608
            yield from self._delete("event", f"run IN ({live}) ORDER BY id", owner)

    def _over_share(self) -> Generator[None, None, list[tuple[str, float]]]:
        """Return the owners who have more than their share of the history, and by how many bytes, the largest first."""
        owners: Counter[str] = Counter()
        runs = self._connection.execute(
            f"SELECT id, {_OWNER}, trimmed, ended FROM run WHERE NOT deleted"  # noqa: S608
        ).fetchall()
        if len({owner for _, owner, *_ in runs}) < 2:
            return []
        sizes: dict[tuple[int, int, float | None], int] = {}
        for place, (run, owner, trimmed, ended) in enumerate(runs, 1):
            size = self._sizes.get((run, trimmed, ended))
            if size is None:
                size = sum(self._one(query, run) or 0 for query in _BYTES)
            if ended is not None:
                sizes[run, trimmed, ended] = size
            owners[owner] += size
            if place % STEP_RUNS == 0:
                yield
        self._sizes = sizes
        share = owners.total() / len(owners)
        return [(owner, size - share) for owner, size in owners.most_common() if size > share]

    def _trim_ended(self, owner: str | None = None) -> Iterator[None]:
        """Delete the samples of ended runs, in the order in which they ended."""
        while True:
            run = self._one(
                "SELECT id FROM run WHERE ended NOT NULL AND NOT pinned AND NOT trimmed AND NOT deleted "  # noqa: S608
                f"AND {_OF_OWNER} ORDER BY ended",
                owner,
            )
            if run is None:
                return
            for series, first, end in (one for stream in self._streams_of(run) for one in self._series(stream)):
                for number in range(first, -(-end // BLOCK), STEP_BLOCKS):
                    if self._one(
                        "SELECT 1 FROM run WHERE id = ? AND ended NOT NULL AND NOT pinned AND NOT deleted", run
                    ):
                        self._drop_samples(series, number, min(number + STEP_BLOCKS, -(-end // BLOCK)))
                        yield
            yield from self._drop_merged(run)
            yield from delete_copy(self._path.parent)
            self._connection.execute(
                "UPDATE run SET trimmed = 1 WHERE id = ? AND NOT EXISTS (SELECT 1 FROM series "
                "JOIN stream ON stream.id = stream WHERE stream.run = run.id AND series.trimmed * ? < series.end)",
                (run, BLOCK),
            )
            self._log_run(
                run, "has lost its samples, and keeps its minima, maxima and last values: storage.retention.size"
            )
            yield

    def _drop_merged(self, run: int) -> Iterator[None]:
        """Delete the distributions of single steps of an ended run that are in merged ones, too."""
        for stream in self._all("SELECT id FROM stream WHERE run = ?", run):
            merged = "SELECT count(*) FROM distribution AS more WHERE more.stream = distribution.stream "
            merged += "AND more.kind = distribution.kind AND more.level = 1"
            yield from self._delete(
                "distribution", f"stream = ? AND level = 0 AND number < {MERGED} * ({merged})", stream
            )

    def _trim_live(self, before: float, owner: str | None = None) -> Iterator[None]:
        """Delete samples of live runs, and for all owners of the host, from before a Unix time, oldest first; full blocks."""
        heap: list[tuple[int, int, int, int]] = []
        streams = self._all(
            "SELECT stream.id FROM stream JOIN run ON run.id = stream.run "  # noqa: S608
            f"WHERE run.ended IS NULL AND NOT pinned AND NOT deleted AND {_OF_OWNER}",
            owner,
        )
        if owner is None:
            streams.insert(0, HOST)
        for stream in streams:
            for count, (series, first, end) in enumerate(self._series(stream), 1):
                self._push_block(heap, series, first, end // BLOCK)
                if count % STEP_ROWS == 0:
                    yield
            yield
        while heap and heap[0][0] < before * 1e6:
            _, series, number, full_blocks = heapq.heappop(heap)
            if self._is_live(series):  # still
                self._drop_samples(series, number, number + 1)
                self._push_block(heap, series, number + 1, full_blocks)
                yield

    def _is_live(self, series: int) -> bool:
        """Return whether a series belongs to the host, or to a live run that is not pinned."""
        row = self._one(
            "SELECT 1 FROM series JOIN stream ON stream.id = stream LEFT JOIN run ON run.id = run WHERE series.id = ? "
            "AND (stream = ? OR run.ended IS NULL AND NOT pinned AND NOT deleted)",
            series,
            HOST,
        )
        return row is not None

    def _push_block(self, heap: list[tuple[int, int, int, int]], series: int, number: int, full_blocks: int) -> None:
        """Push the next full block of a series, if there is one, on the heap by its time."""
        if number < full_blocks:
            time = self._one(
                "SELECT time_max FROM block WHERE id >= ? AND id < ?",
                series << BLOCK_BITS | number,
                (series << BLOCK_BITS) + full_blocks,
            )
            if time is not None:
                heapq.heappush(heap, (time, series, number, full_blocks))

    def _delete_oldest(self, now: float, owner: str | None = None) -> Iterator[None]:
        """Delete ended runs whole, oldest first, and for all owners what the host recorded before the oldest remaining run."""
        while True:
            if owner is None:
                yield from self._delete_host(now)
            run = self._one(
                "SELECT id FROM run WHERE ended NOT NULL AND NOT pinned AND NOT deleted "  # noqa: S608
                f"AND {_OF_OWNER} ORDER BY ended",
                owner,
            )
            if run is None:
                return
            self._mark(run, "storage.retention.size")
            yield from self._delete_marked()

    def _mark(self, run: int, setting: str) -> None:
        self._connection.execute("UPDATE run SET deleted = 1 WHERE id = ?", (run,))
        self._log_run(run, f"is deleted: {setting}")

    def _log_run(self, run: int, text: str) -> None:
        name, uid = self._connection.execute("SELECT name, uid FROM run WHERE id = ?", (run,)).fetchone()
        log.info("run %s (id %s) %s", name, uid, text)

    def _delete_marked(self) -> Iterator[None]:
        """Delete the rows of runs that are marked as deleted."""
        while (run := self._one("SELECT id FROM run WHERE deleted = 1")) is not None:
            self.deleted += 1
            for stream in self._streams_of(run):
                first, last = stream << LOG_BITS, (stream + 1 << LOG_BITS) - 1
                yield from self._delete("log", "id BETWEEN ? AND ?", first, last)
                for series, _, end in self._series(stream):
                    yield from self._delete_blocks(series, 0, -(-end // BLOCK))
                    self._connection.execute("DELETE FROM series WHERE id = ?", (series,))
                for table in ("distribution", "layer_names"):
                    yield from self._delete(table, "stream = ?", stream)
                self._connection.execute("DELETE FROM session WHERE stream = ?", (stream,))
                self._connection.execute("DELETE FROM stream WHERE id = ?", (stream,))
            for table in ("event", "alert", "capture", "checkpoint", "attempt"):
                yield from self._delete(table, "run = ?", run)
            yield from delete_copy(self._path.parent)
            self._connection.execute("DELETE FROM run WHERE id = ?", (run,))
            yield

    def _delete_host(self, before: float) -> Iterator[None]:
        """Delete what the host recorded before a Unix time and before the oldest remaining run."""
        oldest = self._one("SELECT min(started) FROM run")
        before = before if oldest is None else min(before, oldest)
        for table, time in (("event", "time"), ("alert", "ended")):
            yield from self._delete(table, f"run = {HOST} AND {time} < ?", before)
        # What is being packed must not lose its last block, so that one goes a day later: of a process that has ended, say.
        full, last = (
            round(min(MICROSECONDS, max(-MICROSECONDS, moment * 1e6))) for moment in (before, before - OPEN_SECONDS)
        )
        for count, (series, _, end) in enumerate(self._series(HOST), 1):
            blocks = (series << BLOCK_BITS, series + 1 << BLOCK_BITS)
            old = self._all(
                "SELECT id FROM block WHERE id >= ? AND id < ? AND time_max < CASE WHEN id < ? THEN ? ELSE ? END",
                *(*blocks, blocks[0] + end // BLOCK, full, last),
            )
            if old:
                trimmed = old[-1] - blocks[0] + 1
                yield from self._delete_blocks(series, old[0] - blocks[0], trimmed)
                self._connection.execute("UPDATE series SET trimmed = max(trimmed, ?) WHERE id = ?", (trimmed, series))
                left = "EXISTS (SELECT 1 FROM block WHERE block.id >= ? AND block.id < ?)"
                self._connection.execute(f"DELETE FROM series WHERE id = ? AND NOT {left}", (series, *blocks))  # noqa: S608
            if count % STEP_ROWS == 0:
                yield

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

    def _delete(self, table: str, where: str, *values: float | str) -> Iterator[None]:
        while True:
            ids = self._all(f"SELECT id FROM {table} WHERE {where} LIMIT {STEP_ROWS}", *values)  # noqa: S608
            if not ids:
                return
            self._connection.executemany(f"DELETE FROM {table} WHERE id = ?", [(id_,) for id_ in ids])  # noqa: S608
            yield

    def _return_pages(self) -> Iterator[None]:
        """Return free pages to the file system: those beyond a small reserve, or all if the file is over its limit."""
        while True:
            pages, free = self._pages()
            over = self._size and self.used() + free * self._page_bytes() > self._size
            if not free or (free <= max(STEP_ROWS, pages * FREE_SHARE) and not over):
                return
            for _ in range(STEP_ROWS):  # the sqlite3 module stops after the first page, whatever the number
                self._connection.execute("PRAGMA incremental_vacuum(1)").fetchall()
            yield

    def _streams_of(self, run: int) -> list[int]:
        return self._all(f"SELECT id FROM stream WHERE run = ? UNION ALL {IMPORTED_HOST}", run, run)  # noqa: S608

    def _series(self, stream: int) -> list[tuple[int, int, int]]:
        """Return id, first block with samples and place of the next sample of each series of a stream."""
        rows = self._connection.execute("SELECT id, trimmed, end FROM series WHERE stream = ?", (stream,))
        return [(int(series), int(trimmed), int(end)) for series, trimmed, end in rows.fetchall()]

    def _axes(self, query: str, ids: tuple[int, int]) -> dict[int, tuple[int, int]]:
        return {
            int(axis): (int(blocks), int(samples)) for axis, blocks, samples in self._connection.execute(query, ids)
        }

    def _is_over(self) -> bool:
        return bool(self._size) and self.used() > self._size * TARGET_SHARE

    def _limit_size(self) -> None:
        """Set the limit: that of the bounds, or the size of now while the disk has too little room."""
        is_short = lacks_room(self._path.parent, self.bounds.min_free)
        if not is_short or (self.bounds.size and self._size > self.bounds.size):
            self._size = self.bounds.size
        if not is_short:
            self._logged.pop("room", None)
        elif self._logged.first("room"):
            # What somebody else fills the disk with must not delete what is stored, so the file only stops growing.
            self._size = min(self.bounds.size or sys.maxsize, max(LEAST_BYTES, round(self.used() / TARGET_SHARE)))
            log.warning(
                "%s has less free than storage.min-free: from now on the oldest samples make room for new ones",
                self._path.parent,
            )

    def _wal_is_pinned(self, now: float) -> bool:
        """Return whether a reader keeps the WAL from shrinking, so that deleting would make the file larger."""
        size = self._wal_bytes()
        if size <= 2 * WAL_BYTES:
            self._large_wal_since = None
            self._logged.pop("wal", None)
            return False
        # The WAL is also large after a large transaction, until the next one restarts it: so make one. SQLite writes
        # nothing for an update that changes nothing.
        for change in (1, -1):
            self._connection.execute("UPDATE stream SET pushes = pushes + ? WHERE id = ?", (change, HOST))
        self._large_wal_since = now if self._large_wal_since is None else self._large_wal_since
        if now - self._large_wal_since >= WARN_SECONDS and self._logged.first("wal"):
            log.warning(
                "%s has %d bytes: another process keeps the history open for reading, and nothing is deleted until it "
                "closes it",
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
        except (FileNotFoundError, NotADirectoryError):  # the next turn of the writer notices it
            return 0

    def _one(self, query: str, *values: float | str | None) -> int | None:
        row = self._connection.execute(query + " LIMIT 1", values).fetchone()
        return None if row is None else row[0]

    def _all(self, query: str, *values: float | str | None) -> list[int]:
        return [int(value) for (value,) in self._connection.execute(query, values).fetchall()]

    def _set_excess(self, excess: int) -> None:
        """Set `excess`, and log once that the limit cannot be met."""
        self.excess = max(0, excess)
        if not self.excess:
            self._logged.pop("excess", None)
        elif self._logged.first("excess"):
            log.warning(
                "the history is %d bytes over storage.retention.size, and only pinned and live runs are left; "
                "unpin some, or raise the limit",
                self.excess,
            )
