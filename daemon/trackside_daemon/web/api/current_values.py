"""What `/api/v1` answers, read from the state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from trackside_daemon.model.metric import json_number
from trackside_daemon.training import families as f

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trackside_daemon.model.metric import Metric
    from trackside_daemon.model.state import State

_RANK_GAUGES = {
    "step": f.STEP,
    "loss": f.KNOWN["loss"],
    "progress": f.PROGRESS,
    "remaining_seconds": f.REMAINING,
    "started": f.STARTED,
    "last_step": f.LAST_STEP,
    "ended": f.ENDED_AT,
}


def runs(state: State, now: float) -> dict[str, Any]:
    """``/runs``: the runs on the page, the newest first, with the numbers of each rank; *now* as in `State.snapshot`."""
    infos, run_states, rank_states, *numbers = state.values(
        now, f.RUN_INFO, f.STATE, f.RANK_STATE, *_RANK_GAUGES.values()
    )
    states, ranks = _active(run_states), _active(rank_states)
    gauges = dict(zip(_RANK_GAUGES, numbers, strict=True))
    found: list[dict[str, Any]] = []
    for labels in infos:
        info = dict(zip(f.RUN_INFO.labels, labels, strict=True))
        name = info.pop("run")
        own = {labels for of in (ranks, gauges["started"], gauges["ended"]) for labels in of if labels[0] == name}
        found.append(
            {
                "id": info.pop("run_id"),
                "name": name,
                "state": states.get((name,)),
                "attempt": int(info.pop("attempt")),
                "world_size": int(info.pop("world_size")),
                **info,
                "ranks": [_rank(labels, ranks, gauges) for labels in sorted(own, key=lambda labels: int(labels[1]))],
            }
        )
    found.sort(key=lambda run: max((rank.get("started") or 0.0 for rank in run["ranks"]), default=0.0), reverse=True)
    return {"runs": found}


def values(state: State, now: float, *metrics: Metric) -> dict[str, Any]:
    """Families of one label as objects: ``{family: {label value: value}}``; of none as numbers."""
    return {
        metric.name: {labels[0]: json_number(cast("float", value)) for labels, value in found.items()}
        if metric.labels
        else next((json_number(cast("float", value)) for value in found.values()), None)
        for metric, found in zip(metrics, state.values(now, *metrics), strict=True)
    }


def _rank(
    labels: tuple[str, ...],
    ranks: Mapping[tuple[str, ...], str],
    gauges: Mapping[str, Mapping[tuple[str, ...], object]],
) -> dict[str, Any]:
    known = {name: json_number(cast("float", values[labels])) for name, values in gauges.items() if labels in values}
    return {"rank": int(labels[1]), "state": ranks.get(labels), **known}


def _active(found: Mapping[tuple[str, ...], object]) -> dict[tuple[str, ...], str]:
    """Of series with a last label ``state``, the state whose value is 1."""
    return {labels[:-1]: labels[-1] for labels, value in found.items() if value == 1.0}
