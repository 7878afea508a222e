"""The runs, as the overview has them: those on ``/metrics`` that live, or whose ranks are on it still."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

from trackside_daemon.model.records import ENDED
from trackside_daemon.training import families as f
from trackside_daemon.web.api.overview.machine import present
from trackside_daemon.web.api.overview.rates import Attempt, attempt_of, other_loss

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trackside_daemon.model.state import State
    from trackside_daemon.web.api.overview.rates import Followed, Found

LOSS, PROGRESS = f.KNOWN["loss"], f.PROGRESS
GAUGES = (f.STARTED, f.STEP, PROGRESS, f.REMAINING, f.LAST_STEP, LOSS)
"""What is told of ranks."""


class Now(NamedTuple):
    """One moment: of the monotonic clock, and in Unix seconds."""

    monotonic: float
    wall: float


class Shown(NamedTuple):
    """A run on the page.

    Attributes:
        ranks: Of each of `GAUGES` the values by rank.
    """

    name: str
    attempt: Attempt
    world: int
    state: str | None
    ranks: list[dict[int, float]]


class Known(NamedTuple):
    """What of a run is not on the page: its total steps, and how many alerts fire of each severity."""

    total_steps: int | None
    alerts: Mapping[str, int]


def shown(state: State, now: Now) -> list[Shown]:
    """Those that live or linger, the newest first."""
    infos, states, *found = state.values(now.monotonic, f.RUN_INFO, f.STATE, *GAUGES)
    active = {run: one for (run, one), value in states.items() if value == 1.0}
    gauges = list(map(_by_run, found))
    every = [
        Shown(
            *(labels[0], attempt_of(labels), int(labels[f.RUN_INFO.labels.index("world_size")])),
            *(active.get(labels[0]), [one.get(labels[0], {}) for one in gauges]),
        )
        for labels in infos
    ]
    lasting = [one for one in every if one.ranks[0] or one.state not in ENDED]
    return sorted(lasting, key=lambda one: min(one.ranks[0].values(), default=0.0), reverse=True)


def row(state: State, now: Now, run: Shown, followed: Followed, known: Known) -> dict[str, Any]:
    """One of them."""
    started, steps, progress, remaining, last, losses = run.ranks
    loss = _lowest(losses)
    if loss is None and steps:
        loss = other_loss(state, now.monotonic, (run.name, str(min(steps))))
    pace = followed.pace(run.attempt, now.wall)
    return {
        "id": run.attempt[0],
        "name": run.name,
        "state": run.state,
        "attempt": run.attempt[1],
        "world_size": run.world,
        **present(
            started=min(started.values(), default=None),
            step=int(max(steps.values())) if steps else None,
            total_steps=known.total_steps,
            progress_ratio=_lowest(progress),
            remaining_seconds=_lowest(remaining),
            loss=loss,
            tokens_per_second=pace.tokens,
            samples_per_second=pace.samples,
            step_seconds=pace.step_seconds,
            last_step_time=max(last.values(), default=None),
        ),
        "alerts": {severity: known.alerts.get(severity, 0) for severity in ("critical", "warning", "info")},
        "sparkline": followed.curve(run.attempt),
    }


def _lowest(ranks: Mapping[int, float]) -> float | None:
    return ranks[min(ranks)] if ranks else None


def _by_run(found: Found) -> dict[str, dict[int, float]]:
    """Values of ranks: by the run's name, then by rank."""
    runs: dict[str, dict[int, float]] = {}
    for (run, rank), value in found.items():
        runs.setdefault(run, {})[int(rank)] = cast("float", value)
    return runs
