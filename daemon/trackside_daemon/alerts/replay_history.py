"""Samples in the history of ranks that still train, in the form from which detectors restore their state."""

from __future__ import annotations

import logging
import sqlite3
import time
from typing import TYPE_CHECKING

from trackside_daemon.detectors.base import Column
from trackside_daemon.detectors.key_roles import BY_NAME
from trackside_daemon.detectors.recalled_samples import Past, PastLayers
from trackside_daemon.history.read.latest_samples import last_samples, live_streams
from trackside_daemon.history.read.layers import last_frames

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from trackside.wire import Identity
    from trackside_daemon.detectors.key_roles import Roles
    from trackside_daemon.history.layer_rows import LayerFrame
    from trackside_daemon.history.read.latest_samples import Samples
    from trackside_daemon.history.read.series import Readable

RANKS = 2048  # most ranks that are read

# Steps that are read of each rank: the windows of the detectors have about 500 samples; more if there are few ranks.
STEPS, MOST_STEPS = 512, 2048

ALL_STEPS = 16_384  # steps of all ranks together, as far as `STEPS` of each allow

# Measurements of layers that are read of each rank, of each kind, likewise; an alert needs three. `ActivationOutliers` also
# needs some from before it began, so that one which has lasted for more of them than these ends with the daemon.
FRAMES, MOST_FRAMES, ALL_FRAMES = 8, 64, 1024

log = logging.getLogger("trackside")


def past_ranks(
    history: Readable, seconds: float, clock: Callable[[], float] = time.monotonic, *, roles: Roles = BY_NAME
) -> Iterator[Past]:
    """Yield the past of one rank after the other; ranks that do not fit into *seconds* start to learn anew.

    Args:
        history: History to read.
        seconds: Time limit, which includes the time that the caller spends between two ranks.
        clock: Monotonic clock, in seconds.
        roles: The roles of keys for runs that do not state others.
    """
    until = clock() + seconds
    try:
        with history.reading() as connection:
            ranks = live_streams(connection, RANKS)
            count = max(STEPS, min(MOST_STEPS, ALL_STEPS // max(1, len(ranks))))
            measurements = max(FRAMES, min(MOST_FRAMES, ALL_FRAMES // max(1, len(ranks))))
            for number, (stream, identity, stated) in enumerate(ranks):
                # The caller trains detectors between two iterations, and that time counts too.
                if clock() > until:
                    log.info(
                        "the detectors of %d ranks start without past samples: reading them took too long",
                        len(ranks) - number,
                    )
                    return
                samples = last_samples(connection, stream, roles.of_run(stated).of, count)
                yield _past(identity, samples)._replace(
                    roles=stated, layers=_layers(last_frames(connection, stream, measurements))
                )
    except (sqlite3.Error, ValueError) as error:
        log.warning("the detectors start without past samples, because the history cannot be read: %s", error)


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
