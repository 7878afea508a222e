"""Rows from JSON lines or CSV, of `trackside export` or written by hand, for `trackside replay`."""

import io
import json
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from math import isfinite
from typing import Any, BinaryIO

import msgspec

from trackside_daemon.bridges.foreign_run import ForeignRun, ForeignRunError
from trackside_daemon.cli.errors import CommandError, warn
from trackside_daemon.detectors.replay import PushedRow
from trackside_daemon.detectors.step_durations import DURATION, StepDurations
from trackside_daemon.history.files.csv_format import read_csv
from trackside_daemon.history.files.formats import PEEK_BYTES
from trackside_daemon.history.files.items import LINE_BYTES, FormatError, ItemClock, Push
from trackside_daemon.history.files.json_format import PARSE_ERRORS, number
from trackside_daemon.history.files.left_out import LeftOut


class _Pushed(msgspec.Struct):
    """A line; further fields are ignored."""

    kind: str = "samples"
    attempt: int = 0
    rank: int | None = 0
    step: int | float | None = None
    time: float | None = None
    phase: str | None = ""
    values: dict[str, float | str] | None = None


_decode = msgspec.json.Decoder(_Pushed).decode


class RowConverter:
    """Converter from lines to rows.

    A line without a step has the step after its rank's previous one. The time of a line without a time is its index.

    Args:
        numbered: Whether a row's index is the number of its line, from 0; otherwise samples are counted per key.
    """

    def __init__(self, *, numbered: bool = True) -> None:
        self._numbered = numbered
        self._steps: dict[int, int] = {}

    def row(self, line: bytes, index: int) -> PushedRow | None:
        """Return the row of a line; None for an empty one, or one of an export without samples.

        Raises:
            ValueError: The line is invalid; the message is the reason.
        """
        if len(line) > LINE_BYTES:
            raise ValueError(f"it is longer than {LINE_BYTES >> 20} MiB")
        if not line.strip():
            return None
        pushed = _pushed(line)
        if pushed.kind != "samples":
            return None
        values = _unwrapped(line) if pushed.values is None else _numbers(pushed.values)
        if values is None:
            raise ValueError('"values" is required: numbers by key')
        rank = pushed.rank or 0
        step = self._steps.get(rank, -1) + 1 if pushed.step is None else _whole(pushed.step)
        time = float(index) if pushed.time is None else pushed.time
        if not isfinite(time):
            raise ValueError(f'"time" must be in Unix seconds, not {time}')
        self._steps[rank] = step
        return PushedRow(
            index if self._numbered else None, pushed.attempt, rank, step, time, pushed.phase or "", values
        )


def lines(stream: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a file; a line that is too long is cut, but stays too long."""
    # With a limit, because a file without newlines would fill the memory.
    for line in iter(partial(stream.readline, LINE_BYTES + 1), b""):
        yield line
        rest = line
        while len(rest) > LINE_BYTES and not rest.endswith(b"\n"):
            rest = stream.readline(LINE_BYTES + 1)


def split(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines of chunks of any length."""
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        yield from whole
    yield rest


def read(lines: Iterable[bytes], rows: RowConverter, invalid: Callable[[int, str], None]) -> Iterator[PushedRow]:
    """Yield the rows of lines; call *invalid* with the number of each invalid line, from 1, and the reason."""
    for index, line in enumerate(lines):
        try:
            row = rows.row(line, index)
        except PARSE_ERRORS as error:
            invalid(index + 1, _reason(error))
            continue
        if row is not None:
            yield row


def _pushed(line: bytes) -> _Pushed:
    try:
        return _decode(line)
    except msgspec.MsgspecError:  # NaN as Python writes it, or 1e999
        return msgspec.convert(_object(line), _Pushed)


def _object(line: bytes) -> Any:
    value = json.loads(line)
    if not isinstance(value, dict):
        raise ValueError("a JSON object is expected")  # noqa: TRY004  as for every invalid line
    return value


def is_csv(stream: io.BufferedReader) -> bool:
    """Return whether a file is CSV, by its header, and not JSON lines."""
    return b"," in stream.peek(1)[:PEEK_BYTES].partition(b"\n")[0] and stream.peek(1).lstrip()[:1] not in b"{["


def read_table(stream: io.BufferedReader, file: str) -> Iterator[PushedRow]:
    """Yield the rows of a CSV file.

    Raises:
        CommandError: A line is invalid.
    """
    left_out = LeftOut()
    try:
        for index, push in enumerate(read_csv(stream, file, ItemClock(0.0), left_out)):
            if isinstance(push, Push):
                values = dict(zip(push.keys, push.values, strict=True))
                yield PushedRow(index, push.attempt, push.rank, push.step, push.time / 1e6, "", values)
    except FormatError as error:
        raise CommandError(str(error)) from None
    for note in left_out.notes():
        warn(f"{file}: {note}")


def _unwrapped(line: bytes) -> dict[str, float] | None:
    """Return the numbers of a line that has them next to the step; None if it has none."""
    fields = _object(line)
    own = _Pushed.__struct_fields__
    return {
        key: float(value)
        for key, value in fields.items()
        if key not in own and isinstance(value, int | float) and not isinstance(value, bool)
    } or None


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
        raise ValueError(f'"step" must be a whole number, not {step}')
    return int(step)


def _reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"one JSON object per line is expected: {error.msg} at character {error.pos + 1}"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8"
    return re.sub(r" - at `\$\.?(.*?)`$", r" at \1", " ".join(str(error).split()))


class Durations:
    """Step durations of a run, from the times of its rows: from the first push of a step to that of the next.

    Durations that the training pushed itself replace them. Evaluation and checkpoints count too, because the history has
    no phases.
    """

    def __init__(self) -> None:
        self._rank: tuple[int, int] | None = None
        self._durations = StepDurations()
        self._pushed = False

    def duration(self, row: PushedRow) -> PushedRow | None:
        """Return a row with the duration of the step that ends with this row; None if none ends."""
        if self._rank != (row.attempt, row.rank):
            self._rank = (row.attempt, row.rank)
            self._pushed = False
            self._durations = StepDurations()
        self._pushed = self._pushed or DURATION in row.values
        ended = self._durations.add([row.step], [row.time])
        if self._pushed or not ended.steps:
            return None
        return row._replace(step=ended.steps[0], values={DURATION: ended.values[0]}, derived=True)


def with_durations(rows: Iterable[PushedRow]) -> Iterator[PushedRow]:
    """Yield rows, and the durations of their steps between them."""
    durations = Durations()
    for row in rows:
        if (derived := durations.duration(row)) is not None:
            yield derived
        yield row


def timed(run: ForeignRun) -> Iterator[PushedRow]:
    """Yield the rows of a run that another tool has recorded, and the durations of its steps.

    Raises:
        CommandError: It cannot be read.
    """
    try:
        yield from with_durations(
            PushedRow(
                None,
                push.attempt,
                push.rank,
                push.step,
                push.time / 1e6,
                "",
                dict(zip(push.keys, push.values, strict=True)),
            )
            for push in run.read()
            if isinstance(push, Push)
        )
    except (ForeignRunError, OSError) as error:
        raise CommandError(str(error)) from None
    finally:
        for note in run.notes():
            warn(f"{run.place}: {note}")
        run.close()
