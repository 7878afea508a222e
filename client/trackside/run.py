"""The run: what the training code holds, and the default run behind the module's functions."""

from __future__ import annotations

import atexit
import operator
import os
import sys
import threading
from collections import deque
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

import msgspec

from trackside.identity import identify
from trackside.sender import Sender
from trackside.session import Session

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import TracebackType

ROWS_WAITING = 32_768
"""Pushes that may wait for the sender: a tight loop can outrun it, and must not fill the memory."""

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
        self._warned: set[str] = set()
        self._lock = threading.Lock()
        self._rows: deque[Any] = session.rows if sender is not None else deque(maxlen=0)

    def push(self, values: Mapping[str, Any] | None = None, /, *, step: int | None = None, **named: Any) -> None:
        """Hand over one step's numbers; returns at once and never raises.

        Args:
            values: Numbers by key, for keys that are no Python names: ``{"eval/bleu": 31.2}``.
            step: The step they belong to. Without it they join the current step, or begin the next when one of the
                keys was already pushed in it.
            named: Numbers by key: ``loss=loss``. An int, a float, or anything with ``__float__``, such as a tensor of
                one element, which is read at once. NaN and infinities are data. What is not a number is dropped,
                counted, and warned about once per key.
        """
        pushed_at = monotonic_ns()
        if values is not None:
            named = self._merged(values, named)
        if not _NUMBERS.issuperset(map(type, named.values())):
            named = self._numbers(named)
        if step.__class__ is not int and step is not None:
            step = self._whole(step)
        rows = self._rows
        if len(rows) < ROWS_WAITING:
            rows.append((pushed_at, step, named))
        else:
            self._refuse(len(named), "", "pushes come faster than they can be sent; what finds no room is dropped")

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
        self._end(*_outcome(kind))

    def _end(self, status: str, cause: str = "", *, provisional: bool = False) -> None:
        with self._lock:
            sender, self._sender = self._sender, None
        if sender is not None:
            sender.end(self._session, status, cause, provisional=provisional, timeout=_flush_timeout())
            self._rows = deque(maxlen=0)
            _process.runs.discard(self)

    def _merged(self, values: Mapping[str, Any], named: dict[str, Any]) -> dict[str, Any]:
        try:
            return {**values, **named}
        except TypeError:
            self._refuse(1, repr(type(values)), f"push takes a mapping of numbers by key, not {type(values).__name__}")
            return named

    def _numbers(self, named: dict[str, Any]) -> dict[str, float]:
        kept: dict[str, float] = {}
        for key, value in named.items():
            try:
                if isinstance(value, str | bytes | bytearray):  # float() would read "3"
                    raise TypeError  # noqa: TRY301
                kept[key] = value if type(value) in _NUMBERS else float(value)
            except Exception:  # noqa: BLE001  a value's own __float__ may raise anything, and training must go on
                self._refuse(1, key, f"{key}: a {type(value).__name__} is not a number")
        return kept

    def _whole(self, step: Any) -> int | None:
        try:
            return int(step) if isinstance(step, float) and step.is_integer() else operator.index(step)
        except Exception:  # noqa: BLE001  the same
            self._refuse(0, "step", f"step: a {type(step).__name__} is not a whole number")
            return None

    def _refuse(self, values: int, key: str, message: str) -> None:
        """Count what is dropped, and say so once per *key*."""
        with self._lock:
            self._session.refused += values
            if key in self._warned or self._sender is None:
                return
            self._warned.add(key)
        import logging

        logging.getLogger("trackside").warning("trackside: %s; it is dropped, and so are further ones", message)

    def _forked(self) -> None:
        self._sender = None
        self._lock = threading.Lock()
        self._rows = deque(maxlen=0)


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
        name: What people see; default ``$TRACKSIDE_RUN_NAME``, else the script's name.
        id: The run's id, the same on all ranks; default ``$TRACKSIDE_RUN_ID``, else the launcher's, else random. The id
            of an ended run resumes it.
        config: Stored with the run, as JSON; what JSON does not have is written as its text.
        tags: Words to find the run by; default ``$TRACKSIDE_TAGS``, separated by commas.
        total_steps: How many steps the run will have: gives progress and time left.
        endpoint: Where the daemon listens, ``ipc://PATH`` or ``tcp://HOST:PORT``; default ``$TRACKSIDE_ENDPOINT``,
            else it is looked for.
        enabled: False makes a run that does nothing; so does ``$TRACKSIDE_DISABLED=1``.
    """
    tags = tuple(map(str, tags)) or tuple(filter(None, os.environ.get("TRACKSIDE_TAGS", "").split(",")))
    text = "" if config is None else msgspec.json.encode(dict(config), enc_hook=str).decode()
    session = Session(identify(name, id), text, tags, total_steps)
    sender = None
    with _process.lock:
        if enabled and os.environ.get("TRACKSIDE_DISABLED", "0") in {"", "0"}:
            sender = _process.sender(endpoint)
            sender.add(session)
        run = _process.default = Run(session, sender)
        _process.runs.add(run)
    return run


def push(values: Mapping[str, Any] | None = None, /, *, step: int | None = None, **named: Any) -> None:
    """`Run.push` of the default run; the first push opens one."""
    _default().push(values, step=step, **named)


def finish(status: str = "finished") -> None:
    """`Run.finish` of the default run; the next push would open another."""
    run, _process.default = _process.default, None
    if run is not None:
        run.finish(status)


class _Process:
    """What all runs of one process share."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.default: Run | None = None
        self.runs: set[Run] = set()
        self.outcome = ("finished", "")
        self._senders: dict[str | None, Sender] = {}

    def sender(self, endpoint: str | None) -> Sender:
        """The sender for an endpoint; the first one also watches for the process's end."""
        if not self._senders:
            self._watch_exit()
        if endpoint not in self._senders:
            self._senders[endpoint] = Sender(endpoint)
        return self._senders[endpoint]

    def _watch_exit(self) -> None:
        previous = sys.excepthook

        def excepthook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
            self.outcome = _outcome(kind)
            previous(kind, error, traceback)

        sys.excepthook = excepthook
        atexit.register(self._exit)

    def _exit(self) -> None:
        for run in list(self.runs):
            run._end(*self.outcome, provisional=True)  # noqa: SLF001
        for sender in self._senders.values():
            sender.stop()
        self._senders = {}

    def forked(self) -> None:
        """In a forked child nothing sends: the parent's thread and socket are the parent's alone."""
        for run in self.runs:
            run._forked()  # noqa: SLF001
        atexit.unregister(self._exit)
        self.lock = threading.RLock()
        self.runs = set()
        self._parents = self._senders  # kept, so that nothing of the parent's is closed here
        self._senders = {}


def _default() -> Run:
    run = _process.default
    if run is not None:
        return run
    with _process.lock:
        return _process.default or init()


def _outcome(kind: type[BaseException] | None) -> tuple[str, str]:
    if kind is None:
        return "finished", ""
    return ("stopped" if issubclass(kind, KeyboardInterrupt) else "failed"), kind.__name__


def _flush_timeout() -> float:
    try:
        return max(0.0, float(os.environ.get("TRACKSIDE_FLUSH_TIMEOUT", "2")))
    except ValueError:
        return 2.0


_process = _Process()
os.register_at_fork(after_in_child=_process.forked)
