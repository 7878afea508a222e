"""Runs in the overview: live ones, and ended ones whose ranks are still on ``/metrics``."""

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

from trackside_daemon.causes.verdict import Verdict
from trackside_daemon.model.families import training as f
from trackside_daemon.model.metric import json_number
from trackside_daemon.model.records import ENDED
from trackside_daemon.model.state import State
from trackside_daemon.web.api.overview.rates import (
    Attempt,
    RateTracker,
    RunRates,
    SeriesValues,
    alternative_loss,
    attempt_from_info,
)

LOSS, PROGRESS = f.KNOWN["loss"], f.PROGRESS
GAUGES = (f.STARTED, f.STEP, PROGRESS, f.REMAINING, f.LAST_STEP, LOSS)  # gauges of a rank that the overview reads


class TwoClocks(NamedTuple):
    """A time, as seconds of the monotonic clock and as Unix seconds."""

    monotonic: float
    wall: float


class VisibleRun(NamedTuple):
    """A run that is on ``/metrics``."""

    name: str
    attempt: Attempt
    world: int
    state: str | None
    user: str
    ranks: list[dict[int, float]]  # for each of `GAUGES`, its value by rank


class RunExtras(NamedTuple):
    """Values of a run that are not on ``/metrics``: its total steps, its firing alerts by severity, and what stops it."""

    total_steps: int | None
    alerts: Mapping[str, int]
    verdict: Verdict


def visible_runs(state: State, now: TwoClocks) -> list[VisibleRun]:
    """Return the runs on ``/metrics`` that are live or still have rank series, newest first."""
    infos, states, *values = state.values(now.monotonic, f.RUN_INFO, f.STATE, *GAUGES)
    active = {run: run_state for (run, run_state), value in states.items() if value == 1.0}
    gauges = [_by_run(series) for series in values]
    runs = [
        VisibleRun(
            name=labels[0],
            attempt=attempt_from_info(labels),
            world=int(labels[f.RUN_INFO.labels.index("world_size")]),
            state=active.get(labels[0]),
            user=labels[f.RUN_INFO.labels.index("user")],
            ranks=[gauge.get(labels[0], {}) for gauge in gauges],
        )
        for labels in infos
    ]
    # `STARTED` is the first of `GAUGES`.
    visible = [run for run in runs if run.ranks[0] or run.state not in ENDED]
    return sorted(visible, key=lambda run: min(run.ranks[0].values(), default=0.0), reverse=True)


def run_json(state: State, now: TwoClocks, run: VisibleRun, tracker: RateTracker, extras: RunExtras) -> dict[str, Any]:
    """Return a run's values as JSON content."""
    started, steps, progress, remaining, last_steps, losses = run.ranks
    loss = _of_lowest_rank(losses)
    if loss is None and steps:
        loss = alternative_loss(state, now.monotonic, (run.name, str(min(steps))))
    # A run that stands still has no pace, and so no end.
    goes_on = run.state not in ENDED and "stall" not in extras.verdict.causes
    rates = tracker.run_rates(run.attempt, now.wall) if goes_on else RunRates()
    values = {
        "started": min(started.values(), default=None),
        "step": int(max(steps.values())) if steps else None,
        "total_steps": extras.total_steps,
        "progress_ratio": _of_lowest_rank(progress),
        "remaining_seconds": _of_lowest_rank(remaining) if goes_on else None,
        "loss": loss,
        "tokens_per_second": rates.tokens,
        "samples_per_second": rates.samples,
        "step_seconds": rates.step_seconds,
        "last_step_time": max(last_steps.values(), default=None),
    }
    return {
        "id": run.attempt[0],
        "name": run.name,
        "state": run.state,
        "attempt": run.attempt[1],
        "world_size": run.world,
        "user": run.user,
        **{name: None if value is None else json_number(value) for name, value in values.items()},
        "verdict": extras.verdict.text,
        "alerts": {severity: extras.alerts.get(severity, 0) for severity in ("critical", "warning", "info")},
        "sparkline": tracker.sparkline(run.attempt),
    }


def _of_lowest_rank(ranks: Mapping[int, float]) -> float | None:
    return ranks[min(ranks)] if ranks else None


def _by_run(series: SeriesValues) -> dict[str, dict[int, float]]:
    """Return a gauge's values by run name, then by rank."""
    runs: dict[str, dict[int, float]] = {}
    for (run, rank), value in series.items():
        runs.setdefault(run, {})[int(rank)] = cast("float", value)
    return runs
