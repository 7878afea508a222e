"""Captures on alerts and of healthy runs, and the comparison of the two."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from histories import history, opened
from scripted_recorder import CapturesHarness, ScriptedRecorder

from trackside_daemon.captures.automatic import AGAIN_SECONDS, WARM_UP_SECONDS, AutomaticCaptures, compare
from trackside_daemon.captures.captures import DISTURBED_SECONDS, CaptureRequest
from trackside_daemon.model.capture import AlertLink, Capture
from trackside_daemon.model.families.training import MEMORY
from trackside_daemon.model.finding import Finding
from trackside_daemon.model.metric import Batch, Sample
from trackside_daemon.model.rank_process import RankProcess
from trackside_daemon.model.records import Alert, AlertNote
from trackside_daemon.model.state import State

PROCESS = RankProcess("train", "id-1", 2, 0, 0, "", 17)


class Automatic:
    """Automatic captures whose clock the test sets, of one run that trains."""

    def __init__(self) -> None:
        self.now = 0.0
        self.asked: list[CaptureRequest] = []
        self.state = State()
        self.observes = False
        self.automatic = AutomaticCaptures(
            self._ask, lambda: [PROCESS], self.state, observes=lambda _: self.observes, clock=lambda: self.now
        )

    def _ask(self, request: CaptureRequest) -> Any:
        self.asked.append(request)

    def alert(self, name: str, started: float, ended: float | None = None) -> None:
        """Begin or end an alert of the run."""
        self.automatic.accept(Batch("alerts", records=[Alert(name, "warning", started, "id-1", ended=ended)]))

    def tick(self, seconds: float) -> None:
        """Let time pass in ticks."""
        for _ in range(round(seconds)):
            self.now += 1.0
            self.automatic.tick()


def test_the_layers_of_an_observed_run_are_recorded_when_it_diverges_and_the_alert_gets_what_changed() -> None:
    one = Automatic()
    one.alert("LossSpike", 1.0)
    one.observes = True
    one.alert("GradientExplosion", 2.0)
    one.alert("GradientExplosion", 2.0)  # as it gets worse
    ((_, _, kind, _, _, options, cause, _),) = one.asked
    assert (kind, options.steps, cause) == ("layers", 100, AlertLink("GradientExplosion", 2.0, {}))
    published: list[Any] = []
    summary = {"ranks": {}, "changes": [{"text": "head, norm of gradients: 1 → 40"}]}
    compare(Capture("1", "id-1", 0, "layers", "alert", 1.0, cause=cause, summary=summary), list, published.append)
    ((note,),) = (batch.records for batch in published)
    assert note.evidence["capture"] == {"id": "1", "changes": ["head, norm of gradients: 1 → 40"]}
    one.tick(WARM_UP_SECONDS + 1)
    assert [request.kind for request in one.asked[1:]] == ["profile"]  # the speed of such a run can be healthy


def test_a_run_that_becomes_slow_is_recorded_once_for_each_cause_and_quarter_of_an_hour() -> None:
    one = Automatic()
    one.alert("ThroughputRegression", 1.0)
    one.alert("ThroughputRegression", 1.0)  # as it gets worse
    one.alert("ThroughputRegression", 1.0, ended=2.0)
    one.alert("ThroughputRegression", 3.0)
    one.alert("StragglerRank", 4.0)
    one.alert("LossSpike", 5.0)
    assert [request.cause for request in one.asked] == [
        AlertLink("ThroughputRegression", 1.0, {}),
        AlertLink("StragglerRank", 4.0, {}),
    ]
    assert {(request.run, request.attempt, request.trigger) for request in one.asked} == {("id-1", 2, "alert")}
    one.now += AGAIN_SECONDS
    one.alert("ThroughputRegression", 6.0)
    assert one.asked[2:] == [
        CaptureRequest("id-1", 2, trigger="alert", cause=AlertLink("ThroughputRegression", 6.0, {}))
    ]


def test_the_reference_is_recorded_once_after_the_warm_up_while_nothing_is_slow() -> None:
    one = Automatic()
    one.tick(WARM_UP_SECONDS / 2)
    one.alert("SlowStep", 1.0)
    one.tick(WARM_UP_SECONDS)
    one.alert("SlowStep", 1.0, ended=2.0)
    one.asked.clear()
    one.tick(WARM_UP_SECONDS - 1)
    assert one.asked == []
    one.tick(2 * WARM_UP_SECONDS)
    assert one.asked == [
        CaptureRequest("id-1", 2, trigger="alert"),
        CaptureRequest("id-1", 2, "memory", trigger="alert"),
    ]


def test_a_leak_and_a_gpu_that_is_full_have_the_memory_recorded() -> None:
    one = Automatic()
    one.alert("GpuMemoryLeak", 1.0)
    assert [(request.kind, request.cause.alert) for request in one.asked if request.cause] == [
        ("memory", "GpuMemoryLeak")
    ]
    for count in (2.0, 2.0, 3.0, 4.0):
        one.state.update(Batch("training", [Sample(MEMORY["out_of_memory"], ("train", "0", "GPU-a"), count)]))
        one.tick(1)
    assert [(request.kind, request.cause.alert) for request in one.asked[1:] if request.cause] == [
        ("memory", "DeviceOutOfMemory")
    ]


def test_the_alert_gets_its_capture_and_what_changed_since_the_reference() -> None:
    reference = Capture("reference", "id-1", 0, "profile", "alert", 1.0, state="summarised")
    reference_summary = ScriptedRecorder.summarize({0: Path()})
    published: list[AlertNote] = []
    cause = AlertLink("SlowStep", 5.0, {"run": "train"})
    slow = Capture("slow", "id-1", 0, "profile", "alert", 6.0, cause=cause, summary={"ranks": {}})
    stored = [Capture("reference", "id-1", 0, "profile", "alert", 1.0, state="summarised", summary=reference_summary)]
    (ended,) = compare(slow, lambda: stored, lambda batch: published.extend(batch.records))  # type: ignore[arg-type]
    assert (ended.summary["reference"], ended.summary["difference"]) == ("reference", [])
    evidence = {"capture": {"id": "slow", "changes": []}}
    assert published == [AlertNote("SlowStep", 5.0, "id-1", {"run": "train"}, evidence)]
    assert compare(reference, list, lambda _: None) == [reference]


def test_without_a_reference_the_healthy_window_after_the_recovery_serves() -> None:
    published: list[AlertNote] = []
    summary = ScriptedRecorder.summarize({0: Path()})
    cause = AlertLink("SlowStep", 5.0, {"run": "train"})
    slow = Capture("slow", "id-1", 0, "profile", "alert", 6.0, cause=cause, state="summarised", summary=summary)
    reference = Capture("later", "id-1", 0, "profile", "alert", 9.0, state="summarised", summary=summary)
    first, late = compare(reference, lambda: [slow], lambda batch: published.extend(batch.records))  # type: ignore[arg-type]
    assert first == reference
    assert (late.id, late.summary["reference"], late.summary["difference"]) == ("slow", "later", [])
    assert [note.alert for note in published] == ["SlowStep"]


def test_an_alert_that_a_capture_may_cause_waits_until_it_is_over(tmp_path: Path, monkeypatch: Any) -> None:
    def slow(alert: str, run: str = "id-1") -> Finding:
        return Finding(alert, "warning", (("run", "train"),), 1.0, "slow", run=run)

    with history(tmp_path) as kept:
        kept.put([opened("id-1")])
        harness = CapturesHarness(kept.database, kept.writer)
        assert not harness.captures.disturbs(slow("SlowStep"))
        harness.recorder.released.clear()
        begun = harness.captures.begin(CaptureRequest("id-1", 0))
        assert harness.recorder.began.wait(60)
        assert harness.captures.disturbs(slow("SlowStep"))
        assert not harness.captures.disturbs(slow("LossSpike"))
        assert not harness.captures.disturbs(slow("SlowStep", "id-2"))
        harness.recorder.released.set()
        harness.wait(begun.id)
        harness.captures.stop()
    ended = time.monotonic()
    for moment, waits in ((ended + DISTURBED_SECONDS / 2, True), (ended + DISTURBED_SECONDS + 0.1, False)):
        monkeypatch.setattr("trackside_daemon.captures.captures.time.monotonic", lambda moment=moment: moment)
        assert harness.captures.disturbs(slow("SlowStep")) is waits
