"""Silences: matching, and their effect on active alerts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trackside_daemon.alerts.active_alerts import ActiveAlerts
from trackside_daemon.alerts.disabled import DisabledAlerts
from trackside_daemon.alerts.silences import (
    MAX_SILENCES,
    Silences,
    TooManySilencesError,
    matches,
    silenced_until,
    with_silenced_until,
)
from trackside_daemon.model.families import alerts
from trackside_daemon.model.finding import Finding
from trackside_daemon.model.records import Alert, Notified, Silence

NOW = 1_700_000_000.0
LABELS = (("key", "loss"), ("rank", "0"), ("run", "net[1]"))
NAN = Finding("NonFinite", "critical", LABELS, NOW, "NaN", "look", run="id")
SERIES = ("NonFinite", "critical", "net[1]", "0", "loss", *[""] * 7)


def silence(until: float = 3600.0, id_: str = "1", **labels: str) -> Silence:
    return Silence(id_, labels, NOW, NOW + until)


class Recorder:
    """Active alerts with silences, and their latest page."""

    def __init__(self, *kept: Silence, off: tuple[str, ...] = ()) -> None:
        self.silences = Silences(kept)
        self.active = ActiveAlerts(DisabledAlerts(off), self.silences)
        self.page: dict[object, object] = {}

    def accept(self, *findings: Finding, at: float = 0.0) -> list[Alert]:
        """Return the changed alerts."""
        batches = [*self.active.accept(findings, NOW + at), *self.active.tick(NOW + at)]
        for batch in batches:
            self.page = {(one.metric, one.labels): one.value for one in batch.samples}
        return [record for batch in batches for record in batch.records if isinstance(record, Alert)]

    def restore(self, kept: list[Alert], now: float) -> None:
        self.active.restore(self.silences.mark(kept, now), now)

    @property
    def shown(self) -> tuple[object, object]:
        """Firing and silenced series of the NaN alert; None if absent."""
        return self.page.get((alerts.FIRING, SERIES)), self.page.get((alerts.SILENCED, SERIES))


@pytest.mark.parametrize(
    "labels",
    [
        {},
        {"alert": "NonFinite"},
        {"alert": "Non*"},
        {"alert": "*", "run": "net[1]"},
        {"run": "net[?]", "rank": "0"},
        {"run": "*", "key": "l??s"},
    ],
)
def test_a_silence_matches_if_all_its_patterns_match(labels: dict[str, str]) -> None:
    assert matches(Silence("1", labels, NOW, NOW + 60), "NonFinite", dict(LABELS))


@pytest.mark.parametrize(
    "labels",
    [{"alert": "nonfinite"}, {"run": "net1"}, {"alert": "NonFinite", "rank": "1"}, {"gpu": "*"}, {"rank": "0?"}],
)
def test_a_silence_does_not_match_if_a_pattern_fails_or_a_label_is_missing(labels: dict[str, str]) -> None:
    assert not matches(Silence("1", labels, NOW, NOW + 60), "NonFinite", dict(LABELS))


def test_the_last_silence_to_end_counts_and_only_for_what_fires() -> None:
    lasting = [silence(60, run="net*"), silence(90, "2", alert="NonFinite"), silence(600, "3", alert="Other")]
    assert silenced_until(lasting, "NonFinite", dict(LABELS)) == NOW + 90
    recorder = {"alert": "NonFinite", "labels": dict(LABELS), "ended": None}
    assert [one["silenced_until"] for one in with_silenced_until([recorder, {**recorder, "ended": NOW}], lasting)] == [
        NOW + 90,
        None,
    ]


def test_silences_are_limited_and_ended_ones_make_room() -> None:
    silences = Silences()
    for number in range(MAX_SILENCES):
        silences.add(silence(60 + number, str(number)))
    silences.add(silence(100, "0"))
    with pytest.raises(
        TooManySilencesError, match="100 silences are active already; end one with trackside silence --end ID"
    ):
        silences.add(silence(60, "more"))
    silences.add(replace(silence(600, "more"), started=NOW + 62))
    assert len(silences.active(NOW + 62)) == MAX_SILENCES - 1


def test_a_silence_ends_at_once_and_cannot_be_ended_again() -> None:
    silences = Silences([silence(run="*")])
    assert silences.mutes("NonFinite", dict(LABELS), NOW)
    assert silences.end("1", NOW + 5) == replace(silence(run="*"), until=NOW + 5)
    assert not silences.mutes("NonFinite", dict(LABELS), NOW + 5)
    assert silences.end("1", NOW + 6) is None
    assert silences.end("2", NOW + 6) is None


def test_an_alert_under_a_silence_fires_and_is_marked_as_silenced() -> None:
    recorder = Recorder(silence(run="net*"))
    (alert,) = recorder.accept(NAN)
    assert (alert.silenced, alert.ended) == (True, None)
    assert recorder.shown == (1.0, 1.0)


def test_an_alert_is_recorded_again_when_a_silence_begins_and_ends() -> None:
    recorder = Recorder(silence(60, run="net*"))
    recorder.accept(NAN)
    assert recorder.accept(at=59) == []
    (alert,) = recorder.accept(at=60)
    assert (alert.silenced, alert.started, alert.ended) == (False, NOW, None)
    assert recorder.shown == (1.0, None)
    recorder.silences.add(replace(silence(600, "2", alert="NonFinite"), started=NOW + 70))
    (alert,) = recorder.accept(at=70)
    assert alert.silenced
    recorder.silences.end("2", NOW + 80)
    (alert,) = recorder.accept(at=80)
    assert not alert.silenced


def test_an_alert_with_another_silence_stays_silenced_when_the_first_ends() -> None:
    recorder = Recorder(silence(60, run="net*"), silence(90, "2"))
    recorder.accept(NAN)
    assert recorder.accept(at=60) == []
    assert [alert.silenced for alert in recorder.accept(at=90)] == [False]


def test_an_alert_that_ends_under_a_silence_is_not_recorded_again() -> None:
    recorder = Recorder(silence(600, run="net*"))
    recorder.accept(NAN, NAN._replace(over=True))
    (alert,) = recorder.accept(at=121)
    assert (alert.silenced, alert.ended) == (True, NOW + 121)
    assert recorder.shown == (0.0, None)
    assert recorder.accept(at=601) == []


def test_an_alert_that_is_disabled_under_a_silence_ends() -> None:
    recorder = Recorder(silence(600, run="net*"))
    recorder.accept(NAN)
    recorder.active.disabled = DisabledAlerts(["NonFinite"])
    (alert,) = recorder.accept(NAN, at=10)
    assert (alert.silenced, alert.ended) == (True, NOW + 10)
    assert recorder.accept(at=601) == []


def stored_alert(notified: tuple[str, ...] = ()) -> Alert:
    return Alert(
        "NonFinite",
        "critical",
        NOW,
        "id",
        dict(LABELS),
        "NaN",
        "look",
        notified={sink: Notified("critical", "NaN") for sink in notified},
    )


def test_a_restart_retains_a_silence() -> None:
    recorder = Recorder(silence(200, run="net*"))
    recorder.restore([stored_alert()], NOW + 30)
    assert recorder.accept(at=30) == []
    assert recorder.shown == (1.0, 1.0)
    assert [alert.silenced for alert in recorder.accept(at=200)] == [False]


@pytest.mark.parametrize(("notified", "reported_anew"), [((), 1), (("webhook",), 0)])
def test_an_alert_is_sent_when_its_silence_ended_without_a_daemon_unless_it_was_sent_before(
    notified: tuple[str, ...], reported_anew: int
) -> None:
    recorder = Recorder(silence(60, run="net*"))
    recorder.restore([stored_alert(notified)], NOW + 90)
    assert [alert.silenced for alert in recorder.accept(at=90)] == [False] * reported_anew
    assert recorder.shown == (1.0, None)


def test_an_alert_without_a_silence_is_not_recorded_again_after_a_restart() -> None:
    recorder = Recorder(silence(60, run="another"))
    recorder.restore([stored_alert()], NOW + 90)
    assert recorder.accept(at=90) == []
