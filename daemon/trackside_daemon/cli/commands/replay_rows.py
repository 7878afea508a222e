"""Reads what was pushed from JSON lines: those of `trackside replay`, and of `trackside export`."""

from __future__ import annotations

import json
import re
from functools import partial
from math import isfinite
from typing import TYPE_CHECKING, Any

import msgspec

from trackside_daemon.detectors.replay import Row
from trackside_daemon.detectors.step_durations import DURATION, StepDurations
from trackside_daemon.history.files.items import LINE_BYTES
from trackside_daemon.history.files.json_format import PARSE_ERRORS, number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import BinaryIO


class _Pushed(msgspec.Struct):
    """A line; what else is in it does not matter."""

    kind: str = "samples"
    attempt: int = 0
    rank: int | None = 0
    step: int | float | None = None
    time: float | None = None
    phase: str | None = ""
    values: dict[str, float | str] | None = None


_decode = msgspec.json.Decoder(_Pushed).decode


class Rows:
    """Makes rows of lines.

    A line without a step is a step after the one before of its rank, and without a time as many seconds as there are lines
    before it.

    Args:
        numbered: The line's number, from 0 on, is the row's index; else samples are counted key by key.
    """

    def __init__(self, *, numbered: bool = True) -> None:
        self._numbered = numbered
        self._steps: dict[int, int] = {}

    def row(self, line: bytes, index: int) -> Row | None:
        """The row of a line; None for an empty one, or one of an export that has no samples.

        Raises:
            ValueError: The line makes no sense; the message says why.
        """
        if len(line) > LINE_BYTES:
            raise ValueError(f"it is longer than {LINE_BYTES >> 20} MiB")
        if not line.strip():
            return None
        pushed = _pushed(line)
        if pushed.kind != "samples":
            return None
        if pushed.values is None:
            raise ValueError('"values" are expected: numbers by key')
        values = _numbers(pushed.values)
        rank = pushed.rank or 0
        step = self._steps.get(rank, -1) + 1 if pushed.step is None else _whole(pushed.step)
        time = float(index) if pushed.time is None else pushed.time
        if not isfinite(time):
            raise ValueError(f'"time" is expected in Unix seconds, not {time}')
        self._steps[rank] = step
        place = index if self._numbered else None
        return Row(place, pushed.attempt, rank, step, time, pushed.phase or "", values)


def lines(stream: BinaryIO) -> Iterator[bytes]:
    """The lines of a file; of one that is too long as much as tells that it is."""
    for line in iter(partial(stream.readline, LINE_BYTES + 1), b""):
        yield line
        rest = line
        while len(rest) > LINE_BYTES and not rest.endswith(b"\n"):
            rest = stream.readline(LINE_BYTES + 1)


def split(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The lines of what comes in pieces of any length."""
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        yield from whole
    yield rest


def read(found: Iterable[bytes], rows: Rows, bad: Callable[[int, str], None]) -> Iterator[Row]:
    """The rows of lines; *bad* is told the number, from 1 on, of each that makes no sense, and why."""
    for index, line in enumerate(found):
        try:
            row = rows.row(line, index)
        except PARSE_ERRORS as error:
            bad(index + 1, _expected(error))
            continue
        if row is not None:
            yield row


def _pushed(line: bytes) -> _Pushed:
    try:
        return _decode(line)
    except msgspec.MsgspecError:  # NaN as Python writes it, or 1e999
        return msgspec.convert(_object(line), _Pushed)


def _object(line: bytes) -> Any:
    found = json.loads(line)
    if not isinstance(found, dict):
        raise ValueError("a JSON object is expected")  # noqa: TRY004  one error for all that a line can be
    return found


def _numbers(values: dict[str, float | str]) -> dict[str, float]:
    if str not in map(type, values.values()):
        return values  # type: ignore[return-value]
    numbers = {}
    for key, value in values.items():
        try:
            numbers[key] = number(value)
        except ValueError as error:
            raise ValueError(f"{key}: {error}") from None
    return numbers


def _whole(step: float) -> int:
    if step != int(step):
        raise ValueError(f'"step" is expected to be a whole number, not {step}')
    return int(step)


def _expected(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"one JSON object a line is expected: {error.msg} at character {error.pos + 1}"
    if isinstance(error, RecursionError):
        return "nested too deep"
    if isinstance(error, UnicodeDecodeError):
        return "no UTF-8"
    return re.sub(r" - at `\$\.?(.*?)`$", r" at \1", " ".join(str(error).split()))


class Durations:
    """Derives how long steps took of a run whose rows have times, as the client does: from a step's first push to the next's.

    What the training itself pushed under the key counts instead. Pauses are part of it, since no phase is in the history.
    """

    def __init__(self) -> None:
        self._whose: tuple[int, int] | None = None
        self._of = StepDurations()
        self._pushed = False

    def take(self, row: Row) -> Row | None:
        """The row with the duration of the step that ended with this row, at that step; None when none did."""
        if self._whose != (row.attempt, row.rank):
            self._whose, self._pushed, self._of = (row.attempt, row.rank), False, StepDurations()
        self._pushed = self._pushed or DURATION in row.values
        ended = self._of.add([row.step], [row.time])
        if self._pushed or not ended.steps:
            return None
        return row._replace(step=ended.steps[0], values={DURATION: ended.values[0]}, derived=True)
