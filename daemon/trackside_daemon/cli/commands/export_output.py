"""Output of `trackside export`: a file or standard output, and a progress bar."""

from __future__ import annotations

import os
import re
import sys
from codecs import getincrementaldecoder
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import typer

from trackside_daemon.model.text import shown_lines

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path
    from typing import BinaryIO

    from trackside_daemon.questions.series import Exported


def save(export: Exported, form: str, output: Path | None) -> None:
    """Write an export, with a progress bar if standard error is a terminal and standard output is not.

    On a terminal, what could control it is escaped; everywhere else the export is exact.

    Args:
        export: What to write.
        form: Its format.
        output: A file; None for standard output.

    Raises:
        OSError: It cannot be written; an existing file is unchanged.
    """
    samples, chunks = export
    with _target(output) as file:
        on_terminal = file.isatty()
        decode = getincrementaldecoder("utf-8")("replace").decode
        shows = bool(samples) and sys.stderr.isatty() and not on_terminal
        bar: AbstractContextManager[Any] = nullcontext()
        if shows:
            bar = typer.progressbar(length=samples, label="samples", show_pos=True, file=sys.stderr)
        with bar as progress:
            for chunk in chunks:
                file.write(shown_lines(decode(chunk)).encode() if on_terminal else chunk)
                if progress is not None:
                    progress.update(min(_samples(chunk, form), (samples or 0) - progress.pos))
            if progress is not None:
                progress.update((samples or 0) - progress.pos)
        file.flush()


def _samples(chunk: bytes, form: str) -> int:
    """Return about how many samples a chunk has: exact counts are too slow for a progress bar."""
    if form == "json":
        return chunk.count(b"],")
    if form == "jsonl":
        return max(0, chunk.count(b":") - 6 * chunk.count(b"\n"))
    return max(0, chunk.count(b",") - 3 * chunk.count(b"\n") - len(re.findall(rb",(?=[,\n])", chunk)))


@contextmanager
def _target(output: Path | None) -> Iterator[BinaryIO]:
    """Yield the file to write to; a regular file appears when it is complete."""
    if output is None:
        yield sys.stdout.buffer
        return
    if output.exists() and not output.is_file():  # /dev/stderr, or a pipe
        with output.open("wb") as file:
            yield file
        return
    # In the same directory, because a file can be renamed only within its file system.
    unfinished = output.with_name(f"{output.name}.unfinished-{os.getpid()}")
    try:
        with unfinished.open("wb") as file:
            yield file
        unfinished.replace(output)
    except OSError as error:
        if error.filename == str(unfinished):
            error.filename = str(output)
        raise
    finally:
        unfinished.unlink(missing_ok=True)
