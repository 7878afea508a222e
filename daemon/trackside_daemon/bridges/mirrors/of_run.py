"""Read what a target gets besides the pushes of a run: curves of its machine, and its images, texts, tables and histograms."""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from typing import TYPE_CHECKING

from trackside.limits import CODE_KEY
from trackside_daemon.bridges.mirrors.target import Medium, Row
from trackside_daemon.causes.facts import Facts, is_read
from trackside_daemon.causes.quantities import named_curves
from trackside_daemon.history.media import index
from trackside_daemon.history.read.axes import longest, push_times
from trackside_daemon.history.read.charts import chart
from trackside_daemon.history.read.resources import Resources
from trackside_daemon.history.read.series import LogTail, Window
from trackside_daemon.history.schema import HOST

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from trackside_daemon.bridges.mirrors.positions import RankKey
    from trackside_daemon.bridges.mirrors.target import MirroredRun
    from trackside_daemon.bridges.mirrors.unsent import RankStream
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
