"""Write the items of a run as the JSON lines that `json_format` reads."""

import json
from collections.abc import Iterable, Iterator
from math import isfinite
from typing import Any

import msgspec

from trackside_daemon.history.files.items import Item, MachineValues, Push, RunEntry

CHUNK_LINES = 1000

_encode = msgspec.json.Encoder().encode


def chunks(items: Iterable[Item]) -> Iterator[bytes]:
    """Yield the items as lines, several at a time."""
    lines: list[bytes] = []
    for item in items:
        lines.append(_push(item) if isinstance(item, Push) else _other(item))
        if len(lines) == CHUNK_LINES:
            yield b"\n".join([*lines, b""])
            lines = []
    if lines:
        yield b"\n".join([*lines, b""])


def _push(push: Push) -> bytes:
    values: dict[str, Any] = dict(zip(push.keys, push.values, strict=True))
    if not isfinite(sum(push.values)):
        values = {key: value if isfinite(value) else str(value) for key, value in values.items()}
    fields = {"attempt": push.attempt, "rank": push.rank, "step": push.step, "time": push.time / 1e6, "values": values}
    return _encode(fields)


def _other(item: MachineValues | RunEntry) -> bytes:
    if isinstance(item, MachineValues):
        values = {key: value if isfinite(value) else str(value) for key, value in item.values.items()}
        fields: dict[str, Any] = {"kind": "resources", "time": item.time / 1e6, "values": values}
    elif item.kind == "event":
        fields = {**item.fields, "kind": "event", "event": item.fields["kind"]}
    else:
        fields = {"kind": item.kind, **({"capture": item.fields} if item.kind == "capture" else item.fields)}
    return json.dumps(fields).encode()
