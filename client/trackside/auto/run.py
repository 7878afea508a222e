"""The run that hooks push to: the training code's own, else one that the first found value opens.

Found values come in three layers. Those of a framework's callbacks are pushes of an integration. Those of trackers keep their
keys and steps. Those of the training watch fill in what is left. A key of a better layer is left out here, and so is one
that the training code pushes itself.

A process may train several times, one after the other: each is a run, named as the first with a number.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, NamedTuple

from trackside.default_run import default, init, is_loader_worker, open_run
from trackside.environment.identity import identify
from trackside.numbers import is_scalar
from trackside.pytorch.hooks import uncompiled
from trackside.row_queue import flat
from trackside.totals.session_totals import Deferred
from trackside.wire import HOOK_FAILED

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Iterator, Mapping

    from trackside.row_queue import RowQueue
    from trackside.rows import Row
    from trackside.run import Run

AMOUNTS = ("samples", "tokens")  # keys whose values add up until a push carries them
END_SECONDS = 0.1  # limit of the wait for values on a device at the end of a run that another follows
RUNS = 256  # limit of the runs of a process that are told apart; what follows belongs to the last


class Direct(NamedTuple):
    """Rows to which numbers of some keys can be appended at once, as those of the step before.

    They are those of a queue, as long as it is that of the default run.
    """

    rows: deque[Row]
    keys: tuple[str, ...]
    queue: RowQueue
    default: Run


class AutoRun:
    """The run of this process, for the hooks in all of its threads.

    Args:
        failures: Names and errors of hooks that failed, which this sends and removes.

    Attributes:
        step: Number of optimizer steps in the run.
        is_own: The open run is one that this opened.
        direct: Where the next step's values can be appended at once; None if `found` must push them.
    """

    def __init__(self, failures: list[tuple[str, str]]) -> None:
        self.step = 0
        self._failures = failures
        self._queue: RowQueue | None = None
        self.is_own = False
        self._opens = True
        self._name: str | None = None
        self._config: dict[str, Any] = {}
        self._tags: tuple[str, ...] = ()
        self._counts_steps = ""
        self._last_tracked: int | None = None
        self._tracked: set[str] = set()
        self._found: set[str] = set()
        self._marked: tuple[str, ...] = ()
        self._overridden = 0
        self._joining: dict[str, float] = {}
        self._first: tuple[int, Deferred, dict[str, Any]] | None = None
        self._next: str | None = None  # what follows the first run's name; empty for a number
        self._base = ""
        self._count = 0
        self._is_tracker_over = False
        self._muted = 0
        self.direct: Direct | None = None

    @property
    def queue(self) -> RowQueue | None:
        """The queue of the open run; None without one, and then nothing is opened."""
        run = open_run()
        if run is None:
            return None
        if run.queue is not self._queue:
            self._join_run(run.queue, is_own=False)
        return run.queue

    def open(self) -> str:
        """Open the run if it is not, report the failed hooks, and return the run's id; empty if there is none."""
        queue = self.queue or self._open()
        self.send_failures()
        return "" if queue is None else queue.session.identity.run

    def found(self, values: dict[str, Any]) -> RowQueue | None:
        """Push what was found about an optimizer step, which this counts, and return the run's queue. It opens the run."""
        queue = self.queue or self._open()
        if queue is not None:
            self._push(queue, values, self.step)
            self.step += 1
        return queue

    def found_before(self, steps: list[tuple[int, dict[str, Any]]]) -> None:
        """Push what was found about steps of the past, by the monotonic nanoseconds of each. It opens the run."""
        queue = self.queue or self._open()
        for moment, values in steps if queue is not None else ():
            self._push(queue, values, self.step, moment)  # type: ignore[arg-type]
            self.step += 1

    def begin_next(self, suffix: str = "", config: Mapping[str, Any] | None = None, tags: tuple[str, ...] = ()) -> bool:
        """Let the next value open a run of its own, and return whether it will.

        It will not if the training code has opened the run, or if the process has had `RUNS` of them.

        Args:
            suffix: What follows the name of the first run; empty for a number.
            config: The configuration of that run; None for that of this one, and its tags.
            tags: Words to find it by.
        """
        queue = self.queue
        if self._muted or self._count >= RUNS or (queue is not None and not self.is_own):
            return False
        if queue is not None:
            if not (self.step or self._tracked or queue.is_led):
                return False
            self._base = self._base or queue.session.identity.name
            queue.close("finished", timeout=END_SECONDS, waits=False)
        self._next = suffix if suffix or self._count else None
        self._name = None
        self._is_tracker_over = False
        if config is not None:
            self._config, self._tags = dict(config), tags
        return True

    def end_tracked(self) -> None:
        """Note that a tracker's run has ended; what no tracker gets may still follow."""
        self._is_tracker_over = not self._muted and bool(self._tracked)

    def begin_tracked(self) -> None:
        """Begin the next run with that of a tracker, if its last one has ended."""
        if self._is_tracker_over:
            self._is_tracker_over = False
            self.begin_next(config={})

    @property
    def has_next(self) -> bool:
        """The next value opens another run than the last one."""
        return self._next is not None

    @property
    def is_new(self) -> bool:
        """The open run is one that this opened, and no optimizer has stepped in it."""
        return self.is_own and not self.step

    @property
    def has_steps(self) -> bool:
        """A run is open that this opened, and an optimizer has stepped in it."""
        return self.step > 0 and self.is_own and self.queue is not None

    def found_in_step(self, values: dict[str, Any]) -> None:
        """Push more about the optimizer step that was counted last."""
        queue = self.queue
        if queue is not None:
            self._push(queue, values, max(0, self.step - 1))

    def tracked(self, values: Mapping[str, Any], step: int, separator: str = ".") -> None:
        """Push numbers that the training gave a tracker, with the tracker's keys and step. It opens the run.

        Args:
            values: Numbers by key; anything else among them is left out.
            step: Their step, as the tracker counts.
            separator: Text between the keys of nested mappings.
        """
        numbers = {} if self._muted else dict(_numbers(values, separator))
        if not numbers:
            return
        queue = self.queue or self._open()
        if queue is None:
            return
        if not self._tracked.issuperset(numbers):
            self._tracked.update(numbers)
            if self._first is not None and any(key.rpartition("/")[2] == "lr" for key in numbers):
                self._tracked.add("learning_rate")  # the same from its first step on
            self.direct = None
        queue.push_found(numbers, step, aside=queue.is_led or not self._is_counted_by_tracker(step))

    def describe(self, *, name: str | None = None, config: Mapping[str, Any] | None = None, tags: Any = ()) -> None:
        """Add details that a tracker has; those of a run that the training code or a framework has opened stay."""
        if self._muted:
            return
        self._name = name or self._name
        self._config.update(config or {})
        self._tags = tuple(dict.fromkeys((*self._tags, *map(str, tags or ()))))
        queue = self.queue
        if queue is not None and self.is_own:
            queue.describe(self._config or None, tags=self._tags)

    @contextmanager
    def muted(self) -> Iterator[None]:
        """Ignore what trackers get: a framework passes on what its callback has pushed."""
        self._muted += 1
        try:
            yield
        finally:
            self._muted -= 1

    def send_failures(self) -> bool:
        """Report the hooks that have failed to the daemon; return False without a run."""
        queue = self.queue
        while queue is not None and self._failures:
            hook, reason = self._failures.pop()
            queue.event(HOOK_FAILED, {"hook": hook, "error": reason})
        return queue is not None

    def _open(self) -> RowQueue | None:
        if not self._opens:
            return None
        enabled = not is_loader_worker()
        name, other = self._name, dict[str, Any]()
        if self._next is not None:
            first = identify()
            self._base = self._base or first.name
            suffix, self._next = self._next or str(self._count + 1), None
            name = name or f"{self._base}-{suffix}"
            if first.run == identify().run:  # a launcher's or the user's, else each has one of its own
                other = {"id": f"{first.run}-{suffix}"}
        run = uncompiled(init)(name, config=self._config or None, tags=self._tags, enabled=enabled, **other)
        if not run.is_open:  # turned off, not this rank's turn, a loader's worker, or the end of the process
            self._opens = False
            return None
        self._count += 1
        self._join_run(run.queue, is_own=True)
        return run.queue

    def _join_run(self, queue: RowQueue, *, is_own: bool) -> None:
        if self.is_own and self._queue is not None:
            self._queue.close("finished", timeout=0.0)  # replaced by one of the training code
        self._queue, self.is_own = queue, is_own
        queue.pending_values()  # so that it finds out which keys the training code pushes
        self.step, self._counts_steps, self._last_tracked = 0, "", None
        self._tracked, self._found, self._marked, self._overridden = set(), set(), (), 0
        self._joining, self.direct, self._first = {}, None, None
        self.send_failures()

    def _push(self, queue: RowQueue, values: dict[str, Any], step: int, moment: int | None = None) -> None:
        if self._first is not None:
            self._push_first()
        if not self._tracked.isdisjoint(values):
            values = {key: value for key, value in values.items() if key not in self._tracked}
        if queue.is_led:
            self._join(queue, values)
        elif self._counts_steps == "tracker":
            queue.push_found(values, self._last_tracked)
        elif not self._counts_steps:
            self._counts_steps = "training"
            self._hold_first(queue, values, step, moment)
            return
        else:
            queue.push_found(values, step, moment=moment)
            is_direct = self._is_direct(values) and not queue.polls
            self.direct = Direct(queue.session.rows, tuple(values), queue, default) if is_direct else None
        pending = queue.pending
        if not self._found.issuperset(values) or (pending is not None and len(pending.overridden) != self._overridden):
            self._mark(queue, values)

    def _hold_first(self, queue: RowQueue, values: dict[str, Any], step: int, moment: int | None) -> None:
        """Count the first step, whose values wait for the next: until then the training code may push them itself."""
        place = Deferred(step, ())
        self._first = monotonic_ns() if moment is None else moment, place, values
        queue.push_found({}, place, moment=moment)
        pending = queue.pending_values()
        pending.keys.update(values)
        pending.after_push(self._push_first)
        self._mark(queue, values)

    def _push_first(self) -> None:
        first, self._first = self._first, None
        queue = self._queue
        if first is not None and queue is not None:
            moment, place, values = first
            kept = {key: value for key, value in values.items() if key not in self._tracked}
            queue.push_found(kept, place, moment=moment)
            self._mark(queue, kept)

    def _is_direct(self, values: dict[str, Any]) -> bool:
        """Return whether the next values of these keys can be appended to the queue's rows at once."""
        return self._tracked.isdisjoint(values) and all(type(value) in {int, float} for value in values.values())

    def _join(self, queue: RowQueue, values: dict[str, Any]) -> None:
        """Add values to the next push of the training code, whose steps count."""
        if not self._joining:
            queue.after_push(self._joining.clear)
        self._joining.update((key, self._joining.get(key, 0) + values.get(key, 0)) for key in AMOUNTS)
        queue.join_next_push({**values, **{key: sum_ for key, sum_ in self._joining.items() if sum_}})

    def _mark(self, queue: RowQueue, values: dict[str, Any]) -> None:
        """Send which keys the training watch has found."""
        overridden = queue.pending_values().overridden
        self._found.update(values)
        self._overridden = len(overridden)
        marked = tuple(sorted(self._found - overridden - self._tracked))
        if marked != self._marked:
            self._marked = marked
            queue.session.describe(auto=marked)

    def _is_counted_by_tracker(self, step: int) -> bool:
        """Return whether the tracker's steps are those of the run: nothing else counts steps.

        With PyTorch an optimizer may soon do so. It does not if the tracker gets a second step before.
        """
        before, self._last_tracked = self._last_tracked, step
        if not self._counts_steps and ("torch" not in sys.modules or before not in {None, step}):
            self._counts_steps = "tracker"
        return self._counts_steps == "tracker"

    def forked(self) -> None:
        """Begin anew in a forked child, whose parent keeps its run."""
        self._queue, self.is_own, self._opens, self._muted, self.direct = None, False, True, 0, None
        self._first, self._next, self._base, self._count = None, None, "", 0


def _numbers(values: Mapping[str, Any], separator: str) -> Iterator[tuple[str, Any]]:
    for key, value in flat(values, separator):
        if isinstance(value, int | float) or is_scalar(value):
            yield key, value
