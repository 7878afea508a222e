"""The time in which a rank trains nothing, by cause, over all attempts of its run.

The client reports data, checkpoint and evaluation time as phases. The daemon itself measures stalls and restarts. A restart
lasts from the end of the previous attempt to the first step beyond all earlier ones, so that repeated steps count as lost.
No time counts twice: a stall or a restart excludes those phases, and a stall during a restart counts as restart.

A counter must not fall when the daemon restarts. The history therefore stores what only the daemon measures, each
`STORE_SECONDS`. The page shows the value that was stored before the last one, which is certainly written; after the rank's
end it soon shows the last.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from trackside.wire import Clock, Totals
from trackside_daemon.model.columns import Columns
from trackside_daemon.model.records import Account, EarlierAttempts
from trackside_daemon.model.stall import Stall
from trackside_daemon.model.time_ledger import lost_in

STORE_SECONDS = 10.0
NO_EARLIER_ATTEMPTS = EarlierAttempts()


class Update(NamedTuple):
    """The result of an update: whether the exported values change, and the account to store, if any."""

    changed: bool
    account: Account | None


UNCHANGED = Update(changed=False, account=None)


class RankLostTime:
    """The lost time of one rank of one attempt.

    Args:
        before: The run before this attempt, and the stored accounts of this attempt if an earlier daemon followed it.
        rank: The rank.
    """

    def __init__(self, before: EarlierAttempts = NO_EARLIER_ATTEMPTS, rank: int = 0) -> None:
        stored = before.kept.get(rank, Account())
        self._before = before.lost.get(rank, {})
        self._goal = before.step
        self._since = before.ended
        self._now = stored._replace(caught=stored.caught or before.ended is None)
        self._stored = self._now
        self._exported = self._now
        self._phases: dict[str, float] = {}
        self._updated_at: float | None = None
        self._stored_at = -math.inf  # a machine that has just booted has few monotonic seconds
        self._spent = 0.0
        self._over = False

    @property
    def exported(self) -> dict[str, float]:
        """Seconds by cause, as on the page."""
        return self._summed(self._exported)

    @property
    def current(self) -> dict[str, float]:
        """Seconds by cause, including those that are not stored yet."""
        return self._summed(self._now)

    def update(self, totals: Totals) -> None:
        """Apply the client's totals."""
        self._phases = lost_in(totals.phases)
        first = None if totals.data_wait is None else totals.data_wait.first
        self._now = self._now._replace(
            flops=None if totals.device is None else totals.device.flops,
            first_wait=0.0 if first is None else first.sum,
            saves=0 if totals.saves is None else totals.saves.count,
            saved_at=None if totals.saves is None else totals.saves.at,
        )
        self._over = False

    def reach(self, clock: Clock, pushed: Iterable[Columns], wall: float) -> None:
        """End the restart with the first step beyond the earlier attempts; rows have times of *clock*.

        Args:
            clock: The clock pair of the message.
            pushed: The pushed rows.
            wall: When they arrived, in Unix seconds.
        """
        if self._now.caught:
            return
        for columns in pushed:
            for step, time in zip(columns.steps, columns.times, strict=True):
                if self._goal is None or step > self._goal:
                    self._extend_restart(min(wall, clock.wall_seconds(time)))  # the client's clock may be ahead
                    self._now = self._now._replace(caught=True)
                    return

    def tick(self, wall: float, monotonic: float, peak: Callable[[], object], *, stalled: bool) -> Update:
        """Update once a second while the rank is alive; *peak* returns the GPUs' FLOP/s."""
        # By the monotonic clock: a step of the wall clock is no stall.
        passed = 0.0 if self._updated_at is None else monotonic - self._updated_at
        spent = sum(self._phases.values())
        if not self._now.caught:
            self._extend_restart(wall)
        elif stalled:
            self._now = self._now._replace(stall=self._now.stall + max(0.0, passed - max(0.0, spent - self._spent)))
        self._updated_at = monotonic
        self._spent = spent
        if monotonic - self._stored_at < STORE_SECONDS and self._now.caught == self._stored.caught:
            return UNCHANGED
        return self._store(monotonic, peak)

    def move_clock(self, seconds: float) -> None:
        """Move the end of the previous attempt, since this machine's clock was set forward by so many seconds."""
        if self._since is not None:
            self._since += seconds

    def end(self, wall: float, monotonic: float, peak: Callable[[], object]) -> Update:
        """Update a rank that has ended, at *wall*."""
        if self._over:
            return Update(self._export(), None)
        self._over = True
        if not self._now.caught:
            self._extend_restart(wall)
        return self._store(monotonic, peak)

    def _extend_restart(self, until: float) -> None:
        """Extend the restart to *until*, in Unix seconds."""
        spent = 0.0 if self._since is None else until - self._since - sum(self._phases.values())
        self._now = self._now._replace(restart=max(self._now.restart, spent))  # the wall clock may be set back

    def _store(self, monotonic: float, peak: Callable[[], object]) -> Update:
        changed = self._export()
        self._stored_at = monotonic
        if self._now.flops is not None and isinstance(flops := peak(), int | float):
            self._now = self._now._replace(peak=float(flops))
        if self._now == self._stored:
            return Update(changed, None)
        self._stored = self._now
        return Update(changed, self._now)

    def _export(self) -> bool:
        """Export the account that was stored last; return whether its values change."""
        before = self._exported
        self._exported = self._stored
        return (before.restart, before.stall) != (self._exported.restart, self._exported.stall)

    def _summed(self, account: Account) -> dict[str, float]:
        own = {**self._phases, "restart": account.restart, "stall": account.stall}
        return {cause: self._before.get(cause, 0.0) + own.get(cause, 0.0) for cause in {**self._before, **own}}


class CurrentStalls:
    """The current stalls by run and attempt, also of runs that are not open; *restored* are those of an earlier daemon."""

    def __init__(self, restored: Iterable[Stall] = ()) -> None:
        self._current: dict[tuple[str, int], Stall] = {}
        self._new: deque[Stall] = deque(restored)
        self.apply()

    def accept(self, stalls: Iterable[Stall]) -> None:
        """Queue what detectors have found. Any thread may call it."""
        self._new.extend(stalls)  # without a lock: each append to a deque is atomic

    def apply(self) -> set[tuple[str, int]]:
        """Apply what was queued; return the runs and attempts whose stalls have changed."""
        changed = set()
        while self._new:
            stall = self._new.popleft()
            key = (stall.run, stall.attempt)
            if stall.is_over:
                self._current.pop(key, None)
            else:
                self._current[key] = stall
            changed.add(key)
        return changed

    def get(self, run: str, attempt: int) -> Stall | None:
        """Return the stall of an attempt; None if no rank of it is stalled."""
        return self._current.get((run, attempt))
