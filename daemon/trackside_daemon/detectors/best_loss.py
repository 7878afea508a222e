"""The last and the best training loss of a run, for the summary at its end."""

from __future__ import annotations

from math import inf, isfinite
from typing import TYPE_CHECKING

from trackside_daemon.detectors.key_roles import BY_NAME
from trackside_daemon.model.text import number

if TYPE_CHECKING:
    from trackside_daemon.detectors.key_roles import Roles
    from trackside_daemon.model.columns import Columns


class BestLoss:
    """The loss of one run over all its attempts, as its lowest *rank* pushes it: of one key, the one with the shortest name.

    Attributes:
        rank: The rank.
        key: The key; empty before there is one.
    """

    __slots__ = ("_best", "_last", "_roles", "_step", "key", "rank")

    def __init__(self, rank: int, roles: Roles = BY_NAME) -> None:
        self.rank = rank
        self._roles = roles
        self.key = ""
        self._last: float | None = None
        self._best = inf
        self._step = 0

    def accept(self, columns: Columns) -> None:
        """Apply the next rows."""
        keys = [key for key in columns.keys if self._roles.of(key) == "loss"]
        if not keys:
            return
        key = min(keys, key=len)
        if key != self.key:
            if self.key and len(key) >= len(self.key):  # a logged mean, for example, that is pushed alone
                return
            self.key, self._best = key, inf
        losses = columns.column(columns.keys.index(key))
        self._last = losses[-1]
        best = min(filter(isfinite, losses), default=inf)
        if best < self._best:
            self._best = best
            self._step = columns.steps[losses.index(best)]

    def text(self, objective: str = "") -> str:
        """Return last and best loss as text, or the last and why it is an *objective*; empty if none was pushed."""
        if self._last is None:
            return ""
        if objective:
            return f"last loss {number(self._last)}, which is read as an objective: {objective}"
        best = "" if self._best == inf else f", best {number(self._best)} at step {number(self._step)}"
        return f"last loss {number(self._last)}{best}"
