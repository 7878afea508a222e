"""Cut a trace to its steps, and add what HTA, the TensorBoard plug-in and Perfetto need: whose it is, and the marks of steps."""

from __future__ import annotations

import gzip
import os
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trackside_daemon.captures.summary.steps import Steps


class _Event(msgspec.Struct, gc=False):
    """The place of an event in time."""

    ph: str = ""
    ts: float = 0.0
    dur: float = 0.0


_decode = msgspec.json.Decoder(_Event).decode


def marked(text: bytes, steps: Steps, distributed: dict[str, Any]) -> bytes:
    """Return a trace of its steps alone, with ``distributedInfo`` and ``ProfilerStep#`` marks, which it keeps if it has them.

    Args:
        text: The trace, which `trace.decode` accepts.
        steps: Its steps.
        distributed: ``rank``, ``world_size`` and ``backend``.
    """
    fields = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    events = msgspec.json.decode(fields.pop("traceEvents"), type=list[msgspec.Raw])
    if steps.whole:
        events = [event for event in events if _overlaps(event, steps.edges)]
    # HTA searches for the rank with a space before the number.
    own = ", ".join(f'"{key}": {msgspec.json.encode(value).decode()}' for key, value in distributed.items())
    head = {"distributedInfo": msgspec.Raw(f"{{{own}}}".encode())} | fields
    marks = [] if b'"ProfilerStep#' in text or not steps.whole else _marks(steps)
    return msgspec.json.encode(head | {"traceEvents": [*marks, *events]})


def write(path: Path, text: bytes) -> None:
    """Write a gzip that only its owner can read, complete or not at all.

    Raises:
        OSError: It cannot be written.
    """
    part = path.with_name(path.name + ".part")
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(gzip.compress(text, compresslevel=4, mtime=0))
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _overlaps(event: msgspec.Raw, edges: list[float]) -> bool:
    """Return whether an event happens during the steps, or at no time."""
    found = _decode(event)
    return found.ph == "M" or (found.ts < edges[-1] and found.ts + found.dur > edges[0])


def _marks(steps: Steps) -> Iterator[dict[str, Any]]:
    mark = {"ph": "X", "cat": "user_annotation", "pid": steps.pid, "tid": steps.tid}
    for index, (begin, end) in enumerate(pairwise(steps.edges)):
        yield mark | {"name": f"ProfilerStep#{index}", "ts": begin, "dur": end - begin, "args": {}}
