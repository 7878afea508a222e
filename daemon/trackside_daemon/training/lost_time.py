"""The time of a rank that trains nothing, by what it is lost to, over all attempts of its run.

What data, checkpoints and evaluation take, the client tells by its phases. That it stands still is what this daemon
finds, and a restart is the time from the end of the attempt before to the first step beyond all that were made before,
so that repeated steps count as lost. None is counted twice: a stall or a restart is the time without those phases, and
what a rank stands still while it restarts is the restart's.

A counter must not fall when the daemon is restarted. What only the daemon knows is kept in the history each
`KEPT_SECONDS`, and the page shows what was kept the time before, which is surely written; once the rank has ended, soon.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trackside_daemon.model.records import Account, EarlierAttempts, lost_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from trackside.wire import Clock

KEPT_SECONDS = 10.0
NOTHING = EarlierAttempts()


class Look(NamedTuple):
    """What a look at a rank's losses finds: whether the page has to be told anew, and what is to be kept, if anything."""

    news: bool
    account: Account | None


NO_NEWS = Look(news=False, account=None)


class Losses:
    """Those of one rank of one attempt.

    Args:
        before: What is known of the run before it, and of this attempt if a daemon before this one has followed it.
        rank: The rank.
    """

    def __init__(self, before: EarlierAttempts = NOTHING, rank: int = 0) -> None:
        kept = before.kept.get(rank, Account())
        self._before = before.lost.get(rank, {})
        self._goal, self._since = before.step, before.ended
        self._now = self._kept = self._shown = kept._replace(caught=kept.caught or before.ended is None)
        self._phases: dict[str, float] = {}
        self._looked_at: float | None = None
        self._kept_at = self._seen = 0.0
        self._over = False

    @property
    def shown(self) -> dict[str, float]:
        """Seconds by cause, as the page has them."""
        return self._summed(self._shown)

    @property
    def known(self) -> dict[str, float]:
        """The same, with what is not kept yet: for the attempt that comes next."""
        return self._summed(self._now)

    def take(self, phases: Mapping[str, float], flops: float | None) -> None:
        """What its client has told in all."""
        self._phases = lost_in(phases)
        self._now = self._now._replace(flops=flops)
        self._over = False

    def reach(self, clock: Clock, blocks: Iterable[tuple[Sequence[int], Sequence[int]]], wall: float) -> None:
        """Steps came, at times of *clock*, by *wall* in Unix seconds: with the first beyond all before it has caught up."""
        if self._now.caught:
            return
        for steps, times in blocks:
            for step, time in zip(steps, times, strict=True):
                if self._goal is None or step > self._goal:
                    self._restarts(min(wall, clock.wall_seconds(time)))
                    self._now = self._now._replace(caught=True)
                    return

    def look(self, wall: float, monotonic: float, peak: Callable[[], object], *, stalled: bool) -> Look:
        """Once a second while it lives, at these times of the daemon; *peak* tells FLOP/s."""
        passed = 0.0 if self._looked_at is None else monotonic - self._looked_at
        spent = sum(self._phases.values())
        if not self._now.caught:
            self._restarts(wall)
        elif stalled:
            self._now = self._now._replace(stall=self._now.stall + max(0.0, passed - max(0.0, spent - self._seen)))
        self._looked_at, self._seen = monotonic, spent
        if monotonic - self._kept_at < KEPT_SECONDS and self._now.caught == self._kept.caught:
            return NO_NEWS
        return self._keep(monotonic, peak)

    def end(self, wall: float, monotonic: float, peak: Callable[[], object]) -> Look:
        """The same once it has ended, at *wall*."""
        if self._over:
            return Look(self._show(), None)
        self._over = True
        if not self._now.caught:
            self._restarts(wall)
        return self._keep(monotonic, peak)

    def _restarts(self, until: float) -> None:
        """The restart lasts until then at least."""
        spent = 0.0 if self._since is None else until - self._since - sum(self._phases.values())
        self._now = self._now._replace(restart=max(self._now.restart, spent))

    def _keep(self, monotonic: float, peak: Callable[[], object]) -> Look:
        news, self._kept_at = self._show(), monotonic
        if self._now.flops is not None and isinstance(found := peak(), int | float):
            self._now = self._now._replace(peak=float(found))
        if self._now == self._kept:
            return Look(news, None)
        self._kept = self._now
        return Look(news, self._now)

    def _show(self) -> bool:
        """The page gets what was kept before; whether that is anything new."""
        before, self._shown = self._shown, self._kept
        return (before.restart, before.stall) != (self._shown.restart, self._shown.stall)

    def _summed(self, account: Account) -> dict[str, float]:
        own = {**self._phases, "restart": account.restart, "stall": account.stall}
        return {cause: self._before.get(cause, 0.0) + own.get(cause, 0.0) for cause in {**self._before, **own}}
