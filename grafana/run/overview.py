"""The first row of a run: progress, speed, loss and alerts."""

from __future__ import annotations

from grafana.board import Row
from grafana.panels import ZERO_IF_UP, Query, above, below, link, number, states
from grafana.run.joins import of_gpu
from grafana.run.many_ranks import total_rate
from grafana.run.optimization import loss
from grafana.run.speed import mean
from grafana.states import SEVERITY_TEXTS, STATE_TEXTS, severity, state

from trackside_daemon.alerts.settings import ThresholdsSection

ALERTS = "trackside_alert_firing{HERE, run=~`(${run:regex})?`}"
"""Alerts of the run, and those of machines and GPUs, which have no run."""

ON_ITS_MACHINES = "and on (job, instance) trackside_training_run_info{RUN}"
UNKNOWN = "no total_steps"
STAT = {"width": 3}


def row() -> Row:
    """Return the row with eight numbers, the loss, and the alerts."""
    return Row("Is it going well?", *_progress(), *_pace(), loss(), _alerts())


def _progress() -> list[object]:
    return [
        number(
            "State",
            "The state of the run over all of its machines; live states count before ended ones. If it failed or was lost, `trackside "
            "show RUN` has the cause. If it stalled, an alert names the rank.",
            "none",
            Query(state("trackside_training_state{RUN}", "run"), "{{run}}"),
            mappings=STATE_TEXTS,
            links=[link("All runs", "trackside-fleet")],
            **STAT,
        ),
        number(
            "Step",
            "The highest step of any rank. If it stops growing, see the states of the ranks below.",
            "none",
            Query("max(trackside_training_step{RUN})", "step"),
            **STAT,
        ),
        number(
            "Progress",
            "Share of total_steps that is done, if the training script passes total_steps to init().",
            "percentunit",
            Query("max(trackside_training_progress_ratio{RUN})", "done"),
            decimals=1,
            empty=UNKNOWN,
            **STAT,
        ),
        number(
            "Time left",
            "Remaining steps times the recent step duration, of the slowest rank. If it grows, see the row Speed.",
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
            "Tokens per second over all ranks. If it falls, see the row Where the time goes.",
            "short",
            Query(total_rate("trackside_training_tokens_total", "RUN"), "tokens per second"),
            empty="no tokens",
            **STAT,
        ),
        number(
            "Step time",
            "Mean duration of a step over all ranks. If it grows, see the rows Where the time goes and Ranks.",
            "s",
            Query(mean(of="RUN"), "mean"),
            **STAT,
        ),
        number(
            "GPU utilization",
            "Share of time in which a kernel ran, as a mean over the run's GPUs. GpuUnderutilized fires for a single GPU "
            "that is below the threshold for five minutes. If it is low, see what the step waits for.",
            "percentunit",
            Query(f"avg({of_gpu('trackside_gpu_utilization_ratio{HERE}')})", "mean of the run's GPUs"),
            levels=below(ThresholdsSection().gpu_underutilized_ratio),
            decimals=0,
            links=[link("GPUs of this run", "trackside-gpus", "run")],
            **STAT,
        ),
        number(
            "Alerts",
            "Firing warnings and critical alerts of the run and of its machines. The chart below names them.",
            "none",
            Query(f'count(({ALERTS[:-1]}, severity!="info"}} {ON_ITS_MACHINES}) == 1) or {ZERO_IF_UP}', "firing"),
            levels=above(1, "red"),
            links=[link("All alerts", "trackside-fleet")],
            **STAT,
        ),
    ]


def _alerts() -> object:
    by = "alert, key, gpu, job, instance"
    return states(
        "Alerts of the run and its machines",
        "Which alerts fired when, by severity. docs/alerts.md explains each alert and what to do. `trackside alerts show NAME` "
        "shows its evidence.",
        Query(f"{severity(ALERTS, by)} {ON_ITS_MACHINES}", "{{alert}} {{key}}{{gpu}} ({{instance}})"),
        mappings=SEVERITY_TEXTS,
        empty="no alerts fired",
        links=[link("All alerts", "trackside-fleet")],
    )
