"""The values of chosen layers of one rank's model."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import isnan

from trackside.packing import unpack
from trackside.wire import DistributionFrame
from trackside_daemon.model.families.training import LAYER_COLUMNS
from trackside_daemon.model.metric import Sample
from trackside_daemon.model.text import matches_wildcards

MAX_REFUSED = 10_000  # refused series that are remembered, so that each is counted once


class LayerExport:
    """Decides which values of layers are exported.

    Args:
        labels: The rank's labels.
        patterns: Names of the layers, with ``*`` and ``?``.
        admit: Decides once for each series, by a readable key, whether it may be exported.
    """

    def __init__(self, labels: tuple[str, ...], patterns: Sequence[str], admit: Callable[[str], bool]) -> None:
        self._labels = labels
        self._patterns = patterns
        self._admit = admit
        self._admitted: set[int] = set()
        self._refused: set[int] = set()

    def samples(self, frames: Iterable[DistributionFrame]) -> list[Sample]:
        """Return the values of the chosen layers; those that were not measured, which are NaN, are left out."""
        return [sample for frame in frames for sample in self._samples_of_frame(frame)] if self._patterns else []

    def _samples_of_frame(self, frame: DistributionFrame) -> Iterator[Sample]:
        chosen = [
            place
            for place, name in enumerate(frame.names)
            if any(matches_wildcards(name, pattern) for pattern in self._patterns)
        ]
        for column, packed in frame.columns.items():
            if column not in LAYER_COLUMNS or not chosen:
                continue
            values = unpack("f", packed)
            for place in chosen:
                name = frame.names[place]
                if not isnan(values[place]) and self._is_admitted(f"{frame.kind}/{name}/{column}"):
                    yield Sample(LAYER_COLUMNS[column], (*self._labels, frame.kind, name), values[place])

    def _is_admitted(self, key: str) -> bool:
        """Return whether a series may be exported; the first call for it decides."""
        short = hash(key)  # names may be long
        if short in self._admitted or short in self._refused:
            return short in self._admitted
        if admitted := self._admit(key):
            self._admitted.add(short)
        elif len(self._refused) < MAX_REFUSED:
            self._refused.add(short)
        return admitted
