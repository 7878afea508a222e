"""Mirror runs to event files: one directory for each run, and one file for each attempt of a rank."""

import json
import os
import re
import socket
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from trackside.os_errors import file_error_text
from trackside.packing import encoded_varint
from trackside_daemon.bridges.mirrors.target import Medium, MirroredRun, Row, State, Target
from trackside_daemon.bridges.tensorboard.event_file import WRITER, masked_crc
from trackside_daemon.history.files import jsonl
from trackside_daemon.history.read.layers import cells
from trackside_daemon.http_client.errors import Retry, SendError
from trackside_daemon.model.text import cut_bytes, markdown_rows

NAME_BYTES = 130  # of a run's folder; a file system allows 255, with the id
_VERSION = b"brain.Event:2"


class EventFiles(Target):
    """See `trackside_daemon.bridges.mirrors.target.Target`.

    The state of a run has the name and the size of each of its files. What a file has beyond that was written just before
    the worker was killed: it is cut off, so that no value comes twice.

    Args:
        directory: The directory for all runs.
    """

    machine = False
    histograms = True

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def begin(self, run: MirroredRun, state: State) -> State:
        """See `Target`."""
        name = cut_bytes(re.sub(r"[^\w.=-]", "_", run.name)[:100], NAME_BYTES).lstrip(".") or "run"
        # The whole id, behind what no name has: else another user could choose a name and an id that lead there, too.
        folder = state.get("folder") or f"{name}@{jsonl.folder(run.id)}"
        try:
            (self._directory / folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _failed(error, "later") from None  # other runs have other folders
        return {**state, "folder": folder, "files": dict(state.get("files", {}))}

    def send(self, run: MirroredRun, rows: Sequence[Row], state: State) -> State:
        """See `Target`."""
        del run
        files = dict(state["files"])
        by_file: dict[str, list[Row]] = {}
        for row in rows:
            by_file.setdefault(f"{row.attempt}.{row.rank}", []).append(row)
        for key, part in by_file.items():
            begun = int(part[0].time // 1_000_000)
            name, size = files.get(key) or (f"events.out.tfevents.{begun}.{socket.gethostname()}.{WRITER}.{key}", 0)
            records = b"".join(map(encoded_record, [*(_head(part[0]) if not size else ()), *map(encoded_event, part)]))
            files[key] = [name, self._append(self._directory / state["folder"] / name, size, records)]
        return {**state, "files": files}

    def _append(self, path: Path, size: int, records: bytes) -> int:
        """Write records after the first *size* bytes of a file, and return its new size."""
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
            try:
                os.truncate(file, size)
                view = memoryview(records)
                while view:
                    written = os.pwrite(file, view, size)
                    size += written
                    view = view[written:]
                os.fdatasync(file)
            finally:
                os.close(file)
        except OSError as error:
            raise _failed(error) from None
        return size


def make_target(settings: dict[str, Any]) -> EventFiles:
    """Return the target for some settings."""
    return EventFiles(Path(settings["directory"]).expanduser())


def _failed(error: OSError, retry: Retry = "soon") -> SendError:
    return SendError(file_error_text(error), retry)


def encoded_record(event: bytes) -> bytes:
    """Return an event as a record of a file."""
    length = struct.pack("<Q", len(event))
    return b"".join((length, struct.pack("<I", masked_crc(length)), event, struct.pack("<I", masked_crc(event))))


def _head(row: Row) -> Iterator[bytes]:
    """Yield the events that begin a file: its version, and for a further attempt the restart at its first step."""
    time = b"\x09" + struct.pack("<d", row.time / 1e6)
    yield time + _bytes(3, _VERSION) + _bytes(10, _bytes(1, WRITER.encode()))
    if row.attempt:  # TensorBoard then leaves out what earlier files have from this step on
        yield time + b"\x10" + encoded_varint(row.step) + _bytes(7, b"\x08\x01")


def encoded_event(row: Row) -> bytes:
    """Return the event of a row."""
    values = (
        _bytes(1, _bytes(1, key.encode("utf-8", "replace")) + b"\x15" + _single(value))
        for key, value in row.named().items()
    )
    histograms = (
        _bytes(1, _bytes(1, name.encode("utf-8", "replace")) + _bytes(5, _histogram(list(cells(one)))))
        for name, one in row.histograms.items()
    )
    media = (
        _bytes(1, _bytes(1, row.name(one.item.key).encode("utf-8", "replace")) + _medium(one)) for one in row.media
    )
    step = b"\x10" + encoded_varint(row.step) if row.step else b""
    return b"\x09" + struct.pack("<d", row.time / 1e6) + step + _bytes(5, b"".join([*values, *histograms, *media]))


def _medium(medium: Medium) -> bytes:
    """Return an image, a histogram, or a text, which a table is in Markdown, as fields of a Summary.Value."""
    if medium.item.kind == "image":
        size = b"\x08" + encoded_varint(medium.item.height) + b"\x10" + encoded_varint(medium.item.width)
        return _bytes(4, size + b"\x18\x04" + _bytes(4, medium.data))
    if medium.item.kind == "histogram":
        found = json.loads(medium.data)
        return _bytes(5, _histogram(list(zip(found["edges"], found["edges"][1:], found["counts"], strict=False))))
    text = medium.data if medium.item.kind == "text" else _markdown(json.loads(medium.data)).encode("utf-8", "replace")
    # A tensor of one text, with the name of the plugin and the class of data that TensorBoard wants of it.
    return _bytes(8, b"\x08\x07" + _bytes(2, _bytes(2, b"\x08\x01")) + _bytes(8, text)) + _bytes(
        9, _bytes(1, _bytes(1, b"text")) + b"\x20\x02"
    )


def _markdown(table: dict[str, Any]) -> str:
    lines = markdown_rows([" ".join(str(cell).split()) for cell in row] for row in (table["columns"], *table["rows"]))
    return "\n".join([*lines, *([f"\n{table['omitted']} more rows"] if table["omitted"] else [])])


def _histogram(every: Sequence[tuple[float, float, int]]) -> bytes:
    """Return a HistogramProto of buckets with their ends: what is between two of them is one without values."""
    limits: list[float] = []
    counts: list[int] = []
    for low, high, count in every:
        if limits and low > limits[-1]:
            limits.append(low)
            counts.append(0)
        limits.append(high)
        counts.append(count)
    ends = (every[0][0], every[-1][1]) if every else (0.0, 0.0)
    numbers = (*ends, sum(counts), sum(count * (low + high) / 2 for low, high, count in every))
    fields = b"".join(bytes([place << 3 | 1]) + struct.pack("<d", one) for place, one in enumerate(numbers, 1))
    columns = ((6, limits), (7, counts))
    return fields + b"".join(_bytes(field, struct.pack(f"<{len(column)}d", *column)) for field, column in columns)


def _single(value: float) -> bytes:
    """Return a float of 32 bits; event files have no others."""
    try:
        return struct.pack("<f", value)
    except OverflowError:
        return struct.pack("<f", float("inf") if value > 0 else float("-inf"))


def _bytes(field: int, value: bytes) -> bytes:
    return bytes([field << 3 | 2]) + encoded_varint(len(value)) + value
