"""PerformanceRegression: a live run that is slower than its baseline for five minutes."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
from diagnosis.test_comparison import put
from histories import BEGIN, History, finished, history

from trackside_daemon.alerts.rules.evaluation import TICK
from trackside_daemon.diagnosis import regression
from trackside_daemon.diagnosis.regression import ALERT, EVERY, Regressions
from trackside_daemon.history.record.run_changes import pin
from trackside_daemon.model.families.training import STEPS
from trackside_daemon.model.metric import Batch
from trackside_daemon.model.records import Alert

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trackside_daemon.model.finding import Finding


@pytest.fixture
def stored_history(tmp_path: Path) -> Iterator[History]:
    """A history."""
    with history(tmp_path / "history") as opened_history:
        yield opened_history


class Watch:
    """The source of a daemon whose time a test moves on."""

    def __init__(self, stored_history: History, *keys: str) -> None:
        self.now = 1000.0
        self.source = Regressions(
            stored_history.database, clock=lambda: self.now, wall=lambda: BEGIN + self.now, keys=keys
        )

    def wait(self, minutes: int) -> list[Finding]:
        """Return the findings of some minutes."""
        found: list[Finding] = []
        for _ in range(minutes):
            found += self.source.accept(Batch(TICK))
            for thread in threading.enumerate():
                if thread.name == "trackside-regressions":
                    thread.join()
            found += self.source.accept(Batch(TICK))
            self.now += EVERY
        return found


def test_a_live_run_that_stays_slower_than_its_baseline_is_found_and_its_end_too(stored_history: History) -> None:
    put(stored_history, "usual", 1, name="train")
    put(stored_history, "slow", 2, name="train", slower=1.1, ends=False)
    put(stored_history, "other", 3, ends=False)
    watch = Watch(stored_history)
    assert watch.wait(5) == []
    (found,) = watch.wait(2)
    assert (found.alert, found.severity, found.run, found.labels) == (ALERT, "info", "slow", (("run", "train"),))
    assert "1.1 times (1.0" in found.summary
    assert found.evidence["since"] == BEGIN + 1000
    assert watch.wait(3) == []
    stored_history.put([finished("slow")])
    (over,) = watch.wait(1)
    assert over.over
    assert over.labels == found.labels


def test_it_is_a_warning_against_a_pinned_baseline_and_the_same_code_is_not_found(stored_history: History) -> None:
    put(stored_history, "pinned", 1, name="train")
    stored_history.writer.call(lambda store: pin(store, "pinned")).result(60)
    put(stored_history, "usual", 4, name="train", slower=1.1)
    put(stored_history, "slow", 2, name="train", slower=1.1, ends=False)
    put(stored_history, "same", 3, name="train", ends=False)
    (found,) = Watch(stored_history).wait(8)
    assert (found.run, found.severity) == ("slow", "warning")
    assert found.evidence["baseline"] == "pinned"


def test_an_unforeseen_error_of_a_comparison_ends_nothing(
    stored_history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(regression, "read_paces", lambda _: 1 / 0)
    assert Watch(stored_history).wait(2) == []  # an error in the thread would be a failure here


def test_an_alert_of_an_earlier_daemon_continues_until_a_comparison_ends_it(stored_history: History) -> None:
    watch = Watch(stored_history)
    watch.source.restore(Alert(ALERT, "warning", BEGIN, "slow", {"run": "train"}, "slower"))
    assert [(one.over, one.run) for one in watch.wait(2)] == [(False, "slow"), (True, "slow")]


def test_rules_get_what_the_baseline_had_at_the_same_step_and_its_speed(stored_history: History) -> None:
    put(stored_history, "usual", 1, name="train")
    put(stored_history, "now", 2, name="train", ends=False)
    put(stored_history, "alone", 3, name="other", ends=False)
    watch = Watch(stored_history, "loss", STEPS.name)
    assert watch.source.baseline_value("now", "loss", 300) is None
    watch.wait(1)
    assert watch.source.baseline_value("now", "loss", 300) == pytest.approx(0.95, abs=0.2)
    assert watch.source.baseline_value("now", "loss", 9000) == pytest.approx(0.63, abs=0.2)
    assert watch.source.baseline_value("now", "loss", -1) is None
    assert watch.source.baseline_value("now", STEPS.name, 300) == pytest.approx(9.8, abs=0.5)
    assert watch.source.baseline_value("alone", "loss", 300) is None
    assert watch.source.baseline_value("alone", STEPS.name, 300) is None
