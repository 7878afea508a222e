"""Ranks that are slower than the others of their run, on whatever machine those are."""

from __future__ import annotations

from trackside_daemon.detectors.run_rank import SYNC_PHASES
from trackside_daemon.detectors.straggler import OWN, OWN_WITH_SYNC

PHASES = "trackside_training_phase_seconds_total"


def straggling(of: str) -> str:
    """A query: the own time of the ranks of a token over their run's median rank's.

    A daemon knows its own ranks alone, and would say 1 of each where a whole machine is slow. No rule need be loaded.
    """
    median = f"quantile by (job, run) (0.5, {_own('RUN')}) > 0 and count by (job, run) ({_own('RUN')}) > 1"
    return f"{_own(of)} / on (job, run) group_left () ({median})"


def _own(of: str) -> str:
    """As the recording rule has it: what a rank waits for others is a phase of its own, or else in backward."""
    always, beside, told = (
        f'rate({PHASES}{{{token}, phase=~"{"|".join(phases)}"}}[$__rate_interval])'
        for token, phases in ((of, OWN), (of, OWN_WITH_SYNC), ("RUN", sorted(SYNC_PHASES)))
    )
    return f"sum by (job, run, rank) ({always} or {beside} and on (job, run) {told})"
