"""Recording rules: a run over all its nodes and ranks, so that a dashboard of a thousand ranks reads ten series."""

from collections.abc import Callable
from typing import NamedTuple

from trackside_daemon.alerts.rules.query import DRAINED, SECOND, TARGETS, UP, Matcher, Targets, positive
from trackside_daemon.model.families import derived, gpu
from trackside_daemon.model.families import training as f
from trackside_daemon.model.metric import Metric
from trackside_daemon.model.time_ledger import OWN, OWN_WITH_SYNC, SYNC_PHASES

GPU = ("gpu", "uuid")
# Labels of trackside that identify runs, ranks and GPUs, within one machine or beyond.
DISTINGUISHING_LABELS = ("job", "run", "run_id", "attempt", "rank", "phase", "key", "gpu", "uuid")

WINDOW = "5m"

# Label of a target whose node is drained, as deploy/slurm/file_sd.py sets it; only `up` keeps it.
NODE_STATE = "node_state"
# Label of a target that ends with its training, as a sidecar does; only `up` keeps it.
SHORT_LIVED = "short_lived"

# Seconds of the window in which a run was there. Prometheus divides the rate of a young series by the whole window.
SECONDS = "run:trackside_training_seconds:max5m"


class RecordingRule(NamedTuple):
    """Recording rule; its name is ``level:family:operation``."""

    record: str
    expr: str


def recording_rules(targets: Targets = TARGETS) -> list[RecordingRule]:
    """Return the rules that Prometheus evaluates at every interval; a rule comes after those that it uses."""
    parts = (_speed, _phases, _waits, _norms, _efficiency, _gpus)
    return [rule for part in parts for rule in part(targets)]


def runs(place: str, window: str, *labels: str, matchers: str = "") -> str:
    """Return an expression for the runs in a window with their users and the other *labels* of the info."""
    # Labels of the info that may differ between ranks or attempts.
    rest = ", ".join(label for label in f.RUN_INFO.labels if label not in ("run", "user", *labels))
    return f"group without ({place}, {rest}) (last_over_time({f.RUN_INFO.name}{matchers}[{window}]))"


def attempts(place: str, window: str, matchers: str = "") -> str:
    """Return an expression for the number of attempts of each run in a window."""
    return f"count without (attempt) (\n  {runs(place, window, 'run_id', 'attempt', matchers=matchers)}\n)"


def daily_rules(targets: Targets = TARGETS) -> list[RecordingRule]:
    """Return the rules over a day, which Prometheus evaluates only every few minutes."""
    expr = f"{attempts(targets.place, '1d')} - 1"
    return [RecordingRule("run:trackside_training_restarts:count1d", expr)]


def up_rule(job: str) -> RecordingRule:
    """Return the rule for the daemons that answer."""
    return RecordingRule(UP, f"up{{{Matcher('job', job).promql()}}}")


def quiet_rules(job: str, targets: Targets) -> list[RecordingRule]:
    """Return the rules for daemons whose critical alerts, or whose alerts of the machine, do not count.

    A machine is drained by `NODE_STATE` in Slurm, and in Kubernetes by kube-state-metrics, never by a page of a daemon.
    """
    up, cordoned = (
        Matcher("job", job).promql(),
        f"kube_node_spec_unschedulable{{{Matcher('job', job, '!=').promql()}}} == 1",
    )
    named = f'label_replace(group by ({targets.of_cluster("node")}) ({cordoned}), "instance", "$1", "node", "(.+)")'
    machine = targets.of_site("job", "instance")
    drained = f"""\
group by ({machine}) (
    up{{{up}, {NODE_STATE}!=""}}
  or
    up{{{up}}} and on ({targets.of_cluster("node")}) {cordoned}
  or
    up{{{up}}} and on ({targets.of_cluster("instance")}) {named}
)"""
    second = f"""\
group by ({machine}) (
    up{{{up}, {SHORT_LIVED}!="", node!=""}}
  and on ({targets.of_cluster("node")})
    up{{{up}, {SHORT_LIVED}="", node!=""}} == 1
)"""
    return [RecordingRule(DRAINED, drained), RecordingRule(SECOND, second)]


def positive_rule(metric: Metric, targets: Targets) -> RecordingRule:
    """Return the rule for the series of a counter that have grown beyond 0, and for 0 after a reset of these."""
    name = positive(metric)
    expr = f"  {metric.name} > 0\nor\n  0 * {name} and on ({targets.of_machine()}) {UP} == 1"
    return RecordingRule(name, expr)


def _per_second(increase: str) -> str:
    """Return the rate of a sum of increases over the window, or over the time since the run began if that is shorter."""
    return f"  {increase}\n/\n  {SECONDS}"


def _of_all_ranks(family: str, targets: Targets, of: Callable[[str], str] = str) -> str:
    """Return the sum over all ranks of a family, or *of* an expression with it.

    A daemon has only the sum, and the series of one rank, if a run has more ranks than `limits.ranks`.
    """
    total = f'{derived.RANK_STATISTIC.name}{{family="{family}", statistic="sum"}}'
    return f"""\
sum without ({targets.place}, rank, family, key, statistic) (
    {of(family)} unless on ({targets.of_site("job", *targets.places, "run")}) {total}
  or
    {of(total)}
)"""


def _grown(series: str) -> str:
    return f"increase({series}[{WINDOW}])"


def _summed(family: str, labels: str) -> str:
    return f"sum without ({labels}) (rate({family}[{WINDOW}]))"


def _speed(targets: Targets) -> list[RecordingRule]:
    duration = f.STEP_DURATION.name
    ranks = f"{targets.place}, rank"
    means = {
        level: f"  {_summed(f'{duration}_sum', labels)}\n/\n  {_summed(f'{duration}_count', labels)}"
        for level, labels in (("run", ranks), ("run_rank", targets.place))
    }
    began = f"min without ({ranks}) (min_over_time({f.STARTED.name}[{WINDOW}]))"
    return [
        # First, since the rules below divide by it.
        RecordingRule(SECONDS, f"clamp(time() - {began}, 1, 300)"),
        RecordingRule(f"run:{f.TOKENS.family}:rate5m", _per_second(_of_all_ranks(f.TOKENS.name, targets, _grown))),
        RecordingRule(f"run:{f.SAMPLES.family}:rate5m", _per_second(_of_all_ranks(f.SAMPLES.name, targets, _grown))),
        RecordingRule(
            f"run:{f.STEPS.family}:max_rate5m",
            _per_second(f"max without ({ranks}) (increase({f.STEPS.name}[{WINDOW}]))"),
        ),
        *(RecordingRule(f"{level}:{duration}:mean5m", expr) for level, expr in means.items()),
    ]


def _phases(targets: Targets) -> list[RecordingRule]:
    """Return the rules for a rank's part of a step, without its waits for other ranks.

    A run either measures these waits in separate phases, or they are part of the backward phase.
    """
    family = f.PHASE_SECONDS.name
    own = f"run_rank:{f.PHASE_SECONDS.family}:own_rate5m"
    syncs = "|".join(sorted(SYNC_PHASES))
    data = f'{family}{{phase="data"}}'
    return [
        RecordingRule(
            own,
            f"""\
sum without ({targets.place}, phase) (
    rate({family}{{phase=~"{"|".join(OWN)}"}}[{WINDOW}])
  or
    rate({family}{{phase=~"{"|".join(OWN_WITH_SYNC)}"}}[{WINDOW}])
  and on ({targets.of_site("job", "run")})
    {family}{{phase=~"{syncs}"}}
)""",
        ),
        RecordingRule(
            "run:trackside_training_straggler:ratio_rate5m",
            f"  max without (rank) ({own})\n/\n  (quantile without (rank) (0.5, {own}) > 0)",
        ),
        RecordingRule(
            "run:trackside_training_data_wait:ratio_rate5m",
            f"  {_summed(data, f'{targets.place}, rank, phase')}\n/\n  {_summed(family, f'{targets.place}, rank, phase')}",
        ),
    ]


def _waits(targets: Targets) -> list[RecordingRule]:
    """Return the percentiles of the data wait over all ranks, for each batch except the first of an epoch."""
    family = f.DATA_WAIT.name
    buckets = _summed(f"{family}_bucket", f"{targets.place}, rank")
    return [
        RecordingRule(f"run:{family}:p{percent}_rate5m", f"histogram_quantile(0.{percent}, {buckets})")
        for percent in (50, 95, 99)
    ]


def _efficiency(targets: Targets) -> list[RecordingRule]:
    """Return the rules for goodput, the share of useful compute so far, and for MFU, model FLOPs over peak FLOPs."""
    done, peak, total = f.MODEL_FLOPS.name, f.PEAK_FLOPS.name, f"sum without ({targets.place}, rank)"
    return [
        RecordingRule(
            "run:trackside_training_goodput:ratio",
            f"avg without ({targets.place}, rank) ({f.GOODPUT.name})",
        ),
        RecordingRule(
            "run:trackside_training_mfu:ratio",
            f"{_per_second(f'{total} ({_grown(done)})')}\n/\n  {total} ({peak} and {done})",
        ),
    ]


def _norms(targets: Targets) -> list[RecordingRule]:
    """Return the rule for the gradient norm over the parts of all ranks.

    Different daemons export the parts, and each is the latest, so the steps may differ by one.
    """
    squared = f.KNOWN["grad_norm_local_squared"].name
    return [RecordingRule(f"run:{f.KNOWN['grad_norm'].name}:l2", f"sqrt({_of_all_ranks(squared, targets)})")]


def _gpus(targets: Targets) -> list[RecordingRule]:
    """Return the rules over the GPUs of a run's ranks; a GPU that two runs share counts for both."""
    kinds = ((gpu.UTILIZATION.name, "avg"), (gpu.MEMORY_USED.name, "sum"), (gpu.POWER.name, "sum"))
    return [
        RecordingRule(
            f"run:{name}:{operation}",
            f"""\
{operation} without ({targets.place}, rank, gpu, uuid) (
    {gpu.RANK_INFO.name}
  * on ({targets.of_machine(*GPU)}) group_left ()
    {name}
)""",
        )
        for name, operation in kinds
    ]
