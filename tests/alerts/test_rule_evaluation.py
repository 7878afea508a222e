"""Evaluation of rules: begin, duration and end of alerts."""

from __future__ import annotations

import pytest
from alerts.ticking import EPOCH, Machine

from trackside_daemon.alerts.rules.evaluation import MAX_ALERTS_OF_RULE
from trackside_daemon.alerts.rules.query import Matcher, Query
from trackside_daemon.alerts.rules.rule import Rule
from trackside_daemon.model.families import gpu as gpu_families
from trackside_daemon.model.families import training
from trackside_daemon.model.metric import Batch
from trackside_daemon.model.records import Alert

TEMPERATURE = "trackside_gpu_temperature_celsius"
XIDS = "trackside_gpu_xid_errors_total"


def gpu(index: int, name: str = TEMPERATURE, **labels: str) -> str:
    more = "".join(f",{label}={value}" for label, value in labels.items())
    return f"{name}{{gpu={index},uuid=G{index}{more}}}"


def hot(**settings: object) -> Rule:
    return Rule("Hot", "warning", Query(gpu_families.TEMPERATURE, above=80.0), "{gpu}: {value}", "{since}", **settings)  # type: ignore[arg-type]


def test_an_alert_fires_after_its_duration_and_shows_its_start() -> None:
    machine = Machine([hot(lasting=10.0)])
    assert machine.run(9, lambda _: {gpu(0): 90.0}) == []
    (alarm,) = machine.run(5, lambda _: {gpu(0): 91.0})
    assert (alarm.alert, alarm.severity, alarm.summary) == ("Hot", "warning", "0: 91")
    assert alarm.labels == (("gpu", "0"), ("uuid", "G0"))
    assert alarm.description == "22:30:00 UTC"
    assert alarm.time == EPOCH + 1010


def test_an_interrupted_condition_starts_again() -> None:
    machine = Machine([hot(lasting=10.0)])
    assert machine.run(100, lambda since: {gpu(0): 70.0 if since % 8 == 7 else 90.0}) == []


def test_an_alert_ends_with_its_condition_or_its_series() -> None:
    for after in ({gpu(0): 70.0}, {}):
        machine = Machine([hot()])
        machine.tick({gpu(0): 90.0})
        (alarm,) = machine.tick(after)
        assert alarm.over


def test_keep_firing_delays_the_end() -> None:
    machine = Machine([hot(keep_firing=30.0)])
    found = machine.run(300, lambda since: {gpu(0): 90.0 if since % 20 < 10 and since < 200 else 70.0})
    assert [one.over for one in found] == [False, True]


def test_an_alert_does_not_fire_again_within_its_cooldown() -> None:
    machine = Machine([hot(cooldown=100.0)])
    found = machine.run(109, lambda since: {gpu(0): 90.0 if since % 20 < 10 else 70.0})
    assert [(one.time - EPOCH - 1000, one.over) for one in found] == [(0, False), (10, True)]
    assert [one.over for one in machine.run(60, lambda _: {gpu(0): 90.0})] == [False]


def test_rules_are_evaluated_only_at_the_end_of_a_tick() -> None:
    machine = Machine([hot()])
    machine.tick({gpu(0): 70.0})
    machine.state.update(Batch("test", [], complete=True))
    assert machine.evaluator.accept(Batch("gpu")) == []


def test_each_series_has_a_separate_alert_up_to_a_limit() -> None:
    machine = Machine([hot()])
    found = machine.tick({gpu(index): 90.0 for index in range(MAX_ALERTS_OF_RULE + 10)})
    assert len(found) == MAX_ALERTS_OF_RULE


def test_an_absent_family_raises_an_alert() -> None:
    rule = Rule(
        "NoGpu",
        "warning",
        Query(gpu_families.TEMPERATURE, (Matcher("gpu", "3"),)),
        "gone: {gpu}",
        lasting=5.0,
        absent=True,
    )
    machine = Machine([rule])
    assert machine.run(20, lambda _: {gpu(3): 50.0}) == []
    (alarm,) = machine.run(6, lambda _: {gpu(2): 50.0})
    assert (alarm.labels, alarm.summary) == ((("gpu", "3"),), "gone: 3")
    assert [one.over for one in machine.run(5, lambda _: {gpu(3): 50.0})] == [True]


def test_a_counter_that_resets_has_grown_by_its_value() -> None:
    rule = Rule(
        "Xid", "warning", Query(gpu_families.XID_ERRORS, function="change", window=60.0, above=0.0), "{value:whole}"
    )
    machine = Machine([rule])
    assert machine.run(60, lambda _: {gpu(0, XIDS, xid="13"): 7.0}) == []
    assert [one.summary for one in machine.tick({gpu(0, XIDS, xid="13"): 2.0})] == ["2"]


def test_a_series_that_returns_within_the_window_continues() -> None:
    rule = Rule(
        "Xid",
        "warning",
        Query(gpu_families.XID_ERRORS, function="change", window=60.0, fresh=True, above=0.0),
        "{value:whole}",
    )
    machine = Machine([rule])
    assert [one.over for one in machine.run(100, lambda _: {gpu(0, XIDS, xid="13"): 1.0})] == [False, True]
    machine.run(20, lambda _: {})
    assert machine.run(30, lambda _: {gpu(0, XIDS, xid="13"): 1.0}) == []


def test_a_nan_does_not_affect_a_mean() -> None:
    rule = Rule("Mean", "warning", Query(gpu_families.TEMPERATURE, function="mean", window=10.0, above=80.0), "{value}")
    machine = Machine([rule])
    machine.run(3, lambda _: {gpu(0): float("nan")})
    assert [one.alert for one in machine.run(15, lambda _: {gpu(0): 90.0})] == ["Mean"]


def test_windows_are_bounded() -> None:
    machine = Machine([Rule("R", "info", Query(gpu_families.XID_ERRORS, function="rate", window=60.0, above=1e9), "")])
    for begun in range(20):
        machine.run(20, lambda since, begun=begun: {gpu(0, XIDS, xid=f"{begun}-{since}"): 1.0})  # type: ignore[misc]
    machine.run(600, lambda since: {gpu(0, XIDS, xid="1"): since})
    (watched,) = machine.evaluator._rules
    assert len(watched.vector._windows) <= 150
    assert all(window is None or len(window._points) <= 14 for window in watched.vector._windows.values())


@pytest.mark.parametrize(("celsius", "ends"), [(90.0, []), (50.0, [True])])
def test_a_restored_alert_neither_fires_again_nor_ends_before_its_window_is_full(
    celsius: float, ends: list[bool]
) -> None:
    when = Query(gpu_families.TEMPERATURE, function="mean", window=60.0, above=80.0)
    machine = Machine(
        [Rule("Mean", "warning", when, "{value}"), Rule("Mean", "critical", when, "{value}", lasting=1e6)]
    )
    labels = {"gpu": "0", "uuid": "G0", "sensor": "gpu"}
    machine.evaluator.restore(Alert("Mean", "warning", EPOCH, labels=labels, summary="as it was"))
    machine.evaluator.restore(Alert("NoLonger", "warning", EPOCH))
    renewed = machine.run(50, lambda _: {gpu(0, sensor="gpu"): celsius})
    assert [(one.severity, one.over, one.summary) for one in renewed] == [("warning", False, "as it was")]
    assert [one.over for one in machine.run(30, lambda _: {gpu(0, sensor="gpu"): celsius})] == ends


def test_an_alert_retains_the_id_of_its_run() -> None:
    loss = "trackside_training_loss{run=r,rank=0}"
    machine = Machine([Rule("High", "warning", Query(training.KNOWN["loss"], above=5.0), "{run}")])
    (alarm,) = machine.tick({loss: 6.0, "trackside_training_run_info{run=r,run_id=id-1}": 1.0})
    (over,) = machine.tick({})
    assert (alarm.run, over.run, over.over) == ("id-1", "id-1", True)


def test_two_rules_for_the_same_alert_end_together() -> None:
    machine = Machine([hot(), Rule("Hot", "warning", Query(gpu_families.TEMPERATURE, above=85.0), "very")])
    machine.tick({gpu(0): 90.0})
    assert machine.tick({gpu(0): 82.0}) == []
    assert [one.over for one in machine.tick({gpu(0): 70.0})] == [True]


def test_a_restored_alert_is_not_continued_by_another_rule_of_its_name_that_could_not_end_it() -> None:
    room = Rule("Hot", "warning", Query(training.CHECKPOINT_ROOM, below=1.0), "{directory}")
    machine = Machine([hot(), room])
    for index in (0, 1):
        labels = {"gpu": str(index), "uuid": f"G{index}", "sensor": "gpu", "run": "r"}
        machine.evaluator.restore(Alert("Hot", "warning", EPOCH, labels=labels))
    spacious = "trackside_training_checkpoint_room_ratio{run=r,directory=/d}"
    machine.run(3, lambda _: {spacious: 9.0, gpu(0, sensor="gpu"): 50.0, gpu(1, sensor="gpu"): 50.0})
    assert [one.over for one in machine.findings] == [False, False, True, True]
    assert machine.firing == set()
