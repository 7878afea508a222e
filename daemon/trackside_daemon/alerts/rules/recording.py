"""Recording rules: a run over all of its nodes and ranks, so that a dashboard of a thousand ranks reads ten series."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trackside_daemon.alerts.rules.query import listed
from trackside_daemon.detectors.run_rank import SYNC_PHASES
from trackside_daemon.detectors.straggler import OWN, OWN_WITH_SYNC

if TYPE_CHECKING:
    from collections.abc import Sequence

GPU = ("gpu", "uuid")
PLACE = ("instance", "node", "pod")
"""The labels that tell one machine's daemon from another's, those of a PodMonitor too: a run goes beyond them."""

APART = ("job", "run", "run_id", "attempt", "rank", "phase", "key", "gpu", "uuid")
"""The labels by which they are told apart within a place, or beyond it."""

WINDOW = "5m"


class Recorded(NamedTuple):
    """One recording rule: ``level:family:operation``."""

    record: str
    expr: str


def recorded(places: Sequence[str] = PLACE) -> list[Recorded]:
    """All that are evaluated each time; what one is made of comes before it.

    Args:
        places: The labels that a run goes beyond.
    """
    place = ", ".join(places)
    return [*_speed(place), *_phases(place), *_waits(place), *_norms(place), *_worth(place), *_gpus(place)]


def attempts(place: str, window: str) -> str:
    """How many attempts of each run were seen in a window, as an expression."""
    rest = "host, world_size, git_commit, framework, job_id"
    return f"""\
count without (attempt) (
  group without ({place}, {rest}) (last_over_time(trackside_training_run_info[{window}]))
)"""


def seldom(places: Sequence[str] = PLACE) -> list[Recorded]:
    """Those that look at a day, which is read every few minutes only."""
    expr = f"{attempts(', '.join(places), '1d')} - 1"
    return [Recorded("run:trackside_training_restarts:count1d", expr)]


def _summed(family: str, labels: str) -> str:
    return f"sum without ({labels}) (rate({family}[{WINDOW}]))"


def _speed(place: str) -> list[Recorded]:
    duration = "trackside_training_step_duration_seconds"
    ranks = f"{place}, rank"
    means = {
        level: f"  {_summed(f'{duration}_sum', labels)}\n/\n  {_summed(f'{duration}_count', labels)}"
        for level, labels in (("run", ranks), ("run_rank", place))
    }
    return [
        Recorded("run:trackside_training_tokens:rate5m", _summed("trackside_training_tokens_total", ranks)),
        Recorded("run:trackside_training_samples:rate5m", _summed("trackside_training_samples_total", ranks)),
        Recorded(
            "run:trackside_training_steps:max_rate5m",
            f"max without ({ranks}) (rate(trackside_training_steps_total[{WINDOW}]))",
        ),
        *(Recorded(f"{level}:{duration}:mean5m", expr) for level, expr in means.items()),
    ]


def _phases(place: str) -> list[Recorded]:
    """A rank's own time: without what it waits for others, which a phase of its own tells, or else is in backward."""
    family = "trackside_training_phase_seconds_total"
    own = "run_rank:trackside_training_phase_seconds:own_rate5m"
    syncs = "|".join(sorted(SYNC_PHASES))
    data = f'{family}{{phase="data"}}'
    return [
        Recorded(
            own,
            f"""\
sum without ({place}, phase) (
    rate({family}{{phase=~"{"|".join(OWN)}"}}[{WINDOW}])
  or
    rate({family}{{phase=~"{"|".join(OWN_WITH_SYNC)}"}}[{WINDOW}])
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
            f"  {_summed(data, f'{place}, rank, phase')}\n/\n  {_summed(family, f'{place}, rank, phase')}",
        ),
    ]


def _waits(place: str) -> list[Recorded]:
    """Percentiles over all ranks, for each batch but the first of an epoch."""
    family = "trackside_training_data_wait_seconds"
    buckets = _summed(f"{family}_bucket", f"{place}, rank")
    return [
        Recorded(f"run:{family}:p{percent}_rate5m", f"histogram_quantile(0.{percent}, {buckets})")
        for percent in (50, 95, 99)
    ]


def _worth(place: str) -> list[Recorded]:
    """What the time is worth: the share in which ranks train, and the model's operations over the most that there could be."""
    lost, done = "trackside_training_lost_seconds_total", "trackside_training_model_flops_total"
    peak = "trackside_training_peak_flops_per_second"
    return [
        Recorded(
            "run:trackside_training_goodput:ratio",
            f"clamp_min(1 - avg without ({place}, rank) ({_summed(lost, 'cause')}), 0)",
        ),
        Recorded(
            "run:trackside_training_mfu:ratio",
            f"  {_summed(done, f'{place}, rank')}\n/\n  sum without ({place}, rank) ({peak} and {done})",
        ),
    ]


def _norms(place: str) -> list[Recorded]:
    """Over the parts of all ranks, which are told by different daemons: each's last, so that steps may differ by one."""
    squared = "trackside_training_grad_norm_local_squared"
    return [Recorded("run:trackside_training_grad_norm:l2", f"sqrt(sum without ({place}, rank) ({squared}))")]


def _gpus(place: str) -> list[Recorded]:
    """Of the GPUs that the run's ranks train on; a GPU of two runs counts for both."""
    kinds = (("utilization_ratio", "avg"), ("memory_used_bytes", "sum"), ("power_watts", "sum"))
    return [
        Recorded(
            f"run:trackside_gpu_{name}:{operation}",
            f"""\
{operation} without ({place}, rank, gpu, uuid) (
    trackside_gpu_rank_info
  * on ({listed(GPU)}) group_left ()
    trackside_gpu_{name}
)""",
        )
        for name, operation in kinds
    ]
