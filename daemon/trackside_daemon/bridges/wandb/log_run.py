"""Read a run of W&B from its transaction logs; records are those of wandb_internal.proto."""

from __future__ import annotations

import json
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from trackside_daemon.bridges.foreign_run import ForeignRun
from trackside_daemon.bridges.protobuf import (
    BYTES,
    FIXED64,
    VARINT,
    ProtobufError,
    double,
    fields,
    integer,
    message,
    messages,
    text,
    varint,
)
from trackside_daemon.bridges.wandb.log_file import LogFile
from trackside_daemon.history.files.json_format import number
from trackside_daemon.history.files.left_out import DAMAGED, NO_NUMBER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from trackside_daemon.history.files.items import EventItem, Push

_HISTORY, _CONFIG, _STATS, _RUN, _EXIT, _ENVIRONMENT = 2, 5, 7, 17, 18, 26  # fields of Record
_KEY, _NESTED_KEY, _VALUE_JSON = 1, 2, 16  # fields of an item of history, configuration and statistics
_VALUE_JSON_TEXT = 8  # the same of later versions; they may also write booleans, integers, numbers and texts as such

DEPTH = 8  # levels of nested values
SYSTEM = "system/"
"""Beginning of the keys of system metrics, which have the step of the history row before them."""


class LogRun(ForeignRun):
    """A run of W&B.

    Args:
        id: Its id.
        paths: Its logs, one for each attempt, oldest first.
    """

    live = True

    def __init__(self, id: str, paths: Sequence[Path]) -> None:  # noqa: A002  the field's word
        super().__init__(id, id, str(paths[0]), "W&B")
        self.state, self.cause = "lost", "the log has no end"
        self.paths = paths
        self._logs: list[LogFile] = []
        self._step = 0
        self._readers: dict[int, Callable[[int, bytes], Iterator[Push | EventItem]]] = {
            _HISTORY: self._history,
            _STATS: self._stats,
        }

    def read(self, *, final: bool = True) -> Iterator[Push | EventItem]:
        """See `ForeignRun`."""
        self._logs += [LogFile(path, self.left_out) for path in self.paths[len(self._logs) :]]
        for attempt, log in enumerate(self._logs):
            for begin, record in log.read(final=final):
                try:
                    yield from self._record(attempt, record)
                except (ProtobufError, RecursionError, ValueError):
                    log.leave_out(DAMAGED, begin, len(record))

    def extend(self, other: ForeignRun) -> None:
        """See `ForeignRun`."""
        if isinstance(other, LogRun):
            self.paths = other.paths

    def close(self) -> None:
        """See `ForeignRun`."""
        for log in self._logs:
            log.close()
        self._logs = []

    def _record(self, attempt: int, record: bytes) -> Iterator[Push | EventItem]:
        for field, kind, begin, end in fields(record):
            if kind != BYTES:
                continue
            if field in self._readers:
                yield from self._readers[field](attempt, record[begin:end])
            elif field == _CONFIG:
                self._configure(record[begin:end])
            elif field == _RUN:
                self._describe(record[begin:end])
            elif field == _EXIT:
                code = integer(record[begin:end], 1)
                self.ended = True
                self.state, self.cause = ("failed", f"exit status {code}") if code else ("finished", "")
            elif field == _ENVIRONMENT and (program := text(record[begin:end], 6)):
                self.about["command"] = [
                    program,
                    *(part.decode("utf-8", "replace") for part in messages(record[begin:end], 5)),
                ]

    def _history(self, attempt: int, history: bytes) -> Iterator[Push | EventItem]:
        values = dict(_items(history, 1))
        time = values.pop("_timestamp", None)
        step = values.pop("_step", None)
        values.pop("_runtime", None)
        self._step = step if isinstance(step, int) else integer(message(history, 2), 1)
        numbers = self._numbers(values)
        if numbers and isinstance(time, int | float) and (push := self.push(attempt, self._step, time, numbers)):
            yield push

    def _stats(self, attempt: int, stats: bytes) -> Iterator[Push | EventItem]:
        time = _seconds(message(stats, 2))
        numbers = self._numbers({SYSTEM + key: value for key, value in _items(stats, 3)})
        if numbers and (push := self.push(attempt, self._step, time, numbers)):
            yield push

    def _numbers(self, values: dict[str, Any]) -> dict[str, float]:
        """Return the numbers of a row, sorted, since W&B writes the keys of each row in another order."""
        numbers: dict[str, float] = {}
        for key, value in sorted(flattened(values), key=itemgetter(0)):
            try:
                numbers[key] = number(value)
            except (TypeError, ValueError, OverflowError):
                if value is not None:
                    self.left_out.add(NO_NUMBER, key)
        return numbers

    def _configure(self, config: bytes) -> None:
        self.config.update({key: value for key, value in _items(config, 1) if not key.startswith("_wandb")})

    def _describe(self, run: bytes) -> None:
        self.name = text(run, 8) or self.name
        self.tags = [tag.decode("utf-8", "replace") for tag in messages(run, 10)]
        if host := text(run, 13):
            self.about["host"] = host
        self._configure(message(run, 4))


def flattened(values: dict[str, Any], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield the values of nested mappings with their keys joined by dots; media, which have a ``_type``, by that."""
    for key, value in values.items():
        if isinstance(value, dict) and "_type" in value:
            yield f"{prefix}{key} ({value['_type']})", value
        elif isinstance(value, dict) and depth < DEPTH:
            yield from flattened(value, f"{prefix}{key}.", depth + 1)
        else:
            yield prefix + str(key), value


def _items(data: bytes, field: int) -> Iterator[tuple[str, Any]]:
    """Yield key and value of the items of a history row, a configuration or statistics."""
    for item in messages(data, field):
        names: list[str] = []
        value: Any = None
        for number_, kind, begin, end in fields(item):
            if number_ in (_KEY, _NESTED_KEY) and kind == BYTES:
                names.append(item[begin:end].decode("utf-8", "replace"))
            elif number_ in (_VALUE_JSON, _VALUE_JSON_TEXT) and kind == BYTES:
                value = json.loads(item[begin:end])
            else:
                value = _typed(item, number_, kind, (begin, end))
        yield ".".join(names), value


def _typed(item: bytes, field: int, kind: int, span: tuple[int, int]) -> Any:
    """Return a value that is not written as JSON: a boolean, an integer (zigzag), a number or a text."""
    begin, end = span
    if kind == VARINT and field in (4, 5):
        value = varint(item, begin)[0]
        return value != 0 if field == 4 else value >> 1 ^ -(value & 1)
    if kind == FIXED64 and field == 6:
        return double(item, begin)
    return item[begin:end].decode("utf-8", "replace") if kind == BYTES and field == 7 else None


def _seconds(timestamp: bytes) -> float:
    return integer(timestamp, 1) + integer(timestamp, 2) / 1e9
