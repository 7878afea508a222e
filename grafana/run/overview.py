"""The first screen: does it go well?"""

from __future__ import annotations

from grafana.board import Row
from grafana.panels import NONE, Query, above, below, link, number, states
from grafana.run.joins import of_gpu
from grafana.run.learning import loss
from grafana.run.speed import mean
from grafana.states import SEVERITY_TEXTS, STATE_TEXTS, severity, state

from trackside_daemon.alerts.settings import ThresholdsSection

ALERTS = "trackside_alert_firing{HERE, run=~`(${run:regex})?`}"
"""Those of the run, and those of machines and GPUs, which have no run."""

ON_ITS_MACHINES = "and on (job, instance) trackside_training_run_info{RUN}"
UNKNOWN = "no total_steps"
STAT = {"width": 3}


def row() -> Row:
    """Eight numbers, the loss, and what fires."""
    return Row("Is it going well?", *_progress(), *_pace(), loss(), _alerts())


def _progress() -> list[object]:
    return [
        number(
            "State",
            "The state of the run over all of its machines: what lives counts before what has ended. Failed and lost have "
            "their cause in `trackside show RUN`; stalled has an alert that names the rank.",
            "none",
            Query(state("trackside_training_state{RUN}", "run"), "{{run}}"),
            mappings=STATE_TEXTS,
            links=[link("All runs", "trackside-fleet")],
            **STAT,
        ),
        number(
            "Step",
            "The furthest step of any rank. When it stands still, look at the states of the ranks below.",
            "none",
            Query("max(trackside_training_step{RUN})", "step"),
            **STAT,
        ),
        number(
            "Progress",
            "Share of total_steps that is done, where the training has told init() how many there are.",
            "percentunit",
            Query("max(trackside_training_progress_ratio{RUN})", "done"),
            decimals=1,
            empty=UNKNOWN,
            **STAT,
        ),
        number(
            "Time left",
            "Steps that are left times the step duration of late, of the slowest rank. When it grows, look at the speed.",
            "s",
            Query("max(trackside_training_remaining_seconds{RUN})", "left"),
            empty=UNKNOWN,
            **STAT,
        ),
    ]


def _pace() -> list[object]:
    return [
        number(
            "Tokens per second",
            "Tokens that all ranks together train on in a second. When it falls, see where the time goes, below.",
            "short",
            Query("sum(rate(trackside_training_tokens_total{RUN}[$__rate_interval]))", "tokens per second"),
            empty="no tokens",
            **STAT,
        ),
        number(
            "Step time",
            "Mean duration of a step over all ranks. When it grows, see where the time goes, and the ranks, below.",
            "s",
            Query(mean(of="RUN"), "mean"),
            **STAT,
        ),
        number(
            "GPU utilization",
            "Share of time in which a kernel ran, a mean over the GPUs of the run; GpuUnderutilized fires for a single GPU "
            "that is below the threshold for five minutes. When it is low, see what the step waits for.",
            "percentunit",
            Query(f"avg({of_gpu('trackside_gpu_utilization_ratio{HERE}')})", "mean of its GPUs"),
            levels=below(ThresholdsSection().gpu_underutilized_ratio),
            decimals=0,
            links=[link("Its GPUs", "trackside-gpus", "run")],
            **STAT,
        ),
        number(
            "Alerts",
            "Warnings and worse that fire now, of the run and of the machines it trains on. The chart below names them.",
            "none",
            Query(f'count(({ALERTS[:-1]}, severity!="info"}} {ON_ITS_MACHINES}) == 1) or {NONE}', "firing"),
            levels=above(1, "red"),
            links=[link("All alerts", "trackside-fleet")],
            **STAT,
        ),
    ]


def _alerts() -> object:
    by = "alert, key, gpu, job, instance"
    return states(
        "Alerts of the run and its machines",
        "What has fired when, by severity. docs/alerts.md says of each what it means and what to do, "
        "`trackside alerts show NAME` all that is known of it.",
        Query(f"{severity(ALERTS, by)} {ON_ITS_MACHINES}", "{{alert}} {{key}}{{gpu}} ({{instance}})"),
        mappings=SEVERITY_TEXTS,
        empty="nothing has fired",
        links=[link("All alerts", "trackside-fleet")],
    )
