"""The request of the daemon to the worker process, and its answer."""

from typing import Any

import msgspec

MODULE = "trackside_daemon.captures.summary"


class SummaryRequest(msgspec.Struct):
    """A trace to summarise."""

    path: str  # the file that the profiler wrote
    output: str  # where to write the trace with its marks
    distributed: dict[str, Any]  # ``rank`` and ``world_size``
    steps: int | None  # number of steps; None for all
    near: float | None  # begin of the first step of another rank, as Unix time in microseconds; None to choose


class TraceSummary(msgspec.Struct):
    """The summary of a trace, with the begin of its first step."""

    summary: dict[str, Any]
    begin: float
