"""The request of the daemon to the worker process, and its answer."""

from typing import Any

import msgspec

MODULE = "trackside_daemon.captures.summary"


class SummaryRequest(msgspec.Struct):
    """A trace to summarise.

    Attributes:
        path: The file that the profiler wrote.
        output: Where to write the trace with its marks.
        distributed: ``rank`` and ``world_size``.
        steps: Number of steps; None for all.
        near: Begin of the first step of another rank, as Unix time in microseconds; None to choose.
    """

    path: str
    output: str
    distributed: dict[str, Any]
    steps: int | None
    near: float | None


class TraceSummary(msgspec.Struct):
    """The summary of a trace, with the begin of its first step."""

    summary: dict[str, Any]
    begin: float
