"""Where the training's time goes: phases, and waits for data."""

from __future__ import annotations

from contextlib import ContextDecorator
from functools import wraps
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

EVALS = frozenset(("eval", "evaluation", "validation"))
SAVES = frozenset(("checkpoint", "save"))
PAUSES = EVALS | SAVES
"""Phases that are no part of a step's duration."""

OTHER = "other"
"""The time outside any phase."""

TIMED = ""
"""A found phase of this name is no phase: in it the others are found, and after it the time is shared out as it was in it."""

LONGEST = 2
"""A stage of steps that are not timed has so many times as long at most: steps vary, but what is far longer is a pause."""

FADES = 7 / 8
"""Of what was found before, so much is kept each time that it is found out anew."""

PHASES = 64
PHASE_LENGTH = 128
"""So many phases are told apart, of names of so many characters; the time of further ones is `OTHER`."""

T = TypeVar("T")
F = TypeVar("F", bound="Callable[..., Any]")


class Mark(NamedTuple):
    """A row that is no push: the training enters or leaves a phase.

    Attributes:
        enters: Or leaves.
        phase: The phase's name.
        waited: Nanoseconds that it has waited for a batch of data, if it has got one.
        first: That was the first one of an epoch.
        found: It is no phase of the user's own, but what watching has found out.
        failed: It leaves the phase by an exception.
        timed: With the end of `TIMED`, so many steps were.
        left_out: And so many that come are not.
    """

    enters: bool
    phase: str
    waited: int | None = None
    first: bool = False
    found: bool = False
    failed: bool = False
    timed: int = 0
    left_out: int = 0


_WAITS, _HAS_NONE = Mark(enters=True, phase="data"), Mark(enters=False, phase="data")


class Phase(ContextDecorator):
    """Marks a phase, as a context or around each call of a function; holds nothing, so one may be used many times.

    Args:
        tell: Takes each mark and its moment, in monotonic nanoseconds.
        name: The phase's.

    Raises:
        TypeError: The name is no text, as when the parentheses of ``@run.phase("eval")`` were forgotten.
    """

    def __init__(self, tell: Callable[[int, Mark], None], name: str) -> None:
        if not isinstance(name, str):
            raise TypeError(f'a phase has a name, as in phase("eval"), and {name!r} is none')
        self._tell = tell
        self._enter, self._leave = Mark(enters=True, phase=name), Mark(enters=False, phase=name)
        self._fail = self._leave._replace(failed=True)

    def __call__(self, function: F) -> F:
        """The same function, each of whose calls is a phase.

        Raises:
            TypeError: It is a generator function, whose calls do nothing yet.
        """
        if isgeneratorfunction(function) or isasyncgenfunction(function):
            raise TypeError(f"{function.__qualname__} is a generator function; use the phase inside of it, with a with")
        if not iscoroutinefunction(function):
            return super().__call__(function)

        @wraps(function)
        async def called(*args: Any, **named: Any) -> Any:
            with self:
                return await function(*args, **named)

        return called  # type: ignore[return-value]

    def __enter__(self) -> Phase:  # noqa: PYI034  Self came with Python 3.11
        self._tell(monotonic_ns(), self._enter)
        return self

    def __exit__(self, kind: type[BaseException] | None = None, *_: object) -> None:
        self._tell(monotonic_ns(), self._leave if kind is None else self._fail)


class TimedLoader(Generic[T]):
    """A loader whose waits are timed: how long the training thread stands still until it has the next batch.

    The first batch of each way through it is told apart: it waits for workers that are only starting. What an iterator
    gives, which has one beginning, has one first batch however often it is taken up. To be iterated, as often as the loader.
    It has the loader's length and attributes, so that ``len(batches)`` and ``batches.sampler.set_epoch(1)`` go on to work;
    to whoever asks for the loader's class, it is none.
    """

    def __init__(self, tell: Callable[[int, Mark], None], loader: Iterable[T]) -> None:
        self._tell = tell
        self._loader = loader
        self._begun = False

    def __iter__(self) -> Iterator[T]:
        since = monotonic_ns()
        self._tell(since, _WAITS)
        try:
            batches = iter(self._loader)
        finally:
            now = monotonic_ns()
            self._tell(now, _HAS_NONE)
        goes_on = self._begun and batches is self._loader
        self._begun = True
        return _TimedIterator(self._tell, batches, None if goes_on else now - since)

    def __bool__(self) -> bool:
        return bool(self._loader)

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._loader, name)


class _TimedIterator(Generic[T]):
    """One way through a loader. No generator: its frame would keep a batch alive that the training has let go of.

    Args:
        tell: Takes each mark and its moment, in monotonic nanoseconds.
        batches: The loader's own iterator.
        before: Nanoseconds that its making took, which the first batch has been waited for too; None when that is past.
    """

    def __init__(self, tell: Callable[[int, Mark], None], batches: Iterator[T], before: int | None) -> None:
        self._tell = tell
        self._batches = batches
        self._before = before

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        since = monotonic_ns()
        self._tell(since, _WAITS)
        try:
            batch = next(self._batches)
        except BaseException:
            self._tell(monotonic_ns(), _HAS_NONE)
            raise
        now = monotonic_ns()
        before, self._before = self._before, None
        waited = now - since + (before or 0)
        self._tell(now, Mark(enters=False, phase="data", waited=waited, first=before is not None))
        return batch


class PhaseTimes:
    """Seconds by phase, each without those nested in it. With the time outside any they sum to the time since *began*.

    What was found gives way to what the user says: a phase that is open already, and any in one of `PAUSES`, is not
    entered again, and its end ends nothing else. Where only some steps are timed (`TIMED`), the time of the others is shared
    out as that of the last ones that were.

    Args:
        began: Monotonic nanoseconds.

    Attributes:
        paused: Nanoseconds spent in `PAUSES` and what is nested in them.
    """

    def __init__(self, began: int) -> None:
        self.paused = 0
        self._nanoseconds: dict[str, int] = {OTHER: 0}
        self._stack: list[str] = []
        self._found: list[bool] = []  # of each in the stack
        self._since = began
        self._estimates = False
        self._parts: dict[str, dict[str, float]] = {}
        """By the user's phase, nanoseconds of it and of what was found in it, in `_timed` steps."""
        self._timed = 0.0
        self._left: dict[str, float] = {}
        """Nanoseconds that may still be shared out, of what is found in as many steps as are not timed."""

    @property
    def current(self) -> str:
        """The innermost phase; empty outside."""
        return self._stack[-1] if self._stack else ""

    @property
    def told(self) -> str:
        """The innermost of `PAUSES`, whatever is nested in it; else the innermost phase, and empty outside."""
        return next((name for name in reversed(self._stack) if name in PAUSES), self.current)

    @property
    def saves(self) -> bool:
        """A checkpoint is being written."""
        return not SAVES.isdisjoint(self._stack)

    @property
    def used(self) -> bool:
        """A phase was ever entered."""
        return len(self._nanoseconds) > 1 or bool(self._stack)

    @property
    def seconds(self) -> dict[str, float]:
        """By phase, up to the moment of the last `advance`; empty while no phase was ever entered."""
        return {name: spent / 1e9 for name, spent in self._nanoseconds.items()} if self.used else {}

    def take(self, time: int, mark: Mark) -> None:
        """Follow a mark; one that leaves what was never entered, since a crowd of pushes has displaced that, is nothing."""
        self.advance(time)
        if mark.found and mark.phase == TIMED:
            self._time(mark)
            return
        if mark.enters:
            self._enter(mark.phase, mark.found)
            return
        name = self._name(mark.phase)
        of = [place for place, it in enumerate(zip(self._stack, self._found, strict=True)) if it == (name, mark.found)]
        if of:  # the innermost: what the user ends, ends all that is nested in it
            end = of[-1] + 1 if mark.found else len(self._stack)
            del self._stack[of[-1] : end], self._found[of[-1] : end]

    def advance(self, time: int) -> None:
        """Count the time up to a moment."""
        spent = max(0, time - self._since)
        self._since = max(self._since, time)
        name = self.current or OTHER
        users = next((one for one, found in zip(self._stack[::-1], self._found[::-1], strict=True) if not found), OTHER)
        if self._estimates and name == users:
            self._share_out(users, spent)
        else:
            self._nanoseconds[name] += spent
            parts = self._parts.setdefault(users, {})
            parts[name] = parts.get(name, 0.0) + spent
        if any(name in PAUSES for name in self._stack):
            self.paused += spent

    def _share_out(self, users: str, spent: int) -> None:
        """Count time in a phase of the user's in which what happens within it was not looked for.

        What is longer than so many steps, see `LONGEST`, is something else, and the user's phase's.
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

    def _time(self, mark: Mark) -> None:
        """Steps are timed from here on, or some are not."""
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
                    self._left[name] = self._left.get(name, 0.0) + part / self._timed * mark.left_out * LONGEST

    def _enter(self, phase: str, found: bool) -> None:
        name = self._name(phase)
        if found and (name in self._stack or not PAUSES.isdisjoint(self._stack)):
            return
        self._nanoseconds.setdefault(name, 0)
        self._stack.append(name)
        self._found.append(found)
        del self._stack[:-PHASES], self._found[:-PHASES]  # of phases whose ends were displaced

    def _name(self, phase: str) -> str:
        known = phase in self._nanoseconds or (len(self._nanoseconds) < PHASES and len(phase) <= PHASE_LENGTH)
        return phase if known else OTHER
