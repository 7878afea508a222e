"""The run: what the training code holds, and the default run behind the module's functions."""

from __future__ import annotations

import atexit
import operator
import os
import sys
import threading
from contextlib import suppress
from time import monotonic, monotonic_ns
from typing import TYPE_CHECKING, Any

from trackside.config import as_json
from trackside.device import DeviceScalars, is_on_device, local
from trackside.identity import identify
from trackside.log import warn
from trackside.sender import Sender
from trackside.session import HEAVY, Session
from trackside.tally import Deferred
from trackside.wire import writable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import TracebackType

ROWS_WAITING = 32_768
"""Pushes that may wait for the sender: a tight loop can outrun it, and must not fill the memory."""

VALUES_WAITING = 262_144
"""So many values may wait in pushes of more than `HEAVY` values: about 30 MB."""

WARNINGS = 1000
"""So many keys are warned about one by one."""

DRAIN_SECONDS = 0.5
"""At the end a run waits so long for values that are still on a device."""

_TEXT = (str, bytes, bytearray)
_NUMBERS = frozenset((float, int))
_STATUSES = ("finished", "stopped", "failed")


class Run:
    """One process's part in a training run; made by `init` or by the first push.

    Attributes:
        id: The run's id, the same on all ranks.
        name: What people see.
        rank: Global rank; 0 when not distributed.
    """

    def __init__(self, session: Session, sender: Sender | None) -> None:
        self.id = session.identity.run
        self.name = session.identity.name
        self.rank = session.identity.rank
        self._session = session
        self._sender = sender
        self._warned: set[object] = set()
        self._lock = threading.RLock()  # a signal handler may push in the midst of a push
        self._rows = session.rows
        self._device: DeviceScalars | None = None

    def push(self, values: Mapping[str, Any] | None = None, /, *, step: int | None = None, **named: Any) -> None:
        """Hand over one step's numbers; returns at once and never raises. After the run's end it does nothing.

        Args:
            values: Numbers by key, for keys that are no Python names: ``{"eval/bleu": 31.2}``.
            step: The step they belong to. Without it they join the current step, or begin the next when one of the
                keys was already pushed in it.
            named: Numbers by key: ``loss=loss``. An int, a float, or anything with ``__float__``, which is read at once;
                a CUDA tensor of one element is not waited for, but read when it has arrived, at a later push or at the
                end; of a DTensor the local part is taken. NaN and infinities are data. What is not a number is
                dropped, counted, and warned about once per key.
        """
        if self._sender is None:
            return
        pushed_at = monotonic_ns()
        if values is not None:
            named = self._merged(values, named)
        if type(step) is not int and step is not None:
            step = self._whole(step)
        if self._device is not None:
            self._device.poll()
        place: int | Deferred | None = step
        if not _NUMBERS.issuperset(map(type, named.values())):
            named, place = self._numbers(pushed_at, step, named)
        rows = self._rows
        if len(rows) >= ROWS_WAITING or (len(named) > HEAVY and not self._has_room(len(named))):
            self._drop_oldest()
        rows.append((pushed_at, place, named))

    def finish(self, status: str = "finished") -> None:
        """End the run: hand on all that was pushed, waiting at most ``$TRACKSIDE_FLUSH_TIMEOUT`` seconds (2).

        Args:
            status: ``finished``, ``stopped`` or ``failed``.

        Raises:
            ValueError: Another status.
        """
        if status not in _STATUSES:
            raise ValueError(f"status {status!r} is none of {', '.join(_STATUSES)}")
        self._end(status)

    def __enter__(self) -> Run:  # noqa: PYI034  Self came with Python 3.11
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end(*_outcome(kind, error))

    def _end(self, status: str, cause: str = "", *, provisional: bool = False, timeout: float | None = None) -> None:
        with self._lock:
            sender, self._sender = self._sender, None
        if sender is not None:
            timeout = _flush_timeout() if timeout is None else timeout
            try:
                if self._device is not None:
                    timeout = max(0.0, timeout - self._device.drain(min(DRAIN_SECONDS, timeout)))
            finally:  # also when Ctrl-C cuts it short
                sender.end(self._session, status, cause, provisional=provisional, timeout=timeout)
                _process.runs.discard(self)

    def _merged(self, values: Mapping[str, Any], named: dict[str, Any]) -> dict[str, Any]:
        try:
            return {**values, **named}
        except Exception:  # noqa: BLE001  a mapping of the user's own may raise anything, and training must go on
            self._refuse(1, type(values), f"push cannot read numbers by key from a {type(values).__name__}")
            return named

    def _numbers(
        self, pushed_at: int, step: int | None, named: dict[str, Any]
    ) -> tuple[dict[str, float], int | Deferred | None]:
        """The numbers that are at hand, and what stands for the step of a push that has others on a device."""
        kept: dict[str, float] = {}
        scalars: dict[str, Any] = {}
        for key, value in named.items():
            try:
                if isinstance(value, _TEXT):  # float() would read "3"
                    raise TypeError  # noqa: TRY301
                value = local(value)  # noqa: PLW2901
                if is_on_device(value):
                    scalars[key] = value
                    continue
                if getattr(value, "requires_grad", False):  # of a loss as it is, float() makes PyTorch warn
                    value = value.detach()  # noqa: PLW2901
                kept[key] = value if type(value) in _NUMBERS else float(value)
            except Exception:  # noqa: BLE001  a value's own __float__ may raise anything
                self._refuse(1, key, f"{_shown(key)}: a {type(value).__name__} is not a number")
        return kept, self._defer(pushed_at, step, kept, scalars) if scalars else step

    def _defer(self, pushed_at: int, step: int | None, kept: dict[str, float], scalars: dict[str, Any]) -> Deferred:
        """Have the values that are on a device follow in a row of their own."""
        deferred = Deferred(step, (*kept, *scalars))
        if self._device is None:
            with self._lock:
                self._device = self._device or DeviceScalars(self._hand_over, self._lose)
        for key, reason in self._device.defer(pushed_at, deferred, scalars).items():
            self._refuse(1, key, f"{_shown(key)}: {reason}")
        return deferred

    def _hand_over(self, pushed_at: int, deferred: Deferred, values: dict[str, float]) -> None:
        if len(self._rows) >= ROWS_WAITING or (len(values) > HEAVY and not self._has_room(len(values))):
            self._drop_oldest()
        self._rows.append((pushed_at, deferred, values))

    def _lose(self, values: int) -> None:
        if values:
            self._refuse(
                values, DeviceScalars, "a value on a device has not arrived before the end, or its device has failed"
            )

    def _whole(self, step: Any) -> int | None:
        try:
            return _whole(step)
        except Exception:  # noqa: BLE001  the same
            self._refuse(0, operator.index, f"step: a {type(step).__name__} is not a whole number")
            return None

    def _has_room(self, values: int) -> bool:
        """Whether there is room for a heavy push, which is counted in."""
        session = self._session
        with self._lock:
            session.heavy_in += values
            return session.heavy_in - session.heavy_out <= VALUES_WAITING

    def _drop_oldest(self) -> None:
        """Make room for a push by dropping those that have waited longest."""
        session, rows = self._session, self._rows
        dropped = 0
        with self._lock, suppress(IndexError):  # the sender empties it meanwhile
            while len(rows) >= ROWS_WAITING or session.heavy_in - session.heavy_out > VALUES_WAITING:
                _, step, row = rows.popleft()
                values = len(row)
                session.heavy_in -= values if values > HEAVY else 0
                session.overrun += not (isinstance(step, Deferred) and step.resolved)
                if isinstance(step, Deferred):
                    step.resolved = True
                dropped += values
        if dropped:
            self._refuse(dropped, Session, "pushes come faster than they can be sent, and the oldest one found no room")

    def _refuse(self, values: int, key: object, message: str) -> None:
        """Count what is dropped, and say so once per *key*; what is not about a key has another object in its place."""
        with self._lock:
            self._session.refused += values
            if key in self._warned or len(self._warned) >= WARNINGS:
                return
            self._warned.add(key)
        warn(f"{message}; it is dropped, and so are further ones")

    def _forked(self) -> None:
        self._sender = None
        self._lock = threading.RLock()


def init(
    name: str | None = None,
    *,
    id: str | None = None,  # noqa: A002  the field's word for it
    config: Mapping[str, Any] | None = None,
    tags: Iterable[str] = (),
    total_steps: int | None = None,
    endpoint: str | None = None,
    enabled: bool = True,
) -> Run:
    """Open a run, and make it the one that `push` and `finish` of the module act on.

    Args:
        name: What people see; default ``$TRACKSIDE_RUN_NAME``, else the script's name with the cluster's job id.
        id: The run's id, the same on all ranks; default ``$TRACKSIDE_RUN_ID``, else the launcher's, else random. The id
            of an ended run resumes it.
        config: Stored with the run, as JSON; what JSON does not have is written as its text. At most 1 MiB.
        tags: Words to find the run by; default ``$TRACKSIDE_TAGS``, separated by commas.
        total_steps: How many steps the run will have: gives progress and time left.
        endpoint: Where the daemon listens, ``ipc://PATH`` or ``tcp://HOST:PORT``; default ``$TRACKSIDE_ENDPOINT``,
            else it is looked for.
        enabled: False makes a run that does nothing; so does ``$TRACKSIDE_DISABLED=1``.

    Raises:
        TypeError: ``config`` is no mapping, or ``total_steps`` no whole number.
        ValueError: ``total_steps`` is negative or beyond int64.
    """
    total_steps = None if total_steps is None else _whole(total_steps)
    if total_steps is not None and not 0 <= total_steps < 2**63:
        raise ValueError(f"total_steps is {total_steps}, which is no number of steps")
    words = tuple(map(str, tags)) or os.environ.get("TRACKSIDE_TAGS", "").split(",")
    words = tuple(writable(word.strip()) for word in words if word.strip())
    session = Session(identify(name, id), as_json(config), words, total_steps)
    with _process.lock:
        sender = None
        if enabled and os.environ.get("TRACKSIDE_DISABLED", "0") in {"", "0"}:
            sender = _process.sender(endpoint)
        run = _process.default = Run(session, sender)
        if sender is not None:
            sender.add(session)
            _process.runs.add(run)
    return run


def push(values: Mapping[str, Any] | None = None, /, *, step: int | None = None, **named: Any) -> None:
    """`Run.push` of the default run; the first push opens one."""
    _default().push(values, step=step, **named)


def finish(status: str = "finished") -> None:
    """`Run.finish` of the default run; the next push would open another. A forked child has no part in its parent's."""
    if status not in _STATUSES:
        raise ValueError(f"status {status!r} is none of {', '.join(_STATUSES)}")
    with _process.lock:
        run = _process.default
        if run is None or run is _process.inherited:
            return
        _process.default = None
    run.finish(status)


class _Process:
    """What all runs of one process share."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.default: Run | None = None
        self.inherited: Run | None = None
        self.runs: set[Run] = set()
        self.outcome = ("finished", "")
        self._senders: dict[str | None, Sender] = {}
        self._parents: list[Sender] = []
        self._watching = self._exiting = False

    def sender(self, endpoint: str | None) -> Sender | None:
        """The sender for an endpoint, None where there can be none; the first also watches for the process's end."""
        if self._exiting:
            return None
        if endpoint not in self._senders or not self._senders[endpoint].alive:
            try:
                self._senders[endpoint] = Sender(endpoint)
            except (OSError, RuntimeError) as error:
                warn(f"nothing can be sent, training goes on: {error}")
                return None
        if not self._watching:
            self._watch_exit()
        return self._senders[endpoint]

    def _watch_exit(self) -> None:
        self._watching = True
        previous = sys.excepthook

        def excepthook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
            self.outcome = _outcome(kind, error)
            previous(kind, error, traceback)

        sys.excepthook = excepthook
        atexit.register(self._exit)

    def _exit(self) -> None:
        """Say the end of all runs, which share one flush timeout; a second Ctrl-C cuts it short."""
        self._exiting = True
        deadline = monotonic() + _flush_timeout()
        with suppress(KeyboardInterrupt):
            for run in list(self.runs):
                run._end(*self.outcome, provisional=True, timeout=max(0.0, deadline - monotonic()))  # noqa: SLF001
        for sender in self._senders.values():
            sender.stop()
        self._senders = {}

    def forked(self) -> None:
        """In a forked child nothing sends: the parent's thread and socket are the parent's alone."""
        for run in self.runs:
            run._forked()  # noqa: SLF001
        for sender in self._senders.values():
            sender.forked()
        self.lock = threading.RLock()
        self.inherited = self.default
        self.runs = set()
        self._parents += self._senders.values()  # kept, so that nothing of ZeroMQ's is closed here
        self._senders = {}


def _default() -> Run:
    run = _process.default
    if run is not None:
        return run
    with _process.lock:
        return _process.default or init()


def _shown(key: object) -> str:
    return writable(key) if isinstance(key, str) else type(key).__name__


def _whole(number: Any) -> int:
    """*number* as an int, be it one, a float without a fraction, or a tensor of either.

    Raises:
        TypeError: It is no whole number; its own methods may raise anything else.
    """
    try:
        return int(operator.index(number))
    except TypeError:
        if isinstance(number, _TEXT) or not (real := float(number)).is_integer():
            raise
        return int(real)


def _outcome(kind: type[BaseException] | None, error: BaseException | None) -> tuple[str, str]:
    if kind is None or (isinstance(error, SystemExit) and error.code in (None, 0)):
        return "finished", ""
    return ("stopped" if issubclass(kind, KeyboardInterrupt) else "failed"), kind.__name__


def _flush_timeout() -> float:
    try:
        return max(0.0, float(os.environ.get("TRACKSIDE_FLUSH_TIMEOUT", "2")))
    except ValueError:
        return 2.0


_process = _Process()
os.register_at_fork(after_in_child=_process.forked)
