"""Active alerts: begin, duration, ranks and end, and the batches for the state and the history."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from histories import opened

from trackside.wire import ProcessInfo
from trackside_daemon.alerts import active_alerts as suppressed
from trackside_daemon.alerts.active_alert import ActiveAlert, first_summary
from trackside_daemon.alerts.active_alerts import MAX_ALERTS, ActiveAlerts
from trackside_daemon.alerts.alerted_runs import AlertedRuns
from trackside_daemon.alerts.disabled import DisabledAlerts
from trackside_daemon.alerts.evidence.required import awaits
from trackside_daemon.alerts.firing_alerts import Escalation, FiringAlerts
from trackside_daemon.alerts.inhibition import INHIBITION_RULES
from trackside_daemon.alerts.settings import AlertsSection
from trackside_daemon.alerts.sinks.sink import notification_of
from trackside_daemon.model.families import alerts as alert_families
from trackside_daemon.model.finding import Finding
from trackside_daemon.model.metric import Batch
from trackside_daemon.model.records import Alert, AlertNote, Notified
from trackside_daemon.model.text import moment

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trackside_daemon.model.metric import Metric

NOW = 1_700_000_000.0


def finding(alert: str = "NonFinite", *, rank: int = 0, run: str = "id", time: float = NOW, **more: Any) -> Finding:
    labels = (("key", more.pop("key", "loss")), ("rank", str(rank)), ("run", f"name-{run}"))
    return Finding(alert, more.pop("severity", "critical"), labels, time, f"rank {rank}", "look", run=run, **more)


def over(open_finding: Finding) -> Finding:
    return open_finding._replace(over=True)


class Recorder:
    """Active alerts, with the page and the records that they have returned."""

    def __init__(self, off: Iterable[str] = (), most: int = MAX_ALERTS) -> None:
        self.active = ActiveAlerts(DisabledAlerts(tuple(off)), host="node1", url="https://node1/", most=most)
        self.page: dict[tuple[Metric, tuple[str, ...]], Any] = {}
        self.records: list[Alert] = []
        self.texts: list[tuple[str, ...]] = []

    def accept(self, *findings: Finding, at: float = 0.0) -> Recorder:
        return self.record(self.active.accept(findings, NOW + at))

    def tick(self, at: float) -> Recorder:
        return self.record(self.active.tick(NOW + at))

    def record(self, batches: list[Batch]) -> Recorder:
        for batch in batches:
            samples = {
                (one.metric, one.labels): one.value for one in batch.samples if one.metric is not alert_families.TEXT
            }
            self.texts = [one.labels for one in batch.samples if one.metric is alert_families.TEXT]
            self.page = samples if batch.complete else self.page | samples
            self.records += [record for record in batch.records if isinstance(record, Alert)]
        return self

    @property
    def firing(self) -> dict[tuple[str, str, str], float]:
        """The firing alerts on the page, by alert, severity and rank."""
        shown = {labels: value for (metric, labels), value in self.page.items() if metric is alert_families.FIRING}
        return {(labels[0], labels[1], labels[3]): value for labels, value in shown.items()}

    def begun(self) -> dict[str, float]:
        return {labels[0]: value for (metric, labels), value in self.page.items() if metric is alert_families.BEGUN}


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


CRITICAL = ("NonFinite", "critical", "0")


def test_a_finding_fires_at_once_and_is_recorded_once(recorder: Recorder) -> None:
    recorder.accept(finding()).accept(finding(time=NOW + 1), at=1).tick(2)
    labels = ("NonFinite", "critical", "name-id", "0", "loss", *[""] * 7)
    assert recorder.page == {
        (alert_families.FIRING, labels): 1.0,
        (alert_families.BEGUN, ("NonFinite", "critical", "name-id")): 1.0,
        (alert_families.EXCESS, ()): 0.0,
    }
    about = {"key": "loss", "rank": "0", "run": "name-id"}
    assert recorder.records == [Alert("NonFinite", "critical", NOW, "id", about, "rank 0", "look")]


def test_it_fires_for_two_minutes_stays_at_0_for_fifteen_and_vanishes(recorder: Recorder) -> None:
    recorder.accept(finding()).accept(over(finding()), at=3).tick(119)
    assert recorder.firing == {CRITICAL: 1.0}
    recorder.tick(120)
    assert recorder.firing == {CRITICAL: 0.0}
    assert recorder.records[-1].ended == NOW + 120
    assert recorder.records[-1].started == recorder.records[0].started
    recorder.tick(120 + 899)
    assert recorder.firing == {CRITICAL: 0.0}
    recorder.tick(120 + 900)
    assert recorder.page == {(alert_families.EXCESS, ()): 0.0}


@pytest.mark.parametrize(("age", "silent"), [(3000.0, False), (4000.0, True)])
def test_what_waited_in_a_spool_is_recorded_as_of_its_own_time_and_notified_for_an_hour(
    recorder: Recorder, age: float, *, silent: bool
) -> None:
    found = finding(time=NOW - age, late=True)
    recorder.accept(found).accept(over(found)._replace(time=NOW - age + 60), at=1).tick(2)
    assert [record.silenced for record in recorder.records] == [silent] * len(recorder.records)
    assert recorder.records[0].started == NOW - age
    assert recorder.records[-1].ended == (NOW - age + 60 if silent else None)
    recorder.tick(300)
    assert recorder.records[-1].ended is not None


def test_an_open_finding_keeps_firing(recorder: Recorder) -> None:
    recorder.accept(finding()).tick(3600)
    assert recorder.firing == {CRITICAL: 1.0}
    recorder.accept(over(finding()), at=3601).tick(3602)
    assert recorder.firing == {CRITICAL: 0.0}
    assert [record.ended for record in recorder.records] == [None, NOW + 3602]


def test_a_finding_that_returns_within_two_minutes_is_the_same_alert(recorder: Recorder) -> None:
    recorder.accept(finding()).accept(over(finding()), at=3).accept(finding(time=NOW + 100), at=100).tick(500)
    assert recorder.firing == {CRITICAL: 1.0}
    assert recorder.begun() == {"NonFinite": 1.0}


def test_a_finding_that_returns_later_is_a_new_alert(recorder: Recorder) -> None:
    recorder.accept(finding()).accept(over(finding()), at=3).tick(130).accept(finding(time=NOW + 140), at=140)
    assert recorder.firing == {CRITICAL: 1.0}
    assert recorder.begun() == {"NonFinite": 2.0}
    assert [record.started for record in recorder.records] == [NOW, NOW, NOW + 140]


@pytest.mark.parametrize(("alert", "seconds"), [("TestAlert", 120), ("UserAlert", 900)])
def test_an_event_ends_after_its_duration(recorder: Recorder, alert: str, seconds: int) -> None:
    recorder.accept(finding(alert, severity="info", once=True)).tick(seconds - 1)
    assert set(recorder.firing.values()) == {1.0}
    recorder.tick(seconds)
    assert set(recorder.firing.values()) == {0.0}


def test_a_scrape_has_the_texts_of_what_fires_and_the_page_of_its_run(recorder: Recorder) -> None:
    recorder.accept(finding(rank=1, run="a b")).tick(1)
    (text,) = recorder.texts
    assert text[: len(alert_families.FIRING.labels)] == ("NonFinite", "critical", "name-a b", "1", "loss", *[""] * 7)
    assert text[len(alert_families.FIRING.labels) :] == (
        "rank 1",
        "look",
        "2023-11-14 22:13:20 UTC",
        "node1",
        "a b",
        "https://node1/runs/a%20b",
        "",
    )
    recorder.accept(over(finding(rank=1, run="a b")), at=2).tick(130)
    assert recorder.texts == []


def test_the_life_cycle_of_a_run_is_in_notifications_only(recorder: Recorder) -> None:
    recorder.accept(finding("RunStarted", severity="info", once=True)).tick(1)
    assert [one.alert for one in recorder.records] == ["RunStarted"]
    assert (recorder.firing, recorder.begun()) == ({}, {})
    firing = FiringAlerts()
    firing.accept(Batch("alerts", records=recorder.records))
    assert firing.now() == []


def test_the_alerts_of_a_run_that_ends_are_history_at_once_and_scrapes_still_see_them(recorder: Recorder) -> None:
    recorder.accept(finding(), finding(run="other"), finding(rank=1)).accept(
        over(finding()), over(finding(run="other")), at=1
    )
    done = finding("RunFinished", severity="info", once=True)
    recorder.accept(over(finding(rank=1)), finding("UserAlert", once=True), done, at=2).tick(3)
    ends = {(one.alert, one.run, one.ended) for one in recorder.records if one.ended}
    assert ends == {("NonFinite", "id", NOW + 2), ("UserAlert", "id", NOW + 2)}
    assert recorder.firing[CRITICAL] == 1.0
    recorder.tick(130)
    assert recorder.firing[CRITICAL] == 0.0


def test_an_event_with_another_summary_is_a_separate_alert(recorder: Recorder) -> None:
    recorder.accept(finding("UserAlert", once=True)._replace(summary="first"))
    recorder.accept(finding("UserAlert", once=True, time=NOW + 70)._replace(summary="second"), at=70)
    recorder.accept(finding("UserAlert", once=True, time=NOW + 70)._replace(summary="second"), at=70)
    assert [record.summary for record in recorder.records] == ["first", "second"]
    recorder.tick(70 + 899)
    assert set(recorder.firing.values()) == {1.0}


def test_a_finding_that_is_repeated_with_more_known_changes_the_description_of_its_alert(recorder: Recorder) -> None:
    recorder.accept(finding(), finding(rank=1)).accept(finding(rank=1)._replace(description="the disk is full"), at=1)
    recorder.accept(finding(rank=1, time=NOW + 2)._replace(description="again"), at=2).tick(3)
    assert [one.description for one in recorder.records] == ["look", "the disk is full"]
    assert recorder.records[-1].summary == "rank 0; also on rank 1"


def test_a_stall_that_returns_has_its_own_evidence_and_no_earlier_conclusion(recorder: Recorder) -> None:
    first = finding("TrainingStalled", evidence={"since": 1.0})
    fired = recorder.accept(first).tick(1).records[0]
    note = AlertNote(fired.alert, fired.started, fired.run, fired.labels, {"conclusion": "rank 1 is late"})
    recorder.record(recorder.active.conclude([note]))
    assert recorder.records[-1].description == "rank 1 is late look"
    recorder.accept(over(first), at=2)
    recorder.accept(finding("TrainingStalled", time=NOW + 3, evidence={"since": 2.0}), at=3)
    last = recorder.records[-1]
    assert (last.description, last.started, last.evidence["since"]) == ("look", NOW, 2.0)
    assert last.evidence.keys() == {"since", "occurrences"}


def test_a_stall_that_returns_before_the_next_tick_or_of_another_rank_has_no_earlier_conclusion(
    recorder: Recorder,
) -> None:
    for alert, rank in (("TrainingStalled", 0), ("RankSilent", 1)):
        first = finding(alert, severity="warning", evidence={"since": 1.0})
        fired = recorder.accept(first).tick(1).records[-1]
        note = AlertNote(fired.alert, fired.started, fired.run, fired.labels, {"conclusion": "rank 1 is late"})
        recorder.record(recorder.active.conclude([note]))
        recorder.accept(over(first)._replace(evidence={"recovered": NOW + 2}), at=2)
        recorder.accept(finding(alert, rank=rank, time=NOW + 2.5, severity="warning", evidence={"since": 2.0}), at=2.5)
        assert recorder.records[-1].description == "look"
        recorder.accept(finding(alert, rank=rank, time=NOW + 9, evidence={"since": 2.0}), at=9)
        last = recorder.records[-1]
        assert (last.severity, last.started, last.description) == ("critical", NOW, "look")
        assert last.evidence.keys() == {"since", "occurrences"}


@pytest.mark.parametrize("alert", ["TrainingProcessDied", "NonFinite"])
def test_a_critical_alert_that_comes_again_is_sent_with_what_is_gathered_of_it_then(
    recorder: Recorder, alert: str
) -> None:
    escalation = Escalation()
    fired = recorder.accept(finding(alert)).tick(1).records[0]
    assert escalation.of(fired) == "begun"
    note = AlertNote(fired.alert, fired.started, fired.run, fired.labels, {"conclusion": "One.", "addition": "Two."})
    recorder.record(recorder.active.conclude([note]))
    assert (escalation.of(recorder.records[-1]), recorder.records[-1].description) == (None, "One. look Two.")
    recorder.accept(over(finding(alert)), at=2)
    recorder.accept(finding(alert, time=NOW + 90)._replace(summary="anew"), at=90)
    last = recorder.records[-1]
    assert (last.started, last.description, awaits(alert, last.evidence)) == (NOW, "look", True)
    assert (escalation.of(last), escalation.of(last)) == ("again", None)


def test_what_the_evidence_adds_ends_the_description_also_after_a_restart(recorder: Recorder) -> None:
    fired = recorder.accept(finding()).tick(1).records[0]
    for texts in (
        {"conclusion": "Step 7."},
        {"addition": "Saved at 5."},
        {"addition": "Saved at 6."},
        {"addition": ""},
    ):
        note = AlertNote(fired.alert, fired.started, fired.run, fired.labels, texts)
        recorder.record(recorder.active.conclude([note]))
    assert [one.description for one in recorder.records[1:]] == [
        "Step 7. look",
        "Step 7. look Saved at 5.",
        "Step 7. look Saved at 6.",
    ]
    assert "Step 7. look" in recorder.texts[0], "/metrics, which asks for no token, lacks what the training printed"
    kept = recorder.records[-1]
    again = Recorder()
    again.active.restore([kept], NOW + 3)
    again.accept(finding("LossSpike")).accept(finding(time=NOW + 5, rank=1), at=5).tick(6)
    restored = [one for one in again.records if one.alert == "NonFinite"]
    assert [one.description for one in restored] == [kept.description]


def test_a_death_of_a_rank_that_had_made_more_steps_has_the_last_one(recorder: Recorder) -> None:
    died = finding("TrainingProcessDied")._replace(summary="rank 0, at step 289 or later, was killed")
    recorder.accept(died, finding("TrainingProcessDied", rank=1)).tick(1)
    sent = notification_of(recorder.records[-1])
    recorder.accept(died._replace(summary="rank 0, at step 297 or later, was killed"), at=2)
    last = recorder.records[-1]
    assert last.summary == "rank 0, at step 297 or later, was killed; also on rank 1"
    assert notification_of(last) == sent, "it is no news"
    recorder.accept(finding("TrainingProcessDied", rank=1)._replace(summary="rank 1, at step 300"), at=3).tick(4)
    assert recorder.records[-1] == last


def test_the_summary_has_the_time_of_the_recovery_until_the_problem_returns(recorder: Recorder) -> None:
    first = finding("StragglerRank")
    recorder.accept(first).tick(1)
    recorder.accept(over(first)._replace(evidence={"recovered": NOW + 2}), at=3).tick(4)
    recovered = recorder.records[-1]
    assert recovered.summary == f"{first.summary}; recovered at {moment(NOW + 2, ' %Z')}"
    assert (recovered.ended, recovered.evidence["recovered"]) == (None, NOW + 2)
    assert first_summary(recovered) == first.summary
    recorder.accept(finding("StragglerRank", time=NOW + 5), at=5).tick(6)
    assert "recovered" not in recorder.records[-1].summary
    assert "recovered" not in recorder.records[-1].evidence
    recorder.accept(over(first)._replace(evidence={"recovered": NOW + 7, "accepted": NOW + 7}), at=8).tick(9)
    stays = recorder.records[-1]
    assert stays.summary.endswith(f"; has lasted, and counts as normal since {moment(NOW + 7, ' %Z')}")
    assert first_summary(stays) == first.summary


def test_an_event_with_another_description_is_a_separate_alert(recorder: Recorder) -> None:
    for at, text in ((0, "loss 3"), (600, "loss 4"), (1200, "loss 5")):
        recorder.accept(finding("UserAlert", once=True, time=NOW + at)._replace(description=text), at=at).tick(at + 1)
    recorder.tick(1500)
    assert [(one.description, one.started - NOW, one.ended and one.ended - NOW) for one in recorder.records] == [
        ("loss 3", 0, None),
        ("loss 4", 600, None),
        ("loss 5", 1200, None),
        ("loss 3", 0, 1201),
        ("loss 4", 600, 1500),
    ]


def test_a_user_alert_retains_its_severity_across_a_restart(recorder: Recorder) -> None:
    aborted = finding("UserAlert", once=True)._replace(summary="aborted")
    saved = finding("UserAlert", once=True, severity="info", time=NOW + 60)._replace(summary="saved")
    recorder.accept(aborted).accept(saved, at=60).tick(61)
    assert recorder.firing == {("UserAlert", "critical", "0"): 1.0, ("UserAlert", "info", "0"): 1.0}
    assert [(one.severity, one.summary) for one in recorder.records] == [("critical", "aborted"), ("info", "saved")]
    after = Recorder()
    after.active.restore(recorder.records, NOW + 70)
    after.accept(saved, at=71).tick(905)
    assert after.firing == {("UserAlert", "critical", "0"): 0.0, ("UserAlert", "info", "0"): 1.0}
    assert [(one.summary, one.ended) for one in after.records] == [("aborted", NOW + 905)]


def test_the_severity_only_increases(recorder: Recorder) -> None:
    recorder.accept(finding(severity="info")).accept(finding(severity="critical"), at=1).accept(
        finding(severity="warning"), at=2
    ).tick(3)
    assert recorder.firing == {("NonFinite", "info", "0"): 0.0, CRITICAL: 1.0}
    assert [record.severity for record in recorder.records] == ["info", "critical"]
    assert recorder.begun() == {"NonFinite": 1.0}


def test_64_ranks_are_one_alert_that_names_the_first_and_counts_the_others(recorder: Recorder) -> None:
    recorder.accept(*(finding(rank=rank, time=NOW + rank % 7 / 10) for rank in range(64))).tick(1)
    assert recorder.firing == {CRITICAL: 1.0}
    assert recorder.records[-1].summary == "rank 0; also on 63 other ranks: 7, 14, 21, 28, 35, 42, 49, 56, …"
    assert recorder.records[-1].labels["rank"] == "0"
    recorder.accept(*(over(finding(rank=rank)) for rank in range(63)), at=200).tick(300)
    assert recorder.firing == {CRITICAL: 1.0}
    recorder.accept(over(finding(rank=63)), at=301).tick(302)
    assert recorder.firing == {CRITICAL: 0.0}
    assert recorder.begun() == {"NonFinite": 1.0}


def test_a_further_rank_is_recorded_with_the_next_tick_and_begins_no_alert(recorder: Recorder) -> None:
    recorder.accept(finding()).accept(finding(rank=5), at=50)
    assert len(recorder.records) == 1
    recorder.tick(51).tick(52)
    assert [record.summary for record in recorder.records] == ["rank 0", "rank 0; also on rank 5"]
    assert recorder.records[1].started == NOW


def test_a_nan_of_loss_and_gradients_is_one_alert_of_the_loss(recorder: Recorder) -> None:
    both = finding(key="grad_norm", severity="info"), finding()
    recorder.accept(*both).tick(1)
    assert recorder.firing == {CRITICAL: 1.0}
    assert recorder.records[-1].summary == "rank 0; also of grad_norm"
    recorder.accept(finding(key="grad_norm", rank=1), finding(rank=1), at=2).tick(3)
    assert recorder.records[-1].summary == "rank 0; also of grad_norm and on rank 1"
    recorder.accept(over(finding()), over(finding(rank=1)), over(both[0]), at=4).tick(200)
    assert recorder.firing == {CRITICAL: 1.0}
    recorder.accept(over(finding(key="grad_norm", rank=1)), at=201).tick(202)
    assert recorder.firing == {CRITICAL: 0.0}


def test_runs_and_keys_have_separate_alerts(recorder: Recorder) -> None:
    recorder.accept(finding("LossSpike"), finding("LossSpike", run="other"), finding("LossSpike", key="loss/lm")).tick(
        1
    )
    assert sum(value for (metric, _), value in recorder.page.items() if metric is alert_families.FIRING) == 3


@pytest.mark.parametrize(
    ("cause", "effect", "rank"),
    [(rule.source, target, 1 if rule.within == "run" else 0) for rule in INHIBITION_RULES for target in rule.targets],
)
def test_a_consequence_is_inhibited(recorder: Recorder, cause: str, effect: str, rank: int) -> None:
    recorder.accept(finding(effect, rank=rank), finding(cause)).accept(over(finding(cause)), at=50)
    recorder.accept(finding(effect, rank=rank), at=169)
    assert {alert for alert, *_ in recorder.firing} == {cause}
    recorder.tick(171).accept(finding(effect, rank=rank), at=171)
    assert {alert for alert, *_ in recorder.firing} == {cause, effect}


def test_a_nan_of_one_rank_does_not_inhibit_a_spike_of_another(recorder: Recorder) -> None:
    recorder.accept(finding(), finding("LossSpike", rank=1), finding("LossSpike", run="other"))
    assert {(alert, rank) for alert, _, rank in recorder.firing} == {
        ("NonFinite", "0"),
        ("LossSpike", "1"),
        ("LossSpike", "0"),
    }


def test_a_disabled_alert_neither_fires_nor_inhibits() -> None:
    recorder = Recorder(["NonFinite", "LossSpike@name-debug*"])
    recorder.accept(finding(), finding("LossSpike", run="debug-7"), finding("LossSpike")).tick(1)
    assert list(recorder.firing) == [("LossSpike", "critical", "0")]
    recorder.active.disabled = DisabledAlerts(["LossSpike", "NonFinite"])
    recorder.tick(2)
    assert list(recorder.firing.values()) == [0.0]


def test_an_open_finding_fires_when_its_alert_is_enabled_again() -> None:
    recorder = Recorder(["NonFinite"]).accept(finding(), finding("LossSpike", rank=1), finding(rank=2, run="over"))
    recorder.accept(over(finding(rank=2, run="over")), at=1).tick(2)
    assert set(recorder.firing) == {("LossSpike", "critical", "1")}
    recorder.active.disabled = DisabledAlerts(["LossSpike"])
    recorder.tick(3)
    assert recorder.firing == {("LossSpike", "critical", "1"): 0.0, CRITICAL: 1.0}
    recorder.active.disabled = DisabledAlerts()
    recorder.tick(4)
    assert recorder.firing == {("LossSpike", "critical", "1"): 1.0, CRITICAL: 1.0}
    assert [(one.alert, one.started - NOW, one.ended) for one in recorder.records] == [
        ("LossSpike", 0, None),
        ("LossSpike", 0, NOW + 3),
        ("NonFinite", 0, None),
        ("LossSpike", 3, None),
    ]


def test_a_consequence_that_outlasts_its_inhibition_fires(recorder: Recorder) -> None:
    recorder.accept(finding(), finding("LossSpike"), finding("LossDiverging")).accept(over(finding()), at=50)
    recorder.accept(over(finding("LossSpike")), at=60).tick(170)
    assert {alert for alert, *_ in recorder.firing} == {"NonFinite"}
    recorder.tick(171)
    assert recorder.firing["LossDiverging", "critical", "0"] == 1.0
    recorder.tick(500)
    assert "LossSpike" not in {alert for alert, *_ in recorder.firing}


@pytest.mark.parametrize(("since", "reports"), [(-50.0, False), (59.0, False), (61.0, True)])
def test_a_death_does_not_inhibit_a_later_stall(recorder: Recorder, since: float, reports: bool) -> None:
    stalled = finding("TrainingStalled", time=NOW + 400, evidence={"since": NOW + since})
    recorder.accept(finding("TrainingProcessDied", rank=1)).accept(stalled, at=400)
    assert (("TrainingStalled", "critical", "0") in recorder.firing) is reports


@pytest.mark.parametrize("cause", ["TrainingProcessDied", "OomKilled"])
@pytest.mark.parametrize(("attempt", "reports"), [(0, False), (1, True), (None, False)])
def test_a_death_does_not_inhibit_a_stall_of_the_next_attempt(
    recorder: Recorder, cause: str, attempt: int | None, reports: bool
) -> None:
    """The next attempt has begun four seconds after the death, and hangs eight seconds later."""
    death = finding(cause, rank=1)._replace(attempt=0)
    recorder.accept(death).accept(over(death), at=4)
    for at in (28, 29):  # seconds
        stalled = finding("TrainingStalled", time=NOW + at, evidence={"since": NOW + 12})._replace(attempt=attempt)
        recorder.accept(stalled, at=at).tick(at)
    assert (("TrainingStalled", "critical", "0") in recorder.firing) is reports


def test_an_alert_inhibits_a_consequence_found_before_it_in_the_same_batch(recorder: Recorder) -> None:
    recorder.accept(
        finding("LossRestart", severity="info", time=NOW),
        finding("LossSpike", severity="warning", time=NOW + 0.1),
        finding("LossDiverging", severity="warning", time=NOW + 0.9),
    )
    assert set(recorder.firing) == {("LossDiverging", "warning", "0")}


def test_a_restored_alert_keeps_firing_and_is_not_counted_again(recorder: Recorder) -> None:
    before = Recorder().accept(finding(), finding(rank=3)).tick(1).records[-1]
    recorder.active.restore([before], NOW + 10)
    recorder.tick(11)
    assert recorder.firing == {CRITICAL: 1.0}
    recorder.accept(finding(time=NOW + 12), finding(rank=3, time=NOW + 12), at=12).tick(13)
    assert {(record.started, record.ended, record.summary) for record in recorder.records} == {
        (NOW, None, "rank 0; also on rank 3")
    }
    assert recorder.begun() == {}
    recorder.tick(3600)
    assert recorder.firing == {CRITICAL: 1.0}


def test_a_restored_alert_that_is_not_found_again_ends_after_five_minutes(recorder: Recorder) -> None:
    recorder.active.restore(Recorder().accept(finding()).records, NOW + 10)
    recorder.tick(309)
    assert recorder.firing == {CRITICAL: 1.0}
    recorder.tick(310)
    assert recorder.firing == {CRITICAL: 0.0}
    assert [record.ended for record in recorder.records] == [NOW + 310]


def test_a_flood_is_bounded_and_counted() -> None:
    recorder = Recorder(most=10)
    assert MAX_ALERTS == 1000
    recorder.accept(*(finding("LossPlateau", key=f"loss/{number}") for number in range(15)))
    assert sum(value for (metric, _), value in recorder.page.items() if metric is alert_families.FIRING) == 10
    assert recorder.page[alert_families.EXCESS, ()] == 5.0
    assert recorder.tick(2).page[alert_families.EXCESS, ()] == 5.0
    recorder.accept(*(over(finding("LossPlateau", key=f"loss/{number}")) for number in range(15))).tick(120)
    recorder.accept(finding(key="more"), at=121)
    assert sum(value for (metric, _), value in recorder.page.items() if metric is alert_families.FIRING) == 1


def test_a_flood_without_room_does_not_search_all_alerts(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(most=10)
    polls: list[ActiveAlert] = []
    priority = ActiveAlert.priority
    monkeypatch.setattr(ActiveAlert, "priority", property(lambda self: polls.append(self) or priority.fget(self)))  # type: ignore[attr-defined, func-returns-value]
    recorder.accept(*(finding("LossPlateau", severity="warning", key=f"loss/{number}") for number in range(1000)))
    assert len(polls) < 50
    recorder.accept(finding(key="worse")).tick(1)
    assert recorder.firing["NonFinite", "critical", "0"] == 1.0
    assert recorder.page[alert_families.EXCESS, ()] == 991.0


def test_a_rejected_finding_fires_when_there_is_room() -> None:
    recorder = Recorder(most=2)
    first, second, third = (finding("LossPlateau", key=f"loss/{number}") for number in range(3))
    recorder.accept(first, second, third).accept(over(first), at=1).tick(119)
    assert [one.labels["key"] for one in recorder.records] == ["loss/0", "loss/1"]
    recorder.tick(120)
    assert [(one.labels["key"], one.ended) for one in recorder.records[2:]] == [
        ("loss/0", NOW + 120),
        ("loss/2", None),
    ]


def test_a_less_severe_alert_gives_up_its_place_and_returns() -> None:
    recorder = Recorder(most=2)
    info, warning = finding("LossPlateau", severity="info"), finding("LossSpike", severity="warning")
    recorder.accept(info, warning).accept(finding(), finding("LossPlateau", severity="info", key="other"), at=1).tick(2)
    assert recorder.firing == {("LossSpike", "warning", "0"): 1.0, CRITICAL: 1.0}
    assert [(one.alert, one.ended) for one in recorder.records[2:]] == [("LossPlateau", NOW + 1), ("NonFinite", None)]
    recorder.accept(over(warning), at=3).tick(120)
    assert recorder.firing == {("LossPlateau", "info", "0"): 1.0, CRITICAL: 1.0}


def test_suppressed_findings_are_bounded_and_the_least_severe_is_dropped() -> None:
    some = suppressed.SuppressedFindings(2)
    for one in (
        finding("LossPlateau", severity="info"),
        finding(),
        finding("LossSpike", once=True),
        finding("LossSpike"),
    ):
        some.add(one)
    assert list(some) == [finding(), finding("LossSpike")]
    some.discard(finding())
    assert list(some) == [finding("LossSpike")]


def test_in_a_flood_only_ticks_render_the_page(recorder: Recorder) -> None:
    reported = [recorder.active.accept([finding("LossPlateau", key=f"loss/{number}")], NOW) for number in range(500)]
    assert {(len(batches), len(batches[0].samples), batches[0].complete) for batches in reported} == {(1, 4, False)}
    assert sum(value for value in recorder.tick(1).firing.values()) == 1
    assert len([one for metric, one in recorder.page if metric is alert_families.FIRING]) == 500


def test_an_alert_that_gets_worse_hides_no_other_with_the_same_series(recorder: Recorder) -> None:
    labels = (("rank", "0"), ("run", "same"))
    one, other = (Finding("GpuHot", "warning", labels, NOW, "hot", run=run) for run in ("id", "other"))
    recorder.accept(one, other).accept(one._replace(severity="critical"), at=1)
    assert recorder.firing == {("GpuHot", "warning", "0"): 1.0, ("GpuHot", "critical", "0"): 1.0}
    recorder.accept(over(other), at=2).tick(120)
    assert recorder.firing == {("GpuHot", "warning", "0"): 0.0, ("GpuHot", "critical", "0"): 1.0}


def test_an_alert_of_the_machine_has_a_subject(recorder: Recorder) -> None:
    about = (("device", "/dev/sda"), ("gpu", "3"), ("uuid", "GPU-1"))
    recorder.accept(Finding("DiskFilling", "warning", about, NOW, "full"))
    assert (
        alert_families.FIRING,
        ("DiskFilling", "warning", "", "", "", "3", "GPU-1", *[""] * 4, "/dev/sda"),
    ) in recorder.page
    assert recorder.records[0].run == ""


def test_without_a_change_there_is_no_batch(recorder: Recorder) -> None:
    recorder.tick(0)
    assert recorder.active.tick(NOW + 1) == []
    recorder.accept(finding(), at=2)
    assert recorder.active.accept([finding()], NOW + 3) == []
    recorder.tick(4)
    assert recorder.active.tick(NOW + 5) == []


@pytest.mark.parametrize("period", [121, 1025, 2400, 3700])
def test_an_alert_that_comes_and_goes_all_day_fires_longer_each_time(recorder: Recorder, period: int) -> None:
    for at in range(0, 86_400, period):
        nan = finding(time=NOW + at)._replace(summary=f"NaN at step {at}")
        recorder.accept(nan, at=at).accept(over(nan), at=at + 1)
        for second in range(at + 1, at + period, 10):
            recorder.tick(second)
    assert len({notification_of(one) for one in recorder.records if one.ended is None}) < 40
    recorder.tick(2 * 86_400)
    assert not any(recorder.firing.values())


def test_each_time_that_a_problem_comes_again_while_its_alert_fires_is_counted_and_listed(recorder: Recorder) -> None:
    """An alert that returned fires for at least four minutes, so that a short problem may come again meanwhile."""

    def nan(at: float, step: int, **more: Any) -> Finding:
        return finding(time=NOW + at, **more)._replace(summary=f"NaN at step {step}")

    for at, step in ((0, 1000), (200, 2000)):
        recorder.accept(nan(at, step), at=at).accept(over(nan(at, step)), at=at + 1).tick(at + 120)
    assert recorder.records[-1].ended is None
    recorder.accept(nan(300, 3000), at=300).accept(nan(300, 3000, rank=1), at=300).tick(301)
    (soon,) = {one.summary for one in recorder.records[3:]}
    assert soon == "NaN at step 2000; also 1 more time, last at 22:18:20 UTC: NaN at step 3000; also on rank 1"
    recorder.accept(over(nan(300, 3000)), over(nan(300, 3000, rank=1)), at=302)
    recorder.accept(nan(430, 4000), at=430)
    last = recorder.records[-1]
    assert last.summary == "NaN at step 4000; also 2 more times, last at 22:20:30 UTC; also on rank 1"
    assert last.evidence["occurrences"] == [
        {"number": number, "time": NOW + at, "summary": f"NaN at step {step}"}
        for number, (at, step) in enumerate(((200, 2000), (300, 3000), (430, 4000)), 1)
    ]
    assert last.evidence["calm_seconds"] == (300 - 201) + (430 - 302)
    assert (last.started, last.ended, recorder.begun()) == (NOW + 200, None, {"NonFinite": 2.0})
    recorder.accept(over(nan(430, 4000)), at=431).tick(430 + 479)
    assert recorder.records[-1].ended is None, "it came again, so that it fires for twice as long as before"
    recorder.tick(430 + 480)
    assert recorder.records[-1].ended == NOW + 910
    assert len({notification_of(one) for one in recorder.records if one.started == NOW + 200}) == 3


def test_a_warning_or_an_event_that_comes_again_is_counted_but_causes_no_notification(recorder: Recorder) -> None:
    for at in (0, 100, 100):
        spike = finding("LossSpike", severity="warning", time=NOW + at)._replace(summary=f"spike at {at}")
        events = [finding("UserAlert", once=True, time=NOW + at, rank=rank)._replace(summary="bad") for rank in (0, 1)]
        recorder.accept(spike, *events, at=at)
        recorder.accept(over(spike), at=at + 1)
    recorder.tick(110)
    assert [one.summary for one in recorder.records[-2:]] == [
        "bad; also 1 more time, last at 22:15:00 UTC; also on rank 1",
        "spike at 0; also 2 more times, last at 22:15:00 UTC: spike at 100",
    ]
    assert {notification_of(one) for one in recorder.records} == {
        Notified("critical", "bad"),
        Notified("warning", "spike at 0"),
    }


def test_the_list_of_occurrences_is_bounded_and_a_restart_continues_it(recorder: Recorder) -> None:
    for at in range(40):
        spike = finding("LossSpike", severity="warning", time=NOW + at)._replace(summary=f"spike at {at}")
        recorder.accept(spike, at=at).accept(over(spike), at=at + 0.5)
    kept = recorder.tick(40).records[-1]
    assert [one["number"] for one in kept.evidence["occurrences"]] == [1, *range(22, 41)]
    again = restored(replace(kept, labels=ABOUT))
    spike = finding("LossSpike", severity="warning", time=NOW + 50)._replace(summary="spike at 50")
    again.accept(spike, at=50).tick(51)
    assert again.records == [], "found again after the restart, it is the same occurrence"
    again.accept(over(spike), at=52).accept(spike._replace(time=NOW + 60), at=60).tick(61)
    assert again.records[-1].summary.startswith("spike at 0; also 40 more times, last at 22:14:20 UTC: spike at 50")


def test_an_alert_that_returns_much_later_fires_for_two_minutes(recorder: Recorder) -> None:
    recorder.accept(finding()).accept(over(finding()), at=3).tick(120).tick(1020).tick(3720)
    recorder.accept(finding(time=NOW + 3721), at=3721).accept(over(finding()), at=3722).tick(3721 + 120)
    assert recorder.firing == {CRITICAL: 0.0}


def test_a_clock_that_is_set_back_prolongs_nothing(recorder: Recorder) -> None:
    day = -86_400
    recorder.accept(finding(severity="info"), finding("UserAlert", once=True)).accept(over(finding()), at=1)
    recorder.tick(day).tick(day + 119)
    assert set(recorder.firing.values()) == {1.0}
    recorder.tick(day + 900)
    assert set(recorder.firing.values()) == {0.0}
    recorder.tick(day + 901)
    assert recorder.firing == {}


def test_an_alert_of_a_run_that_ends_in_the_same_batch_begins_before_it_ends(recorder: Recorder) -> None:
    spike = finding("LossSpike", severity="warning")
    recorder.accept(spike, over(spike), finding("TrainingProcessDied", key="", time=NOW + 1), at=1)
    states = [(one.alert, one.ended is None) for one in recorder.records]
    assert states == [("LossSpike", True), ("LossSpike", False), ("TrainingProcessDied", True)]
    recorder.tick(2)
    assert recorder.firing[("LossSpike", "warning", "0")] == 1.0, "for scrapes, for two minutes"


def test_after_a_restart_a_scrape_sees_what_ended_shortly_before() -> None:
    ended = {"TrainingStalled": (-500, -100), "NonFinite": (-60, -30)}
    recorder = restored(
        *(Alert(name, "critical", NOW + at, "id", ABOUT, ended=NOW + end) for name, (at, end) in ended.items()),
        Alert("NonFinite", "critical", NOW - 10, "id", ABOUT),
    ).tick(1)
    assert recorder.firing == {("TrainingStalled", "critical", "0"): 0.0, CRITICAL: 1.0}
    assert recorder.records == []
    short = restored(Alert("NonFinite", "critical", NOW - 60, "id", ABOUT, ended=NOW - 30)).tick(59)
    assert short.firing == {CRITICAL: 1.0}, "it had fired for less than two minutes"
    assert short.tick(60).firing == {CRITICAL: 0.0}
    assert short.tick(871).firing == {}


def restored(*alerts: Alert) -> Recorder:
    recorder = Recorder()
    recorder.active.restore(alerts, NOW)
    return recorder


ABOUT = {"key": "loss", "rank": "0", "run": "name-id"}


def test_a_restored_alert_still_inhibits() -> None:
    recorder = restored(Alert("NonFinite", "critical", NOW - 50, "id", ABOUT)).accept(finding("LossSpike")).tick(1)
    assert recorder.firing == {CRITICAL: 1.0}


def test_a_restored_alert_ends_at_once_when_its_end_is_found() -> None:
    recorder = restored(Alert("NonFinite", "critical", NOW - 500, "id", ABOUT)).accept(over(finding())).tick(1)
    assert recorder.firing == {CRITICAL: 0.0}


def test_a_restored_event_ends_on_time() -> None:
    recorder = restored(Alert("UserAlert", "warning", NOW - 880, "id", {"run": "name-id"})).tick(19)
    assert set(recorder.firing.values()) == {1.0}
    recorder.tick(20)
    assert set(recorder.firing.values()) == {0.0}


def test_an_ended_alert_stops_inhibiting_after_a_while(recorder: Recorder) -> None:
    recorder.accept(finding()).active.disabled = DisabledAlerts(("NonFinite",))
    recorder.tick(5).accept(finding("LossSpike"), at=6)
    assert ("LossSpike", "critical", "0") not in recorder.firing
    recorder.accept(finding("LossSpike"), at=200)
    assert recorder.firing["LossSpike", "critical", "0"] == 1.0


def test_an_oom_kill_inhibits_the_ends_and_stalls_of_other_ranks(recorder: Recorder) -> None:
    recorder.accept(
        finding("OomKilled"),
        finding("TrainingProcessDied", rank=1),
        finding("TrainingStalled"),
        finding("RankSilent", rank=2),
    )
    assert {alert for alert, *_ in recorder.firing} == {"OomKilled"}


def test_begin_and_end_of_a_run_are_not_logged_here(recorder: Recorder, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    recorder.accept(*(finding(one, severity="info", once=True) for one in ("RunStarted", "RunFinished"))).tick(500)
    assert caplog.messages == []


def test_an_info_inhibits_no_warning(recorder: Recorder) -> None:
    recorder.accept(finding(severity="info", key="grad_norm"), finding("LossSpike", severity="warning", time=NOW + 1))
    assert ("LossSpike", "warning", "0") in recorder.firing


def test_an_alert_about_a_run_of_our_own_command_is_an_info() -> None:
    """A benchmark that fails says so to who started it; nobody is called."""
    known = AlertedRuns(AlertsSection())
    ours = ("/bin/python", "/bin/trackside", "benchmark", "model.pt")
    for run, command, tags in (
        ("bench", ours, ("benchmark",)),
        ("module", ("python", "-m", "trackside_daemon", "benchmark", "x"), ("benchmark",)),
        ("mine", ("python", "train.py"), ("benchmark",)),
        ("train", ("trackside", "run"), ()),
    ):
        session = opened(run, tags=tags, about=ProcessInfo(command=command))
        known.accept(Batch("sessions", records=[session]))
    active = ActiveAlerts(runs=known)
    runs = ("bench", "module", "mine", "train", "unknown")
    batches = active.accept([finding("TrainingProcessDied", run=run) for run in runs], NOW)
    records = [record for batch in batches for record in batch.records if isinstance(record, Alert)]
    severities = {record.run: record.severity for record in records}
    assert severities == {run: "info" if run in {"bench", "module"} else "critical" for run in runs}
