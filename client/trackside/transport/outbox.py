"""The numbered messages of a session until they are acknowledged: in memory what may be under way, the rest on disk."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from math import inf
from typing import TYPE_CHECKING

import msgspec

from trackside.transport.spool import Record
from trackside.wire import Envelope, Skip, Totals, encode

if TYPE_CHECKING:
    from trackside.transport.spool import Spool
    from trackside.wire import Clock

PENDING_BYTES = 16 * 1024 * 1024
"""What may wait in memory."""

WINDOW = 64
"""Messages that may be under way without an acknowledgement."""

STUCK_SECONDS = 1.0
"""A message that waits longer than this for its acknowledgement is written to the spool."""


class Pending(msgspec.Struct):
    """A numbered message that waits for its acknowledgement.

    Attributes:
        first: The lowest number it speaks for; below ``number`` for a skip only.
        number: The highest.
        values: How many pushed values it holds.
        made_at: Monotonic nanoseconds since when it waits.
        resend: It has been sent before.
        spooled: It is on disk, or need not be.
    """

    first: int
    number: int
    frames: list[bytes]
    values: int = 0
    made_at: int = 0
    resend: bool = False
    spooled: bool = False

    @property
    def size(self) -> int:
        """Bytes of its frames."""
        return sum(map(len, self.frames))


class Outbox(ABC):
    """Owned by the sender thread.

    `pending` is what comes next, in order, and is all that there is while a daemon answers. What has waited for long is
    in the spool too; once that is more than may be under way, newer messages go to the spool alone and are read again
    when their turn comes. Only what no disk takes waits behind them in memory.

    Args:
        id: The session's.
        spool: Its own.

    Attributes:
        greeted: A daemon has answered this session's hello since the last connection.
        asked_at: Monotonic seconds of the last hello on this connection; before the first, long ago.
        ended: Its `Bye` is among the messages, or was.
        retired: What is left is in the spool, or nowhere: nothing more is sent by this process.
        pending: Messages without an acknowledgement, oldest first.
        size: Bytes of the messages in memory.
        totals: The session's cumulative totals.
    """

    totals: Totals

    def __init__(self, id: bytes, spool: Spool) -> None:  # noqa: A002  the field's word for it
        self.id = id
        self.spool = spool
        self.greeted = self.ended = self.retired = False
        self.asked_at = -inf
        self.pending: deque[Pending] = deque()
        self.size = 0
        self._behind: deque[Pending] = deque()
        self._acked = 0
        self._in_flight = 0
        self._oldest, self._oldest_since = 0, 0.0

    @abstractmethod
    def hello(self, clock: Clock) -> list[bytes]:
        """All that a daemon must know of this session, as frames."""

    @property
    def done(self) -> bool:
        """Nothing is left to say, or nothing more can be said."""
        return self.retired or (self.ended and not self.pending and not self.backlog)

    @property
    def backlog(self) -> bool:
        """Messages wait behind the pending ones."""
        return self.spool.last > self._newest or bool(self._behind)

    def settle(self, clock: Clock, *, everything: bool = False) -> None:
        """Write to the spool what has waited for long, or *everything*; then take up from it what may be sent next."""
        stuck = self.is_stuck(clock)
        crowded = self.size > PENDING_BYTES or (stuck and len(self.pending) > WINDOW)
        if everything or stuck or crowded or self._behind:
            self._spool(clock.monotonic - STUCK_SECONDS * 1e9, clock, everything=everything or crowded)
        while crowded and self.pending and self.pending[-1].spooled and self._is_full():
            self.size -= self.pending.pop().size
        self._in_flight = min(self._in_flight, len(self.pending))
        if self.size > PENDING_BYTES:
            self._drop_oldest(self._behind or self.pending)
        self._refill()

    def _is_full(self) -> bool:
        """More is in memory than may be under way, or than there is room for."""
        return len(self.pending) > WINDOW or self.size > PENDING_BYTES

    def is_stuck(self, clock: Clock) -> bool:
        """The oldest message has waited longer than `STUCK_SECONDS`, however often it was sent meanwhile."""
        return bool(self.pending) and clock.monotonic - self.pending[0].made_at > STUCK_SECONDS * 1e9

    def next_to_send(self) -> Pending | None:
        """The oldest pending message that is not under way, while the window has room."""
        if self._in_flight < min(len(self.pending), WINDOW):
            return self.pending[self._in_flight]
        return None

    def sent(self, message: Pending) -> None:
        """The message that `next_to_send` gave is under way."""
        self._in_flight += 1
        self.totals.resent += message.resend
        message.resend = True

    def acknowledged(self, number: int) -> None:
        """Everything up to *number* is committed."""
        self._acked = max(self._acked, number)
        while self.pending and self.pending[0].number <= number:
            self.size -= self.pending.popleft().size
            self._in_flight = max(0, self._in_flight - 1)
        self.spool.acknowledged(number)
        self._refill()

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

    def retire(self, clock: Clock) -> None:
        """Write everything to the spool, and let go of it."""
        self.settle(clock, everything=True)
        self.retired = True
        self.spool.close()

    @property
    def in_flight(self) -> bool:
        """Something is sent and not acknowledged."""
        return self._in_flight > 0

    @property
    def unkept(self) -> int:
        """Values in memory that the spool does not have."""
        return sum(message.values for message in (*self.pending, *self._behind) if not message.spooled)

    @property
    def _newest(self) -> int:
        """The highest number up to which everything is acknowledged or pending."""
        return self.pending[-1].number if self.pending else self._acked

    def _add(self, message: Pending, clock: Clock) -> None:
        """Append the newest message."""
        message.made_at = clock.monotonic
        if not self.backlog:
            self.pending.append(message)
        elif self._behind or not self._put(message, clock):
            self._behind.append(message)
        else:
            return
        self.size += message.size

    def _spool(self, before: float, clock: Clock, *, everything: bool) -> None:
        """Write in order whatever was made *before* that moment, or everything, as far as the disk takes it."""
        for message in self.pending:
            if message.spooled:
                continue
            if not (everything or message.made_at < before) or not self._put(message, clock):
                return
        while self._behind and self._put(self._behind[0], clock):
            self.size -= self._behind.popleft().size

    def _put(self, message: Pending, clock: Clock) -> bool:
        record = Record(message.first, message.number, message.values, message.frames)
        message.spooled = self.spool.put(record, lambda: self.hello(clock))
        self.totals.spooled += message.spooled
        if message.spooled:
            self.totals.dropped += self.spool.drop_excess(self._newest)
        return message.spooled

    def _refill(self) -> None:
        """Take up what comes next, while there is room for it."""
        while len(self.pending) < WINDOW and self.size < PENDING_BYTES // 2 and self.spool.last > self._newest:
            record = self.spool.after(self._newest)
            if record is None:
                break
            self._bridge(record.first)
            self.pending.append(Pending(record.first, record.number, record.frames, record.values, spooled=True))
            self.size += self.pending[-1].size
        if self.spool.last <= self._newest:
            while self._behind and len(self.pending) < WINDOW:
                self._bridge(self._behind[0].first)
                self.pending.append(self._behind.popleft())
        if self.pending and self.pending[0].first > self._acked + 1:
            self.pending.appendleft(self._gap(self._acked + 1, self.pending[0].first - 1, 0))
            self.size += self.pending[0].size
            self.rewind()

    def _bridge(self, number: int) -> None:
        """Say that what lies between the newest pending message and *number* will never come: its file is gone."""
        if number > self._newest + 1:
            self._skip(self._newest + 1, number - 1, 0)

    def _skip(self, first: int, last: int, made_at: int) -> None:
        """Behind what is pending, say that the numbers from *first* to *last* will never come."""
        if self.pending and len(self.pending) > self._in_flight and self.pending[-1].first < self.pending[-1].number:
            before = self.pending.pop()
            self.size -= before.size
            first, made_at = before.first, before.made_at
        self.pending.append(self._gap(first, last, made_at))
        self.size += self.pending[-1].size

    def _drop_oldest(self, messages: deque[Pending]) -> None:
        """Drop the oldest of the messages in memory beyond its bound, and put one skip in their place."""
        first = last = messages[0].first
        made_at = messages[0].made_at
        while self.size > PENDING_BYTES and messages:
            oldest = messages.popleft()
            last = oldest.number
            self.size -= oldest.size
            self.totals.dropped += oldest.values
        messages.appendleft(self._gap(first, last, made_at))
        self.size += messages[0].size
        if messages is self.pending:
            self.rewind()

    def _gap(self, first: int, last: int, made_at: int) -> Pending:
        frames = encode(Envelope("skip", self.id, last), Skip(first, self.totals))
        return Pending(first, last, frames, made_at=made_at, spooled=True)
