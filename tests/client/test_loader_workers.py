"""Workers of data loaders are timed however they start, and make the same batches as without."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from trackside.totals import loader_workers
from trackside.totals.loader_workers import READY, TRANSFORM, TRANSFORM_CPU, WORKERS, TimedWorker, timed_workers
from trackside.totals.phases import TimedLoader

if TYPE_CHECKING:
    from collections.abc import Iterator

SPAWNED = [pytest.param(name, marks=[pytest.mark.only_soak]) for name in ("forkserver", "spawn")]
"""Each imports PyTorch anew; tests/end_to_end/test_dataloaders.py has workers of a fork server."""


class Samples(Dataset[Any]):  # type: ignore[misc]
    """Samples with the random numbers of a worker, each of which takes 5 ms of CPU."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> list[float]:
        began = time.process_time()
        while time.process_time() - began < 0.005:
            pass
        return [index, random.random(), np.random.rand(), float(torch.rand(1))]  # noqa: NPY002  those that are seeded


class Failing(IterableDataset[Any]):  # type: ignore[misc]
    """Samples, and then an error."""

    def __iter__(self) -> Iterator[int]:
        yield from range(3)
        raise ValueError("broken sample")


def seeded(worker: int) -> None:
    random.seed(worker)
    np.random.seed(worker)  # noqa: NPY002


def loader(context: str | None = None, dataset: Any = None, **named: Any) -> DataLoader[Any]:
    """Return a loader with two workers, which shuffles."""
    torch.manual_seed(7)
    named = {"shuffle": True, "worker_init_fn": seeded, "batch_size": 2} if dataset is None else named
    return DataLoader(dataset or Samples(), num_workers=2, multiprocessing_context=context, **named)


def values(batches: Any) -> list[list[list[float]]]:
    return [[part.tolist() for part in batch] for batch in batches]


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, float]]:
    """The values that joined a push: after each batch."""
    monkeypatch.setattr(loader_workers, "EVERY", 0)
    return []


@pytest.mark.parametrize("context", ["fork", *SPAWNED])
def test_batches_and_their_random_numbers_are_those_of_a_loader_that_is_not_timed(
    joined: list[dict[str, float]], context: str
) -> None:
    plain = loader(context)
    expected = values(plain)
    timed = loader(context)
    assert values(TimedLoader(lambda *_: None, timed, joined.append)) == expected
    assert timed.worker_init_fn is seeded
    assert [one[WORKERS] for one in joined] == [2.0] * 6
    means = [one for one in joined if TRANSFORM in one]
    assert means
    assert all(one[TRANSFORM] >= one[TRANSFORM_CPU] * 0.9 >= 0.009 for one in means), "two samples of 5 ms"
    assert all(0 <= one[READY] <= 4 for one in joined)


def test_workers_that_persist_are_timed_in_all_epochs(joined: list[dict[str, float]]) -> None:
    batches = TimedLoader(
        lambda *_: None, loader("fork", Samples(), batch_size=2, persistent_workers=True), joined.append
    )
    for _ in range(3):
        assert len(values(batches)) == 6
    assert len(joined) == 18
    assert any(TRANSFORM in one for one in joined[12:])


def test_an_iterator_without_what_is_read_of_it_goes_on(
    joined: list[dict[str, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue of another PyTorch may have no size, as that on macOS."""

    def qsize(*_: object) -> int:
        raise NotImplementedError

    monkeypatch.setattr("multiprocessing.queues.Queue.qsize", qsize)
    assert len(values(TimedLoader(lambda *_: None, loader("fork"), joined.append))) == 6
    assert joined == []


def test_an_error_of_a_dataset_reaches_the_training(joined: list[dict[str, float]]) -> None:
    with pytest.raises(ValueError, match="broken sample"):
        list(TimedLoader(lambda *_: None, loader("fork", Failing()), joined.append))


@pytest.mark.parametrize("other", [[1, 2], None, DataLoader(Samples())])
def test_what_has_no_workers_is_left_alone(other: Any) -> None:
    with timed_workers(other) as times:
        assert times is None


def test_a_worker_that_cannot_open_the_counts_works_untimed() -> None:
    called: list[int] = []
    TimedWorker(called.append, 0, -1, 0)(1)
    assert called == [1]


def test_a_loader_with_more_workers_than_there_is_room_for_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader_workers, "SLOTS", 1)
    with timed_workers(loader()) as times:
        assert times is None
