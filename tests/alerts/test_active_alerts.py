"""The book: what fires, for how long, of which ranks, and what is told of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from trackside_daemon.alerts import active_alerts as module
from trackside_daemon.alerts import suppressed
from trackside_daemon.alerts.active_alert import ActiveAlert
from trackside_daemon.alerts.active_alerts import MOST, ActiveAlerts
from trackside_daemon.alerts.disabled import Off
from trackside_daemon.alerts.families import BEGUN, EXCESS, FIRING
from trackside_daemon.alerts.inhibition import CAUSES
from trackside_daemon.model.finding import Finding
from trackside_daemon.model.records import Alert

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trackside_daemon.model.metric import Batch, Metric

NOW = 1_700_000_000.0


def alarm(alert: str = "NonFinite", *, rank: int = 0, run: str = "id", time: float = NOW, **more: Any) -> Finding:
    labels = (("key", more.pop("key", "loss")), ("rank", str(rank)), ("run", f"name-{run}"))
    return Finding(alert, more.pop("severity", "critical"), labels, time, f"rank {rank}", "look", run=run, **more)


def over(one: Finding) -> Finding:
    return one._replace(over=True)


class Told:
    """A book, and what the state and the history have heard of it."""

    def __init__(self, off: Iterable[str] = ()) -> None:
        self.book = ActiveAlerts(Off(tuple(off)))
        self.page: dict[tuple[Metric, tuple[str, ...]], Any] = {}
        self.records: list[Alert] = []

    def take(self, *alarms: Finding, at: float = 0.0) -> Told:
        return self._hear(self.book.accept(alarms, NOW + at))

    def tick(self, at: float) -> Told:
        return self._hear(self.book.tick(NOW + at))

    def _hear(self, batches: list[Batch]) -> Told:
        for batch in batches:
            samples = {(one.metric, one.labels): one.value for one in batch.samples}
            self.page = samples if batch.complete else self.page | samples
            self.records += [record for record in batch.records if isinstance(record, Alert)]
        return self

    @property
    def firing(self) -> dict[tuple[str, str, str], float]:
        """By alert, severity and rank."""
        shown = {labels: value for (metric, labels), value in self.page.items() if metric is FIRING}
        return {(labels[0], labels[1], labels[3]): value for labels, value in shown.items()}

    def begun(self) -> dict[str, float]:
        return {labels[0]: value for (metric, labels), value in self.page.items() if metric is BEGUN}


@pytest.fixture
def told() -> Told:
    return Told()


CRITICAL = ("NonFinite", "critical", "0")


def test_an_alarm_fires_at_once_and_is_told_once(told: Told) -> None:
    told.take(alarm()).take(alarm(time=NOW + 1), at=1).tick(2)
    labels = ("NonFinite", "critical", "name-id", "0", "loss", "", "", "")
    assert told.page == {
        (FIRING, labels): 1.0,
        (BEGUN, ("NonFinite", "critical", "name-id")): 1.0,
        (EXCESS, ()): 0.0,
    }
    about = {"key": "loss", "rank": "0", "run": "name-id"}
    assert told.records == [Alert("NonFinite", "critical", NOW, "id", about, "rank 0", "look")]


def test_it_fires_for_two_minutes_stays_at_0_for_fifteen_and_vanishes(told: Told) -> None:
    told.take(alarm()).take(over(alarm()), at=3).tick(119)
    assert told.firing == {CRITICAL: 1.0}
    told.tick(120)
    assert told.firing == {CRITICAL: 0.0}
    assert told.records[-1].ended == NOW + 120
    assert told.records[-1].started == told.records[0].started
    told.tick(120 + 899)
    assert told.firing == {CRITICAL: 0.0}
    told.tick(120 + 900)
    assert told.page == {(EXCESS, ()): 0.0}


def test_what_is_not_over_fires_on(told: Told) -> None:
    told.take(alarm()).tick(3600)
    assert told.firing == {CRITICAL: 1.0}
    told.take(over(alarm()), at=3601).tick(3602)
    assert told.firing == {CRITICAL: 0.0}
    assert [record.ended for record in told.records] == [None, NOW + 3602]


def test_what_comes_again_within_the_two_minutes_is_the_same(told: Told) -> None:
    told.take(alarm()).take(over(alarm()), at=3).take(alarm(time=NOW + 100), at=100).tick(500)
    assert told.firing == {CRITICAL: 1.0}
    assert told.begun() == {"NonFinite": 1.0}


def test_what_comes_again_afterwards_is_another(told: Told) -> None:
    told.take(alarm()).take(over(alarm()), at=3).tick(130).take(alarm(time=NOW + 140), at=140)
    assert told.firing == {CRITICAL: 1.0}
    assert told.begun() == {"NonFinite": 2.0}
    assert [record.started for record in told.records] == [NOW, NOW, NOW + 140]


@pytest.mark.parametrize(("alert", "seconds"), [("RunRestarted", 120), ("UserAlert", 900)])
def test_what_happened_once_resolves_by_itself(told: Told, alert: str, seconds: int) -> None:
    told.take(alarm(alert, severity="info", once=True)).tick(seconds - 1)
    assert set(told.firing.values()) == {1.0}
    told.tick(seconds)
    assert set(told.firing.values()) == {0.0}


def test_what_happens_again_while_it_fires_is_told_by_its_own_words(told: Told) -> None:
    told.take(alarm("UserAlert", once=True)._replace(summary="first"))
    told.take(alarm("UserAlert", once=True, time=NOW + 70)._replace(summary="second"), at=70)
    told.take(alarm("UserAlert", once=True, time=NOW + 70)._replace(summary="second"), at=70)
    assert [record.summary for record in told.records] == ["first", "second"]
    told.tick(70 + 899)
    assert set(told.firing.values()) == {1.0}


def test_what_happens_again_under_one_title_is_told_by_its_text(told: Told) -> None:
    for at, text in ((0, "loss 3"), (600, "loss 4"), (1200, "loss 5")):
        told.take(alarm("UserAlert", once=True, time=NOW + at)._replace(description=text), at=at).tick(at + 1)
    told.tick(1500)
    assert [(one.description, one.started - NOW, one.ended and one.ended - NOW) for one in told.records] == [
        ("loss 3", 0, None),
        ("loss 4", 600, None),
        ("loss 5", 1200, None),
        ("loss 3", 0, 1201),
        ("loss 4", 600, 1500),
    ]


def test_what_a_training_raises_has_its_own_severity_before_and_after_a_restart(told: Told) -> None:
    aborted = alarm("UserAlert", once=True)._replace(summary="aborted")
    saved = alarm("UserAlert", once=True, severity="info", time=NOW + 60)._replace(summary="saved")
    told.take(aborted).take(saved, at=60).tick(61)
    assert told.firing == {("UserAlert", "critical", "0"): 1.0, ("UserAlert", "info", "0"): 1.0}
    assert [(one.severity, one.summary) for one in told.records] == [("critical", "aborted"), ("info", "saved")]
    after = Told()
    after.book.restore(told.records, NOW + 70)
    after.take(saved, at=71).tick(905)
    assert after.firing == {("UserAlert", "critical", "0"): 0.0, ("UserAlert", "info", "0"): 1.0}
    assert [(one.summary, one.ended) for one in after.records] == [("aborted", NOW + 905)]


def test_it_gets_worse_and_never_better(told: Told) -> None:
    told.take(alarm(severity="info")).take(alarm(severity="critical"), at=1).take(alarm(severity="warning"), at=2).tick(
        3
    )
    assert told.firing == {("NonFinite", "info", "0"): 0.0, CRITICAL: 1.0}
    assert [record.severity for record in told.records] == ["info", "critical"]
    assert told.begun() == {"NonFinite": 1.0}


def test_64_ranks_are_one_alert_that_names_the_first_and_counts_the_others(told: Told) -> None:
    told.take(*(alarm(rank=rank, time=NOW + rank % 7 / 10) for rank in range(64))).tick(1)
    assert told.firing == {CRITICAL: 1.0}
    assert told.records[-1].summary == "rank 0; also on 63 other ranks: 7, 14, 21, 28, 35, 42, 49, 56, …"
    assert told.records[-1].labels["rank"] == "0"
    told.take(*(over(alarm(rank=rank)) for rank in range(63)), at=200).tick(300)
    assert told.firing == {CRITICAL: 1.0}
    told.take(over(alarm(rank=63)), at=301).tick(302)
    assert told.firing == {CRITICAL: 0.0}
    assert told.begun() == {"NonFinite": 1.0}


def test_a_rank_that_joins_is_told_with_the_next_tick_and_begins_nothing(told: Told) -> None:
    told.take(alarm()).take(alarm(rank=5), at=50)
    assert len(told.records) == 1
    told.tick(51).tick(52)
    assert [record.summary for record in told.records] == ["rank 0", "rank 0; also on rank 5"]
    assert told.records[1].started == NOW


def test_a_nan_of_loss_and_gradients_is_one_alert_of_the_loss(told: Told) -> None:
    both = alarm(key="grad_norm", severity="info"), alarm()
    told.take(*both).tick(1)
    assert told.firing == {CRITICAL: 1.0}
    assert told.records[-1].summary == "rank 0; also of grad_norm"
    told.take(alarm(key="grad_norm", rank=1), alarm(rank=1), at=2).tick(3)
    assert told.records[-1].summary == "rank 0; also of grad_norm and on rank 1"
    told.take(over(alarm()), over(alarm(rank=1)), over(both[0]), at=4).tick(200)
    assert told.firing == {CRITICAL: 1.0}
    told.take(over(alarm(key="grad_norm", rank=1)), at=201).tick(202)
    assert told.firing == {CRITICAL: 0.0}


def test_runs_and_keys_are_alerts_of_their_own(told: Told) -> None:
    told.take(alarm("LossSpike"), alarm("LossSpike", run="other"), alarm("LossSpike", key="loss/lm")).tick(1)
    assert sum(value for (metric, _), value in told.page.items() if metric is FIRING) == 3


@pytest.mark.parametrize(
    ("cause", "effect", "rank"),
    [(one.alert, effect, 1 if one.within == "run" else 0) for one in CAUSES for effect in one.effects],
)
def test_what_follows_from_a_cause_is_not_told(told: Told, cause: str, effect: str, rank: int) -> None:
    told.take(alarm(effect, rank=rank), alarm(cause)).take(over(alarm(cause)), at=50)
    told.take(alarm(effect, rank=rank), at=169)
    assert {alert for alert, *_ in told.firing} == {cause}
    told.tick(171).take(alarm(effect, rank=rank), at=171)
    assert {alert for alert, *_ in told.firing} == {cause, effect}


def test_a_nan_of_one_rank_explains_no_spike_of_another(told: Told) -> None:
    told.take(alarm(), alarm("LossSpike", rank=1), alarm("LossSpike", run="other"))
    assert {(alert, rank) for alert, _, rank in told.firing} == {
        ("NonFinite", "0"),
        ("LossSpike", "1"),
        ("LossSpike", "0"),
    }


def test_what_is_off_neither_fires_nor_explains() -> None:
    told = Told(["NonFinite", "LossSpike@name-debug*"])
    told.take(alarm(), alarm("LossSpike", run="debug-7"), alarm("LossSpike")).tick(1)
    assert list(told.firing) == [("LossSpike", "critical", "0")]
    told.book.off = Off(["LossSpike", "NonFinite"])
    told.tick(2)
    assert list(told.firing.values()) == [0.0]


def test_what_lasts_fires_when_it_is_off_no_more() -> None:
    told = Told(["NonFinite"]).take(alarm(), alarm("LossSpike", rank=1), alarm(rank=2, run="over"))
    told.take(over(alarm(rank=2, run="over")), at=1).tick(2)
    assert set(told.firing) == {("LossSpike", "critical", "1")}
    told.book.off = Off(["LossSpike"])
    told.tick(3)
    assert told.firing == {("LossSpike", "critical", "1"): 0.0, CRITICAL: 1.0}
    told.book.off = Off()
    told.tick(4)
    assert told.firing == {("LossSpike", "critical", "1"): 1.0, CRITICAL: 1.0}
    assert [(one.alert, one.started - NOW, one.ended) for one in told.records] == [
        ("LossSpike", 0, None),
        ("LossSpike", 0, NOW + 3),
        ("NonFinite", 0, None),
        ("LossSpike", 3, None),
    ]


def test_what_lasts_longer_than_what_explains_it_is_told_then(told: Told) -> None:
    told.take(alarm(), alarm("LossSpike"), alarm("LossDiverging")).take(over(alarm()), at=50)
    told.take(over(alarm("LossSpike")), at=60).tick(170)
    assert {alert for alert, *_ in told.firing} == {"NonFinite"}
    told.tick(171)
    assert told.firing["LossDiverging", "critical", "0"] == 1.0
    told.tick(500)
    assert "LossSpike" not in {alert for alert, *_ in told.firing}


@pytest.mark.parametrize(("since", "tells"), [(-50.0, False), (59.0, False), (61.0, True)])
def test_a_death_explains_no_stall_of_those_who_went_on_without_it(told: Told, since: float, tells: bool) -> None:
    stalled = alarm("TrainingStalled", time=NOW + 400, evidence={"since": NOW + since})
    told.take(alarm("TrainingProcessDied", rank=1)).take(stalled, at=400)
    assert (("TrainingStalled", "critical", "0") in told.firing) is tells


def test_a_cause_explains_what_was_found_a_moment_before_it_in_the_same_batch(told: Told) -> None:
    told.take(
        alarm("LossRestart", severity="info", time=NOW),
        alarm("LossSpike", severity="warning", time=NOW + 0.1),
        alarm("LossDiverging", severity="warning", time=NOW + 0.9),
    )
    assert set(told.firing) == {("LossDiverging", "warning", "0")}


def test_what_fired_before_a_restart_fires_on_and_begins_nothing(told: Told) -> None:
    before = Told().take(alarm(), alarm(rank=3)).tick(1).records[-1]
    told.book.restore([before], NOW + 10)
    told.tick(11)
    assert told.firing == {CRITICAL: 1.0}
    told.take(alarm(time=NOW + 12), alarm(rank=3, time=NOW + 12), at=12).tick(13)
    assert {(record.started, record.ended, record.summary) for record in told.records} == {
        (NOW, None, "rank 0; also on rank 3")
    }
    assert told.begun() == {}
    told.tick(3600)
    assert told.firing == {CRITICAL: 1.0}


def test_what_fired_before_a_restart_and_is_not_found_anew_resolves_after_five_minutes(told: Told) -> None:
    told.book.restore(Told().take(alarm()).records, NOW + 10)
    told.tick(309)
    assert told.firing == {CRITICAL: 1.0}
    told.tick(310)
    assert told.firing == {CRITICAL: 0.0}
    assert [record.ended for record in told.records] == [NOW + 310]


def test_a_flood_is_bounded_and_counted(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 10)
    assert MOST == 1000
    told.take(*(alarm("LossPlateau", key=f"loss/{number}") for number in range(15)))
    assert sum(value for (metric, _), value in told.page.items() if metric is FIRING) == 10
    assert told.page[EXCESS, ()] == 5.0
    assert told.tick(2).page[EXCESS, ()] == 5.0
    told.take(*(over(alarm("LossPlateau", key=f"loss/{number}")) for number in range(15))).tick(120)
    told.take(alarm(key="more"), at=121)
    assert sum(value for (metric, _), value in told.page.items() if metric is FIRING) == 1


def test_a_flood_that_finds_no_room_costs_no_look_at_all_that_fires(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST", 10)
    looks: list[ActiveAlert] = []
    worth = ActiveAlert.worth
    monkeypatch.setattr(ActiveAlert, "worth", property(lambda self: looks.append(self) or worth.fget(self)))  # type: ignore[attr-defined, func-returns-value]
    told.take(*(alarm("LossPlateau", severity="warning", key=f"loss/{number}") for number in range(1000)))
    assert len(looks) < 50
    told.take(alarm(key="worse")).tick(1)
    assert told.firing["NonFinite", "critical", "0"] == 1.0
    assert told.page[EXCESS, ()] == 991.0


def test_what_found_no_room_fires_when_there_is_some(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 2)
    first, second, third = (alarm("LossPlateau", key=f"loss/{number}") for number in range(3))
    told.take(first, second, third).take(over(first), at=1).tick(119)
    assert [one.labels["key"] for one in told.records] == ["loss/0", "loss/1"]
    told.tick(120)
    assert [(one.labels["key"], one.ended) for one in told.records[2:]] == [
        ("loss/0", NOW + 120),
        ("loss/2", None),
    ]


def test_what_is_less_severe_gives_way_and_comes_back(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 2)
    info, warning = alarm("LossPlateau", severity="info"), alarm("LossSpike", severity="warning")
    told.take(info, warning).take(alarm(), alarm("LossPlateau", severity="info", key="other"), at=1).tick(2)
    assert told.firing == {("LossSpike", "warning", "0"): 1.0, CRITICAL: 1.0}
    assert [(one.alert, one.ended) for one in told.records[2:]] == [("LossPlateau", NOW + 1), ("NonFinite", None)]
    told.take(over(warning), at=3).tick(120)
    assert told.firing == {("LossPlateau", "info", "0"): 1.0, CRITICAL: 1.0}


def test_what_waits_is_bounded_and_the_least_severe_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suppressed, "MOST", 2)
    some = suppressed.Waiting()
    for one in (alarm("LossPlateau", severity="info"), alarm(), alarm("LossSpike", once=True), alarm("LossSpike")):
        some.put(one)
    assert list(some) == [alarm(), alarm("LossSpike")]
    some.drop(alarm())
    assert list(some) == [alarm("LossSpike")]


def test_in_a_flood_the_page_is_made_by_ticks_only(told: Told) -> None:
    said = [told.book.accept([alarm("LossPlateau", key=f"loss/{number}")], NOW) for number in range(500)]
    assert {(len(batches), len(batches[0].samples), batches[0].complete) for batches in said} == {(1, 3, False)}
    assert sum(value for value in told.tick(1).firing.values()) == 1
    assert len([one for metric, one in told.page if metric is FIRING]) == 500


def test_what_gets_worse_hides_no_other_with_the_same_series(told: Told) -> None:
    labels = (("rank", "0"), ("run", "same"))
    one, other = (Finding("GpuHot", "warning", labels, NOW, "hot", run=run) for run in ("id", "other"))
    told.take(one, other).take(one._replace(severity="critical"), at=1)
    assert told.firing == {("GpuHot", "warning", "0"): 1.0, ("GpuHot", "critical", "0"): 1.0}
    told.take(over(other), at=2).tick(120)
    assert told.firing == {("GpuHot", "warning", "0"): 0.0, ("GpuHot", "critical", "0"): 1.0}


def test_what_is_not_of_a_run_says_what_it_is_about(told: Told) -> None:
    about = (("device", "/dev/sda"), ("gpu", "3"), ("uuid", "GPU-1"))
    told.take(Finding("DiskFilling", "warning", about, NOW, "full"))
    assert (FIRING, ("DiskFilling", "warning", "", "", "", "3", "GPU-1", "/dev/sda")) in told.page
    assert told.records[0].run == ""


def test_while_nothing_changes_nothing_is_said(told: Told) -> None:
    told.tick(0)
    assert told.book.tick(NOW + 1) == []
    told.take(alarm(), at=2)
    assert told.book.accept([alarm()], NOW + 3) == []
    told.tick(4)
    assert told.book.tick(NOW + 5) == []


@pytest.mark.parametrize("period", [121, 1025, 2400, 3700])
def test_what_comes_and_goes_all_day_fires_for_longer_each_time(told: Told, period: int) -> None:
    for at in range(0, 86_400, period):
        told.take(alarm(time=NOW + at), at=at).take(over(alarm()), at=at + 1)
        for second in range(at + 1, at + period, 10):
            told.tick(second)
    assert sum(one.ended is None for one in told.records) < 40
    told.tick(2 * 86_400)
    assert not any(told.firing.values())


def test_what_comes_again_much_later_fires_for_two_minutes(told: Told) -> None:
    told.take(alarm()).take(over(alarm()), at=3).tick(120).tick(1020).tick(3720)
    told.take(alarm(time=NOW + 3721), at=3721).take(over(alarm()), at=3722).tick(3721 + 120)
    assert told.firing == {CRITICAL: 0.0}


def test_a_clock_that_is_set_back_keeps_nothing_for_longer(told: Told) -> None:
    day = -86_400
    told.take(alarm(severity="info"), alarm("UserAlert", once=True)).take(over(alarm()), at=1)
    told.tick(day).tick(day + 119)
    assert set(told.firing.values()) == {1.0}
    told.tick(day + 900)
    assert set(told.firing.values()) == {0.0}
    told.tick(day + 901)
    assert told.firing == {}


def restored(*alerts: Alert) -> Told:
    told = Told()
    told.book.restore(alerts, NOW)
    return told


ABOUT = {"key": "loss", "rank": "0", "run": "name-id"}


def test_what_a_daemon_before_has_told_explains_its_effects_still() -> None:
    told = restored(Alert("NonFinite", "critical", NOW - 50, "id", ABOUT)).take(alarm("LossSpike")).tick(1)
    assert told.firing == {CRITICAL: 1.0}


def test_what_is_said_to_be_over_after_a_restart_is_over_at_once() -> None:
    told = restored(Alert("NonFinite", "critical", NOW - 500, "id", ABOUT)).take(over(alarm())).tick(1)
    assert told.firing == {CRITICAL: 0.0}


def test_what_happened_once_before_a_restart_ends_when_it_would_have() -> None:
    told = restored(Alert("UserAlert", "warning", NOW - 880, "id", {"run": "name-id"})).tick(19)
    assert set(told.firing.values()) == {1.0}
    told.tick(20)
    assert set(told.firing.values()) == {0.0}


def test_a_cause_that_nobody_says_anything_more_of_explains_no_more(told: Told) -> None:
    told.take(alarm()).book.off = Off(("NonFinite",))
    told.tick(5).take(alarm("LossSpike"), at=6)
    assert ("LossSpike", "critical", "0") not in told.firing
    told.take(alarm("LossSpike"), at=200)
    assert told.firing["LossSpike", "critical", "0"] == 1.0


def test_a_kill_for_memory_explains_the_ends_and_the_waiting_of_the_others(told: Told) -> None:
    told.take(
        alarm("OomKilled"), alarm("TrainingProcessDied", rank=1), alarm("TrainingStalled"), alarm("RankSilent", rank=2)
    )
    assert {alert for alert, *_ in told.firing} == {"OomKilled"}


def test_begin_and_end_of_a_run_are_logged_by_who_follows_it(told: Told, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    told.take(*(alarm(one, severity="info", once=True) for one in ("RunStarted", "RunFinished"))).tick(500)
    assert caplog.messages == []
    assert set(told.firing.values()) == {0.0}


def test_what_is_information_explains_no_warning(told: Told) -> None:
    told.take(alarm(severity="info", key="grad_norm"), alarm("LossSpike", severity="warning", time=NOW + 1))
    assert ("LossSpike", "warning", "0") in told.firing
