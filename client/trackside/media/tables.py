"""Tables as JSON, from rows, columns and data frames, and values counted in bins of equal width."""

import json
import sys
from collections.abc import Mapping, Sequence
from itertools import islice
from math import isfinite
from typing import Any

from trackside.limits import MEDIA_BYTES
from trackside.media.pixels import host_array

ROWS, COLUMNS = 1000, 64  # limits of a table; what is beyond is left out, and counted
CELL = 1024  # characters of a text in a cell


def table_json(rows: Any, columns: Sequence[str] | None = None) -> bytes:
    """Return a table as JSON: ``{"columns": [...], "rows": [[...]], "omitted": N}``.

    Args:
        rows: Rows as sequences, or as mappings by column; a mapping of columns; or a data frame.
        columns: Names of the columns, for rows as sequences.

    Raises:
        ValueError: It is no table. Its methods may raise anything else.
    """
    names, lines, total = _lines(rows, columns)
    kept = [[_cell(value) for value in line[:COLUMNS]] for line in lines]
    while True:
        table = {"columns": [str(name)[:CELL] for name in names[:COLUMNS]], "rows": kept, "omitted": total - len(kept)}
        data = json.dumps(table, separators=(",", ":")).encode()
        if len(data) <= MEDIA_BYTES["table"] or not kept:
            return data
        kept = kept[: len(kept) // 2]


def _lines(rows: Any, columns: Sequence[str] | None) -> tuple[list[Any], list[list[Any]], int]:
    """Return names, the first rows, and the number of all rows."""
    if hasattr(rows, "itertuples"):  # a data frame of pandas
        return list(rows.columns), [list(row) for row in islice(rows.itertuples(index=False), ROWS)], len(rows)
    if hasattr(rows, "iter_rows"):  # of polars
        return list(rows.columns), [list(row) for row in islice(rows.iter_rows(), ROWS)], len(rows)
    if isinstance(rows, Mapping):
        series = [list(islice(values, ROWS)) for values in rows.values()]
        longest = max(map(len, series), default=0)
        lines = [[values[place] if place < len(values) else None for values in series] for place in range(longest)]
        return list(rows), lines, max((len(values) for values in rows.values()), default=0)
    first = list(islice(rows, ROWS))
    total = len(rows) if hasattr(rows, "__len__") else len(first)
    if first and all(isinstance(row, Mapping) for row in first):
        names = list(columns or dict.fromkeys(name for row in first for name in row))
        return names, [[row.get(name) for name in names] for row in first], total
    if any(isinstance(row, str | bytes) or not hasattr(row, "__iter__") for row in first):
        raise ValueError("a table has rows, each a sequence or a mapping")
    lines = [list(row) for row in first]
    width = max(map(len, lines), default=0)
    return list(columns or [str(place) for place in range(width)]), lines, total


def _cell(value: Any) -> Any:
    if value is None or (isinstance(value, bool | int) and abs(value) < 2**53):
        return value
    if isinstance(value, float):
        return value if isfinite(value) else str(value)
    if hasattr(value, "__float__") and not isinstance(value, str):
        try:
            number = float(value)
            return number if isfinite(number) else str(number)
        except (TypeError, ValueError):
            pass
    return str(value)[:CELL]


BINS = 64
VALUES = 1_000_000  # of more values each second, third, … is counted


def histogram_json(values: Any) -> bytes:
    """Return the distribution of numbers as JSON: ``{"edges": [...], "counts": [...], "nonfinite": N}``.

    Args:
        values: An array, a tensor, which is waited for, or numbers.

    Raises:
        ValueError: There is no finite number. The methods of *values* may raise anything else.
    """
    if hasattr(values, "detach"):
        values = host_array(values)
    if hasattr(values, "astype"):
        edges, counts, nonfinite = _of_array(values)
    else:
        edges, counts, nonfinite = _of_numbers([float(value) for value in islice(values, VALUES)])
    return json.dumps({"edges": edges, "counts": counts, "nonfinite": nonfinite}).encode()


def _of_array(array: Any) -> tuple[list[float], list[int], int]:
    numpy = sys.modules["numpy"]
    flat = array.reshape(-1)
    flat = flat[:: max(1, -(-flat.size // VALUES))].astype("float64")
    finite = flat[numpy.isfinite(flat)]
    if not finite.size:
        raise ValueError("it has no finite number")
    counts, edges = numpy.histogram(finite, BINS)
    return edges.tolist(), counts.tolist(), int(flat.size - finite.size)


def _of_numbers(values: list[float]) -> tuple[list[float], list[int], int]:
    finite = [value for value in values if isfinite(value)]
    if not finite:
        raise ValueError("it has no finite number")
    low, high = min(finite), max(finite)
    if low == high:
        low, high = low - 0.5, high + 0.5
    width = (high - low) / BINS
    counts = [0] * BINS
    for value in finite:
        counts[min(BINS - 1, int((value - low) / width))] += 1
    return [low + place * width for place in range(BINS)] + [high], counts, len(values) - len(finite)
