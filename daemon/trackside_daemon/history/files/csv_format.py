"""Read CSV files: our exports, and those of other tools (see `formats`)."""

from __future__ import annotations

import csv
import io
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING, NamedTuple

from trackside_daemon.history.files.export import COLUMNS, unescape_formula
from trackside_daemon.history.files.items import (
    EARLY,
    INT64,
    LINE_BYTES,
    STEP,
    TIME,
    Clock,
    FormatError,
    Item,
    MachineValues,
    Push,
    line_too_long,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

NAME = ("metric.name", "metric_name", "metric", "key", "tag", "name")  # of a key's column next to a column "value"
TENSORBOARD = ["wall time", "step", "value"]


class _Columns(NamedTuple):
    """Indices of the columns in a row; -1 for those that the file does not have.

    A file with a column *name* has one value per row, in the only column of *keys*, whose key is in that column.
    """

    attempt: int
    rank: int
    step: int
    time: int
    keys: Sequence[tuple[int, str]]
    name: int = -1


def read_csv(buffered: io.BufferedReader, file: str, clock: Clock) -> Iterator[Item]:
    """Yield the pushes of a CSV file.

    Raises:
        FormatError: A line is invalid.
    """
    text = io.TextIOWrapper(buffered, "utf-8-sig", newline="")  # spreadsheets write a byte order mark
    rows = csv.reader(_lines(text, file))
    try:
        header = next(rows, [])
        columns = _columns(header, file)
        for row in rows:
            item = _row(row, columns, clock, len(header)) if row else None
            if item is not None:
                yield item
    except UnicodeDecodeError as error:
        raise FormatError(
            f"{file}: after line {rows.line_num}: text in UTF-8 is expected, or a file that trackside import --help names"
        ) from error
    except (ValueError, OverflowError, csv.Error) as error:
        raise FormatError(f"{file}: line {rows.line_num}: {error}") from error
    finally:
        with suppress(ValueError):  # the caller closes the file, and may have done so already
            text.detach()


def _lines(text: io.TextIOWrapper, file: str) -> Iterator[str]:
    for number, line in enumerate(iter(partial(text.readline, LINE_BYTES + 1), ""), 1):
        if len(line) > LINE_BYTES:
            raise line_too_long(file, number)
        yield line


def _row(row: list[str], columns: _Columns, clock: Clock, width: int) -> Push | MachineValues | None:
    if len(row) != width:
        raise ValueError(f"{width} columns are expected, as in the header, not {len(row)}")
    attempt, rank, step, time, places, name = columns
    keys, values = [], []
    for place, key in places if name < 0 else [(places[0][0], row[name])]:
        cell = row[place]
        if cell:
            try:
                values.append(float(cell))
                keys.append(key)
            except ValueError:
                if cell.strip():
                    raise ValueError(f"a number is expected for {key!r}, not {cell!r}") from None
    if not keys:
        return None
    seconds = _decimal(row[time], "time") if time >= 0 and row[time] else None
    if attempt >= 0 and not (row[attempt] or row[rank] or row[step]):
        return MachineValues(clock.at(seconds), dict(zip(keys, values, strict=True)))
    return Push(
        _whole(row[attempt], "attempt") if attempt >= 0 else 0,
        _whole(row[rank], "rank") if rank >= 0 else 0,
        _whole(row[step], "step"),
        clock.at(seconds),
        keys,
        values,
    )


def _columns(header: Sequence[str], file: str) -> _Columns:
    """Return the columns that a header describes.

    Raises:
        ValueError: There is no column for the step, or a name occurs twice.
    """
    if tuple(header[:4]) == COLUMNS:
        columns = _Columns(0, 1, 2, 3, list(enumerate(map(unescape_formula, header)))[4:])
    else:
        names = [name.strip().lower() for name in header]
        if names == TENSORBOARD:
            return _Columns(-1, -1, 1, 0, [(2, PurePath(file).stem.rpartition("-tag-")[2])])
        step = _index(names, STEP)
        if step < 0 and "step" in names:  # Lightning sorts its columns
            step = names.index("step")
        time = _index(names, TIME)
        if step < 0:
            raise ValueError(
                "a header with a column 'step', and then one column per key, is expected, such as step,time,loss; "
                f"the header begins with {','.join(header[:4])[:60]!r}"
            )
        name = next((names.index(one) for one in NAME if one in names), -1)
        if step >= 0 and name >= 0 and "value" in names:
            return _Columns(-1, -1, step, time, [(names.index("value"), "value")], name)
        keys = [(number, one) for number, one in enumerate(header) if number not in {step, time} and one.strip()]
        columns = _Columns(-1, -1, step, time, keys)
    twice = [key for key, times in Counter(key for _, key in columns.keys).items() if times > 1]
    if twice:
        raise ValueError(f"each column name is expected once, but {twice[0]!r} occurs again")
    return columns


def _index(names: Sequence[str], wanted: Sequence[str]) -> int:
    for name in wanted:
        among = names if name.startswith("_") else names[:EARLY]
        if name in among:
            return among.index(name)
    return -1


def _whole(text: str, column: str) -> int:
    try:
        number = int(text)  # first, since float() rounds above 2**53
    except ValueError:
        number = int(value) if (value := _decimal(text, column)) == value // 1 else INT64
    if not -INT64 <= number < INT64 or (number < 0 and column != "step"):
        raise ValueError(f"a whole number is expected as {column}, not {text!r}")
    return number


def _decimal(text: str, column: str) -> float:
    try:
        return float(text)
    except ValueError:
        kind = "a time in Unix seconds" if column == "time" else f"a whole number as {column}"
        raise ValueError(f"{kind} is expected, not {text!r}") from None
