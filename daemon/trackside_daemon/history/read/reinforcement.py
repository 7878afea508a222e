"""The quantities of reinforcement learning among the keys of a run, and what its ranks did."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from trackside.rl_keys import KEYS, meaning, phase_role
from trackside_daemon.model.families.rl import PHASE_ROLES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from trackside.rl_keys import Meaning

_AMBIGUOUS = frozenset(("kl", "entropy"))  # which other trainings have as well


def reinforcement(metrics: Iterable[Mapping[str, Any]], attempts: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return what a run has of reinforcement learning; None for another training.

    Args:
        metrics: Summaries of its keys.
        attempts: Its attempts, with phases.

    Returns:
        ``quantities``: the key of each and the factor of its values; ``roles``: seconds by what the ranks did, from their
        phases, or from the times that the framework pushed.
    """
    found: dict[str, tuple[str, Meaning]] = {}
    pushed: Counter[str] = Counter()
    for one in metrics:
        known = meaning(one["key"])
        if known is None:
            continue
        if known.quantity in KEYS:
            best = found.get(known.quantity)
            if best is None or known.preference < best[1].preference:
                found[known.quantity] = one["key"], known
        elif known.quantity in PHASE_ROLES and isinstance(one["mean"], float):
            pushed[PHASE_ROLES[known.quantity]] += one["mean"] * one["count"]
    if found.keys() <= _AMBIGUOUS:
        return None
    quantities = {
        name: {"key": key, "factor": of.factor} for name in KEYS if name in found for key, of in [found[name]]
    }
    return {"quantities": quantities, "roles": _roles(attempts) or dict(pushed)}


def _roles(attempts: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the seconds of all ranks by role; none if no phase generates."""
    seconds: Counter[str] = Counter()
    for attempt in attempts:
        for phases in attempt.get("phases", {}).values():
            for phase, spent in phases.items():
                if role := phase_role(phase):
                    seconds[role] += spent
    return dict(seconds.most_common()) if seconds["generate"] else {}
