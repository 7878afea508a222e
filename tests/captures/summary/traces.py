"""Hand-made traces in the form in which Kineto writes them."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

from trackside_daemon.captures.kinds.profile import started, summarize
from trackside_daemon.captures.summary.bottleneck import overall
from trackside_daemon.captures.summary.steps import cut
from trackside_daemon.captures.summary.trace import decode
from trackside_daemon.captures.summary.trace_summary import summarize_trace

if TYPE_CHECKING:
    from pathlib import Path

BASE = 1_700_000_000  # Unix time of the traces' time 0, in seconds
SHAPES: dict[str, Any] = {"Input Dims": [[64, 128], [128, 64], []]}
MAIN = 7  # the training thread


class Writer:
    """A trace that grows by calls, one after the other, with times in microseconds."""

    def __init__(self, begin: float = 0.0) -> None:
        self.events: list[dict[str, Any]] = [{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}}]
        self.now = begin

    def add(self, name: str, begin: float, duration: float, cat: str = "cpu_op", tid: int = MAIN, **args: Any) -> None:
        event = {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": begin, "dur": duration, "args": args}
        self.events.append(event)

    def call(self, name: str, duration: float, cat: str = "cpu_op", **args: Any) -> None:
        self.add(name, self.now, duration, cat, MAIN, **args)
        self.now += duration

    def optimizer(self, duration: float = 100.0) -> None:
        self.call("Optimizer.step#SGD.step", duration, "user_annotation")

    def text(self, **fields: Any) -> bytes:
        trace = {"schemaVersion": 1, "baseTimeNanoseconds": BASE * 10**9, **fields, "traceEvents": self.events}
        return json.dumps(trace).encode()


def healthy(
    seed: int = 0, *, steps: int = 11, scale: float = 1.0, noise: float = 0.1, interrupted: float = 0.0, **more: float
) -> Writer:
    """Return a training on a CPU whose operators vary by *noise*, with *more* milliseconds of an operator in each step.

    In the middle step, these operators are *interrupted* for so many milliseconds.
    """
    chance, writer = random.Random(seed), Writer(1000.0)

    def last(milliseconds: float) -> float:
        return milliseconds * 1000 * scale * chance.uniform(1 - noise, 1 + noise)

    for step in range(steps):
        writer.call("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", last(0.3), "user_annotation")
        for name, milliseconds in {
            "aten::addmm": 2,
            "aten::mm": 4,
            "aten::relu": 0.5,
            "aten::sum": 0.5,
            "aten::mul": 0.4,
        }.items():
            writer.call(name, last(milliseconds), "cpu_op", **SHAPES)
            writer.now += last(0.02)
        for name, milliseconds in more.items():
            writer.call(f"aten::{name}", last(milliseconds) + (step == steps // 2) * interrupted * 1000)
        writer.optimizer(last(1))
    return writer


def summary(writer: Writer, steps: int | None = 10) -> dict[str, Any]:
    """Return the summary of one rank."""
    trace = decode(writer.text())
    return summarize_trace(trace, cut(trace, steps))


def summarized(files: dict[int, Path], steps: int, world_size: int | None = None) -> dict[str, Any]:
    """Return the summary of files by rank that a process makes."""
    with started(1 << 29) as worker:
        return summarize(worker, files, steps, world_size)


def capture(*writers: Writer) -> dict[str, Any]:
    """Return what `summarize` returns for ranks, without processes and files."""
    ranks = {str(rank): summary(writer) for rank, writer in enumerate(writers)}
    return {"ranks": ranks, "files": {}, "failed": {}, "bottleneck": overall(ranks)}
