"""The answer to a daemon's question for batches: their samples, and what some of them are called."""

from __future__ import annotations

import os
import threading
from time import monotonic
from typing import TYPE_CHECKING, Any

from msgspec.msgpack import decode

from trackside.limits import BATCH_NAMES, BATCH_SAMPLES, SAMPLE_LENGTH
from trackside.packing import text_of
from trackside.wire import Batches, BatchSamples

if TYPE_CHECKING:
    from trackside.drawn_batches import DrawnBatch, KeptBatches

NAMING_SECONDS = 1.0  # for which names are waited
MOST_BATCHES = 64  # of a step; of more the last are sent
FILES = ("samples", "imgs", "files", "paths", "image_files", "img_files", "im_files", "filenames")
"""Attributes of a data set with a path by index, or a tuple that begins with it."""
WRAPPERS = 8  # limit of data sets around each other


def batches(kept: KeptBatches) -> Batches:
    """Return the batches of some steps. Names come from the training's own code, so that they may be missing."""
    room, steps, unnamed = BATCH_SAMPLES, dict[int, list[BatchSamples]](), []
    for step, drawn in kept.steps:
        listed = steps[step] = []
        for one in drawn[-MOST_BATCHES:]:
            listed.append(_samples(one, room))
            room -= len(listed[-1].samples)
            unnamed.append((one, listed[-1]))
    return Batches(_named(steps, unnamed), kept.first)


def _samples(drawn: DrawnBatch, room: int) -> BatchSamples:
    iteration, number, kept = drawn
    every = kept if isinstance(kept, list) else [] if kept is None else decode(kept)
    samples, dataset = every[:room], iteration.dataset()
    return BatchSamples(
        [one if type(one) is int and abs(one) < 2**63 else text_of(one)[:SAMPLE_LENGTH] for one in samples],
        iteration.sizes.get(number, len(every)),
        dataset="" if dataset is None else type(dataset).__name__[:SAMPLE_LENGTH],
        number=number + 1,
        iteration=iteration.number,
        worker=number % iteration.workers if kept is None and number < iteration.turns else None,
        why="" if samples else iteration.why,
    )


def _named(
    steps: dict[int, list[BatchSamples]], unnamed: list[tuple[DrawnBatch, BatchSamples]]
) -> dict[int, list[BatchSamples]]:
    """Return the batches with names, in so far as the thread that finds them is in time."""
    global _naming  # noqa: PLW0603
    found: list[tuple[BatchSamples, str, str]] = []
    with _starting:
        if late := _naming is not None and _naming.is_alive():
            thread = None
        else:
            _naming = thread = threading.Thread(
                target=_find_names, args=(unnamed, found), name="trackside-names", daemon=True
            )
            thread.start()
    if thread is not None:
        thread.join(NAMING_SECONDS)
        late = thread.is_alive()
    for batch, sample, name in found:
        batch.names[sample] = name
    for drawn, batch in unnamed if late else ():
        if drawn[0].describe is not None and not batch.names and batch.samples:
            batch.why = f"describe did not return within {NAMING_SECONDS:g} s"
    return steps


def _find_names(unnamed: list[tuple[DrawnBatch, BatchSamples]], found: list[tuple[BatchSamples, str, str]]) -> None:
    until = monotonic() + NAMING_SECONDS
    for drawn, batch in unnamed:
        describe, dataset = drawn[0].describe, drawn[0].dataset()
        for sample in batch.samples[:BATCH_NAMES]:
            if monotonic() >= until:
                return
            try:
                batch.by, name = _file(dataset, sample) if describe is None else ("describe", describe(sample))
                if name is not None:
                    found.append((batch, str(sample), text_of(name)[-SAMPLE_LENGTH:]))
            except Exception as error:  # noqa: BLE001  of the training's own code
                batch.why = f"no name of sample {sample}: {type(error).__name__}: {text_of(error)}"[:SAMPLE_LENGTH]
                break


def _file(dataset: Any, sample: Any) -> tuple[str, Any]:
    """Return the attribute of a data set that lists its files, and the file of a sample; None if there is none."""
    at = sample
    for _ in range(WRAPPERS):
        fields = getattr(dataset, "__dict__", {})
        if "indices" in fields and "dataset" in fields:  # Subset, as of random_split
            at, dataset = int(fields["indices"][at]), fields["dataset"]
        elif "datasets" in fields and "cumulative_sizes" in fields:  # ConcatDataset
            at += fields["cumulative_sizes"][-1] if at < 0 else 0
            part = next(place for place, size in enumerate(fields["cumulative_sizes"]) if at < size)
            at, dataset = at - (fields["cumulative_sizes"][part - 1] if part else 0), fields["datasets"][part]
        else:
            break
    for name in FILES:
        listed = getattr(dataset, "__dict__", {}).get(name)
        if isinstance(listed, (list, tuple)) and type(at) is int and at < len(listed):
            entry = listed[at]
            entry = entry[0] if isinstance(entry, (list, tuple)) and entry else entry
            if isinstance(entry, (str, os.PathLike)):
                return f"dataset.{name}", entry if at == sample else f"{text_of(entry)} at {at}"
    return "", None


_naming: threading.Thread | None = None
"""The thread that finds names: while it hangs, no other is started."""

_starting = threading.Lock()
"""Held while `_naming` is checked and replaced: a process may have several senders."""
