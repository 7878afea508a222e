"""Merge the series of a rank back into the pushes that they came from."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple, TypeAlias

Chunk: TypeAlias = "tuple[array[int], array[int], array[float]]"
"""Consecutive samples of a series: steps, times in microseconds, values."""


class Line(NamedTuple):
    """Values of one step and time."""

    step: int
    time: int  # Unix microseconds
    places: Sequence[int]  # the index of each value's series, rising
    values: Sequence[float]  # the values, one per series


class _Head(NamedTuple):
    """The next row of series with the same steps and times; the fields that order heads come first."""

    time: int
    step: int
    places: tuple[int, ...]
    values: tuple[float, ...]
    rows: Iterator[tuple[int, int, tuple[float, ...]]]


def merge(series: Sequence[Iterator[Chunk]]) -> Iterator[Line]:
    """Yield the lines of some series, by time as far as the order within each series allows.

    A line has at most one value of a series: two values of one step and time make two lines. The lines depend on the
    samples only, not on how the series are cut into chunks.
    """
    heads = list(_load(series, range(len(series))))
    heapify(heads)
    while heads:
        due = [heappop(heads)]
        time, step = due[0][:2]
        while heads and heads[0][:2] == (time, step):
            due.append(heappop(heads))
        yield _joined(step, time, due)
        if not heads and len(due) == 1:  # all series have the same steps, as in most runs
            places = due[0].places
            for time_, step_, values in due[0].rows:
                yield Line(step_, time_, places, values)
        for head in due:
            row = next(head.rows, None)
            if row is None:
                for fresh in _load(series, head.places):
                    heappush(heads, fresh)
            else:
                heappush(heads, _Head(row[0], row[1], head.places, row[2], head.rows))


def _joined(step: int, time: int, due: list[_Head]) -> Line:
    if len(due) == 1:
        return Line(step, time, due[0].places, due[0].values)
    pairs = sorted(pair for head in due for pair in zip(head.places, head.values, strict=True))
    places, values = zip(*pairs, strict=True)
    return Line(step, time, places, values)


def _load(series: Sequence[Iterator[Chunk]], places: Iterable[int]) -> Iterator[_Head]:
    """Yield the heads of the next chunks; series whose chunks have the same steps and times share one."""
    groups: dict[tuple[bytes, bytes], tuple[Chunk, list[int], list[array[float]]]] = {}
    for place in places:
        chunk = next(series[place], None)
        if chunk is not None:
            name = (chunk[0].tobytes(), chunk[1].tobytes())
            _, numbers, columns = groups.setdefault(name, (chunk, [], []))
            numbers.append(place)
            columns.append(chunk[2])
    for (steps, times, _), numbers, columns in groups.values():
        rows = zip(times, steps, zip(*columns, strict=True), strict=True)
        time, step, values = next(rows)
        yield _Head(time, step, tuple(numbers), values, rows)
