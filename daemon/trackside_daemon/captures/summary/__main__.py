"""The process that summarises traces: ``python -m trackside_daemon.captures.summary``.

The daemon limits its memory. It limits its time. After half a second of a processor, it uses processors and disks only when
nothing else does.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trackside_daemon.captures.summary.request import SummaryRequest, TraceSummary
from trackside_daemon.captures.summary.steps import cut, marked, write
from trackside_daemon.captures.summary.trace import EVENT_BYTES, TraceError, count_events, decode, read_text
from trackside_daemon.captures.summary.trace_summary import summarize_trace
from trackside_daemon.linux.process_limits import allowed_memory
from trackside_daemon.linux.worker_call import WorkLimits, serve

LIMITS = WorkLimits(90, quick_seconds=0.5)  # enough for 15 MB of traces without waiting until processors are free
LESS = "record fewer steps, or no stacks"


def main() -> int:
    """Answer requests until the end of the input."""
    return serve(SummaryRequest, answer, lambda _: LIMITS, (TraceError,))


def answer(request: SummaryRequest) -> TraceSummary:
    """Summarise a trace, and write it with its marks.

    Raises:
        TraceError: It cannot be read, summarised or written.
    """
    memory = allowed_memory()
    try:
        text = read_text(Path(request.path))
        if (events := count_events(text)) > memory // EVENT_BYTES:
            raise TraceError(f"the trace has {events:,} events, more than {memory >> 20} MiB can hold; {LESS}")
        trace = decode(text)
        steps = cut(trace, request.steps, request.near)
        summary = summarize_trace(trace, steps)
        begin = trace.base / 1000 + steps.edges[0]
        del trace
        distributed = {"backend": _backend(summary), **request.distributed}
        write(Path(request.output), marked(text, steps, distributed))
    except OSError as error:
        raise TraceError(f"the trace cannot be read or written: {error}") from None
    except MemoryError:
        reason = f"the trace needs more memory than the {memory >> 20} MiB of limits.worker_memory; {LESS}"
        raise TraceError(reason) from None
    return TraceSummary(summary, begin)


def _backend(summary: Mapping[str, Any]) -> str:
    """Return the backend of torch.distributed, by the collectives of a rank."""
    names = " ".join(row["name"] for row in summary["communication"])
    return next((backend for backend in ("nccl", "gloo", "mpi", "ucc", "xccl") if backend in names), "")


if __name__ == "__main__":
    sys.exit(main())
