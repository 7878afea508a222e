"""Restores the detectors after a restart: of some ranks before the daemon serves, of the others while it does.

A rank costs some 3 ms, so a thousand would delay the acknowledgement of what their clients have kept for the restart.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from math import isfinite
from typing import Annotated, TypedDict

import msgspec

from trackside.wire import Identity
from trackside_daemon.alerts.active_alert import OCCURRENCES
from trackside_daemon.alerts.stages import FindingSource, RestorableSource
from trackside_daemon.detectors.base import Column, Past, PastLayers
from trackside_daemon.detectors.key_roles import BY_NAME, KeyRoles
from trackside_daemon.detectors.rank_watch import RankWatch
from trackside_daemon.history.layer_rows import LayerFrame
from trackside_daemon.history.read.latest_samples import LiveStream, Samples, last_samples, live_streams
from trackside_daemon.history.read.layers import last_frames
from trackside_daemon.history.read.series import Readable
from trackside_daemon.model.records import CALM, Alert

log = logging.getLogger("trackside")

MAX_RANKS = 2048  # most ranks that are read

# Steps that are read of each rank at least and at most. Most windows of the detectors have 128 samples or fewer, the longest some 500.
STEPS, MOST_STEPS = 256, 2048

ALL_STEPS = 32_768  # steps of all ranks together, as far as `STEPS` of each allow: some 0.3 s

# Measurements of layers that are read of each rank, of each kind, likewise; an alert needs three. `ActivationOutliers` also
# needs some from before it began, so that one which has lasted for more of them than these ends with the daemon.
FRAMES, MOST_FRAMES, ALL_FRAMES = 8, 64, 1024


class RankRestoring:
    """Lets the sources that learn continue from the samples of the runs that have not ended.

    Args:
        sources: The finding sources.
        past: The samples.
        fired: The alerts that fired when the earlier daemon ended.
    """

    def __init__(self, sources: Iterable[FindingSource], past: PastRanks, fired: Sequence[Alert]) -> None:
        self._past = past
        self._fired = fired
        sources = list(sources)
        self._learning = [source for source in sources if isinstance(source, RestorableSource)]
        self._holding = [source for source in sources if isinstance(source, RankWatch)]
        self._restored = 0
        self._began = time.monotonic()
        for source in self._holding:
            source.expect(past.left)
        if not self._learning:
            past.close()

    def start(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Restore as many ranks as *seconds* allow."""
        until = clock() + seconds
        while clock() < until and self.step():
            pass

    def step(self) -> bool:
        """Restore one rank; return whether more may be left."""
        past = self._past.next()
        if past is None:
            self._finish()
            return False
        for source in self._learning:
            source.restore_rank(past, self._fired)
        self._restored += 1
        return True

    def give_up(self) -> None:
        """Let the ranks that are left start without past samples."""
        if self._past.left:
            text = "the detectors of %d ranks start without past samples: reading them took too long"
            log.info(text, len(self._past.left))
        self._past.close()
        self._finish()

    def _finish(self) -> None:
        for source in self._holding:
            source.expect(())
        if self._restored:
            seconds = time.monotonic() - self._began
            log.info(
                "the detectors of %d ranks continue from their past samples, after %.1f s", self._restored, seconds
            )
            self._restored = 0


class _Occurrence(TypedDict):
    number: int
    time: Annotated[float, msgspec.Meta(ge=0.0, lt=1e11)]  # until the year 5138
    summary: str


_Occurrences = Annotated[list[_Occurrence], msgspec.Meta(min_length=1)]


def usable(records: Iterable[Alert]) -> list[Alert]:
    """Return the alerts that detectors and the active alerts can restore; log one line for each of the others."""
    valid = []
    for record in records:
        invalid = _invalid_field(record)
        if invalid:
            name, value = invalid
            log.warning(
                "not restored: alert %.80r of run %.80r, because its %s is %.80r; if the problem persists, it is found again",
                record.alert,
                record.run,
                name,
                value,
            )
        else:
            valid.append(record)
    return valid


def _invalid_field(alert: Alert) -> tuple[str, object] | None:
    """Return the name and the value of an invalid field."""
    for name, value in alert.labels.items():
        if not isinstance(value, str) or (name == "rank" and not _is_rank(value)):
            return name, value
    for name in ("since", CALM):
        seconds = alert.evidence.get(name, 0.0)
        if not isinstance(seconds, (int, float)) or not isfinite(seconds):
            return name, seconds
    occurrences = alert.evidence.get(OCCURRENCES)
    try:
        msgspec.convert(occurrences, _Occurrences | None)
    except msgspec.ValidationError:
        return OCCURRENCES, occurrences
    return None


def _is_rank(text: str) -> bool:
    # isdecimal() alone accepts the digits of all scripts. The length bounds the number.
    return text.isascii() and text.isdecimal() and len(text) < 20


class PastRanks:
    """The past of the ranks whose attempts have not ended, read rank by rank from one snapshot of the history.

    Args:
        history: History to read.
        roles: The roles of keys for runs that do not state others.
        all_steps: See `ALL_STEPS`.
    """

    def __init__(self, history: Readable, roles: KeyRoles = BY_NAME, all_steps: int = ALL_STEPS) -> None:
        self._roles = roles
        self._snapshot = ExitStack()
        self._left: deque[LiveStream] = deque()
        with self._stop_at_error():
            self._connection = self._snapshot.enter_context(history.reading())
            # The lowest rank of each run first, since the pace of the run follows from it.
            streams = live_streams(self._connection, MAX_RANKS)
            self._left.extend(sorted(streams, key=lambda stream: stream.identity.rank))
        ranks = max(1, len(self._left))
        self._count = max(STEPS, min(MOST_STEPS, all_steps // ranks))
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
