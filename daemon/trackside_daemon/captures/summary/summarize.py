"""Summarise the traces of a capture, each in a process of its own."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import msgspec

from trackside_daemon.captures.summary.bottleneck import overall
from trackside_daemon.captures.summary.request import Answer, Request
from trackside_daemon.linux.worker_process import WorkerFailed, WorkerProcess

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SECONDS = 180.0  # the longest wait for one trace: 90 seconds of a processor, at idle priority
COMMAND = (sys.executable, "-m", "trackside_daemon.captures.summary")


def summarize(
    files: Mapping[int, Path], steps: int | None, world_size: int | None = None, backend: str = ""
) -> dict[str, Any]:
    """Summarise traces by rank, and replace each with a gzip that has the marks which viewers need.

    It blocks for seconds, and never raises for a trace. The thread that calls it should live until it returns.

    Args:
        files: The traces, as the profiler wrote them.
        steps: Number of steps to cut them to; None for all whole ones.
        world_size: Number of ranks of the run.
        backend: The backend of torch.distributed.

    Returns:
        ``ranks``: the summaries by rank; ``files``: the names of the new files by rank; ``failed``: the reasons by rank
        in one line; ``bottleneck``: the one of the rank that limits the others.
    """
    summary: dict[str, Any] = {"ranks": {}, "files": {}, "failed": {}}
    near: float | None = None
    for rank, path in sorted(files.items()):
        output = path.with_name(f"{path.name.removesuffix('.gz').removesuffix('.json')}.json.gz")
        distributed = {"backend": backend, "rank": rank, "world_size": world_size or len(files)}
        answer = _ask(Request(str(path), str(output), distributed, steps, near))
        if answer.error:
            summary["failed"][str(rank)] = answer.error
            continue
        near = near or answer.begin
        summary["ranks"][str(rank)] = answer.summary
        summary["files"][str(rank)] = output.name
        if output != path:
            path.unlink(missing_ok=True)
    return summary | {"bottleneck": overall(summary["ranks"])}


def _ask(request: Request) -> Answer:
    try:
        worker = WorkerProcess(list(COMMAND))
    except OSError as error:
        return Answer(error=f"the process that reads traces cannot be started: {error}")
    try:
        worker.send(msgspec.json.encode(request))
        line = worker.receive(time.monotonic() + SECONDS)
        return Answer(error=f"the trace took longer than {SECONDS:.0f} s") if line is None else _decode(line)
    except WorkerFailed as error:
        return Answer(error=f"the process that reads traces ended: {error}")
    finally:
        worker.kill()
        worker.wait_reaped()
        worker.is_reaped()


_decode = msgspec.json.Decoder(Answer).decode
