"""Read JSON lines, and the JSON document of our export (see `formats`)."""

import io
import json
import re
from array import array
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, get_args

import msgspec

from trackside_daemon.history.files.items import (
    STEP,
    TIME,
    EntryKind,
    Item,
    ItemClock,
    MachineValues,
    Push,
    RunEntry,
    check_keys,
    checked_position,
    microseconds,
)
from trackside_daemon.history.files.json_scanner import Scanner
from trackside_daemon.history.files.left_out import DAMAGED, DAMAGED_LINE, NO_NUMBER, TORN_LINE, LeftOut, lines
from trackside_daemon.history.files.merging import Chunk, merge

PARSE_ERRORS = (ArithmeticError, RecursionError, TypeError, ValueError)  # errors of malformed JSON


def read_document(buffered: io.BufferedReader, left_out: LeftOut) -> Iterator[Item]:
    """Yield the contents of a JSON document; *left_out* counts what is damaged.

    After damage, the next point of the line is searched, or else the next line that begins as those of our exports do.
    """
    scanner, series = Scanner(buffered), _Series()
    member, resumed = "", False
    while True:
        fields: dict[str, Any] = {}
        try:
            for name in _values(scanner, member, resumed=resumed):
                member, line = name, scanner.line
                fields = {}
                value = None if member == "series" else scanner.value()
                if member == "series":
                    _read_series(scanner, fields, left_out)
                try:
                    if member == "series":
                        yield from series.add(fields)
                    else:
                        yield from series.rest()  # what belongs to a rank follows its samples
                        yield from _items(member, value, line)
                except PARSE_ERRORS as error:
                    left_out.add(DAMAGED_LINE, f"line {line}", reason=f"line {line}: {_expected(error)}")
            break
        except PARSE_ERRORS as error:
            line = scanner.line
            if fields.get("key") and fields.get("points"):
                with suppress(*PARSE_ERRORS):
                    yield from series.add(fields)
            found, size = scanner.skip(_LINE)
            left_out.add(DAMAGED, f"line {line}", size=size, reason=f"line {line}: {_expected(error)}")
            if not found:
                break
            resumed, member = True, member if found == "{" else ""
    yield from series.rest()


def _values(scanner: Scanner, member: str, *, resumed: bool) -> Iterator[str]:
    """Yield the member of each value, which the caller then reads; from an element of a member on, or from a member on."""
    if resumed and member in _LISTS:
        for _ in scanner.elements(inside=True):
            yield member
        if scanner.peek() != "}":
            scanner.expect(",")
    for name in scanner.members(inside=resumed):
        if name in _LISTS:
            for _ in scanner.elements():
                yield name
        else:
            yield name


def _items(member: str, value: Any, line: int) -> Iterator[Item]:
    """Yield the item of a value."""
    if member in (*_LISTS, "run"):
        if not isinstance(value, dict):
            raise ValueError("a JSON object is expected")
        if member == "resources":
            yield _machine(msgspec.convert(value, _Samples))
        else:
            yield RunEntry(_MEMBERS.get(member, "run"), value, line)


def _read_series(scanner: Scanner, fields: dict[str, Any], left_out: LeftOut) -> None:
    """Read a series into *fields*, so that damage leaves what comes before it."""
    fields.update(attempt=0, rank=0)
    for name in scanner.members():
        if name == "points":
            fields[name] = array("q"), array("q"), array("d")
            _read_points(scanner, fields[name], left_out)
        else:
            fields[name] = scanner.value()


def _read_points(scanner: Scanner, chunk: Chunk, left_out: LeftOut) -> None:
    steps, times, values = chunk
    scanner.expect("[")
    while scanner.peek() != "]":
        try:
            point = scanner.value()
            try:
                step, seconds, value = point
                sample = checked_position(0, 0, step)[2], microseconds(seconds), number(value)
            except (ArithmeticError, TypeError, ValueError) as error:
                form = f"[step, time, value] is expected, not {str(point)[:60]}"
                why = form if isinstance(error, TypeError) else _expected(error)
                left_out.add("damaged sample(s)", f"line {scanner.line}", reason=f"line {scanner.line}: {why}")
            else:
                steps.append(sample[0])
                times.append(sample[1])
                values.append(sample[2])
            if scanner.peek() != "]":
                scanner.expect(",")
        except PARSE_ERRORS as error:
            line = scanner.line
            found, size = scanner.skip(_POINT)
            if found != "[":
                raise
            left_out.add(DAMAGED, f"line {line}", size=size, reason=f"line {line}: {_expected(error)}")
    scanner.expect("]")


class _Series:
    """The series of one rank, which together are its pushes."""

    def __init__(self) -> None:
        self._place = (0, 0)
        self._chunks: dict[str, Chunk] = {}

    def add(self, fields: Mapping[str, Any]) -> Iterator[Push]:
        """Add a series, and yield the pushes of the rank before if it is of the next one.

        Raises:
            ValueError: It has another form.
        """
        attempt, rank, _ = checked_position(fields["attempt"], fields["rank"], 0)
        key, points = fields.get("key"), fields.get("points")
        if not isinstance(key, str) or points is None:
            raise ValueError('a series is expected to have a "key" and "points"')
        check_keys([key])
        if (attempt, rank) != self._place or key in self._chunks:
            yield from self.rest()
            self._place = (attempt, rank)
        self._chunks[key] = points

    def rest(self) -> Iterator[Push]:
        """Yield the pushes of the rank."""
        yield from _pushes(self._place, self._chunks)
        self._chunks = {}


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
_LINE = re.compile(r'\n(?=[{"])')
_POINT = re.compile(r"(?=\[-?\d)|(?=\n)")


def read_lines(buffered: io.BufferedReader, clock: ItemClock, left_out: LeftOut) -> Iterator[Item]:
    """Yield the contents of JSON lines, ours or another tool's; see `read_csv`."""
    beginning = b""  # of a line that is whole
    for number, line in lines(buffered, left_out):
        ended = line.endswith(b"\n")
        if not line.strip():
            continue
        try:
            item = _line(line, clock, left_out)
        except PARSE_ERRORS as error:
            kind = DAMAGED_LINE if ended or _is_json(line) else TORN_LINE  # it is being written, or a crash has cut it
            left_out.add(kind, f"line {number}", reason=f"line {number}: {_expected(error)}")
            # Where a crash has cut a line, the next one follows in it.
            item = _after(line, beginning, clock, left_out)
        else:
            beginning = beginning or line.partition(b":")[0]
        if item is not None:
            yield item if isinstance(item, Push | MachineValues) else item._replace(line=number)


def _after(line: bytes, beginning: bytes, clock: ItemClock, left_out: LeftOut) -> Item | None:
    """Return the item of the line that begins within a damaged one; None without one."""
    if not beginning or (at := line.rfind(beginning)) <= 0:
        return None
    try:
        return _line(line[at:], clock, left_out)
    except PARSE_ERRORS:
        return None


def _line(line: bytes, clock: ItemClock, left_out: LeftOut) -> Item | None:
    try:
        samples = _decode(line)
    except msgspec.MsgspecError:  # another tool's line, or one with NaN as Python writes it
        samples = None
    if samples is not None and samples.kind == "samples" and samples.values is not None:
        return _push(samples, clock)
    if samples is not None and samples.kind == "resources":
        return _machine(samples)
    fields = json.loads(line.decode("utf-8", "replace"))
    if not isinstance(fields, dict):
        raise ValueError("a JSON object is expected")  # noqa: TRY004  one error for all that a line can be
    if "values" in fields and fields.get("kind", "samples") == "samples":
        samples = msgspec.convert(fields, _Samples)
        check_keys(samples.values or ())
        return _push(samples, clock)
    if fields.get("kind", "") in _KINDS:
        return _entry(fields.pop("kind"), fields)
    return _other_tools_push(fields, clock, left_out)


def _push(samples: _Samples, clock: ItemClock) -> Push | None:
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


def _other_tools_push(fields: dict[str, Any], clock: ItemClock, left_out: LeftOut) -> Push | None:
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
                left_out.add(NO_NUMBER, key)
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


def _entry(kind: EntryKind, fields: dict[str, Any]) -> RunEntry:
    if kind == "event":
        fields = {**fields, "kind": fields.pop("event", "")}
    elif kind == "capture" and not isinstance(fields := fields.get("capture", ()), dict):
        raise ValueError('"capture" is expected to be an object')
    return RunEntry(kind, fields)


_KINDS = frozenset(get_args(EntryKind))
_MEMBERS: dict[str, EntryKind] = {"events": "event", "alerts": "alert", "captures": "capture", "media": "media"}
_LISTS = frozenset((*_MEMBERS, "series", "resources"))


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
