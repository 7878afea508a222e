"""Offline runs of W&B's client, and what its own reader finds in their logs."""

from __future__ import annotations

import json
import math
import os
import struct
import zlib
from typing import TYPE_CHECKING, Any

from processes import eventually

from trackside.packing import encoded_varint
from trackside_daemon.bridges.wandb.log_run import BLOCK_BYTES, MAGIC, LogFile
from trackside_daemon.history.files.left_out import LeftOut
from trackside_daemon.http_client.protobuf import fields

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

EXIT = 18  # field of Record

Row = tuple[int, dict[str, float]]
"""Step, and the numbers by key."""


def row(step: int, *, size: int = 0) -> bytes:
    """Return a record of the history with a loss, and a text of some bytes."""
    items = {"_step": step, "_timestamp": 1.7e9 + step, "loss": 1 / (step + 1), **({"t": "x" * size} if size else {})}
    parts = (_field(1, _field(1, key.encode()) + _field(16, json.dumps(one).encode())) for key, one in items.items())
    return _field(2, b"".join(parts))


def fragment(data: bytes, kind: int = 1) -> bytes:
    """Return a fragment; by default a whole record."""
    return struct.pack("<IHB", zlib.crc32(data, zlib.crc32(bytes([kind]))), len(data), kind) + data


def logged(records: list[bytes]) -> bytes:
    """Return a log as LevelDB lays it out."""
    log = bytearray(MAGIC)
    for record in records:
        rest, first = record, True
        while first or rest:
            if -len(log) % BLOCK_BYTES < 7:
                log += bytes(-len(log) % BLOCK_BYTES)
            room = (-len(log) % BLOCK_BYTES or BLOCK_BYTES) - 7
            part, rest = rest[:room], rest[room:]
            log += fragment(part, (1 if first else 4) if not rest else 2 if first else 3)
            first = False
    return bytes(log)


def _field(number: int, content: bytes) -> bytes:
    return encoded_varint(number << 3 | 2) + encoded_varint(len(content)) + content


def offline(directory: Path, log: Callable[[Any], None], **options: Any) -> Path:
    """Write an offline run, and return its log."""
    os.environ.update(WANDB_SILENT="true", WANDB_ERROR_REPORTING="false")
    import wandb

    settings = wandb.Settings(console="off", x_disable_stats=True, disable_git=True, save_code=False)
    run = wandb.init(mode="offline", project="p", dir=str(directory), settings=settings, **options)
    log(run)
    run.finish(exit_code=int(options.get("notes") == "fails"))
    (path,) = directory.glob("wandb/offline-run-*/run-*.wandb")
    # The client's own process writes the rest of the log after the end of the run.
    eventually(
        lambda: any(field == EXIT for _, record in LogFile(path, LeftOut()).read() for field, *_ in fields(record))
    )
    return path


def _rows(count: int, **more: Any) -> Callable[[Any], None]:
    def log(run: Any) -> None:
        for step in range(count):
            run.log({"loss": 1 / (step + 1), "acc": step / count, **more})

    return log


def _gaps(run: Any) -> None:
    for step in (0, 5, 100, 2**40):
        run.log({"loss": float(step)}, step=step)


def _later(run: Any) -> None:
    run.log({"loss": 1.0})
    run.config.update({"late": 1})
    run.summary["best"] = 0.5
    run.log({"loss": 0.5})


def _media(run: Any) -> None:
    import numpy as np
    import wandb

    for step in range(5):
        run.log({"loss": step / 3, "h": wandb.Histogram(np.arange(9)), "words": "text", "none": None})


def _custom_axis(run: Any) -> None:
    run.define_metric("epoch/loss", step_metric="epoch")
    for epoch in range(5):
        run.log({"epoch": epoch, "epoch/loss": epoch / 3})


MAKERS: dict[str, tuple[Callable[[Any], None], dict[str, Any]]] = {
    "plain": (_rows(50), {"name": "first run", "tags": ["a", "b"], "config": {"lr": 0.1, "model": {"depth": 3}}}),
    "many": (_rows(1500), {}),
    "nested": (_rows(20, deep={"er": {"x": 1.5}}, flag=True, whole=2**53), {}),
    "not finite": (_rows(20, a=math.nan, b=math.inf, c=-math.inf), {}),
    "large rows": (_rows(10, **{f"layer{n}/norm": n / 7 for n in range(2000)}), {}),
    "gaps": (_gaps, {}),
    "later": (_later, {}),
    "media": (_media, {}),
    "custom axis": (_custom_axis, {}),
    "failed": (_rows(10), {"notes": "fails"}),
}


def expected(path: Path) -> list[Row]:
    """Return the rows that W&B's own reader finds in a log."""
    from wandb.proto.wandb_internal_pb2 import Record
    from wandb.sdk.internal.datastore import DataStore

    store = DataStore()
    store.open_for_scan(str(path))
    rows: list[Row] = []
    while (data := store.scan_data()) is not None:
        record = Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            numbers: dict[str, float] = {}
            for item in record.history.item:
                key = item.key or ".".join(item.nested_key)
                numbers |= _numbers(key, json.loads(item.value_json))
            rows.append((record.history.step.num, numbers))
    store._fp.close()
    return [row for row in rows if row[1]]


def _numbers(key: str, value: Any) -> dict[str, float]:
    if isinstance(value, dict) and "_type" not in value:
        return {name: x for inner, one in value.items() for name, x in _numbers(f"{key}.{inner}", one).items()}
    plain = isinstance(value, int | float) and key not in ("_step", "_timestamp", "_runtime")
    return {key: float(value)} if plain else {}
