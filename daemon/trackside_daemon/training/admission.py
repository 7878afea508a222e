"""Decides which runs, sessions and keys are exported when a limit is reached: each owner gets the same share."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from trackside_daemon.model.state import OF_STATISTICS
from trackside_daemon.training.export_limits import BURST, Limits, OwnerRate, Rejections

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from trackside.wire import Identity
    from trackside_daemon.model.session import Owner
    from trackside_daemon.training.rank import RankStatus
    from trackside_daemon.training.run import RunStatus

# Series of keys in memory, of all runs, as a multiple of those that may be on the page: ranks that share statistics.
STORED = 10


class Admission:
    """Admits what is exported, within the limits; counts and logs what is not.

    Args:
        limits: The limits.
        runs: All runs that are exported; the collection may change.

    Attributes:
        rejections: What was over a limit.
    """

    def __init__(self, limits: Limits, runs: Collection[RunStatus]) -> None:
        self.rejections = Rejections()
        self._limits = limits
        self._runs = runs
        self._new_attempts = OwnerRate()

    def session(self, identity: Identity, owner: Owner) -> bool:
        """Return whether a session may be exported."""
        used = self._used(lambda run: len(run.sessions))
        if not _is_over(self._limits.sessions, used, owner):
            return True
        return self.rejections.add("sessions", f"a session of run {identity.name}", self._limits.sessions)

    def run(
        self, identity: Identity, before: RunStatus | None, owner: Owner, now: float
    ) -> tuple[bool, RunStatus | None]:
        """Return whether a new run, or an attempt that replaces the one *before*, may be exported, and which run leaves.

        *now* is in monotonic seconds: an owner may open attempts at the rate of `OwnerRate`, since each writes to the log.
        """
        live = [run for run in self._runs if run is not before and not run.ended]
        leaving = None
        if len(live) >= self._limits.runs:
            leaving = _displaced(live, owner)
            if leaving is None:
                return self.rejections.add("runs", f"run {identity.name}", self._limits.runs), None
        if not self._new_attempts.admit(owner.id, now):
            return self.rejections.add("runs", f"one more attempt of run {identity.name} at once", int(BURST)), None
        if leaving is not None:
            self.rejections.add("runs", f"run {leaving.name}", self._limits.runs)
        return True, leaving

    def ended_run(self) -> RunStatus | None:
        """Return the run that leaves if as many have ended as may be alive: of the owner with the most, the first one."""
        ended = [run for run in self._runs if run.ended]
        if len(ended) < self._limits.runs:
            return None
        counts = Counter(run.owner.id for run in ended)
        first = min(ended, key=lambda run: (-counts[run.owner.id], run.until or 0.0))
        self.rejections.add("runs", f"the end of run {first.name}", self._limits.runs)
        return first

    def key(self, run: RunStatus, rank: RankStatus, key: str) -> bool:
        """Return whether a key of a rank may have a series."""
        if len(key.encode()) > self._limits.label_bytes:
            return self.rejections.add("label_length", f"key {key[:40]}…", self._limits.label_bytes)
        if rank.keys >= self._limits.keys:
            return self.rejections.add("keys", f"key {key} of run {run.name}", self._limits.keys)
        on_page = self._used(lambda one: 0 if one.forgotten else self._series(one))
        stored = self._used(lambda one: 0 if one.forgotten else one.value_series)
        is_new = key not in run.keys or not self._has_statistics(run)
        if _is_over(STORED * self._limits.series, stored, run.owner) or (
            is_new and _is_over(self._limits.series, on_page, run.owner)
        ):
            return self.rejections.add("series", f"key {key} of run {run.name}", self._limits.series)
        run.keys.add(key)
        run.value_series += 1
        run.value_ranks += not rank.keys
        return True

    def _has_statistics(self, run: RunStatus) -> bool:
        """Return whether the page has statistics over the ranks of a run, and not each rank, as `State` decides it."""
        return run.value_ranks > self._limits.ranks

    def _series(self, run: RunStatus) -> int:
        """Return how many series of keys a run has on the page, at most."""
        return OF_STATISTICS * len(run.keys) if self._has_statistics(run) else run.value_series

    def _used(self, amount: Callable[[RunStatus], int]) -> Counter[str]:
        """Return how much of a limit each owner uses, by the *amount* of each run."""
        used: Counter[str] = Counter()
        for run in self._runs:
            used[run.owner.id] += amount(run)
        return used


def _displaced(runs: Sequence[RunStatus], owner: Owner) -> RunStatus | None:
    """Return the run that leaves the page for a new one of an owner; None if the new one stays off the page.

    The owner with the most runs gives one up to an owner with fewer, until all have the same share. Runs whose process no
    connection has identified go first, then the newest.
    """
    counts = Counter(run.owner.id for run in runs)
    most = max(counts.values())
    if most > counts[owner.id] + 1:
        candidates = [run for run in runs if counts[run.owner.id] == most]
    else:
        candidates = [run for run in runs if run.owner.id == owner.id and owner.verified and not run.owner.verified]
    return min(reversed(candidates), key=lambda run: run.owner.verified, default=None)


def _is_over(limit: int, used: Mapping[str, int], owner: Owner) -> bool:
    """Return whether an owner may not use more: the limit is reached, and the owner has as much as each other may have."""
    return sum(used.values()) >= limit and used.get(owner.id, 0) >= limit // len({*used, owner.id})
