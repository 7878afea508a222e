"""One run of one process as the wire sees it: pushed rows become numbered messages, kept until they are acknowledged."""

from __future__ import annotations

import os
import time
from collections import deque
from math import inf
from typing import TYPE_CHECKING

import msgspec

from trackside.about import about
from trackside.tally import Tally
from trackside.wire import Beat, Block, Bye, Clock, Envelope, Hello, Pushes, Skip, encode, pack

if TYPE_CHECKING:
    from trackside.tally import Deferred
    from trackside.wire import Identity, Totals

Row = tuple[int, "int | Deferred | None", dict[str, float]]
"""A push as `Run` hands it over: monotonic nanoseconds, the step if the user gave one, numbers by key."""

BATCH_ROWS = 512
BATCH_BYTES = 256 * 1024
PENDING_BYTES = 16 * 1024 * 1024
KEY_BYTES = 64 * 1024
ROW_KEYS = 4096
"""A push of more keys than this, or of longer ones, travels as several rows of one step: no batch outgrows a message."""

HEAVY = 16
"""A push of more values than this is bounded by its values, the others by their rows."""

STUCK_SECONDS = 1.0
"""A message that waits longer than this for its acknowledgement keeps what it tells from being seen."""

WINDOW = 64
"""Messages that may be under way without an acknowledgement."""


class Pending(msgspec.Struct):
    """A numbered message that waits for its acknowledgement.

    Attributes:
        first: The lowest number it speaks for; below ``number`` for a skip only.
        number: The highest.
        values: How many pushed values it holds.
        resend: It has been sent before.
        sent_at: Monotonic nanoseconds when it, or what it is a skip of, was first sent; None before.
    """

    first: int
    number: int
    frames: list[bytes]
    values: int = 0
    resend: bool = False
    sent_at: int | None = None

    @property
    def size(self) -> int:
        """Bytes of its frames."""
        return sum(map(len, self.frames))


class Session:
    """Owned by the sender thread, but for `rows`, to which a push appends, and `refused`, to which it adds.

    Attributes:
        id: 16 random bytes.
        rows: Pushes not yet drained.
        refused: Values that a push could not hand over: no numbers, or no room.
        overrun: Pushes that were dropped to make room for newer ones.
        heavy_in: Values of heavy rows (`HEAVY`) that pushes have appended; `heavy_out` of those that were drained.
        greeted: A daemon has answered this session's hello since the last connection.
        asked_at: Monotonic seconds of the last hello on this connection; before the first, long ago.
        ended: Its `Bye` is among the pending messages, or was.
        pending: Messages without an acknowledgement, oldest first.
        size: Bytes of the pending messages.
        warning: What people are to be told once; empty when there is nothing.
    """

    def __init__(
        self, identity: Identity, config: str = "", tags: tuple[str, ...] = (), total_steps: int | None = None
    ) -> None:
        self.id = os.urandom(16)
        self.identity = identity
        self.rows: deque[Row] = deque()
        self.refused = self.overrun = self.heavy_in = self.heavy_out = 0
        self.greeted = False
        self.asked_at = -inf
        self.ended = False
        self.pending: deque[Pending] = deque()
        self.size = 0
        self.warning = ""
        self._config, self._tags, self._total_steps = config, tags, total_steps
        self._started = time.time_ns()
        self._tally = Tally()
        self._number = self._acked = 0
        self._in_flight = 0
        self._refused_counted = self._overrun_counted = 0
        self._said = (0, 0)
        self._oldest, self._oldest_since = 0, 0.0

    @property
    def totals(self) -> Totals:
        """The session's cumulative totals."""
        return self._tally.totals

    @property
    def done(self) -> bool:
        """Nothing is left to say."""
        return self.ended and not self.pending

    def hello(self, clock: Clock) -> list[bytes]:
        """All that a daemon must know of this session, as frames."""
        return encode(
            Envelope("hello", self.id),
            Hello(
                identity=self.identity,
                clock=clock,
                started=self._started,
                totals=self.totals,
                acked=self._acked,
                config=self._config,
                tags=self._tags,
                total_steps=self._total_steps,
                last=self._last(),
                step=self._tally.step,
                progress_age=self._progress_age(clock),
                about=about(),
            ),
        )

    def beat(self, clock: Clock) -> list[bytes]:
        """A sign of life, as frames; while the session is stuck it tells what the waiting messages would."""
        beat = Beat(clock, self._progress_age(clock))
        if self.is_stuck(clock):
            beat.totals, beat.last, beat.step = self.totals, self._last(), self._tally.step
        return encode(Envelope("beat", self.id), beat)

    def is_stuck(self, clock: Clock) -> bool:
        """The oldest message has waited longer than `STUCK_SECONDS`, however often it was sent meanwhile."""
        sent_at = self.pending[0].sent_at if self.pending else None
        return sent_at is not None and clock.monotonic - sent_at > STUCK_SECONDS * 1e9

    def drain(self, clock: Clock) -> None:
        """Turn the rows that wait into batches. It takes a snapshot: a tight loop refills faster than this empties.

        What was counted and has no row of its own, such as a push of nothing but text, goes in a batch without rows.
        """
        refused, overrun = self.refused, self.overrun
        self.totals.dropped += refused - self._refused_counted
        self.totals.pushes += overrun - self._overrun_counted
        self._refused_counted, self._overrun_counted = refused, overrun
        batch = _Columns()
        for _ in range(len(self.rows)):
            try:
                pushed_at, step, values = self.rows.popleft()
            except IndexError:  # a push has dropped what was left, to make room
                break
            self.heavy_out += len(values) if len(values) > HEAVY else 0
            try:
                taken = self._tally.take(pushed_at, step, self._sendable(values))
            except Exception:  # noqa: BLE001  a key of a type of the user's own may raise anything
                self.totals.dropped += len(values)
                continue
            if taken is None or not taken[1]:
                continue
            for part in _parts(taken[1]):
                batch.add(pushed_at, taken[0], part)
                if batch.rows >= BATCH_ROWS or batch.size >= BATCH_BYTES:
                    self._close(batch, clock)
                    batch = _Columns()
        if batch.rows or self._said != (self.totals.pushes, self.totals.dropped):
            self._close(batch, clock)
        self._make_room()

    def end(self, clock: Clock, status: str, cause: str, *, provisional: bool) -> None:
        """Say the end as the last numbered message. What is pushed later is not sent."""
        self.drain(clock)
        bye = Bye(clock, self.totals, status, cause, provisional)
        self._number += 1
        self._pend(Pending(self._number, self._number, encode(Envelope("bye", self.id, self._number), bye)))
        self.ended = True

    def next_to_send(self) -> Pending | None:
        """The oldest pending message that is not under way, while the window has room."""
        if self._in_flight < min(len(self.pending), WINDOW):
            return self.pending[self._in_flight]
        return None

    def sent(self, message: Pending, clock: Clock) -> None:
        """The message that `next_to_send` gave is under way."""
        self._in_flight += 1
        self.totals.resent += message.resend
        message.resend = True
        if message.sent_at is None:
            message.sent_at = clock.monotonic

    def acknowledged(self, number: int) -> None:
        """Everything up to *number* is committed."""
        self._acked = max(self._acked, min(number, self._number))
        while self.pending and self.pending[0].number <= number:
            self.size -= self.pending.popleft().size
            self._in_flight = max(0, self._in_flight - 1)

    def rejected(self, number: int) -> None:
        """*number* is refused for good, and everything before it is committed."""
        self.totals.dropped += sum(message.values for message in self.pending if message.number == number)
        self.acknowledged(number)

    def rewind(self) -> None:
        """Whatever is pending is to be sent again, from the oldest."""
        self._in_flight = 0

    def disconnected(self) -> None:
        """Whoever answers next has to be greeted first, and may have missed whatever is pending."""
        self.greeted = False
        self.asked_at = -inf
        self.rewind()

    def resend_after(self, seconds: float, moment: float) -> None:
        """Rewind when the oldest message has been under way for so long; *moment* is now, in monotonic seconds."""
        oldest = self.pending[0].number if self._in_flight else 0
        if oldest != self._oldest:
            self._oldest, self._oldest_since = oldest, moment
        elif oldest and moment - self._oldest_since > seconds:
            self._oldest_since = moment
            self.rewind()

    @property
    def in_flight(self) -> bool:
        """Something is sent and not acknowledged."""
        return self._in_flight > 0

    def _last(self) -> dict[str, float]:
        """The last value of each key; an int that the user pushed is the float that it travels as."""
        return dict(zip(self._tally.last, map(float, self._tally.last.values()), strict=True))

    def _progress_age(self, clock: Clock) -> int | None:
        return None if self._tally.pushed_at is None else max(0, clock.monotonic - self._tally.pushed_at)

    def _close(self, batch: _Columns, clock: Clock) -> None:
        self._number += 1
        frames = encode(Envelope("batch", self.id, self._number), Pushes(clock, self.totals, batch.blocks()))
        self._pend(Pending(self._number, self._number, frames, batch.values))
        self._said = (self.totals.pushes, self.totals.dropped)

    def _pend(self, message: Pending) -> None:
        self.pending.append(message)
        self.size += message.size

    def _make_room(self) -> None:
        """Drop the oldest messages beyond the memory bound, and put one skip in their place."""
        if self.size <= PENDING_BYTES:
            return
        first = last = self.pending[0].first
        sent_at = self.pending[0].sent_at
        while self.size > PENDING_BYTES:
            oldest = self.pending.popleft()
            last = oldest.number
            self.size -= oldest.size
            self.totals.dropped += oldest.values
        frames = encode(Envelope("skip", self.id, last), Skip(first, self.totals))
        skip = Pending(first, last, frames, sent_at=sent_at)
        self._said = (self.totals.pushes, self.totals.dropped)
        self.pending.appendleft(skip)
        self.size += skip.size
        self.rewind()

    def _sendable(self, values: dict[str, float]) -> dict[str, float]:
        """The values whose keys can travel: text that UTF-8 can write, of at most `KEY_BYTES`."""
        if values.keys() <= self._tally.last.keys():
            return values
        kept = {key: value for key, value in values.items() if _is_sendable(key)}
        self.totals.dropped += len(values) - len(kept)
        if len(kept) < len(values):
            self.warning = f"a key is text of at most {KEY_BYTES} bytes in UTF-8; values of other keys are dropped"
        return kept


class _Columns:
    """Rows on their way into the `Block`s of one batch."""

    def __init__(self) -> None:
        self.rows = 0
        self.values = 0
        self.size = 0
        self._keys: tuple[str, ...] = ()
        self._blocks: list[tuple[tuple[str, ...], list[int], list[int], list[float]]] = []

    def add(self, time: int, step: int, values: dict[str, float]) -> None:
        """Append a row; one with other keys than the last begins a block."""
        keys = tuple(values)
        if keys != self._keys or not self._blocks:
            self._keys = keys
            self._blocks.append((keys, [], [], []))
            self.size += sum(len(key.encode()) + 5 for key in keys)
        _, steps, times, numbers = self._blocks[-1]
        steps.append(step)
        times.append(time)
        numbers.extend(values.values())
        self.rows += 1
        self.values += len(keys)
        self.size += 16 + 8 * len(keys)

    def blocks(self) -> list[Block]:
        """The rows as the wire has them."""
        return [
            Block(list(map(str.__str__, keys)), pack("q", steps), pack("q", times), pack("d", numbers))
            for keys, steps, times, numbers in self._blocks
        ]


def _parts(values: dict[str, float]) -> list[dict[str, float]]:
    """A push as rows that are each small enough for a batch; nearly always as it is."""
    if len(values) <= ROW_KEYS and 4 * sum(map(len, values)) <= BATCH_BYTES:  # UTF-8 has 4 bytes at most a character
        return [values]
    parts: list[dict[str, float]] = [{}]
    size = 0
    for key, value in values.items():
        if len(parts[-1]) == ROW_KEYS or size > BATCH_BYTES:
            parts.append({})
            size = 0
        parts[-1][key] = value
        size += len(key.encode())
    return parts


def _is_sendable(key: object) -> bool:
    if not isinstance(key, str):
        return False
    try:
        return len(key.encode()) <= KEY_BYTES
    except UnicodeEncodeError:
        return False
