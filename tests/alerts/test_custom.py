"""Custom rules, from the configuration file to the finding."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import pytest
from alerts.ticking import FAMILIES, Machine
from processes import ROOT

from trackside_daemon.alerts.rules.custom import RuleError, rules
from trackside_daemon.alerts.rules.evaluation import TICK, RuleEvaluator
from trackside_daemon.config.loading import ConfigError, load
from trackside_daemon.model.metric import Batch, ForeignMetric, Sample
from trackside_daemon.model.records import Alert
from trackside_daemon.model.state import State
from trackside_daemon.service.config import Config

LIVES = ' and on (cluster, namespace, job, instance, pod, run, rank) (trackside_training_rank_state{state=~"starting|running|stalled"} > 0)'

if TYPE_CHECKING:
    from pathlib import Path

    from trackside_daemon.alerts.rules.rule import Rule


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("TRACKSIDE_")]:
        monkeypatch.delenv(name)


def read(place: Path, text: str) -> list[Rule]:
    path = place / "trackside.yml"
    path.write_text(f"alerts: {{rules: [{text}]}}\n", encoding="utf-8")
    return rules(load(Config, path).alerts.rules, FAMILIES)


def lives(run: str, state: str = "running") -> dict[str, float]:
    return {
        f"trackside_training_rank_state{{run={run},rank=0,state={one}}}": float(one == state)
        for one in ("running", "stalled", "finished")
    }


def refusal(place: Path, text: str) -> str:
    with pytest.raises((ConfigError, RuleError)) as caught:
        read(place, text)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_rule_on_a_pushed_key(tmp_path: Path) -> None:
    text = '{alert: RewardLow, metric: "key:reward/mean", below: 0.1, for: 1m, summary: "{run}: reward {value}"}'
    (rule,) = read(tmp_path, text)
    assert rule.promql() == f'(trackside_training_value{{key="reward/mean"}} < 0.1){LIVES}'
    assert (rule.lasting, rule.severity) == (60.0, "warning")
    series = "trackside_training_value{run=r,rank=0,key=reward/mean}"
    found = Machine([rule]).run(61, lambda _: {series: 0.01, series.replace("reward", "other"): 0.01, **lives("r")})
    assert [one.summary for one in found] == ["r: reward 0.01"]


def test_the_rules_of_the_documentation_are_valid_and_that_of_the_cpu_fires_at_its_share(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "rules.md").read_text(encoding="utf-8")
    example = re.findall(r"```yaml\n(alerts:\n.*?)```", page, re.DOTALL)[0]
    (tmp_path / "trackside.yml").write_text(example, encoding="utf-8")
    found = rules(load(Config, tmp_path / "trackside.yml").alerts.rules, FAMILIES)
    (rule,) = (one for one in found if one.alert == "CpuBusy")
    assert rule.promql() == (
        'rate(trackside_host_cpu_seconds_total{mode="idle"}[1m]) / on (cluster, namespace, job, instance, pod) group_left () '
        "(trackside_host_cpus > 0) < 0.15"
    )
    machine = Machine([rule])

    def cpus(idle: float) -> list[str]:
        def values(second: float) -> dict[str, float]:
            spent = {"idle": 8 * idle * second, "user": 8 * (1 - idle) * second}
            ticks = {f"trackside_host_cpu_seconds_total{{mode={mode}}}": 1e6 + one for mode, one in spent.items()}
            return {**ticks, "trackside_host_cpus": 8.0}

        return [one.summary for one in machine.run(420, values) if not one.over]

    assert cpus(idle=0.5) == []
    assert cpus(idle=0.1) == ["the CPUs are idle for 10.0 % of the time"]


def test_a_key_with_a_separate_family_and_labels(tmp_path: Path) -> None:
    text = '{alert: A, metric: "key:loss", labels: {run: "~big-.*"}, above: 5, keep-firing-for: 2m, severity: critical}'
    (rule,) = read(tmp_path, text)
    assert rule.promql() == f'(trackside_training_loss{{run=~"big-.*"}} > 5){LIVES}'
    assert (rule.keep_firing, rule.severity) == (120.0, "critical")
    loss = "trackside_training_loss{run=%s,rank=0}"
    found = Machine([rule]).tick({loss % "big-1": 6.0, loss % "small-1": 6.0, **lives("big-1"), **lives("small-1")})
    assert [dict(one.labels)["run"] for one in found] == ["big-1"]
    assert found[0].summary == "loss of run big-1, rank 0 is 6, above 5"


def test_an_ended_rank_raises_no_alert_of_a_rule(tmp_path: Path) -> None:
    """The series of an ended rank stay on the page for a while, with constant values."""
    rules = read(tmp_path, "{alert: Slow, metric: trackside_training_tokens_total, rate: 20s, below: 50}")
    assert [rule.promql() for rule in rules] == [f"(rate(trackside_training_tokens_total[20s]) < 50){LIVES}"]
    tokens = "trackside_training_tokens_total{run=r,rank=0}"
    machine = Machine(rules)
    machine.run(60, lambda now: {tokens: 100 * now, **lives("r")})
    machine.run(60, lambda _: {tokens: 6000.0, **lives("r", "finished")})
    assert not machine.findings
    machine = Machine(rules)
    machine.run(60, lambda now: {tokens: 100 * now, **lives("r")})
    machine.run(60, lambda _: {tokens: 6000.0, **lives("r", "stalled")})
    assert [one.summary for one in machine.findings] == [
        "the rate of trackside_training_tokens_total of run r, rank 0 is 47.62 a second, below 50"
    ]


def test_shares_of_ranks_and_rules_about_ends(tmp_path: Path) -> None:
    (share,) = read(tmp_path, '{alert: A, metric: "key:a", over: {metric: "key:b"}, above: 0.5}')
    assert share.promql().endswith(f"> 0.5){LIVES}")
    assert " / on (cluster, namespace, job, instance, pod, run, rank) group_left () (" in share.promql()
    values = {f"trackside_training_value{{run=r,rank=0,key={key}}}": value for key, value in (("a", 3.0), ("b", 4.0))}
    (found,) = Machine([share]).tick({**values, **lives("r")})
    assert found.summary == "a over b of run r, rank 0 is 0.75, above 0.5"
    (failed,) = read(
        tmp_path, "{alert: Failed, metric: trackside_training_rank_state, labels: {state: failed}, above: 0}"
    )
    assert failed.promql() == 'trackside_training_rank_state{state="failed"} > 0'


def test_the_summary_of_an_absent_series(tmp_path: Path) -> None:
    (rule,) = read(tmp_path, '{alert: NoGpu, metric: trackside_gpu_up, labels: {gpu: "3"}, absent: true}')
    assert [one.summary for one in Machine([rule]).tick({})] == ["there is no trackside_gpu_up of gpu 3"]


def test_a_name_is_one_alert_s(tmp_path: Path) -> None:
    rule = "{alert: %s, metric: trackside_host_load1, above: %d}"
    assert "rule GpuHot: trackside has an alert of this name" in refusal(tmp_path, rule % ("GpuHot", 1))
    assert "rule LossSpike: trackside has an alert of this name" in refusal(tmp_path, rule % ("LossSpike", 1))
    assert "rule A: another rule has this name" in refusal(tmp_path, f"{rule % ('A', 1)}, {rule % ('A', 2)}")


@pytest.mark.parametrize(
    ("text", "promql"),
    [
        ("metric: trackside_host_load1, change: 10m, above: 5", "delta(trackside_host_load1[10m]) > 5"),
        (
            "metric: trackside_host_oom_kills_total, change: 10m, above: 0",
            "increase(trackside_host_oom_kills_total[10m]) > 0",
        ),
        (
            "metric: trackside_training_tokens_total, rate: 60s, below: 100",
            f"(rate(trackside_training_tokens_total[1m]) < 100){LIVES}",
        ),
        (
            'metric: trackside_gpu_up, labels: {gpu: "3"}, absent: true, for: 30s',
            (
                "label_replace(group without (version, python_version) (trackside_build_info) "
                'unless on (cluster, namespace, job, instance, pod) trackside_gpu_up{gpu="3"}, "gpu", "3", "", "")'
            ),
        ),
        (
            "metric: trackside_host_swap_used_bytes, over: trackside_host_swap_bytes, above: 0.5",
            "trackside_host_swap_used_bytes / on (cluster, namespace, job, instance, pod) group_left () (trackside_host_swap_bytes > 0) > 0.5",
        ),
        (
            "metric: trackside_gpu_power_watts, over: {metric: trackside_gpu_power_limit_watts, labels: {limit: max}}, above: 1",
            (
                "trackside_gpu_power_watts / on (cluster, namespace, job, instance, pod, gpu, uuid) group_left () "
                '(trackside_gpu_power_limit_watts{limit="max"} > 0) > 1'
            ),
        ),
    ],
)
def test_conditions(tmp_path: Path, text: str, promql: str) -> None:
    (rule,) = read(tmp_path, f"{{alert: A, {text}}}")
    assert rule.promql() == promql


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("{metric: trackside_host_load1, above: 1}", "rule number 1: alert: field required"),
        ("{alert: A, above: 1}", "rule A: metric: field required"),
        (
            "{alert: A, metric: trackside_host_load1}",
            "rule A: exactly one condition of above, below and absent is needed",
        ),
        ("{alert: A, metric: trackside_host_load1, above: 1, below: 2}", "above and below"),
        ("{alert: A, metric: trackside_host_load1, above: much}", "rule A: above: "),
        ("{alert: A, metric: trackside_host_load1, above: 1, for: soon}", "rule A: for: 'soon' is not a duration"),
        (
            "{alert: A, metric: trackside_host_load1, above: 1, unit: x}",
            "rule A: unit: no such key; there are alert, metric, labels, ",
        ),
        ("{alert: A, metric: trackside_host_load1, abov: 1}", "rule A: abov: no such key; did you mean above?"),
        ("{alert: A, metric: reward/mean, above: 1}", "or key:reward/mean for a pushed key, got 'reward/mean'"),
        (
            "{alert: A b, metric: trackside_host_load1, above: 1}",
            "rule A b: alert: a name consists of letters, digits and _, ",
        ),
        ("{alert: A, metric: trackside_host_load1, above: 1, rate: 1m, change: 1m}", "rate and change and above"),
        ("{alert: A, metric: trackside_host_laod1, above: 1}", "did you mean trackside_host_load1?"),
        ("{alert: A, metric: loss, above: 1}", "rule A: there is no family loss; a pushed key is written key:loss"),
        ("{alert: A, metric: trackside_host_load1, labels: {x: y}, above: 1}", "has no label x"),
        ('{alert: A, metric: "key:loss", labels: {run: "~("}, above: 1}', "not a regular expression"),
        ("{alert: A, metric: trackside_training_step_duration_seconds, above: 1}", "is a histogram"),
        ('{alert: A, metric: "key:loss", above: 1, summary: "{value.__class__}"}', "is not a name"),
        ('{alert: A, metric: "key:loss", above: 1, summary: "{gpu}"}', "there is no {gpu}"),
        ('{alert: A, metric: "key:loss", above: 1, summary: "{value"}', "unmatched brace"),
        (
            "{alert: A, metric: trackside_host_load1, over: trackside_gpu_power_limit_watts, above: 1}",
            "choose the value",
        ),
        ("5", "alerts.rules"),
    ],
)
def test_an_error_is_one_line_that_names_the_rule(tmp_path: Path, text: str, reported: str) -> None:
    assert reported in refusal(tmp_path, text)


def test_a_threshold_that_is_misspelt_is_named(tmp_path: Path) -> None:
    path = tmp_path / "trackside.yml"
    path.write_text("alerts: {thresholds: {shm-ration: 0.8}}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"did you mean alerts\.thresholds\.shm-ratio"):
        load(Config, path)
    path.write_text("alerts: {thresholds: {shm-ratio: 0.8, disk-full-in: 2h}}\n", encoding="utf-8")
    thresholds = load(Config, path).alerts.thresholds
    assert (thresholds.shm_ratio, thresholds.disk_full_in) == (0.8, 7200.0)


def test_a_rule_names_a_family_of_another_program(tmp_path: Path) -> None:
    text = "{alert: Raid, metric: 'family:raid_degraded', labels: {md: '~md.*'}, above: 0, summary: '{md} of {host}'}"
    (rule,) = read(tmp_path, text)
    assert rule.promql() == 'raid_degraded{md=~"md.*"} > 0'
    state = State()
    state.update(
        Batch("textfile", [Sample(ForeignMetric("raid_degraded", "gauge", "", ("host", "md")), ("a", "md0"), 1)])
    )
    (found,) = RuleEvaluator(state, [rule], lambda: 0.0).accept(Batch(TICK))
    assert (found.summary, found.labels) == ("md0 of a", (("host", "a"), ("md", "md0")))


def test_a_restart_keeps_labels_of_a_family_that_are_also_those_of_owners(tmp_path: Path) -> None:
    (rule,) = read(tmp_path, "{alert: Quota, metric: 'family:quota_used_ratio', above: 0.9}")
    quota, state = ForeignMetric("quota_used_ratio", "gauge", "", ("user",)), State()
    state.update(Batch("textfile", [Sample(quota, (user,), 1.0) for user in ("ann", "bob")]))
    evaluator = RuleEvaluator(state, [rule], lambda: 0.0)
    for user in ("ann", "bob"):
        evaluator.restore(Alert("Quota", "warning", 0.0, "", {"user": user}, "full", ""))
    assert [found.labels for found in evaluator.accept(Batch(TICK))] == [(("user", "ann"),), (("user", "bob"),)]
