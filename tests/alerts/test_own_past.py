"""Rules that compare a series with its own past in the run, and rules that last for steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from alerts.test_custom import lives, read, refusal
from alerts.ticking import EPOCH, FAMILIES, Machine

from trackside_daemon.alerts.rules.rule_file import RuleFileOptions, groups
from trackside_daemon.alerts.settings import AlertsSection
from trackside_daemon.config.loading import load
from trackside_daemon.model.records import Alert
from trackside_daemon.service.config import Config

if TYPE_CHECKING:
    from pathlib import Path

    from trackside_daemon.alerts.rules.rule import Rule

INCREASE = '{alert: LossIncrease, metric: "key:loss", above: 1.1, relative-to: best, for-steps: 200}'
"""A loss 10 % above its best, for 200 steps."""
SPEED = "{alert: HalfSpeed, metric: trackside_training_steps_total, rate: 10s, below: 0.5, relative-to: start}"


def page(loss: float, step: float, run: str = "r", run_id: str = "id-1") -> dict[str, float]:
    """Return what a run shows."""
    return {
        f"trackside_training_loss{{run={run},rank=0}}": loss,
        f"trackside_training_step{{run={run},rank=0}}": step,
        f"trackside_training_steps_total{{run={run},rank=0}}": step,
        f"trackside_training_run_info{{run={run},run_id={run_id}}}": 1.0,
        **lives(run),
    }


def risen(second: float) -> float:
    """Return a loss that falls from 2 to 1 in 100 s, and then stays 30 % higher."""
    return 2 - second / 100 if second <= 100 else 1.3


def increase(tmp_path: Path) -> list[Rule]:
    return read(tmp_path, INCREASE)


def test_a_loss_above_its_best_for_some_steps_is_an_alert_with_the_best_as_evidence(tmp_path: Path) -> None:
    machine = Machine(increase(tmp_path))
    (finding,) = machine.run(400, lambda second: page(risen(second), second))
    assert finding.summary == "loss of run r, rank 0 is 1.3 times its best, above 1.1"
    assert (finding.run, finding.severity) == ("id-1", "warning")
    assert finding.evidence["reference"] == 1.0
    assert machine.now - 1 >= 1301
    (over,) = machine.tick(page(1.05, 402))
    assert over.over


def test_a_rise_that_lasts_fewer_steps_is_none(tmp_path: Path) -> None:
    machine = Machine(increase(tmp_path))
    assert machine.run(299, lambda second: page(risen(second), second)) == []
    assert machine.run(400, lambda second: page(1.02, 300 + second)) == []
    assert machine.run(1000, lambda _: page(1.3, 700)) == []  # no steps pass


def test_another_run_of_the_same_name_has_another_best(tmp_path: Path) -> None:
    machine = Machine(increase(tmp_path))
    machine.run(100, lambda second: page(risen(second), second))
    assert machine.run(400, lambda second: page(2.0, second, run_id="id-2")) == []


def test_a_value_that_is_not_finite_or_a_best_of_zero_compares_with_nothing(tmp_path: Path) -> None:
    machine = Machine(increase(tmp_path))
    losses = (float("nan"), 0.0, 5.0, float("inf"), -1.0, 5.0)
    assert machine.run(1500, lambda second: page(losses[int(second) % 6], second)) == []


def test_the_start_is_the_mean_of_the_first_minute(tmp_path: Path) -> None:
    machine = Machine(read(tmp_path, SPEED))
    machine.run(200, lambda second: page(1.0, 10 * second))
    assert machine.findings == []
    found = machine.run(60, lambda second: page(1.0, 2000 + 4 * second))
    assert [one.summary for one in found] == [
        "the rate of trackside_training_steps_total of run r, rank 0 is 0.48 times its start, below 0.5"
    ]
    assert found[0].evidence["reference"] == pytest.approx(10.0)


def test_a_run_at_half_the_speed_of_its_baseline(tmp_path: Path) -> None:
    asked = set()

    def baseline(run: str, key: str, _step: float) -> float | None:
        asked.add((run, key))
        return 10.0 if machine.now > 1100 else None  # the history is read once a minute

    machine = Machine(read(tmp_path, SPEED.replace("start", "baseline")), baseline)
    found = machine.run(200, lambda second: page(1.0, 4 * second))
    assert [(one.summary.rpartition("rank 0 ")[2], one.time) for one in found] == [
        ("is 0.4 times its baseline, below 0.5", EPOCH + 1101)
    ]
    assert asked == {("id-1", "trackside_training_steps_total")}


def test_a_loss_above_that_of_the_baseline_at_the_same_step(tmp_path: Path) -> None:
    machine = Machine(read(tmp_path, INCREASE.replace("best", "baseline")), lambda _run, _key, step: risen(step))
    assert machine.run(400, lambda second: page(1.05 * risen(second), second)) == []
    (found,) = machine.run(300, lambda second: page(1.5, 400 + second))
    assert found.evidence["reference"] == 1.3


def test_a_restored_alert_keeps_what_it_is_compared_with(tmp_path: Path) -> None:
    first = Machine(increase(tmp_path))
    (finding,) = first.run(400, lambda second: page(risen(second), second))
    machine = Machine(increase(tmp_path))
    machine.evaluator.restore(
        Alert(
            *(finding.alert, finding.severity, finding.time, finding.run, dict(finding.labels), finding.summary),
            evidence=dict(finding.evidence),
        )
    )
    later = machine.run(300, lambda second: page(1.3, 400 + second))
    assert [one.over for one in later] == [False]
    assert [one.over for one in machine.tick(page(1.05, 701))] == [True]


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ('{alert: A, metric: "key:loss", above: 1.1, relative-to: worst}', "relative-to"),
        (
            '{alert: A, metric: "key:loss", absent: true, relative-to: best}',
            "relative-to and absent cannot be combined",
        ),
        ('{alert: A, metric: "key:loss", change: 1m, above: 1, relative-to: best}', "change and relative-to"),
        ("{alert: A, metric: trackside_gpu_power_watts, above: 1, relative-to: best}", "is of no rank of a run"),
        (
            "{alert: A, metric: trackside_training_tokens_total, rate: 1m, below: 1, relative-to: baseline}",
            "pushed keys",
        ),
        ("{alert: A, metric: trackside_training_step, above: 1, relative-to: baseline}", "a baseline has pushed keys"),
        (
            "{alert: A, metric: trackside_gpu_power_watts, above: 1, for-steps: 9}",
            "for-steps: trackside_gpu_power_watts",
        ),
        ('{alert: A, metric: "key:loss", above: 1, for-steps: -1}', "for-steps"),
    ],
)
def test_an_invalid_rule_is_one_line(tmp_path: Path, wrong: str, reason: str) -> None:
    assert reason in refusal(tmp_path, wrong)


def test_prometheus_reads_the_alert_of_the_daemon_and_the_file_explains_it(tmp_path: Path) -> None:
    path = tmp_path / "trackside.yml"
    path.write_text(f"alerts: {{rules: [{INCREASE}]}}\n", encoding="utf-8")
    section = load(Config, path).alerts
    assert isinstance(section, AlertsSection)
    written = {
        rule["alert"]: (group["name"], rule)
        for group in groups(section, FAMILIES, RuleFileOptions())
        for rule in group["rules"]
        if "alert" in rule
    }
    group, rule = written["TracksideLossIncrease"]
    assert (group, rule["expr"]) == (
        "trackside.detectors",
        'alert:trackside_alert_firing:held20m{alert="LossIncrease"}',
    )
    assert "it knows the run's own past and its owner" in rule["annotations"]["description"]
