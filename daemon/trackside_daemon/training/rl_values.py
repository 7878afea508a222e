"""The quantities of reinforcement learning of one rank, under one name each, whatever its framework calls them."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING

from trackside.rl_keys import PHASES, meaning
from trackside_daemon.model.families.rl import PHASE_ROLES, STATES, TOTALS
from trackside_daemon.model.metric import Sample

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trackside.rl_keys import Meaning
    from trackside.wire import Totals


class RlValues:
    """The key that counts for each quantity: of several, the one that `trackside.rl_keys.KEYS` has first.

    Args:
        labels: The rank's labels.
    """

    def __init__(self, labels: tuple[str, ...]) -> None:
        self._labels = labels
        self._keys: dict[str, tuple[str, Meaning]] = {}

    def register(self, key: str) -> None:
        """Register a key that the rank pushes."""
        found = meaning(key)
        if found is None or found.quantity not in STATES:
            return
        known = self._keys.get(found.quantity)
        if known is None or found.preference < known[1].preference:
            self._keys[found.quantity] = key, found

    def samples(self, newest: Mapping[str, float]) -> list[Sample]:
        """Return the quantities of the newest values; values that are not finite, such as RLlib's, are left out."""
        return [
            Sample(STATES[quantity], self._labels, found.factor * newest[key])
            for quantity, (key, found) in self._keys.items()
            if key in newest and isfinite(newest[key])
        ]


def rl_totals(totals: Totals, labels: tuple[str, ...]) -> list[Sample]:
    """Return the counters: times of a rank with phases of generation from its phases, everything else from its pushes."""
    amounts = {} if totals.device is None else dict(totals.device.amounts)
    if not PHASES["generate"].isdisjoint(totals.phases):
        for quantity, role in PHASE_ROLES.items():
            if spent := sum(totals.phases.get(phase, 0.0) for phase in PHASES[role]):
                amounts[quantity] = spent
    return [Sample(TOTALS[quantity], labels, amount) for quantity, amount in amounts.items() if quantity in TOTALS]
