"""Record which samples the batches have that a framework's loaders yield, for loops that do not use `trackside.data`."""

from __future__ import annotations

import sys
from collections import deque
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from trackside.default_run import open_run
from trackside.drawn_batches import EARLY, BatchFollower, note_draws
from trackside.totals.phases import PhaseMark

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from trackside.drawn_batches import DrawnBatch


def follow_loaders(kind: Any) -> None:
    """Patch ``__iter__`` of a class of loaders, once."""
    original = kind.__iter__
    if not hasattr(original, "trackside"):
        note_draws()

        def iterate(self: Any) -> Iterator[Any]:
            return _followed(original, self)

        iterate.trackside = True  # type: ignore[attr-defined]
        kind.__iter__ = iterate


def _followed(original: Callable[[Any], Iterable[Any]], loader: Any) -> Iterator[Any]:
    """Yield the batches of a loader. Those of an evaluation, which records no gradients, are left out."""
    batches = iter(original(loader))
    follower, early = BatchFollower(batches), deque[tuple[int, PhaseMark]](maxlen=EARLY)
    records_gradients = sys.modules["torch"].is_grad_enabled
    while True:
        follower.begin()
        try:
            batch = next(batches)
        except StopIteration:
            _record(early, follower.ended())
            return
        if records_gradients():
            _record(early, follower.arrived(batch))
        yield batch
        del batch


def _record(early: deque[tuple[int, PhaseMark]], batches: tuple[DrawnBatch, ...]) -> None:
    early.append((monotonic_ns(), PhaseMark(enters=False, phase="data", automatic=True, batches=batches)))
    run = open_run()
    while early and run is not None:
        run.queue.append(*early.popleft())
