"""The run: what the training code holds.

It is over 400 lines since it is one class, half of which is what its users read of it, and a push is kept in one piece.
"""

from __future__ import annotations

import operator
import threading
from contextlib import suppress
from threading import get_ident
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, TypeVar

from trackside.environment.config import as_json
from trackside.environment.exit_status import STATUSES, flush_timeout, outcome
from trackside.log import warn
from trackside.packing import writable
from trackside.pending_values import PendingValues
from trackside.pytorch.device_scalars import DeviceScalars, at_hand, local
from trackside.totals.phases import Phase, TimedLoader
from trackside.totals.session_totals import Deferred
from trackside.transport.session import HEAVY, Session
from trackside.wire import TrainingAlert, TrainingEvent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from types import TracebackType

    from trackside.pytorch.step_stages import StepStages
    from trackside.pytorch.watcher import Watcher
    from trackside.totals.phases import Mark
    from trackside.transport.sender import Sender
    from trackside.wire import Device

T = TypeVar("T")

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
_SEVERITIES = ("info", "warning", "critical")
TEXT_LENGTH = 4096
"""Of an alert's text, and of an event's kind and fields together, so many characters travel."""


class Run:
    """One process's part in a training run; made by `init` or by the first push.

    Args:
        session: Its own.
        sender: Serves the session; None when nothing is to be sent.
        ended: Told when the run has ended.

    Attributes:
        id: The run's id, the same on all ranks.
        name: What people see.
        rank: Global rank; 0 when not distributed.
    """

    __slots__ = (
        *("__weakref__", "_device", "_ended", "_joins", "_lock", "_polled", "_rows", "_sender", "_session", "_stages"),
        *("_thread", "_warned"),
        *("id", "name", "rank"),
    )

    def __init__(self, session: Session, sender: Sender | None, ended: Callable[[Run], None] = lambda _: None) -> None:
        self.id = session.identity.run
        self.name = session.identity.name
        self.rank = session.identity.rank
        self._session = session
        self._sender = sender
        self._warned: set[object] = set()
        self._lock = threading.RLock()  # a signal handler may push in the midst of a push
        self._rows = session.rows
        self._device: DeviceScalars | None = None
        self._stages: tuple[StepStages, ...] = ()
        self._polled: tuple[DeviceScalars | StepStages, ...] = ()
        self._joins: PendingValues | None = None
        self._ended = ended
        self._thread = get_ident()

    @property
    def is_open(self) -> bool:
        """Whether what is pushed goes anywhere: it has not ended, and trackside is not turned off."""
        return self._sender is not None

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
        self._push(values, step, named)

    def phase(self, name: str) -> Phase:
        """A phase of the training, as a context manager or a decorator: ``with run.phase("eval"): …``.

        Args:
            name: ``data``, ``forward``, ``backward``, ``optimizer``, ``eval``, ``checkpoint`` or any other. The time in
                it is counted without that of phases nested in it; that of ``eval`` and ``checkpoint`` is no part of a
                step's duration. Phases are those of the thread that has opened the run, since they share its time out
                among them; in other threads they count nothing.

        Raises:
            TypeError: The name is no text, or what is decorated is a generator function.
        """
        return Phase(self._mark, name)

    def data(self, loader: Iterable[T]) -> TimedLoader[T]:
        """The same loader, with each wait for its next batch timed, as phase ``data``: ``for batch in run.data(loader)``.

        Args:
            loader: A ``DataLoader``, a generator, or anything that is iterated. The first batch of each way through it is
                counted apart from the others, together with the time in which the loader starts its workers.
        """
        return TimedLoader(self._mark, loader)

    def watch(self, model: Any, optimizer: Any = None, *, layers: str | Sequence[str] | None = None) -> Watcher:
        """Measure a PyTorch model, and time its steps; the numbers join the next push.

        They are ``grad_norm``, ``param_norm``, ``update_ratio`` (how far a step moves the weights, over their norm, by a
        sample of them) and an event ``nonfinite_gradients`` with the first layer that has such; the phases ``forward``,
        ``backward`` and ``optimizer``, on a GPU by its own clock too; and how full the GPUs are. Nothing waits for a
        device and no collective is started. Norms are taken each so many steps, and of short steps some are timed, so that
        it takes about 0.3 % of the time.

        Args:
            model: A ``torch.nn.Module``, also compiled, or wrapped by DDP or FSDP; it is not kept alive. Of one that is
                sharded ``grad_norm_local_squared`` is told, of which the daemon makes ``grad_norm``.
            optimizer: Whose steps count; None for the first one that steps and has parameters of the model.
            layers: Names of layers, or patterns such as ``"*.attn"``, whose norms are told at each step, as
                ``grad_norm/LAYER``.

        Returns:
            A watcher: its ``layers_for(steps)`` tells all layers for a while, its ``stop()`` ends it.

        Raises:
            TypeError: The model is no ``torch.nn.Module``.
        """
        from trackside.pytorch.watcher import Watcher

        return Watcher(self, model, optimizer, layers)

    def event(self, kind: str, /, **fields: Any) -> None:
        """Tell that something happened: ``run.event("checkpoint", path=path)``. It is kept with the run, at this step.

        Args:
            kind: ``checkpoint``, ``resume`` or any other word.
            fields: What more there is to say; what JSON does not have is written as its text.
        """
        text = as_json(fields, f"event {kind}") if fields and self._sender is not None else ""
        if len(text) + len(str(kind)) > TEXT_LENGTH:
            self._warn(
                TrainingEvent,
                f"event {str(kind)[:40]}: more than {TEXT_LENGTH} characters; it is kept without its fields",
            )
            text = ""
        moment = monotonic_ns()
        self._tell(moment, TrainingEvent(writable(str(kind))[:TEXT_LENGTH], moment, None, text))

    def alert(self, title: str, text: str = "", severity: str = "warning") -> None:
        """Raise an alert: ``run.alert("loss is not falling", f"{loss:.3f} for 1000 steps")``.

        Args:
            title: What is wrong; the same title is the same alert.
            text: More about it.
            severity: ``info``, ``warning`` or ``critical``; anything else is taken for ``warning``.
        """
        if severity not in _SEVERITIES:
            known = ", ".join(_SEVERITIES)
            self._warn(
                TrainingAlert,
                f"alert {title!s:.40}: severity {severity!r} is none of {known}; it is taken for a warning",
            )
            severity = "warning"
        moment = monotonic_ns()
        words = [writable(str(part))[:TEXT_LENGTH] for part in (title, text)]
        self._tell(moment, TrainingAlert(words[0], moment, words[1], severity))

    def finish(self, status: str = "finished") -> None:
        """End the run: hand on all that was pushed, waiting at most ``$TRACKSIDE_FLUSH_TIMEOUT`` seconds (2).

        Args:
            status: ``finished``, ``stopped`` or ``failed``.

        Raises:
            ValueError: Another status.
        """
        if status not in STATUSES:
            raise ValueError(f"status {status!r} is none of {', '.join(STATUSES)}")
        self._end(status)

    def __enter__(self) -> Run:  # noqa: PYI034  Self came with Python 3.11
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end(*outcome(kind, error))

    def _push(self, values: Mapping[str, Any] | None, step: int | None, named: dict[str, Any]) -> None:
        """`push`, for whoever has its arguments in hand: passing keywords on would cost as much as all of this.

        Between two steps of a training the caches are cold, and each object that is touched is a miss: little is.
        """
        if self._sender is None:
            return
        pushed_at = monotonic_ns()
        if values is not None:
            named = self._merged(values, named)
        if type(step) is not int and step is not None:
            step = self._whole(step)
        for one in self._polled:
            one.poll()
        place: int | Deferred | None = step
        beside = self._joins
        joins = beside if beside is not None and (beside.waits or not beside.known.isdisjoint(named)) else None
        if joins is not None:
            named, place = _joined(joins, named, step)
        for value in named.values():
            if type(value) is not float and type(value) is not int:
                named, place = self._numbers(pushed_at, place, named)
                break
        rows = self._rows
        if len(rows) >= ROWS_WAITING or (len(named) > HEAVY and not self._has_room(len(named))):
            self._drop_oldest()
        rows.append((pushed_at, place, named))
        if joins is not None:
            joins.say()

    def _beside(self, values: Mapping[str, Any]) -> None:
        """Have numbers join the next push: what is found out by itself. Of a key that the user pushes his own counts.

        Args:
            values: Numbers, or tensors of one number on any device, by key. In which step a push without one belongs is
                for the user's own keys to say.
        """
        if self._sender is not None and values:
            self._made_beside().add(values)

    def _ask_beside(self, scalars: Mapping[str, Any], then: Callable[[dict[str, float]], object]) -> None:
        """Have numbers that are still on a device handed over at a later push, or at the end."""
        if self._sender is not None:
            self._made_beside().ask(scalars, then)

    def _say_beside(self, say: Callable[[], object]) -> None:
        """Have something said right behind the next push, or at the end."""
        if self._sender is not None:
            self._made_beside().after(say)

    def _made_beside(self) -> PendingValues:
        with self._lock:
            self._joins = self._joins or PendingValues()
        return self._joins

    def _end(self, status: str, cause: str = "", *, provisional: bool = False, timeout: float | None = None) -> None:
        timeout = flush_timeout() if timeout is None else timeout
        try:
            if self._joins is not None and self._sender is not None:
                timeout = max(0.0, timeout - self._joins.drain(min(DRAIN_SECONDS, timeout)))
        finally:  # also when Ctrl-C cuts it short
            self._close(status, cause, provisional=provisional, timeout=timeout)

    def _close(self, status: str, cause: str, *, provisional: bool, timeout: float) -> None:
        with self._lock:
            sender, self._sender = self._sender, None
        if sender is not None:
            try:
                if self._device is not None:
                    timeout = max(0.0, timeout - self._device.drain(min(DRAIN_SECONDS, timeout)))
                for one in self._stages:
                    one.close()
            finally:  # the same
                sender.end(self._session, status, cause, provisional=provisional, timeout=timeout)
                self._ended(self)

    def _describe(self, config: Mapping[str, Any] | None = None, total_steps: int | None = None) -> None:
        """Say more of the run than was known when it was opened: what an integration learns of it only later."""
        if self._sender is not None:
            self._session.describe(as_json(config), total_steps)

    def _tell(self, moment: int, said: Mark | Device | TrainingEvent | TrainingAlert) -> None:
        """Hand over what is no push, in its order among the pushes."""
        if self._sender is not None:
            self._append(moment, said)

    def _append(self, moment: int, said: Mark | Device | TrainingEvent | TrainingAlert) -> None:
        """`_tell`, also while the run ends."""
        if len(self._rows) >= ROWS_WAITING:
            self._drop_oldest()
        self._rows.append((moment, said, None))

    def _mark(self, moment: int, mark: Mark) -> None:
        """Hand over that a phase begins or ends: `_tell` in one piece, since a step has several."""
        if self._sender is None:
            return
        if get_ident() != self._thread:
            self._warn(Phase, f"phase {mark.phase}: of another thread than has opened the run, its time is not counted")
            return
        if len(self._rows) >= ROWS_WAITING:
            self._drop_oldest()
        self._rows.append((moment, mark, None))

    def _merged(self, values: Mapping[str, Any], named: dict[str, Any]) -> dict[str, Any]:
        try:
            return {**values, **named}
        except Exception:  # noqa: BLE001  a mapping of the user's own may raise anything, and training must go on
            self._refuse(1, type(values), f"push cannot read numbers by key from a {type(values).__name__}")
            return named

    def _numbers(
        self, pushed_at: int, step: int | Deferred | None, named: dict[str, Any]
    ) -> tuple[dict[str, float], int | Deferred | None]:
        """The numbers that are at hand, and what stands for the step of a push that has others on a device."""
        kept: dict[str, float] = {}
        scalars: dict[str, Any] = {}
        for key, value in named.items():
            if type(value) in _NUMBERS:
                kept[key] = value
                continue
            try:
                if isinstance(value, _TEXT):  # float() would read "3"
                    raise TypeError  # noqa: TRY301
                if (number := at_hand(value)) is None:
                    scalars[key] = local(value)
                else:
                    kept[key] = number
            except Exception:  # noqa: BLE001  a value's own __float__ may raise anything
                self._refuse(1, key, f"{_shown(key)}: a {type(value).__name__} is not a number")
        return kept, self._defer(pushed_at, step, kept, scalars) if scalars else step

    def _defer(
        self, pushed_at: int, step: int | Deferred | None, kept: dict[str, float], scalars: dict[str, Any]
    ) -> Deferred:
        """Have the values that are on a device follow in a row of their own."""
        deferred = step if isinstance(step, Deferred) else Deferred(step, (*kept, *scalars))
        if self._device is None:
            with self._lock:
                self._device = self._device or DeviceScalars(self._arrived, self._lose, self._session.gpus.append)
                self._poll_all()
        for key, reason in self._device.defer(pushed_at, deferred, scalars).items():
            self._refuse(1, key, f"{_shown(key)}: {reason}")
        return deferred

    def _time(self, stages: StepStages) -> None:
        """Have the stages of a step hand over at each push what GPUs have told them."""
        with self._lock:
            others, self._stages = self._stages, ()
            for one in others:
                if one.accompany():
                    self._stages += (one,)
            self._stages += (stages,)
            self._poll_all()

    def _poll_all(self) -> None:
        with self._lock:
            stages = tuple(one for one in self._stages if one.polls)
            self._polled = stages if self._device is None else (self._device, *stages)

    def _arrived(self, pushed_at: int, deferred: Deferred, values: dict[str, float]) -> None:
        if self._joins is not None:
            values = self._joins.arrived(values)
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
            return whole(step)
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
                if row is None:  # no push
                    continue
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
        self._warn(key, f"{message}; it is dropped, and so are further ones")

    def _warn(self, key: object, message: str) -> None:
        """Say something once per *key*."""
        with self._lock:
            if key in self._warned or len(self._warned) >= WARNINGS:
                return
            self._warned.add(key)
        warn(message)

    def forked(self) -> None:
        """In a forked child it sends nothing."""
        self._sender = None
        self._lock = threading.RLock()


def _joined(
    beside: PendingValues, named: dict[str, Any], step: int | None
) -> tuple[dict[str, Any], int | Deferred | None]:
    """The user's numbers with those beside them, and their place, which the user's own keys decide."""
    beside.poll()
    every = beside.join(named)
    return every, Deferred(None, tuple(named)) if step is None and len(every) > len(named) else step


def _shown(key: object) -> str:
    return writable(key) if isinstance(key, str) else type(key).__name__


def whole(number: Any) -> int:
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
