"""Reads the files that `importing` takes: our three exports, ``--storage.jsonl``, and what other tools write.

Which form a file has is told by what it begins with. Of other tools are read: CSV with a column for the step, one for
the time perhaps, and a column a key (blank: not logged then), as pandas, W&B and most scripts write it; TensorBoard's
CSV; and JSON lines with the step and the keys side by side.
"""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from trackside_daemon.history.files.csv_format import read_csv
from trackside_daemon.history.files.items import Clock, FormatError, Item
from trackside_daemon.history.files.json_format import read_document, read_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

PEEK_BYTES = 4096


def parse(stream: BinaryIO, file: str, begin: float, notes: list[str]) -> Iterator[Item]:
    """What is in a file, in its order.

    Args:
        stream: The file, from its beginning.
        file: What it is called.
        begin: Unix seconds from which on those are counted that have no time.
        notes: Gets what there is to say about the file, in sentences.

    Raises:
        FormatError: At the first line that makes no sense; what came before is given by then.
    """
    buffered = stream if isinstance(stream, io.BufferedReader) else io.BufferedReader(cast("Any", stream))
    start = buffered.peek(PEEK_BYTES)[:PEEK_BYTES].removeprefix(b"\xef\xbb\xbf").lstrip()
    clock = Clock(begin)
    if not start:
        raise FormatError(f"{file}: empty; a CSV, JSON or JSON lines file of a run is expected")
    if re.match(rb'\{\s*"run"\s*:\s*\{', start):
        yield from read_document(buffered, file)
    elif start[:1] == b"{":
        yield from read_lines(buffered, file, clock, notes)
    else:
        yield from read_csv(buffered, file, clock)
    if clock.guessed:
        notes.append(
            f"{clock.guessed} lines have no time: each is taken to be a second after the one before, the first at "
            f"Unix time {round(begin)}"
        )
