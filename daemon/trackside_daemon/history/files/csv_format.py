"""Read CSV files: our exports, and those of other tools (see `formats`)."""

import csv
import io
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import PurePath
from typing import NamedTuple

from trackside_daemon.history.files.export import COLUMNS
from trackside_daemon.history.files.items import (
    EARLY,
    INT64,
    STEP,
    TIME,
    FormatError,
    Item,
    ItemClock,
    MachineValues,
    Push,
)
from trackside_daemon.history.files.left_out import DAMAGED_LINE, NO_NUMBER, TORN_LINE, LeftOut, lines
from trackside_daemon.model.text import csv_name

# Of a key's column next to a column "value".
KEY_COLUMN_NAMES = ("metric.name", "metric_name", "metric", "key", "tag", "name")
TENSORBOARD = ["wall time", "step", "value"]
HEADER = "repeated header(s), with the next attempt after each"
BOOLEANS = {"true": 1.0, "false": 0.0}
_NUL = "\ufdd0"  # stands for a NUL: Unicode keeps it for such use, and no text has it
CELL_LINES = 100  # most further lines of a cell


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


def read_csv(
    buffered: io.BufferedReader, file: str, clock: ItemClock, left_out: LeftOut, *, final: bool = True
) -> Iterator[Item]:
    """Yield the pushes of a CSV file; what follows a header in the middle is the next attempt.

    Args:
        buffered: The file, from its beginning.
        file: Its name, for errors.
        clock: Dates the pushes.
        left_out: Counts lines that are damaged, and cells that are not numbers.
        final: Whether the file is complete; if not, a last line without its end is still being written.

    Raises:
        FormatError: The header is invalid, or every line.
    """
    # Spreadsheets write a byte order mark.
    text = io.TextIOWrapper(buffered, "utf-8-sig", "replace", newline="")
    rows = _Rows(text, left_out)
    columns = None
    attempt, found = 0, False
    try:
        for row in rows:
            if columns is None:
                columns = _header(row, rows, file)
                continue
            if not rows.ended and not final:
                break
            try:
                item = _row(row, columns, clock, rows, attempt) if any(row) else None
            except (ValueError, OverflowError) as error:
                if _is_header(row):
                    with suppress(FormatError):
                        columns = _header(row, rows, file)
                        attempt += 1
                        left_out.add(HEADER, f"line {rows.line}")
                        continue
                kind = DAMAGED_LINE if rows.ended else TORN_LINE
                left_out.add(kind, f"line {rows.line}", reason=f"line {rows.line}: {error}")
                continue
            if item is not None:
                found = True
                yield item
        if columns is None:
            _header([], rows, file)
        if not found and final and left_out.reason:
            raise FormatError(f"{file}: {left_out.reason}")
    finally:
        with suppress(ValueError):  # the caller closes the file, and may have done so already
            text.detach()


class _Rows:
    """The rows of a file.

    Attributes:
        line: Number of the first line of the row.
        ended: Whether its last line has its end.
        width: Number of cells that a row has by the header; 0 before it.
        left_out: Counts what is damaged.
    """

    def __init__(self, text: io.TextIOWrapper, left_out: LeftOut) -> None:
        self.line = 0
        self.ended = True
        self.width = 0
        self.left_out = left_out
        self._lines = lines(text, left_out)
        self._again: deque[tuple[int, str]] = deque()

    def __iter__(self) -> Iterator[list[str]]:
        while (first := self._line()) is not None:
            self.line, line = first
            self.ended = line.endswith(("\n", "\r"))
            if '"' in line:
                yield self._quoted(line)
            else:
                yield line.rstrip("\r\n").split(",")

    def _line(self) -> tuple[int, str] | None:
        return self._again.popleft() if self._again else next(self._lines, None)

    def _quoted(self, line: str) -> list[str]:
        """Return the row of a line with quotes, and of the following ones if a cell has line ends."""
        more: list[tuple[int, str]] = []
        whole = line
        while whole.count('"') % 2 and len(more) < CELL_LINES and (following := self._line()) is not None:
            more.append(following)
            whole += following[1]
        row = _cells(whole)
        if more and (whole.count('"') % 2 or len(row) != (self.width or len(row))):  # it costs its line alone
            self._again.extendleft(reversed(more))
            return _cells(line.rstrip("\r\n"))
        self.ended = whole.endswith(("\n", "\r"))
        return row


def _cells(text: str) -> list[str]:
    if "\0" in text:  # which Python 3.10 refuses
        return [cell.replace(_NUL, "\0") for cell in _cells(text.replace("\0", _NUL))]
    try:
        return next(csv.reader([text]), [])
    except csv.Error:
        return [text]


def _is_header(row: list[str]) -> bool:
    """Return whether a row names a column for the step, and has no number."""
    return any(cell.strip().lower() in STEP for cell in row) and not any(map(_is_number, row))


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _row(row: list[str], columns: _Columns, clock: ItemClock, rows: _Rows, begun: int) -> Push | MachineValues | None:
    if len(row) != rows.width:
        raise ValueError(f"{rows.width} columns are expected, as in the header, not {len(row)}")
    attempt, rank, step, time, places, name = columns
    number = _whole(row[step], "step") if row[step] else 0  # first, since a header in the middle has none
    keys, values = [], []
    for place, key in places if name < 0 else [(places[0][0], row[name])]:
        cell = row[place]
        if cell:
            try:
                values.append(float(cell))
            except ValueError:
                if (boolean := BOOLEANS.get(cell.strip().lower())) is None:
                    if cell.strip():
                        why = f"line {rows.line}: a number is expected for {key!r}, not {cell[:60]!r}"
                        rows.left_out.add(NO_NUMBER, key, reason=why)
                    continue
                values.append(boolean)
            keys.append(key)
    if not keys:
        return None
    seconds = _decimal(row[time], "time") if time >= 0 and row[time] else None
    if attempt >= 0 and not (row[attempt] or row[rank] or row[step]):
        return MachineValues(clock.at(seconds), dict(zip(keys, values, strict=True)))
    return Push(
        _whole(row[attempt], "attempt") if attempt >= 0 else begun,
        _whole(row[rank], "rank") if rank >= 0 else 0,
        number if row[step] else _whole("", "step"),
        clock.at(seconds),
        keys,
        values,
    )


def _header(row: list[str], rows: _Rows, file: str) -> _Columns:
    """Return the columns of a header.

    Raises:
        FormatError: It is none.
    """
    try:
        columns = _columns(row, file)
    except ValueError as error:
        raise FormatError(f"{file}: line {rows.line}: {error}") from None
    rows.width = len(row)
    return columns


def _columns(header: Sequence[str], file: str) -> _Columns:
    """Return the columns that a header describes.

    Raises:
        ValueError: There is no column for the step, or a name occurs twice.
    """
    if tuple(header[:4]) == COLUMNS:
        columns = _Columns(0, 1, 2, 3, list(enumerate(map(csv_name, header)))[4:])
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
        name = next((names.index(one) for one in KEY_COLUMN_NAMES if one in names), -1)
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
