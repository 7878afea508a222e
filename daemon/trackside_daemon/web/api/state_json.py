"""JSON content of API responses that comes from the state."""

from collections.abc import Mapping
from typing import Any, cast

from trackside_daemon.model.families import training as f
from trackside_daemon.model.metric import Metric, json_number
from trackside_daemon.model.state import State
from trackside_daemon.web.api.overview.rates import alternative_loss

_RANK_GAUGES = {
    "step": f.STEP,
    "loss": f.KNOWN["loss"],
    "progress": f.PROGRESS,
    "remaining_seconds": f.REMAINING,
    "started": f.STARTED,
    "last_step": f.LAST_STEP,
    "ended": f.ENDED_AT,
}


def live_runs(state: State, now: float) -> list[dict[str, Any]]:
    """Return the live runs, newest first, each with the values of its ranks.

    Args:
        state: The newest value of every series.
        now: Seconds of the monotonic clock.
    """
    infos, run_states, rank_states, *numbers = state.values(
        now, f.RUN_INFO, f.STATE, f.RANK_STATE, *_RANK_GAUGES.values()
    )
    states, ranks = _active(run_states), _active(rank_states)
    gauges = dict(zip(_RANK_GAUGES, numbers, strict=True))
    live: list[dict[str, Any]] = []
    for labels in infos:
        info = dict(zip(f.RUN_INFO.labels, labels, strict=True))
        name = info.pop("run")
        of_run = {
            labels for series in (ranks, gauges["started"], gauges["ended"]) for labels in series if labels[0] == name
        }
        rank_values = [
            _rank_json(labels, ranks, gauges) for labels in sorted(of_run, key=lambda labels: int(labels[1]))
        ]
        for rank in rank_values[:1]:  # of the lowest, whose loss is that of the run
            if "loss" not in rank and (loss := alternative_loss(state, now, (name, str(rank["rank"])))) is not None:
                rank["loss"] = json_number(loss)
        live.append(
            {
                "id": info.pop("run_id"),
                "name": name,
                "state": states.get((name,)),
                "attempt": int(info.pop("attempt")),
                "world_size": int(info.pop("world_size")),
                **info,
                "ranks": rank_values,
            }
        )
    live.sort(key=lambda run: max((rank.get("started") or 0.0 for rank in run["ranks"]), default=0.0), reverse=True)
    return live


def family_values(state: State, now: float, *metrics: Metric) -> dict[str, Any]:
    """Return each family as ``{family: {label value: value}}``, or as a number if it has no labels."""
    return {
        metric.name: {labels[0]: json_number(cast("float", value)) for labels, value in series.items()}
        if metric.labels
        else next((json_number(cast("float", value)) for value in series.values()), None)
        for metric, series in zip(metrics, state.values(now, *metrics), strict=True)
    }


def _rank_json(
    labels: tuple[str, ...],
    ranks: Mapping[tuple[str, ...], str],
    gauges: Mapping[str, Mapping[tuple[str, ...], object]],
) -> dict[str, Any]:
    present = {name: json_number(cast("float", values[labels])) for name, values in gauges.items() if labels in values}
    return {"rank": int(labels[1]), "state": ranks.get(labels), **present}


def _active(series: Mapping[tuple[str, ...], object]) -> dict[tuple[str, ...], str]:
    """Return the state whose value is 1, by the labels in front of the last label ``state``."""
    return {labels[:-1]: labels[-1] for labels, value in series.items() if value == 1.0}
