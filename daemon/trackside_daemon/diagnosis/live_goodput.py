"""Export the goodput of live runs: what `trackside show` has, read from the history again and again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.model.families import training as f
from trackside_daemon.model.metric import Batch, Sample

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trackside_daemon.model.state import State

SOURCE = "training:goodput"
EVERY = 15.0  # seconds after which the goodput of a run is read again
_RUN_ID = f.RUN_INFO.labels.index("run_id")


def goodput_batch(
    state: State, now: float, read: Callable[[str], Mapping[int, float] | None], read_at: Mapping[str, float]
) -> Batch:
    """Return the goodput of the ranks on the page.

    Args:
        state: The newest values.
        now: Seconds of the monotonic clock.
        read: Returns the goodput of each rank of a run, by its id; None while it is not known.
        read_at: When each run was last read, by its id.
    """
    infos, started = state.values(now, f.RUN_INFO, f.STARTED)
    shares: dict[tuple[str, ...], float] = {}
    for labels in sorted(infos, key=lambda labels: read_at.get(labels[_RUN_ID], 0.0)):  # who waits longest comes first
        shares |= {(labels[0], str(rank)): share for rank, share in (read(labels[_RUN_ID]) or {}).items()}
    return Batch(SOURCE, [Sample(f.GOODPUT, rank, shares[rank]) for rank in started if rank in shares], complete=True)
