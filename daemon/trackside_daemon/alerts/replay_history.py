"""Samples in the history of ranks that still train, in the form from which detectors restore their state."""

from __future__ import annotations

import logging
import sqlite3
from collections import deque
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from trackside_daemon.detectors.base import Column, Past, PastLayers
from trackside_daemon.detectors.key_roles import BY_NAME
from trackside_daemon.history.read.latest_samples import last_samples, live_streams
from trackside_daemon.history.read.layers import last_frames

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from trackside.wire import Identity
    from trackside_daemon.detectors.key_roles import Roles
    from trackside_daemon.history.layer_rows import LayerFrame
    from trackside_daemon.history.read.latest_samples import LiveStream, Samples
    from trackside_daemon.history.read.series import Readable

RANKS = 2048  # most ranks that are read

# Steps that are read of each rank at least and at most. Most windows of the detectors have 128 samples or fewer, the longest some 500.
STEPS, MOST_STEPS = 256, 2048

ALL_STEPS = 32_768  # steps of all ranks together, as far as `STEPS` of each allow: some 0.3 s

# Measurements of layers that are read of each rank, of each kind, likewise; an alert needs three. `ActivationOutliers` also
# needs some from before it began, so that one which has lasted for more of them than these ends with the daemon.
FRAMES, MOST_FRAMES, ALL_FRAMES = 8, 64, 1024

log = logging.getLogger("trackside")


class PastRanks:
    """The past of the ranks whose attempts have not ended, read rank by rank from one snapshot of the history.

    Args:
        history: History to read.
        roles: The roles of keys for runs that do not state others.
    """

    def __init__(self, history: Readable, roles: Roles = BY_NAME) -> None:
        self._roles = roles
        self._snapshot = ExitStack()
        self._left: deque[LiveStream] = deque()
        with self._stop_at_error():
            self._connection = self._snapshot.enter_context(history.reading())
            # The lowest rank of each run first, since the pace of the run follows from it.
            self._left.extend(sorted(live_streams(self._connection, RANKS), key=lambda stream: stream.identity.rank))
        ranks = max(1, len(self._left))
        self._count = max(STEPS, min(MOST_STEPS, ALL_STEPS // ranks))
        self._frames = max(FRAMES, min(MOST_FRAMES, ALL_FRAMES // ranks))

    @property
    def left(self) -> list[Identity]:
        """The ranks that `next` will return."""
        return [stream.identity for stream in self._left]

    def next(self) -> Past | None:
        """Return the past of the next rank; None if there is none, or it cannot be read."""
        with self._stop_at_error():
            if self._left:
                stream, identity, stated, total = self._left.popleft()
                samples = last_samples(self._connection, stream, self._roles.of_run(stated).of, self._count)
                layers = _layers(last_frames(self._connection, stream, self._frames))
                return _past(identity, samples)._replace(roles=stated, layers=layers, total_steps=total)
        self.close()
        return None

    def close(self) -> None:
        """Close the snapshot; no rank is left."""
        self._left.clear()
        self._snapshot.close()

    @contextmanager
    def _stop_at_error(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, ValueError) as error:
            log.warning(
                "the detectors of %d ranks start without past samples, because the history cannot be read: %s",
                len(self._left) + 1,
                error,
            )
            self.close()


def _layers(frames: Iterable[tuple[str, LayerFrame]]) -> list[PastLayers]:
    return [
        PastLayers(
            kind,
            frame.step,
            {
                layer: {name: column[place] for name, column in frame.columns.items()}
                for place, layer in enumerate(frame.names)
            },
        )
        for kind, frame in frames
    ]


def _past(identity: Identity, series: dict[str, Samples]) -> Past:
    """Return the samples of a rank, with the keys of one push in one group of columns."""
    # Keys with equal steps and times were pushed together.
    groups: dict[tuple[bytes, bytes], dict[str, Samples]] = {}
    for key, samples in series.items():
        if len(samples[0]):
            groups.setdefault((samples[0].tobytes(), samples[1].tobytes()), {})[key] = samples
    columns: list[dict[str, Column]] = []
    pushes: set[tuple[float, int]] = set()
    for group in groups.values():
        steps, micros, _ = next(iter(group.values()))
        times = [micro / 1e6 for micro in micros]
        pushes.update(zip(times, steps, strict=True))
        columns.append({key: Column(steps, times, values) for key, (_, _, values) in group.items()})
    return Past(identity, columns, sorted(pushes))
