"""Summarise the traces of a capture in a process of their own."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import msgspec

from trackside_daemon.captures.summary.bottleneck import overall
from trackside_daemon.captures.summary.request import Answer, Request
from trackside_daemon.linux.own_module import own_module
from trackside_daemon.linux.worker_process import WorkerFailed, WorkerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

SECONDS = 180.0  # the longest wait for one trace: 90 seconds of a processor, at idle priority
COMMAND = own_module("trackside_daemon.captures.summary")


_one_at_a_time = threading.Lock()


@contextmanager
def started(memory: int) -> Iterator[Worker]:
    """Start the process that summarises, so that it is ready when the traces are; the same thread should use it.

    Args:
        memory: Most bytes that it uses.
    """
    worker = Worker(memory)
    with suppress(OSError):  # then each trace has it as its reason
        worker.start()
    try:
        yield worker
    finally:
        worker.end()


def summarize(
    worker: Worker, files: Mapping[int, Path], steps: int | None, world_size: int | None = None
) -> dict[str, Any]:
    """Summarise traces by rank, and replace each with a gzip that has the marks which viewers need.

    It blocks for seconds, and never raises for a trace.

    Args:
        worker: The process.
        files: The traces, as the profiler wrote them.
        steps: Number of steps to cut them to; None for all whole ones.
        world_size: Number of ranks of the run.

    Returns:
        ``ranks``: the summaries by rank; ``files``: the names of the new files by rank; ``failed``: the reasons by rank
        in one line; ``bottleneck``: the one of the rank that limits the others.
    """
    summary: dict[str, Any] = {"ranks": {}, "files": {}, "failed": {}}
    near: float | None = None
    for rank, path in sorted(files.items()):
        output = path.with_name(f"{path.name.removesuffix('.gz').removesuffix('.json')}.json.gz")
        distributed = {"rank": rank, "world_size": world_size or len(files)}
        answer = worker.ask(Request(str(path), str(output), distributed, steps, near))
        if answer.error:
            summary["failed"][str(rank)] = answer.error
            continue
        near = near or answer.begin
        summary["ranks"][str(rank)] = answer.summary
        summary["files"][str(rank)] = output.name
        if output != path:
            path.unlink(missing_ok=True)
    return summary | {"bottleneck": overall(summary["ranks"])}


class Worker:
    """The process, which starts anew after a trace that it failed on. One of all reads a trace at a time."""

    def __init__(self, memory: int) -> None:
        self._memory = memory
        self._process: WorkerProcess | None = None

    def start(self) -> WorkerProcess:
        """Start it, unless it runs.

        Raises:
            OSError: It cannot be started.
        """
        if self._process is None:
            self._process = WorkerProcess(COMMAND, memory=self._memory)
        return self._process

    def ask(self, request: Request) -> Answer:
        """Summarise a trace."""
        with _one_at_a_time:
            return self._ask(request)

    def _ask(self, request: Request) -> Answer:
        try:
            process = self.start()
            process.send(msgspec.json.encode(request))
            line = process.receive(time.monotonic() + SECONDS)
            if line is not None:
                return _decode(line)
            reason = f"the trace took longer than {SECONDS:.0f} s"
        except OSError as error:
            return Answer(error=f"the process that reads traces cannot be started: {error}")
        except WorkerFailed as error:
            reason = f"the process that reads traces ended: {error}"
        except msgspec.MsgspecError as error:
            reason = f"the summary of the trace is unusable: {error}"
        self.end()
        return Answer(error=reason)

    def end(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait_reaped()
            self._process.is_reaped()
        self._process = None


_decode = msgspec.json.Decoder(Answer).decode
