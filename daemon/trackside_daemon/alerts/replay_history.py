"""What the history has of the ranks that train still, in the form in which detectors learn from it."""

from __future__ import annotations

import logging
import sqlite3
import time
from typing import TYPE_CHECKING

from trackside_daemon.detectors.base import Column
from trackside_daemon.detectors.recalled_samples import Past
from trackside_daemon.detectors.roles import role
from trackside_daemon.history.read.latest_samples import last_samples, live_streams

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trackside.wire import Identity
    from trackside_daemon.history.read.latest_samples import Samples
    from trackside_daemon.history.read.series import Readable

RANKS = 2048
STEPS, MOST_STEPS = 512, 2048
"""Steps that are learnt from: the detectors' windows are some 500 samples; more where the ranks are few."""

ALL_STEPS = 16_384
"""Of all ranks together, beyond `STEPS` of each."""

log = logging.getLogger("trackside")


def pasts(history: Readable, seconds: float, clock: Callable[[], float] = time.monotonic) -> Iterator[Past]:
    """One by one, for *seconds* in all: the ranks that are left out begin to learn anew.

    Args:
        history: Where they are.
        seconds: What may be spent here, and by those who take them.
        clock: Seconds that only go forward.
    """
    until = clock() + seconds
    try:
        with history.reading() as connection:
            ranks = live_streams(connection, RANKS)
            count = max(STEPS, min(MOST_STEPS, ALL_STEPS // max(1, len(ranks))))
            for number, (stream, identity) in enumerate(ranks):
                if clock() > until:
                    log.info(
                        "the detectors of %d ranks begin to learn anew: reading more took too long", len(ranks) - number
                    )
                    return
                yield _past(identity, last_samples(connection, stream, role, count))
    except (sqlite3.Error, ValueError) as error:
        log.warning("detectors begin to learn anew, as the history cannot be read: %s", error)


def _past(identity: Identity, series: dict[str, Samples]) -> Past:
    """Put together what was pushed together."""
    together: dict[tuple[bytes, bytes], dict[str, Samples]] = {}
    for key, samples in series.items():
        if len(samples[0]):
            together.setdefault((samples[0].tobytes(), samples[1].tobytes()), {})[key] = samples
    columns: list[dict[str, Column]] = []
    pushes: set[tuple[float, int]] = set()
    for one in together.values():
        steps, micros, _ = next(iter(one.values()))
        times = [micro / 1e6 for micro in micros]
        pushes.update(zip(times, steps, strict=True))
        columns.append({key: Column(steps, times, values) for key, (_, _, values) in one.items()})
    return Past(identity, columns, sorted(pushes))
