"""Keep the numbered messages of a session until they are acknowledged: the window in memory, the rest on disk."""

from abc import ABC, abstractmethod
from collections import deque
from math import inf
from time import monotonic

import msgspec

from trackside.transport.spool import Segment, Spool, SpooledMessage, Steps, spanned
from trackside.wire import Clock, Envelope, Skip, Totals, encode


class Pending(msgspec.Struct):
    """A numbered message that waits for its acknowledgement.

    Attributes:
        first: Lowest sequence number that it covers; below ``number`` for a skip only.
        is_gap: It is a skip that was made here, and may grow until it is sent.
        number: Highest sequence number that it covers.
        frames: Its frames.
        values: Number of pushed values in it.
        lost: Number of values in the messages that a skip covers.
        steps: Lowest and highest step in it, or in the messages that a skip covers; None if they are unknown.
        made_at: Monotonic nanoseconds of its creation.
        sent_at: Monotonic seconds when it was last sent; 0 before.
        resend: It was sent before.
        spooled: It is on disk, or need not be.
    """

    first: int
    number: int
    frames: list[bytes]
    values: int = 0
    made_at: int = 0
    sent_at: float = 0.0
    resend: bool = False
    spooled: bool = False
    lost: int = 0
    steps: Steps = None
    is_gap: bool = False

    @property
    def size(self) -> int:
        """Bytes of its frames."""
        return sum(map(len, self.frames))


class Outbox(ABC):
    """The unacknowledged messages of a session. The sender thread owns it.

    `pending` has the next messages in order, and is all there is while a daemon answers. Messages that have waited long
    are in the spool too. If the spool has more than the window, newer messages go to the spool alone, and are read again
    in their turn. Messages that the disk does not accept wait behind them in memory.

    Args:
        id: Id of the session.
        spool: Spool of the session.

    Attributes:
        greeted: A daemon has answered the session's hello on this connection.
        asked_at: Monotonic seconds of the last hello on this connection; minus infinity before the first.
        sent_at: Monotonic seconds of the last other message; minus infinity before the first.
        answer_seconds: The time from the last send of what was acknowledged last; 0 if nothing of it was sent.
        ended: The session's `Bye` is or was among the messages.
        retired: The rest is in the spool, or lost: this process sends nothing more.
        pending: Unacknowledged messages, oldest first.
        size: Bytes of the messages in memory.
        totals: Cumulative totals of the session.
    """

    totals: Totals

    def __init__(self, id: bytes, spool: Spool) -> None:  # noqa: A002  the field's word for it
        self.id = id
        self.spool = spool
        self.greeted = self.ended = self.retired = False
        self.asked_at = self.sent_at = -inf
        self.answer_seconds = 0.0
        self.pending: deque[Pending] = deque()
        self.size = 0
        self._unspooled: deque[Pending] = deque()
        self._acked = 0
        self._in_flight = 0
        self._held = 0
        """Messages that were in flight before the oldest was sent again alone, and probably still are; 0 without that."""
        self._repeated = 0
        """Number of the last message that was sent again alone."""
        self._sent = 0
        """Highest number that was sent."""
        self._oldest = 0
        self._oldest_since = 0.0

    @abstractmethod
    def hello(self, clock: Clock) -> list[bytes]:
        """Return the hello, with all that a daemon needs of this session, as frames."""

    @property
    def done(self) -> bool:
        """Everything is acknowledged, or nothing more can be sent."""
        return self.retired or (self.ended and not self.pending and not self.backlog)

    @property
    def backlog(self) -> bool:
        """Messages wait after the pending ones."""
        return self.spool.last > self._newest or bool(self._unspooled)

    def settle(self, clock: Clock, *, everything: bool = False) -> None:
        """Spool the messages once the oldest has waited long, or *everything*; then read from the spool what is sent next."""
        limits = self.spool.limits
        is_due = self._has_waited(limits.stuck_seconds if self.greeted else limits.offline_seconds, clock)
        crowded = self.size > limits.pending_bytes or (is_due and len(self.pending) > limits.window)
        if everything or is_due or crowded or self._unspooled:
            self._spool(clock)
        # The newest leave the memory: they are on disk, and their turn comes last.
        while crowded and self.pending and self.pending[-1].spooled and self._is_full():
            self.size -= self.pending.pop().size
        self._in_flight = min(self._in_flight, len(self.pending))  # the popped ones may have been in flight
        if self.size > limits.pending_bytes:
            self._drop_oldest(self._unspooled or self.pending)
        self._refill()

    def _is_full(self) -> bool:
        """Return whether memory has more messages than the window, or more bytes than its limit."""
        return len(self.pending) > self.spool.limits.window or self.size > self.spool.limits.pending_bytes

    def is_stuck(self, clock: Clock) -> bool:
        """Return whether the oldest message has waited longer than its limit, however often it was sent."""
        return self._has_waited(self.spool.limits.stuck_seconds, clock)

    def _has_waited(self, seconds: float, clock: Clock) -> bool:
        return bool(self.pending) and clock.monotonic - self.pending[0].made_at > seconds * 1e9

    def next_to_send(self) -> Pending | None:
        """Return the oldest pending message that is not in flight; None if there is none, or the window is full."""
        if self._in_flight < min(len(self.pending), 1 if self._held else self.spool.limits.window):
            return self.pending[self._in_flight]
        return None

    def sent(self, message: Pending) -> None:
        """Record that the message of `next_to_send` is in flight."""
        self._in_flight += 1
        message.sent_at = monotonic()
        self._sent = max(self._sent, message.number)
        self.totals.resent += message.resend
        message.resend = True

    def acknowledged(self, number: int) -> bool:
        """Drop the messages up to *number*, which are committed; return whether there were any."""
        progress = bool(self.pending) and self.pending[0].number <= number
        self._acked = max(self._acked, number)
        if progress and self._held:
            self._in_flight, self._held = min(self._held, len(self.pending)), 0
        sent_at = 0.0
        while self.pending and self.pending[0].number <= number:
            message = self.pending.popleft()
            self.size -= message.size
            sent_at = max(sent_at, message.sent_at)  # an older one that was sent again may have made the daemon answer
            self._in_flight = max(0, self._in_flight - 1)
        # Not from the first send: with our own wait in it, each wait would make the next one longer.
        self.answer_seconds = monotonic() - sent_at if sent_at else 0.0
        self.spool.acknowledged(number)
        self._refill()
        return progress

    def rejected(self, number: int) -> None:
        """Count message *number* as dropped, since the daemon refuses it; everything before it is committed."""
        self.totals.dropped += sum(message.values for message in self.pending if message.number == number)
        self.acknowledged(number)

    def rewind(self) -> None:
        """Resend everything that is pending, from the oldest."""
        self._in_flight = self._held = self._repeated = 0

    def disconnected(self) -> None:
        """Prepare for the next daemon: it needs a hello first, and may have missed everything that is pending."""
        self.greeted = False
        self.asked_at = -inf
        self.rewind()

    def resend_after(self, seconds: float, moment: float) -> bool:
        """Resend if the oldest message has been in flight for *seconds*, and return whether it has.

        First that one alone, which shows whether the daemon only has not come to it: to resend all would multiply what an
        overloaded daemon has to read. Once it is acknowledged and nothing after it is, everything.

        Args:
            seconds: The limit.
            moment: Now, in monotonic seconds.
        """
        # An ack can be lost without a broken connection: the daemon drops it if the queue to this client is full.
        oldest = self.pending[0].number if self._in_flight else 0
        if oldest != self._oldest:
            self._oldest, self._oldest_since = oldest, moment
        elif oldest and moment - self._oldest_since > seconds:
            self._oldest_since = moment
            if 0 < self._repeated < oldest and self._acked == self._repeated:
                self.rewind()
            else:
                self._held, self._repeated = self._held or self._in_flight, oldest
                self._in_flight = 0
            return True
        return False

    def retire(self, clock: Clock) -> None:
        """Write everything to the spool, and close it."""
        self.settle(clock, everything=True)
        self.retired = True
        self.spool.close()

    @property
    def in_flight(self) -> bool:
        """A message is sent and not acknowledged."""
        return self._in_flight > 0

    @property
    def unspooled_values(self) -> int:
        """Values in memory that the spool does not have."""
        return sum(message.values for message in (*self.pending, *self._unspooled) if not message.spooled)

    @property
    def _newest(self) -> int:
        """Highest number up to which everything is acknowledged or pending."""
        return self.pending[-1].number if self.pending else self._acked

    def _add(self, message: Pending, clock: Clock) -> None:
        """Append the newest message."""
        message.made_at = clock.monotonic
        if not self.backlog:  # else it would overtake what waits in the spool
            self.pending.append(message)
        elif self._unspooled or not self._spool_message(message, clock):  # the spool is in order: nothing may pass them
            self._unspooled.append(message)
        else:
            return
        self.size += message.size

    def _spool(self, clock: Clock) -> None:
        """Write in order the messages that the spool does not have, until the disk refuses."""
        for message in self.pending:
            if not message.spooled and not self._spool_message(message, clock):
                return
        while self._unspooled and self._spool_message(self._unspooled[0], clock):
            self.size -= self._unspooled.popleft().size

    def _spool_message(self, message: Pending, clock: Clock) -> bool:
        record = SpooledMessage(message.first, message.number, message.values, message.frames)
        message.spooled = self.spool.append(record, lambda: self.hello(clock), message.steps)
        self.totals.spooled += message.spooled
        if message.spooled and (dropped := self.spool.drop_excess(self._sent)) is not None:
            hole, lost = dropped
            self.totals.dropped += lost
            skip = self._gap(hole.first, hole.last, 0, hole.values, hole.steps)
            self.spool.write_hole(hole, skip.frames, lambda: self.hello(clock))
            self._replace(hole, skip)
        return message.spooled

    def _replace(self, hole: Segment, skip: Pending) -> None:
        """Replace the pending messages that had to go from the spool by their skip."""
        before = [message for message in self.pending if message.number < hole.first]
        after = [message for message in self.pending if message.first > hole.last]
        if len(before) + len(after) < len(self.pending):
            # A new deque, since a caller may iterate over the old one.
            self.pending = deque([*before, skip, *after])
            self.size = sum(message.size for message in (*self.pending, *self._unspooled))
            self._in_flight, self._held = min(self._in_flight, len(before)), min(self._held, len(before))

    def _refill(self) -> None:
        """Read the next messages from the spool, while the window has room."""
        while (
            len(self.pending) < self.spool.limits.window
            and self.size < self.spool.limits.pending_bytes // 2
            and self.spool.last > self._newest
        ):
            record = self.spool.next_after(self._newest)
            if record is None:
                break
            self.totals.dropped += self.spool.lost
            self._skip_up_to(record.first, self.spool.lost)
            self.pending.append(Pending(record.first, record.number, record.frames, record.values, spooled=True))
            self.size += self.pending[-1].size
        if self.spool.last <= self._newest:
            while self._unspooled and len(self.pending) < self.spool.limits.window:
                self._skip_up_to(self._unspooled[0].first)
                self.pending.append(self._unspooled.popleft())
        # The daemon accepts no number out of order. So the skip of a gap goes first, and what was sent is sent again.
        if self.pending and self.pending[0].first > self._acked + 1:
            self.pending.appendleft(self._gap(self._acked + 1, self.pending[0].first - 1, 0))
            self.size += self.pending[0].size
            self.rewind()

    def _skip_up_to(self, number: int, lost: int = 0) -> None:
        """Append a skip for the messages between the newest pending one and *number*, whose file was deleted or damaged."""
        if number > self._newest + 1:
            self._skip(self._newest + 1, number - 1, 0, lost)

    def _skip(self, first: int, last: int, made_at: int, lost: int) -> None:
        """Append a skip for the numbers from *first* to *last*; extend the last pending skip if it is not in flight."""
        steps: Steps = None
        if self.pending and len(self.pending) > max(self._in_flight, self._held) and self.pending[-1].is_gap:
            before = self.pending.pop()
            self.size -= before.size
            first, made_at, lost, steps = before.first, before.made_at, lost + before.lost, before.steps
        self.pending.append(self._gap(first, last, made_at, lost, steps))
        self.size += self.pending[-1].size

    def _drop_oldest(self, messages: deque[Pending]) -> None:
        """Drop the oldest messages in memory above its limit, and put one skip in their place."""
        first = last = messages[0].first
        made_at, lost, steps = messages[0].made_at, 0, messages[0].steps
        while self.size > self.spool.limits.pending_bytes and messages:
            oldest = messages.popleft()
            last = oldest.number
            self.size -= oldest.size
            self.totals.dropped += oldest.values
            lost, steps = lost + oldest.values + oldest.lost, spanned(steps, oldest.steps)
        messages.appendleft(self._gap(first, last, made_at, lost, steps))
        self.size += messages[0].size
        if messages is self.pending:
            self.rewind()

    def _gap(self, first: int, last: int, made_at: int, lost: int = 0, steps: Steps = None) -> Pending:
        frames = encode(Envelope("skip", self.id, last), Skip(first, self.totals, lost, steps))
        # "Spooled", since a reader of the spool finds the gap between the numbers itself.
        return Pending(first, last, frames, made_at=made_at, spooled=True, lost=lost, steps=steps, is_gap=True)
