"""Read from the history what a target does not have yet."""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from trackside.buckets import Buckets
from trackside.limits import CODE_KEY
from trackside_daemon.bridges.mirrors.positions import Positions, RankKey
from trackside_daemon.bridges.mirrors.target import Medium, MirroredRun, Row
from trackside_daemon.causes.facts import Facts, is_read
from trackside_daemon.causes.quantities import named_curves
from trackside_daemon.history.codec import BLOCK
from trackside_daemon.history.files.merging import merge
from trackside_daemon.history.layer_rows import after
from trackside_daemon.history.media import index
from trackside_daemon.history.read.attempts import longest, push_times
from trackside_daemon.history.read.charts import chart
from trackside_daemon.history.read.resources import Resources
from trackside_daemon.history.read.series import LogTail, Window, find, samples
from trackside_daemon.history.schema import HOST

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from trackside_daemon.history.media.index import MediaFile


PACE_SECONDS = 30  # seconds between two points of a curve
SETTLE_SECONDS = 5  # seconds before the machine's newest sample, until which the history has those of all sources
AT_ONCE = 20  # points of a curve that are read at once
MAX_SAMPLES = 2000  # most samples of a series in the time of these
CURVES, STEP = "\0curves", "\0step"  # keys of positions: the time that curves have reached, and the step then

SENT_BYTES = 4_000_000  # of media that are sent at once, besides the first


def unsent_curves(
    connection: sqlite3.Connection, run: MirroredRun, stream: RankStream, sent: Mapping[str, int], *, newest: bool
) -> tuple[list[Row], dict[str, int]]:
    """Return the next points of the curves of a run's machine, and the positions after them; none if nothing is to be sent.

    Args:
        connection: In a transaction.
        run: The run.
        stream: The lowest rank of an attempt, whose steps the rows get.
        sent: Its positions.
        newest: Whether this is the run's last attempt.

    Raises:
        ValueError: A block is damaged.
    """
    tail = LogTail(connection, stream.id)
    pushes, axis = push_times(connection, stream.id, tail), longest(connection, stream.id, tail)
    machine = push_times(connection, HOST, LogTail(connection, HOST))
    if pushes is None or axis is None or machine is None:
        return [], {}
    ended = run.ended if newest else pushes[1]
    # The clock of a training may be years behind.
    begin = sent.get(CURVES) or int(max(pushes[0], machine[0] - PACE_SECONDS)) // PACE_SECONDS * PACE_SECONDS
    whole = int(machine[1] - SETTLE_SECONDS) // PACE_SECONDS if ended is None else -int(-ended // PACE_SECONDS)
    end = min(whole * PACE_SECONDS, begin + AT_ONCE * PACE_SECONDS)
    if end <= begin:
        return [], {}
    # From one point before on: the rate of a counter needs the sample before.
    window = Window("time", begin - PACE_SECONDS, end if ended is None else min(end, ended))
    facts = Facts(
        {"id": run.id, "name": run.name}, (), (), Resources(connection, window, MAX_SAMPLES, only=is_read), window.high
    )
    points, moments = _points(facts, begin)
    step, pushed, rows = sent.get(STEP, 0), chart(connection, axis, tail, window).points, []
    for cell, values in sorted(points.items()):
        step = max((int(one[0]) for one in pushed if one[1] <= moments[cell]), default=step)
        place = stream.place
        rows.append(Row(place.attempt, place.rank, True, step, round(moments[cell] * 1e6), values))
    return rows, {CURVES: end, STEP: step}


def _points(facts: Facts, begin: int) -> tuple[dict[int, dict[str, float]], dict[int, float]]:
    """Return the last value of each curve in each cell of time by the curve's name, and the time of each cell's last sample."""
    points: defaultdict[int, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    moments: defaultdict[int, float] = defaultdict(float)
    for name, every in named_curves(facts).items():
        for values in every:
            last = {-int(-moment // PACE_SECONDS): (moment, value) for moment, value in sorted(values.items())}
            for cell, (moment, value) in last.items():
                if moment > begin:
                    points[cell][name] += value
                    moments[cell] = max(moment, moments[cell])
    return {cell: dict(values) for cell, values in points.items()}, moments


def waiting_media(history: Path, places: Collection[RankKey], sent: Collection[str], run: str) -> list[MediaFile]:
    """Return all media of a run that the target does not have, without the run's code; see `unsent_media`."""
    wanted = {(place.attempt, place.rank) for place in places}
    found = [one for one in index.read(history, run) if one.file not in sent and one.key != CODE_KEY]
    return [one for one in found if (one.attempt, one.rank) in wanted]


def unsent_media(history: Path, places: Collection[RankKey], sent: Collection[str], run: str) -> list[Row]:
    """Return rows with the next images, texts, tables and histograms of a run, as many as are sent at once.

    Args:
        history: The directory of the history.
        places: The ranks that are mirrored; the lowest of an attempt comes first.
        sent: The files that the target has.
        run: The run's id.
    """
    rows: list[Row] = []
    lowest = {place.attempt: place.rank for place in reversed(list(places))}
    size = 0
    for item in waiting_media(history, places, sent, run):
        with suppress(OSError):  # it was deleted meanwhile
            medium = Medium(item, index.content(history, run, item), index.directory_of(history, run) / item.file)
            size += len(medium.data)
            if rows and size > SENT_BYTES:
                break
            is_lowest, at = lowest[item.attempt] == item.rank, round(item.time * 1e6)
            rows.append(Row(item.attempt, item.rank, is_lowest, item.step or 0, at, {}, media=(medium,)))
    return rows


LAYER_ROWS = 32  # rows of distributions that are read at once


class RankStream(NamedTuple):
    """The samples of one rank of an attempt, or of the machine."""

    id: int  # its row
    place: RankKey  # the rank
    lowest: bool  # whether it is the lowest rank of its attempt
    pushes: int  # number of its pushes so far


class UnsentRows(NamedTuple):
    """Consecutive rows of a stream that the target does not have."""

    rows: list[Row]  # the rows, oldest first
    sent: dict[str, int]  # positions after them, by key
    lost: int  # samples that the history has deleted before they were sent
    oldest: float | None  # Unix time of the first row; None without rows
    complete: bool  # there are no more for now


def mirrored_runs(
    connection: sqlite3.Connection, positions: Positions | None, only: str | None = None
) -> Iterator[MirroredRun]:
    """Yield the runs that are alive, or whose end the target has not recorded; not imported ones.

    Without positions, yield all runs, also imported ones; with *only*, an id, this one alone.
    """
    of_one = "" if only is None else "AND uid = :uid"  # without an OR, for which there is no index
    rows = connection.execute(
        "SELECT uid, name, run.state, tags, run.started, run.ended, attempt.config, about, "  # noqa: S608
        "(SELECT sum(pushes) FROM stream WHERE stream.run = run.id) FROM run "
        "JOIN attempt ON attempt.run = run.id WHERE NOT deleted AND "
        "(:since IS NULL OR NOT imported AND coalesce(run.ended, :since) >= :since) "
        f"{of_one} AND number = (SELECT max(number) FROM attempt WHERE attempt.run = run.id) ORDER BY run.started",
        {"since": positions and positions.since, "uid": only},
    ).fetchall()
    for uid, name, state, tags, started, ended, config, about, pushes in rows:
        end = "" if ended is None else f"{ended} {pushes}"
        if not end or positions is None or positions.ended(uid) != end:
            named = tuple(json.loads(tags))
            yield MirroredRun(uid, name, state, named, started, ended, end, _object(config), _object(about))


def streams(connection: sqlite3.Connection, run: str, *, every_rank: bool) -> list[RankStream]:
    """Return the streams of a run, or that of the machine if *run* is empty."""
    if not run:
        (pushes,) = connection.execute("SELECT pushes FROM stream WHERE id = ?", (HOST,)).fetchone()
        return [RankStream(HOST, RankKey("", 0, 0), lowest=True, pushes=pushes)]
    rows = connection.execute(
        "SELECT stream.id, attempt, rank, pushes, "
        "rank = (SELECT min(rank) FROM stream AS other WHERE other.run = stream.run AND other.attempt = stream.attempt) "
        "FROM stream JOIN run ON run.id = stream.run WHERE uid = ? ORDER BY attempt, rank",
        (run,),
    ).fetchall()
    return [
        RankStream(id_, RankKey(run, attempt, rank), bool(lowest), pushes)
        for id_, attempt, rank, pushes, lowest in rows
        if lowest or every_rank
    ]


def unsent_layers(connection: sqlite3.Connection, stream: RankStream, sent: int) -> tuple[list[Row], int]:
    """Return rows with the first distributions of a stream after the id *sent*, and the id of the last.

    Raises:
        ValueError: A row is damaged.
    """
    rows = []
    for id_, kind, frame in after(connection, stream.id, sent, LAYER_ROWS):
        named = {f"{kind}/{name}": Buckets.unpacked(one) for name, one in zip(frame.names, frame.buckets, strict=False)}
        values = {
            f"{kind}/{name}/{layer}": value
            for name, column in (frame.columns.items() if not frame.buckets else ())
            for layer, value in zip(frame.names, column, strict=True)
        }
        rows.append(Row(stream.place.attempt, stream.place.rank, stream.lowest, frame.step, frame.time, values, named))
        sent = id_
    return rows, sent


def totals(connection: sqlite3.Connection, stream: RankStream) -> dict[str, int]:
    """Return the number of samples of a stream by key."""
    tail = LogTail(connection, stream.id)
    return {series.key: series.end + len(tail.read(series)[0]) for series in find(connection, stream.id, tail)}


def unsent(connection: sqlite3.Connection, stream: RankStream, sent: Mapping[str, int], most: int) -> UnsentRows:
    """Return the first rows of a stream that the target does not have, with at least *most* values if there are as many.

    Args:
        connection: In a transaction, so that no push is read in part.
        stream: The stream.
        sent: Number of samples by key that the target has.
        most: Number of values.

    Raises:
        ValueError: A block is damaged.
    """
    tail = LogTail(connection, stream.id)
    snapshot = _Snapshot(connection)
    keys, places, chunks = [], [], []
    lost = 0
    for series in find(connection, stream.id, tail):
        begin = sent.get(series.key, 0)
        left = series.end + len(tail.read(series)[0]) - begin
        if left < 0 and not stream.place.run:  # the history has deleted the series, and it begins anew
            begin, left = 0, left + begin
        if left > 0:
            (trimmed,) = connection.execute("SELECT trimmed FROM series WHERE id = ?", (series.id,)).fetchone() or (0,)
            skipped = max(0, min(left, trimmed * BLOCK - begin))
            lost += skipped
            keys.append(series.key)
            places.append(begin + skipped)
            chunks.append(samples(snapshot, series, tail, place=begin + skipped))
    rows: list[Row] = []
    count = 0
    lines = merge(chunks)
    for line in lines:
        values = {keys[place]: value for place, value in zip(line.places, line.values, strict=True)}
        rows.append(Row(stream.place.attempt, stream.place.rank, stream.lowest, line.step, line.time, values))
        for place in line.places:
            places[place] += 1
        count += len(values)
        if count >= most:
            break
    complete = next(islice(lines, 1), None) is None
    oldest = rows[0].time / 1e6 if rows else None
    return UnsentRows(rows, dict(zip(keys, places, strict=True)), lost, oldest, complete)


class _Snapshot(NamedTuple):
    """An open transaction as a history that can be read."""

    connection: sqlite3.Connection

    def reading(self) -> AbstractContextManager[sqlite3.Connection]:
        return nullcontext(self.connection)


def _object(text: str) -> dict[str, Any]:
    value = json.loads(text) if text else {}
    return value if isinstance(value, dict) else {"config": value}
