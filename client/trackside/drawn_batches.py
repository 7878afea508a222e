"""Note which samples each batch of PyTorch's data loaders has.

A loader draws lists of indices from its sampler, with workers ahead of the batches, and yields the batches in that order. So each
iterator notes its lists, and the number of a batch finds its own. Nothing is drawn, copied to a worker or put in another order.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import wraps
from operator import index
from typing import Any, NamedTuple

from trackside.limits import SAMPLE_LENGTH
from trackside.packing import text_of

MOST_SAMPLES = 16_384  # of a batch; of a larger one the first are kept
MOST_BYTES = 256 * 1024  # of what is kept of a batch: more is not indices, but samples
RECENT = 1024  # batches whose sizes are kept: more than there are of so many samples in `RecentBatches`
KEPT = 16  # batches that a loader has yielded, in which their samples are looked up
EARLY = 64  # batches fetched before the run is open that are kept
FRAMES = 24  # callers among which the one that fetches a batch ahead is looked for
IDS = ("__key__", "sample_id", "sample_ids", "id", "ids", "idx")  # keys of the ids in batches of iterable data sets

_DRAWS = "_next_index"  # method of all iterators of PyTorch's loaders
_ATTRIBUTE = "trackside_iteration"  # of an iterator: its `LoaderIteration`
_AHEAD = "accelerate.data_loader", "lightning.pytorch.loops.fetchers", "pytorch_lightning.loops.fetchers"


DrawnBatch = tuple["LoaderIteration", int, "list[int] | bytes | None"]
"""A batch: its iteration, its number in it from 0, and its samples: a list, or one in msgpack; None if they are unknown."""


class StepBatches(NamedTuple):
    """The batches that a training fetched for a step: several if it accumulates gradients, or does not push each step."""

    step: int
    batches: tuple[DrawnBatch, ...]


class KeptBatches(NamedTuple):
    """Batches of the *steps* that were asked for, the last one first, and the *first* step whose batches are kept; None for none."""

    steps: list[StepBatches]
    first: int | None


class LoaderIteration:
    """One iteration over a loader, such as an epoch.

    Args:
        iterator: The iterator of the loader; None for a loader that is no `DataLoader` of PyTorch.

    Attributes:
        dataset: Returns the data set, or None if it has gone.
        number: Number of iterations over the data set in this process, with this one; 0 if they are not counted.
        workers: Number of worker processes.
        turns: Number of batches that the workers of an iterable data set have made in turn.
        sizes: Number of samples of batches that have too many to be kept, by number.
        is_ahead: The caller uses each batch after having asked for the next.
        why: Why the samples are unknown, in one line; empty if they are known.
        describe: The user's function that turns an index into a name.
    """

    __slots__ = (
        *("__weakref__", "dataset", "describe", "drawn", "draws", "is_ahead", "iterator", "kept", "number"),
        *("sizes", "turns", "why", "workers", "yields"),
    )

    def __init__(self, iterator: Any = None) -> None:
        self.drawn: dict[int, list[int] | bytes | None] = {}
        self.sizes: dict[int, int] = {}
        self.dataset: Callable[[], Any] = _nothing
        self.iterator: Callable[[], Any] = _nothing
        self.describe: Callable[[Any], object] | None = None
        self.is_ahead = False
        self.number = self.workers = self.turns = 0
        self.kept = KEPT
        self.draws = self.yields = "_num_yielded"  # without workers, a batch is drawn when it is asked for
        self.why = "the loader is no DataLoader of PyTorch"
        if iterator is None:
            return
        self.workers = iterator._num_workers  # noqa: SLF001  an iterator has no public names
        if self.workers:
            self.draws, self.yields = "_send_idx", "_rcvd_idx"
            self.kept += 2 * self.workers * iterator._prefetch_factor  # noqa: SLF001  the same
        self.iterator = weakref.ref(iterator)
        dataset = iterator._dataset  # noqa: SLF001  the same
        with suppress(TypeError):  # a list
            self.dataset = weakref.ref(dataset)
            self.number = _count(dataset)
        self.why = ""
        is_iterable = iterator._dataset_kind != 0  # noqa: SLF001  the same
        if is_iterable:
            self.why = "the data set is iterable, so that samples have no index"
        if self.workers > 1 and not getattr(iterator, "_in_order", True):
            self.why = "in_order=False yields batches in another order than the sampler's"
            self.yields, self.turns = "_num_yielded", -1  # nor is it known which worker has made one
        caller = _fetcher()
        self.is_ahead = "accelerate" in caller or (bool(caller) and is_iterable and not hasattr(dataset, "__len__"))

    def newest(self) -> DrawnBatch | None:
        """Return the batch that was yielded last; None if none was, or the iteration is over."""
        iterator = self.iterator()
        state = {} if iterator is None else iterator.__dict__
        # An iterator with persistent workers begins anew, and counts the batches of its next iteration.
        number = state[self.yields] - 1 if state.get(_ATTRIBUTE) is self else -1
        return None if number < 0 else (self, number, self.drawn.get(number))

    def trim(self, number: int) -> None:
        """Forget what is older than the last batches before a number, and all if its samples are too large."""
        for old in [one for one in self.drawn if one <= number - self.kept // 2]:
            del self.drawn[old]
        for old in [one for one in self.sizes if one <= number - RECENT]:
            del self.sizes[old]
        if len(self.drawn.get(number) or b"") > MOST_BYTES:
            self.drawn.clear()
            self.why = "the sampler draws more than indices, too much to be kept"


class BatchFollower:
    """Tells which batches of PyTorch's loaders are in what an iterator yields.

    Args:
        batches: An iterator of a `DataLoader`; or any other, which may ask for the batches of loaders.
        describe: See `LoaderIteration`.
    """

    __slots__ = ("_describe", "_held", "_is_plain", "_iteration", "_iterator", "_last", "_number", "_touched")

    def __init__(self, batches: Any, describe: Callable[[Any], object] | None = None) -> None:
        # Weak: an iterator that has one of these as its attribute must end its workers once it is dropped.
        self._iterator: Callable[[], Any] | None = None
        with suppress(Exception):  # an iterator of the user's own, whose attributes may fail
            self._iterator = weakref.ref(batches) if hasattr(batches, "_num_yielded") else None
        self._iteration: LoaderIteration | None = None
        self._describe = describe
        self._held: tuple[DrawnBatch, ...] = ()
        self._last: dict[LoaderIteration, int] = {}
        self._touched: set[LoaderIteration] = set()
        self._is_plain = self._iterator is None
        self._number = 0

    def begin(self) -> None:
        """Note that the next batch is asked for."""
        if self._iterator is None:
            _around[:] = (self._touched,)

    def arrived(self, yielded: Any) -> tuple[DrawnBatch, ...]:
        """Return the batches in what was *yielded* last; of an iterator that fetches ahead those that the training uses now."""
        # In one piece for the usual loader: between two steps the CPU caches are cold.
        try:
            if self._iterator is None:
                return self._of_others()
            state = self._iterator().__dict__
            iteration: LoaderIteration | None = state.get(_ATTRIBUTE)
            if iteration is None:
                return ()
            number = state[iteration.yields] - 1
            if iteration is not self._iteration:
                self._iteration, iteration.describe = iteration, self._describe or iteration.describe
            samples = iteration.drawn.get(number)
            if samples is None and isinstance(yielded, dict):
                samples = iteration.drawn[number] = _ids(yielded)
            batch = ((iteration, number, samples),)
            return self._held_back(batch) if iteration.is_ahead else batch
        except Exception:  # noqa: BLE001  of a batch of the user's own kind, and training must go on
            return ()

    def ended(self) -> tuple[DrawnBatch, ...]:
        """Return what was held back, at the end of the iteration."""
        held, self._held = self._held, ()
        return held

    def _of_others(self) -> tuple[DrawnBatch, ...]:
        only = self._iteration  # of one loader around another, of which this is mostly the next batch
        iterator = None if only is None or len(self._touched) > 1 else only.iterator()
        if only is not None and iterator is not None:
            state, number = iterator.__dict__, self._last.get(only, -1) + 1
            if state.get(_ATTRIBUTE) is only and state[only.yields] == number + 1:
                self._last[only] = number
                return self._held_back(((only, number, only.drawn.get(number)),))
        new: list[DrawnBatch] = []
        for iteration in {*self._touched, *self._last}:
            batch = iteration.newest()
            if batch is None:
                self._last.pop(iteration, None)
            else:
                iteration.describe = self._describe or iteration.describe
                since = self._last.get(iteration, -1) + 1
                new += [(iteration, one, iteration.drawn.get(one)) for one in range(since, batch[1] + 1)]
                self._last[iteration] = batch[1]
        self._touched.clear()
        self._touched.update(self._last)
        if new or not self._is_plain:
            self._is_plain = False
            self._iteration = next(iter(self._last)) if len(self._last) == 1 else None
            return self._held_back(tuple(new[-KEPT:]))
        self._iteration = self._iteration or LoaderIteration()
        self._number += 1
        return ((self._iteration, self._number - 1, None),)

    def _held_back(self, new: tuple[DrawnBatch, ...]) -> tuple[DrawnBatch, ...]:
        if not new or not new[-1][0].is_ahead:
            return self.ended() + new
        every, self._held = self._held + new[:-1], new[-1:]
        return every


def note_draws() -> None:
    """Have the iterators of PyTorch's data loaders note what they draw, from now on, if PyTorch's loaders are imported."""
    module = sys.modules.get("torch.utils.data.dataloader")
    kind = getattr(module, "_BaseDataLoaderIter", None)
    original = getattr(kind, _DRAWS, None)
    if original is None or hasattr(original, "trackside"):
        return

    @wraps(original)
    def next_index(self: Any) -> Any:
        try:
            drawn = original(self)
        except StopIteration:
            if (iteration := getattr(self, _ATTRIBUTE, None)) is not None:
                for touched in _around:
                    touched.add(iteration)
            raise
        try:
            state = self.__dict__
            iteration = state.get(_ATTRIBUTE)
            number = 0 if iteration is None else state[iteration.draws]
            is_usual = (
                type(drawn) is list and 0 < len(drawn) <= MOST_SAMPLES and type(drawn[0]) is int is type(drawn[-1])
            )
            if is_usual and number and not iteration.why:
                # A copy, since a sampler may fill the same list again. The sender's thread packs it: see `packed`.
                iteration.drawn[number] = drawn.copy()
                if len(iteration.drawn) > iteration.kept:
                    iteration.trim(number)
            else:
                iteration = _note(self, drawn)
            for touched in _around:
                touched.add(iteration)
        except Exception:  # noqa: BLE001  private names of PyTorch may change, and training must go on
            setattr(kind, _DRAWS, original)
        return drawn

    next_index.trackside = True  # type: ignore[attr-defined]
    setattr(kind, _DRAWS, next_index)


def packed(samples: list[Any]) -> bytes:
    """Return a list of samples in msgpack."""
    from msgspec.msgpack import encode  # of which `import torch` by itself needs nothing

    try:
        return encode(samples)
    except Exception:  # noqa: BLE001  of numbers of NumPy, or objects of the user's own
        return encode([_id(one) for one in samples])


def _note(iterator: Any, drawn: Any) -> LoaderIteration:
    """Note the first batch of an iteration, or an unusual one."""
    state = iterator.__dict__
    iteration: LoaderIteration | None = state.get(_ATTRIBUTE)
    if iteration is None or not state[iteration.draws]:
        iteration = state[_ATTRIBUTE] = LoaderIteration(iterator)
    number = state[iteration.draws]
    samples = None
    if not iteration.why:
        listed = _listed(drawn)
        samples = packed(listed[:MOST_SAMPLES])
        if len(listed) > MOST_SAMPLES:
            iteration.sizes[number] = len(listed)
    elif iteration.turns == number and iteration.workers and all(state["_workers_status"]):
        iteration.turns += 1
    iteration.drawn[number] = samples
    iteration.trim(number)
    return iteration


def _ids(yielded: Mapping[Any, Any]) -> bytes | None:
    """Return the ids that a batch has itself, as of WebDataset; numbers on a device are left there."""
    for key in IDS:
        ids: Any = yielded.get(key)
        if getattr(ids, "is_cpu", False) and ids.dim() == 1 and not ids.is_floating_point():
            ids = ids[:MOST_SAMPLES].tolist()
        ids = ids[:MOST_SAMPLES] if isinstance(ids, (list, tuple)) else ()
        if ids and all(type(one) in {int, str} for one in ids):
            return packed([_id(one) for one in ids])
    return None


def _fetcher() -> str:
    """Return the module among the callers that asks for a batch before it yields the one before; empty if none does."""
    frame: Any = sys._getframe()  # noqa: SLF001  public in all but its name
    for _ in range(FRAMES):
        if frame is None:
            break
        if (name := frame.f_globals.get("__name__", "")) in _AHEAD:
            return str(name)
        frame = frame.f_back
    return ""


def _listed(drawn: Any) -> list[Any]:
    """Return what a sampler of the user's own has drawn as a list: without automatic batching it is a single index.

    Numbers on a device are not read, since that would wait for it.
    """
    listed = getattr(drawn, "tolist", None) if getattr(drawn, "is_cpu", True) else tuple
    drawn = drawn if listed is None else listed()
    return list(drawn) if isinstance(drawn, (tuple, list, set, range)) else [drawn]


def _id(sample: Any) -> int | str:
    if not getattr(sample, "is_cpu", True):
        return type(sample).__name__
    with suppress(Exception):  # of an object of the user's own
        if -(2**63) <= (number := int(index(sample))) < 2**64:
            return number
    return text_of(sample)[:SAMPLE_LENGTH]


def _nothing() -> None:
    """Stand for a weak reference whose object has gone."""


def _count(dataset: Any) -> int:
    """Return how many iterations over a data set there were, with this one; by identity, since its hash may be slow or fail."""
    key = id(dataset)
    reference, before = _iterations.get(key) or (weakref.ref(dataset, lambda _: _iterations.pop(key, None)), 0)
    _iterations[key] = reference, before + 1
    return before + 1


_iterations: dict[int, tuple[weakref.ref[Any], int]] = {}
_around: list[set[LoaderIteration]] = []
"""Where the iterations go that draw while the last `BatchFollower` waits that follows no loader itself."""
