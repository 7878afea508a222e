"""The profile `cluster` of the metrics page: fewer series, and none that a rule for Prometheus needs."""

from __future__ import annotations

import re
from itertools import chain

from trackside_daemon.alerts.rules.rule_file import RuleFileOptions, groups
from trackside_daemon.alerts.settings import AlertsSection
from trackside_daemon.model.families import gpu, training
from trackside_daemon.model.families.catalogue import catalogue
from trackside_daemon.model.metric import Batch, Distribution, Sample
from trackside_daemon.model.state import State
from trackside_daemon.web import page_profile
from trackside_daemon.web.exposition import render

RANK = ("run", "0")
FINE = Distribution(tuple(range(len(training.STEP_DURATION.buckets) + 1)), 8.0)


def page(*samples: Sample) -> list[str]:
    state = State()
    state.update(Batch("a", list(samples)))
    text = render(page_profile.apply(state.snapshot(0.0)), openmetrics=False).decode()
    return [line for line in text.splitlines() if not line.startswith("#")]


def test_only_what_is_there_has_series() -> None:
    xids = [Sample(gpu.XID_ERRORS, ("0", "G", number), count) for number, count in (("79", 1.0), ("13", 0.0))]
    states = [Sample(training.RANK_STATE, (*RANK, one), float(one == "running")) for one in ("running", "failed")]
    assert page(*xids, *states, Sample(gpu.PIPE_ACTIVE, ("0", "G", "fp16"), 0.5)) == [
        'trackside_gpu_xid_errors_total{gpu="0",uuid="G",xid="79"} 1.0',
        'trackside_training_rank_state{rank="0",run="run",state="running"} 1.0',
    ]
    assert page(Sample(gpu.PCIE_ERRORS, ("0", "G", "lcrc"), 0.0)) == []
    # GpuThrottled averages a limit over a minute: without its zeros, a moment of it would be the whole minute.
    limits = [Sample(gpu.CLOCK_LIMIT_ACTIVE, ("0", "G", one), 0.0) for one in ("sw_power_cap", "hw_thermal")]
    assert page(*limits) == ['trackside_gpu_clock_limit_active{gpu="0",reason="hw_thermal",uuid="G"} 0.0']


def test_the_duration_of_a_step_keeps_its_count_and_sum() -> None:
    count = f"{sum(FINE.counts)}.0"
    assert [line.rpartition(" ")[2] for line in page(Sample(training.STEP_DURATION, RANK, FINE))] == [
        count,
        count,
        "8.0",
    ]


def test_no_rule_needs_what_is_left_out() -> None:
    found = groups(AlertsSection(), catalogue(), RuleFileOptions())
    exprs = [rule["expr"] for rule in chain.from_iterable(group["rules"] for group in found)]
    named = {name for expr in exprs for name in re.findall(r"\btrackside_\w+", expr)}
    assert not named & {metric.name for metric in page_profile.LEFT_OUT}
    assert f"{training.STEP_DURATION.name}_bucket" not in named
    # Of the others, rules read what is above 0, and the error that is counted from its first.
    needed = {metric.name for metric in page_profile.WITHOUT_ZEROS} & named
    assert needed == {"trackside_gpu_xid_errors_total", "trackside_gpu_clock_limit_active"}
