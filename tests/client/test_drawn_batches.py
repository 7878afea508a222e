"""Loaders note the samples of their batches, and yield what they did without."""

from __future__ import annotations

import gc
import multiprocessing
import pickle
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any

import pytest
import torch
from msgspec.msgpack import decode
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    SequentialSampler,
    Subset,
    TensorDataset,
)

from trackside import drawn_batches
from trackside.captures.batches import NAMING_SECONDS, batches
from trackside.drawn_batches import BatchFollower, KeptBatches, StepBatches, note_draws, packed
from trackside.totals.phases import PhaseMark, TimedLoader
from trackside.totals.recent_batches import MOST_BYTES, RecentBatches
from trackside.wire import BatchSamples

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trackside.drawn_batches import DrawnBatch

NUMBERS = TensorDataset(torch.arange(50))


class Numbers(IterableDataset[Any]):  # type: ignore[misc]
    """The numbers from 0 to 19 without an index; of several workers each yields all."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(20))


class Words(IterableDataset[Any]):  # type: ignore[misc]
    """Samples with ids."""

    def __iter__(self) -> Iterator[dict[str, str]]:
        return iter([{"__key__": f"shard/{number}"} for number in range(4)])


class Huge(Dataset[int]):  # type: ignore[misc]
    """A data set of which nothing is kept by sample."""

    def __len__(self) -> int:
        return 10**9

    def __getitem__(self, index: int) -> int:
        return index


class Late(Dataset[int]):  # type: ignore[misc]
    """Two samples of which the first waits for the second, which another worker makes."""

    def __init__(self) -> None:
        self.second = multiprocessing.Event()

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        if index:
            self.second.set()
        else:
            self.second.wait()
        return index


class OwnSampler:
    """A batch sampler that uses one list again and again, with numbers of PyTorch in it."""

    def __iter__(self) -> Iterator[list[Any]]:
        batch: list[Any] = []
        for number in torch.randperm(50):
            batch.append(number)
            if len(batch) == 5:
                yield batch
                batch.clear()


LOADERS: dict[str, Callable[[int, bool], DataLoader[Any]]] = {
    "shuffled": lambda workers, keeps: DataLoader(
        NUMBERS, 8, shuffle=True, num_workers=workers, persistent_workers=keeps
    ),
    "distributed": lambda workers, keeps: DataLoader(
        NUMBERS, 8, sampler=DistributedSampler(NUMBERS, 2, 1), num_workers=workers, persistent_workers=keeps
    ),
    "batch sampler": lambda workers, keeps: DataLoader(
        NUMBERS,
        batch_sampler=BatchSampler(SequentialSampler(NUMBERS), 7, drop_last=True),
        num_workers=workers,
        persistent_workers=keeps,
    ),
    "single samples": lambda workers, keeps: DataLoader(
        NUMBERS, batch_size=None, shuffle=True, num_workers=workers, persistent_workers=keeps
    ),
}


def drawn(loader: Any, epochs: int = 2, describe: Any = None) -> tuple[list[Any], list[tuple[DrawnBatch, ...]]]:
    """Return what a timed loader yields in some epochs, and the batches that were noted with each."""
    marks: list[PhaseMark] = []
    timed = TimedLoader(lambda _, mark: marks.append(mark), loader, None, describe)
    yielded = [batch for _ in range(epochs) for batch in timed]
    return yielded, [mark.batches for mark in marks if mark.waited is not None]


def samples(noted: list[tuple[DrawnBatch, ...]]) -> list[Any]:
    return [[decode(packed(one[2]) if isinstance(one[2], list) else one[2] or b"\x90") for one in of] for of in noted]


@pytest.mark.parametrize(("workers", "keeps"), [(0, False), (2, False), (2, True)])
@pytest.mark.parametrize("kind", LOADERS)
def test_a_loader_yields_what_it_did_without_and_each_batch_has_its_own_samples(
    kind: str, workers: int, keeps: bool
) -> None:
    torch.manual_seed(3)
    plain = LOADERS[kind](workers, keeps)
    expected = [batch for _ in range(2) for batch in plain]
    state = torch.get_rng_state()
    torch.manual_seed(3)
    yielded, noted = drawn(LOADERS[kind](workers, keeps))
    assert torch.equal(state, torch.get_rng_state()), "no random number is drawn"
    numbers = [batch[0].reshape(-1).tolist() for batch in yielded]
    assert numbers == [batch[0].reshape(-1).tolist() for batch in expected], "nothing is put in another order"
    assert samples(noted) == [[batch] for batch in numbers]
    assert [of[0][0].number - noted[0][0][0].number for of in noted][-1] == 1
    assert keeps or pickle.loads(pickle.dumps(plain)).batch_size == plain.batch_size


def test_a_list_that_a_sampler_uses_again_is_noted_as_it_was_drawn() -> None:
    yielded, noted = drawn(DataLoader(NUMBERS, batch_sampler=OwnSampler()), 1)
    assert samples(noted) == [[batch[0].tolist()] for batch in yielded]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_batch_of_an_iterable_data_set_is_known_by_worker_and_number(workers: int) -> None:
    loader = DataLoader(Numbers(), 5, num_workers=workers)
    marks: list[PhaseMark] = []
    timed = iter(TimedLoader(lambda _, mark: marks.append(mark), loader))
    for _ in range(3):
        next(timed)
    last = marks[-1].batches
    (answer,) = batches(KeptBatches([StepBatches(7, last)], 5)).steps[7]
    assert (answer.samples, answer.number, answer.worker) == ([], 3, 2 % workers)
    assert "iterable" in answer.why


def test_ids_in_the_batches_of_an_iterable_data_set_are_its_samples() -> None:
    _, noted = drawn(DataLoader(Words(), 2), 1)
    assert samples(noted) == [[["shard/0", "shard/1"]], [["shard/2", "shard/3"]]]


def test_without_the_order_of_the_sampler_the_samples_are_unknown_for_that_reason() -> None:
    _, noted = drawn(DataLoader(Late(), 1, num_workers=2, in_order=False), 1)
    answer = [batches(KeptBatches([StepBatches(0, of)], 0)).steps[0][0] for of in noted]
    assert [(one.samples, one.number, one.worker) for one in answer] == [([], 1, None), ([], 2, None)]
    assert "in_order=False" in answer[0].why


def test_a_generator_has_numbers_of_batches_alone() -> None:
    _, noted = drawn((number for number in range(3)), 1)
    assert [(of[0][1], of[0][2]) for of in noted] == [(0, None), (1, None), (2, None)]


def test_a_loader_around_another_has_the_samples_of_its_batches() -> None:
    def pairs(loader: Any) -> Iterator[Any]:
        batches = iter(loader)
        for batch in batches:
            yield torch.cat([batch[0], next(batches)[0]])

    yielded, noted = drawn(pairs(DataLoader(NUMBERS, 5, shuffle=True)), 1)
    assert [first + second for first, second in samples(noted)] == [batch.tolist() for batch in yielded]


def test_batches_of_another_loader_in_between_have_their_own_samples() -> None:
    def interrupted(loader: Any, other: Any) -> Iterator[Any]:
        batches = iter(loader)
        yield from (next(batches)[0] for _ in range(3))
        yield from (batch[0] for batch in other)
        yield from (batch[0] for batch in batches)

    loaders = DataLoader(NUMBERS, 5, shuffle=True), DataLoader(NUMBERS, 8, shuffle=True)
    yielded, noted = drawn(interrupted(*loaders), 1)
    assert samples(noted) == [[batch.tolist()] for batch in yielded]


@pytest.mark.parametrize("keeps", [False, True])
def test_a_loader_that_is_repeated_without_end_has_the_samples_of_its_last_iteration_alone(keeps: bool) -> None:
    loader = DataLoader(TensorDataset(torch.arange(6)), 2, shuffle=True, num_workers=keeps, persistent_workers=keeps)
    batches = (batch for _ in range(4) for batch in loader)
    follower = BatchFollower(batches)
    note_draws()
    for _ in range(12):
        follower.begin()
        yielded = next(batches)[0].tolist()
        assert samples([follower.arrived(yielded)]) == [[yielded]]
    assert len(follower._last) == 1, "else each iteration makes the next slower"


class Unhashable(Huge):
    """A data set that has no hash, as one of arrays."""

    def __hash__(self) -> int:
        raise RuntimeError


def test_samples_of_any_kind_are_noted_in_bounded_memory_and_no_device_is_waited_for() -> None:
    big = list(range(drawn_batches.MOST_SAMPLES + 1))
    drawing = [
        torch.zeros(2, device="meta"),
        [2**70, 1],
        [torch.zeros((), device="meta")],
        *[big] * (drawn_batches.RECENT + 5),
    ]
    loader = DataLoader(Unhashable(), batch_sampler=drawing, collate_fn=len)
    loader.dataset.__getitems__ = lambda _: ()
    _, noted = drawn(loader, 1)
    assert samples(noted)[:3] == [[[]], [[str(2**70), 1]], [["Tensor"]]]
    iteration = noted[-1][0][0]
    assert len(iteration.sizes) <= drawn_batches.RECENT
    assert len(iteration.drawn) <= drawn_batches.KEPT
    _, noted = drawn(DataLoader(Huge(), batch_sampler=[["x" * drawn_batches.MOST_BYTES], [2]], collate_fn=len), 1)
    assert "too much" in noted[-1][0][0].why


class Strict(dict[str, Any]):
    """A batch whose method needs another argument than that of a dictionary."""

    def get(self, _key: str, _default: object) -> Any:  # type: ignore[override]
        """Never return."""
        raise KeyError


@pytest.mark.parametrize(
    "batch", [{"id": [2**127]}, {"id": torch.arange(3).to_sparse()}, Strict(), {"ids": torch.arange(10**6)}]
)
def test_no_batch_ends_a_training(batch: Any) -> None:
    yielded, noted = drawn(DataLoader(Numbers(), 20, collate_fn=lambda _: batch), 1)
    assert yielded == [batch]
    assert all(len(one[2] or b"") <= drawn_batches.MOST_BYTES for of in noted for one in of)


def test_a_huge_data_set_costs_nothing_but_its_batches() -> None:
    loader = DataLoader(Huge(), batch_sampler=BatchSampler(iter([10**9 - 1, 5, 7, 9]), 2, drop_last=False))
    _, noted = drawn(loader, 1)
    assert samples(noted) == [[[10**9 - 1, 5]], [[7, 9]]]


def test_an_iterator_that_is_dropped_is_freed_at_once() -> None:
    note_draws()
    loader = DataLoader(NUMBERS, 8)
    iterator = iter(loader)
    follower = BatchFollower(iterator)
    iterator.trackside_fetched = follower  # as --auto does
    follower.arrived(next(iterator))
    gone = weakref.ref(iterator)
    gc.disable()
    del iterator
    try:
        assert gone() is None
    finally:
        gc.enable()


def a_batch(iteration: Any, number: int, size: int = 8) -> DrawnBatch:
    return iteration, number, bytes(size)


def test_all_batches_that_were_fetched_for_a_step_are_its_own() -> None:
    recent = RecentBatches()
    one = [a_batch(None, number) for number in range(6)]
    recent.arrived(10, (one[0],))
    recent.arrived(11, (one[0],))  # reported by the user's loader and by --auto
    recent.step_began(12, 0)
    for number in (1, 2):  # gradients are accumulated
        recent.arrived(20 + number, (one[number],))
    recent.step_began(25, 1)
    recent.arrived(30, (one[3],))
    assert recent.of(1, 1) == ([(1, (one[1], one[2])), (0, (one[0],))], 0)
    assert recent.of(2, 1) == ([], 0)
    recent.step_began(31, 1)  # repeated, after a resume
    assert recent.of(1, 0).steps == [(1, (one[3],))]


def test_a_batch_that_came_before_the_run_was_open_is_of_the_first_step() -> None:
    recent = RecentBatches()
    first, second = a_batch(None, 0), a_batch(None, 1)
    recent.step_began(10, 0)
    recent.arrived(5, (first,))
    recent.arrived(15, (second,))
    assert recent.of(0, 0).steps == [(0, (first,))]


@pytest.mark.parametrize("pushes", [True, False])
def test_what_is_kept_is_bounded(pushes: bool) -> None:
    recent = RecentBatches()
    for number in range(4000):
        recent.arrived(number, (a_batch(None, number, 5000),))
        if pushes:
            recent.step_began(number, number)
    kept = recent.of(3999, 10**6).steps
    assert sum(5000 * len(step.batches) for step in kept) <= MOST_BYTES
    assert (len(kept) > 150) == pushes


class Images(Dataset[int]):  # type: ignore[misc]
    """A data set with files."""

    def __init__(self, names: list[Any]) -> None:
        self.samples = [(name, 0) for name in names]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> int:
        return index


def answered(loader: Any, describe: Any = None) -> BatchSamples:
    """Return the answer about the first batch of a loader."""
    _, noted = drawn(loader, 1, describe)
    return batches(KeptBatches([StepBatches(3, noted[0])], 3)).steps[3][0]


def test_names_come_from_the_files_of_a_data_set_also_within_others() -> None:
    images = Images([f"img/{number}.png" for number in range(20)])
    answer = answered(DataLoader(images, 2))
    assert (answer.names, answer.by, answer.dataset) == (
        {"0": "img/0.png", "1": "img/1.png"},
        "dataset.samples",
        "Images",
    )
    assert answered(DataLoader(Subset(images, [7, 9]), 2)).names == {"0": "img/7.png at 7", "1": "img/9.png at 9"}
    both = ConcatDataset([Images(["a.png"]), images])
    assert answered(DataLoader(both, 2)).names == {"0": "a.png", "1": "img/0.png at 0"}
    assert answered(DataLoader(both, batch_sampler=[[-1, -20]])).names == {
        "-1": "img/19.png at 19",
        "-20": "img/0.png at 0",
    }


def test_describe_is_called_for_the_batch_in_question_alone() -> None:
    asked: list[int] = []

    def describe(index: int) -> str:
        asked.append(index)
        return f"row {index}"

    answer = answered(DataLoader(NUMBERS, 4), describe)
    assert (answer.by, answer.names["3"], asked) == ("describe", "row 3", [0, 1, 2, 3])


def test_describe_that_fails_is_reported_and_costs_names_alone() -> None:
    answer = answered(DataLoader(NUMBERS, 4), lambda index: {}[index])
    assert (answer.samples, answer.names) == ([0, 1, 2, 3], {})
    assert answer.why == "no name of sample 0: KeyError: 0"


def test_describe_that_hangs_is_waited_for_once_and_the_samples_come_without_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("trackside.captures.batches.NAMING_SECONDS", 0.05)
    goes_on = threading.Event()
    for _ in range(2):
        answer = answered(DataLoader(NUMBERS, 4), lambda _: goes_on.wait())
        assert (answer.samples, answer.why) == ([0, 1, 2, 3], "describe did not return within 0.05 s")
    assert sum(thread.name == "trackside-names" for thread in threading.enumerate()) == 1
    goes_on.set()
    assert NAMING_SECONDS == 1.0


def test_several_senders_of_a_process_are_answered_at_once() -> None:
    answers: list[list[int | str]] = []

    def ask() -> None:
        answers.extend(answered(DataLoader(NUMBERS, 4)).samples for _ in range(5))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(interval)
    assert answers == [[0, 1, 2, 3]] * 40


def test_hostile_names_are_short_text() -> None:
    class Bad:
        def __str__(self) -> str:
            raise ValueError

    answer = answered(DataLoader(Images(["x" * 10_000, "\ud800"]), 2))
    assert answer.names == {"0": "x" * 200, "1": "?"}
    assert answered(DataLoader(NUMBERS, 1), lambda _: Bad()).names == {"0": "Bad"}
