"""Stalls: which ranks of a run make no progress, from the detectors that find them to the pages that show them."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from trackside_daemon.model.metric import Distribution
from trackside_daemon.model.text import moment, number

QUIET, OVER_USUAL = 10.0, 10.0  # seconds, and mean steps, without a step from which on a run may stand still
ENOUGH_STEPS = 5  # least steps that show what a step takes: before that, kernels are compiled and caches filled
USUAL = 6.0  # seconds of a step of which too few were measured


def is_quiet(silence: float, usual: float) -> bool:
    """Return whether a run whose steps usually take *usual* seconds may stand still after so many without one."""
    return silence >= max(QUIET, OVER_USUAL * usual)


def usual_step(durations: Mapping[tuple[str, ...], object], run: str) -> float:
    """Return the mean seconds of a step of a run, by its name, from the durations of its ranks; `USUAL` of too few."""
    steps = [one for (of, *_), one in durations.items() if of == run and isinstance(one, Distribution)]
    count = sum(sum(one.counts) for one in steps)
    return sum(one.sum for one in steps) / count if count >= ENOUGH_STEPS else USUAL


def standing(name: str, since: float, step: float | None) -> str:
    """Return the clause on a run that stands still *since* a Unix time; *step* is its last one, None before the first."""
    if step is None:
        return f"run {name} has not made its first step since {moment(since, ' %Z')}"
    return f"run {name} has made no step since {moment(since, ' %Z')}, after step {number(step)}"


class Stall(NamedTuple):
    """The stalled ranks of one attempt at one moment. A later one of the same attempt replaces it."""

    run: str  # the id of the run
    attempt: int
    stalled: bool = False  # no rank of the run makes progress
    restored: bool = False  # the stall was found by an earlier daemon: ranks without a known push count as stalled
    silent: AbstractSet[int] = frozenset()  # ranks that push nothing while others do
    # When each of these ranks pushed last, in Unix seconds, by the client's clock; None before the first push.
    pushed: Mapping[int, float | None] = {}

    @property
    def is_over(self) -> bool:
        """True if no rank is stalled."""
        return not self.stalled and not self.silent

    def has(self, rank: int, pushed: float | None) -> bool:
        """Return whether a rank is stalled that pushed last at this time; a rank that has pushed since is not."""
        last = self.pushed.get(rank)
        if last is None and self.stalled and self.restored:
            return True
        return (self.stalled and last == pushed) or (rank in self.silent and last in {None, pushed})
