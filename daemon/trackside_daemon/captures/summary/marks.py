"""Add to a trace what HTA, the TensorBoard plug-in and Perfetto need: whose it is, and where its steps begin."""

from __future__ import annotations

import gzip
import os
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from pathlib import Path

    from trackside_daemon.captures.summary.steps import Steps


def marked(text: bytes, steps: Steps, distributed: dict[str, Any]) -> bytes:
    """Return the text of a trace with ``distributedInfo`` and ``ProfilerStep#`` marks, which it keeps if it has them.

    Args:
        text: The trace, which `trace.decode` accepts.
        steps: Its steps.
        distributed: ``rank``, ``world_size`` and ``backend``.
    """
    fields = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    events = bytes(fields.pop("traceEvents")).strip()
    # HTA searches for the rank with a space before the number.
    own = ", ".join(f'"{key}": {msgspec.json.encode(value).decode()}' for key, value in distributed.items())
    head = {"distributedInfo": msgspec.Raw(f"{{{own}}}".encode())} | fields
    marks = b"" if b'"ProfilerStep#' in events or not steps.whole else b",".join(_marks(steps)) + b","
    return msgspec.json.encode(head)[:-1] + b',"traceEvents":[' + marks + events[1:] + b"}"


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


def _marks(steps: Steps) -> list[bytes]:
    mark = {"ph": "X", "cat": "user_annotation", "pid": steps.pid, "tid": steps.tid}
    return [
        msgspec.json.encode(mark | {"name": f"ProfilerStep#{index}", "ts": begin, "dur": end - begin, "args": {}})
        for index, (begin, end) in enumerate(pairwise(steps.edges))
    ]
