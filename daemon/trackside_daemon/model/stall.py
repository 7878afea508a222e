"""Stalls: which ranks of a run make no progress, from the detectors that find them to the pages that show them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping
    from collections.abc import Set as AbstractSet


class Stall(NamedTuple):
    """The stalled ranks of one attempt at one moment. A later one of the same attempt replaces it.

    Attributes:
        run: The id of the run.
        attempt: Its attempt.
        stalled: No rank of the run makes progress.
        restored: The stall was found by an earlier daemon: ranks without a known push count as stalled.
        silent: Ranks that push nothing while others do.
        pushed: When each of these ranks pushed last, in Unix seconds, by the client's clock; None before the first push.
    """

    run: str
    attempt: int
    stalled: bool = False
    restored: bool = False
    silent: AbstractSet[int] = frozenset()
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
