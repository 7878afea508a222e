"""Recognize and read the files that can be imported: our three exports, ``--storage.jsonl``, and files of other tools.

The first bytes decide about the format. Of other tools we read: CSV with a column for the step, perhaps one for the
time, and one per key, where a blank cell means no value (pandas, W&B and most scripts write it); CSV with a row for each
value (Aim); TensorBoard's CSV; and JSON lines with the step and the keys in one object.
"""

import io
import re
from collections.abc import Iterator
from typing import Any, BinaryIO, cast

from trackside_daemon.history.files.csv_format import read_csv
from trackside_daemon.history.files.items import FormatError, Item, ItemClock
from trackside_daemon.history.files.json_format import read_document, read_lines
from trackside_daemon.history.files.left_out import LeftOut

PEEK_BYTES = 4096

# Beginnings of files of other tools that have no text, with their kinds.
_BINARY = (
    (re.compile(rb".{4}\0{4}.{0,32}brain\.Event:", re.DOTALL), "an event file of TensorBoard"),
    (re.compile(rb":W&B"), "a log of W&B"),
    (re.compile(rb"SQLite format 3\0"), "a SQLite file"),
)


def parse(stream: BinaryIO, file: str, begin: float, left_out: LeftOut) -> Iterator[Item]:
    """Yield the contents of a file in their order. A damaged line costs itself.

    Args:
        stream: The file, from its beginning.
        file: Its name, for errors.
        begin: Unix time of the first line without a time.
        left_out: Counts what is left out, and receives what was guessed.

    Raises:
        FormatError: The format is unknown, or nothing is there.
    """
    buffered = stream if isinstance(stream, io.BufferedReader) else io.BufferedReader(cast("Any", stream))
    start = buffered.peek(PEEK_BYTES)[:PEEK_BYTES].removeprefix(b"\xef\xbb\xbf").lstrip()
    clock = ItemClock(begin)
    if not start:
        raise FormatError(f"{file}: empty; a CSV, JSON or JSON lines file of a run is expected")
    for beginning, kind in _BINARY:
        if beginning.match(buffered.peek(PEEK_BYTES)):
            raise FormatError(f"{file}: {kind}, which only the command reads: trackside import PATH")
    if re.match(rb'\{\s*"run"\s*:\s*\{', start):
        yield from read_document(buffered, left_out)
    elif start[:1] == b"{":
        yield from read_lines(buffered, clock, left_out)
    else:
        yield from read_csv(buffered, file, clock, left_out)
    if clock.guessed:
        left_out.guesses.append(
            f"{clock.guessed} lines have no time: each is dated a second after the one before, the first at "
            f"Unix time {round(begin)}"
        )
