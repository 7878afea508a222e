"""Read the run in a file: what `formats` reads becomes the records of a live run.

Each rank of an attempt is one session with messages numbered from 1.
"""

import hashlib
import json
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from io import SEEK_END
from itertools import chain
from math import inf
from pathlib import PurePath
from typing import Any, BinaryIO, NamedTuple, TypeVar

import msgspec

from trackside.limits import BATCH_ROWS
from trackside.packing import writable
from trackside.wire import SUMMARY, Clock, Hello, Identity, Totals
from trackside_daemon.history.files.formats import parse
from trackside_daemon.history.files.items import (
    FAR_SECONDS,
    NO_RUN,
    AlertFields,
    AttemptFields,
    EventFields,
    FormatError,
    Item,
    MachineValues,
    Push,
    RunEntry,
    RunFields,
    checked_position,
)
from trackside_daemon.history.files.layer_lines import frame_of
from trackside_daemon.history.files.left_out import DAMAGED_LINE, LeftOut
from trackside_daemon.history.files.media_lines import item_of
from trackside_daemon.model.capture import Capture, CaptureJson
from trackside_daemon.model.columns import Columns
from trackside_daemon.model.records import Alert, BatchIngested, Event, MachineSample, Record, RunState, SessionOpened
from trackside_daemon.model.session import SessionRef

SAMPLE_BYTES = 64 * 1024
MOVED = "its files stayed where it was recorded"

T = TypeVar("T")


class ImportedSession:
    """The made-up session of a rank, which collects pushes to messages."""

    def __init__(self, run: str, name: str, attempt: int, rank: int) -> None:
        digest = hashlib.sha256(f"{run}\0{attempt}\0{rank}".encode("utf-8", "surrogatepass")).digest()
        self.ref = SessionRef(digest[:16], run, name, attempt, rank)
        self._number = 0
        self._columns: list[Columns] = []
        self._rows = 0
        self._open: dict[tuple[str, ...], Columns] = {}
        self._keys: set[str] = set()

    def add(self, push: Push) -> BatchIngested | None:
        """Add a push; return a message when there are enough."""
        keys = tuple(push.keys)
        block = self._open.get(keys)
        if block is None:
            # Several blocks are open, since some tools write each key apart; each key is in one, so that its order stays.
            if not self._keys.isdisjoint(keys):
                self._close_blocks()
            self._keys.update(keys)
            block = self._open[keys] = Columns(list(keys), array("q"), array("q"), array("d"))
        block.steps.append(push.step)
        block.times.append(push.time * 1000)
        block.values.extend(push.values)
        self._rows += 1
        return self.flush() if self._rows == BATCH_ROWS else None

    def flush(self) -> BatchIngested | None:
        """Return a message of the collected pushes; None without any."""
        self._close_blocks()
        columns = self._columns
        self._columns = []
        self._rows = 0
        if not columns:
            return None
        self._number += 1
        return BatchIngested(self.ref, self._number, columns)

    def _close_blocks(self) -> None:
        self._columns += self._open.values()
        self._open = {}
        self._keys = set()


class _AttemptHeader(NamedTuple):
    """An attempt as the file describes it; *about* has its further fields in `reader.run`."""

    attempt: AttemptFields
    about: Mapping[str, Any]


class _InvalidItemError(Exception):
    """An item is invalid; the message says why."""

    def __init__(self, reason: str, line: int) -> None:
        super().__init__(reason)
        self.line = line


class RunFile:
    """A run's items as records in the order of writing.

    Args:
        items: The items. The run's header is the first one, or the last.
        file: Name of the file that they come from, for errors.
        id: Replaces the run's id in the header.
        name: Replaces the run's name in the header; the file's name if both are empty.
        left_out: Counts what the reader of the items and this one leave out.
        file_id: The run's id if both are empty.

    Attributes:
        file: The file's name.
        run: The run's id.
        name: The run's name.
        pinned: The run was pinned.
        samples: Number of samples read so far.
        last: Unix time of the latest of them; minus infinity before the first.

    Raises:
        FormatError: There is no valid item.
    """

    def __init__(
        self,
        items: Iterator[Item],
        file: str,
        *,
        id: str = "",  # noqa: A002  the option's name
        name: str = "",
        left_out: LeftOut | None = None,
        file_id: str = "",
    ) -> None:
        self.samples = 0
        self.last = -inf
        self.file = writable(file)
        self._left_out = LeftOut() if left_out is None else left_out
        self._items = items
        self._attempts: dict[int, _AttemptHeader] = {}
        self._header: RunFields | None = None
        self._read_first()
        header = self._header or NO_RUN
        stem = writable(PurePath(file).stem) or "imported"
        self.run = writable(id) or header.id or file_id
        self.name = writable(name) or header.name or stem
        self.pinned = header.pinned
        self._sessions: dict[tuple[int, int], ImportedSession] = {}
        self._spans: dict[int, list[float]] = {}

    @property
    def notes(self) -> list[str]:
        """Sentences about what was guessed and left out; complete at the end."""
        return self._left_out.notes()

    def __iter__(self) -> Iterator[Record]:
        """Yield the records. An item that is invalid costs itself.

        Raises:
            FormatError: It has no samples, or a second run.
        """
        for header in self._attempts.values():
            yield self._open_session(header.attempt.attempt, header.attempt.rank, header.attempt.started)
        for item in self._items:
            try:
                yield from self._records(item)
            except _InvalidItemError as error:
                self._leave_out(error)
        if not self._attempts and not self._sessions:
            raise self._nothing()
        for session in self._sessions.values():
            if (rest := session.flush()) is not None:
                yield rest
        for number, (first, low, high) in sorted(self._spans.items()):
            if low < first:  # the times do not rise: correct the start
                lowest = min(rank for attempt, rank in self._sessions if attempt == number)
                yield self._open_session(number, lowest, low)
            yield RunState(self.run, number, "finished", f"imported from {PurePath(self.file).name}", high)
        yield from self._ends()

    def _ends(self) -> Iterator[Record]:
        """Yield the ends of the attempts, and the results."""
        for header in self._attempts.values():
            attempt = header.attempt
            yield RunState(self.run, attempt.attempt, attempt.state, attempt.cause, attempt.ended)
        summary = (self._header or NO_RUN).summary
        if summary and self._attempts:
            last = max(self._attempts.values(), key=lambda header: header.attempt.attempt).attempt
            yield Event(self.run, last.attempt, last.started, SUMMARY, fields=summary)

    def _records(self, item: Item) -> Iterator[Record]:
        if isinstance(item, Push):
            yield from self._push_records(item)
        elif isinstance(item, MachineValues):
            if not (self._attempts or self._sessions):
                raise FormatError(
                    f"{self.file}: it begins with resources; a run, or its samples, are expected before them"
                )
            self.samples += len(item.values)
            yield MachineSample(item.time / 1e6, item.values, self.run)
        elif item.kind == "event":
            event = self._convert(item.fields, EventFields, item.line)
            yield Event(self.run, **msgspec.structs.asdict(event))
        elif item.kind == "alert":
            alert = self._convert(item.fields, AlertFields, item.line)
            yield Alert(run=self.run, **msgspec.structs.asdict(alert))
        elif item.kind in {"layers", "media"}:
            yield self._of_rank(item)
        elif item.kind == "capture":
            yield self._capture(self._convert(item.fields, CaptureJson, item.line))
        elif self._header is None:
            self._read_header(item)
            for header in self._attempts.values():
                self._spans.pop(header.attempt.attempt, None)
                yield self._open_session(header.attempt.attempt, header.attempt.rank, header.attempt.started)
        else:
            raise FormatError(f"{self.file}: line {item.line}: a second run begins; one run per file is expected")

    def _push_records(self, push: Push) -> Iterator[Record]:
        seconds = push.time / 1e6
        self.last = max(self.last, seconds)
        session = self._sessions.get((push.attempt, push.rank))
        if session is None:
            session = self._sessions[push.attempt, push.rank] = ImportedSession(
                self.run, self.name, push.attempt, push.rank
            )
            header = self._attempts.get(push.attempt)
            started = seconds if header is None else header.attempt.started
            yield self._open_session(push.attempt, push.rank, started)
        if push.attempt not in self._attempts:
            span = self._spans.setdefault(push.attempt, [seconds, seconds, seconds])
            span[1:] = min(span[1], seconds), max(span[2], seconds)
        self.samples += len(push.values)
        if (message := session.add(push)) is not None:
            yield message

    def _of_rank(self, item: RunEntry) -> BatchIngested:
        """Return the message of a line with distributions of layers, or with an image, a text or a table."""
        try:
            attempt, rank, _ = checked_position(item.fields.get("attempt", 0), item.fields.get("rank", 0), 0)
            frames = [frame_of(item.fields)] if item.kind == "layers" else []
            media = [item_of(item.fields)] if item.kind == "media" else []
        except ValueError as error:
            raise _InvalidItemError(f"{item.kind}: {error}", item.line) from None
        if (session := self._sessions.get((attempt, rank))) is None:
            raise _InvalidItemError(f"{item.kind}: samples of their rank are expected before them", item.line)
        return BatchIngested(session.ref, 0, distributions=frames, media=media)

    def _capture(self, capture: CaptureJson) -> Capture:
        """Return an imported capture. Its id is another one, since the history may have the run that it comes from."""
        summary = dict(capture.summary)
        if "reference" in summary:
            summary["reference"] = self._capture_id(str(summary["reference"]))
        record = capture.record(self.run, self._capture_id(capture.id))
        return replace(record, summary=summary, reason=record.reason or (MOVED if capture.files else ""))

    def _capture_id(self, exported: str) -> str:
        return hashlib.sha256(f"{self.run}\0{exported}".encode("utf-8", "surrogatepass")).hexdigest()[:12]

    def _open_session(self, attempt: int, rank: int, started: float) -> SessionOpened:
        session = self._sessions.get((attempt, rank)) or ImportedSession(self.run, self.name, attempt, rank)
        header = self._attempts.get(attempt)
        hello = Hello(
            identity=Identity(run=self.run, name=self.name, attempt=attempt, rank=rank),
            clock=Clock(0, 0),
            started=_nanoseconds(started),
            totals=Totals(),
            config="" if header is None or header.attempt.config is None else json.dumps(header.attempt.config),
            tags=(self._header or NO_RUN).tags,
        )
        about: Mapping[str, Any] = {"rank": rank} if header is None else header.about
        return SessionOpened(session.ref, hello, started, about=about)

    def _read_first(self) -> None:
        """Read the header, if the items begin with it."""
        for first in self._items:
            try:
                if isinstance(first, RunEntry) and first.kind == "run":
                    self._read_header(first)
                else:
                    self._items = chain([first], self._items)
            except _InvalidItemError as error:
                self._leave_out(error)
            else:
                return
        raise self._nothing()

    def _nothing(self) -> FormatError:
        reason = self._left_out.reason or "nothing to import: there are no samples in it"
        return FormatError(f"{self.file}: {reason}")

    def _leave_out(self, error: _InvalidItemError) -> None:
        self._left_out.add(DAMAGED_LINE, f"line {error.line}", reason=f"line {error.line}: {error}")

    def _read_header(self, item: RunEntry) -> None:
        header = self._convert(item.fields, RunFields, item.line)
        self._attempts = self._read_attempts(header, item.line)
        self._header = header

    def _read_attempts(self, run: RunFields, line: int) -> dict[int, _AttemptHeader]:
        columns = frozenset(field.name for field in msgspec.structs.fields(AttemptFields)) - {"rank"}
        headers = {}
        for fields in run.attempt_list:
            attempt = self._convert(fields, AttemptFields, line)
            if not abs(attempt.started) < FAR_SECONDS:
                raise _InvalidItemError(
                    f"attempt {attempt.attempt} begins at {attempt.started}, which is not a time in Unix seconds", line
                )
            about = {name: value for name, value in fields.items() if name not in columns}
            headers[attempt.attempt] = _AttemptHeader(attempt, about)
        return dict(sorted(headers.items()))

    def _convert(self, value: Any, kind: type[Any], line: int) -> Any:
        try:
            text = json.dumps(value, ensure_ascii=False)
            if not text.isascii():  # an escape can write half a surrogate pair, which no column can hold
                value = json.loads(text.encode("utf-8", "replace"))
            return msgspec.convert(value, kind)
        except (msgspec.ValidationError, RecursionError) as error:
            reason = "nested too deeply" if isinstance(error, RecursionError) else error
            raise _InvalidItemError(f"the run's data are invalid: {reason}", line) from error


def open_run_file(
    stream: BinaryIO,
    file: str,
    *,
    id: str = "",  # noqa: A002  the option's name
    name: str = "",
    begin: float = 0.0,
) -> RunFile:
    """Return the run in a file of a format that `formats` reads.

    Args:
        stream: The file, from its beginning.
        file: Its name.
        id: See `RunFile`. Without one in the file, the id follows from the file's name and content.
        name: See `RunFile`.
        begin: Unix time of the first line without a time.

    Raises:
        FormatError: The beginning of the file is invalid.
    """
    left_out = LeftOut()
    items = parse(stream, file, begin, left_out)
    return RunFile(items, file, id=id, name=name, left_out=left_out, file_id=_file_id(stream, file))


def _file_id(stream: BinaryIO, file: str) -> str:
    """Return a run id that follows from a file's name, its size and its beginning."""
    begin, size = b"", 0
    if stream.seekable():
        begin = stream.read(SAMPLE_BYTES)
        size = stream.seek(0, SEEK_END)
        stream.seek(0)
    name = PurePath(file).name.encode("utf-8", "replace")
    return hashlib.sha256(b"%b\0%d\0%b" % (name, size, begin)).hexdigest()[:12]


def _nanoseconds(seconds: float) -> int:
    # A float times a billion would lose its last digits, so that the seconds would not result again.
    return round(Fraction(seconds) * 1_000_000_000)
