"""Rows that the sender thread has not read yet, in the file that a process leaves when it is killed.

They are written as they are, since that costs the sender thread least. The reader of the file makes a batch of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from trackside.totals.session_totals import Deferred, Position, SessionTotals
from trackside.transport.batch import BatchBuilder, split_row
from trackside.wire import MESSAGE_BYTES, Clock, Pushes, decode_body, encode, open_envelope

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trackside.rows import Row


class KeptStep(msgspec.Struct, array_like=True):
    """A `Deferred`, with a number that all of its rows have in common."""

    number: int
    step: int | None
    keys: list[str]
    aside: bool
    ends: bool | None
    resolved: bool


class KeptRows(msgspec.Struct, array_like=True):
    """Rows that follow a batch.

    Attributes:
        position: Position of the training before them.
        rows: Monotonic nanoseconds, step, numbers by key; None for what is not computed yet.
    """

    position: Position
    rows: list[tuple[int, int | KeptStep | None, dict[str, float | None]]]


def encoded(counts: SessionTotals, rows: Sequence[Row]) -> bytes:
    """Return the pushes among the rows as a frame that follows those of a batch.

    Raises:
        Exception: A key or a number cannot be written.
    """
    return _encode((counts.position, [row for row in rows if row[2] is not None]))


def with_kept_rows(frames: list[bytes]) -> list[bytes]:
    """Return the frames of a batch with the rows that the frame behind them has; without them if they cannot be read."""
    try:
        made = _with_kept_rows(frames[:-1], msgspec.msgpack.decode(frames[-1], type=KeptRows))
        return made if len(made[2]) <= MESSAGE_BYTES else frames[:-1]  # no daemon would accept it
    except Exception:  # noqa: BLE001  anyone may have written them
        return frames[:-1]


def _with_kept_rows(frames: list[bytes], kept: KeptRows) -> list[bytes]:
    envelope = open_envelope(frames)
    batch: Pushes = decode_body(envelope.kind, frames[2])
    counts, builder = SessionTotals.resumed(batch.totals, kept.position), BatchBuilder()
    steps: dict[int, Deferred] = {}
    for time, step, values in kept.rows:
        place = steps.setdefault(step.number, _deferred(step)) if isinstance(step, KeptStep) else step
        numbers = {key: value for key, value in values.items() if value is not None}
        if (counted := counts.accept(time, place, numbers)) is not None and counted[1]:
            for part in split_row(counted[1]):
                builder.add(time, counted[0], part, aside=isinstance(place, Deferred) and place.aside)
    later = max(0, (counts.pushed_at or 0) - batch.clock.monotonic)
    batch.clock = Clock(batch.clock.wall + later, batch.clock.monotonic + later)
    batch.blocks = [*batch.blocks, *builder.blocks()]
    return encode(envelope, batch)


def _deferred(kept: KeptStep) -> Deferred:
    deferred = Deferred(kept.step, tuple(kept.keys), aside=kept.aside, ends=kept.ends)
    deferred.resolved = kept.resolved
    return deferred


def _plain(value: Any) -> Any:
    if isinstance(value, Deferred):
        return KeptStep(id(value), value.step, list(value.keys), value.aside, value.ends, value.resolved)
    return None  # an array of JAX


_encode = msgspec.msgpack.Encoder(enc_hook=_plain).encode
