"""Recording rules: a run over all of its nodes and ranks, so that a dashboard of a thousand ranks reads ten series."""

from __future__ import annotations

from typing import NamedTuple

from trackside_daemon.detectors.run_rank import SYNC_PHASES
from trackside_daemon.detectors.straggler import OWN, OWN_BESIDE_SYNC

PLACE = "instance, node, pod"
"""The labels that tell one machine's daemon from another's, those of a PodMonitor too: a run goes beyond them."""

WINDOW = "5m"


class Recorded(NamedTuple):
    """One recording rule: ``level:family:operation``."""

    record: str
    expr: str


def recorded() -> list[Recorded]:
    """All of them; what one is made of comes before it."""
    return [*_speed(), *_phases(), _restarts(), *_gpus()]


def _summed(family: str, *more: str) -> str:
    return f"sum without ({', '.join((PLACE, *more))}) (rate({family}[{WINDOW}]))"


def _speed() -> list[Recorded]:
    duration = "trackside_training_step_duration_seconds"
    means = {
        level: f"  {_summed(f'{duration}_sum', *ranks)}\n/\n  {_summed(f'{duration}_count', *ranks)}"
        for level, ranks in (("run", ("rank",)), ("run_rank", ()))
    }
    return [
        Recorded("run:trackside_training_tokens:rate5m", _summed("trackside_training_tokens_total", "rank")),
        Recorded("run:trackside_training_samples:rate5m", _summed("trackside_training_samples_total", "rank")),
        Recorded(
            "run:trackside_training_steps:max_rate5m",
            f"max without ({PLACE}, rank) (rate(trackside_training_steps_total[{WINDOW}]))",
        ),
        *(Recorded(f"{level}:{duration}:mean5m", expr) for level, expr in means.items()),
    ]


def _phases() -> list[Recorded]:
    """A rank's own time: without what it waits for others, which a phase of its own tells, or else is in backward."""
    family = "trackside_training_phase_seconds_total"
    own = "run_rank:trackside_training_phase_seconds:own_rate5m"
    syncs = "|".join(sorted(SYNC_PHASES))
    data = f'{family}{{phase="data"}}'
    return [
        Recorded(
            own,
            f"""\
sum without ({PLACE}, phase) (
    rate({family}{{phase=~"{"|".join(OWN)}"}}[{WINDOW}])
  or
    rate({family}{{phase=~"{"|".join(OWN_BESIDE_SYNC)}"}}[{WINDOW}])
  and on (job, run)
    {family}{{phase=~"{syncs}"}}
)""",
        ),
        Recorded(
            "run:trackside_training_straggler:ratio_rate5m",
            f"  max without (rank) ({own})\n/\n  (quantile without (rank) (0.5, {own}) > 0)",
        ),
        Recorded(
            "run:trackside_training_data_wait:ratio_rate5m",
            f"  {_summed(data, 'rank', 'phase')}\n/\n  {_summed(family, 'rank', 'phase')}",
        ),
    ]


def _restarts() -> Recorded:
    """Attempts of a run that were seen in a day, but for the first of them."""
    rest = "host, world_size, git_commit, framework, job_id"
    return Recorded(
        "run:trackside_training_restarts:count1d",
        f"""\
count without (attempt) (
  group without ({PLACE}, {rest}) (last_over_time(trackside_training_run_info[1d]))
) - 1""",
    )


def _gpus() -> list[Recorded]:
    """Of the GPUs that the run's ranks train on; a GPU of two runs counts for both."""
    kinds = (("utilization_ratio", "avg"), ("memory_used_bytes", "sum"), ("power_watts", "sum"))
    return [
        Recorded(
            f"run:trackside_gpu_{name}:{operation}",
            f"""\
{operation} without ({PLACE}, rank, gpu, uuid) (
    trackside_gpu_rank_info
  * on (job, instance, gpu, uuid) group_left ()
    trackside_gpu_{name}
)""",
        )
        for name, operation in kinds
    ]
