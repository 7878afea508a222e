"""The process that keeps an output: ``python -m trackside_daemon.cli.run.console_keeper HISTORY LAUNCH``.

It reads frames from its standard input until that ends, removes what looks like a secret, which takes longer than to print
it, and appends the rest to the files of the launch.
"""

from __future__ import annotations

import signal
import struct
import sys
from pathlib import Path
from typing import IO

from trackside.os_errors import os_error_text
from trackside_daemon.history.console.files import ConsoleWriter
from trackside_daemon.history.console.lines import Redactor

HEADER = struct.Struct(
    "<BQI"
)  # of a frame: stream, number of bytes of it that were dropped before, size of what follows


def main() -> None:
    """Keep the output; report on standard error if that fails."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # its input ends before or with the parent
    history, launch = sys.argv[1:]
    try:
        writer = ConsoleWriter(Path(history), launch)
        try:
            keep(sys.stdin.buffer, writer)
        finally:
            writer.close()
    except OSError as error:
        print(f"trackside: --console: the output is not kept whole: {os_error_text(error)}", file=sys.stderr)  # noqa: T201


def keep(frames: IO[bytes], writer: ConsoleWriter) -> None:
    """Append the redacted content of frames.

    Raises:
        OSError: The disk is full.
    """
    redactors: dict[int, Redactor] = {}
    while len(header := frames.read(HEADER.size)) == HEADER.size:
        stream, dropped, size = HEADER.unpack(header)
        redactor = redactors.setdefault(stream, Redactor())
        if dropped:
            rest = redactor.feed(b"", end=True)
            line = "" if not rest or rest.endswith(b"\n") else "\n"
            writer.write(rest + f"{line}[{dropped:,} bytes of output were not kept]\n".encode())
        writer.write(redactor.feed(frames.read(size)))
    for redactor in redactors.values():
        writer.write(redactor.feed(b"", end=True))


if __name__ == "__main__":
    main()
