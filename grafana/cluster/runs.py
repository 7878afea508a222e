"""Panels about all runs: their states and speed."""

from __future__ import annotations

from grafana.board import Row
from grafana.panels import Query, above, bars, lines, link
from grafana.states import STATE_COLORS, STATE_TEXTS, state
from grafana.stragglers import straggler_ratio
from grafana.tables import Text, Value, joined_table

from trackside_daemon.alerts.settings import ThresholdsSection

DURATION = "trackside_training_step_duration_seconds"
TOKENS = "sum by (run) (rate(trackside_training_tokens_total{RUN}[$__rate_interval]))"
RUN_LINK = link("This run", "trackside-training", run="${__field.labels.run:percentencode}")


def row() -> Row:
    """Return the row with the list of runs above charts."""
    return Row("Runs", _list(), _states(), _tokens(), _stragglers())


def _list() -> object:
    links = [
        link("This run", "trackside-training", run="${__value.raw:percentencode}"),
        link("GPUs of this run", "trackside-gpus", run="${__value.raw:percentencode}"),
    ]
    rank_state, node = "trackside_training_rank_state{RUN} == 1", "job, instance, pod"
    steps = f"sum by (run) (rate({DURATION}_%s{{RUN}}[$__rate_interval]))"
    alerts = 'sum by (run) (trackside_alert_firing{RUN, severity!="info"})'
    return joined_table(
        "All runs",
        "Each selected run over all of its nodes, those with alerts first, until 15 minutes after its end. If a run is slow or "
        "stalled, click it to see where its time goes, and its GPUs.",
        [Text("Run", "run", links)],
        [
            Value("State", state("trackside_training_state{RUN}", "run"), mappings=STATE_TEXTS),
            Value("Ranks", f"count by (run) (count by (run, rank) ({rank_state}))"),
            Value("Nodes", f"count by (run) (count by (run, {node}) ({rank_state}))"),
            Value("Step", "max by (run) (trackside_training_step{RUN})"),
            Value("Loss", "avg by (run) (trackside_training_loss{RUN})", "short", decimals=3),
            Value("Tokens per second", TOKENS, "short"),
            Value("Step time", f"{steps % 'sum'} / ({steps % 'count'} > 0)", "s"),
            Value("Progress", "max by (run) (trackside_training_progress_ratio{RUN})", "percentunit", decimals=0),
            Value("Time left", "max by (run) (trackside_training_remaining_seconds{RUN})", "s"),
            Value("Alerts", alerts, levels=above(1, "red")),
        ],
        sort="Alerts",
        width=24,
        height=9,
    )


def _states() -> object:
    return lines(
        "Runs by state",
        "Number of runs in each state. A run whose nodes disagree counts in each state. Stalled, failed and lost runs have alerts.",
        "none",
        Query("count by (state) (max by (run, state) (trackside_training_state{RUN}) == 1)", "{{state}}"),
        colors=STATE_COLORS,
        stacked=True,
        width=8,
        minimum=0,
    )


def _tokens() -> object:
    return lines(
        "Tokens per second by run",
        "The twenty fastest runs. A run that falls and stays low is ThroughputRegression; a gap is a checkpoint, an evaluation or a "
        "stall.",
        "short",
        Query(f"topk(20, {TOKENS})", "{{run}}"),
        width=8,
        minimum=0,
        links=[RUN_LINK],
    )


def _stragglers() -> object:
    rank = link(
        "This rank",
        "trackside-training",
        run="${__field.labels.run:percentencode}",
        rank="${__field.labels.rank:percentencode}",
    )
    return bars(
        "Worst stragglers",
        "The ten ranks with the longest own time compared with the median rank of their run, over all machines. The whole run moves "
        "at their pace. The threshold is that of StragglerRank, which compares the ranks of one machine.",
        "short",
        Query(
            f"topk(10, max by (run, rank) ({straggler_ratio('RUN')}))",
            "{{run}} rank {{rank}}",
            instant=True,
        ),
        width=8,
        decimals=2,
        levels=above(ThresholdsSection().straggler_ratio),
        links=[rank],
        empty="no runs with several ranks and phases",
    )
