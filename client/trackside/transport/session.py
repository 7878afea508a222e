"""Turn the pushed rows of one run in one process into numbered messages."""

from __future__ import annotations

import math
import os
from collections import deque
from itertools import islice
from time import monotonic, monotonic_ns, sleep
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from msgspec.structs import replace

from trackside.environment.clocks import read_clocks
from trackside.environment.exit_status import requested_exit
from trackside.environment.git import code
from trackside.environment.process_info import process_info, startup
from trackside.limits import BATCH_MESSAGES, CODE_KEY
from trackside.numbers import NUMBERS
from trackside.redact import redact_json, redact_text
from trackside.rows import Measured
from trackside.totals.flops import NONE
from trackside.totals.phases import WAITED, PhaseMark
from trackside.totals.resources import ResourceMonitor
from trackside.totals.session_totals import Deferred, SessionTotals
from trackside.training_log import warn
from trackside.transport.batch import BatchBuilder, split_row
from trackside.transport.kept_rows import encoded
from trackside.transport.late_arrays import LateArrays
from trackside.transport.outbox import Outbox, Pending
from trackside.transport.spool import LIMITS, Spool, SpooledMessage
from trackside.wire import (
    GATHER_SECONDS,
    Bye,
    Clock,
    Device,
    Envelope,
    Heartbeat,
    Hello,
    MediaItem,
    Pushes,
    TensorHash,
    TrainingAlert,
    TrainingEvent,
    encode,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from trackside.media.unsent import UnsentMedia
    from trackside.rows import Row
    from trackside.totals.flops import Flops
    from trackside.totals.recent_batches import RecentBatches
    from trackside.transport.spool import SpoolLimits, Steps
    from trackside.wire import DistributionFrame, Identity, ProcessInfo, ProfilePlan, Totals

KEY_BYTES = 64 * 1024  # limit of a key
MAX_LIGHT_VALUES = 8  # a row of more counts by its values in the queue's limits; other rows count as one
MAX_SEARCHED_ROWS = 64  # limit of the rows that are searched for the newest step
MEDIA_PENDING = 4 * 1024 * 1024  # bytes of unacknowledged messages above which images, texts and tables are dropped
OPTIONAL = {"media": "images, texts, tables and histograms", "distributions": "distributions inside the model"}
"""Fields of `Pushes` that older daemons do not know, as people call them."""
OLDER = "the daemon is older than this client and does not state that it knows them; install the same trackside in both places"
POLL_SECONDS = 0.001  # interval of looks at arrays that are not computed at the end of a run
# Rows from one `drain` to the next with which the following ones are kept: of steps of 3 to 50 ms. Longer ones are lost one by
# one, and with shorter ones the sender thread costs enough already.
KEPT_ROWS = range(4, 64)
KEPT_BYTES = 256 * 1024  # limit of unacknowledged messages that are kept so
MAX_FRAMES = 4  # limit of distributions in a batch: those of 256 layers take some 100 KB


class Session(Outbox):
    """The session of one run in one process.

    The sender thread owns it, except for `rows` and `gpus`, to which a push appends, and `refused`, to which it adds.

    Args:
        identity: Run and process.
        config: Configuration of the run, as JSON text.
        tags: Words to find the run by.
        total_steps: Number of steps of the run, if it is known.
        spool: Directory of its spool; None for `trackside.environment.paths.spool_directory`.
        flops: Operations of a step or a token.
        roles: Roles that the user states, by key.
        profile: When to profile the run.
        about: State of the process; None for that of this one.
        resources: Measures its resources; None for those of this process.
        limits: What it keeps of its messages.

    Attributes:
        rows: Rows that are not drained yet.
        refused: Number of values that a push dropped: not numbers, or no room.
        overrun: Number of pushes that were dropped to make room for newer ones.
        heavy_in: Values of heavy rows (`MAX_LIGHT_VALUES`) that pushes have appended.
        media_in: Bytes of images, texts and tables that were queued; *media_out* of those that were drained.
        heavy_out: Values of heavy rows that were drained.
        gpus: UUIDs of the GPUs that pushed values came from.
        layers: Number of a daemon's requests for the norms of all layers, and the steps of the last request.
        warnings: Warnings to be logged once, by their subject.
        stores: What the daemon stores besides rows, events and alerts (`Welcome.stores`); None before it is known.
        gather: Seconds for which rows are collected in a batch.
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
        roles: Mapping[str, str] = MappingProxyType({}),
        profile: ProfilePlan | None = None,
        about: ProcessInfo | None = None,
        resources: ResourceMonitor | None = None,
        limits: SpoolLimits = LIMITS,
    ) -> None:
        id_ = os.urandom(16)  # not `random`, which a training seeds alike on all ranks
        super().__init__(id_, Spool(id_, spool, limits))
        self.identity = identity
        self.rows: deque[Row] = deque()
        self.refused = self.overrun = self.heavy_in = self.heavy_out = self.media_in = self.media_out = 0
        self._config, self._tags, self._total_steps = config, tuple(map(redact_text, tags)), total_steps
        self._redacted = ("", "")  # a configuration, and how it is sent
        self._auto: tuple[str, ...] = ()
        self._began = read_clocks()
        self._startup = startup(self._began) if about is None else 0
        self._flops, self._roles, self._profile = flops, roles, profile
        self._counts = SessionTotals(self._began.monotonic, flops)
        self.warnings = self._counts.warnings
        self._late = LateArrays(self._counts)
        self.stores: frozenset[str] | None = None
        self._used: set[str] = set()
        self._events: list[TrainingEvent] = []
        self._alerts: list[TrainingAlert] = []
        self._distributions: list[DistributionFrame] = []
        self._hashes: list[TensorHash] = []
        self._media: list[MediaItem] = []
        self._has_code = about is not None or identity.rank > 0
        self._number = 0
        self.gather = GATHER_SECONDS
        self._batch = BatchBuilder()
        self._drained = 0
        self._begun: list[bytes] = []
        """What is collected of the next batch, as `keep` writes it; empty before."""
        self._kept_number = 0
        """Number of the batch that `keep` wrote last."""
        self._head: list[bytes] = []
        """The hello of what `keep` writes, and when it was sent; empty if that failed."""
        self._head_at = -math.inf
        self._closed_at = -math.inf
        """When the last batch was closed, in monotonic nanoseconds."""
        self._refused_counted = 0
        self._overrun_counted = 0
        self._sent_counts = (0, 0)
        """Pushes and dropped values, as the last message with totals has them."""
        self.gpus: list[str] = []
        self._gpus_sent = 0
        self._described = False
        self.layers = 0, 0
        self._about = about
        self._resources = ResourceMonitor() if resources is None else resources

    @property
    def name(self) -> str:
        """Name of its run."""
        return self.identity.name

    @property
    def totals(self) -> Totals:  # type: ignore[override]  # never replaced
        """Cumulative totals of the session."""
        return self._counts.totals

    @property
    def has_own_phases(self) -> bool:
        """The training marks the stages of its steps itself, in what was read of its rows so far."""
        return self._counts.phases.is_marked

    @property
    def batches(self) -> RecentBatches:
        """The batches of the last steps, in what was read of its rows so far."""
        return self._counts.batches

    def successor(self) -> Session:
        """Return a session of the same process and run, for the next attempt."""
        identity = replace(self.identity, attempt=self.identity.attempt + 1)
        session = Session(
            identity,
            self._config,
            self._tags,
            self._total_steps,
            flops=self._flops,
            roles=self._roles,
            profile=self._profile,
            limits=self.spool.limits,
        )
        session.gpus, session._auto = self.gpus, self._auto
        return session

    def step_range(self) -> tuple[int, int]:
        """Return the first and the highest step, also of rows that wait; the same number twice if there is none."""
        counted = self._counts
        steps = [] if counted.first is None else [counted.first, counted.highest]
        steps += [step for _, step, values in list(self.rows) if values is not None and type(step) is int]
        return (steps[0], max(steps)) if steps else (0, 0)

    def newest_step(self) -> int | None:
        """Return the last step that was pushed; None before the first. Any thread may call this."""
        try:
            newest = islice(reversed(self.rows), MAX_SEARCHED_ROWS)
            return next(step for _, step, values in newest if values is not None and type(step) is int)
        except (StopIteration, RuntimeError):  # none of them has a step, or the rows changed meanwhile
            return self._counts.step

    def describe(
        self,
        config: str = "",
        total_steps: int | None = None,
        *,
        tags: tuple[str, ...] = (),
        auto: tuple[str, ...] | None = None,
    ) -> None:
        """Send details that were unknown when the session began, with another hello; any thread may call this."""
        self._config = config or self._config
        self._tags = tuple(map(redact_text, tags)) or self._tags
        self._auto = self._auto if auto is None else auto
        self._total_steps = self._total_steps if total_steps is None else total_steps
        self._described = True  # last: the sender thread reads the details once this is set

    def hello(self, clock: Clock) -> list[bytes]:
        """Return the hello, with all that a daemon needs of this session, as frames."""
        return encode(
            Envelope("hello", self.id),
            Hello(
                identity=self.identity,
                clock=clock,
                started=self._started(clock),
                totals=self.totals,
                acked=self._acked,
                config=self._redacted_config(),
                tags=self._tags,
                total_steps=self._total_steps,
                last=self._last(),
                step=self._counts.step,
                progress_age=self._progress_age(clock),
                about=replace(
                    self._about or process_info(),
                    roles=dict(self._roles),
                    profile=self._profile,
                    auto=self._auto,
                    startup=self._startup,
                ),
                phase=self._counts.phases.reported,
                room=self._resources.usage(clock.monotonic),
            ),
        )

    def _started(self, clock: Clock) -> int:
        """Return when it began, in nanoseconds since 1970; the wall clock may have been set since."""
        slept = read_clocks().asleep - self._began.asleep
        return clock.wall - (clock.monotonic - self._began.monotonic) - slept

    def _redacted_config(self) -> str:
        # Here and not where it is set: the sender thread has the time for a large one.
        if self._redacted[0] is not self._config:
            self._redacted = (self._config, self._config and redact_json(self._config))
        return self._redacted[1]

    def beat(self, clock: Clock) -> list[bytes]:
        """Return a heartbeat, as frames; while the session is stuck it carries the content of the waiting messages."""
        self._counts.update(clock)
        beat = Heartbeat(
            clock,
            self._progress_age(clock),
            phase=self._counts.phases.reported,
            room=self._resources.report(clock.monotonic),
        )
        if self._counts.phases.is_used:
            beat.totals = self.totals
        if self.is_stuck(clock):
            beat.totals, beat.last, beat.step = self.totals, self._last(), self._counts.step
        return encode(Envelope("beat", self.id), beat)

    def drain(self, clock: Clock, *, everything: bool = False) -> None:
        """Collect the rows that wait now in batches, and send those that are due, or *everything*.

        Counts without a row, as of a push of only text, are sent as well.
        """
        self._resources.poll()
        self._drained, self._begun = len(self.rows), []
        self._collect(clock)
        self.warn_of_unstored()
        if self._is_due(clock, everything=everything):
            self._close(clock)
        self.settle(clock)
        # Then it has all of what is kept, until `keep` writes again; the batch that is collected may be nowhere else.
        if self.spool.last and (not self._batch.rows or self._kept_number <= self._number):
            self.spool.end_keep()
        if len(self.gpus) > self._gpus_sent:
            self._send_gpus()
        if self._described:
            self._described = False
            self.greeted, self.asked_at = False, -math.inf

    @property
    def keeps(self) -> bool:
        """The next rows are worth the cost of `keep`, as far as the number of the last ones shows."""
        is_short = self.size <= KEPT_BYTES and not self.backlog
        return self.greeted and not self.ended and self._drained in KEPT_ROWS and is_short

    def keep(self, now: Callable[[], Clock], directory: Path) -> None:
        """Write to a *directory* what was pushed and may not arrive if the process is killed now."""
        rows = list(self.rows)
        if not rows or len(rows) > KEPT_ROWS[-1]:
            return
        number = self._number + 1
        try:
            if self.asked_at != self._head_at:
                self._head, self._head_at = self.hello(now()), self.asked_at
            if self._head:
                if not self._begun:  # without `update`, which would count the time up to now before the marks that wait
                    self._begun = encode(Envelope("batch", self.id, number), self._pushes(now(), self._batch))
                kept = [SpooledMessage(one.first, one.number, one.values, one.frames) for one in self.pending]
                frames = [*self._begun, encoded(self._counts, rows)]
                self._kept_number = number
                self.spool.keep(
                    [*kept, SpooledMessage(number, number, self._batch.values, frames)], self._head, directory
                )
        except Exception:  # noqa: BLE001  no room on the disk, or numbers that cannot be written: the next hello tries again
            self._head = []

    def warn_of_unstored(self) -> None:
        """Add a warning for what was pushed and the daemon does not store."""
        for name in self._used - self.stores if self.stores is not None else ():
            self.warnings.setdefault(name, f"{OPTIONAL[name]} may not be stored: {OLDER}")

    def _collect(self, clock: Clock) -> None:
        # Read once, since other threads increase them meanwhile.
        refused, overrun = self.refused, self.overrun
        self.totals.dropped += refused - self._refused_counted
        self.totals.pushes += overrun - self._overrun_counted
        self._refused_counted, self._overrun_counted = refused, overrun
        try:
            for row in self._waiting():
                for part in self._accept(*row):
                    self._batch.add(*part, aside=isinstance(row[1], Deferred) and row[1].aside)
                    if self._batch.is_full:
                        self._close(clock)
                many = len(self._events) + len(self._alerts) >= BATCH_MESSAGES or len(self._distributions) >= MAX_FRAMES
                if many or self._media:
                    self._close(clock)
            if self._batch.rows and not self._has_code:  # not before: what the training imports has been imported
                self._add_code()
        except Exception:
            self.totals.dropped += self._batch.values
            self._batch = BatchBuilder()
            raise

    def _is_due(self, clock: Clock, *, everything: bool) -> bool:
        """Return whether there is something to send, and nothing to wait for."""
        if self._events or self._alerts:
            return True
        is_same = self._sent_counts == (self.totals.pushes, self.totals.dropped)
        if not (self._batch.rows or self._distributions or self._media or self._hashes) and is_same:
            return False
        # Half a turn of the sender thread less, or one that is early by a moment would wait for another turn.
        gathered = (clock.monotonic - self._closed_at) / 1e9 + GATHER_SECONDS / 2
        return everything or self._counts.is_urgent or self.gather <= GATHER_SECONDS or gathered >= self.gather

    def _waiting(self) -> Iterator[Row]:
        for _ in range(len(self.rows)):  # a snapshot: a tight loop fills the queue faster than it is drained
            try:
                row = self.rows.popleft()
            except IndexError:  # a push has dropped the rest, to make room
                break
            if row[2] is not None and len(row[2]) > MAX_LIGHT_VALUES:
                self.heavy_out += len(row[2])
            yield row
        yield from self._late.arrived()

    def end(self, clock: Clock, status: str, cause: str, *, provisional: bool, wait: float = 0.0) -> None:
        """Append the bye as the last numbered message, once late arrays are computed, for which this may *wait* seconds."""
        self._gpus_sent = len(self.gpus)  # no other hello, for which the bye would wait
        until = monotonic() + wait
        self._collect(clock)
        while self._late.waiting and monotonic() < until:
            sleep(POLL_SECONDS)
            self._collect(clock)
        self._late.waits = False
        self.drain(clock, everything=True)
        self._report_checkpoint(ended=True)
        if self._events:
            self._close(clock)
        self._counts.update(clock)
        requested = requested_exit(self._counts.pushed_at) if provisional else ""
        bye = Bye(clock, self.totals, status, redact_text(cause), provisional, requested)
        self._number += 1
        self._add(Pending(self._number, self._number, encode(Envelope("bye", self.id, self._number), bye)), clock)
        self.ended = True

    def request_layers(self, steps: int) -> None:
        """Request the norms of all layers for *steps* steps from the watchers of the run, for a daemon."""
        self.layers = self.layers[0] + 1, steps

    def retire(self, clock: Clock) -> None:
        """Write everything to the spool, also what was collected for the next batch."""
        if not self.ended and self._is_due(clock, everything=True):
            self._close(clock)
        super().retire(clock)

    def disconnected(self) -> None:
        """Prepare for the next daemon, which needs everything anew."""
        super().disconnected()
        self.gather = GATHER_SECONDS
        self._resources.reset()

    def acknowledged(self, number: int) -> bool:
        """Drop the messages up to *number*, which are committed; return whether there were any."""
        return super().acknowledged(min(number, self._number))  # a wrong number must not cover messages that follow

    def _gap(self, first: int, last: int, made_at: int, lost: int = 0, steps: Steps = None) -> Pending:
        self._sent_counts = (self.totals.pushes, self.totals.dropped)  # a skip carries them
        return super()._gap(first, last, made_at, lost, steps)

    def _accept(
        self, pushed_at: int, step: Any, values: dict[str, float] | None
    ) -> list[tuple[int, int, dict[str, float]]]:
        """Count a row, and return what goes into a batch: time, step and values of each part."""
        if values is None:
            self._handle_message(pushed_at, step)
            return []
        try:
            values = self._sendable(values)
            if not NUMBERS.issuperset(map(type, values.values())):
                step, values = self._late.split(pushed_at, step, values)
            counted = self._counts.accept(pushed_at, step, values)
        except Exception:  # noqa: BLE001  a key of a type of the user's own may raise anything
            self.totals.dropped += len(values)
            return []
        self._report_checkpoint()
        if counted is None or not counted[1]:
            return []
        return [(pushed_at, counted[0], part) for part in split_row(counted[1])]

    def _handle_message(self, time: int, message: object) -> None:
        if isinstance(message, int):
            self._counts.mark(time, WAITED._replace(waited=message))
        elif isinstance(message, PhaseMark):
            self._counts.mark(time, message)
        elif isinstance(message, Device):
            self._counts.add_device(message)
        elif isinstance(message, TrainingEvent):
            message.step = self._counts.step
            self._counts.handle_event(message)
            message.fields = message.fields and redact_json(message.fields)
            self._events.append(message)
        elif isinstance(message, TrainingAlert):
            message.step = self._counts.step
            message.title, message.text = redact_text(message.title), redact_text(message.text)
            self._alerts.append(message)
        elif isinstance(message, Measured):
            self._accept_distributions(message)
        else:
            self._accept_media(cast("UnsentMedia", message))

    def _add_code(self) -> None:
        self._has_code = True
        try:
            text = code()
        except Exception as error:  # noqa: BLE001  user code may have put anything into sys, and training goes on
            warn(f"the code of the run is not stored: {type(error).__name__}: {str(error)[:200]}")
            return
        if text:
            self._media.append(MediaItem("text", CODE_KEY, monotonic_ns(), text.encode()))

    def _accept_media(self, unsent: UnsentMedia) -> None:
        """Add an image, a text or a table to the batch, unless it would crowd out values that wait for a daemon."""
        self.media_out += unsent.size
        self._used.add("media")
        if self.backlog or self.size > MEDIA_PENDING:
            self.totals.dropped += 1
            self.warnings.setdefault("absent", "images, texts and tables are dropped while no daemon accepts them")
            return
        try:
            self._media.append(unsent.item(self._counts.step))
        except Exception as error:  # noqa: BLE001  it must not keep others from being sent
            self.totals.dropped += 1
            warn(f"{unsent.kind} {unsent.key} is not sent: {type(error).__name__}: {str(error)[:200]}")

    def _accept_distributions(self, message: Measured) -> None:
        """Add distributions or a hash to the batch; those on a device come twice, first to learn their step."""
        message.step = self._counts.step if message.step is None else message.step
        try:
            frame = message.frame()
        except Exception as error:  # noqa: BLE001  of tensors; it must not keep others from being sent
            warn(f"distributions of {message.kind} are not sent: {type(error).__name__}: {str(error)[:200]}")
            return
        if isinstance(frame, TensorHash):
            self._hashes.append(frame)
        elif frame is not None:
            self._used.add("distributions")
            self._distributions.append(frame)

    def _report_checkpoint(self, *, ended: bool = False) -> None:
        """Append the event of a checkpoint that only a phase has shown; one rank of each machine does so."""
        event = self._counts.unreported_checkpoint(ended=ended)
        if event is not None and self.identity.local_rank == 0:
            self._events.append(event)

    def _send_gpus(self) -> None:
        """Send another hello if GPUs are in use that the last one did not have."""
        self._gpus_sent = len(self.gpus)
        gpus = tuple(dict.fromkeys(self.gpus))
        if gpus != self.identity.gpus:
            self.identity = replace(self.identity, gpus=gpus)
            self.greeted, self.asked_at = False, -math.inf

    def _last(self) -> dict[str, float]:
        """Return the last value of each key, as the floats that are sent."""
        return dict(zip(self._counts.last, map(float, self._counts.last.values()), strict=True))

    def _progress_age(self, clock: Clock) -> int | None:
        return None if self._counts.pushed_at is None else max(0, clock.monotonic - self._counts.pushed_at)

    def _close(self, clock: Clock) -> None:
        """Append the collected rows, events and alerts as the next message."""
        batch, self._batch = self._batch, BatchBuilder()
        self._closed_at = clock.monotonic
        self._counts.is_urgent = False
        is_sent_now = self.greeted and not self.is_stuck(clock)  # else a heartbeat arrives before it
        self._counts.update(clock)
        pushes = self._pushes(clock, batch)
        pushes.room = self._resources.report(clock.monotonic) if is_sent_now else None
        pushes.distributions, pushes.media, pushes.hashes = self._distributions, self._media, self._hashes
        self._events, self._alerts, self._distributions, self._media, self._hashes = [], [], [], [], []
        try:
            frames = encode(Envelope("batch", self.id, self._number + 1), pushes)
        except Exception:
            self.totals.dropped += batch.values
            raise
        self._number += 1
        self._add(Pending(self._number, self._number, frames, batch.values, steps=batch.steps), clock)
        self._sent_counts = (self.totals.pushes, self.totals.dropped)

    def _pushes(self, clock: Clock, batch: BatchBuilder) -> Pushes:
        """Return the rows, events and alerts of a batch, with the totals after them."""
        phase = self._counts.phases.reported
        return Pushes(clock, self.totals, batch.blocks(), self._events, self._alerts, phase=phase)

    def _sendable(self, values: dict[str, float]) -> dict[str, float]:
        """Return the values whose keys can be sent: text of at most `KEY_BYTES` in UTF-8."""
        if values.keys() <= self._counts.last.keys():  # these keys were checked before
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
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
