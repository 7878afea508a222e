"""Read JSON lines, and the JSON document of our export (see `formats`)."""

from __future__ import annotations

import json
from array import array
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from trackside_daemon.history.files.items import (
    LINE_BYTES,
    STEP,
    TIME,
    AlertItem,
    CaptureItem,
    Clock,
    EventItem,
    FormatError,
    Item,
    LayersItem,
    MachineValues,
    MediaLine,
    Push,
    RunHeader,
    check_keys,
    checked_position,
    line_too_long,
    microseconds,
)
from trackside_daemon.history.files.json_scanner import Scanner
from trackside_daemon.history.files.merging import Chunk, merge

if TYPE_CHECKING:
    import io
    from collections.abc import Callable, Iterator, Mapping

PARSE_ERRORS = (ArithmeticError, RecursionError, TypeError, ValueError)  # errors of malformed JSON


def read_document(buffered: io.BufferedReader, file: str) -> Iterator[Item]:
    """Yield the contents of a JSON document.

    Raises:
        FormatError: The document is invalid.
    """
    scanner = Scanner(buffered)
    try:
        for name in scanner.members():
            if name == "series":
                yield from _series(scanner)
            elif name == "resources":
                for _ in scanner.elements():
                    yield _machine(msgspec.convert(_object(scanner), _Samples))
            elif name in _MEMBERS:
                for _ in scanner.elements():
                    yield _MEMBERS[name](_object(scanner), scanner.line)
            elif name == "run":
                yield RunHeader(_object(scanner), scanner.line)
            else:
                scanner.value()
    except PARSE_ERRORS as error:
        raise FormatError(f"{file}: line {scanner.line}: {_expected(error)}") from error


def _object(scanner: Scanner) -> dict[str, Any]:
    value = scanner.value()
    if not isinstance(value, dict):
        raise ValueError("a JSON object is expected")  # noqa: TRY004  one error for all that can be there
    return value


def _series(scanner: Scanner) -> Iterator[Push]:
    """Yield the pushes of all ranks; only the series of one rank are in memory."""
    place = (0, 0)
    rank_series: dict[str, Chunk] = {}
    for _ in scanner.elements():
        fields: dict[str, Any] = {"attempt": 0, "rank": 0}
        for name in scanner.members():
            fields[name] = _points(scanner) if name == "points" else scanner.value()
        attempt, rank, _ = checked_position(fields["attempt"], fields["rank"], 0)
        key, points = fields.get("key"), fields.get("points")
        if not isinstance(key, str) or not isinstance(points, tuple):
            raise ValueError('a series is expected to have a "key" and "points"')  # noqa: TRY004  the same
        check_keys([key])
        if (attempt, rank) != place or key in rank_series:
            yield from _pushes(place, rank_series)
            place = (attempt, rank)
            rank_series = {}
        rank_series[key] = points
    yield from _pushes(place, rank_series)


def _points(scanner: Scanner) -> Chunk:
    steps, times, values = array("q"), array("q"), array("d")
    for _ in scanner.elements():
        point = scanner.value()
        try:
            step, seconds, value = point
            steps.append(checked_position(0, 0, step)[2])
            times.append(microseconds(seconds))
            values.append(number(value))
        except TypeError:
            raise ValueError(f"[step, time, value] is expected, not {str(point)[:60]}") from None
    return steps, times, values


def _pushes(place: tuple[int, int], rank_series: Mapping[str, Chunk]) -> Iterator[Push]:
    keys = [key for key, chunk in rank_series.items() if len(chunk[0])]
    for step, time, places, values in merge([iter([rank_series[key]]) for key in keys]):
        yield Push(*place, step, time, [keys[number] for number in places], values)


class _Samples(msgspec.Struct):
    """A line of samples. Lines of other kinds are decoded a second time."""

    kind: str = "samples"
    attempt: int = 0
    rank: int | None = 0
    step: int | None = None
    time: float | None = None
    values: dict[str, float | str] | None = None


_decode = msgspec.json.Decoder(_Samples).decode


def read_lines(buffered: io.BufferedReader, file: str, clock: Clock, notes: list[str]) -> Iterator[Item]:
    """Yield the contents of JSON lines, ours or another tool's; *notes* receives what was skipped.

    Raises:
        FormatError: A line is invalid.
    """
    skipped: Counter[str] = Counter()
    for number, line in enumerate(iter(partial(buffered.readline, LINE_BYTES + 1), b""), 1):
        if len(line) > LINE_BYTES:
            raise line_too_long(file, number)
        if not line.strip():
            continue
        try:
            item = _line(line, clock, skipped)
        except PARSE_ERRORS as error:
            if not line.endswith(b"\n") and not _is_json(line):  # it is being written, or a crash has cut it
                notes.append(f"line {number}, the last one, is incomplete and was skipped")
                break
            raise FormatError(f"{file}: line {number}: {_expected(error)}") from error
        if item is not None:
            yield item if isinstance(item, Push | MachineValues) else item._replace(line=number)
    if skipped:
        names = ", ".join(repr(key) for key, _ in skipped.most_common(3))
        notes.append(f"{sum(skipped.values())} values that are not numbers were skipped, such as those of {names}")


def _line(line: bytes, clock: Clock, skipped: Counter[str]) -> Item | None:
    try:
        samples = _decode(line)
    except msgspec.MsgspecError:  # another tool's line, or one with NaN as Python writes it
        samples = None
    if samples is not None and samples.kind == "samples" and samples.values is not None:
        return _push(samples, clock)
    if samples is not None and samples.kind == "resources":
        return _machine(samples)
    fields = json.loads(line)
    if not isinstance(fields, dict):
        raise ValueError("a JSON object is expected")  # noqa: TRY004  one error for all that a line can be
    if "values" in fields and fields.get("kind", "samples") == "samples":
        samples = msgspec.convert(fields, _Samples)
        check_keys(samples.values or ())
        return _push(samples, clock)
    if (item_type := _KINDS.get(fields.get("kind", ""))) is not None:
        return item_type({name: value for name, value in fields.items() if name != "kind"})
    return _flat(fields, clock, skipped)


def _push(samples: _Samples, clock: Clock) -> Push | None:
    if samples.step is None or samples.rank is None:
        raise ValueError('"step" and "values" are expected')
    if not samples.values:
        return None
    return Push(
        *checked_position(samples.attempt, samples.rank, samples.step),
        clock.at(samples.time),
        tuple(samples.values),
        [number(value) for value in samples.values.values()],
    )


def _machine(samples: _Samples) -> MachineValues:
    if samples.time is None or samples.values is None:
        raise ValueError('"time" and "values" are expected')
    check_keys(samples.values)
    return MachineValues(microseconds(samples.time), {key: number(value) for key, value in samples.values.items()})


def _flat(fields: dict[str, Any], clock: Clock, skipped: Counter[str]) -> Push | None:
    """Return the push of another tool's line, which has the step and the keys in one object."""
    names = {name.lower(): name for name in fields}
    step = next((fields.pop(names[name]) for name in STEP if name in names), None)
    time = next((fields.pop(names[name]) for name in TIME if name in names), None)
    if not isinstance(step, int | float) or step != int(step):
        raise ValueError('a whole number as "step", and numbers by key, are expected')
    if time is not None and not isinstance(time, int | float):
        raise ValueError(f"a time in Unix seconds is expected, not {time!r}")
    check_keys(fields)
    values: dict[str, float] = {}
    for key, value in fields.items():
        try:
            values[key] = number(value)
        except (ValueError, TypeError):
            if value is not None:
                skipped[key] += 1
    if not values:
        return None
    return Push(*checked_position(0, 0, int(step)), clock.at(time), tuple(values), list(values.values()))


def number(value: float | str) -> float:
    """Return a number, also from a text for NaN or an infinity.

    Raises:
        ValueError: The text is no such number.
    """
    if isinstance(value, str) and value.strip().lower() not in _NONFINITE:
        raise ValueError(f'a number, or one of "nan", "inf" and "-inf", is expected, not {value!r}')
    return float(value)


_NONFINITE = frozenset(("nan", "inf", "-inf", "+inf", "infinity", "-infinity"))


def _event(fields: dict[str, Any], line: int = 0) -> EventItem:
    return EventItem({**fields, "kind": fields.pop("event", "")}, line)


def _capture(fields: dict[str, Any]) -> CaptureItem:
    capture = fields.get("capture")
    if not isinstance(capture, dict):
        raise ValueError('"capture" is expected to be an object')  # noqa: TRY004  one error for all that a line can be
    return CaptureItem(capture)


_KINDS: dict[
    str, Callable[[dict[str, Any]], RunHeader | EventItem | AlertItem | CaptureItem | LayersItem | MediaLine]
] = {
    "run": RunHeader,
    "event": _event,
    "alert": AlertItem,
    "capture": _capture,
    "layers": LayersItem,
    "media": MediaLine,
}
_MEMBERS: dict[str, Callable[[dict[str, Any], int], Item]] = {
    "events": EventItem,
    "alerts": AlertItem,
    "captures": CaptureItem,
    "media": MediaLine,
}


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    except RecursionError:  # too deep for the parser, which does not mean that the line is incomplete
        return True
    return True


def _expected(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"one JSON object per line is expected: {error.msg} at character {error.pos + 1}"
    if isinstance(error, RecursionError):
        return "nested too deeply"
    return " ".join(str(error).split())
