"""Summarise the traces of a capture in a process of their own."""

from __future__ import annotations

import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from trackside_daemon.captures.summary.bottleneck import overall
from trackside_daemon.captures.summary.request import MODULE, Answer, Request
from trackside_daemon.linux.worker_call import Worker
from trackside_daemon.linux.worker_process import WorkerFailed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

SECONDS = 180.0  # the longest wait for one trace: 90 seconds of a processor, at idle priority

_one_at_a_time = threading.Lock()  # of all captures together


@contextmanager
def started(memory: int) -> Iterator[Worker[Answer]]:
    """Start the process that summarises, so that it is ready when the traces are; the same thread should use it.

    Args:
        memory: Most bytes that it uses.
    """
    with Worker(MODULE, Answer, memory=memory, name="the process that reads traces") as worker:
        with suppress(WorkerFailed):  # then each trace has it as its reason
            worker.start()
        yield worker


def summarize(
    worker: Worker[Answer], files: Mapping[int, Path], steps: int | None, world_size: int | None = None
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
        try:
            with _one_at_a_time:
                answer = worker.ask(Request(str(path), str(output), distributed, steps, near), SECONDS)
        except WorkerFailed as error:
            summary["failed"][str(rank)] = str(error)
            continue
        near = near or answer.begin
        summary["ranks"][str(rank)] = answer.summary
        summary["files"][str(rank)] = output.name
        if output != path:
            path.unlink(missing_ok=True)
    return summary | {"bottleneck": overall(summary["ranks"])}
