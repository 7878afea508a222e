"""Stamp what the training code pushes and queue it for the sender thread.

In: values, phases, events and GPU measurements, from the threads of the training. Out: rows in `Session.rows`, which the
sender thread drains. A push never waits and never raises; when the queue is full, it drops the oldest row.

The file is longer than others: a push costs less than a microsecond, so the queue calls no further objects on its way.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from threading import get_ident
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

from trackside.device_scalars import DeviceScalars
from trackside.environment.config import as_json
from trackside.limits import MEDIA_KEY_LENGTH, ROWS_WAITING, TEXT_LENGTH
from trackside.log_once import LogOnce
from trackside.media.unsent import UnsentMedia
from trackside.numbers import NUMBERS, local_part, read_number, refusal
from trackside.packing import text_of, writable
from trackside.pending_values import PendingValues
from trackside.totals.phases import Phase
from trackside.totals.session_totals import Deferred
from trackside.training_log import warn
from trackside.transport.close_timeout import flush_timeout
from trackside.transport.session import MAX_LIGHT_VALUES, Session
from trackside.wire import EXCEPTION, SUMMARY, TrainingAlert, TrainingEvent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trackside.media.pixels import Pixels
    from trackside.rows import Measured
    from trackside.totals.phases import PhaseMark
    from trackside.transport.sender import Sender
    from trackside.wire import Device

MAX_NESTED_VALUES = 10_000  # limit of the values in a mapping among those of a push
VALUES_WAITING = 262_144  # limit of queued values in rows of more than `MAX_LIGHT_VALUES` values: about 30 MB
MEDIA_BYTES_WAITING = 8 * 1024 * 1024  # limit of queued images, texts and tables
MAX_WARNED_KEYS = 1000  # number of keys that get a warning each
DRAIN_SECONDS = 0.5  # time at the end of a run for values that are still on a device

Severity = Literal["info", "warning", "critical"]
_SEVERITIES = get_args(Severity)


class StepTimer(Protocol):
    """Measures the steps of one model, and appends rows of its own to the queue."""

    @property
    def is_alive(self) -> bool:
        """The model still exists, and the timer was not stopped."""

    @property
    def polls(self) -> bool:
        """`poll` has something to do at pushes."""

    def poll(self) -> None:
        """Append what devices have measured."""

    def accompany(self) -> bool:
        """Prepare for another timer in the same run; return False if this one has ended."""

    def close(self) -> None:
        """Append the rest at the end of the run."""


class RowQueue:
    """The queue of one run, filled by the threads of the training and drained by the sender thread.

    Args:
        session: Session whose `rows` this fills.
        sender: Sender thread that serves the session; None if nothing is sent.
        on_close: Called with this queue when the run has ended.

    Attributes:
        session: The session.
        is_open: Rows are sent: the run has not ended, and trackside is not disabled.
        direct_rows: Rows to which a push of host numbers may append at once; None while it has more to do.
        thread: Identifier of the thread that opened the run.
        pending: Values that join the next push; None before the first.
        is_led: The training code or an integration pushes, and so counts the steps; known once `pending` is not None.
        timers: Step timers of the watched models, in the order of registration.
    """

    __slots__ = (
        "_between_cells",
        "_device",
        "_lock",
        "_on_close",
        "_polled",
        "_rows",
        "_sender",
        "_warned",
        "direct_rows",
        "is_led",
        "is_open",
        "pending",
        "session",
        "thread",
        "timers",
    )

    def __init__(
        self, session: Session, sender: Sender | None, on_close: Callable[[RowQueue], None] = lambda _: None
    ) -> None:
        self.session = session
        self.is_open = sender is not None
        self.thread = get_ident()
        self.pending: PendingValues | None = None
        self.is_led = False
        self.timers: tuple[StepTimer, ...] = ()
        self._sender = sender
        self._on_close = on_close
        self._rows = session.rows
        self._between_cells = False
        self._device: DeviceScalars | None = None
        self._polled: tuple[DeviceScalars | StepTimer, ...] = ()
        self._warned = LogOnce(MAX_WARNED_KEYS)
        self._lock = threading.RLock()  # a signal handler may push in the midst of a push
        self._update_direct_rows()

    def __deepcopy__(self, _: object) -> RowQueue:
        return self

    def push(self, values: Mapping[str, Any] | None, step: int | Deferred | None, named: dict[str, Any]) -> None:
        """Queue one step's numbers: `Run.push` with the keyword arguments as a dict, which this may keep.

        Args:
            values: Numbers by key, or None.
            step: Step of the numbers; None to join the current step.
            named: More numbers by key.
        """
        if not self.is_open:
            return
        pushed_at = monotonic_ns()
        self.is_led = True
        if values is not None:
            named = self._merge(values, named)
        if type(step) is not int and step is not None and type(step) is not Deferred:
            step = self._whole_step(step)
        # First, since the values that have arrived belong to earlier pushes.
        for source in self._polled:
            source.poll()
        if self._between_cells:
            self._begin_cell(step)
        held = self.pending
        joining = held if held is not None and (held.is_waiting or not held.keys.isdisjoint(named)) else None
        if joining is not None:
            named, step = _joined(joining, self._flat(named), step)
        for value in named.values():
            if type(value) is not float and type(value) is not int:
                named, step = self._read_numbers(pushed_at, step, self._flat(named))
                break
        self._append_values(pushed_at, step, named)
        if joining is not None:
            joining.run_callbacks()

    def log(self, values: Mapping[str, Any], step: int | None, *, ends: bool) -> None:
        """Queue numbers of the current step, or of *step*, which *ends* with them: see `Run.log`."""
        named = self._flat(self._merge(values, {}))
        self.push(None, Deferred(self.checked_step(step), tuple(named), ends=ends), named)

    def push_found(
        self, values: dict[str, Any], step: int | Deferred | None, *, aside: bool = False, moment: int | None = None
    ) -> None:
        """Queue numbers that were found without the training code's help, except those that it pushes itself.

        Args:
            values: Numbers by key.
            step: Their step; None to join the current step.
            aside: The step is one of another count than the training's, and does not become the current one.
            moment: When they were found, in monotonic nanoseconds; None for now.
        """
        if not self.is_open:
            return
        pushed_at = monotonic_ns() if moment is None else moment
        pending = self.pending_values() if self.pending is None else self.pending
        pending.keys.update(values)
        if not pending.overridden.isdisjoint(values):
            values = {key: value for key, value in values.items() if key not in pending.overridden}
        for source in self._polled:
            source.poll()
        place = Deferred(step if type(step) is int else None, tuple(values), aside=True) if aside else step
        for value in values.values():
            if type(value) is not float and type(value) is not int:
                values, place = self._read_numbers(pushed_at, place, values)
                break
        self._append_values(pushed_at, place, values)

    def record(self, moment: int, step: int | Deferred, values: dict[str, float]) -> bool:
        """Queue numbers that were measured at another time; return False if the queue is so full that it could drop some.

        Args:
            moment: Monotonic nanoseconds.
            step: Step of the numbers.
            values: Numbers by key.
        """
        if not self.is_open or 2 * len(self._rows) >= ROWS_WAITING:
            return not self.is_open
        self._append_values(moment, step, values)
        return True

    def append(
        self, moment: int, message: PhaseMark | Device | TrainingEvent | TrainingAlert | Measured | UnsentMedia
    ) -> None:
        """Queue a row without values, also while the run ends.

        Args:
            moment: Monotonic nanoseconds.
            message: A phase mark, GPU measurements, an event, an alert, distributions, or an image, a text or a table.
        """
        if len(self._rows) >= ROWS_WAITING:
            self._drop_oldest()
        self._rows.append((moment, message, None))

    def append_media(self, kind: str, key: str, step: int | None, content: Callable[[], Pixels | bytes]) -> None:
        """Queue an image, a text, a table or a histogram, unless too many bytes of them wait to be sent.

        Args:
            kind: One of those of `trackside.limits.MEDIA_BYTES`.
            key: Its name.
            step: Its step; None for the current one.
            content: Returns it. What it raises is logged.
        """
        if not self.is_open:
            return
        name = text_of(key)[:MEDIA_KEY_LENGTH]
        try:
            unsent = UnsentMedia(kind, name, self.checked_step(step), content())
        except Exception as error:  # noqa: BLE001  of an object of the user's own, and training must go on
            self.refuse(1, (kind, name), f"{kind} {name}: {type(error).__name__}: {text_of(error)[:200]}")
            return
        session = self.session
        with self._lock:
            room = session.media_in - session.media_out + unsent.size <= MEDIA_BYTES_WAITING
            session.media_in += unsent.size if room else 0
        if room:
            self.append(unsent.time, unsent)
        else:
            self.refuse(1, MEDIA_BYTES_WAITING, "images, texts and tables arrive faster than they can be sent")

    def checked_step(self, step: Any) -> int | None:
        """Return a step as a number; None for the current one, also in place of what is no whole number."""
        return step if step is None or type(step) is int else self._whole_step(step)

    def mark(self, moment: int, mark: PhaseMark) -> None:
        """Queue the begin or the end of a phase, at *moment* in monotonic nanoseconds."""
        # `append` in one piece, since a step has several marks.
        if not self.is_open:
            return
        if get_ident() != self.thread:
            text = f"phase {mark.phase}: entered in a thread that did not open the run; its time is not counted"
            self.warn_once(Phase, text)
            return
        if len(self._rows) >= ROWS_WAITING:
            self._drop_oldest()
        self._rows.append((moment, mark, None))

    def event(self, kind: str, fields: Mapping[str, Any]) -> None:
        """Queue an event: see `Run.event`."""
        if not self.is_open:
            return
        name = text_of(kind)
        text = as_json(fields, f"event {name}") if fields else ""
        if len(text) + len(name) > TEXT_LENGTH:
            reason = f"more than {TEXT_LENGTH} characters; it is kept without its fields"
            self.warn_once(TrainingEvent, f"event {name[:40]}: {reason}")
            text = ""
        moment = monotonic_ns()
        self.append(moment, TrainingEvent(name[:TEXT_LENGTH], moment, None, text))

    def exception(self, fields: Mapping[str, str]) -> None:
        """Queue an event for the exception that ends the run, by `exception_fields`; nothing if they are empty."""
        if self.is_open and fields:
            moment = monotonic_ns()
            self.append(moment, TrainingEvent(EXCEPTION, moment, None, as_json(fields)))

    def summary(self, values: Mapping[str, Any] | None, named: dict[str, Any]) -> None:
        """Queue an event for each result: see `Run.summary`."""
        for key, value in (named if values is None else self._merge(values, named)).items():
            self.event(SUMMARY, {key: value})

    def alert(self, title: str, text: str, severity: str) -> None:
        """Queue an alert: see `Run.alert`."""
        title, text = (text_of(part)[:TEXT_LENGTH] for part in (title, text))
        if not isinstance(severity, str) or severity not in _SEVERITIES:
            reason = f"severity {text_of(severity)!r} is none of {', '.join(_SEVERITIES)}; warning is used"
            self.warn_once(TrainingAlert, f"alert {title:.40}: {reason}")
            severity = "warning"
        if self.is_open:
            moment = monotonic_ns()
            self.append(moment, TrainingAlert(title, moment, text, severity))

    def join_next_push(self, values: Mapping[str, Any]) -> None:
        """Add measured values to the next push; the user's value of a key replaces the measured one.

        Args:
            values: Numbers, or tensors of one number on any device, by key. They do not decide the step of a push
                without one.
        """
        if self.is_open and values:
            self.pending_values().add(values)

    def read_later(self, scalars: Mapping[str, Any], then: Callable[[dict[str, float]], object]) -> None:
        """Call *then* with the numbers of tensors on a device, at a later push or at the end of the run."""
        if self.is_open:
            self.pending_values().read_later(scalars, then)

    def after_push(self, callback: Callable[[], object]) -> None:
        """Call *callback* after the next push, or at the end of the run."""
        if self.is_open:
            self.pending_values().after_push(callback)

    def pending_values(self) -> PendingValues:
        """Return the values that join the next push; create the collection at the first call."""
        with self._lock:
            self.pending = self.pending or PendingValues()
            self._update_direct_rows()
        return self.pending

    @property
    def polls(self) -> bool:
        """Each push has something to poll, such as values on a device."""
        return bool(self._polled)

    @property
    def is_device_crowded(self) -> bool:
        """Half of this thread's slots for values on a device are in use."""
        return self._device is not None and self._device.is_crowded

    def register(self, timer: StepTimer) -> None:
        """Poll a step timer at each push from now on; timers that have ended are removed."""
        with self._lock:
            others, self.timers = self.timers, ()
            for other in others:
                if other.accompany():
                    self.timers += (other,)
            self.timers += (timer,)
            self.update_polled()

    def update_polled(self) -> None:
        """Find out anew what each push has to poll; to be called when `StepTimer.polls` changes."""
        with self._lock:
            timers = tuple(timer for timer in self.timers if timer.polls)
            # A new tuple: a push may iterate over the old one.
            self._polled = timers if self._device is None else (self._device, *timers)
            self._update_direct_rows()

    def describe(
        self, config: Mapping[str, Any] | None = None, total_steps: int | None = None, tags: tuple[str, ...] = ()
    ) -> None:
        """Send a configuration, a number of steps or tags that were unknown when the run was opened."""
        if self.is_open:
            self.session.describe(as_json(config), total_steps, tags=tags)

    def refuse(self, values: int, key: object, message: str) -> None:
        """Count dropped values, and log *message* once per *key*.

        Args:
            values: How many are dropped.
            key: The key they belong to; any other object if no single key is concerned.
            message: The reason.
        """
        with self._lock:
            self.session.refused += values
        self.warn_once(key, f"{message}; it is dropped, and so are further ones")

    def warn_once(self, key: object, message: str) -> None:
        """Log a warning once per *key*."""
        with self._lock:
            is_first = self._warned.first(key)
        if is_first:
            warn(message)  # without the lock, since a log handler may be slow

    def close(
        self,
        status: str,
        cause: str = "",
        *,
        provisional: bool = False,
        timeout: float | None = None,
        waits: bool = True,
    ) -> None:
        """End the run: read what is still on a device, and send or spool everything. Later calls do nothing.

        Args:
            status: ``finished``, ``stopped`` or ``failed``.
            cause: The exception's type and a known reason, or empty.
            provisional: The exit status of the process is not known yet.
            timeout: Seconds to wait at most; None for ``$TRACKSIDE_FLUSH_TIMEOUT``.
            waits: Wait for the daemon too, and not for the device alone.
        """
        timeout = flush_timeout() if timeout is None else timeout
        try:
            if self.pending is not None and self.is_open:
                timeout = max(0.0, timeout - self.pending.drain(min(DRAIN_SECONDS, timeout)))
        finally:  # also when Ctrl-C interrupts the wait
            self._close(status, cause, provisional=provisional, timeout=timeout, waits=waits)

    def end_cell(self) -> None:
        """Begin a new attempt with the next push, if its steps begin anew: a cell of a notebook has ended."""
        self._between_cells = True
        self._update_direct_rows()

    def _begin_cell(self, step: int | Deferred | None) -> None:
        step = step.step if isinstance(step, Deferred) else step
        if step is None:
            return
        self._between_cells = False
        sender, ended = self._sender, self.session
        first, highest = ended.step_range()
        if sender is not None and step <= first < highest:
            self.session = ended.successor()
            self._rows = self.session.rows
            sender.end(ended, "finished", "", provisional=False, timeout=0.0)
            sender.add(self.session)
        self._update_direct_rows()

    def forked(self) -> None:
        """Close the queue in a forked child: the parent's sender thread does not exist there."""
        self.is_open, self._sender = False, None
        self._update_direct_rows()
        self._lock = threading.RLock()  # another thread of the parent may have locked the old one

    def _close(self, status: str, cause: str, *, provisional: bool, timeout: float, waits: bool) -> None:
        with self._lock:
            sender, self._sender = self._sender, None  # so that only one of concurrent calls ends the session
            self.is_open = False
            self._update_direct_rows()
        if sender is not None:
            try:
                if self._device is not None:
                    timeout = max(0.0, timeout - self._device.drain(min(DRAIN_SECONDS, timeout)))
                for timer in self.timers:
                    timer.close()
            finally:  # also when Ctrl-C interrupts the wait
                sender.end(self.session, status, cause, provisional=provisional, timeout=timeout, waits=waits)
                self._on_close(self)

    def _update_direct_rows(self) -> None:
        is_direct = self.is_open and self.pending is None and not self._polled and not self._between_cells
        self.direct_rows = self._rows if is_direct else None

    def _merge(self, values: Mapping[str, Any], named: dict[str, Any]) -> dict[str, Any]:
        try:
            return {**values, **named}
        except Exception:  # noqa: BLE001  a mapping of the user's own may raise anything, and training must go on
            self.refuse(1, type(values), f"cannot read values by key from a {type(values).__name__}")
            return named

    def _flat(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return the values with those of nested mappings in the place of these."""
        for value in values.values():
            kind = type(value)  # by its name, since to ask a tensor whether it is a mapping takes as long as to read it
            if kind is not float and kind is not int and kind.__name__ != "Tensor" and _is_mapping(value):
                break
        else:
            return values
        flattened: dict[str, Any] = {}
        for key, value in values.items():
            if _is_mapping(value):
                try:
                    found = dict(islice(flat(value, ".", f"{key}."), MAX_NESTED_VALUES + 1))
                    if len(found) > MAX_NESTED_VALUES:
                        self.refuse(1, key, f"{_shown(key)}: a mapping with more than {MAX_NESTED_VALUES} values")
                    else:
                        flattened.update(found)
                except Exception:  # noqa: BLE001  the same; or it contains itself
                    self.refuse(1, key, f"{_shown(key)}: cannot read values by key from a {type(value).__name__}")
            else:
                flattened[key] = value
        return flattened

    def _whole_step(self, step: Any) -> int | None:
        try:
            return whole_number(step)
        except Exception:  # noqa: BLE001  the same
            self.refuse(0, operator.index, f"step: a {type(step).__name__} is not a whole number")
            return None

    def _read_numbers(
        self, pushed_at: int, step: int | Deferred | None, named: dict[str, Any]
    ) -> tuple[dict[str, float], int | Deferred | None]:
        """Return the numbers that the host has, and the step; a `Deferred` step if others are still on a device."""
        numbers: dict[str, float] = {}
        scalars: dict[str, Any] = {}
        for key, value in named.items():
            if type(value) in NUMBERS:
                numbers[key] = value
                continue
            try:
                if (number := read_number(value)) is None:
                    scalars[key] = local_part(value)
                else:
                    numbers[key] = number
            except Exception as error:  # noqa: BLE001  a value's own __float__ may raise anything
                self.refuse(1, key, f"{_shown(key)}: {refusal(value, error)}")
        return numbers, self._defer(pushed_at, step, numbers, scalars) if scalars else step

    def _defer(
        self, pushed_at: int, step: int | Deferred | None, numbers: dict[str, float], scalars: dict[str, Any]
    ) -> Deferred:
        """Start the copies of values on a device; they follow in a row of their own."""
        deferred = step if isinstance(step, Deferred) else Deferred(step, (*numbers, *scalars))
        if self._device is None:
            with self._lock:
                self._device = self._device or DeviceScalars(self._arrived, self._lose, self.session.gpus.append)
                self.update_polled()
        for key, reason in self._device.defer(pushed_at, deferred, scalars).items():
            self.refuse(1, key, f"{_shown(key)}: {reason}")
        return deferred

    def _arrived(self, pushed_at: int, deferred: Deferred, values: dict[str, float]) -> None:
        if self.pending is not None:
            values = self.pending.filter_arrived(values)
        self._append_values(pushed_at, deferred, values)

    def _append_values(self, pushed_at: int, step: int | Deferred | None, values: dict[str, float]) -> None:
        if len(self._rows) >= ROWS_WAITING or (len(values) > MAX_LIGHT_VALUES and not self._count_heavy(len(values))):
            self._drop_oldest()
        self._rows.append((pushed_at, step, values))

    def _lose(self, values: int) -> None:
        if values:
            reason = "a value on a device did not arrive before the end, or its device failed"
            self.refuse(values, DeviceScalars, reason)

    def _count_heavy(self, values: int) -> bool:
        """Count a row of more than `MAX_LIGHT_VALUES` values in, and return whether the queue has room for it."""
        session = self.session
        with self._lock:
            session.heavy_in += values
            return session.heavy_in - session.heavy_out <= VALUES_WAITING

    def _drop_oldest(self) -> None:
        """Drop the rows that have waited longest until the queue is within its limits."""
        session, rows = self.session, self._rows
        dropped = 0
        with self._lock, suppress(IndexError):  # the sender thread drains concurrently
            while len(rows) >= ROWS_WAITING or session.heavy_in - session.heavy_out > VALUES_WAITING:
                _, step, row = rows.popleft()
                if row is None:  # no push
                    session.media_in -= getattr(step, "size", 0)
                    continue
                values = len(row)
                # `heavy_out` is written by the sender thread alone.
                session.heavy_in -= values if values > MAX_LIGHT_VALUES else 0
                # A push of several rows counts once.
                session.overrun += not (isinstance(step, Deferred) and step.resolved)
                if isinstance(step, Deferred):
                    step.resolved = True
                dropped += values
        if dropped:
            self.refuse(dropped, Session, "pushes arrive faster than they can be sent, and the queue is full")


def whole_number(number: Any) -> int:
    """Return *number* as an int; it is an int, a float without a fraction, or a tensor of either.

    Raises:
        TypeError: It is not a whole number. Its methods may raise anything else.
    """
    try:
        return int(operator.index(number))
    except TypeError:
        real = read_number(number)
        real = float(number if real is None else real)
        if not real.is_integer():
            raise
        return int(real)


def flat(values: Mapping[str, Any], separator: str, before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield values by key, those of mappings among them with the keys joined by the *separator*.

    Raises:
        Exception: A mapping of the user's own cannot be read, or contains itself.
    """
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, separator, f"{before}{key}{separator}")
        else:
            yield f"{before}{key}", value


def _is_mapping(value: object) -> bool:
    try:
        return isinstance(value, Mapping)
    except Exception:  # noqa: BLE001  what it stands for, as a weak reference does, may be gone
        return False


def _joined(
    pending: PendingValues, named: dict[str, Any], step: int | Deferred | None
) -> tuple[dict[str, Any], int | Deferred | None]:
    """Return the user's numbers with the pending ones, and their step, which the user's keys alone decide."""
    pending.poll()
    every = pending.join(named)
    return every, Deferred(None, tuple(named)) if step is None and len(every) > len(named) else step


def _shown(key: object) -> str:
    return writable(key) if isinstance(key, str) else type(key).__name__
