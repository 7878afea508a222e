"""The query for ranks that are slower than the other ranks of their run, across all machines."""

from __future__ import annotations

from trackside_daemon.model.time_ledger import OWN, OWN_WITH_SYNC, SYNC_PHASES

PHASES = "trackside_training_phase_seconds_total"


def straggler_ratio(token: str) -> str:
    """Return a query for the own time of a token's ranks divided by that of their run's median rank.

    The daemon's metric compares only its own ranks, and is 1 for each of them if a whole machine is slow. The query needs
    no recording rule.
    """
    median = f"quantile by (job, run) (0.5, {own_time('RUN')}) > 0 and count by (job, run) ({own_time('RUN')}) > 1"
    return f"{own_time(token)} / on (job, run) group_left () ({median})"


def own_time(token: str) -> str:
    """Return the query of the recording rule: waiting for other ranks is a phase of its own, or else part of backward."""
    always, if_synced, sync_phases = (
        f'rate({PHASES}{{{selector}, phase=~"{"|".join(phases)}"}}[$__rate_interval])'
        for selector, phases in ((token, OWN), (token, OWN_WITH_SYNC), ("RUN", sorted(SYNC_PHASES)))
    )
    return f"sum by (job, run, rank) ({always} or {if_synced} and on (job, run) {sync_phases})"
