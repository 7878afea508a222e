"""The process that measures: ``python -m trackside.benchmark``.

Standard input has a `ProcessRequest` as a line of JSON; another line, or its end, ends the measurement. Standard output has a
`ProcessAnswer` a line, as an ``answer``. The user's own output goes to standard error.
"""

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from threading import Event, Lock, Thread
from time import monotonic, sleep

import msgspec

from trackside.benchmark.in_process import findings
from trackside.benchmark.messages import ProcessAnswer, ProcessRequest

WRITE_SECONDS = 0.5  # between two writes
ENDING_SECONDS = 2.0  # from the request to end until the process ends in the middle of a call
OOM_SCORE = 800  # the kernel ends this process before the training next to it


class _Writer:
    """Writer of findings as lines to a pipe, seldom, so that the reader does not disturb each round."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        self._lock = Lock()
        self._lines = b""
        self._written = monotonic()

    def write(self, finding: ProcessAnswer) -> None:
        """Write a finding, some time later unless it is the end."""
        with self._lock:
            self._lines += msgspec.json.encode({"answer": finding}) + b"\n"
            if finding.end or monotonic() - self._written > WRITE_SECONDS:
                while self._lines:
                    self._lines = self._lines[os.write(self._pipe, self._lines) :]
                self._written = monotonic()


def main() -> int:
    """Answer one request."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which ends the measurement
    writer, stop = _Writer(os.dup(1)), Event()
    os.dup2(2, 1)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE))
    request = msgspec.json.decode(sys.stdin.buffer.readline(), type=ProcessRequest)
    Thread(target=_await_end, args=(writer, stop), daemon=True).start()
    for finding in findings(request):
        writer.write(finding)
        if stop.is_set():
            break
    writer.write(ProcessAnswer(end=True))
    return 0


def _await_end(writer: _Writer, stop: Event) -> None:
    """Wait for the request to end, and end the process if a call of the user's takes longer."""
    os.read(0, 1)
    stop.set()
    sleep(ENDING_SECONDS)
    writer.write(ProcessAnswer(end=True))
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
