"""One run of one process as the wire sees it: pushed rows become numbered messages, kept until they are acknowledged."""

from __future__ import annotations

import math
import os
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from trackside.environment.process_info import about
from trackside.totals.flops import NONE
from trackside.totals.phases import Mark
from trackside.totals.resources import ResourceMonitor
from trackside.totals.session_totals import SessionTotals
from trackside.transport.batch import BatchBuilder, parts
from trackside.transport.outbox import Outbox, Pending
from trackside.transport.spool import Spool
from trackside.wire import Bye, Clock, Device, Envelope, Heartbeat, Hello, Pushes, TrainingAlert, TrainingEvent, encode

if TYPE_CHECKING:
    from pathlib import Path

    from trackside.totals.flops import Flops
    from trackside.totals.session_totals import Deferred
    from trackside.wire import Identity, Totals

Row = (
    tuple[int, "int | Deferred | None", dict[str, float]]
    | tuple[int, "Mark | Device | TrainingEvent | TrainingAlert", None]
)
"""What `Run` hands over: monotonic nanoseconds, the step if the user gave one, numbers by key. Or, without numbers, what
else the training says."""

KEY_BYTES = 64 * 1024

HEAVY = 16
"""A push of more values than this is bounded by its values, the others by their rows."""


SAID = 64
"""A batch brings at most so many events and alerts."""


class Session(Outbox):
    """Owned by the sender thread, but for `rows` and `gpus`, to which a push appends, and `refused`, to which it adds.

    Args:
        identity: Which run and which process of it this is.
        config: The run's configuration, as a JSON text.
        tags: Words to find it by.
        total_steps: How many steps it will have, if that is known.
        spool: Where its spool lies; None to choose as `trackside.transport.spool.directory` does.
        flops: What a step or a token takes.

    Attributes:
        rows: Pushes not yet drained.
        refused: Values that a push could not hand over: no numbers, or no room.
        overrun: Pushes that were dropped to make room for newer ones.
        heavy_in: Values of heavy rows (`HEAVY`) that pushes have appended; `heavy_out` of those that were drained.
        gpus: UUIDs of those that pushed values have come from, to which a push adds.
        layers: How often a daemon has asked for the norms of all layers, and for how many steps it did last.
        warnings: What people are to be told once, by what it is about.
    """

    def __init__(
        self,
        identity: Identity,
        config: str = "",
        tags: tuple[str, ...] = (),
        total_steps: int | None = None,
        spool: Path | None = None,
        *,
        flops: Flops = NONE,
    ) -> None:
        id_ = os.urandom(16)
        super().__init__(id_, Spool(id_, spool))
        self.identity = identity
        self.rows: deque[Row] = deque()
        self.refused = self.overrun = self.heavy_in = self.heavy_out = 0
        self._config, self._tags, self._total_steps = config, tags, total_steps
        self._started = time.time_ns()
        self._tally = SessionTotals(time.monotonic_ns(), flops)
        self.warnings = self._tally.refused
        self._events: list[TrainingEvent] = []
        self._alerts: list[TrainingAlert] = []
        self._number = 0
        self._refused_counted = self._overrun_counted = 0
        self._said = (0, 0)
        self.gpus: list[str] = []
        self._gpus_told = 0
        self._described = False
        self.layers = 0, 0
        self._rooms = ResourceMonitor()

    @property
    def totals(self) -> Totals:  # type: ignore[override]  # the tally's, which makes it anew never
        """The session's cumulative totals."""
        return self._tally.totals

    def describe(self, config: str = "", total_steps: int | None = None) -> None:
        """Learn what was not known when the session began, and tell it with another hello; any thread may call this."""
        self._config = config or self._config
        self._total_steps = self._total_steps if total_steps is None else total_steps
        self._described = True

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
                phase=self._tally.times.told,
                room=self._rooms.seen(clock.monotonic),
            ),
        )

    def beat(self, clock: Clock) -> list[bytes]:
        """A sign of life, as frames; while the session is stuck it tells what the waiting messages would."""
        self._tally.reckon(clock)
        beat = Heartbeat(
            clock, self._progress_age(clock), phase=self._tally.times.told, room=self._rooms.tell(clock.monotonic)
        )
        if self._tally.times.used:
            beat.totals = self.totals
        if self.is_stuck(clock):
            beat.totals, beat.last, beat.step = self.totals, self._last(), self._tally.step
        return encode(Envelope("beat", self.id), beat)

    def drain(self, clock: Clock) -> None:
        """Turn the rows that wait into batches. It takes a snapshot: a tight loop refills faster than this empties.

        What was counted and has no row of its own, such as a push of nothing but text, goes in a batch without rows.
        """
        self._rooms.look()
        refused, overrun = self.refused, self.overrun
        self.totals.dropped += refused - self._refused_counted
        self.totals.pushes += overrun - self._overrun_counted
        self._refused_counted, self._overrun_counted = refused, overrun
        batch = BatchBuilder()
        for _ in range(len(self.rows)):
            try:
                row = self.rows.popleft()
            except IndexError:  # a push has dropped what was left, to make room
                break
            for part in self._take(*row):
                batch.add(*part)
                if batch.full:
                    self._close(batch, clock)
                    batch = BatchBuilder()
            if len(self._events) + len(self._alerts) >= SAID:
                self._close(batch, clock)
                batch = BatchBuilder()
        if batch.rows or self._events or self._alerts or self._said != (self.totals.pushes, self.totals.dropped):
            self._close(batch, clock)
        self.settle(clock)
        if len(self.gpus) > self._gpus_told:
            self._tell_gpus()
        if self._described:
            self._described = False
            self.greeted, self.asked_at = False, -math.inf

    def end(self, clock: Clock, status: str, cause: str, *, provisional: bool) -> None:
        """Say the end as the last numbered message. What is pushed later is not sent."""
        self._gpus_told = len(self.gpus)  # no other hello, for which the bye would wait
        self.drain(clock)
        self._tell_checkpoint(ended=True)
        if self._events:
            self._close(BatchBuilder(), clock)
        self._tally.reckon(clock)
        bye = Bye(clock, self.totals, status, cause, provisional)
        self._number += 1
        self._add(Pending(self._number, self._number, encode(Envelope("bye", self.id, self._number), bye)), clock)
        self.ended = True

    def ask_layers(self, steps: int) -> None:
        """A daemon wants the norms of all layers for so many steps, of whatever model is watched."""
        self.layers = self.layers[0] + 1, steps

    def disconnected(self) -> None:
        """Whoever answers next is told all anew."""
        super().disconnected()
        self._rooms.forget()

    def acknowledged(self, number: int) -> None:
        """Everything up to *number* is committed."""
        super().acknowledged(min(number, self._number))

    def _gap(self, first: int, last: int, made_at: int) -> Pending:
        self._said = (self.totals.pushes, self.totals.dropped)  # a skip brings them
        return super()._gap(first, last, made_at)

    def _take(
        self, pushed_at: int, step: Any, values: dict[str, float] | None
    ) -> list[tuple[int, int, dict[str, float]]]:
        """Count a row; what of it goes into a batch."""
        if values is None:
            self._hear(pushed_at, step)
            return []
        self.heavy_out += len(values) if len(values) > HEAVY else 0
        try:
            taken = self._tally.take(pushed_at, step, self._sendable(values))
        except Exception:  # noqa: BLE001  a key of a type of the user's own may raise anything
            self.totals.dropped += len(values)
            return []
        self._tell_checkpoint()
        return [(pushed_at, taken[0], part) for part in parts(taken[1])] if taken is not None and taken[1] else []

    def _hear(self, time: int, said: object) -> None:
        """Take what is no push."""
        if isinstance(said, Mark):
            self._tally.mark(time, said)
        elif isinstance(said, Device):
            self._tally.work(said)
        elif isinstance(said, TrainingEvent):
            said.step = self._tally.step
            self._tally.hear(said)
            self._events.append(said)
        elif isinstance(said, TrainingAlert):
            said.step = self._tally.step
            self._alerts.append(said)

    def _tell_checkpoint(self, *, ended: bool = False) -> None:
        """The event of a checkpoint that only a phase has told of; on each machine one rank's is enough."""
        event = self._tally.untold(ended=ended)
        if event is not None and self.identity.local_rank == 0:
            self._events.append(event)

    def _tell_gpus(self) -> None:
        """Greet again when GPUs are in use that the hello did not know of."""
        self._gpus_told = len(self.gpus)
        gpus = tuple(dict.fromkeys(self.gpus))
        if gpus != self.identity.gpus:
            self.identity = replace(self.identity, gpus=gpus)
            self.greeted, self.asked_at = False, -math.inf

    def _last(self) -> dict[str, float]:
        """The last value of each key; an int that the user pushed is the float that it travels as."""
        return dict(zip(self._tally.last, map(float, self._tally.last.values()), strict=True))

    def _progress_age(self, clock: Clock) -> int | None:
        return None if self._tally.pushed_at is None else max(0, clock.monotonic - self._tally.pushed_at)

    def _close(self, batch: BatchBuilder, clock: Clock) -> None:
        self._number += 1
        self._tally.reckon(clock)
        goes_now = self.greeted and not self.is_stuck(clock)  # else a beat is there before it
        pushes = Pushes(
            *(clock, self.totals, batch.blocks(), self._events, self._alerts),
            phase=self._tally.times.told,
            room=self._rooms.tell(clock.monotonic) if goes_now else None,
        )
        frames = encode(Envelope("batch", self.id, self._number), pushes)
        self._events, self._alerts = [], []
        self._add(Pending(self._number, self._number, frames, batch.values), clock)
        self._said = (self.totals.pushes, self.totals.dropped)

    def _sendable(self, values: dict[str, float]) -> dict[str, float]:
        """The values whose keys can travel: text that UTF-8 can write, of at most `KEY_BYTES`."""
        if values.keys() <= self._tally.last.keys():
            return values
        kept = {key: value for key, value in values.items() if _is_sendable(key)}
        self.totals.dropped += len(values) - len(kept)
        if len(kept) < len(values):
            text = f"a key is text of at most {KEY_BYTES} bytes in UTF-8; values of other keys are dropped"
            self.warnings.setdefault("", text)
        return kept


def _is_sendable(key: object) -> bool:
    if not isinstance(key, str):
        return False
    try:
        return len(key.encode()) <= KEY_BYTES
    except UnicodeEncodeError:
        return False
