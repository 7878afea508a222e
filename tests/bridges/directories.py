"""Directories with event files as writers of TensorBoard make them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.bridges.mirrors.target import Row
from trackside_daemon.bridges.tensorboard.mirror import encoded_event, encoded_record

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

BEGIN = 1_700_000_000


def events(path: Path, steps: Iterable[int], key: str = "loss", at: int = BEGIN) -> Path:
    """Write an event file as SummaryWriter names it; the value of a step is a half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [Row(0, 0, True, step, (at + step) * 1_000_000, {key: step / 2}) for step in steps]
    head = encoded_record(b"\x1a\x0dbrain.Event:2\x00"[:15])
    path.write_bytes(head + b"".join(encoded_record(encoded_event(row)) for row in rows))
    return path


def file_name(at: int = BEGIN, pid: int = 7) -> str:
    return f"events.out.tfevents.{at}.host.{pid}.0"
