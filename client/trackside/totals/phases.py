"""Measure where the training's time goes: phases, and waits for data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ContextDecorator
from functools import wraps
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from time import monotonic_ns
from typing import Any, Generic, NamedTuple, TypeVar

from trackside.drawn_batches import BatchFollower, DrawnBatch, note_draws
from trackside.limits import PHASE_LENGTH, SESSION_PHASES
from trackside.totals.loader_workers import remember, timed_workers, times_of

EVALS = frozenset(("eval", "evaluation", "validation"))
SAVES = frozenset(("checkpoint", "save"))
PAUSES = EVALS | SAVES  # phases that do not count towards a step's duration
UNMARKED = PAUSES | {"data"}  # no stages of a step: a training may have marks of these alone
COMPILE = "compile"  # automatic: JAX compiles a function
OTHER = "other"  # the time outside any phase
SYNC = "sync"  # automatic: at the end of a backward pass, a rank waits for the gradients of the others
TIMED = ""  # name of the automatic marks around timed steps: after them, time is shared out as in the timed steps

# Limit of a stage's time in steps that are not timed, over its mean: steps vary, but a far longer time is a pause.
MAX_TIMES_USUAL = 2

FADES = 7 / 8  # weight of earlier measurements at each new one

T = TypeVar("T")
F = TypeVar("F", bound="Callable[..., Any]")


class PhaseMark(NamedTuple):
    """A row without values: the training enters or leaves a phase."""

    enters: bool  # the training enters the phase, else it leaves it
    phase: str  # name of the phase
    waited: int | None = None  # nanoseconds of the wait for a batch of data, if one has arrived
    first: bool = False  # that batch was the first one of an epoch
    automatic: bool = False  # the phase is not the user's, but comes from watching a model
    failed: bool = False  # the phase ends by an exception
    timed: int = 0  # with the end of `TIMED`, the number of steps that were timed
    left_out: int = 0  # with the end of `TIMED`, the number of steps that follow untimed
    batches: tuple[DrawnBatch, ...] = ()  # the batches of a data loader that the training uses from now on


_WAIT_BEGINS = PhaseMark(enters=True, phase="data")
_WAIT_ENDS = PhaseMark(enters=False, phase="data")

WAITS = PhaseMark(enters=True, phase="data", automatic=True)  # of waits that nobody has marked
WAITED = PhaseMark(enters=False, phase="data", automatic=True)


class Phase(ContextDecorator):
    """Marks a phase, as a context manager or around each call of a function. It has no state and can be used repeatedly.

    Args:
        accept: Called with each mark and its moment, in monotonic nanoseconds.
        name: Name of the phase.

    Raises:
        TypeError: The name is not a string, for example in ``@run.phase`` without parentheses.
    """

    def __init__(self, accept: Callable[[int, PhaseMark], None], name: str) -> None:
        if not isinstance(name, str):
            raise TypeError(f'a phase needs a name, as in phase("eval"), not {name!r}')
        self._accept = accept
        self._enter = PhaseMark(enters=True, phase=name)
        self._leave = PhaseMark(enters=False, phase=name)
        self._fail = self._leave._replace(failed=True)

    def __call__(self, function: F) -> F:
        """Return the function with the phase around each call.

        Raises:
            TypeError: It is a generator function, whose calls do nothing yet.
        """
        if isgeneratorfunction(function) or isasyncgenfunction(function):
            raise TypeError(f"{function.__qualname__} is a generator function; use the phase inside of it, with a with")
        if not iscoroutinefunction(function):  # the call of a coroutine function returns before it runs
            return super().__call__(function)

        @wraps(function)
        async def called(*args: Any, **named: Any) -> Any:
            with self:
                return await function(*args, **named)

        return called  # type: ignore[return-value]

    def __enter__(self) -> Phase:  # noqa: PYI034  Self came with Python 3.11
        self._accept(monotonic_ns(), self._enter)
        return self

    def __exit__(self, kind: type[BaseException] | None = None, *_: object) -> None:
        self._accept(monotonic_ns(), self._leave if kind is None else self._fail)


class TimedLoader(Generic[T]):
    """A data loader whose waits are timed: how long the training thread waits for the next batch.

    The first batch of each iteration is marked, since it waits for workers that only start. An iterator has one first
    batch, however often the training resumes it. The length and the attributes are the loader's, so that ``len(batches)``
    and ``batches.sampler.set_epoch(1)`` work; ``isinstance`` checks for the loader's class fail.

    Args:
        accept: Called with each mark and its moment, in monotonic nanoseconds.
        loader: The loader.
        join: Called about once a second with the values of the loader's workers, if it has some; None to leave them alone.
        describe: Turns the index of a sample into a name, when the daemon asks for a batch.
    """

    def __init__(
        self,
        accept: Callable[[int, PhaseMark], None],
        loader: Iterable[T],
        join: Callable[[dict[str, float]], None] | None = None,
        describe: Callable[[Any], object] | None = None,
    ) -> None:
        self._accept = accept
        self._loader = loader
        self._join = join
        self._describe = describe
        self._begun = False
        note_draws()

    def __iter__(self) -> Iterator[T]:
        since = monotonic_ns()
        self._accept(since, _WAIT_BEGINS)
        try:
            with timed_workers(None if self._join is None else self._loader) as times:
                batches = iter(self._loader)
            remember(batches, times)
        finally:
            now = monotonic_ns()
            self._accept(now, _WAIT_ENDS)
        resumes = self._begun and batches is self._loader
        self._begun = True
        follower = BatchFollower(batches, self._describe)
        return _TimedIterator(self._accept, batches, None if resumes else now - since, self._join, follower)

    # Without it, `if batches` would call `__len__`, which loaders of an IterableDataset refuse.
    def __bool__(self) -> bool:
        return bool(self._loader)

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        # copy and pickle look up special methods before `_loader` exists, which would recurse without end.
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._loader, name)


class _TimedIterator(Generic[T]):
    """One iteration over a loader. It is no generator, whose frame would keep a batch alive after the training drops it.

    Args:
        accept: Called with each mark and its moment, in monotonic nanoseconds.
        batches: The loader's iterator.
        before: Nanoseconds that creating the iterator took, which are part of the wait for the first batch; None if the
            first batch has been delivered.
        join: See `TimedLoader`.
        follower: Follows the samples of the batches.
    """

    def __init__(
        self,
        accept: Callable[[int, PhaseMark], None],
        batches: Iterator[T],
        before: int | None,
        join: Callable[[dict[str, float]], None] | None,
        follower: BatchFollower,
    ) -> None:
        self._accept = accept
        self._batches = batches
        self._before = before
        self._join = join
        self._follower = follower
        self._times = None if join is None else times_of(batches)

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        since = monotonic_ns()
        self._accept(since, _WAIT_BEGINS)
        self._follower.begin()
        try:
            batch = next(self._batches)
        except BaseException:  # also at the end of the data, and for Ctrl-C
            self._accept(monotonic_ns(), _WAIT_ENDS._replace(batches=self._follower.ended()))
            raise
        now = monotonic_ns()
        before, self._before = self._before, None
        waited = now - since + (before or 0)
        # By place, since names cost as much again in each step.
        drawn = self._follower.arrived(batch)
        self._accept(now, PhaseMark(False, "data", waited, before is not None, False, False, 0, 0, drawn))
        if self._times is not None and self._join is not None and now >= self._times.due:
            try:
                self._join(self._times.read(self._batches))
            except Exception:  # noqa: BLE001  private names of PyTorch may change, and training must go on
                self._times = None
        return batch


class PhaseTimes:
    """Seconds by phase, each without the phases nested in it. With `OTHER` they sum to the time since *began*.

    The user's phases take precedence over automatic ones: an automatic phase is not entered if it is open already or
    within one of `PAUSES`, and its end ends nothing else. If only some steps are timed (`TIMED`), the time of the others
    is shared out as in the last timed ones.

    Args:
        began: Monotonic nanoseconds.

    Attributes:
        paused: Nanoseconds spent in `PAUSES` and in phases nested in them.
        is_marked: The training has entered a phase of its own that is in none of `UNMARKED`.
    """

    def __init__(self, began: int) -> None:
        self.paused = 0
        self.is_marked = False
        self._nanoseconds: dict[str, int] = {OTHER: 0}
        self._stack: list[str] = []
        self._automatic: list[bool] = []  # for each phase of the stack
        self._since = began
        self._estimates = False
        self._parts: dict[str, dict[str, float]] = {}
        """By the user's phase, nanoseconds of it and of the automatic phases in it, in `_timed` steps."""
        self._timed = 0.0
        self._left: dict[str, float] = {}
        """Nanoseconds that may still be shared out by automatic phase, for the steps that are not timed."""
        self._waited = 0
        """Nanoseconds that a GPU has waited for other ranks, which no time of the host has been counted for yet."""

    @property
    def innermost(self) -> str:
        """The innermost phase; empty outside of any."""
        return self._stack[-1] if self._stack else ""

    @property
    def reported(self) -> str:
        """The innermost of `PAUSES`, whatever is nested in it; else the innermost phase; empty outside of any."""
        return next((name for name in reversed(self._stack) if name in PAUSES), self.innermost)

    @property
    def is_saving(self) -> bool:
        """A checkpoint is being written."""
        return not SAVES.isdisjoint(self._stack)

    @property
    def is_used(self) -> bool:
        """A phase was entered at least once."""
        return len(self._nanoseconds) > 1 or bool(self._stack)

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds by phase up to the last `advance`; empty until a phase is entered."""
        return {name: spent / 1e9 for name, spent in self._nanoseconds.items()} if self.is_used else {}

    def accept(self, time: int, mark: PhaseMark) -> bool:
        """Apply a mark at *time* in monotonic nanoseconds; return False for the end of a phase that is not open."""
        self.advance(time)
        if mark.automatic and mark.phase == TIMED:
            self._set_timed(mark)
            return True
        if mark.enters:
            self.is_marked = self.is_marked or not (mark.automatic or mark.phase in UNMARKED)
            self._enter(mark.phase, automatic=mark.automatic)
            return True
        entry = (self._name(mark.phase), mark.automatic)
        places = [place for place, each in enumerate(zip(self._stack, self._automatic, strict=True)) if each == entry]
        if places:  # the innermost; the end of a user's phase ends everything nested in it
            end = places[-1] + 1 if mark.automatic else len(self._stack)
            del self._stack[places[-1] : end], self._automatic[places[-1] : end]
        return bool(places)

    def wait_on_device(self, seconds: float) -> None:
        """Count *seconds* in which a GPU waited for other ranks as `SYNC`, in place of as much time to come.

        The host waits for its GPU at another moment, as where it reads the loss, and in none of the user's phases.
        """
        self._waited += int(seconds * 1e9)

    def advance(self, time: int) -> None:
        """Count the time up to a moment."""
        # A heartbeat may have counted up to a later moment than that of a mark in the queue.
        spent = max(0, time - self._since)
        self._since = max(self._since, time)
        name = self.innermost or OTHER
        innermost_first = zip(self._stack[::-1], self._automatic[::-1], strict=True)
        users = next((phase for phase, automatic in innermost_first if not automatic), OTHER)
        if self._waited and users == OTHER and name != "data" and PAUSES.isdisjoint(self._stack):
            waited = min(self._waited, spent)
            self._nanoseconds[SYNC] = self._nanoseconds.get(SYNC, 0) + waited
            self._waited -= waited
            spent -= waited
        if self._estimates and name == users:
            self._share_out(users, spent)
        else:
            self._nanoseconds[name] += spent
            # These have marks in every step, so nothing of them is shared out.
            if name == users or name not in UNMARKED:
                parts = self._parts.setdefault(users, {})
                parts[name] = parts.get(name, 0.0) + spent
        if any(name in PAUSES for name in self._stack):
            self.paused += spent

    def _share_out(self, users: str, spent: int) -> None:
        """Share out time in a user's phase whose steps were not timed.

        Time beyond `MAX_TIMES_USUAL` times the usual is something else, and counts for the user's phase.
        """
        parts = {name: part for name, part in self._parts.get(users, {}).items() if part}
        whole, left = sum(parts.values()), spent
        for name, part in parts.items():
            if name != users:
                share = int(min(spent * part / whole, self._left.get(name, 0.0)))
                self._left[name] = self._left.get(name, 0.0) - share
                self._nanoseconds[name] += share
                left -= share
        self._nanoseconds[users] += left

    def _set_timed(self, mark: PhaseMark) -> None:
        """Begin or end the timing of steps."""
        self._estimates = not mark.enters
        if mark.enters:
            self._timed *= FADES
            for parts in self._parts.values():
                parts.update((name, part * FADES) for name, part in parts.items())
            return
        self._timed += mark.timed
        self._left = {}
        for users, parts in self._parts.items():
            for name, part in parts.items():
                if name != users and self._timed:
                    self._left[name] = self._left.get(name, 0.0) + part / self._timed * mark.left_out * MAX_TIMES_USUAL

    def _enter(self, phase: str, *, automatic: bool) -> None:
        name = self._name(phase)
        if automatic and (name in self._stack or not PAUSES.isdisjoint(self._stack)):
            return
        self._nanoseconds.setdefault(name, 0)
        self._stack.append(name)
        self._automatic.append(automatic)
        del self._stack[:-SESSION_PHASES], self._automatic[:-SESSION_PHASES]  # of phases whose ends were dropped

    def _name(self, phase: str) -> str:
        has_room = phase in self._nanoseconds or (
            len(self._nanoseconds) < SESSION_PHASES and len(phase) <= PHASE_LENGTH
        )
        return phase if has_room else OTHER
