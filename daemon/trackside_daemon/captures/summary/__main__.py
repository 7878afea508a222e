"""The process that summarises traces: ``python -m trackside_daemon.captures.summary``.

Each line of standard input is a `Request`, and each line of standard output its `Answer`. The daemon limits its memory. It
limits its time. After half a second of a processor, it uses processors and disks only when nothing else does.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from trackside_daemon.captures.summary import marks
from trackside_daemon.captures.summary.profile import profile
from trackside_daemon.captures.summary.request import Answer, Request
from trackside_daemon.captures.summary.steps import cut
from trackside_daemon.captures.summary.trace import EVENT_BYTES, TraceError, count_events, decode, read_text
from trackside_daemon.linux.parent_death import end_with_parent
from trackside_daemon.linux.process_limits import allowed_memory, limit_this_process, limit_time
from trackside_daemon.linux.signals import reset_signals

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

CPU_SECONDS = 90
LESS = "record fewer steps, or no stacks"
QUICK_SECONDS = 0.5  # of a processor, for which it does not wait until processors are free: enough for 15 MB of traces


def main() -> int:
    """Answer requests until the end of the input."""
    reset_signals()
    end_with_parent(None, signal.SIGKILL)
    limit_this_process(quick_seconds=QUICK_SECONDS)
    for line in sys.stdin.buffer:
        limit_time(CPU_SECONDS)  # of each request
        sys.stdout.buffer.write(msgspec.json.encode(answer(msgspec.json.decode(line, type=Request))) + b"\n")
        sys.stdout.buffer.flush()
    return 0


def answer(request: Request) -> Answer:
    """Summarise a trace, and write it with its marks."""
    memory = allowed_memory()
    try:
        text = read_text(Path(request.path))
        if (events := count_events(text)) > memory // EVENT_BYTES:
            return Answer(error=f"the trace has {events:,} events, more than {memory >> 20} MiB can hold; {LESS}")
        trace = decode(text)
        steps = cut(trace, request.steps, request.near)
        summary = profile(trace, steps)
        begin = trace.base / 1000 + steps.edges[0]
        del trace
        distributed = {"backend": _backend(summary), **request.distributed}
        marks.write(Path(request.output), marks.marked(text, steps, distributed))
    except TraceError as error:
        return Answer(error=str(error))
    except OSError as error:
        return Answer(error=f"the trace cannot be read or written: {error}")
    except MemoryError:
        return Answer(error=f"the trace needs more memory than the {memory >> 20} MiB of limits.worker_memory; {LESS}")
    return Answer(summary, begin)


def _backend(summary: Mapping[str, Any]) -> str:
    """Return the backend of torch.distributed, by the collectives of a rank."""
    names = " ".join(row["name"] for row in summary["communication"])
    return next((backend for backend in ("nccl", "gloo", "mpi", "ucc", "xccl") if backend in names), "")


if __name__ == "__main__":
    sys.exit(main())
